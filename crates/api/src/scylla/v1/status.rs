//! What has become of a cluster.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{BackupTaskStatus, RepairTaskStatus};
use crate::schema;

/// The cluster as it is.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaClusterStatus {
    /// The generation of this object that the rest of the status speaks of.
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
    /// The ID under which ScyllaDB Manager knows the cluster. Absent until it is registered there.
    pub manager_id: Option<String>,
    /// The repairs as ScyllaDB Manager has them.
    pub repairs: Option<Vec<RepairTaskStatus>>,
    /// The backups as ScyllaDB Manager has them.
    pub backups: Option<Vec<BackupTaskStatus>>,
    /// How far an upgrade of ScyllaDB has come. Absent when there is none.
    pub upgrade: Option<UpgradeStatus>,
    /// Conditions of the cluster: Available, Progressing and Degraded, and the same for each component. A change is
    /// rolled out once Available is True and the other two are False.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Option<Vec<Condition>>,
}

/// A rack as it is.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RackStatus {
    /// Version of ScyllaDB that the rack runs.
    pub version: Option<String>,
    /// Number of nodes that the rack is asked to have.
    pub members: Option<i32>,
    /// Number of nodes that are ready.
    pub ready_members: Option<i32>,
    /// Number of nodes that have been ready for long enough to count as available.
    pub available_members: Option<i32>,
    /// Number of nodes that already run as the spec asks.
    pub updated_members: Option<i32>,
    /// Whether these numbers speak of an earlier generation of this object and will be renewed.
    pub stale: Option<bool>,
    /// What the rack is in the middle of.
    pub conditions: Option<Vec<RackCondition>>,
    /// Deprecated, and empty with every version of ScyllaDB that can be used today: addresses of nodes that are being
    /// replaced, by the name of the node that takes over.
    #[serde(rename = "replace_address_first_boot")]
    pub replace_address_first_boot: Option<BTreeMap<String, String>>,
}

/// What a rack may be in the middle of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum RackConditionType {
    /// A node is decommissioned.
    MemberLeaving,
    /// A node hands its data over before it leaves.
    MemberDecommissioning,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// Something that a rack is in the middle of.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RackCondition {
    /// What it is: MemberLeaving or MemberDecommissioning.
    #[serde(rename = "type")]
    pub condition_type: Option<RackConditionType>,
    /// Whether it is so: True, False or Unknown.
    pub status: Option<String>,
}

/// How far an upgrade of ScyllaDB has come.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpgradeStatus {
    /// The step of the upgrade.
    pub state: Option<String>,
    /// Deprecated: the node whose turn it is.
    pub current_node: Option<String>,
    /// Deprecated: the rack whose turn it is.
    pub current_rack: Option<String>,
    /// The version that is left behind.
    pub from_version: Option<String>,
    /// The version that is being installed.
    pub to_version: Option<String>,
    /// Name of the snapshot of the system keyspaces that was taken before the upgrade.
    pub system_snapshot_tag: Option<String>,
    /// Name of the snapshot of a node's data that is taken before it is upgraded.
    pub data_snapshot_tag: Option<String>,
}
