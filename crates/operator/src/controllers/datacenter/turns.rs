//! What changes with the operator restarts the nodes of a few datacenters at a time.
//!
//! The operator does not change while it runs. So a rollout that is pending when it first looks at a datacenter, whose
//! specification was observed before, comes with the operator; whatever comes later is the user's.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use messina_api::{names::annotation::PAUSE, scylla::v1alpha1::ScyllaDBDatacenter};
use messina_plan::datacenter::{RolloutState, Turn};
use messina_runtime::{pause::pause, queue::ObjectKey, store::Change};

type Listener = Box<dyn Fn(ObjectKey) + Send + Sync>;

/// Which datacenters restart nodes because the operator has changed, and which wait to.
#[derive(Default)]
pub(super) struct Turns {
    /// How many restart nodes at once; 0 for all.
    at_once: usize,
    datacenters: Mutex<BTreeMap<ObjectKey, Standing>>,
    /// Hears which datacenters are to be looked at again.
    listener: OnceLock<Listener>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    /// The version of what the user wrote that was last looked at.
    version: u64,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// It was not looked at yet. Nobody gets a turn before: the order of names is not known.
    Unseen,
    /// It could not be looked at yet, and keeps nobody waiting.
    Aside,
    /// Nothing of it changes with the operator any more, or nothing can.
    Free,
    /// It waits until all its nodes are up, and keeps nobody waiting.
    Held,
    Waits,
    HasTurn,
}

impl std::fmt::Debug for Turns {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Turns").field("at_once", &self.at_once).finish_non_exhaustive()
    }
}

impl Turns {
    pub(super) fn new(at_once: usize) -> Self {
        Self { at_once, ..Self::default() }
    }

    /// `listener` hears of each datacenter that waits, whenever it is another one's turn.
    pub(super) fn on_change(&self, listener: impl Fn(ObjectKey) + Send + Sync + 'static) {
        // It is set once, when the controller starts.
        let _ = self.listener.set(Box::new(listener));
    }

    /// Whether a datacenter may change its pods. `version` is of what the user wrote; `is_known` says whether the
    /// specification was observed before, by any leader.
    pub(super) fn turn(
        &self,
        key: &ObjectKey,
        version: u64,
        is_known: bool,
        rolling: impl Fn() -> RolloutState,
    ) -> Turn {
        // One that is not there any more is looked at for the last time.
        let Some(before) = self.locked().get(key).copied() else { return Turn::Own };
        if self.at_once == 0 {
            return Turn::Own;
        }
        let is_new = before.version != version;
        let place = match (before.place, rolling()) {
            // It had its turn from a former leader, and has to come back before the next one begins.
            (Place::Unseen | Place::Aside, RolloutState::InProgress) => Place::HasTurn,
            (Place::Unseen | Place::Aside, RolloutState::NotReady) if is_known => Place::HasTurn,
            (Place::Unseen | Place::Aside, RolloutState::Pending) if is_known => Place::Waits,
            (Place::Unseen | Place::Aside, RolloutState::Blocked) if is_known => Place::Held,
            (Place::HasTurn, RolloutState::InProgress | RolloutState::NotReady) => Place::HasTurn,
            (Place::HasTurn, RolloutState::Pending) if !is_new => Place::HasTurn,
            (Place::Held | Place::Waits, RolloutState::Pending | RolloutState::InProgress) if !is_new => Place::Waits,
            (Place::Held | Place::Waits | Place::HasTurn, RolloutState::Blocked) if !is_new => Place::Held,
            (Place::Waits, RolloutState::NotReady) if !is_new => Place::Waits,
            _ => Place::Free,
        };
        self.place(key, Standing { version, place });
        if !matches!(place, Place::Waits | Place::Held) {
            return Turn::Own;
        }
        let all = self.locked();
        let at = |place| all.iter().filter(move |(_, one)| one.place == place).map(|(key, _)| key);
        let (holder, first) = (at(Place::HasTurn).next().cloned(), at(Place::Waits).next().cloned());
        let is_free = at(Place::HasTurn).count() < self.at_once && at(Place::Unseen).next().is_none();
        drop(all);
        if is_free && place == Place::Waits && first.as_ref() == Some(key) {
            self.place(key, Standing { version, place: Place::HasTurn });
            return Turn::Own;
        }
        Turn::After(holder.or(first).unwrap_or_else(|| key.clone()).to_string())
    }

    /// A datacenter that is deleted, or paused before it has begun, does not keep others waiting.
    pub(super) fn take_in(&self, change: &Change<ScyllaDBDatacenter>) {
        match change.after.as_ref().map(|after| &after.metadata) {
            Some(metadata) if metadata.deletion_timestamp.is_some() => self.forget(&change.key),
            Some(metadata) => self.appear(&change.key, pause(metadata, Some(PAUSE)).is_some()),
            // Nodes of one that had begun may be down.
            None if !change.is_gone() => self.stand_back(&change.key),
            None => self.forget(&change.key),
        }
    }

    fn appear(&self, key: &ObjectKey, is_paused: bool) {
        let is_there = self.locked().contains_key(key);
        if !is_there {
            self.place(key, Standing { version: 0, place: Place::Unseen });
        }
        if is_paused {
            self.stand_back(key);
        }
    }

    /// A datacenter for which nothing can be done now does not keep others waiting. One that has begun does.
    pub(super) fn stand_back(&self, key: &ObjectKey) {
        let before = self.locked().get(key).copied();
        if let Some(one) = before.filter(|one| [Place::Unseen, Place::Waits].contains(&one.place)) {
            let place = if one.place == Place::Unseen { Place::Aside } else { Place::Held };
            self.place(key, Standing { place, ..one });
        }
    }

    fn forget(&self, key: &ObjectKey) {
        if self.locked().remove(key).is_some_and(|one| one.place != Place::Free) {
            self.tell(self.waiting());
        }
    }

    /// Whoever waits is looked at again when it may be another one's turn.
    fn place(&self, key: &ObjectKey, standing: Standing) {
        let before = self.locked().insert(key.clone(), standing).map_or(Place::Free, |one| one.place);
        let counts = |place| [Place::Unseen, Place::Waits, Place::HasTurn].contains(&place);
        if before != standing.place && (counts(before) || standing.place == Place::HasTurn) {
            self.tell(self.waiting());
        }
    }

    fn waiting(&self) -> Vec<ObjectKey> {
        let all = self.locked();
        let waits = |one: &Standing| [Place::Held, Place::Waits].contains(&one.place);
        all.iter().filter(|(_, one)| waits(one)).map(|(key, _)| key.clone()).collect()
    }

    fn tell(&self, keys: impl IntoIterator<Item = ObjectKey>) {
        if let Some(listener) = self.listener.get() {
            keys.into_iter().for_each(listener);
        }
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Standing>> {
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

    /// Takes what the listener has heard since.
    fn heard(turns: &Turns) -> impl Fn() -> Vec<String> {
        let (sender, receiver) = std::sync::mpsc::channel();
        turns.on_change(move |key: ObjectKey| _ = sender.send(key.name));
        move || receiver.try_iter().collect()
    }

    /// Datacenters of these names are there.
    fn turns(at_once: usize, names: &[&str]) -> Turns {
        let turns = Turns::new(at_once);
        names.iter().for_each(|name| turns.appear(&key(name), false));
        turns
    }

    #[test]
    fn datacenters_take_turns_in_the_order_of_their_names() {
        let turns = turns(1, &["a", "b", "c"]);
        let heard = heard(&turns);
        let turn = |name: &str, rolling| turns.turn(&key(name), 1, true, || rolling);
        assert_eq!(turn("b", RolloutState::Pending), after("b"), "not all have been looked at");
        assert_eq!(turn("c", RolloutState::Pending), after("b"));
        heard();
        assert_eq!(turn("a", RolloutState::Pending), Turn::Own);
        assert!(heard().contains(&"b".to_owned()), "its status is to name another one");
        assert_eq!(turn("b", RolloutState::Pending), after("a"));
        assert_eq!(turn("a", RolloutState::InProgress), Turn::Own);
        assert_eq!(turn("b", RolloutState::Pending), after("a"), "one that does not come back holds the others up");
        assert_eq!(turn("a", RolloutState::NotReady), Turn::Own);
        heard();
        assert_eq!(turn("b", RolloutState::Pending), after("a"), "not all of its nodes are up");
        assert_eq!(heard(), Vec::<String>::new());
        assert_eq!(turn("a", RolloutState::Complete), Turn::Own);
        assert_eq!(heard(), ["b", "c"]);
        assert_eq!(turn("c", RolloutState::Pending), after("b"));
        assert_eq!(turn("b", RolloutState::Pending), Turn::Own);
        turns.forget(&key("b"));
        assert_eq!(turn("c", RolloutState::Pending), Turn::Own, "the one before it is gone");
        assert_eq!(turn("b", RolloutState::Pending), Turn::Own);
        turns.forget(&key("c"));
        turns.appear(&key("d"), false);
        assert_eq!(turn("d", RolloutState::Pending), Turn::Own, "one that was looked at when it was gone has no turn");
    }

    #[test]
    fn one_for_which_nothing_can_be_done_keeps_nobody_waiting() {
        let turns = turns(1, &["a", "b", "c", "d", "e"]);
        let turn = |name: &str, rolling| turns.turn(&key(name), 1, true, || rolling);
        assert_eq!(turn("a", RolloutState::Pending), after("a"));
        turns.stand_back(&key("b"));
        assert_eq!(turn("c", RolloutState::Blocked), after("a"));
        turns.appear(&key("d"), true);
        turns.forget(&key("e"));
        turns.stand_back(&key("a"));
        assert_eq!(turn("c", RolloutState::Pending), Turn::Own);
        assert_eq!(turn("a", RolloutState::Pending), after("c"), "it comes back");
        assert_eq!(turn("c", RolloutState::Blocked), after("a"), "it has not begun, and gives the turn back");
        assert_eq!(turn("a", RolloutState::Pending), Turn::Own);
        turns.stand_back(&key("a"));
        assert_eq!(turn("c", RolloutState::Pending), after("a"), "one that has its turn keeps it");
        assert_eq!(turn("b", RolloutState::Pending), after("a"), "one that could not be looked at waits like others");
    }

    #[test]
    fn one_that_cannot_be_read_keeps_its_turn_until_it_is_gone() {
        let turns = turns(1, &["a", "b"]);
        let turn = |name: &str, rolling| turns.turn(&key(name), 1, true, || rolling);
        assert_eq!(turn("b", RolloutState::Pending), after("b"));
        assert_eq!(turn("a", RolloutState::InProgress), Turn::Own);
        let (kind, problem) = ("ScyllaDBDatacenter".into(), "spec: a number".into());
        let unreadable = Some(Arc::new(Unreadable { kind, metadata: ObjectMeta::default(), problem }));
        turns.take_in(&Change { unreadable_after: unreadable.clone(), ..Change::new(key("a"), None, None) });
        assert_eq!(turn("b", RolloutState::Pending), after("a"), "nodes of the other may be down");
        turns.take_in(&Change { unreadable_before: unreadable, ..Change::new(key("a"), None, None) });
        assert_eq!(turn("b", RolloutState::Pending), Turn::Own);
    }

    #[test]
    fn what_the_user_changes_does_not_wait() {
        let turns = turns(1, &["b", "c", "d", "z"]);
        let turn = |name: &str, version, is_known, rolling| turns.turn(&key(name), version, is_known, || rolling);
        assert_eq!(turn("z", 1, true, RolloutState::InProgress), Turn::Own);
        assert_eq!(turn("b", 2, false, RolloutState::Pending), Turn::Own, "nobody has looked at that yet");
        assert_eq!(turn("c", 1, true, RolloutState::Complete), Turn::Own);
        assert_eq!(turn("c", 2, true, RolloutState::Pending), Turn::Own);
        assert_eq!(turn("d", 1, true, RolloutState::Pending), after("z"));
        assert_eq!(turn("z", 2, true, RolloutState::InProgress), Turn::Own);
        assert_eq!(turn("d", 1, true, RolloutState::Pending), after("z"), "a change does not end what has begun");
        assert_eq!(turn("d", 2, true, RolloutState::Pending), Turn::Own, "the user cannot wait");
    }

    #[test]
    fn one_that_had_begun_under_a_former_leader_goes_first() {
        for rolling in [RolloutState::InProgress, RolloutState::NotReady] {
            let turns = turns(1, &["a", "z"]);
            assert_eq!(turns.turn(&key("z"), 1, true, || rolling), Turn::Own);
            assert_eq!(turns.turn(&key("a"), 1, true, || RolloutState::Pending), after("z"));
        }
    }

    #[test]
    fn several_at_once_or_all() {
        let two = turns(2, &["a", "b", "c"]);
        let turn = |name: &str| two.turn(&key(name), 1, true, || RolloutState::Pending);
        assert_eq!(["a", "b", "c", "a", "b", "c"].map(turn)[3..], [Turn::Own, Turn::Own, after("a")]);
        let all = turns(0, &["a", "b"]);
        assert!(["a", "b"].iter().all(|name| all.turn(&key(name), 1, true, || RolloutState::Pending) == Turn::Own));
    }
}
