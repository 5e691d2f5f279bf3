//! Repeated changes of a datacenter on a real cluster, with an observer that checks every write.

mod damage;
mod desired;
mod phase;
mod random;
mod snapshot;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, LogParams, PropagationPolicy},
};
use messina_api::{
    names::{annotation, label},
    scylla::v1alpha1::ScyllaDBDatacenter,
};
use messina_e2e::{
    clusters::{Started, cluster_named},
    datacenter::{LONG, NAME, TestDatacenter},
    observer::Observer,
};
use messina_testbed::{
    demo, deploy,
    harness::{Seen, eventually, until},
    progress::Steps,
};
use serde_json::json;

use crate::testbed::skip_if_unsuitable;
use desired::Desired;
use phase::Phase;
use snapshot::{Snapshot, differences, kinds, owned, snapshot};

#[tokio::test]
async fn datacenter_is_unchanged_after_scaling_restart_and_replacement() {
    skip_if_unsuitable!();
    let datacenter = TestDatacenter::create("life", &[]).await;
    let observer = datacenter.observe();
    scale_restart_and_replace(&datacenter, &observer).await;
    println!("the observer: {}", observer.ends());
    datacenter.remove().await;
}

#[tokio::test]
#[ignore = "it takes long: `make soak` runs it"]
async fn datacenter_converges_after_damage_and_random_changes() {
    const CLUSTER: &str = "soak";
    skip_if_unsuitable!();
    let started = Started::up(CLUSTER, &[]);
    let (client, cluster) = (started.client().await, cluster_named(CLUSTER));
    deploy::images(&cluster, &Steps::quiet()).unwrap();
    demo::install_definitions(&client).await.unwrap();
    let datacenter = TestDatacenter::create_on(&client, &cluster, "soak", &[]).await;
    let observer = datacenter.observe();
    let desired = Desired::of(&[("a", 1), ("b", 1), ("c", 1)]);
    datacenter.apply(&desired.manifest()).await;
    datacenter.settled_and_cleaned_up(desired.nodes()).await;
    damage::damage_and_repair(&datacenter, &desired).await;
    println!("the observer: {}", observer.check_no_violations());
    random::run_random_changes(&datacenter, &observer, desired, 55).await;
    println!("the observer: {}", observer.ends());
}

mod slow {
    use super::*;

    /// A short form of what `make soak` does.
    #[tokio::test]
    async fn datacenter_converges_after_a_few_random_changes() {
        skip_if_unsuitable!();
        let datacenter = TestDatacenter::create("chance", &[]).await;
        let observer = datacenter.observe();
        let desired = Desired::of(&[("a", 1), ("b", 1), ("c", 1)]);
        datacenter.apply(&desired.manifest()).await;
        datacenter.settled_and_cleaned_up(desired.nodes()).await;
        random::run_random_changes(&datacenter, &observer, desired, 12).await;
        println!("the observer: {}", observer.ends());
        datacenter.remove().await;
    }
}

/// A node through which rows are written.
const FIRST: &str = "orders-dc-a-0";

/// Writes rows with two replicas and rows with three.
fn write_rows(datacenter: &TestDatacenter, observer: &Observer, name: &str) {
    ["rf2", "rf3"].iter().for_each(|keyspace| datacenter.write_rows(observer, FIRST, keyspace, name).unwrap());
}

/// Scales from three nodes in three racks to six nodes in four racks and back, restarts the nodes one by one, and
/// replaces one of them: finally the objects are as before, and no replica of a row is missing.
async fn scale_restart_and_replace(datacenter: &TestDatacenter, observer: &Observer) {
    let mut desired = Desired::of(&[("a", 1), ("b", 1), ("c", 1)]);
    let phase = Phase::begin(datacenter, "3 racks of 1 node");
    datacenter.apply(&desired.manifest()).await;
    datacenter.settled_and_cleaned_up(desired.nodes()).await;
    phase.end();
    let kinds = kinds(datacenter).await;
    let fresh = snapshot(datacenter, &kinds).await;
    let first = datacenter.nodes().await;

    let phase = Phase::begin(datacenter, "deleted with orphans, and recreated");
    delete_with_orphans(datacenter).await;
    datacenter.apply(&desired.manifest()).await;
    datacenter.settled_and_cleaned_up(desired.nodes()).await;
    phase.end();
    await_snapshot(datacenter, &kinds, &fresh).await;
    let now = datacenter.nodes().await;
    assert_eq!((&now.hosts, &now.pods, &now.claims), (&first.hosts, &first.pods, &first.claims));

    [2, 3].iter().for_each(|factor| datacenter.create_keyspace(FIRST, &format!("rf{factor}"), *factor));
    write_rows(datacenter, observer, "first");
    observer.rows_are_replicated().await;

    let phase = Phase::begin(datacenter, "4 racks, 6 nodes");
    let larger = Desired::of(&[("a", 2), ("b", 2), ("c", 1), ("d", 1)]);
    datacenter.exec(FIRST, &["simctl", "cleanups", "refused"]).unwrap();
    datacenter.apply(&larger.manifest()).await;
    await_failed_cleanup(datacenter).await;
    datacenter.exec(FIRST, &["simctl", "cleanups", "granted"]).unwrap();
    datacenter.settled_and_cleaned_up(larger.nodes()).await;
    phase.end();
    assert_eq!(observer.check_no_violations().counts.joins, 6);
    write_rows(datacenter, observer, "larger");
    observer.rows_are_replicated().await;

    // The removed rack is decommissioned first, and the last node of each rack before the others.
    let leaves = "orders-dc-d-0";
    datacenter.exec(leaves, &["simctl", "replicas", "6"]).unwrap();
    datacenter.apply(&desired.manifest()).await;
    let condition = datacenter.condition("Degraded", "True", |one| one.reason.contains("DecommissionRefused")).await;
    assert!(
        condition.message.contains("5 node(s) would stay") && condition.message.contains(leaves),
        "{}",
        condition.message
    );
    datacenter.exec(leaves, &["simctl", "replicas", "none"]).unwrap();
    let phase = Phase::begin(datacenter, "and back");
    datacenter.apply(&desired.manifest()).await;
    datacenter.settled_and_cleaned_up(desired.nodes()).await;
    phase.end();
    await_snapshot(datacenter, &kinds, &fresh).await;
    let (now, seen) = (datacenter.nodes().await, observer.check_no_violations().counts);
    assert_eq!((&now.hosts, &now.pods, seen.departures), (&first.hosts, &first.pods, 3));
    observer.rows_are_replicated().await;

    let phase = Phase::begin(datacenter, "rolling restart");
    desired.redeployment = Some("for the test".into());
    datacenter.apply(&desired.manifest()).await;
    datacenter.settled_and_cleaned_up(desired.nodes()).await;
    phase.end();
    let restarted = datacenter.nodes().await;
    assert_eq!(restarted.hosts, first.hosts, "host IDs do not change");
    assert!(restarted.pods.iter().all(|(name, pod)| first.pods[name] != *pod), "{restarted:?} {first:?}");
    observer.rows_are_replicated().await;

    let phase = Phase::begin(datacenter, "a node without its disk is replaced");
    replace_node_without_disk(datacenter, "orders-dc-b-0").await;
    datacenter.settled_and_cleaned_up(desired.nodes()).await;
    phase.end();
    assert_eq!(observer.check_no_violations().counts.replacements, 1);
    desired.redeployment = None;
    datacenter.apply(&desired.manifest()).await;
    datacenter.settled_and_cleaned_up(desired.nodes()).await;
    await_snapshot(datacenter, &kinds, &fresh).await;
    observer.rows_are_replicated().await;
}

/// Waits for a failed pod of the first node's cleanup Job, and checks its log.
async fn await_failed_cleanup(datacenter: &TestDatacenter) {
    let pods = datacenter.api::<Pod>();
    let of_job = ListParams::default().labels(&format!("batch.kubernetes.io/job-name=cleanup-{FIRST}"));
    let failed = eventually("a failed pod of the cleanup Job", LONG, async || {
        let attempts = pods.list(&of_job).await.unwrap().items;
        let is_failed = |pod: &&Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Failed");
        let failed = attempts.iter().find(is_failed).map(|pod| pod.name_any());
        Ok(failed.map_or_else(|| Seen::NotYet(format!("{} attempt(s)", attempts.len())), Seen::Ready))
    });
    let log = pods.logs(&failed.await.unwrap(), &LogParams::default()).await.unwrap();
    assert!(log.contains("cleanups fail on command"), "{log}");
}

/// Waits until the datacenter owns exactly the expected objects.
async fn await_snapshot(datacenter: &TestDatacenter, kinds: &[kube::api::ApiResource], expected: &Snapshot) {
    eventually("all objects to be as expected", LONG, async || {
        let differences = differences(expected, &snapshot(datacenter, kinds).await);
        Ok(if differences.is_empty() { Seen::Ready(()) } else { Seen::NotYet(differences.join("\n")) })
    })
    .await
    .unwrap();
}

async fn delete_with_orphans(datacenter: &TestDatacenter) {
    let datacenters = datacenter.api::<ScyllaDBDatacenter>();
    let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    datacenters.delete(NAME, &orphan).await.unwrap();
    until(datacenters, NAME, "the datacenter to be deleted", LONG, |seen| match seen {
        None => Seen::Ready(()),
        Some(_) => Seen::NotYet("it exists".into()),
    })
    .await
    .unwrap();
}

async fn replace_node_without_disk(datacenter: &TestDatacenter, member: &str) {
    let before = datacenter.nodes().await;
    let claim = format!("data-{member}");
    // The node crashes before it can answer. It does not start again as a new node.
    let _ = datacenter.exec(member, &["simctl", "lose-disk"]);
    eventually("the disk to be empty", LONG, async || {
        let found = datacenter.host_on_disk(&claim).await;
        let is_lost = found.as_ref() != Some(&before.hosts[member]);
        Ok(if is_lost { Seen::Ready(()) } else { Seen::NotYet(format!("{found:?}")) })
    })
    .await
    .unwrap();
    let condition = datacenter.condition("Degraded", "True", |one| one.message.contains("its disk is empty")).await;
    assert!(
        condition.message.contains(&before.hosts[member]) && condition.message.contains("scylla/replace="),
        "{}",
        condition.message
    );
    assert_eq!(datacenter.host_on_disk(&claim).await, None);
    datacenter.patch::<Service>(member, json!({"metadata": {"labels": {label::REPLACE: ""}}})).await;
    until(datacenter.api::<PersistentVolumeClaim>(), &claim, "a new claim", LONG, |seen| {
        let uid = seen.and_then(|claim| claim.uid());
        let await_recreated = uid.as_ref().is_some_and(|uid| *uid != before.claims[&claim]);
        if await_recreated { Seen::Ready(()) } else { Seen::NotYet(format!("{uid:?}")) }
    })
    .await
    .unwrap();
    until(datacenter.api::<Service>(), member, "a new node", LONG, |seen| {
        let service = seen.unwrap_or_default();
        let is_done = !service.labels().keys().any(|key| key.contains("replac"));
        let await_recreated = service.annotations().get(annotation::HOST_ID) != Some(&before.hosts[member]);
        if is_done && await_recreated { Seen::Ready(()) } else { Seen::NotYet(format!("{:?}", service.metadata)) }
    })
    .await
    .unwrap();
    let after = datacenter.nodes().await;
    for (other, host) in before.hosts.iter().filter(|(other, _)| *other != member) {
        assert_eq!(after.hosts.get(other), Some(host), "{other} is the same node");
    }
}

/// From the manifest to `Available`: hardly more writes than there are objects, and no conflicts.
#[tokio::test]
async fn creation_of_nine_nodes_takes_few_writes() {
    skip_if_unsuitable!();
    let datacenter = TestDatacenter::create("nine", &[]).await;
    let observer = datacenter.observe();
    let phase = Phase::begin(&datacenter, "3 racks of 3 nodes");
    let began = Instant::now();
    datacenter.apply(&Desired::of(&[("a", 3), ("b", 3), ("c", 3)]).manifest()).await;
    datacenter.condition("Available", "True", |_| true).await;
    println!("3 racks of 3 nodes: available after {:.1} s", began.elapsed().as_secs_f64());
    let writes = phase.end();
    // The datacenter does not own claims; each gets an annotation.
    let objects = owned(&datacenter, &kinds(&datacenter).await).await.len() + datacenter.nodes().await.claims.len();
    let mut kinds = BTreeMap::<String, usize>::new();
    let (mut of_operator, mut conflicts) = (Vec::new(), Vec::new());
    for write in &writes {
        let is_operators = datacenter.is_from_operator(write);
        if !is_operators && !datacenter.is_from_sidecar(write) {
            continue;
        }
        let who = if is_operators { "operator" } else { "sidecars" };
        *kinds.entry(format!("{who} {} {} {}", write.verb, write.resource, write.code)).or_default() += 1;
        of_operator.extend(is_operators.then_some(write));
        conflicts.extend((write.code == 409).then_some(write));
    }
    println!("{objects} objects; {kinds:#?}");
    let first = writes.iter().map(|write| write.received).min();
    for write in of_operator.iter().filter(|write| write.verb != "create") {
        let since = first.map(|first| write.received.duration_since(first).as_secs()).unwrap_or_default();
        println!("after {since} s: {} {} {}", write.verb, write.resource, write.name);
    }
    println!("the observer: {}", observer.ends());
    assert!(conflicts.is_empty(), "{conflicts:?}");
    let operators = of_operator.len();
    assert!(operators * 10 <= objects * 13, "{operators} writes for {objects} objects");
    delete_with_pods(&datacenter).await;
    datacenter.remove().await;
}

/// Deletes the datacenter, and waits until its pods are gone.
async fn delete_with_pods(datacenter: &TestDatacenter) {
    datacenter.api::<ScyllaDBDatacenter>().delete(NAME, &DeleteParams::background()).await.unwrap();
    eventually("all pods to be gone", LONG, async || {
        let pods = datacenter.api::<Pod>().list(&ListParams::default()).await.unwrap().items.len();
        Ok(if pods == 0 { Seen::Ready(()) } else { Seen::NotYet(format!("{pods} pods")) })
    })
    .await
    .unwrap();
}

/// Waits long enough for a wrong write to happen.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(1500)).await;
}
