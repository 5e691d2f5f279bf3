#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use http::{Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::{
    etcd::messages::tests::{operation, task},
    testing::{Answer, answer, failure, server},
};

/// An expected request, by a part of its URL, and the answer of the API server.
type Script = (&'static str, Box<dyn Fn() -> Answer + Send>);

/// A watch that gives these events and ends.
fn events(events: Vec<Value>) -> Box<dyn Fn() -> Answer + Send> {
    Box::new(move || {
        let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
        Ok(Response::new(Body::from(lines.into_bytes())))
    })
}

fn event(kind: &str, version: &str, status: &Value) -> Value {
    let mut object = serde_json::to_value(task("t", status)).unwrap();
    object["metadata"]["resourceVersion"] = version.into();
    json!({"type": kind, "object": object})
}

fn waits(place: i32) -> Value {
    json!({"state": "Pending", "place": place})
}

fn runs(done: i32) -> Value {
    let operation = operation("InProgress", "The members are being defragmented.");
    json!({"state": "InProgress", "progress": {"done": done, "total": 3}, "lastOperation": operation})
}

/// Follows a new task with these answers of the API server. Returns the lines that were shown, and the outcome.
async fn followed(script: Vec<Script>) -> (Vec<String>, Result<Outcome, Error>) {
    let script = Arc::new(Mutex::new(VecDeque::from(script)));
    let rest = Arc::clone(&script);
    let client = server(move |request: http::Request<Body>| {
        let asked = request.uri().to_string();
        let (expected, say) = rest.lock().unwrap().pop_front().unwrap_or_else(|| panic_about(&asked));
        assert!(asked.contains(expected), "{asked} was requested, and not {expected}");
        say()
    });
    let api: Api<EtcdOperatorTask> = Api::namespaced(client, "shoot");
    let mut shown = Vec::new();
    let outcome = follow(&api, task("t", &json!({})), "shoot", |task_line| shown.push(task_line.to_string())).await;
    assert!(script.lock().unwrap().is_empty(), "not all expected requests were made");
    (shown, outcome)
}

#[expect(clippy::panic, reason = "a test fails by panicking")]
fn panic_about(asked: &str) -> Script {
    panic!("{asked} was requested, and no request is expected any more")
}

#[tokio::test(start_paused = true)]
async fn follow_shows_each_change_once_until_the_task_is_finished() {
    let done = json!({"state": "Succeeded", "compactedRevision": 7});
    let (shown, outcome) = followed(vec![
        (
            "watch=true&timeoutSeconds=60&fieldSelector=metadata.name%3Dt&allowWatchBookmarks=true&resourceVersion=10",
            events(vec![
                event("MODIFIED", "11", &waits(2)),
                event("MODIFIED", "12", &waits(2)),
                event("MODIFIED", "13", &waits(1)),
                json!({"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": "x", "metadata": {"resourceVersion": "20"}}}),
            ]),
        ),
        // The watch continues at the last resourceVersion.
        ("resourceVersion=20", events(vec![event("MODIFIED", "21", &runs(0)), event("MODIFIED", "22", &runs(1))])),
        ("resourceVersion=22", events(vec![event("MODIFIED", "23", &done), event("DELETED", "24", &done)])),
    ])
    .await;
    let text = "The members are being defragmented.";
    assert_eq!(
        shown,
        [
            "New: waiting for the operator",
            "Pending: 2 tasks ahead",
            "Pending: 1 task ahead",
            &format!("InProgress 0/3: {text}"),
            &format!("InProgress 1/3: {text}"),
        ]
    );
    let Ok(Outcome::Finished(task)) = outcome else { unreachable!("{outcome:?}") };
    assert_eq!(messages::describe_end(&task), "t succeeded: Revisions before 7 are compacted.");
}

#[tokio::test(start_paused = true)]
async fn follow_reads_the_task_again_when_the_watch_has_expired() {
    let too_old = json!({"type": "ERROR", "object": {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired",
        "message": "too old resource version"}});
    let mut now = event("", "30", &runs(2))["object"].clone();
    now["metadata"]["resourceVersion"] = "30".into();
    let there = now.clone();
    let (shown, outcome) = followed(vec![
        ("resourceVersion=10", events(vec![too_old])),
        ("/etcdoperatortasks/t", Box::new(move || answer(&there))),
        ("resourceVersion=30", Box::new(|| failure(StatusCode::GONE, "too old resource version", &json!({})))),
        ("/etcdoperatortasks/t", Box::new(|| failure(StatusCode::NOT_FOUND, "not found", &json!({"name": "t"})))),
    ])
    .await;
    assert_eq!(shown.last().unwrap(), "InProgress 2/3: The members are being defragmented.");
    assert!(matches!(outcome, Ok(Outcome::Deleted)), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn follow_reports_a_deleted_or_replaced_task() {
    let (_, outcome) = followed(vec![("watch", events(vec![event("DELETED", "11", &json!({}))]))]).await;
    assert!(matches!(outcome, Ok(Outcome::Deleted)), "{outcome:?}");
    let mut another = event("ADDED", "11", &json!({}));
    another["object"]["metadata"]["uid"] = "another".into();
    let (_, outcome) = followed(vec![("watch", events(vec![another]))]).await;
    assert!(matches!(outcome, Ok(Outcome::Deleted)), "{outcome:?}");
}

fn unwell() -> Script {
    ("watch", Box::new(|| failure(StatusCode::SERVICE_UNAVAILABLE, "etcd is unavailable", &json!({}))))
}

#[tokio::test(start_paused = true)]
async fn follow_waits_for_an_unreachable_api_server() {
    let (shown, outcome) = followed(vec![
        ("resourceVersion=10", events(vec![event("MODIFIED", "11", &waits(1))])),
        unwell(),
        unwell(),
        ("resourceVersion=11", events(vec![event("MODIFIED", "12", &json!({"state": "Rejected"}))])),
    ])
    .await;
    assert_eq!(
        shown,
        [
            "New: waiting for the operator",
            "Pending: 1 task ahead",
            "Pending: the Kubernetes cluster does not answer; retrying",
            "Pending: 1 task ahead",
        ]
    );
    assert!(matches!(outcome, Ok(Outcome::Finished(_))), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn follow_fails_when_the_api_server_stays_unreachable_or_forbids_it() {
    let script = std::iter::repeat_with(unwell).take(11).collect();
    let began = Instant::now();
    let (_, outcome) = followed(script).await;
    assert!(began.elapsed() >= UNREACHABLE_LIMIT, "{:?}", began.elapsed());
    assert!(matches!(outcome, Err(Error::Unreachable(_))), "{outcome:?}");
    let no: Script = ("watch", Box::new(|| failure(StatusCode::FORBIDDEN, "no", &json!({}))));
    let (_, outcome) = followed(vec![no]).await;
    assert_eq!(
        outcome.unwrap_err().to_string(),
        "You may not watch etcdoperatortasks.druid.gardener.cloud in namespace shoot: ask for that permission."
    );
}

#[tokio::test(start_paused = true)]
async fn follow_reports_a_task_that_the_operator_does_not_reconcile() {
    let script = std::iter::repeat_with(|| ("watch", events(vec![]))).take(5);
    let end: Script = ("watch", events(vec![event("DELETED", "11", &json!({}))]));
    let (shown, _) = followed(script.chain([end]).collect()).await;
    assert_eq!(
        shown,
        [
            "New: waiting for the operator",
            "New: the operator has not reconciled it for 10 s: check that the operator runs"
        ]
    );
}
