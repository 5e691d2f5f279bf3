//! The lines of all etcd clusters, kept as the watch tells.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use messina_api::druid::v1alpha1::EtcdOperatorTask;
use messina_plan::etcd_task::line::{Line, Place, is_queued};
use messina_runtime::{queue::ObjectKey, store::Change};

/// The Etcd that a task is for.
pub(super) fn etcd_of(task: &EtcdOperatorTask) -> Option<ObjectKey> {
    task.etcd().map(|(namespace, name)| ObjectKey { namespace: Some(namespace), name })
}

/// The lines of all etcd clusters.
#[derive(Debug, Default)]
pub(super) struct Lines(Mutex<HashMap<ObjectKey, Line<ObjectKey>>>);

impl Lines {
    /// Takes in what became of a task. One that cannot be read keeps its place: it may be running. One that has left something is
    /// in line until that is removed: see [`is_queued`].
    pub(super) fn take_in(&self, change: &Change<EtcdOperatorTask>, needs_cleanup: impl Fn(&EtcdOperatorTask) -> bool) {
        if change.unreadable_after.is_some() {
            return;
        }
        let mut lines = self.locked();
        if change.unreadable_before.is_some() {
            // For which Etcd it was is not known any more.
            lines.retain(|_, line| {
                line.remove_key(&change.key);
                line.settle();
                !line.is_empty()
            });
        }
        let before = change.before.as_deref().and_then(|task| Some((task, etcd_of(task)?)));
        let after = change.after.as_deref().and_then(|task| Some((task, etcd_of(task)?)));
        if let Some((task, etcd)) = &before {
            lines.entry(etcd.clone()).or_default().remove(&Place::of(task));
        }
        if let Some((task, etcd)) = &after
            && is_queued(task, needs_cleanup(task))
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

    /// All tasks that are not finished.
    pub(super) fn all(&self) -> Vec<ObjectKey> {
        let lines = self.locked();
        lines.values().flat_map(Line::iter).map(|(_, key)| key.clone()).collect()
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::sync::Arc;

    use messina_runtime::store::{Unreadable, key_of};
    use serde_json::json;

    use super::*;

    fn task(uid: &str, state: &str) -> Arc<EtcdOperatorTask> {
        let metadata = json!({"name": uid, "namespace": "shop", "uid": uid});
        let task = json!({
            "metadata": metadata, "spec": {"etcdReference": {"name": "main"}}, "status": {"state": state},
        });
        Arc::new(serde_json::from_value(task).unwrap())
    }

    #[test]
    fn a_task_that_cannot_be_read_keeps_its_place_until_it_is_gone() {
        let (lines, first, second) = (Lines::default(), task("a", "InProgress"), task("b", "Pending"));
        let [key, of_second] = [&first, &second].map(|task| key_of(&task.metadata));
        lines.take_in(&Change::new(key.clone(), None, Some(Arc::clone(&first))), |_| false);
        lines.take_in(&Change::new(of_second.clone(), None, Some(Arc::clone(&second))), |_| false);
        let (kind, problem) = ("EtcdOperatorTask".into(), "spec: a number".into());
        let unreadable = Arc::new(Unreadable { kind, metadata: first.metadata.clone(), problem });
        let turned = Change {
            unreadable_after: Some(Arc::clone(&unreadable)),
            ..Change::new(key.clone(), Some(Arc::clone(&first)), None)
        };
        lines.take_in(&turned, |_| false);
        assert_eq!(lines.ahead(&second, true), ["shop/a"], "it may be running");
        let turned = |after| Change {
            unreadable_before: Some(Arc::clone(&unreadable)),
            ..Change::new(key.clone(), None, after)
        };
        lines.take_in(&turned(Some(first)), |_| false);
        assert_eq!(lines.ahead(&second, true), ["shop/a"], "it is in line once");
        lines.take_in(&turned(None), |_| false);
        assert_eq!(lines.ahead(&second, true), Vec::<String>::new());
        assert_eq!(lines.all(), [of_second]);
    }
}
