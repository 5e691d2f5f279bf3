//! Background tasks outside of Kubernetes: at most one for each object, besides the workers, so that a slow answer does
//! not block a worker. They are aborted when the process loses the lease.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::task::{AbortHandle, JoinSet};

use crate::{panics::catch_panic, queue::ObjectKey};

type Listener = Box<dyn Fn(ObjectKey) + Send + Sync>;

/// Background tasks with a result of type `T`.
pub struct BackgroundTasks<T> {
    state: Arc<Mutex<State<T>>>,
    /// The running tasks, which are aborted when this is dropped.
    tasks: Mutex<JoinSet<()>>,
    listeners: Arc<Mutex<Vec<Listener>>>,
}

struct State<T> {
    background_tasks: HashMap<ObjectKey, Task<T>>,
    /// Numbers the tasks, to tell apart those of one object.
    count: u64,
}

enum Task<T> {
    Running(u64, AbortHandle),
    Done(T),
}

/// The state of a background task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackgroundTaskState<T> {
    /// There is no task.
    None,
    /// The task is running.
    Running,
    /// The task is done with this result.
    Done(T),
}

impl<T> Default for BackgroundTasks<T> {
    fn default() -> Self {
        let state = State { background_tasks: HashMap::new(), count: 0 };
        Self { state: Arc::new(Mutex::new(state)), tasks: Mutex::default(), listeners: Arc::default() }
    }
}

impl<T> std::fmt::Debug for BackgroundTasks<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("BackgroundTasks")
            .field("count", &locked(&self.state).background_tasks.len())
            .finish_non_exhaustive()
    }
}

impl<T: Clone + Send + 'static> BackgroundTasks<T> {
    /// Returns the state of the task for an object.
    pub fn state(&self, key: &ObjectKey) -> BackgroundTaskState<T> {
        match locked(&self.state).background_tasks.get(key) {
            None => BackgroundTaskState::None,
            Some(Task::Running(..)) => BackgroundTaskState::Running,
            Some(Task::Done(result)) => BackgroundTaskState::Done(result.clone()),
        }
    }
}

impl<T: Send + 'static> BackgroundTasks<T> {
    /// Starts a task for an object, in place of one that is done. If one is running, the new one is not started.
    /// `panicked` returns the result for the text of a panic.
    pub fn start(
        &self,
        key: ObjectKey,
        task: impl Future<Output = T> + Send + 'static,
        panicked: impl FnOnce(String) -> T + Send + 'static,
    ) {
        let mut state = locked(&self.state);
        if matches!(state.background_tasks.get(&key), Some(Task::Running(..))) {
            return;
        }
        state.count += 1;
        let number = state.count;
        let (shared, listeners, own_key) = (Arc::clone(&self.state), Arc::clone(&self.listeners), key.clone());
        let mut tasks = locked(&self.tasks);
        while tasks.try_join_next().is_some() {}
        // It cannot be done before it is recorded as running: the state is locked until then.
        let handle = tasks.spawn(async move {
            let result = catch_panic(task).await.unwrap_or_else(panicked);
            let is_current = {
                let mut state = locked(&shared);
                let is_current =
                    matches!(state.background_tasks.get(&own_key), Some(Task::Running(current, _)) if *current == number);
                if is_current {
                    state.background_tasks.insert(own_key.clone(), Task::Done(result));
                }
                is_current
            };
            if is_current {
                locked(&listeners).iter().for_each(|listener| listener(own_key.clone()));
            }
        });
        state.background_tasks.insert(key, Task::Running(number, handle));
    }

    /// Aborts the task for an object, and drops its result.
    pub fn forget(&self, key: &ObjectKey) {
        if let Some(Task::Running(_, handle)) = locked(&self.state).background_tasks.remove(key) {
            handle.abort();
        }
    }

    /// Calls `listener` whenever a task is done.
    pub fn on_done(&self, listener: impl Fn(ObjectKey) + Send + Sync + 'static) {
        locked(&self.listeners).push(Box::new(listener));
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
mod tests {
    use tokio::sync::{mpsc, oneshot};

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: None, name: name.into() }
    }

    #[tokio::test]
    async fn one_task_runs_at_a_time_and_listeners_are_notified() {
        let background_tasks = BackgroundTasks::default();
        let (sender, mut done) = mpsc::unbounded_channel();
        background_tasks.on_done(move |key| sender.send(key).unwrap());
        let (finish, finished) = oneshot::channel::<()>();
        background_tasks.start(key("a"), async move { finished.await.map(|()| 1).unwrap_or_default() }, |_| 0);
        background_tasks.start(key("a"), async { 2 }, |_| 0);
        assert_eq!(background_tasks.state(&key("a")), BackgroundTaskState::Running);
        assert_eq!(background_tasks.state(&key("b")), BackgroundTaskState::None);
        finish.send(()).unwrap();
        assert_eq!(done.recv().await, Some(key("a")));
        assert_eq!(background_tasks.state(&key("a")), BackgroundTaskState::Done(1), "the second was not started");
        background_tasks.start(key("a"), async { 3 }, |_| 0);
        assert_eq!(done.recv().await, Some(key("a")));
        assert_eq!(background_tasks.state(&key("a")), BackgroundTaskState::Done(3));
    }

    #[tokio::test]
    async fn task_that_panics_is_done_with_the_text_of_the_panic() {
        let background_tasks = BackgroundTasks::default();
        let (sender, mut done) = mpsc::unbounded_channel();
        background_tasks.on_done(move |key| sender.send(key).unwrap());
        background_tasks.start(key("a"), async { panic!("it broke") }, |text| text);
        assert_eq!(done.recv().await, Some(key("a")));
        assert_eq!(background_tasks.state(&key("a")), BackgroundTaskState::Done("it broke".to_owned()));
    }

    /// Starts a task that never ends. The receiver fails when it is aborted.
    fn start_for_ever(background_tasks: &BackgroundTasks<u8>) -> oneshot::Receiver<()> {
        let (alive, ended) = oneshot::channel();
        let task = async move {
            let _alive: oneshot::Sender<()> = alive;
            std::future::pending().await
        };
        background_tasks.start(key("a"), task, |_| 0);
        ended
    }

    #[tokio::test]
    async fn forgotten_task_is_aborted_without_a_result() {
        let background_tasks = BackgroundTasks::default();
        let ended = start_for_ever(&background_tasks);
        background_tasks.forget(&key("a"));
        assert!(ended.await.is_err(), "it was aborted");
        assert_eq!(background_tasks.state(&key("a")), BackgroundTaskState::None);
    }

    #[tokio::test]
    async fn tasks_are_aborted_when_they_are_dropped() {
        let background_tasks = BackgroundTasks::default();
        let ended = start_for_ever(&background_tasks);
        drop(background_tasks);
        assert!(ended.await.is_err());
    }
}
