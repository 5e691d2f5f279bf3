//! The state machine of a task, which is the same for all types.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use messina_api::druid::v1alpha1::{EtcdOperatorTaskStatus, LastError, LastOperation, OperationState, TaskState};
use messina_text::Backoff;

use super::{Options, TaskError, TaskResult, code, is_finished};

/// Maximum number of errors in `status.lastErrors`.
const MAX_ERRORS: usize = 10;
/// Resolution of creation timestamps.
const SECOND: Duration = Duration::from_secs(1);
/// Delays between retries.
const RETRIES: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(30) };
/// The operator abandons the cleanup of a finished task after this time.
const MAX_CLEANUP_TIME: Duration = Duration::from_secs(600);

/// Whether the operator can use the Etcd of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EtcdAvailability {
    /// The API server does not serve the kind Etcd: its CRD is not installed.
    NotServed,
    /// This Etcd does not exist.
    NotFound(String),
    /// The Etcd (first value) is not in the one namespace that the operator watches (second value).
    NotWatched(String, String),
    /// The Etcd exists but cannot be decoded. Names the Etcd and the problem.
    Unreadable(String),
    /// The Etcd exists.
    Found,
}

/// A stage of a task, each of which calls one method of the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Checks whether the task may run.
    Admit,
    /// Does the work of the task.
    Run,
    /// Removes what the task needed while it ran.
    CleanUp,
}

/// The state of the last call of the handler in this process.
#[derive(Clone, Debug, PartialEq)]
pub enum StageState {
    /// The handler was not called.
    None,
    /// The call is running.
    Running(Stage),
    /// The call has returned.
    Done(Stage, TaskResult),
    /// The call has returned, and the handler is called again after this time.
    Waiting(Duration),
}

/// The observed state of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// The status of the task.
    pub status: EtcdOperatorTaskStatus,
    /// The generation of the task.
    pub generation: Option<i64>,
    /// When the task was created.
    pub created_at: Timestamp,
    /// Whether the task is being deleted.
    pub is_being_deleted: bool,
    /// How long the task is kept after it is finished; none to keep it.
    pub time_to_live: Option<Duration>,
    /// The options of the task, as its handler reads them, or why they are invalid.
    pub options: Result<Options, TaskError>,
    /// Whether tasks of this type need a cleanup when they are finished.
    pub needs_cleanup: bool,
    /// Whether the Etcd of the task can be used.
    pub etcd: EtcdAvailability,
    /// Tasks on the same etcd cluster that are ahead in the queue, in order.
    pub ahead: Vec<String>,
    /// Whether the status may be written if only the position in the queue has changed.
    pub may_refresh: bool,
    /// The state of the last call of the handler.
    pub stage_state: StageState,
    /// Number of consecutive calls of the handler that failed.
    pub failures: u32,
    /// The current time.
    pub now: Timestamp,
}

/// The next step of a task. The operator takes it only when it observes the decided status.
#[derive(Clone, Debug, PartialEq)]
pub enum NextStep {
    /// Wait for a change, or for this time.
    Wait(Option<Duration>),
    /// Call the handler.
    CallHandler(Stage),
    /// The result of the handler is processed: call it again after this time.
    CallAgainAfter(Duration),
    /// Delete the task.
    Delete,
    /// Remove the finalizer of the task, which is being deleted.
    RemoveFinalizer,
}

/// The decision about a task.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The desired status.
    pub status: EtcdOperatorTaskStatus,
    /// The next step.
    pub next: NextStep,
}

/// Whether a task is old enough to start. Tasks that were created in the same second are ordered by UID, so the
/// operator waits until that second is over.
pub fn is_old_enough(created_at: Timestamp, now: Timestamp) -> bool {
    time_left(created_at, SECOND, now).is_none()
}

/// Decides the status of a task and its next step.
pub fn decide(observed: &Observed) -> Plan {
    let mut status = observed.status.clone();
    let next = match &observed.status.state {
        Some(TaskState::Succeeded | TaskState::Failed | TaskState::Rejected) => finished(observed, &mut status),
        Some(TaskState::InProgress) => in_progress(observed, &mut status),
        None | Some(TaskState::Pending | TaskState::Other(_)) => pending(observed, &mut status),
    };
    // A task without a state gets no status at all.
    if status.state.is_some() {
        status.observed_generation = observed.generation;
    }
    Plan { status, next }
}

fn finished(observed: &Observed, status: &mut EtcdOperatorTaskStatus) -> NextStep {
    let operation = observed.status.last_operation.as_ref();
    let since = operation
        .and_then(|operation| operation.last_transition_time.as_ref())
        .map_or(observed.created_at, |time| time.0);
    let remaining = match observed.time_to_live.map(|time_to_live| time_left(since, time_to_live, observed.now)) {
        None => None,
        Some(Some(remaining)) => Some(remaining),
        // Deletion includes the cleanup.
        Some(None) => return NextStep::Delete,
    };
    let has_run = status.state != Some(TaskState::Rejected);
    if !has_run || !observed.needs_cleanup || status.cleaned_up_at.is_some() {
        return NextStep::Wait(remaining);
    }
    match &observed.stage_state {
        StageState::Done(Stage::CleanUp, result) => {
            // Other tasks wait for this one. They must not wait forever for an object that cannot be removed, such as
            // a pod on a Kubernetes node that is gone.
            let is_abandoned = !result.is_completed && time_left(since, MAX_CLEANUP_TIME, observed.now).is_none();
            let abandoned = || {
                let minutes = MAX_CLEANUP_TIME.as_secs() / 60;
                let description = &result.description;
                TaskError::new(
                    code::CLEANUP,
                    format!("The operator abandoned the cleanup after {minutes} minutes: {description}"),
                )
            };
            record_error(observed, status, result.error.clone().or_else(|| is_abandoned.then(abandoned)).as_ref());
            if result.is_completed || is_abandoned {
                status.cleaned_up_at = Some(Time(observed.now));
                return NextStep::Wait(remaining);
            }
            NextStep::CallAgainAfter(result.requeue_after.unwrap_or_else(|| RETRIES.delay(observed.failures)))
        }
        StageState::Running(Stage::CleanUp) => NextStep::Wait(remaining),
        StageState::Waiting(retry_delay) if !retry_delay.is_zero() => {
            NextStep::Wait(Some(remaining.map_or(*retry_delay, |remaining| remaining.min(*retry_delay))))
        }
        // Any other call for a finished task is obsolete.
        StageState::None | StageState::Running(_) | StageState::Done(..) | StageState::Waiting(_) => {
            NextStep::CallHandler(Stage::CleanUp)
        }
    }
}

fn pending(observed: &Observed, status: &mut EtcdOperatorTaskStatus) -> NextStep {
    if let Err(error) = &observed.options {
        return finish(observed, status, TaskState::Rejected, Some(error), &error.description);
    }
    let is_first = observed.ahead.is_empty();
    let waits_for = match &observed.etcd {
        EtcdAvailability::NotServed => Some(
            "Waiting for the kind Etcd (druid.gardener.cloud/v1alpha1), which is not installed in this Kubernetes \
             cluster. Install its CRD and the operator that runs etcd clusters, or delete this task."
                .to_owned(),
        ),
        EtcdAvailability::NotFound(name) => {
            Some(format!("Waiting for Etcd {name}, which does not exist. Create it, or delete this task."))
        }
        EtcdAvailability::NotWatched(name, watched) => Some(format!(
            "Waiting for Etcd {name}, which the operator cannot read: it watches only namespace {watched}. Create the \
             task where an operator watches the namespace of the Etcd, or delete this task."
        )),
        EtcdAvailability::Unreadable(problem) => {
            Some(format!("Waiting for a valid Etcd: {problem}. Correct the Etcd, or delete this task."))
        }
        EtcdAvailability::Found => observed.ahead.first().map(|first| match observed.ahead.len() {
            1 => format!("Queued: task {first} on the same etcd cluster has to finish first."),
            count => {
                format!("Queued: {count} tasks on the same etcd cluster have to finish first, the next one is {first}.")
            }
        }),
    };
    if let Some(waits_for) = waits_for {
        let position = (!is_first).then(|| i32::try_from(observed.ahead.len()).unwrap_or(i32::MAX));
        let is_position_change_only =
            status.state == Some(TaskState::Pending) && position.is_some() && status.place.is_some();
        if !is_position_change_only || observed.may_refresh {
            status.place = position;
            set_operation(observed, status, TaskState::Pending, OperationState::InProgress, &waits_for);
        }
        // Without a watch event that triggers the next reconcile, the task is requeued, so that its status gets up to
        // date.
        let is_reported =
            !matches!(observed.etcd, EtcdAvailability::NotServed) && (!is_position_change_only || observed.may_refresh);
        return NextStep::Wait((!is_reported).then_some(RETRIES.longest));
    }
    // Another task of the same second may still come first: the status must not claim what would have to be revoked.
    if let Some(remaining) = time_left(observed.created_at, SECOND, observed.now) {
        return NextStep::Wait(Some(remaining.min(SECOND)));
    }
    if status.state.is_none() {
        set_operation(
            observed,
            status,
            TaskState::Pending,
            OperationState::InProgress,
            "First in the queue: the operator checks whether the task may run.",
        );
    }
    match &observed.stage_state {
        StageState::None => NextStep::CallHandler(Stage::Admit),
        StageState::Running(_) => NextStep::Wait(None),
        // The handler was called for a task that is pending again: a user has changed the status.
        StageState::Done(Stage::Run | Stage::CleanUp, _) | StageState::Waiting(_) => {
            NextStep::CallHandler(Stage::Admit)
        }
        StageState::Done(Stage::Admit, result) => match &result.error {
            Some(error) if result.is_completed => {
                finish(observed, status, TaskState::Rejected, Some(error), &result.description)
            }
            // Any other error may be resolved before the deadline of the task.
            error => {
                status.place = None;
                status.initiated_at = Some(Time(observed.now));
                result.findings.add_to(status);
                record_error(observed, status, error.as_ref());
                set_operation(observed, status, TaskState::InProgress, OperationState::InProgress, &result.description);
                NextStep::Wait(None)
            }
        },
    }
}

fn in_progress(observed: &Observed, status: &mut EtcdOperatorTaskStatus) -> NextStep {
    let options = match &observed.options {
        Ok(options) => options,
        // The operator was downgraded to a version that does not know the type or its options.
        Err(error) => return finish(observed, status, TaskState::Failed, Some(error), &error.description),
    };
    let began = status.initiated_at.as_ref().map_or(observed.created_at, |time| time.0);
    let remaining = time_left(began, options.deadline, observed.now);
    if let StageState::Done(Stage::Run, result) = &observed.stage_state {
        result.findings.add_to(status);
        match (result.is_completed, &result.error) {
            (true, None) => return finish(observed, status, TaskState::Succeeded, None, &result.description),
            (true, Some(error)) => {
                return finish(observed, status, TaskState::Failed, Some(error), &result.description);
            }
            (false, error) if remaining.is_some() => {
                record_error(observed, status, error.as_ref());
                let state = if error.is_some() { OperationState::Failed } else { OperationState::InProgress };
                set_operation(observed, status, TaskState::InProgress, state, &result.description);
                return NextStep::CallAgainAfter(
                    result.requeue_after.unwrap_or_else(|| RETRIES.delay(observed.failures)),
                );
            }
            (false, error) => record_error(observed, status, error.as_ref()),
        }
    }
    let Some(remaining) = remaining else {
        let seconds = options.deadline.as_secs();
        let last_error = status.last_errors.iter().flatten().last().and_then(|error| error.description.clone());
        let last_error = last_error.map(|error| format!(" Last error: {error}")).unwrap_or_default();
        let description = format!(
            "The task did not finish within {seconds} s. To allow more time, set spec.config.timeoutSeconds in a new \
             task.{last_error}"
        );
        let error = TaskError::new(code::DEADLINE, description);
        return finish(observed, status, TaskState::Failed, Some(&error), &error.description);
    };
    let error = match &observed.etcd {
        EtcdAvailability::Found => None,
        EtcdAvailability::Unreadable(problem) => {
            let description = format!("The task cannot continue: {problem}. Correct the Etcd.");
            Some(TaskError::new(code::ETCD_UNREADABLE, description))
        }
        EtcdAvailability::NotWatched(name, watched) => {
            let description = format!(
                "The task cannot continue: Etcd {name} is not in namespace {watched}, the only one that the operator \
                 watches."
            );
            Some(TaskError::new(code::ETCD_GONE, description))
        }
        EtcdAvailability::NotServed | EtcdAvailability::NotFound(_) => Some(TaskError::new(
            code::ETCD_GONE,
            "The task cannot continue: its Etcd was deleted while the task was in progress.",
        )),
    };
    if let Some(error) = error {
        record_error(observed, status, Some(&error));
        set_operation(observed, status, TaskState::InProgress, OperationState::Failed, &error.description);
        return NextStep::Wait(Some(remaining));
    }
    match &observed.stage_state {
        StageState::None | StageState::Done(..) => NextStep::CallHandler(Stage::Run),
        StageState::Running(_) => NextStep::Wait(Some(remaining)),
        StageState::Waiting(retry_delay) if retry_delay.is_zero() => NextStep::CallHandler(Stage::Run),
        StageState::Waiting(retry_delay) => NextStep::Wait(Some((*retry_delay).min(remaining))),
    }
}

fn finish(
    observed: &Observed,
    status: &mut EtcdOperatorTaskStatus,
    state: TaskState,
    error: Option<&TaskError>,
    description: &str,
) -> NextStep {
    debug_assert!(is_finished(Some(&state)));
    record_error(observed, status, error);
    status.place = None;
    if status.initiated_at.is_none() {
        status.initiated_at = Some(Time(observed.now));
    }
    let operation = if error.is_some() { OperationState::Failed } else { OperationState::Completed };
    set_operation(observed, status, state, operation, description);
    NextStep::Wait(observed.time_to_live)
}

/// Sets the state and `lastOperation`. The transition time changes only when one of the two states does.
fn set_operation(
    observed: &Observed,
    status: &mut EtcdOperatorTaskStatus,
    state: TaskState,
    operation: OperationState,
    description: &str,
) {
    let before = status.last_operation.take().unwrap_or_default();
    let is_same = before.state.as_ref() == Some(&operation) && status.state.as_ref() == Some(&state);
    let since = before.last_transition_time.filter(|_| is_same).unwrap_or(Time(observed.now));
    status.state = Some(state);
    status.last_operation = Some(LastOperation {
        operation_type: None,
        state: Some(operation),
        last_transition_time: Some(since),
        description: Some(description.to_owned()),
    });
}

/// Adds an error to the status, if there is one.
fn record_error(observed: &Observed, status: &mut EtcdOperatorTaskStatus, error: Option<&TaskError>) {
    if let Some(error) = error {
        add_error(status, error, observed.now);
    }
}

/// Adds an error to the status, unless it equals the last one.
pub(super) fn add_error(status: &mut EtcdOperatorTaskStatus, error: &TaskError, now: Timestamp) {
    let mut errors = status.last_errors.take().unwrap_or_default();
    let is_known = errors.last().is_some_and(|last| {
        last.code.as_deref() == Some(error.code) && last.description.as_deref() == Some(&error.description)
    });
    if !is_known {
        errors.push(LastError {
            code: Some(error.code.to_owned()),
            description: Some(error.description.clone()),
            observed_at: Some(Time(now)),
        });
    }
    let too_many = errors.len().saturating_sub(MAX_ERRORS);
    errors.drain(..too_many);
    status.last_errors = Some(errors);
}

/// Returns what is left of a period that began at `began`; none when it is over.
fn time_left(began: Timestamp, time: Duration, now: Timestamp) -> Option<Duration> {
    let elapsed = now.duration_since(began).max(SignedDuration::ZERO);
    let remaining = SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX).saturating_sub(elapsed);
    Duration::try_from(remaining).ok().filter(|remaining| !remaining.is_zero())
}

#[cfg(test)]
mod tests;
