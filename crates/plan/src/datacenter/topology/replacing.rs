//! Replacing a lost node with an empty one, when the user requests it with a label, or has allowed it for all nodes
//! that are certain not to come back.
//!
//! The operator first writes down which host ID is replaced, and the UIDs of its claim and pod. When all other nodes
//! confirm that this node is down, it deletes these two objects, and no others of the same names.

use messina_api::names::{
    annotation::{REPLACING_CLAIM, RING_QUESTION},
    label::{REPLACE, REPLACING_NODE_HOST_ID, value::AUTOMATIC},
};
use serde_json::{Value, json};

use crate::{
    datacenter::{
        model::{
            component::Component,
            facts::{claim::Claim, pod::NodePod},
            plan::ObjectKind,
        },
        reasons,
        state::{member::Member, preconditions, ring::Membership},
        topology::{lost, maintenance, steps::Steps},
    },
    node::answer::{DOWN, UP},
};

/// Continues replacements, and starts the next one. Returns whether one is in progress.
pub(crate) fn replace(steps: &mut Steps<'_>) -> bool {
    let members = steps.current.members();
    let mut is_replacing = false;
    for member in members {
        if let Some(replaced) = &member.service.replacing_node_host_id {
            is_replacing |= continue_replacement(steps, member, replaced);
        } else if member.service.replace.is_none() && member.replacing_claim().is_some() {
            steps.change_member(member, json!({"annotations": {REPLACING_CLAIM: null}}), None);
        }
    }
    for member in members {
        if member.service.replace.is_some() && member.service.replacing_node_host_id.is_none() {
            is_replacing |= start_replacement(steps, member, is_replacing);
        }
    }
    let is_unmarked =
        |member: &&Member<'_>| !member.service.is_to_be_replaced() && !member.is_beyond_replicas(steps.observed);
    for member in members.iter().filter(is_unmarked) {
        if lost::is_emptied(steps.observed, member) {
            lost::report_empty_disk(steps, member);
            continue;
        }
        let Some(why) = lost::find_loss(steps.observed, member) else { continue };
        if steps.observed.datacenter.replaces_lost_nodes && member.host_id().is_some() {
            is_replacing |= start_replacement(steps, member, is_replacing);
        } else {
            lost::report_lost_node(steps, member, &why);
        }
    }
    is_replacing
}

/// The patch that removes a request for replacement.
fn cleared_request() -> Value {
    json!({"labels": {REPLACE: null, REPLACING_NODE_HOST_ID: null}, "annotations": {REPLACING_CLAIM: null}})
}

/// Continues a replacement whose host ID is written on the Service. Returns whether it is still in progress.
fn continue_replacement(steps: &mut Steps<'_>, member: &Member<'_>, replaced: &str) -> bool {
    let is_asked_for = member.service.replace.is_some();
    let Some(host_id) = member.host_id() else {
        return false;
    };
    if host_id != replaced {
        return finish_replacement(steps, member, host_id, replaced);
    }
    steps.needs_ring = true;
    match (is_asked_for, member.replacing_claim()) {
        // The user repeats the request, because the first new node did not join.
        (true, None) => start_replacement(steps, member, false),
        // The operator started it, and the conditions for that do not hold any more.
        (true, Some(own))
            if is_automatic(member)
                && has_original_claim(steps, member, own)
                && !may_replace_automatically(steps, member) =>
        {
            let message = format!(
                "Node {} is not replaced: it can come back, or automatic replacement is disabled. The operator cancels \
                 the replacement.",
                steps.node_reference(member)
            );
            steps.require_unchanged_claim_and_pod(member);
            steps.change_member(member, cleared_request(), Some((reasons::REPLACEMENT_CANCELLED, message)));
            false
        }
        (true, Some(own)) => {
            delete_claim_and_pod(steps, member, host_id, own);
            true
        }
        (false, Some(own)) if has_original_claim(steps, member, own) => {
            let message = format!(
                "Node {} is not replaced: the user removed the label {REPLACE}. The operator cancels the replacement.",
                steps.node_reference(member)
            );
            steps.require_unchanged_claim_and_pod(member);
            steps.change_member(member, cleared_request(), Some((reasons::REPLACEMENT_CANCELLED, message)));
            false
        }
        // The disk is being deleted, so the lost node can never start again. The pod has to be deleted, too, to
        // continue.
        (false, Some(own)) if !Leftovers::of(steps, member, own).are_gone() => {
            delete_claim_and_pod(steps, member, host_id, own);
            true
        }
        // The disk is gone. The new node must know which node it replaces until it has joined. Otherwise it would join
        // in addition to the lost node, which would stay in the ring for ever.
        (false, recorded) => {
            if recorded.is_some() {
                steps.require_unchanged_claim_and_pod(member);
                steps.change_member(member, json!({"annotations": {REPLACING_CLAIM: null}}), None);
            }
            if !report_waiting_for_pod(steps, member, host_id) {
                report_waiting_for_new_node(steps, member, host_id);
            }
            true
        }
    }
}

/// Reports a disk that is deleted as soon as its pod is, although the request was withdrawn. Returns whether that is
/// so.
fn report_waiting_for_pod(steps: &mut Steps<'_>, member: &Member<'_>, host_id: &str) -> bool {
    let claim = steps.observed.claim_of(member.name);
    let is_waiting = is_being_deleted(claim) && steps.observed.pods.contains_key(member.name);
    if is_waiting {
        let message = format!(
            "The disk of node {} ({host_id}) is being deleted, which cannot be undone. It is gone as soon as the pod \
             is. To replace the node with an empty one: `kubectl delete pod -n {} {}`.",
            steps.node_reference(member),
            steps.observed.datacenter.namespace,
            member.name
        );
        steps.report_progressing(Component::Service, reasons::WAITING_FOR_POD, message);
    }
    is_waiting
}

fn is_automatic(member: &Member<'_>) -> bool {
    member.service.replace.as_deref() == Some(AUTOMATIC)
}

/// Whether the operator may replace the node without a request of the user.
fn may_replace_automatically(steps: &Steps<'_>, member: &Member<'_>) -> bool {
    steps.observed.datacenter.replaces_lost_nodes && lost::find_loss(steps.observed, member).is_some()
}

/// Ends a replacement when the new node has joined and the replaced one has left the ring. Returns whether it was still
/// in progress.
fn finish_replacement(steps: &mut Steps<'_>, member: &Member<'_>, host_id: &str, replaced: &str) -> bool {
    let is_gone = steps.ring.membership(replaced, member.name) == Membership::Absent;
    let is_requested = member.replacing_claim().is_some() || member.service.replace.is_some();
    // Until the new node has joined, it has to know which node it replaces, even if the request was withdrawn.
    if !is_requested && (member.has_joined() || is_gone) {
        steps.change_member(member, cleared_request(), None);
        return false;
    }
    steps.needs_ring = true;
    let is_done = member.has_joined() && is_gone && steps.ring.membership(host_id, member.name) == Membership::Member;
    if is_done {
        let message = format!("Node {} ({host_id}) has replaced node {replaced}.", steps.node_reference(member));
        steps.change_member(member, cleared_request(), Some((reasons::NODE_REPLACED, message)));
    } else {
        let message = format!(
            "Node {} ({host_id}) replaces node {replaced}. Waiting for another node to see the new node in the token \
             ring and the replaced one gone.",
            steps.node_reference(member)
        );
        steps.report_progressing(Component::Service, reasons::WAITING_FOR_REPLACEMENT, message);
    }
    true
}

/// Returns the UIDs of the claim and the pod of the lost node.
fn claim_and_pod_uids(steps: &Steps<'_>, member: &Member<'_>) -> String {
    let uid = |uid: Option<&String>| uid.cloned().unwrap_or_default();
    let claim = steps.observed.claim_of(member.name);
    let pod = steps.observed.pods.get(member.name);
    format!(
        "{}/{}",
        uid(claim.and_then(|claim| claim.reference.uid.as_ref())),
        uid(pod.and_then(|pod| pod.reference.uid.as_ref()))
    )
}

/// Whether the claim of the lost node still exists and is not being deleted.
fn has_original_claim(steps: &Steps<'_>, member: &Member<'_>, own: &str) -> bool {
    let (claim_uid, _) = own.split_once('/').unwrap_or((own, ""));
    let claim = steps.observed.claim_of(member.name);
    claim.is_some_and(|claim| claim.reference.uid.as_deref() == Some(claim_uid) && !claim.is_being_deleted)
}

/// The claim and the pod of a lost node that still exist.
struct Leftovers<'a> {
    claim: Option<&'a Claim>,
    pod: Option<&'a NodePod>,
}

impl<'a> Leftovers<'a> {
    fn of(steps: &Steps<'a>, member: &Member<'_>, own: &str) -> Self {
        let observed = steps.observed;
        let (claim_uid, pod_uid) = own.split_once('/').unwrap_or((own, ""));
        let claim = observed.claim_of(member.name);
        let claim = claim.filter(|claim| claim.reference.uid.as_deref() == Some(claim_uid));
        let pod = observed.pods.get(member.name);
        // A pod that was created later uses the same claim: while that exists, no other claim can have its name.
        let pod = pod.filter(|pod| pod.reference.uid.as_deref() == Some(pod_uid) || is_being_deleted(claim));
        Self { claim, pod }
    }

    fn are_gone(&self) -> bool {
        self.claim.is_none() && self.pod.is_none()
    }
}

fn is_being_deleted(claim: Option<&Claim>) -> bool {
    claim.is_some_and(|claim| claim.is_being_deleted)
}

/// Deletes the claim and the pod of a node that all other nodes see down.
fn delete_claim_and_pod(steps: &mut Steps<'_>, member: &Member<'_>, host_id: &str, own: &str) {
    let observed = steps.observed;
    let left = Leftovers::of(steps, member, own);
    if left.are_gone() {
        return report_waiting_for_new_node(steps, member, host_id);
    }
    let node = steps.node_reference(member);
    if let Some(reason) = maintenance::blocker(steps) {
        let message = format!(
            "Node {node} ({host_id}) has to be replaced. Waiting for the maintenance to end before its disk and its \
             pod are deleted: {reason}."
        );
        return steps.report_progressing(Component::Service, reasons::WAITING_FOR_MAINTENANCE, message);
    }
    let is_disk_deleted = left.claim.is_none_or(|claim| claim.is_being_deleted);
    if let Err(reason) = steps.ring.check_agreement(observed, member, DOWN) {
        if is_disk_deleted && steps.ring.is_seen(host_id, UP, member.name) {
            let message = format!(
                "Node {node} ({host_id}) is up although its disk is being deleted. Delete pod {node}, so that an \
                 empty node replaces it."
            );
            return steps.report_degraded(Component::Service, reasons::NODE_IS_UP, message);
        }
        let message = format!(
            "Node {node} ({host_id}) has to be replaced. Waiting for all other nodes to see it down: {reason}."
        );
        return steps.report_progressing(Component::Service, reasons::WAITING_FOR_RING, message);
    }
    let message = format!(
        "Replacing node {node} ({host_id}): all other nodes see it down. The operator deletes its disk and its pod, \
         and an empty node replaces it."
    );
    steps.report_progressing(Component::Service, reasons::REPLACING_NODE, message.clone());
    match (left.claim, left.pod) {
        // The pod is deleted when the claim is seen being deleted, so that the next pod does not get the same claim.
        (Some(claim), _) if !claim.is_being_deleted => {
            steps.require_unchanged_ring(
                ObjectKind::PersistentVolumeClaim,
                &claim.reference,
                vec![preconditions::pod(observed, member.name)],
            );
            steps.delete(ObjectKind::PersistentVolumeClaim, &claim.reference, (reasons::REPLACING_NODE, message));
        }
        (_, Some(pod)) if !pod.is_being_deleted => {
            steps.require_unchanged_ring(
                ObjectKind::Pod,
                &pod.reference,
                vec![preconditions::claim(observed, member.name)],
            );
            steps.delete(ObjectKind::Pod, &pod.reference, (reasons::REPLACING_NODE, message));
        }
        _ => {}
    }
}

fn report_waiting_for_new_node(steps: &mut Steps<'_>, member: &Member<'_>, host_id: &str) {
    let message = format!(
        "An empty node is replacing node {} ({host_id}). Waiting for it to join. If it cannot, remove the label \
         {REPLACE} and set it again, to retry with another empty disk.",
        steps.node_reference(member)
    );
    steps.report_progressing(Component::Service, reasons::WAITING_FOR_REPLACEMENT, message);
}

/// Starts the replacement of a node. Returns whether it is in progress from now on.
fn start_replacement(steps: &mut Steps<'_>, member: &Member<'_>, is_another_replaced: bool) -> bool {
    let observed = steps.observed;
    let node = steps.node_reference(member);
    let Some(host_id) = member.host_id() else {
        let message = format!(
            "Service {node} has the label {REPLACE}, but no host ID of its node, so the node cannot be replaced. \
             Remove the label."
        );
        steps.report_degraded(Component::Service, reasons::NO_HOST_ID, message);
        return false;
    };
    let leaves = |other: &Member<'_>| {
        other.name != member.name && other.has_begun_to_leave() && !other.is_beyond_replicas(observed)
    };
    if is_another_replaced || steps.ring.members.iter().any(leaves) {
        let message = format!(
            "Node {node} has to be replaced. Waiting until no other node is being replaced or leaves the token ring."
        );
        steps.report_progressing(Component::Service, reasons::WAITING_FOR_OTHER_NODE, message);
        return false;
    }
    if let Some(reason) = maintenance::blocker(steps) {
        let message = format!("Node {node} has to be replaced. Waiting for the maintenance to end: {reason}.");
        steps.report_progressing(Component::Service, reasons::WAITING_FOR_MAINTENANCE, message);
        return false;
    }
    steps.needs_ring = true;
    if let Err(reason) = steps.ring.check_agreement(observed, member, DOWN) {
        if member.service.replace.is_some() && steps.ring.is_seen(host_id, UP, member.name) {
            let message = format!(
                "Node {node} ({host_id}) has the label {REPLACE}, but it is up. The operator replaces a node only if \
                 all other nodes see it down. Remove the label, or stop the node for good."
            );
            steps.report_degraded(Component::Service, reasons::NODE_IS_UP, message);
        } else {
            let message = format!(
                "Node {node} ({host_id}) has to be replaced. Waiting for all other nodes to see it down: {reason}."
            );
            steps.report_progressing(Component::Service, reasons::WAITING_FOR_RING, message);
        }
        return false;
    }
    let question = steps.ask_again();
    let message = format!("Replacing node {node} ({host_id}) with an empty node.");
    steps.report_progressing(Component::Service, reasons::REPLACING_NODE, message.clone());
    // A label that the user set stays as it is.
    let request = member.service.replace.as_deref().unwrap_or(AUTOMATIC);
    let patch = json!({
        "labels": {REPLACE: request, REPLACING_NODE_HOST_ID: host_id},
        "annotations": {REPLACING_CLAIM: claim_and_pod_uids(steps, member), RING_QUESTION: question},
    });
    steps.require_unchanged_claim_and_pod(member);
    steps.change_member(member, patch, Some((reasons::REPLACING_NODE, message)));
    true
}
