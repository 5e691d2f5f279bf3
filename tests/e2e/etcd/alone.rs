//! Tasks on a real etcd cluster of one member: what they leave behind, and what becomes of them when things go wrong.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use k8s_openapi::api::{batch::v1::Job, core::v1::Secret};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use messina_api::druid::v1alpha1::{Etcd, EtcdOperatorTask, EtcdOperatorTaskStatus, TaskState};
use messina_e2e::operator::Operator;
use messina_testbed::{
    etcd::{self, EtcdCluster, Part, STORES},
    faults::{Fault, Faults},
    harness::{Seen, eventually},
    node,
};
use serde_json::json;

use super::{LONG, api, codes, create, description, finished, gate::Gate, succeeds, task, tasks};
use crate::testbed::{Started, cluster_named, machine};

const NAMESPACE: &str = etcd::NAMESPACE;
const ETCD: &str = etcd::NAME;

/// A real etcd cluster, an operator, and gates before both the API server and the sidecar.
struct World {
    client: Client,
    etcd: EtcdCluster,
    gate: Gate,
    kubeconfig: std::path::PathBuf,
    keys: AtomicUsize,
}

impl World {
    async fn operator(&self, faults: &Faults) -> Operator {
        Operator::start(&self.kubeconfig, NAMESPACE, faults, tasks(self.gate.reach())).await
    }

    /// So that the next snapshot is another one.
    async fn write(&self) {
        let number = self.keys.fetch_add(1, Ordering::SeqCst);
        self.etcd.put(&format!("key-{number}"), "value").await.unwrap();
    }

    fn count(&self) -> usize {
        self.etcd.store().snapshots().unwrap().len()
    }

    async fn delete(&self, name: &str) {
        api(&self.client, NAMESPACE).delete(name, &DeleteParams::default()).await.unwrap();
        self.is_gone(name).await;
    }

    async fn is_gone(&self, name: &str) {
        eventually(&format!("the task {name} to be gone"), LONG, async || {
            let seen = api(&self.client, NAMESPACE).get_opt(name).await.unwrap();
            Ok(seen.map_or(Seen::Ready(()), |task| Seen::NotYet(json!(task).to_string())))
        })
        .await
        .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_do_their_work_on_a_real_etcd_whatever_happens() {
    let _turn = machine!();
    let cluster = Started::up("etcd-tasks", &["--with-etcd"]);
    let client = cluster.client().await;
    messina_testbed::demo::install_definitions(&client).await.unwrap();
    let own = cluster_named("etcd-tasks");
    let etcd = EtcdCluster::find(&own, &client, NAMESPACE, ETCD).await.unwrap();
    let sidecar = format!("{}:8080", etcd.member(0).await.unwrap().address).parse().unwrap();
    let world =
        World { client, etcd, gate: Gate::to(sidecar).await, kubeconfig: own.kubeconfig(), keys: AtomicUsize::new(0) };
    snapshots_are_taken_and_can_be_restored(&world).await;
    jobs_work_on_the_snapshots(&world).await;
    an_operator_that_crashes_anywhere_takes_one_snapshot(&world).await;
    an_answer_that_is_lost_is_looked_up(&world).await;
    trouble_is_got_over(&world).await;
    cluster.down();
}

async fn snapshots_are_taken_and_can_be_restored(world: &World) {
    let faults = Faults::named("messina-tasks", |_| Fault::None);
    let operator = world.operator(&faults).await;
    for (name, config, kind, is_final) in [
        ("full", json!({"snapshotType": "full"}), "Full", false),
        ("delta", json!("{\"snapshotType\":\"delta\",\"timeoutSeconds\":60}"), "Incr", false),
        ("final", json!({"isFinal": true}), "Full", true),
    ] {
        world.write().await;
        let before = world.count();
        let status = succeeds(&world.client, NAMESPACE, &task(name, "OnDemandSnapshot", ETCD, config)).await;
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
        succeeds(&world.client, NAMESPACE, &task("none", "OnDemandSnapshot", ETCD, json!({"type": "delta"}))).await;
    assert_eq!((world.count(), status.snapshot), (before, None));
    assert!(
        operator.metrics().contains(r#"messina_etcd_tasks_finished_total{type="OnDemandSnapshot",state="Succeeded""#)
    );
    world.delete("none").await;
    println!("full, delta and final snapshots were taken and restored");
}

/// The folder of the machine with the containers of the store is told by a Secret.
async fn jobs_work_on_the_snapshots(world: &World) {
    let folder = format!("{}/{}/{NAMESPACE}.{ETCD}", node::HERE, STORES);
    let secret: Secret =
        serde_json::from_value(json!({"metadata": {"name": "folder"}, "stringData": {"hostPath": folder}})).unwrap();
    Api::namespaced(world.client.clone(), NAMESPACE).create(&PostParams::default(), &secret).await.unwrap();
    let patch = Patch::Merge(json!({"spec": {"backup": {"store": {"secretRef": {"name": "folder"}}}}}));
    let etcds: Api<Etcd> = Api::namespaced(world.client.clone(), NAMESPACE);
    etcds.patch(ETCD, &PatchParams::default(), &patch).await.unwrap();

    let faults = Faults::named("messina-jobs", |_| Fault::None);
    let _operator = world.operator(&faults).await;
    world.write().await;
    succeeds(&world.client, NAMESPACE, &task("base", "OnDemandSnapshot", ETCD, json!({}))).await;
    world.write().await;
    succeeds(&world.client, NAMESPACE, &task("more", "OnDemandSnapshot", ETCD, json!({"type": "delta"}))).await;
    let newest = |world: &World| {
        world.etcd.store().snapshots().unwrap().into_iter().filter(|one| one.full).map(|one| one.last).max().unwrap()
    };
    let before = newest(world);
    let began = Instant::now();
    succeeds(&world.client, NAMESPACE, &task("compact", "CompactSnapshots", ETCD, json!({}))).await;
    assert!(newest(world) > before, "there is a full snapshot of what was in the delta");
    assert_eq!(world.etcd.store().restore().await.unwrap(), world.etcd.all().await.unwrap());
    println!("snapshots compacted in {:.1} s", began.elapsed().as_secs_f64());

    let target =
        json!({"provider": "Local", "container": "copies", "prefix": "copied", "secretRef": {"name": "folder"}});
    succeeds(
        &world.client,
        NAMESPACE,
        &task("copy", "CopyBackups", ETCD, json!({"targetStore": target, "maxBackups": 1})),
    )
    .await;
    let container = world.etcd.store().folder().ancestors().nth(3).unwrap().to_owned();
    let copied: Vec<String> = std::fs::read_dir(container.join("copies/copied/v2"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(copied.iter().any(|name| name.starts_with("Full-")), "{copied:?}");
    let jobs: Api<Job> = Api::namespaced(world.client.clone(), NAMESPACE);
    assert_eq!(jobs.list(&ListParams::default()).await.unwrap().items.len(), 2);
    for name in ["base", "more", "compact", "copy"] {
        world.delete(name).await;
    }
    eventually("the Jobs to go with their tasks", LONG, async || {
        let left = jobs.list(&ListParams::default()).await.unwrap().items.len();
        Ok(if left == 0 { Seen::Ready(()) } else { Seen::NotYet(format!("{left} are left")) })
    })
    .await
    .unwrap();
}

/// Short, so that a request of which nothing is known is not waited for long.
const SECONDS: u64 = 8;

fn full(name: &str) -> EtcdOperatorTask {
    task(name, "OnDemandSnapshot", ETCD, json!({"timeoutSeconds": SECONDS}))
}

/// One task from its creation until it is gone, with an operator that is started again after each crash.
async fn life(world: &World, name: &str, faults: &Faults, allowed: Duration) -> (EtcdOperatorTaskStatus, usize) {
    world.write().await;
    let before = world.count();
    let began = Instant::now();
    let crashes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&crashes);
    let running = async {
        loop {
            let operator = world.operator(faults).await;
            tokio::select! { () = faults.crashed() => {}, () = world.gate.crashed() => {} }
            drop(operator);
            counted.fetch_add(1, Ordering::SeqCst);
        }
    };
    let living = async {
        create(&world.client, NAMESPACE, &full(name)).await;
        let status = finished(&world.client, NAMESPACE, name).await;
        world.delete(name).await;
        status
    };
    let status = tokio::select! { never = running => never, status = living => status };
    assert_eq!(status.state, Some(TaskState::Succeeded), "{name}: {}", json!(status));
    assert_eq!(world.count(), before + 1, "{name}: exactly one snapshot: {:?}", world.etcd.store().snapshots());
    assert!(status.snapshot.is_some(), "{name}: {}", json!(status));
    assert!(began.elapsed() < allowed, "{name} took {:.1} s", began.elapsed().as_secs_f64());
    (status, crashes.load(Ordering::SeqCst))
}

/// Before and after every write and every request: one snapshot for each task, and the right end.
async fn an_operator_that_crashes_anywhere_takes_one_snapshot(world: &World) {
    let quiet = Faults::named("messina-undisturbed", |_| Fault::None);
    world.gate.rule(|_| Fault::None);
    life(world, "undisturbed", &quiet, Duration::from_secs(20)).await;
    let (writes, requests) = (quiet.writes(), world.gate.count());
    println!("a task takes {writes} writes and {requests} requests without trouble");
    assert_eq!((writes, requests), (5, 2));
    let allowed = Duration::from_secs(30);
    let (mut lives, mut crashes) = (0, 0);
    for fault in [Fault::CrashBefore, Fault::CrashAfter] {
        for number in 0..writes {
            let faults = Faults::named(
                "messina-crash",
                move |asked| {
                    if asked.write == Some(number) { fault } else { Fault::None }
                },
            );
            world.gate.rule(|_| Fault::None);
            let (_, count) = life(world, &format!("write-{number}-{}", word(fault)), &faults, allowed).await;
            assert_eq!(count, 1, "write {number}, {fault:?}");
            (lives, crashes) = (lives + 1, crashes + count);
        }
        for number in 0..requests {
            let faults = Faults::named("messina-crash", |_| Fault::None);
            world.gate.rule(move |connection| if connection == number { fault } else { Fault::None });
            let (_, count) = life(world, &format!("request-{number}-{}", word(fault)), &faults, allowed).await;
            assert_eq!(count, 1, "request {number}, {fault:?}");
            (lives, crashes) = (lives + 1, crashes + count);
        }
    }
    world.gate.rule(|_| Fault::None);
    println!("{lives} lives with {crashes} crashes: one snapshot each");
}

fn word(fault: Fault) -> &'static str {
    match fault {
        Fault::CrashBefore => "before",
        Fault::CrashAfter => "after",
        _ => "other",
    }
}

/// Every write to the API server and every request has trouble of each kind once.
async fn an_answer_that_is_lost_is_looked_up(world: &World) {
    use http::StatusCode;
    let allowed = Duration::from_secs(30);
    for (name, fault) in [
        ("conflict", Fault::Fail(StatusCode::CONFLICT)),
        ("failure", Fault::Fail(StatusCode::INTERNAL_SERVER_ERROR)),
        ("lost-request", Fault::LoseRequest),
        ("lost-reply", Fault::LoseReply),
    ] {
        let seen = std::sync::Mutex::new(BTreeMap::<String, usize>::new());
        let faults = Faults::named("messina-trouble", move |asked| {
            let mut seen = seen.lock().unwrap();
            if asked.write.is_none() {
                return Fault::None;
            }
            let times = seen.entry(format!("{} {}", asked.method, asked.uri)).or_default();
            *times += 1;
            if times.is_multiple_of(2) { Fault::None } else { fault }
        });
        world.gate.rule(|_| Fault::None);
        life(world, &format!("every-write-{name}"), &faults, allowed).await;
    }
    for (name, fault) in [("request", Fault::LoseRequest), ("reply", Fault::LoseReply)] {
        for number in 0..2 {
            let faults = Faults::named("messina-trouble", |_| Fault::None);
            world.gate.rule(move |connection| if connection == number { fault } else { Fault::None });
            let (status, _) = life(world, &format!("lost-{name}-{number}"), &faults, allowed).await;
            println!("lost {name} {number}: {:?}", codes(&status));
        }
    }
    world.gate.rule(|_| Fault::None);
}

/// A store that is broken and a sidecar that is away are got over within the time of the task, or it fails with the reason.
async fn trouble_is_got_over(world: &World) {
    let faults = Faults::named("messina-real", |_| Fault::None);
    let _operator = world.operator(&faults).await;
    let patient = |name: &str, seconds: u64| task(name, "OnDemandSnapshot", ETCD, json!({"timeoutSeconds": seconds}));

    world.write().await;
    let before = world.count();
    world.etcd.store().take_away().unwrap();
    create(&world.client, NAMESPACE, &patient("store", 120)).await;
    has_error(world, "store").await;
    world.etcd.store().bring_back().unwrap();
    let status = finished(&world.client, NAMESPACE, "store").await;
    assert_eq!((status.state.clone(), world.count()), (Some(TaskState::Succeeded), before + 1), "{}", json!(status));
    println!("a broken store: {:?}", codes(&status));

    world.write().await;
    let before = world.count();
    world.etcd.pause(0, Part::Sidecar).await.unwrap();
    create(&world.client, NAMESPACE, &patient("sidecar", 120)).await;
    has_error(world, "sidecar").await;
    world.etcd.resume(0, Part::Sidecar).await.unwrap();
    let status = finished(&world.client, NAMESPACE, "sidecar").await;
    assert_eq!((status.state.clone(), world.count()), (Some(TaskState::Succeeded), before + 1), "{}", json!(status));
    println!("a sidecar that is away: {:?}", codes(&status));

    world.etcd.pause(0, Part::Sidecar).await.unwrap();
    let status = super::done(&world.client, NAMESPACE, &patient("late", 7)).await;
    assert_eq!(status.state, Some(TaskState::Failed), "{}", json!(status));
    assert_eq!(codes(&status).last(), Some(&"ERR_DEADLINE_EXCEEDED"));
    assert!(description(&status).contains("7 s"), "{}", description(&status));
    world.etcd.resume(0, Part::Sidecar).await.unwrap();
    for name in ["store", "sidecar", "late"] {
        world.delete(name).await;
    }
}

async fn has_error(world: &World, name: &str) {
    messina_testbed::harness::until(api(&world.client, NAMESPACE), name, "an error to be told", LONG, |seen| {
        let status = seen.and_then(|task| task.status).unwrap_or_default();
        if codes(&status).is_empty() { Seen::NotYet(json!(status).to_string()) } else { Seen::Ready(()) }
    })
    .await
    .unwrap();
}
