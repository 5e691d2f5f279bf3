//! Describes tasks in sentences.

use std::{fmt, time::Duration};

use indicatif::HumanBytes;
use kube::ResourceExt;
use messina_api::druid::v1alpha1::{
    EtcdOperatorTask, EtcdOperatorTaskStatus, MemberOutcome, OperationState, TakenSnapshot, TaskState,
};
use serde::Serialize;

use super::request::Request;
use crate::{
    cluster::{Access, one_line},
    page::{Colour, Page, Style},
};

/// The progress of a task that is not finished, as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TaskLine {
    pub(super) state: String,
    /// The number of steps that are done, and of all steps.
    pub(super) progress: Option<(u64, u64)>,
    pub(super) message: String,
}

impl TaskLine {
    /// The line without the steps.
    pub(super) fn headline(&self) -> String {
        if self.message.is_empty() { self.state.clone() } else { format!("{}: {}", self.state, self.message) }
    }
}

impl fmt::Display for TaskLine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.state)?;
        if let Some((done, total)) = self.progress {
            write!(formatter, " {done}/{total}")?;
        }
        if self.message.is_empty() { Ok(()) } else { write!(formatter, ": {}", self.message) }
    }
}

/// Describes a task. `unseen` is for how long the operator has not given a new task a state, where that is too long.
pub(super) fn task_line(task: &EtcdOperatorTask, unseen: Option<Duration>) -> TaskLine {
    let status = task.status.as_ref();
    let state = status.and_then(|status| status.state.as_ref());
    let message = match (state, unseen) {
        _ if task.metadata.deletion_timestamp.is_some() => "it is being deleted".to_owned(),
        (None, Some(unseen)) => {
            format!("the operator has not reconciled it for {} s: check that the operator runs", unseen.as_secs())
        }
        (None, None) => "waiting for the operator".to_owned(),
        (Some(TaskState::Pending), _) => status
            .and_then(|status| status.place)
            .and_then(|place| usize::try_from(place).ok())
            .filter(|place| *place > 0)
            .map_or_else(|| operator_message(task), ahead),
        _ => operator_message(task),
    };
    TaskLine { state: state.map_or("New".to_owned(), name_of), progress: progress(task), message }
}

/// Describes a task while the API server does not answer.
pub(super) fn unreachable(task: &EtcdOperatorTask) -> TaskLine {
    TaskLine { message: "the Kubernetes cluster does not answer; retrying".into(), ..task_line(task, None) }
}

fn ahead(count: usize) -> String {
    if count == 1 { "1 task ahead".to_owned() } else { format!("{count} tasks ahead") }
}

/// The number of steps that are done, and of all steps; none where the task does not run.
pub(super) fn progress(task: &EtcdOperatorTask) -> Option<(u64, u64)> {
    let status = task.status.as_ref().filter(|status| status.state == Some(TaskState::InProgress))?;
    let progress = status.progress.as_ref()?;
    let (done, total) = (progress.done.unwrap_or_default(), progress.total?);
    let (done, total) = (u64::try_from(done).ok()?, u64::try_from(total).ok()?);
    (total > 0).then_some((done, total))
}

/// The last message of the operator about a task, in one line; with the code of the error, if there is one.
pub(super) fn operator_message(task: &EtcdOperatorTask) -> String {
    let Some(status) = &task.status else { return String::new() };
    let operation = status.last_operation.as_ref();
    let description = operation.and_then(|operation| operation.description.as_deref());
    let has_failed = operation.is_some_and(|operation| operation.state == Some(OperationState::Failed));
    let error = status.last_errors.iter().flatten().last().filter(|_| has_failed || is_failure(status));
    let code = error.and_then(|error| error.code.as_deref());
    let description = error.and_then(|error| error.description.as_deref()).or(description).unwrap_or_default();
    one_line(
        &[code.unwrap_or_default(), description]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(": "),
    )
}

fn is_failure(status: &EtcdOperatorTaskStatus) -> bool {
    matches!(status.state, Some(TaskState::Failed | TaskState::Rejected))
}

/// The result of a task, else the last message of the operator; in one line.
pub(super) fn result(task: &EtcdOperatorTask) -> String {
    one_line(&describe_result(task))
}

fn describe_result(task: &EtcdOperatorTask) -> String {
    let Some(status) = &task.status else { return String::new() };
    if status.state != Some(TaskState::Succeeded) {
        return operator_message(task);
    }
    let members = status.members.as_deref().unwrap_or_default();
    if let Some(snapshot) = &status.snapshot {
        describe_snapshot(snapshot)
    } else if !members.is_empty() {
        describe_defragmentation(members)
    } else if let Some(revision) = status.compacted_revision {
        format!("Revisions before {revision} are compacted.")
    } else {
        operator_message(task)
    }
}

fn describe_snapshot(snapshot: &TakenSnapshot) -> String {
    let kind = match snapshot.kind.as_deref() {
        Some("Full") => "full snapshot",
        Some("Incr") => "delta snapshot",
        _ => "snapshot",
    };
    let name = snapshot.name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
    let revision = snapshot.revision.map(|revision| format!(", up to revision {revision}")).unwrap_or_default();
    let mark = if snapshot.is_final == Some(true) { "; it is marked as final" } else { "" };
    format!("The {kind}{name} was taken{revision}{mark}.")
}

fn describe_defragmentation(members: &[MemberOutcome]) -> String {
    let all = match members {
        [one] => format!("The member {} is defragmented", one.name.as_deref().unwrap_or_default()),
        many => format!("All {} members are defragmented", many.len()),
    };
    // A sum is only right where all sizes are known.
    let total = |size: fn(&MemberOutcome) -> Option<i64>| {
        members.iter().map(|member| size(member).and_then(|size| u64::try_from(size).ok())).sum::<Option<u64>>()
    };
    match (total(|one| one.size_before), total(|one| one.size_after)) {
        (Some(before), Some(after)) => format!("{all}: {} before, {} after.", HumanBytes(before), HumanBytes(after)),
        _ => format!("{all}."),
    }
}

/// Describes how a task has finished.
pub(super) fn describe_end(task: &EtcdOperatorTask) -> String {
    let state = task.status.as_ref().and_then(|status| status.state.as_ref());
    let verb = match state {
        Some(TaskState::Succeeded) => "succeeded",
        Some(TaskState::Failed) => "failed",
        _ => "was rejected",
    };
    let result = result(task);
    let (colon, result) = if result.is_empty() { (".", "") } else { (": ", result.as_str()) };
    format!("{} {verb}{colon}{result}", task.name_any())
}

/// Describes a task that was just created, with commands to follow it.
pub(super) fn created(
    task: &EtcdOperatorTask,
    request: &Request,
    namespace: &str,
    arguments: &str,
    is_followed: bool,
    style: Style,
) -> String {
    let (name, etcd) =
        (task.name_any(), task.spec.etcd_reference().and_then(|etcd| etcd.name.clone()).unwrap_or_default());
    let does = match request {
        Request::Snapshot { is_delta: true, .. } => "takes a delta snapshot",
        Request::Snapshot { is_final: true, .. } => "takes the final full snapshot",
        Request::Snapshot { .. } => "takes a full snapshot",
        Request::Defragment => "defragments the members",
        Request::Compact { .. } => "compacts old revisions",
    };
    let mut page = Page::new(style);
    if is_followed {
        page.line(format!("Task {name} was created."));
        return page.text();
    }
    let deletion = match task.spec.ttl_seconds_after_finished {
        Some(0) => "; it is deleted as soon as it is finished".to_owned(),
        Some(seconds) => format!("; it is deleted {} after it is finished", time(seconds.into())),
        None => String::new(),
    };
    page.paragraph(
        "",
        "",
        &format!("Task {name} was created. It {does} of the Etcd {namespace}/{etcd}{deletion}."),
        Colour::Plain,
    );
    page.line(String::new());
    page.paragraph("  ", "  ", "Follow it:", Colour::Plain);
    page.command(&format!("kubectl messina etcd wait {name}{arguments}"));
    page.paragraph("  ", "  ", "List the tasks on this Etcd:", Colour::Plain);
    page.command(&format!("kubectl messina etcd tasks {etcd}{arguments}"));
    page.text()
}

/// Says how to follow a task again.
pub(super) fn interrupted(name: &str, arguments: &str) -> String {
    format!("The task continues. Follow it again:\n    kubectl messina etcd wait {name}{arguments}")
}

/// The arguments that make a suggested command use the same cluster and namespace.
pub(super) fn arguments(namespace: &str, access: &Access) -> String {
    let mut arguments = format!(" -n {namespace}");
    if let Some(context) = &access.context {
        arguments += &format!(" --context {}", quoted(context));
    }
    if let Some(file) = &access.kubeconfig {
        arguments += &format!(" --kubeconfig {}", quoted(&file.display().to_string()));
    }
    arguments
}

/// Quotes a word for a shell, if necessary.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:@=+,".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Formats a number of seconds, such as 1h30m.
fn time(seconds: i64) -> String {
    let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    parts.iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}")).collect()
}

/// The serialized name of a value.
pub(super) fn name_of(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|name| name.as_str().map(one_line)).unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests;
