//! Which nodes of a StatefulSet are up, and which have changed.

use k8s_openapi::api::apps::v1::StatefulSet;
use messina_api::names;

use crate::datacenter::{
    model::{facts::pod::NodePod, observed::Observed, spec::MAX_NODES},
    state::{
        joining::has_joined,
        stateful_set::{is_rolled_out, partition, replicas},
    },
};

pub(crate) fn pods<'a>(
    observed: &'a Observed,
    stateful_set: &StatefulSet,
) -> impl Iterator<Item = (i32, Option<&'a NodePod>)> {
    let name = stateful_set.metadata.name.clone().unwrap_or_default();
    let ordinals = 0..replicas(stateful_set).min(MAX_NODES);
    ordinals.map(move |ordinal| (ordinal, observed.pods.get(&names::datacenter::member(&name, ordinal))))
}

/// Whether Kubernetes has done all that it may do now: all pods are there, and those that it may make anew are new. Below
/// the partition there may be new ones too, so the number of them does not tell, and pods are looked at.
pub(crate) fn is_settled(observed: &Observed, stateful_set: &StatefulSet) -> bool {
    let partition = partition(stateful_set);
    if partition == 0 {
        // Kubernetes may not have said yet that a pod is gone.
        let name = stateful_set.metadata.name.as_deref().unwrap_or_default();
        let is_known = |ordinal: i32| has_joined(observed, &names::datacenter::member(name, ordinal));
        return is_rolled_out(stateful_set)
            && pods(observed, stateful_set)
                .all(|(ordinal, pod)| pod.map_or_else(|| !is_known(ordinal), |pod| !pod.is_down()));
    }
    let Some(status) = &stateful_set.status else { return false };
    let generation = stateful_set.metadata.generation.unwrap_or(0);
    let replicas = replicas(stateful_set);
    let is_new = |pod: &NodePod| pod.revision == status.update_revision;
    status.observed_generation.is_some_and(|seen| seen > 0 && seen >= generation)
        && status.replicas == replicas
        && status.ready_replicas.unwrap_or(0) >= replicas
        && status.available_replicas.unwrap_or(0) >= replicas
        && pods(observed, stateful_set)
            .all(|(ordinal, pod)| pod.is_some_and(|pod| !pod.is_down() && (ordinal < partition || is_new(pod))))
}

/// The last pod below the partition that is yet to be made anew.
pub(crate) fn next_below_partition(observed: &Observed, stateful_set: &StatefulSet) -> Option<i32> {
    let latest = stateful_set.status.as_ref().and_then(|status| status.update_revision.as_deref());
    let partition = partition(stateful_set);
    let is_old = |pod: Option<&NodePod>| pod.is_none_or(|pod| pod.revision.as_deref() != latest);
    let below = pods(observed, stateful_set).filter(|(ordinal, _)| *ordinal < partition);
    below.filter(|(_, pod)| is_old(*pod)).map(|(ordinal, _)| ordinal).last()
}

/// Names of the pods that are missing, going or not ready, as far as is known.
pub(crate) fn nodes_down(observed: &Observed, stateful_set: &StatefulSet) -> Vec<String> {
    nodes_that_are(observed, stateful_set, NodePod::is_down)
}

/// Names of the pods of which it is not known that they are ready.
pub(crate) fn nodes_not_ready(observed: &Observed, stateful_set: &StatefulSet) -> Vec<String> {
    nodes_that_are(observed, stateful_set, |pod| pod.is_down() || pod.ready.is_none())
}

/// Names of the pods that are missing, or are so.
fn nodes_that_are(observed: &Observed, stateful_set: &StatefulSet, are_so: impl Fn(&NodePod) -> bool) -> Vec<String> {
    let name = stateful_set.metadata.name.as_deref().unwrap_or_default();
    let found = pods(observed, stateful_set).filter(|(_, pod)| pod.is_none_or(&are_so));
    found.map(|(ordinal, _)| names::datacenter::member(name, ordinal)).collect()
}
