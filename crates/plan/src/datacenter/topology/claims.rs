//! PersistentVolumeClaims of nodes that have left.
//!
//! The operator keeps them, annotated with the host ID of the node, until a node of the same name is to join. A node
//! must not start with the data of a node that has left.

use messina_api::names::{self, annotation::LEFT_HOST_ID};
use serde_json::json;

use crate::datacenter::{
    model::{component::Component, plan::ObjectKind, spec::MAX_NODES},
    reasons,
    state::{
        counts::{desired, nodes_to_keep},
        member::Member,
        preconditions,
        ring::Membership,
    },
    topology::steps::Steps,
};

/// Keeps or deletes the claim of a node that has left, as the specification says. Returns whether that is done.
pub(crate) fn keep_or_delete(steps: &mut Steps<'_>, member: &Member<'_>, host_id: &str) -> bool {
    let observed = steps.observed;
    let name = names::datacenter::data_claim(member.name);
    let Some(claim) = observed.claims.get(&name) else { return true };
    let namespace = &observed.datacenter.namespace;
    if claim.is_being_deleted {
        let message = format!(
            "PersistentVolumeClaim {namespace}/{name} is being deleted. The operator deletes the node's Service \
             afterwards."
        );
        steps.report_progressing(Component::Service, reasons::WAITING_FOR_CLAIM, message);
        return false;
    }
    // By now another node may have the same name and use the claim.
    steps.require_unchanged_ring(
        ObjectKind::PersistentVolumeClaim,
        &claim.reference,
        vec![preconditions::pod(observed, member.name)],
    );
    if observed.datacenter.deletes_claims_of_left_nodes {
        let message =
            format!("Deleting PersistentVolumeClaim {namespace}/{name}: its node {host_id} has left the token ring.");
        steps.delete(ObjectKind::PersistentVolumeClaim, &claim.reference, (reasons::DELETING_CLAIM, message));
        return false;
    }
    if claim.left_host_id.as_deref() == Some(host_id) {
        return true;
    }
    let message = format!(
        "Keeping PersistentVolumeClaim {namespace}/{name} of node {host_id}, which has left the token ring. The \
             operator deletes it before a node of the same name joins."
    );
    let patch = json!({"metadata": {"annotations": {LEFT_HOST_ID: host_id}}});
    steps.change(ObjectKind::PersistentVolumeClaim, &claim.reference, patch, Some((reasons::KEEPING_CLAIM, message)));
    false
}

/// Deletes kept claims whose names new nodes need.
pub(crate) fn delete_stale_claims(steps: &mut Steps<'_>) {
    let observed = steps.observed;
    for rack in &observed.datacenter.racks {
        let stateful_set = observed.datacenter.stateful_set_name(rack);
        let now = steps.replicas(&stateful_set).unwrap_or(0);
        for ordinal in now..nodes_to_keep(steps.current, rack).min(MAX_NODES) {
            let member = names::datacenter::member(&stateful_set, ordinal);
            if is_blocked_by_claim(steps, &member) {
                steps.topology.blocked_by_leftovers.insert(stateful_set.clone());
            }
        }
    }
}

/// Whether a claim keeps a new node of this name from joining. Deletes it where all other nodes confirm that its node
/// left.
fn is_blocked_by_claim(steps: &mut Steps<'_>, member: &str) -> bool {
    let observed = steps.observed;
    let name = names::datacenter::data_claim(member);
    let Some(claim) = observed.claims.get(&name) else { return false };
    let namespace = &observed.datacenter.namespace;
    let object = format!("PersistentVolumeClaim {namespace}/{name}");
    if claim.is_being_deleted && !observed.pods.contains_key(member) {
        steps.report_progressing(
            Component::StatefulSet,
            reasons::WAITING_FOR_CLAIM,
            format!("{object} is being deleted. Node {member} joins afterwards."),
        );
        return true;
    }
    let Some(host_id) = &claim.left_host_id else { return false };
    steps.needs_ring = true;
    let others = steps.ring.others(observed, member);
    match steps.ring.membership_by_all(observed, host_id, member) {
        // The Service decides whether that node has left.
        Membership::Absent if has_service_of(steps, member, host_id) => {
            let message = format!(
                "{object} contains data of node {host_id}. The operator deletes it when Service {namespace}/{member} \
                 is gone."
            );
            steps.report_progressing(Component::StatefulSet, reasons::WAITING_FOR_CLAIM, message);
        }
        Membership::Absent if observed.pods.contains_key(member) => {
            steps.report_progressing(
                Component::StatefulSet,
                reasons::WAITING_FOR_CLAIM,
                format!("{object} is in use. The operator deletes it when pod {member} is gone."),
            );
        }
        Membership::Absent => {
            let message = format!(
                "Deleting {object}: it contains data of node {host_id}, which has left the token ring. Node {member} \
                 then joins with an empty disk."
            );
            steps.report_progressing(Component::StatefulSet, reasons::DELETING_CLAIM, message.clone());
            steps.require_unchanged_ring(
                ObjectKind::PersistentVolumeClaim,
                &claim.reference,
                vec![preconditions::pod(observed, member)],
            );
            steps.delete(ObjectKind::PersistentVolumeClaim, &claim.reference, (reasons::DELETING_CLAIM, message));
        }
        Membership::Unknown if others.is_empty() => steps.report_degraded(
            Component::StatefulSet,
            reasons::STALE_CLAIM,
            format!(
                "{object} contains data of node {host_id}, which has left the token ring, and there is no node that \
                 can confirm that. Delete the claim, so that node {member} can join."
            ),
        ),
        Membership::Unknown => steps.report_progressing(
            Component::StatefulSet,
            reasons::WAITING_FOR_RING,
            format!(
                "{object} contains data of node {host_id}, which has left the token ring. Waiting for all nodes to \
                 confirm that. The operator then deletes the claim, and node {member} joins."
            ),
        ),
        Membership::Member => steps.report_degraded(
            Component::StatefulSet,
            reasons::STALE_CLAIM,
            format!(
                "{object} has annotation {LEFT_HOST_ID} for node {host_id}, but that node is in the token ring. If \
                 the annotation is wrong, remove it."
            ),
        ),
    }
    true
}

/// Whether the Service of this name belongs to the node with this host ID.
fn has_service_of(steps: &Steps<'_>, name: &str, host_id: &str) -> bool {
    steps.ring.members.iter().any(|member| member.name == name && member.host_id() == Some(host_id))
}

/// Whether the specification contains this member.
pub(crate) fn is_desired(steps: &Steps<'_>, member: &Member<'_>) -> bool {
    member.ordinal < desired(steps.observed, member.stateful_set)
}
