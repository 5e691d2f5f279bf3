//! Nodes that announce an address which their Service does not have any more, for example because a user deleted the
//! Service. Other nodes cannot find them when they start. Their sidecars request a restart; the new pod announces the
//! new address. The operator restarts these nodes one by one, when all other pods are up, and before it begins any
//! other change.

use crate::datacenter::{
    model::{component::Component, observed::Observed, plan::ObjectKind},
    racks::Racks,
    reasons,
    state::member::Member,
    topology::steps::Steps,
};

/// Whether the sidecar requests that the current pod be recreated.
pub(crate) fn asks_for_restart(observed: &Observed, member: &Member<'_>) -> bool {
    let pod = observed.pods.get(member.name).filter(|pod| !pod.is_being_deleted);
    let uid = pod.and_then(|pod| pod.reference.uid.as_deref());
    uid.is_some() && member.service.restart_request.as_deref() == uid && !member.is_beyond_replicas(observed)
}

/// Restarts the first of these nodes, if all others are up. As long as there is one, no other change begins.
pub(crate) fn restart_next(steps: &mut Steps<'_>, racks: &Racks<'_>, is_held: bool) {
    let observed = steps.observed;
    let asking: Vec<Member<'_>> =
        steps.ring.members.iter().copied().filter(|one| asks_for_restart(observed, one)).collect();
    let Some(first) = asking.first() else { return };
    (steps.topology.has_outdated_address, steps.topology.blocks_restart) = (true, true);
    let node = steps.node_reference(first);
    let what = format!("Node {node} has to restart: it announces an address that its Service does not have any more.");
    if is_held || steps.topology.is_leaving || !racks.are_all_up() {
        let message = format!("{what} Waiting until all nodes are up and no other change is in progress.");
        return steps.report_progressing(Component::StatefulSet, reasons::WAITING_TO_RESTART, message);
    }
    let others = steps.ring.others(observed, first.name);
    if others.iter().any(|other| other.answers()) {
        steps.needs_ring = true;
        if let Err(reason) = steps.ring.check_restart(observed, &asking) {
            let message = format!("{what} Waiting until all other nodes see each other up: {reason}.");
            return steps.report_progressing(Component::StatefulSet, reasons::WAITING_FOR_RING, message);
        }
    }
    let Some(pod) = observed.pods.get(first.name) else { return };
    let message = format!("{what} The operator recreates its pod.");
    steps.report_progressing(Component::StatefulSet, reasons::RESTARTING_NODE, message.clone());
    steps.delete(ObjectKind::Pod, &pod.reference, (reasons::RESTARTING_NODE, message));
}
