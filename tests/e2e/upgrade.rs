//! The version of a datacenter changes, node by node, whatever happens to the operator meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures::StreamExt;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    coordination::v1::Lease,
    core::v1::{Event, Pod, Service},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams},
    runtime::{WatchStreamExt, watcher},
};
use messina_api::{
    names::{annotation, label},
    scylla::v1alpha1::ScyllaDBDatacenter,
};
use messina_e2e::{
    clusters::{Started, cluster_named},
    observer::Observer,
};
use messina_testbed::{
    deploy, exec,
    harness::{Seen, eventually, until},
    progress::Steps,
    tools::Tools,
};
use serde_json::Value;

use crate::{
    datacenter::{apply, manifest, settled},
    testbed::machine,
};

const CLUSTER: &str = "upgrade";
const NODES: [&str; 3] = ["orders-dc-a-0", "orders-dc-b-0", "orders-dc-c-0"];
const LONG: Duration = Duration::from_secs(300);

fn with_image(image: &str) -> Value {
    let mut manifest = manifest(&[("a", 1), ("b", 1), ("c", 1)]);
    manifest["spec"]["scyllaDB"]["image"] = image.into();
    manifest
}

#[tokio::test]
async fn a_version_changes_node_by_node() {
    machine!();
    let cluster = Started::up(CLUSTER, &[]);
    let client = cluster.client().await;
    deploy::images(&cluster_named(CLUSTER), &Steps::quiet()).unwrap();
    deploy::operator(&client, &Steps::quiet()).await.unwrap();
    let observer = Observer::start(&cluster_named(CLUSTER), "default");
    apply(&client, &with_image(deploy::SCYLLA_IMAGE)).await;
    settled(&client, 3).await;
    let watch = Watch::begin(&client).await;

    a_disagreement_on_the_schema_is_told_and_got_over(&client).await;
    an_image_that_is_missing_is_taken_back(&client).await;
    watch.end();
    println!("the observer: {}", observer.ends());
}

/// One node has another schema: nothing restarts, and it is told which node it is. When it agrees again, the upgrade goes on
/// by itself, and the operator is killed while nodes prepare, while they restart, and while they clear up.
async fn a_disagreement_on_the_schema_is_told_and_got_over(client: &Client) {
    tool("orders-dc-b-0", &["simctl", "schema", "00000000-0000-0000-0000-00000000000b"]);
    let pods = uids(client).await;
    apply(client, &with_image(deploy::NEWER_SCYLLA_IMAGE)).await;
    let message = condition(client, "Degraded", "SchemaDisagreement").await;
    println!("a schema that differs: {message}");
    assert!(message.contains("default/orders-dc-b-0"), "{message}");
    assert_eq!(uids(client).await, pods, "no node has restarted");
    kill_the_leader(client, "preparing").await;
    let tags: BTreeSet<String> = snapshots("orders-dc-a-0").into_iter().map(|(tag, _)| tag).collect();
    assert_eq!(
        tags,
        BTreeSet::from(["messina-upgrade-2026.2.5-system".to_owned()]),
        "the others keep what they are to"
    );
    tool("orders-dc-b-0", &["simctl", "schema", "common"]);

    let began = Instant::now();
    some(client, "a node keeps its data", |service| text(service, annotation::UPGRADE_ANSWER).contains("\"data\""))
        .await;
    until_version(client, "orders-dc-a-0", "2026.2.5").await;
    kill_the_leader(client, "rolling").await;
    some(client, "snapshots are removed", |service| text(service, annotation::UPGRADE_REQUEST).contains("\"keep\":[]"))
        .await;
    kill_the_leader(client, "clearing").await;
    let status = settled(client, 3).await;
    println!("3 nodes upgraded after {:.1} s, with the operator killed three times", began.elapsed().as_secs_f64());
    assert_eq!(status.current_version.as_deref(), Some("2026.2.5"));
    all_is_cleared(client, "2026.2.5").await;
    let told = reasons(client).await;
    for reason in ["UpgradeBegins", "PreparingNode", "NodeUpgraded", "UpgradeDone"] {
        assert!(told.contains(reason), "no event {reason}: {told:?}");
    }
}

/// The first node cannot start; all others stay as they are, and with the former image it comes back.
async fn an_image_that_is_missing_is_taken_back(client: &Client) {
    let pods = uids(client).await;
    apply(client, &with_image("localhost/scylladb/scylla:2026.2.99")).await;
    until_version(client, "orders-dc-a-0", "2026.2.99").await;
    let message = condition(client, "Progressing", "WaitingForStatefulSetRollout").await;
    println!("an image that is missing: {message}");
    assert!(message.contains("orders-dc-a-0"), "{message}");
    apply(client, &with_image(deploy::NEWER_SCYLLA_IMAGE)).await;
    settled(client, 3).await;
    all_is_cleared(client, "2026.2.5").await;
    let now = uids(client).await;
    assert_ne!(now["orders-dc-a-0"], pods["orders-dc-a-0"]);
    for other in ["orders-dc-b-0", "orders-dc-c-0"] {
        assert_eq!(now[other], pods[other], "{other} was not touched");
    }
}

/// All pods run the version, nothing is left on Services and on disks, and partitions are at rest.
async fn all_is_cleared(client: &Client, version: &str) {
    let services: Api<Service> = Api::default_namespaced(client.clone());
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    for node in NODES {
        assert_eq!(pods.get(node).await.unwrap().labels()[label::SCYLLA_VERSION], version, "{node}");
        assert_eq!(snapshots(node), BTreeSet::new(), "{node} has no snapshots any more");
        eventually(&format!("nothing to be asked of {node}"), LONG, async || {
            let service = services.get(node).await.unwrap();
            let left: Vec<String> =
                service.annotations().keys().filter(|key| key.contains("/upgrade-")).cloned().collect();
            Ok(if left.is_empty() { Seen::Ready(()) } else { Seen::NotYet(left.join(", ")) })
        })
        .await
        .unwrap();
    }
    for one in Api::<StatefulSet>::default_namespaced(client.clone()).list(&ListParams::default()).await.unwrap() {
        let strategy = one.spec.as_ref().unwrap().update_strategy.as_ref().unwrap().rolling_update.as_ref().unwrap();
        assert_eq!(strategy.partition, Some(0), "{}", one.name_any());
    }
}

async fn uids(client: &Client) -> BTreeMap<String, String> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let mut uids = BTreeMap::new();
    for node in NODES {
        uids.insert(node.to_owned(), pods.get(node).await.unwrap().metadata.uid.unwrap());
    }
    uids
}

fn text(service: &Service, key: &str) -> String {
    service.annotations().get(key).cloned().unwrap_or_default()
}

/// Waits until the Service of some node is so.
async fn some(client: &Client, what: &str, is_so: impl Fn(&Service) -> bool) {
    let services: Api<Service> = Api::default_namespaced(client.clone());
    eventually(what, LONG, async || {
        let mut seen = Vec::new();
        for node in NODES {
            let service = services.get(node).await.unwrap();
            if is_so(&service) {
                return Ok(Seen::Ready(()));
            }
            seen.push(format!("{node}: {:?}", service.annotations()));
        }
        Ok(Seen::NotYet(seen.join("\n")))
    })
    .await
    .unwrap();
}

async fn until_version(client: &Client, pod: &str, version: &str) {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    until(pods, pod, "another version", LONG, |seen| {
        let now = seen.and_then(|pod| pod.labels().get(label::SCYLLA_VERSION).cloned());
        if now.as_deref() == Some(version) { Seen::Ready(()) } else { Seen::NotYet(format!("{now:?}")) }
    })
    .await
    .unwrap();
}

/// Waits until the condition holds for this reason, and gives its message.
async fn condition(client: &Client, kind: &str, reason: &str) -> String {
    let api: Api<ScyllaDBDatacenter> = Api::default_namespaced(client.clone());
    until(api, "orders", reason, LONG, |seen| {
        let conditions = seen.and_then(|datacenter| datacenter.status?.conditions).unwrap_or_default();
        let name = format!("StatefulSetController{kind}");
        let found =
            conditions.iter().find(|one| one.type_ == name && one.status == "True" && one.reason.contains(reason));
        found.map_or_else(|| Seen::NotYet(format!("{conditions:?}")), |one| Seen::Ready(one.message.clone()))
    })
    .await
    .unwrap()
}

/// Reasons of the events of the datacenter.
async fn reasons(client: &Client) -> BTreeSet<String> {
    let events: Api<Event> = Api::default_namespaced(client.clone());
    let ours = ListParams::default().fields("involvedObject.kind=ScyllaDBDatacenter");
    events.list(&ours).await.unwrap().into_iter().filter_map(|event| event.reason).collect()
}

/// Ends the copy of the operator that leads, without a word, and waits until the other one does.
async fn kill_the_leader(client: &Client, phase: &str) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "messina");
    let holder = leases.get("messina").await.unwrap().spec.unwrap().holder_identity.unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), "messina");
    pods.delete(&holder, &DeleteParams::default().grace_period(0)).await.unwrap();
    println!("{phase}: {holder} is killed");
    until(leases, "messina", "another copy to lead", LONG, |seen| {
        match seen.and_then(|lease| lease.spec).and_then(|spec| spec.holder_identity) {
            Some(next) if !next.is_empty() && next != holder => Seen::Ready(()),
            other => Seen::NotYet(format!("held by {other:?}")),
        }
    })
    .await
    .unwrap();
}

/// Runs a tool in the container of a node, and gives what it prints.
fn tool(pod: &str, command: &[&str]) -> String {
    let mut kubectl = Command::new(Tools::control_plane(&Steps::quiet()).unwrap().program("kubectl"));
    kubectl.arg("--kubeconfig").arg(cluster_named(CLUSTER).kubeconfig());
    kubectl.args(["exec", pod, "--container", "scylla", "--"]).args(command);
    exec::output(command[0], &mut kubectl).unwrap()
}

/// The snapshots of a node: names and keyspaces.
fn snapshots(pod: &str) -> BTreeSet<(String, String)> {
    let printed = tool(pod, &["nodetool", "listsnapshots"]);
    let lines = printed.lines().filter(|line| line.starts_with("messina-"));
    lines
        .filter_map(|line| {
            let mut words = line.split('\t').map(str::to_owned);
            Some((words.next()?, words.next()?))
        })
        .collect()
}

/// Watches pods: never are two nodes down at once.
struct Watch {
    task: tokio::task::JoinHandle<()>,
    is_broken: Arc<AtomicBool>,
}

impl Watch {
    async fn begin(client: &Client) -> Self {
        let pods: Api<Pod> = Api::default_namespaced(client.clone());
        let nodes = watcher::Config::default().labels("scylla-operator.scylladb.com/pod-type=scylladb-node");
        let is_broken = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_broken);
        let task = tokio::spawn(async move {
            let mut up: BTreeMap<String, bool> = NODES.map(|node| (node.to_owned(), true)).into();
            let mut events = Box::pin(watcher(pods, nodes).default_backoff());
            while let Some(event) = events.next().await {
                let (pod, is_there) = match event {
                    Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) => (pod, true),
                    Ok(watcher::Event::Delete(pod)) => (pod, false),
                    _ => continue,
                };
                let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
                let is_ready = conditions.clone().any(|one| one.type_ == "Ready" && one.status == "True");
                up.insert(pod.name_any(), is_there && is_ready && pod.metadata.deletion_timestamp.is_none());
                let down: Vec<&String> = up.iter().filter(|(_, is_up)| !**is_up).map(|(name, _)| name).collect();
                if down.len() > 1 {
                    eprintln!("{down:?} are down at once");
                    flag.store(true, Ordering::Relaxed);
                }
            }
        });
        Self { task, is_broken }
    }

    fn end(self) {
        assert!(!self.task.is_finished(), "pods were watched to the end");
        self.task.abort();
        assert!(!self.is_broken.load(Ordering::Relaxed), "two nodes were down at once");
    }
}
