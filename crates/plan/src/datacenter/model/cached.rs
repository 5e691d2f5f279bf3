//! What caches keep of Kubernetes' objects: there are many, and they are long. Decisions are made from what is left, so tests
//! show them no more than that either.

use k8s_openapi::api::{
    core::v1::{
        Container, ContainerStatus, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, Pod, PodCondition,
        PodSpec, PodStatus,
    },
    storage::v1::StorageClass,
};

use crate::datacenter::layout::{BARRIER_CONTAINER, SCYLLA_CONTAINER};

/// Leaves of a pod who it is, which image it runs, where it is reached, whether it is ready, and what keeps it from starting.
pub fn trim_pod(pod: &mut Pod) {
    pod.spec = pod.spec.take().map(|spec| PodSpec {
        containers: spec.containers.into_iter().filter_map(scylla_image).collect(),
        ..PodSpec::default()
    });
    pod.status = pod.status.take().map(|status| PodStatus {
        pod_ip: status.pod_ip,
        pod_ips: status.pod_ips,
        conditions: status.conditions.map(told_conditions),
        container_statuses: status.container_statuses.map(waiting_containers),
        init_container_statuses: status.init_container_statuses.map(running_barrier),
        ..PodStatus::default()
    });
}

fn scylla_image(container: Container) -> Option<Container> {
    let Container { name, image, .. } = container;
    (name == SCYLLA_CONTAINER).then(|| Container { name, image, ..Container::default() })
}

/// Whether a pod has a machine, and is ready.
fn told_conditions(conditions: Vec<PodCondition>) -> Vec<PodCondition> {
    let told = conditions.into_iter().filter(|one| ["PodScheduled", "Ready"].contains(&one.type_.as_str()));
    told.map(|one| PodCondition { type_: one.type_, status: one.status, ..PodCondition::default() }).collect()
}

/// Containers that have yet to start, and why they have not.
fn waiting_containers(containers: Vec<ContainerStatus>) -> Vec<ContainerStatus> {
    let waiting = containers.into_iter().filter(|one| one.state.as_ref().is_some_and(|state| state.waiting.is_some()));
    waiting.map(|one| ContainerStatus { name: one.name, state: one.state, ..ContainerStatus::default() }).collect()
}

/// The init container that waits for all other nodes to be up, while it runs.
fn running_barrier(containers: Vec<ContainerStatus>) -> Vec<ContainerStatus> {
    let is_running = |one: &ContainerStatus| one.state.as_ref().is_some_and(|state| state.running.is_some());
    let running = containers.into_iter().filter(|one| one.name == BARRIER_CONTAINER && is_running(one));
    running.map(|one| ContainerStatus { name: one.name, state: one.state, ..ContainerStatus::default() }).collect()
}

/// Leaves of a claim how large it is, how large it is to be, and what keeps it from that.
pub fn trim_claim(claim: &mut PersistentVolumeClaim) {
    if let Some(spec) = claim.spec.as_mut() {
        (spec.selector, spec.access_modes, spec.data_source, spec.data_source_ref) = (None, None, None, None);
    }
}

/// Leaves of a StorageClass whether its volumes can grow.
pub fn trim_class(class: &mut StorageClass) {
    (class.parameters, class.mount_options, class.allowed_topologies) = (None, None, None);
}

/// Leaves of a volume which machines can have it.
pub fn trim_volume(volume: &mut PersistentVolume) {
    (volume.metadata.annotations, volume.metadata.managed_fields, volume.status) = (None, None, None);
    volume.spec = volume
        .spec
        .take()
        .map(|spec| PersistentVolumeSpec { node_affinity: spec.node_affinity, ..PersistentVolumeSpec::default() });
}
