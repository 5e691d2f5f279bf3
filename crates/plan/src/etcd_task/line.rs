//! Tasks in line: at most one runs on an etcd cluster, in order of creation, then UID.

use std::collections::BTreeMap;

use jiff::Timestamp;
use messina_api::druid::v1alpha1::{EtcdOperatorTask, TaskState};

/// When a task was created.
pub fn created(task: &EtcdOperatorTask) -> Timestamp {
    task.metadata.creation_timestamp.as_ref().map(|time| time.0).unwrap_or_default()
}

/// Whether other tasks of the etcd cluster wait for this one: while it is not at its end, and, where it `needs_cleanup`, until
/// what it has left is removed.
pub fn is_in_line(task: &EtcdOperatorTask, needs_cleanup: bool) -> bool {
    let Some(status) = &task.status else { return true };
    match status.state {
        Some(TaskState::Succeeded | TaskState::Failed) => needs_cleanup && status.cleaned_up_at.is_none(),
        Some(TaskState::Rejected) => false,
        _ => true,
    }
}

/// By what the tasks of an etcd cluster are put in order: one that runs comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    waits: bool,
    created: Timestamp,
    uid: String,
}

impl Place {
    /// The place of a task that is in line.
    pub fn of(task: &EtcdOperatorTask) -> Self {
        let state = task.status.as_ref().and_then(|status| status.state.as_ref());
        Self {
            waits: matches!(state, None | Some(TaskState::Pending | TaskState::Other(_))),
            created: created(task),
            uid: task.metadata.uid.clone().unwrap_or_default(),
        }
    }

    /// UID of the task.
    pub fn uid(&self) -> &str {
        &self.uid
    }
}

/// The tasks of an etcd cluster that are not at their end, each with something by which it is known.
#[derive(Clone, Debug)]
pub struct Line<K> {
    tasks: BTreeMap<Place, K>,
    /// UID of the one whose turn it is. What was decided for it may not have been written yet.
    turn: Option<String>,
}

impl<K> Default for Line<K> {
    fn default() -> Self {
        Self { tasks: BTreeMap::new(), turn: None }
    }
}

impl<K> Line<K> {
    /// A task is in line.
    pub fn add(&mut self, place: Place, key: K) {
        self.tasks.insert(place, key);
    }

    /// A task is no longer in this place. If it is in no other either, it is no longer its turn: see [`Line::settle`].
    pub fn remove(&mut self, place: &Place) {
        self.tasks.remove(place);
    }

    /// The task that is known by this is in no place.
    pub fn remove_key(&mut self, key: &K)
    where
        K: PartialEq,
    {
        self.tasks.retain(|_, known| known != key);
    }

    /// All changes are taken in: the turn of one that is not there any more is over.
    pub fn settle(&mut self) {
        let is_there = |uid: &String| self.tasks.keys().any(|place| place.uid == *uid);
        if !self.turn.as_ref().is_some_and(is_there) {
            self.turn = None;
        }
    }

    /// Whether nobody is in line.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// All in line, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Place, &K)> {
        self.tasks.iter()
    }

    /// The tasks that come before this one, in order. If there are none and it `may_begin`, it is its turn, until it is at its
    /// end or gone.
    pub fn ahead(&mut self, own: &Place, may_begin: bool) -> Vec<&K> {
        if self.turn.as_ref() == Some(&own.uid) {
            return Vec::new();
        }
        let is_first = |place: &Place| !place.waits || self.turn.as_ref() == Some(&place.uid);
        let mut ahead: Vec<(&Place, &K)> =
            self.tasks.iter().filter(|(place, _)| *place != own && (is_first(place) || *place < own)).collect();
        ahead.sort_by_key(|(place, _)| (!is_first(place), *place));
        if ahead.is_empty() && may_begin {
            self.turn = Some(own.uid.clone());
        }
        ahead.into_iter().map(|(_, key)| key).collect()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn place(second: i64, uid: &str, waits: bool) -> Place {
        Place { waits, created: Timestamp::from_second(second).unwrap_or_default(), uid: uid.into() }
    }

    fn line(tasks: &[(&'static str, &Place)]) -> Line<&'static str> {
        let mut line = Line::default();
        tasks.iter().for_each(|(name, place)| line.add((*place).clone(), *name));
        line
    }

    #[test]
    fn tasks_wait_for_the_cleanup_of_those_that_need_one() {
        let task = |state: &str, is_cleaned_up: bool| {
            let cleaned_up_at = is_cleaned_up.then_some("2026-11-17T00:00:00Z");
            let status = serde_json::json!({"state": state, "cleanedUpAt": cleaned_up_at});
            serde_json::from_value(serde_json::json!({"metadata": {}, "spec": {}, "status": status})).unwrap()
        };
        for (state, is_cleaned_up, needs_cleanup, expected) in [
            ("Pending", false, true, true),
            ("InProgress", false, false, true),
            ("Failed", false, true, true),
            ("Failed", true, true, false),
            ("Failed", false, false, false),
            ("Succeeded", false, true, true),
            ("Rejected", false, true, false),
        ] {
            let task: EtcdOperatorTask = task(state, is_cleaned_up);
            assert_eq!(is_in_line(&task, needs_cleanup), expected, "{state} {is_cleaned_up} {needs_cleanup}");
            assert_eq!(Place::of(&task).waits, state == "Pending");
        }
    }

    #[test]
    fn tasks_wait_for_those_that_were_created_before() {
        let (a, b, c) = (place(1, "2", true), place(1, "3", true), place(2, "1", true));
        let mut line = line(&[("c", &c), ("a", &a), ("b", &b)]);
        assert_eq!(line.ahead(&c, true), [&"a", &"b"]);
        assert_eq!(line.ahead(&b, true), [&"a"]);
        assert!(line.ahead(&a, true).is_empty());
        for (place, next) in [(&a, &b), (&b, &c)] {
            line.remove(place);
            line.settle();
            assert!(line.ahead(next, true).is_empty());
        }
    }

    #[test]
    fn whose_turn_it_is_keeps_it_whoever_comes() {
        let (late, early) = (place(1, "9", true), place(1, "1", true));
        let mut line = line(&[("late", &late)]);
        assert!(line.ahead(&late, false).is_empty(), "nobody else is known");
        line.add(early.clone(), "early");
        assert_eq!(line.ahead(&late, true), [&"early"], "it was too young to begin");
        line.remove(&early);
        assert!(line.ahead(&late, true).is_empty());
        line.add(early.clone(), "early");
        assert!(line.ahead(&late, true).is_empty(), "it may have begun already");
        assert_eq!(line.ahead(&early, true), [&"late"]);
        line.remove(&late);
        line.settle();
        assert!(line.ahead(&early, true).is_empty());
    }

    #[test]
    fn it_stays_ones_turn_when_it_begins_to_run() {
        let (waits, runs, other) = (place(2, "2", true), place(2, "2", false), place(1, "1", true));
        let mut line = line(&[("first", &waits)]);
        assert!(line.ahead(&waits, true).is_empty());
        line.remove(&waits);
        line.add(runs.clone(), "first");
        line.settle();
        line.add(other.clone(), "other");
        assert!(line.ahead(&runs, true).is_empty());
        assert_eq!(line.ahead(&other, true), [&"first"]);
    }

    #[test]
    fn one_of_which_only_the_key_is_known_is_removed() {
        let (runs, waits) = (place(1, "1", false), place(2, "2", true));
        let mut line = line(&[("runs", &runs), ("waits", &waits)]);
        assert_eq!(line.ahead(&waits, true), [&"runs"]);
        line.remove_key(&"runs");
        line.settle();
        assert!(line.ahead(&waits, true).is_empty());
    }

    #[test]
    fn one_that_runs_comes_first() {
        let (runs, early) = (place(5, "9", false), place(1, "1", true));
        assert_eq!(line(&[("runs", &runs), ("early", &early)]).ahead(&early, true), [&"runs"]);
    }
}
