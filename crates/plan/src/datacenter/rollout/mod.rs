//! The order in which racks change.
//!
//! At most one StatefulSet changes at a time, the first in the order of the specification: missing StatefulSets are
//! created, then racks are scaled out, then pods are updated one after another (see `racks`), then nodes are
//! decommissioned (see `topology`). No change begins before everything is rolled out, because a node cannot join while
//! another one is down. Where nodes may start at the same time, all missing StatefulSets are created at once. A rolling
//! update that has begun is completed before nodes join.
//!
//! Pods of scylla-operator are updated before nodes join: a new node with its sidecar would wait for scylla-operator to
//! report that all other nodes are up.
//!
//! A StatefulSet that was deleted while its nodes exist is recreated at once, whatever else is in progress: without it,
//! Kubernetes does not recreate their pods.

mod correction;
pub(crate) mod notes;
pub(crate) mod outcome;
pub(crate) mod storage;

use k8s_openapi::api::apps::v1::StatefulSet;
use messina_api::names::{self, label};

use crate::{
    datacenter::{
        model::{
            facts::claim::Claim,
            observed::{Observed, Turn},
            plan::Untouched,
        },
        racks::{ExistingRack, Racks, rack_to_roll},
        reasons,
        rollout::{
            correction::correct_pods,
            notes::{
                creating, note, recreating, reference, rolling_out, scaling_out, updating, waiting_for_creation,
                waiting_for_turn, waiting_to_restart,
            },
            outcome::{Rollout, apply_or_postpone, postpone},
        },
        state::{
            Current,
            counts::removed_racks,
            joining::has_cluster,
            member::Member,
            stateful_set::{is_being_deleted, partition, replicas},
        },
        topology::steps::Topology,
    },
    metadata,
};

/// Decides which StatefulSets are created or changed now.
pub(crate) fn rollout(current: &Current<'_>, mut racks: Racks<'_>, topology: &Topology) -> Rollout {
    let observed = current.observed;
    let up_to_date = racks.existing.iter().filter(|one| !one.changes).map(|one| one.name.clone()).collect();
    let mut rollout = Rollout { degraded: racks.degraded.clone(), up_to_date, ..Rollout::default() };
    let orphaned = std::mem::take(&mut racks.orphaned);
    let is_one_absent = !orphaned.is_empty() || racks.existing.iter().any(|one| is_being_deleted(one.now));
    for stateful_set in orphaned {
        recreate(current, stateful_set, topology, &mut rollout);
    }
    keep_removed_racks(observed, &mut rollout);
    for stateful_set in &racks.not_rolled_out {
        rollout.progressing.push(rolling_out(observed, stateful_set));
    }
    if topology.is_leaving || is_one_absent || !topology.under_maintenance.is_empty() {
        postpone_all(observed, racks, &mut rollout);
    } else if !racks.not_rolled_out.is_empty() {
        correct_pods(current, racks, topology, &mut rollout);
    } else if topology.has_outdated_address {
        postpone_all(observed, racks, &mut rollout);
    } else if !racks.missing.is_empty() && !racks.is_rolling {
        create(current, racks, topology, &mut rollout);
    } else {
        change_next(current, racks, topology, &mut rollout);
    }
    postpone_being_deleted(observed, &mut rollout);
    let racks = &observed.datacenter.racks;
    let position = |one: &StatefulSet| {
        racks.iter().position(|rack| one.metadata.name == Some(observed.datacenter.stateful_set_name(rack)))
    };
    rollout.stateful_sets.sort_by_key(position);
    rollout
}

/// Leaves a StatefulSet that is being deleted alone. It is recreated when it is gone.
fn postpone_being_deleted(observed: &Observed, rollout: &mut Rollout) {
    let is_deleted = |one: &mut StatefulSet| {
        let name = one.metadata.name.as_deref().unwrap_or_default();
        observed.stateful_sets.get(name).is_some_and(is_being_deleted)
    };
    for stateful_set in rollout.stateful_sets.extract_if(.., is_deleted) {
        let message = format!(
            "{} is being deleted. The operator recreates it when it is gone.",
            reference(observed, &stateful_set)
        );
        rollout.progressing.push(note(reasons::RECREATING_STATEFUL_SET, message));
        let name = stateful_set.metadata.name.unwrap_or_default();
        rollout.untouched.push(Untouched { kind: "StatefulSet", name });
    }
}

/// Recreates a StatefulSet whose nodes exist. Leftovers that block new nodes do not block these.
fn recreate(current: &Current<'_>, stateful_set: StatefulSet, topology: &Topology, rollout: &mut Rollout) {
    let observed = current.observed;
    let name = stateful_set.metadata.name.clone().unwrap_or_default();
    let members = current.members();
    let is_blocked = |ordinal| {
        let member = names::datacenter::member(&name, ordinal);
        let claim = observed.claim_of(&member);
        // A node that has joined and never began to leave has not left, whatever its claim says.
        let is_in_ring = |one: &Member<'_>| one.name == member && one.has_joined() && !one.has_begun_to_leave();
        let is_stale =
            |claim: &Claim| claim.is_being_deleted || !claim.is_of_a_node() && !members.iter().any(is_in_ring);
        !observed.pods.contains_key(&member) && claim.is_some_and(is_stale)
    };
    if topology.blocked_by_leftovers.contains(&name) && (0..replicas(&stateful_set)).any(is_blocked) {
        return rollout.progressing.push(waiting_for_creation(observed, &stateful_set));
    }
    if !topology.are_nodes_named {
        return rollout.progressing.push(waiting_for_creation(observed, &stateful_set));
    }
    rollout.progressing.push(recreating(observed, &stateful_set));
    // Without a pod that runs, its creation may wait for certificates and settings.
    let has_pod = |ordinal| observed.pods.contains_key(&names::datacenter::member(&name, ordinal));
    if (0..replicas(&stateful_set)).any(has_pod) {
        rollout.recreated.insert(name.clone());
    }
    rollout.stateful_sets.push(stateful_set);
}

/// Changes nothing else while a node leaves, is under maintenance or has to restart for its address, or while a
/// StatefulSet does not exist.
fn postpone_all(observed: &Observed, racks: Racks<'_>, rollout: &mut Rollout) {
    for one in racks.existing {
        apply_or_postpone(observed, one, rollout);
    }
    for stateful_set in racks.missing {
        rollout.progressing.push(waiting_for_creation(observed, &stateful_set));
    }
}

/// Creates missing StatefulSets, before existing ones change.
fn create(current: &Current<'_>, racks: Racks<'_>, topology: &Topology, rollout: &mut Rollout) {
    let observed = current.observed;
    let Racks { existing, missing, .. } = racks;
    for one in existing {
        apply_or_postpone(observed, one, rollout);
    }
    let at_once = if observed.datacenter.parallel_node_operations { missing.len() } else { 1 };
    for (position, stateful_set) in missing.into_iter().enumerate() {
        let is_free =
            !topology.blocked_by_leftovers.contains(stateful_set.metadata.name.as_deref().unwrap_or_default());
        if position < at_once && is_free {
            rollout.progressing.push(creating(observed, &stateful_set));
            rollout.stateful_sets.push(stateful_set);
        } else {
            rollout.progressing.push(waiting_for_creation(observed, &stateful_set));
        }
    }
}

/// Changes one StatefulSet: the first that lacks nodes or, where none does or a rolling update has begun, the one whose
/// nodes restart now, or else the first that differs.
fn change_next(current: &Current<'_>, racks: Racks<'_>, topology: &Topology, rollout: &mut Rollout) {
    let observed = current.observed;
    let Racks { existing, missing, is_rolling, next, .. } = racks;
    for stateful_set in &missing {
        rollout.progressing.push(waiting_for_creation(observed, stateful_set));
    }
    let lacking = existing.iter().position(ExistingRack::lacks_nodes).filter(|_| !is_rolling);
    let is_free = |one: &ExistingRack<'_>| !topology.blocked_by_leftovers.contains(&one.name);
    let rolling = rack_to_roll(&existing).map(|one| one.name.clone());
    let differing = rolling.or_else(|| existing.iter().find(|one| one.changes).map(|one| one.name.clone()));
    let differing = differing.filter(|_| lacking.is_none());
    for (position, one) in existing.into_iter().enumerate() {
        if Some(position) == lacking && is_free(&one) {
            rollout.progressing.push(scaling_out(observed, &one));
            rollout.stateful_sets.push(if has_cluster(observed) { one.scaled_out() } else { one.desired });
        } else if differing.as_ref() != Some(&one.name) {
            apply_or_postpone(observed, one, rollout);
        } else if topology.below_ring.contains(&one.name) {
            postpone(observed, one, rollout);
        } else if let Turn::After(other) = &observed.turn
            && one.changes_pods
        {
            rollout.progressing.push(waiting_for_turn(observed, &one, other));
            rollout.untouched.push(Untouched { kind: "StatefulSet", name: one.name });
        } else if next.is_some() && topology.blocks_restart {
            rollout.progressing.push(waiting_to_restart(observed, &one, next.as_ref()));
            rollout.untouched.push(Untouched { kind: "StatefulSet", name: one.name });
        } else {
            rollout.progressing.push(updating(observed, &one, next.as_ref()));
            let is_rolled = one.changes_pods || partition(one.now) > 0;
            rollout.restarting.extend(is_rolled.then(|| one.name.clone()));
            let replicas = replicas(one.now);
            let mut changed = if is_rolled { one.with_next_partition(next.as_ref()) } else { one.desired };
            // Nodes join when the rolling update is complete.
            if let Some(spec) = changed.spec.as_mut().filter(|_| is_rolling) {
                spec.replicas = Some(replicas);
            }
            rollout.stateful_sets.push(changed);
        }
    }
}

/// Reports racks that are not in the specification any more, and leaves their StatefulSets unchanged.
fn keep_removed_racks(observed: &Observed, rollout: &mut Rollout) {
    for stateful_set in removed_racks(observed) {
        let name = stateful_set.metadata.name.clone().unwrap_or_default();
        let rack = metadata::label(stateful_set, label::RACK);
        rollout.progressing.push(note(
            reasons::REMOVING_RACK,
            format!(
                "Rack {} is not in the specification any more. The operator decommissions the {} node(s) of \
                 StatefulSet {}/{name} one by one, and then deletes the StatefulSet.",
                rack.unwrap_or("?"),
                replicas(stateful_set),
                observed.datacenter.namespace,
            ),
        ));
        rollout.untouched.push(Untouched { kind: "StatefulSet", name });
    }
}
