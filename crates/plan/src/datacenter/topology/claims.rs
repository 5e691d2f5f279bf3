//! Claims of nodes that have left.
//!
//! They are kept, with the host ID on them, until a node of the same name is to join; a node must not start with the data
//! of one that has left.

use messina_api::names::{self, annotation::LEFT_HOST_ID};
use serde_json::json;

use crate::datacenter::{
    model::{component::Component, plan::ObjectKind, spec::MAX_NODES},
    state::{
        counts::{desired, nodes_to_keep},
        member::Member,
        preconditions,
        ring::Membership,
    },
    topology::steps::Steps,
};

/// Keeps the claim of a node that has left, or deletes it, as the user says; answers whether that is done.
pub(crate) fn put_away(steps: &mut Steps<'_>, member: &Member<'_>, host_id: &str) -> bool {
    let observed = steps.observed;
    let name = names::datacenter::data_claim(member.name);
    let Some(claim) = observed.claims.get(&name) else { return true };
    let namespace = &observed.datacenter.namespace;
    if claim.is_being_deleted {
        let message =
            format!("PersistentVolumeClaim {namespace}/{name} is being deleted; then the node's Service goes");
        steps.wait(Component::Service, "WaitingForClaim", message);
        return false;
    }
    // Another node may have the name by now, and the claim.
    steps.rests_on_ring(
        ObjectKind::PersistentVolumeClaim,
        &claim.reference,
        vec![preconditions::pod(observed, member.name)],
    );
    if observed.datacenter.deletes_claims_of_left_nodes {
        let message = format!(
            "PersistentVolumeClaim {namespace}/{name} of node {host_id}, which has left, is \
             deleted"
        );
        steps.delete(ObjectKind::PersistentVolumeClaim, &claim.reference, ("DeletingClaim", message));
        return false;
    }
    if claim.left_host_id.as_deref() == Some(host_id) {
        return true;
    }
    let message = format!("PersistentVolumeClaim {namespace}/{name} of node {host_id}, which has left, is kept");
    let patch = json!({"metadata": {"annotations": {LEFT_HOST_ID: host_id}}});
    steps.change(ObjectKind::PersistentVolumeClaim, &claim.reference, patch, Some(("KeepingClaim", message)));
    false
}

/// Deletes kept claims whose names are needed for new nodes.
pub(crate) fn clear_the_way(steps: &mut Steps<'_>) {
    let observed = steps.observed;
    for rack in &observed.datacenter.racks {
        let stateful_set = observed.datacenter.stateful_set_name(rack);
        let now = steps.replicas(&stateful_set).unwrap_or(0);
        for ordinal in now..nodes_to_keep(steps.current, rack).min(MAX_NODES) {
            let member = names::datacenter::member(&stateful_set, ordinal);
            if is_in_the_way(steps, &member) {
                steps.done.in_the_way.insert(stateful_set.clone());
            }
        }
    }
}

fn is_in_the_way(steps: &mut Steps<'_>, member: &str) -> bool {
    let observed = steps.observed;
    let name = names::datacenter::data_claim(member);
    let Some(claim) = observed.claims.get(&name) else { return false };
    let namespace = &observed.datacenter.namespace;
    let object = format!("PersistentVolumeClaim {namespace}/{name}");
    if claim.is_being_deleted && !observed.pods.contains_key(member) {
        steps.wait(
            Component::StatefulSet,
            "WaitingForClaim",
            format!("{object} is being deleted; then node {member} joins"),
        );
        return true;
    }
    let Some(host_id) = &claim.left_host_id else { return false };
    steps.asks = true;
    let others = steps.ring.others(observed, member);
    match steps.ring.membership_by_all(observed, host_id, member) {
        // Whether that node has left is decided there.
        Membership::Absent if is_told_of(steps, member, host_id) => {
            let message = format!(
                "{object} holds data of node {host_id}; it is deleted when Service {namespace}/{member} is gone"
            );
            steps.wait(Component::StatefulSet, "WaitingForClaim", message);
        }
        Membership::Absent if observed.pods.contains_key(member) => {
            steps.wait(
                Component::StatefulSet,
                "WaitingForClaim",
                format!(
                    "{object} is in use; it is deleted when \
                     pod {member} is gone"
                ),
            );
        }
        Membership::Absent => {
            let message = format!(
                "{object} holds data of node {host_id}, which has left; it is deleted, so \
                 that node {member} can join with an empty disk"
            );
            steps.wait(Component::StatefulSet, "DeletingClaim", message.clone());
            steps.rests_on_ring(
                ObjectKind::PersistentVolumeClaim,
                &claim.reference,
                vec![preconditions::pod(observed, member)],
            );
            steps.delete(ObjectKind::PersistentVolumeClaim, &claim.reference, ("DeletingClaim", message));
        }
        Membership::Unknown if others.is_empty() => steps.fault(
            Component::StatefulSet,
            "ClaimInTheWay",
            format!(
                "{object} holds data of node {host_id}, which has left, and there is no node that can \
                 confirm it; delete it, so that node {member} can join"
            ),
        ),
        Membership::Unknown => steps.wait(
            Component::StatefulSet,
            "WaitingForRing",
            format!(
                "{object} holds data of node {host_id}, which has left; when all nodes confirm that, it is \
                 deleted, and node {member} joins"
            ),
        ),
        Membership::Member => steps.fault(
            Component::StatefulSet,
            "ClaimInTheWay",
            format!(
                "{object} is said to be of node {host_id}, which has left, but that node is in the ring; \
                 remove its annotation {LEFT_HOST_ID} if it is wrong"
            ),
        ),
    }
    true
}

/// Whether the Service of this name is of this node.
fn is_told_of(steps: &Steps<'_>, name: &str, host_id: &str) -> bool {
    steps.ring.members.iter().any(|member| member.name == name && member.host_id() == Some(host_id))
}

/// Whether a new node is wanted in the member's place.
pub(crate) fn is_wanted(steps: &Steps<'_>, member: &Member<'_>) -> bool {
    member.ordinal < desired(steps.observed, member.stateful_set)
}
