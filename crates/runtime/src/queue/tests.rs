#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

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
    let queue = Queue::new(Backoff::DEFAULT);
    queue.add(key("a", "x"));
    queue.add(key("a", "x"));
    queue.add_after(key("a", "x"), SECOND);
    at_once(&queue).await.unwrap().finish(&Outcome::Done);
    assert!(at_once(&queue).await.is_none());
    assert_eq!(queue.load(), Load::default());
}

#[tokio::test(start_paused = true)]
async fn object_that_is_added_during_its_reconcile_is_requeued_afterwards() {
    let queue = Queue::new(Backoff::DEFAULT);
    queue.add(key("a", "x"));
    let work = at_once(&queue).await.unwrap();
    queue.add(key("a", "x"));
    assert!(at_once(&queue).await.is_none(), "one worker at a time");
    work.finish(&Outcome::After(SECOND * 60));
    assert_eq!(at_once(&queue).await.unwrap().key, key("a", "x"), "the change does not wait for the minute");
}

#[tokio::test(start_paused = true)]
async fn namespaces_take_turns() {
    let queue = Queue::new(Backoff::DEFAULT);
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
    let queue = Queue::new(Backoff::DEFAULT);
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
    let queue = Queue::new(Backoff::DEFAULT);
    queue.add(key("a", "x"));
    drop(queue.next().await);
    assert_eq!(queue.next().await.unwrap().key, key("a", "x"));
}

#[tokio::test(start_paused = true)]
async fn queue_is_stuck_if_a_reconcile_does_not_end_or_no_worker_takes_objects() {
    let queue = Queue::new(Backoff::DEFAULT);
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
    let queue = Queue::new(Backoff::DEFAULT);
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
