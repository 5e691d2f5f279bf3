//! Tasks, in line.
//!
//! [`Tasks`] is also the JSON document that programs read: fields are added to it, and none is taken away or changes its
//! meaning while `version` is the same.

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
    words::{self, name_of},
};
use crate::cluster::place;

/// Tasks on etcd clusters.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Tasks {
    pub(super) version: u32,
    /// Where was looked; none for everywhere.
    pub(super) namespace: Option<String>,
    /// The Etcd that was asked for; none for all.
    pub(super) etcd: Option<String>,
    /// By Etcd; first those in line, then those at their end, the newest first.
    pub(super) tasks: Vec<Task>,
    /// What could not be seen, in sentences.
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
    /// The Etcd that it works on; none when it names none.
    pub(super) etcd: Option<Name>,
    /// None before the operator has seen it.
    pub(super) state: Option<String>,
    /// How many tasks on the same Etcd come before it, at least; none at its end.
    pub(super) ahead: Option<usize>,
    /// Whether more may come before it, because tasks of other namespaces may not be listed.
    pub(super) may_have_more_ahead: bool,
    pub(super) progress: Option<Progress>,
    pub(super) created: Option<Timestamp>,
    /// What it has made, or what the operator says of it.
    pub(super) says: String,
}

/// An object in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Name {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// How far a task has come.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Progress {
    pub(super) done: u64,
    pub(super) total: u64,
}

impl Tasks {
    /// Those of all tasks that are in a namespace, or work on an Etcd there; if an Etcd is named, only those on it.
    pub(super) fn new(listed: &Listed, namespace: Option<String>, etcd: Option<String>) -> Self {
        let is_meant = |task: &&EtcdOperatorTask| {
            let Some(namespace) = &namespace else { return true };
            let works_on = etcd_of(task);
            match &etcd {
                Some(etcd) => works_on.is_some_and(|on| on.name == *etcd && on.namespace == *namespace),
                None => {
                    task.namespace().as_ref() == Some(namespace)
                        || works_on.is_some_and(|on| on.namespace == *namespace)
                }
            }
        };
        let mut meant: Vec<&EtcdOperatorTask> = listed.tasks.iter().filter(is_meant).collect();
        meant.sort_by_key(|task| {
            let over = is_over(task);
            (etcd_of(task), over, over.then(|| Reverse(created_at(task))), QueuePosition::of(task))
        });
        let tasks = meant.into_iter().map(|task| shown(task, listed)).collect();
        let problem = || {
            format!(
                "You may not list {} {}, so tasks of other namespaces on the same etcd clusters are not shown, and may \
                 come first: ask for that permission.",
                TASK.resource,
                place(None)
            )
        };
        let problems = (!listed.is_everywhere).then(problem).into_iter().collect();
        Self { version: 1, namespace, etcd, tasks, problems }
    }
}

fn shown(task: &EtcdOperatorTask, listed: &Listed) -> Task {
    let status = task.status.as_ref();
    let state = status.and_then(|status| status.state.as_ref());
    let ahead = ahead(task, &listed.tasks);
    let place = status.and_then(|status| status.place).filter(|_| state == Some(&TaskState::Pending));
    // The operator sees all of them.
    let place = place.and_then(|place| usize::try_from(place).ok());
    let says = match (&ahead, place) {
        (Some(ahead), Some(_)) if listed.is_everywhere => turn(task, ahead),
        _ => words::made(task),
    };
    // Of a task without a place the operator says that nothing comes before it.
    let may_have_more_ahead = !listed.is_everywhere && ahead.is_some() && (state.is_none() || place.is_some());
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
        progress: words::progress(task).map(|(done, total)| Progress { done, total }),
        created: task.metadata.creation_timestamp.as_ref().map(|time| time.0),
        says,
    }
}

/// The tasks that come before this one, the first in line first: those that run, then those that were created before,
/// then by UID. The operator writes their number into the status, but not at once.
fn ahead<'a>(task: &EtcdOperatorTask, all: &'a [EtcdOperatorTask]) -> Option<Vec<&'a EtcdOperatorTask>> {
    let etcd = etcd_of(task)?;
    if is_over(task) {
        return None;
    }
    let own = QueuePosition::of(task);
    let is_before = |other: &&EtcdOperatorTask| {
        !is_over(other) && etcd_of(other).as_ref() == Some(&etcd) && QueuePosition::of(other) < own
    };
    let mut ahead: Vec<&EtcdOperatorTask> = all.iter().filter(is_before).collect();
    ahead.sort_by_key(|task| QueuePosition::of(task));
    Some(ahead)
}

/// What the operator says of a task that waits for its turn may be about a moment ago. Whose turn it is can be told only where
/// all tasks may be listed.
fn turn(task: &EtcdOperatorTask, ahead: &[&EtcdOperatorTask]) -> String {
    match ahead.first() {
        Some(first) if first.namespace() == task.namespace() => {
            format!("Waits for its turn; it is that of {}.", first.name_any())
        }
        Some(first) => {
            let namespace = first.namespace().unwrap_or_default();
            format!("Waits for its turn; it is that of {namespace}/{}.", first.name_any())
        }
        None => "Its turn has come.".to_owned(),
    }
}

fn is_over(task: &EtcdOperatorTask) -> bool {
    is_finished(task.status.as_ref().and_then(|status| status.state.as_ref()))
}

fn etcd_of(task: &EtcdOperatorTask) -> Option<Name> {
    task.etcd().map(|(namespace, name)| Name { namespace, name })
}
