//! A datacenter's life: it is created, changed and deleted, while its operator is troubled.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use kube::Client;
use messina_e2e::operator::Operator;
use messina_testbed::{
    faults::{Asked, Fault, Faults},
    harness,
};

use crate::{
    operator::datacenters,
    world::{Picture, World, becomes_silent, kubeconfig, silence},
};

/// What the user wants of the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Create,
    Change,
    Delete,
}

/// What an undisturbed life looks like.
#[derive(Debug)]
pub(crate) struct Undisturbed {
    pub(crate) created: Picture,
    pub(crate) changed: Picture,
    /// What was written in each phase.
    pub(crate) writes: BTreeMap<Phase, Vec<String>>,
}

/// Which trouble an operator has. It is asked about every request, with the number of the write within its phase.
pub(crate) type Trouble = Box<dyn Fn(&Asked, Option<usize>) -> Fault + Send + Sync>;

/// What came of a life.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) crashes: usize,
    /// Writes that something happened to.
    pub(crate) hit: Vec<String>,
}

/// Faults that know where in its phase a write is.
pub(crate) struct Troubled {
    pub(crate) faults: Faults,
    begun: Arc<AtomicUsize>,
    hit: Arc<Mutex<Vec<String>>>,
}

impl Troubled {
    pub(crate) fn new(name: &str, trouble: Trouble) -> Self {
        let begun = Arc::new(AtomicUsize::new(0));
        let hit = Arc::<Mutex<Vec<String>>>::default();
        let (start, hits) = (Arc::clone(&begun), Arc::clone(&hit));
        let faults = Faults::named(name, move |asked| {
            let number = asked.write.map(|write| write - start.load(Ordering::SeqCst));
            let fault = trouble(asked, number);
            if asked.write.is_some() && fault != Fault::None {
                hits.lock().unwrap().push(format!("{} {}", asked.method, asked.uri.path()));
            }
            fault
        });
        Self { faults, begun, hit }
    }

    /// Writes are counted from here.
    pub(crate) fn begin(&self) {
        self.begun.store(self.faults.writes(), Ordering::SeqCst);
    }

    /// What was written since [`Self::begin`], without the namespace.
    fn written(&self) -> Vec<String> {
        let all = self.faults.written();
        all[self.begun.load(Ordering::SeqCst)..].iter().map(|line| without_namespace(line)).collect()
    }

    pub(crate) fn hit(&self) -> Vec<String> {
        self.hit.lock().unwrap().iter().map(|line| without_namespace(line)).collect()
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
pub(crate) async fn undisturbed() -> Undisturbed {
    let client = harness::client(&kubeconfig().await).await.unwrap();
    let world = World::new(&client).await;
    let troubled = Troubled::new("messina-undisturbed", Box::new(|_, _| Fault::None));
    let mut pictures = Vec::new();
    let mut writes = BTreeMap::new();
    let deeds = async {
        for phase in [Phase::Create, Phase::Change] {
            troubled.begin();
            match phase {
                Phase::Create => world.create().await,
                _ => world.change().await,
            }
            world.is_done().await;
            silence(|| troubled.faults.requested(), &world).await;
            pictures.push(world.picture().await);
            writes.insert(phase, troubled.written());
        }
        let claims = world.claims().await;
        troubled.begin();
        world.delete(true).await;
        world.keeps_only_claims(&claims).await;
        silence(|| troubled.faults.requested(), &world).await;
        writes.insert(Phase::Delete, troubled.written());
    };
    while_running(&kubeconfig().await, &world.namespace, &troubled.faults, deeds).await;
    assert_eq!(world.tokens(), 1);
    world.ends().await;
    let changed = pictures.pop().unwrap();
    Undisturbed { created: pictures.pop().unwrap(), changed, writes }
}

/// A life ends, in each of its phases, as an undisturbed one.
pub(crate) async fn phases(
    world: &World,
    like: &Undisturbed,
    name: &str,
    is_foreground: bool,
    begin: &(impl Fn() + Sync),
    requested: &(impl Fn() -> Vec<String> + Sync),
) {
    begin();
    world.create().await;
    world.is_done().await;
    // An operator that crashed at its last word has still to catch up when all is done.
    world.becomes(&like.created, &format!("{name}: created as without trouble")).await;
    becomes_silent(requested).await;
    begin();
    world.change().await;
    world.is_done().await;
    world.becomes(&like.changed, &format!("{name}: changed as without trouble")).await;
    becomes_silent(requested).await;
    let claims = world.claims().await;
    begin();
    world.delete(is_foreground).await;
    world.keeps_only_claims(&claims).await;
    becomes_silent(requested).await;
}

/// A life with trouble ends as one without.
pub(crate) async fn life(
    client: &Client,
    like: &Undisturbed,
    name: &str,
    is_foreground: bool,
    trouble: Trouble,
) -> Told {
    let world = World::new(client).await;
    let troubled = Troubled::new(&format!("messina-{name}"), trouble);
    let requested = || troubled.faults.requested();
    let begin = || troubled.begin();
    let deeds = phases(&world, like, name, is_foreground, &begin, &requested);
    let ((), crashes) = while_running(&kubeconfig().await, &world.namespace, &troubled.faults, deeds).await;
    harmless(name, &world, &troubled.faults.written());
    let hit = troubled.hit();
    world.ends().await;
    Told { crashes, hit }
}

/// A datacenter that is deleted while its operator is about to make its n-th write leaves nothing behind but claims.
pub(crate) async fn deleted_at(client: &Client, number: usize) {
    let name = format!("deleted-at-{number}");
    let world = World::new(client).await;
    let troubled = Troubled::new(
        &format!("messina-{name}"),
        Box::new(move |_, write| if write == Some(number) { Fault::Hold } else { Fault::None }),
    );
    let deeds = async {
        world.create().await;
        troubled.faults.held().await;
        world.delete(number.is_multiple_of(2)).await;
        troubled.faults.release();
        // What was decided before is still done, and collected as garbage then.
        becomes_silent(|| troubled.faults.requested()).await;
        world.keeps_nothing_but_claims().await;
        silence(|| troubled.faults.requested(), &world).await;
    };
    while_running(&kubeconfig().await, &world.namespace, &troubled.faults, deeds).await;
    assert!(world.tokens() <= 1, "{name}: the token has changed");
    world.ends().await;
}

/// The token is what it was when it was first stored, and no pod or claim was deleted by the operator.
pub(crate) fn harmless(name: &str, world: &World, written: &[String]) {
    assert_eq!(world.tokens(), 1, "{name}: the token has changed");
    let is_harmful = |line: &&String| {
        line.starts_with("DELETE ") && (line.contains("/pods/") || line.contains("/persistentvolumeclaims/"))
            || line.contains("/eviction")
    };
    assert_eq!(written.iter().find(is_harmful), None, "{name}");
}
