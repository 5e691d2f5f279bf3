//! A datacenter's life: it is created, changed and deleted, nodes come, go and are lost, while its operator is troubled.

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
use messina_testbed::faults::{Asked, Fault, Faults};

use super::{
    operator::datacenters,
    snapshots::Snapshot,
    world::{Ground, Requests, World, becomes_silent, silence},
};

/// What the user wants of the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Phase {
    /// Three racks of one node.
    Create,
    /// Another version and a label; and there is something to be removed.
    Change,
    /// One node more.
    ScaleOut,
    /// One node less.
    ScaleIn,
    /// A node is lost for good.
    Replace,
    Delete,
}

impl Phase {
    /// Those at whose end there is a datacenter.
    pub(crate) const OF_LIFE: [Self; 5] = [Self::Create, Self::Change, Self::ScaleOut, Self::ScaleIn, Self::Replace];
}

/// What an undisturbed life looks like.
#[derive(Debug)]
pub(crate) struct Undisturbed {
    /// What there is at the end of each phase.
    pub(crate) snapshots: BTreeMap<Phase, Snapshot>,
    /// What was written in each phase.
    pub(crate) writes: BTreeMap<Phase, Vec<Write>>,
}

/// A write: by what it writes, and how often that was written before in its phase. Trouble adds and takes away others, so
/// that its number in the life says nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Write {
    pub(crate) phase: Phase,
    pub(crate) line: String,
    pub(crate) times: usize,
}

/// Counts what is written.
#[derive(Debug, Default)]
pub(crate) struct Writes(HashMap<(Phase, String), usize>);

impl Writes {
    /// The next write of this line.
    pub(crate) fn next(&self, phase: Phase, line: &str) -> Write {
        let line = without_namespace(line);
        let times = self.0.get(&(phase, line.clone())).copied().unwrap_or(0);
        Write { phase, line, times }
    }

    /// It is done.
    pub(crate) fn count(&mut self, write: &Write) {
        *self.0.entry((write.phase, write.line.clone())).or_default() += 1;
    }
}

/// Which trouble an operator has. It is asked about every request, with the phase and what is written.
pub(crate) type Trouble = Box<dyn Fn(&Asked, Phase, Option<&Write>) -> Fault + Send + Sync>;

/// What came of a life.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) crashes: usize,
    /// Writes that something happened to.
    pub(crate) hit: Vec<(Write, Fault)>,
}

/// Faults that know which write of its phase a request is.
pub(crate) struct Troubled {
    pub(crate) faults: Faults,
    phase: Arc<Mutex<Phase>>,
    told: Arc<Mutex<TroubleTold>>,
}

#[derive(Default)]
struct TroubleTold {
    writes: Writes,
    /// Each with what happened to it.
    log: Vec<(Write, Fault)>,
}

impl Troubled {
    pub(crate) fn new(name: &str, trouble: Trouble) -> Self {
        let phase = Arc::new(Mutex::new(Phase::Create));
        let told = Arc::<Mutex<TroubleTold>>::default();
        let (now, log) = (Arc::clone(&phase), Arc::clone(&told));
        let faults = Faults::named(name, move |asked| {
            let phase = *now.lock().unwrap();
            if asked.write.is_none() {
                return trouble(asked, phase, None);
            }
            let mut told = log.lock().unwrap();
            let write = told.writes.next(phase, &format!("{} {}", asked.method, asked.uri.path()));
            let fault = trouble(asked, phase, Some(&write));
            // What did not happen is tried again.
            let is_done = matches!(fault, Fault::None | Fault::Hold | Fault::CrashAfter | Fault::LoseReply);
            if is_done {
                told.writes.count(&write);
            }
            told.log.push((write, fault));
            fault
        });
        Self { faults, phase, told }
    }

    /// Writes are of this phase from here on.
    pub(crate) fn begin(&self, phase: Phase) {
        *self.phase.lock().unwrap() = phase;
    }

    /// What was written.
    fn written(&self) -> BTreeMap<Phase, Vec<Write>> {
        let mut phases = BTreeMap::<Phase, Vec<Write>>::new();
        for (write, _) in &self.told.lock().unwrap().log {
            phases.entry(write.phase).or_default().push(write.clone());
        }
        phases
    }

    /// Writes that something happened to.
    fn hit(&self) -> Vec<(Write, Fault)> {
        self.told.lock().unwrap().log.iter().filter(|(_, fault)| *fault != Fault::None).cloned().collect()
    }
}

/// What is written, whichever life it is of.
pub(crate) fn without_namespace(line: &str) -> String {
    const BEFORE: &str = "/namespaces/";
    let Some((before, after)) = line.split_once(BEFORE) else { return line.to_owned() };
    let rest = after.find('/').map_or("", |slash| &after[slash..]);
    format!("{before}{BEFORE}NAMESPACE{rest}")
}

/// Runs an operator, again after each crash, while `deeds` are done. Gives how often it crashed.
pub(crate) async fn while_running<T>(
    kubeconfig: &Path,
    namespace: &str,
    faults: &Faults,
    deeds: impl Future<Output = T>,
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
        done = deeds => done,
    };
    (done, crashes.load(Ordering::SeqCst))
}

/// An undisturbed life.
pub(crate) async fn undisturbed(ground: &Ground) -> Undisturbed {
    let world = World::new(ground).await;
    let troubled = Troubled::new("messina-undisturbed", Box::new(|_, _, _| Fault::None));
    world.watch_writes(&[&troubled.faults]);
    let mut snapshots = BTreeMap::new();
    let deeds = async {
        for phase in Phase::OF_LIFE {
            let began = Instant::now();
            troubled.begin(phase);
            world.begin(phase).await;
            world.is_done(phase).await;
            // Its last word may be on its way.
            becomes_silent(&Requests(vec![&troubled.faults])).await;
            silence(&troubled.faults, &world).await;
            snapshots.insert(phase, world.objects.snapshot());
            println!("{phase:?} takes {:.1} s without trouble", began.elapsed().as_secs_f64());
        }
        let claims = world.claims().await;
        troubled.begin(Phase::Delete);
        world.begin(Phase::Delete).await;
        world.keeps_only_claims(&claims).await;
        silence(&troubled.faults, &world).await;
    };
    while_running(&ground.kubeconfig, &world.namespace, &troubled.faults, deeds).await;
    harmless("undisturbed", &world, &Phase::OF_LIFE, &troubled.faults.written());
    world.ends().await;
    Undisturbed { snapshots, writes: troubled.written() }
}

/// A life ends, in each of its phases, as an undisturbed one.
pub(crate) async fn phases(
    world: &World,
    like: &Undisturbed,
    name: &str,
    of_life: &[Phase],
    is_foreground: bool,
    begin: &(impl Fn(Phase) + Sync),
    requests: &Requests<'_>,
) {
    for &phase in of_life {
        begin(phase);
        world.begin(phase).await;
        world.is_done(phase).await;
        // An operator that crashed at its last word has still to catch up when all is done.
        world.becomes(&like.snapshots[&phase], &format!("{name}: {phase:?} as without trouble")).await;
    }
    becomes_silent(requests).await;
    let claims = world.claims().await;
    begin(Phase::Delete);
    world.delete(is_foreground).await;
    world.keeps_only_claims(&claims).await;
    becomes_silent(requests).await;
}

/// A life with trouble ends as one without.
pub(crate) async fn life(
    ground: &Ground,
    like: &Undisturbed,
    name: &str,
    is_foreground: bool,
    trouble: Trouble,
) -> Told {
    let world = World::new(ground).await;
    let troubled = Troubled::new(&format!("messina-{name}"), trouble);
    world.watch_writes(&[&troubled.faults]);
    let requests = Requests(vec![&troubled.faults]);
    let begin = |phase| troubled.begin(phase);
    let deeds = phases(&world, like, name, &Phase::OF_LIFE, is_foreground, &begin, &requests);
    let ((), crashes) = while_running(&ground.kubeconfig, &world.namespace, &troubled.faults, deeds).await;
    harmless(name, &world, &Phase::OF_LIFE, &troubled.faults.written());
    let hit = troubled.hit();
    world.ends().await;
    Told { crashes, hit }
}

/// A datacenter that is deleted while its operator is about to make its n-th write leaves nothing behind but claims.
pub(crate) async fn deleted_at(ground: &Ground, number: usize) {
    let name = format!("deleted-at-{number}");
    let world = World::new(ground).await;
    let troubled = Troubled::new(
        &format!("messina-{name}"),
        Box::new(move |asked, _, _| if asked.write == Some(number) { Fault::Hold } else { Fault::None }),
    );
    let deeds = async {
        world.begin(Phase::Create).await;
        troubled.faults.held().await;
        world.delete(number.is_multiple_of(2)).await;
        troubled.faults.release();
        // What was decided before is still done, and collected as garbage then.
        becomes_silent(&Requests(vec![&troubled.faults])).await;
        world.keeps_nothing_but_claims().await;
        silence(&troubled.faults, &world).await;
    };
    while_running(&ground.kubeconfig, &world.namespace, &troubled.faults, deeds).await;
    assert!(world.tokens() <= 1, "{name}: the token has changed");
    world.ends().await;
}

/// The token is what it was when it was first stored, and the operator deleted no pod or claim but those of the node that
/// was lost.
pub(crate) fn harmless(name: &str, world: &World, of_life: &[Phase], written: &[String]) {
    assert_eq!(world.tokens(), 1, "{name}: the token has changed");
    world.check_nodes(name, of_life);
    let is_harmful = |line: &&String| {
        let is_of_a_node = line.contains("/pods/") || line.contains("/persistentvolumeclaims/");
        line.starts_with("DELETE ") && is_of_a_node && !World::may_be_deleted(line) || line.contains("/eviction")
    };
    assert_eq!(written.iter().find(is_harmful), None, "{name}");
}
