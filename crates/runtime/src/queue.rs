//! The work queue of a controller.
//!
//! An object is reconciled by one worker at a time, and is queued at most once. Namespaces take turns, so that one with
//! many objects does not delay the others. A failed object is requeued with a backoff that grows with every failure for
//! the same reason.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

pub use messina_text::Backoff;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Its namespace; none if the kind is cluster-scoped.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

impl ObjectKey {
    /// Whether an object can have this name. A name that a user writes into another object may be any text, and would
    /// lead to other URL paths of the API server.
    pub fn is_possible(&self) -> bool {
        let is_part_of_path = |text: &str| {
            !text.is_empty() && text != "." && text != ".." && !text.contains(['/', '%', '?', '#']) && text.len() <= 253
        };
        is_part_of_path(&self.name) && self.namespace.as_deref().is_none_or(is_part_of_path)
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(formatter, "{namespace}/{}", self.name),
            None => formatter.write_str(&self.name),
        }
    }
}

/// The outcome of a reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is to be done until something changes.
    Done,
    /// Requeue the object after this time.
    After(Duration),
    /// It failed for this reason: requeue the object with backoff.
    Failed(&'static str),
}

/// The depth of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Objects that wait for a worker.
    pub ready: usize,
    /// Objects that are requeued for a later time.
    pub later: usize,
    /// Objects that are being reconciled.
    pub running: usize,
    /// How long the oldest object has been waiting for a worker.
    pub age: Duration,
}

/// A queue of objects of one kind.
#[derive(Debug)]
pub struct Queue {
    backoff: Backoff,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Objects that wait for a worker, by namespace, each with the time since when.
    ready: BTreeMap<Option<String>, VecDeque<(ObjectKey, Instant)>>,
    /// The namespaces of these objects, the next one first.
    turns: VecDeque<Option<String>>,
    is_ready: HashSet<ObjectKey>,
    /// Objects that are requeued for a later time, the earliest first; and the time of each.
    later: BTreeSet<(Instant, ObjectKey)>,
    due: HashMap<ObjectKey, Instant>,
    /// Objects that are being reconciled.
    running: HashMap<ObjectKey, Active>,
    /// When a worker last took an object.
    last_taken: Option<Instant>,
    failures: HashMap<ObjectKey, (&'static str, u32)>,
    is_closed: bool,
}

/// An object that is being reconciled.
#[derive(Debug)]
struct Active {
    since: Instant,
    /// When it is to be reconciled again, if it was added meanwhile.
    requeue_at: Option<Instant>,
}

/// An object that a worker has taken. No other worker gets it until this one finishes it.
#[derive(Debug)]
pub struct Work {
    /// The object.
    pub key: ObjectKey,
    queue: Arc<Queue>,
    is_finished: bool,
}

impl Queue {
    /// Creates an empty queue.
    pub fn new(backoff: Backoff) -> Arc<Self> {
        Arc::new(Self { backoff, state: Mutex::default(), changed: Notify::new() })
    }

    /// Adds an object to be reconciled now.
    pub fn add(&self, key: ObjectKey) {
        self.add_after(key, Duration::ZERO);
    }

    /// Adds an object to be reconciled after this time at the latest.
    pub fn add_after(&self, key: ObjectKey, wait: Duration) {
        let now = Instant::now();
        self.locked().add(key, now, now + wait);
        self.changed.notify_one();
    }

    /// Waits for an object to reconcile. Returns none when the queue is closed.
    pub async fn next(self: &Arc<Self>) -> Option<Work> {
        loop {
            let changed = self.changed.notified();
            let earliest = {
                let mut state = self.locked();
                if state.is_closed {
                    return None;
                }
                if let Some(key) = state.take(Instant::now()) {
                    // There may be more objects than the one for which this worker was woken.
                    self.changed.notify_one();
                    return Some(Work { key, queue: Arc::clone(self), is_finished: false });
                }
                state.later.first().map(|(time, _)| *time)
            };
            match earliest {
                Some(time) => tokio::select! { () = changed => {}, () = sleep_until(time) => {} },
                None => changed.await,
            }
        }
    }

    /// Closes the queue: workers get no more objects, and may finish their current ones.
    pub fn close(&self) {
        self.locked().is_closed = true;
        self.changed.notify_waiters();
    }

    /// Returns the depth of the queue.
    pub fn load(&self) -> Load {
        let state = self.locked();
        let since = state.ready.values().filter_map(|line| line.front()).map(|(_, since)| *since).min();
        Load {
            ready: state.is_ready.len(),
            later: state.later.len(),
            running: state.running.len(),
            age: since.map(|since| since.elapsed()).unwrap_or_default(),
        }
    }

    /// Returns the evidence that the queue is stuck: a reconcile has taken longer than `limit`, or an object has waited
    /// for longer and no worker has taken any since.
    pub(crate) fn stuck(&self, limit: Duration) -> Option<String> {
        let state = self.locked();
        let oldest = state.running.iter().min_by_key(|(_, running)| running.since);
        if let Some((key, running)) = oldest.filter(|(_, running)| running.since.elapsed() > limit) {
            return Some(format!(
                "the reconcile of {key} has been running for {} s",
                running.since.elapsed().as_secs()
            ));
        }
        let waiting = state.ready.values().filter_map(|line| line.front()).map(|(_, since)| *since).min()?;
        // Workers begin when the caches have synced, which may take any time.
        let since = state.last_taken?.max(waiting);
        let is_stuck = since.elapsed() > limit && !state.is_closed;
        is_stuck.then(|| {
            let (count, seconds) = (state.is_ready.len(), since.elapsed().as_secs());
            format!("{count} objects are queued, and no worker has taken any for {seconds} s")
        })
    }

    fn finish(&self, key: &ObjectKey, outcome: &Outcome) {
        let now = Instant::now();
        let mut state = self.locked();
        let requeue_at = state.running.remove(key).and_then(|running| running.requeue_at);
        let again = match outcome {
            Outcome::Done => {
                state.failures.remove(key);
                None
            }
            Outcome::After(wait) => {
                state.failures.remove(key);
                Some(now + *wait)
            }
            Outcome::Failed(reason) => {
                let failures = state.failures.entry(key.clone()).or_insert((reason, 0));
                *failures = if failures.0 == *reason { (reason, failures.1 + 1) } else { (reason, 1) };
                let count = failures.1;
                Some(now + self.backoff.wait(count, chance()))
            }
        };
        // A change that came meanwhile may resolve a failure, so it does not wait for the backoff to end.
        if let Some(time) = requeue_at.into_iter().chain(again).min() {
            state.add(key.clone(), now, time);
        }
        drop(state);
        self.changed.notify_one();
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn add(&mut self, key: ObjectKey, now: Instant, time: Instant) {
        if let Some(Active { requeue_at, .. }) = self.running.get_mut(&key) {
            *requeue_at = Some(requeue_at.map_or(time, |earlier| earlier.min(time)));
            return;
        }
        if self.is_ready.contains(&key) || self.due.get(&key).is_some_and(|due| *due <= time) {
            return;
        }
        self.forget_time(&key);
        if time > now {
            self.due.insert(key.clone(), time);
            self.later.insert((time, key));
        } else {
            self.push_ready(key, now);
        }
    }

    fn push_ready(&mut self, key: ObjectKey, since: Instant) {
        let line = self.ready.entry(key.namespace.clone()).or_default();
        if line.is_empty() {
            self.turns.push_back(key.namespace.clone());
        }
        self.is_ready.insert(key.clone());
        line.push_back((key, since));
    }

    fn forget_time(&mut self, key: &ObjectKey) {
        if let Some(time) = self.due.remove(key) {
            self.later.remove(&(time, key.clone()));
        }
    }

    /// Takes the first object of the namespace whose turn it is.
    fn take(&mut self, now: Instant) -> Option<ObjectKey> {
        while let Some((time, key)) = self.later.first().filter(|(time, _)| *time <= now).cloned() {
            self.forget_time(&key);
            self.push_ready(key, time);
        }
        let namespace = self.turns.pop_front()?;
        let line = self.ready.get_mut(&namespace)?;
        let (key, _) = line.pop_front()?;
        if line.is_empty() {
            self.ready.remove(&namespace);
        } else {
            self.turns.push_back(namespace);
        }
        self.is_ready.remove(&key);
        self.running.insert(key.clone(), Active { since: now, requeue_at: None });
        self.last_taken = Some(now);
        Some(key)
    }
}

impl Work {
    /// Resets the backoff, because this reconcile made progress: an object that progresses with each reconcile is not
    /// delayed more each time.
    pub fn reset_backoff(&self) {
        self.queue.locked().failures.remove(&self.key);
    }

    /// Finishes the reconcile of the object, and requeues it according to the outcome.
    pub fn finish(mut self, outcome: &Outcome) {
        self.is_finished = true;
        self.queue.finish(&self.key, outcome);
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // The worker panicked or was aborted: the object is requeued.
        if !self.is_finished {
            self.queue.finish(&self.key, &Outcome::Failed("Abandoned"));
        }
    }
}

/// Returns a random number from 0 to 1, for jitter.
pub(crate) fn chance() -> f64 {
    // Each `RandomState` has other random keys; the hashed value does not matter.
    f64::from((RandomState::new().hash_one(0) >> 32) as u32) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests;
