//! A test run: the test programs of the workspace, side by side, and what each test costs.
//!
//! Programs of unit tests run as they are. Of the end-to-end tests, each runs in a process of its own, so that it can be
//! started when its turn is and its processor time is known. `docs/internals/testing.md` says which tests belong to which
//! tier.

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
    error::{Doing, Error, Result},
    etcd, exec, harness,
    patience::Moment,
    progress::Steps,
    tools::{self, NodeTools},
};
use costs::{Cost, Costs};
use process::{Ending, Outcome};
use programs::Program;

/// The clusters that tests of a run share, and that are removed at its end.
const SHARED_CLUSTERS: [&str; 2] = [harness::LIGHT, harness::FULL];

/// How the names of tests of the testbed itself begin.
const SELFTESTS: &str = "testbed::";

/// How many worlds the model of a datacenter is run in by the quick tier, of the 50 that the slow tier completes.
const QUICK_WORLDS: &str = "10";

/// What the slow tier runs once more, with more of what chance brings.
const MORE_CHANCES: [MoreChances; 4] = [
    MoreChances {
        what: "40 more worlds",
        program: "plan datacenter",
        tests: &["chance::whatever_happens_no_data_is_lost_and_it_ends_as_a_fresh_deployment"],
        variables: &[("MESSINA_FIRST_WORLD", QUICK_WORLDS), ("MESSINA_WORLDS", "40")],
    },
    MoreChances {
        what: "properties in 10 times as many cases",
        program: "plan datacenter",
        tests: &["properties::whatever_happens", "certificates::properties::whatever_happens"],
        variables: &TEN_TIMES_AS_MANY,
    },
    MoreChances {
        what: "properties in 10 times as many cases",
        program: "plan unit",
        tests: &[
            "etcd_task::decide::tests::every_task_ends",
            "etcd_task::defragment::tests::whoever_leads_when_all_get_their_turn_once",
            "quantity::tests::no_text_is_too_odd",
            "quantity::tests::the_form_of_a_form_is_itself",
        ],
        variables: &TEN_TIMES_AS_MANY,
    },
    MoreChances {
        what: "properties in 10 times as many cases",
        program: "runtime unit",
        tests: &["queue::tests::no_order_of_events_loses_an_object_or_gives_it_out_twice"],
        variables: &TEN_TIMES_AS_MANY,
    },
];

/// Each property says which part of the usual 256 cases it has.
const TEN_TIMES_AS_MANY: [(&str, &str); 1] = [("PROPTEST_CASES", "2560")];

struct MoreChances {
    what: &'static str,
    program: &'static str,
    tests: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
}

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Selection {
    /// The slow tier, too.
    pub slow: bool,
    /// Tests of the testbed itself, also where nothing has changed since they passed.
    pub selftests: bool,
    /// Only tests whose name contains this text.
    pub only: Option<String>,
    /// How many tests go on at once.
    pub at_once: usize,
    /// Leaves the shared clusters running.
    pub keep: bool,
}

/// Something that is run, in a process of its own.
#[derive(Clone, Debug)]
struct Item {
    name: String,
    /// Whether it is of the slow tier.
    is_slow: bool,
    program: Program,
    arguments: Vec<String>,
    variables: Vec<(&'static str, &'static str)>,
    needs: Needs,
    /// How many places it takes: scenarios of faults go on side by side in one test.
    weight: usize,
}

impl MoreChances {
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

/// What has to be there before a test begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Needs {
    Nothing,
    /// The programs of clusters, which a new host builds for many minutes.
    Programs,
    /// The light cluster that tests share.
    Light,
    /// The cluster with Kubernetes nodes that tests share.
    Full,
}

impl Needs {
    /// What an end-to-end test needs, by the first part of its name. A wrong answer fails the test: it finds no cluster.
    fn of(test: &str) -> Self {
        match test.split("::").next() {
            Some("observer") => Self::Nothing,
            Some("faults" | "hostile") => Self::Programs,
            Some("datacenter") if test.contains("::slow::") => Self::Programs,
            Some("fields" | "takeover") if !test.contains("::nodes::") => Self::Light,
            Some(
                "certificates" | "datacenter" | "fields" | "life" | "policies" | "recovery" | "settings" | "takeover"
                | "testbed" | "upgrade" | "volumes",
            ) => Self::Full,
            _ => Self::Light,
        }
    }
}

/// How many of eight places an end-to-end test takes, by how busy it keeps two processors.
fn weight_of(test: &str) -> usize {
    match test {
        _ if test.starts_with("faults::slow::") => 6,
        _ if test.starts_with("faults::") || test.starts_with(SELFTESTS) || test.contains("::slow::") => 2,
        _ => 1,
    }
}

/// Runs tests, prints what each of them cost, and fails if one of them did.
pub async fn run(selection: &Selection, steps: &Steps) -> Result<()> {
    // Two runs would use the same clusters, with the images of the later one.
    let _lock = Lock::take(&lock_file()?, steps, "running tests")?;
    end_when_told()?;
    // What an interrupted run has left.
    cluster::remove_those_of_tests(&[])?;
    let began = Moment::now();
    // Before anything is built: what is changed meanwhile counts as changed.
    let selftests = selftests::State::read(selection.slow)?;
    let programs = programs::built()?;
    if !programs.iter().any(Program::is_end_to_end) {
        return Err(Error::refused("cargo has built no end-to-end tests"));
    }
    let (items, left_out) = items(selection, &programs, &selftests)?;
    if items.is_empty() {
        return Err(Error::refused(format!(
            "no selected test has a name that contains {:?}; {left_out} tests of the testbed are left out because it has not \
             changed since they passed (--selftests runs them)",
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
        costs.shared.extend(cluster::find(name).ok().map(|found| (name.to_owned(), found.processor_time())));
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

/// Ends the run, its tests and its clusters when somebody says so, or when the one who started it has ended: nobody would wait
/// for the rest, and the next run would wait for this one.
fn end_when_told() -> Result<()> {
    set_pdeathsig(Signal::SIGTERM).doing(|| "asking to be told of the end of what started this run".into())?;
    let listen = |kind| signal(kind).doing(|| "listening for signals".into());
    let (mut stop, mut hang_up) = (listen(SignalKind::terminate())?, listen(SignalKind::hangup())?);
    let mut interrupt = listen(SignalKind::interrupt())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = stop.recv() => {}
            _ = hang_up.recv() => {}
            _ = interrupt.recv() => {}
        }
        eprintln!("the run is stopped: its clusters are removed");
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

/// Removes the clusters that tests share, and those that interrupted tests have left.
pub fn remove_clusters() -> Result<()> {
    let _lock = Lock::try_take(&lock_file()?)?
        .map_err(|holder| Error::refused(format!("tests are running ({holder}): wait for their end")))?;
    cluster::remove_those_of_tests(&SHARED_CLUSTERS)
}

/// What is selected, and how much is left out because nothing that it tests has changed.
fn items(selection: &Selection, programs: &[Program], selftests: &selftests::State) -> Result<(Vec<Item>, usize)> {
    let (mut items, mut left_out) = (Vec::new(), 0);
    for program in programs {
        if !program.is_end_to_end() {
            items.push(Item {
                name: program.name.clone(),
                is_slow: false,
                program: program.clone(),
                // What a test says when it skips is then in the log.
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
    for more in MORE_CHANCES.iter().filter(|_| selection.slow) {
        items.push(more.item(programs)?);
    }
    items.retain(|item| selection.only.as_ref().is_none_or(|only| item.name.contains(only)));
    Ok((items, left_out))
}

/// The quick tier before the slow one, whose exhaustive tests take all processors, and in each those that took longest the
/// last time first: what begins last should end soon.
fn sorted(mut items: Vec<Item>, last: &HashMap<String, Cost>) -> Vec<Item> {
    // Of a first run it is not known; the longest are among the slow ones and the datacenters.
    let guess = |item: &Item| {
        let is_long =
            ["slow::", "etcd::", "life::", "faults::", "datacenter", "volumes", "upgrade", "certificates", "sim"];
        if is_long.iter().any(|part| item.name.contains(part)) { 100.0 } else { 10.0 }
    };
    let seconds = |item: &Item| last.get(&item.name).map_or_else(|| guess(item), |cost| cost.wall);
    items.sort_by(|one, other| one.is_slow.cmp(&other.is_slow).then(seconds(other).total_cmp(&seconds(one))));
    items
}

/// What is still to be run.
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    items: Vec<Item>,
    /// Places that are free.
    free: usize,
    /// What is there of the clusters that tests share.
    ready: Needs,
    /// The shared clusters failed to start, so no further test begins.
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

    /// The most that any of them needs.
    fn needs(&self) -> Needs {
        self.state().items.iter().map(|item| item.needs).max().unwrap_or(Needs::Nothing)
    }

    /// So much is there now.
    fn is_ready(&self, ready: Needs) {
        self.state().ready = ready;
        self.changed.notify_all();
    }

    /// An item has ended, and its places are free.
    fn ended(&self, item: &Item) {
        self.state().free += item.weight;
        self.changed.notify_all();
    }

    /// Begins nothing more.
    fn stop(&self) {
        self.state().failed = true;
        self.changed.notify_all();
    }

    /// The next one that can be run now; waits for clusters where only they are missing.
    fn next(&self) -> Option<Item> {
        let mut state = self.state();
        loop {
            let ready = state.ready;
            match state.items.iter().position(|item| item.needs <= ready) {
                _ if state.failed => return None,
                // One that does not fit is not passed over: it would wait until all others are done.
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

/// Runs everything in the queue. Tests without clusters go on while these are started.
async fn work(queue: &Queue, selection: &Selection, logs: &Path, steps: &Steps) -> Result<Vec<Outcome>> {
    let outcomes = Mutex::new(Vec::new());
    let (began, total) = (Instant::now(), queue.state().items.len());
    let worker = || {
        while let Some(item) = queue.next() {
            let outcome = process::run(&item, logs);
            queue.ended(&item);
            let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
            outcomes.push(outcome);
            // Borrowed again, because it is shown where all can see how far the run is.
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

/// Starts the shared clusters that are needed.
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

/// The longest that any test may take, so that one that hangs does not hold up the others for ever.
/// Tests have limits of their own, which are shorter and say more.
const LIMIT: Duration = Duration::from_secs(2500);
