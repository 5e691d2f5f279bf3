//! What is decided of StatefulSets.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::StatefulSet;

use crate::datacenter::{
    model::{
        component::Component,
        observed::Observed,
        plan::{Deletion, Note, Untouched},
    },
    racks::Standing,
    rollout::notes::note,
};

#[derive(Default)]
pub(crate) struct Rollout {
    pub(crate) stateful_sets: Vec<StatefulSet>,
    pub(crate) deletions: Vec<Deletion>,
    pub(crate) untouched: Vec<Untouched>,
    pub(crate) progressing: Vec<Note>,
    pub(crate) degraded: Vec<Note>,
    /// StatefulSets that are as they are to be, but for the size of disks.
    pub(crate) up_to_date: BTreeSet<String>,
    /// StatefulSets of which another node may restart when they are written, or may not any more.
    pub(crate) restarting: BTreeSet<String>,
    /// StatefulSets that are made anew around their nodes.
    pub(crate) recreated: BTreeSet<String>,
}

impl Rollout {
    /// Pods that start now would not find what they need: no rack is made or changed before.
    pub(crate) fn postpone(&mut self, observed: &Observed, reason: &'static str, needed: &str) {
        let is_held =
            |one: &mut StatefulSet| one.metadata.name.as_ref().is_none_or(|name| !self.recreated.contains(name));
        let names = self.stateful_sets.extract_if(.., is_held).filter_map(|stateful_set| stateful_set.metadata.name);
        let (existing, missing): (Vec<String>, Vec<String>) =
            names.partition(|name| observed.stateful_sets.contains_key(name));
        self.untouched.extend(existing.into_iter().map(|name| Untouched { kind: "StatefulSet", name }));
        self.progressing.extend(missing.into_iter().map(|name| Note {
            component: Component::StatefulSet,
            reason,
            message: format!("StatefulSet {}/{name} is made as soon as {needed}", observed.datacenter.namespace),
        }));
    }
}

pub(crate) fn apply_or_postpone(observed: &Observed, one: Standing<'_>, rollout: &mut Rollout) {
    if one.changes {
        postpone(observed, one, rollout);
    } else {
        rollout.stateful_sets.push(one.wanted);
    }
}

pub(crate) fn postpone(observed: &Observed, one: Standing<'_>, rollout: &mut Rollout) {
    rollout.progressing.push(note(
        "WaitingForOtherRacks",
        format!(
            "StatefulSet {}/{} is to change, and does as soon as all others are rolled out and nothing else is under way",
            observed.datacenter.namespace, one.name
        ),
    ));
    rollout.untouched.push(Untouched { kind: "StatefulSet", name: one.name });
}
