//! The racks of the specification, as they are and as they are to be, and the node that restarts next.
//!
//! One node restarts at a time, and only by our word. Kubernetes makes pods anew from the last one down to the partition of
//! the StatefulSet, and no further. So a change of the pods is written with a partition that leaves all but the last one
//! alone, and then the partition goes down to the next one, whenever all nodes of all racks are there. At rest it is 0.

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
    words,
};

/// The racks of the specification, as they are and as they are to be.
pub(crate) struct Racks<'a> {
    pub(crate) existing: Vec<ExistingRack<'a>>,
    pub(crate) missing: Vec<StatefulSet>,
    /// Those that are gone while their nodes are there.
    pub(crate) orphaned: Vec<StatefulSet>,
    pub(crate) degraded: Vec<Note>,
    /// What is not rolled out as far as it may be, also of racks that are not in the specification any more.
    pub(crate) not_rolled_out: Vec<&'a StatefulSet>,
    /// A rolling change has begun, or comes before nodes join.
    pub(crate) is_rolling: bool,
    /// The node that restarts next.
    pub(crate) next: Option<Restart>,
}

impl Racks<'_> {
    /// How far a change of pods is.
    pub(crate) fn rollout_state(&self) -> RolloutState {
        // What changes with the operator changes every rack.
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

    /// Whether all nodes that there are are up, and are as they are to be.
    pub(crate) fn are_done(&self) -> bool {
        let is_done = |one: &ExistingRack<'_>| !one.changes_pods && partition(one.now) == 0;
        self.not_rolled_out.is_empty() && self.existing.iter().all(is_done)
    }

    /// Whether anything of them is to change, or one is to be made.
    pub(crate) fn are_to_change(&self) -> bool {
        !self.missing.is_empty() || self.existing.iter().any(|one| one.changes)
    }

    /// Whether all nodes that there are are up.
    pub(crate) fn are_all_up(&self) -> bool {
        self.not_rolled_out.is_empty() && self.orphaned.is_empty()
    }

    /// Whether all nodes of the StatefulSet are up.
    pub(crate) fn is_up(&self, stateful_set: &str) -> bool {
        self.not_rolled_out.iter().all(|one| one.metadata.name.as_deref() != Some(stateful_set))
    }
}

/// A rack that is there, and what it is to become.
pub(crate) struct ExistingRack<'a> {
    pub(crate) name: String,
    pub(crate) now: &'a StatefulSet,
    /// With the partition that it has now.
    pub(crate) wanted: StatefulSet,
    pub(crate) changes: bool,
    pub(crate) changes_pods: bool,
}

impl ExistingRack<'_> {
    pub(crate) fn lacks_nodes(&self) -> bool {
        replicas(self.now) < replicas(&self.wanted)
    }

    /// As it is to be, but for more replicas.
    pub(crate) fn unscaled(self, partition: i32) -> StatefulSet {
        let mut unscaled = self.wanted;
        if let Some(spec) = unscaled.spec.as_mut() {
            spec.replicas = Some(replicas(self.now));
        }
        set_partition(&mut unscaled, partition);
        unscaled
    }

    /// With more replicas, and pods as they are: a node joins with the version that the others have.
    pub(crate) fn scaled_out(&self) -> StatefulSet {
        let mut scaled = self.wanted.clone();
        // Else it says the same in the words of the API server, which would be written, and then written back.
        if !self.changes_pods {
            return scaled;
        }
        if let (Some(scaled), Some(now)) = (scaled.spec.as_mut(), self.now.spec.as_ref()) {
            scaled.template.clone_from(&now.template);
        }
        scaled.metadata.labels.clone_from(&self.now.metadata.labels);
        // The template is the one that it speaks of.
        let stand_for = words::annotation(self.now, INPUTS_STAND_FOR);
        let stand_for = stand_for.map(|inputs| (INPUTS_STAND_FOR.to_owned(), inputs.to_owned()));
        scaled.metadata.annotations.get_or_insert_default().extend(stand_for);
        scaled
    }

    /// As it is, but for the partition.
    pub(crate) fn with_partition(self, partition: i32) -> StatefulSet {
        let mut held = if self.lacks_nodes() || self.changes_pods { self.scaled_out() } else { self.wanted };
        if let Some(spec) = held.spec.as_mut() {
            spec.replicas = Some(replicas(self.now));
        }
        set_partition(&mut held, partition);
        held
    }

    /// With the partition that lets one more node restart, or none where none is left to.
    pub(crate) fn with_next_partition(self, next: Option<&Restart>) -> StatefulSet {
        let mut rolled = self.wanted;
        let ordinal = next.filter(|next| next.stateful_set == self.name).map(|next| next.ordinal);
        set_partition(&mut rolled, ordinal.unwrap_or(0));
        rolled
    }
}

/// Looks at the racks, and finds out who restarts next.
pub(crate) fn racks<'a>(current: &Current<'a>) -> Racks<'a> {
    let observed = current.observed;
    let (mut existing, mut missing, mut orphaned, mut degraded) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for rack in &observed.datacenter.racks {
        let wanted = stateful_set(current, rack);
        let name = observed.datacenter.stateful_set_name(rack);
        match observed.stateful_sets.get(&name) {
            None => {
                let nodes = known_nodes(current, &name).min(MAX_NODES);
                if nodes == 0 {
                    missing.push(wanted);
                    continue;
                }
                // Nodes that are there restart by our word, like all others.
                let mut restored = recreated_stateful_set(current, rack, nodes);
                set_partition(&mut restored, nodes);
                orphaned.push(restored);
            }
            Some(now) => {
                let (mut wanted, faults) = keep_immutable_fields(current, wanted, now);
                degraded.extend(faults);
                set_partition(&mut wanted, partition(now));
                let changes_pods = changes_pods(&wanted, now) || is_of_scylla_operator(now);
                if changes_pods {
                    take_new_hash(&mut wanted);
                }
                let changes = changes_pods || !is_up_to_date(&wanted, now);
                existing.push(ExistingRack { name, now, wanted, changes, changes_pods });
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

/// The node that restarts next, when all nodes are there and none is to join before: the next one of a rack that is being
/// changed, or the last one of the first rack that is to change.
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

/// A rack that is being changed comes before those that are yet to be.
pub(crate) fn rack_to_roll<'b, 'a>(existing: &'b [ExistingRack<'a>]) -> Option<&'b ExistingRack<'a>> {
    existing.iter().find(|one| partition(one.now) > 0).or_else(|| existing.iter().find(|one| one.changes_pods))
}
