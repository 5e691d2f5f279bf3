#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use insta::assert_snapshot;
use serde_json::json;

use super::*;
use crate::page::WIDTH;

fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn condition(name: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": name, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-11-15T10:00:00Z"})
}

/// A datacenter with these conditions.
fn datacenter(conditions: &[Value]) -> Found {
    Found {
        kind: "ScyllaDBDatacenter",
        resource: "scylladbdatacenters.scylla.scylladb.com",
        object: of(json!({
            "apiVersion": "scylla.scylladb.com/v1alpha1", "kind": "ScyllaDBDatacenter",
            "metadata": {"name": "orders", "namespace": "scylla", "uid": "orders-uid", "generation": 2},
            "status": {"observedGeneration": 2, "conditions": conditions},
        })),
        stateful_sets: vec![],
        jobs: vec![],
        pods: vec![],
        events: vec![],
        problems: vec![],
    }
}

fn task(status: Value) -> Found {
    let object = json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdOperatorTask",
        "metadata": {"name": "nightly", "namespace": "shoot", "uid": "nightly-uid"}, "status": status,
    });
    Found {
        kind: "EtcdOperatorTask",
        resource: "etcdoperatortasks.druid.gardener.cloud",
        object: of(object),
        ..datacenter(&[])
    }
}

fn event(uid: &str, kind: &str, reason: &str, message: &str, time: &str) -> Event {
    of(json!({
        "metadata": {"name": format!("{uid}-{reason}")}, "involvedObject": {"uid": uid}, "type": kind,
        "reason": reason, "message": message, "lastTimestamp": time,
    }))
}

fn shown(found: &Found) -> String {
    let text = text(found, "2026-11-15T12:00:00Z".parse().unwrap(), Look::default());
    for line in text.lines().filter(|line| !line.starts_with("    kubectl")) {
        assert!(line.chars().count() <= WIDTH, "{} columns: {line}", line.chars().count());
    }
    text
}

fn well() -> Vec<Value> {
    ["StatefulSetControllerDegraded", "Degraded", "StatefulSetControllerProgressing", "Progressing"]
        .map(|name| condition(name, "False", "AsExpected", ""))
        .into_iter()
        .chain([condition("Available", "True", "AsExpected", "")])
        .collect()
}

/// A rack whose only node does not come up.
fn crashing() -> Found {
    let mut found = datacenter(&[
        condition("StatefulSetControllerAvailable", "False", "MembersNotReady", "2 of 3 node(s) are ready"),
        condition("Available", "False", "MembersNotReady", "StatefulSetControllerAvailable: 2 of 3 node(s) are ready"),
        condition(
            "StatefulSetControllerProgressing",
            "True",
            "WaitingForStatefulSetRollout",
            "StatefulSet scylla/orders-dc1-b is rolling out: 0 of 1 node(s) are available; the next change begins when \
             all are\nStatefulSet scylla/orders-dc1-c is created when those before it are rolled out",
        ),
        condition("Progressing", "True", "WaitingForStatefulSetRollout", "the sum"),
        condition("Degraded", "False", "AsExpected", ""),
    ]);
    found.stateful_sets = vec![
        of(json!({"metadata": {"name": "orders-dc1-a", "uid": "a", "generation": 1}, "spec": {"replicas": 1,
            "serviceName": "", "selector": {}, "template": {}},
            "status": {"observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "availableReplicas": 1,
                "updatedReplicas": 1}})),
        of(json!({"metadata": {"name": "orders-dc1-b", "uid": "b", "generation": 1}, "spec": {"replicas": 1,
            "serviceName": "", "selector": {}, "template": {}},
            "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1}})),
    ];
    found.pods = vec![
        of(json!({"metadata": {"name": "orders-dc1-a-0", "uid": "a-0"},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})),
        of(json!({"metadata": {"name": "orders-dc1-b-0", "uid": "b-0"}, "status": {"phase": "Running",
            "containerStatuses": [{"name": "scylla", "image": "", "imageID": "", "ready": false, "restartCount": 7,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting"}}}]}})),
    ];
    found.events = vec![
        event("b-0", "Warning", "Unhealthy", "an older one", "2026-11-15T11:00:00Z"),
        event("b-0", "Warning", "BackOff", "Back-off restarting failed container scylla", "2026-11-15T11:58:00Z"),
        event("a-0", "Warning", "Unhealthy", "of a pod that is well now", "2026-11-15T11:59:00Z"),
        event("orders-uid", "Warning", "Refused", "creating Service scylla/orders-client", "2026-11-15T09:00:00Z"),
        event("orders-uid", "Normal", "Resumed", "It goes on", "2026-11-15T11:59:30Z"),
    ];
    found
}

#[test]
fn all_is_well() {
    assert_snapshot!(shown(&datacenter(&well())), @"ScyllaDBDatacenter scylla/orders is done: nothing is awaited.");
}

#[test]
fn what_the_operator_cannot_do_here_is_told_though_all_is_well() {
    let why = "Volume expansion is disabled, because the operator may not read StorageClasses.";
    let mut conditions = well();
    conditions.push(condition("StorageControllerProgressing", "False", "PermissionMissing", why));
    assert_snapshot!(shown(&datacenter(&conditions)), @r"
    ScyllaDBDatacenter scylla/orders is done: nothing is awaited.

      Good to know: Volume expansion is disabled, because the operator may not read
        StorageClasses.
    ");
}

#[test]
fn a_node_that_does_not_come_up() {
    assert_snapshot!(shown(&crashing()));
}

#[test]
fn nodes_are_cleaned_up_in_vain() {
    let mut found = datacenter(&[condition(
        "JobControllerDegraded",
        "True",
        "CleanupFailed",
        "Job scylla/cleanup-orders-dc1-a-0 could not clean up node orders-dc1-a-0: Job has reached the specified backoff \
         limit; the logs of its pods say why. Delete it to have it tried again",
    )]);
    let job = |name: &str, status: Value| of(json!({"metadata": {"name": name, "uid": name}, "status": status}));
    let failed =
        json!([{"type": "Failed", "status": "True", "message": "Job has reached the specified backoff limit"}]);
    found.jobs = vec![
        job("cleanup-orders-dc1-a-0", json!({"conditions": failed})),
        job("cleanup-orders-dc1-b-0", json!({"active": 1, "failed": 2})),
        job("cleanup-orders-dc1-c-0", json!({"completionTime": "2026-11-15T11:00:00Z"})),
    ];
    assert_snapshot!(shown(&found));
}

#[test]
fn a_pause_comes_first() {
    let mut found = crashing();
    let sentence = "The annotation messina.scylladb.com/pause has stopped all work on this object (until Monday).";
    found.object.data["status"]["conditions"]
        .as_array_mut()
        .unwrap()
        .push(condition("Paused", "True", "Paused", sentence));
    found.object.annotations_mut().insert(annotation::PAUSE.into(), "until Monday".into());
    found.pods.clear();
    found.stateful_sets.clear();
    found.events.clear();
    assert_snapshot!(shown(&found));
}

#[test]
fn a_specification_that_is_refused() {
    let message = "spec.racks[1].name: is a duplicate\nspec.racks[1].nodes: must not be negative";
    let mut refusal = condition("ObservationDegraded", "True", "InvalidSpecification", message);
    refusal["observedGeneration"] = json!(3);
    let mut found = datacenter(&[well(), vec![refusal]].concat());
    found.object.metadata.generation = Some(3);
    assert_snapshot!(shown(&found), @r"
    The specification of ScyllaDBDatacenter scylla/orders is refused: nothing is
    changed before it is corrected.

      Refused: spec.racks[1].name: is a duplicate.
      Refused: spec.racks[1].nodes: must not be negative.
    ");
    found.object.metadata.generation = Some(4);
    let corrected = shown(&found);
    assert!(corrected.contains("generation 3 of it, and it is at 4"), "{corrected}");
}

#[test]
fn a_change_that_nobody_has_seen_and_a_deletion_that_is_held_up() {
    let mut found = datacenter(&well());
    found.object.metadata.generation = Some(3);
    let unseen = shown(&found);
    assert!(unseen.contains("generation 2 of it, and it is at 3"), "{unseen}");
    found.object.data["status"] = Value::Null;
    let new = shown(&found);
    assert!(new.contains("The operator has not looked at it yet"), "{new}");
    found.object.metadata.deletion_timestamp = of(json!("2026-11-15T11:00:00Z"));
    found.object.metadata.finalizers = Some(vec!["example.com/last".into()]);
    let going = shown(&found);
    assert!(going.starts_with("ScyllaDBDatacenter scylla/orders is being deleted."), "{going}");
    assert!(going.contains("these hold it up: example.com/last."), "{going}");
}

#[test]
fn tasks_tell_their_state_and_their_errors() {
    let waits = json!({"state": "Pending", "place": 2, "lastOperation": {"description": "It waits for its turn."}});
    let failed = json!({
        "state": "Failed", "lastOperation": {"description": "It took too long."},
        "lastErrors": [{"code": "ERR_NO_ANSWER", "description": "the sidecar did not answer"}],
    });
    let done = json!({"state": "Succeeded", "lastErrors": [{"code": "ERR_OLD", "description": "got over"}]});
    assert_snapshot!([waits, failed, done].map(|status| shown(&task(status))).join("---\n"));
}

#[test]
fn a_task_that_is_paused_has_no_condition_and_says_so_all_the_same() {
    let mut found = task(json!({"state": "Pending"}));
    found.object.annotations_mut().insert(annotation::PAUSE.into(), "true".into());
    assert!(shown(&found).starts_with("Work on EtcdOperatorTask shoot/nightly is paused.\n\n  The annotation"));
    found.object.annotations_mut().insert(annotation::PAUSE.into(), "false".into());
    assert!(shown(&found).starts_with("EtcdOperatorTask shoot/nightly is not done yet."));
}

#[test]
fn what_may_not_be_seen_is_said_last() {
    let mut found = datacenter(&well());
    found.problems.push("You may not list jobs in namespace scylla.".into());
    assert!(shown(&found).ends_with("\n  You may not list jobs in namespace scylla.\n"));
}
