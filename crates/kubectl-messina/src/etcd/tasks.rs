//! Tasks in the order of their queue.
//!
//! [`Tasks`] is also the JSON document that programs read: fields may be added to it, but none is removed or changes its
//! meaning while `version` stays the same.

use std::cmp::Reverse;

use jiff::Timestamp;
use kube::ResourceExt;
use messina_api::druid::v1alpha1::{EtcdOperatorTask, TaskState};
use messina_plan::etcd_task::{
    is_finished,
    queue::{QueuePosition, created_at},
};
use serde::Serialize;

use super::{
    TASK,
    create::Listed,
    messages::{self, name_of},
};
use crate::cluster::describe_namespace;

/// Tasks on etcd clusters.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Tasks {
    pub(super) version: u32,
    /// The namespace that was searched; none for all namespaces.
    pub(super) namespace: Option<String>,
    /// The Etcd whose tasks are listed; none for all Etcds.
    pub(super) etcd: Option<String>,
    /// By Etcd; first the queue, then the finished tasks, the newest first.
    pub(super) tasks: Vec<Task>,
    /// What could not be read, in sentences.
    pub(super) problems: Vec<String>,
}

/// A task.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Task {
    pub(super) namespace: String,
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) task_type: String,
    /// The Etcd that it runs on; none if it names none.
    pub(super) etcd: Option<Name>,
    /// None before the operator has reconciled it.
    pub(super) state: Option<String>,
    /// The minimum number of tasks ahead of it on the same Etcd; none for a finished task.
    pub(super) ahead: Option<usize>,
    /// Whether more tasks may be ahead of it, because the user may not list tasks of other namespaces.
    pub(super) may_have_more_ahead: bool,
    pub(super) progress: Option<Progress>,
    pub(super) created: Option<Timestamp>,
    /// Its result, or the last message of the operator.
    pub(super) says: String,
}

/// An object in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Name {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// The progress of a task.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Progress {
    pub(super) done: u64,
    pub(super) total: u64,
}

impl Tasks {
    /// Selects the tasks that are in a namespace, or run on an Etcd there; if an Etcd is named, only the tasks on it.
    pub(super) fn new(listed: &Listed, namespace: Option<String>, etcd: Option<String>) -> Self {
        let is_selected = |task: &&EtcdOperatorTask| {
            let Some(namespace) = &namespace else { return true };
            let runs_on = etcd_of(task);
            match &etcd {
                Some(etcd) => runs_on.is_some_and(|on| on.name == *etcd && on.namespace == *namespace),
                None => {
                    task.namespace().as_ref() == Some(namespace) || runs_on.is_some_and(|on| on.namespace == *namespace)
                }
            }
        };
        let mut selected: Vec<&EtcdOperatorTask> = listed.tasks.iter().filter(is_selected).collect();
        selected.sort_by_key(|task| {
            let over = is_done(task);
            (etcd_of(task), over, over.then(|| Reverse(created_at(task))), QueuePosition::of(task))
        });
        let tasks = selected.into_iter().map(|task| shown(task, listed)).collect();
        let problem = || {
            format!(
                "You may not list {} {}, so tasks of other namespaces on the same etcd clusters are not shown, and may \
                 be ahead: ask for that permission.",
                TASK.resource,
                describe_namespace(None)
            )
        };
        let problems = (!listed.all_namespaces_listed).then(problem).into_iter().collect();
        Self { version: 1, namespace, etcd, tasks, problems }
    }
}

fn shown(task: &EtcdOperatorTask, listed: &Listed) -> Task {
    let status = task.status.as_ref();
    let state = status.and_then(|status| status.state.as_ref());
    let ahead = ahead(task, &listed.tasks);
    let place = status.and_then(|status| status.place).filter(|_| state == Some(&TaskState::Pending));
    // The operator counts the tasks of all namespaces.
    let place = place.and_then(|place| usize::try_from(place).ok());
    let says = match (&ahead, place) {
        (Some(ahead), Some(_)) if listed.all_namespaces_listed => describe_queue(task, ahead),
        _ => messages::result(task),
    };
    // A task without a place in its status has no task ahead of it.
    let may_have_more_ahead = !listed.all_namespaces_listed && ahead.is_some() && (state.is_none() || place.is_some());
    let ahead = ahead.map(|ahead| match place.filter(|_| may_have_more_ahead) {
        Some(place) => place.max(ahead.len()),
        None => ahead.len(),
    });
    Task {
        namespace: task.namespace().unwrap_or_default(),
        name: task.name_any(),
        task_type: task.spec.task_type.as_ref().map(name_of).unwrap_or_default(),
        etcd: etcd_of(task),
        state: state.map(name_of),
        ahead,
        may_have_more_ahead,
        progress: messages::progress(task).map(|(done, total)| Progress { done, total }),
        created: task.metadata.creation_timestamp.as_ref().map(|time| time.0),
        says,
    }
}

/// The tasks ahead of this one, in the order of the queue: those that run, then by creation time and UID. The operator writes
/// their number into the status, but with a delay.
fn ahead<'a>(task: &EtcdOperatorTask, all: &'a [EtcdOperatorTask]) -> Option<Vec<&'a EtcdOperatorTask>> {
    let etcd = etcd_of(task)?;
    if is_done(task) {
        return None;
    }
    let own = QueuePosition::of(task);
    let is_before = |other: &&EtcdOperatorTask| {
        !is_done(other) && etcd_of(other).as_ref() == Some(&etcd) && QueuePosition::of(other) < own
    };
    let mut ahead: Vec<&EtcdOperatorTask> = all.iter().filter(is_before).collect();
    ahead.sort_by_key(|task| QueuePosition::of(task));
    Some(ahead)
}

/// Says which task a queued task waits for. The last message of the operator may be older than the list, so it is not used.
/// Only a list of all tasks shows which task is first.
fn describe_queue(task: &EtcdOperatorTask, ahead: &[&EtcdOperatorTask]) -> String {
    match ahead.first() {
        Some(first) if first.namespace() == task.namespace() => {
            format!("Waiting for task {} on the same etcd cluster.", first.name_any())
        }
        Some(first) => {
            let namespace = first.namespace().unwrap_or_default();
            format!("Waiting for task {namespace}/{} on the same etcd cluster.", first.name_any())
        }
        None => "It is next in the queue.".to_owned(),
    }
}

fn is_done(task: &EtcdOperatorTask) -> bool {
    is_finished(task.status.as_ref().and_then(|status| status.state.as_ref()))
}

fn etcd_of(task: &EtcdOperatorTask) -> Option<Name> {
    task.etcd().map(|(namespace, name)| Name { namespace, name })
}
