//! Nodes that are gone for good: their volume is lost, or the only machine that could have it.

use messina_api::names::{self, annotation::START_EMPTY, label::REPLACE};

use crate::datacenter::{
    model::{component::Component, observed::Observed},
    state::member::Member,
    topology::steps::Steps,
};

/// Why a node cannot come back, if that is certain.
pub(crate) fn loss(observed: &Observed, member: &Member<'_>) -> Option<String> {
    let name = names::datacenter::data_claim(member.name);
    let claim = observed.claims.get(&name).filter(|claim| !claim.is_being_deleted)?;
    let reference = format!("PersistentVolumeClaim {}/{name}", observed.datacenter.namespace);
    if claim.is_lost() {
        return Some(format!("the volume of {reference} is lost"));
    }
    let volume = claim.volume.as_ref()?;
    // Also where the scheduler has not looked for one yet.
    let has_kubernetes_node = observed.pods.get(member.name).is_some_and(|pod| !pod.is_unschedulable);
    let is_lost = observed.lost_volumes.contains(volume) && !has_kubernetes_node;
    is_lost.then(|| format!("{reference} has PersistentVolume {volume}, whose machine has no Node object any more"))
}

/// Whether the node that should be on the disk of the pod is not.
pub(crate) fn is_emptied(observed: &Observed, member: &Member<'_>) -> bool {
    let uid = observed.pods.get(member.name).and_then(|pod| pod.reference.uid.as_deref());
    uid.is_some() && member.service.empty_disk.as_deref() == uid
}

/// Says what to do about a node whose disk is empty. Nothing is done without asking: the disk may only not be mounted.
pub(crate) fn tell_of_empty_disk(steps: &mut Steps<'_>, member: &Member<'_>) {
    let (namespace, name) = (&steps.observed.datacenter.namespace, member.name);
    let host_id = member.host_id().unwrap_or_default();
    // An annotation may hold anything, and a command is copied into a shell.
    let give_up = match messina_text::is_uuid(host_id) {
        true => format!(
            ". Only if no other node is left that could tell of it, give it up, and its data with it: `kubectl annotate \
             service -n {namespace} {name} {START_EMPTY}={host_id}`"
        ),
        false => String::new(),
    };
    let message = format!(
        "node {} ({host_id}) does not start: it has joined, and its disk is empty (PersistentVolumeClaim {namespace}/{}). If its data is \
         elsewhere, bring it back and delete the pod. To have an empty node take its place: `kubectl label service -n \
         {namespace} {name} {REPLACE}=`{give_up}",
        steps.named(member),
        names::datacenter::data_claim(name),
    );
    // Of a part that no other needs: the rest goes on.
    steps.fault(Component::Storage, "DiskIsEmpty", message);
}

/// Says what to do about a node that is gone for good.
pub(crate) fn tell(steps: &mut Steps<'_>, member: &Member<'_>, why: &str) {
    let namespace = &steps.observed.datacenter.namespace;
    let (node, name) = (steps.named(member), member.name);
    let message = match member.host_id() {
        Some(host_id) => format!(
            "node {node} ({host_id}) is gone for good: {why}. To have an empty one take its place: `kubectl label \
             service -n {namespace} {name} {REPLACE}=`. With spec.disableAutomaticOrphanedNodeReplacement: false, \
             that is done without asking"
        ),
        None => format!(
            "node {node} cannot start: {why}. It is not known to have joined, so there is nothing to replace; give it an \
             empty disk: `kubectl delete -n {namespace} pvc/{} pod/{name}`",
            names::datacenter::data_claim(name)
        ),
    };
    steps.fault(Component::Service, "NodeGone", message);
}
