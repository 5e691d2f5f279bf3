//! `scylla.scylladb.com/v1`: [`ScyllaCluster`], a ScyllaDB cluster of one datacenter.

mod alternator;
mod expose;
mod status;
mod tasks;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    LocalObjectReference, NodeAffinity, PodAffinity, PodAntiAffinity, PodReadinessGate, ResourceRequirements,
    Toleration, Volume, VolumeMount,
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::schema;

pub use alternator::*;
pub use expose::*;
pub use status::*;
pub use tasks::*;

/// The cluster as it should be.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[kube(
    group = "scylla.scylladb.com",
    version = "v1",
    kind = "ScyllaCluster",
    namespaced,
    status = "ScyllaClusterStatus",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default))",
    schema = "disabled",
    category = "scylladb",
    scale(spec_replicas_path = ".spec.replicas", status_replicas_path = ".status.replicas"),
    printcolumn(name = "READY", type_ = "integer", json_path = ".status.readyMembers"),
    printcolumn(name = "MEMBERS", type_ = "integer", json_path = ".status.members"),
    printcolumn(name = "RACKS", type_ = "integer", json_path = ".status.rackCount"),
    printcolumn(name = "AVAILABLE", type_ = "string", json_path = ".status.conditions[?(@.type=='Available')].status"),
    printcolumn(
        name = "PROGRESSING",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Progressing')].status"
    ),
    printcolumn(name = "DEGRADED", type_ = "string", json_path = ".status.conditions[?(@.type=='Degraded')].status"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct ScyllaClusterSpec {
    /// Size of every rack: as long as this is set, each rack has this many members, and `members` of the rack is
    /// ignored.
    /// `kubectl scale` and autoscalers write it. Without it, every rack has its own size.
    pub replicas: Option<i32>,
    /// Labels and annotations that every pod of the cluster gets besides those of the operator.
    pub pod_metadata: Option<ObjectTemplateMetadata>,
    /// Tag of the ScyllaDB image, for instance "2025.4.1". A change upgrades the cluster, one node after the other.
    pub version: Option<String>,
    /// Image of ScyllaDB without its tag.
    #[schemars(extend("default" = "docker.io/scylladb/scylla"))]
    pub repository: Option<String>,
    /// Serves Alternator, the API that DynamoDB clients speak, beside CQL. Without it, Alternator is off.
    pub alternator: Option<AlternatorSpec>,
    /// Tag of the image of the ScyllaDB Manager agent that runs beside each node.
    #[schemars(extend("default" = "latest"))]
    pub agent_version: Option<String>,
    /// Image of the ScyllaDB Manager agent without its tag.
    #[schemars(extend("default" = "docker.io/scylladb/scylla-manager-agent"))]
    pub agent_repository: Option<String>,
    /// Deprecated and without effect: processors are pinned whenever the pod has whole ones of its own.
    pub cpuset: Option<bool>,
    /// Whether ScyllaDB runs in developer mode, which skips its checks of the Kubernetes node. For trials, never for
    /// data that matters.
    pub developer_mode: Option<bool>,
    /// Whether a node is replaced by itself once the Kubernetes node that its storage is bound to is gone.
    pub automatic_orphaned_node_cleanup: Option<bool>,
    /// What to do when an upgrade of ScyllaDB goes wrong.
    pub generic_upgrade: Option<GenericUpgradeSpec>,
    /// The datacenter and its racks.
    pub datacenter: Option<DatacenterSpec>,
    /// Deprecated: kernel settings, each as "name=value", that are set before ScyllaDB starts. Kernel settings of a
    /// Kubernetes node are better set when the Kubernetes node is provisioned.
    pub sysctls: Option<Vec<String>>,
    /// Further arguments of the ScyllaDB process in the form of a command line, for instance "--smp 2". An argument
    /// that the operator sets itself keeps the operator's value.
    pub scylla_args: Option<String>,
    /// How the pods are connected to the network.
    pub network: Option<Network>,
    /// Repairs that ScyllaDB Manager runs. They need a ScyllaDB Manager in this Kubernetes cluster.
    pub repairs: Option<Vec<RepairTaskSpec>>,
    /// Backups that ScyllaDB Manager takes. They need a ScyllaDB Manager in this Kubernetes cluster.
    pub backups: Option<Vec<BackupTaskSpec>>,
    /// Any text. A new one restarts all nodes, one after the other.
    pub force_redeployment_reason: Option<String>,
    /// Secrets of this namespace with the credentials for the images of ScyllaDB and of the agent.
    pub image_pull_secrets: Option<Vec<LocalObjectReference>>,
    /// Domains under which clients reach the cluster. Certificates are issued for names in them, and Ingresses serve
    /// them. Experimental.
    pub dns_domains: Option<Vec<String>>,
    /// How the nodes are made reachable, and which addresses they announce. It cannot be changed later. Experimental.
    pub expose_options: Option<ExposeOptions>,
    /// Addresses of nodes elsewhere that a new node contacts to join: the way to extend a cluster that exists in
    /// another datacenter.
    pub external_seeds: Option<Vec<String>>,
    /// Shortest time in seconds between the drain of a node and its end, so that load balancers can stop sending to
    /// it. Without it, the operator chooses. Experimental.
    pub min_termination_grace_period_seconds: Option<i32>,
    /// Time in seconds that a node must stay ready before it counts as available. A readiness gate is the surer way to
    /// wait for a load balancer. Without it, the operator chooses.
    pub min_ready_seconds: Option<i32>,
    /// Conditions of the pod that must be true as well before a node counts as ready.
    pub readiness_gates: Option<Vec<PodReadinessGate>>,
    /// Whether several nodes may start at the same time. This needs ScyllaDB 2026.2 or newer. Without it, false: nodes
    /// start one by one.
    pub enable_parallel_node_operations: Option<bool>,
}

/// Labels and annotations for the objects that the operator makes.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectTemplateMetadata {
    /// Labels that are added to those of the operator.
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations that are added to those of the operator.
    pub annotations: Option<BTreeMap<String, String>>,
}

/// What the operator does when an upgrade of ScyllaDB fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum GenericUpgradeFailureStrategy {
    /// Tries again until the upgrade succeeds.
    Retry,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// How upgrades of ScyllaDB go.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GenericUpgradeSpec {
    /// What happens when the upgrade of a node fails. The only value is Retry.
    #[schemars(extend("default" = "Retry"))]
    pub failure_strategy: Option<GenericUpgradeFailureStrategy>,
    /// Deprecated: how often the state of an upgrade was asked for, as a duration such as "1s". The operator is now
    /// told of changes.
    #[schemars(extend("default" = "1s"))]
    pub poll_interval: Option<String>,
}

/// How the pods are connected to the network.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Network {
    /// Deprecated: whether the pods use the network of their Kubernetes node directly, which needs free ports there.
    /// Expose the nodes through `exposeOptions` instead.
    pub host_networking: Option<bool>,
    /// How the pods resolve names: ClusterFirstWithHostNet, ClusterFirst, Default or None. Without it,
    /// ClusterFirstWithHostNet.
    pub dns_policy: Option<String>,
    /// How many IP families the Services of the cluster have: SingleStack, PreferDualStack or RequireDualStack.
    #[schemars(extend("default" = "SingleStack"))]
    pub ip_family_policy: Option<String>,
    /// IP families of the Services, IPv4 or IPv6; ScyllaDB itself uses the first one. Without it, IPv4.
    pub ip_families: Option<Vec<String>>,
}

/// A datacenter and its racks.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DatacenterSpec {
    /// Name of the datacenter as ScyllaDB knows it, for instance in replication strategies.
    pub name: Option<String>,
    /// The racks. ScyllaDB spreads the replicas of the data over them.
    pub racks: Option<Vec<RackSpec>>,
}

/// A rack: nodes that are alike and are expected to fail together, such as those of one availability zone.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RackSpec {
    /// Name of the rack as ScyllaDB knows it.
    pub name: Option<String>,
    /// Number of nodes in the rack. `spec.replicas` overrides it.
    pub members: Option<i32>,
    /// Disk of each node.
    pub storage: Option<StorageSpec>,
    /// On which machines the nodes may run.
    pub placement: Option<PlacementSpec>,
    /// CPU and memory of ScyllaDB on each node. ScyllaDB takes the limits as the resources of its host.
    pub resources: Option<ResourceRequirements>,
    /// Processors and memory of the ScyllaDB Manager agent on each node.
    #[schemars(extend("default" = {"requests": {"cpu": "50m", "memory": "10M"}}))]
    pub agent_resources: Option<ResourceRequirements>,
    /// Further volumes of the pods.
    pub volumes: Option<Vec<Volume>>,
    /// Where the container of ScyllaDB mounts volumes.
    pub volume_mounts: Option<Vec<VolumeMount>>,
    /// Where the container of the ScyllaDB Manager agent mounts volumes.
    pub agent_volume_mounts: Option<Vec<VolumeMount>>,
    /// Name of a ConfigMap of this namespace whose `scylla.yaml` is laid over the configuration of the nodes.
    pub scylla_config: Option<String>,
    /// Name of a Secret of this namespace whose `scylla-manager-agent.yaml` is laid over the configuration of the
    /// agents.
    pub scylla_agent_config: Option<String>,
    /// How the nodes of this rack are made reachable, where that differs from the rest of the cluster.
    pub expose_options: Option<RackExposeOptions>,
}

/// The disk of a node.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageSpec {
    /// Labels and annotations of the volume claims. They are set when a claim is made and not changed afterwards.
    pub metadata: Option<ObjectTemplateMetadata>,
    /// Size of the disk as a quantity such as "500Gi".
    pub capacity: Option<String>,
    /// The StorageClass that the disk comes from. Without it, the default one.
    pub storage_class_name: Option<String>,
}

/// On which machines nodes may run.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlacementSpec {
    /// Which machines are required or preferred, by their labels.
    pub node_affinity: Option<NodeAffinity>,
    /// Which pods to be near to.
    pub pod_affinity: Option<PodAffinity>,
    /// Which pods to keep away from.
    pub pod_anti_affinity: Option<PodAntiAffinity>,
    /// Taints of machines that do not keep the nodes away.
    pub tolerations: Option<Vec<Toleration>>,
}
