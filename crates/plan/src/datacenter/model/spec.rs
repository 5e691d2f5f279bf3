//! The validated specification of a ScyllaDBDatacenter.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use k8s_openapi::{
    api::core::v1::{LocalObjectReference, PodReadinessGate, ResourceRequirements, Volume, VolumeMount},
    apimachinery::pkg::api::resource::Quantity,
};
use messina_api::{
    names,
    scylla::v1alpha1::{
        AlternatorWriteIsolation, BroadcastAddressType, CqlIngressOptions, DnsPolicy, IpFamily, IpFamilyPolicy,
        NodeServiceOptions, Placement,
    },
};

use crate::version::Version;

/// The maximum number of nodes of a rack. It keeps a typo from creating a huge number of Services.
pub(crate) const MAX_NODES: i32 = 1000;

/// An invalid field of an object. The operator does not reconcile such an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InvalidField {
    /// Path of the field, in the notation of the API server.
    pub field: String,
    /// Why it is invalid, and the remedy.
    pub message: String,
}

/// A validated datacenter.
#[derive(Clone, Debug, PartialEq)]
pub struct Datacenter {
    /// Name of the object.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its UID.
    pub uid: String,
    /// Its generation.
    pub generation: i64,
    /// Its labels that are propagated to its objects.
    pub labels: BTreeMap<String, String>,
    /// Its annotations that are propagated to its objects.
    pub annotations: BTreeMap<String, String>,
    /// Whether the claims of nodes that have left are deleted at once, and not when their names are needed again.
    pub deletes_claims_of_left_nodes: bool,
    /// Whether upgrades skip the check of schema agreement and the snapshots.
    pub skips_upgrade_hooks: bool,
    /// Host IDs of nodes of other datacenters that may be down when nodes restart.
    pub ignored_down_nodes: BTreeSet<String>,
    /// Whether the operator replaces lost nodes automatically.
    pub replaces_lost_nodes: bool,
    /// Labels of pods, instead of `labels`.
    pub pod_labels: Option<BTreeMap<String, String>>,
    /// Annotations of pods, instead of `annotations`.
    pub pod_annotations: Option<BTreeMap<String, String>>,
    /// Name of the ScyllaDB cluster.
    pub cluster_name: String,
    /// Name of the datacenter in ScyllaDB.
    pub scylla_datacenter: String,
    /// Image of ScyllaDB.
    pub image: String,
    /// The version of ScyllaDB, which is the image's tag.
    pub version: String,
    /// Image of the agent of ScyllaDB Manager; none where nodes have no agent.
    pub agent_image: Option<String>,
    /// Seeds in other datacenters.
    pub external_seeds: Vec<String>,
    /// Arguments for ScyllaDB.
    pub additional_arguments: Vec<String>,
    /// Whether ScyllaDB runs in developer mode.
    pub developer_mode: bool,
    /// Options of Alternator, if it is enabled.
    pub alternator: Option<Alternator>,
    /// The racks, merged with the template.
    pub racks: Vec<Rack>,
    /// Options of the Services of nodes; their type is valid.
    pub node_service: Option<NodeServiceOptions>,
    /// Type of the broadcast address for nodes; it is valid.
    pub nodes_broadcast: BroadcastAddressType,
    /// Type of the broadcast address for clients; it is valid.
    pub clients_broadcast: BroadcastAddressType,
    /// Options of the Ingresses for CQL, if they are enabled.
    pub cql_ingress: Option<CqlIngressOptions>,
    /// The DNS domains by which external clients reach the nodes; at least one if Ingresses are enabled.
    pub dns_domains: Vec<String>,
    /// Image pull Secrets.
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// DNS policy of pods.
    pub dns_policy: DnsPolicy,
    /// IP families of Services, the first one being that of ScyllaDB; empty for Kubernetes' default.
    pub ip_families: Vec<IpFamily>,
    /// IP family policy of Services.
    pub ip_family_policy: Option<IpFamilyPolicy>,
    /// The reason of a forced redeployment: a change of it restarts all nodes.
    pub force_redeployment_reason: Option<String>,
    /// Readiness gates of pods.
    pub readiness_gates: Vec<PodReadinessGate>,
    /// `minReadySeconds` of the StatefulSets.
    pub min_ready_seconds: i32,
    /// For how many seconds a node at least keeps serving after it was told to stop.
    pub min_termination_grace_period_seconds: Option<i32>,
    /// Whether several nodes may join at the same time.
    pub parallel_node_operations: bool,
    /// Whether pods use the host network.
    pub host_network: bool,
    /// The requested kernel settings (sysctls).
    pub sysctls: Vec<String>,
    /// The operator's patterns that allow those of them which are not allowed by default.
    pub other_sysctls: BTreeSet<String>,
    /// The Secret with the agents' token, instead of the datacenter's own.
    pub token_override: Option<String>,
}

/// A rack, merged with the template.
#[derive(Clone, Debug, PartialEq)]
pub struct Rack {
    /// Its name.
    pub name: String,
    /// Its index in the specification.
    pub ordinal: usize,
    /// The desired number of nodes.
    pub nodes: i32,
    /// Placement of its pods.
    pub placement: Placement,
    /// Resources of the ScyllaDB container.
    pub resources: Option<ResourceRequirements>,
    /// Storage of a node.
    pub storage: Storage,
    /// The ConfigMap with the user's `scylla.yaml`.
    pub custom_config_map: Option<String>,
    /// Additional volumes of the pods.
    pub volumes: Vec<Volume>,
    /// Additional volume mounts of the ScyllaDB container.
    pub volume_mounts: Vec<VolumeMount>,
    /// Resources of the agent's container.
    pub agent_resources: Option<ResourceRequirements>,
    /// The Secret with the user's configuration of the agent.
    pub agent_custom_config_secret: Option<String>,
    /// Additional volumes of the pods, for the agent.
    pub agent_volumes: Vec<Volume>,
    /// Additional volume mounts of the agent's container.
    pub agent_volume_mounts: Vec<VolumeMount>,
    /// Additional labels of the Services of its nodes.
    pub service_labels: BTreeMap<String, String>,
    /// Additional annotations of the Services of its nodes.
    pub service_annotations: BTreeMap<String, String>,
}

/// Storage of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Storage {
    /// Size of the volume, in the API server's canonical form.
    pub capacity: Quantity,
    /// The StorageClass; none for the default one.
    pub class: Option<String>,
    /// Labels of the claims; if empty, they get the datacenter's.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the claims; if empty, they get the datacenter's.
    pub annotations: BTreeMap<String, String>,
}

/// Options of Alternator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternator {
    /// Write isolation.
    pub write_isolation: AlternatorWriteIsolation,
    /// The port for plain HTTP, if that is enabled.
    pub http_port: Option<i32>,
    /// Whether clients must authenticate.
    pub authorization: bool,
    /// The Secret with the user's certificate; none if the operator signs one.
    pub user_certificate: Option<String>,
    /// Additional DNS names of the operator's certificate.
    pub additional_dns_names: Vec<String>,
    /// Additional IP addresses of the operator's certificate.
    pub additional_addresses: Vec<IpAddr>,
}

impl Datacenter {
    /// The IP family of ScyllaDB.
    pub fn ip_family(&self) -> &IpFamily {
        self.ip_families.first().unwrap_or(&IpFamily::IPv4)
    }

    /// Names of the user's ConfigMaps that a plan depends on.
    pub fn config_map_references(&self) -> BTreeSet<String> {
        self.racks.iter().map(|rack| rack.config_map().to_owned()).collect()
    }

    /// Names of the user's Secrets that a plan depends on.
    pub fn secret_references(&self) -> BTreeSet<String> {
        self.racks.iter().map(|rack| rack.agent_secret().to_owned()).chain(self.token_override.clone()).collect()
    }

    /// The version of ScyllaDB; none if the image's tag is not a comparable version.
    pub(crate) fn comparable_version(&self) -> Option<Version> {
        Version::parse(&self.version)
    }

    /// The StatefulSet of a rack.
    pub fn stateful_set_name(&self, rack: &Rack) -> String {
        names::datacenter::rack_stateful_set(&self.name, &self.scylla_datacenter, &rack.name)
    }
}

/// The default ConfigMap with the user's `scylla.yaml`.
pub const USUAL_CONFIG_MAP: &str = "scylla-config";

/// The default Secret with the user's configuration of the agent.
pub const USUAL_AGENT_SECRET: &str = "scylla-agent-config-secret";

impl Rack {
    /// The ConfigMap with the user's `scylla.yaml`. The default one need not exist.
    pub fn config_map(&self) -> &str {
        self.custom_config_map.as_deref().unwrap_or(USUAL_CONFIG_MAP)
    }

    /// The Secret with the user's configuration of the agent. The default one need not exist.
    pub fn agent_secret(&self) -> &str {
        self.agent_custom_config_secret.as_deref().unwrap_or(USUAL_AGENT_SECRET)
    }
}
