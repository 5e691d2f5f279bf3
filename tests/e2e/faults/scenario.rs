//! A scenario: a datacenter is created, changed, scaled out and in, loses a node and is deleted, while requests of its
//! operator fail.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use messina_e2e::operator::Operator;
use messina_testbed::faults::{ApiRequest, Fault, Faults};

use super::{
    operator::datacenters,
    snapshots::Snapshot,
    world::{Requests, TestCluster, World, await_no_requests, check_no_requests},
};

/// What the user does in a part of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Phase {
    /// Creates three racks of one node.
    Create,
    /// Changes version and labels; besides, there is an obsolete ConfigMap to be deleted.
    Change,
    /// Adds a node to a rack.
    ScaleOut,
    /// Removes a node from a rack.
    ScaleIn,
    /// Asks for the replacement of a node that is lost for good.
    Replace,
    Delete,
}

impl Phase {
    /// The phases at whose end the datacenter exists.
    pub(crate) const WITH_DATACENTER: [Self; 5] =
        [Self::Create, Self::Change, Self::ScaleOut, Self::ScaleIn, Self::Replace];
}

/// A scenario without faults, with which the others are compared.
#[derive(Debug)]
pub(crate) struct Baseline {
    /// The objects at the end of each phase.
    pub(crate) snapshots: BTreeMap<Phase, Snapshot>,
    /// The writes of each phase.
    pub(crate) writes: BTreeMap<Phase, Vec<Write>>,
}

/// A write, identified by method and path, and by how often the same was written before in its phase. Faults add and
/// remove writes, so its number in the scenario identifies nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Write {
    pub(crate) phase: Phase,
    pub(crate) line: String,
    pub(crate) times: usize,
}

/// Counts writes by method and path.
#[derive(Debug, Default)]
pub(crate) struct Writes(HashMap<(Phase, String), usize>);

impl Writes {
    /// The next write of this line.
    pub(crate) fn next(&self, phase: Phase, line: &str) -> Write {
        let line = without_namespace(line);
        let times = self.0.get(&(phase, line.clone())).copied().unwrap_or(0);
        Write { phase, line, times }
    }

    /// Counts a write that was carried out.
    pub(crate) fn count(&mut self, write: &Write) {
        *self.0.entry((write.phase, write.line.clone())).or_default() += 1;
    }
}

/// Decides which fault a request has, by the request, the phase and the write.
pub(crate) type FaultRule = Box<dyn Fn(&ApiRequest, Phase, Option<&Write>) -> Fault + Send + Sync>;

/// The result of a scenario.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) crashes: usize,
    /// Writes that had a fault.
    pub(crate) hit: Vec<(Write, Fault)>,
}

/// Faults that depend on the phase and on the number of a write in it.
pub(crate) struct PhaseFaults {
    pub(crate) faults: Faults,
    phase: Arc<Mutex<Phase>>,
    log: Arc<Mutex<WriteLog>>,
}

#[derive(Default)]
struct WriteLog {
    writes: Writes,
    /// Each write with its fault.
    log: Vec<(Write, Fault)>,
}

impl PhaseFaults {
    pub(crate) fn new(name: &str, rule: FaultRule) -> Self {
        let phase = Arc::new(Mutex::new(Phase::Create));
        let log = Arc::<Mutex<WriteLog>>::default();
        let (now, shared) = (Arc::clone(&phase), Arc::clone(&log));
        let faults = Faults::named(name, move |asked| {
            let phase = *now.lock().unwrap();
            if asked.write.is_none() {
                return rule(asked, phase, None);
            }
            let mut log = shared.lock().unwrap();
            let write = log.writes.next(phase, &format!("{} {}", asked.method, asked.uri.path()));
            let fault = rule(asked, phase, Some(&write));
            // The operator retries the others.
            let await_done = matches!(fault, Fault::None | Fault::Hold | Fault::CrashAfter | Fault::LoseReply);
            if await_done {
                log.writes.count(&write);
            }
            log.log.push((write, fault));
            fault
        });
        Self { faults, phase, log }
    }

    /// Counts writes for this phase from now on.
    pub(crate) fn begin(&self, phase: Phase) {
        *self.phase.lock().unwrap() = phase;
    }

    /// The writes of each phase.
    fn written(&self) -> BTreeMap<Phase, Vec<Write>> {
        let mut phases = BTreeMap::<Phase, Vec<Write>>::new();
        for (write, _) in &self.log.lock().unwrap().log {
            phases.entry(write.phase).or_default().push(write.clone());
        }
        phases
    }

    /// Writes that had a fault.
    fn hit(&self) -> Vec<(Write, Fault)> {
        self.log.lock().unwrap().log.iter().filter(|(_, fault)| *fault != Fault::None).cloned().collect()
    }
}

/// Method and path of a write without the namespace, in which scenarios differ.
pub(crate) fn without_namespace(line: &str) -> String {
    const BEFORE: &str = "/namespaces/";
    let Some((before, after)) = line.split_once(BEFORE) else { return line.to_owned() };
    let rest = after.find('/').map_or("", |slash| &after[slash..]);
    format!("{before}{BEFORE}NAMESPACE{rest}")
}

/// Runs an operator, again after each crash, until `steps` are done. Returns how often it crashed.
pub(crate) async fn while_running<T>(
    kubeconfig: &Path,
    namespace: &str,
    faults: &Faults,
    steps: impl Future<Output = T>,
) -> (T, usize) {
    let crashes = AtomicUsize::new(0);
    let running = async {
        loop {
            let operator = Operator::start(kubeconfig, namespace, faults, datacenters).await;
            faults.crashed().await;
            drop(operator);
            crashes.fetch_add(1, Ordering::SeqCst);
        }
    };
    let done = tokio::select! {
        never = running => never,
        done = steps => done,
    };
    (done, crashes.load(Ordering::SeqCst))
}

/// Runs a scenario without faults.
pub(crate) async fn run_without_faults(cluster: &TestCluster) -> Baseline {
    let world = World::new(cluster).await;
    let injected = PhaseFaults::new("messina-undisturbed", Box::new(|_, _, _| Fault::None));
    world.watch_writes(&[&injected.faults]);
    let mut snapshots = BTreeMap::new();
    let steps = async {
        for phase in Phase::WITH_DATACENTER {
            let began = Instant::now();
            injected.begin(phase);
            world.begin(phase).await;
            world.await_done(phase).await;
            // The last write may still be in flight.
            await_no_requests(&Requests(vec![&injected.faults])).await;
            check_no_requests(&injected.faults, &world).await;
            snapshots.insert(phase, world.objects.snapshot());
            println!("{phase:?} takes {:.1} s without faults", began.elapsed().as_secs_f64());
        }
        let claims = world.claims().await;
        injected.begin(Phase::Delete);
        world.begin(Phase::Delete).await;
        world.await_only_claims(&claims).await;
        check_no_requests(&injected.faults, &world).await;
    };
    while_running(&cluster.kubeconfig, &world.namespace, &injected.faults, steps).await;
    check_no_harm("undisturbed", &world, &Phase::WITH_DATACENTER, &injected.faults.written());
    world.delete_namespace().await;
    Baseline { snapshots, writes: injected.written() }
}

/// Runs the phases, and checks that each of them ends as in the baseline.
pub(crate) async fn run_phases(
    world: &World,
    baseline: &Baseline,
    name: &str,
    phases: &[Phase],
    is_foreground: bool,
    begin: &(impl Fn(Phase) + Sync),
    requests: &Requests<'_>,
) {
    for &phase in phases {
        begin(phase);
        world.begin(phase).await;
        world.await_done(phase).await;
        // An operator that crashed at its last write still has to write the rest.
        world.await_snapshot(&baseline.snapshots[&phase], &format!("{name}: {phase:?} as without faults")).await;
    }
    await_no_requests(requests).await;
    let claims = world.claims().await;
    begin(Phase::Delete);
    world.delete(is_foreground).await;
    world.await_only_claims(&claims).await;
    await_no_requests(requests).await;
}

/// Runs a scenario with faults, and checks that it ends as the baseline.
pub(crate) async fn run_scenario(
    cluster: &TestCluster,
    baseline: &Baseline,
    name: &str,
    is_foreground: bool,
    rule: FaultRule,
) -> Outcome {
    let world = World::new(cluster).await;
    let injected = PhaseFaults::new(&format!("messina-{name}"), rule);
    world.watch_writes(&[&injected.faults]);
    let requests = Requests(vec![&injected.faults]);
    let begin = |phase| injected.begin(phase);
    let steps = run_phases(&world, baseline, name, &Phase::WITH_DATACENTER, is_foreground, &begin, &requests);
    let ((), crashes) = while_running(&cluster.kubeconfig, &world.namespace, &injected.faults, steps).await;
    check_no_harm(name, &world, &Phase::WITH_DATACENTER, &injected.faults.written());
    let hit = injected.hit();
    world.delete_namespace().await;
    Outcome { crashes, hit }
}

/// Deletes a datacenter while its operator is about to make its n-th write, and checks that only claims are left.
pub(crate) async fn delete_at_write(cluster: &TestCluster, number: usize) {
    let name = format!("deleted-at-{number}");
    let world = World::new(cluster).await;
    let injected = PhaseFaults::new(
        &format!("messina-{name}"),
        Box::new(move |asked, _, _| if asked.write == Some(number) { Fault::Hold } else { Fault::None }),
    );
    let steps = async {
        world.begin(Phase::Create).await;
        injected.faults.held().await;
        world.delete(number.is_multiple_of(2)).await;
        injected.faults.release();
        // The operator still makes the writes that it decided on before; then the garbage collector deletes their
        // objects.
        await_no_requests(&Requests(vec![&injected.faults])).await;
        world.await_nothing_but_claims().await;
        check_no_requests(&injected.faults, &world).await;
    };
    while_running(&cluster.kubeconfig, &world.namespace, &injected.faults, steps).await;
    assert!(world.tokens() <= 1, "{name}: the token has changed");
    world.delete_namespace().await;
}

/// Checks that the token has not changed since it was first stored, and that the operator deleted no pods and claims
/// but those of the lost node.
pub(crate) fn check_no_harm(name: &str, world: &World, phases: &[Phase], written: &[String]) {
    assert_eq!(world.tokens(), 1, "{name}: the token has changed");
    world.check_nodes(name, phases);
    let is_harmful = |line: &&String| {
        let is_of_a_node = line.contains("/pods/") || line.contains("/persistentvolumeclaims/");
        line.starts_with("DELETE ") && is_of_a_node && !World::may_be_deleted(line) || line.contains("/eviction")
    };
    assert_eq!(written.iter().find(is_harmful), None, "{name}");
}
