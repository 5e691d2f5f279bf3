//! CompactSnapshots and CopyBackups: Jobs that run etcd-backup-restore in pods of their own.

use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use messina_api::druid::v1alpha1::{EtcdOperatorTask, StoreSpec};
use messina_plan::etcd_task::{Options, TaskError, TaskResult, job, job::JobTask};
use messina_runtime::{error::chain, queue::ObjectKey};
use serde_json::Value;

use super::{
    dependencies::Dependencies,
    handler::{Handler, HandlerContext},
};

/// The operator checks for a created Job after this time, if the watch reports nothing before.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// The operator checks for a Job that is being deleted after this time, if the watch does not report its deletion
/// before.
const DELETION_POLL_INTERVAL: Duration = Duration::from_secs(5);

const NOT_WRITTEN: &str = "ERR_JOB_NOT_WRITTEN";

/// The handler of a type of task that runs as a Job.
pub(super) struct JobHandler {
    read: fn(Option<&Value>) -> Result<JobTask, TaskError>,
}

impl JobHandler {
    pub(super) const COMPACT: Self = Self { read: JobTask::compact };
    pub(super) const COPY: Self = Self { read: JobTask::copy };
}

impl Handler for JobHandler {
    fn options(&self, config: Option<&Value>) -> Result<Options, TaskError> {
        (self.read)(config)?.options()
    }

    fn admit<'a>(&'a self, context: &'a HandlerContext) -> BoxFuture<'a, TaskResult> {
        async {
            let admitted =
                (self.read)(context.config()).and_then(|job_task| job_task.admit(&context.task, &context.etcd));
            admitted.map_or_else(TaskResult::failed, |()| TaskResult::done("Admitted: the operator creates a Job."))
        }
        .boxed()
    }

    fn run<'a>(&'a self, context: &'a HandlerContext) -> BoxFuture<'a, TaskResult> {
        async { self.observe_or_create(context).await.unwrap_or_else(|result| result) }.boxed()
    }

    fn cleanup<'a>(
        &'a self,
        task: &'a EtcdOperatorTask,
        dependencies: &'a Dependencies,
    ) -> Option<BoxFuture<'a, TaskResult>> {
        Some(clean_up(task, dependencies).boxed())
    }
}

async fn clean_up(task: &EtcdOperatorTask, dependencies: &Dependencies) -> TaskResult {
    let name = match job::name(task) {
        Ok(name) => name,
        Err(error) => return TaskResult::failed(error),
    };
    let key = ObjectKey { namespace: task.metadata.namespace.clone(), name: name.clone() };
    let is_deleted = task.metadata.deletion_timestamp.is_some();
    let known = dependencies.jobs.get(&key).ok().flatten();
    if !is_deleted && known.as_deref().is_some_and(|job| job::has_failed(job) && job::is_finished(job)) {
        return TaskResult::done(format!(
            "The operator keeps the failed Job {name} and its logs until the task is deleted."
        ));
    }
    // Pods of a running Job may still write to the store, so the next task waits until they are deleted.
    let is_finished = known.as_deref().is_some_and(job::is_finished);
    let propagation = if is_finished { DeleteParams::background() } else { DeleteParams::foreground() };
    match jobs(task, dependencies).delete(&name, &propagation).await {
        Ok(_) if is_finished => TaskResult::done(format!("Job {name} is deleted.")),
        Ok(_) => TaskResult::in_progress(format!("Job {name} and its pods are being deleted."), DELETION_POLL_INTERVAL),
        Err(kube::Error::Api(status)) if status.is_not_found() => {
            TaskResult::done("The Job of the task does not exist.")
        }
        Err(error) => {
            let description = format!("The operator cannot delete Job {name}: {}", chain(&error));
            TaskResult::retry(TaskError::new(NOT_WRITTEN, description))
        }
    }
}

impl JobHandler {
    async fn observe_or_create(&self, context: &HandlerContext) -> Result<TaskResult, TaskResult> {
        let name = job::name(&context.task).map_err(TaskResult::failed)?;
        let key = ObjectKey { namespace: context.task.metadata.namespace.clone(), name: name.clone() };
        let found = context
            .dependencies
            .jobs
            .get(&key)
            .map_err(|unreadable| TaskResult::retry(TaskError::new("ERR_JOB_NOT_READ", unreadable.to_string())))?;
        if let Some(job) = found {
            return Ok(job::result(&job));
        }
        let job_task = (self.read)(context.config()).map_err(TaskResult::failed)?;
        let (store, source) = job_task.stores(&context.etcd).map_err(TaskResult::failed)?;
        let store = folder(context, Some(store)).await?;
        let source = folder(context, source).await?;
        let folders = (store.as_deref(), source.as_deref());
        let image = job::image(&context.etcd, &context.dependencies.backup_restore_image);
        let remaining = job_task.options().map_err(TaskResult::failed)?.deadline.saturating_sub(context.elapsed());
        let job =
            job::job(&context.task, &context.etcd, &job_task, image, folders, remaining).map_err(TaskResult::failed)?;
        match jobs(&context.task, &context.dependencies).create(&PostParams::default(), &job).await {
            Ok(_) => Ok(TaskResult::in_progress(format!("Job {name} is created."), POLL_INTERVAL)),
            // It was created before, and the watch has not reported it yet.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                Ok(TaskResult::in_progress(format!("Job {name} is created."), POLL_INTERVAL))
            }
            Err(kube::Error::Api(status)) if status.code == 422 || status.code == 400 => Err(TaskResult::failed(
                TaskError::new("ERR_JOB_REFUSED", format!("The API server rejected Job {name}: {}", status.message)),
            )),
            Err(error) => Err(TaskResult::retry(not_created(&name, &error))),
        }
    }
}

fn jobs(task: &EtcdOperatorTask, dependencies: &Dependencies) -> Api<Job> {
    Api::namespaced(dependencies.client.clone(), task.metadata.namespace.as_deref().unwrap_or_default())
}

fn not_created(name: &str, error: &kube::Error) -> TaskError {
    TaskError::new(NOT_WRITTEN, format!("The operator cannot create Job {name}: {}", chain(error)))
}

/// Returns the directory of the Kubernetes node that holds the containers of a store, if the Secret of a Local store
/// sets it.
async fn folder(context: &HandlerContext, store: Option<&StoreSpec>) -> Result<Option<String>, TaskResult> {
    let Some(store) = store.filter(|store| job::is_local(store)) else { return Ok(None) };
    let Some(name) = store.secret_ref.as_ref().and_then(|secret| secret.name.as_deref()) else { return Ok(None) };
    let secret = context.dependencies.secret(&context.etcd, name).await?;
    let path = secret.data.as_ref().and_then(|data| data.get(job::LOCAL_FOLDER_KEY));
    Ok(path.map(|path| String::from_utf8_lossy(&path.0).trim().to_owned()))
}
