//! Tasks in line: at most one runs on an etcd cluster, in order of creation, then UID.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use messina_api::druid::v1alpha1::{EtcdOperatorTask, TaskState};
use messina_plan::etcd_task::is_finished;
use messina_runtime::{queue::ObjectKey, store::Change};

/// The Etcd that a task is for.
pub(super) fn etcd_of(task: &EtcdOperatorTask) -> Option<ObjectKey> {
    let reference = task.spec.etcd_reference()?;
    let name = reference.name.clone().filter(|name| !name.is_empty())?;
    let namespace = reference.namespace.clone().filter(|name| !name.is_empty());
    Some(ObjectKey { namespace: namespace.or_else(|| task.metadata.namespace.clone()), name })
}

pub(super) fn created(task: &EtcdOperatorTask) -> Timestamp {
    task.metadata.creation_timestamp.as_ref().map(|time| time.0).unwrap_or_default()
}

/// By what tasks are put in order.
type Place = (Timestamp, String);

fn place(task: &EtcdOperatorTask) -> Place {
    (created(task), task.metadata.uid.clone().unwrap_or_default())
}

#[derive(Debug)]
struct Waiting {
    key: ObjectKey,
    runs: bool,
}

#[derive(Debug, Default)]
struct Line {
    /// Tasks that are not finished.
    tasks: BTreeMap<Place, Waiting>,
    /// UID of the one whose turn it is. What was decided for it may not have been written yet.
    turn: Option<String>,
}

/// The lines of all etcd clusters.
#[derive(Debug, Default)]
pub(super) struct Lines(Mutex<HashMap<ObjectKey, Line>>);

impl Lines {
    /// Takes in what became of a task.
    pub(super) fn take_in(&self, change: &Change<EtcdOperatorTask>) {
        let mut lines = self.locked();
        let before = change.before.as_deref().and_then(|task| Some((task, etcd_of(task)?)));
        let after = change.after.as_deref().and_then(|task| Some((task, etcd_of(task)?)));
        if let Some((task, etcd)) = &before {
            lines.entry(etcd.clone()).or_default().tasks.remove(&place(task));
        }
        if let Some((task, etcd)) = &after {
            let state = task.status.as_ref().and_then(|status| status.state.as_ref());
            if !is_finished(state) {
                let waiting = Waiting { key: change.key.clone(), runs: state == Some(&TaskState::InProgress) };
                lines.entry(etcd.clone()).or_default().tasks.insert(place(task), waiting);
            }
        }
        for (_, etcd) in [before, after].into_iter().flatten() {
            let Some(line) = lines.get_mut(&etcd) else { continue };
            let is_there = |uid: &String| line.tasks.keys().any(|(_, other)| other == uid);
            if !line.turn.as_ref().is_some_and(is_there) {
                line.turn = None;
            }
            if line.tasks.is_empty() {
                lines.remove(&etcd);
            }
        }
    }

    /// The tasks that come before this one, in order. If there are none and it `may_begin`, it is its turn, until it is
    /// finished or gone.
    pub(super) fn ahead(&self, task: &EtcdOperatorTask, may_begin: bool) -> Vec<String> {
        let Some(etcd) = etcd_of(task) else { return Vec::new() };
        let own = place(task);
        let mut lines = self.locked();
        let Some(line) = lines.get_mut(&etcd) else { return Vec::new() };
        if line.turn.as_ref() == Some(&own.1) {
            return Vec::new();
        }
        let has_turn = |place: &Place| line.turn.as_ref() == Some(&place.1);
        let mut ahead: Vec<(bool, &Place, &Waiting)> = line
            .tasks
            .iter()
            .filter(|(place, _)| **place != own)
            .map(|(place, waiting)| (!(waiting.runs || has_turn(place)), place, waiting))
            .filter(|(is_ordinary, place, _)| !is_ordinary || **place < own)
            .collect();
        ahead.sort_by_key(|(is_ordinary, place, _)| (*is_ordinary, *place));
        let names: Vec<String> = ahead.into_iter().map(|(_, _, waiting)| waiting.key.to_string()).collect();
        if names.is_empty() && may_begin {
            line.turn = Some(own.1);
        }
        names
    }

    /// All tasks on an etcd cluster that are not finished.
    pub(super) fn of(&self, etcd: &ObjectKey) -> Vec<ObjectKey> {
        let lines = self.locked();
        lines.get(etcd).map(|line| line.tasks.values().map(|waiting| waiting.key.clone()).collect()).unwrap_or_default()
    }

    /// The UIDs of the same.
    pub(super) fn uids_of(&self, etcd: &ObjectKey) -> Vec<String> {
        let lines = self.locked();
        lines.get(etcd).map(|line| line.tasks.keys().map(|(_, uid)| uid.clone()).collect()).unwrap_or_default()
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<ObjectKey, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn task(name: &str, second: u32, uid: &str, state: &str) -> EtcdOperatorTask {
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "default", "uid": uid,
                "creationTimestamp": format!("2026-11-15T00:00:{second:02}Z"),
            },
            "spec": {"type": "OnDemandSnapshot", "etcdReference": {"name": "main"}},
            "status": {"state": state},
        }))
        .unwrap()
    }

    fn change(before: Option<&EtcdOperatorTask>, after: Option<&EtcdOperatorTask>) -> Change<EtcdOperatorTask> {
        let metadata = &before.or(after).unwrap().metadata;
        let key = ObjectKey { namespace: metadata.namespace.clone(), name: metadata.name.clone().unwrap() };
        Change { key, before: before.cloned().map(Arc::new), after: after.cloned().map(Arc::new) }
    }

    #[test]
    fn tasks_wait_for_those_that_were_created_before() {
        let lines = Lines::default();
        let all = [task("c", 2, "1", "Pending"), task("a", 1, "2", "Pending"), task("b", 1, "3", "Pending")];
        all.iter().for_each(|task| lines.take_in(&change(None, Some(task))));
        assert_eq!(lines.ahead(&all[0], true), ["default/a", "default/b"]);
        assert_eq!(lines.ahead(&all[2], true), ["default/a"]);
        assert!(lines.ahead(&all[1], true).is_empty());
        lines.take_in(&change(Some(&all[1]), Some(&task("a", 1, "2", "Succeeded"))));
        assert!(lines.ahead(&all[2], true).is_empty());
        lines.take_in(&change(Some(&all[2]), None));
        assert!(lines.ahead(&all[0], true).is_empty());
    }

    #[test]
    fn whose_turn_it_is_keeps_it_whoever_comes() {
        let lines = Lines::default();
        let (late, early) = (task("late", 1, "9", "Pending"), task("early", 1, "1", "Pending"));
        lines.take_in(&change(None, Some(&late)));
        assert!(lines.ahead(&late, false).is_empty(), "nobody else is known");
        lines.take_in(&change(None, Some(&early)));
        assert_eq!(lines.ahead(&late, true), ["default/early"], "it was too young to begin");
        lines.take_in(&change(Some(&early), None));
        assert!(lines.ahead(&late, true).is_empty());
        lines.take_in(&change(None, Some(&early)));
        assert!(lines.ahead(&late, true).is_empty(), "it may have begun already");
        assert_eq!(lines.ahead(&early, true), ["default/late"]);
        lines.take_in(&change(Some(&late), None));
        assert!(lines.ahead(&early, true).is_empty());
    }

    #[test]
    fn one_that_runs_comes_first() {
        let lines = Lines::default();
        let (runs, early) = (task("runs", 5, "9", "InProgress"), task("early", 1, "1", "Pending"));
        [&runs, &early].iter().for_each(|task| lines.take_in(&change(None, Some(task))));
        assert_eq!(lines.ahead(&early, true), ["default/runs"]);
        assert!(lines.of(&etcd_of(&early).unwrap()).len() == 2);
    }
}
