//! One node restarts at a time, and only by our word.
//!
//! Kubernetes makes pods anew from the last one down to the partition of the StatefulSet, and no further. So a change of
//! the pods is written with a partition that leaves all but the last one alone, and then the partition goes down to the
//! next one, whenever all nodes of all racks are there. At rest it is 0.

use k8s_openapi::api::apps::v1::StatefulSet;
use messina_api::names::{self, label};

use super::{
    Observed,
    facts::NodePod,
    joining::has_joined,
    rollout::{is_rolled_out, replicas},
    validate::MOST_NODES,
};

/// A node that is to restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Restart {
    /// Name of the StatefulSet.
    pub(crate) stateful_set: String,
    /// The place of the node in it.
    pub(crate) ordinal: i32,
}

impl Restart {
    /// Name of the pod and of the Service.
    pub(crate) fn member(&self) -> String {
        names::datacenter::member(&self.stateful_set, self.ordinal)
    }
}

/// From which pod on Kubernetes makes pods anew.
pub(crate) fn partition(stateful_set: &StatefulSet) -> i32 {
    let strategy = stateful_set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    strategy.and_then(|strategy| strategy.rolling_update.as_ref()?.partition).unwrap_or(0).max(0)
}

pub(crate) fn set_partition(stateful_set: &mut StatefulSet, partition: i32) {
    let strategy = stateful_set.spec.as_mut().and_then(|spec| spec.update_strategy.as_mut());
    if let Some(rolling_update) = strategy.and_then(|strategy| strategy.rolling_update.as_mut()) {
        rolling_update.partition = Some(partition);
    }
}

/// The partition with which a change of the pods makes but the last one anew.
pub(crate) fn last_only(stateful_set: &StatefulSet) -> i32 {
    (replicas(stateful_set) - 1).max(0)
}

/// The version of ScyllaDB that new pods get.
pub(crate) fn template_version(stateful_set: &StatefulSet) -> Option<String> {
    let template = stateful_set.spec.as_ref()?.template.metadata.as_ref()?;
    template.labels.as_ref()?.get(label::SCYLLA_VERSION).cloned()
}

fn pods<'a>(observed: &'a Observed, stateful_set: &StatefulSet) -> impl Iterator<Item = (i32, Option<&'a NodePod>)> {
    let name = stateful_set.metadata.name.clone().unwrap_or_default();
    let ordinals = 0..replicas(stateful_set).min(MOST_NODES);
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

/// Whether there are places from this one on, and no node there has ever joined.
fn are_new(observed: &Observed, stateful_set: &StatefulSet, first: i32) -> bool {
    let name = stateful_set.metadata.name.as_deref().unwrap_or_default();
    let mut places = (first..replicas(stateful_set).min(MOST_NODES)).peekable();
    places.peek().is_some() && places.all(|ordinal| !has_joined(observed, &names::datacenter::member(name, ordinal)))
}

/// The partition that keeps nodes from restarting which serve, when others are down; none where the partition does so. They
/// were down, or all others were up, when they were let to restart.
pub(crate) fn holding(observed: &Observed, stateful_set: &StatefulSet) -> Option<i32> {
    let status = stateful_set.status.as_ref()?;
    let latest = status.update_revision.as_deref()?;
    // What Kubernetes has not looked at yet may be another revision, unless it is about places for more nodes: those get pods
    // as the others have, and pods change only when they have joined.
    let is_seen = status.observed_generation.unwrap_or(0) >= stateful_set.metadata.generation.unwrap_or(0)
        || are_new(observed, stateful_set, status.replicas);
    // Where Kubernetes has none left to make anew, pods that look old are seen late.
    if is_seen && status.updated_replicas.unwrap_or(0) >= replicas(stateful_set) {
        return None;
    }
    let down: Vec<String> = observed.stateful_sets.values().flat_map(|one| nodes_down(observed, one)).collect();
    let is_latest = |pod: &NodePod| is_seen && pod.revision.as_deref() == Some(latest);
    let is_old = |pod: &NodePod| !pod.is_down() && !is_latest(pod);
    let old = pods(observed, stateful_set).filter(|(_, pod)| pod.is_some_and(is_old)).map(|(ordinal, _)| ordinal);
    let held = old.last().map(|last| last + 1).filter(|_| !down.is_empty());
    held.filter(|held| *held > partition(stateful_set))
}

/// The partition with which a rack that is not there as a whole may be changed: no node that serves restarts. Where the
/// last ones are down, they are made anew. Where the last one serves, none is: the ones that are down go back to what they
/// were before (see [`stuck`]), and then the change begins with the last one.
pub(crate) fn correcting(observed: &Observed, stateful_set: &StatefulSet) -> i32 {
    let replicas = replicas(stateful_set);
    let ready = stateful_set.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0);
    // Where a pod does not tell, the first ones are taken for those that are ready.
    let serves = |ordinal: i32, pod: Option<&NodePod>| match pod.filter(|pod| pod.ready.is_some()) {
        Some(pod) => pod.is_ready(),
        None => ordinal < ready,
    };
    let last_serving = pods(observed, stateful_set).filter(|(ordinal, pod)| serves(*ordinal, *pod)).last();
    last_serving.map_or(0, |(ordinal, _)| ordinal + 1).min(replicas)
}

/// A pod that is down, that Kubernetes is to make anew, and that it does not touch: where pods start in order, it waits until
/// they are ready, which they never may be. Only the first that is down: those after it would not come back before it. With
/// the version that it gets, where that is known.
pub(crate) fn stuck<'a>(observed: &'a Observed, stateful_set: &StatefulSet) -> Option<(&'a NodePod, Option<String>)> {
    let status = stateful_set.status.as_ref()?;
    if status.observed_generation.unwrap_or(0) < stateful_set.metadata.generation.unwrap_or(0) {
        return None;
    }
    let (ordinal, pod) = pods(observed, stateful_set).find(|(_, pod)| pod.is_none_or(NodePod::is_down))?;
    let pod = pod.filter(|pod| !pod.is_being_deleted)?;
    let (current, update) = (status.current_revision.as_deref(), status.update_revision.as_deref());
    let partition = partition(stateful_set);
    let (target, version) = if ordinal >= partition {
        (update?, template_version(stateful_set))
    } else if partition >= replicas(stateful_set) && current != update {
        // All stay: that is written to have those that are down put back.
        let current = current?;
        let mut all = pods(observed, stateful_set).filter_map(|(_, pod)| pod);
        let same = all.find(|pod| pod.revision.as_deref() == Some(current));
        (current, same.and_then(|pod| pod.version.clone()))
    } else {
        return None;
    };
    pod.revision.as_ref().is_some_and(|own| own != target).then_some((pod, version))
}
