//! Whether the pods of a rack that is not rolled out may be changed.
//!
//! What keeps a rack from rolling out may be a slip in the specification, such as an image that is not there. Then
//! nothing helps but to correct the pods. It may also be a node that is joining, which must not be disturbed, nor be
//! started anew with another version than the rest.

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ContainerStatus, Pod, Service},
};
use messina_api::names;

use super::{
    Observed,
    pod::{BARRIER_CONTAINER, SCYLLA_CONTAINER},
    rollout::replicas,
    topology,
    validate::MOST_NODES,
};

pub(crate) fn may_be_corrected(observed: &Observed, stateful_set: &StatefulSet) -> bool {
    let name = stateful_set.metadata.name.as_deref().unwrap_or_default();
    let members = (0..replicas(stateful_set).min(MOST_NODES)).map(|ordinal| names::datacenter::member(name, ordinal));
    !members.into_iter().any(|member| may_be_joining(observed, &member))
}

/// Whether any node of the datacenter has joined. Before that, there is no cluster to disturb.
pub(crate) fn has_cluster(observed: &Observed) -> bool {
    observed.services.values().any(topology::has_joined)
}

/// Whether the node of this name has ever joined.
pub(crate) fn has_joined(observed: &Observed, member: &str) -> bool {
    observed.services.get(member).is_some_and(topology::has_joined)
}

/// Whether a node that is down may be joining, and must not be disturbed.
pub(crate) fn may_be_joining(observed: &Observed, member: &str) -> bool {
    // One that replaces another one has not joined, whatever its Service tells of that one.
    let has_joined = |service: &Service| topology::has_joined(service) && !topology::is_replaced(service);
    if observed.services.get(member).is_some_and(has_joined) {
        return false;
    }
    match observed.pods.get(member) {
        Some(pod) => !cannot_start(pod),
        // A pod that is not there yet starts, and joins, with whatever the StatefulSet says then.
        None => has_cluster(observed),
    }
}

/// Whether the pod has no machine, its ScyllaDB container gives up again and again, or that has yet to start because an init
/// container waits for all other nodes to be up: where that one is scylla-operator's, it waits for ever.
pub(crate) fn cannot_start(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let is_unscheduled = |condition: &&k8s_openapi::api::core::v1::PodCondition| {
        condition.type_ == "PodScheduled" && condition.status == "False"
    };
    let containers = status.container_statuses.iter().flatten();
    let waiting = containers
        .filter(|container| container.name == SCYLLA_CONTAINER)
        .find_map(|container| container.state.as_ref()?.waiting.as_ref()?.reason.as_deref());
    let is_at_barrier = |container: &ContainerStatus| {
        container.name == BARRIER_CONTAINER && container.state.as_ref().is_some_and(|state| state.running.is_some())
    };
    status.conditions.iter().flatten().any(|condition| is_unscheduled(&condition))
        || status.init_container_statuses.iter().flatten().any(is_at_barrier)
        || waiting.is_some_and(|reason| !["ContainerCreating", "PodInitializing"].contains(&reason))
}
