//! Which object is next.
//!
//! An object is worked on by one worker at a time, however often it is asked for meanwhile; being asked for twice is
//! being asked for once. Namespaces take turns, so that one with many objects keeps no other waiting. What fails is tried
//! again after a pause that grows with every failure for the same reason.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// An object of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Its namespace; none where the kind has none.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

impl ObjectKey {
    /// Whether an object can have this name. What users name elsewhere may be any text, and would lead to other paths of the API
    /// server.
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

/// How long to wait after failures.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// Longest wait after the first failure.
    pub first: Duration,
    /// Longest wait of all.
    pub longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(500), longest: Duration::from_secs(300) }
    }
}

impl Backoff {
    /// The wait after `failures` in a row. `chance`, from 0 to 1, spreads the waits of objects that failed together over
    /// the second half of the longest.
    pub fn wait(self, failures: u32, chance: f64) -> Duration {
        let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        let longest = self.first.saturating_mul(doubled).min(self.longest);
        longest.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0)
    }
}

/// What came of the work on an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There is nothing to do until something changes.
    Done,
    /// The object is to be looked at again after this time, whatever happens.
    After(Duration),
    /// It failed for this reason.
    Failed(&'static str),
}

/// How much is in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Objects that wait for a worker.
    pub ready: usize,
    /// Objects that wait for their time.
    pub later: usize,
    /// Objects that are worked on.
    pub running: usize,
    /// How long the first in line has been waiting for a worker.
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
    /// Objects that wait for a worker, by namespace, each since when.
    ready: BTreeMap<Option<String>, VecDeque<(ObjectKey, Instant)>>,
    /// The namespaces that have such objects, the next one first.
    turns: VecDeque<Option<String>>,
    is_ready: HashSet<ObjectKey>,
    /// Objects that wait for their time, the earliest first; and the time of each.
    later: BTreeSet<(Instant, ObjectKey)>,
    due: HashMap<ObjectKey, Instant>,
    /// Objects that are worked on.
    running: HashMap<ObjectKey, Active>,
    /// When a worker last took an object.
    last_taken: Option<Instant>,
    failures: HashMap<ObjectKey, (&'static str, u32)>,
    is_closed: bool,
}

/// An object that is worked on.
#[derive(Debug)]
struct Active {
    since: Instant,
    /// When it is to be looked at again, if it was asked for meanwhile.
    asked: Option<Instant>,
}

/// An object to work on. Nobody else gets it until it is given back with what came of it.
#[derive(Debug)]
pub struct Work {
    /// The object.
    pub key: ObjectKey,
    queue: Arc<Queue>,
    is_finished: bool,
}

impl Queue {
    /// An empty queue.
    pub fn new(backoff: Backoff) -> Arc<Self> {
        Arc::new(Self { backoff, state: Mutex::default(), changed: Notify::new() })
    }

    /// Asks for an object to be looked at now.
    pub fn add(&self, key: ObjectKey) {
        self.add_after(key, Duration::ZERO);
    }

    /// Asks for an object to be looked at after this time at the latest.
    pub fn add_after(&self, key: ObjectKey, wait: Duration) {
        let now = Instant::now();
        self.locked().ask(key, now, now + wait);
        self.changed.notify_one();
    }

    /// Waits for an object to work on. None when the queue is closed.
    pub async fn next(self: &Arc<Self>) -> Option<Work> {
        loop {
            let changed = self.changed.notified();
            let earliest = {
                let mut state = self.locked();
                if state.is_closed {
                    return None;
                }
                if let Some(key) = state.take(Instant::now()) {
                    // There may be more than the one for which this worker was woken.
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

    /// Gives out no more work. What is being worked on may be finished.
    pub fn close(&self) {
        self.locked().is_closed = true;
        self.changed.notify_waiters();
    }

    /// How much there is to do.
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

    /// What shows that nothing has moved for this time: an object is worked on for as long, or one has waited for as long and
    /// no worker has taken any since.
    pub(crate) fn stuck(&self, limit: Duration) -> Option<String> {
        let state = self.locked();
        let oldest = state.running.iter().min_by_key(|(_, running)| running.since);
        if let Some((key, running)) = oldest.filter(|(_, running)| running.since.elapsed() > limit) {
            return Some(format!("{key} has been worked on for {} s", running.since.elapsed().as_secs()));
        }
        let waiting = state.ready.values().filter_map(|line| line.front()).map(|(_, since)| *since).min()?;
        // Workers begin when the caches are complete, which may take any time.
        let since = state.last_taken?.max(waiting);
        let is_stuck = since.elapsed() > limit && !state.is_closed;
        is_stuck.then(|| {
            format!("{} objects wait, and no worker took one for {} s", state.is_ready.len(), since.elapsed().as_secs())
        })
    }

    fn finish(&self, key: &ObjectKey, outcome: &Outcome) {
        let now = Instant::now();
        let mut state = self.locked();
        let asked = state.running.remove(key).and_then(|running| running.asked);
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
        // A change that came meanwhile may be what was missing, so it does not wait for the pause to end.
        if let Some(time) = asked.into_iter().chain(again).min() {
            state.ask(key.clone(), now, time);
        }
        drop(state);
        self.changed.notify_one();
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn ask(&mut self, key: ObjectKey, now: Instant, time: Instant) {
        if let Some(Active { asked, .. }) = self.running.get_mut(&key) {
            *asked = Some(asked.map_or(time, |earlier| earlier.min(time)));
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
            self.line_up(key, now);
        }
    }

    fn line_up(&mut self, key: ObjectKey, since: Instant) {
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

    /// The first object of the namespace whose turn it is.
    fn take(&mut self, now: Instant) -> Option<ObjectKey> {
        while let Some((time, key)) = self.later.first().filter(|(time, _)| *time <= now).cloned() {
            self.forget_time(&key);
            self.line_up(key, time);
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
        self.running.insert(key.clone(), Active { since: now, asked: None });
        self.last_taken = Some(now);
        Some(key)
    }
}

impl Work {
    /// Forgets earlier failures, because the work got further this time: one that gets a step further each time does not
    /// have to wait longer each time.
    pub fn reset_backoff(&self) {
        self.queue.locked().failures.remove(&self.key);
    }

    /// Gives the object back.
    pub fn finish(mut self, outcome: &Outcome) {
        self.is_finished = true;
        self.queue.finish(&self.key, outcome);
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // The worker panicked, or was stopped: the object must not be lost with it.
        if !self.is_finished {
            self.queue.finish(&self.key, &Outcome::Failed("Abandoned"));
        }
    }
}

/// A number from 0 to 1.
pub(crate) fn chance() -> f64 {
    // Each of these states is seeded anew by the system; what it is asked to hash does not matter.
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

    /// The work that can be had at once.
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
    async fn asking_twice_is_asking_once() {
        let queue = Queue::new(Backoff::default());
        queue.add(key("a", "x"));
        queue.add(key("a", "x"));
        queue.add_after(key("a", "x"), SECOND);
        at_once(&queue).await.unwrap().finish(&Outcome::Done);
        assert!(at_once(&queue).await.is_none());
        assert_eq!(queue.load(), Load::default());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_asked_for_while_it_is_worked_on_comes_again_afterwards() {
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
    async fn a_time_is_kept_and_an_earlier_one_wins() {
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
    async fn failures_for_one_reason_wait_longer_each_time_and_another_reason_starts_anew() {
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
    async fn failures_after_a_step_forward_do_not_wait_longer_each_time() {
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
    async fn the_object_of_a_worker_that_dies_is_not_lost() {
        let queue = Queue::new(Backoff::default());
        queue.add(key("a", "x"));
        drop(queue.next().await);
        assert_eq!(queue.next().await.unwrap().key, key("a", "x"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_is_stuck_when_work_neither_ends_nor_begins() {
        let queue = Queue::new(Backoff::default());
        tokio::time::advance(SECOND * 100).await;
        assert_eq!(queue.stuck(SECOND * 10), None, "there is nothing to do");
        queue.add(key("a", "x"));
        tokio::time::advance(SECOND * 11).await;
        assert_eq!(queue.stuck(SECOND * 10), None, "no worker has begun");
        let work = queue.next().await.unwrap();
        queue.add(key("a", "y"));
        assert_eq!(queue.stuck(SECOND * 10), None, "one was taken");
        tokio::time::advance(SECOND * 11).await;
        assert_eq!(queue.stuck(SECOND * 10).unwrap(), "a/x has been worked on for 11 s");
        work.finish(&Outcome::Done);
        assert_eq!(queue.stuck(SECOND * 10).unwrap(), "1 objects wait, and no worker took one for 11 s");
        queue.next().await.unwrap().finish(&Outcome::Done);
        queue.add_after(key("a", "z"), SECOND * 1000);
        tokio::time::advance(SECOND * 500).await;
        assert_eq!(queue.stuck(SECOND * 10), None, "its time has not come");
    }

    #[tokio::test(start_paused = true)]
    async fn closing_ends_waiting() {
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

    #[test]
    fn waits_grow_to_their_limit_and_no_further() {
        let backoff = Backoff { first: SECOND, longest: SECOND * 60 };
        assert_eq!(backoff.wait(1, 1.0), SECOND);
        assert_eq!(backoff.wait(1, 0.0), SECOND / 2);
        assert_eq!(backoff.wait(4, 1.0), SECOND * 8);
        for failures in [7, 32, 33, u32::MAX] {
            assert_eq!(backoff.wait(failures, 1.0), SECOND * 60, "after {failures}");
        }
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
        fn no_order_of_events_loses_an_object_or_gives_it_out_twice(steps in vec(step(), 1..60)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let queue = Queue::new(Backoff { first: SECOND, longest: SECOND });
                let mut held: Vec<Work> = vec![];
                // Objects that were asked for and not given out since.
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
