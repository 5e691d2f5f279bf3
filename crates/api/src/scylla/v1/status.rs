//! Status of a cluster.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{BackupTaskStatus, RepairTaskStatus};
use crate::schema;

/// Status of the cluster.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaClusterStatus {
    /// The most recent generation of this object that the operator has observed.
    pub observed_generation: Option<i64>,
    /// Number of ready nodes in each rack, for `kubectl scale` and autoscalers. While racks differ in that number, it
    /// keeps its last value.
    pub replicas: Option<i32>,
    /// The racks by name.
    pub racks: Option<BTreeMap<String, RackStatus>>,
    /// Number of nodes in all racks.
    pub members: Option<i32>,
    /// Number of nodes in all racks that are ready.
    pub ready_members: Option<i32>,
    /// Number of nodes in all racks that have been ready for long enough to count as available.
    pub available_members: Option<i32>,
    /// Number of racks.
    pub rack_count: Option<i32>,
    /// The ID of the cluster in ScyllaDB Manager. Unset until the cluster is registered.
    pub manager_id: Option<String>,
    /// The repairs as ScyllaDB Manager has them.
    pub repairs: Option<Vec<RepairTaskStatus>>,
    /// The backups as ScyllaDB Manager has them.
    pub backups: Option<Vec<BackupTaskStatus>>,
    /// Progress of an upgrade of ScyllaDB. Unset if no upgrade is in progress.
    pub upgrade: Option<UpgradeStatus>,
    /// Conditions of the cluster: Available, Progressing and Degraded, and the same for each component. The rollout is
    /// complete when Available is True and the other two are False.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Option<Vec<Condition>>,
}

/// Status of a rack.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RackStatus {
    /// Version of ScyllaDB that the rack runs.
    pub version: Option<String>,
    /// Desired number of nodes.
    pub members: Option<i32>,
    /// Number of nodes that are ready.
    pub ready_members: Option<i32>,
    /// Number of nodes that have been ready for long enough to count as available.
    pub available_members: Option<i32>,
    /// Number of nodes that match the spec.
    pub updated_members: Option<i32>,
    /// Whether these numbers are of an earlier generation of this object.
    pub stale: Option<bool>,
    /// Conditions of the rack.
    pub conditions: Option<Vec<RackCondition>>,
    /// Deprecated, and empty with every version of ScyllaDB that can be used today: addresses of nodes that are being
    /// replaced, by the name of the node that takes over.
    #[serde(rename = "replace_address_first_boot")]
    pub replace_address_first_boot: Option<BTreeMap<String, String>>,
}

/// The type of a condition of a rack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum RackConditionType {
    /// A node is decommissioned.
    MemberLeaving,
    /// A node streams its data to other nodes before it leaves.
    MemberDecommissioning,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// A condition of a rack.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RackCondition {
    /// The type: MemberLeaving or MemberDecommissioning.
    #[serde(rename = "type")]
    pub condition_type: Option<RackConditionType>,
    /// The status: True, False or Unknown.
    pub status: Option<String>,
}

/// Progress of an upgrade of ScyllaDB.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpgradeStatus {
    /// The step of the upgrade.
    pub state: Option<String>,
    /// Deprecated: the node that is being upgraded.
    pub current_node: Option<String>,
    /// Deprecated: the rack that is being upgraded.
    pub current_rack: Option<String>,
    /// The version before the upgrade.
    pub from_version: Option<String>,
    /// The version after the upgrade.
    pub to_version: Option<String>,
    /// Name of the snapshot of the system keyspaces that was taken before the upgrade.
    pub system_snapshot_tag: Option<String>,
    /// Name of the snapshot of a node's data that is taken before it is upgraded.
    pub data_snapshot_tag: Option<String>,
}
