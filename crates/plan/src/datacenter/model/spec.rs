//! A datacenter that can be relied on: what `validate` makes of a ScyllaDBDatacenter.

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

/// More nodes than any rack has. It keeps a slip of the finger from becoming as many Services.
pub(crate) const MAX_NODES: i32 = 1000;

/// Something in an object that keeps it from being worked on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InvalidField {
    /// Path of the field, as the API server writes it.
    pub field: String,
    /// What is wrong, and what to do.
    pub message: String,
}

/// A datacenter that can be relied on.
#[derive(Clone, Debug, PartialEq)]
pub struct Datacenter {
    /// Name of the object.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its UID.
    pub uid: String,
    /// The generation of its specification.
    pub generation: i64,
    /// Its labels that go on to what is made for it.
    pub labels: BTreeMap<String, String>,
    /// Its annotations that go on to what is made for it.
    pub annotations: BTreeMap<String, String>,
    /// Whether the claims of nodes that have left are deleted, and not kept until their names are needed again.
    pub deletes_claims_of_left_nodes: bool,
    /// Whether the version changes without agreement on the schema and snapshots before.
    pub skips_upgrade_hooks: bool,
    /// Host IDs of nodes elsewhere in the ring that may be down when nodes restart.
    pub ignored_down_nodes: BTreeSet<String>,
    /// Whether nodes that are gone for good are replaced without a word of the user.
    pub replaces_lost_nodes: bool,
    /// Labels of pods in place of `labels`.
    pub pod_labels: Option<BTreeMap<String, String>>,
    /// Annotations of pods in place of `annotations`.
    pub pod_annotations: Option<BTreeMap<String, String>>,
    /// Name of the ScyllaDB cluster.
    pub cluster_name: String,
    /// Name of the datacenter as ScyllaDB knows it.
    pub scylla_datacenter: String,
    /// Image of ScyllaDB.
    pub image: String,
    /// The version of ScyllaDB, which is the image's tag.
    pub version: String,
    /// Image of the agent of ScyllaDB Manager; none where nodes have no agent.
    pub agent_image: Option<String>,
    /// Addresses of nodes elsewhere that new nodes ask.
    pub external_seeds: Vec<String>,
    /// Arguments for ScyllaDB.
    pub additional_arguments: Vec<String>,
    /// Whether ScyllaDB leaves out its checks of the machine.
    pub developer_mode: bool,
    /// How Alternator is served, if it is.
    pub alternator: Option<Alternator>,
    /// The racks, with what the template says.
    pub racks: Vec<Rack>,
    /// The Services of nodes; their type is a known one.
    pub node_service: Option<NodeServiceOptions>,
    /// What other nodes connect to; a known type.
    pub nodes_broadcast: BroadcastAddressType,
    /// What clients connect to; a known type.
    pub clients_broadcast: BroadcastAddressType,
    /// Ingresses to CQL, if there are to be any.
    pub cql_ingress: Option<CqlIngressOptions>,
    /// The domains under which clients outside find the nodes; at least one, where there are Ingresses.
    pub dns_domains: Vec<String>,
    /// Credentials for images.
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// How pods resolve names.
    pub dns_policy: DnsPolicy,
    /// IP families of Services, the first being ScyllaDB's own; empty where Kubernetes decides.
    pub ip_families: Vec<IpFamily>,
    /// Whether Services have addresses of both families.
    pub ip_family_policy: Option<IpFamilyPolicy>,
    /// Why all nodes are to be restarted.
    pub force_redeployment_reason: Option<String>,
    /// Conditions that make pods ready.
    pub readiness_gates: Vec<PodReadinessGate>,
    /// For how many seconds a node is ready before it counts as available.
    pub min_ready_seconds: i32,
    /// For how many seconds at least a node that is stopped goes on serving, if the user says so.
    pub min_termination_grace_period_seconds: Option<i32>,
    /// Whether several nodes may start at the same time.
    pub parallel_node_operations: bool,
    /// Whether pods use the network of their machine.
    pub host_network: bool,
    /// Kernel settings that were asked for.
    pub sysctls: Vec<String>,
    /// By which patterns of the operator those of them are allowed that not every datacenter may set.
    pub other_sysctls: BTreeSet<String>,
    /// The Secret whose token the agents take, if another one is to be taken than the datacenter's own.
    pub token_override: Option<String>,
}

/// A rack, with everything that the template says and it does not.
#[derive(Clone, Debug, PartialEq)]
pub struct Rack {
    /// Its name.
    pub name: String,
    /// Its position in the specification.
    pub ordinal: usize,
    /// How many nodes it is to have.
    pub nodes: i32,
    /// Where its pods may run.
    pub placement: Placement,
    /// What ScyllaDB gets, if anything is said about it.
    pub resources: Option<ResourceRequirements>,
    /// What keeps the data of a node.
    pub storage: Storage,
    /// The ConfigMap with the user's settings of ScyllaDB.
    pub custom_config_map: Option<String>,
    /// Volumes to add to the pods.
    pub volumes: Vec<Volume>,
    /// Where the ScyllaDB container sees volumes.
    pub volume_mounts: Vec<VolumeMount>,
    /// What the agent gets, if anything is said about it.
    pub agent_resources: Option<ResourceRequirements>,
    /// The Secret with the user's settings of the agent.
    pub agent_custom_config_secret: Option<String>,
    /// Volumes to add to the pods for the agent.
    pub agent_volumes: Vec<Volume>,
    /// Where the agent's container sees volumes.
    pub agent_volume_mounts: Vec<VolumeMount>,
    /// Labels to add to the Services of its nodes.
    pub service_labels: BTreeMap<String, String>,
    /// Annotations to add to the Services of its nodes.
    pub service_annotations: BTreeMap<String, String>,
}

/// What keeps the data of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Storage {
    /// Size of the volume, as an API server writes it.
    pub capacity: Quantity,
    /// The StorageClass; none is the default one.
    pub class: Option<String>,
    /// Labels of the claims; empty where they have the datacenter's.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the claims; empty where they have the datacenter's.
    pub annotations: BTreeMap<String, String>,
}

/// How Alternator is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternator {
    /// How far writes are kept from disturbing each other.
    pub write_isolation: AlternatorWriteIsolation,
    /// The port of plain HTTP, if that is served.
    pub http_port: Option<i32>,
    /// Whether clients must say who they are.
    pub authorization: bool,
    /// The Secret with the certificate that the user gives; none where the operator makes one.
    pub user_certificate: Option<String>,
    /// What else the certificate that the operator makes is for.
    pub additional_dns_names: Vec<String>,
    /// What else the certificate that the operator makes is for.
    pub additional_addresses: Vec<IpAddr>,
}

impl Datacenter {
    /// The family of ScyllaDB's own addresses.
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

    /// The version of ScyllaDB, where the image's tag is one that can be compared.
    pub(crate) fn comparable_version(&self) -> Option<Version> {
        Version::parse(&self.version)
    }

    /// The StatefulSet of a rack.
    pub fn stateful_set_name(&self, rack: &Rack) -> String {
        names::datacenter::rack_stateful_set(&self.name, &self.scylla_datacenter, &rack.name)
    }
}

/// The ConfigMap with the user's settings of ScyllaDB, where a rack names no other.
pub const USUAL_CONFIG_MAP: &str = "scylla-config";

/// The Secret with the user's settings of the agent, where a rack names no other.
pub const USUAL_AGENT_SECRET: &str = "scylla-agent-config-secret";

impl Rack {
    /// The ConfigMap with the user's settings of ScyllaDB; one with the usual name need not be there.
    pub fn config_map(&self) -> &str {
        self.custom_config_map.as_deref().unwrap_or(USUAL_CONFIG_MAP)
    }

    /// The Secret with the user's settings of the agent; one with the usual name need not be there.
    pub fn agent_secret(&self) -> &str {
        self.agent_custom_config_secret.as_deref().unwrap_or(USUAL_AGENT_SECRET)
    }
}
