//! Whether the pods of a rack that is not rolled out may be changed.
//!
//! What keeps a rack from rolling out may be a slip in the specification, such as an image that is not there. Then
//! nothing helps but to correct the pods. It may also be a node that is joining, which must not be disturbed, nor be
//! started anew with another version than the rest.

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Pod, Service},
};
use messina_api::names::{self, annotation, label};

use super::{Observed, pod::SCYLLA_CONTAINER, rollout::replicas, validate::MOST_NODES};

pub(crate) fn may_be_corrected(observed: &Observed, stateful_set: &StatefulSet) -> bool {
    let name = stateful_set.metadata.name.as_deref().unwrap_or_default();
    let members = (0..replicas(stateful_set).min(MOST_NODES)).map(|ordinal| names::datacenter::member(name, ordinal));
    !members.into_iter().any(|member| may_be_joining(observed, &member))
}

/// Whether any node of the datacenter has joined. Before that, there is no cluster to disturb.
pub(crate) fn has_cluster(observed: &Observed) -> bool {
    observed.services.values().any(says_joined)
}

/// Whether the node of this name has ever joined.
pub(crate) fn has_joined(observed: &Observed, member: &str) -> bool {
    observed.services.get(member).is_some_and(says_joined)
}

fn says_joined(service: &Service) -> bool {
    let annotations = service.metadata.annotations.as_ref();
    annotations.and_then(|annotations| annotations.get(annotation::NODE_JOINED)).is_some_and(|joined| joined == "true")
}

/// Whether the node that has joined is replaced by another one, which has not.
fn is_replaced(service: &Service) -> bool {
    let labels = service.metadata.labels.as_ref();
    let replaced = labels.and_then(|labels| labels.get(label::REPLACING_NODE_HOST_ID));
    let annotations = service.metadata.annotations.as_ref();
    replaced.is_some() && replaced == annotations.and_then(|annotations| annotations.get(annotation::HOST_ID))
}

/// Whether a node that is down may be joining, and must not be disturbed.
pub(crate) fn may_be_joining(observed: &Observed, member: &str) -> bool {
    if observed.services.get(member).is_some_and(|service| says_joined(service) && !is_replaced(service)) {
        return false;
    }
    match observed.pods.get(member) {
        Some(pod) => !cannot_start(pod),
        // A pod that is not there yet starts, and joins, with whatever the StatefulSet says then.
        None => has_cluster(observed),
    }
}

/// Whether the pod has no machine, or its ScyllaDB container gives up again and again.
fn cannot_start(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let is_unscheduled = |condition: &&k8s_openapi::api::core::v1::PodCondition| {
        condition.type_ == "PodScheduled" && condition.status == "False"
    };
    let containers = status.container_statuses.iter().flatten();
    let waiting = containers
        .filter(|container| container.name == SCYLLA_CONTAINER)
        .find_map(|container| container.state.as_ref()?.waiting.as_ref()?.reason.as_deref());
    status.conditions.iter().flatten().any(|condition| is_unscheduled(&condition))
        || waiting.is_some_and(|reason| !["ContainerCreating", "PodInitializing"].contains(&reason))
}
