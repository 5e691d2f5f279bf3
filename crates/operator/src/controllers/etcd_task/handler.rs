//! The [`Handler`] trait, which each type of task implements, and the [`Registry`] of handlers by type.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use jiff::Timestamp;
use messina_api::druid::v1alpha1::{Etcd, EtcdOperatorTask, EtcdOperatorTaskStatus};
use messina_plan::etcd_task::{Options, TaskError, TaskResult, code};
use serde_json::Value;
use tokio::time::Instant;

use super::{dependencies::Dependencies, jobs::JobHandler, maintenance, snapshot::OnDemandSnapshot};

/// The input of a call of a handler.
#[derive(Clone)]
pub struct HandlerContext {
    /// The task, with its observed status.
    pub task: Arc<EtcdOperatorTask>,
    /// The Etcd of the task.
    pub etcd: Arc<Etcd>,
    /// Clients and settings.
    pub dependencies: Arc<Dependencies>,
    /// When a request may have been sent whose outcome is unknown: one that got no response, or one that another
    /// operator process may have sent. None if there is no such request.
    pub unconfirmed_since: Option<Instant>,
    /// Whether this process has called `run` for the task before.
    pub is_repeated: bool,
}

impl HandlerContext {
    /// Returns the observed status of the task.
    pub fn status(&self) -> EtcdOperatorTaskStatus {
        self.task.status.clone().unwrap_or_default()
    }

    /// Returns how long the task has been in progress.
    pub fn elapsed(&self) -> Duration {
        let now = Timestamp::now();
        let initiated_at = self.task.status.as_ref().and_then(|status| status.initiated_at.as_ref());
        Duration::try_from(now.duration_since(initiated_at.map_or(now, |time| time.0))).unwrap_or_default()
    }

    /// Returns the options of the task, not decoded.
    pub fn config(&self) -> Option<&Value> {
        self.task.spec.config.as_ref()
    }
}

/// A type of task. A call must not take longer than one request: a handler that has to wait returns
/// [`TaskResult::in_progress`] and is called again.
pub trait Handler: Send + Sync {
    /// Reads the options. An error names the field, and the task is rejected.
    fn options(&self, config: Option<&Value>) -> Result<Options, TaskError>;
    /// Checks whether the task may run. It is called once, when the task is first in the queue. Only an error with
    /// `is_completed` rejects the task: after any other error it starts, and is retried until its deadline.
    fn admit<'a>(&'a self, context: &'a HandlerContext) -> BoxFuture<'a, TaskResult>;
    /// Does the work of the task, or one step of it. It is called until the result is completed, possibly by another
    /// operator process, so it has to find out first what is already done.
    fn run<'a>(&'a self, context: &'a HandlerContext) -> BoxFuture<'a, TaskResult>;
    /// Removes what the task needed while it ran; none for a type that has nothing to remove. It is called when the
    /// task has succeeded or failed, and again when the task is deleted, in any state. It has to be idempotent.
    fn cleanup<'a>(
        &'a self,
        _task: &'a EtcdOperatorTask,
        _tools: &'a Dependencies,
    ) -> Option<BoxFuture<'a, TaskResult>> {
        None
    }
}

/// The handlers, by type of task.
#[derive(Clone)]
pub struct Registry(BTreeMap<&'static str, Arc<dyn Handler>>);

impl Default for Registry {
    /// Registers all types.
    fn default() -> Self {
        let mut registry = Self(BTreeMap::new());
        registry.add("OnDemandSnapshot", OnDemandSnapshot);
        registry.add("Defragment", maintenance::Defragment);
        registry.add("Compact", maintenance::Compact);
        registry.add("CompactSnapshots", JobHandler::COMPACT);
        registry.add("CopyBackups", JobHandler::COPY);
        registry
    }
}

impl Registry {
    /// Registers the handler of a type.
    pub fn add(&mut self, task_type: &'static str, handler: impl Handler + 'static) {
        self.0.insert(task_type, Arc::new(handler));
    }

    /// Returns the handler of a type, or an error if the type is unknown.
    pub fn find(&self, task_type: &str) -> Result<Arc<dyn Handler>, TaskError> {
        self.0.get(task_type).cloned().ok_or_else(|| {
            let known: Vec<&str> = self.0.keys().copied().collect();
            let description = format!("spec.type: {task_type:?} is unknown: use one of {}", known.join(", "));
            TaskError::new(code::UNKNOWN_TYPE, description)
        })
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_set().entries(self.0.keys()).finish()
    }
}
