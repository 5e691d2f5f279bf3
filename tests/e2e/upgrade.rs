//! Upgrades of a datacenter, node by node, while the operator is killed.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use futures::{Stream, StreamExt};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Event, Pod, Service},
};
use kube::{
    ResourceExt,
    api::ListParams,
    runtime::{WatchStreamExt, watcher},
};
use messina_api::names::{annotation, label};
use messina_e2e::{
    datacenter::{LONG, NODE_PODS, SHORT_LEASE, TestDatacenter, manifest, restarts},
    observer::Observer,
};
use messina_testbed::{
    deadline::Deadline,
    deploy,
    harness::{Seen, eventually, until},
};
use serde_json::Value;

use crate::testbed::skip_if_unsuitable;

const NODES: [&str; 3] = ["orders-dc-a-0", "orders-dc-b-0", "orders-dc-c-0"];

fn with_image(image: &str) -> Value {
    let mut manifest = manifest(&[("a", 1), ("b", 1), ("c", 1)]);
    manifest["spec"]["scyllaDB"]["image"] = image.into();
    manifest
}

#[tokio::test]
async fn version_changes_node_by_node() {
    skip_if_unsuitable!();
    let datacenter = TestDatacenter::create("upgrade", &[SHORT_LEASE]).await;
    let observer = datacenter.observe();
    datacenter.apply(&with_image(deploy::SCYLLA_IMAGE)).await;
    datacenter.settled(3).await;
    datacenter.create_keyspace(NODES[0], "rf3", 3);
    datacenter.write_rows(&observer, NODES[0], "rf3", "old").unwrap();
    let (watch, mut services) = (Watch::begin(&datacenter).await, Versions::begin(&datacenter).await);

    schema_disagreement_is_reported_and_resolved(&datacenter, &mut services, &observer).await;
    observer.rows_are_replicated().await;
    missing_image_is_rolled_back(&datacenter, &observer).await;
    observer.rows_are_replicated().await;
    watch.end();
    println!("the observer: {}", observer.ends());
    datacenter.remove().await;
}

/// One node has another schema: nothing restarts, and a condition names the node. When it agrees again, the upgrade
/// continues, and the test kills the operator while nodes prepare, while they restart, and while they clear snapshots.
async fn schema_disagreement_is_reported_and_resolved(
    datacenter: &TestDatacenter,
    services: &mut Versions,
    observer: &Observer,
) {
    tool(datacenter, "orders-dc-b-0", &["simctl", "schema", "00000000-0000-0000-0000-00000000000b"]);
    let pods = uids(datacenter).await;
    datacenter.apply(&with_image(deploy::NEWER_SCYLLA_IMAGE)).await;
    let message = condition(datacenter, "Degraded", "SchemaDisagreement").await;
    println!("a schema that differs: {message}");
    assert!(message.contains(&format!("{}/orders-dc-b-0", datacenter.namespace)), "{message}");
    assert_eq!(uids(datacenter).await, pods, "no node has restarted");
    kill_the_leader(datacenter, "preparing").await;
    let tags: BTreeSet<String> = snapshots(datacenter, "orders-dc-a-0").into_iter().map(|(tag, _)| tag).collect();
    assert_eq!(
        tags,
        BTreeSet::from(["messina-upgrade-2026.2.5-system".to_owned()]),
        "the others keep what they are to"
    );
    tool(datacenter, "orders-dc-b-0", &["simctl", "schema", "common"]);

    let began = Instant::now();
    services
        .has_one("a node keeps its data", |service| text(service, annotation::UPGRADE_ANSWER).contains("\"data\""))
        .await;
    until_version(datacenter, "orders-dc-a-0", "2026.2.5").await;
    kill_the_leader(datacenter, "rolling").await;
    services
        .has_one("snapshots are removed", |service| text(service, annotation::UPGRADE_REQUEST).contains("\"keep\":[]"))
        .await;
    let leader = datacenter.kill_leader().await;
    println!("clearing: {leader} is killed");
    let is_left_to_another = !left_to_clear(datacenter).await.is_empty();
    datacenter.await_other_leader(&leader).await;
    let status = datacenter.settled(3).await;
    println!("3 nodes upgraded after {:.1} s, with the operator killed three times", began.elapsed().as_secs_f64());
    assert_eq!(status.current_version.as_deref(), Some("2026.2.5"));
    datacenter.write_rows(observer, NODES[1], "rf3", "new").unwrap();
    check_all_cleared(datacenter, "2026.2.5").await;
    let expected = BTreeSet::from(["UpgradeBegins", "PreparingNode", "NodeUpgraded", "UpgradeDone"].map(str::to_owned));
    // A replica that is killed just after it has cleared the last node does not send its last events.
    let expected: BTreeSet<_> =
        expected.into_iter().filter(|reason| is_left_to_another || reason != "UpgradeDone").collect();
    eventually("events of the upgrade", LONG, async || {
        let missing: Vec<String> = expected.difference(&reasons(datacenter).await).cloned().collect();
        Ok(if missing.is_empty() { Seen::Ready(()) } else { Seen::NotYet(format!("no {}", missing.join(", "))) })
    })
    .await
    .unwrap();
}

/// The first node cannot start; all others are not changed, and with the former image it starts again.
async fn missing_image_is_rolled_back(datacenter: &TestDatacenter, observer: &Observer) {
    let pods = uids(datacenter).await;
    datacenter.apply(&with_image("localhost/scylladb/scylla:2026.2.99")).await;
    until_version(datacenter, "orders-dc-a-0", "2026.2.99").await;
    let message = condition(datacenter, "Progressing", "WaitingForStatefulSetRollout").await;
    println!("an image that is missing: {message}");
    assert!(message.contains("orders-dc-a-0"), "{message}");
    // The node that is down gets them when it is up again.
    datacenter.write_rows(observer, NODES[1], "rf3", "while-a-node-is-down").unwrap();
    datacenter.apply(&with_image(deploy::NEWER_SCYLLA_IMAGE)).await;
    datacenter.settled(3).await;
    check_all_cleared(datacenter, "2026.2.5").await;
    let now = uids(datacenter).await;
    assert_ne!(now["orders-dc-a-0"], pods["orders-dc-a-0"]);
    for other in ["orders-dc-b-0", "orders-dc-c-0"] {
        assert_eq!(now[other], pods[other], "{other} was not touched");
    }
}

/// Checks that all pods run the version, that Services and disks are cleared, and that no partition is set.
async fn check_all_cleared(datacenter: &TestDatacenter, version: &str) {
    let pods = datacenter.api::<Pod>();
    for node in NODES {
        assert_eq!(pods.get(node).await.unwrap().labels()[label::SCYLLA_VERSION], version, "{node}");
        assert_eq!(snapshots(datacenter, node), BTreeSet::new(), "{node} has no snapshots any more");
    }
    eventually("nothing to be asked of any node", LONG, async || {
        let left = left_to_clear(datacenter).await;
        Ok(if left.is_empty() { Seen::Ready(()) } else { Seen::NotYet(left.join(", ")) })
    })
    .await
    .unwrap();
    for one in datacenter.api::<StatefulSet>().list(&ListParams::default()).await.unwrap() {
        let strategy = one.spec.as_ref().unwrap().update_strategy.as_ref().unwrap().rolling_update.as_ref().unwrap();
        assert_eq!(strategy.partition, Some(0), "{}", one.name_any());
    }
}

/// The annotations of upgrade requests and answers that are left on Services.
async fn left_to_clear(datacenter: &TestDatacenter) -> Vec<String> {
    let services = datacenter.api::<Service>().list(&ListParams::default()).await.unwrap();
    let left = services.iter().flat_map(|service| {
        let keys = service.annotations().keys().filter(|key| key.contains("/upgrade-"));
        keys.map(|key| format!("{} {key}", service.name_any()))
    });
    left.collect()
}

async fn uids(datacenter: &TestDatacenter) -> BTreeMap<String, String> {
    let pods = datacenter.api::<Pod>();
    let mut uids = BTreeMap::new();
    for node in NODES {
        uids.insert(node.to_owned(), pods.get(node).await.unwrap().metadata.uid.unwrap());
    }
    uids
}

fn text(service: &Service, key: &str) -> String {
    service.annotations().get(key).cloned().unwrap_or_default()
}

async fn until_version(datacenter: &TestDatacenter, pod: &str, version: &str) {
    let pods = datacenter.api::<Pod>();
    until(pods, pod, "another version", LONG, |seen| {
        let now = seen.and_then(|pod| pod.labels().get(label::SCYLLA_VERSION).cloned());
        if now.as_deref() == Some(version) { Seen::Ready(()) } else { Seen::NotYet(format!("{now:?}")) }
    })
    .await
    .unwrap();
}

/// Waits until a condition of the StatefulSets holds for this reason, and returns its message.
async fn condition(datacenter: &TestDatacenter, kind: &str, reason: &str) -> String {
    let name = format!("StatefulSetController{kind}");
    datacenter.condition(&name, "True", |condition| condition.reason.contains(reason)).await.message
}

/// Reasons of the events of the datacenter.
async fn reasons(datacenter: &TestDatacenter) -> BTreeSet<String> {
    let events = datacenter.api::<Event>();
    let ours = ListParams::default().fields("involvedObject.kind=ScyllaDBDatacenter");
    events.list(&ours).await.unwrap().into_iter().filter_map(|event| event.reason).collect()
}

/// Kills the leader, and waits until the other replica of the operator leads.
async fn kill_the_leader(datacenter: &TestDatacenter, phase: &str) {
    let leader = datacenter.replace_leader().await;
    println!("{phase}: {leader} is killed");
}

/// Runs a tool in the container of a node, and returns its output.
fn tool(datacenter: &TestDatacenter, pod: &str, command: &[&str]) -> String {
    datacenter.exec(pod, command).unwrap()
}

/// The snapshots of a node: names and keyspaces.
fn snapshots(datacenter: &TestDatacenter, pod: &str) -> BTreeSet<(String, String)> {
    let printed = tool(datacenter, pod, &["nodetool", "listsnapshots"]);
    let lines = printed.lines().filter(|line| line.starts_with("messina-"));
    lines
        .filter_map(|line| {
            let mut words = line.split('\t').map(str::to_owned);
            Some((words.next()?, words.next()?))
        })
        .collect()
}

/// All versions of the Services of nodes, one by one, so that short states are not missed.
struct Versions(Pin<Box<dyn Stream<Item = watcher::Result<watcher::Event<Service>>>>>);

impl Versions {
    async fn begin(datacenter: &TestDatacenter) -> Self {
        let mut events = Box::pin(watcher(datacenter.api::<Service>(), watcher::Config::default()).default_backoff());
        while !matches!(events.next().await, Some(Ok(watcher::Event::InitDone))) {}
        Self(events)
    }

    /// Waits until a version of a Service meets the condition.
    async fn has_one(&mut self, what: &str, is_so: impl Fn(&Service) -> bool) {
        let (mut deadline, mut seen) = (Deadline::new(LONG), String::new());
        while let Some(left) = deadline.left() {
            let Ok(event) = tokio::time::timeout(left, self.0.next()).await else { continue };
            let Some(Ok(watcher::Event::Apply(service) | watcher::Event::InitApply(service))) = event else { continue };
            if is_so(&service) {
                return;
            }
            deadline.progress();
            seen = format!("{}: {:?}", service.name_any(), service.annotations());
        }
        panic!("{what} is not so: {seen}");
    }
}

/// Watches pods, and checks that no two nodes are down at once.
///
/// A node is up from when its pod is ready until the pod is deleted, or its container restarts. A pod whose probe
/// times out on busy CPUs is not down.
struct Watch {
    task: tokio::task::JoinHandle<()>,
    is_broken: Arc<AtomicBool>,
}

impl Watch {
    async fn begin(datacenter: &TestDatacenter) -> Self {
        let pods = datacenter.api::<Pod>();
        let nodes = watcher::Config::default().labels(NODE_PODS);
        let is_broken = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_broken);
        let mut up: BTreeMap<String, Option<(String, i32)>> = BTreeMap::new();
        for (name, life) in datacenter.nodes().await.pods {
            up.insert(name, Some(life));
        }
        let task = tokio::spawn(async move {
            let mut events = Box::pin(watcher(pods, nodes).default_backoff());
            while let Some(event) = events.next().await {
                let (pod, is_there) = match event {
                    Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) => (pod, true),
                    Ok(watcher::Event::Delete(pod)) => (pod, false),
                    _ => continue,
                };
                let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
                let is_ready = conditions.any(|one| one.type_ == "Ready" && one.status == "True");
                let life = Some((pod.uid().unwrap_or_default(), restarts(&pod)));
                let was_up = up.get(&pod.name_any()).is_some_and(|known| *known == life);
                let is_up = is_there && pod.metadata.deletion_timestamp.is_none() && (is_ready || was_up);
                up.insert(pod.name_any(), life.filter(|_| is_up));
                let down: Vec<&String> = up.iter().filter(|(_, life)| life.is_none()).map(|(name, _)| name).collect();
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
