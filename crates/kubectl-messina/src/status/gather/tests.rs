#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use http::StatusCode;
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

use super::*;
use crate::testing::{answer, failure, list};

/// An API server that knows one datacenter with two pods, and refuses what is named.
fn server(refused: &'static str) -> Client {
    let service = service_fn(move |request: Request<Body>| async move {
        let path = request.uri().path().to_owned();
        if !refused.is_empty() && path.contains(refused) {
            return failure(StatusCode::FORBIDDEN, "forbidden", &json!({}));
        }
        match path.trim_start_matches("/apis/scylla.scylladb.com/v1alpha1").trim_start_matches("/api/v1") {
            "/namespaces/scylla/scylladbdatacenters" => answer(&list(&[datacenter()])),
            "/namespaces/scylla/scylladbdatacenters/orders" => answer(&datacenter()),
            "/namespaces/scylla/pods" => answer(&list(&[pod("a", true), pod("b", true), pod("c", false)])),
            "/namespaces/scylla/services" => answer(&list(&[])),
            "/namespaces/scylla/pods/orders-dc1-a-0:8080/proxy/nodes" => answer(&json!({
                "hostID": "id-a", "version": "2026.2.4", "nodes": [{
                    "address": "10.0.0.1", "hostID": "id-a", "state": "UN", "datacenter": "dc1", "rack": "a", "tokens": 16,
                }],
            })),
            // As long as it takes.
            "/namespaces/scylla/pods/orders-dc1-b-0:8080/proxy/nodes" => std::future::pending().await,
            _ => failure(StatusCode::NOT_FOUND, "not found", &json!({"name": "other"})),
        }
    });
    Client::new(service, "default")
}

fn datacenter() -> Value {
    json!({"apiVersion": "scylla.scylladb.com/v1alpha1", "kind": "ScyllaDBDatacenter",
        "metadata": {"name": "orders", "namespace": "scylla"}, "spec": {"racks": []}})
}

fn pod(rack: &str, ready: bool) -> Value {
    json!({"metadata": {"name": format!("orders-dc1-{rack}-0"), "namespace": "scylla",
            "labels": {"scylla/cluster": "orders", "scylla/rack": rack}},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}})
}

fn in_scylla(name: Option<&str>) -> Question {
    Question { namespace: Some("scylla".into()), name: name.map(str::to_owned), ..Question::default() }
}

#[tokio::test(start_paused = true)]
async fn nodes_that_are_ready_are_asked_and_silence_is_told() {
    for name in [None, Some("orders")] {
        let found = gather(&server(""), &in_scylla(name)).await.unwrap();
        assert_eq!(found.problems, Vec::<String>::new());
        let answers = &found.datacenters[0].answers;
        assert_eq!(answers["orders-dc1-a-0"].as_ref().unwrap().host_id, "id-a");
        assert_eq!(answers["orders-dc1-b-0"].as_ref().unwrap_err(), "it did not answer within 3 seconds");
        assert!(!answers.contains_key("orders-dc1-c-0"), "it is not ready, and others are");
        assert_eq!(found.datacenters[0].pods.len(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn what_may_not_be_seen_is_named_and_the_rest_is_gathered() {
    for (refused, words) in [
        ("proxy", "You may not get pods/proxy in namespace scylla"),
        ("services", "You may not list services in namespace scylla"),
        ("/pods", "You may not list pods in namespace scylla"),
    ] {
        let found = gather(&server(refused), &in_scylla(None)).await.unwrap();
        assert_eq!(found.problems.len(), 1, "{refused}: {:?}", found.problems);
        assert!(found.problems[0].starts_with(words), "{refused}: {:?}", found.problems);
        assert_eq!(found.datacenters.len(), 1, "{refused}");
    }
}

#[tokio::test]
async fn errors_are_sentences() {
    let error = gather(&server("scylladbdatacenters"), &in_scylla(None)).await.unwrap_err();
    let words =
        "You may not list scylladbdatacenters.scylla.scylladb.com in namespace scylla: ask for that permission.";
    assert_eq!(error.to_string(), words);
    let error = gather(&server(""), &in_scylla(Some("other"))).await.unwrap_err();
    assert_eq!(error.to_string(), "There is no ScyllaDBDatacenter other in namespace scylla.");
}
