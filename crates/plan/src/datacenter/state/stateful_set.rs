//! Fields of a StatefulSet.

use k8s_openapi::api::apps::v1::StatefulSet;
use messina_api::names::label;

use crate::datacenter::layout::PARALLEL;

pub(crate) fn replicas(stateful_set: &StatefulSet) -> i32 {
    // Kubernetes' default is 1.
    stateful_set.spec.as_ref().map_or(0, |spec| spec.replicas.unwrap_or(1))
}

/// Whether all pods are available and up to date.
pub fn is_rolled_out(stateful_set: &StatefulSet) -> bool {
    let (Some(spec), Some(status)) = (&stateful_set.spec, &stateful_set.status) else { return false };
    let replicas = replicas(stateful_set);
    let generation = stateful_set.metadata.generation.unwrap_or(0);
    let is_seen = status.observed_generation.is_some_and(|seen| seen > 0 && seen >= generation);
    let are_there = status.replicas == replicas
        && status.ready_replicas.unwrap_or(0) >= replicas
        && status.available_replicas.unwrap_or(0) >= replicas;
    let partition = spec.update_strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref()?.partition);
    let are_new = match partition {
        Some(partition) => status.updated_replicas.unwrap_or(0) == replicas - partition.min(replicas),
        None => status.update_revision == status.current_revision,
    };
    is_seen && are_there && are_new
}

/// Whether a StatefulSet is being deleted. A write at that time may create a new StatefulSet of the same name.
pub(crate) fn is_being_deleted(stateful_set: &StatefulSet) -> bool {
    stateful_set.metadata.deletion_timestamp.is_some()
}

/// Returns the ordinal from which on Kubernetes recreates pods.
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

/// Returns the ordinal of the last pod: with this partition, Kubernetes recreates no other one.
pub(crate) fn last_ordinal(stateful_set: &StatefulSet) -> i32 {
    (replicas(stateful_set) - 1).max(0)
}

/// Returns the version of ScyllaDB in the pod template.
pub(crate) fn template_version(stateful_set: &StatefulSet) -> Option<String> {
    let template = stateful_set.spec.as_ref()?.template.metadata.as_ref()?;
    template.labels.as_ref()?.get(label::SCYLLA_VERSION).cloned()
}

pub(crate) fn is_parallel(stateful_set: &StatefulSet) -> bool {
    stateful_set.spec.as_ref().and_then(|spec| spec.pod_management_policy.as_deref()) == Some(PARALLEL)
}
