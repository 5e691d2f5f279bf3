#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use http::StatusCode;
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

use super::*;
use crate::testing::{answer, failure, list};

const HOST_ID: &str = "0f3e4a5b-0000-4000-8000-000000000000";

/// An API server with one datacenter, which forbids requests whose path contains `refused`.
fn server(refused: &'static str) -> Client {
    let service = service_fn(move |request: Request<Body>| async move {
        let path = request.uri().path().to_owned();
        if !refused.is_empty() && path.contains(refused) {
            return failure(StatusCode::FORBIDDEN, "forbidden", &json!({}));
        }
        let groups = ["/apis/scylla.scylladb.com/v1alpha1", "/apis/apps/v1", "/api/v1"];
        match groups.iter().find_map(|group| path.strip_prefix(group)).unwrap_or_default() {
            "/namespaces/scylla/scylladbdatacenters" => answer(&list(&[datacenter()])),
            "/namespaces/scylla/scylladbdatacenters/orders" => answer(&datacenter()),
            "/namespaces/scylla/statefulsets" => answer(&list(&[
                owned("orders-dc1", "racks", "orders-uid"),
                owned("another", "another-uid", "another-datacenter"),
            ])),
            "/namespaces/scylla/pods" => answer(&list(&[
                pod("a", true, "racks"),
                pod("b", true, "racks"),
                pod("c", false, "racks"),
                pod("forged", true, "another-uid"),
                pod("forged-too", true, "orders-uid"),
            ])),
            "/namespaces/scylla/services" => answer(&list(&[
                owned("orders-dc1-a-0", "service", "orders-uid"),
                owned("orders-dc1-forged-0", "forged", "racks"),
            ])),
            "/namespaces/scylla/pods/orders-dc1-a-0:8080/proxy/nodes" => answer(&json!({
                "hostID": HOST_ID, "version": "2026.2.4", "nodes": [{
                    "address": "10.0.0.1", "hostID": HOST_ID, "state": "UN", "datacenter": "dc1", "rack": "a", "tokens": 16,
                }],
            })),
            // It never answers.
            "/namespaces/scylla/pods/orders-dc1-b-0:8080/proxy/nodes" => std::future::pending().await,
            _ => failure(StatusCode::NOT_FOUND, "not found", &json!({"name": "other"})),
        }
    });
    Client::new(service, "default")
}

fn datacenter() -> Value {
    json!({"apiVersion": "scylla.scylladb.com/v1alpha1", "kind": "ScyllaDBDatacenter",
        "metadata": {"name": "orders", "namespace": "scylla", "uid": "orders-uid"}, "spec": {"racks": []}})
}

fn owned(name: &str, uid: &str, owner: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "scylla", "uid": uid, "labels": {"scylla/cluster": "orders"},
        "ownerReferences": [{"apiVersion": "x", "kind": "X", "name": "x", "uid": owner, "controller": true}]},
        "spec": {"selector": {}, "template": {}, "serviceName": ""}})
}

fn pod(rack: &str, ready: bool, owner: &str) -> Value {
    json!({"metadata": {"name": format!("orders-dc1-{rack}-0"), "namespace": "scylla",
            "labels": {"scylla/cluster": "orders", "scylla/rack": rack},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "x", "uid": owner, "controller": true}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}})
}

fn in_scylla(name: Option<&str>) -> Query {
    Query { namespace: Some("scylla".into()), name: name.map(str::to_owned), ..Query::default() }
}

#[tokio::test(start_paused = true)]
async fn gather_queries_ready_nodes_and_reports_timeouts() {
    for name in [None, Some("orders")] {
        let found = gather(&server(""), &in_scylla(name)).await.unwrap();
        assert_eq!(found.problems, Vec::<String>::new());
        let answers = &found.datacenters[0].answers;
        assert_eq!(answers["orders-dc1-a-0"].as_ref().unwrap().host_id, HOST_ID);
        assert_eq!(answers["orders-dc1-b-0"].as_ref().unwrap_err(), "it did not answer within 3 seconds");
        assert!(!answers.contains_key("orders-dc1-c-0"), "it is not ready, and other nodes are");
        assert_eq!(found.datacenters[0].pods.len(), 3);
    }
}

/// Any user who may create pods and Services can set their labels.
#[tokio::test(start_paused = true)]
async fn gather_ignores_objects_that_only_have_the_labels() {
    let found = gather(&server(""), &in_scylla(None)).await.unwrap();
    let [datacenter] = &found.datacenters[..] else { panic!("{found:?}") };
    let pods: Vec<String> = datacenter.pods.iter().map(ResourceExt::name_any).collect();
    assert_eq!(pods, ["orders-dc1-a-0", "orders-dc1-b-0", "orders-dc1-c-0"]);
    assert!(!datacenter.answers.keys().any(|pod| pod.contains("forged")), "{:?}", datacenter.answers);
    let services: Vec<String> = datacenter.services.iter().map(ResourceExt::name_any).collect();
    assert_eq!(services, ["orders-dc1-a-0"]);
    let unknown = gather(&server("statefulsets"), &in_scylla(None)).await.unwrap();
    assert_eq!((unknown.datacenters[0].pods.len(), unknown.datacenters[0].pods_known), (0, false));
}

#[tokio::test(start_paused = true)]
async fn gather_reports_missing_permissions_and_reads_the_rest() {
    for (refused, words) in [
        ("proxy", "You may not get pods/proxy in namespace scylla"),
        ("services", "You may not list services in namespace scylla"),
        ("/pods", "You may not list pods in namespace scylla"),
        ("/statefulsets", "You may not list statefulsets in namespace scylla"),
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
