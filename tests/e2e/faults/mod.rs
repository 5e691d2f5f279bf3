//! Fault injection: scenarios that take a datacenter from its creation to its deletion while requests of the operator
//! fail.
//!
//! The API server and the controller manager are real, the Kubernetes nodes are KWOK's, and the test simulates the
//! ScyllaDB nodes: their sidecars decide as the real ones do, and their ring reports every violation.
//!
//! In each scenario the datacenter ends in the same state as without faults, the agents' token does not change, no pod
//! or claim of a node in the ring is deleted, nodes leave one at a time and once, each row that was written has a
//! replica at any time and all of its replicas at the end of each phase, and finally the operator sends no more
//! requests.
//!
//! The quick tier runs a few scenarios of each kind. The slow tier runs all of them, with every fault at every write.

mod leases;
mod nodes;
mod operator;
mod ring;
mod scenario;
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

use leases::{Loss, run_with_two_operators};
use scenario::{Baseline, FaultRule, Outcome, Phase, Write, delete_at_write, run_scenario, run_without_faults};
use world::TestCluster;

/// How many scenarios run at once. Most of their time is waiting.
const AT_ONCE: usize = 8;

/// A scenario with one operator, and the faults of its requests.
struct Scenario {
    name: String,
    /// Scenarios of one group are counted together.
    group: &'static str,
    rule: FaultRule,
}

/// The faults of a write.
const FAULTS: [(&str, Fault); 6] = [
    ("crash-before", Fault::CrashBefore),
    ("crash-after", Fault::CrashAfter),
    ("conflict", Fault::Fail(StatusCode::CONFLICT)),
    ("lost-reply", Fault::LoseReply),
    ("lost-request", Fault::LoseRequest),
    ("failure", Fault::Fail(StatusCode::INTERNAL_SERVER_ERROR)),
];

/// Every so many writes the operator crashes in a scenario; as many scenarios cover every write.
const CRASHES: usize = 4;
/// The same for faults that do not end the operator.
const FAILURES: usize = 2;

/// Injects faults at every `stride`-th write of the baseline. Each fault has its own first write.
fn at_writes(baseline: &Baseline, stride: usize, faults: &[(usize, Fault)]) -> FaultRule {
    let writes = baseline.writes.values().flatten().enumerate();
    let fault = |number: usize| faults.iter().find(|(first, _)| number % stride == *first).map(|(_, fault)| *fault);
    let targets = writes.filter_map(|(number, write)| Some((write.clone(), fault(number)?)));
    let targets = Mutex::new(targets.collect::<HashMap<Write, Fault>>());
    Box::new(move |_, _, write| write.and_then(|write| targets.lock().unwrap().remove(write)).unwrap_or(Fault::None))
}

/// Crashes the operator before each write the first time, and not the second time.
fn before_each_write() -> FaultRule {
    let seen = Mutex::<HashMap<String, usize>>::default();
    Box::new(move |_, _, write| {
        let Some(write) = write else { return Fault::None };
        let mut seen = seen.lock().unwrap();
        let times = seen.entry(write.line.clone()).or_default();
        *times += 1;
        if times.is_multiple_of(2) { Fault::None } else { Fault::CrashBefore }
    })
}

/// Ends watches in the middle of their lists, first after no line, then after one, and so on; later after each event.
fn watches_are_cut() -> FaultRule {
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

/// Delays watches, each kind by another time than the next, so that the operator sees simultaneous changes in another
/// order.
fn watches_are_late() -> FaultRule {
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

/// Every so many writes the operator crashes and sees old lists afterwards; as many scenarios cover every write.
const OLD_LISTS: usize = 4;

/// Crashes the operator after some writes, and then shows it the objects as they were at the beginning, of all kinds or
/// of all but the datacenter itself. Each of these writes makes it crash once: otherwise its writes from an old list
/// would make it crash again and again, and it would never see newer objects. For the same reason a list is old once
/// after each crash: a watch could not continue from its resource version, because the API server has compacted the
/// changes since.
fn lists_are_old(baseline: &Baseline, first: usize, also_datacenters: bool) -> FaultRule {
    let crashes = at_writes(baseline, OLD_LISTS, &[(first, Fault::CrashAfter)]);
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

/// Crashes the operator at the first write of each phase. From then on it sees objects of one kind as they were at the
/// beginning, and their changes later than those of all other kinds. Their list is old once after each crash: see
/// [`lists_are_old`].
fn one_kind_is_late(path: &'static str, late: Duration) -> FaultRule {
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

fn fault_scenarios(baseline: &Baseline) -> Vec<Scenario> {
    let mut fault_scenarios = vec![
        // It takes longest.
        Scenario { name: "crash-before-each".into(), group: "crashes", rule: before_each_write() },
        Scenario { name: "cut-watches".into(), group: "watches", rule: watches_are_cut() },
    ];
    fault_scenarios.push(Scenario { name: "late-watches".into(), group: "watches", rule: watches_are_late() });
    let late = Fault::DelayLines(Duration::from_millis(1000));
    let rule: FaultRule = Box::new(move |asked, _, _| if asked.is_watch { late } else { Fault::None });
    fault_scenarios.push(Scenario { name: "late-watches-1000".into(), group: "watches", rule });
    // The operator sees the deletion of a datacenter's objects earlier than that of the datacenter itself.
    let rule: FaultRule = Box::new(move |asked, _, _| match asked.uri.path().ends_with("/scylladbdatacenters") {
        true if asked.is_watch => Fault::DelayLines(Duration::from_secs(3)),
        _ => Fault::None,
    });
    fault_scenarios.push(Scenario { name: "late-datacenters".into(), group: "watches", rule });
    let kinds = [("claims", "/persistentvolumeclaims", 500), ("pods", "/pods", 200), ("services", "/services", 300)];
    for (name, path, milliseconds) in kinds {
        let rule = one_kind_is_late(path, Duration::from_millis(milliseconds));
        fault_scenarios.push(Scenario { name: format!("late-{name}"), group: "watches", rule });
    }
    for first in 0..OLD_LISTS {
        let rule = lists_are_old(baseline, first, first.is_multiple_of(2));
        fault_scenarios.push(Scenario { name: format!("old-lists-{first}"), group: "old-lists", rule });
    }
    let [before, after, conflict, lost_reply, lost_request, failure] = FAULTS.map(|(_, fault)| fault);
    for first in 0..CRASHES {
        let crashes = [(first, before), ((first + CRASHES / 2) % CRASHES, after)];
        let rule = at_writes(baseline, CRASHES, &crashes);
        fault_scenarios.push(Scenario { name: format!("crash-{first}"), group: "crashes", rule });
    }
    for (name, one, other) in [("refused", conflict, lost_reply), ("failed", lost_request, failure)] {
        for first in 0..FAILURES {
            let rule = at_writes(baseline, FAILURES, &[(first, one), (FAILURES - 1 - first, other)]);
            fault_scenarios.push(Scenario { name: format!("{name}-{first}"), group: "failures", rule });
        }
    }
    fault_scenarios
}

/// The results of a group of scenarios.
#[derive(Default)]
struct Sum {
    scenarios: usize,
    crashes: usize,
    changes_of_holder: usize,
    hit: Vec<(Write, Fault)>,
}

impl Sum {
    fn add(&mut self, Outcome { crashes, hit }: Outcome) {
        self.scenarios += 1;
        self.crashes += crashes;
        self.hit.extend(hit);
    }
}

/// A scenario to be run: its group, and its outcome or how often the lease changed its holder.
type Run = BoxFuture<'static, (&'static str, Result<Outcome, usize>)>;

fn all_scenarios(baseline: &Arc<Baseline>, cluster: &Arc<TestCluster>) -> Vec<(String, Arc<Semaphore>, Run)> {
    let mut scenarios = Vec::new();
    let places = Arc::new(Semaphore::new(AT_ONCE));
    // The longest come first.
    let cut_off =
        |first: usize| if first.is_multiple_of(2) { Loss::CutOffBefore(first) } else { Loss::CutOffAfter(first) };
    let losses = (0..leases::STRIDE).map(cut_off).chain([Loss::GivenBack]);
    // Each has two operators, which restart their watches each time: if too many run at once, leases expire.
    let few_places = Arc::new(Semaphore::new(4));
    for loss in losses {
        let (baseline, cluster, name) = (Arc::clone(baseline), Arc::clone(cluster), format!("{loss:?}"));
        // All phases take long: every other scenario runs all of them.
        let count = if scenarios.len().is_multiple_of(2) { 2 } else { Phase::WITH_DATACENTER.len() };
        let phases = &Phase::WITH_DATACENTER[..count];
        let run = async move {
            ("lease", Err(run_with_two_operators(&cluster, &baseline, &format!("{loss:?}"), loss, phases).await))
        };
        scenarios.push((name, Arc::clone(&few_places), run.boxed()));
    }
    for (index, Scenario { name, group, rule }) in fault_scenarios(baseline).into_iter().enumerate() {
        let (baseline, cluster, label) = (Arc::clone(baseline), Arc::clone(cluster), name.clone());
        let run =
            async move { (group, Ok(run_scenario(&cluster, &baseline, &name, index.is_multiple_of(2), rule).await)) };
        scenarios.push((label, Arc::clone(&places), run.boxed()));
    }
    for number in 0..baseline.writes[&Phase::Create].len() {
        let cluster = Arc::clone(cluster);
        let run = async move {
            delete_at_write(&cluster, number).await;
            ("deleted", Ok(Outcome { crashes: 0, hit: Vec::new() }))
        };
        scenarios.push((format!("deleted-at-{number}"), Arc::clone(&places), run.boxed()));
    }
    scenarios
}

/// The scenarios of the quick tier: some of each kind.
const QUICK: [&str; 5] = ["CutOffBefore(0)", "crash-1", "deleted-at-7", "old-lists-1", "refused-0"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datacenter_converges_in_selected_fault_scenarios() {
    run(Arc::new(TestCluster::new("faults").await), QUICK.len(), |name| QUICK.contains(&name)).await;
}

mod slow {
    use super::*;

    /// `MESSINA_FAULTS_ONLY` selects the scenarios whose name contains it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn datacenter_converges_with_every_fault_at_every_write() {
        let only = std::env::var("MESSINA_FAULTS_ONLY").unwrap_or_default();
        let (baseline, sums) =
            run(Arc::new(TestCluster::new("faults-slow").await), 1, |name| name.contains(&only)).await;
        if only.is_empty() {
            check_every_write_had_every_fault(&baseline, &sums);
        }
    }
}

/// Runs a scenario without faults, and then the selected ones, which have to end in the same state.
async fn run(
    cluster: Arc<TestCluster>,
    at_least: usize,
    is_selected: impl Fn(&str) -> bool,
) -> (Arc<Baseline>, BTreeMap<&'static str, Sum>) {
    let began = Instant::now();
    let baseline = Arc::new(run_without_faults(&cluster).await);
    for (phase, writes) in &baseline.writes {
        println!("{phase:?} takes {} writes without faults", writes.len());
    }
    let mut runs = JoinSet::new();
    let selected: Vec<_> =
        all_scenarios(&baseline, &cluster).into_iter().filter(|(name, ..)| is_selected(name)).collect();
    assert!(selected.len() >= at_least, "{} scenarios are selected", selected.len());
    for (name, places, run) in selected {
        runs.spawn(async move {
            let _place = places.acquire().await.unwrap();
            let began = Instant::now();
            let outcome = AssertUnwindSafe(run).catch_unwind().await;
            (outcome.map_err(|panic| format!("{name}: {}", panic_message(panic.as_ref()))), name, began.elapsed())
        });
    }
    let mut sums = BTreeMap::<&str, Sum>::new();
    let (mut failed, mut longest) = (Vec::new(), (Duration::ZERO, String::new()));
    while let Some(ended) = runs.join_next().await {
        let (outcome, name, took) = ended.unwrap();
        longest = longest.max((took, name));
        match outcome {
            Ok((group, Ok(outcome))) => sums.entry(group).or_default().add(outcome),
            Ok((group, Err(changes))) => {
                let sum = sums.entry(group).or_default();
                sum.scenarios += 1;
                sum.changes_of_holder += changes;
            }
            Err(message) => failed.push(message),
        }
    }
    let mut scenarios = 1;
    for (group, Sum { scenarios: of_group, crashes, changes_of_holder, hit }) in &sums {
        println!(
            "{group}: {of_group} scenarios, {} faults at writes, {crashes} crashes, \
             {changes_of_holder} changes of the lease's holder",
            hit.len()
        );
        scenarios += of_group;
    }
    let (took, name) = longest;
    println!(
        "{scenarios} scenarios in {:.0} s; {name} took {:.0} s",
        began.elapsed().as_secs_f64(),
        took.as_secs_f64()
    );
    assert!(failed.is_empty(), "these scenarios did not end as without faults:\n{}", failed.join("\n"));
    (baseline, sums)
}

/// The message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked without a message")
}

/// Checks that every fault was injected at every write of the baseline. How often the operator repeats a write differs
/// from scenario to scenario: it depends on how fast Kubernetes is.
fn check_every_write_had_every_fault(baseline: &Baseline, sums: &BTreeMap<&str, Sum>) {
    for (name, fault) in FAULTS {
        let all = sums.values().flat_map(|sum| &sum.hit);
        let hit: HashSet<&Write> = all.filter(|(_, happened)| *happened == fault).map(|(write, _)| write).collect();
        for (phase, writes) in &baseline.writes {
            let injected = writes.iter().filter(|write| hit.contains(write)).count();
            println!("{name}: {phase:?}: {injected} of {} writes of the baseline", writes.len());
            for write in writes {
                let is_hit = hit.iter().any(|one| (one.phase, &one.line) == (write.phase, &write.line));
                assert!(is_hit, "{name}: {phase:?}: {} never had this fault", write.line);
            }
        }
        println!("{name}: {} different writes in all scenarios", hit.len());
    }
}
