//! A datacenter's life on a real cluster, with the operator as users deploy it, and an observer who reads every write.

mod damage;
mod home;
mod picture;
mod random;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use kube::{ResourceExt, api::DeleteParams};
use messina_api::{
    names::{annotation, label},
    scylla::v1alpha1::ScyllaDBDatacenter,
};
use messina_e2e::{
    clusters::{Started, cluster_named},
    observer::Observer,
};
use messina_testbed::{
    deploy,
    harness::{Seen, eventually, until},
    progress::Steps,
};
use serde_json::json;

use crate::testbed::machine;
use home::{Home, LONG, NAME, Phase, Wish, is_operators, is_sidecars};
use picture::{Picture, differences, kinds, owned, picture};

const CLUSTER: &str = "life";

/// A cluster with the operator in it.
async fn started(name: &'static str) -> (Started, kube::Client) {
    let cluster = Started::up(name, &[]);
    let client = cluster.client().await;
    deploy::images(&cluster_named(name), &Steps::quiet()).unwrap();
    deploy::operator(&client, &Steps::quiet()).await.unwrap();
    (cluster, client)
}

/// A datacenter lives, and is watched.
pub(super) async fn lives() {
    let (_cluster, client) = started(CLUSTER).await;
    nine_nodes_take_few_writes(&client).await;
    let home = Home::new(&client, CLUSTER, "life").await;
    let observer = Observer::start(&cluster_named(CLUSTER), &home.namespace);
    it_grows_shrinks_restarts_and_is_mended(&home, &observer).await;
    println!("the observer: {}", observer.ends());
}

#[tokio::test]
#[ignore = "it takes long: `make soak` runs it"]
async fn damage_and_changes_by_chance_end_well() {
    const CLUSTER: &str = "soak";
    machine!();
    let (_cluster, client) = started(CLUSTER).await;
    let home = Home::new(&client, CLUSTER, "soak").await;
    let observer = Observer::start(&cluster_named(CLUSTER), &home.namespace);
    let wish = Wish::of(&[("a", 1), ("b", 1), ("c", 1)]);
    home.apply(&wish).await;
    home.settled(&wish).await;
    damage::is_repaired(&home, &wish).await;
    println!("the observer: {}", observer.is_content());
    random::changes_end_well(&home, &observer, wish).await;
    println!("the observer: {}", observer.ends());
}

/// From three racks of one node to three of two and back, restarted node by node, and with one node replaced: in the end it
/// is as it was.
async fn it_grows_shrinks_restarts_and_is_mended(home: &Home, observer: &Observer) {
    let mut wish = Wish::of(&[("a", 1), ("b", 1), ("c", 1)]);
    let phase = Phase::begins(home, "3 racks of 1 node");
    home.apply(&wish).await;
    home.settled(&wish).await;
    phase.ends();
    let kinds = kinds(home).await;
    let fresh = picture(home, &kinds).await;
    let first = home.nodes().await;

    let phase = Phase::begins(home, "3 racks of 2 nodes");
    let larger = Wish::of(&[("a", 2), ("b", 2), ("c", 2)]);
    home.apply(&larger).await;
    home.settled(&larger).await;
    phase.ends();
    assert_eq!(observer.is_content().counts.joins, 6);

    let phase = Phase::begins(home, "and back");
    home.apply(&wish).await;
    home.settled(&wish).await;
    phase.ends();
    is_as(home, &kinds, &fresh).await;
    let (now, seen) = (home.nodes().await, observer.is_content().counts);
    assert_eq!((&now.hosts, &now.pods, seen.departures), (&first.hosts, &first.pods, 3));

    let phase = Phase::begins(home, "rolling restart");
    wish.redeployment = Some("for the test".into());
    home.apply(&wish).await;
    home.settled(&wish).await;
    phase.ends();
    let restarted = home.nodes().await;
    assert_eq!(restarted.hosts, first.hosts, "they are the same nodes");
    assert!(restarted.pods.iter().all(|(name, pod)| first.pods[name] != *pod), "{restarted:?} {first:?}");

    let phase = Phase::begins(home, "a node without its disk is replaced");
    a_node_that_lost_its_disk_is_replaced(home, "orders-dc-b-0").await;
    home.settled(&wish).await;
    phase.ends();
    assert_eq!(observer.is_content().counts.replacements, 1);
    wish.redeployment = None;
    home.apply(&wish).await;
    home.settled(&wish).await;
    is_as(home, &kinds, &fresh).await;
}

/// Waits until the datacenter has what is expected, and nothing else.
async fn is_as(home: &Home, kinds: &[kube::api::ApiResource], expected: &Picture) {
    eventually("all objects to be as expected", LONG, async || {
        let differences = differences(expected, &picture(home, kinds).await);
        Ok(if differences.is_empty() { Seen::Ready(()) } else { Seen::NotYet(differences.join("\n")) })
    })
    .await
    .unwrap();
}

async fn a_node_that_lost_its_disk_is_replaced(home: &Home, member: &str) {
    let before = home.nodes().await;
    let claim = format!("data-{member}");
    // From now on no node starts there.
    let never = json!({"metadata": {"annotations": {annotation::FORCE_IGNITION_VALUE: "false"}}});
    home.patch::<Service>(member, never).await;
    // The node crashes before it can answer.
    let _ = home.simctl(member, &["lose-disk"]);
    eventually("the disk to be empty", LONG, async || {
        let found = home.host_on_disk(&claim).await;
        let is_lost = found.as_ref() != Some(&before.hosts[member]);
        Ok(if is_lost { Seen::Ready(()) } else { Seen::NotYet(format!("{found:?}")) })
    })
    .await
    .unwrap();
    home.api::<Pod>().delete(member, &DeleteParams::default()).await.unwrap();
    home.patch::<Service>(member, json!({"metadata": {"labels": {label::REPLACE: ""}}})).await;
    until(home.api::<PersistentVolumeClaim>(), &claim, "another disk", LONG, |seen| {
        let uid = seen.and_then(|claim| claim.uid());
        let is_another = uid.as_ref().is_some_and(|uid| *uid != before.claims[&claim]);
        if is_another { Seen::Ready(()) } else { Seen::NotYet(format!("{uid:?}")) }
    })
    .await
    .unwrap();
    home.patch::<Service>(member, json!({"metadata": {"annotations": {annotation::FORCE_IGNITION_VALUE: null}}})).await;
    until(home.api::<Service>(), member, "another node", LONG, |seen| {
        let service = seen.unwrap_or_default();
        let is_done = !service.labels().keys().any(|key| key.contains("replac"));
        let is_another = service.annotations().get(annotation::HOST_ID) != Some(&before.hosts[member]);
        if is_done && is_another { Seen::Ready(()) } else { Seen::NotYet(format!("{:?}", service.metadata)) }
    })
    .await
    .unwrap();
    let after = home.nodes().await;
    for (other, host) in before.hosts.iter().filter(|(other, _)| *other != member) {
        assert_eq!(after.hosts.get(other), Some(host), "{other} is the same node");
    }
}

/// From the manifest to `Available`: hardly more writes than there are objects, and nobody stands in anybody's way.
async fn nine_nodes_take_few_writes(client: &kube::Client) {
    let home = Home::new(client, CLUSTER, "nine").await;
    let observer = Observer::start(&cluster_named(CLUSTER), &home.namespace);
    let phase = Phase::begins(&home, "3 racks of 3 nodes");
    let began = Instant::now();
    home.apply(&Wish::of(&[("a", 3), ("b", 3), ("c", 3)])).await;
    until(home.api::<ScyllaDBDatacenter>(), NAME, "nine nodes to be available", LONG, |seen| {
        let conditions = seen.and_then(|datacenter| datacenter.status?.conditions).unwrap_or_default();
        let is_available = conditions.iter().any(|one| one.type_ == "Available" && one.status == "True");
        if is_available { Seen::Ready(()) } else { Seen::NotYet(format!("{conditions:?}")) }
    })
    .await
    .unwrap();
    println!("3 racks of 3 nodes: available after {:.1} s", began.elapsed().as_secs_f64());
    let writes = phase.ends();
    let objects = owned(&home, &kinds(&home).await).await.len();
    let mut kinds = BTreeMap::<String, usize>::new();
    for write in writes.iter().filter(|write| is_operators(write) || is_sidecars(write)) {
        let who = if is_operators(write) { "operator" } else { "sidecars" };
        *kinds.entry(format!("{who} {} {} {}", write.verb, write.resource, write.code)).or_default() += 1;
    }
    println!("{objects} objects; {kinds:#?}");
    let first = writes.iter().map(|write| write.received).min();
    for write in writes.iter().filter(|write| is_operators(write) && write.verb != "create") {
        let since = first.map(|first| write.received.duration_since(first).as_secs()).unwrap_or_default();
        println!("after {since} s: {} {} {}", write.verb, write.resource, write.name);
    }
    println!("the observer: {}", observer.ends());
    home.ends().await;
    let operators = writes.iter().filter(|write| is_operators(write)).count();
    let of_ours = writes.iter().filter(|write| is_operators(write) || is_sidecars(write));
    let conflicts: Vec<_> = of_ours.filter(|write| write.code == 409).collect();
    assert!(conflicts.is_empty(), "{conflicts:?}");
    assert!(operators * 10 <= objects * 13, "{operators} writes for {objects} objects");
}

/// Long enough for somebody to do what must not be done.
async fn a_moment() {
    tokio::time::sleep(Duration::from_millis(1500)).await;
}
