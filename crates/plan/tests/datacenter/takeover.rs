//! Datacenters that scylla-operator created.

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Container, Pod},
};
use messina_api::names::annotation::{LAST_APPLIED_CONFIGURATION, NODE_JOINED, NODE_STATUS_REPORT};
use messina_plan::datacenter::{Cached, Component, Plan};
use serde_json::json;

use crate::{
    plan,
    restarts::{changed, pod, respecified, running},
    with_name,
};

const BARRIER: &str = "scylladb-bootstrap-barrier";

fn replicas(plan: &Plan, name: &str) -> Option<i32> {
    let found = plan.objects.stateful_sets.iter().find(|one| one.metadata.name.as_deref() == Some(name))?;
    found.spec.as_ref()?.replicas
}

fn reasons(plan: &Plan) -> Vec<&'static str> {
    plan.progressing
        .iter()
        .filter(|note| note.component == Component::StatefulSet)
        .map(|note| note.reason.as_str())
        .collect()
}

/// Gives the pods of a StatefulSet the shape that scylla-operator gives them.
fn make_it_of_scylla_operator(stateful_set: &mut StatefulSet) {
    let spec = stateful_set.spec.as_mut().unwrap();
    let barrier: Container = serde_json::from_value(json!({
        "name": BARRIER, "image": "scylla", "command": ["/mnt/shared/scylla-operator", "run-bootstrap-barrier"],
    }))
    .unwrap();
    spec.template.spec.as_mut().unwrap().init_containers.get_or_insert_default().push(barrier);
    for claim in spec.volume_claim_templates.iter_mut().flatten() {
        let annotations = claim.metadata.annotations.get_or_insert_default();
        annotations.insert(LAST_APPLIED_CONFIGURATION.into(), "{}".into());
    }
}

/// A settled datacenter of scylla-operator, whose sidecars do not write our annotations.
fn created_by_scylla_operator(racks: &[(&str, i32)]) -> Cached {
    let mut cached = running(racks);
    cached.stateful_sets.values_mut().for_each(make_it_of_scylla_operator);
    for service in cached.services.values_mut() {
        service.metadata.annotations.get_or_insert_default().remove(NODE_JOINED);
    }
    cached
}

#[test]
fn nodes_of_scylla_operator_restart_before_others_join() {
    let racks = [("a", 2), ("b", 2)];
    let cached = respecified(&created_by_scylla_operator(&racks), &[("a", 3), ("b", 2)], json!({}));
    let first = plan(&cached);
    assert_eq!(changed(&cached, &first), [("orders-dc-a".to_owned(), 1)], "the last node of the first rack");
    assert_eq!(replicas(&first, "orders-dc-a"), Some(2), "no node joins with the same write");
    assert_eq!(reasons(&first), ["UpdatingStatefulSet", "WaitingForOtherRacks"]);
    let written = first.objects.stateful_sets.iter().find(|one| one.spec.is_some()).unwrap();
    let spec = written.spec.as_ref().unwrap();
    let init_containers = spec.template.spec.as_ref().unwrap().init_containers.as_ref().unwrap();
    assert!(init_containers.iter().all(|one| one.name != BARRIER));
    // These fields are immutable.
    let now = cached.stateful_sets["orders-dc-a"].spec.clone().unwrap();
    assert_eq!(spec.volume_claim_templates, now.volume_claim_templates);

    // One rack is updated: the other one is next, and still no node joins.
    let mut cached = cached;
    let mut done = written.clone();
    done.status.clone_from(&cached.stateful_sets["orders-dc-a"].status);
    done.metadata.generation = Some(1);
    done.spec.as_mut().unwrap().update_strategy.clone_from(&now.update_strategy);
    cached.stateful_sets.insert(done);
    let second = plan(&cached);
    assert_eq!(changed(&cached, &second), [("orders-dc-b".to_owned(), 1)]);
    assert_eq!(replicas(&second, "orders-dc-a").unwrap_or(2), 2);
}

/// Where all racks are up to date, nodes join at once.
#[test]
fn nodes_join_when_all_run_with_our_sidecar() {
    let cached = respecified(&running(&[("a", 2)]), &[("a", 3)], json!({}));
    assert_eq!(replicas(&plan(&cached), "orders-dc-a"), Some(3));
}

#[test]
fn restart_waits_while_a_sidecar_of_scylla_operator_reports_a_node_down() {
    let cached = created_by_scylla_operator(&[("a", 3)]);
    let hosts: Vec<String> = (0..3).map(|ordinal| format!("host-orders-dc-a-{ordinal}")).collect();
    let report = |statuses: [&str; 3]| {
        let seen = hosts.iter().zip(statuses).filter(|(_, status)| !status.is_empty());
        let seen: Vec<_> = seen.map(|(host, status)| json!({"hostID": host, "status": status})).collect();
        json!({"observedNodes": seen}).to_string()
    };
    for (text, may_restart, why) in [
        (report(["UP", "UP", "UP"]), true, "all are up"),
        (report(["UP", "DOWN", "UP"]), false, "one is down"),
        (report(["UP", "", "UP"]), false, "one is not seen"),
        (json!({"error": "no answer"}).to_string(), false, "it does not know"),
        ("nonsense".to_owned(), true, "it is no report"),
    ] {
        let mut cached = cached.clone();
        let annotations = cached.pods.get_mut("orders-dc-a-0").unwrap().metadata.annotations.get_or_insert_default();
        annotations.insert(NODE_STATUS_REPORT.into(), text);
        let plan = plan(&cached);
        assert_eq!(!changed(&cached, &plan).is_empty(), may_restart, "{why}");
        assert_eq!(reasons(&plan).contains(&"WaitingForRing"), !may_restart, "{why}");
    }
}

/// The pod of a new node waits for a status report that scylla-operator does not write any more.
#[test]
fn pod_at_the_barrier_of_scylla_operator_is_recreated() {
    let mut cached = created_by_scylla_operator(&[("a", 3)]);
    let name = "orders-dc-a-2";
    cached.services.get_mut(name).unwrap().metadata.annotations = None;
    let mut progressing: Pod = pod(name, "2026.2.4", "old", false);
    let initializing = json!({"waiting": {"reason": "PodInitializing"}});
    let status = progressing.status.as_mut().unwrap();
    status.container_statuses = serde_json::from_value(json!([
        {"name": "scylla", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": initializing},
    ]))
    .unwrap();
    let at_barrier = |state| {
        serde_json::from_value(json!([
            {"name": BARRIER, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state},
        ]))
        .unwrap()
    };
    status.init_container_statuses = at_barrier(json!({"terminated": {"exitCode": 0}}));
    cached.pods.insert(with_name(name, progressing));
    let status = cached.stateful_sets.get_mut("orders-dc-a").unwrap().status.as_mut().unwrap();
    (status.ready_replicas, status.available_replicas) = (Some(2), Some(2));
    assert_eq!(changed(&cached, &plan(&cached)), [], "it may be joining");

    let progressing = cached.pods.get_mut(name).unwrap().status.as_mut().unwrap();
    progressing.init_container_statuses = at_barrier(json!({"running": {}}));
    assert_eq!(changed(&cached, &plan(&cached)), [("orders-dc-a".to_owned(), 2)], "only its pod is changed");
}
