//! Observes a datacenter independently of the operator's code: writes to the API server, from its audit log, and token
//! owners and rows, from the disks of the nodes. It checks each write against a few rules (see [`rules`]).
//!
//! A write is checked with the samples of the nodes before and after it, and is a violation only if the later one
//! confirms it: a node that has left never comes back, so one that owns tokens afterwards owned them before.

pub mod log;
pub mod rows;
pub mod rules;

use std::{
    collections::BTreeMap,
    fmt, fs,
    os::unix::fs::MetadataExt,
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
    data::{Copies, Owner},
    disk::{Bootstrapped, Disk as Folder, Local},
    membership::Status,
};
use messina_testbed::{
    cluster::Cluster,
    harness::{self, Seen, eventually},
};
use serde::de::DeserializeOwned;

use crate::{
    datacenter::{LONG, NODE_PODS},
    expect_ok,
};
use log::{Log, Write};
use rows::Rows;
use rules::{Counts, Disk, PodSeen, RuleChecker, Sample, Stage, Violation};

/// The annotation with the Kubernetes node of a claim's volume.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The pause between two samples.
const PAUSE: Duration = Duration::from_millis(50);

/// The result of observing.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// The numbers of observed changes, to check that there were any.
    pub counts: Counts,
    /// The number of samples.
    pub samples: usize,
    /// The longest time from one sample to the next.
    pub longest_gap: Duration,
    /// Rows that tests have written.
    pub rows: usize,
    /// The violations of rules.
    pub violations: Vec<Violation>,
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gap = self.longest_gap.as_secs_f64();
        let Self { counts, rows, samples, .. } = self;
        write!(f, "{counts}; {rows} rows; {samples} samples of the nodes, {gap:.1} s apart at most")?;
        self.violations.iter().try_for_each(|violation| write!(f, "\n{violation}"))
    }
}

/// Observes the datacenters of a namespace, on a thread of its own.
#[derive(Debug)]
pub struct Observer {
    is_over: Arc<AtomicBool>,
    findings: Arc<Mutex<Findings>>,
    rows: Arc<Mutex<Rows>>,
    /// The last sample.
    sample: Arc<Mutex<Sample>>,
    thread: Option<JoinHandle<()>>,
}

impl Observer {
    /// Starts observing, before the datacenter is created.
    pub fn start(cluster: &Cluster, namespace: &str) -> Self {
        let (is_over, findings) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Findings>>::default());
        let (rows, sample) = (Arc::<Mutex<Rows>>::default(), Arc::<Mutex<Sample>>::default());
        let watch = Watch {
            cluster: cluster.clone(),
            namespace: namespace.into(),
            log: Log::from_now(cluster.audit_log(), namespace),
            is_over: Arc::clone(&is_over),
            findings: Arc::clone(&findings),
            rows: Arc::clone(&rows),
            sample: Arc::clone(&sample),
            known: BTreeMap::new(),
        };
        let thread = std::thread::spawn(move || {
            let runtime = expect_ok(tokio::runtime::Builder::new_current_thread().enable_all().build());
            runtime.block_on(watch.run());
        });
        Self { is_over, findings, rows, sample, thread: Some(thread) }
    }

    /// Registers acknowledged rows: from now on each of them has to have a replica.
    pub fn acknowledge<'a>(&self, keyspace: &str, rows: impl IntoIterator<Item = (&'a str, &'a str)>) {
        let mut known = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.into_iter().for_each(|(key, value)| known.acknowledge(keyspace, key, value, Timestamp::now()));
    }

    /// Waits until each row that was acknowledged has as many live replicas as its keyspace asks for.
    pub async fn rows_are_replicated(&self) {
        let began = Timestamp::now();
        let replicated = eventually("each row to have its replicas", LONG, async || {
            let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let sample = self.sample.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if sample.began < began {
                return Ok(Seen::NotYet("no sample of the nodes yet".into()));
            }
            let missing = sample.under_replicated(&rows);
            Ok(if missing.is_empty() { Seen::Ready(()) } else { Seen::NotYet(missing.join("\n")) })
        });
        expect_ok(replicated.await);
        self.check_no_violations();
    }

    /// Checks that no rule was violated up to now, and returns the findings.
    pub fn check_no_violations(&self) -> Findings {
        assert!(!self.thread.as_ref().is_none_or(JoinHandle::is_finished), "the observer has ended too early");
        let findings = self.findings.lock().unwrap_or_else(PoisonError::into_inner).clone();
        assert!(findings.violations.is_empty(), "{findings}");
        findings
    }

    /// Ends the observer, and checks that no rule was violated.
    pub fn ends(mut self) -> Findings {
        let findings = self.check_no_violations();
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            assert!(thread.join().is_ok(), "the observer has panicked");
        }
        let last = self.findings.lock().unwrap_or_else(PoisonError::into_inner).clone();
        assert!(last.violations.is_empty() && last.samples >= findings.samples, "{last}");
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
    rows: Arc<Mutex<Rows>>,
    sample: Arc<Mutex<Sample>>,
    /// The rows on each disk, by file, with the inode and the time of the file.
    known: BTreeMap<PathBuf, ((u64, i64), Arc<Copies>)>,
}

impl Watch {
    async fn run(mut self) {
        let client = expect_ok(harness::client(&self.cluster.kubeconfig()).await);
        let pods = watched::<Pod>(&client, &self.namespace, Some(NODE_PODS)).await;
        let claims = watched::<PersistentVolumeClaim>(&client, &self.namespace, None).await;
        let budgets = watched::<PodDisruptionBudget>(&client, &self.namespace, None).await;
        let mut checker = RuleChecker::default();
        checker.rows = Arc::clone(&self.rows);
        let mut before = Sample::default();
        let mut waiting: Vec<Write> = Vec::new();
        let mut samples_after_end = 0;
        loop {
            // The last samples are taken after the end, so that all earlier writes are checked. A row is lost if two
            // samples in a row miss it.
            samples_after_end += usize::from(self.is_over.load(Ordering::SeqCst));
            let after = self.take_sample(&pods, &claims, &budgets);
            waiting.extend(self.log.more());
            waiting.sort_by_key(|write| write.answered);
            let later = waiting.split_off(waiting.partition_point(|write| write.answered <= after.began));
            let violations = checker.check(&before, &after, &waiting);
            waiting = later;
            self.note(&checker, &before, &after, violations);
            if samples_after_end == 2 {
                return;
            }
            before = after;
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn note(&self, checker: &RuleChecker, before: &Sample, after: &Sample, violations: Vec<Violation>) {
        let mut findings = self.findings.lock().unwrap_or_else(PoisonError::into_inner);
        for violation in &violations {
            eprintln!("the observer: {violation}");
        }
        findings.violations.extend(violations);
        findings.counts = checker.counts.clone();
        findings.rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner).count();
        *self.sample.lock().unwrap_or_else(PoisonError::into_inner) = after.clone();
        if findings.samples > 0 {
            let gap = Duration::try_from(after.ended.duration_since(before.began)).unwrap_or_default();
            findings.longest_gap = findings.longest_gap.max(gap);
        }
        findings.samples += 1;
    }

    fn take_sample(
        &mut self,
        pods: &Store<Pod>,
        claims: &Store<PersistentVolumeClaim>,
        budgets: &Store<PodDisruptionBudget>,
    ) -> Sample {
        let began = Timestamp::now();
        let pods = pods.state().iter().map(|pod| (pod.name_any(), seen(pod))).collect();
        let claims = claims.state();
        let disks: BTreeMap<String, Disk> =
            claims.iter().map(|claim| (claim.name_any(), self.disk(self.folder(claim)))).collect();
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

    /// The content of a node's disk; empty if there is no node yet.
    fn disk(&mut self, folder: Option<PathBuf>) -> Disk {
        let Some(folder) = folder else { return Disk::default() };
        let folder = Folder::new(folder.clone(), folder.join("data"));
        // A file that is being deleted with its volume does not count.
        let Ok(Some(local)) = folder.load() else { return Disk::default() };
        disk(&local, self.copies(&folder))
    }

    /// The rows on a disk. The file is replaced at each write, so each version is read once.
    fn copies(&mut self, folder: &Folder) -> Arc<Copies> {
        let file = folder.copies_file();
        let Ok(metadata) = fs::metadata(&file) else { return Arc::default() };
        let version = (metadata.ino(), metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec());
        match self.known.get(&file) {
            Some((known, copies)) if *known == version => Arc::clone(copies),
            _ => {
                let copies = Arc::new(folder.load_copies().unwrap_or_default());
                self.known.insert(file, (version, Arc::clone(&copies)));
                copies
            }
        }
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
    expect_ok(store.wait_until_ready().await);
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

fn disk(local: &Local, copies: Arc<Copies>) -> Disk {
    let stage = match local.bootstrapped {
        Bootstrapped::NeedsBootstrap | Bootstrapped::InProgress => Stage::Joining,
        Bootstrapped::Completed => Stage::Joined,
        Bootstrapped::Decommissioned => Stage::Left,
    };
    let stage = if local.is_banned { Stage::Left } else { stage };
    let others = local.members.iter().filter(|member| member.status != Status::Joining);
    let owner = Owner {
        host: local.host_id.to_string(),
        datacenter: local.data_center.clone(),
        rack: local.rack.clone(),
        tokens: local.tokens.clone(),
    };
    Disk {
        host: Some(local.host_id.to_string()),
        stage,
        owner: Some(owner),
        copies,
        knows: others.map(|member| (member.host_id.to_string(), member.is_in_ring())).collect(),
    }
}
