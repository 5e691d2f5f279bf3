//! Trims objects in caches, to save memory. Decisions only read what is left; tests pass them trimmed objects too.

use k8s_openapi::api::{
    core::v1::{
        Container, ContainerStatus, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, Pod, PodCondition,
        PodSpec, PodStatus,
    },
    storage::v1::StorageClass,
};

use crate::datacenter::layout::{BARRIER_CONTAINER, SCYLLA_CONTAINER};

/// Trims a pod to its metadata, ScyllaDB's image, its addresses, its readiness, and what keeps it from starting.
pub fn trim_pod(pod: &mut Pod) {
    pod.spec = pod.spec.take().map(|spec| PodSpec {
        containers: spec.containers.into_iter().filter_map(scylla_image).collect(),
        ..PodSpec::default()
    });
    pod.status = pod.status.take().map(|status| PodStatus {
        pod_ip: status.pod_ip,
        pod_ips: status.pod_ips,
        conditions: status.conditions.map(relevant_conditions),
        container_statuses: status.container_statuses.map(waiting_containers),
        init_container_statuses: status.init_container_statuses.map(running_barrier),
        ..PodStatus::default()
    });
}

fn scylla_image(container: Container) -> Option<Container> {
    let Container { name, image, .. } = container;
    (name == SCYLLA_CONTAINER).then(|| Container { name, image, ..Container::default() })
}

/// Returns the conditions `PodScheduled` and `Ready`.
fn relevant_conditions(conditions: Vec<PodCondition>) -> Vec<PodCondition> {
    let relevant = conditions.into_iter().filter(|one| ["PodScheduled", "Ready"].contains(&one.type_.as_str()));
    relevant.map(|one| PodCondition { type_: one.type_, status: one.status, ..PodCondition::default() }).collect()
}

/// Returns the containers that are waiting, with the reason.
fn waiting_containers(containers: Vec<ContainerStatus>) -> Vec<ContainerStatus> {
    let waiting = containers.into_iter().filter(|one| one.state.as_ref().is_some_and(|state| state.waiting.is_some()));
    waiting.map(|one| ContainerStatus { name: one.name, state: one.state, ..ContainerStatus::default() }).collect()
}

/// Returns the bootstrap barrier, if it is running.
fn running_barrier(containers: Vec<ContainerStatus>) -> Vec<ContainerStatus> {
    let is_running = |one: &ContainerStatus| one.state.as_ref().is_some_and(|state| state.running.is_some());
    let running = containers.into_iter().filter(|one| one.name == BARRIER_CONTAINER && is_running(one));
    running.map(|one| ContainerStatus { name: one.name, state: one.state, ..ContainerStatus::default() }).collect()
}

/// Trims a claim to its metadata, requested and actual size, and the state of a resize.
pub fn trim_claim(claim: &mut PersistentVolumeClaim) {
    if let Some(spec) = claim.spec.as_mut() {
        (spec.selector, spec.access_modes, spec.data_source, spec.data_source_ref) = (None, None, None, None);
    }
}

/// Trims a StorageClass to whether its volumes can be expanded.
pub fn trim_class(class: &mut StorageClass) {
    (class.parameters, class.mount_options, class.allowed_topologies) = (None, None, None);
}

/// Trims a PersistentVolume to its node affinity.
pub fn trim_volume(volume: &mut PersistentVolume) {
    (volume.metadata.annotations, volume.metadata.managed_fields, volume.status) = (None, None, None);
    volume.spec = volume
        .spec
        .take()
        .map(|spec| PersistentVolumeSpec { node_affinity: spec.node_affinity, ..PersistentVolumeSpec::default() });
}
