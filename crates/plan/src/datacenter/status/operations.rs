//! What metrics count: nodes by their state, and operations on the token ring by their result.

use std::collections::BTreeMap;

use k8s_openapi::api::{batch::v1::Job, core::v1::Service};
use messina_api::names::{
    annotation::{HOST_ID, LEAVING_HOST_ID},
    label::{NODE_JOB_TYPE, REPLACING_NODE_HOST_ID, SERVICE_TYPE, value},
};

use crate::{
    datacenter::{
        model::{
            facts::{job::CleanupJob, pod::NodePod},
            observed::Observed,
        },
        state::member::{Member, members},
    },
    metadata::{annotation, label},
    node::facts,
};

/// The state of a node. Each node is counted once, in the first of these states that applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "their words say it")]
pub enum NodeState {
    Maintenance,
    Replacing,
    Leaving,
    Joining,
    Ready,
    NotReady,
}

impl NodeState {
    /// All states.
    pub const ALL: [Self; 6] =
        [Self::Maintenance, Self::Replacing, Self::Leaving, Self::Joining, Self::Ready, Self::NotReady];

    /// Returns the value of the metric label.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Maintenance => "maintenance",
            Self::Replacing => "replacing",
            Self::Leaving => "leaving",
            Self::Joining => "joining",
            Self::Ready => "ready",
            Self::NotReady => "not_ready",
        }
    }
}

/// Returns the number of nodes in each state.
pub fn node_states(observed: &Observed) -> BTreeMap<NodeState, usize> {
    let mut states: BTreeMap<NodeState, usize> = NodeState::ALL.into_iter().map(|state| (state, 0)).collect();
    for member in members(observed).iter().filter(|member| !member.is_beyond_replicas(observed)) {
        *states.entry(state(observed, member)).or_default() += 1;
    }
    states
}

fn state(observed: &Observed, member: &Member<'_>) -> NodeState {
    if member.service.is_under_maintenance {
        NodeState::Maintenance
    } else if member.service.replacing_node_host_id.is_some() {
        NodeState::Replacing
    } else if member.is_asked_to_leave() || member.has_begun_to_leave() {
        NodeState::Leaving
    } else if !member.has_joined() {
        NodeState::Joining
    } else if observed.pods.get(member.name).is_some_and(NodePod::is_ready) {
        NodeState::Ready
    } else {
        NodeState::NotReady
    }
}

/// An operation on the token ring, or the cleanup that follows one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "their words say it")]
pub enum Operation {
    Join,
    Leave,
    Replace,
    Cleanup,
}

impl Operation {
    /// Returns the value of the metric label.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Join => "join",
            Self::Leave => "leave",
            Self::Replace => "replace",
            Self::Cleanup => "cleanup",
        }
    }
}

/// The result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "their words say it")]
pub enum Ending {
    Done,
    Withdrawn,
    Failed,
}

impl Ending {
    /// Returns the value of the metric label.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Withdrawn => "withdrawn",
            Self::Failed => "failed",
        }
    }
}

/// Returns the operation that ended between two versions of a node's Service; `after` is none if it was deleted.
pub fn finished_operation(before: &Service, after: Option<&Service>) -> Option<(Operation, Ending)> {
    if label(before, SERVICE_TYPE) != Some(value::MEMBER) {
        return None;
    }
    let host_id = annotation(before, HOST_ID);
    let was_leaving = host_id.is_some() && annotation(before, LEAVING_HOST_ID) == host_id;
    let Some(after) = after else { return was_leaving.then_some((Operation::Leave, Ending::Done)) };
    let is_same = annotation(after, HOST_ID) == host_id;
    match (label(before, REPLACING_NODE_HOST_ID), label(after, REPLACING_NODE_HOST_ID)) {
        (Some(replaced), None) => {
            let is_replaced = annotation(after, HOST_ID).is_some_and(|now| now != replaced);
            Some((Operation::Replace, if is_replaced { Ending::Done } else { Ending::Withdrawn }))
        }
        (_, Some(_)) => None,
        (None, None) if was_leaving && is_same && annotation(after, LEAVING_HOST_ID).is_none() => {
            Some((Operation::Leave, Ending::Withdrawn))
        }
        (None, None) => (!has_joined(before) && has_joined(after)).then_some((Operation::Join, Ending::Done)),
    }
}

fn has_joined(service: &Service) -> bool {
    service.metadata.annotations.as_ref().is_some_and(facts::has_joined)
}

/// Returns the cleanup that ended between two versions of its Job.
pub fn finished_cleanup(before: &Job, after: &Job) -> Option<(Operation, Ending)> {
    if label(after, NODE_JOB_TYPE) != Some(value::CLEANUP) {
        return None;
    }
    let (before, after) = (CleanupJob::of(before), CleanupJob::of(after));
    if !before.is_running() || after.is_running() {
        return None;
    }
    Some((Operation::Cleanup, if after.cleaned_up_ring().is_some() { Ending::Done } else { Ending::Failed }))
}
