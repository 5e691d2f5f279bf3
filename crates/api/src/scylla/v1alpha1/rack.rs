//! A rack: how many nodes it has, where they run and what they get.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    NodeAffinity, PodAffinity, PodAntiAffinity, ResourceRequirements, Toleration, Volume, VolumeMount,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::expose::RackExposeOptions;

/// Labels and annotations of objects that are made for this one.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectTemplateMetadata {
    /// Labels of the objects, besides those that the operator needs.
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations of the objects, besides those that the operator needs.
    pub annotations: Option<BTreeMap<String, String>>,
}

/// What racks may have in common.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RackTemplate {
    /// How many ScyllaDB nodes the rack has. Fewer than now takes nodes out of the cluster, the newest first, after
    /// they have handed over their data. Without it, what the template says; without that, none.
    pub nodes: Option<i32>,
    /// Where the Pods of the rack may run.
    pub placement: Option<Placement>,
    /// Labels that a Kubernetes node must have to run a node of the rack, such as
    /// "topology.kubernetes.io/zone": "eu-west-1a". Those given at wider levels must be there as well.
    pub topology_label_selector: Option<BTreeMap<String, String>>,
    /// What ScyllaDB gets in this rack: configuration, resources and storage. Comes before what wider levels say.
    #[serde(rename = "scyllaDB")]
    pub scylladb: Option<ScyllaDBTemplate>,
    /// What the ScyllaDB Manager agent gets in this rack. Comes before what wider levels say.
    #[serde(rename = "scyllaDBManagerAgent")]
    pub scylladb_manager_agent: Option<ScyllaDBManagerAgentTemplate>,
    /// How the nodes of this rack are reached, as far as it differs from other racks.
    pub expose_options: Option<RackExposeOptions>,
}

/// A rack.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RackSpec {
    /// Name of the rack, as ScyllaDB itself knows it. It cannot be changed.
    pub name: Option<String>,
    /// Everything that may also come from the template.
    #[serde(flatten)]
    pub template: RackTemplate,
}

/// Where Pods may run.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Placement {
    /// Which Kubernetes nodes the Pods need or prefer, by labels of those nodes.
    pub node_affinity: Option<NodeAffinity>,
    /// Which other Pods these Pods need or prefer to be near to.
    pub pod_affinity: Option<PodAffinity>,
    /// Which other Pods these Pods must or should keep away from.
    pub pod_anti_affinity: Option<PodAntiAffinity>,
    /// Taints of Kubernetes nodes that do not keep the Pods away.
    pub tolerations: Option<Vec<Toleration>>,
}

/// What ScyllaDB gets.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaDBTemplate {
    /// CPU and memory of the ScyllaDB container. With requests equal to limits and whole CPUs, Kubernetes can give it
    /// CPUs of its own.
    pub resources: Option<ResourceRequirements>,
    /// The volume that keeps the data of a node.
    pub storage: Option<StorageOptions>,
    /// Name of a ConfigMap in the same namespace whose key scylla.yaml holds settings to add to ScyllaDB's
    /// configuration. Without it, those of wider levels are added, if there are any.
    pub custom_config_map_ref: Option<String>,
    /// Volumes to add to the Pods.
    pub volumes: Option<Vec<Volume>>,
    /// Volume mounts of the ScyllaDB container, besides those of the operator.
    pub volume_mounts: Option<Vec<VolumeMount>>,
}

/// The volume that keeps the data of a node.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageOptions {
    /// Labels and annotations of the PersistentVolumeClaims. They count only when a claim is made: later changes reach
    /// no claim that is already there.
    pub metadata: Option<ObjectTemplateMetadata>,
    /// Size of the volume of each node, as a quantity such as "500Gi". When it is raised, volumes grow, if their
    /// StorageClass allows it, and no node is restarted. It cannot be lowered.
    pub capacity: Option<String>,
    /// Name of the StorageClass that provides the volumes. Without it, the default class of the Kubernetes cluster.
    pub storage_class_name: Option<String>,
}

/// What the ScyllaDB Manager agent gets.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaDBManagerAgentTemplate {
    /// CPU and memory of the agent's container.
    pub resources: Option<ResourceRequirements>,
    /// Name of a Secret in the same namespace whose key scylla-manager-agent.yaml holds settings of the agent, such as
    /// the keys of an object store. Without it, those of wider levels are added, if there are any.
    pub custom_config_secret_ref: Option<String>,
    /// Volumes to add to the Pods.
    pub volumes: Option<Vec<Volume>>,
    /// Volume mounts of the agent's container, besides those of the operator.
    pub volume_mounts: Option<Vec<VolumeMount>>,
}

/// Status of a rack.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RackStatus {
    /// Name of the rack.
    pub name: Option<String>,
    /// Current version of ScyllaDB of the rack; during an upgrade, the old one.
    pub current_version: Option<String>,
    /// Desired version of ScyllaDB of the rack; during an upgrade, the new one.
    pub updated_version: Option<String>,
    /// Desired number of nodes of the rack.
    pub nodes: Option<i32>,
    /// Current number of nodes of the rack, in any state.
    pub current_nodes: Option<i32>,
    /// How many nodes already run as the specification says.
    pub updated_nodes: Option<i32>,
    /// How many nodes are ready to serve.
    pub ready_nodes: Option<i32>,
    /// How many nodes have been ready for at least minReadySeconds.
    pub available_nodes: Option<i32>,
    /// Whether these numbers are of an earlier generation of the specification and are yet to be counted again.
    pub stale: Option<bool>,
}
