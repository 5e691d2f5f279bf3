//! Nodes that announce an address which their Service does not have any more, say because somebody deleted it. Others find
//! them no longer when they start. Their sidecars ask for another pod, which announces the new address; they get it one by
//! one, when all other pods are up, and before anything else begins.

use crate::datacenter::{
    model::{component::Component, observed::Observed, plan::ObjectKind},
    racks::Racks,
    state::member::Member,
    topology::steps::Steps,
};

/// Whether the pod that is there now is to be made anew.
pub(crate) fn asks(observed: &Observed, member: &Member<'_>) -> bool {
    let pod = observed.pods.get(member.name).filter(|pod| !pod.is_being_deleted);
    let uid = pod.and_then(|pod| pod.reference.uid.as_deref());
    uid.is_some() && member.service.restart_request.as_deref() == uid && !member.is_beyond_replicas(observed)
}

/// Starts the first of them anew, if it may. As long as there is one, nothing else begins.
pub(crate) fn start_anew(steps: &mut Steps<'_>, racks: &Racks<'_>, is_held: bool) {
    let observed = steps.observed;
    let asking: Vec<Member<'_>> = steps.ring.members.iter().copied().filter(|one| asks(observed, one)).collect();
    let Some(first) = asking.first() else { return };
    (steps.done.is_outdated, steps.done.holds_restart) = (true, true);
    let node = steps.named(first);
    let what = format!("node {node} announces an address that its Service does not have any more, and is to restart");
    if is_held || steps.done.is_leaving || !racks.are_all_up() {
        let message = format!("{what}; it does when all nodes are up and nothing else is under way");
        return steps.wait(Component::StatefulSet, "WaitingToRestart", message);
    }
    let others = steps.ring.others(observed, first.name);
    if others.iter().any(|other| other.answers()) {
        steps.asks = true;
        if let Err(reason) = steps.ring.check_restart(observed, &asking) {
            let message = format!("{what}; it does when all others see each other up; {reason}");
            return steps.wait(Component::StatefulSet, "WaitingForRing", message);
        }
    }
    let Some(pod) = observed.pods.get(first.name) else { return };
    let message = format!("{what}; its pod is made anew");
    steps.wait(Component::StatefulSet, "RestartingNode", message.clone());
    steps.delete(ObjectKind::Pod, &pod.reference, ("RestartingNode", message));
}
