//! Tasks on etcd clusters: [`EtcdOperatorTask`](messina_api::druid::v1alpha1::EtcdOperatorTask).
//!
//! ```text
//!            invalid: the task can never run
//!          ┌───────────────────────────────► Rejected ─┐
//!          │                                           │
//!   (new) ─┴► Pending ─► InProgress ─┬─► Succeeded ────┼─► deleted when ttlSecondsAfterFinished has passed
//!             queued                 └─► Failed ───────┘
//! ```
//!
//! [`decide`] implements this state machine for all types of tasks. The handler of a type does the work and returns a
//! [`TaskResult`]. The operator writes each decision to the status first and acts only when it observes that status.
//! The other modules hold the decisions of single types.

pub mod compact;
mod config;
mod decide;
pub mod defragment;
mod deletion;
pub mod job;
pub mod queue;
pub mod snapshot;

pub use config::{Options, decode, seconds};
pub use decide::{EtcdAvailability, NextStep, Observed, Plan, Stage, StageState, decide, is_old_enough};
pub use deletion::decide_deletion;
use messina_api::druid::v1alpha1::{
    EtcdOperatorTaskStatus, MemberOutcome, SnapshotsBefore, TakenSnapshot, TaskProgress, TaskState,
};
use std::time::Duration;

/// Error codes that are common to all types of tasks.
pub mod code {
    /// `spec.config` is invalid.
    pub const INVALID_CONFIG: &str = "ERR_INVALID_CONFIG";
    /// `spec.type` is unknown.
    pub const UNKNOWN_TYPE: &str = "ERR_UNKNOWN_TASK_TYPE";
    /// `spec.etcdReference.name` is not set.
    pub const NO_ETCD: &str = "ERR_NO_ETCD_REFERENCE";
    /// The Etcd does not exist, or is in a namespace that the operator does not watch.
    pub const ETCD_GONE: &str = "ERR_ETCD_NOT_FOUND";
    /// The Etcd exists but cannot be decoded.
    pub const ETCD_UNREADABLE: &str = "ERR_ETCD_NOT_READABLE";
    /// The task did not finish before its deadline.
    pub const DEADLINE: &str = "ERR_DEADLINE_EXCEEDED";
    /// The cleanup of the task did not finish.
    pub const CLEANUP: &str = "ERR_CLEANUP_INCOMPLETE";
    /// The etcd cluster does not meet a precondition of the task.
    pub const PRECONDITION: &str = "ERR_PRECONDITION_NOT_MET";
}

/// Maximum length of the description of an error, in characters.
const MAX_DESCRIPTION: usize = 8 * 1024;

/// An error of a task, as `status.lastErrors` reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskError {
    /// Machine-readable code, such as `ERR_DEADLINE_EXCEEDED`.
    pub code: &'static str,
    /// Cause and remedy.
    pub description: String,
}

impl TaskError {
    /// Creates an error and sanitizes its description.
    pub fn new(code: &'static str, description: impl Into<String>) -> Self {
        // Errors quote servers and webhooks. The written status is sanitized in the same way, so that both compare
        // equal.
        Self { code, description: messina_text::line(&description.into(), MAX_DESCRIPTION) }
    }
}

/// The result of one call of a handler.
///
/// | completed | error | |
/// |---|---|---|
/// | yes | no | the task succeeded |
/// | yes | yes | the task failed for good |
/// | no | yes | the call failed and is retried |
/// | no | no | the task is in progress |
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskResult {
    /// Description for `status.lastOperation`.
    pub description: String,
    /// The error, if the call failed.
    pub error: Option<TaskError>,
    /// When to call the handler again; none for the default retry delay.
    pub requeue_after: Option<Duration>,
    /// Whether there is nothing more to do.
    pub is_completed: bool,
    /// Whether a request was sent whose outcome is unknown.
    pub is_outcome_unknown: bool,
    /// Values for further fields of the status.
    pub findings: Box<Findings>,
}

impl TaskResult {
    /// The task, or this stage of it, succeeded.
    pub fn done(description: impl Into<String>) -> Self {
        Self { description: description.into(), is_completed: true, ..Self::default() }
    }

    /// The task is in progress: the handler is called again after this time.
    pub fn in_progress(description: impl Into<String>, after: Duration) -> Self {
        Self { description: description.into(), requeue_after: Some(after), ..Self::default() }
    }

    /// The task failed for good.
    pub fn failed(error: TaskError) -> Self {
        Self { description: error.description.clone(), error: Some(error), is_completed: true, ..Self::default() }
    }

    /// The call failed and is retried.
    pub fn retry(error: TaskError) -> Self {
        Self { is_completed: false, ..Self::failed(error) }
    }

    /// Adds values for the status.
    pub fn with(mut self, findings: Findings) -> Self {
        self.findings = Box::new(findings);
        self
    }
}

/// Status fields that a handler sets. Fields with no value keep their previous one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// Progress of the task.
    pub progress: Option<TaskProgress>,
    /// The latest snapshots before the task.
    pub before: Option<SnapshotsBefore>,
    /// The snapshot that was taken.
    pub snapshot: Option<TakenSnapshot>,
    /// The outcome for each member.
    pub members: Option<Vec<MemberOutcome>>,
    /// The revision up to which etcd is compacted.
    pub compacted_revision: Option<i64>,
}

impl Findings {
    fn add_to(&self, status: &mut EtcdOperatorTaskStatus) {
        fn set<T: Clone>(field: &mut Option<T>, value: Option<&T>) {
            if let Some(value) = value {
                *field = Some(value.clone());
            }
        }
        set(&mut status.progress, self.progress.as_ref());
        set(&mut status.before, self.before.as_ref());
        set(&mut status.snapshot, self.snapshot.as_ref());
        set(&mut status.members, self.members.as_ref());
        set(&mut status.compacted_revision, self.compacted_revision.as_ref());
    }
}

/// Whether a task is finished: it succeeded, failed or was rejected.
pub fn is_finished(state: Option<&TaskState>) -> bool {
    matches!(state, Some(TaskState::Succeeded | TaskState::Failed | TaskState::Rejected))
}
