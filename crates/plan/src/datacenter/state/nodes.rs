//! Which pods of a StatefulSet are up, and which of them are up to date.

use k8s_openapi::api::apps::v1::StatefulSet;
use messina_api::names;

use crate::datacenter::{
    model::{facts::pod::NodePod, observed::Observed, spec::MAX_NODES},
    state::{
        joining::has_joined,
        stateful_set::{is_rolled_out, partition, replicas},
    },
};

/// Returns the pods of a StatefulSet by ordinal; none where a pod is missing.
pub(crate) fn pods<'a>(
    observed: &'a Observed,
    stateful_set: &StatefulSet,
) -> impl Iterator<Item = (i32, Option<&'a NodePod>)> {
    let name = stateful_set.metadata.name.clone().unwrap_or_default();
    let ordinals = 0..replicas(stateful_set).min(MAX_NODES);
    ordinals.map(move |ordinal| (ordinal, observed.pods.get(&names::datacenter::member(&name, ordinal))))
}

/// Whether the StatefulSet is rolled out down to its partition: all pods are up, and those from the partition on are up
/// to date. Pods below the partition may be up to date too, so `status.updatedReplicas` does not suffice, and each pod
/// is checked.
pub(crate) fn is_settled(observed: &Observed, stateful_set: &StatefulSet) -> bool {
    let partition = partition(stateful_set);
    if partition == 0 {
        // The status of the StatefulSet may not yet show that a pod is gone.
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

/// Returns the last ordinal below the partition whose pod is not up to date.
pub(crate) fn next_below_partition(observed: &Observed, stateful_set: &StatefulSet) -> Option<i32> {
    let latest = stateful_set.status.as_ref().and_then(|status| status.update_revision.as_deref());
    let partition = partition(stateful_set);
    let is_old = |pod: Option<&NodePod>| pod.is_none_or(|pod| pod.revision.as_deref() != latest);
    let below = pods(observed, stateful_set).filter(|(ordinal, _)| *ordinal < partition);
    below.filter(|(_, pod)| is_old(*pod)).map(|(ordinal, _)| ordinal).last()
}

/// Returns the names of pods that are missing, being deleted or reported as not ready.
pub(crate) fn nodes_down(observed: &Observed, stateful_set: &StatefulSet) -> Vec<String> {
    missing_or(observed, stateful_set, NodePod::is_down)
}

/// Returns the names of pods that are missing or not known to be ready.
pub(crate) fn nodes_not_ready(observed: &Observed, stateful_set: &StatefulSet) -> Vec<String> {
    missing_or(observed, stateful_set, |pod| pod.is_down() || pod.ready.is_none())
}

/// Returns the names of pods that are missing or match.
fn missing_or(observed: &Observed, stateful_set: &StatefulSet, matches: impl Fn(&NodePod) -> bool) -> Vec<String> {
    let name = stateful_set.metadata.name.as_deref().unwrap_or_default();
    let found = pods(observed, stateful_set).filter(|(_, pod)| pod.is_none_or(&matches));
    found.map(|(ordinal, _)| names::datacenter::member(name, ordinal)).collect()
}
