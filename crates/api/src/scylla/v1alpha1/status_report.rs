//! The node status that each node reports of all nodes: [`ScyllaDBStatusReport`], and the part of each node's sidecar.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::schema;

/// The status of all nodes of a cluster as each node reports it. A new node bootstraps only when all nodes report all
/// nodes as UP. The operator creates this object; do not edit it.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[kube(
    group = "scylla.scylladb.com",
    version = "v1alpha1",
    kind = "ScyllaDBStatusReport",
    namespaced,
    no_spec,
    derive = "Default",
    derive = "PartialEq",
    schema = "disabled",
    category = "scylladb",
    annotation("scylla-operator.scylladb.com/internal-api-type", "true")
)]
pub struct StatusReport {
    /// The reports of each datacenter.
    pub datacenters: Option<Vec<DatacenterStatusReport>>,
}

/// The reports of the nodes of a datacenter.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DatacenterStatusReport {
    /// Name of the datacenter in ScyllaDB.
    pub name: Option<String>,
    /// The report of each node. A node that has not reported yet is missing.
    pub nodes: Option<Vec<NodeStatusReport>>,
}

/// The report of one node.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatusReport {
    /// Host ID of the reporting node.
    #[serde(rename = "hostID")]
    pub host_id: Option<String>,
    /// The status of the nodes that own tokens, including the reporting node.
    pub observed_nodes: Option<Vec<ObservedNodeStatusReport>>,
}

/// The status of a node as another node reports it.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObservedNodeStatusReport {
    /// Host ID of the reported node.
    #[serde(rename = "hostID")]
    pub host_id: Option<String>,
    /// Status of the reported node: UP or DOWN.
    pub status: Option<NodeStatus>,
}

/// Status of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::known_text)]
pub enum NodeStatus {
    /// The node is up.
    #[serde(rename = "UP")]
    Up,
    /// The node is down, or its status is unknown.
    #[serde(rename = "DOWN")]
    Down,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// The value, in JSON, of the annotation [`NODE_STATUS_REPORT`](crate::names::annotation::NODE_STATUS_REPORT) of a
/// node's pod, which the sidecar writes: one of the two fields.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatusReportAnnotation {
    /// The report.
    pub node_status_report: Option<NodeStatusReport>,
    /// Why there is no report, for instance because ScyllaDB does not respond yet.
    pub error: Option<String>,
}
