//! Compares the existing StatefulSets of racks with the desired ones, and finds the node that restarts next.
//!
//! One node restarts at a time, and only when the operator lowers the partition of its StatefulSet. Kubernetes
//! recreates pods from the last one down to the partition. So a change of the pod template is written with a partition
//! that covers the last pod only; then the operator lowers the partition by one pod at a time, whenever all nodes of
//! all racks are up. After a rollout it is 0.

use k8s_openapi::api::apps::v1::StatefulSet;
use messina_api::names::annotation::INPUTS_STAND_FOR;

use crate::{
    datacenter::{
        model::{
            observed::{Observed, Turn},
            plan::{Note, Restart, RolloutState},
            spec::MAX_NODES,
        },
        objects::{
            difference::{changes_pods, is_up_to_date},
            stateful_set::{keep_immutable_fields, recreated_stateful_set, stateful_set, take_new_hash},
        },
        state::{
            Current,
            counts::known_nodes,
            nodes::{is_settled, next_below_partition},
            stateful_set::{last_ordinal, partition, replicas, set_partition},
            takeover::is_of_scylla_operator,
            upgrade::is_being_upgraded,
        },
    },
    metadata,
};

/// The racks of the specification: existing and desired StatefulSets.
pub(crate) struct Racks<'a> {
    pub(crate) existing: Vec<ExistingRack<'a>>,
    pub(crate) missing: Vec<StatefulSet>,
    /// The StatefulSets to recreate for racks whose nodes exist and whose StatefulSet does not.
    pub(crate) orphaned: Vec<StatefulSet>,
    pub(crate) degraded: Vec<Note>,
    /// StatefulSets that are not rolled out down to their partition, also of racks that the specification no longer
    /// has.
    pub(crate) not_rolled_out: Vec<&'a StatefulSet>,
    /// Whether a rollout has begun, or has to complete before nodes join.
    pub(crate) is_rolling: bool,
    /// The node that restarts next.
    pub(crate) next: Option<Restart>,
}

impl Racks<'_> {
    /// Returns how far the rollout of a change of the pods is.
    pub(crate) fn rollout_state(&self) -> RolloutState {
        // A change of the operator changes every rack: if only some racks have changes, the others are rolled out
        // already.
        let changing = self.existing.iter().filter(|one| one.changes_pods).count();
        let has_begun = self.existing.iter().any(|one| partition(one.now) > 0);
        if has_begun || changing > 0 && changing < self.existing.len() {
            RolloutState::InProgress
        } else if changing > 0 && !self.are_all_up() {
            RolloutState::Blocked
        } else if changing > 0 {
            RolloutState::Pending
        } else if self.are_done() && self.orphaned.is_empty() {
            RolloutState::Complete
        } else {
            RolloutState::NotReady
        }
    }

    /// Whether all existing nodes are up and up to date.
    pub(crate) fn are_done(&self) -> bool {
        let is_done = |one: &ExistingRack<'_>| !one.changes_pods && partition(one.now) == 0;
        self.not_rolled_out.is_empty() && self.existing.iter().all(is_done)
    }

    /// Whether a StatefulSet has to be changed or created.
    pub(crate) fn are_to_change(&self) -> bool {
        !self.missing.is_empty() || self.existing.iter().any(|one| one.changes)
    }

    /// Whether all existing nodes are up.
    pub(crate) fn are_all_up(&self) -> bool {
        self.not_rolled_out.is_empty() && self.orphaned.is_empty()
    }

    /// Whether all nodes of the StatefulSet are up.
    pub(crate) fn is_up(&self, stateful_set: &str) -> bool {
        self.not_rolled_out.iter().all(|one| one.metadata.name.as_deref() != Some(stateful_set))
    }
}

/// A rack whose StatefulSet exists, and its desired StatefulSet.
pub(crate) struct ExistingRack<'a> {
    pub(crate) name: String,
    pub(crate) now: &'a StatefulSet,
    /// The desired StatefulSet, with the current partition.
    pub(crate) desired: StatefulSet,
    pub(crate) changes: bool,
    pub(crate) changes_pods: bool,
}

impl ExistingRack<'_> {
    pub(crate) fn lacks_nodes(&self) -> bool {
        replicas(self.now) < replicas(&self.desired)
    }

    /// Returns the desired StatefulSet with the current number of replicas.
    pub(crate) fn unscaled(self, partition: i32) -> StatefulSet {
        let mut unscaled = self.desired;
        if let Some(spec) = unscaled.spec.as_mut() {
            spec.replicas = Some(replicas(self.now));
        }
        set_partition(&mut unscaled, partition);
        unscaled
    }

    /// Returns the StatefulSet with the desired replicas and the current pod template: a node joins with the version of
    /// the others.
    pub(crate) fn scaled_out(&self) -> StatefulSet {
        let mut scaled = self.desired.clone();
        // The current template is equivalent, with the API server's defaults. To write that would add a write, and
        // another one back.
        if !self.changes_pods {
            return scaled;
        }
        if let (Some(scaled), Some(now)) = (scaled.spec.as_mut(), self.now.spec.as_ref()) {
            scaled.template.clone_from(&now.template);
        }
        scaled.metadata.labels.clone_from(&self.now.metadata.labels);
        // The annotation belongs to the current template.
        let stand_for = metadata::annotation(self.now, INPUTS_STAND_FOR);
        let stand_for = stand_for.map(|inputs| (INPUTS_STAND_FOR.to_owned(), inputs.to_owned()));
        scaled.metadata.annotations.get_or_insert_default().extend(stand_for);
        scaled
    }

    /// Returns the current StatefulSet with this partition.
    pub(crate) fn with_partition(self, partition: i32) -> StatefulSet {
        let mut kept = if self.lacks_nodes() || self.changes_pods { self.scaled_out() } else { self.desired };
        if let Some(spec) = kept.spec.as_mut() {
            spec.replicas = Some(replicas(self.now));
        }
        set_partition(&mut kept, partition);
        kept
    }

    /// Returns the desired StatefulSet with the partition at the node that restarts next; 0 where that is not in this
    /// rack.
    pub(crate) fn with_next_partition(self, next: Option<&Restart>) -> StatefulSet {
        let mut rolled = self.desired;
        let ordinal = next.filter(|next| next.stateful_set == self.name).map(|next| next.ordinal);
        set_partition(&mut rolled, ordinal.unwrap_or(0));
        rolled
    }
}

/// Compares the racks with the specification, and finds the node that restarts next.
pub(crate) fn racks<'a>(current: &Current<'a>) -> Racks<'a> {
    let observed = current.observed;
    let (mut existing, mut missing, mut orphaned, mut degraded) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for rack in &observed.datacenter.racks {
        let desired = stateful_set(current, rack);
        let name = observed.datacenter.stateful_set_name(rack);
        match observed.stateful_sets.get(&name) {
            None => {
                let nodes = known_nodes(current, &name).min(MAX_NODES);
                if nodes == 0 {
                    missing.push(desired);
                    continue;
                }
                // A partition above all nodes: existing pods restart one at a time, like all others.
                let mut restored = recreated_stateful_set(current, rack, nodes);
                set_partition(&mut restored, nodes);
                orphaned.push(restored);
            }
            Some(now) => {
                let (mut desired, notes) = keep_immutable_fields(current, desired, now);
                degraded.extend(notes);
                set_partition(&mut desired, partition(now));
                let changes_pods = changes_pods(&desired, now) || is_of_scylla_operator(now);
                if changes_pods {
                    take_new_hash(&mut desired);
                }
                let changes = changes_pods || !is_up_to_date(&desired, now);
                existing.push(ExistingRack { name, now, desired, changes, changes_pods });
            }
        }
    }
    let not_rolled_out = observed.stateful_sets.values().filter(|one| !is_settled(observed, one)).collect();
    let is_rolling = existing.iter().any(|one| partition(one.now) > 0 || is_of_scylla_operator(one.now))
        || is_being_upgraded(current);
    let may_change = observed.turn == Turn::Own || rack_to_roll(&existing).is_none_or(|one| !one.changes_pods);
    let mut racks = Racks { existing, missing, orphaned, degraded, not_rolled_out, is_rolling, next: None };
    racks.next = next_restart(observed, &racks).filter(|_| may_change);
    racks
}

/// Returns the node that restarts next, if all nodes are up and none has to join before: the next node of the rack that
/// is being rolled out, or the last node of the first rack that has changes.
fn next_restart(observed: &Observed, racks: &Racks<'_>) -> Option<Restart> {
    let Racks { existing, missing, is_rolling, .. } = racks;
    let waits_for_nodes = !is_rolling && (!missing.is_empty() || existing.iter().any(ExistingRack::lacks_nodes));
    if !racks.not_rolled_out.is_empty() || waits_for_nodes || !racks.orphaned.is_empty() {
        return None;
    }
    let one = rack_to_roll(existing)?;
    let ordinal = if one.changes_pods {
        (replicas(one.now) > 0).then(|| last_ordinal(one.now))
    } else {
        next_below_partition(observed, one.now)
    };
    ordinal.map(|ordinal| Restart { stateful_set: one.name.clone(), ordinal })
}

/// Returns the rack to roll out: the one whose rollout has begun, or the first one that has changes.
pub(crate) fn rack_to_roll<'b, 'a>(existing: &'b [ExistingRack<'a>]) -> Option<&'b ExistingRack<'a>> {
    existing.iter().find(|one| partition(one.now) > 0).or_else(|| existing.iter().find(|one| one.changes_pods))
}
