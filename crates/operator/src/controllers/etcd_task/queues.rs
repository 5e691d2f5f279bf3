//! The task queues of all etcd clusters, which the watch on tasks updates.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use messina_api::druid::v1alpha1::EtcdOperatorTask;
use messina_plan::etcd_task::queue::{QueuePosition, TaskQueue, is_queued};
use messina_runtime::{queue::ObjectKey, store::Change};

/// Returns the Etcd that a task references.
pub(super) fn etcd_of(task: &EtcdOperatorTask) -> Option<ObjectKey> {
    task.etcd().map(|(namespace, name)| ObjectKey { namespace: Some(namespace), name })
}

/// The task queues of all etcd clusters, by Etcd.
#[derive(Debug, Default)]
pub(super) struct TaskQueues(Mutex<HashMap<ObjectKey, TaskQueue<ObjectKey>>>);

impl TaskQueues {
    /// Applies a change of a task. A task that cannot be decoded keeps its position, because it may be running. A
    /// finished task stays in the queue until its cleanup is done: see [`is_queued`].
    pub(super) fn apply_change(
        &self,
        change: &Change<EtcdOperatorTask>,
        needs_cleanup: impl Fn(&EtcdOperatorTask) -> bool,
    ) {
        if change.unreadable_after.is_some() {
            return;
        }
        let mut queues = self.lock();
        if change.unreadable_before.is_some() {
            // The Etcd of an object that could not be decoded is unknown.
            queues.retain(|_, queue| {
                queue.remove_key(&change.key);
                queue.release_absent();
                !queue.is_empty()
            });
        }
        let before = change.before.as_deref().and_then(|task| Some((task, etcd_of(task)?)));
        let after = change.after.as_deref().and_then(|task| Some((task, etcd_of(task)?)));
        if let Some((task, etcd)) = &before {
            queues.entry(etcd.clone()).or_default().remove(&QueuePosition::of(task));
        }
        if let Some((task, etcd)) = &after
            && is_queued(task, needs_cleanup(task))
        {
            queues.entry(etcd.clone()).or_default().add(QueuePosition::of(task), change.key.clone());
        }
        for (_, etcd) in [before, after].into_iter().flatten() {
            let Some(queue) = queues.get_mut(&etcd) else { continue };
            queue.release_absent();
            if queue.is_empty() {
                queues.remove(&etcd);
            }
        }
    }

    /// Returns the tasks that are ahead of this one, in order. If there are none and it `may_start`, it becomes the
    /// current task.
    pub(super) fn ahead(&self, task: &EtcdOperatorTask, may_start: bool) -> Vec<String> {
        let mut queues = self.lock();
        let queue = etcd_of(task).and_then(|etcd| queues.get_mut(&etcd));
        let ahead = queue.map(|queue| queue.ahead(&QueuePosition::of(task), may_start)).unwrap_or_default();
        ahead.into_iter().map(ObjectKey::to_string).collect()
    }

    /// Returns all queued tasks of an etcd cluster.
    pub(super) fn of(&self, etcd: &ObjectKey) -> Vec<ObjectKey> {
        let queues = self.lock();
        queues.get(etcd).into_iter().flat_map(TaskQueue::iter).map(|(_, key)| key.clone()).collect()
    }

    /// Returns all queued tasks.
    pub(super) fn all(&self) -> Vec<ObjectKey> {
        let queues = self.lock();
        queues.values().flat_map(TaskQueue::iter).map(|(_, key)| key.clone()).collect()
    }

    /// Returns the UIDs of all queued tasks of an etcd cluster.
    pub(super) fn uids_of(&self, etcd: &ObjectKey) -> Vec<String> {
        let queues = self.lock();
        queues.get(etcd).into_iter().flat_map(TaskQueue::iter).map(|(position, _)| position.uid().to_owned()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, TaskQueue<ObjectKey>>> {
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
    fn unreadable_task_keeps_its_position_until_it_is_deleted() {
        let (queues, first, second) = (TaskQueues::default(), task("a", "InProgress"), task("b", "Pending"));
        let [key, of_second] = [&first, &second].map(|task| key_of(&task.metadata));
        queues.apply_change(&Change::new(key.clone(), None, Some(Arc::clone(&first))), |_| false);
        queues.apply_change(&Change::new(of_second.clone(), None, Some(Arc::clone(&second))), |_| false);
        let (kind, problem) = ("EtcdOperatorTask".into(), "spec: a number".into());
        let unreadable = Arc::new(Unreadable { kind, metadata: first.metadata.clone(), problem });
        let becomes = Change {
            unreadable_after: Some(Arc::clone(&unreadable)),
            ..Change::new(key.clone(), Some(Arc::clone(&first)), None)
        };
        queues.apply_change(&becomes, |_| false);
        assert_eq!(queues.ahead(&second, true), ["shop/a"], "the unreadable task may be running");
        let becomes = |after| Change {
            unreadable_before: Some(Arc::clone(&unreadable)),
            ..Change::new(key.clone(), None, after)
        };
        queues.apply_change(&becomes(Some(first)), |_| false);
        assert_eq!(queues.ahead(&second, true), ["shop/a"], "the task is queued once");
        queues.apply_change(&becomes(None), |_| false);
        assert_eq!(queues.ahead(&second, true), Vec::<String>::new());
        assert_eq!(queues.all(), [of_second]);
    }
}
