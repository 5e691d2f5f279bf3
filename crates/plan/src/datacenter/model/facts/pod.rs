//! The pod of a node.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus};
use messina_api::{
    names::{annotation, image_version, label},
    scylla::v1alpha1::{NodeStatus, ObservedNodeStatusReport},
};
use serde::Deserialize;

use crate::{
    datacenter::{
        layout::{BARRIER_CONTAINER, RESTARTED_AT, SCYLLA_CONTAINER},
        model::facts::ObjectReference,
    },
    metadata,
    node::address::PodAddresses,
};

/// The label with the revision of the StatefulSet from which a pod was created.
const REVISION: &str = "controller-revision-hash";

/// The pod of a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodePod {
    pub(crate) reference: ObjectReference,
    pub(crate) is_being_deleted: bool,
    /// Its condition `Ready`; none if it has none.
    pub(crate) ready: Option<bool>,
    /// Whether its condition `PodScheduled` is `False`.
    pub(crate) is_unschedulable: bool,
    /// Whether the bootstrap barrier is running: the init container that waits for all other nodes to be up.
    pub(crate) is_at_barrier: bool,
    /// The reason why ScyllaDB's container is waiting.
    pub(crate) waiting: Option<String>,
    /// The revision of its StatefulSet that it was created from.
    pub(crate) revision: Option<String>,
    /// The version of ScyllaDB.
    pub(crate) version: Option<String>,
    /// The image of ScyllaDB.
    pub(crate) image: Option<String>,
    pub(crate) addresses: PodAddresses,
    /// The hash of the configuration that its node reads at start.
    pub(crate) inputs_hash: Option<String>,
    /// When the user last requested a restart of its StatefulSet.
    pub(crate) restarted_at: Option<String>,
    /// The state of the ring, as reported by a sidecar of scylla-operator.
    pub(crate) status_report: Option<StatusReport>,
}

impl NodePod {
    pub(crate) fn of(pod: &Pod) -> Self {
        let image = scylla_image(pod);
        let status = pod.status.as_ref();
        let annotation = |key| metadata::annotation(pod, key).map(ToOwned::to_owned);
        // Pods that this operator has created have the label; others have the version in the image only.
        let version = metadata::label(pod, label::SCYLLA_VERSION);
        let version = version.or_else(|| image.and_then(|image| image_version(image).ok()));
        Self {
            reference: ObjectReference::of(&pod.metadata),
            is_being_deleted: pod.metadata.deletion_timestamp.is_some(),
            ready: status.and_then(|status| condition(status, "Ready")).map(|ready| ready == "True"),
            is_unschedulable: status.and_then(|status| condition(status, "PodScheduled")) == Some("False"),
            is_at_barrier: status.is_some_and(is_at_barrier),
            waiting: status.and_then(waiting),
            revision: metadata::label(pod, REVISION).map(ToOwned::to_owned),
            version: version.map(ToOwned::to_owned),
            image: image.map(ToOwned::to_owned),
            addresses: PodAddresses::of(pod),
            inputs_hash: annotation(annotation::INPUTS_HASH),
            restarted_at: annotation(RESTARTED_AT),
            status_report: metadata::annotation(pod, annotation::NODE_STATUS_REPORT).and_then(StatusReport::parse),
        }
    }

    /// Whether it is ready and not being deleted.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready == Some(true) && !self.is_being_deleted
    }

    /// Whether it is being deleted or not ready.
    pub(crate) fn is_down(&self) -> bool {
        self.is_being_deleted || self.ready == Some(false)
    }

    /// Whether it is unschedulable, its ScyllaDB container cannot start (such as `CrashLoopBackOff`), or the bootstrap
    /// barrier is running: that of scylla-operator waits without a timeout.
    pub(crate) fn cannot_start(&self) -> bool {
        let is_stuck = |reason: &String| !["ContainerCreating", "PodInitializing"].contains(&reason.as_str());
        self.is_unschedulable || self.is_at_barrier || self.waiting.as_ref().is_some_and(is_stuck)
    }
}

fn scylla_image(pod: &Pod) -> Option<&str> {
    let containers = &pod.spec.as_ref()?.containers;
    containers.iter().find(|container| container.name == SCYLLA_CONTAINER)?.image.as_deref()
}

fn condition<'a>(status: &'a PodStatus, kind: &str) -> Option<&'a str> {
    let condition = status.conditions.iter().flatten().find(|condition| condition.type_ == kind)?;
    Some(&condition.status)
}

fn is_at_barrier(status: &PodStatus) -> bool {
    states(&status.init_container_statuses, BARRIER_CONTAINER).any(|state| state.running.is_some())
}

fn waiting(status: &PodStatus) -> Option<String> {
    states(&status.container_statuses, SCYLLA_CONTAINER).find_map(|state| state.waiting.as_ref()?.reason.clone())
}

fn states<'a>(containers: &'a Option<Vec<ContainerStatus>>, name: &str) -> impl Iterator<Item = &'a ContainerState> {
    let named = containers.iter().flatten().filter(move |container| container.name == name);
    named.filter_map(|container| container.state.as_ref())
}

/// The annotation that a sidecar of scylla-operator writes on its pod, if the feature gate `BootstrapSynchronisation`
/// is on.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct StatusReport {
    observed_nodes: Vec<ObservedNodeStatusReport>,
    pub(crate) error: Option<String>,
}

impl StatusReport {
    fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Returns the reported state of a node; none if it is not reported.
    pub(crate) fn status(&self, host_id: &str) -> Option<&NodeStatus> {
        self.observed_nodes.iter().find(|node| node.host_id.as_deref() == Some(host_id))?.status.as_ref()
    }
}
