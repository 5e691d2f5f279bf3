//! The PersistentVolumeClaim of a node.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimStatus},
    apimachinery::pkg::api::resource::Quantity,
};
use messina_api::names::annotation::{JOINED_HOST_ID, LAST_IMAGE, LEFT_HOST_ID};

use crate::{datacenter::model::facts::ObjectReference, metadata};

/// The PersistentVolumeClaim of a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Claim {
    pub(crate) reference: ObjectReference,
    pub(crate) is_being_deleted: bool,
    pub(crate) created: Option<Timestamp>,
    /// The host ID of the node that has left the ring and whose data it holds.
    pub(crate) left_host_id: Option<String>,
    /// The host ID of the node that has joined the ring with it.
    pub(crate) joined_host_id: Option<String>,
    /// The image of ScyllaDB that last ran on it.
    pub(crate) last_image: Option<String>,
    /// Its StorageClass; none if it has none.
    pub(crate) class: Option<String>,
    /// Its volume.
    pub(crate) volume: Option<String>,
    pub(crate) phase: Option<String>,
    pub(crate) requested: Option<Quantity>,
    pub(crate) capacity: Option<Quantity>,
    /// Whether the driver has reported that it cannot expand the volume to the requested size.
    pub(crate) is_infeasible: bool,
    /// The message of a failed resize; empty if Kubernetes reports none.
    pub(crate) resize_error: Option<String>,
    /// The message of the condition `FileSystemResizePending`: the volume is expanded and its file system is not.
    pub(crate) file_system_resize_pending: Option<String>,
}

impl Claim {
    pub(crate) fn of(claim: &PersistentVolumeClaim) -> Self {
        let annotation = |key| metadata::annotation(claim, key).map(ToOwned::to_owned);
        let (spec, status) = (claim.spec.as_ref(), claim.status.as_ref());
        let condition = |kind: &str| status.and_then(|status| condition(status, kind));
        Self {
            reference: ObjectReference::of(&claim.metadata),
            is_being_deleted: claim.metadata.deletion_timestamp.is_some(),
            created: claim.metadata.creation_timestamp.as_ref().map(|time| time.0),
            left_host_id: annotation(LEFT_HOST_ID),
            joined_host_id: annotation(JOINED_HOST_ID),
            last_image: annotation(LAST_IMAGE),
            class: spec.and_then(|spec| spec.storage_class_name.clone()).filter(|class| !class.is_empty()),
            volume: spec.and_then(|spec| spec.volume_name.clone()),
            phase: status.and_then(|status| status.phase.clone()),
            requested: requested_storage(claim).cloned(),
            capacity: status.and_then(|status| status.capacity.as_ref()?.get("storage").cloned()),
            is_infeasible: status.is_some_and(is_infeasible),
            resize_error: condition("ControllerResizeError").or_else(|| condition("NodeResizeError")),
            file_system_resize_pending: condition("FileSystemResizePending"),
        }
    }

    pub(crate) fn is_bound(&self) -> bool {
        self.phase.as_deref() == Some("Bound")
    }

    /// Whether its phase is `Lost`.
    pub(crate) fn is_lost(&self) -> bool {
        self.phase.as_deref() == Some("Lost")
    }

    /// Whether it may hold the data of a node that has not left.
    pub(crate) fn is_of_a_node(&self) -> bool {
        self.left_host_id.is_none()
    }

    /// Whether it holds the data of a node that has joined and has not left.
    pub(crate) fn has_joined(&self) -> bool {
        self.joined_host_id.is_some() && self.is_of_a_node() && !self.is_being_deleted
    }
}

/// Returns the requested size of a claim or claim template.
pub(crate) fn requested_storage(claim: &PersistentVolumeClaim) -> Option<&Quantity> {
    claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get("storage")
}

/// Returns the message of a condition that is `True`; empty if it has none.
fn condition(status: &PersistentVolumeClaimStatus, kind: &str) -> Option<String> {
    let mut conditions = status.conditions.iter().flatten();
    let condition = conditions.find(|condition| condition.type_ == kind && condition.status == "True")?;
    Some(messina_text::line(condition.message.as_deref().unwrap_or_default(), 1000))
}

fn is_infeasible(status: &PersistentVolumeClaimStatus) -> bool {
    let statuses = status.allocated_resource_statuses.as_ref();
    statuses.and_then(|statuses| statuses.get("storage")).is_some_and(|status| status.ends_with("Infeasible"))
}
