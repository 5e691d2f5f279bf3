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
    etcd::words::tests::{operation, task},
    testing::{Answer, answer, failure, server},
};

/// What the API server answers to one request: the path's end that is expected, and the answer.
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
    let words = operation("InProgress", "The members are being looked at.");
    json!({"state": "InProgress", "progress": {"done": done, "total": 3}, "lastOperation": words})
}

/// Follows a new task while the API server answers like this. Gives what was shown, and the end.
async fn followed(script: Vec<Script>) -> (Vec<String>, Result<Ending, Error>) {
    let script = Arc::new(Mutex::new(VecDeque::from(script)));
    let rest = Arc::clone(&script);
    let client = server(move |request: http::Request<Body>| {
        let asked = request.uri().to_string();
        let (expected, say) = rest.lock().unwrap().pop_front().unwrap_or_else(|| panic_about(&asked));
        assert!(asked.contains(expected), "{asked} was asked for, and not {expected}");
        say()
    });
    let api: Api<EtcdOperatorTask> = Api::namespaced(client, "shoot");
    let mut shown = Vec::new();
    let ending = follow(&api, task("t", &json!({})), "shoot", |sight| shown.push(sight.to_string())).await;
    assert!(script.lock().unwrap().is_empty(), "not everything was asked for");
    (shown, ending)
}

#[expect(clippy::panic, reason = "a test fails by panicking")]
fn panic_about(asked: &str) -> Script {
    panic!("{asked} was asked for, and nothing is expected any more")
}

#[tokio::test(start_paused = true)]
async fn each_change_is_shown_once_until_the_end() {
    let done = json!({"state": "Succeeded", "compactedRevision": 7});
    let (shown, ending) = followed(vec![
        (
            "watch=true&timeoutSeconds=60&fieldSelector=metadata.name%3Dt&allowWatchBookmarks=true&resourceVersion=10",
            events(vec![
                event("MODIFIED", "11", &waits(2)),
                event("MODIFIED", "12", &waits(2)),
                event("MODIFIED", "13", &waits(1)),
                json!({"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": "x", "metadata": {"resourceVersion": "20"}}}),
            ]),
        ),
        // It goes on from where it was.
        ("resourceVersion=20", events(vec![event("MODIFIED", "21", &runs(0)), event("MODIFIED", "22", &runs(1))])),
        ("resourceVersion=22", events(vec![event("MODIFIED", "23", &done), event("DELETED", "24", &done)])),
    ])
    .await;
    let words = "The members are being looked at.";
    assert_eq!(
        shown,
        [
            "New: waits for the operator",
            "Pending: 2 tasks ahead",
            "Pending: 1 task ahead",
            &format!("InProgress 0/3: {words}"),
            &format!("InProgress 1/3: {words}"),
        ]
    );
    let Ok(Ending::Finished(task)) = ending else { unreachable!("{ending:?}") };
    assert_eq!(words::ending(&task), "t succeeded: Revisions before 7 are forgotten.");
}

#[tokio::test(start_paused = true)]
async fn what_was_forgotten_is_asked_for_again() {
    let too_old = json!({"type": "ERROR", "object": {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired",
        "message": "too old resource version"}});
    let mut now = event("", "30", &runs(2))["object"].clone();
    now["metadata"]["resourceVersion"] = "30".into();
    let there = now.clone();
    let (shown, ending) = followed(vec![
        ("resourceVersion=10", events(vec![too_old])),
        ("/etcdoperatortasks/t", Box::new(move || answer(&there))),
        ("resourceVersion=30", Box::new(|| failure(StatusCode::GONE, "too old resource version", &json!({})))),
        ("/etcdoperatortasks/t", Box::new(|| failure(StatusCode::NOT_FOUND, "not found", &json!({"name": "t"})))),
    ])
    .await;
    assert_eq!(shown.last().unwrap(), "InProgress 2/3: The members are being looked at.");
    assert!(matches!(ending, Ok(Ending::Deleted)), "{ending:?}");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_deleted_or_replaced_is_told() {
    let (_, ending) = followed(vec![("watch", events(vec![event("DELETED", "11", &json!({}))]))]).await;
    assert!(matches!(ending, Ok(Ending::Deleted)), "{ending:?}");
    let mut another = event("ADDED", "11", &json!({}));
    another["object"]["metadata"]["uid"] = "another".into();
    let (_, ending) = followed(vec![("watch", events(vec![another]))]).await;
    assert!(matches!(ending, Ok(Ending::Deleted)), "{ending:?}");
}

fn unwell() -> Script {
    ("watch", Box::new(|| failure(StatusCode::SERVICE_UNAVAILABLE, "etcd is away", &json!({}))))
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_is_awaited() {
    let (shown, ending) = followed(vec![
        ("resourceVersion=10", events(vec![event("MODIFIED", "11", &waits(1))])),
        unwell(),
        unwell(),
        ("resourceVersion=11", events(vec![event("MODIFIED", "12", &json!({"state": "Rejected"}))])),
    ])
    .await;
    assert_eq!(
        shown,
        [
            "New: waits for the operator",
            "Pending: 1 task ahead",
            "Pending: the Kubernetes cluster does not answer; it is asked again",
            "Pending: 1 task ahead",
        ]
    );
    assert!(matches!(ending, Ok(Ending::Finished(_))), "{ending:?}");
}

#[tokio::test(start_paused = true)]
async fn it_is_given_up_when_the_api_server_stays_away_or_says_no() {
    let script = std::iter::repeat_with(unwell).take(11).collect();
    let began = Instant::now();
    let (_, ending) = followed(script).await;
    assert!(began.elapsed() >= ABSENCE, "{:?}", began.elapsed());
    assert!(matches!(ending, Err(Error::Unreachable(_))), "{ending:?}");
    let no: Script = ("watch", Box::new(|| failure(StatusCode::FORBIDDEN, "no", &json!({}))));
    let (_, ending) = followed(vec![no]).await;
    assert_eq!(
        ending.unwrap_err().to_string(),
        "You may not watch etcdoperatortasks.druid.gardener.cloud in namespace shoot: ask for that permission."
    );
}

#[tokio::test(start_paused = true)]
async fn people_are_told_that_nobody_looks_at_a_task() {
    let script = std::iter::repeat_with(|| ("watch", events(vec![]))).take(5);
    let end: Script = ("watch", events(vec![event("DELETED", "11", &json!({}))]));
    let (shown, _) = followed(script.chain([end]).collect()).await;
    assert_eq!(shown, ["New: waits for the operator", "New: nobody has looked at it for 10 s: does the operator run?"]);
}
