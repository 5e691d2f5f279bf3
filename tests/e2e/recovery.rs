//! All nodes of a rack start at once: after a power loss, and in a datacenter that is created on existing claims.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{PersistentVolumeClaim, Pod, Service},
};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use messina_api::{names::annotation, scylla::v1alpha1::ScyllaDBDatacenter};
use messina_e2e::datacenter::{LONG, NAME, NODE_PODS, TestDatacenter, manifest};
use messina_testbed::harness::{Seen, eventually};

use crate::testbed::skip_if_unsuitable;

const RACK: &str = "orders-dc-a";
const FIRST: &str = "orders-dc-a-0";

#[tokio::test]
async fn nodes_of_a_rack_restart_from_their_disks_at_once() {
    skip_if_unsuitable!();
    let datacenter = &TestDatacenter::create("recovery", &[]).await;
    let observer = datacenter.observe();
    datacenter.apply(&manifest(&[("a", 3)])).await;
    datacenter.settled(3).await;
    datacenter.create_keyspace(FIRST, "rf2", 2);
    datacenter.write_rows(&observer, FIRST, "rf2", "before").unwrap();
    let before = datacenter.nodes().await;
    assert_eq!(policy(datacenter).await, "OrderedReady");
    assert_eq!(noted(datacenter).await, before.hosts, "claims name the nodes that have joined");

    let pods = datacenter.api::<Pod>();
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    pods.delete_collection(&at_once, &ListParams::default().labels(NODE_PODS)).await.unwrap();
    eventually("other pods", LONG, async || {
        let now = datacenter.nodes().await.pods;
        let are_new = now.len() == 3 && now.iter().all(|(name, (uid, _))| before.pods[name].0 != *uid);
        Ok(if are_new { Seen::Ready(()) } else { Seen::NotYet(format!("{now:?}")) })
    })
    .await
    .unwrap();
    datacenter.settled(3).await;
    assert_eq!(datacenter.nodes().await.hosts, before.hosts, "they are the same nodes");
    assert_eq!(policy(datacenter).await, "Parallel", "they waited for one another");
    observer.rows_are_replicated().await;
    println!("the observer: {}", observer.ends());

    datacenter.api::<ScyllaDBDatacenter>().delete(NAME, &DeleteParams::foreground()).await.unwrap();
    eventually("everything of the datacenter to be gone", LONG, async || {
        let services = datacenter.api::<Service>().list(&ListParams::default()).await.unwrap();
        let pods = pods.list(&ListParams::default().labels(NODE_PODS)).await.unwrap();
        let datacenters = datacenter.api::<ScyllaDBDatacenter>().list(&ListParams::default()).await.unwrap();
        let left = services.items.len() + pods.items.len() + datacenters.items.len();
        Ok(if left == 0 { Seen::Ready(()) } else { Seen::NotYet(format!("{left} objects are left")) })
    })
    .await
    .unwrap();
    let observer = datacenter.observe();
    // One node fewer than claims: all nodes start, and then one is decommissioned.
    datacenter.apply(&manifest(&[("a", 2)])).await;
    eventually("all nodes to be back", LONG, async || {
        let rack = datacenter.api::<StatefulSet>().get_opt(RACK).await.unwrap();
        let ready = rack.and_then(|rack| rack.status?.ready_replicas);
        Ok(if ready == Some(3) { Seen::Ready(()) } else { Seen::NotYet(format!("{ready:?} are ready")) })
    })
    .await
    .unwrap();
    assert_eq!(datacenter.nodes().await.hosts, before.hosts, "they are the same nodes");
    observer.acknowledge("rf2", [("before-0", "value"), ("before-1", "value")]);
    datacenter.settled(2).await;
    observer.rows_are_replicated().await;
    let mut rest = before.hosts.clone();
    rest.remove("orders-dc-a-2");
    assert_eq!((datacenter.nodes().await.hosts, datacenter.nodes().await.claims), (rest, before.claims));
    assert_eq!(policy(datacenter).await, "Parallel");
    println!("the observer: {}", observer.ends());
    datacenter.permissions().await;
    datacenter.remove().await;
}

async fn policy(datacenter: &TestDatacenter) -> String {
    let rack = datacenter.api::<StatefulSet>().get(RACK).await.unwrap();
    rack.spec.unwrap().pod_management_policy.unwrap()
}

/// Host IDs on the claims, by the names of the nodes.
async fn noted(datacenter: &TestDatacenter) -> BTreeMap<String, String> {
    let claims = datacenter.api::<PersistentVolumeClaim>().list(&ListParams::default()).await.unwrap();
    let noted = claims.iter().filter_map(|claim| {
        let member = claim.name_any().strip_prefix("data-")?.to_owned();
        Some((member, claim.annotations().get(annotation::JOINED_HOST_ID)?.clone()))
    });
    noted.collect()
}
