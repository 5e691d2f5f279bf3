//! One node less: the last of a rack hands over its data, the ring confirms that it has left, and only then its place is
//! taken away.
//!
//! Until the node says that it begins, the request can be withdrawn; both are written for the version of the Service that
//! was seen, so only one of them happens. From then on it goes on to the end.

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
        state::{
            counts::{desired, nodes_to_keep, removed_racks},
            member::Member,
            nodes::is_settled,
            ring::Membership,
            stateful_set::{partition, replicas},
            upgrade::is_being_upgraded,
        },
        topology::{
            claims::{is_wanted, put_away},
            cleanup, maintenance, outdated,
            steps::Steps,
        },
    },
    node::{answer::UP, decommission::Refusal},
};

/// What is left of nodes for which their StatefulSets have no place: nodes that have left are put away.
pub(crate) fn clear_up(steps: &mut Steps<'_>) {
    let observed = steps.observed;
    for member in steps.ring.members.iter().filter(|member| member.is_beyond_replicas(observed)) {
        match member.host_id() {
            None => clear_blank(steps, member),
            Some(host_id) => clear(steps, member, host_id),
        }
    }
    for stateful_set in removed_racks(observed).filter(|one| replicas(one) == 0) {
        remove_rack(steps, stateful_set);
    }
}

/// A Service that no node has ever used.
fn clear_blank(steps: &mut Steps<'_>, member: &Member<'_>) {
    let observed = steps.observed;
    let claim = observed.claim_of(member.name);
    if is_wanted(steps, member) {
        return;
    }
    let service = steps.named(member);
    // A claim that is younger than the Service was made for a node, which may have joined without a word. If it is said
    // to be of one that has left, somebody said so by hand: the Service of such a one is older than this one.
    let is_of_this_node = |claim: &Claim| claim.created >= member.service.created;
    let is_used = observed.pods.contains_key(member.name)
        || claim.is_some_and(|claim| claim.is_of_a_node() || is_of_this_node(claim))
        || !member.is_blank();
    if let Some(stateful_set) = observed.stateful_sets.get(member.stateful_set)
        && claim.is_some_and(is_of_this_node)
    {
        let message = format!(
            "node {service} may be in the ring, but StatefulSet {} has no place for it; it gets one, so that \
             the node \
             can leave in order",
            member.stateful_set
        );
        steps.lacks_place(member);
        steps.wait(Component::StatefulSet, "NodeWithoutPlace", message.clone());
        steps.set_replicas(stateful_set, member.ordinal + 1, member, ("NodeWithoutPlace", message));
        return;
    }
    if is_used {
        let message = format!(
            "Service {service} is of a node that the specification no longer asks for, and of which the host ID \
             is not \
             known; it stays: if the node has left, delete the Service"
        );
        steps.wait(Component::Service, "UnknownNode", message);
        return;
    }
    let message = format!("Service {service} is deleted: no node has used it, and the specification asks for none");
    steps.done.going.insert(member.name.to_owned());
    steps.rests_on_belongings(member);
    steps.delete(ObjectKind::Service, &member.service.reference, ("DeletingService", message));
}

fn clear(steps: &mut Steps<'_>, member: &Member<'_>, host_id: &str) {
    let observed = steps.observed;
    steps.asks = true;
    let is_departing = member.is_asked_to_leave() || member.has_begun_to_leave();
    let place = match steps.ring.membership_of(observed, member, host_id) {
        // The one that replaces it may be in the ring, and has not said so.
        Membership::Absent if member.is_replaced() => Membership::Member,
        place => place,
    };
    let others = steps.ring.others(observed, member.name);
    // What is not known is waited for, where it will be: pods of former versions do not answer before they are changed.
    let will_be_known = !others.is_empty() && others.iter().all(|other| other.answers());
    if place == Membership::Member || (place == Membership::Unknown && will_be_known) {
        steps.lacks_place(member);
    }
    let service = steps.named(member);
    let stateful_set = observed.stateful_sets.get(member.stateful_set);
    match place {
        Membership::Member if !observed.stateful_sets.contains_key(member.stateful_set) => {
            let message = format!(
                "node {service} is in the ring, but its rack is not in the specification any more, and StatefulSet {} \
                 is gone; put the rack back into the specification, so that the StatefulSet is made anew around its \
                 nodes and they can leave in order",
                member.stateful_set
            );
            steps.fault(Component::StatefulSet, "RackWithoutStatefulSet", message);
        }
        Membership::Member if stateful_set.is_some_and(|now| !steps.ring.is_asked_since(now)) => {
            steps.ask_anew();
            steps.done.in_the_way.insert(member.stateful_set.to_owned());
            let message = format!(
                "node {service} was in the ring when StatefulSet {} had a place for it; nodes are asked again",
                member.stateful_set
            );
            steps.wait(Component::StatefulSet, "WaitingForRing", message);
        }
        Membership::Member => {
            let message = format!(
                "node {service} is in the ring, but StatefulSet {} has no place for it; it gets one, so that \
                 the node \
                 can leave in order",
                member.stateful_set
            );
            steps.wait(Component::StatefulSet, "NodeWithoutPlace", message.clone());
            // It comes back as it was, which is no change of the ring, so it waits for nothing.
            if let Some(stateful_set) = stateful_set {
                steps.set_replicas(stateful_set, member.ordinal + 1, member, ("NodeWithoutPlace", message));
            }
        }
        Membership::Unknown => {
            // Where there is nobody to ask, the node comes back as it was.
            if is_departing || !others.is_empty() {
                steps.done.in_the_way.insert(member.stateful_set.to_owned());
            }
            let message = format!(
                "Service {service} is of node {host_id}; it goes when the other nodes confirm that the node is \
                 not in the ring"
            );
            steps.wait(Component::Service, "WaitingForRing", message);
        }
        Membership::Absent if !is_asked_about(steps, member) => doubt(steps, member, host_id),
        Membership::Absent => {
            steps.done.in_the_way.insert(member.stateful_set.to_owned());
            steps.done.going.insert(member.name.to_owned());
            if observed.pods.contains_key(member.name) {
                let message =
                    format!("node {host_id} has left; its Service {service} goes when pod {} is gone", member.name);
                steps.wait(Component::Service, "WaitingForPod", message);
            } else if put_away(steps, member, host_id) {
                let message = format!("node {host_id} has left, so its Service {service} is deleted");
                steps.rests_on_belongings(member);
                steps.delete(ObjectKind::Service, &member.service.reference, ("NodeRemoved", message));
            }
        }
    }
}

/// Whether the others were asked when it was certain that the node would not join any more: it was in the ring and had begun
/// to leave, or it had neither a place nor a pod.
fn is_asked_about(steps: &Steps<'_>, member: &Member<'_>) -> bool {
    let stateful_set = steps.observed.stateful_sets.get(member.stateful_set);
    let is_asked_since = || stateful_set.is_none_or(|now| steps.ring.is_asked_since(now));
    member.is_asked_to_leave() && (member.has_begun_to_leave() || is_asked_since())
}

/// A node that nobody asked to leave, and that nobody sees: it may have joined after the others have answered. So it is
/// written down when its pod is gone, and the others are asked again.
fn doubt(steps: &mut Steps<'_>, member: &Member<'_>, host_id: &str) {
    steps.done.in_the_way.insert(member.stateful_set.to_owned());
    let service = steps.named(member);
    if steps.observed.pods.contains_key(member.name) {
        let message = format!(
            "Service {service} is of node {host_id}, which no other node sees in the ring; they are asked again when pod {} is \
             gone",
            member.name
        );
        return steps.wait(Component::Service, "WaitingForPod", message);
    }
    let question = steps.ask_anew();
    let annotations = json!({LEAVING_HOST_ID: host_id, RING_QUESTION: question});
    steps.rests_on_belongings(member);
    steps.change_member(member, json!({"annotations": annotations}), None);
    let message = format!(
        "Service {service} is of node {host_id}, which no other node sees in the ring; it goes when all say so once more, \
         now that its pod is gone"
    );
    steps.wait(Component::Service, "WaitingForRing", message);
}

/// A rack that the specification no longer has, and that has no nodes any more.
fn remove_rack(steps: &mut Steps<'_>, stateful_set: &StatefulSet) {
    let name = stateful_set.metadata.name.as_deref().unwrap_or_default();
    let is_used = steps.ring.members.iter().any(|member| member.stateful_set == name)
        || steps.observed.pods.keys().any(|pod| pod.rsplit_once('-').is_some_and(|(prefix, _)| prefix == name));
    if !is_used && stateful_set.metadata.deletion_timestamp.is_none() {
        let message = format!(
            "StatefulSet {}/{name} is deleted: the specification has no such rack, and it has no nodes",
            steps.observed.datacenter.namespace
        );
        steps.delete(ObjectKind::StatefulSet, &ObjectReference::of(&stateful_set.metadata), ("RackRemoved", message));
    }
}

/// Makes the next node leave, if one is to.
pub(crate) fn leave(steps: &mut Steps<'_>, racks: &Racks<'_>, is_replacing: bool) {
    let observed = steps.observed;
    let departing: Vec<&Member<'_>> = steps
        .ring
        .members
        .iter()
        .filter(|member| {
            !member.is_beyond_replicas(observed) && (member.is_asked_to_leave() || member.has_begun_to_leave())
        })
        .collect();
    let is_last =
        |member: &Member<'_>| observed.stateful_sets.get(member.stateful_set).map(replicas) == Some(member.ordinal + 1);
    let current = departing
        .iter()
        .find(|member| member.has_begun_to_leave() && is_last(member))
        .or_else(|| departing.iter().find(|member| is_last(member)))
        .copied();
    for member in &departing {
        if current.is_none_or(|current| current.name != member.name) {
            set_aside(steps, member, is_last(member));
        }
    }
    for member in steps.ring.members.iter().filter(|member| !member.is_beyond_replicas(observed)) {
        tidy(steps, member);
    }
    match current {
        Some(member) => go_on(steps, member, racks, is_replacing),
        None => begin(steps, racks, is_replacing),
    }
}

/// Two nodes never leave together, and none leaves from the middle of a rack.
fn set_aside(steps: &mut Steps<'_>, member: &Member<'_>, is_last: bool) {
    if !member.has_begun_to_leave() {
        withdraw(steps, member, "another node is leaving, or it is not the last of its rack");
    } else if is_last {
        let message =
            format!("node {} is leaving too; its place goes when the other one's has gone", steps.named(member));
        steps.wait(Component::StatefulSet, "WaitingForOtherNode", message);
    } else {
        let message = format!(
            "node {} leaves the ring, or has left it, although it is not the last of its rack, and nobody asked \
             it to \
             here; if it has left, set the label {} on its Service when it is down, or scale the rack down to it",
            steps.named(member),
            names::label::REPLACE
        );
        steps.fault(Component::StatefulSet, "NotTheLastNode", message);
    }
}

/// Takes away what looks like a request and is none.
fn tidy(steps: &mut Steps<'_>, member: &Member<'_>) {
    let is_departing = member.is_asked_to_leave() || member.has_begun_to_leave();
    if !is_departing && (member.decommissioned().is_some() || member.leaving().is_some()) {
        let message = format!(
            "label {DECOMMISSIONED} of Service {} is taken away: nobody asked the node that is there now to leave",
            steps.named(member)
        );
        let patch = json!({"labels": {DECOMMISSIONED: null}, "annotations": {LEAVING_HOST_ID: null}});
        steps.change_member(member, patch, Some(("LabelRemoved", message)));
    }
    // Nobody is told of a refusal to do what is not wanted any more.
    if member.service.leaving_refused.is_some() && member.ordinal < desired(steps.observed, member.stateful_set) {
        steps.change_member(member, json!({"annotations": {LEAVING_REFUSED: null}}), None);
    }
}

/// Reason of the fault when ScyllaDB refuses to decommission a node. It holds up nothing that does not change the ring.
pub(crate) const REFUSES: &str = "DecommissionRefused";

/// What a person can do about a node that refuses to leave.
fn tell_refusal(steps: &mut Steps<'_>, member: &Member<'_>, refusal: &Refusal) {
    let message = format!(
        "node {} is to leave the ring, and ScyllaDB refuses: {}. To keep the node, ask for it again in `nodes` of its rack, \
         or put the rack back. To let it go, alter the keyspaces so that the nodes that stay can hold all replicas; it is \
         asked again by and by",
        steps.named(member),
        refusal.why
    );
    steps.fault(Component::StatefulSet, REFUSES, message);
}

fn withdraw(steps: &mut Steps<'_>, member: &Member<'_>, why: &str) {
    let message = format!("node {} stays: {why}", steps.named(member));
    let patch = json!({"labels": {DECOMMISSIONED: null}, "annotations": {LEAVING_HOST_ID: null}});
    steps.change_member(member, patch, Some(("NodeStays", message.clone())));
    steps.wait(Component::StatefulSet, "NodeStays", message);
}

/// Writes down that the node is to leave, and asks for the ring anew.
fn ask_to_leave(steps: &mut Steps<'_>, member: &Member<'_>, host_id: &str) {
    let question = steps.ask_anew();
    let message = format!("node {} ({host_id}) is asked to leave the ring", steps.named(member));
    let annotations = json!({LEAVING_HOST_ID: host_id, RING_QUESTION: question});
    let patch = json!({"labels": {DECOMMISSIONED: FALSE}, "annotations": annotations});
    steps.change_member(member, patch, Some(("NodeLeaves", message)));
}

fn go_on(steps: &mut Steps<'_>, member: &Member<'_>, racks: &Racks<'_>, is_replacing: bool) {
    let observed = steps.observed;
    let Some(host_id) = member.host_id() else { return };
    steps.done.is_leaving = true;
    steps.asks = true;
    let node = steps.named(member);
    let place = steps.ring.membership(host_id, member.name);
    let refusal = member.refusal().filter(|_| place != Membership::Absent);
    if let Some(refusal) = &refusal {
        tell_refusal(steps, member, refusal);
    }
    let is_asked = member.is_asked_to_leave() && matches!(member.decommissioned(), Some(FALSE | TRUE));
    if !member.has_begun_to_leave() && place != Membership::Absent {
        let trouble = steps.ring.unhealthy_node(host_id, member.name);
        if member.ordinal < desired(observed, member.stateful_set) {
            return withdraw(steps, member, "the specification asks for it again");
        } else if is_replacing || unsettled(steps).is_some() {
            return withdraw(steps, member, "something else changes, or a node is not ready");
        } else if let Some(trouble) = trouble {
            return withdraw(steps, member, &trouble);
        } else if refusal.is_some_and(|refusal| !refusal.retry || is_anything_else_to_do(steps, racks)) {
            return withdraw(steps, member, "it refuses to leave, so other changes go first");
        }
    }
    if !is_asked {
        return ask_to_leave(steps, member, host_id);
    }
    if place == Membership::Absent && member.is_replaced() {
        let message = format!("node {node} ({host_id}) has left, or is replaced by one that has yet to say so");
        return steps.wait(Component::StatefulSet, "WaitingForReplacement", message);
    }
    if place == Membership::Absent {
        let Some(now) = observed.stateful_sets.get(member.stateful_set) else { return };
        let message = format!(
            "node {node} ({host_id}) has left the ring; StatefulSet {} is scaled in to {} node(s)",
            member.stateful_set, member.ordinal
        );
        steps.wait(Component::StatefulSet, "ScalingIn", message.clone());
        return steps.set_replicas(now, member.ordinal, member, ("NodeLeft", message));
    }
    // A node that is up and normal waits for the word; nobody else may have said that it has left.
    if member.decommissioned() == Some(TRUE) && steps.ring.is_seen(host_id, UP, member.name) {
        steps.change_member(member, json!({"labels": {DECOMMISSIONED: FALSE}}), None);
    }
    let message =
        format!("node {node} ({host_id}) leaves the ring; its place goes when another node says that it has left");
    steps.wait(Component::StatefulSet, "WaitingForNodeToLeave", message);
}

/// Whether something goes before a node that refused to leave is asked again.
fn is_anything_else_to_do(steps: &Steps<'_>, racks: &Racks<'_>) -> bool {
    racks.are_to_change() || cleanup::is_wanted(steps.observed)
}

/// What has to be over before a node may leave.
fn unsettled(steps: &Steps<'_>) -> Option<String> {
    let observed = steps.observed;
    let namespace = &observed.datacenter.namespace;
    if let Some(reason) = maintenance::reason(steps) {
        return Some(reason);
    }
    for rack in &observed.datacenter.racks {
        let name = observed.datacenter.stateful_set_name(rack);
        match steps.replicas(&name) {
            None => return Some(format!("StatefulSet {namespace}/{name} is yet to be created")),
            Some(now) if now < nodes_to_keep(steps.current, rack) => {
                return Some(format!("StatefulSet {namespace}/{name} is yet to get more nodes"));
            }
            Some(_) => {}
        }
    }
    let racks: Vec<String> =
        observed.datacenter.racks.iter().map(|rack| observed.datacenter.stateful_set_name(rack)).collect();
    // A rack that is not in the specification any more is not changed any further.
    let is_rolling = |name: &String, one: &StatefulSet| partition(one) > 0 && racks.contains(name);
    let moving = observed.stateful_sets.iter().find(|(name, one)| !is_settled(observed, one) || is_rolling(name, one));
    if let Some((name, _)) = moving {
        return Some(format!("StatefulSet {namespace}/{name} is not rolled out"));
    }
    if is_being_upgraded(steps.current) {
        return Some("the change of the version is not complete".into());
    }
    // Others find it no longer, so nobody can leave; and it does not restart while somebody does.
    if let Some(outdated) = steps.ring.members.iter().find(|member| outdated::asks(observed, member)) {
        return Some(format!("node {} is to restart with its new address", steps.named(outdated)));
    }
    // Whoever is being cleaned up must not be handed anything.
    let cleaning = observed.jobs.iter().find(|(_, job)| job.is_running());
    cleaning.map(|(name, _)| format!("Job {namespace}/{name} is cleaning up a node"))
}

fn begin(steps: &mut Steps<'_>, racks: &Racks<'_>, is_replacing: bool) {
    let observed = steps.observed;
    let wanted = observed.datacenter.racks.iter().map(|rack| observed.datacenter.stateful_set_name(rack));
    let removed = removed_racks(observed).filter_map(|one| one.metadata.name.clone());
    let superfluous: Vec<(String, i32)> = removed
        .chain(wanted)
        .filter_map(|name| {
            let now = steps.replicas(&name)?;
            (now > desired(observed, &name)).then_some((name, now))
        })
        .collect();
    let ring = steps.ring;
    let last: Vec<(String, Option<&Member<'_>>, Option<Refusal>)> = superfluous
        .iter()
        .map(|(stateful_set, now)| {
            let name = names::datacenter::member(stateful_set, now - 1);
            let member = ring.members.iter().find(|member| member.name == name);
            (name, member, member.and_then(Member::refusal))
        })
        .collect();
    for (_, member, refusal) in &last {
        if let (Some(member), Some(refusal)) = (member, refusal) {
            tell_refusal(steps, member, refusal);
        }
    }
    // A node that refused comes after all others, and not before its pause is over.
    let next = last.iter().find(|(.., refusal)| refusal.is_none());
    let next = next.or_else(|| last.iter().find(|(.., refusal)| refusal.as_ref().is_some_and(|one| one.retry)));
    let Some((name, member, refusal)) = next else { return };
    let node = format!("{}/{name}", observed.datacenter.namespace);
    if is_replacing {
        let message = format!("node {node} is to leave, and does when no node is being replaced");
        return steps.wait(Component::StatefulSet, "WaitingForReplacement", message);
    }
    if let Some(reason) = unsettled(steps) {
        return steps.wait(
            Component::StatefulSet,
            "WaitingForStatefulSetRollout",
            format!("node {node} is to leave; first, {reason}"),
        );
    }
    if refusal.is_some() && is_anything_else_to_do(steps, racks) {
        return;
    }
    let Some((member, host_id)) = member.and_then(|member| Some((member, member.host_id()?))) else {
        let message = format!("node {node} is to leave; its Service does not say its host ID yet");
        return steps.wait(Component::StatefulSet, "WaitingForHostId", message);
    };
    if steps.ring.others(observed, member.name).is_empty() {
        let message = format!(
            "node {node} is to leave, but it is the only one of the datacenter, so nobody could take over its \
             data; it \
             stays: delete the ScyllaDBDatacenter if nothing is to be kept"
        );
        return steps.wait(Component::StatefulSet, "LastNodeStays", message);
    }
    steps.asks = true;
    match steps.ring.check_agreement(observed, member, UP) {
        Ok(()) => {
            steps.done.is_leaving = true;
            steps.wait(
                Component::StatefulSet,
                "AskingNodeToLeave",
                format!("node {node} ({host_id}) is asked to leave the ring"),
            );
            ask_to_leave(steps, member, host_id);
        }
        // Pods may change meanwhile: those of former versions do not answer before they are changed.
        Err(reason) => {
            let message = format!("node {node} is to leave, and is asked to when all others are up; {reason}");
            steps.wait(Component::StatefulSet, "WaitingForRing", message);
        }
    }
}
