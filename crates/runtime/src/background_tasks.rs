//! What takes time outside of Kubernetes: one errand for each object at most, beside the workers, so that a slow answer keeps
//! nobody waiting. They end with the leadership in which they were begun.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::task::{AbortHandle, JoinSet};

use crate::{panics::catch_panic, queue::ObjectKey};

type Listener = Box<dyn Fn(ObjectKey) + Send + Sync>;

/// Errands that bring back a `T`.
pub struct BackgroundTasks<T> {
    state: Arc<Mutex<State<T>>>,
    /// Those that are under way; all of them end with this.
    tasks: Mutex<JoinSet<()>>,
    listeners: Arc<Mutex<Vec<Listener>>>,
}

struct State<T> {
    background_tasks: HashMap<ObjectKey, Task<T>>,
    /// Tells errands of one object apart.
    count: u64,
}

enum Task<T> {
    Running(u64, AbortHandle),
    Done(T),
}

/// What has become of an errand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackgroundTaskState<T> {
    /// There is none.
    None,
    /// It is under way.
    Running,
    /// It is back with this.
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
            .debug_struct("Errands")
            .field("count", &locked(&self.state).background_tasks.len())
            .finish_non_exhaustive()
    }
}

impl<T: Clone + Send + 'static> BackgroundTasks<T> {
    /// What has become of the errand for an object.
    pub fn state(&self, key: &ObjectKey) -> BackgroundTaskState<T> {
        match locked(&self.state).background_tasks.get(key) {
            None => BackgroundTaskState::None,
            Some(Task::Running(..)) => BackgroundTaskState::Running,
            Some(Task::Done(result)) => BackgroundTaskState::Done(result.clone()),
        }
    }
}

impl<T: Send + 'static> BackgroundTasks<T> {
    /// Begins an errand for an object, in place of one that is back. One that is under way goes on, and this one is not
    /// begun. `panicked` makes of the text of a panic what the errand brings back instead.
    pub fn send(
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
        // It cannot be back before it is entered as under way: the state is locked until then.
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

    /// Breaks off the errand for an object and forgets what it brought.
    pub fn forget(&self, key: &ObjectKey) {
        if let Some(Task::Running(_, handle)) = locked(&self.state).background_tasks.remove(key) {
            handle.abort();
        }
    }

    /// Calls `listener` whenever an errand is back.
    pub(crate) fn on_done(&self, listener: impl Fn(ObjectKey) + Send + Sync + 'static) {
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
    async fn one_errand_at_a_time_and_whoever_waits_is_told() {
        let background_tasks = BackgroundTasks::default();
        let (told, mut hears) = mpsc::unbounded_channel();
        background_tasks.on_done(move |key| told.send(key).unwrap());
        let (finish, finished) = oneshot::channel::<()>();
        background_tasks.send(key("a"), async move { finished.await.map(|()| 1).unwrap_or_default() }, |_| 0);
        background_tasks.send(key("a"), async { 2 }, |_| 0);
        assert_eq!(background_tasks.state(&key("a")), BackgroundTaskState::Running);
        assert_eq!(background_tasks.state(&key("b")), BackgroundTaskState::None);
        finish.send(()).unwrap();
        assert_eq!(hears.recv().await, Some(key("a")));
        assert_eq!(background_tasks.state(&key("a")), BackgroundTaskState::Done(1), "the second was not begun");
        background_tasks.send(key("a"), async { 3 }, |_| 0);
        assert_eq!(hears.recv().await, Some(key("a")));
        assert_eq!(background_tasks.state(&key("a")), BackgroundTaskState::Done(3));
    }

    #[tokio::test]
    async fn an_errand_that_panics_is_back_with_the_text_of_the_panic() {
        let background_tasks = BackgroundTasks::default();
        let (told, mut hears) = mpsc::unbounded_channel();
        background_tasks.on_done(move |key| told.send(key).unwrap());
        background_tasks.send(key("a"), async { panic!("it broke") }, |text| text);
        assert_eq!(hears.recv().await, Some(key("a")));
        assert_eq!(background_tasks.state(&key("a")), BackgroundTaskState::Done("it broke".to_owned()));
    }

    /// Sends an errand that never comes back, and tells when it is broken off.
    fn send_for_ever(background_tasks: &BackgroundTasks<u8>) -> oneshot::Receiver<()> {
        let (alive, ended) = oneshot::channel();
        let task = async move {
            let _alive: oneshot::Sender<()> = alive;
            std::future::pending().await
        };
        background_tasks.send(key("a"), task, |_| 0);
        ended
    }

    #[tokio::test]
    async fn what_is_forgotten_is_broken_off_and_brings_nothing() {
        let background_tasks = BackgroundTasks::default();
        let ended = send_for_ever(&background_tasks);
        background_tasks.forget(&key("a"));
        assert!(ended.await.is_err(), "it was broken off");
        assert_eq!(background_tasks.state(&key("a")), BackgroundTaskState::None);
    }

    #[tokio::test]
    async fn all_end_with_their_owner() {
        let background_tasks = BackgroundTasks::default();
        let ended = send_for_ever(&background_tasks);
        drop(background_tasks);
        assert!(ended.await.is_err());
    }
}
