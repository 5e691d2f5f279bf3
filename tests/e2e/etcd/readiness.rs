//! Tasks on Etcds without a ready member, with simulated sidecars.

use std::time::Duration;

use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
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
    LONG, api, codes, create,
    fake::Sidecars,
    finished,
    many::{are_gone, create_etcd_with_status, in_a_namespace},
    task, tasks,
};

async fn set_etcd_status(client: &Client, namespace: &str, status: Value) {
    let etcds: Api<Etcd> = Api::namespaced(client.clone(), namespace);
    let patch = Patch::Merge(json!({"status": status}));
    etcds.patch_status("main", &PatchParams::default(), &patch).await.unwrap();
}

/// The status of a task once it has met an error or is finished.
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
async fn a_snapshot_waits_while_ready_replicas_is_absent() {
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
