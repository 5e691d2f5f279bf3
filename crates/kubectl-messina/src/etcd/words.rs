//! What is said of a task.

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
    page::{Colour, Look, Page},
};

/// How a task is seen that is not at its end. Its text is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sight {
    pub(super) state: String,
    /// Steps that are done, and all.
    pub(super) progress: Option<(u64, u64)>,
    pub(super) words: String,
}

impl Sight {
    /// Without the steps.
    pub(super) fn headline(&self) -> String {
        if self.words.is_empty() { self.state.clone() } else { format!("{}: {}", self.state, self.words) }
    }
}

impl fmt::Display for Sight {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.state)?;
        if let Some((done, total)) = self.progress {
            write!(formatter, " {done}/{total}")?;
        }
        if self.words.is_empty() { Ok(()) } else { write!(formatter, ": {}", self.words) }
    }
}

/// How a task is seen; and, if nobody has looked at it, since when that is odd.
pub(super) fn sight(task: &EtcdOperatorTask, unseen: Option<Duration>) -> Sight {
    let status = task.status.as_ref();
    let state = status.and_then(|status| status.state.as_ref());
    let words = match (state, unseen) {
        _ if task.metadata.deletion_timestamp.is_some() => "it is being deleted".to_owned(),
        (None, Some(unseen)) => {
            format!("nobody has looked at it for {} s: does the operator run?", unseen.as_secs())
        }
        (None, None) => "waits for the operator".to_owned(),
        (Some(TaskState::Pending), _) => status
            .and_then(|status| status.place)
            .and_then(|place| usize::try_from(place).ok())
            .filter(|place| *place > 0)
            .map_or_else(|| said(task), ahead),
        _ => said(task),
    };
    Sight { state: state.map_or("New".to_owned(), name_of), progress: progress(task), words }
}

/// How a task is seen while the API server does not answer.
pub(super) fn away(task: &EtcdOperatorTask) -> Sight {
    Sight { words: "the Kubernetes cluster does not answer; it is asked again".into(), ..sight(task, None) }
}

fn ahead(count: usize) -> String {
    if count == 1 { "1 task ahead".to_owned() } else { format!("{count} tasks ahead") }
}

/// Steps that are done, and all; while the task runs.
pub(super) fn progress(task: &EtcdOperatorTask) -> Option<(u64, u64)> {
    let status = task.status.as_ref().filter(|status| status.state == Some(TaskState::InProgress))?;
    let progress = status.progress.as_ref()?;
    let (done, total) = (progress.done.unwrap_or_default(), progress.total?);
    let (done, total) = (u64::try_from(done).ok()?, u64::try_from(total).ok()?);
    (total > 0).then_some((done, total))
}

/// What the operator says of a task, in one line; with the code of the error, if it speaks of one.
pub(super) fn said(task: &EtcdOperatorTask) -> String {
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

/// What a task has made; else what the operator says. In one line.
pub(super) fn made(task: &EtcdOperatorTask) -> String {
    one_line(&made_of(task))
}

fn made_of(task: &EtcdOperatorTask) -> String {
    let Some(status) = &task.status else { return String::new() };
    if status.state != Some(TaskState::Succeeded) {
        return said(task);
    }
    let members = status.members.as_deref().unwrap_or_default();
    if let Some(snapshot) = &status.snapshot {
        taken(snapshot)
    } else if !members.is_empty() {
        defragmented(members)
    } else if let Some(revision) = status.compacted_revision {
        format!("Revisions before {revision} are forgotten.")
    } else {
        said(task)
    }
}

fn taken(snapshot: &TakenSnapshot) -> String {
    let kind = match snapshot.kind.as_deref() {
        Some("Full") => "full snapshot",
        Some("Incr") => "delta",
        _ => "snapshot",
    };
    let name = snapshot.name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
    let revision = snapshot.revision.map(|revision| format!(", up to revision {revision}")).unwrap_or_default();
    let mark = if snapshot.is_final == Some(true) { "; it is marked as the last one" } else { "" };
    format!("The {kind}{name} was taken{revision}{mark}.")
}

fn defragmented(members: &[MemberOutcome]) -> String {
    let all = match members {
        [one] => format!("The member {} is defragmented", one.name.as_deref().unwrap_or_default()),
        many => format!("All {} members are defragmented", many.len()),
    };
    // A sum of what is known only in part would be wrong.
    let total = |size: fn(&MemberOutcome) -> Option<i64>| {
        members.iter().map(|member| size(member).and_then(|size| u64::try_from(size).ok())).sum::<Option<u64>>()
    };
    match (total(|one| one.size_before), total(|one| one.size_after)) {
        (Some(before), Some(after)) => format!("{all}: {} before, {} after.", HumanBytes(before), HumanBytes(after)),
        _ => format!("{all}."),
    }
}

/// The last thing that is said of a task that was followed.
pub(super) fn ending(task: &EtcdOperatorTask) -> String {
    let state = task.status.as_ref().and_then(|status| status.state.as_ref());
    let became = match state {
        Some(TaskState::Succeeded) => "succeeded",
        Some(TaskState::Failed) => "failed",
        _ => "was rejected",
    };
    let made = made(task);
    let (colon, made) = if made.is_empty() { (".", "") } else { (": ", made.as_str()) };
    format!("{} {became}{colon}{made}", task.name_any())
}

/// What is said when a task has been created.
pub(super) fn created(
    task: &EtcdOperatorTask,
    request: &Request,
    namespace: &str,
    arguments: &str,
    is_followed: bool,
    look: Look,
) -> String {
    let (name, etcd) =
        (task.name_any(), task.spec.etcd_reference().and_then(|etcd| etcd.name.clone()).unwrap_or_default());
    let does = match request {
        Request::Snapshot { is_delta: true, .. } => "takes a delta",
        Request::Snapshot { is_final: true, .. } => "takes the last full snapshot",
        Request::Snapshot { .. } => "takes a full snapshot",
        Request::Defragment => "defragments the members",
        Request::Compact { .. } => "forgets old revisions",
    };
    let mut page = Page::new(look);
    if is_followed {
        page.line(format!("Task {name} was created."));
        return page.text();
    }
    let goes = match task.spec.ttl_seconds_after_finished {
        Some(0) => "; it is deleted as soon as it has ended".to_owned(),
        Some(seconds) => format!("; it is deleted {} after its end", time(seconds.into())),
        None => String::new(),
    };
    page.paragraph(
        "",
        "",
        &format!("Task {name} was created. It {does} of the Etcd {namespace}/{etcd}{goes}."),
        Colour::Plain,
    );
    page.line(String::new());
    page.paragraph("  ", "  ", "Follow it:", Colour::Plain);
    page.command(&format!("kubectl messina etcd wait {name}{arguments}"));
    page.paragraph("  ", "  ", "See the tasks on this Etcd:", Colour::Plain);
    page.command(&format!("kubectl messina etcd tasks {etcd}{arguments}"));
    page.text()
}

/// What is said when nobody waits any longer.
pub(super) fn left_alone(name: &str, arguments: &str) -> String {
    format!("The task goes on. Follow it again:\n    kubectl messina etcd wait {name}{arguments}")
}

/// What commands that are proposed end with, so that they mean the same place.
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

/// As a shell takes it for one word.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:@=+,".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A time in seconds, in its greatest units.
fn time(seconds: i64) -> String {
    let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    parts.iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}")).collect()
}

/// The word for a value on the wire.
pub(super) fn name_of(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|name| name.as_str().map(one_line)).unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests;
