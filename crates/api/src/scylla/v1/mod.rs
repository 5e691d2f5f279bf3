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

/// Desired state of the cluster.
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
    /// Number of nodes of each rack. If set, `members` of the racks is ignored. `kubectl scale` and autoscalers write
    /// it. If unset, each rack has its own number.
    pub replicas: Option<i32>,
    /// Labels and annotations of the pods, in addition to those of the operator.
    pub pod_metadata: Option<ObjectTemplateMetadata>,
    /// Tag of the ScyllaDB image, for instance "2025.4.1". A change starts a rolling upgrade.
    pub version: Option<String>,
    /// Image of ScyllaDB without its tag.
    #[schemars(extend("default" = "docker.io/scylladb/scylla"))]
    pub repository: Option<String>,
    /// Enables Alternator, the DynamoDB-compatible API. If unset, Alternator is disabled.
    pub alternator: Option<AlternatorSpec>,
    /// Tag of the image of the ScyllaDB Manager agent that runs beside each node.
    #[schemars(extend("default" = "latest"))]
    pub agent_version: Option<String>,
    /// Image of the ScyllaDB Manager agent without its tag.
    #[schemars(extend("default" = "docker.io/scylladb/scylla-manager-agent"))]
    pub agent_repository: Option<String>,
    /// Deprecated and without effect: CPUs are pinned whenever the pod has exclusive CPUs.
    pub cpuset: Option<bool>,
    /// Whether ScyllaDB runs in developer mode, which skips its checks of the Kubernetes node. Not for production.
    pub developer_mode: Option<bool>,
    /// Whether the operator replaces a node when the Kubernetes node that its volume is bound to is gone.
    pub automatic_orphaned_node_cleanup: Option<bool>,
    /// Options of upgrades of ScyllaDB.
    pub generic_upgrade: Option<GenericUpgradeSpec>,
    /// The datacenter and its racks.
    pub datacenter: Option<DatacenterSpec>,
    /// Deprecated: kernel settings, each as "name=value", that are set before ScyllaDB starts. Set the kernel settings
    /// when you provision the Kubernetes nodes instead.
    pub sysctls: Option<Vec<String>>,
    /// Additional arguments of the ScyllaDB process in the form of a command line, for instance "--smp 2". Arguments
    /// that the operator sets take precedence.
    pub scylla_args: Option<String>,
    /// Network of the pods.
    pub network: Option<Network>,
    /// Repairs that ScyllaDB Manager runs. They require a ScyllaDB Manager in this Kubernetes cluster.
    pub repairs: Option<Vec<RepairTaskSpec>>,
    /// Backups that ScyllaDB Manager takes. They require a ScyllaDB Manager in this Kubernetes cluster.
    pub backups: Option<Vec<BackupTaskSpec>>,
    /// Any text. A change starts a rolling restart of all nodes.
    pub force_redeployment_reason: Option<String>,
    /// Secrets of this namespace with the credentials for the images of ScyllaDB and of the agent.
    pub image_pull_secrets: Option<Vec<LocalObjectReference>>,
    /// DNS domains of the cluster. The operator issues certificates and creates Ingresses for them. Experimental.
    pub dns_domains: Option<Vec<String>>,
    /// How the nodes are exposed, and which addresses they broadcast. It cannot be changed. Experimental.
    pub expose_options: Option<ExposeOptions>,
    /// Addresses of seed nodes outside of this object. Use them to add a datacenter to an existing cluster.
    pub external_seeds: Option<Vec<String>>,
    /// Minimum time in seconds between the drain of a node and its termination, so that load balancers can stop sending
    /// requests to it. If unset, the operator chooses. Experimental.
    pub min_termination_grace_period_seconds: Option<i32>,
    /// Time in seconds that a node must stay ready before it counts as available. To wait for a load balancer, prefer a
    /// readiness gate. If unset, the operator chooses.
    pub min_ready_seconds: Option<i32>,
    /// Additional conditions of the pod that must be true before a node counts as ready.
    pub readiness_gates: Option<Vec<PodReadinessGate>>,
    /// Whether several nodes may start at the same time. This needs ScyllaDB 2026.2 or newer. Defaults to false: nodes
    /// start one by one.
    pub enable_parallel_node_operations: Option<bool>,
}

/// Labels and annotations for the objects that the operator creates.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectTemplateMetadata {
    /// Labels in addition to those of the operator.
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations in addition to those of the operator.
    pub annotations: Option<BTreeMap<String, String>>,
}

/// What the operator does when an upgrade of ScyllaDB fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum GenericUpgradeFailureStrategy {
    /// Retries until the upgrade succeeds.
    Retry,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// Options of upgrades of ScyllaDB.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GenericUpgradeSpec {
    /// What happens when the upgrade of a node fails. The only value is Retry.
    #[schemars(extend("default" = "Retry"))]
    pub failure_strategy: Option<GenericUpgradeFailureStrategy>,
    /// Deprecated and without effect: the interval of polling the state of an upgrade, as a duration such as "1s".
    #[schemars(extend("default" = "1s"))]
    pub poll_interval: Option<String>,
}

/// Network of the pods.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Network {
    /// Deprecated: whether the pods use the network of their Kubernetes node directly, which needs free ports there.
    /// Expose the nodes through `exposeOptions` instead.
    pub host_networking: Option<bool>,
    /// DNS policy of the pods: ClusterFirstWithHostNet, ClusterFirst, Default or None. Defaults to
    /// ClusterFirstWithHostNet.
    pub dns_policy: Option<String>,
    /// How many IP families the Services of the cluster have: SingleStack, PreferDualStack or RequireDualStack.
    #[schemars(extend("default" = "SingleStack"))]
    pub ip_family_policy: Option<String>,
    /// IP families of the Services, IPv4 or IPv6; ScyllaDB itself uses the first one. Defaults to IPv4.
    pub ip_families: Option<Vec<String>>,
}

/// A datacenter and its racks.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DatacenterSpec {
    /// Name of the datacenter in ScyllaDB, for instance in replication strategies.
    pub name: Option<String>,
    /// The racks. ScyllaDB spreads the replicas of the data over them.
    pub racks: Option<Vec<RackSpec>>,
}

/// A rack: nodes with the same settings in one failure domain, such as an availability zone.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RackSpec {
    /// Name of the rack in ScyllaDB.
    pub name: Option<String>,
    /// Number of nodes in the rack. `spec.replicas` overrides it.
    pub members: Option<i32>,
    /// Volume of each node.
    pub storage: Option<StorageSpec>,
    /// Kubernetes nodes on which the ScyllaDB nodes may run.
    pub placement: Option<PlacementSpec>,
    /// CPU and memory of ScyllaDB on each node. ScyllaDB uses all CPU and memory of the limits.
    pub resources: Option<ResourceRequirements>,
    /// CPU and memory of the ScyllaDB Manager agent on each node.
    #[schemars(extend("default" = {"requests": {"cpu": "50m", "memory": "10M"}}))]
    pub agent_resources: Option<ResourceRequirements>,
    /// Additional volumes of the pods.
    pub volumes: Option<Vec<Volume>>,
    /// Additional volume mounts of the ScyllaDB container.
    pub volume_mounts: Option<Vec<VolumeMount>>,
    /// Additional volume mounts of the ScyllaDB Manager agent's container.
    pub agent_volume_mounts: Option<Vec<VolumeMount>>,
    /// Name of a ConfigMap of this namespace whose key `scylla.yaml` is merged into the configuration of the nodes.
    pub scylla_config: Option<String>,
    /// Name of a Secret of this namespace whose key `scylla-manager-agent.yaml` is merged into the configuration of the
    /// agents.
    pub scylla_agent_config: Option<String>,
    /// How the nodes of this rack are exposed, if that differs from the rest of the cluster.
    pub expose_options: Option<RackExposeOptions>,
}

/// The volume of a node.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageSpec {
    /// Labels and annotations of the volume claims. They are set when a claim is created, and not changed later.
    pub metadata: Option<ObjectTemplateMetadata>,
    /// Size of the volume as a quantity such as "500Gi".
    pub capacity: Option<String>,
    /// The StorageClass of the volume. Defaults to the default StorageClass of the Kubernetes cluster.
    pub storage_class_name: Option<String>,
}

/// Kubernetes nodes on which the ScyllaDB nodes may run.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlacementSpec {
    /// Node affinity of the pods.
    pub node_affinity: Option<NodeAffinity>,
    /// Pod affinity of the pods.
    pub pod_affinity: Option<PodAffinity>,
    /// Pod anti-affinity of the pods.
    pub pod_anti_affinity: Option<PodAntiAffinity>,
    /// Tolerations of the pods.
    pub tolerations: Option<Vec<Toleration>>,
}
