//! Runs the test programs of the workspace in parallel, and measures the time and CPU time of each test.
//!
//! A program of unit tests runs as one process. Each end-to-end test runs in a process of its own, so that it can be
//! scheduled and its CPU time measured. `docs/internals/testing.md` says which tests belong to which tier.

mod costs;
mod process;
mod programs;
mod selftests;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use nix::{
    sys::{
        prctl::set_pdeathsig,
        signal::{Signal, kill},
    },
    unistd::Pid,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    cache::{self, Lock},
    cluster,
    deadline::Moment,
    error::{Doing, Error, Result},
    etcd, exec, harness,
    progress::Steps,
    tools::{self, NodeTools},
};
use costs::{Cost, Costs};
use process::{Ending, Outcome};
use programs::Program;

/// The clusters that all tests of a run share. They are removed at its end.
const SHARED_CLUSTERS: [&str; 2] = [harness::LIGHT, harness::FULL];

/// The prefix of the names of tests of the testbed itself.
const SELFTESTS: &str = "testbed::";

/// How many seeds of the randomized simulation of a datacenter the quick tier runs, of the 50 that the slow tier
/// completes.
const QUICK_WORLDS: &str = "10";

/// Randomized tests that the slow tier runs again with more seeds or cases.
const MORE_CASES: [MoreCases; 4] = [
    MoreCases {
        what: "40 more seeds",
        program: "plan datacenter",
        tests: &["chance::whatever_happens_no_data_is_lost_and_it_ends_as_a_fresh_deployment"],
        variables: &[("MESSINA_FIRST_WORLD", QUICK_WORLDS), ("MESSINA_WORLDS", "40")],
    },
    MoreCases {
        what: "properties in 10 times as many cases",
        program: "plan datacenter",
        tests: &["properties::whatever_happens", "certificates::properties::whatever_happens"],
        variables: &TEN_TIMES_AS_MANY,
    },
    MoreCases {
        what: "properties in 10 times as many cases",
        program: "plan unit",
        tests: &[
            "etcd_task::decide::tests::every_task_ends",
            "etcd_task::defragment::tests::every_member_is_defragmented_once_under_any_leader",
            "quantity::tests::parsing_never_panics",
            "quantity::tests::canonical_form_is_stable",
        ],
        variables: &TEN_TIMES_AS_MANY,
    },
    MoreCases {
        what: "properties in 10 times as many cases",
        program: "runtime unit",
        tests: &["queue::tests::queue_neither_loses_an_object_nor_gives_it_out_twice"],
        variables: &TEN_TIMES_AS_MANY,
    },
];

/// Each property runs its own proportion of these cases, of which there are 256 by default.
const TEN_TIMES_AS_MANY: [(&str, &str); 1] = [("PROPTEST_CASES", "2560")];

struct MoreCases {
    what: &'static str,
    program: &'static str,
    tests: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
}

/// The tests to run, and how.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Whether to run the slow tier, too.
    pub slow: bool,
    /// Whether to run the tests of the testbed itself even if it has not changed since they passed.
    pub selftests: bool,
    /// Runs only tests whose name contains this text.
    pub only: Option<String>,
    /// How many tests run at once.
    pub at_once: usize,
    /// Whether to leave the shared clusters running.
    pub keep: bool,
}

/// A test, or a program of unit tests, that runs in a process of its own.
#[derive(Clone, Debug)]
struct Item {
    name: String,
    /// Whether it belongs to the slow tier.
    is_slow: bool,
    program: Program,
    arguments: Vec<String>,
    variables: Vec<(&'static str, &'static str)>,
    needs: Needs,
    /// How many slots it takes: a test of faults runs many scenarios at once.
    weight: usize,
}

impl MoreCases {
    fn item(&self, programs: &[Program]) -> Result<Item> {
        let program = programs.iter().find(|program| program.name == self.program);
        let program = program.ok_or_else(|| Error::refused(format!("there is no test program {:?}", self.program)))?;
        let there = program.tests()?;
        if let Some(missing) = self.tests.iter().find(|test| !there.iter().any(|one| one == *test)) {
            return Err(Error::refused(format!("{} has no test {missing}", program.name)));
        }
        Ok(Item {
            is_slow: true,
            name: format!("{}, {}", program.name, self.what),
            program: program.clone(),
            arguments: ["--exact", "--nocapture"]
                .into_iter()
                .chain(self.tests.iter().copied())
                .map(str::to_owned)
                .collect(),
            variables: self.variables.to_vec(),
            needs: Needs::Nothing,
            weight: 2,
        })
    }
}

/// What a test needs before it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Needs {
    Nothing,
    /// The programs of clusters. A new host builds them for many minutes.
    Programs,
    /// The light cluster that tests share.
    Light,
    /// The cluster with Kubernetes nodes that tests share.
    Full,
}

impl Needs {
    /// What an end-to-end test needs, by the first part of its name. A wrong entry fails the test, because it finds no
    /// cluster.
    fn of(test: &str) -> Self {
        match test.split("::").next() {
            Some("observer") => Self::Nothing,
            Some("faults" | "hostile") => Self::Programs,
            Some("datacenter") if test.contains("::slow::") => Self::Programs,
            Some("fields" | "takeover") if !test.contains("::nodes::") => Self::Light,
            Some(
                "certificates" | "changes" | "datacenter" | "fields" | "policies" | "recovery" | "settings"
                | "takeover" | "testbed" | "upgrade" | "volumes",
            ) => Self::Full,
            _ => Self::Light,
        }
    }
}

/// How many of eight slots an end-to-end test takes, by how busy it keeps two CPUs.
fn weight_of(test: &str) -> usize {
    match test {
        _ if test.starts_with("faults::slow::") => 6,
        _ if test.starts_with("faults::") || test.starts_with(SELFTESTS) || test.contains("::slow::") => 2,
        _ => 1,
    }
}

/// Runs tests, prints the cost of each, and fails if one of them fails.
pub async fn run(selection: &Selection, steps: &Steps) -> Result<()> {
    // Two concurrent runs would use the same clusters, with the images of the later run.
    let _lock = Lock::take(&lock_file()?, steps, "running tests")?;
    stop_on_signals()?;
    // Clusters of an interrupted run.
    cluster::remove_those_of_tests(&[])?;
    let began = Moment::now();
    // Before the build, so that changes during the build count as changes.
    let selftests = selftests::State::read(selection.slow)?;
    let programs = programs::built()?;
    if !programs.iter().any(Program::is_end_to_end) {
        return Err(Error::refused("cargo has built no end-to-end tests"));
    }
    let (items, left_out) = items(selection, &programs, &selftests)?;
    if items.is_empty() {
        return Err(Error::refused(format!(
            "no selected test has a name that contains {:?}; {left_out} tests of the testbed are left out because it \
             has not changed since they passed (--selftests runs them)",
            selection.only.as_deref().unwrap_or_default()
        )));
    }
    let logs = programs::target_folder()?.join("test-logs");
    cache::remove(&logs)?;
    let costs_file = logs.join("clusters.jsonl");
    cache::write(&costs_file, "")?;
    let queue = Queue::new(sorted(items, &Costs::last()?), selection.at_once);
    let outcomes = work(&queue, selection, &logs, steps).await;
    let outcomes = outcomes?;
    let mut costs = Costs::of_clusters(&costs_file)?;
    for name in SHARED_CLUSTERS {
        costs.shared.extend(cluster::find(name).ok().map(|found| (name.to_owned(), found.cpu_time())));
    }
    costs.add(&outcomes);
    costs.print(&began);
    let of = |ending: Ending| outcomes.iter().filter(move |outcome| outcome.ending == ending);
    let failed: Vec<&Outcome> = of(Ending::Failed).collect();
    for outcome in &failed {
        println!("\nFAILED {}: its output is in {}\n{}", outcome.name, outcome.log.display(), outcome.why());
    }
    let skipped = of(Ending::Skipped).count() + left_out;
    println!("\n{} passed, {} failed, {skipped} skipped", of(Ending::Passed).count(), failed.len());
    if !selection.keep {
        cluster::remove_those_of_tests(&SHARED_CLUSTERS)?;
    }
    if selection.only.is_none() {
        costs.remember()?;
    }
    if !failed.is_empty() {
        let names: Vec<&str> = failed.iter().map(|outcome| outcome.name.as_str()).collect();
        return Err(Error::refused(format!("{} failed: {}", failed.len(), names.join(", "))));
    }
    let selftests_of = |ending: Ending| of(ending).filter(|outcome| outcome.name.starts_with(SELFTESTS)).count();
    let have_run = selftests_of(Ending::Passed) > 0 || !selftests.are_due();
    if selection.only.is_none() && have_run && selftests_of(Ending::Skipped) == 0 {
        selftests.passed()?;
    }
    Ok(())
}

/// Ends the run, its tests and its clusters after a signal, or when the parent process has ended: no user would wait
/// for the results, and the next run would wait for this one.
fn stop_on_signals() -> Result<()> {
    set_pdeathsig(Signal::SIGTERM).doing(|| "subscribing to the end of the parent process".into())?;
    let listen = |kind| signal(kind).doing(|| "listening for signals".into());
    let (mut stop, mut hang_up) = (listen(SignalKind::terminate())?, listen(SignalKind::hangup())?);
    let mut interrupt = listen(SignalKind::interrupt())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = stop.recv() => {}
            _ = hang_up.recv() => {}
            _ = interrupt.recv() => {}
        }
        eprintln!("the test run is interrupted: removing its clusters");
        let own = std::process::id().cast_signed();
        for one in exec::descendants(own).into_iter().filter(|pid| *pid != own) {
            let _it_may_have_ended = kill(Pid::from_raw(one), Signal::SIGKILL);
        }
        if let Err(error) = cluster::remove_those_of_tests(&SHARED_CLUSTERS) {
            eprintln!("{error}");
        }
        std::process::exit(1);
    });
    Ok(())
}

fn lock_file() -> Result<PathBuf> {
    Ok(cache::root()?.join("test-run.lock"))
}

/// Removes the shared clusters, and those of interrupted tests.
pub fn remove_clusters() -> Result<()> {
    let _lock = Lock::try_take(&lock_file()?)?
        .map_err(|holder| Error::refused(format!("a test run is in progress ({holder}): wait until it ends")))?;
    cluster::remove_those_of_tests(&SHARED_CLUSTERS)
}

/// The selected tests, and the number of tests that are left out because the testbed has not changed.
fn items(selection: &Selection, programs: &[Program], selftests: &selftests::State) -> Result<(Vec<Item>, usize)> {
    let (mut items, mut left_out) = (Vec::new(), 0);
    for program in programs {
        if !program.is_end_to_end() {
            items.push(Item {
                name: program.name.clone(),
                is_slow: false,
                program: program.clone(),
                // So that the reason of a skipped test is in the log.
                arguments: vec!["--show-output".into()],
                variables: vec![("MESSINA_WORLDS", QUICK_WORLDS)],
                needs: Needs::Nothing,
                weight: 1,
            });
            continue;
        }
        let tests = program.tests()?;
        if tests.is_empty() {
            return Err(Error::refused(format!("{} lists no tests", program.file.display())));
        }
        for test in tests {
            let is_selftest = test.starts_with(SELFTESTS);
            let is_named = selection.selftests || selection.only.as_ref().is_some_and(|only| only.contains(SELFTESTS));
            if is_selftest && !is_named && !selftests.are_due() {
                left_out += 1;
                continue;
            }
            let is_slow = is_selftest || test.split("::").any(|part| part == "slow");
            if selection.slow || !is_slow {
                items.push(Item {
                    is_slow,
                    arguments: ["--exact", "--nocapture", "--test-threads=2", &test].map(str::to_owned).into(),
                    needs: Needs::of(&test),
                    weight: weight_of(&test),
                    name: test,
                    program: program.clone(),
                    variables: vec![(harness::PREPARED_VARIABLE, "1")],
                });
            }
        }
    }
    for more in MORE_CASES.iter().filter(|_| selection.slow) {
        items.push(more.item(programs)?);
    }
    items.retain(|item| selection.only.as_ref().is_none_or(|only| item.name.contains(only)));
    Ok((items, left_out))
}

/// Sorts the quick tier before the slow one, whose exhaustive tests take all CPUs, and each tier by the duration in
/// the last run, longest first: the test that begins last should end soon.
fn sorted(mut items: Vec<Item>, last: &HashMap<String, Cost>) -> Vec<Item> {
    // For a first run, an estimate: the longest are among the slow ones and those of datacenters.
    let guess = |item: &Item| {
        let is_long =
            ["slow::", "etcd::", "changes::", "faults::", "datacenter", "volumes", "upgrade", "certificates", "sim"];
        if is_long.iter().any(|part| item.name.contains(part)) { 100.0 } else { 10.0 }
    };
    let seconds = |item: &Item| last.get(&item.name).map_or_else(|| guess(item), |cost| cost.wall);
    items.sort_by(|one, other| one.is_slow.cmp(&other.is_slow).then(seconds(other).total_cmp(&seconds(one))));
    items
}

/// The tests that have not begun yet.
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    items: Vec<Item>,
    /// Free slots.
    free: usize,
    /// What is ready of the shared clusters.
    ready: Needs,
    /// Whether the shared clusters failed to start, so that no further test begins.
    failed: bool,
}

impl Queue {
    fn new(mut items: Vec<Item>, places: usize) -> Self {
        items.iter_mut().for_each(|item| item.weight = item.weight.min(places));
        Self {
            state: Mutex::new(State { items, free: places, ready: Needs::Nothing, failed: false }),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The most that any test needs.
    fn needs(&self) -> Needs {
        self.state().items.iter().map(|item| item.needs).max().unwrap_or(Needs::Nothing)
    }

    /// Announces what is ready now.
    fn is_ready(&self, ready: Needs) {
        self.state().ready = ready;
        self.changed.notify_all();
    }

    /// Frees the slots of an item that has ended.
    fn ended(&self, item: &Item) {
        self.state().free += item.weight;
        self.changed.notify_all();
    }

    /// Prevents further tests from beginning.
    fn stop(&self) {
        self.state().failed = true;
        self.changed.notify_all();
    }

    /// The next item that can run now; waits for clusters and free slots.
    fn next(&self) -> Option<Item> {
        let mut state = self.state();
        loop {
            let ready = state.ready;
            match state.items.iter().position(|item| item.needs <= ready) {
                _ if state.failed => return None,
                // An item that does not fit is not skipped: otherwise it would wait until all others are done.
                Some(position) if state.items[position].weight <= state.free => {
                    let item = state.items.remove(position);
                    state.free -= item.weight;
                    return Some(item);
                }
                None if state.items.is_empty() => return None,
                _ => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// Runs all items of the queue. Tests that need no cluster run while the clusters start.
async fn work(queue: &Queue, selection: &Selection, logs: &Path, steps: &Steps) -> Result<Vec<Outcome>> {
    let outcomes = Mutex::new(Vec::new());
    let (began, total) = (Instant::now(), queue.state().items.len());
    let worker = || {
        while let Some(item) = queue.next() {
            let outcome = process::run(&item, logs);
            queue.ended(&item);
            let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
            outcomes.push(outcome);
            // Printed while the lock is held, so that the count is right.
            if let Some(outcome) = outcomes.last() {
                outcome.print(outcomes.len(), total, began.elapsed());
            }
        }
    };
    let prepared = std::thread::scope(|scope| {
        for _ in 0..selection.at_once {
            scope.spawn(worker);
        }
        let runtime = tokio::runtime::Handle::current();
        // The workers above have threads of their own; this one waits for the clusters.
        let prepared = scope.spawn(move || runtime.block_on(prepare(queue, steps))).join();
        let prepared = prepared.unwrap_or_else(|_| Err(Error::refused("starting the shared clusters panicked")));
        if prepared.is_err() {
            queue.stop();
        }
        prepared
    });
    prepared?;
    Ok(outcomes.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Starts the shared clusters that tests need.
async fn prepare(queue: &Queue, steps: &Steps) -> Result<()> {
    let is_root = nix::unistd::Uid::effective().is_root();
    if queue.needs() >= Needs::Programs {
        tools::kwok(steps)?;
        if is_root {
            NodeTools::get(steps)?;
            etcd::programs::Programs::get(steps)?;
        }
        queue.is_ready(Needs::Programs);
    }
    if queue.needs() >= Needs::Light {
        harness::prepare_light(steps).await?;
        queue.is_ready(Needs::Light);
    }
    if queue.needs() >= Needs::Full && is_root {
        harness::prepare_full(steps).await?;
    }
    queue.is_ready(Needs::Full);
    Ok(())
}

/// The timeout of a test. Tests have shorter timeouts of their own, with better messages.
const LIMIT: Duration = Duration::from_secs(2500);
