//! Objects of members beyond the replicas of their StatefulSet. The operator deletes them when the other nodes confirm
//! that the node has left the token ring. For a node that is in the ring, it raises the replicas again.

use k8s_openapi::api::apps::v1::StatefulSet;
use messina_api::names::annotation::{LEAVING_HOST_ID, RING_QUESTION};
use serde_json::json;

use crate::datacenter::{
    model::{
        component::Component,
        facts::{ObjectReference, claim::Claim},
        plan::ObjectKind,
    },
    reasons,
    state::{counts::removed_racks, member::Member, ring::Membership, stateful_set::replicas},
    topology::{
        claims::{is_desired, keep_or_delete},
        steps::Steps,
    },
};

/// What is true of a member whose node has not written its host ID.
#[derive(Debug, PartialEq, Eq)]
enum UnnamedState {
    /// The specification contains it, so a node is about to join.
    Desired,
    /// A node may have joined before its sidecar wrote anything, and there is a StatefulSet that can start it again.
    MayHaveJoined,
    /// A node has used its objects. Which one, and whether it is in the ring, is unknown.
    Used,
    /// No node has used its Service.
    Unused,
}

/// What decides about a member whose node has not written its host ID.
#[derive(Clone, Copy)]
struct UnnamedFacts {
    is_desired: bool,
    has_stateful_set: bool,
    /// Its claim is younger than its Service: it was created for a node, which may have joined before its sidecar wrote
    /// anything. If such a claim carries the host ID of a node that has left, a user wrote it there: the Service of a
    /// node that has left is older than this one.
    has_new_claim: bool,
    /// There is a pod or the claim of another node, or a sidecar has written to the Service.
    has_other_traces: bool,
}

impl UnnamedFacts {
    fn of(steps: &Steps<'_>, member: &Member<'_>) -> Self {
        let observed = steps.observed;
        let claim = observed.claim_of(member.name);
        Self {
            is_desired: is_desired(steps, member),
            has_stateful_set: observed.stateful_sets.contains_key(member.stateful_set),
            has_new_claim: claim.is_some_and(|claim| claim.created >= member.service.created),
            has_other_traces: observed.pods.contains_key(member.name)
                || claim.is_some_and(Claim::is_of_a_node)
                || !member.is_blank(),
        }
    }

    fn state(self) -> UnnamedState {
        if self.is_desired {
            UnnamedState::Desired
        } else if self.has_new_claim && self.has_stateful_set {
            UnnamedState::MayHaveJoined
        } else if self.has_new_claim || self.has_other_traces {
            UnnamedState::Used
        } else {
            UnnamedState::Unused
        }
    }
}

/// What is true of a member whose node has a host ID.
#[derive(Debug, PartialEq, Eq)]
enum NamedState {
    /// Its node is in the ring, and there is no StatefulSet that could start it.
    InRingWithoutStatefulSet,
    /// Its node was in the ring when its StatefulSet had a replica for it. It may have left since: the question is older
    /// than the StatefulSet.
    InRingBefore,
    /// Its node is in the ring.
    InRing,
    /// The other nodes have not answered yet, and all of them can.
    Unanswered,
    /// Another node cannot answer, because its sidecar is of an earlier version, or no other node is left to confirm
    /// that a node which was leaving has left.
    Unanswerable,
    /// There is no other node to ask, so the node comes back as it was.
    WithoutWitness,
    /// No other node sees it in the ring. It may have joined after they answered, and its pod exists.
    AbsentWithPod,
    /// No other node sees it in the ring. It may have joined after they answered, before its pod was gone.
    Absent,
    /// It has left the ring and cannot join again: the answers are newer than the request to leave. Its pod exists.
    LeftWithPod,
    /// It has left the ring and cannot join again, as above, and its pod is gone.
    Left,
}

/// What decides about a member whose node has a host ID.
#[derive(Clone, Copy)]
struct NamedFacts {
    membership: Membership,
    has_stateful_set: bool,
    has_pod: bool,
    /// The answers about the ring are newer than the StatefulSet, if there is one.
    is_asked_since: bool,
    is_asked_to_leave: bool,
    has_begun_to_leave: bool,
    is_replaced: bool,
    has_others: bool,
    /// The sidecars of all other nodes can report the ring.
    can_others_answer: bool,
}

impl NamedFacts {
    fn of(steps: &Steps<'_>, member: &Member<'_>, host_id: &str) -> Self {
        let observed = steps.observed;
        let stateful_set = observed.stateful_sets.get(member.stateful_set);
        let others = steps.ring.others(observed, member.name);
        Self {
            membership: steps.ring.membership_of(observed, member, host_id),
            has_stateful_set: stateful_set.is_some(),
            has_pod: observed.pods.contains_key(member.name),
            is_asked_since: stateful_set.is_none_or(|now| steps.ring.is_asked_since(now)),
            is_asked_to_leave: member.is_asked_to_leave(),
            has_begun_to_leave: member.has_begun_to_leave(),
            is_replaced: member.is_replaced(),
            has_others: !others.is_empty(),
            can_others_answer: others.iter().all(|other| other.answers()),
        }
    }

    fn state(self) -> NamedState {
        let is_leaving = self.is_asked_to_leave || self.has_begun_to_leave;
        // The other nodes were asked after it was certain that the node would not join any more: it was in the ring and
        // had begun to leave, or it had neither a replica nor a pod.
        let is_certain = self.is_asked_to_leave && (self.has_begun_to_leave || self.is_asked_since);
        let membership = match self.membership {
            // The node that replaces it may have joined before its sidecar has written that.
            Membership::Absent if self.is_replaced => Membership::Member,
            membership => membership,
        };
        match membership {
            Membership::Member if !self.has_stateful_set => NamedState::InRingWithoutStatefulSet,
            Membership::Member if !self.is_asked_since => NamedState::InRingBefore,
            Membership::Member => NamedState::InRing,
            Membership::Unknown if self.has_others && self.can_others_answer => NamedState::Unanswered,
            Membership::Unknown if self.has_others || is_leaving => NamedState::Unanswerable,
            Membership::Unknown => NamedState::WithoutWitness,
            Membership::Absent if !is_certain && self.has_pod => NamedState::AbsentWithPod,
            Membership::Absent if !is_certain => NamedState::Absent,
            Membership::Absent if self.has_pod => NamedState::LeftWithPod,
            Membership::Absent => NamedState::Left,
        }
    }
}

/// Removes the objects of members beyond the replicas of their StatefulSet, once their nodes have left the ring.
pub(crate) fn remove_departed(steps: &mut Steps<'_>) {
    let observed = steps.observed;
    for member in steps.ring.members.iter().filter(|member| member.is_beyond_replicas(observed)) {
        match member.host_id() {
            None => remove_unnamed(steps, member),
            Some(host_id) => remove_named(steps, member, host_id),
        }
    }
    for stateful_set in removed_racks(observed).filter(|one| replicas(one) == 0) {
        remove_rack(steps, stateful_set);
    }
}

/// Deletes a Service that no node has used.
fn remove_unnamed(steps: &mut Steps<'_>, member: &Member<'_>) {
    let service = steps.node_reference(member);
    match UnnamedFacts::of(steps, member).state() {
        UnnamedState::Desired => {}
        UnnamedState::MayHaveJoined => raise_replicas(steps, member, "may be"),
        UnnamedState::Used => {
            let message = format!(
                "Service {service} belongs to a node that the specification does not contain, and the host ID of the \
                 node is unknown. The operator keeps the Service. If the node has left the token ring, delete the \
                 Service."
            );
            steps.report_progressing(Component::Service, reasons::UNKNOWN_NODE, message);
        }
        UnnamedState::Unused => {
            let message = format!(
                "Deleting Service {service}: no node has used it, and the specification does not contain its node."
            );
            steps.topology.services_to_delete.insert(member.name.to_owned());
            steps.require_unchanged_claim_and_pod(member);
            steps.delete(ObjectKind::Service, &member.service.reference, (reasons::DELETING_SERVICE, message));
        }
    }
}

/// Deletes the Service of a node that has left the ring, or raises the replicas for a node that has not.
fn remove_named(steps: &mut Steps<'_>, member: &Member<'_>, host_id: &str) {
    steps.needs_ring = true;
    let service = steps.node_reference(member);
    match NamedFacts::of(steps, member, host_id).state() {
        NamedState::InRingWithoutStatefulSet => {
            steps.mark_below_ring(member);
            let message = format!(
                "Node {service} is in the token ring, but its rack is not in the specification and StatefulSet {} \
                 does not exist. Add the rack to the specification again: the operator then recreates the StatefulSet \
                 and decommissions the nodes.",
                member.stateful_set
            );
            steps.report_degraded(Component::StatefulSet, reasons::RACK_WITHOUT_STATEFUL_SET, message);
        }
        NamedState::InRingBefore => {
            steps.mark_below_ring(member);
            steps.ask_again();
            block_scale_out(steps, member);
            let message = format!(
                "Node {service} was in the token ring when StatefulSet {} had a replica for it. The operator asks the \
                 other nodes again.",
                member.stateful_set
            );
            steps.report_progressing(Component::StatefulSet, reasons::WAITING_FOR_RING, message);
        }
        // The node comes back as it was. That does not change the ring, so it waits for nothing.
        NamedState::InRing => raise_replicas(steps, member, "is"),
        NamedState::Unanswered => {
            steps.mark_below_ring(member);
            block_scale_out(steps, member);
            report_unknown_membership(steps, member, host_id);
        }
        NamedState::Unanswerable => {
            block_scale_out(steps, member);
            report_unknown_membership(steps, member, host_id);
        }
        NamedState::WithoutWitness => report_unknown_membership(steps, member, host_id),
        NamedState::AbsentWithPod => {
            block_scale_out(steps, member);
            let message = format!(
                "Service {service} belongs to node {host_id}, which no other node sees in the token ring. The operator \
                 asks them again when pod {} is gone.",
                member.name
            );
            steps.report_progressing(Component::Service, reasons::WAITING_FOR_POD, message);
        }
        NamedState::Absent => {
            block_scale_out(steps, member);
            confirm_absence(steps, member, host_id);
        }
        NamedState::LeftWithPod => {
            block_scale_out(steps, member);
            steps.topology.services_to_delete.insert(member.name.to_owned());
            let message = format!(
                "Node {host_id} has left the token ring. Its Service {service} is deleted when pod {} is gone.",
                member.name
            );
            steps.report_progressing(Component::Service, reasons::WAITING_FOR_POD, message);
        }
        NamedState::Left => {
            block_scale_out(steps, member);
            steps.topology.services_to_delete.insert(member.name.to_owned());
            if keep_or_delete(steps, member, host_id) {
                let message = format!("Deleting Service {service}: its node {host_id} has left the token ring.");
                steps.require_unchanged_claim_and_pod(member);
                steps.delete(ObjectKind::Service, &member.service.reference, (reasons::NODE_REMOVED, message));
            }
        }
    }
}

/// Keeps the member's StatefulSet from scaling out until the objects of the node are deleted.
fn block_scale_out(steps: &mut Steps<'_>, member: &Member<'_>) {
    steps.topology.blocked_by_leftovers.insert(member.stateful_set.to_owned());
}

/// Raises the replicas for a node that is, or may be, in the ring.
fn raise_replicas(steps: &mut Steps<'_>, member: &Member<'_>, is: &str) {
    let message = format!(
        "Node {} {is} in the token ring, but StatefulSet {} has no replica for it. The operator raises replicas to {}, \
         so that the node can be decommissioned.",
        steps.node_reference(member),
        member.stateful_set,
        member.ordinal + 1
    );
    steps.mark_below_ring(member);
    steps.report_progressing(Component::StatefulSet, reasons::MEMBER_BEYOND_REPLICAS, message.clone());
    if let Some(stateful_set) = steps.observed.stateful_sets.get(member.stateful_set) {
        steps.set_replicas(stateful_set, member.ordinal + 1, member, (reasons::MEMBER_BEYOND_REPLICAS, message));
    }
}

fn report_unknown_membership(steps: &mut Steps<'_>, member: &Member<'_>, host_id: &str) {
    let message = format!(
        "Service {} belongs to node {host_id}, which may be in the token ring. The operator deletes the Service when \
         the other nodes confirm that the node is not in the ring.",
        steps.node_reference(member)
    );
    steps.report_progressing(Component::Service, reasons::WAITING_FOR_RING, message);
}

/// Asks the other nodes once more about a node that was not requested to leave and that none of them sees in the ring.
/// The request is written when the pod is gone, so the next answers are newer than the pod.
fn confirm_absence(steps: &mut Steps<'_>, member: &Member<'_>, host_id: &str) {
    let question = steps.ask_again();
    let annotations = json!({LEAVING_HOST_ID: host_id, RING_QUESTION: question});
    steps.require_unchanged_claim_and_pod(member);
    steps.change_member(member, json!({"annotations": annotations}), None);
    let message = format!(
        "Service {} belongs to node {host_id}, which no other node sees in the token ring. The operator deletes the \
         Service when all of them confirm that once more, now that the pod is gone.",
        steps.node_reference(member)
    );
    steps.report_progressing(Component::Service, reasons::WAITING_FOR_RING, message);
}

/// Deletes the StatefulSet of a rack that is not in the specification and has no nodes.
fn remove_rack(steps: &mut Steps<'_>, stateful_set: &StatefulSet) {
    let name = stateful_set.metadata.name.as_deref().unwrap_or_default();
    let is_used = steps.ring.members.iter().any(|member| member.stateful_set == name)
        || steps.observed.pods.keys().any(|pod| pod.rsplit_once('-').is_some_and(|(prefix, _)| prefix == name));
    if !is_used && stateful_set.metadata.deletion_timestamp.is_none() {
        let message = format!(
            "Deleting StatefulSet {}/{name}: its rack is not in the specification, and it has no nodes.",
            steps.observed.datacenter.namespace
        );
        steps.delete(
            ObjectKind::StatefulSet,
            &ObjectReference::of(&stateful_set.metadata),
            (reasons::RACK_REMOVED, message),
        );
    }
}

#[cfg(test)]
mod tests;
