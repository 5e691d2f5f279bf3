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

/// The cluster to run.
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
    /// Labels and annotations of everything that is made for the cluster.
    pub metadata: Option<ObjectTemplateMetadata>,
    /// Name of the ScyllaDB cluster. Clusters that are to become one have the same one. Without it, the name of this
    /// object. It cannot be changed.
    pub cluster_name: Option<String>,
    /// What all nodes have in common in how they run ScyllaDB.
    #[serde(rename = "scyllaDB")]
    pub scylladb: Option<ScyllaDBOptions>,
    /// What all nodes have in common in how they run the agent of ScyllaDB Manager. Without it, nodes have no agent,
    /// and ScyllaDB Manager cannot work on them.
    #[serde(rename = "scyllaDBManagerAgent")]
    pub scylladb_manager_agent: Option<ScyllaDBManagerAgentOptions>,
    /// What datacenters have in common. What a datacenter says itself is joined with it, field by field: of two single
    /// values the datacenter's counts, maps are united and the datacenter's value of a key counts, and lists are put
    /// one after the other.
    pub datacenter_template: Option<ScyllaDBClusterDatacenterTemplate>,
    /// The datacenters of the cluster.
    pub datacenters: Option<Vec<ScyllaDBClusterDatacenter>>,
    /// How the nodes are reached. Without it, nodes have headless Services and announce the addresses of their Pods,
    /// which all the Kubernetes clusters must then be able to reach.
    pub expose_options: Option<ScyllaDBClusterExposeOptions>,
    /// Any text. When it changes, every node of the cluster is restarted, one after the other.
    pub force_redeployment_reason: Option<String>,
    /// Conditions that something else sets on each Pod, and that must be true before the Pod counts as ready.
    pub readiness_gates: Option<Vec<PodReadinessGate>>,
    /// For how many seconds a node must have been ready before it counts as available, so that load balancers have time
    /// to find it. Where they can say when they have, readinessGates are the better way. Without it, 5.
    pub min_ready_seconds: Option<i32>,
    /// Minimum number of seconds for which a stopping node keeps serving, so that load balancers have time to turn to
    /// others; then it is drained. A node that fails has no such time. Experimental. Without it, it is drained at once.
    pub min_termination_grace_period_seconds: Option<i32>,
    /// Whether nodes whose Kubernetes node is gone for good, and their local volume with it, wait for a person instead
    /// of being replaced by empty ones. Only with false they are replaced; without it, a condition says what to do.
    pub disable_automatic_orphaned_node_replacement: Option<bool>,
}

/// What datacenters may have in common.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaDBClusterDatacenterTemplate {
    /// Labels and annotations of the Pods of the datacenter.
    pub metadata: Option<ObjectTemplateMetadata>,
    /// Where the Pods of the datacenter may run.
    pub placement: Option<Placement>,
    /// Labels that a Kubernetes node must have to run a node of the datacenter, such as
    /// "topology.kubernetes.io/region": "eu-west-1". Those given for a rack must be there as well.
    pub topology_label_selector: Option<BTreeMap<String, String>>,
    /// What ScyllaDB gets in this datacenter: configuration, resources and storage. What a rack says comes before it.
    #[serde(rename = "scyllaDB")]
    pub scylladb: Option<ScyllaDBTemplate>,
    /// What the ScyllaDB Manager agent gets in this datacenter. What a rack says comes before it.
    #[serde(rename = "scyllaDBManagerAgent")]
    pub scylladb_manager_agent: Option<ScyllaDBManagerAgentTemplate>,
    /// What racks have in common. A rack that says something else itself has its way.
    pub rack_template: Option<RackTemplate>,
    /// The racks of the datacenter.
    pub racks: Option<Vec<RackSpec>>,
}

/// A datacenter.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaDBClusterDatacenter {
    /// Name of the datacenter, as ScyllaDB itself knows it.
    pub name: Option<String>,
    /// Name of the RemoteKubernetesCluster in which the datacenter runs.
    pub remote_kubernetes_cluster_name: Option<String>,
    /// Any text. When it changes, every node of the datacenter is restarted, one after the other.
    pub force_redeployment_reason: Option<String>,
    /// Everything that may also come from the template.
    #[serde(flatten)]
    pub template: ScyllaDBClusterDatacenterTemplate,
}

/// How nodes are reached from inside and outside of their Kubernetes cluster.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaDBClusterExposeOptions {
    /// The Service that each node has. Without it, nodes have headless Services.
    #[schemars(extend("default" = {"type": "Headless"}))]
    pub node_service: Option<NodeServiceOptions>,
    /// The addresses under which nodes announce themselves. They cannot be changed later.
    pub broadcast_options: Option<BroadcastOptions>,
}

/// Status of the cluster.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaDBClusterStatus {
    /// The generation of this object that the rest of the status speaks of.
    pub observed_generation: Option<i64>,
    /// Conditions of the cluster: Available, Progressing and Degraded, and the same for each component. It is as
    /// specified when Available is True and both others are False.
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
    /// How many nodes already run as the specification says.
    pub updated_nodes: Option<i32>,
    /// How many nodes are ready to serve.
    pub ready_nodes: Option<i32>,
    /// How many nodes have been ready for at least minReadySeconds.
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
    /// How many nodes already run as the specification says.
    pub updated_nodes: Option<i32>,
    /// How many nodes are ready to serve.
    pub ready_nodes: Option<i32>,
    /// How many nodes have been ready for at least minReadySeconds.
    pub available_nodes: Option<i32>,
    /// Whether these numbers are of an earlier generation of the specification and are yet to be counted again.
    pub stale: Option<bool>,
    /// Status of each rack.
    pub racks: Option<Vec<RackStatus>>,
}
