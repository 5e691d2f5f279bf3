#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use http::StatusCode;
use kube::client::Body;
use serde_json::json;

use super::*;
use crate::testing::{answer, failure, list, server};

fn place(client: Client) -> Place {
    Place { client, namespace: "shoot".into(), arguments: String::new() }
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
async fn an_etcd_that_does_not_exist_is_told_with_those_that_do() {
    assert_eq!(find(&place(etcds(&["main"])), "main").await.unwrap(), None);
    for (names, others) in [
        ([].as_slice(), ", and no other."),
        (&["events"], "; there is events."),
        (&["a", "b", "c"], "; there are a, b and c."),
        (&["a", "b", "c", "d", "e", "f", "g", "h", "i"], "; there are 9 others."),
    ] {
        let error = find(&place(etcds(names)), "main").await.unwrap_err();
        assert_eq!(error.to_string(), format!("There is no Etcd main in namespace shoot{others}"));
    }
}

fn always(code: StatusCode, message: &'static str) -> Client {
    server(move |_| failure(code, message, &json!({})))
}

#[tokio::test]
async fn errors_are_sentences() {
    let gone = place(always(StatusCode::NOT_FOUND, "the server could not find the requested resource"));
    assert_eq!(
        find(&gone, "main").await.unwrap_err().to_string(),
        "This Kubernetes cluster has no Etcds: install the operator that runs etcd clusters first."
    );
    let task = EtcdOperatorTask::default();
    for (code, message, said) in [
        (
            StatusCode::NOT_FOUND,
            "the server could not find the requested resource",
            "This Kubernetes cluster has no EtcdOperatorTasks: install Messina's definitions first.",
        ),
        (StatusCode::NOT_FOUND, "namespaces \"shoot\" not found", "The Kubernetes cluster refuses it: "),
        (
            StatusCode::FORBIDDEN,
            "etcdoperatortasks is forbidden: User \"me\" cannot create resource \"etcdoperatortasks\"",
            "You may not create etcdoperatortasks.druid.gardener.cloud in namespace shoot: ask for that permission.",
        ),
        (
            StatusCode::FORBIDDEN,
            "unable to create new content in namespace shoot because it is being terminated",
            "The Kubernetes cluster refuses it: ",
        ),
        (StatusCode::UNAUTHORIZED, "Unauthorized", "The Kubernetes cluster does not know you: "),
        (StatusCode::UNPROCESSABLE_ENTITY, "spec.type: Required value", "The Kubernetes cluster refuses it: "),
    ] {
        let error = create(&place(always(code, message)), &task).await.unwrap_err().to_string();
        assert!(error.starts_with(said), "{error}");
        assert!(!said.contains("refuses") || error.contains(message), "{error}");
    }
}

#[tokio::test]
async fn what_may_not_be_seen_does_not_stop_it() {
    let doubt = find(&place(always(StatusCode::FORBIDDEN, "no")), "main").await.unwrap().unwrap();
    assert!(doubt.starts_with("You may not get etcds.druid.gardener.cloud in namespace shoot, so"), "{doubt}");
    let only_here = server(|request: http::Request<Body>| match request.uri().path().contains("/namespaces/shoot/") {
        true => answer(&list(&[json!({"metadata": {"name": "a"}})])),
        false => failure(StatusCode::FORBIDDEN, "no", &json!({})),
    });
    let listed = all(&only_here, Some("shoot")).await.unwrap();
    assert_eq!((listed.tasks.len(), listed.is_everywhere), (1, false));
    assert_eq!(
        all(&only_here, None).await.unwrap_err().to_string(),
        "You may not list etcdoperatortasks.druid.gardener.cloud in all namespaces: ask for that permission."
    );
}
