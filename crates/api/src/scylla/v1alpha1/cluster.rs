//! One ScyllaDB cluster whose datacenters may be in different Kubernetes clusters: [`ScyllaDBCluster`].

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::PodReadinessGate, apimachinery::pkg::apis::meta::v1::Condition};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{
    datacenter::{ScyllaDBManagerAgentOptions, ScyllaDBOptions},
    expose::{BroadcastOptions, NodeServiceOptions},
    rack::{
        ObjectTemplateMetadata, Placement, RackSpec, RackStatus, RackTemplate, ScyllaDBManagerAgentTemplate,
        ScyllaDBTemplate,
    },
};

/// Desired state of the cluster.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[kube(
    group = "scylla.scylladb.com",
    version = "v1alpha1",
    kind = "ScyllaDBCluster",
    namespaced,
    status = "ScyllaDBClusterStatus",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default))",
    schema = "disabled",
    category = "scylladb",
    shortname = "sdbc",
    printcolumn(name = "AVAILABLE", type_ = "string", json_path = ".status.conditions[?(@.type=='Available')].status"),
    printcolumn(
        name = "PROGRESSING",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Progressing')].status"
    ),
    printcolumn(name = "DEGRADED", type_ = "string", json_path = ".status.conditions[?(@.type=='Degraded')].status"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct ScyllaDBClusterSpec {
    /// Labels and annotations of all objects of the cluster.
    pub metadata: Option<ObjectTemplateMetadata>,
    /// Name of the ScyllaDB cluster. Objects of the same ScyllaDB cluster have the same name. Defaults to the name of
    /// this object. It cannot be changed.
    pub cluster_name: Option<String>,
    /// Options of ScyllaDB, for all nodes.
    #[serde(rename = "scyllaDB")]
    pub scylladb: Option<ScyllaDBOptions>,
    /// Options of the ScyllaDB Manager agent, for all nodes. If unset, nodes have no agent, and ScyllaDB Manager cannot
    /// run tasks on them.
    #[serde(rename = "scyllaDBManagerAgent")]
    pub scylladb_manager_agent: Option<ScyllaDBManagerAgentOptions>,
    /// Template of the datacenters. The fields of a datacenter are merged with it: single values and keys of maps of
    /// the datacenter take precedence, and lists are concatenated.
    pub datacenter_template: Option<ScyllaDBClusterDatacenterTemplate>,
    /// The datacenters of the cluster.
    pub datacenters: Option<Vec<ScyllaDBClusterDatacenter>>,
    /// How the nodes are exposed. If unset, nodes have headless Services and broadcast the addresses of their Pods,
    /// which must be routable between the Kubernetes clusters.
    pub expose_options: Option<ScyllaDBClusterExposeOptions>,
    /// Any text. A change starts a rolling restart of all nodes of the cluster.
    pub force_redeployment_reason: Option<String>,
    /// Additional conditions of the Pods that must be true before a Pod counts as ready.
    pub readiness_gates: Option<Vec<PodReadinessGate>>,
    /// Minimum number of seconds for which a node must be ready before it counts as available, so that load balancers
    /// have time to find it. To wait for a load balancer, prefer readinessGates. Defaults to 5.
    pub min_ready_seconds: Option<i32>,
    /// Minimum number of seconds for which a stopping node keeps serving, so that load balancers have time to stop
    /// sending requests to it. Then it is drained. Experimental. If unset, it is drained at once.
    pub min_termination_grace_period_seconds: Option<i32>,
    /// Whether the operator does not replace nodes whose Kubernetes node, and with it their local volume, is gone. Only
    /// if false, the operator replaces them; otherwise, a condition names the remedy.
    pub disable_automatic_orphaned_node_replacement: Option<bool>,
}

/// Template of a datacenter.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaDBClusterDatacenterTemplate {
    /// Labels and annotations of the Pods of the datacenter.
    pub metadata: Option<ObjectTemplateMetadata>,
    /// Placement of the Pods of the datacenter.
    pub placement: Option<Placement>,
    /// Labels that a Kubernetes node must have to run a node of the datacenter, such as
    /// "topology.kubernetes.io/region": "eu-west-1". The labels of the rack are required in addition.
    pub topology_label_selector: Option<BTreeMap<String, String>>,
    /// Configuration, resources and storage of ScyllaDB in this datacenter. Fields of a rack take precedence.
    #[serde(rename = "scyllaDB")]
    pub scylladb: Option<ScyllaDBTemplate>,
    /// Configuration and resources of the ScyllaDB Manager agent in this datacenter. Fields of a rack take precedence.
    #[serde(rename = "scyllaDBManagerAgent")]
    pub scylladb_manager_agent: Option<ScyllaDBManagerAgentTemplate>,
    /// Template of the racks. Fields of a rack take precedence.
    pub rack_template: Option<RackTemplate>,
    /// The racks of the datacenter.
    pub racks: Option<Vec<RackSpec>>,
}

/// A datacenter.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaDBClusterDatacenter {
    /// Name of the datacenter in ScyllaDB.
    pub name: Option<String>,
    /// Name of the RemoteKubernetesCluster in which the datacenter runs.
    pub remote_kubernetes_cluster_name: Option<String>,
    /// Any text. A change starts a rolling restart of all nodes of the datacenter.
    pub force_redeployment_reason: Option<String>,
    /// All fields of the template.
    #[serde(flatten)]
    pub template: ScyllaDBClusterDatacenterTemplate,
}

/// How nodes are exposed inside and outside of their Kubernetes cluster.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaDBClusterExposeOptions {
    /// The Service of each node. If unset, nodes have headless Services.
    #[schemars(extend("default" = {"type": "Headless"}))]
    pub node_service: Option<NodeServiceOptions>,
    /// The addresses that nodes broadcast. Their types cannot be changed while there are nodes.
    pub broadcast_options: Option<BroadcastOptions>,
}

/// Status of the cluster.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaDBClusterStatus {
    /// The most recent generation of this object that the operator has observed.
    pub observed_generation: Option<i64>,
    /// Conditions of the cluster: Available, Progressing and Degraded, and the same for each component. The rollout is
    /// complete when Available is True and both others are False.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Option<Vec<Condition>>,
    /// Current version of ScyllaDB of the cluster; during an upgrade, the old one.
    pub current_version: Option<String>,
    /// Desired version of ScyllaDB of the cluster; during an upgrade, the new one.
    pub updated_version: Option<String>,
    /// Desired number of nodes of the cluster.
    pub nodes: Option<i32>,
    /// Current number of nodes of the cluster, in any state.
    pub current_nodes: Option<i32>,
    /// Number of nodes that match the spec.
    pub updated_nodes: Option<i32>,
    /// Number of nodes that are ready.
    pub ready_nodes: Option<i32>,
    /// Number of nodes that have been ready for at least minReadySeconds.
    pub available_nodes: Option<i32>,
    /// Status of each datacenter.
    pub datacenters: Option<Vec<ScyllaDBClusterDatacenterStatus>>,
}

/// Status of a datacenter of the cluster.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaDBClusterDatacenterStatus {
    /// Name of the datacenter.
    pub name: Option<String>,
    /// Name of the namespace, in the datacenter's own Kubernetes cluster, that holds its objects.
    pub remote_namespace_name: Option<String>,
    /// Current version of ScyllaDB of the datacenter; during an upgrade, the old one.
    pub current_version: Option<String>,
    /// Desired version of ScyllaDB of the datacenter; during an upgrade, the new one.
    pub updated_version: Option<String>,
    /// Desired number of nodes of the datacenter.
    pub nodes: Option<i32>,
    /// Current number of nodes of the datacenter, in any state.
    pub current_nodes: Option<i32>,
    /// Number of nodes that match the spec.
    pub updated_nodes: Option<i32>,
    /// Number of nodes that are ready.
    pub ready_nodes: Option<i32>,
    /// Number of nodes that have been ready for at least minReadySeconds.
    pub available_nodes: Option<i32>,
    /// Whether these numbers are of an earlier generation of this object.
    pub stale: Option<bool>,
    /// Status of each rack.
    pub racks: Option<Vec<RackStatus>>,
}
