//! Requests to leave: which node is requested next, and what goes before.

use k8s_openapi::api::apps::v1::StatefulSet;
use messina_api::names::{
    self,
    annotation::{LEAVING_HOST_ID, RING_QUESTION},
    label::{DECOMMISSIONED, value::FALSE},
};
use serde_json::json;

use crate::{
    datacenter::{
        model::component::Component,
        racks::Racks,
        reasons,
        state::{
            counts::{desired, nodes_to_keep, removed_racks},
            member::Member,
            nodes::is_settled,
            stateful_set::partition,
            upgrade::is_being_upgraded,
        },
        topology::{cleanup, maintenance, outdated, steps::Steps},
    },
    node::{answer::UP, decommission::Refusal},
};

/// What is true of the node that is to be requested next: the last node of a rack with more nodes than desired.
#[derive(Debug, PartialEq)]
enum SurplusState<'a> {
    /// Another node is being replaced: one change of the ring at a time.
    ReplacementInProgress,
    /// Another change has to end first, as the message says.
    Blocked(String),
    /// It refused to leave before, and other changes go before the next attempt.
    Refused,
    /// Its sidecar has not written its host ID, without which it cannot be requested.
    HostIdUnknown,
    /// There is no other node that could take over its data.
    OnlyNode,
    /// Not all other nodes see it and each other up, as the message says.
    RingUnhealthy(String),
    /// It can be requested to leave.
    MayLeave(&'a Member<'a>, &'a str),
}

/// What decides about the node that is to be requested next.
#[derive(Clone)]
struct SurplusFacts<'a> {
    is_replacing: bool,
    /// What has to end before a node may leave.
    blocker: Option<String>,
    has_refused: bool,
    has_other_changes: bool,
    /// The member and its host ID; none where its sidecar has not written that.
    node: Option<(&'a Member<'a>, &'a str)>,
    has_others: bool,
    /// Whether all other nodes see it and each other up, or why not.
    agreement: Result<(), String>,
}

impl<'a> SurplusFacts<'a> {
    fn of(steps: &Steps<'a>, surplus: &Surplus<'a>, racks: &Racks<'_>, is_replacing: bool) -> Self {
        let (observed, ring) = (steps.observed, steps.ring);
        let node = surplus.member.and_then(|member| Some((member, member.host_id()?)));
        Self {
            is_replacing,
            blocker: find_blocker(steps),
            has_refused: surplus.refusal.is_some(),
            has_other_changes: has_other_changes(steps, racks),
            node,
            has_others: node.is_some_and(|(member, _)| !ring.others(observed, member.name).is_empty()),
            agreement: node.map_or(Ok(()), |(member, _)| ring.check_agreement(observed, member, UP)),
        }
    }

    fn state(self) -> SurplusState<'a> {
        match (self.blocker, self.node, self.agreement) {
            _ if self.is_replacing => SurplusState::ReplacementInProgress,
            (Some(blocker), ..) => SurplusState::Blocked(blocker),
            _ if self.has_refused && self.has_other_changes => SurplusState::Refused,
            (_, None, _) => SurplusState::HostIdUnknown,
            _ if !self.has_others => SurplusState::OnlyNode,
            (.., Err(report)) => SurplusState::RingUnhealthy(report),
            (_, Some((member, host_id)), Ok(())) => SurplusState::MayLeave(member, host_id),
        }
    }
}

/// The last node of a rack that has more nodes than desired.
struct Surplus<'a> {
    name: String,
    /// None where its Service does not exist.
    member: Option<&'a Member<'a>>,
    refusal: Option<Refusal>,
}

/// Requests the next node to leave, if a rack has more nodes than desired.
pub(super) fn request_next(steps: &mut Steps<'_>, racks: &Racks<'_>, is_replacing: bool) {
    let surplus = find_surplus(steps);
    for one in &surplus {
        if let (Some(member), Some(refusal)) = (one.member, &one.refusal) {
            report_refusal(steps, member, refusal);
        }
    }
    // A node that refused comes after all others, and not before the sidecar allows another attempt.
    let next = surplus.iter().find(|one| one.refusal.is_none());
    let next = next.or_else(|| surplus.iter().find(|one| one.refusal.as_ref().is_some_and(|refusal| refusal.retry)));
    let Some(next) = next else { return };
    let node = format!("{}/{}", steps.observed.datacenter.namespace, next.name);
    match SurplusFacts::of(steps, next, racks, is_replacing).state() {
        SurplusState::ReplacementInProgress => {
            let message = format!("Node {node} has to leave the token ring. Waiting until no node is being replaced.");
            steps.report_progressing(Component::StatefulSet, reasons::WAITING_FOR_REPLACEMENT, message);
        }
        SurplusState::Blocked(blocker) => {
            let message =
                format!("Node {node} has to leave the token ring. Waiting for other changes to end: {blocker}.");
            steps.report_progressing(Component::StatefulSet, reasons::WAITING_FOR_STATEFUL_SET_ROLLOUT, message);
        }
        SurplusState::Refused => {}
        SurplusState::HostIdUnknown => {
            let message = format!(
                "Node {node} has to leave the token ring. Waiting for its sidecar to write the host ID to the Service."
            );
            steps.report_progressing(Component::StatefulSet, reasons::WAITING_FOR_HOST_ID, message);
        }
        SurplusState::OnlyNode => {
            let message = format!(
                "Node {node} cannot be decommissioned: it is the only node of the datacenter, and no other node could \
                 take over its data. The operator keeps the node. If its data is not needed, delete the \
                 ScyllaDBDatacenter."
            );
            steps.report_progressing(Component::StatefulSet, reasons::CANNOT_DECOMMISSION_LAST_NODE, message);
        }
        // Pods may change meanwhile: sidecars of earlier versions cannot answer before their pods change.
        SurplusState::RingUnhealthy(report) => {
            steps.needs_ring = true;
            let message =
                format!("Node {node} has to leave the token ring. Waiting for all other nodes to be up: {report}.");
            steps.report_progressing(Component::StatefulSet, reasons::WAITING_FOR_RING, message);
        }
        SurplusState::MayLeave(member, host_id) => {
            steps.topology.is_leaving = true;
            steps.report_progressing(
                Component::StatefulSet,
                reasons::DECOMMISSION_REQUESTED,
                format!("Node {node} ({host_id}) is requested to leave the token ring."),
            );
            request_decommission(steps, member, host_id);
        }
    }
}

/// Returns the last nodes of racks that have more nodes than desired; those of removed racks come first.
fn find_surplus<'a>(steps: &Steps<'a>) -> Vec<Surplus<'a>> {
    let (observed, ring) = (steps.observed, steps.ring);
    let wanted = observed.datacenter.racks.iter().map(|rack| observed.datacenter.stateful_set_name(rack));
    let removed = removed_racks(observed).filter_map(|one| one.metadata.name.clone());
    let surplus = |stateful_set: String| {
        let now = steps.replicas(&stateful_set).filter(|now| *now > desired(observed, &stateful_set))?;
        let name = names::datacenter::member(&stateful_set, now - 1);
        let member = ring.members.iter().find(|member| member.name == name);
        Some(Surplus { name, member, refusal: member.and_then(Member::refusal) })
    };
    removed.chain(wanted).filter_map(surplus).collect()
}

/// Writes the request to leave on the node's Service, and asks all nodes for the ring again.
pub(super) fn request_decommission(steps: &mut Steps<'_>, member: &Member<'_>, host_id: &str) {
    let question = steps.ask_again();
    let message = format!("Node {} ({host_id}) is requested to leave the token ring.", steps.node_reference(member));
    let annotations = json!({LEAVING_HOST_ID: host_id, RING_QUESTION: question});
    let patch = json!({"labels": {DECOMMISSIONED: FALSE}, "annotations": annotations});
    steps.change_member(member, patch, Some((reasons::DECOMMISSION_REQUESTED, message)));
}

/// Reports why a node refuses to leave, and what the user can do.
pub(super) fn report_refusal(steps: &mut Steps<'_>, member: &Member<'_>, refusal: &Refusal) {
    let message = format!(
        "Node {} cannot be decommissioned: ScyllaDB refuses: {}. To keep the node, raise `nodes` of its rack, or add \
         the rack again. To remove it, alter the keyspaces so that the remaining nodes can hold all replicas. The \
         operator tries again later.",
        steps.node_reference(member),
        refusal.why
    );
    steps.report_degraded(Component::StatefulSet, reasons::DECOMMISSION_REFUSED, message);
}

/// Whether another change goes before a node that refused to leave is requested again.
pub(super) fn has_other_changes(steps: &Steps<'_>, racks: &Racks<'_>) -> bool {
    racks.are_to_change() || cleanup::is_cleanup_due(steps.observed)
}

/// Returns what has to end before a node may leave.
pub(super) fn find_blocker(steps: &Steps<'_>) -> Option<String> {
    let observed = steps.observed;
    let namespace = &observed.datacenter.namespace;
    if let Some(reason) = maintenance::blocker(steps) {
        return Some(reason);
    }
    for rack in &observed.datacenter.racks {
        let name = observed.datacenter.stateful_set_name(rack);
        match steps.replicas(&name) {
            None => return Some(format!("StatefulSet {namespace}/{name} is not created yet")),
            Some(now) if now < nodes_to_keep(steps.current, rack) => {
                return Some(format!("StatefulSet {namespace}/{name} is not scaled out yet"));
            }
            Some(_) => {}
        }
    }
    let racks: Vec<String> =
        observed.datacenter.racks.iter().map(|rack| observed.datacenter.stateful_set_name(rack)).collect();
    // The operator does not roll out changes to a rack that is not in the specification.
    let is_rolling = |name: &String, one: &StatefulSet| partition(one) > 0 && racks.contains(name);
    let not_rolled_out =
        observed.stateful_sets.iter().find(|(name, one)| !is_settled(observed, one) || is_rolling(name, one));
    if let Some((name, _)) = not_rolled_out {
        return Some(format!("StatefulSet {namespace}/{name} is not rolled out"));
    }
    if is_being_upgraded(steps.current) {
        return Some("the upgrade is not complete".into());
    }
    // The other nodes do not find it, so no node can leave; and it does not restart while a node leaves.
    if let Some(outdated) = steps.ring.members.iter().find(|member| outdated::asks_for_restart(observed, member)) {
        return Some(format!("node {} has to restart to announce its new address", steps.node_reference(outdated)));
    }
    // A node that is being cleaned up must not receive token ranges.
    let cleaning = observed.jobs.iter().find(|(_, job)| job.is_running());
    cleaning.map(|(name, _)| format!("Job {namespace}/{name} is cleaning up a node"))
}

#[cfg(test)]
mod tests;
