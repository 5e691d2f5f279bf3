//! Volumes whose machines are gone.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

/// The ends of labels that are different on each machine, by which drivers say where a local volume is.
const OF_ONE_MACHINE: [&str; 4] = ["hostname", "host", "node", "nodename"];

/// Whether a volume is on one machine only, and there is no such machine among all of the Kubernetes cluster. A volume that
/// is for a zone is not lost with the zone's last machine: another one may come.
pub fn is_without_kubernetes_node<'a>(
    volume: &PersistentVolume,
    machines: impl Iterator<Item = &'a ObjectMeta> + Clone,
) -> bool {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref()?.required.as_ref());
    let terms = affinity.map(|required| required.node_selector_terms.as_slice()).unwrap_or_default();
    let is_gone = |term: &NodeSelectorTerm| names_a_machine(term) && !machines.clone().any(|one| is_for(term, one));
    !terms.is_empty() && terms.iter().all(is_gone)
}

fn names_a_machine(term: &NodeSelectorTerm) -> bool {
    let is_named = |one: &NodeSelectorRequirement| one.operator == "In";
    let is_own_label = |one: &NodeSelectorRequirement| {
        let end = one.key.rsplit_once('/').map_or(one.key.as_str(), |(_, end)| end);
        is_named(one) && OF_ONE_MACHINE.contains(&end)
    };
    term.match_fields.iter().flatten().any(|one| is_named(one) && one.key == "metadata.name")
        || term.match_expressions.iter().flatten().any(is_own_label)
}

fn is_for(term: &NodeSelectorTerm, machine: &ObjectMeta) -> bool {
    let none = BTreeMap::new();
    let labels = machine.labels.as_ref().unwrap_or(&none);
    let label = |key: &str| labels.get(key).map(String::as_str);
    let field = |key: &str| (key == "metadata.name").then_some(machine.name.as_deref()).flatten();
    term.match_expressions.iter().flatten().all(|one| holds(one, label(&one.key)))
        && term.match_fields.iter().flatten().all(|one| holds(one, field(&one.key)))
}

/// What is not understood holds: a machine that may be the one is none that is gone.
fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let is_among = || requirement.values.iter().flatten().any(|one| Some(one.as_str()) == value);
    match requirement.operator.as_str() {
        "In" => is_among(),
        "NotIn" => !is_among(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => true,
    }
}
