//! Limits how many datacenters restart their nodes at once because the operator or its settings have changed.
//!
//! The operator does not change while it runs. So a rollout that is pending at the first reconcile of a datacenter,
//! whose generation was observed before, is caused by the operator. The user causes all later ones, and those are not
//! limited.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use messina_api::{names::annotation::PAUSE, scylla::v1alpha1::ScyllaDBDatacenter};
use messina_plan::datacenter::{RolloutState, Turn};
use messina_runtime::{pause::pause, queue::ObjectKey, store::Change};

type Listener = Box<dyn Fn(ObjectKey) + Send + Sync>;

/// The datacenters that restart nodes because the operator has changed, and those that wait for it.
#[derive(Default)]
pub(super) struct OperatorRollouts {
    /// How many datacenters may restart nodes at once; 0 for all.
    at_once: usize,
    datacenters: Mutex<BTreeMap<ObjectKey, Entry>>,
    /// Requeues a datacenter.
    listener: OnceLock<Listener>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    /// The hash of the user's input at the last reconcile.
    version: u64,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It was not reconciled yet. No datacenter becomes active before, because turns go by name.
    Unobserved,
    /// It cannot be reconciled, and blocks no other datacenter.
    Skipped,
    /// It has no rollout that the operator caused.
    Idle,
    /// Its rollout is blocked until all its nodes are up. It blocks no other datacenter.
    Held,
    /// Its rollout waits for its turn.
    Waiting,
    /// It may restart nodes.
    Active,
}

impl std::fmt::Debug for OperatorRollouts {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("OperatorRollouts").field("at_once", &self.at_once).finish_non_exhaustive()
    }
}

impl OperatorRollouts {
    pub(super) fn new(at_once: usize) -> Self {
        Self { at_once, ..Self::default() }
    }

    /// Sets the function that is called with each waiting datacenter whenever turns change.
    pub(super) fn on_change(&self, listener: impl Fn(ObjectKey) + Send + Sync + 'static) {
        // Fails the second time, but the controller calls this once, when it starts.
        let _ = self.listener.set(Box::new(listener));
    }

    /// Returns whether a datacenter may restart its nodes. `version` is the hash of the user's input, and `is_known` is
    /// whether any leader has observed the generation before.
    pub(super) fn turn_of(
        &self,
        key: &ObjectKey,
        version: u64,
        is_known: bool,
        rollout_state: impl Fn() -> RolloutState,
    ) -> Turn {
        // A datacenter that was deleted meanwhile is reconciled for the last time.
        let Some(before) = self.locked().get(key).copied() else { return Turn::Own };
        if self.at_once == 0 {
            return Turn::Own;
        }
        let is_new = before.version != version;
        let phase = match (before.phase, rollout_state()) {
            // It became active under a former leader, and has to complete its rollout before the next one begins.
            (Phase::Unobserved | Phase::Skipped, RolloutState::InProgress) => Phase::Active,
            (Phase::Unobserved | Phase::Skipped, RolloutState::NotReady) if is_known => Phase::Active,
            (Phase::Unobserved | Phase::Skipped, RolloutState::Pending) if is_known => Phase::Waiting,
            (Phase::Unobserved | Phase::Skipped, RolloutState::Blocked) if is_known => Phase::Held,
            (Phase::Active, RolloutState::InProgress | RolloutState::NotReady) => Phase::Active,
            (Phase::Active, RolloutState::Pending) if !is_new => Phase::Active,
            (Phase::Held | Phase::Waiting, RolloutState::Pending | RolloutState::InProgress) if !is_new => {
                Phase::Waiting
            }
            (Phase::Held | Phase::Waiting | Phase::Active, RolloutState::Blocked) if !is_new => Phase::Held,
            (Phase::Waiting, RolloutState::NotReady) if !is_new => Phase::Waiting,
            _ => Phase::Idle,
        };
        self.set_phase(key, Entry { version, phase });
        if !matches!(phase, Phase::Waiting | Phase::Held) {
            return Turn::Own;
        }
        let all = self.locked();
        let at = |phase| all.iter().filter(move |(_, one)| one.phase == phase).map(|(key, _)| key);
        let (holder, first) = (at(Phase::Active).next().cloned(), at(Phase::Waiting).next().cloned());
        let is_free = at(Phase::Active).count() < self.at_once && at(Phase::Unobserved).next().is_none();
        drop(all);
        if is_free && phase == Phase::Waiting && first.as_ref() == Some(key) {
            self.set_phase(key, Entry { version, phase: Phase::Active });
            return Turn::Own;
        }
        Turn::After(holder.or(first).unwrap_or_else(|| key.clone()).to_string())
    }

    /// Adds and removes datacenters. One that is deleted, or paused before it became active, blocks no other
    /// datacenter.
    pub(super) fn observe_change(&self, change: &Change<ScyllaDBDatacenter>) {
        match change.after.as_ref().map(|after| &after.metadata) {
            Some(metadata) if metadata.deletion_timestamp.is_some() => self.forget(&change.key),
            Some(metadata) => self.add(&change.key, pause(metadata, Some(PAUSE)).is_some()),
            // It cannot be parsed, but it exists: if it is active, nodes of it may be down.
            None if !change.is_gone() => self.skip(&change.key),
            None => self.forget(&change.key),
        }
    }

    fn add(&self, key: &ObjectKey, is_paused: bool) {
        let is_there = self.locked().contains_key(key);
        if !is_there {
            self.set_phase(key, Entry { version: 0, phase: Phase::Unobserved });
        }
        if is_paused {
            self.skip(key);
        }
    }

    /// Lets a datacenter that cannot be reconciled now block no other datacenter, unless it is active.
    pub(super) fn skip(&self, key: &ObjectKey) {
        let before = self.locked().get(key).copied();
        if let Some(one) = before.filter(|one| [Phase::Unobserved, Phase::Waiting].contains(&one.phase)) {
            let phase = if one.phase == Phase::Unobserved { Phase::Skipped } else { Phase::Held };
            self.set_phase(key, Entry { phase, ..one });
        }
    }

    fn forget(&self, key: &ObjectKey) {
        if self.locked().remove(key).is_some_and(|one| one.phase != Phase::Idle) {
            self.notify(self.waiting());
        }
    }

    /// Stores an entry, and requeues the waiting datacenters if turns may have changed.
    fn set_phase(&self, key: &ObjectKey, entry: Entry) {
        let before = self.locked().insert(key.clone(), entry).map_or(Phase::Idle, |one| one.phase);
        let counts = |phase| [Phase::Unobserved, Phase::Waiting, Phase::Active].contains(&phase);
        if before != entry.phase && (counts(before) || entry.phase == Phase::Active) {
            self.notify(self.waiting());
        }
    }

    fn waiting(&self) -> Vec<ObjectKey> {
        let all = self.locked();
        let waits = |one: &Entry| [Phase::Held, Phase::Waiting].contains(&one.phase);
        all.iter().filter(|(_, one)| waits(one)).map(|(key, _)| key.clone()).collect()
    }

    fn notify(&self, keys: impl IntoIterator<Item = ObjectKey>) {
        if let Some(listener) = self.listener.get() {
            keys.into_iter().for_each(listener);
        }
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Entry>> {
        self.datacenters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube::api::ObjectMeta;
    use messina_runtime::store::Unreadable;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: Some("shop".into()), name: name.into() }
    }

    fn after(name: &str) -> Turn {
        Turn::After(key(name).to_string())
    }

    /// Returns a function that returns the names of datacenters that were requeued since its last call.
    fn notified(rollouts: &OperatorRollouts) -> impl Fn() -> Vec<String> {
        let (sender, receiver) = std::sync::mpsc::channel();
        rollouts.on_change(move |key: ObjectKey| _ = sender.send(key.name));
        move || receiver.try_iter().collect()
    }

    /// Datacenters of these names exist.
    fn rollouts(at_once: usize, names: &[&str]) -> OperatorRollouts {
        let rollouts = OperatorRollouts::new(at_once);
        names.iter().for_each(|name| rollouts.add(&key(name), false));
        rollouts
    }

    #[test]
    fn datacenters_become_active_in_the_order_of_their_names() {
        let rollouts = rollouts(1, &["a", "b", "c"]);
        let notified = notified(&rollouts);
        let turn = |name: &str, rollout_state| rollouts.turn_of(&key(name), 1, true, || rollout_state);
        assert_eq!(turn("b", RolloutState::Pending), after("b"), "not all have been reconciled");
        assert_eq!(turn("c", RolloutState::Pending), after("b"));
        notified();
        assert_eq!(turn("a", RolloutState::Pending), Turn::Own);
        assert!(notified().contains(&"b".to_owned()), "its status must name another datacenter");
        assert_eq!(turn("b", RolloutState::Pending), after("a"));
        assert_eq!(turn("a", RolloutState::InProgress), Turn::Own);
        assert_eq!(turn("b", RolloutState::Pending), after("a"), "a rollout that does not complete blocks the others");
        assert_eq!(turn("a", RolloutState::NotReady), Turn::Own);
        notified();
        assert_eq!(turn("b", RolloutState::Pending), after("a"), "not all of its nodes are up");
        assert_eq!(notified(), Vec::<String>::new());
        assert_eq!(turn("a", RolloutState::Complete), Turn::Own);
        assert_eq!(notified(), ["b", "c"]);
        assert_eq!(turn("c", RolloutState::Pending), after("b"));
        assert_eq!(turn("b", RolloutState::Pending), Turn::Own);
        rollouts.forget(&key("b"));
        assert_eq!(turn("c", RolloutState::Pending), Turn::Own, "the datacenter before it is deleted");
        assert_eq!(turn("b", RolloutState::Pending), Turn::Own);
        rollouts.forget(&key("c"));
        rollouts.add(&key("d"), false);
        assert_eq!(
            turn("d", RolloutState::Pending),
            Turn::Own,
            "a datacenter that was reconciled after its deletion is not active"
        );
    }

    #[test]
    fn datacenter_that_cannot_be_reconciled_blocks_no_other() {
        let rollouts = rollouts(1, &["a", "b", "c", "d", "e"]);
        let turn = |name: &str, rollout_state| rollouts.turn_of(&key(name), 1, true, || rollout_state);
        assert_eq!(turn("a", RolloutState::Pending), after("a"));
        rollouts.skip(&key("b"));
        assert_eq!(turn("c", RolloutState::Blocked), after("a"));
        rollouts.add(&key("d"), true);
        rollouts.forget(&key("e"));
        rollouts.skip(&key("a"));
        assert_eq!(turn("c", RolloutState::Pending), Turn::Own);
        assert_eq!(turn("a", RolloutState::Pending), after("c"), "it can be reconciled again");
        assert_eq!(
            turn("c", RolloutState::Blocked),
            after("a"),
            "its rollout has not begun, so another one may become active"
        );
        assert_eq!(turn("a", RolloutState::Pending), Turn::Own);
        rollouts.skip(&key("a"));
        assert_eq!(turn("c", RolloutState::Pending), after("a"), "an active one stays active");
        assert_eq!(
            turn("b", RolloutState::Pending),
            after("a"),
            "one that could not be reconciled before waits like others"
        );
    }

    #[test]
    fn active_datacenter_that_cannot_be_parsed_stays_active_until_it_is_deleted() {
        let rollouts = rollouts(1, &["a", "b"]);
        let turn = |name: &str, rollout_state| rollouts.turn_of(&key(name), 1, true, || rollout_state);
        assert_eq!(turn("b", RolloutState::Pending), after("b"));
        assert_eq!(turn("a", RolloutState::InProgress), Turn::Own);
        let (kind, problem) = ("ScyllaDBDatacenter".into(), "spec: a number".into());
        let unreadable = Some(Arc::new(Unreadable { kind, metadata: ObjectMeta::default(), problem }));
        rollouts.observe_change(&Change { unreadable_after: unreadable.clone(), ..Change::new(key("a"), None, None) });
        assert_eq!(turn("b", RolloutState::Pending), after("a"), "nodes of the other one may be down");
        rollouts.observe_change(&Change { unreadable_before: unreadable, ..Change::new(key("a"), None, None) });
        assert_eq!(turn("b", RolloutState::Pending), Turn::Own);
    }

    #[test]
    fn rollouts_by_the_user_do_not_wait() {
        let rollouts = rollouts(1, &["b", "c", "d", "z"]);
        let turn = |name: &str, version, is_known, rollout_state| {
            rollouts.turn_of(&key(name), version, is_known, || rollout_state)
        };
        assert_eq!(turn("z", 1, true, RolloutState::InProgress), Turn::Own);
        assert_eq!(turn("b", 2, false, RolloutState::Pending), Turn::Own, "no leader has observed that generation yet");
        assert_eq!(turn("c", 1, true, RolloutState::Complete), Turn::Own);
        assert_eq!(turn("c", 2, true, RolloutState::Pending), Turn::Own);
        assert_eq!(turn("d", 1, true, RolloutState::Pending), after("z"));
        assert_eq!(turn("z", 2, true, RolloutState::InProgress), Turn::Own);
        assert_eq!(
            turn("d", 1, true, RolloutState::Pending),
            after("z"),
            "a change by the user does not end a rollout that has begun"
        );
        assert_eq!(turn("d", 2, true, RolloutState::Pending), Turn::Own, "a change by the user does not wait");
    }

    #[test]
    fn rollout_that_began_under_a_former_leader_goes_first() {
        for rollout_state in [RolloutState::InProgress, RolloutState::NotReady] {
            let rollouts = rollouts(1, &["a", "z"]);
            assert_eq!(rollouts.turn_of(&key("z"), 1, true, || rollout_state), Turn::Own);
            assert_eq!(rollouts.turn_of(&key("a"), 1, true, || RolloutState::Pending), after("z"));
        }
    }

    #[test]
    fn at_once_limits_active_datacenters() {
        let two = rollouts(2, &["a", "b", "c"]);
        let turn = |name: &str| two.turn_of(&key(name), 1, true, || RolloutState::Pending);
        assert_eq!(["a", "b", "c", "a", "b", "c"].map(turn)[3..], [Turn::Own, Turn::Own, after("a")]);
        let all = rollouts(0, &["a", "b"]);
        assert!(["a", "b"].iter().all(|name| all.turn_of(&key(name), 1, true, || RolloutState::Pending) == Turn::Own));
    }
}
