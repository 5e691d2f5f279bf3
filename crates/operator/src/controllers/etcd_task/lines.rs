//! The lines of all etcd clusters, kept as the watch tells.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use messina_api::druid::v1alpha1::EtcdOperatorTask;
use messina_plan::etcd_task::line::{Line, Place, is_in_line};
use messina_runtime::{queue::ObjectKey, store::Change};

/// The Etcd that a task is for.
pub(super) fn etcd_of(task: &EtcdOperatorTask) -> Option<ObjectKey> {
    task.etcd().map(|(namespace, name)| ObjectKey { namespace: Some(namespace), name })
}

/// The lines of all etcd clusters.
#[derive(Debug, Default)]
pub(super) struct Lines(Mutex<HashMap<ObjectKey, Line<ObjectKey>>>);

impl Lines {
    /// Takes in what became of a task. One that has left something is in line until that is removed: see [`is_in_line`].
    pub(super) fn take_in(&self, change: &Change<EtcdOperatorTask>, needs_cleanup: impl Fn(&EtcdOperatorTask) -> bool) {
        let mut lines = self.locked();
        let before = change.before.as_deref().and_then(|task| Some((task, etcd_of(task)?)));
        let after = change.after.as_deref().and_then(|task| Some((task, etcd_of(task)?)));
        if let Some((task, etcd)) = &before {
            lines.entry(etcd.clone()).or_default().remove(&Place::of(task));
        }
        if let Some((task, etcd)) = &after
            && is_in_line(task, needs_cleanup(task))
        {
            lines.entry(etcd.clone()).or_default().add(Place::of(task), change.key.clone());
        }
        for (_, etcd) in [before, after].into_iter().flatten() {
            let Some(line) = lines.get_mut(&etcd) else { continue };
            line.settle();
            if line.is_empty() {
                lines.remove(&etcd);
            }
        }
    }

    /// The tasks that come before this one, in order. If there are none and it `may_begin`, it is its turn.
    pub(super) fn ahead(&self, task: &EtcdOperatorTask, may_begin: bool) -> Vec<String> {
        let mut lines = self.locked();
        let line = etcd_of(task).and_then(|etcd| lines.get_mut(&etcd));
        let ahead = line.map(|line| line.ahead(&Place::of(task), may_begin)).unwrap_or_default();
        ahead.into_iter().map(ObjectKey::to_string).collect()
    }

    /// All tasks on an etcd cluster that are not finished.
    pub(super) fn of(&self, etcd: &ObjectKey) -> Vec<ObjectKey> {
        let lines = self.locked();
        lines.get(etcd).into_iter().flat_map(Line::iter).map(|(_, key)| key.clone()).collect()
    }

    /// The UIDs of the same.
    pub(super) fn uids_of(&self, etcd: &ObjectKey) -> Vec<String> {
        let lines = self.locked();
        lines.get(etcd).into_iter().flat_map(Line::iter).map(|(place, _)| place.uid().to_owned()).collect()
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<ObjectKey, Line<ObjectKey>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
