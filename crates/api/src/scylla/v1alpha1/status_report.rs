//! Which nodes see which nodes: [`ScyllaDBStatusReport`], and what each node's sidecar contributes to it.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::schema;

/// Which nodes of a cluster see which nodes alive, collected from all nodes. A new node waits with joining until every
/// node sees every node up. The object is made by the operator and not meant to be edited.
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
    /// What the nodes of each datacenter report.
    pub datacenters: Option<Vec<DatacenterStatusReport>>,
}

/// What the nodes of a datacenter report.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DatacenterStatusReport {
    /// Name of the datacenter as ScyllaDB knows it.
    pub name: Option<String>,
    /// What each node reports. A node that has not reported yet is missing.
    pub nodes: Option<Vec<NodeStatusReport>>,
}

/// What one node sees.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatusReport {
    /// Host ID of the node that reports.
    #[serde(rename = "hostID")]
    pub host_id: Option<String>,
    /// The nodes that own tokens, itself included, as the node sees them.
    pub observed_nodes: Option<Vec<ObservedNodeStatusReport>>,
}

/// How one node sees another.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObservedNodeStatusReport {
    /// Host ID of the node that is seen.
    #[serde(rename = "hostID")]
    pub host_id: Option<String>,
    /// Whether the node that is seen is alive: UP or DOWN.
    pub status: Option<NodeStatus>,
}

/// Whether a node is alive in the eyes of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::known_text)]
pub enum NodeStatus {
    /// It is alive.
    #[serde(rename = "UP")]
    Up,
    /// It is not, or that is not known.
    #[serde(rename = "DOWN")]
    Down,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// What a node's sidecar writes, as JSON, into the annotation
/// [`NODE_STATUS_REPORT`](crate::names::annotation::NODE_STATUS_REPORT) of its pod: one of the two fields.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatusReportAnnotation {
    /// What the node sees.
    pub node_status_report: Option<NodeStatusReport>,
    /// Why there is no report, for instance because ScyllaDB does not answer yet.
    pub error: Option<String>,
}
