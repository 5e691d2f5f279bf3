//! Scaling in: the operator requests the decommission of the last node of a rack, the other nodes confirm that it has
//! left the token ring, and only then the operator reduces the replicas of the StatefulSet.
//!
//! The operator can cancel the request until the sidecar writes that the decommission has begun. Both write with the
//! resource version of the Service that they observed, so only one of them succeeds. A decommission that has begun runs
//! to its end.

use k8s_openapi::api::apps::v1::StatefulSet;
use messina_api::names::{
    self,
    annotation::{LEAVING_HOST_ID, LEAVING_REFUSED, RING_QUESTION},
    label::{
        DECOMMISSIONED,
        value::{FALSE, TRUE},
    },
};
use serde_json::json;

use crate::{
    datacenter::{
        model::{
            component::Component,
            facts::{ObjectReference, claim::Claim},
            plan::ObjectKind,
        },
        racks::Racks,
        reasons,
        state::{
            counts::{desired, nodes_to_keep, removed_racks},
            member::Member,
            nodes::is_settled,
            ring::Membership,
            stateful_set::{partition, replicas},
            upgrade::is_being_upgraded,
        },
        topology::{
            claims::{is_desired, keep_or_delete},
            cleanup, maintenance, outdated,
            steps::Steps,
        },
    },
    node::{answer::UP, decommission::Refusal},
};

/// Removes the objects of members beyond the replicas of their StatefulSet, once their nodes have left the ring.
pub(crate) fn remove_departed(steps: &mut Steps<'_>) {
    let observed = steps.observed;
    for member in steps.ring.members.iter().filter(|member| member.is_beyond_replicas(observed)) {
        match member.host_id() {
            None => remove_unused_service(steps, member),
            Some(host_id) => remove_departed_node(steps, member, host_id),
        }
    }
    for stateful_set in removed_racks(observed).filter(|one| replicas(one) == 0) {
        remove_rack(steps, stateful_set);
    }
}

/// Deletes a Service that no node has used.
fn remove_unused_service(steps: &mut Steps<'_>, member: &Member<'_>) {
    let observed = steps.observed;
    let claim = observed.claim_of(member.name);
    if is_desired(steps, member) {
        return;
    }
    let service = steps.node_reference(member);
    // A claim that is younger than the Service was created for a node, which may have joined before its sidecar wrote
    // anything. If such a claim carries the host ID of a node that has left, a user wrote it there: the Service of a
    // node that has left is older than this one.
    let is_of_this_node = |claim: &Claim| claim.created >= member.service.created;
    let is_used = observed.pods.contains_key(member.name)
        || claim.is_some_and(|claim| claim.is_of_a_node() || is_of_this_node(claim))
        || !member.is_blank();
    if let Some(stateful_set) = observed.stateful_sets.get(member.stateful_set)
        && claim.is_some_and(is_of_this_node)
    {
        let message = format!(
            "Node {service} may be in the token ring, but StatefulSet {} has no replica for it. The operator raises \
             replicas to {}, so that the node can be decommissioned.",
            member.stateful_set,
            member.ordinal + 1
        );
        steps.mark_below_ring(member);
        steps.report_progressing(Component::StatefulSet, reasons::MEMBER_BEYOND_REPLICAS, message.clone());
        steps.set_replicas(stateful_set, member.ordinal + 1, member, (reasons::MEMBER_BEYOND_REPLICAS, message));
        return;
    }
    if is_used {
        let message = format!(
            "Service {service} belongs to a node that the specification does not contain, and the host ID of the node \
             is unknown. The operator keeps the Service. If the node has left the token ring, delete the Service."
        );
        steps.report_progressing(Component::Service, reasons::UNKNOWN_NODE, message);
        return;
    }
    let message =
        format!("Deleting Service {service}: no node has used it, and the specification does not contain its node.");
    steps.topology.services_to_delete.insert(member.name.to_owned());
    steps.require_unchanged_claim_and_pod(member);
    steps.delete(ObjectKind::Service, &member.service.reference, (reasons::DELETING_SERVICE, message));
}

/// Deletes the Service of a node that has left the ring, or raises the replicas for a node that has not.
fn remove_departed_node(steps: &mut Steps<'_>, member: &Member<'_>, host_id: &str) {
    let observed = steps.observed;
    steps.needs_ring = true;
    let is_leaving = member.is_asked_to_leave() || member.has_begun_to_leave();
    let membership = match steps.ring.membership_of(observed, member, host_id) {
        // The node that replaces it may have joined before its sidecar has written that.
        Membership::Absent if member.is_replaced() => Membership::Member,
        membership => membership,
    };
    let others = steps.ring.others(observed, member.name);
    // Waits for an answer only where all sidecars can answer: sidecars of earlier versions cannot before their pods
    // change.
    let will_be_known = !others.is_empty() && others.iter().all(|other| other.answers());
    if membership == Membership::Member || (membership == Membership::Unknown && will_be_known) {
        steps.mark_below_ring(member);
    }
    let service = steps.node_reference(member);
    let stateful_set = observed.stateful_sets.get(member.stateful_set);
    match membership {
        Membership::Member if !observed.stateful_sets.contains_key(member.stateful_set) => {
            let message = format!(
                "Node {service} is in the token ring, but its rack is not in the specification and StatefulSet {} \
                 does not exist. Add the rack to the specification again: the operator then recreates the StatefulSet \
                 and decommissions the nodes.",
                member.stateful_set
            );
            steps.report_degraded(Component::StatefulSet, reasons::RACK_WITHOUT_STATEFUL_SET, message);
        }
        Membership::Member if stateful_set.is_some_and(|now| !steps.ring.is_asked_since(now)) => {
            steps.ask_again();
            steps.topology.blocked_by_leftovers.insert(member.stateful_set.to_owned());
            let message = format!(
                "Node {service} was in the token ring when StatefulSet {} had a replica for it. The operator asks the \
                 other nodes again.",
                member.stateful_set
            );
            steps.report_progressing(Component::StatefulSet, reasons::WAITING_FOR_RING, message);
        }
        Membership::Member => {
            let message = format!(
                "Node {service} is in the token ring, but StatefulSet {} has no replica for it. The operator raises \
                 replicas to {}, so that the node can be decommissioned.",
                member.stateful_set,
                member.ordinal + 1
            );
            steps.report_progressing(Component::StatefulSet, reasons::MEMBER_BEYOND_REPLICAS, message.clone());
            // The node comes back as it was. That does not change the ring, so it waits for nothing.
            if let Some(stateful_set) = stateful_set {
                steps.set_replicas(
                    stateful_set,
                    member.ordinal + 1,
                    member,
                    (reasons::MEMBER_BEYOND_REPLICAS, message),
                );
            }
        }
        Membership::Unknown => {
            // Without another node to ask, the node comes back as it was.
            if is_leaving || !others.is_empty() {
                steps.topology.blocked_by_leftovers.insert(member.stateful_set.to_owned());
            }
            let message = format!(
                "Service {service} belongs to node {host_id}, which may be in the token ring. The operator deletes the \
                 Service when the other nodes confirm that the node is not in the ring."
            );
            steps.report_progressing(Component::Service, reasons::WAITING_FOR_RING, message);
        }
        Membership::Absent if !is_asked_about(steps, member) => confirm_absence(steps, member, host_id),
        Membership::Absent => {
            steps.topology.blocked_by_leftovers.insert(member.stateful_set.to_owned());
            steps.topology.services_to_delete.insert(member.name.to_owned());
            if observed.pods.contains_key(member.name) {
                let message = format!(
                    "Node {host_id} has left the token ring. Its Service {service} is deleted when pod {} is gone.",
                    member.name
                );
                steps.report_progressing(Component::Service, reasons::WAITING_FOR_POD, message);
            } else if keep_or_delete(steps, member, host_id) {
                let message = format!("Deleting Service {service}: its node {host_id} has left the token ring.");
                steps.require_unchanged_claim_and_pod(member);
                steps.delete(ObjectKind::Service, &member.service.reference, (reasons::NODE_REMOVED, message));
            }
        }
    }
}

/// Whether the other nodes were asked after it was certain that the node would not join any more: it was in the ring
/// and had begun to leave, or it had neither a replica nor a pod.
fn is_asked_about(steps: &Steps<'_>, member: &Member<'_>) -> bool {
    let stateful_set = steps.observed.stateful_sets.get(member.stateful_set);
    let is_asked_since = || stateful_set.is_none_or(|now| steps.ring.is_asked_since(now));
    member.is_asked_to_leave() && (member.has_begun_to_leave() || is_asked_since())
}

/// Asks the other nodes once more about a node that was not requested to leave and that none of them sees in the ring:
/// it may have joined after they answered. The request is written when the pod is gone, so the next answers are newer
/// than the pod.
fn confirm_absence(steps: &mut Steps<'_>, member: &Member<'_>, host_id: &str) {
    steps.topology.blocked_by_leftovers.insert(member.stateful_set.to_owned());
    let service = steps.node_reference(member);
    if steps.observed.pods.contains_key(member.name) {
        let message = format!(
            "Service {service} belongs to node {host_id}, which no other node sees in the token ring. The operator \
             asks them again when pod {} is gone.",
            member.name
        );
        return steps.report_progressing(Component::Service, reasons::WAITING_FOR_POD, message);
    }
    let question = steps.ask_again();
    let annotations = json!({LEAVING_HOST_ID: host_id, RING_QUESTION: question});
    steps.require_unchanged_claim_and_pod(member);
    steps.change_member(member, json!({"annotations": annotations}), None);
    let message = format!(
        "Service {service} belongs to node {host_id}, which no other node sees in the token ring. The operator \
         deletes the Service when all of them confirm that once more, now that the pod is gone."
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
    let is_last =
        |member: &Member<'_>| observed.stateful_sets.get(member.stateful_set).map(replicas) == Some(member.ordinal + 1);
    let current = leaving
        .iter()
        .find(|member| member.has_begun_to_leave() && is_last(member))
        .or_else(|| leaving.iter().find(|member| is_last(member)))
        .copied();
    for member in &leaving {
        if current.is_none_or(|current| current.name != member.name) {
            postpone_or_cancel(steps, member, is_last(member));
        }
    }
    for member in steps.ring.members.iter().filter(|member| !member.is_beyond_replicas(observed)) {
        remove_stale_request(steps, member);
    }
    match current {
        Some(member) => continue_decommission(steps, member, racks, is_replacing),
        None => start_decommission(steps, racks, is_replacing),
    }
}

/// Two nodes never leave at the same time, and a node leaves only if it is the last of its rack.
fn postpone_or_cancel(steps: &mut Steps<'_>, member: &Member<'_>, is_last: bool) {
    if !member.has_begun_to_leave() {
        cancel_decommission(steps, member, "another node is leaving, or this node is not the last of its rack");
    } else if is_last {
        let message = format!(
            "Node {} is leaving the token ring while another node does. Its StatefulSet is scaled in after that of the \
             other node.",
            steps.node_reference(member)
        );
        steps.report_progressing(Component::StatefulSet, reasons::WAITING_FOR_OTHER_NODE, message);
    } else {
        let message = format!(
            "Node {} is leaving the token ring or has left it, but the operator did not request that, and the node is \
             not the last of its rack. If it has left, set the label {} on its Service when the node is down, or \
             reduce `nodes` of the rack until this node is the last.",
            steps.node_reference(member),
            names::label::REPLACE
        );
        steps.report_degraded(Component::StatefulSet, reasons::UNEXPECTED_DECOMMISSION, message);
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
    if member.service.leaving_refused.is_some() && member.ordinal < desired(steps.observed, member.stateful_set) {
        steps.change_member(member, json!({"annotations": {LEAVING_REFUSED: null}}), None);
    }
}

/// Reports why a node refuses to leave, and what the user can do.
fn report_refusal(steps: &mut Steps<'_>, member: &Member<'_>, refusal: &Refusal) {
    let message = format!(
        "Node {} cannot be decommissioned: ScyllaDB refuses: {}. To keep the node, raise `nodes` of its rack, or add \
         the rack again. To remove it, alter the keyspaces so that the remaining nodes can hold all replicas. The \
         operator tries again later.",
        steps.node_reference(member),
        refusal.why
    );
    steps.report_degraded(Component::StatefulSet, reasons::DECOMMISSION_REFUSED, message);
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

/// Writes the request to leave on the node's Service, and asks all nodes for the ring again.
fn request_decommission(steps: &mut Steps<'_>, member: &Member<'_>, host_id: &str) {
    let question = steps.ask_again();
    let message = format!("Node {} ({host_id}) is requested to leave the token ring.", steps.node_reference(member));
    let annotations = json!({LEAVING_HOST_ID: host_id, RING_QUESTION: question});
    let patch = json!({"labels": {DECOMMISSIONED: FALSE}, "annotations": annotations});
    steps.change_member(member, patch, Some((reasons::DECOMMISSION_REQUESTED, message)));
}

fn continue_decommission(steps: &mut Steps<'_>, member: &Member<'_>, racks: &Racks<'_>, is_replacing: bool) {
    let observed = steps.observed;
    let Some(host_id) = member.host_id() else { return };
    steps.topology.is_leaving = true;
    steps.needs_ring = true;
    let node = steps.node_reference(member);
    let membership = steps.ring.membership(host_id, member.name);
    let refusal = member.refusal().filter(|_| membership != Membership::Absent);
    if let Some(refusal) = &refusal {
        report_refusal(steps, member, refusal);
    }
    let is_asked = member.is_asked_to_leave() && matches!(member.decommissioned(), Some(FALSE | TRUE));
    if !member.has_begun_to_leave() && membership != Membership::Absent {
        let trouble = steps.ring.unhealthy_node(host_id, member.name);
        if member.ordinal < desired(observed, member.stateful_set) {
            return cancel_decommission(steps, member, "the specification contains it again");
        } else if is_replacing || decommission_blocker(steps).is_some() {
            return cancel_decommission(steps, member, "another change is in progress, or a node is not ready");
        } else if let Some(trouble) = trouble {
            return cancel_decommission(steps, member, &trouble);
        } else if refusal.is_some_and(|refusal| !refusal.retry || has_other_changes(steps, racks)) {
            return cancel_decommission(
                steps,
                member,
                "ScyllaDB refuses to decommission it, so other changes go first",
            );
        }
    }
    if !is_asked {
        return request_decommission(steps, member, host_id);
    }
    if membership == Membership::Absent && member.is_replaced() {
        let message = format!(
            "Node {node} ({host_id}) has left the token ring or was replaced. Waiting for the sidecar of the new node \
             to report its host ID."
        );
        return steps.report_progressing(Component::StatefulSet, reasons::WAITING_FOR_REPLACEMENT, message);
    }
    if membership == Membership::Absent {
        let Some(now) = observed.stateful_sets.get(member.stateful_set) else { return };
        let message = format!(
            "Node {node} ({host_id}) has left the token ring. The operator scales StatefulSet {} in to {} node(s).",
            member.stateful_set, member.ordinal
        );
        steps.report_progressing(Component::StatefulSet, reasons::SCALING_IN, message.clone());
        return steps.set_replicas(now, member.ordinal, member, (reasons::NODE_DECOMMISSIONED, message));
    }
    // A node that is up and normal waits for the request; only the sidecar may write that its node has left.
    if member.decommissioned() == Some(TRUE) && steps.ring.is_seen(host_id, UP, member.name) {
        steps.change_member(member, json!({"labels": {DECOMMISSIONED: FALSE}}), None);
    }
    let message = format!(
        "Node {node} ({host_id}) is leaving the token ring. The operator scales its StatefulSet in when another node \
         confirms that it has left."
    );
    steps.report_progressing(Component::StatefulSet, reasons::DECOMMISSION_IN_PROGRESS, message);
}

/// Whether another change goes before a node that refused to leave is requested again.
fn has_other_changes(steps: &Steps<'_>, racks: &Racks<'_>) -> bool {
    racks.are_to_change() || cleanup::is_cleanup_due(steps.observed)
}

/// Returns what has to end before a node may leave.
fn decommission_blocker(steps: &Steps<'_>) -> Option<String> {
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

fn start_decommission(steps: &mut Steps<'_>, racks: &Racks<'_>, is_replacing: bool) {
    let observed = steps.observed;
    let wanted = observed.datacenter.racks.iter().map(|rack| observed.datacenter.stateful_set_name(rack));
    let removed = removed_racks(observed).filter_map(|one| one.metadata.name.clone());
    let surplus: Vec<(String, i32)> = removed
        .chain(wanted)
        .filter_map(|name| {
            let now = steps.replicas(&name)?;
            (now > desired(observed, &name)).then_some((name, now))
        })
        .collect();
    let ring = steps.ring;
    let last: Vec<(String, Option<&Member<'_>>, Option<Refusal>)> = surplus
        .iter()
        .map(|(stateful_set, now)| {
            let name = names::datacenter::member(stateful_set, now - 1);
            let member = ring.members.iter().find(|member| member.name == name);
            (name, member, member.and_then(Member::refusal))
        })
        .collect();
    for (_, member, refusal) in &last {
        if let (Some(member), Some(refusal)) = (member, refusal) {
            report_refusal(steps, member, refusal);
        }
    }
    // A node that refused comes after all others, and not before the sidecar allows another attempt.
    let next = last.iter().find(|(.., refusal)| refusal.is_none());
    let next = next.or_else(|| last.iter().find(|(.., refusal)| refusal.as_ref().is_some_and(|one| one.retry)));
    let Some((name, member, refusal)) = next else { return };
    let node = format!("{}/{name}", observed.datacenter.namespace);
    if is_replacing {
        let message = format!("Node {node} has to leave the token ring. Waiting until no node is being replaced.");
        return steps.report_progressing(Component::StatefulSet, reasons::WAITING_FOR_REPLACEMENT, message);
    }
    if let Some(reason) = decommission_blocker(steps) {
        return steps.report_progressing(
            Component::StatefulSet,
            reasons::WAITING_FOR_STATEFUL_SET_ROLLOUT,
            format!("Node {node} has to leave the token ring. Waiting for other changes to end: {reason}."),
        );
    }
    if refusal.is_some() && has_other_changes(steps, racks) {
        return;
    }
    let Some((member, host_id)) = member.and_then(|member| Some((member, member.host_id()?))) else {
        let message = format!(
            "Node {node} has to leave the token ring. Waiting for its sidecar to write the host ID to the Service."
        );
        return steps.report_progressing(Component::StatefulSet, reasons::WAITING_FOR_HOST_ID, message);
    };
    if steps.ring.others(observed, member.name).is_empty() {
        let message = format!(
            "Node {node} cannot be decommissioned: it is the only node of the datacenter, and no other node could \
             take over its data. The operator keeps the node. If its data is not needed, delete the \
             ScyllaDBDatacenter."
        );
        return steps.report_progressing(Component::StatefulSet, reasons::CANNOT_DECOMMISSION_LAST_NODE, message);
    }
    steps.needs_ring = true;
    match steps.ring.check_agreement(observed, member, UP) {
        Ok(()) => {
            steps.topology.is_leaving = true;
            steps.report_progressing(
                Component::StatefulSet,
                reasons::DECOMMISSION_REQUESTED,
                format!("Node {node} ({host_id}) is requested to leave the token ring."),
            );
            request_decommission(steps, member, host_id);
        }
        // Pods may change meanwhile: sidecars of earlier versions cannot answer before their pods change.
        Err(reason) => {
            let message =
                format!("Node {node} has to leave the token ring. Waiting for all other nodes to be up: {reason}.");
            steps.report_progressing(Component::StatefulSet, reasons::WAITING_FOR_RING, message);
        }
    }
}
