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
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn key(namespace: &str, name: &str) -> ObjectKey {
        ObjectKey { namespace: Some(namespace.into()), name: name.into() }
    }

    /// Returns the work that is available at once.
    async fn at_once(queue: &Arc<Queue>) -> Option<Work> {
        tokio::time::timeout(Duration::from_millis(1), queue.next()).await.ok().flatten()
    }

    #[test]
    fn names_that_lead_elsewhere_are_impossible() {
        for name in ["x", "system:node", "a.b-c"] {
            assert!(key("a", name).is_possible(), "{name}");
        }
        for name in ["", ".", "..", "a/b", "../b/secrets/x", "a%2fb", "a?watch=true", "a#b", &"x".repeat(254)] {
            assert!(!key("a", name).is_possible() && !key(name, "x").is_possible(), "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn object_is_queued_at_most_once() {
        let queue = Queue::new(Backoff::default());
        queue.add(key("a", "x"));
        queue.add(key("a", "x"));
        queue.add_after(key("a", "x"), SECOND);
        at_once(&queue).await.unwrap().finish(&Outcome::Done);
        assert!(at_once(&queue).await.is_none());
        assert_eq!(queue.load(), Load::default());
    }

    #[tokio::test(start_paused = true)]
    async fn object_that_is_added_during_its_reconcile_is_requeued_afterwards() {
        let queue = Queue::new(Backoff::default());
        queue.add(key("a", "x"));
        let work = at_once(&queue).await.unwrap();
        queue.add(key("a", "x"));
        assert!(at_once(&queue).await.is_none(), "one worker at a time");
        work.finish(&Outcome::After(SECOND * 60));
        assert_eq!(at_once(&queue).await.unwrap().key, key("a", "x"), "the change does not wait for the minute");
    }

    #[tokio::test(start_paused = true)]
    async fn namespaces_take_turns() {
        let queue = Queue::new(Backoff::default());
        for number in 0..100 {
            queue.add(key("many", &number.to_string()));
        }
        queue.add(key("few", "x"));
        let mut served = vec![];
        for _ in 0..2 {
            let work = at_once(&queue).await.unwrap();
            served.push(work.key.namespace.clone().unwrap());
            work.finish(&Outcome::Done);
        }
        assert!(served.contains(&"few".to_owned()), "{served:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn earliest_time_of_an_object_applies() {
        let queue = Queue::new(Backoff::default());
        queue.add_after(key("a", "x"), SECOND * 10);
        queue.add_after(key("a", "x"), SECOND * 5);
        queue.add_after(key("a", "x"), SECOND * 20);
        let started = Instant::now();
        queue.next().await.unwrap().finish(&Outcome::Done);
        assert_eq!(started.elapsed().as_secs(), 5);
        assert!(at_once(&queue).await.is_none(), "the later times are forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn backoff_grows_with_failures_for_one_reason_and_another_reason_resets_it() {
        let queue = Queue::new(Backoff { first: SECOND, longest: SECOND * 4 });
        queue.add(key("a", "x"));
        let mut work = queue.next().await.unwrap();
        let mut waits = vec![];
        for reason in ["Broken", "Broken", "Elsewhere"] {
            work.finish(&Outcome::Failed(reason));
            let failed = Instant::now();
            work = queue.next().await.unwrap();
            waits.push(failed.elapsed());
        }
        assert!((SECOND / 2..=SECOND).contains(&waits[0]), "{waits:?}");
        assert!((SECOND..=SECOND * 2).contains(&waits[1]), "{waits:?}");
        assert!((SECOND / 2..=SECOND).contains(&waits[2]), "{waits:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn backoff_does_not_grow_if_each_reconcile_makes_progress() {
        let queue = Queue::new(Backoff { first: SECOND, longest: SECOND * 60 });
        queue.add(key("a", "x"));
        let mut work = queue.next().await.unwrap();
        for _ in 0..5 {
            work.reset_backoff();
            work.finish(&Outcome::Failed("Broken"));
            let failed = Instant::now();
            work = queue.next().await.unwrap();
            assert!(failed.elapsed() <= SECOND, "{:?}", failed.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn object_of_an_aborted_worker_is_requeued() {
        let queue = Queue::new(Backoff::default());
        queue.add(key("a", "x"));
        drop(queue.next().await);
        assert_eq!(queue.next().await.unwrap().key, key("a", "x"));
    }

    #[tokio::test(start_paused = true)]
    async fn queue_is_stuck_if_a_reconcile_does_not_end_or_no_worker_takes_objects() {
        let queue = Queue::new(Backoff::default());
        tokio::time::advance(SECOND * 100).await;
        assert_eq!(queue.stuck(SECOND * 10), None, "there is nothing to do");
        queue.add(key("a", "x"));
        tokio::time::advance(SECOND * 11).await;
        assert_eq!(queue.stuck(SECOND * 10), None, "no worker has started");
        let work = queue.next().await.unwrap();
        queue.add(key("a", "y"));
        assert_eq!(queue.stuck(SECOND * 10), None, "one was taken");
        tokio::time::advance(SECOND * 11).await;
        assert_eq!(queue.stuck(SECOND * 10).unwrap(), "the reconcile of a/x has been running for 11 s");
        work.finish(&Outcome::Done);
        assert_eq!(queue.stuck(SECOND * 10).unwrap(), "1 objects are queued, and no worker has taken any for 11 s");
        queue.next().await.unwrap().finish(&Outcome::Done);
        queue.add_after(key("a", "z"), SECOND * 1000);
        tokio::time::advance(SECOND * 500).await;
        assert_eq!(queue.stuck(SECOND * 10), None, "its time has not come");
    }

    #[tokio::test(start_paused = true)]
    async fn closed_queue_gives_out_no_objects() {
        let queue = Queue::new(Backoff::default());
        let waiting = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.next().await.is_none() }
        });
        tokio::task::yield_now().await;
        queue.close();
        assert!(waiting.await.unwrap());
        queue.add(key("a", "x"));
        assert!(queue.next().await.is_none());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add(u8, u64),
        Take,
        Finish(usize, u8),
        Pass(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..6_u8, 0..4_u64).prop_map(|(object, wait)| Step::Add(object, wait)),
            Just(Step::Take),
            (0..4_usize, 0..3_u8).prop_map(|(which, outcome)| Step::Finish(which, outcome)),
            (0..3_u64).prop_map(Step::Pass),
        ]
    }

    proptest! {
        #[test]
        fn queue_neither_loses_an_object_nor_gives_it_out_twice(steps in vec(step(), 1..60)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let queue = Queue::new(Backoff { first: SECOND, longest: SECOND });
                let mut held: Vec<Work> = vec![];
                // Objects that were added and not given out since.
                let mut owed = HashSet::new();
                for step in steps {
                    match step {
                        Step::Add(object, wait) => {
                            let key = key(&(object % 2).to_string(), &object.to_string());
                            owed.insert(key.clone());
                            queue.add_after(key, SECOND * wait as u32);
                        }
                        Step::Take => if let Some(work) = at_once(&queue).await {
                            assert!(held.iter().all(|other| other.key != work.key), "given out twice: {:?}", work.key);
                            owed.remove(&work.key);
                            held.push(work);
                        },
                        Step::Finish(which, outcome) if which < held.len() => {
                            let work = held.swap_remove(which);
                            let outcome = [Outcome::Done, Outcome::After(SECOND), Outcome::Failed("Broken")][usize::from(outcome)].clone();
                            if outcome != Outcome::Done {
                                owed.insert(work.key.clone());
                            }
                            work.finish(&outcome);
                        }
                        Step::Finish(..) => {}
                        Step::Pass(seconds) => tokio::time::advance(SECOND * seconds as u32).await,
                    }
                }
                held.drain(..).for_each(|work| work.finish(&Outcome::Done));
                tokio::time::advance(SECOND * 10).await;
                while let Some(work) = at_once(&queue).await {
                    owed.remove(&work.key);
                    work.finish(&Outcome::Done);
                }
                assert!(owed.is_empty(), "lost: {owed:?}");
                assert_eq!(queue.load(), Load::default());
            });
        }
    }
}
