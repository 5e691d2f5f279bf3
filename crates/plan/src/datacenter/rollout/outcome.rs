//! The decisions about StatefulSets.

use messina_text::Reason;
use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::StatefulSet;

use crate::datacenter::{
    model::{
        observed::Observed,
        plan::{Deletion, Note, Untouched},
    },
    racks::ExistingRack,
    reasons,
    rollout::notes::{OTHER_CHANGES, note},
};

/// The reasons of StatefulSets that are being written.
const WRITES: [Reason; 4] = [
    reasons::CREATING_STATEFUL_SET,
    reasons::RECREATING_STATEFUL_SET,
    reasons::SCALING_OUT,
    reasons::UPDATING_STATEFUL_SET,
];

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
        let names = self.stateful_sets.extract_if(.., is_postponed).filter_map(|one| one.metadata.name);
        for name in names.collect::<Vec<_>>() {
            let reference = format!("StatefulSet {}/{name}", observed.datacenter.namespace);
            let is_changed = self.remove_write(&reference);
            let change = if observed.stateful_sets.contains_key(&name) {
                self.untouched.push(Untouched { kind: "StatefulSet", name });
                is_changed.then_some("changed")
            } else {
                Some("created")
            };
            let message = change.map(|change| format!("{reference} is not {change} yet. Waiting for {needed}."));
            self.progressing.extend(message.map(|message| note(reason, message)));
        }
    }

    /// Removes the note that a StatefulSet is being written. Returns whether there was one.
    fn remove_write(&mut self, reference: &str) -> bool {
        let is_of_this = |message: &str| {
            let after = message.split_once(reference).map(|(_, after)| after);
            after.is_some_and(|after| !after.starts_with(|next: char| next == '-' || next.is_ascii_alphanumeric()))
        };
        let is_write = |note: &mut Note| WRITES.contains(&note.reason) && is_of_this(&note.message);
        self.progressing.extract_if(.., is_write).count() > 0
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
            "StatefulSet {}/{} has to be updated. Waiting until all other StatefulSets are rolled out and \
             {OTHER_CHANGES}",
            observed.datacenter.namespace, one.name
        ),
    ));
    rollout.untouched.push(Untouched { kind: "StatefulSet", name: one.name });
}
