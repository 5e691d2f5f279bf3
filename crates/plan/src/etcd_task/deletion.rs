//! The deletion of a task, as `status.lastOperation` records it.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use messina_api::druid::v1alpha1::{EtcdOperatorTaskStatus, LastOperation, OperationState, OperationType};

use super::{TaskResult, decide::add_error};

/// A cleanup that failed is retried after this time, unless its handler names another.
const RETRY: Duration = Duration::from_secs(5);

const IN_PROGRESS: &str = "The task is being deleted: the operator removes what the task needed while it ran.";
const COMPLETED: &str = "The deletion is complete. ";
const INCOMPLETE: &str = "The deletion is incomplete: ";

/// The next step of a deletion. The status is written before the step is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionStep {
    /// The handler's cleanup is called.
    CleanUp,
    /// The deletion is retried after this time.
    Retry(Duration),
    /// The finalizer is removed.
    RemoveFinalizer,
}

/// What was decided about a task that is being deleted.
#[derive(Clone, Debug, PartialEq)]
pub struct DeletionPlan {
    /// The status of the task.
    pub status: EtcdOperatorTaskStatus,
    /// The next step.
    pub step: DeletionStep,
}

/// Decides the next step of a deletion. `cleanup` is the result of the cleanup, if it was called just now.
pub fn decide_deletion(status: &EtcdOperatorTaskStatus, cleanup: Option<&TaskResult>, now: Timestamp) -> DeletionPlan {
    let mut status = status.clone();
    let step = match (recorded_state(&status), cleanup) {
        (None, _) => {
            record(&mut status, OperationState::InProgress, IN_PROGRESS.to_owned(), now);
            DeletionStep::CleanUp
        }
        (Some(OperationState::Completed), _) => DeletionStep::RemoveFinalizer,
        (Some(_), None) => DeletionStep::CleanUp,
        (Some(_), Some(TaskResult { error: Some(error), is_completed: false, requeue_after, .. })) => {
            add_error(&mut status, error, now);
            let cause = error.description.trim_end_matches('.');
            record(&mut status, OperationState::Failed, format!("{INCOMPLETE}{cause}. The operator retries it."), now);
            DeletionStep::Retry(requeue_after.unwrap_or(RETRY))
        }
        // The cleanup goes on.
        (Some(_), Some(TaskResult { error: None, is_completed: false, requeue_after, .. })) => {
            DeletionStep::Retry(requeue_after.unwrap_or(RETRY))
        }
        (Some(_), Some(result)) => {
            result.error.iter().for_each(|error| add_error(&mut status, error, now));
            record(&mut status, OperationState::Completed, format!("{COMPLETED}{}", result.description), now);
            DeletionStep::RemoveFinalizer
        }
    };
    DeletionPlan { status, step }
}

/// The state of the deletion that the status records, if it does.
///
/// An API server with an older definition of the kind drops `type`. The description is recognised then: a deletion must
/// not record the same again and again.
fn recorded_state(status: &EtcdOperatorTaskStatus) -> Option<OperationState> {
    let operation = status.last_operation.as_ref()?;
    let description = operation.description.as_deref().unwrap_or_default();
    let is_deletion = match &operation.operation_type {
        Some(kind) => *kind == OperationType::Delete,
        None => [IN_PROGRESS, COMPLETED, INCOMPLETE].iter().any(|words| description.starts_with(words)),
    };
    operation.state.clone().filter(|_| is_deletion)
}

fn record(status: &mut EtcdOperatorTaskStatus, state: OperationState, description: String, now: Timestamp) {
    let before = recorded_state(status);
    let since = status.last_operation.take().and_then(|operation| operation.last_transition_time);
    let since = since.filter(|_| before.as_ref() == Some(&state)).unwrap_or(Time(now));
    status.last_operation = Some(LastOperation {
        operation_type: Some(OperationType::Delete),
        state: Some(state),
        last_transition_time: Some(since),
        description: Some(description),
    });
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::etcd_task::TaskError;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn operation(status: &EtcdOperatorTaskStatus) -> LastOperation {
        status.last_operation.clone().unwrap()
    }

    #[test]
    fn a_deletion_records_its_start_failures_and_completion() {
        let first = decide_deletion(&EtcdOperatorTaskStatus::default(), None, at(0));
        assert_eq!(first.step, DeletionStep::CleanUp);
        let started = operation(&first.status);
        assert_eq!(
            (started.operation_type, started.state),
            (Some(OperationType::Delete), Some(OperationState::InProgress))
        );
        let again = decide_deletion(&first.status, None, at(1));
        assert_eq!((again.status, again.step), (first.status.clone(), DeletionStep::CleanUp), "it is recorded once");

        let retry = TaskResult::retry(TaskError::new("ERR_X", "the Job a could not be deleted"));
        let failed = decide_deletion(&first.status, Some(&retry), at(2));
        assert_eq!(failed.step, DeletionStep::Retry(RETRY));
        assert_eq!(operation(&failed.status).state, Some(OperationState::Failed));
        assert!(operation(&failed.status).description.unwrap().contains("Job a"));
        assert_eq!(failed.status.last_errors.iter().flatten().count(), 1);
        let again = decide_deletion(&failed.status, Some(&retry), at(9));
        assert_eq!(again.status, failed.status, "the same failure is recorded once");

        let done = decide_deletion(&failed.status, Some(&TaskResult::done("x")), at(10));
        assert_eq!(done.step, DeletionStep::RemoveFinalizer);
        assert_eq!(
            (operation(&done.status).state, operation(&done.status).last_transition_time),
            (Some(OperationState::Completed), Some(Time(at(10))))
        );
        let last = decide_deletion(&done.status, None, at(11));
        assert_eq!((last.status, last.step), (done.status, DeletionStep::RemoveFinalizer));
    }

    #[test]
    fn a_cleanup_that_can_never_succeed_does_not_keep_the_task() {
        let status = decide_deletion(&EtcdOperatorTaskStatus::default(), None, at(0)).status;
        let plan = decide_deletion(&status, Some(&TaskResult::failed(TaskError::new("ERR_X", "no name"))), at(1));
        assert_eq!(plan.step, DeletionStep::RemoveFinalizer);
        assert_eq!(plan.status.last_errors.iter().flatten().count(), 1);
    }

    #[test]
    fn a_deletion_ends_where_the_api_server_drops_the_type() {
        let stored = |status: EtcdOperatorTaskStatus| {
            let operation = LastOperation { operation_type: None, ..status.last_operation.clone().unwrap() };
            EtcdOperatorTaskStatus { last_operation: Some(operation), ..status }
        };
        let retry = TaskResult::retry(TaskError::new("ERR_X", "busy"));
        let started = stored(decide_deletion(&EtcdOperatorTaskStatus::default(), None, at(0)).status);
        assert_eq!(decide_deletion(&started, None, at(1)).status, started);
        let failed = stored(decide_deletion(&started, Some(&retry), at(2)).status);
        assert_eq!(decide_deletion(&failed, None, at(3)).step, DeletionStep::CleanUp);
        let done = stored(decide_deletion(&failed, Some(&TaskResult::done("x")), at(4)).status);
        assert_eq!(decide_deletion(&done, None, at(5)).step, DeletionStep::RemoveFinalizer);
    }
}
