//! The ring as sidecars of scylla-operator report it, where its feature gate `BootstrapSynchronisation` is on. They do not answer
//! questions, so this is all that is known of the ring until the first node runs under our sidecar.

use k8s_openapi::api::core::v1::Pod;
use messina_api::{
    names::annotation::NODE_STATUS_REPORT,
    scylla::v1alpha1::{NodeStatus, ObservedNodeStatusReport},
};
use serde::Deserialize;

use super::members::Ring;
use crate::{datacenter::Observed, words};

/// What a sidecar of scylla-operator writes on the pod of its node.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Report {
    observed_nodes: Vec<ObservedNodeStatusReport>,
    error: Option<String>,
}

impl Report {
    fn of(pod: &Pod) -> Option<Self> {
        serde_json::from_str(words::annotation(pod, NODE_STATUS_REPORT)?).ok()
    }

    /// How it sees a node; none where it does not.
    fn status(&self, host_id: &str) -> Option<&NodeStatus> {
        self.observed_nodes.iter().find(|node| node.host_id.as_deref() == Some(host_id))?.status.as_ref()
    }
}

impl Ring<'_> {
    /// Whether one of our nodes may restart: no report says otherwise. If not, why.
    pub(super) fn reports_let_restart(&self, observed: &Observed) -> Result<(), String> {
        let ours = self.others(observed, "");
        let silent = ours.iter().filter(|member| !member.answers());
        let reports = silent.filter_map(|member| Some((member.name, Report::of(observed.pods.get(member.name)?)?)));
        for (name, report) in reports {
            if let Some(error) = report.error {
                return Err(format!("node {name} reports that it cannot tell how it sees the ring: {error}"));
            }
            for host_id in ours.iter().filter_map(|member| member.host_id()) {
                if report.status(host_id) != Some(&NodeStatus::Up) {
                    return Err(format!("node {name} does not report that node {} is up", self.called(host_id)));
                }
            }
        }
        Ok(())
    }
}
