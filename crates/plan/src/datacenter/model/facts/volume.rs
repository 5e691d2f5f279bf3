//! PersistentVolumes whose Kubernetes nodes do not exist any more.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

/// The suffixes of labels that are unique to each Kubernetes node, which drivers use in the node affinity of local
/// volumes.
const HOSTNAME_LABELS: [&str; 4] = ["hostname", "host", "node", "nodename"];

/// Whether a volume is local to one Kubernetes node, and no such node exists in the cluster. A zonal volume is not lost
/// with the zone's last Kubernetes node: another one may be added.
pub fn is_without_kubernetes_node<'a>(
    volume: &PersistentVolume,
    kubernetes_nodes: impl Iterator<Item = &'a ObjectMeta> + Clone,
) -> bool {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref()?.required.as_ref());
    let terms = affinity.map(|required| required.node_selector_terms.as_slice()).unwrap_or_default();
    let is_gone = |term: &NodeSelectorTerm| {
        is_for_one_kubernetes_node(term) && !kubernetes_nodes.clone().any(|one| matches(term, one))
    };
    !terms.is_empty() && terms.iter().all(is_gone)
}

fn is_for_one_kubernetes_node(term: &NodeSelectorTerm) -> bool {
    let is_named = |one: &NodeSelectorRequirement| one.operator == "In";
    let is_own_label = |one: &NodeSelectorRequirement| {
        let end = one.key.rsplit_once('/').map_or(one.key.as_str(), |(_, end)| end);
        is_named(one) && HOSTNAME_LABELS.contains(&end)
    };
    term.match_fields.iter().flatten().any(|one| is_named(one) && one.key == "metadata.name")
        || term.match_expressions.iter().flatten().any(is_own_label)
}

fn matches(term: &NodeSelectorTerm, node: &ObjectMeta) -> bool {
    let none = BTreeMap::new();
    let labels = node.labels.as_ref().unwrap_or(&none);
    let label = |key: &str| labels.get(key).map(String::as_str);
    let field = |key: &str| (key == "metadata.name").then_some(node.name.as_deref()).flatten();
    term.match_expressions.iter().flatten().all(|one| is_met(one, label(&one.key)))
        && term.match_fields.iter().flatten().all(|one| is_met(one, field(&one.key)))
}

/// Whether a requirement is met. An unknown operator counts as met: a Kubernetes node that may match is not gone.
fn is_met(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let is_among = || requirement.values.iter().flatten().any(|one| Some(one.as_str()) == value);
    match requirement.operator.as_str() {
        "In" => is_among(),
        "NotIn" => !is_among(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => true,
    }
}
