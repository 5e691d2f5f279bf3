//! What a type of task does: a [`Handler`] for each, found by name in the [`Registry`].

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use jiff::Timestamp;
use messina_api::druid::v1alpha1::{Etcd, EtcdOperatorTask, EtcdOperatorTaskStatus};
use messina_plan::etcd_task::{TaskError, Options, TaskResult, code};
use serde_json::Value;
use tokio::time::Instant;

use super::{jobs::Jobs, maintenance, snapshot::OnDemandSnapshot, tools::Tools};

/// What a handler works on.
#[derive(Clone)]
pub struct Subject {
    /// The task. What was said of it before is in its status.
    pub task: Arc<EtcdOperatorTask>,
    /// Its etcd cluster.
    pub etcd: Arc<Etcd>,
    /// How to reach it.
    pub tools: Arc<Tools>,
    /// Since when a request may be under way of which nobody knows what came: one whose answer was lost, or one of
    /// another process. None when there is no such request.
    pub in_doubt_since: Option<Instant>,
    /// Whether this process has asked for something already.
    pub is_repeated: bool,
}

impl Subject {
    /// What was said of the task.
    pub fn status(&self) -> EtcdOperatorTaskStatus {
        self.task.status.clone().unwrap_or_default()
    }

    /// How much of its time the task has used.
    pub fn spent(&self) -> Duration {
        let now = Timestamp::now();
        let initiated_at = self.task.status.as_ref().and_then(|status| status.initiated_at.as_ref());
        Duration::try_from(now.duration_since(initiated_at.map_or(now, |time| time.0))).unwrap_or_default()
    }

    /// The options of the task, as they were given.
    pub fn config(&self) -> Option<&Value> {
        self.task.spec.config.as_ref()
    }
}

/// One type of task. Nothing here may wait for longer than a request takes: what takes long says so with
/// [`TaskResult::in_progress`], and is asked again.
pub trait Handler: Send + Sync {
    /// Reads the options. A fault names the field, and the task is rejected.
    fn options(&self, config: Option<&Value>) -> Result<Options, TaskError>;
    /// Whether the task may run, which is asked once, when it is its turn. Only an error with `is_completed` rejects it:
    /// whatever else is in the way, the task begins, and has its time to get over it.
    fn admit<'a>(&'a self, subject: &'a Subject) -> BoxFuture<'a, TaskResult>;
    /// Does what the task is for, or a step of it. It is asked again until it is completed, by whichever process leads, and
    /// so it finds out first what has already been done.
    fn run<'a>(&'a self, subject: &'a Subject) -> BoxFuture<'a, TaskResult>;
    /// Removes what the task needed while it ran; none for a type that leaves nothing to remove. It is called when the
    /// task has succeeded or failed, and once more when the task is deleted, in whatever state. It may be repeated.
    fn cleanup<'a>(&'a self, _task: &'a EtcdOperatorTask, _tools: &'a Tools) -> Option<BoxFuture<'a, TaskResult>> {
        None
    }
}

/// The handlers, by type of task.
#[derive(Clone)]
pub struct Registry(BTreeMap<&'static str, Arc<dyn Handler>>);

impl Default for Registry {
    /// Every type that there is.
    fn default() -> Self {
        let mut registry = Self(BTreeMap::new());
        registry.add("OnDemandSnapshot", OnDemandSnapshot);
        registry.add("Defragment", maintenance::Defragment);
        registry.add("Compact", maintenance::Compact);
        registry.add("CompactSnapshots", Jobs::COMPACT);
        registry.add("CopyBackups", Jobs::COPY);
        registry
    }
}

impl Registry {
    /// Adds a type.
    pub fn add(&mut self, task_type: &'static str, handler: impl Handler + 'static) {
        self.0.insert(task_type, Arc::new(handler));
    }

    /// The handler of a type, or why there is none.
    pub fn find(&self, task_type: &str) -> Result<Arc<dyn Handler>, TaskError> {
        self.0.get(task_type).cloned().ok_or_else(|| {
            let known: Vec<&str> = self.0.keys().copied().collect();
            let description =
                format!("spec.type: {task_type:?} is not a type of task: use one of {}", known.join(", "));
            TaskError::new(code::UNKNOWN_TYPE, description)
        })
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_set().entries(self.0.keys()).finish()
    }
}
