#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use http::StatusCode;
use kube::client::Body;
use serde_json::json;

use super::*;
use crate::testing::{answer, failure, list, server};

fn connection(client: Client) -> Connection {
    Connection { client, namespace: "shoot".into(), arguments: String::new() }
}

fn etcds(names: &'static [&'static str]) -> Client {
    server(move |request: http::Request<Body>| match request.uri().path() {
        "/apis/druid.gardener.cloud/v1alpha1/namespaces/shoot/etcds" => {
            let items: Vec<_> = names.iter().map(|name| json!({"metadata": {"name": name}})).collect();
            answer(&list(&items))
        }
        path if names.iter().any(|name| path.ends_with(name)) => answer(&json!({"metadata": {"name": "main"}})),
        _ => failure(StatusCode::NOT_FOUND, "etcds \"main\" not found", &json!({"name": "main", "kind": "etcds"})),
    })
}

#[tokio::test]
async fn missing_etcd_is_reported_with_those_that_exist() {
    assert_eq!(find(&connection(etcds(&["main"])), "main").await.unwrap(), None);
    for (names, others) in [
        ([].as_slice(), ", and there is no other Etcd."),
        (&["events"], "; there is events."),
        (&["a", "b", "c"], "; there are a, b and c."),
        (&["a", "b", "c", "d", "e", "f", "g", "h", "i"], "; there are 9 others."),
    ] {
        let error = find(&connection(etcds(names)), "main").await.unwrap_err();
        assert_eq!(error.to_string(), format!("There is no Etcd main in namespace shoot{others}"));
    }
}

fn always(code: StatusCode, message: &'static str) -> Client {
    server(move |_| failure(code, message, &json!({})))
}

#[tokio::test]
async fn errors_are_sentences() {
    let gone = connection(always(StatusCode::NOT_FOUND, "the server could not find the requested resource"));
    assert_eq!(
        find(&gone, "main").await.unwrap_err().to_string(),
        "This Kubernetes cluster has no Etcds: install the operator that runs etcd clusters first."
    );
    let task = EtcdOperatorTask::default();
    for (code, message, expected) in [
        (
            StatusCode::NOT_FOUND,
            "the server could not find the requested resource",
            "This Kubernetes cluster has no EtcdOperatorTasks: install the CustomResourceDefinitions of Messina first.",
        ),
        (StatusCode::NOT_FOUND, "namespaces \"shoot\" not found", "The Kubernetes cluster rejects it: "),
        (
            StatusCode::FORBIDDEN,
            "etcdoperatortasks is forbidden: User \"me\" cannot create resource \"etcdoperatortasks\"",
            "You may not create etcdoperatortasks.druid.gardener.cloud in namespace shoot: ask for that permission.",
        ),
        (
            StatusCode::FORBIDDEN,
            "unable to create new content in namespace shoot because it is being terminated",
            "The Kubernetes cluster rejects it: ",
        ),
        (StatusCode::UNAUTHORIZED, "Unauthorized", "The Kubernetes cluster does not accept your credentials: "),
        (StatusCode::UNPROCESSABLE_ENTITY, "spec.type: Required value", "The Kubernetes cluster rejects it: "),
    ] {
        let error = create(&connection(always(code, message)), &task).await.unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
        assert!(!expected.contains("rejects") || error.contains(message), "{error}");
    }
}

#[tokio::test]
async fn missing_permissions_to_read_do_not_prevent_creation() {
    let doubt = find(&connection(always(StatusCode::FORBIDDEN, "no")), "main").await.unwrap().unwrap();
    assert!(doubt.starts_with("You may not get etcds.druid.gardener.cloud in namespace shoot, so"), "{doubt}");
    let only_here = server(|request: http::Request<Body>| match request.uri().path().contains("/namespaces/shoot/") {
        true => answer(&list(&[json!({"metadata": {"name": "a"}})])),
        false => failure(StatusCode::FORBIDDEN, "no", &json!({})),
    });
    let listed = all(&only_here, Some("shoot")).await.unwrap();
    assert_eq!((listed.tasks.len(), listed.all_namespaces_listed), (1, false));
    assert_eq!(
        all(&only_here, None).await.unwrap_err().to_string(),
        "You may not list etcdoperatortasks.druid.gardener.cloud in all namespaces: ask for that permission."
    );
}
