#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use insta::assert_snapshot;
use messina_api::druid::v1alpha1::EtcdOperatorTask;
use serde_json::{Value, json};

use super::*;
use crate::etcd::{
    create::Listed,
    messages::tests::{operation, task},
};

/// Tasks, by name as the API server lists them.
fn all() -> Vec<EtcdOperatorTask> {
    let at = |mut task: EtcdOperatorTask, second: u32, uid: &str, kind: &str| {
        task.metadata.creation_timestamp =
            serde_json::from_value(json!(format!("2026-11-15T00:00:{second:02}Z"))).unwrap();
        task.metadata.uid = Some(uid.to_owned());
        task.spec.task_type = serde_json::from_value(json!(kind)).unwrap();
        task
    };
    let failed = json!({"state": "Failed", "lastOperation": operation("Failed", "x"), "lastErrors": [{
        "code": "ERR_DEADLINE_EXCEEDED",
        "description": "It was not done within 60 s, which config.timeoutSeconds can set. What went wrong last: the sidecar \
                        does not answer."}]});
    let waits = |place: i32| {
        json!({"state": "Pending", "place": place, "lastOperation":
            operation("InProgress", &format!("Waits for its turn: {place} tasks on the same etcd cluster come before it."))})
    };
    let runs = json!({"state": "InProgress", "progress": {"done": 1, "total": 3},
        "lastOperation": operation("InProgress", "The member main-0 is defragmented.")});
    let done = json!({"state": "Succeeded", "snapshot": {"name": "Full-00000000-00001234-1794700800.gz", "kind": "Full", "revision": 1234}});
    let mut elsewhere = at(task("by-another", &json!({})), 20, "0", "Compact");
    elsewhere.metadata.namespace = Some("garden".into());
    elsewhere.spec.etcd_reference.as_mut().unwrap().namespace = Some("shoot".into());
    let mut other = at(task("of-events", &waits(0)), 3, "7", "OnDemandSnapshot");
    other.spec.etcd_reference.as_mut().unwrap().name = Some("events".into());
    vec![
        elsewhere,
        at(task("compact-main-8hq2v", &waits(2)), 11, "b", "Compact"),
        at(task("compact-main-zz9pl", &waits(1)), 11, "a", "Compact"),
        at(task("defrag-main-p0x2m", &runs), 30, "z", "Defragment"),
        other,
        at(task("snapshot-main-4mm1c", &failed), 5, "2", "OnDemandSnapshot"),
        at(task("snapshot-main-x7k2p", &done), 9, "1", "OnDemandSnapshot"),
    ]
}

fn shown(all: &[EtcdOperatorTask], namespace: Option<&str>, etcd: Option<&str>) -> String {
    let listed = Listed { tasks: all.to_vec(), all_namespaces_listed: true };
    let tasks = Tasks::new(&listed, namespace.map(str::to_owned), etcd.map(str::to_owned));
    text(&tasks, "2026-11-15T00:02:30Z".parse().unwrap(), Style::default())
}

fn fits(text: &str) {
    for line in text.lines() {
        assert!(length(line) <= WIDTH, "{} columns: {line}", length(line));
    }
}

#[test]
fn tasks_are_listed_in_the_order_of_the_queue() {
    let shown = shown(&all(), Some("shoot"), Some("main"));
    fits(&shown);
    assert_snapshot!(shown);
}

#[test]
fn tasks_of_all_etcds_and_all_namespaces_are_listed() {
    let here = shown(&all(), Some("shoot"), None);
    fits(&here);
    assert!(here.contains("of-events") && here.contains("garden/by-another"), "{here}");
    let everywhere = shown(&all(), None, None);
    fits(&everywhere);
    assert_snapshot!(everywhere);
}

#[test]
fn long_names_move_the_columns_to_the_next_line() {
    let mut all = all();
    all.truncate(2);
    all[1].metadata.name = Some("compact-the-etcd-of-the-control-plane-in-europe-8hq2v".into());
    let shown = shown(&all, Some("shoot"), None);
    fits(&shown);
    assert_snapshot!(shown);
}

#[test]
fn no_tasks_are_found() {
    assert_snapshot!(shown(&[], Some("shoot"), None), @r"
    There are no tasks on etcd clusters in namespace shoot.
    Use -A to search all namespaces.
    ");
    assert_snapshot!(shown(&all(), Some("shoot"), Some("other")), @"There are no tasks on the Etcd other in namespace shoot.");
    assert_snapshot!(shown(&[], None, None), @"There are no tasks on etcd clusters in any namespace.");
}

#[test]
fn json_document_has_all_tasks() {
    let listed = Listed { tasks: all(), all_namespaces_listed: true };
    let tasks = Tasks::new(&listed, Some("shoot".into()), Some("main".into()));
    let document = serde_json::to_value(&tasks).unwrap();
    let ahead: Vec<(&str, &Value)> = document["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|task| (task["name"].as_str().unwrap(), &task["ahead"]))
        .collect();
    let expected = [
        ("defrag-main-p0x2m", json!(0)),
        ("compact-main-zz9pl", json!(1)),
        ("compact-main-8hq2v", json!(2)),
        ("by-another", json!(3)),
        ("snapshot-main-x7k2p", Value::Null),
        ("snapshot-main-4mm1c", Value::Null),
    ];
    assert_eq!(ahead, expected.iter().map(|(name, ahead)| (*name, ahead)).collect::<Vec<_>>());
    assert_eq!(
        document["tasks"][0],
        json!({
            "namespace": "shoot", "name": "defrag-main-p0x2m", "type": "Defragment",
            "etcd": {"namespace": "shoot", "name": "main"}, "state": "InProgress", "ahead": 0,
            "mayHaveMoreAhead": false,
            "progress": {"done": 1, "total": 3}, "created": "2026-11-15T00:00:30Z",
            "says": "The member main-0 is defragmented.",
        })
    );
}

/// The tasks of one namespace do not show which task is next.
#[test]
fn next_task_is_not_named_where_other_tasks_may_not_be_listed() {
    let tasks = all().into_iter().filter(|task| task.metadata.namespace.as_deref() == Some("shoot")).collect();
    let listed = Listed { tasks, all_namespaces_listed: false };
    let tasks = Tasks::new(&listed, Some("shoot".into()), None);
    let shown = text(&tasks, "2026-11-15T00:02:30Z".parse().unwrap(), Style::default());
    fits(&shown);
    assert!(!shown.contains("next in the queue"), "{shown}");
    assert_snapshot!(shown);
    let empty = Tasks::new(&Listed { tasks: vec![], all_namespaces_listed: false }, Some("shoot".into()), None);
    assert!(text(&empty, Timestamp::UNIX_EPOCH, Style::default()).contains("You may not list"));
}

#[test]
fn ages_have_one_unit() {
    let now: Timestamp = "2026-11-15T00:00:00Z".parse().unwrap();
    for (seconds, expected) in [(-5, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172_800, "2d")] {
        assert_eq!(age(now - jiff::SignedDuration::from_secs(seconds), now), expected);
    }
}
