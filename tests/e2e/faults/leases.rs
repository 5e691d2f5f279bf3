//! Two operators and one lease: only the holder writes, however the lease changes its holder.

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
    operator::datacenters,
    scenario::{Baseline, Phase, check_no_harm, run_phases},
    world::{Requests, TIMEOUT, TestCluster, World},
};

/// How many writes lie between one loss of the lease and the next: enough for the leader to make progress.
pub(crate) const STRIDE: usize = 13;
/// The duration of the lease. It is short, because the test waits for each loss; a holder that renews late on a busy
/// host loses the lease once more, which does no harm.
const SECONDS: u16 = 4;

/// How the lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The holder's requests no longer reach the API server, beginning with this write, and again with every write that
    /// is [`STRIDE`] later.
    CutOffBefore(usize),
    /// As before, but the write is carried out and its response is lost.
    CutOffAfter(usize),
    /// At each write the holder is asked to stop, and releases the lease.
    GivenBack,
}

/// The state that two operators share.
#[derive(Default)]
struct TwoOperators {
    begun: AtomicUsize,
    writes: AtomicUsize,
    /// Writes, each with the operator that made it, and whether only its fence was open.
    log: Mutex<Vec<(String, &'static str, bool)>>,
    fences: [Fence; 2],
    is_cut: [AtomicBool; 2],
    /// Notified when an operator is to lose the lease.
    lost: [Notify; 2],
}

const NAMES: [&str; 2] = ["first", "second"];

impl TwoOperators {
    /// The fault of a request of an operator.
    fn fault(&self, who: usize, asked: &messina_testbed::faults::ApiRequest, loss: Loss) -> Fault {
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
        // One operator can always reach the API server: otherwise neither would ever lead again.
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
        let settings = |start: usize| Settings {
            namespace: world.namespace.clone(),
            name: "leader".into(),
            // Each start has another identity.
            identity: format!("{}-{start}", NAMES[who]),
            seconds: SECONDS,
        };
        for start in 0.. {
            let [client, lease] = faults;
            let lease = (settings(start), lease, self.fences[who].clone());
            let operator = Operator::start_with(kubeconfig, &world.namespace, client, Some(lease), datacenters).await;
            loop {
                self.lost[who].notified().await;
                if loss == Loss::GivenBack {
                    break;
                }
                // It stays cut off until the other operator leads.
                while !self.fences[1 - who].is_open() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                self.is_cut[who].store(false, Ordering::SeqCst);
            }
            operator.stops().await;
        }
    }
}

/// Runs a scenario with two operators, and checks that it ends as the baseline. Returns how often the lease changed its
/// holder.
pub(crate) async fn run_with_two_operators(
    cluster: &TestCluster,
    baseline: &Baseline,
    name: &str,
    loss: Loss,
    phases: &[Phase],
) -> usize {
    let world = World::new(cluster).await;
    let log = cluster.audit_log.clone().map(|file| Log::from_now(file).unwrap());
    let shared = Arc::new(TwoOperators::default());
    let agents = [0, 1].map(|who| format!("messina-{}-{}", world.namespace, NAMES[who]));
    let faults = [0, 1].map(|who| {
        let (of_client, of_lease) = (Arc::clone(&shared), Arc::clone(&shared));
        let lease = Faults::named(&agents[who], move |_| {
            if of_lease.is_cut[who].load(Ordering::SeqCst) { Fault::LoseRequest } else { Fault::None }
        });
        [Faults::named(&agents[who], move |asked| of_client.fault(who, asked, loss)), lease]
    });
    let requests = Requests(vec![&faults[0][0], &faults[1][0]]);
    world.watch_writes(&[&faults[0][0], &faults[1][0]]);
    let begin = |_| shared.begun.store(shared.writes.load(Ordering::SeqCst), Ordering::SeqCst);
    let done = tokio::time::timeout(TIMEOUT * 4, async {
        tokio::select! {
            () = shared.run(0, &cluster.kubeconfig, &world, loss, &faults[0]) => {}
            () = shared.run(1, &cluster.kubeconfig, &world, loss, &faults[1]) => {}
            () = run_phases(&world, baseline, name, phases, true, &begin, &requests) => {}
        }
    });
    assert!(done.await.is_ok(), "{name}: it does not end");
    for (line, who, is_alone) in shared.log.lock().unwrap().iter() {
        assert!(is_alone, "{name}: {who} wrote {line} while its fence was not the only open one");
    }
    check_no_harm(name, &world, phases, &shared.written());
    let changes = log.map_or(0, |log| check_writers_held_the_lease(name, &log, &agents));
    world.delete_namespace().await;
    changes
}

/// Checks by the audit log that each write came from the holder of the lease. Returns how often the holder changed.
fn check_writers_held_the_lease(name: &str, log: &Log, agents: &[String; 2]) -> usize {
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
                "{name}: at {when} {who} wrote while {holder:?} held the lease: {}",
                entry["requestURI"]
            );
        }
    }
    assert!(writes > 0 && changes > 0, "{name}: nothing was found in the audit log");
    changes
}
