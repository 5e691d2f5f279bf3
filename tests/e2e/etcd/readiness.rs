//! Tasks on Etcds without a ready member, and on those that cannot be read, with simulated sidecars.

use std::time::Duration;

use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, Request},
};
use messina_api::druid::v1alpha1::{Etcd, EtcdOperatorTaskStatus, TaskState};
use messina_e2e::{light_kubeconfig, operator::Operator};
use messina_plan::etcd_task::is_finished;
use messina_testbed::{
    faults::{Fault, Faults},
    harness::{Seen, until},
};
use serde_json::{Value, json};

use super::{
    LONG, api, codes, create, description,
    fake_sidecars::Sidecars,
    finished,
    many::{are_gone, create_etcd_with_status, in_a_namespace},
    task, tasks,
};

async fn set_etcd_status(client: &Client, namespace: &str, status: Value) {
    let etcds: Api<Etcd> = Api::namespaced(client.clone(), namespace);
    let patch = Patch::Merge(json!({"status": status}));
    etcds.patch_status("main", &PatchParams::default(), &patch).await.unwrap();
}

/// Waits until a task has an error or is finished, and returns its status.
async fn first_error(client: &Client, namespace: &str, name: &str) -> EtcdOperatorTaskStatus {
    until(api(client, namespace), name, &format!("the task {name} to meet an error"), LONG, |seen| {
        let status = seen.and_then(|task| task.status).unwrap_or_default();
        let is_settled = !codes(&status).is_empty() || is_finished(status.state.as_ref());
        if is_settled { Seen::Ready(status) } else { Seen::NotYet(json!(status).to_string()) }
    })
    .await
    .unwrap()
}

/// etcd-druid omits `readyReplicas` when it is zero, and a new Etcd has no status at all.
#[tokio::test]
async fn snapshot_waits_while_ready_replicas_is_absent() {
    in_a_namespace("etcd-unready", async |client, namespace| {
        create_etcd_with_status(client, namespace, "main", &Value::Null).await;
        let sidecars = Sidecars::new(Duration::ZERO).await;
        let faults = Faults::named("messina-unready", |_| Fault::None);
        let _operator = Operator::start(&light_kubeconfig(), namespace, &faults, tasks(sidecars.reach())).await;
        for (number, name) in ["no-status", "no-ready-replicas"].into_iter().enumerate() {
            create(client, namespace, &task(name, "OnDemandSnapshot", "main", json!({}))).await;
            let status = first_error(client, namespace, name).await;
            assert_eq!(
                (status.state.clone(), codes(&status)),
                (Some(TaskState::InProgress), vec!["ERR_PRECONDITION_CHECK_ON_DEMAND_SNAPSHOT"]),
                "{name}: {}",
                json!(status),
            );
            let taken: usize = sidecars.seen().values().map(|seen| seen.snapshots.len()).sum();
            assert_eq!(taken, number, "{name}: no snapshot is requested while no member is ready");
            set_etcd_status(client, namespace, json!({"replicas": 1, "readyReplicas": 1})).await;
            assert_eq!(finished(client, namespace, name).await.state, Some(TaskState::Succeeded), "{name}");
            set_etcd_status(client, namespace, json!({"readyReplicas": null})).await;
        }
        for name in ["no-status", "no-ready-replicas"] {
            api(client, namespace).delete(name, &DeleteParams::default()).await.unwrap();
        }
        are_gone(client, namespace).await;
    })
    .await;
}

/// Waits until the status of a task contains these words.
async fn reports(client: &Client, namespace: &str, name: &str, words: &str) -> EtcdOperatorTaskStatus {
    until(api(client, namespace), name, &format!("the task {name} to report {words:?}"), LONG, |seen| {
        let status = seen.and_then(|task| task.status).unwrap_or_default();
        if description(&status).contains(words) { Seen::Ready(status) } else { Seen::NotYet(json!(status).to_string()) }
    })
    .await
    .unwrap()
}

/// Sets a field without a schema, which the operator reads as a string.
async fn set_endpoint(client: &Client, namespace: &str, endpoint: Value) {
    let etcds: Api<Etcd> = Api::namespaced(client.clone(), namespace);
    let patch = Patch::Merge(json!({"spec": {"backup": {"store": {"endpointOverride": endpoint}}}}));
    etcds.patch_metadata("main", &PatchParams::default(), &patch).await.unwrap();
}

/// An unreadable Etcd blocks tasks until it is corrected or deleted, or until their timeouts.
#[tokio::test]
async fn tasks_resume_when_an_unreadable_etcd_is_corrected_or_deleted() {
    in_a_namespace("etcd-unreadable", async |client, namespace| {
        create_etcd_with_status(client, namespace, "main", &json!({"replicas": 1, "readyReplicas": 1})).await;
        let sidecars = Sidecars::new(Duration::ZERO).await;
        let faults = Faults::named("messina-unreadable", |_| Fault::None);
        let _operator = Operator::start(&light_kubeconfig(), namespace, &faults, tasks(sidecars.reach())).await;
        let snapshot = |name: &str, config: Value| task(name, "OnDemandSnapshot", "main", config);

        set_endpoint(client, namespace, json!(7)).await;
        create(client, namespace, &snapshot("corrected", json!({}))).await;
        let status = reports(client, namespace, "corrected", "cannot be read").await;
        assert_eq!(status.state, Some(TaskState::Pending), "{}", json!(status));
        set_endpoint(client, namespace, Value::Null).await;
        assert_eq!(finished(client, namespace, "corrected").await.state, Some(TaskState::Succeeded));

        set_etcd_status(client, namespace, json!({"readyReplicas": null})).await;
        create(client, namespace, &snapshot("runs", json!({"timeoutSeconds": 10}))).await;
        first_error(client, namespace, "runs").await;
        set_endpoint(client, namespace, json!(7)).await;
        reports(client, namespace, "runs", "cannot be read").await;
        let status = finished(client, namespace, "runs").await;
        assert_eq!(status.state, Some(TaskState::Failed), "its deadline ends it: {}", json!(status));
        assert!(codes(&status).contains(&"ERR_ETCD_NOT_READABLE"), "{}", json!(status));

        create(client, namespace, &snapshot("deleted", json!({}))).await;
        reports(client, namespace, "deleted", "cannot be read").await;
        // The response contains the Etcd, which the test cannot parse either.
        let etcds = Request::new(Etcd::url_path(&(), Some(namespace)));
        client.request_text(etcds.delete("main", &DeleteParams::default()).unwrap()).await.unwrap();
        reports(client, namespace, "deleted", "does not exist").await;
        create_etcd_with_status(client, namespace, "main", &json!({"replicas": 1, "readyReplicas": 1})).await;
        assert_eq!(finished(client, namespace, "deleted").await.state, Some(TaskState::Succeeded));

        for name in ["corrected", "runs", "deleted"] {
            api(client, namespace).delete(name, &DeleteParams::default()).await.unwrap();
        }
        are_gone(client, namespace).await;
    })
    .await;
}
