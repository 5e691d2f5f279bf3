#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use insta::assert_snapshot;
use messina_plan::datacenter as plan;
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
fn datacenter(conditions: &[Value]) -> Explained {
    Explained {
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

fn task(status: Value) -> Explained {
    let object = json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdOperatorTask",
        "metadata": {"name": "nightly", "namespace": "shoot", "uid": "nightly-uid"}, "status": status,
    });
    Explained {
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

fn shown(found: &Explained) -> String {
    explain(found, false)
}

fn explain(found: &Explained, shows_all: bool) -> String {
    let text = text(found, "2026-11-15T12:00:00Z".parse().unwrap(), Style::default(), shows_all);
    for line in text.lines().filter(|line| !line.starts_with("    kubectl")) {
        assert!(line.chars().count() <= WIDTH, "{} columns: {line}", line.chars().count());
    }
    text
}

fn as_expected() -> Vec<Value> {
    ["StatefulSetControllerDegraded", "Degraded", "StatefulSetControllerProgressing", "Progressing"]
        .map(|name| condition(name, "False", "AsExpected", ""))
        .into_iter()
        .chain([condition("Available", "True", "AsExpected", "")])
        .collect()
}

/// A datacenter with a rack whose only node crashes.
fn crashing() -> Explained {
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
fn healthy_object_is_up_to_date() {
    assert_snapshot!(shown(&datacenter(&as_expected())), @"ScyllaDBDatacenter scylla/orders is up to date: no work is pending.");
}

#[test]
fn note_is_shown_for_an_object_that_is_up_to_date() {
    let why = "Volume expansion is disabled, because the operator may not read StorageClasses.";
    let mut conditions = as_expected();
    conditions.push(condition("StorageControllerProgressing", "False", "PermissionMissing", why));
    assert_snapshot!(shown(&datacenter(&conditions)), @r"
    ScyllaDBDatacenter scylla/orders is up to date: no work is pending.

      Note: Volume expansion is disabled, because the operator may not read
        StorageClasses.
    ");
}

#[test]
fn crash_looping_node_is_explained() {
    assert_snapshot!(shown(&crashing()));
}

/// A new datacenter of three racks that name a Secret that does not exist, with the conditions that the operator plans.
fn without_secret() -> Explained {
    let racks = ["a", "b", "c"].map(|name| json!({"name": name}));
    let template = json!({
        "nodes": 1, "scyllaDBManagerAgent": {"customConfigSecretRef": "agent"},
        "scyllaDB": {"storage": {"capacity": "1Gi"}},
    });
    let spec = json!({
        "clusterName": "orders", "datacenterName": "dc1", "racks": racks, "rackTemplate": template,
        "scyllaDB": {"image": "docker.io/scylladb/scylla:2026.2.1"},
        "scyllaDBManagerAgent": {"image": "docker.io/scylladb/scylla-manager-agent:3.8.0"},
    });
    let object = of(json!({
        "apiVersion": "scylla.scylladb.com/v1alpha1", "kind": "ScyllaDBDatacenter",
        "metadata": {"name": "orders", "namespace": "scylla", "uid": "orders-uid", "generation": 2}, "spec": spec,
    }));
    let cached = plan::Cached::new(plan::validate(&object).unwrap(), "messina:1");
    let observed = plan::Observed::from_cached(cached, []);
    let planned = plan::plan(&observed);
    let mut conditions = Vec::new();
    for component in plan::Component::ALL {
        let plan::State { progressing, degraded, .. } = planned.state(component);
        for (suffix, explanation) in [("Progressing", progressing), ("Degraded", degraded)] {
            let explained = explanation.map(|one| (one.reason.as_str(), one.message));
            let (name, holds) = (format!("{}{suffix}", component.name()), explained.is_some());
            let (reason, message) = explained.unwrap_or_default();
            conditions.push(condition(&name, if holds { "True" } else { "False" }, reason, &message));
        }
    }
    let unavailable = plan::report(&observed).available.unwrap_err();
    let name = "StatefulSetControllerAvailable";
    conditions.push(condition(name, "False", unavailable.reason.as_str(), &unavailable.message));
    datacenter(&conditions)
}

#[test]
fn missing_secret_comes_first_and_its_consequences_are_counted() {
    assert_snapshot!(shown(&without_secret()), @r"
    ScyllaDBDatacenter scylla/orders is not available.

      Progressing (AgentToken): Secret scylla/agent does not exist. The ScyllaDB
        Manager agents read their token from it. The operator starts nodes when it
        exists.
      Progressing (StatefulSet): Secret scylla/agent, which the specification
        references, does not exist. The operator creates and changes no StatefulSet
        until it does. Create it, or remove the reference to it.
      7 more messages follow from these; --all shows them.
    ");
}

#[test]
fn all_shows_the_consequences_of_a_missing_secret() {
    assert_snapshot!(explain(&without_secret(), true), @r"
    ScyllaDBDatacenter scylla/orders is not available.

      Progressing (AgentToken): Secret scylla/agent does not exist. The ScyllaDB
        Manager agents read their token from it. The operator starts nodes when it
        exists.
      Progressing (StatefulSet): Secret scylla/agent, which the specification
        references, does not exist. The operator creates and changes no StatefulSet
        until it does. Create it, or remove the reference to it.
      Not available (StatefulSet): Rack(s) a, b, c do not run version 2026.2.1 yet.
      Progressing (StatefulSet): StatefulSet scylla/orders-dc1-b does not exist yet.
        The operator creates it when the racks before it are rolled out and no other
        change is in progress.
      Progressing (StatefulSet): StatefulSet scylla/orders-dc1-c does not exist yet.
        The operator creates it when the racks before it are rolled out and no other
        change is in progress.
      Progressing (StatefulSet): StatefulSet scylla/orders-dc1-a is not created yet.
        Waiting for the ConfigMaps and Secrets that its racks refer to.
      Progressing (Job): Service scylla/orders-dc1-a-0 does not exist yet. The
        operator cannot decide whether its node needs a cleanup.
      Progressing (Job): Service scylla/orders-dc1-b-0 does not exist yet. The
        operator cannot decide whether its node needs a cleanup.
      Progressing (Job): Service scylla/orders-dc1-c-0 does not exist yet. The
        operator cannot decide whether its node needs a cleanup.
    ");
}

#[test]
fn degraded_component_comes_first_and_independent_ones_follow() {
    let found = datacenter(&[
        condition(
            "StorageControllerProgressing",
            "True",
            "ExpandingVolumes",
            "PersistentVolumeClaim scylla/data-orders-dc1-a-0 is being resized",
        ),
        condition("StatefulSetControllerProgressing", "True", "Waiting", "It needs RoleBindingController first."),
        condition("StatefulSetControllerAvailable", "False", "MembersNotReady", "0 of 3 node(s) are ready"),
        condition(
            "RoleBindingControllerDegraded",
            "True",
            "Forbidden",
            "RoleBinding scylla/orders-member: the API server rejects it: admission webhook denied the request",
        ),
    ]);
    assert_snapshot!(shown(&found), @r"
    ScyllaDBDatacenter scylla/orders is degraded and not available.

      Degraded (RoleBinding): RoleBinding scylla/orders-member: the API server
        rejects it: admission webhook denied the request.
      1 more message follows from this; --all shows it.
      Not available (StatefulSet): 0 of 3 node(s) are ready.
      Progressing (Storage): PersistentVolumeClaim scylla/data-orders-dc1-a-0 is
        being resized.
    ");
}

#[test]
fn failed_cleanup_job_is_explained() {
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
fn pause_comes_first() {
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
fn refused_specification_lists_all_faults() {
    let message = "spec.racks[1].name: is a duplicate\nspec.racks[1].nodes: must not be negative";
    let mut refusal = condition("ObservationDegraded", "True", "InvalidSpecification", message);
    refusal["observedGeneration"] = json!(3);
    let mut found = datacenter(&[as_expected(), vec![refusal]].concat());
    found.object.metadata.generation = Some(3);
    assert_snapshot!(shown(&found), @r"
    The operator refuses the specification of ScyllaDBDatacenter scylla/orders: it
    changes nothing until you correct it.

      Refused: spec.racks[1].name: is a duplicate.
      Refused: spec.racks[1].nodes: must not be negative.
    ");
    found.object.metadata.generation = Some(4);
    let corrected = shown(&found);
    assert!(corrected.contains("generation 3, and the object is at 4"), "{corrected}");
    assert!(corrected.contains("Degraded (Observation): spec.racks[1].name: is a duplicate."), "{corrected}");
}

#[test]
fn unobserved_change_and_blocked_deletion_are_explained() {
    let mut found = datacenter(&as_expected());
    found.object.metadata.generation = Some(3);
    let unseen = shown(&found);
    assert!(unseen.contains("generation 2, and the object is at 3"), "{unseen}");
    found.object.data["status"] = Value::Null;
    let new = shown(&found);
    assert!(new.contains("The operator has not reconciled it yet"), "{new}");
    found.object.metadata.deletion_timestamp = of(json!("2026-11-15T11:00:00Z"));
    found.object.metadata.finalizers = Some(vec!["example.com/last".into()]);
    let going = shown(&found);
    assert!(going.starts_with("ScyllaDBDatacenter scylla/orders is being deleted."), "{going}");
    assert!(going.contains("these finalizers block the deletion: example.com/last."), "{going}");
}

#[test]
fn task_shows_its_state_and_its_errors() {
    let waits = json!({"state": "Pending", "place": 2, "lastOperation": {"description": "It waits for its turn."}});
    let failed = json!({
        "state": "Failed", "lastOperation": {"description": "It took too long."},
        "lastErrors": [{"code": "ERR_NO_ANSWER", "description": "the sidecar did not answer"}],
    });
    let done = json!({"state": "Succeeded", "lastErrors": [{"code": "ERR_OLD", "description": "got over"}]});
    assert_snapshot!([waits, failed, done].map(|status| shown(&task(status))).join("---\n"));
}

#[test]
fn paused_task_without_conditions_is_reported() {
    let mut found = task(json!({"state": "Pending"}));
    found.object.annotations_mut().insert(annotation::PAUSE.into(), "true".into());
    assert!(
        shown(&found).starts_with(
            "EtcdOperatorTask shoot/nightly is paused: the operator does no work on it.\n\n  The annotation"
        )
    );
    found.object.annotations_mut().insert(annotation::PAUSE.into(), "false".into());
    assert!(shown(&found).starts_with("EtcdOperatorTask shoot/nightly is not done yet."));
}

#[test]
fn missing_permissions_come_last() {
    let mut found = datacenter(&as_expected());
    found.problems.push("You may not list jobs in namespace scylla.".into());
    assert!(shown(&found).ends_with("\n  You may not list jobs in namespace scylla.\n"));
}
