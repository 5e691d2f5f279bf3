//! CompactSnapshots and CopyBackups: Jobs that run etcd-backup-restore, away from the etcd cluster.

use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use messina_api::druid::v1alpha1::{EtcdOperatorTask, StoreSpec};
use messina_plan::etcd_task::{TaskError, Options, TaskResult, job, job::JobTask};
use messina_runtime::{error::chain, queue::ObjectKey};
use serde_json::Value;

use super::{
    handler::{Handler, Subject},
    tools::Tools,
};

/// A Job that should have appeared is looked for after this time, should its watch say nothing.
const LOOK: Duration = Duration::from_secs(10);

/// A Job that is being deleted is looked for after this time: its watch says when it is gone.
const DELETING: Duration = Duration::from_secs(5);

const NOT_WRITTEN: &str = "ERR_JOB_NOT_WRITTEN";

/// A type of task that is done by a Job.
pub(super) struct Jobs {
    read: fn(Option<&Value>) -> Result<JobTask, TaskError>,
}

impl Jobs {
    pub(super) const COMPACT: Self = Self { read: JobTask::compact };
    pub(super) const COPY: Self = Self { read: JobTask::copy };
}

impl Handler for Jobs {
    fn options(&self, config: Option<&Value>) -> Result<Options, TaskError> {
        (self.read)(config)?.options()
    }

    fn admit<'a>(&'a self, subject: &'a Subject) -> BoxFuture<'a, TaskResult> {
        async {
            let admitted = (self.read)(subject.config()).and_then(|work| work.admit(&subject.task, &subject.etcd));
            admitted.map_or_else(TaskResult::failed, |()| TaskResult::done("Admitted; a Job is being created."))
        }
        .boxed()
    }

    fn run<'a>(&'a self, subject: &'a Subject) -> BoxFuture<'a, TaskResult> {
        async { self.look_or_create(subject).await.unwrap_or_else(|result| result) }.boxed()
    }

    fn cleanup<'a>(&'a self, task: &'a EtcdOperatorTask, tools: &'a Tools) -> Option<BoxFuture<'a, TaskResult>> {
        Some(clean_up(task, tools).boxed())
    }
}

async fn clean_up(task: &EtcdOperatorTask, tools: &Tools) -> TaskResult {
    let name = match job::name(task) {
        Ok(name) => name,
        Err(error) => return TaskResult::failed(error),
    };
    let key = ObjectKey { namespace: task.metadata.namespace.clone(), name: name.clone() };
    let is_deleted = task.metadata.deletion_timestamp.is_some();
    let known = tools.jobs.get(&key).ok().flatten();
    if !is_deleted && known.as_deref().is_some_and(|job| job::has_failed(job) && job::is_finished(job)) {
        return TaskResult::done(format!("The failed Job {name} is kept for its logs until the task is deleted."));
    }
    // Pods of a Job that runs may still write to the store, so that the next task waits until they are gone.
    let is_finished = known.as_deref().is_some_and(job::is_finished);
    let propagation = if is_finished { DeleteParams::background() } else { DeleteParams::foreground() };
    match jobs(task, tools).delete(&name, &propagation).await {
        Ok(_) if is_finished => TaskResult::done(format!("The Job {name} is deleted.")),
        Ok(_) => TaskResult::in_progress(format!("The Job {name} and its pods are being deleted."), DELETING),
        Err(kube::Error::Api(status)) if status.is_not_found() => TaskResult::done("There is no Job left."),
        Err(error) => {
            let description = format!("The Job {name} could not be deleted: {}", chain(&error));
            TaskResult::retry(TaskError::new(NOT_WRITTEN, description))
        }
    }
}

impl Jobs {
    async fn look_or_create(&self, subject: &Subject) -> Result<TaskResult, TaskResult> {
        let name = job::name(&subject.task).map_err(TaskResult::failed)?;
        let key = ObjectKey { namespace: subject.task.metadata.namespace.clone(), name: name.clone() };
        let found = subject
            .tools
            .jobs
            .get(&key)
            .map_err(|unreadable| TaskResult::retry(TaskError::new("ERR_JOB_NOT_READ", unreadable.to_string())))?;
        if let Some(job) = found {
            return Ok(job::result(&job));
        }
        let work = (self.read)(subject.config()).map_err(TaskResult::failed)?;
        let (store, source) = work.stores(&subject.etcd).map_err(TaskResult::failed)?;
        let store = folder(subject, Some(store)).await?;
        let source = folder(subject, source).await?;
        let folders = (store.as_deref(), source.as_deref());
        let image = job::image(&subject.etcd, &subject.tools.backup_restore_image);
        let remaining = work.options().map_err(TaskResult::failed)?.deadline.saturating_sub(subject.spent());
        let job =
            job::job(&subject.task, &subject.etcd, &work, image, folders, remaining).map_err(TaskResult::failed)?;
        match jobs(&subject.task, &subject.tools).create(&PostParams::default(), &job).await {
            Ok(_) => Ok(TaskResult::in_progress(format!("The Job {name} was created."), LOOK)),
            // It was created before, and the watch has not told of it yet.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                Ok(TaskResult::in_progress(format!("The Job {name} was created."), LOOK))
            }
            Err(kube::Error::Api(status)) if status.code == 422 || status.code == 400 => Err(TaskResult::failed(
                TaskError::new("ERR_JOB_REFUSED", format!("The Job was refused: {}", status.message)),
            )),
            Err(error) => Err(TaskResult::retry(not_written(&name, &error))),
        }
    }
}

fn jobs(task: &EtcdOperatorTask, tools: &Tools) -> Api<Job> {
    Api::namespaced(tools.client.clone(), task.metadata.namespace.as_deref().unwrap_or_default())
}

fn not_written(name: &str, error: &kube::Error) -> TaskError {
    TaskError::new(NOT_WRITTEN, format!("The Job {name} could not be written: {}", chain(error)))
}

/// The folder of the machine that holds the containers of a store, where it is one of those.
async fn folder(subject: &Subject, store: Option<&StoreSpec>) -> Result<Option<String>, TaskResult> {
    let Some(store) = store.filter(|store| job::is_local(store)) else { return Ok(None) };
    let Some(name) = store.secret_ref.as_ref().and_then(|secret| secret.name.as_deref()) else { return Ok(None) };
    let secret = subject.tools.secret(&subject.etcd, name).await?;
    let path = secret.data.as_ref().and_then(|data| data.get(job::LOCAL_FOLDER_KEY));
    Ok(path.map(|path| String::from_utf8_lossy(&path.0).trim().to_owned()))
}
