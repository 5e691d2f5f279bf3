//! The queue of tasks on an etcd cluster: at most one runs at a time, in order of creation, then UID.

use std::collections::BTreeMap;

use jiff::Timestamp;
use messina_api::druid::v1alpha1::{EtcdOperatorTask, TaskState};

/// Returns when a task was created.
pub fn created_at(task: &EtcdOperatorTask) -> Timestamp {
    task.metadata.creation_timestamp.as_ref().map(|time| time.0).unwrap_or_default()
}

/// Whether other tasks on the etcd cluster wait for this one: until it is finished and, if it `needs_cleanup`, cleaned
/// up.
pub fn is_queued(task: &EtcdOperatorTask, needs_cleanup: bool) -> bool {
    let Some(status) = &task.status else { return true };
    match status.state {
        Some(TaskState::Succeeded | TaskState::Failed) => needs_cleanup && status.cleaned_up_at.is_none(),
        Some(TaskState::Rejected) => false,
        _ => true,
    }
}

/// The position of a task in the queue, by which tasks are ordered: a running task is first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueuePosition {
    is_pending: bool,
    created_at: Timestamp,
    uid: String,
}

impl QueuePosition {
    /// Returns the position of a queued task.
    pub fn of(task: &EtcdOperatorTask) -> Self {
        let state = task.status.as_ref().and_then(|status| status.state.as_ref());
        Self {
            is_pending: matches!(state, None | Some(TaskState::Pending | TaskState::Other(_))),
            created_at: created_at(task),
            uid: task.metadata.uid.clone().unwrap_or_default(),
        }
    }

    /// UID of the task.
    pub fn uid(&self) -> &str {
        &self.uid
    }
}

/// The queued tasks of an etcd cluster, each with a key.
#[derive(Clone, Debug)]
pub struct TaskQueue<K> {
    tasks: BTreeMap<QueuePosition, K>,
    /// UID of the task that may run. Its status may not say so yet.
    current_uid: Option<String>,
}

impl<K> Default for TaskQueue<K> {
    fn default() -> Self {
        Self { tasks: BTreeMap::new(), current_uid: None }
    }
}

impl<K> TaskQueue<K> {
    /// Adds a task to the queue.
    pub fn add(&mut self, position: QueuePosition, key: K) {
        self.tasks.insert(position, key);
    }

    /// Removes a task from a position. It stays the current task until [`TaskQueue::release_absent`] is called: a task
    /// that starts to run changes its position.
    pub fn remove(&mut self, position: &QueuePosition) {
        self.tasks.remove(position);
    }

    /// Removes the task with this key from all positions.
    pub fn remove_key(&mut self, key: &K)
    where
        K: PartialEq,
    {
        self.tasks.retain(|_, known| known != key);
    }

    /// Releases the current task if it is not in the queue. To be called after all changes are applied.
    pub fn release_absent(&mut self) {
        let is_queued_uid = |uid: &String| self.tasks.keys().any(|position| position.uid == *uid);
        if !self.current_uid.as_ref().is_some_and(is_queued_uid) {
            self.current_uid = None;
        }
    }

    /// Whether no task is queued.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Iterates over all queued tasks in order.
    pub fn iter(&self) -> impl Iterator<Item = (&QueuePosition, &K)> {
        self.tasks.iter()
    }

    /// Returns the tasks that are ahead of this one, in order. If there are none and it `may_start`, it becomes the
    /// current task until it is finished or deleted.
    pub fn ahead(&mut self, own: &QueuePosition, may_start: bool) -> Vec<&K> {
        if self.current_uid.as_ref() == Some(&own.uid) {
            return Vec::new();
        }
        let is_current =
            |position: &QueuePosition| !position.is_pending || self.current_uid.as_ref() == Some(&position.uid);
        let mut ahead: Vec<(&QueuePosition, &K)> = self
            .tasks
            .iter()
            .filter(|(position, _)| *position != own && (is_current(position) || *position < own))
            .collect();
        ahead.sort_by_key(|(position, _)| (!is_current(position), *position));
        if ahead.is_empty() && may_start {
            self.current_uid = Some(own.uid.clone());
        }
        ahead.into_iter().map(|(_, key)| key).collect()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn position(second: i64, uid: &str, is_pending: bool) -> QueuePosition {
        QueuePosition { is_pending, created_at: Timestamp::from_second(second).unwrap_or_default(), uid: uid.into() }
    }

    fn queue(tasks: &[(&'static str, &QueuePosition)]) -> TaskQueue<&'static str> {
        let mut queue = TaskQueue::default();
        tasks.iter().for_each(|(name, position)| queue.add((*position).clone(), *name));
        queue
    }

    #[test]
    fn queue_holds_finished_tasks_until_their_cleanup_is_done() {
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
            assert_eq!(is_queued(&task, needs_cleanup), expected, "{state} {is_cleaned_up} {needs_cleanup}");
            assert_eq!(QueuePosition::of(&task).is_pending, state == "Pending");
        }
    }

    #[test]
    fn queue_orders_tasks_by_creation_then_uid() {
        let (a, b, c) = (position(1, "2", true), position(1, "3", true), position(2, "1", true));
        let mut queue = queue(&[("c", &c), ("a", &a), ("b", &b)]);
        assert_eq!(queue.ahead(&c, true), [&"a", &"b"]);
        assert_eq!(queue.ahead(&b, true), [&"a"]);
        assert!(queue.ahead(&a, true).is_empty());
        for (position, next) in [(&a, &b), (&b, &c)] {
            queue.remove(position);
            queue.release_absent();
            assert!(queue.ahead(next, true).is_empty());
        }
    }

    #[test]
    fn current_task_stays_current_when_an_earlier_task_appears() {
        let (later, earlier) = (position(1, "9", true), position(1, "1", true));
        let mut queue = queue(&[("later", &later)]);
        assert!(queue.ahead(&later, false).is_empty(), "no other task is queued");
        queue.add(earlier.clone(), "earlier");
        assert_eq!(queue.ahead(&later, true), [&"earlier"], "the later task was too young to start");
        queue.remove(&earlier);
        assert!(queue.ahead(&later, true).is_empty());
        queue.add(earlier.clone(), "earlier");
        assert!(queue.ahead(&later, true).is_empty(), "the later task may have started already");
        assert_eq!(queue.ahead(&earlier, true), [&"later"]);
        queue.remove(&later);
        queue.release_absent();
        assert!(queue.ahead(&earlier, true).is_empty());
    }

    #[test]
    fn current_task_stays_current_when_it_starts_to_run() {
        let (pending, running, other) = (position(2, "2", true), position(2, "2", false), position(1, "1", true));
        let mut queue = queue(&[("first", &pending)]);
        assert!(queue.ahead(&pending, true).is_empty());
        queue.remove(&pending);
        queue.add(running.clone(), "first");
        queue.release_absent();
        queue.add(other.clone(), "other");
        assert!(queue.ahead(&running, true).is_empty());
        assert_eq!(queue.ahead(&other, true), [&"first"]);
    }

    #[test]
    fn remove_key_removes_a_task_whose_position_is_unknown() {
        let (running, pending) = (position(1, "1", false), position(2, "2", true));
        let mut queue = queue(&[("running", &running), ("pending", &pending)]);
        assert_eq!(queue.ahead(&pending, true), [&"running"]);
        queue.remove_key(&"running");
        queue.release_absent();
        assert!(queue.ahead(&pending, true).is_empty());
    }

    #[test]
    fn running_task_is_ahead_of_earlier_pending_tasks() {
        let (running, earlier) = (position(5, "9", false), position(1, "1", true));
        assert_eq!(queue(&[("running", &running), ("earlier", &earlier)]).ahead(&earlier, true), [&"running"]);
    }
}
