//! Nodes that start all at once: after a power loss, or when a datacenter is created on the disks of a deleted one.
//!
//! A node that has joined becomes ready only when a majority of the cluster is reachable. `OrderedReady` creates a pod
//! when the one before it is ready, so nodes of one rack would wait for each other for ever. A StatefulSet whose nodes
//! have joined is therefore `Parallel`, and the operator raises `replicas` for each node that joins. Claims carry the
//! host IDs of nodes that have joined, and the image they ran, because nothing else is left of a datacenter that was
//! deleted.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use messina_api::names::{
    self,
    annotation::{HOST_ID, JOINED_HOST_ID, LAST_IMAGE, NODE_JOINED},
    label::value::TRUE,
};
use serde_json::json;

use crate::datacenter::{
    layout::PARALLEL,
    model::{
        component::Component,
        facts::pod::NodePod,
        plan::{Deletion, FieldPatch, Note, ObjectKind, Preconditions},
        spec::MAX_NODES,
    },
    reasons,
    state::{
        Current,
        member::Member,
        preconditions,
        stateful_set::{is_being_deleted, is_parallel, replicas},
    },
};

/// Annotates claims with the host ID of their node once it has joined, and with its image, unless `changes` patches the
/// claim.
pub(crate) fn annotate_claims(current: &Current<'_>, changes: &[FieldPatch]) -> Vec<FieldPatch> {
    let observed = current.observed;
    let changes_already =
        |name: &String| changes.iter().any(|one| one.kind == ObjectKind::PersistentVolumeClaim && one.name == *name);
    let annotate = |member: &Member<'_>| {
        // The node runs on the disk that its pod has mounted and that is not being deleted.
        let pod = observed.pods.get(member.name).filter(|pod| !pod.is_being_deleted)?;
        let claim = observed.claim_of(member.name).filter(|claim| !claim.is_being_deleted)?;
        let name = Some(claim.reference.name.clone()).filter(|name| !changes_already(name))?;
        let host_id = member.host_id().filter(|_| member.has_joined() && !member.is_replaced() && is_up(pod));
        if host_id.is_none() && !claim.has_joined() {
            return None;
        }
        let mut annotations = BTreeMap::new();
        annotations.extend(host_id.map(|host_id| (JOINED_HOST_ID, host_id)));
        // Also before the pod is ready: ScyllaDB may have written to the disk already.
        annotations.extend(pod.image.as_deref().map(|image| (LAST_IMAGE, image)));
        let known = [(JOINED_HOST_ID, &claim.joined_host_id), (LAST_IMAGE, &claim.last_image)];
        annotations.retain(|key, value| !known.iter().any(|(known, is)| known == key && is.as_deref() == Some(*value)));
        (!annotations.is_empty()).then(|| FieldPatch {
            component: Component::Storage,
            kind: ObjectKind::PersistentVolumeClaim,
            name,
            uid: claim.reference.uid.clone().unwrap_or_default(),
            version: claim.reference.version.clone().unwrap_or_default(),
            patch: json!({"metadata": {"annotations": annotations}}),
            event: None,
        })
    };
    current.members().iter().filter_map(annotate).collect()
}

#[derive(Default)]
pub(crate) struct Recovery {
    pub(crate) deletions: Vec<Deletion>,
    pub(crate) progressing: Vec<Note>,
    pub(crate) degraded: Vec<Note>,
    pub(crate) preconditions: Preconditions,
}

/// Deletes a StatefulSet whose nodes wait for each other, without its pods; `rollout` recreates it. One at a time.
pub(crate) fn recovery(current: &Current<'_>) -> Recovery {
    let observed = current.observed;
    let mut recovery = Recovery::default();
    let lacks_stateful_set = |member: &Member<'_>| {
        let stateful_set = observed.stateful_sets.get(member.stateful_set);
        current.is_known(member.name) && stateful_set.is_none_or(is_being_deleted)
    };
    if has_majority(current) || current.members().iter().any(lacks_stateful_set) {
        return recovery;
    }
    let mut stuck = observed.stateful_sets.iter().filter(|(name, one)| is_stuck(current, name, one)).peekable();
    let racks = &observed.datacenter.racks;
    let is_in_spec = |name: &str| racks.iter().any(|rack| observed.datacenter.stateful_set_name(rack) == name);
    let first = stuck.peek().map(|(name, _)| (*name).clone());
    if let Some((name, stateful_set)) = stuck.find(|(name, _)| is_in_spec(name)) {
        let object = format!("StatefulSet {}/{name}", observed.datacenter.namespace);
        let message = format!(
            "Nodes of {object} wait for each other: most of the cluster is down, and Kubernetes creates their pods \
             one by one. The operator deletes the StatefulSet without its pods and recreates it with \
             podManagementPolicy {PARALLEL}."
        );
        recovery.progressing.push(Note {
            component: Component::StatefulSet,
            reason: reasons::RECREATING_STATEFUL_SET,
            message: message.clone(),
        });
        // The observed pods may be outdated, and all nodes may be up.
        let pods = current.members().iter().filter(|member| current.is_known(member.name));
        let pods = pods.map(|member| preconditions::pod(observed, member.name)).collect();
        recovery.preconditions.insert((ObjectKind::StatefulSet, name.clone()), pods);
        recovery.deletions.push(Deletion {
            component: Component::StatefulSet,
            kind: ObjectKind::StatefulSet,
            name: name.clone(),
            uid: stateful_set.metadata.uid.clone().unwrap_or_default(),
            version: Some(stateful_set.metadata.resource_version.clone().unwrap_or_default()),
            orphans: true,
            event: Some((reasons::RECREATING_STATEFUL_SET, message)),
        });
    } else if let Some(name) = first {
        // The operator would not recreate it.
        let message = format!(
            "Nodes of StatefulSet {}/{name} wait for each other: most of the cluster is down, and their rack is not \
             in the specification. Add the rack again until all nodes are up.",
            observed.datacenter.namespace
        );
        recovery.degraded.push(Note {
            component: Component::StatefulSet,
            reason: reasons::WAITING_FOR_MAJORITY,
            message,
        });
    }
    recovery
}

/// Whether more than half of the nodes that have joined are up, or none has joined.
fn has_majority(current: &Current<'_>) -> bool {
    let observed = current.observed;
    let members = current.members();
    let joined: Vec<_> = members.iter().filter(|member| current.is_known(member.name)).collect();
    let up = joined.iter().filter(|member| observed.pods.get(member.name).is_some_and(is_up)).count();
    joined.is_empty() || 2 * up > joined.len()
}

/// Whether a node that has joined has no pod because a node before it, which has joined too, is not ready.
fn is_stuck(current: &Current<'_>, name: &str, stateful_set: &StatefulSet) -> bool {
    let observed = current.observed;
    if is_parallel(stateful_set) || is_being_deleted(stateful_set) {
        return false;
    }
    let known = (0..replicas(stateful_set).min(MAX_NODES))
        .map(|ordinal| names::datacenter::member(name, ordinal))
        .filter(|member| current.is_known(member));
    let pods: Vec<Option<&NodePod>> = known.map(|member| observed.pods.get(&member)).collect();
    let first = pods.iter().position(|pod| pod.is_some_and(|pod| !is_up(pod)));
    first.is_some_and(|first| pods[first..].iter().any(Option::is_none))
}

fn is_up(pod: &NodePod) -> bool {
    pod.ready == Some(true)
}

/// Writes the host IDs of claims to Services, where a datacenter was created on the disks of a deleted one. This
/// happens before any pod starts: otherwise a node without its disk would not know that there is a ring. Returns
/// whether all Services carry them.
pub(crate) fn annotate_services(current: &Current<'_>) -> (Vec<FieldPatch>, bool) {
    let observed = current.observed;
    let disks = &current.disks;
    let unnamed = current.members().iter().filter(|member| member.host_id().is_none());
    let change = |member: &Member<'_>| {
        let host_id = disks.get(member.name)?;
        let service = &member.service.reference;
        Some(FieldPatch {
            component: Component::Service,
            kind: ObjectKind::Service,
            name: member.name.to_owned(),
            uid: service.uid.clone().unwrap_or_default(),
            version: service.version.clone().unwrap_or_default(),
            patch: json!({"metadata": {"annotations": {HOST_ID: host_id, NODE_JOINED: TRUE}}}),
            event: None,
        })
    };
    let changes: Vec<FieldPatch> = unnamed.filter_map(change).collect();
    let racks: Vec<String> =
        observed.datacenter.racks.iter().map(|rack| observed.datacenter.stateful_set_name(rack)).collect();
    let is_of_rack =
        |member: &str| member.rsplit_once('-').is_some_and(|(rack, _)| racks.iter().any(|one| one == rack));
    let are_there =
        disks.keys().filter(|member| is_of_rack(member)).all(|member| observed.services.contains_key(*member));
    let are_named = changes.is_empty() && are_there;
    (changes, are_named)
}
