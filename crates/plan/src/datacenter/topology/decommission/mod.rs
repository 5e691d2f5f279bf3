//! Scaling in: the operator requests the decommission of the last node of a rack, the other nodes confirm that it has
//! left the token ring, and only then the operator reduces the replicas of the StatefulSet.
//!
//! The operator can cancel the request until the sidecar writes that the decommission has begun. Both write with the
//! resource version of the Service that they observed, so only one of them succeeds. A decommission that has begun runs
//! to its end.

mod request;

use messina_api::names::{
    self,
    annotation::{LEAVING_HOST_ID, LEAVING_REFUSED},
    label::{
        DECOMMISSIONED,
        value::{FALSE, TRUE},
    },
};
use serde_json::json;

use crate::{
    datacenter::{
        model::component::Component,
        racks::Racks,
        reasons,
        state::{member::Member, ring::Membership},
        topology::{
            claims::is_desired,
            decommission::request::{
                find_blocker, has_other_changes, report_refusal, request_decommission, request_next,
            },
            steps::Steps,
        },
    },
    node::answer::UP,
};

/// What is true of a node that was requested to leave or has begun to, while it is not its turn.
#[derive(Debug, PartialEq, Eq)]
enum OtherState {
    /// It has not begun to leave, so the request can be cancelled.
    Requested,
    /// It has begun to leave, which is never cancelled, and is the last of its rack: its turn comes.
    Begun,
    /// It has begun to leave, but is not the last of its rack: a StatefulSet cannot be scaled in by this node.
    BegunOutOfOrder,
}

fn other_state(has_begun: bool, is_last: bool) -> OtherState {
    match (has_begun, is_last) {
        (false, _) => OtherState::Requested,
        (true, true) => OtherState::Begun,
        (true, false) => OtherState::BegunOutOfOrder,
    }
}

/// What is true of the node whose turn it is to leave: the last node of its rack.
#[derive(Debug, PartialEq, Eq)]
enum LeavingState {
    /// It has not begun to leave, and the specification contains it again.
    DesiredAgain,
    /// It has not begun to leave, and another change is in progress or a node is not ready.
    Blocked,
    /// It has not begun to leave, and another node is not up and normal, as the message says.
    RingUnhealthy(String),
    /// It has not begun to leave, and ScyllaDB refuses to decommission it for now.
    Refused,
    /// The label or the host ID of the request is missing. A decommission that has begun is requested again, never
    /// cancelled.
    NotRequested,
    /// It is not in the ring: it has left, or the node that replaces it has joined and has not written its host ID yet.
    LeftOrReplaced,
    /// Another node confirms that it has left the ring. The answer is newer than the request.
    Left,
    /// Its label says that it has left, but another node sees it up and normal.
    UpDespiteLabel,
    /// It was requested to leave, or is leaving.
    Leaving,
}

/// What decides about the node whose turn it is to leave.
#[derive(Clone)]
struct LeavingFacts {
    has_begun: bool,
    /// Whether it is in the ring, as other nodes report it.
    membership: Membership,
    is_desired: bool,
    /// Whether another change is in progress, or a node is not ready.
    is_blocked: bool,
    /// The report of another node that is not up and normal.
    unhealthy_node: Option<String>,
    /// Whether ScyllaDB refuses to decommission it, and the operator does not try again now.
    is_refused: bool,
    /// Whether its Service carries the host ID and the label of the request.
    is_requested: bool,
    is_replaced: bool,
    /// Whether its label says that it has left.
    is_labelled_as_left: bool,
    /// Whether another node sees it up and normal.
    is_up: bool,
}

impl LeavingFacts {
    fn of(steps: &Steps<'_>, member: &Member<'_>, host_id: &str, racks: &Racks<'_>, is_replacing: bool) -> Self {
        let label = member.decommissioned();
        Self {
            has_begun: member.has_begun_to_leave(),
            membership: steps.ring.membership(host_id, member.name),
            is_desired: is_desired(steps, member),
            is_blocked: is_replacing || find_blocker(steps).is_some(),
            unhealthy_node: steps.ring.unhealthy_node(host_id, member.name),
            is_refused: member.refusal().is_some_and(|refusal| !refusal.retry || has_other_changes(steps, racks)),
            is_requested: member.is_asked_to_leave() && matches!(label, Some(FALSE | TRUE)),
            is_replaced: member.is_replaced(),
            is_labelled_as_left: label == Some(TRUE),
            is_up: steps.ring.is_seen(host_id, UP, member.name),
        }
    }

    fn state(self) -> LeavingState {
        let is_absent = self.membership == Membership::Absent;
        // A decommission that has begun is never cancelled.
        let can_be_cancelled = !self.has_begun && !is_absent;
        match self.unhealthy_node {
            _ if can_be_cancelled && self.is_desired => LeavingState::DesiredAgain,
            _ if can_be_cancelled && self.is_blocked => LeavingState::Blocked,
            Some(report) if can_be_cancelled => LeavingState::RingUnhealthy(report),
            _ if can_be_cancelled && self.is_refused => LeavingState::Refused,
            _ if !self.is_requested => LeavingState::NotRequested,
            _ if is_absent && self.is_replaced => LeavingState::LeftOrReplaced,
            _ if is_absent => LeavingState::Left,
            _ if self.is_labelled_as_left && self.is_up => LeavingState::UpDespiteLabel,
            _ => LeavingState::Leaving,
        }
    }
}

/// Starts or continues the decommission of one node, and cancels or postpones all others.
pub(crate) fn decommission_next(steps: &mut Steps<'_>, racks: &Racks<'_>, is_replacing: bool) {
    let observed = steps.observed;
    let leaving: Vec<&Member<'_>> = steps
        .ring
        .members
        .iter()
        .filter(|member| {
            !member.is_beyond_replicas(observed) && (member.is_asked_to_leave() || member.has_begun_to_leave())
        })
        .collect();
    let is_last = |member: &Member<'_>| steps.replicas(member.stateful_set) == Some(member.ordinal + 1);
    let last: Vec<&Member<'_>> = leaving.iter().copied().filter(|member| is_last(member)).collect();
    // A node that has begun to leave goes first.
    let current = last.iter().find(|member| member.has_begun_to_leave()).or(last.first()).copied();
    let is_current = |member: &Member<'_>| current.is_some_and(|current| current.name == member.name);
    for member in leaving.iter().filter(|member| !is_current(member)) {
        let is_last = last.iter().any(|last| last.name == member.name);
        postpone_or_cancel(steps, member, is_last);
    }
    for member in steps.ring.members.iter().filter(|member| !member.is_beyond_replicas(observed)) {
        remove_stale_request(steps, member);
    }
    match current.and_then(|member| Some((member, member.host_id()?))) {
        Some((member, host_id)) => continue_decommission(steps, member, host_id, racks, is_replacing),
        None => request_next(steps, racks, is_replacing),
    }
}

/// Two nodes never leave at the same time, and a node leaves only if it is the last of its rack.
fn postpone_or_cancel(steps: &mut Steps<'_>, member: &Member<'_>, is_last: bool) {
    match other_state(member.has_begun_to_leave(), is_last) {
        OtherState::Requested => {
            cancel_decommission(steps, member, "another node is leaving, or this node is not the last of its rack");
        }
        OtherState::Begun => {
            let message = format!(
                "Node {} is leaving the token ring while another node does. Its StatefulSet is scaled in after that of \
                 the other node.",
                steps.node_reference(member)
            );
            steps.report_progressing(Component::StatefulSet, reasons::WAITING_FOR_OTHER_NODE, message);
        }
        OtherState::BegunOutOfOrder => {
            let message = format!(
                "Node {} is leaving the token ring or has left it, but the operator did not request that, and the node \
                 is not the last of its rack. If it has left, set the label {} on its Service when the node is down, \
                 or reduce `nodes` of the rack until this node is the last.",
                steps.node_reference(member),
                names::label::REPLACE
            );
            steps.report_degraded(Component::StatefulSet, reasons::UNEXPECTED_DECOMMISSION, message);
        }
    }
}

/// Removes a request that is not for the current node, and a refusal of a request that is not desired any more.
fn remove_stale_request(steps: &mut Steps<'_>, member: &Member<'_>) {
    let is_leaving = member.is_asked_to_leave() || member.has_begun_to_leave();
    if !is_leaving && (member.decommissioned().is_some() || member.leaving().is_some()) {
        let message = format!(
            "Removing label {DECOMMISSIONED} from Service {}: the operator has not requested the current node to \
             leave.",
            steps.node_reference(member)
        );
        let patch = json!({"labels": {DECOMMISSIONED: null}, "annotations": {LEAVING_HOST_ID: null}});
        steps.change_member(member, patch, Some((reasons::LABEL_REMOVED, message)));
    }
    // A refusal to leave is not reported where the node is to stay.
    if member.service.leaving_refused.is_some() && is_desired(steps, member) {
        steps.change_member(member, json!({"annotations": {LEAVING_REFUSED: null}}), None);
    }
}

/// Takes the next step of the decommission of the node whose turn it is.
fn continue_decommission(
    steps: &mut Steps<'_>,
    member: &Member<'_>,
    host_id: &str,
    racks: &Racks<'_>,
    is_replacing: bool,
) {
    steps.topology.is_leaving = true;
    steps.needs_ring = true;
    let node = steps.node_reference(member);
    let facts = LeavingFacts::of(steps, member, host_id, racks, is_replacing);
    if let Some(refusal) = member.refusal().filter(|_| facts.membership != Membership::Absent) {
        report_refusal(steps, member, &refusal);
    }
    match facts.state() {
        LeavingState::DesiredAgain => cancel_decommission(steps, member, "the specification contains it again"),
        LeavingState::Blocked => {
            cancel_decommission(steps, member, "another change is in progress, or a node is not ready");
        }
        LeavingState::RingUnhealthy(report) => cancel_decommission(steps, member, &report),
        LeavingState::Refused => {
            cancel_decommission(steps, member, "ScyllaDB refuses to decommission it, so other changes go first");
        }
        LeavingState::NotRequested => request_decommission(steps, member, host_id),
        LeavingState::LeftOrReplaced => {
            let message = format!(
                "Node {node} ({host_id}) has left the token ring or was replaced. Waiting for the sidecar of the new \
                 node to report its host ID."
            );
            steps.report_progressing(Component::StatefulSet, reasons::WAITING_FOR_REPLACEMENT, message);
        }
        LeavingState::Left => scale_in(steps, member, host_id),
        LeavingState::UpDespiteLabel => {
            // A node that is up and normal waits for the request; only the sidecar may write that its node has left.
            steps.change_member(member, json!({"labels": {DECOMMISSIONED: FALSE}}), None);
            report_leaving(steps, member, host_id);
        }
        LeavingState::Leaving => report_leaving(steps, member, host_id),
    }
}

fn cancel_decommission(steps: &mut Steps<'_>, member: &Member<'_>, why: &str) {
    let message = format!(
        "Node {} is not decommissioned: {why}. The operator cancels the request.",
        steps.node_reference(member)
    );
    let patch = json!({"labels": {DECOMMISSIONED: null}, "annotations": {LEAVING_HOST_ID: null}});
    steps.change_member(member, patch, Some((reasons::DECOMMISSION_CANCELLED, message.clone())));
    steps.report_progressing(Component::StatefulSet, reasons::DECOMMISSION_CANCELLED, message);
}

/// Reduces the replicas of the StatefulSet by the node that has left.
fn scale_in(steps: &mut Steps<'_>, member: &Member<'_>, host_id: &str) {
    let Some(now) = steps.observed.stateful_sets.get(member.stateful_set) else { return };
    let message = format!(
        "Node {} ({host_id}) has left the token ring. The operator scales StatefulSet {} in to {} node(s).",
        steps.node_reference(member),
        member.stateful_set,
        member.ordinal
    );
    steps.report_progressing(Component::StatefulSet, reasons::SCALING_IN, message.clone());
    steps.set_replicas(now, member.ordinal, member, (reasons::NODE_DECOMMISSIONED, message));
}

fn report_leaving(steps: &mut Steps<'_>, member: &Member<'_>, host_id: &str) {
    let message = format!(
        "Node {} ({host_id}) is leaving the token ring. The operator scales its StatefulSet in when another node \
         confirms that it has left.",
        steps.node_reference(member)
    );
    steps.report_progressing(Component::StatefulSet, reasons::DECOMMISSION_IN_PROGRESS, message);
}

#[cfg(test)]
mod tests;
