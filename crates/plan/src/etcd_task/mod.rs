//! Tasks on etcd clusters: [`EtcdOperatorTask`](messina_api::druid::v1alpha1::EtcdOperatorTask).
//!
//! ```text
//!            rejected: it could never run
//!          ┌───────────────────────────────► Rejected ─┐
//!          │                                           │
//!   (new) ─┴► Pending ─► InProgress ─┬─► Succeeded ────┼─► deleted when its time is over
//!             waits its turn         └─► Failed ───────┘
//! ```
//!
//! [`decide`] knows this way and nothing of what tasks do. What a type of task does is asked of its handler, which
//! answers with a [`TaskResult`]; what was decided is written before anything is done, and done only when it is seen to be
//! written. The other modules are decisions of single types.

pub mod compact;
mod config;
mod decide;
pub mod defragment;
mod deletion;
pub mod job;
pub mod line;
pub mod snapshot;

pub use config::{Options, decode, seconds};
pub use decide::{Next, Observed, Plan, Sight, Stage, StageState, decide, is_old_enough};
pub use deletion::{DeletionPlan, DeletionStep, decide_deletion};
use messina_api::druid::v1alpha1::{
    EtcdOperatorTaskStatus, MemberOutcome, SnapshotsBefore, TakenSnapshot, TaskProgress, TaskState,
};
use std::time::Duration;

/// Codes of errors that any task can have.
pub mod code {
    /// The options of the task cannot be used.
    pub const INVALID_CONFIG: &str = "ERR_INVALID_CONFIG";
    /// There is no such type of task.
    pub const UNKNOWN_TYPE: &str = "ERR_UNKNOWN_TASK_TYPE";
    /// The task does not say which etcd cluster it is for.
    pub const NO_ETCD: &str = "ERR_NO_ETCD_REFERENCE";
    /// The etcd cluster is gone.
    pub const ETCD_GONE: &str = "ERR_ETCD_NOT_FOUND";
    /// The etcd cluster is there, and its Etcd cannot be read.
    pub const ETCD_UNREADABLE: &str = "ERR_ETCD_NOT_READABLE";
    /// The task was not done in time.
    pub const DEADLINE: &str = "ERR_DEADLINE_EXCEEDED";
    /// What the task has left could not be removed.
    pub const CLEANUP: &str = "ERR_CLEANUP_INCOMPLETE";
    /// The etcd cluster does not have what the task needs.
    pub const PRECONDITION: &str = "ERR_PRECONDITION_NOT_MET";
}

/// How long the description of an error may be, in characters.
const LONGEST: usize = 8 * 1024;

/// Something that went wrong with a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What kind of error it is, in a form for programs.
    pub code: &'static str,
    /// What happened, and what to do.
    pub description: String,
}

impl Fault {
    /// Something that went wrong.
    pub fn new(code: &'static str, description: impl Into<String>) -> Self {
        // Errors hold what servers and webhooks say. A status is compared with it, where it is made fit, too.
        Self { code, description: messina_text::line(&description.into(), LONGEST) }
    }
}

/// What the handler of a task says after it did something.
///
/// | completed | error | |
/// |---|---|---|
/// | yes | no | it is done |
/// | yes | yes | it can never be done |
/// | no | yes | it is tried again |
/// | no | no | it goes on |
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskResult {
    /// What was done, in words.
    pub description: String,
    /// What went wrong.
    pub error: Option<Fault>,
    /// When to ask the handler again; none leaves it to the flow.
    pub requeue_after: Option<Duration>,
    /// Whether there is nothing more to do.
    pub is_completed: bool,
    /// Whether a request was sent of which nobody knows what came.
    pub is_unanswered: bool,
    /// What was found out, for the status.
    pub findings: Box<Findings>,
}

impl TaskResult {
    /// It is done.
    pub fn done(description: impl Into<String>) -> Self {
        Self { description: description.into(), is_completed: true, ..Self::default() }
    }

    /// It goes on, and is to be looked at again after this time.
    pub fn goes_on(description: impl Into<String>, after: Duration) -> Self {
        Self { description: description.into(), requeue_after: Some(after), ..Self::default() }
    }

    /// It can never be done.
    pub fn failed(fault: Fault) -> Self {
        Self { description: fault.description.clone(), error: Some(fault), is_completed: true, ..Self::default() }
    }

    /// It did not work this time.
    pub fn trouble(fault: Fault) -> Self {
        Self { is_completed: false, ..Self::failed(fault) }
    }

    /// The same, with something for the status.
    pub fn with(mut self, findings: Findings) -> Self {
        self.findings = Box::new(findings);
        self
    }
}

/// What a handler found out. What it says nothing of stays as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// How far it has come.
    pub progress: Option<TaskProgress>,
    /// The newest snapshots before the task.
    pub before: Option<SnapshotsBefore>,
    /// The snapshot that was taken.
    pub snapshot: Option<TakenSnapshot>,
    /// What became of each member.
    pub members: Option<Vec<MemberOutcome>>,
    /// The revision before which nothing is kept.
    pub compacted_revision: Option<i64>,
}

impl Findings {
    fn add_to(&self, status: &mut EtcdOperatorTaskStatus) {
        fn set<T: Clone>(place: &mut Option<T>, value: Option<&T>) {
            if let Some(value) = value {
                *place = Some(value.clone());
            }
        }
        set(&mut status.progress, self.progress.as_ref());
        set(&mut status.before, self.before.as_ref());
        set(&mut status.snapshot, self.snapshot.as_ref());
        set(&mut status.members, self.members.as_ref());
        set(&mut status.compacted_revision, self.compacted_revision.as_ref());
    }
}

/// Whether a task is at its end.
pub fn is_finished(state: Option<&TaskState>) -> bool {
    matches!(state, Some(TaskState::Succeeded | TaskState::Failed | TaskState::Rejected))
}
