//! The counts for metrics.

use k8s_openapi::api::{batch::v1::Job, core::v1::Service};
use messina_api::names::{
    annotation::{CLEANUP_TOKEN_RING_HASH, HOST_ID, LEAVING_HOST_ID, NODE_JOINED},
    label::{NODE_JOB_TYPE, NODE_MAINTENANCE, REPLACING_NODE_HOST_ID, SERVICE_TYPE},
};
use messina_plan::datacenter::{
    Ending::{Done, Failed, Withdrawn},
    NodeState,
    Operation::{Cleanup, Join, Leave, Replace},
    finished_cleanup, finished_operation, node_states,
};
use serde_json::{Value, json};

use crate::{observe, rounds::settled_world};

fn service(host_id: &str, labels: Value, annotations: Value) -> Service {
    let mut metadata = json!({"labels": {SERVICE_TYPE: "member"}, "annotations": {HOST_ID: host_id}});
    crate::compare::merge(&mut metadata, &json!({"labels": labels, "annotations": annotations}));
    serde_json::from_value(json!({"metadata": metadata})).unwrap()
}

#[test]
fn finished_operation_is_read_from_the_service() {
    let joined = service("x", json!({}), json!({NODE_JOINED: "true"}));
    let new = service("x", json!({}), json!({}));
    let leaving = service("x", json!({}), json!({NODE_JOINED: "true", LEAVING_HOST_ID: "x"}));
    let replacing = service("x", json!({REPLACING_NODE_HOST_ID: "x"}), json!({NODE_JOINED: "true"}));
    let newcomer = service("y", json!({REPLACING_NODE_HOST_ID: "x"}), json!({NODE_JOINED: "true"}));
    let replaced = service("y", json!({}), json!({NODE_JOINED: "true"}));
    let identity: Service =
        serde_json::from_value(json!({"metadata": {"labels": {SERVICE_TYPE: "identity"}}})).unwrap();
    for (case, before, after, expected) in [
        ("it joins", &new, Some(&joined), Some((Join, Done))),
        ("nothing is new", &joined, Some(&joined), None),
        ("it is asked to leave", &joined, Some(&leaving), None),
        ("it stays", &leaving, Some(&joined), Some((Leave, Withdrawn))),
        ("it has left", &leaving, None, Some((Leave, Done))),
        ("the datacenter is deleted", &joined, None, None),
        ("it is being replaced", &joined, Some(&replacing), None),
        ("the newcomer joins", &replacing, Some(&newcomer), None),
        ("it is replaced", &newcomer, Some(&replaced), Some((Replace, Done))),
        ("it is not replaced", &replacing, Some(&joined), Some((Replace, Withdrawn))),
        ("no node", &identity, None, None),
    ] {
        assert_eq!(finished_operation(before, after), expected, "{case}");
    }
}

#[test]
fn finished_cleanup_is_read_from_the_job() {
    let job = |status: Value| -> Job {
        let metadata = json!({"labels": {NODE_JOB_TYPE: "Cleanup"}, "annotations": {CLEANUP_TOKEN_RING_HASH: "ring"}});
        serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap()
    };
    let condition = |kind: &str| json!({"conditions": [{"type": kind, "status": "True"}]});
    let (running, complete, failed) = (job(json!({})), job(condition("Complete")), job(condition("Failed")));
    assert_eq!(finished_cleanup(&running, &complete), Some((Cleanup, Done)));
    assert_eq!(finished_cleanup(&running, &failed), Some((Cleanup, Failed)));
    assert_eq!(finished_cleanup(&complete, &complete), None, "it is counted once");
    assert_eq!(finished_cleanup(&Job::default(), &Job::default()), None);
}

#[test]
fn each_node_is_counted_once() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    let not_ready = json!({"conditions": [{"type": "Ready", "status": "False"}]});
    world.stored.pods.get_mut("orders-dc-a-0").unwrap().status = Some(serde_json::from_value(not_ready).unwrap());
    world.set_label("orders-dc-b-0", NODE_MAINTENANCE, Some(""));
    let states = node_states(&observe(&world.stored));
    assert_eq!(states.values().sum::<usize>(), 3);
    for (state, count) in
        [(NodeState::Ready, 1), (NodeState::NotReady, 1), (NodeState::Maintenance, 1), (NodeState::Leaving, 0)]
    {
        assert_eq!(states[&state], count, "{}", state.word());
    }
}
