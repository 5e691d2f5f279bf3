//! Tasks on a real etcd cluster of one member, with and without faults.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

use futures::future::join_all;
use http::StatusCode;
use k8s_openapi::api::{batch::v1::Job, core::v1::Secret};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use messina_api::druid::v1alpha1::{Etcd, EtcdOperatorTask, TaskState};
use messina_e2e::{
    clusters::{Started, cluster_named},
    operator::Operator,
    permissions::{Permission, Permissions, permissions},
};
use messina_testbed::{
    audit::Log,
    cluster::Cluster,
    deploy,
    etcd::{self, EtcdCluster, MemberProcess, STORES, Shape},
    faults::{Fault, Faults},
    harness::{self, Seen, eventually},
    node,
    progress::Steps,
};
use serde_json::json;
use tokio::sync::Mutex;

use super::{LONG, api, codes, create, description, finished, gate::Gate, is_unsuitable, succeeds, task, tasks};

/// The name of each etcd cluster in these tests; each has a namespace of its own.
const ETCD: &str = etcd::NAME;
/// The number of etcd clusters that run the scenarios.
const LABS: usize = 3;

/// A real etcd cluster, an operator, and fault injection before the API server and the sidecar.
struct World {
    client: Client,
    namespace: String,
    etcd: EtcdCluster,
    gate: Gate,
    kubeconfig: std::path::PathBuf,
    keys: AtomicUsize,
}

impl World {
    async fn new(cluster: &Cluster, client: &Client, namespace: &str) -> Self {
        let shape = Shape { members: 1, tls: false };
        let etcd = if namespace == etcd::NAMESPACE {
            EtcdCluster::find(cluster, client, namespace, ETCD).await.unwrap()
        } else {
            EtcdCluster::deploy(cluster, client, namespace, ETCD, shape).await.unwrap()
        };
        let sidecar = format!("{}:8080", etcd.member(0).await.unwrap().address).parse().unwrap();
        Self {
            client: client.clone(),
            namespace: namespace.to_owned(),
            etcd,
            gate: Gate::to(sidecar).await,
            kubeconfig: cluster.kubeconfig(),
            keys: AtomicUsize::new(0),
        }
    }

    async fn operator(&self, faults: &Faults) -> Operator {
        Operator::start(&self.kubeconfig, &self.namespace, faults, tasks(self.gate.reach())).await
    }

    /// Writes a key, so that the next snapshot differs.
    async fn write(&self) {
        let number = self.keys.fetch_add(1, Ordering::SeqCst);
        self.etcd.put(&format!("key-{number}"), "value").await.unwrap();
    }

    fn count(&self) -> usize {
        self.etcd.store().snapshots().unwrap().len()
    }

    async fn delete(&self, name: &str) {
        api(&self.client, &self.namespace).delete(name, &DeleteParams::default()).await.unwrap();
        self.is_gone(name).await;
    }

    async fn is_gone(&self, name: &str) {
        eventually(&format!("the task {name} to be gone"), LONG, async || {
            let seen = api(&self.client, &self.namespace).get_opt(name).await.unwrap();
            Ok(seen.map_or(Seen::Ready(()), |task| Seen::NotYet(json!(task).to_string())))
        })
        .await
        .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_succeed_on_etcd_of_one_member() {
    if is_unsuitable() {
        return;
    }
    let (cluster, client) = started("etcd-tasks").await;
    let own = cluster_named("etcd-tasks");
    let main = World::new(&own, &client, etcd::NAMESPACE).await;
    take_and_restore_snapshots(&main).await;
    run_jobs_on_snapshots(&main).await;
    recover_from_faults(&main).await;
    run_as_deployed(&main, &own).await;
    cluster.down();
}

/// Starts a cluster with an etcd cluster, and installs the definitions.
async fn started(name: &'static str) -> (Started, Client) {
    let cluster = Started::up(name, &["--with-etcd"]);
    let client = cluster.client().await;
    messina_testbed::demo::install_definitions(&client).await.unwrap();
    (cluster, client)
}

mod slow {
    use super::*;

    /// Each task takes exactly one snapshot, with a crash or a lost message at any write or request.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn each_task_takes_one_snapshot_with_every_fault() {
        if is_unsuitable() {
            return;
        }
        let (cluster, client) = started("etcd-crashes").await;
        let own = cluster_named("etcd-crashes");
        let scenarios = Mutex::new(None);
        let labs = (0..LABS).map(async |_| {
            let namespace = harness::namespace(&client, "lab").await.unwrap();
            let lab = World::new(&own, &client, &namespace).await;
            let first = {
                let mut scenarios = scenarios.lock().await;
                match &*scenarios {
                    None => Some(scenarios.insert(all_scenarios(&lab).await).len()),
                    Some(_) => None,
                }
            };
            if let Some(count) = first {
                println!("{count} scenarios");
            }
            let (mut done, mut crashes) = (0, 0);
            loop {
                let next = scenarios.lock().await.as_mut().and_then(VecDeque::pop_front);
                let Some(one) = next else { break (done, crashes) };
                crashes += one.run(&lab).await;
                done += 1;
            }
        });
        let done = join_all(labs).await;
        let sum = done.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        println!("{} scenarios with {} crashes: one snapshot each", sum.0, sum.1);
        cluster.down();
    }
}

async fn take_and_restore_snapshots(world: &World) {
    let began = Instant::now();
    let faults = Faults::named("messina-tasks", |_| Fault::None);
    let operator = world.operator(&faults).await;
    for (name, config, kind, is_final) in [
        ("full", json!({"snapshotType": "full"}), "Full", false),
        ("delta", json!("{\"snapshotType\":\"delta\",\"timeoutSeconds\":60}"), "Incr", false),
        ("final", json!({"isFinal": true}), "Full", true),
    ] {
        world.write().await;
        let before = world.count();
        let status = succeeds(&world.client, &world.namespace, &task(name, "OnDemandSnapshot", ETCD, config)).await;
        let taken = status.snapshot.clone().unwrap();
        assert_eq!((taken.kind.as_deref(), taken.is_final), (Some(kind), Some(is_final)), "{name}");
        let stored = world.etcd.store().snapshots().unwrap();
        assert_eq!(stored.len(), before + 1, "{stored:?}");
        let found = stored.iter().find(|one| Some(&one.name) == taken.name.as_ref()).unwrap();
        assert_eq!((i64::try_from(found.last).unwrap(), found.is_final), (taken.revision.unwrap(), is_final));
        assert_eq!(world.etcd.store().restore().await.unwrap(), world.etcd.all().await.unwrap(), "{name}");
        world.delete(name).await;
    }
    // Nothing has changed since.
    let before = world.count();
    let status =
        succeeds(&world.client, &world.namespace, &task("none", "OnDemandSnapshot", ETCD, json!({"type": "delta"})))
            .await;
    assert_eq!((world.count(), status.snapshot), (before, None));
    assert!(
        operator.metrics().contains(r#"messina_etcd_tasks_finished_total{type="OnDemandSnapshot",state="Succeeded""#)
    );
    world.delete("none").await;
    println!("full, delta and final snapshots were taken and restored in {:.1} s", began.elapsed().as_secs_f64());
}

/// Runs tasks that use Jobs on the snapshots. A Secret names the folder of the store on this host.
async fn run_jobs_on_snapshots(world: &World) {
    let folder = format!("{}/{STORES}/{}.{ETCD}", node::HERE, world.namespace);
    let secret: Secret =
        serde_json::from_value(json!({"metadata": {"name": "folder"}, "stringData": {"hostPath": folder}})).unwrap();
    Api::namespaced(world.client.clone(), &world.namespace).create(&PostParams::default(), &secret).await.unwrap();
    let patch = Patch::Merge(json!({"spec": {"backup": {"store": {"secretRef": {"name": "folder"}}}}}));
    let etcds: Api<Etcd> = Api::namespaced(world.client.clone(), &world.namespace);
    etcds.patch(ETCD, &PatchParams::default(), &patch).await.unwrap();

    let faults = Faults::named("messina-jobs", |_| Fault::None);
    let _operator = world.operator(&faults).await;
    world.write().await;
    succeeds(&world.client, &world.namespace, &task("base", "OnDemandSnapshot", ETCD, json!({}))).await;
    world.write().await;
    succeeds(&world.client, &world.namespace, &task("more", "OnDemandSnapshot", ETCD, json!({"type": "delta"}))).await;
    let newest = |world: &World| {
        world.etcd.store().snapshots().unwrap().into_iter().filter(|one| one.full).map(|one| one.last).max().unwrap()
    };
    let before = newest(world);
    let began = Instant::now();
    succeeds(&world.client, &world.namespace, &task("compact", "CompactSnapshots", ETCD, json!({}))).await;
    assert!(newest(world) > before, "there is a full snapshot of what was in the delta");
    assert_eq!(world.etcd.store().restore().await.unwrap(), world.etcd.all().await.unwrap());
    println!("snapshots compacted in {:.1} s", began.elapsed().as_secs_f64());

    let target =
        json!({"provider": "Local", "container": "copies", "prefix": "copied", "secretRef": {"name": "folder"}});
    succeeds(
        &world.client,
        &world.namespace,
        &task("copy", "CopyBackups", ETCD, json!({"targetStore": target, "maxBackups": 1})),
    )
    .await;
    let container = world.etcd.store().folder().ancestors().nth(3).unwrap().to_owned();
    let copied: Vec<String> = std::fs::read_dir(container.join("copies/copied/v2"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(copied.iter().any(|name| name.starts_with("Full-")), "{copied:?}");
    let jobs: Api<Job> = Api::namespaced(world.client.clone(), &world.namespace);
    eventually("the Jobs of succeeded tasks to be deleted", LONG, async || {
        let left = jobs.list(&ListParams::default()).await.unwrap().items.len();
        Ok(if left == 0 { Seen::Ready(()) } else { Seen::NotYet(format!("{left} are left")) })
    })
    .await
    .unwrap();
    for name in ["base", "more", "compact", "copy"] {
        world.delete(name).await;
    }
}

/// The timeout of tasks: short, because a lost request is awaited so long; long enough for a busy host.
const SECONDS: u64 = 60;

fn full(name: &str) -> EtcdOperatorTask {
    task(name, "OnDemandSnapshot", ETCD, json!({"timeoutSeconds": SECONDS}))
}

type Writes = Box<dyn Fn(usize, &str) -> Fault + Send + Sync>;
type Requests = Box<dyn Fn(usize) -> Fault + Send + Sync>;

/// A scenario of a task, with faults of requests to the API server and to the sidecar.
struct TaskScenario {
    name: String,
    /// The faults of the n-th write, and of the n-th request.
    writes: Writes,
    requests: Requests,
    crashes: usize,
}

impl TaskScenario {
    /// Creates a task and deletes it when it is finished, with an operator that is restarted after each crash. Returns
    /// the number of crashes.
    async fn run(self, world: &World) -> usize {
        let Self { name, writes, requests, crashes: expected } = self;
        let faults = Faults::named(&format!("messina-{name}"), move |asked| match asked.write {
            Some(number) => writes(number, &format!("{} {}", asked.method, asked.uri)),
            None => Fault::None,
        });
        world.gate.rule(requests);
        run_task(world, &name, &faults, expected).await;
        expected
    }
}

async fn run_task(world: &World, name: &str, faults: &Faults, expected: usize) {
    world.write().await;
    let before = world.count();
    let began = Instant::now();
    let crashes = AtomicUsize::new(0);
    let running = async {
        loop {
            let operator = world.operator(faults).await;
            tokio::select! { () = faults.crashed() => {}, () = world.gate.crashed() => {} }
            drop(operator);
            crashes.fetch_add(1, Ordering::SeqCst);
        }
    };
    let living = async {
        create(&world.client, &world.namespace, &full(name)).await;
        let status = finished(&world.client, &world.namespace, name).await;
        world.delete(name).await;
        // The task is gone before the operator, which has just removed the finalizer, crashes.
        eventually(&format!("{name}: {expected} crash(es)"), LONG, async || {
            let crashes = crashes.load(Ordering::SeqCst);
            Ok(if crashes >= expected { Seen::Ready(()) } else { Seen::NotYet(format!("{crashes}")) })
        })
        .await
        .unwrap();
        status
    };
    let status = tokio::select! { never = running => never, status = living => status };
    assert_eq!(status.state, Some(TaskState::Succeeded), "{name}: {}", json!(status));
    assert_eq!(world.count(), before + 1, "{name}: exactly one snapshot: {:?}", world.etcd.store().snapshots());
    assert!(status.snapshot.is_some(), "{name}: {}", json!(status));
    println!("{name}: {:.1} s, {:?}", began.elapsed().as_secs_f64(), codes(&status));
    assert_eq!(crashes.load(Ordering::SeqCst), expected, "{name}");
}

/// Scenarios with a crash before and after every write and every request, and with every other fault.
async fn all_scenarios(world: &World) -> VecDeque<TaskScenario> {
    let quiet = Faults::named("messina-undisturbed", |_| Fault::None);
    world.gate.rule(|_| Fault::None);
    run_task(world, "undisturbed", &quiet, 0).await;
    let (writes, requests) = (quiet.writes(), world.gate.count());
    println!("a task takes {writes} writes and {requests} requests without faults");
    // Two of the writes record the deletion.
    assert_eq!((writes, requests), (7, 2), "{:#?}", quiet.written());
    let mut scenarios = VecDeque::new();
    for (word, fault, crashes) in [
        ("crash-before", Fault::CrashBefore, 1),
        ("crash-after", Fault::CrashAfter, 1),
        ("lost-request", Fault::LoseRequest, 0),
        ("lost-reply", Fault::LoseReply, 0),
    ] {
        for number in 0..requests {
            scenarios.push_back(TaskScenario {
                name: format!("{word}-at-request-{number}"),
                writes: Box::new(|_, _| Fault::None),
                requests: Box::new(move |connection| if connection == number { fault } else { Fault::None }),
                crashes,
            });
        }
        for number in (0..writes).filter(|_| crashes > 0) {
            scenarios.push_back(TaskScenario {
                name: format!("{word}-at-write-{number}"),
                writes: Box::new(move |write, _| if write == number { fault } else { Fault::None }),
                requests: Box::new(|_| Fault::None),
                crashes,
            });
        }
    }
    for (word, fault) in [
        ("conflict", Fault::Fail(StatusCode::CONFLICT)),
        ("failure", Fault::Fail(StatusCode::INTERNAL_SERVER_ERROR)),
        ("lost-request", Fault::LoseRequest),
        ("lost-reply", Fault::LoseReply),
    ] {
        let seen = std::sync::Mutex::new(BTreeMap::<String, usize>::new());
        // The first time, and not the second.
        let writes = move |_: usize, line: &str| {
            let mut seen = seen.lock().unwrap();
            let times = seen.entry(line.to_owned()).or_default();
            *times += 1;
            if times.is_multiple_of(2) { Fault::None } else { fault }
        };
        let name = format!("{word}-at-every-write");
        scenarios.push_back(TaskScenario {
            name,
            writes: Box::new(writes),
            requests: Box::new(|_| Fault::None),
            crashes: 0,
        });
    }
    scenarios
}

/// Runs an operator in the cluster as deployed from deploy/, with its DNS names and permissions.
async fn run_as_deployed(world: &World, cluster: &Cluster) {
    deploy::images(cluster, &Steps::quiet()).unwrap();
    deploy::operator(&world.client, &Steps::quiet()).await.unwrap();
    for (name, task_type) in [
        ("snapshot-inside", "OnDemandSnapshot"),
        ("defragment-inside", "Defragment"),
        ("compact-inside", "Compact"),
        ("job-inside", "CompactSnapshots"),
    ] {
        world.write().await;
        let mut task = task(name, task_type, ETCD, json!({}));
        task.spec.ttl_seconds_after_finished = Some(1);
        let status = succeeds(&world.client, &world.namespace, &task).await;
        println!("{name}: {}", description(&status));
        world.is_gone(name).await;
    }
    let (log, user) = (Log::new(cluster.audit_log()), deploy::Deployed::default().user());
    let Permissions { allowed, used } = permissions(&world.client, &log, &user).await;
    let is_ours = |(group, resource, verb): &&Permission| {
        (group == "druid.gardener.cloud" || group == "batch")
            // API servers without streaming lists, lost responses, and permissions that admission checks for a request.
            && verb != "list" && verb != "get" && resource != "etcdoperatortasks/finalizers"
            // For Jobs of datacenters.
            && (group.as_str(), verb.as_str()) != ("batch", "patch")
    };
    let unused: Vec<&Permission> = allowed.difference(&used).filter(is_ours).collect();
    assert!(unused.is_empty(), "allowed and not needed: {unused:?}");
}

/// A task survives an unavailable store or sidecar that recovers before its timeout; otherwise it fails with the
/// reason.
async fn recover_from_faults(world: &World) {
    let faults = Faults::named("messina-real", |_| Fault::None);
    let _operator = world.operator(&faults).await;
    let patient = |name: &str, seconds: u64| task(name, "OnDemandSnapshot", ETCD, json!({"timeoutSeconds": seconds}));

    world.write().await;
    let before = world.count();
    world.etcd.store().take_away().unwrap();
    create(&world.client, &world.namespace, &patient("store", 120)).await;
    has_error(world, "store").await;
    world.etcd.store().bring_back().unwrap();
    let status = finished(&world.client, &world.namespace, "store").await;
    assert_eq!((status.state.clone(), world.count()), (Some(TaskState::Succeeded), before + 1), "{}", json!(status));
    println!("a broken store: {:?}", codes(&status));

    for (name, part) in [("sidecar", MemberProcess::Sidecar), ("etcd", MemberProcess::Etcd)] {
        world.write().await;
        let before = world.count();
        let began = Instant::now();
        world.etcd.kill(0, part).await.unwrap();
        create(&world.client, &world.namespace, &patient(name, 170)).await;
        let status = finished(&world.client, &world.namespace, name).await;
        assert_eq!(status.state, Some(TaskState::Succeeded), "{}", json!(status));
        let (taken, stored) = (status.snapshot.clone().unwrap().name, world.etcd.store().snapshots().unwrap());
        assert!(stored.iter().any(|one| Some(&one.name) == taken.as_ref()), "{taken:?} in {stored:?}");
        // A sidecar that begins to lead takes a snapshot by itself.
        assert!(stored.len() <= before + 2, "{stored:?}");
        println!("{name} killed: {:?}, {:.1} s", codes(&status), began.elapsed().as_secs_f64());
    }

    world.etcd.pause(0, MemberProcess::Sidecar).await.unwrap();
    let status = super::done(&world.client, &world.namespace, &patient("late", 7)).await;
    assert_eq!(status.state, Some(TaskState::Failed), "{}", json!(status));
    assert_eq!(codes(&status).last(), Some(&"ERR_DEADLINE_EXCEEDED"));
    assert!(description(&status).contains("7 s"), "{}", description(&status));
    world.etcd.resume(0, MemberProcess::Sidecar).await.unwrap();
    for name in ["store", "sidecar", "etcd", "late"] {
        world.delete(name).await;
    }
}

async fn has_error(world: &World, name: &str) {
    messina_testbed::harness::until(api(&world.client, &world.namespace), name, "an error to be told", LONG, |seen| {
        let status = seen.and_then(|task| task.status).unwrap_or_default();
        if codes(&status).is_empty() { Seen::NotYet(json!(status).to_string()) } else { Seen::Ready(()) }
    })
    .await
    .unwrap();
}
