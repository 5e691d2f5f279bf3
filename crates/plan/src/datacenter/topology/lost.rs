//! Lost nodes: their volume is lost, or the only Kubernetes node that could attach it no longer exists.

use messina_api::names::{self, annotation::START_EMPTY, label::REPLACE};

use crate::datacenter::{
    model::{component::Component, observed::Observed},
    reasons,
    state::member::Member,
    topology::steps::Steps,
};

/// Returns why a node cannot come back, if that is certain.
pub(crate) fn find_loss(observed: &Observed, member: &Member<'_>) -> Option<String> {
    let name = names::datacenter::data_claim(member.name);
    let claim = observed.claims.get(&name).filter(|claim| !claim.is_being_deleted)?;
    let reference = format!("PersistentVolumeClaim {}/{name}", observed.datacenter.namespace);
    if claim.is_lost() {
        return Some(format!("the volume of {reference} is lost"));
    }
    let volume = claim.volume.as_ref()?;
    // A pod that the scheduler has not considered yet counts as scheduled.
    let has_kubernetes_node = observed.pods.get(member.name).is_some_and(|pod| !pod.is_unschedulable);
    let is_lost = observed.lost_volumes.contains(volume) && !has_kubernetes_node;
    is_lost.then(|| format!("the Kubernetes node of PersistentVolume {volume} ({reference}) does not exist any more"))
}

/// Whether the node has joined and its sidecar found the disk of the current pod empty.
pub(crate) fn is_emptied(observed: &Observed, member: &Member<'_>) -> bool {
    let uid = observed.pods.get(member.name).and_then(|pod| pod.reference.uid.as_deref());
    uid.is_some() && member.service.empty_disk.as_deref() == uid
}

/// Reports a node whose disk is empty. The operator does not replace it by itself: the volume may only not be mounted.
pub(crate) fn report_empty_disk(steps: &mut Steps<'_>, member: &Member<'_>) {
    let (namespace, name) = (&steps.observed.datacenter.namespace, member.name);
    let host_id = member.host_id().unwrap_or_default();
    // An annotation may contain anything, and the user copies the command into a shell.
    let start_empty = match messina_text::is_uuid(host_id) {
        true => format!(
            " Only if no other node is left from which it could be replaced, start it empty and lose its data: \
             `kubectl annotate service -n {namespace} {name} {START_EMPTY}={host_id}`."
        ),
        false => String::new(),
    };
    let message = format!(
        "Node {} ({host_id}) does not start: it has joined the token ring, but its disk is empty \
         (PersistentVolumeClaim {namespace}/{}). If the data is elsewhere, restore it and delete the pod. To replace \
         the node with an empty one: `kubectl label service -n {namespace} {name} {REPLACE}=`.{start_empty}",
        steps.node_reference(member),
        names::datacenter::data_claim(name),
    );
    // No other component depends on Storage, so the rest is still reconciled.
    steps.report_degraded(Component::Storage, reasons::DISK_IS_EMPTY, message);
}

/// Reports a lost node, and how to replace it.
pub(crate) fn report_lost_node(steps: &mut Steps<'_>, member: &Member<'_>, why: &str) {
    let namespace = &steps.observed.datacenter.namespace;
    let (node, name) = (steps.node_reference(member), member.name);
    let message = match member.host_id() {
        Some(host_id) => format!(
            "Node {node} ({host_id}) is lost: {why}. To replace it with an empty node: `kubectl label service -n \
             {namespace} {name} {REPLACE}=`. With spec.disableAutomaticOrphanedNodeReplacement: false, the operator \
             replaces lost nodes by itself."
        ),
        None => format!(
            "Node {node} cannot start: {why}. The operator has not seen it join the token ring, so there is no node \
             to replace. To give it an empty disk: `kubectl delete -n {namespace} pvc/{} pod/{name}`.",
            names::datacenter::data_claim(name)
        ),
    };
    steps.report_degraded(Component::Service, reasons::NODE_GONE, message);
}
