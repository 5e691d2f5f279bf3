//! The desired state of a datacenter, as a user changes it.

use std::collections::BTreeMap;

use messina_e2e::datacenter::manifest;
use serde_json::{Value, json};

/// What the user asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Desired {
    pub(super) racks: BTreeMap<String, i32>,
    pub(super) redeployment: Option<String>,
    pub(super) label: Option<String>,
    pub(super) annotation: Option<String>,
    pub(super) memory: u32,
    pub(super) log_level: &'static str,
}

impl Desired {
    pub(super) fn of(racks: &[(&str, i32)]) -> Self {
        Self {
            racks: racks.iter().map(|(rack, nodes)| ((*rack).to_owned(), *nodes)).collect(),
            redeployment: None,
            label: None,
            annotation: None,
            memory: 200,
            log_level: "info",
        }
    }

    pub(super) fn nodes(&self) -> i32 {
        self.racks.values().sum()
    }

    pub(super) fn manifest(&self) -> Value {
        let racks: Vec<(&str, i32)> = self.racks.iter().map(|(name, nodes)| (name.as_str(), *nodes)).collect();
        let mut manifest = manifest(&racks);
        let spec = &mut manifest["spec"];
        let labels: BTreeMap<&str, &String> = self.label.iter().map(|label| ("example.com/label", label)).collect();
        let annotations: BTreeMap<&str, &String> =
            self.annotation.iter().map(|annotation| ("example.com/annotation", annotation)).collect();
        spec["metadata"] = json!({"labels": labels, "annotations": annotations});
        spec["dnsDomains"] = json!(["example.com"]);
        spec["exposeOptions"] = json!({"cql": {"ingress": {}}});
        // Nodes join and leave as fast as they can: these tests are about the order of changes.
        spec["scyllaDB"]["additionalScyllaDBArguments"] = json!([
            "--sim-bootstrap-duration=200ms",
            "--sim-decommission-duration=200ms",
            format!("--default-log-level={}", self.log_level),
        ]);
        spec["rackTemplate"]["scyllaDB"]["resources"]["limits"]["memory"] = json!(format!("{}Mi", self.memory));
        if let Some(reason) = &self.redeployment {
            spec["forceRedeploymentReason"] = json!(reason);
        }
        manifest
    }
}
