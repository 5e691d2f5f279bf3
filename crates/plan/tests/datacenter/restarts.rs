//! Rolling restarts: one node at a time.

use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Pod};
use messina_api::names::{
    annotation::{
        CURRENT_TOKEN_RING_HASH, HOST_ID, LAST_CLEANED_UP_TOKEN_RING_HASH, NODE_JOINED, RESTART_REQUEST, RING_ANSWER,
        RING_QUESTION, SIDECAR_PROTOCOL, UPGRADE_REQUEST,
    },
    label::REPLACING_NODE_HOST_ID,
};
use messina_plan::{
    datacenter::{Cached, Plan},
    node::upgrade::{Kept, UpgradeRequest},
};
use serde_json::{Value, json};

use crate::{cached, datacenter_with, name_of, plan, rolled_out, with_name};

const A2: &str = "orders-dc-a-2";

/// A node's pod, of a revision of its StatefulSet.
pub(crate) fn pod(name: &str, version: &str, revision: &str, is_ready: bool) -> Pod {
    let status = if is_ready { "True" } else { "False" };
    let labels = json!({"scylla/scylla-version": version, "controller-revision-hash": revision});
    serde_json::from_value(json!({
        "metadata": {"name": name, "uid": format!("uid-of-{name}"), "resourceVersion": "5", "labels": labels},
        "status": {"conditions": [{"type": "Ready", "status": status}]},
    }))
    .unwrap()
}

/// A settled datacenter, with pods and host IDs.
pub(crate) fn running(racks: &[(&str, i32)]) -> Cached {
    let mut cached = cached(datacenter_with(racks, json!({})));
    for _ in racks {
        for one in plan(&cached).objects.stateful_sets {
            let mut one = rolled_out(one);
            let status = one.status.as_mut().unwrap();
            (status.current_revision, status.update_revision) = (Some("old".into()), Some("old".into()));
            cached.stateful_sets.insert(one);
        }
    }
    for mut service in plan(&cached).objects.member_services {
        let name = service.metadata.name.clone().unwrap();
        let facts = [
            (HOST_ID, format!("host-{name}")),
            (NODE_JOINED, "true".into()),
            (CURRENT_TOKEN_RING_HASH, "ring".into()),
            (LAST_CLEANED_UP_TOKEN_RING_HASH, "ring".into()),
        ];
        service.metadata.annotations.get_or_insert_default().extend(facts.map(|(key, value)| (key.into(), value)));
        cached.pods.insert(pod(&name, "2026.2.4", "old", true));
        cached.services.insert(service);
    }
    assert_eq!(plan(&cached).progressing, [], "everything is in the desired state");
    cached
}

pub(crate) fn respecified(cached: &Cached, racks: &[(&str, i32)], spec: Value) -> Cached {
    Cached { datacenter: datacenter_with(racks, spec), ..cached.clone() }
}

pub(crate) fn because(reason: &str) -> Value {
    json!({"forceRedeploymentReason": reason})
}

pub(crate) fn image(version: &str) -> Value {
    json!({"scyllaDB": {"image": format!("scylladb/scylla:{version}")}})
}

fn partition(stateful_set: &StatefulSet) -> i32 {
    let strategy = stateful_set.spec.as_ref().unwrap().update_strategy.as_ref().unwrap();
    strategy.rolling_update.as_ref().unwrap().partition.unwrap()
}

/// Returns the StatefulSets that the plan changes: names and partitions.
pub(crate) fn changed(cached: &Cached, plan: &Plan) -> Vec<(String, i32)> {
    let is_new = |one: &&StatefulSet| cached.stateful_sets.get(&name_of(one)).is_none_or(|now| now.spec != one.spec);
    plan.objects.stateful_sets.iter().filter(is_new).map(|one| (name_of(one), partition(one))).collect()
}

pub(crate) fn reasons(plan: &Plan) -> Vec<&'static str> {
    plan.progressing.iter().chain(&plan.degraded).map(|note| note.reason.as_str()).collect()
}

/// A rack of three during a rolling update with this reason: pods by revision, and which of them are ready.
pub(crate) fn rolling(reason: &str, partition: i32, pods: &[(&str, bool)]) -> Cached {
    let racks = [("a", 3), ("b", 1)];
    let mut cached = running(&racks);
    let wanted = respecified(&cached, &racks, because(reason));
    let mut a = plan(&wanted).objects.stateful_sets.into_iter().find(|one| name_of(one) == "orders-dc-a").unwrap();
    let strategy = a.spec.as_mut().unwrap().update_strategy.as_mut().unwrap();
    strategy.rolling_update.as_mut().unwrap().partition = Some(partition);
    let mut a = rolled_out(a);
    let ready = pods.iter().filter(|(_, is_ready)| *is_ready).count() as i32;
    let status = a.status.as_mut().unwrap();
    (status.ready_replicas, status.available_replicas) = (Some(ready), Some(ready));
    (status.current_revision, status.update_revision) = (Some("old".into()), Some("new".into()));
    status.updated_replicas = Some(pods.iter().filter(|(revision, _)| *revision == "new").count() as i32);
    cached.stateful_sets.insert(a);
    cached.pods.retain(|name, _| !name.contains("-a-"));
    for (ordinal, (revision, is_ready)) in pods.iter().enumerate().filter(|(_, (revision, _))| !revision.is_empty()) {
        let name = format!("orders-dc-a-{ordinal}");
        cached.pods.insert(pod(&name, "2026.2.4", revision, *is_ready));
    }
    cached.datacenter = wanted.datacenter;
    cached
}

#[test]
fn rolling_update_begins_with_the_last_node_of_the_first_rack() {
    let racks = [("a", 3), ("b", 1)];
    let cached = respecified(&running(&racks), &racks, because("x"));
    assert_eq!(changed(&cached, &plan(&cached)), [("orders-dc-a".to_owned(), 2)]);
    let racks = [("b", 1), ("a", 3)];
    let cached = respecified(&running(&racks), &racks, because("x"));
    assert_eq!(changed(&cached, &plan(&cached)), [("orders-dc-b".to_owned(), 0)], "one write for one node");
}

#[test]
fn next_node_restarts_when_all_nodes_are_ready() {
    let up = |revisions: [&'static str; 3]| revisions.map(|revision| (revision, true));
    let cases = [
        ("the next one", 2, up(["old", "old", "new"]), Some(1)),
        ("the last one, and it is at rest", 1, up(["old", "new", "new"]), Some(0)),
        ("one that is new already is passed over", 2, up(["old", "new", "new"]), Some(0)),
        ("none is left", 2, up(["new", "new", "new"]), Some(0)),
        ("none has begun", 3, up(["old", "old", "old"]), Some(2)),
        ("it is yet to restart", 2, up(["old", "old", "old"]), None),
        ("it is not back", 2, [("old", true), ("old", true), ("new", false)], None),
        ("it is gone", 2, [("old", true), ("old", true), ("", false)], None),
        ("another one is down", 1, [("old", false), ("new", true), ("new", true)], None),
        ("others are new, but not this one", 2, up(["new", "new", "old"]), None),
    ];
    for (why, partition, pods, expected) in cases {
        let cached = rolling("x", partition, &pods);
        let plan = plan(&cached);
        let expected: Vec<_> = expected.into_iter().map(|next| ("orders-dc-a".to_owned(), next)).collect();
        assert_eq!(changed(&cached, &plan), expected, "{why}");
        assert!(!plan.progressing.is_empty(), "{why}");
        if plan.progressing.iter().any(|note| note.reason == "WaitingForStatefulSetRollout") && pods[2].0.is_empty() {
            assert!(plan.progressing.iter().any(|note| note.message.contains(A2)), "{why}: {:?}", plan.progressing);
        }
    }
}

#[test]
fn down_node_of_another_rack_blocks_restarts() {
    let mut cached = rolling("x", 2, &[("old", true), ("old", true), ("new", true)]);
    cached.stateful_sets.get_mut("orders-dc-b").unwrap().status.as_mut().unwrap().ready_replicas = Some(0);
    let is_held = |cached: &Cached| changed(cached, &plan(cached)).iter().all(|(name, _)| name != "orders-dc-a");
    assert!(is_held(&cached));
    let mut cached = rolling("x", 2, &[("old", true), ("old", true), ("new", true)]);
    cached.pods.insert(pod("orders-dc-b-0", "2026.2.4", "old", false));
    assert!(is_held(&cached), "its pod knows first");
    assert!(plan(&cached).progressing.iter().any(|note| note.message.contains("orders-dc-b-0 are not ready")));
}

#[test]
fn pods_that_become_ready_before_their_update_are_not_restarted() {
    let cases = [
        ("it is back, and the one after it is not", 0, [("old", true), ("old", false), ("", false)], Some(1)),
        ("the one after it is back too", 0, [("old", false), ("old", true), ("new", true)], Some(2)),
        (
            "it was let to restart, and another one went down",
            2,
            [("old", false), ("old", true), ("old", true)],
            Some(3),
        ),
        ("all are down", 0, [("old", false), ("old", false), ("new", false)], None),
        ("only those below the partition serve", 2, [("old", true), ("old", true), ("new", false)], None),
    ];
    for (what, partition, pods, expected) in cases {
        let cached = rolling("x", partition, &pods);
        let expected: Vec<_> = expected.into_iter().map(|partition| ("orders-dc-a".to_owned(), partition)).collect();
        assert_eq!(changed(&cached, &plan(&cached)), expected, "{what}");
    }
}

/// A change that was just written is not in the status yet.
#[test]
fn ready_nodes_are_not_restarted_before_the_controller_observed_the_change() {
    let mut cached = rolling("x", 2, &[("old", false), ("old", true), ("old", true)]);
    let a = cached.stateful_sets.get_mut("orders-dc-a").unwrap();
    a.metadata.generation = Some(2);
    a.status.as_mut().unwrap().update_revision = Some("old".into());
    assert_eq!(changed(&cached, &plan(&cached)), [("orders-dc-a".to_owned(), 3)]);
}

/// The watch of pods may be behind that of StatefulSets.
#[test]
fn outdated_pod_observation_does_not_pause_a_finished_update() {
    let mut cached = rolling("x", 0, &[("old", true), ("old", true), ("old", false)]);
    let changed_now = |cached: &Cached| changed(cached, &plan(cached));
    assert_eq!(changed_now(&cached), [("orders-dc-a".to_owned(), 2)]);
    cached.stateful_sets.get_mut("orders-dc-a").unwrap().status.as_mut().unwrap().updated_replicas = Some(3);
    assert_eq!(changed_now(&cached), []);
}

/// Nodes that have not joined yet are not up, and block nothing.
#[test]
fn joining_nodes_pause_no_update_before_the_controller_observed_the_change() {
    let racks = [("a", 3), ("b", 1)];
    let mut cached = respecified(&running(&[("a", 2), ("b", 1)]), &racks, json!({}));
    let plan_of_growth = plan(&cached);
    assert_eq!(changed(&cached, &plan_of_growth), [("orders-dc-a".to_owned(), 0)]);
    let mut a = plan_of_growth.objects.stateful_sets[0].clone();
    a.status = cached.stateful_sets["orders-dc-a"].status.clone();
    a.metadata.generation = Some(2);
    cached.stateful_sets.insert(a.clone());
    assert_eq!(changed(&cached, &plan(&cached)), []);
    // But where the pod of a node that has joined is gone, the change may be one of pods.
    cached.datacenter = datacenter_with(&[("a", 2), ("b", 1)], json!({}));
    a.spec.as_mut().unwrap().replicas = Some(2);
    a.status.as_mut().unwrap().replicas = 1;
    cached.stateful_sets.insert(a);
    cached.pods.remove("orders-dc-a-1");
    assert_eq!(changed(&cached, &plan(&cached)), [("orders-dc-a".to_owned(), 1)]);
}

#[test]
fn second_change_restarts_the_update_without_restarting_ready_nodes() {
    let cases = [
        ("all serve", 1, [("old", true), ("new", true), ("new", true)], 2),
        ("the last is down", 2, [("old", true), ("old", true), ("new", false)], 2),
        ("the last is gone", 2, [("old", true), ("old", true), ("", false)], 2),
        ("the last two are down", 1, [("old", true), ("new", false), ("new", false)], 1),
        ("all are down", 0, [("new", false), ("new", false), ("new", false)], 0),
        ("the last serves, the one before does not", 1, [("old", true), ("new", false), ("new", true)], 3),
    ];
    for (why, partition, pods, expected) in cases {
        let mut cached = rolling("x", partition, &pods);
        cached.datacenter = datacenter_with(&[("a", 3), ("b", 1)], because("y"));
        assert_eq!(changed(&cached, &plan(&cached)), [("orders-dc-a".to_owned(), expected)], "{why}");
    }
}

/// Its Service still has the host ID of the node that it replaces, which had joined.
#[test]
fn pod_of_a_replacing_node_is_not_recreated() {
    let mut cached = rolling("x", 2, &[("old", true), ("old", true), ("new", false)]);
    cached.datacenter = datacenter_with(&[("a", 3), ("b", 1)], because("y"));
    let metadata = &mut cached.services.get_mut(A2).unwrap().metadata;
    let replaced = metadata.annotations.as_ref().unwrap()[HOST_ID].clone();
    metadata.labels.get_or_insert_default().insert(REPLACING_NODE_HOST_ID.into(), replaced);
    assert_eq!(changed(&cached, &plan(&cached)), []);
}

#[test]
fn stuck_pods_are_recreated() {
    let deleted = |cached: &Cached| {
        let deletions = plan(cached).deletions.into_iter();
        let is_seen = |version: &Option<String>| version.as_deref() == Some("5");
        deletions.map(|one| (one.name, one.uid, is_seen(&one.version))).collect::<Vec<_>>()
    };
    // Only while it is unchanged: it may be ready by then.
    let this = |name: &str| vec![(name.to_owned(), format!("uid-of-{name}"), true)];
    let cases = [
        ("it is out of date", 2, [("old", true), ("old", true), ("bad", false)], this(A2)),
        ("it is up to date", 2, [("old", true), ("old", true), ("new", false)], vec![]),
        ("it serves", 2, [("old", true), ("old", true), ("bad", true)], vec![]),
        ("it stays", 2, [("old", true), ("bad", false), ("new", true)], vec![]),
        ("all stay, so it is put back", 3, [("old", true), ("bad", false), ("new", true)], this("orders-dc-a-1")),
        ("those before it are down", 1, [("old", false), ("bad", false), ("bad", false)], vec![]),
        ("one after another", 1, [("old", true), ("bad", false), ("bad", false)], this("orders-dc-a-1")),
    ];
    for (why, partition, pods, expected) in cases {
        assert_eq!(deleted(&rolling("x", partition, &pods)), expected, "{why}");
    }
    let broken = || rolling("x", 2, &[("old", true), ("old", true), ("bad", false)]);
    let mut unseen = broken();
    unseen.stateful_sets.get_mut("orders-dc-a").unwrap().metadata.generation = Some(2);
    assert_eq!(deleted(&unseen), [], "Kubernetes has not seen the change");
    let mut joining = broken();
    joining
        .services
        .get_mut(A2)
        .unwrap()
        .metadata
        .annotations
        .get_or_insert_default()
        .insert(NODE_JOINED.into(), "false".into());
    assert_eq!(deleted(&joining), [], "it may be joining");
    for (from, is_put_back) in [("2026.2.4", true), ("2026.2.5", false)] {
        let mut cached = rolling("x", 3, &[("old", true), ("bad", false), ("new", true)]);
        cached.pods.insert(pod("orders-dc-a-1", "2026.2.6", "bad", false));
        let host_id = "host-orders-dc-a-1".to_owned();
        let request = UpgradeRequest { host_id, from: from.into(), to: "2026.2.6".into(), keep: Kept::new() };
        let service = cached.services.get_mut("orders-dc-a-1").unwrap();
        service.metadata.annotations.get_or_insert_default().insert(UPGRADE_REQUEST.into(), request.text());
        let expected = if is_put_back { this("orders-dc-a-1") } else { vec![] };
        assert_eq!(deleted(&cached), expected, "it came from {from}, and would get 2026.2.4");
        assert_eq!(reasons(&plan(&cached)).contains(&"UpgradeBlocked"), !is_put_back);
    }
}

#[test]
fn restart_waits_until_nodes_see_each_other_up() {
    let racks = [("a", 2), ("b", 1)];
    let mut cached = respecified(&running(&racks), &racks, because("x"));
    for service in cached.services.values_mut() {
        service.metadata.resource_version = Some("7".into());
        service.metadata.annotations.get_or_insert_default().insert(SIDECAR_PROTOCOL.into(), "1".into());
    }
    let first = plan(&cached);
    assert_eq!(changed(&cached, &first), []);
    let asked: Vec<_> = first.changes.iter().map(|one| &one.patch["metadata"]["annotations"][RING_QUESTION]).collect();
    assert_eq!(asked, ["7", "7", "7"]);
    let names: Vec<String> = cached.services.keys().cloned().collect();
    let mut answer = |state: &str, by: &[&str]| {
        for name in by {
            let host = |name: &String| format!("host-{name}");
            let mut nodes: serde_json::Map<String, Value> =
                names.iter().map(|name| (host(name), json!("UN"))).collect();
            match state {
                "" => drop(nodes.remove(&host(&names[0]))),
                state => drop(nodes.insert(host(&names[0]), state.into())),
            }
            // Nodes of other datacenters that leave or join block nothing here.
            nodes.insert("other-datacenter".into(), "UL".into());
            nodes.insert("10.0.0.9".into(), "DJ".into());
            let text = json!({"asked": "7", "hostID": host(&(*name).to_owned()), "nodes": nodes}).to_string();
            let annotations = cached.services.get_mut(*name).unwrap().metadata.annotations.get_or_insert_default();
            annotations.insert(RING_QUESTION.into(), "7".into());
            annotations.insert(RING_ANSWER.into(), text);
        }
        let plan = plan(&cached);
        (changed(&cached, &plan), reasons(&plan).contains(&"WaitingForRing"))
    };
    let two = ["orders-dc-a-0", "orders-dc-a-1"];
    assert_eq!(answer("UN", &two), (vec![], true), "one has yet to answer");
    let all = [two[0], two[1], "orders-dc-b-0"];
    assert_eq!(answer("DN", &all), (vec![], true), "one is down for others");
    assert_eq!(answer("", &all), (vec![], true), "one is not in the ring for others");
    assert_eq!(answer("UN", &all), (vec![("orders-dc-a".to_owned(), 1)], false));
    // The answer of a node that has left since does not count.
    let mut left = cached.services["orders-dc-b-0"].clone();
    let annotations = left.metadata.annotations.get_or_insert_default();
    annotations.insert(HOST_ID.into(), "host-that-left".into());
    annotations.insert(NODE_JOINED.into(), "false".into());
    let alone = json!({"asked": "7", "hostID": "host-that-left", "nodes": {"host-that-left": "UN"}}).to_string();
    annotations.insert(RING_ANSWER.into(), alone);
    left.metadata.name = Some("orders-dc-b-1".into());
    cached.services.insert(with_name("orders-dc-b-1", left));
    assert_eq!(changed(&cached, &plan(&cached)), [("orders-dc-a".to_owned(), 1)]);
}

/// A datacenter with a pending update, where these sidecars request a restart of the pod with this UID.
fn outdated(members: &[(&str, &str)]) -> Cached {
    let racks = [("a", 2), ("b", 1)];
    let mut cached = respecified(&running(&racks), &racks, because("x"));
    for (member, uid) in members {
        let service = cached.services.get_mut(*member).unwrap();
        service.metadata.annotations.get_or_insert_default().insert(RESTART_REQUEST.into(), (*uid).into());
    }
    cached
}

fn deleted(plan: &Plan) -> Vec<&str> {
    plan.deletions.iter().map(|deletion| deletion.name.as_str()).collect()
}

#[test]
fn nodes_with_outdated_addresses_restart_first_and_one_by_one() {
    let both = [("orders-dc-a-0", "uid-of-orders-dc-a-0"), ("orders-dc-b-0", "uid-of-orders-dc-b-0")];
    let mut cached = outdated(&both);
    let first = plan(&cached);
    assert_eq!((deleted(&first), changed(&cached, &first)), (vec!["orders-dc-a-0"], vec![]));
    let event = first.deletions[0].event.as_ref().map(|(reason, _)| *reason);
    assert_eq!(
        (event.map(messina_text::Reason::as_str), reasons(&first).contains(&"RestartingNode")),
        (Some("RestartingNode"), true)
    );
    cached.pods.remove("orders-dc-a-0");
    assert_eq!(deleted(&plan(&cached)), [] as [&str; 0], "the next one waits for it");
    let mut another = pod("orders-dc-a-0", "2026.2.4", "old", true);
    another.metadata.uid = Some("another".into());
    cached.pods.insert(another);
    assert_eq!(deleted(&plan(&cached)), ["orders-dc-b-0"]);
    let former = outdated(&[("orders-dc-a-0", "former")]);
    let begun = plan(&former);
    assert_eq!((deleted(&begun), changed(&former, &begun)), (vec![], vec![("orders-dc-a".to_owned(), 1)]));
}

#[test]
fn node_with_outdated_address_restarts_although_others_see_it_down() {
    let mut cached = outdated(&[("orders-dc-a-0", "uid-of-orders-dc-a-0")]);
    let names: Vec<String> = cached.services.keys().cloned().collect();
    let mut answered = |down: &str| {
        for name in &names {
            let service = cached.services.get_mut(name).unwrap();
            let state = |one: &str| if one == down && one != name { "DN" } else { "UN" };
            let nodes: serde_json::Map<String, Value> =
                names.iter().map(|one| (format!("host-{one}"), json!(state(one)))).collect();
            let text = json!({"asked": "7", "hostID": format!("host-{name}"), "nodes": nodes}).to_string();
            let facts = [(SIDECAR_PROTOCOL, "1".to_owned()), (RING_QUESTION, "7".to_owned()), (RING_ANSWER, text)];
            let annotations = service.metadata.annotations.get_or_insert_default();
            annotations.extend(facts.map(|(key, value)| (key.to_owned(), value)));
        }
        let plan = plan(&cached);
        (plan.deletions.len(), reasons(&plan).contains(&"WaitingForRing"))
    };
    assert_eq!(answered("orders-dc-a-0"), (1, false));
    assert_eq!(answered("orders-dc-b-0"), (0, true));
}

/// Nodes of removed racks are asked, too.
#[test]
fn restart_waits_for_the_answer_of_the_only_remaining_node() {
    let mut cached = running(&[("a", 1), ("b", 1)]);
    for service in cached.services.values_mut() {
        service.metadata.resource_version = Some("7".into());
        service.metadata.annotations.get_or_insert_default().insert(SIDECAR_PROTOCOL.into(), "1".into());
    }
    cached.datacenter = datacenter_with(&[("a", 1)], because("x"));
    assert_eq!(changed(&cached, &plan(&cached)), []);
}
