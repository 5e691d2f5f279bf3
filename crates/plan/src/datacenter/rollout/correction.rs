//! Pods whose specification is corrected while not all nodes are up.

use k8s_openapi::api::apps::v1::StatefulSet;
use messina_api::names;

use crate::datacenter::{
    model::{
        component::Component,
        facts::{pod::NodePod, service::NodeService},
        observed::{Observed, Turn},
        plan::{Deletion, ObjectKind, Restart, Untouched},
        spec::MAX_NODES,
    },
    racks::{ExistingRack, Racks},
    reasons,
    rollout::{
        notes::{paused, upgrade_blocked, waiting_for_creation, waiting_for_turn},
        outcome::{Rollout, apply_or_postpone, postpone},
    },
    state::{
        Current,
        joining::{has_joined, may_be_corrected, may_be_joining},
        nodes::{nodes_down, pods},
        stateful_set::{partition, replicas, template_version},
        upgrade::{is_being_upgraded, is_prepared_for},
    },
    topology::steps::Topology,
};

/// Corrects the pods of a StatefulSet that is rolling out. No other change begins meanwhile, but the rollout may fail
/// because of a fault in the specification, so the pods of the same rack may still be changed.
pub(crate) fn correct_pods(current: &Current<'_>, racks: Racks<'_>, topology: &Topology, rollout: &mut Rollout) {
    let observed = current.observed;
    let Racks { existing, missing, not_rolled_out, .. } = racks;
    let first_moving = existing.iter().position(|one| not_rolled_out.iter().any(|other| std::ptr::eq(*other, one.now)));
    for (position, one) in existing.into_iter().enumerate() {
        let is_moving = not_rolled_out.iter().any(|other| std::ptr::eq(*other, one.now));
        if let Some(partition) = pausing_partition(observed, one.now).filter(|_| is_moving) {
            rollout.progressing.push(paused(observed, one.now));
            rollout.restarting.insert(one.name.clone());
            rollout.stateful_sets.push(one.with_partition(partition));
        } else if Some(position) != first_moving || !may_be_corrected(observed, one.now) {
            apply_or_postpone(observed, one, rollout);
        } else if let Turn::After(other) = &observed.turn
            && one.changes_pods
        {
            rollout.progressing.push(waiting_for_turn(observed, &one, other));
            rollout.untouched.push(Untouched { kind: "StatefulSet", name: one.name });
        } else if one.changes_pods {
            correct_rack(current, one, topology, rollout);
        } else {
            delete_stuck_pod(current, &one, rollout);
            apply_or_postpone(observed, one, rollout);
        }
    }
    for stateful_set in missing {
        rollout.progressing.push(waiting_for_creation(observed, &stateful_set));
    }
}

/// Updates pods that are down, if their nodes are prepared for the desired version.
fn correct_rack(current: &Current<'_>, one: ExistingRack<'_>, topology: &Topology, rollout: &mut Rollout) {
    let observed = current.observed;
    let first = correction_partition(observed, one.now);
    let has_nodes = replicas(one.now) > 0;
    if has_nodes && first >= replicas(one.now) && nodes_down(observed, one.now).is_empty() {
        return postpone(observed, one, rollout);
    }
    let restarting = (first..replicas(one.now).min(MAX_NODES))
        .map(|ordinal| Restart { stateful_set: one.name.clone(), ordinal }.member());
    let version = &observed.datacenter.version;
    let unprepared = restarting.into_iter().find(|member| !is_prepared_for(current, member, version));
    if let Some(member) = unprepared {
        rollout.progressing.push(upgrade_blocked(observed, &member));
        return postpone(observed, one, rollout);
    }
    // A node that gets its replica back has to start unchanged.
    let is_below_ring = topology.below_ring.contains(&one.name);
    if is_below_ring && template_version(one.now).as_ref() != Some(version) {
        return postpone(observed, one, rollout);
    }
    let kept = if is_below_ring { partition(one.now) } else { 0 };
    rollout.restarting.insert(one.name.clone());
    rollout.stateful_sets.push(one.unscaled(first.max(kept)));
}

/// Deletes an outdated pod that is not ready: with `OrderedReady`, Kubernetes does not recreate such pods.
fn delete_stuck_pod(current: &Current<'_>, one: &ExistingRack<'_>, rollout: &mut Rollout) {
    let observed = current.observed;
    let Some((pod, version)) = find_stuck_pod(observed, one.now) else { return };
    let name = pod.reference.name.clone();
    // The pod of a node that is replaced is deleted only together with its disk.
    let is_replaced = observed.services.get(&name).is_some_and(NodeService::is_to_be_replaced);
    if may_be_joining(observed, &name) || is_replaced {
        return;
    }
    let is_prepared = match version {
        Some(version) => is_prepared_for(current, &name, &version),
        None => !is_being_upgraded(current),
    };
    if !is_prepared {
        return rollout.progressing.push(upgrade_blocked(observed, &name));
    }
    let message = format!(
        "Pod {}/{name} is not ready, and its StatefulSet has changed since it was created. The operator deletes the \
         pod, so that Kubernetes recreates it.",
        observed.datacenter.namespace
    );
    rollout.deletions.push(Deletion {
        component: Component::StatefulSet,
        kind: ObjectKind::Pod,
        name,
        uid: pod.reference.uid.clone().unwrap_or_default(),
        // The pod may be ready by then.
        version: Some(pod.reference.version.clone().unwrap_or_default()),
        orphans: false,
        event: Some((reasons::REPLACING_POD, message)),
    });
}

/// Whether there are members with this ordinal or a higher one, and none of them has ever joined.
pub(crate) fn are_all_new(observed: &Observed, stateful_set: &StatefulSet, first: i32) -> bool {
    let name = stateful_set.metadata.name.as_deref().unwrap_or_default();
    let mut ordinals = (first..replicas(stateful_set).min(MAX_NODES)).peekable();
    ordinals.peek().is_some()
        && ordinals.all(|ordinal| !has_joined(observed, &names::datacenter::member(name, ordinal)))
}

/// Returns the partition that keeps ready nodes from restarting while others are down; none where the current partition
/// does. When these nodes were allowed to restart, they were down, or all others were up.
pub(crate) fn pausing_partition(observed: &Observed, stateful_set: &StatefulSet) -> Option<i32> {
    let status = stateful_set.status.as_ref()?;
    let latest = status.update_revision.as_deref()?;
    // A change that the StatefulSet controller has not observed yet may be another revision, unless it only adds
    // replicas: new pods are like the others, and pods change only when their nodes have joined.
    let is_observed = status.observed_generation.unwrap_or(0) >= stateful_set.metadata.generation.unwrap_or(0)
        || are_all_new(observed, stateful_set, status.replicas);
    // Where Kubernetes has no pod left to update, pods that look old are outdated observations.
    if is_observed && status.updated_replicas.unwrap_or(0) >= replicas(stateful_set) {
        return None;
    }
    let down: Vec<String> = observed.stateful_sets.values().flat_map(|one| nodes_down(observed, one)).collect();
    let is_latest = |pod: &NodePod| is_observed && pod.revision.as_deref() == Some(latest);
    let is_old = |pod: &NodePod| !pod.is_down() && !is_latest(pod);
    let old = pods(observed, stateful_set).filter(|(_, pod)| pod.is_some_and(is_old)).map(|(ordinal, _)| ordinal);
    let paused = old.last().map(|last| last + 1).filter(|_| !down.is_empty());
    paused.filter(|paused| *paused > partition(stateful_set))
}

/// Returns the partition with which a rack may be changed while nodes are down: no ready node restarts. If the last
/// nodes are down, their pods are updated. If the last node is ready, none is: pods that are down go back to the former
/// revision (see [`find_stuck_pod`]), and then the update begins with the last node.
pub(crate) fn correction_partition(observed: &Observed, stateful_set: &StatefulSet) -> i32 {
    let replicas = replicas(stateful_set);
    let ready = stateful_set.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0);
    // Where the readiness of a pod is unknown, the pods with the lowest ordinals count as ready.
    let is_ready = |ordinal: i32, pod: Option<&NodePod>| match pod.filter(|pod| pod.ready.is_some()) {
        Some(pod) => pod.is_ready(),
        None => ordinal < ready,
    };
    let last_ready = pods(observed, stateful_set).filter(|(ordinal, pod)| is_ready(*ordinal, *pod)).last();
    last_ready.map_or(0, |(ordinal, _)| ordinal + 1).min(replicas)
}

/// Returns a pod that is down and that Kubernetes should update but does not: with `OrderedReady`, it first waits until
/// the pod is ready, which it may never be. Only the first pod that is down: pods after it would not start before it.
/// Also returns the version that the pod gets, where that is known.
pub(crate) fn find_stuck_pod<'a>(
    observed: &'a Observed,
    stateful_set: &StatefulSet,
) -> Option<(&'a NodePod, Option<String>)> {
    let status = stateful_set.status.as_ref()?;
    if status.observed_generation.unwrap_or(0) < stateful_set.metadata.generation.unwrap_or(0) {
        return None;
    }
    let (ordinal, pod) = pods(observed, stateful_set).find(|(_, pod)| pod.is_none_or(NodePod::is_down))?;
    let pod = pod.filter(|pod| !pod.is_being_deleted)?;
    let (current, update) = (status.current_revision.as_deref(), status.update_revision.as_deref());
    let partition = partition(stateful_set);
    let (target, version) = if ordinal >= partition {
        (update?, template_version(stateful_set))
    } else if partition >= replicas(stateful_set) && current != update {
        // No pod is updated: such a partition is written so that pods that are down return to the former revision.
        let current = current?;
        let mut all = pods(observed, stateful_set).filter_map(|(_, pod)| pod);
        let same = all.find(|pod| pod.revision.as_deref() == Some(current));
        (current, same.and_then(|pod| pod.version.clone()))
    } else {
        return None;
    };
    pod.revision.as_ref().is_some_and(|own| own != target).then_some((pod, version))
}
