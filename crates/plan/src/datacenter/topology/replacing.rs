//! A node that is lost for good is replaced by an empty one, when its user asks for that with a label, or has allowed it
//! for all that are certain not to come back.
//!
//! First it is written down which host ID is replaced, and which claim and pod are its own; then, when all other nodes
//! say that this node is down, these two are deleted, and no others of their names.

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
        state::{member::Member, preconditions, ring::Membership},
        topology::{lost, maintenance, steps::Steps},
    },
    node::answer::{DOWN, UP},
};

/// Goes on with replacements, and begins the next one; answers whether one is under way.
pub(crate) fn replace(steps: &mut Steps<'_>) -> bool {
    let members = steps.current.members();
    let mut is_under_way = false;
    for member in members {
        if let Some(replaced) = &member.service.replacing_node_host_id {
            is_under_way |= go_on(steps, member, replaced);
        } else if member.service.replace.is_none() && member.replacing_claim().is_some() {
            steps.change_member(member, json!({"annotations": {REPLACING_CLAIM: null}}), None);
        }
    }
    for member in members {
        if member.service.replace.is_some() && member.service.replacing_node_host_id.is_none() {
            is_under_way |= begin(steps, member, is_under_way);
        }
    }
    let is_unmarked =
        |member: &&Member<'_>| !member.service.is_to_be_replaced() && !member.is_beyond_replicas(steps.observed);
    for member in members.iter().filter(is_unmarked) {
        if lost::is_emptied(steps.observed, member) {
            lost::tell_of_empty_disk(steps, member);
            continue;
        }
        let Some(why) = lost::loss(steps.observed, member) else { continue };
        if steps.observed.datacenter.replaces_lost_nodes && member.host_id().is_some() {
            is_under_way |= begin(steps, member, is_under_way);
        } else {
            lost::tell(steps, member, &why);
        }
    }
    is_under_way
}

fn forget() -> Value {
    json!({"labels": {REPLACE: null, REPLACING_NODE_HOST_ID: null}, "annotations": {REPLACING_CLAIM: null}})
}

/// A Service that says whom its node replaces; answers whether that is under way.
fn go_on(steps: &mut Steps<'_>, member: &Member<'_>, replaced: &str) -> bool {
    let is_asked_for = member.service.replace.is_some();
    let Some(host_id) = member.host_id() else {
        return false;
    };
    if host_id != replaced {
        return took_over(steps, member, host_id, replaced);
    }
    steps.asks = true;
    match (is_asked_for, member.replacing_claim()) {
        // A request for the second time, when the first one led nowhere.
        (true, None) => begin(steps, member, false),
        // It was nobody's wish, and it does not hold any more.
        (true, Some(own))
            if is_automatic(member) && claim_is(steps, member, own) && !may_be_automatic(steps, member) =>
        {
            let message = format!(
                "node {} is not replaced: it can come back, or is not to be replaced without asking any more",
                steps.named(member)
            );
            steps.rests_on_belongings(member);
            steps.change_member(member, forget(), Some(("ReplacementWithdrawn", message)));
            false
        }
        (true, Some(own)) => {
            empty(steps, member, host_id, own);
            true
        }
        (false, Some(own)) if claim_is(steps, member, own) => {
            let message = format!("node {} is not replaced: the label {REPLACE} is gone", steps.named(member));
            steps.rests_on_belongings(member);
            steps.change_member(member, forget(), Some(("ReplacementWithdrawn", message)));
            false
        }
        // The disk is going, so the pod goes, too: the lost node does not start any more, and nothing else could go on.
        (false, Some(own)) if !Belongings::of(steps, member, own).are_gone() => {
            empty(steps, member, host_id, own);
            true
        }
        // The disk is gone. Whom the new node replaces must be known until it has: else it would join beside the lost
        // one, which would stay in the ring for ever.
        (false, recorded) => {
            if recorded.is_some() {
                steps.rests_on_belongings(member);
                steps.change_member(member, json!({"annotations": {REPLACING_CLAIM: null}}), None);
            }
            if !waits_for_pod(steps, member, host_id) {
                wait_for_newcomer(steps, member, host_id);
            }
            true
        }
    }
}

/// Whether the disk goes as soon as its pod does, which nobody has asked for any more.
fn waits_for_pod(steps: &mut Steps<'_>, member: &Member<'_>, host_id: &str) -> bool {
    let claim = steps.observed.claim_of(member.name);
    let is_waiting = is_going(claim) && steps.observed.pods.contains_key(member.name);
    if is_waiting {
        let message = format!(
            "the disk of node {} ({host_id}) is already being deleted, which cannot be undone: it goes as soon as the pod \
             does. To have an empty node take its place: `kubectl delete pod -n {} {}`",
            steps.named(member),
            steps.observed.datacenter.namespace,
            member.name
        );
        steps.wait(Component::Service, "WaitingForPod", message);
    }
    is_waiting
}

fn is_automatic(member: &Member<'_>) -> bool {
    member.service.replace.as_deref() == Some(AUTOMATIC)
}

/// Whether the node is to be replaced though nobody asks for it.
fn may_be_automatic(steps: &Steps<'_>, member: &Member<'_>) -> bool {
    steps.observed.datacenter.replaces_lost_nodes && lost::loss(steps.observed, member).is_some()
}

/// Another node than the one that was lost is there.
fn took_over(steps: &mut Steps<'_>, member: &Member<'_>, host_id: &str, replaced: &str) -> bool {
    let is_gone = steps.ring.membership(replaced, member.name) == Membership::Absent;
    let is_wanted = member.replacing_claim().is_some() || member.service.replace.is_some();
    // Until the newcomer has joined, it has to know whom it replaces, whoever has withdrawn the request.
    if !is_wanted && (member.has_joined() || is_gone) {
        steps.change_member(member, forget(), None);
        return false;
    }
    steps.asks = true;
    let is_done = member.has_joined() && is_gone && steps.ring.membership(host_id, member.name) == Membership::Member;
    if is_done {
        let message = format!("node {} ({host_id}) has taken the place of {replaced}", steps.named(member));
        steps.change_member(member, forget(), Some(("NodeReplaced", message)));
    } else {
        let message = format!(
            "node {} ({host_id}) takes the place of {replaced}; that is done when another node sees it in the ring, \
             and the other one gone",
            steps.named(member)
        );
        steps.wait(Component::Service, "WaitingForReplacement", message);
    }
    true
}

/// UIDs of the claim and the pod that are the lost node's.
fn belongings(steps: &Steps<'_>, member: &Member<'_>) -> String {
    let uid = |uid: Option<&String>| uid.cloned().unwrap_or_default();
    let claim = steps.observed.claim_of(member.name);
    let pod = steps.observed.pods.get(member.name);
    format!(
        "{}/{}",
        uid(claim.and_then(|claim| claim.reference.uid.as_ref())),
        uid(pod.and_then(|pod| pod.reference.uid.as_ref()))
    )
}

/// Whether the claim that was the lost node's is there, untouched.
fn claim_is(steps: &Steps<'_>, member: &Member<'_>, own: &str) -> bool {
    let (claim_uid, _) = own.split_once('/').unwrap_or((own, ""));
    let claim = steps.observed.claim_of(member.name);
    claim.is_some_and(|claim| claim.reference.uid.as_deref() == Some(claim_uid) && !claim.is_being_deleted)
}

/// What is left of a lost node.
struct Belongings<'a> {
    claim: Option<&'a Claim>,
    pod: Option<&'a NodePod>,
}

impl<'a> Belongings<'a> {
    fn of(steps: &Steps<'a>, member: &Member<'_>, own: &str) -> Self {
        let observed = steps.observed;
        let (claim_uid, pod_uid) = own.split_once('/').unwrap_or((own, ""));
        let claim = observed.claim_of(member.name);
        let claim = claim.filter(|claim| claim.reference.uid.as_deref() == Some(claim_uid));
        let pod = observed.pods.get(member.name);
        // One that was made since it was written down has the same claim: while that is there, no other one has its name.
        let pod = pod.filter(|pod| pod.reference.uid.as_deref() == Some(pod_uid) || is_going(claim));
        Self { claim, pod }
    }

    fn are_gone(&self) -> bool {
        self.claim.is_none() && self.pod.is_none()
    }
}

fn is_going(claim: Option<&Claim>) -> bool {
    claim.is_some_and(|claim| claim.is_being_deleted)
}

/// Takes claim and pod away from a node that is down for all others.
fn empty(steps: &mut Steps<'_>, member: &Member<'_>, host_id: &str, own: &str) {
    let observed = steps.observed;
    let left = Belongings::of(steps, member, own);
    if left.are_gone() {
        return wait_for_newcomer(steps, member, host_id);
    }
    let node = steps.named(member);
    if let Some(reason) = maintenance::reason(steps) {
        let message = format!("node {node} ({host_id}) keeps its disk and its pod until that is over: {reason}");
        return steps.wait(Component::Service, "WaitingForMaintenance", message);
    }
    let is_given_up = left.claim.is_none_or(|claim| claim.is_being_deleted);
    if let Err(reason) = steps.ring.check_agreement(observed, member, DOWN) {
        if is_given_up && steps.ring.is_seen(host_id, UP, member.name) {
            let message = format!(
                "node {node} ({host_id}) came back when its disk was already given up; stop it for good, by deleting \
                 pod {node}, so that an empty node takes its place"
            );
            return steps.fault(Component::Service, "NodeIsUp", message);
        }
        let message =
            format!("node {node} ({host_id}) is to be replaced, which needs all others to see it down: {reason}");
        return steps.wait(Component::Service, "WaitingForRing", message);
    }
    let message = format!(
        "node {node} ({host_id}) is down for all others, so its disk and its pod are given up; an empty node \
         takes its place"
    );
    steps.wait(Component::Service, "ReplacingNode", message.clone());
    match (left.claim, left.pod) {
        // The pod goes when the claim is seen to be going, so that the next pod does not get the same one.
        (Some(claim), _) if !claim.is_being_deleted => {
            steps.rests_on_ring(
                ObjectKind::PersistentVolumeClaim,
                &claim.reference,
                vec![preconditions::pod(observed, member.name)],
            );
            steps.delete(ObjectKind::PersistentVolumeClaim, &claim.reference, ("ReplacingNode", message));
        }
        (_, Some(pod)) if !pod.is_being_deleted => {
            steps.rests_on_ring(ObjectKind::Pod, &pod.reference, vec![preconditions::claim(observed, member.name)]);
            steps.delete(ObjectKind::Pod, &pod.reference, ("ReplacingNode", message));
        }
        _ => {}
    }
}

fn wait_for_newcomer(steps: &mut Steps<'_>, member: &Member<'_>, host_id: &str) {
    let message = format!(
        "an empty node takes the place of node {} ({host_id}), which takes until it has joined; if it cannot, \
         take the \
         label {REPLACE} away and set it again, to begin with another empty disk",
        steps.named(member)
    );
    steps.wait(Component::Service, "WaitingForReplacement", message);
}

/// A Service whose node is to be replaced; answers whether it is from now on.
fn begin(steps: &mut Steps<'_>, member: &Member<'_>, is_another_under_way: bool) -> bool {
    let observed = steps.observed;
    let node = steps.named(member);
    let Some(host_id) = member.host_id() else {
        let message = format!(
            "Service {node} has the label {REPLACE}, but it does not say which host ID its node had; it cannot \
             be replaced by host ID: remove the label"
        );
        steps.fault(Component::Service, "NoHostId", message);
        return false;
    };
    let leaves = |other: &Member<'_>| {
        other.name != member.name && other.has_begun_to_leave() && !other.is_beyond_replicas(observed)
    };
    if is_another_under_way || steps.ring.members.iter().any(leaves) {
        let message =
            format!("node {node} is to be replaced, which begins when no other node is being replaced or leaves");
        steps.wait(Component::Service, "WaitingForOtherNode", message);
        return false;
    }
    if let Some(reason) = maintenance::reason(steps) {
        let message = format!("node {node} is to be replaced, which begins when that is over: {reason}");
        steps.wait(Component::Service, "WaitingForMaintenance", message);
        return false;
    }
    steps.asks = true;
    if let Err(reason) = steps.ring.check_agreement(observed, member, DOWN) {
        if member.service.replace.is_some() && steps.ring.is_seen(host_id, UP, member.name) {
            let message = format!(
                "node {node} ({host_id}) has the label {REPLACE}, but it is up; only a node that is down for \
                 all others is replaced: remove the label, or stop the node for good"
            );
            steps.fault(Component::Service, "NodeIsUp", message);
        } else {
            let message = format!(
                "node {node} ({host_id}) is to be replaced, which begins when all others see it down: {reason}"
            );
            steps.wait(Component::Service, "WaitingForRing", message);
        }
        return false;
    }
    let question = steps.ask_anew();
    let message = format!("node {node} ({host_id}) is replaced by an empty one");
    steps.wait(Component::Service, "ReplacingNode", message.clone());
    // A label that the user set stays as it is.
    let request = member.service.replace.as_deref().unwrap_or(AUTOMATIC);
    let patch = json!({
        "labels": {REPLACE: request, REPLACING_NODE_HOST_ID: host_id},
        "annotations": {REPLACING_CLAIM: belongings(steps, member), RING_QUESTION: question},
    });
    steps.rests_on_belongings(member);
    steps.change_member(member, patch, Some(("ReplacingNode", message)));
    true
}
