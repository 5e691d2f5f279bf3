//! Somebody who watches a datacenter and knows nothing of the operator's code: what is written to the API server, from its
//! audit log, and who owns tokens, from what the nodes have on their disks. Whatever is written is held against a few
//! rules (see [`rules`]).
//!
//! A write is judged when two looks at the nodes lie around it, and against the operator only if the later one
//! confirms it: a node that has left never comes back, so one that owns tokens afterwards owned them before.

pub mod log;
pub mod rules;

use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{PersistentVolumeClaim, Pod},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    core::NamespaceResourceScope,
    runtime::{
        WatchStreamExt,
        reflector::{self, Store},
        watcher,
    },
};
use messina_scylla_sim::{
    disk::{Bootstrapped, Disk as Folder},
    membership::Status,
};
use messina_testbed::{cluster::Cluster, harness};
use serde::de::DeserializeOwned;

use crate::{datacenter::NODE_PODS, well};
use log::{Log, Write};
use rules::{Counts, Disk, Judge, PodSeen, Sample, Stage, Violation};

/// Which of the machine's nodes a claim's volume is on.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// What came of observing.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// What was seen, so that it can be told whether there was anything to see.
    pub counts: Counts,
    /// Looks at the nodes.
    pub looks: usize,
    /// The longest time from one look to the next.
    pub longest_gap: Duration,
    /// The rules that were broken.
    pub violations: Vec<Violation>,
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gap = self.longest_gap.as_secs_f64();
        write!(f, "{}; {} looks at the nodes, {gap:.1} s apart at most", self.counts, self.looks)?;
        self.violations.iter().try_for_each(|violation| write!(f, "\n{violation}"))
    }
}

/// One who observes the datacenters of a namespace, on a thread of its own.
#[derive(Debug)]
pub struct Observer {
    is_over: Arc<AtomicBool>,
    findings: Arc<Mutex<Findings>>,
    thread: Option<JoinHandle<()>>,
}

impl Observer {
    /// Starts observing; nothing of the datacenter is there yet.
    pub fn start(cluster: &Cluster, namespace: &str) -> Self {
        let (is_over, findings) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Findings>>::default());
        let watch = Watch {
            cluster: cluster.clone(),
            namespace: namespace.into(),
            log: Log::from_now(cluster.audit_log(), namespace),
            is_over: Arc::clone(&is_over),
            findings: Arc::clone(&findings),
        };
        let thread = std::thread::spawn(move || {
            let runtime = well(tokio::runtime::Builder::new_current_thread().enable_all().build());
            runtime.block_on(watch.run());
        });
        Self { is_over, findings, thread: Some(thread) }
    }

    /// What was found up to now; no rule was broken.
    pub fn is_content(&self) -> Findings {
        assert!(!self.thread.as_ref().is_none_or(JoinHandle::is_finished), "the observer has ended before its time");
        let findings = self.findings.lock().unwrap_or_else(PoisonError::into_inner).clone();
        assert!(findings.violations.is_empty(), "{findings}");
        findings
    }

    /// Ends it. No rule was broken.
    pub fn ends(mut self) -> Findings {
        let findings = self.is_content();
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            assert!(thread.join().is_ok(), "the observer could not go on");
        }
        let last = self.findings.lock().unwrap_or_else(PoisonError::into_inner).clone();
        assert!(last.violations.is_empty() && last.looks >= findings.looks, "{last}");
        last
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        let findings = self.findings.lock().unwrap_or_else(PoisonError::into_inner);
        if std::thread::panicking() && !findings.violations.is_empty() {
            eprintln!("the observer: {findings}");
        }
    }
}

struct Watch {
    cluster: Cluster,
    namespace: String,
    log: Log,
    is_over: Arc<AtomicBool>,
    findings: Arc<Mutex<Findings>>,
}

impl Watch {
    async fn run(mut self) {
        let client = well(harness::client(&self.cluster.kubeconfig()).await);
        let pods = watched::<Pod>(&client, &self.namespace, Some(NODE_PODS)).await;
        let claims = watched::<PersistentVolumeClaim>(&client, &self.namespace, None).await;
        let budgets = watched::<PodDisruptionBudget>(&client, &self.namespace, None).await;
        let mut judge = Judge::default();
        let mut before = Sample::default();
        let mut waiting: Vec<Write> = Vec::new();
        loop {
            // The last look comes after the end, so that all that was written before is judged.
            let is_last = self.is_over.load(Ordering::SeqCst);
            let after = self.look(&pods, &claims, &budgets);
            waiting.extend(self.log.more());
            waiting.sort_by_key(|write| write.answered);
            let later = waiting.split_off(waiting.partition_point(|write| write.answered <= after.began));
            let violations = judge.judge(&before, &after, &waiting);
            waiting = later;
            self.note(&judge, &before, &after, violations);
            if is_last {
                return;
            }
            before = after;
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn note(&self, judge: &Judge, before: &Sample, after: &Sample, violations: Vec<Violation>) {
        let mut findings = self.findings.lock().unwrap_or_else(PoisonError::into_inner);
        for violation in &violations {
            eprintln!("the observer: {violation}");
        }
        findings.violations.extend(violations);
        findings.counts = judge.counts.clone();
        if findings.looks > 0 {
            let gap = Duration::try_from(after.ended.duration_since(before.began)).unwrap_or_default();
            findings.longest_gap = findings.longest_gap.max(gap);
        }
        findings.looks += 1;
    }

    fn look(
        &self,
        pods: &Store<Pod>,
        claims: &Store<PersistentVolumeClaim>,
        budgets: &Store<PodDisruptionBudget>,
    ) -> Sample {
        let began = Timestamp::now();
        let pods = pods.state().iter().map(|pod| (pod.name_any(), seen(pod))).collect();
        let claims = claims.state();
        let disks: BTreeMap<String, Disk> =
            claims.iter().map(|claim| (claim.name_any(), disk(self.folder(claim)))).collect();
        let budget =
            budgets.state().iter().find_map(|budget| match budget.spec.as_ref()?.max_unavailable.as_ref()? {
                IntOrString::Int(number) => usize::try_from(*number).ok(),
                IntOrString::String(_) => None,
            });
        Sample { began, ended: Timestamp::now(), disks, pods, budget }
    }

    fn folder(&self, claim: &PersistentVolumeClaim) -> Option<PathBuf> {
        Some(self.cluster.volume(claim.annotations().get(SELECTED_NODE)?, claim.metadata.uid.as_deref()?))
    }
}

/// The objects of a kind, as they are now.
async fn watched<K>(client: &Client, namespace: &str, selector: Option<&str>) -> Store<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + fmt::Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let (store, writer) = reflector::store();
    let config = selector.map_or_else(watcher::Config::default, |labels| watcher::Config::default().labels(labels));
    let changes = watcher(Api::<K>::namespaced(client.clone(), namespace), config).default_backoff().reflect(writer);
    tokio::spawn(changes.for_each(|_| std::future::ready(())));
    well(store.wait_until_ready().await);
    store
}

fn seen(pod: &Pod) -> PodSeen {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_ready = conditions.filter(|one| one.type_ == "Ready").any(|one| one.status == "True");
    PodSeen {
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        is_ready: is_ready && pod.metadata.deletion_timestamp.is_none(),
    }
}

/// What a node has on its disk; nothing where there is no node yet.
fn disk(folder: Option<PathBuf>) -> Disk {
    let Some(folder) = folder else { return Disk::default() };
    // A file that is being removed with its volume is no node any more.
    let Ok(Some(local)) = Folder::new(folder.clone(), folder.join("data")).load() else { return Disk::default() };
    let stage = match local.bootstrapped {
        Bootstrapped::NeedsBootstrap | Bootstrapped::InProgress => Stage::Joining,
        Bootstrapped::Completed => Stage::Joined,
        Bootstrapped::Decommissioned => Stage::Left,
    };
    let stage = if local.is_banned { Stage::Left } else { stage };
    let others = local.members.iter().filter(|member| member.status != Status::Joining);
    Disk {
        host: Some(local.host_id.to_string()),
        stage,
        knows: others.map(|member| (member.host_id.to_string(), member.is_in_ring())).collect(),
    }
}
