//! The operator under every fault that can be thought of, for the whole life of a datacenter: on the real API server,
//! with the real controller manager, on machines that KWOK plays, with nodes that the test plays: their sidecars decide as
//! the real ones do, and their ring is strict.
//!
//! Whatever happens, the datacenter ends as it would have without trouble, the agents' token stays what it was, no pod
//! or claim is deleted whose node is in the ring, nodes leave one at a time and once, each row that was written has a replica at
//! any time and all of them at the end of each phase, and then nothing more is asked.
//!
//! The quick tier has a few scenarios of each kind; the slow tier has all of them, and every write is disturbed in every way.

mod leases;
mod life;
mod nodes;
mod operator;
mod ring;
mod snapshots;
mod world;

use std::{
    any::Any,
    collections::{BTreeMap, HashMap, HashSet},
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures::{FutureExt, future::BoxFuture};
use http::StatusCode;
use messina_testbed::faults::Fault;
use tokio::{sync::Semaphore, task::JoinSet};

use leases::{Loss, life_of_two};
use life::{Phase, Told, Trouble, Undisturbed, Write, deleted_at, life, undisturbed};
use world::Ground;

/// How many lives go on at once. Most of a life is waiting.
const AT_ONCE: usize = 8;

/// A life to be lived.
struct Case {
    name: String,
    /// Cases of one group are counted together.
    group: &'static str,
    trouble: Trouble,
}

/// What can happen to a write.
const FAULTS: [(&str, Fault); 6] = [
    ("crash-before", Fault::CrashBefore),
    ("crash-after", Fault::CrashAfter),
    ("conflict", Fault::Fail(StatusCode::CONFLICT)),
    ("lost-reply", Fault::LoseReply),
    ("lost-request", Fault::LoseRequest),
    ("failure", Fault::Fail(StatusCode::INTERNAL_SERVER_ERROR)),
];

/// So far are crashes of one kind apart in a life, and so many lives it takes until there was one at every write.
const CRASHES: usize = 4;
/// The same for troubles that need no new start.
const TROUBLES: usize = 2;

/// Every so many writes of an undisturbed life have trouble, of each of these kinds from another write on.
fn at_writes(like: &Undisturbed, stride: usize, faults: &[(usize, Fault)]) -> Trouble {
    let writes = like.writes.values().flatten().enumerate();
    let fault = |number: usize| faults.iter().find(|(first, _)| number % stride == *first).map(|(_, fault)| *fault);
    let targets = writes.filter_map(|(number, write)| Some((write.clone(), fault(number)?)));
    let targets = Mutex::new(targets.collect::<HashMap<Write, Fault>>());
    Box::new(move |_, _, write| write.and_then(|write| targets.lock().unwrap().remove(write)).unwrap_or(Fault::None))
}

/// The operator crashes before every write the first time, and not the second.
fn before_each_write() -> Trouble {
    let seen = Mutex::<HashMap<String, usize>>::default();
    Box::new(move |_, _, write| {
        let Some(write) = write else { return Fault::None };
        let mut seen = seen.lock().unwrap();
        let times = seen.entry(write.line.clone()).or_default();
        *times += 1;
        if times.is_multiple_of(2) { Fault::None } else { Fault::CrashBefore }
    })
}

/// Watches end in the middle of their lists, first after no line, then after one, and so on; and then at each event.
fn watches_are_cut() -> Trouble {
    let lists = Mutex::<HashMap<String, usize>>::default();
    Box::new(move |asked, _, _| {
        if !asked.is_list {
            return if asked.is_watch { Fault::CutAfter(1) } else { Fault::None };
        }
        let mut lists = lists.lock().unwrap();
        let times = lists.entry(asked.uri.to_string()).or_default();
        *times += 1;
        if *times <= 4 { Fault::CutAfter(*times - 1) } else { Fault::CutAfterList(0) }
    })
}

/// Watches are late, each kind by another time than the next, so that what happens together is seen in another order.
fn watches_are_late() -> Trouble {
    let kinds = Mutex::<Vec<String>>::default();
    Box::new(move |asked, _, _| {
        if !asked.is_watch {
            return Fault::None;
        }
        let (mut kinds, path) = (kinds.lock().unwrap(), asked.uri.path());
        let number = kinds.iter().position(|known| known == path).unwrap_or_else(|| {
            kinds.push(path.to_owned());
            kinds.len() - 1
        });
        Fault::DelayLines(Duration::from_millis([300, 1000, 50][number % 3]))
    })
}

/// So far are crashes apart after which lists are old, and so many lives it takes.
const OLD_LISTS: usize = 4;

/// The operator crashes after some writes, and the API server shows it what there was before the beginning, of all kinds or
/// of all but the datacenter itself. Each of these writes makes it crash once: what it tries from an old list would else
/// make it crash again and again, and it would never see more than that. For the same reason a list is old once after each
/// crash: whoever asks again could not go on from it, because the API server has forgotten what happened since.
fn lists_are_old(like: &Undisturbed, first: usize, also_datacenters: bool) -> Trouble {
    let crashes = at_writes(like, OLD_LISTS, &[(first, Fault::CrashAfter)]);
    let shown = Mutex::<HashSet<String>>::default();
    Box::new(move |asked, phase, write| {
        let is_datacenter = asked.uri.path().ends_with("/scylladbdatacenters");
        let fault = crashes(asked, phase, write);
        let mut shown = shown.lock().unwrap();
        if fault == Fault::CrashAfter {
            shown.clear();
        }
        let is_old = asked.is_list && (also_datacenters || !is_datacenter);
        if is_old && shown.insert(asked.uri.to_string()) { Fault::OldList } else { fault }
    })
}

/// The operator crashes at the first write of each phase. From then on it sees objects of one kind as they were before the
/// beginning, and hears of what became of them long after all else. Their list is old once after each crash: see
/// [`lists_are_old`].
fn one_kind_is_late(path: &'static str, late: Duration) -> Trouble {
    let (crashed, shown) = (Mutex::<HashSet<Phase>>::default(), Mutex::<HashSet<Phase>>::default());
    Box::new(move |asked, phase, write| {
        if write.is_some() {
            return if crashed.lock().unwrap().insert(phase) { Fault::CrashAfter } else { Fault::None };
        }
        match asked.uri.path().ends_with(path) {
            true if asked.is_list && shown.lock().unwrap().insert(phase) => Fault::OldList,
            true if asked.is_watch && !asked.is_list => Fault::DelayLines(late),
            _ => Fault::None,
        }
    })
}

fn cases(like: &Undisturbed) -> Vec<Case> {
    let mut cases = vec![
        // It takes longest.
        Case { name: "crash-before-each".into(), group: "crashes", trouble: before_each_write() },
        Case { name: "cut-watches".into(), group: "watches", trouble: watches_are_cut() },
    ];
    cases.push(Case { name: "late-watches".into(), group: "watches", trouble: watches_are_late() });
    let late = Fault::DelayLines(Duration::from_millis(1000));
    let trouble: Trouble = Box::new(move |asked, _, _| if asked.is_watch { late } else { Fault::None });
    cases.push(Case { name: "late-watches-1000".into(), group: "watches", trouble });
    // What goes with a datacenter that is deleted is heard of earlier than that it is deleted itself.
    let trouble: Trouble = Box::new(move |asked, _, _| match asked.uri.path().ends_with("/scylladbdatacenters") {
        true if asked.is_watch => Fault::DelayLines(Duration::from_secs(3)),
        _ => Fault::None,
    });
    cases.push(Case { name: "late-datacenters".into(), group: "watches", trouble });
    let kinds = [("claims", "/persistentvolumeclaims", 500), ("pods", "/pods", 200), ("services", "/services", 300)];
    for (name, path, milliseconds) in kinds {
        let trouble = one_kind_is_late(path, Duration::from_millis(milliseconds));
        cases.push(Case { name: format!("late-{name}"), group: "watches", trouble });
    }
    for first in 0..OLD_LISTS {
        let trouble = lists_are_old(like, first, first.is_multiple_of(2));
        cases.push(Case { name: format!("old-lists-{first}"), group: "old-lists", trouble });
    }
    let [before, after, conflict, lost_reply, lost_request, failure] = FAULTS.map(|(_, fault)| fault);
    for first in 0..CRASHES {
        let crashes = [(first, before), ((first + CRASHES / 2) % CRASHES, after)];
        let trouble = at_writes(like, CRASHES, &crashes);
        cases.push(Case { name: format!("crash-{first}"), group: "crashes", trouble });
    }
    for (name, one, other) in [("refused", conflict, lost_reply), ("failed", lost_request, failure)] {
        for first in 0..TROUBLES {
            let trouble = at_writes(like, TROUBLES, &[(first, one), (TROUBLES - 1 - first, other)]);
            cases.push(Case { name: format!("{name}-{first}"), group: "troubles", trouble });
        }
    }
    cases
}

/// What came of a group of lives.
#[derive(Default)]
struct Sum {
    lives: usize,
    crashes: usize,
    changes_of_hands: usize,
    hit: Vec<(Write, Fault)>,
}

impl Sum {
    fn add(&mut self, Told { crashes, hit }: Told) {
        self.lives += 1;
        self.crashes += crashes;
        self.hit.extend(hit);
    }
}

/// Something to be done in a place of its own.
type Deed = BoxFuture<'static, (&'static str, Result<Told, usize>)>;

fn deeds(like: &Arc<Undisturbed>, ground: &Arc<Ground>) -> Vec<(String, Arc<Semaphore>, Deed)> {
    let mut deeds = Vec::new();
    let places = Arc::new(Semaphore::new(AT_ONCE));
    // Those that take longest first.
    let cut_off =
        |first: usize| if first.is_multiple_of(2) { Loss::CutOffBefore(first) } else { Loss::CutOffAfter(first) };
    let losses = (0..leases::STRIDE).map(cut_off).chain([Loss::GivenBack]);
    // Two operators each, which start to watch anew each time, and a lease that is not waited for in vain.
    let few_places = Arc::new(Semaphore::new(4));
    for loss in losses {
        let (like, ground, name) = (Arc::clone(like), Arc::clone(ground), format!("{loss:?}"));
        // Whole lives take long; half of them see nodes come and go.
        let count = if deeds.len().is_multiple_of(2) { 2 } else { Phase::OF_LIFE.len() };
        let phases = &Phase::OF_LIFE[..count];
        let life = async move { ("lease", Err(life_of_two(&ground, &like, &format!("{loss:?}"), loss, phases).await)) };
        deeds.push((name, Arc::clone(&few_places), life.boxed()));
    }
    for (index, Case { name, group, trouble }) in cases(like).into_iter().enumerate() {
        let (like, ground, told) = (Arc::clone(like), Arc::clone(ground), name.clone());
        let life = async move { (group, Ok(life(&ground, &like, &name, index.is_multiple_of(2), trouble).await)) };
        deeds.push((told, Arc::clone(&places), life.boxed()));
    }
    for number in 0..like.writes[&Phase::Create].len() {
        let ground = Arc::clone(ground);
        let life = async move {
            deleted_at(&ground, number).await;
            ("deleted", Ok(Told { crashes: 0, hit: Vec::new() }))
        };
        deeds.push((format!("deleted-at-{number}"), Arc::clone(&places), life.boxed()));
    }
    deeds
}

/// The scenarios of the quick tier: some of each kind.
const QUICK: [&str; 5] = ["CutOffBefore(0)", "crash-1", "deleted-at-7", "old-lists-1", "refused-0"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_datacenter_ends_as_without_faults_in_a_few_scenarios() {
    run(Arc::new(Ground::new("faults").await), QUICK.len(), |name| QUICK.contains(&name)).await;
}

mod slow {
    use super::*;

    /// `MESSINA_FAULTS_ONLY` selects the scenarios whose name contains it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_datacenter_ends_as_without_faults_whatever_happens() {
        let only = std::env::var("MESSINA_FAULTS_ONLY").unwrap_or_default();
        let (like, sums) = run(Arc::new(Ground::new("faults-slow").await), 1, |name| name.contains(&only)).await;
        if only.is_empty() {
            every_write_was_troubled(&like, &sums);
        }
    }
}

/// Runs an undisturbed scenario, and then the selected ones, which have to end as it did.
async fn run(
    ground: Arc<Ground>,
    at_least: usize,
    is_selected: impl Fn(&str) -> bool,
) -> (Arc<Undisturbed>, BTreeMap<&'static str, Sum>) {
    let began = Instant::now();
    let like = Arc::new(undisturbed(&ground).await);
    for (phase, writes) in &like.writes {
        println!("{phase:?} takes {} writes without trouble", writes.len());
    }
    let mut lives = JoinSet::new();
    let selected: Vec<_> = deeds(&like, &ground).into_iter().filter(|(name, ..)| is_selected(name)).collect();
    assert!(selected.len() >= at_least, "{} scenarios are selected", selected.len());
    for (name, places, deed) in selected {
        lives.spawn(async move {
            let _place = places.acquire().await.unwrap();
            let began = Instant::now();
            let outcome = AssertUnwindSafe(deed).catch_unwind().await;
            (outcome.map_err(|panic| format!("{name}: {}", said_by(panic.as_ref()))), name, began.elapsed())
        });
    }
    let mut sums = BTreeMap::<&str, Sum>::new();
    let (mut failed, mut longest) = (Vec::new(), (Duration::ZERO, String::new()));
    while let Some(ended) = lives.join_next().await {
        let (outcome, name, took) = ended.unwrap();
        longest = longest.max((took, name));
        match outcome {
            Ok((group, Ok(told))) => sums.entry(group).or_default().add(told),
            Ok((group, Err(changes))) => {
                let sum = sums.entry(group).or_default();
                sum.lives += 1;
                sum.changes_of_hands += changes;
            }
            Err(message) => failed.push(message),
        }
    }
    let mut lives = 1;
    for (group, Sum { lives: of_group, crashes, changes_of_hands, hit }) in &sums {
        println!(
            "{group}: {of_group} lives, {} writes troubled, {crashes} crashes, {changes_of_hands} changes of the lease's holder",
            hit.len()
        );
        lives += of_group;
    }
    let (took, name) = longest;
    println!("{lives} lives in {:.0} s; {name} took {:.0} s", began.elapsed().as_secs_f64(), took.as_secs_f64());
    assert!(failed.is_empty(), "these did not end as without trouble:\n{}", failed.join("\n"));
    (like, sums)
}

/// Why something panicked.
fn said_by(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked without a word")
}

/// Everything that is written in an undisturbed life was troubled in each way. How often the same is written differs from
/// life to life, by how fast Kubernetes is.
fn every_write_was_troubled(like: &Undisturbed, sums: &BTreeMap<&str, Sum>) {
    for (name, fault) in FAULTS {
        let all = sums.values().flat_map(|sum| &sum.hit);
        let hit: HashSet<&Write> = all.filter(|(_, happened)| *happened == fault).map(|(write, _)| write).collect();
        for (phase, writes) in &like.writes {
            let troubled = writes.iter().filter(|write| hit.contains(write)).count();
            println!("{name}: {phase:?}: {troubled} of {} writes of an undisturbed life", writes.len());
            for write in writes {
                let is_hit = hit.iter().any(|one| (one.phase, &one.line) == (write.phase, &write.line));
                assert!(is_hit, "{name}: {phase:?}: {} was never troubled", write.line);
            }
        }
        println!("{name}: {} different writes in all lives", hit.len());
    }
}
