//! Two operators and one lease: whoever holds it writes, and nobody else, however it changes hands.

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use messina_e2e::operator::Operator;
use messina_runtime::{fence::Fence, lease::Settings};
use messina_testbed::{
    audit::Log,
    faults::{Fault, Faults},
};
use serde_json::Value;
use tokio::sync::Notify;

use super::{
    life::{Phase, Undisturbed, harmless, phases},
    operator::datacenters,
    world::{Ground, PATIENCE, Requests, World},
};

/// So many writes are made between one loss of the lease and the next: enough for whoever leads to get somewhere.
pub(crate) const STRIDE: usize = 13;
/// Short, because each loss is waited for; a holder that renews late on a busy host loses the lease once more, and no harm is done.
const SECONDS: u16 = 4;

/// How the lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// From some write on, nothing of the holder gets to the API server, that write neither. Which one is the first, and
    /// then each one that is [`STRIDE`] later.
    CutOffBefore(usize),
    /// As before, but that write gets there, and its answer is lost.
    CutOffAfter(usize),
    /// At each write the holder is told to end, and gives the lease back.
    GivenBack,
}

/// What two operators have in common.
#[derive(Default)]
struct Common {
    begun: AtomicUsize,
    writes: AtomicUsize,
    /// Writes, each with who made it, and whether it alone had an open fence.
    log: Mutex<Vec<(String, &'static str, bool)>>,
    fences: [Fence; 2],
    is_cut: [AtomicBool; 2],
    /// Somebody is to lose the lease.
    lost: [Notify; 2],
}

const NAMES: [&str; 2] = ["first", "second"];

impl Common {
    /// What happens to a request of one of them.
    fn fault(&self, who: usize, asked: &messina_testbed::faults::Asked, loss: Loss) -> Fault {
        if self.is_cut[who].load(Ordering::SeqCst) {
            return Fault::LoseRequest;
        }
        if asked.write.is_none() {
            return Fault::None;
        }
        let number = self.writes.fetch_add(1, Ordering::SeqCst) - self.begun.load(Ordering::SeqCst);
        let is_alone = self.fences[who].is_open() && !self.fences[1 - who].is_open();
        let line = format!("{} {}", asked.method, asked.uri.path());
        self.log.lock().unwrap().push((line, NAMES[who], is_alone));
        // One of them is always to be reached: else nobody would ever lead again.
        if self.is_cut[1 - who].load(Ordering::SeqCst) {
            return Fault::None;
        }
        let cut_off = |fault| {
            self.is_cut[who].store(true, Ordering::SeqCst);
            self.lost[who].notify_one();
            fault
        };
        match loss {
            Loss::CutOffBefore(first) if number % STRIDE == first => cut_off(Fault::LoseRequest),
            Loss::CutOffAfter(first) if number % STRIDE == first => cut_off(Fault::LoseReply),
            Loss::GivenBack => {
                self.lost[who].notify_one();
                Fault::None
            }
            _ => Fault::None,
        }
    }

    fn written(&self) -> Vec<String> {
        self.log.lock().unwrap().iter().map(|(line, ..)| line.clone()).collect()
    }

    /// Runs one of them for ever, and lets it lose the lease when it is its turn.
    async fn run(self: &Arc<Self>, who: usize, kubeconfig: &Path, world: &World, loss: Loss, faults: &[Faults; 2]) {
        let settings = |life: usize| Settings {
            namespace: world.namespace.clone(),
            name: "leader".into(),
            // No two lives have the same name.
            identity: format!("{}-{life}", NAMES[who]),
            seconds: SECONDS,
        };
        for life in 0.. {
            let [client, lease] = faults;
            let lease = (settings(life), lease, self.fences[who].clone());
            let operator = Operator::start_with(kubeconfig, &world.namespace, client, Some(lease), datacenters).await;
            loop {
                self.lost[who].notified().await;
                if loss == Loss::GivenBack {
                    break;
                }
                // It stays cut off until another one leads.
                while !self.fences[1 - who].is_open() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                self.is_cut[who].store(false, Ordering::SeqCst);
            }
            operator.stops().await;
        }
    }
}

/// A life with two operators ends as an undisturbed one with one. Gives how often the lease changed hands.
pub(crate) async fn life_of_two(
    ground: &Ground,
    like: &Undisturbed,
    name: &str,
    loss: Loss,
    of_life: &[Phase],
) -> usize {
    let world = World::new(ground).await;
    let log = ground.audit_log.clone().map(|file| Log::from_now(file).unwrap());
    let common = Arc::new(Common::default());
    let agents = [0, 1].map(|who| format!("messina-{}-{}", world.namespace, NAMES[who]));
    let faults = [0, 1].map(|who| {
        let (of_client, of_lease) = (Arc::clone(&common), Arc::clone(&common));
        let lease = Faults::named(&agents[who], move |_| {
            if of_lease.is_cut[who].load(Ordering::SeqCst) { Fault::LoseRequest } else { Fault::None }
        });
        [Faults::named(&agents[who], move |asked| of_client.fault(who, asked, loss)), lease]
    });
    let requests = Requests(vec![&faults[0][0], &faults[1][0]]);
    world.watch_writes(&[&faults[0][0], &faults[1][0]]);
    let begin = |_| common.begun.store(common.writes.load(Ordering::SeqCst), Ordering::SeqCst);
    let done = tokio::time::timeout(PATIENCE * 4, async {
        tokio::select! {
            () = common.run(0, &ground.kubeconfig, &world, loss, &faults[0]) => {}
            () = common.run(1, &ground.kubeconfig, &world, loss, &faults[1]) => {}
            () = phases(&world, like, name, of_life, true, &begin, &requests) => {}
        }
    });
    assert!(done.await.is_ok(), "{name}: it does not end");
    for (line, who, is_alone) in common.log.lock().unwrap().iter() {
        assert!(is_alone, "{name}: {who} wrote {line} while its fence was not the only open one");
    }
    harmless(name, &world, of_life, &common.written());
    let changes = log.map_or(0, |log| writers_held_the_lease(name, &log, &agents));
    world.ends().await;
    changes
}

/// By the API server's own log, each write came from whoever held the lease. Gives how often it changed hands.
fn writers_held_the_lease(name: &str, log: &Log, agents: &[String; 2]) -> usize {
    let text = log.text().unwrap();
    let mut requests: Vec<(Timestamp, Value)> = text
        .lines()
        .filter(|line| agents.iter().any(|agent| line.contains(agent.as_str())))
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|entry| !["get", "list", "watch"].contains(&entry["verb"].as_str().unwrap_or_default()))
        .map(|entry| (entry["requestReceivedTimestamp"].as_str().unwrap().parse().unwrap(), entry))
        .collect();
    requests.sort_by_key(|(when, _)| *when);
    let mut holder = String::new();
    let (mut writes, mut changes) = (0, 0);
    for (when, entry) in &requests {
        let agent = entry["userAgent"].as_str().unwrap_or_default();
        let is_lease = entry["objectRef"]["resource"] == "leases";
        let succeeded = entry["responseStatus"]["code"].as_u64().is_some_and(|code| code < 300);
        if is_lease && succeeded {
            let said = entry["requestObject"]["spec"]["holderIdentity"].as_str().unwrap_or_default();
            if !said.is_empty() && said != holder {
                changes += 1;
            }
            holder = said.to_owned();
        } else if !is_lease {
            writes += 1;
            let who = agent.rsplit('-').next().unwrap_or_default();
            let is_holder = holder.split('-').next() == Some(who);
            assert!(
                is_holder,
                "{name}: at {when} {who} wrote, and the lease was {holder:?}'s: {}",
                entry["requestURI"]
            );
        }
    }
    assert!(writes > 0 && changes > 0, "{name}: nothing was found in the audit log");
    changes
}
