#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use http::StatusCode;
use serde_json::{Value, json};

use super::{super::kinds::parse, *};
use crate::testing::{answer, failure, list, server};

fn owned(name: &str, owner: &str) -> Value {
    let owner = json!({"apiVersion": "v1", "kind": "Any", "name": owner, "uid": owner, "controller": true});
    json!({"metadata": {"name": name, "uid": name, "ownerReferences": [owner]}})
}

fn stateful_set(name: &str, owner: &str) -> Value {
    let mut one = owned(name, owner);
    one["spec"] = json!({"serviceName": "", "selector": {}, "template": {}});
    one
}

fn event(uid: &str) -> Value {
    json!({"metadata": {"name": uid}, "involvedObject": {"uid": uid}, "reason": uid})
}

/// An API server with one datacenter, which forbids requests whose path ends with `refused`.
fn cluster(refused: &'static str) -> Client {
    server(move |request| {
        let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
        if !refused.is_empty() && path.ends_with(refused) {
            return failure(StatusCode::FORBIDDEN, "forbidden", &json!({}));
        }
        let of_cluster = query.contains("labelSelector=scylla%2Fcluster%3Dorders");
        match path.rsplit('/').next().unwrap() {
            "orders" => answer(&json!({"apiVersion": "scylla.scylladb.com/v1alpha1", "kind": "ScyllaDBDatacenter",
                "metadata": {"name": "orders", "namespace": "scylla", "uid": "own"}})),
            "statefulsets" if of_cluster => {
                answer(&list(&[stateful_set("set", "own"), stateful_set("of-others", "x")]))
            }
            "jobs" if of_cluster => answer(&list(&[owned("job", "own")])),
            "pods" if of_cluster => {
                answer(&list(&[owned("set-0", "set"), owned("job-0", "job"), owned("of-others-0", "x")]))
            }
            "events" if query.contains("involvedObject.uid%3Down") => answer(&list(&[event("own")])),
            "events" if query.contains("type%3DWarning") => {
                answer(&list(&[event("own"), event("set-0"), event("of-others-0")]))
            }
            _ => failure(StatusCode::NOT_FOUND, "not found", &json!({"name": "other"})),
        }
    })
}

async fn gathered(refused: &'static str, name: &str) -> Result<Explained, Error> {
    let (kind, name) = parse(&format!("sdc/{name}")).unwrap();
    gather(&cluster(refused), kind, "scylla", &name).await
}

#[tokio::test]
async fn gather_finds_owned_objects_by_owner_references() {
    let found = gathered("", "orders").await.unwrap();
    assert_eq!(found.problems, Vec::<String>::new());
    assert_eq!(found.stateful_sets.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["set"]);
    assert_eq!(found.jobs.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["job"]);
    assert_eq!(found.pods.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["set-0", "job-0"]);
    let events: Vec<_> = found.events.iter().map(|event| event.reason.clone().unwrap()).collect();
    assert_eq!(events, ["own", "set-0"], "each event once, and none of other objects");
}

#[tokio::test]
async fn gather_reports_missing_permissions_and_reads_the_rest() {
    for refused in ["statefulsets", "jobs", "pods", "events"] {
        let found = gathered(refused, "orders").await.unwrap();
        assert_eq!(found.problems.len(), 1, "{refused}: {:?}", found.problems);
        let words = format!("You may not list {refused} in namespace scylla");
        assert!(found.problems[0].starts_with(&words), "{:?}", found.problems);
    }
    let error = gathered("", "other").await.unwrap_err();
    assert_eq!(error.to_string(), "There is no ScyllaDBDatacenter other in namespace scylla.");
}
