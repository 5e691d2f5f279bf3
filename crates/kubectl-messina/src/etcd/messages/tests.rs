#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::*;

/// A task with this status.
pub(in crate::etcd) fn task(name: &str, status: &Value) -> EtcdOperatorTask {
    serde_json::from_value(json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdOperatorTask",
        "metadata": {
            "name": name, "namespace": "shoot", "uid": format!("uid-of-{name}"), "resourceVersion": "10",
            "creationTimestamp": "2026-11-15T00:00:00Z",
        },
        "spec": {"type": "OnDemandSnapshot", "etcdReference": {"name": "main"}, "ttlSecondsAfterFinished": 3600},
        "status": status,
    }))
    .unwrap()
}

pub(in crate::etcd) fn operation(state: &str, description: &str) -> Value {
    json!({"state": state, "description": description})
}

#[test]
fn unfinished_task_is_described_in_one_line() {
    let waits =
        operation("InProgress", "Waits for its turn: the task shoot/a on the same etcd cluster comes before it.");
    let one = operation("InProgress", "The member main-0 is defragmented.");
    let trouble = operation("Failed", "The sidecar does not\nanswer.");
    let lines: Vec<String> = [
        json!({}),
        json!({"state": "Pending", "place": 1, "lastOperation": waits}),
        json!({"state": "Pending", "place": 2, "lastOperation": waits}),
        json!({"state": "Pending", "lastOperation": operation("InProgress", "Its turn has come; it is being admitted.")}),
        json!({"state": "InProgress"}),
        json!({"state": "InProgress", "progress": {"done": 1, "total": 3}, "lastOperation": one}),
        json!({"state": "InProgress", "progress": {"total": 3}}),
        json!({"state": "InProgress", "lastOperation": trouble,
            "lastErrors": [{"code": "ERR_OLD", "description": "old"},
                {"code": "ERR_SIDECAR", "description": "The sidecar does not\nanswer."}]}),
        json!({"state": "Paused"}),
    ]
    .iter()
    .map(|status| format!("{}\n", task_line(&task("t", status), None)))
    .collect();
    assert_snapshot!(lines.concat());
    let mut leaving = task("t", &json!({"state": "InProgress", "lastOperation": one}));
    leaving.metadata.deletion_timestamp = leaving.metadata.creation_timestamp.clone();
    assert_snapshot!(task_line(&leaving, None), @"InProgress: it is being deleted");
    assert_snapshot!(task_line(&task("t", &json!({})), Some(Duration::from_secs(10))), @"New: the operator has not reconciled it for 10 s: check that the operator runs");
}

#[test]
fn finished_task_is_described_by_its_result_or_error() {
    let done = operation("Completed", "Nothing has changed since the last snapshot, so none was taken.");
    let member =
        |name: &str, before: Option<i64>| json!({"name": name, "sizeBefore": before, "sizeAfter": 310_000_000});
    let lines: Vec<String> = [
        json!({"state": "Succeeded", "snapshot": {"name": "Full-00000000-00001234-1794700800.gz", "kind": "Full", "revision": 1234}}),
        json!({"state": "Succeeded", "snapshot": {"name": "Full-00000000-00001234-1794700800.final", "kind": "Full",
            "revision": 1234, "isFinal": true}}),
        json!({"state": "Succeeded", "snapshot": {"name": "Incr-00001235-00001300-1794700900.gz", "kind": "Incr", "revision": 1300}}),
        json!({"state": "Succeeded", "lastOperation": done}),
        json!({"state": "Succeeded", "members": [member("main-0", Some(2_147_483_648))]}),
        json!({"state": "Succeeded", "members": [member("main-0", Some(2_147_483_648)), member("main-1", Some(1_073_741_824))]}),
        json!({"state": "Succeeded", "members": [member("main-0", Some(2_147_483_648)), member("main-1", None)]}),
        json!({"state": "Succeeded", "compactedRevision": 98765}),
        json!({"state": "Succeeded"}),
        json!({"state": "Failed", "lastOperation": operation("Failed", "It was not done within 60 s."),
            "lastErrors": [{"code": "ERR_SIDECAR", "description": "It does not answer."},
                {"code": "ERR_DEADLINE_EXCEEDED", "description": "It was not done within 60 s."}]}),
        json!({"state": "Rejected", "lastErrors": [{"code": "ERR_INVALID_CONFIG", "description": "config: 7 is no object."}]}),
    ]
    .iter()
    .map(|status| format!("{}\n", describe_end(&task("t", status))))
    .collect();
    assert_snapshot!(lines.concat());
}

#[test]
fn created_task_is_described_with_commands() {
    let new = task("snapshot-main-x7k2p", &json!({}));
    let full = Request::Snapshot { is_delta: false, is_final: false };
    let shown = created(&new, &full, "shoot", " -n shoot", false, Style::default());
    assert_snapshot!(shown);
    let followed = created(&new, &full, "shoot", " -n shoot", true, Style::default());
    assert_snapshot!(followed, @"Task snapshot-main-x7k2p was created.");
    assert_snapshot!(interrupted("snapshot-main-x7k2p", " -n shoot"), @r"
    The task continues. Follow it again:
        kubectl messina etcd wait snapshot-main-x7k2p -n shoot
    ");
}

#[test]
fn suggested_commands_use_the_same_cluster_and_namespace() {
    let access = Access { kubeconfig: Some(PathBuf::from("/home/me/my config")), context: Some("prod@eu".into()) };
    assert_eq!(arguments("shoot", &access), " -n shoot --context prod@eu --kubeconfig '/home/me/my config'");
    assert_eq!(arguments("shoot", &Access::default()), " -n shoot");
    assert_eq!(quoted("it's"), r"'it'\''s'");
}

#[test]
fn durations_have_no_zero_units() {
    for (seconds, expected) in [(3600, "1h"), (5400, "1h30m"), (61, "1m1s"), (7, "7s")] {
        assert_eq!(time(seconds), expected);
    }
}
