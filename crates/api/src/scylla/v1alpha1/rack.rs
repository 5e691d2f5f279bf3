//! A rack of a datacenter.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    NodeAffinity, PodAffinity, PodAntiAffinity, ResourceRequirements, Toleration, Volume, VolumeMount,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::expose::RackExposeOptions;

/// Labels and annotations for the objects that the operator creates.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectTemplateMetadata {
    /// Labels of the objects, in addition to those of the operator.
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations of the objects, in addition to those of the operator.
    pub annotations: Option<BTreeMap<String, String>>,
}

/// Template of a rack.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RackTemplate {
    /// Number of ScyllaDB nodes of the rack. If it is decreased, the operator decommissions nodes, the highest ordinal
    /// first. Defaults to the number in the template, or to 0.
    pub nodes: Option<i32>,
    /// Placement of the Pods of the rack.
    pub placement: Option<Placement>,
    /// Labels that a Kubernetes node must have to run a node of the rack, such as "topology.kubernetes.io/zone":
    /// "eu-west-1a". The labels of the template and of the datacenter are required in addition.
    pub topology_label_selector: Option<BTreeMap<String, String>>,
    /// Configuration, resources and storage of ScyllaDB in this rack. Takes precedence over the template and the
    /// datacenter.
    #[serde(rename = "scyllaDB")]
    pub scylladb: Option<ScyllaDBTemplate>,
    /// Configuration and resources of the ScyllaDB Manager agent in this rack. Takes precedence over the template and
    /// the datacenter.
    #[serde(rename = "scyllaDBManagerAgent")]
    pub scylladb_manager_agent: Option<ScyllaDBManagerAgentTemplate>,
    /// How the nodes of this rack are exposed, if that differs from other racks.
    pub expose_options: Option<RackExposeOptions>,
}

/// A rack.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RackSpec {
    /// Name of the rack in ScyllaDB. It cannot be changed.
    pub name: Option<String>,
    /// All fields of the template.
    #[serde(flatten)]
    pub template: RackTemplate,
}

/// Placement of Pods.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Placement {
    /// Node affinity of the Pods.
    pub node_affinity: Option<NodeAffinity>,
    /// Pod affinity of the Pods.
    pub pod_affinity: Option<PodAffinity>,
    /// Pod anti-affinity of the Pods.
    pub pod_anti_affinity: Option<PodAntiAffinity>,
    /// Tolerations of the Pods.
    pub tolerations: Option<Vec<Toleration>>,
}

/// Configuration, resources and storage of ScyllaDB.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaDBTemplate {
    /// CPU and memory of the ScyllaDB container. With requests equal to limits and whole CPUs, the kubelet can assign
    /// exclusive CPUs.
    pub resources: Option<ResourceRequirements>,
    /// The data volume of a node.
    pub storage: Option<StorageOptions>,
    /// Name of a ConfigMap in the same namespace whose key scylla.yaml holds additional settings of ScyllaDB. If unset,
    /// the settings of the rack template or of the datacenter are added, if there are any.
    pub custom_config_map_ref: Option<String>,
    /// Additional volumes of the Pods.
    pub volumes: Option<Vec<Volume>>,
    /// Additional volume mounts of the ScyllaDB container.
    pub volume_mounts: Option<Vec<VolumeMount>>,
}

/// The data volume of a node.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageOptions {
    /// Labels and annotations of the PersistentVolumeClaims. They are set when a claim is created, and not changed
    /// later.
    pub metadata: Option<ObjectTemplateMetadata>,
    /// Size of the volume of each node, as a quantity such as "500Gi". If it is increased, the operator expands the
    /// volumes without a restart, if their StorageClass allows it. It cannot be decreased.
    pub capacity: Option<String>,
    /// Name of the StorageClass that provides the volumes. Defaults to the default StorageClass of the Kubernetes
    /// cluster.
    pub storage_class_name: Option<String>,
}

/// Configuration and resources of the ScyllaDB Manager agent.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaDBManagerAgentTemplate {
    /// CPU and memory of the agent's container.
    pub resources: Option<ResourceRequirements>,
    /// Name of a Secret in the same namespace whose key scylla-manager-agent.yaml holds settings of the agent, such as
    /// the keys of an object store. If unset, the settings of the rack template or of the datacenter are added, if
    /// there are any.
    pub custom_config_secret_ref: Option<String>,
    /// Additional volumes of the Pods.
    pub volumes: Option<Vec<Volume>>,
    /// Additional volume mounts of the agent's container.
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
    /// Number of nodes that match the spec.
    pub updated_nodes: Option<i32>,
    /// Number of nodes that are ready.
    pub ready_nodes: Option<i32>,
    /// Number of nodes that have been ready for at least minReadySeconds.
    pub available_nodes: Option<i32>,
    /// Whether these numbers are of an earlier generation of this object.
    pub stale: Option<bool>,
}
