//! What changes with the operator restarts the nodes of a few datacenters at a time.
//!
//! The operator does not change while it runs. So a rollout that is pending when it first looks at a datacenter, whose
//! specification was observed before, comes with the operator; whatever comes later is the user's.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use messina_api::{names::annotation::PAUSE, scylla::v1alpha1::ScyllaDBDatacenter};
use messina_plan::datacenter::{Rolling, Turn};
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
    /// Nothing of it changes with the operator any more.
    Free,
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
    pub(super) fn turn(&self, key: &ObjectKey, version: u64, is_known: bool, rolling: impl Fn() -> Rolling) -> Turn {
        if self.at_once == 0 {
            return Turn::Own;
        }
        let before = self.locked().get(key).copied();
        let place = match before.map(|one| if one.version == version { one.place } else { Place::Free }) {
            Some(Place::Free) => Place::Free,
            Some(place) if rolling() != Rolling::Done => place,
            Some(_) => Place::Free,
            None if !is_known => Place::Free,
            None => match rolling() {
                Rolling::Pending => Place::Waits,
                // It had its turn from a former leader, and has to come back before the next one begins.
                Rolling::Begun | Rolling::Unsettled => Place::HasTurn,
                Rolling::Done => Place::Free,
            },
        };
        self.place(key, Standing { version, place });
        if place != Place::Waits {
            return Turn::Own;
        }
        let all = self.locked();
        let at = |place| all.iter().filter(move |(_, one)| one.place == place).map(|(key, _)| key);
        let (holder, first) = (at(Place::HasTurn).next().cloned(), at(Place::Waits).next().cloned());
        let is_free = at(Place::HasTurn).count() < self.at_once;
        drop(all);
        if before.is_none() {
            // The others are looked at for the first time before it is looked at again: then the order of names is known.
            self.tell([key.clone()]);
        } else if is_free && first.as_ref() == Some(key) {
            self.place(key, Standing { version, place: Place::HasTurn });
            return Turn::Own;
        }
        Turn::After(holder.or(first).map(|key| key.to_string()).unwrap_or_default())
    }

    /// A datacenter that is deleted, or paused before it has begun, does not keep others waiting.
    pub(super) fn take_in(&self, change: &Change<ScyllaDBDatacenter>) {
        match change.after.as_ref().map(|after| &after.metadata) {
            Some(metadata) if pause(metadata, Some(PAUSE)).is_some() => self.stand_back(&change.key),
            Some(metadata) if metadata.deletion_timestamp.is_none() => {}
            _ => self.forget(&change.key),
        }
    }

    /// A datacenter for which nothing can be done now does not keep others waiting. One that has begun does.
    pub(super) fn stand_back(&self, key: &ObjectKey) {
        if self.locked().get(key).is_some_and(|one| one.place == Place::Waits) {
            self.forget(key);
        }
    }

    fn forget(&self, key: &ObjectKey) {
        if self.locked().remove(key).is_some_and(|one| one.place != Place::Free) {
            self.tell(self.waiting());
        }
    }

    fn place(&self, key: &ObjectKey, standing: Standing) {
        let before = self.locked().insert(key.clone(), standing);
        let before = before.map_or(Place::Free, |one| one.place);
        let has_turn = [before, standing.place].map(|place| place == Place::HasTurn);
        if has_turn[0] != has_turn[1] || (before, standing.place) == (Place::Waits, Place::Free) {
            self.tell(self.waiting());
        }
    }

    fn waiting(&self) -> Vec<ObjectKey> {
        let all = self.locked();
        all.iter().filter(|(_, one)| one.place == Place::Waits).map(|(key, _)| key.clone()).collect()
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

    #[test]
    fn datacenters_take_turns_in_the_order_of_their_names() {
        let turns = Turns::new(1);
        let heard = heard(&turns);
        let turn = |name: &str, rolling| turns.turn(&key(name), 1, true, || rolling);
        for name in ["b", "c", "a"] {
            assert_ne!(turn(name, Rolling::Pending), Turn::Own, "not all have been looked at");
        }
        assert_eq!(heard(), ["b", "c", "a"]);
        assert_eq!(turn("b", Rolling::Pending), after("a"));
        assert_eq!(turn("a", Rolling::Pending), Turn::Own);
        assert_eq!(heard(), ["b", "c"], "their status is to name another one");
        assert_eq!(turn("a", Rolling::Begun), Turn::Own);
        assert_eq!(turn("b", Rolling::Pending), after("a"), "one that does not come back holds the others up");
        assert_eq!(turn("a", Rolling::Unsettled), Turn::Own);
        assert_eq!(turn("b", Rolling::Pending), after("a"), "not all of its nodes are up");
        assert!(heard().is_empty());
        assert_eq!(turn("a", Rolling::Done), Turn::Own);
        assert_eq!(heard(), ["b", "c"]);
        assert_eq!(turn("c", Rolling::Pending), after("b"));
        assert_eq!(turn("b", Rolling::Pending), Turn::Own);
        turns.forget(&key("b"));
        assert_eq!(turn("c", Rolling::Pending), Turn::Own, "the one before it is gone");
    }

    #[test]
    fn one_for_which_nothing_can_be_done_keeps_nobody_waiting() {
        let turns = Turns::new(1);
        let heard = heard(&turns);
        let turn = |name: &str| turns.turn(&key(name), 1, true, || Rolling::Pending);
        assert_eq!((turn("a"), turn("b"), turn("b")), (after("a"), after("a"), after("a")));
        heard();
        turns.stand_back(&key("a"));
        assert_eq!(heard(), ["b"]);
        assert_eq!(turn("b"), Turn::Own);
        turns.stand_back(&key("b"));
        assert_eq!((turn("a"), turn("a")), (after("b"), after("b")), "one that has begun keeps its turn");
    }

    #[test]
    fn what_the_user_changes_does_not_wait() {
        let turns = Turns::new(1);
        assert_eq!(turns.turn(&key("z"), 1, true, || Rolling::Begun), Turn::Own);
        assert_eq!(turns.turn(&key("b"), 2, false, || Rolling::Pending), Turn::Own, "nobody has looked at that yet");
        assert_eq!(turns.turn(&key("c"), 1, true, || Rolling::Done), Turn::Own);
        assert_eq!(turns.turn(&key("c"), 2, true, || Rolling::Pending), Turn::Own);
        assert_eq!(turns.turn(&key("d"), 1, true, || Rolling::Pending), after("z"));
        assert_eq!(turns.turn(&key("d"), 2, true, || Rolling::Pending), Turn::Own, "the user cannot wait");
    }

    #[test]
    fn one_that_had_begun_under_a_former_leader_goes_first() {
        for rolling in [Rolling::Begun, Rolling::Unsettled] {
            let turns = Turns::new(1);
            assert_eq!(turns.turn(&key("z"), 1, true, || rolling), Turn::Own);
            let turn = || turns.turn(&key("a"), 1, true, || Rolling::Pending);
            assert_eq!((turn(), turn()), (after("z"), after("z")));
        }
    }

    #[test]
    fn several_at_once_or_all() {
        let two = Turns::new(2);
        let turn = |name: &str| two.turn(&key(name), 1, true, || Rolling::Pending);
        assert_eq!(["a", "b", "c"].map(turn), [after("a"), after("a"), after("a")], "not all have been looked at");
        assert_eq!(["a", "b", "c"].map(turn), [Turn::Own, Turn::Own, after("a")]);
        let all = Turns::new(0);
        assert!(["a", "b"].iter().all(|name| all.turn(&key(name), 1, true, || Rolling::Pending) == Turn::Own));
    }
}
