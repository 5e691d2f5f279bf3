//! Cleanup and deletion of tasks, on the real API server. The tests write statuses in place of the Job controller.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
use http::{Method, StatusCode};
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use messina_api::druid::v1alpha1::{EtcdOperatorTask, TaskState};
use messina_e2e::{light_kubeconfig, operator::Operator};
use messina_testbed::{
    faults::{ApiRequest, Fault, Faults},
    harness::{Seen, eventually},
};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{
    LONG, api, create,
    fake_sidecars::Sidecars,
    finished,
    many::{are_gone, create_etcd, in_a_namespace},
    task, tasks,
};

/// A task that a Job carries out.
fn copy(name: &str) -> EtcdOperatorTask {
    let target = json!({"provider": "Local", "container": "copies", "prefix": "copied"});
    task(name, "CopyBackups", "main", json!({"targetStore": target}))
}

fn is_job_deletion(asked: &ApiRequest) -> bool {
    asked.method == Method::DELETE && asked.uri.path().contains("/jobs/")
}

fn job_deletions(faults: &Faults) -> usize {
    faults.written().iter().filter(|line| line.starts_with("DELETE") && line.contains("/jobs/")).count()
}

async fn jobs(client: &Client, namespace: &str) -> Vec<Job> {
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    jobs.list(&ListParams::default()).await.unwrap().items
}

/// The Job of the only task in the namespace that has one.
async fn the_job(client: &Client, namespace: &str) -> String {
    eventually("the Job to be created", LONG, async || {
        let jobs = jobs(client, namespace).await;
        Ok(jobs.first().map_or_else(|| Seen::NotYet("no Job".into()), |job| Seen::Ready(job.name_any())))
    })
    .await
    .unwrap()
}

async fn job_is_gone(client: &Client, namespace: &str) {
    eventually("the Job to be deleted", LONG, async || {
        let left = jobs(client, namespace).await.len();
        Ok(if left == 0 { Seen::Ready(()) } else { Seen::NotYet(format!("{left} are left")) })
    })
    .await
    .unwrap();
}

/// Marks a Job as finished, as its controller does.
async fn end_job(client: &Client, namespace: &str, name: &str, is_success: bool) {
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    // The Job controller sets the start time first, and may write at the same time.
    eventually("the end of the Job to be accepted", LONG, async || {
        let status = jobs.get_status(name).await.unwrap().status.unwrap_or_default();
        let Some(started) = status.start_time else { return Ok(Seen::NotYet("the Job has not started".into())) };
        let conditions = |kinds: [&str; 2]| {
            kinds.map(|kind| {
                json!({"type": kind, "status": "True", "reason": "Test", "message": "ended by the test", "lastTransitionTime": started})
            })
        };
        let status = if is_success {
            json!({
                "completionTime": started, "succeeded": 1, "active": 0, "ready": 0, "terminating": 0,
                "conditions": conditions(["SuccessCriteriaMet", "Complete"]),
            })
        } else {
            json!({
                "failed": 1, "active": 0, "ready": 0, "terminating": 0,
                "conditions": conditions(["FailureTarget", "Failed"]),
            })
        };
        let patch = Patch::Merge(json!({"status": status}));
        Ok(match jobs.patch_status(name, &PatchParams::default(), &patch).await {
            Ok(_) => Seen::Ready(()),
            Err(error) => Seen::NotYet(error.to_string()),
        })
    })
    .await
    .unwrap();
}

/// The status of a task, with all its fields.
async fn status_of(client: &Client, namespace: &str, name: &str) -> Value {
    let tasks: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<EtcdOperatorTask>(&()));
    tasks.get(name).await.unwrap().data["status"].take()
}

async fn is_cleaned_up(client: &Client, namespace: &str, name: &str) {
    eventually("status.cleanedUpAt", LONG, async || {
        let status = status_of(client, namespace, name).await;
        Ok(if status["cleanedUpAt"].is_string() { Seen::Ready(()) } else { Seen::NotYet(status.to_string()) })
    })
    .await
    .unwrap();
}

/// The values of `lastOperation` of one task since its deletion, in order.
struct Operations(tokio::task::JoinHandle<()>, Arc<Mutex<Vec<(String, String, String)>>>);

impl Operations {
    /// Starts the watch, and returns when it has begun: no later change of the task is missed.
    async fn watch(client: &Client, namespace: &str, name: &str) -> Self {
        let tasks: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<EtcdOperatorTask>(&()));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let begun = Arc::new(Notify::new());
        let (own, first) = (Arc::clone(&seen), Arc::clone(&begun));
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let watching = watcher(tasks, config).applied_objects().for_each(move |task| {
            if task.is_ok() {
                first.notify_one();
            }
            if let Some(task) = task.ok().filter(|task| task.metadata.deletion_timestamp.is_some()) {
                let operation = &task.data["status"]["lastOperation"];
                let [kind, state, description] =
                    ["type", "state", "description"].map(|field| operation[field].as_str().unwrap_or("-").to_owned());
                let mut seen = own.lock().unwrap();
                if kind == "Delete" && seen.last().is_none_or(|(_, last, _)| *last != state) {
                    seen.push((kind, state, description));
                }
            }
            std::future::ready(())
        });
        let operations = Self(tokio::spawn(watching), seen);
        begun.notified().await;
        operations
    }

    fn seen(&self) -> Vec<(String, String, String)> {
        self.1.lock().unwrap().clone()
    }

    fn states(&self) -> Vec<String> {
        self.seen().into_iter().map(|(_, state, _)| state).collect()
    }

    async fn become_states(&self, expected: &[&str]) {
        eventually(&format!("lastOperation of the deletion: {expected:?}"), LONG, async || {
            let states = self.states();
            Ok(if states == expected { Seen::Ready(()) } else { Seen::NotYet(format!("{:?}", self.seen())) })
        })
        .await
        .unwrap();
    }
}

impl Drop for Operations {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A deletion is recorded: in progress, why it is incomplete, completed.
#[tokio::test]
async fn deletion_is_recorded_in_last_operation() {
    in_a_namespace("etcd-deletion", async |client, namespace| {
        create_etcd(client, namespace, "main").await;
        let sidecars = Sidecars::new(Duration::ZERO).await;
        let fails = Arc::new(AtomicBool::new(true));
        let own = Arc::clone(&fails);
        let faults = Faults::named("messina-deletion", move |asked| {
            let is_failing = is_job_deletion(asked) && own.load(Ordering::SeqCst);
            if is_failing { Fault::Fail(StatusCode::INTERNAL_SERVER_ERROR) } else { Fault::None }
        });
        let _operator = Operator::start(&light_kubeconfig(), namespace, &faults, tasks(sidecars.reach())).await;

        create(client, namespace, &copy("running")).await;
        let job = the_job(client, namespace).await;
        let operations = Operations::watch(client, namespace, "running").await;
        api(client, namespace).delete("running", &DeleteParams::default()).await.unwrap();
        operations.become_states(&["InProgress", "Failed"]).await;
        let (kind, _, description) = operations.seen().pop().unwrap();
        assert_eq!(kind, "Delete");
        assert!(description.contains(&job), "{description}");
        let status = status_of(client, namespace, "running").await;
        assert_eq!(status["lastErrors"][0]["code"], "ERR_JOB_NOT_WRITTEN", "{status}");
        fails.store(false, Ordering::SeqCst);
        are_gone(client, namespace).await;
        operations.become_states(&["InProgress", "Failed", "Completed"]).await;
        job_is_gone(client, namespace).await;

        // A rejected task of an unknown type.
        create(client, namespace, &task("rejected", "MakeCoffee", "main", json!({}))).await;
        assert_eq!(finished(client, namespace, "rejected").await.state, Some(TaskState::Rejected));
        let operations = Operations::watch(client, namespace, "rejected").await;
        api(client, namespace).delete("rejected", &DeleteParams::default()).await.unwrap();
        are_gone(client, namespace).await;
        operations.become_states(&["InProgress", "Completed"]).await;
    })
    .await;
}

/// The cleanup of a finished task runs once, also when the operator crashes just before it.
#[tokio::test]
async fn cleanup_on_completion_runs_once_despite_crashes() {
    in_a_namespace("etcd-cleanup", async |client, namespace| {
        create_etcd(client, namespace, "main").await;
        let sidecars = Sidecars::new(Duration::ZERO).await;
        let faults =
            Faults::named(
                "messina-cleanup",
                |asked| {
                    if is_job_deletion(asked) { Fault::CrashBefore } else { Fault::None }
                },
            );
        let start = async || Operator::start(&light_kubeconfig(), namespace, &faults, tasks(sidecars.reach())).await;

        let operator = start().await;
        create(client, namespace, &copy("succeeds")).await;
        let job = the_job(client, namespace).await;
        end_job(client, namespace, &job, true).await;
        tokio::time::timeout(LONG, faults.crashed()).await.expect("the cleanup to delete the Job");
        drop(operator);
        let status = finished(client, namespace, "succeeds").await;
        assert_eq!(status.state, Some(TaskState::Succeeded), "{}", json!(status));
        assert_eq!(jobs(client, namespace).await.len(), 1, "the operator crashed before the deletion");

        faults.follow(|_| Fault::None);
        let operator = start().await;
        job_is_gone(client, namespace).await;
        is_cleaned_up(client, namespace, "succeeds").await;
        let status = status_of(client, namespace, "succeeds").await;
        assert!(
            status["lastOperation"]["description"].as_str().unwrap().contains(&job),
            "how it ended stays: {status}"
        );
        drop(operator);

        // A failed Job stays, because its log says why it failed; another operator does not repeat the cleanup.
        let before = job_deletions(&faults);
        let _operator = start().await;
        create(client, namespace, &copy("fails")).await;
        let job = the_job(client, namespace).await;
        end_job(client, namespace, &job, false).await;
        assert_eq!(finished(client, namespace, "fails").await.state, Some(TaskState::Failed));
        is_cleaned_up(client, namespace, "fails").await;
        assert_eq!(jobs(client, namespace).await.len(), 1);
        assert_eq!(job_deletions(&faults), before, "{:#?}", faults.written());
        for name in ["succeeds", "fails"] {
            api(client, namespace).delete(name, &DeleteParams::default()).await.unwrap();
        }
        are_gone(client, namespace).await;
        job_is_gone(client, namespace).await;
    })
    .await;
}
