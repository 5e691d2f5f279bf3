//! Many tasks, on the real API server with simulated sidecars.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use futures::StreamExt;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt, watcher},
};
use messina_api::druid::v1alpha1::{Etcd, EtcdOperatorTask, TaskState};
use messina_e2e::{
    clusters::{Started, cluster_named},
    light_kubeconfig,
    operator::Operator,
};
use messina_testbed::{
    etcd::definition,
    faults::{Fault, Faults},
    harness::{self, Seen, eventually, until},
};
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc};

use super::{
    LONG, api, codes, create, description, done, fake_sidecars::Sidecars, finished, is_unsuitable, task, tasks,
};

pub(super) async fn in_a_namespace(test: &str, body: impl AsyncFnOnce(&Client, &str)) {
    messina_e2e::in_a_namespace(test, async |client, namespace| {
        // One test at a time, because the definition is shared.
        static INSTALLED: Mutex<bool> = Mutex::const_new(false);
        let mut is_installed = INSTALLED.lock().await;
        if !*is_installed {
            definition::install(client).await.unwrap();
            definition::await_served(client, LONG).await.unwrap();
            *is_installed = true;
        }
        drop(is_installed);
        body(client, namespace).await;
    })
    .await;
}

/// Creates an Etcd with a ready member.
pub(super) async fn create_etcd(client: &Client, namespace: &str, name: &str) {
    create_etcd_with_status(client, namespace, name, &json!({"replicas": 1, "readyReplicas": 1})).await;
}

pub(super) async fn create_etcd_with_status(client: &Client, namespace: &str, name: &str, status: &Value) {
    let etcd: Etcd = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "backup": {"image": "backup-restore.example/etcdbrctl:test", "store": {"provider": "Local", "container": "snapshots", "prefix": name}},
        },
    }))
    .unwrap();
    let etcds: Api<Etcd> = Api::namespaced(client.clone(), namespace);
    etcds.create(&PostParams::default(), &etcd).await.unwrap();
    if !status.is_null() {
        let patch = Patch::Merge(json!({"status": status}));
        etcds.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }
}

pub(super) async fn are_gone(client: &Client, namespace: &str) {
    eventually("all tasks to be gone", LONG, async || {
        let left = api(client, namespace).list_metadata(&ListParams::default()).await.unwrap().items.len();
        Ok(if left == 0 { Seen::Ready(()) } else { Seen::NotYet(format!("{left} are left")) })
    })
    .await
    .unwrap();
}

/// 500 tasks on 50 etcd clusters run in order, one at a time on each, take one snapshot each, and need eight writes at
/// most if they do not wait for long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_run_in_order_with_few_writes() {
    const ETCDS: usize = 50;
    const EACH: usize = 10;
    in_a_namespace("etcd-many", async |client, namespace| {
        for number in 0..ETCDS {
            create_etcd(client, namespace, &format!("etcd-{number}")).await;
        }
        let sidecars = Sidecars::new(Duration::from_millis(20)).await;
        let faults = Faults::named("messina-many", |_| Fault::None);
        let _operator =
            Operator::start(&light_kubeconfig(), namespace, &faults, tasks(sidecars.reach())).await;
        let done = Done::watch(client, namespace);
        let began = Instant::now();
        let creating = (0..ETCDS * EACH).map(|number| async move {
            let etcd = format!("etcd-{}", number % ETCDS);
            let mut task = task(&format!("task-{number}"), "OnDemandSnapshot", &etcd, json!({}));
            task.spec.ttl_seconds_after_finished = Some(1);
            create(client, namespace, &task).await;
        });
        // A few at a time, as from many users.
        futures::stream::iter(creating).for_each_concurrent(8, |one| one).await;
        let created = began.elapsed();
        let all = done.all(ETCDS * EACH).await;
        let took = began.elapsed();
        let seen = sidecars.seen();
        assert_eq!(seen.len(), ETCDS);
        for (host, seen) in &seen {
            assert_eq!((seen.snapshots.len(), seen.at_once), (EACH, 1), "{host}");
        }
        in_order(&all);
        // The last of them waits for its timeout.
        are_gone(client, namespace).await;
        let writes = faults.written();
        let by_task = |name: &str| writes.iter().filter(|line| is_about(line, name)).count();
        let counts: Vec<usize> = (0..ETCDS * EACH).map(|number| by_task(&format!("task-{number}"))).collect();
        let (most, sum) = (counts.iter().max().unwrap(), counts.iter().sum::<usize>());
        println!(
            "{} tasks on {ETCDS} etcd clusters: created in {:.1} s, done after {:.1} s, {} writes, {:.2} for each, {most} at most",
            ETCDS * EACH, created.as_secs_f64(), took.as_secs_f64(), writes.len(),
            sum as f64 / counts.len() as f64,
        );
        assert_eq!(sum, writes.len(), "nothing else was written");
        // The position of a waiting task is updated every two minutes.
        let refreshes = usize::try_from(took.as_secs() / 120).unwrap();
        for (number, count) in counts.iter().enumerate() {
            let name = format!("task-{number}");
            let about: Vec<_> = writes.iter().filter(|line| is_about(line, &name)).collect();
            assert!(*count <= 8 + refreshes, "{about:#?}");
        }
    })
    .await;
}

/// Tasks as they were when they had succeeded; then they are deleted.
struct Done(tokio::task::JoinHandle<()>, mpsc::UnboundedReceiver<EtcdOperatorTask>);

impl Done {
    fn watch(client: &Client, namespace: &str) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let seen = watcher(api(client, namespace), watcher::Config::default()).applied_objects();
        let watching = tokio::spawn(seen.for_each(move |task| {
            let succeeded = task.ok().filter(|task| state(task) == Some(TaskState::Succeeded));
            succeeded.into_iter().for_each(|task| drop(sender.send(task)));
            std::future::ready(())
        }));
        Self(watching, receiver)
    }

    async fn all(mut self, count: usize) -> Vec<EtcdOperatorTask> {
        let mut all = BTreeMap::new();
        // The test waits as long as one task after another succeeds, however slow the host is.
        while all.len() < count {
            let Ok(task) = tokio::time::timeout(LONG, self.1.recv()).await else {
                panic!("{} of {count} tasks have succeeded, and no other one for {LONG:?}", all.len());
            };
            let task = task.unwrap();
            all.insert(task.name_any(), task);
        }
        self.0.abort();
        all.into_values().collect()
    }
}

fn is_about(line: &str, name: &str) -> bool {
    line.split('/').any(|part| part == name)
}

fn state(task: &EtcdOperatorTask) -> Option<TaskState> {
    task.status.as_ref()?.state.clone()
}

/// Checks that tasks of an etcd cluster began in order of creation, then UID, and that their snapshots have the same
/// order.
fn in_order(all: &[EtcdOperatorTask]) {
    let mut by_etcd = BTreeMap::<String, Vec<&EtcdOperatorTask>>::new();
    for task in all {
        by_etcd.entry(task.spec.etcd_reference().unwrap().name.clone().unwrap()).or_default().push(task);
    }
    for (etcd, mut tasks) in by_etcd {
        tasks.sort_by_key(|task| (task.creation_timestamp().unwrap().0, task.uid().unwrap()));
        let revisions: Vec<i64> = tasks
            .iter()
            .map(|task| task.status.as_ref().unwrap().snapshot.as_ref().unwrap().revision.unwrap())
            .collect();
        let expected: Vec<i64> = (1..=i64::try_from(tasks.len()).unwrap()).collect();
        assert_eq!(revisions, expected, "{etcd}");
        let names: BTreeSet<&str> = tasks.iter().filter_map(|task| task.metadata.name.as_deref()).collect();
        assert_eq!(names.len(), tasks.len());
    }
}

/// Invalid tasks are rejected with the name of the field, and can be deleted; waiting tasks report the reason.
#[tokio::test]
async fn invalid_tasks_are_rejected_and_can_be_deleted() {
    in_a_namespace("etcd-bad", async |client, namespace| {
        create_etcd(client, namespace, "main").await;
        let bare: Etcd =
            serde_json::from_value(json!({"metadata": {"name": "bare"}, "spec": {"replicas": 1}})).unwrap();
        Api::<Etcd>::namespaced(client.clone(), namespace).create(&PostParams::default(), &bare).await.unwrap();
        let sidecars = Sidecars::new(Duration::ZERO).await;
        let faults = Faults::named("messina-bad", |_| Fault::None);
        let _operator = Operator::start(&light_kubeconfig(), namespace, &faults, tasks(sidecars.reach())).await;
        for (name, task_type, etcd, config, code, words) in [
            ("typo", "OnDemandSnapshot", "main", json!({"snapshotTyp": "full"}), "ERR_INVALID_CONFIG", "snapshotTyp"),
            ("text", "OnDemandSnapshot", "main", json!("{not json"), "ERR_INVALID_CONFIG", "config"),
            (
                "time",
                "OnDemandSnapshot",
                "main",
                json!({"timeoutSeconds": 0}),
                "ERR_INVALID_CONFIG",
                "config.timeoutSeconds",
            ),
            (
                "last",
                "OnDemandSnapshot",
                "main",
                json!({"type": "delta", "isFinal": true}),
                "ERR_INVALID_CONFIG",
                "config.isFinal",
            ),
            ("unknown", "MakeCoffee", "main", json!({}), "ERR_UNKNOWN_TASK_TYPE", "OnDemandSnapshot"),
            ("nobody", "OnDemandSnapshot", "", json!({}), "ERR_NO_ETCD_REFERENCE", "spec.etcdReference.name"),
            ("storeless", "OnDemandSnapshot", "bare", json!({}), "ERR_PRECONDITION_NOT_MET", "spec.backup.store"),
            (
                "window",
                "Compact",
                "main",
                json!({"retainRevisions": -1}),
                "ERR_INVALID_CONFIG",
                "config.retainRevisions",
            ),
            ("target", "CopyBackups", "main", json!({}), "ERR_INVALID_CONFIG", "config.targetStore"),
        ] {
            let status = done(client, namespace, &task(name, task_type, etcd, config)).await;
            assert_eq!((status.state.clone(), codes(&status)), (Some(TaskState::Rejected), vec![code]), "{name}");
            assert!(description(&status).contains(words), "{name}: {}", description(&status));
            api(client, namespace).delete(name, &DeleteParams::default()).await.unwrap();
        }
        are_gone(client, namespace).await;
        create(client, namespace, &task("early", "OnDemandSnapshot", "later", json!({}))).await;
        until(api(client, namespace), "early", "it to say what it waits for", LONG, |seen| {
            let status = seen.and_then(|task| task.status).unwrap_or_default();
            let said = description(&status).to_owned();
            let is_right =
                status.state == Some(TaskState::Pending) && said.contains(&format!("Etcd {namespace}/later"));
            if is_right { Seen::Ready(()) } else { Seen::NotYet(said) }
        })
        .await
        .unwrap();
        create_etcd(client, namespace, "later").await;
        assert_eq!(finished(client, namespace, "early").await.state, Some(TaskState::Succeeded));
        api(client, namespace).delete("early", &DeleteParams::default()).await.unwrap();
        are_gone(client, namespace).await;
    })
    .await;
}

/// Tasks wait and report it while the kind Etcd is not installed, and continue when it is.
#[tokio::test]
async fn tasks_wait_until_etcd_clusters_are_installed() {
    if is_unsuitable() {
        return;
    }
    let cluster = Started::up("etcd-absent", &["--light"]);
    let client = cluster.client().await;
    messina_testbed::demo::install_definitions(&client).await.unwrap();
    let namespace = harness::namespace(&client, "etcd-absent").await.unwrap();
    let sidecars = Sidecars::new(Duration::ZERO).await;
    let faults = Faults::named("messina-absent", |_| Fault::None);
    let kubeconfig = cluster_named("etcd-absent").kubeconfig();
    let _operator = Operator::start(&kubeconfig, &namespace, &faults, tasks(sidecars.reach())).await;
    create(&client, &namespace, &task("early", "OnDemandSnapshot", "main", json!({}))).await;
    until(api(&client, &namespace), "early", "it to say what it waits for", LONG, |seen| {
        let status = seen.and_then(|task| task.status).unwrap_or_default();
        let said = description(&status).to_owned();
        if said.contains("is not installed") { Seen::Ready(()) } else { Seen::NotYet(said) }
    })
    .await
    .unwrap();
    definition::install(&client).await.unwrap();
    definition::await_served(&client, LONG).await.unwrap();
    create_etcd(&client, &namespace, "main").await;
    assert_eq!(finished(&client, &namespace, "early").await.state, Some(TaskState::Succeeded));
    cluster.down();
}
