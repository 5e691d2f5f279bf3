//! The deletion of a task, as `status.lastOperation` records it.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use messina_api::druid::v1alpha1::{EtcdOperatorTaskStatus, LastOperation, OperationState, OperationType};

use super::{
    TaskResult,
    decide::{NextStep, Observed, Plan, Stage, StageState, add_error},
};

/// A cleanup that failed is retried after this time, unless its handler names another.
const RETRY: Duration = Duration::from_secs(5);

const IN_PROGRESS: &str = "The task is being deleted: the operator removes what the task needed while it ran.";
const COMPLETED: &str = "The deletion is complete. ";
const INCOMPLETE: &str = "The deletion is incomplete: ";

/// Decides the status and the next step of a task that is being deleted.
pub fn decide_deletion(observed: &Observed) -> Plan {
    let (mut status, now) = (observed.status.clone(), observed.now);
    let nothing = TaskResult::done("There was nothing to clean up.");
    let cleanup = match &observed.stage_state {
        // Owner references remove what a task of a type that is no longer registered has left.
        _ if !observed.needs_cleanup => Some(&nothing),
        StageState::Done(Stage::CleanUp, result) => Some(result),
        _ => None,
    };
    let next = match (recorded_state(&status), cleanup) {
        (None, _) => {
            record(&mut status, OperationState::InProgress, IN_PROGRESS.to_owned(), now);
            NextStep::Wait(None)
        }
        (Some(OperationState::Completed), _) => NextStep::RemoveFinalizer,
        (Some(_), None) => match observed.stage_state {
            StageState::Running(Stage::CleanUp) => NextStep::Wait(None),
            StageState::Waiting(pause) if !pause.is_zero() => NextStep::Wait(Some(pause)),
            // Any other call for a task that is being deleted is obsolete.
            _ => NextStep::CallHandler(Stage::CleanUp),
        },
        (Some(_), Some(TaskResult { error, is_completed: false, requeue_after, .. })) => {
            if let Some(error) = error {
                add_error(&mut status, error, now);
                let cause = error.description.trim_end_matches('.');
                let description = format!("{INCOMPLETE}{cause}. The operator retries it.");
                record(&mut status, OperationState::Failed, description, now);
            }
            NextStep::CallAgainAfter(requeue_after.unwrap_or(RETRY))
        }
        (Some(_), Some(result)) => {
            result.error.iter().for_each(|error| add_error(&mut status, error, now));
            record(&mut status, OperationState::Completed, format!("{COMPLETED}{}", result.description), now);
            NextStep::RemoveFinalizer
        }
    };
    Plan { status, next }
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
    use crate::etcd_task::{EtcdAvailability, Options, TaskError};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn operation(status: &EtcdOperatorTaskStatus) -> LastOperation {
        status.last_operation.clone().unwrap()
    }

    /// A task that is being deleted, with the result of its cleanup if that was called.
    fn decide(status: &EtcdOperatorTaskStatus, cleanup: Option<&TaskResult>, seconds: i64) -> Plan {
        let stage_state = cleanup.map_or(StageState::None, |result| StageState::Done(Stage::CleanUp, result.clone()));
        decide_deletion(&observed(status, stage_state, seconds))
    }

    fn observed(status: &EtcdOperatorTaskStatus, stage_state: StageState, seconds: i64) -> Observed {
        Observed {
            status: status.clone(),
            generation: Some(1),
            created_at: at(0),
            is_being_deleted: true,
            time_to_live: None,
            options: Ok(Options { deadline: Duration::from_secs(60) }),
            needs_cleanup: true,
            etcd: EtcdAvailability::Found,
            ahead: Vec::new(),
            may_refresh: true,
            stage_state,
            failures: 0,
            now: at(seconds),
        }
    }

    #[test]
    fn a_deletion_records_its_start_failures_and_completion() {
        let first = decide(&EtcdOperatorTaskStatus::default(), None, 0);
        assert_eq!(first.next, NextStep::Wait(None), "the cleanup begins when the status says so");
        let started = operation(&first.status);
        assert_eq!(
            (started.operation_type, started.state),
            (Some(OperationType::Delete), Some(OperationState::InProgress))
        );
        let again = decide(&first.status, None, 1);
        let clean_up = NextStep::CallHandler(Stage::CleanUp);
        assert_eq!((again.status, again.next), (first.status.clone(), clean_up), "it is recorded once");

        let retry = TaskResult::retry(TaskError::new("ERR_X", "the Job a could not be deleted"));
        let failed = decide(&first.status, Some(&retry), 2);
        assert_eq!(failed.next, NextStep::CallAgainAfter(RETRY));
        assert_eq!(operation(&failed.status).state, Some(OperationState::Failed));
        assert!(operation(&failed.status).description.unwrap().contains("Job a"));
        assert_eq!(failed.status.last_errors.iter().flatten().count(), 1);
        let again = decide(&failed.status, Some(&retry), 9);
        assert_eq!(again.status, failed.status, "the same failure is recorded once");

        let done = decide(&failed.status, Some(&TaskResult::done("x")), 10);
        assert_eq!(done.next, NextStep::RemoveFinalizer);
        assert_eq!(
            (operation(&done.status).state, operation(&done.status).last_transition_time),
            (Some(OperationState::Completed), Some(Time(at(10))))
        );
        let last = decide(&done.status, None, 11);
        assert_eq!((last.status, last.next), (done.status, NextStep::RemoveFinalizer));
    }

    #[test]
    fn a_deletion_waits_for_its_cleanup_alone() {
        let status = decide(&EtcdOperatorTaskStatus::default(), None, 0).status;
        let second = Duration::from_secs(1);
        let run = TaskResult::done("the task is done");
        for (stage_state, expected) in [
            (StageState::Running(Stage::CleanUp), NextStep::Wait(None)),
            (StageState::Waiting(second), NextStep::Wait(Some(second))),
            (StageState::Waiting(Duration::ZERO), NextStep::CallHandler(Stage::CleanUp)),
            (StageState::Running(Stage::Run), NextStep::CallHandler(Stage::CleanUp)),
            (StageState::Done(Stage::Run, run), NextStep::CallHandler(Stage::CleanUp)),
        ] {
            let plan = decide_deletion(&observed(&status, stage_state.clone(), 1));
            assert_eq!((plan.status, plan.next), (status.clone(), expected), "{stage_state:?}");
        }
        let without = Observed { needs_cleanup: false, ..observed(&status, StageState::Running(Stage::Run), 1) };
        assert_eq!(decide_deletion(&without).next, NextStep::RemoveFinalizer, "a type without a cleanup");
    }

    #[test]
    fn a_cleanup_that_can_never_succeed_does_not_keep_the_task() {
        let status = decide(&EtcdOperatorTaskStatus::default(), None, 0).status;
        let plan = decide(&status, Some(&TaskResult::failed(TaskError::new("ERR_X", "no name"))), 1);
        assert_eq!(plan.next, NextStep::RemoveFinalizer);
        assert_eq!(plan.status.last_errors.iter().flatten().count(), 1);
    }

    #[test]
    fn a_deletion_ends_where_the_api_server_drops_the_type() {
        let stored = |status: EtcdOperatorTaskStatus| {
            let operation = LastOperation { operation_type: None, ..status.last_operation.clone().unwrap() };
            EtcdOperatorTaskStatus { last_operation: Some(operation), ..status }
        };
        let retry = TaskResult::retry(TaskError::new("ERR_X", "busy"));
        let started = stored(decide(&EtcdOperatorTaskStatus::default(), None, 0).status);
        assert_eq!(decide(&started, None, 1).status, started);
        let failed = stored(decide(&started, Some(&retry), 2).status);
        assert_eq!(decide(&failed, None, 3).next, NextStep::CallHandler(Stage::CleanUp));
        let done = stored(decide(&failed, Some(&TaskResult::done("x")), 4).status);
        assert_eq!(decide(&done, None, 5).next, NextStep::RemoveFinalizer);
    }
}
