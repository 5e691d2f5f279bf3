//! The way of a task from its creation to its end, whatever it does.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use messina_api::druid::v1alpha1::{EtcdOperatorTaskStatus, LastError, LastOperation, OperationState, TaskState};

use super::{Fault, Options, TaskResult, code, is_finished};

/// So many errors are kept.
const ERRORS: usize = 10;
/// Creation times have no fractions.
const SECOND: Duration = Duration::from_secs(1);
/// When something did not work, it is tried again after this time, ...
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// ... and after more each time, up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// What is to be removed after a task is given up after this time.
const LONGEST_CLEANUP: Duration = Duration::from_secs(600);

/// Whether the etcd cluster of a task can be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight {
    /// There are no etcd clusters at all: their definition is not installed.
    NotServed,
    /// There is none of this name.
    Missing(String),
    /// It is in a namespace that the operator does not watch. Says which Etcd, and which namespace is watched.
    OutOfSight(String, String),
    /// It is there, and cannot be read. Says which one, and what is wrong with it.
    Unreadable(String),
    /// It is there.
    There,
}

/// What the handler is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Whether the task may run.
    Admit,
    /// To do what the task is for.
    Run,
    /// To remove what the task needed while it ran.
    CleanUp,
}

/// What has become of the last thing that the handler was asked for, in this process.
#[derive(Clone, Debug, PartialEq)]
pub enum StageState {
    /// It was asked for nothing.
    None,
    /// It is at it.
    Running(Stage),
    /// It has answered.
    Done(Stage, TaskResult),
    /// It has answered, and is to be asked again after this time.
    Waiting(Duration),
}

/// What is known when it is decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// What was last said of the task.
    pub status: EtcdOperatorTaskStatus,
    /// The generation of the task.
    pub generation: Option<i64>,
    /// When the task was created.
    pub created: Timestamp,
    /// How long it stays after it is finished; none for ever.
    pub time_to_live: Option<Duration>,
    /// What the handler makes of the options of the task, or why there is none.
    pub options: Result<Options, Fault>,
    /// Whether tasks of this type leave something to remove when they are finished.
    pub needs_cleanup: bool,
    /// Whether its etcd cluster can be seen.
    pub etcd: Sight,
    /// Tasks on the same etcd cluster that come before this one, the first in line first.
    pub ahead: Vec<String>,
    /// Whether the place in line may be written again if that is all that changed.
    pub may_refresh: bool,
    /// What the handler does.
    pub stage_state: StageState,
    /// How often the handler was asked in vain.
    pub failures: u32,
    /// What time it is.
    pub now: Timestamp,
}

/// What is to be done now. It is done only once the status is as decided.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Nothing, until something changes or this time is over.
    Wait(Option<Duration>),
    /// The handler is asked.
    Ask(Stage),
    /// The handler's answer has been taken in; it is asked again after this time.
    Rest(Duration),
    /// The task is deleted.
    Delete,
}

/// What was decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What is said of the task.
    pub status: EtcdOperatorTaskStatus,
    /// What is to be done.
    pub next: Next,
}

/// Whether a task that was created then is old enough to begin. Those of the same second are put in order by their UIDs, so
/// it is awaited that the second is over.
pub fn is_old_enough(created: Timestamp, now: Timestamp) -> bool {
    left(created, SECOND, now).is_none()
}

/// Decides what is said of a task and done about it.
pub fn decide(observed: &Observed) -> Plan {
    let mut status = observed.status.clone();
    let next = match &observed.status.state {
        Some(TaskState::Succeeded | TaskState::Failed | TaskState::Rejected) => finished(observed, &mut status),
        Some(TaskState::InProgress) => in_progress(observed, &mut status),
        None | Some(TaskState::Pending | TaskState::Other(_)) => pending(observed, &mut status),
    };
    // Of a task of which nothing is said yet, this is not said either.
    if status.state.is_some() {
        status.observed_generation = observed.generation;
    }
    Plan { status, next }
}

fn finished(observed: &Observed, status: &mut EtcdOperatorTaskStatus) -> Next {
    let operation = observed.status.last_operation.as_ref();
    let since =
        operation.and_then(|operation| operation.last_transition_time.as_ref()).map_or(observed.created, |time| time.0);
    let rest = match observed.time_to_live.map(|time_to_live| left(since, time_to_live, observed.now)) {
        None => None,
        Some(Some(rest)) => Some(rest),
        // Deletion includes the cleanup.
        Some(None) => return Next::Delete,
    };
    let has_run = status.state != Some(TaskState::Rejected);
    if !has_run || !observed.needs_cleanup || status.cleaned_up_at.is_some() {
        return Next::Wait(rest);
    }
    match &observed.stage_state {
        StageState::Done(Stage::CleanUp, result) => {
            // Other tasks wait for this one, and what cannot be removed, say from a Kubernetes node that is gone, is not theirs.
            let is_given_up = !result.is_completed && left(since, LONGEST_CLEANUP, observed.now).is_none();
            let given_up = || Fault::new(code::CLEANUP, format!("Given up after 10 minutes: {}", result.description));
            remember(observed, status, result.error.clone().or_else(|| is_given_up.then(given_up)).as_ref());
            if result.is_completed || is_given_up {
                status.cleaned_up_at = Some(Time(observed.now));
                return Next::Wait(rest);
            }
            Next::Rest(result.requeue_after.unwrap_or_else(|| pause(observed.failures)))
        }
        StageState::Running(Stage::CleanUp) => Next::Wait(rest),
        StageState::Waiting(pause) if !pause.is_zero() => {
            Next::Wait(Some(rest.map_or(*pause, |rest| rest.min(*pause))))
        }
        // What else is under way for a task that is finished is of no use.
        StageState::None | StageState::Running(_) | StageState::Done(..) | StageState::Waiting(_) => {
            Next::Ask(Stage::CleanUp)
        }
    }
}

fn pending(observed: &Observed, status: &mut EtcdOperatorTaskStatus) -> Next {
    if let Err(fault) = &observed.options {
        return end(observed, status, TaskState::Rejected, Some(fault), &fault.description);
    }
    let nothing_ahead = observed.ahead.is_empty();
    let waits_for = match &observed.etcd {
        Sight::NotServed => Some(
            "Waits for etcd clusters: the kind Etcd (druid.gardener.cloud/v1alpha1) is not installed here. Install it \
             together with the operator that runs etcd clusters, or delete this task."
                .to_owned(),
        ),
        Sight::Missing(name) => {
            Some(format!("Waits for the Etcd {name}, which does not exist. Create it, or delete this task."))
        }
        Sight::OutOfSight(name, watched) => Some(format!(
            "Waits for the Etcd {name}, which cannot be seen: this operator watches the namespace {watched} alone. Create the \
             task where an operator watches the namespace of the Etcd, or delete this task."
        )),
        Sight::Unreadable(problem) => {
            Some(format!("Waits for its etcd cluster: {problem}. Correct the Etcd, or delete this task."))
        }
        Sight::There => observed.ahead.first().map(|first| match observed.ahead.len() {
            1 => format!("Waits for its turn: the task {first} on the same etcd cluster comes before it."),
            count => {
                format!("Waits for its turn: {count} tasks on the same etcd cluster come before it, first {first}.")
            }
        }),
    };
    if let Some(waits_for) = waits_for {
        let place = (!nothing_ahead).then(|| i32::try_from(observed.ahead.len()).unwrap_or(i32::MAX));
        let is_only_another_place =
            status.state == Some(TaskState::Pending) && place.is_some() && status.place.is_some();
        if !is_only_another_place || observed.may_refresh {
            status.place = place;
            say(observed, status, TaskState::Pending, OperationState::InProgress, &waits_for);
        }
        // Should nobody tell of a change, what is said is still brought up to date.
        let is_told = !matches!(observed.etcd, Sight::NotServed) && (!is_only_another_place || observed.may_refresh);
        return Next::Wait((!is_told).then_some(LONGEST_PAUSE));
    }
    // Of those that were created in the same second another one may come first: nothing is said that would be taken back.
    if let Some(rest) = left(observed.created, SECOND, observed.now) {
        return Next::Wait(Some(rest.min(SECOND)));
    }
    if status.state.is_none() {
        say(
            observed,
            status,
            TaskState::Pending,
            OperationState::InProgress,
            "Its turn has come; it is being admitted.",
        );
    }
    match &observed.stage_state {
        StageState::None => Next::Ask(Stage::Admit),
        StageState::Running(_) => Next::Wait(None),
        // It was asked to run a task that is pending again: somebody has changed the status.
        StageState::Done(Stage::Run | Stage::CleanUp, _) | StageState::Waiting(_) => Next::Ask(Stage::Admit),
        StageState::Done(Stage::Admit, result) => match &result.error {
            Some(fault) if result.is_completed => {
                end(observed, status, TaskState::Rejected, Some(fault), &result.description)
            }
            // Whatever else is in the way, it may be out of the way before the time of the task is over.
            error => {
                status.place = None;
                status.initiated_at = Some(Time(observed.now));
                result.findings.add_to(status);
                remember(observed, status, error.as_ref());
                say(observed, status, TaskState::InProgress, OperationState::InProgress, &result.description);
                Next::Wait(None)
            }
        },
    }
}

fn in_progress(observed: &Observed, status: &mut EtcdOperatorTaskStatus) -> Next {
    let options = match &observed.options {
        Ok(options) => options,
        // The operator is an older one now, or has forgotten this type.
        Err(fault) => return end(observed, status, TaskState::Failed, Some(fault), &fault.description),
    };
    let began = status.initiated_at.as_ref().map_or(observed.created, |time| time.0);
    let rest = left(began, options.deadline, observed.now);
    if let StageState::Done(Stage::Run, result) = &observed.stage_state {
        result.findings.add_to(status);
        match (result.is_completed, &result.error) {
            (true, None) => return end(observed, status, TaskState::Succeeded, None, &result.description),
            (true, Some(fault)) => return end(observed, status, TaskState::Failed, Some(fault), &result.description),
            (false, error) if rest.is_some() => {
                remember(observed, status, error.as_ref());
                let state = if error.is_some() { OperationState::Failed } else { OperationState::InProgress };
                say(observed, status, TaskState::InProgress, state, &result.description);
                return Next::Rest(result.requeue_after.unwrap_or_else(|| pause(observed.failures)));
            }
            (false, error) => remember(observed, status, error.as_ref()),
        }
    }
    let Some(rest) = rest else {
        let seconds = options.deadline.as_secs();
        let trouble = status.last_errors.iter().flatten().last().and_then(|error| error.description.clone());
        let trouble = trouble.map(|trouble| format!(" What went wrong last: {trouble}")).unwrap_or_default();
        let description = format!("It was not done within {seconds} s, which config.timeoutSeconds can set.{trouble}");
        let fault = Fault::new(code::DEADLINE, description);
        return end(observed, status, TaskState::Failed, Some(&fault), &fault.description);
    };
    let fault = match &observed.etcd {
        Sight::There => None,
        Sight::Unreadable(problem) => {
            let description = format!("The task cannot go on: {problem}. Correct the Etcd.");
            Some(Fault::new(code::ETCD_UNREADABLE, description))
        }
        Sight::OutOfSight(name, watched) => {
            let description =
                format!("The Etcd {name} cannot be seen: this operator watches the namespace {watched} alone.");
            Some(Fault::new(code::ETCD_GONE, description))
        }
        Sight::NotServed | Sight::Missing(_) => {
            Some(Fault::new(code::ETCD_GONE, "The Etcd of this task has gone while the task ran."))
        }
    };
    if let Some(fault) = fault {
        remember(observed, status, Some(&fault));
        say(observed, status, TaskState::InProgress, OperationState::Failed, &fault.description);
        return Next::Wait(Some(rest));
    }
    match &observed.stage_state {
        StageState::None | StageState::Done(..) => Next::Ask(Stage::Run),
        StageState::Running(_) => Next::Wait(Some(rest)),
        StageState::Waiting(pause) if pause.is_zero() => Next::Ask(Stage::Run),
        StageState::Waiting(pause) => Next::Wait(Some((*pause).min(rest))),
    }
}

fn end(
    observed: &Observed,
    status: &mut EtcdOperatorTaskStatus,
    state: TaskState,
    fault: Option<&Fault>,
    description: &str,
) -> Next {
    debug_assert!(is_finished(Some(&state)));
    remember(observed, status, fault);
    status.place = None;
    if status.initiated_at.is_none() {
        status.initiated_at = Some(Time(observed.now));
    }
    let operation = if fault.is_some() { OperationState::Failed } else { OperationState::Completed };
    say(observed, status, state, operation, description);
    Next::Wait(observed.time_to_live)
}

/// Says how the task stands. When it got there is set only when it got there.
fn say(
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

/// Adds an error, unless it is the one that was met last.
fn remember(observed: &Observed, status: &mut EtcdOperatorTaskStatus, fault: Option<&Fault>) {
    if let Some(fault) = fault {
        add_error(status, fault, observed.now);
    }
}

/// Adds an error, unless it is the last one already.
pub(super) fn add_error(status: &mut EtcdOperatorTaskStatus, fault: &Fault, now: Timestamp) {
    let mut errors = status.last_errors.take().unwrap_or_default();
    let is_known = errors.last().is_some_and(|last| {
        last.code.as_deref() == Some(fault.code) && last.description.as_deref() == Some(&fault.description)
    });
    if !is_known {
        errors.push(LastError {
            code: Some(fault.code.to_owned()),
            description: Some(fault.description.clone()),
            observed_at: Some(Time(now)),
        });
    }
    let too_many = errors.len().saturating_sub(ERRORS);
    errors.drain(..too_many);
    status.last_errors = Some(errors);
}

/// How long to wait after so many failures.
fn pause(failures: u32) -> Duration {
    let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE)
}

/// What is left of a time that began once; none when it is over.
fn left(began: Timestamp, time: Duration, now: Timestamp) -> Option<Duration> {
    let gone = now.duration_since(began).max(SignedDuration::ZERO);
    let rest = SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX).saturating_sub(gone);
    Duration::try_from(rest).ok().filter(|rest| !rest.is_zero())
}

#[cfg(test)]
mod tests;
