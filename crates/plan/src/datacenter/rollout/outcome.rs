//! The decisions about StatefulSets.

use messina_text::Reason;
use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::StatefulSet;

use crate::datacenter::{
    model::{
        component::Component,
        observed::Observed,
        plan::{Deletion, Note, Untouched},
    },
    racks::ExistingRack,
    reasons,
    rollout::notes::note,
};

#[derive(Default)]
pub(crate) struct Rollout {
    pub(crate) stateful_sets: Vec<StatefulSet>,
    pub(crate) deletions: Vec<Deletion>,
    pub(crate) untouched: Vec<Untouched>,
    pub(crate) progressing: Vec<Note>,
    pub(crate) degraded: Vec<Note>,
    /// StatefulSets that are in the desired state, except for the size of disks.
    pub(crate) up_to_date: BTreeSet<String>,
    /// StatefulSets whose update allows another node to restart, or forbids it.
    pub(crate) restarting: BTreeSet<String>,
    /// StatefulSets that are recreated while pods of their nodes exist.
    pub(crate) recreated: BTreeSet<String>,
}

impl Rollout {
    /// Removes the StatefulSets that would be created or changed, because their pods could not start without `needed`.
    pub(crate) fn postpone(&mut self, observed: &Observed, reason: Reason, needed: &str) {
        let is_postponed =
            |one: &mut StatefulSet| one.metadata.name.as_ref().is_none_or(|name| !self.recreated.contains(name));
        let names =
            self.stateful_sets.extract_if(.., is_postponed).filter_map(|stateful_set| stateful_set.metadata.name);
        let (existing, missing): (Vec<String>, Vec<String>) =
            names.partition(|name| observed.stateful_sets.contains_key(name));
        self.untouched.extend(existing.into_iter().map(|name| Untouched { kind: "StatefulSet", name }));
        self.progressing.extend(missing.into_iter().map(|name| Note {
            component: Component::StatefulSet,
            reason,
            message: format!(
                "StatefulSet {}/{name} is not created yet. Waiting for {needed}.",
                observed.datacenter.namespace
            ),
        }));
    }
}

/// Applies a StatefulSet that is in the desired state, and postpones the change of one that is not.
pub(crate) fn apply_or_postpone(observed: &Observed, one: ExistingRack<'_>, rollout: &mut Rollout) {
    if one.changes {
        postpone(observed, one, rollout);
    } else {
        rollout.stateful_sets.push(one.desired);
    }
}

/// Postpones the change of a StatefulSet.
pub(crate) fn postpone(observed: &Observed, one: ExistingRack<'_>, rollout: &mut Rollout) {
    rollout.progressing.push(note(
        reasons::WAITING_FOR_OTHER_RACKS,
        format!(
            "StatefulSet {}/{} has to be updated. Waiting until all other StatefulSets are rolled out and no other \
             change is in progress.",
            observed.datacenter.namespace, one.name
        ),
    ));
    rollout.untouched.push(Untouched { kind: "StatefulSet", name: one.name });
}
