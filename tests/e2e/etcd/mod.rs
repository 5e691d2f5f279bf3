//! Tasks on etcd clusters: on real ones to test their effects, and with simulated sidecars to test the operator.

mod column;
mod completion;
mod fake_sidecars;
mod gate;
mod many;
mod metrics;
mod readiness;
mod single_member;
mod three_members;

use std::{sync::Arc, time::Duration};

use kube::{Api, Client, api::PostParams};
use messina_api::druid::v1alpha1::{EtcdOperatorTask, EtcdOperatorTaskStatus, TaskState};
use messina_clients::Resolver;
use messina_e2e::operator::Controllers;
use messina_operator::controllers::etcd_task;
use messina_plan::etcd_task::is_finished;
use messina_runtime::{cluster::Cluster, controller::AnyController, fence::Fence, metrics::Metrics};
use messina_testbed::harness::{Seen, until};
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(180);

/// Starts only the controller of tasks.
fn tasks(reach: Resolver) -> impl Controllers {
    move |cluster: &mut Cluster, metrics: &Metrics| -> Vec<Arc<dyn AnyController>> {
        let settings = etcd_task::Settings {
            registry: etcd_task::Registry::default(),
            resolver: reach.clone(),
            fence: Fence::open_for_ever(),
            backup_restore_image: String::new(),
            task_metrics: etcd_task::TaskMetrics::new(metrics),
        };
        vec![etcd_task::declare(cluster, settings)]
    }
}

/// Whether clusters with Kubernetes nodes cannot run here; prints why.
fn is_unsuitable() -> bool {
    let reason = messina_e2e::clusters::unsuitable();
    reason.inspect(|reason| eprintln!("skipped: {reason}")).is_some()
}

fn api(client: &Client, namespace: &str) -> Api<EtcdOperatorTask> {
    Api::namespaced(client.clone(), namespace)
}

fn task(name: &str, task_type: &str, etcd: &str, config: Value) -> EtcdOperatorTask {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"type": task_type, "config": config, "etcdReference": {"name": etcd}},
    }))
    .unwrap()
}

async fn create(client: &Client, namespace: &str, task: &EtcdOperatorTask) {
    api(client, namespace).create(&PostParams::default(), task).await.unwrap();
}

/// Waits until a task is finished, and returns its status.
async fn finished(client: &Client, namespace: &str, name: &str) -> EtcdOperatorTaskStatus {
    until(api(client, namespace), name, &format!("the task {name} to be finished"), LONG, |seen| {
        let status = seen.and_then(|task| task.status).unwrap_or_default();
        if is_finished(status.state.as_ref()) { Seen::Ready(status) } else { Seen::NotYet(json!(status).to_string()) }
    })
    .await
    .unwrap()
}

/// Creates a task, waits until it is finished, and returns its status.
async fn done(client: &Client, namespace: &str, task: &EtcdOperatorTask) -> EtcdOperatorTaskStatus {
    create(client, namespace, task).await;
    finished(client, namespace, task.metadata.name.as_deref().unwrap()).await
}

/// The same for a task that has to succeed.
async fn succeeds(client: &Client, namespace: &str, task: &EtcdOperatorTask) -> EtcdOperatorTaskStatus {
    let status = done(client, namespace, task).await;
    assert_eq!(status.state, Some(TaskState::Succeeded), "{}", json!(status));
    status
}

fn codes(status: &EtcdOperatorTaskStatus) -> Vec<&str> {
    status.last_errors.iter().flatten().filter_map(|error| error.code.as_deref()).collect()
}

fn description(status: &EtcdOperatorTaskStatus) -> &str {
    status.last_operation.as_ref().and_then(|operation| operation.description.as_deref()).unwrap_or_default()
}
