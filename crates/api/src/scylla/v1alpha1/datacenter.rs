//! One datacenter of ScyllaDB in one Kubernetes cluster: [`ScyllaDBDatacenter`].

use k8s_openapi::{
    api::core::v1::{LocalObjectReference, PodReadinessGate},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{
    expose::ExposeOptions,
    rack::{ObjectTemplateMetadata, RackSpec, RackStatus, RackTemplate},
};
use crate::schema;

/// The datacenter to run.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[kube(
    group = "scylla.scylladb.com",
    version = "v1alpha1",
    kind = "ScyllaDBDatacenter",
    namespaced,
    status = "ScyllaDBDatacenterStatus",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default))",
    schema = "disabled",
    category = "scylladb",
    shortname = "sdc",
    printcolumn(name = "AVAILABLE", type_ = "string", json_path = ".status.conditions[?(@.type=='Available')].status"),
    printcolumn(
        name = "PROGRESSING",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Progressing')].status"
    ),
    printcolumn(name = "DEGRADED", type_ = "string", json_path = ".status.conditions[?(@.type=='Degraded')].status"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct ScyllaDBDatacenterSpec {
    /// Labels and annotations of the Pods. Without it, Pods get those of this object.
    pub metadata: Option<ObjectTemplateMetadata>,
    /// Name of the ScyllaDB cluster that this datacenter is a part of. Datacenters of one cluster have the same one. It
    /// cannot be changed.
    pub cluster_name: Option<String>,
    /// Name of the datacenter, as ScyllaDB itself knows it. Without it, the name of this object. It cannot be changed
    /// as long as there are nodes.
    pub datacenter_name: Option<String>,
    /// What all nodes have in common in how they run ScyllaDB.
    #[serde(rename = "scyllaDB")]
    pub scylladb: Option<ScyllaDBOptions>,
    /// What all nodes have in common in how they run the agent of ScyllaDB Manager. Without it, nodes have no agent,
    /// and ScyllaDB Manager cannot work on them.
    #[serde(rename = "scyllaDBManagerAgent")]
    pub scylladb_manager_agent: Option<ScyllaDBManagerAgentOptions>,
    /// What racks have in common. A rack that says something else itself has its way.
    pub rack_template: Option<RackTemplate>,
    /// The racks of the datacenter.
    pub racks: Option<Vec<RackSpec>>,
    /// How the nodes are reached. Without it, by Services of type ClusterIP inside the Kubernetes cluster.
    pub expose_options: Option<ExposeOptions>,
    /// Secrets in the same namespace with the credentials of the registries that images come from.
    pub image_pull_secrets: Option<Vec<LocalObjectReference>>,
    /// How Pods resolve names: ClusterFirstWithHostNet, ClusterFirst, Default or None. Without it,
    /// ClusterFirstWithHostNet.
    pub dns_policy: Option<DnsPolicy>,
    /// DNS domains under which the datacenter is reached, such as "db.example.com". Certificates and Ingresses are made
    /// for them. Without it, names inside the Kubernetes cluster are all there is.
    pub dns_domains: Option<Vec<String>>,
    /// IP families of Services and of ScyllaDB's own addresses, the first being the one that matters most: IPv4, IPv6.
    /// Without it, IPv4. The first one cannot be changed.
    #[schemars(extend("default" = ["IPv4"]))]
    pub ip_families: Option<Vec<IpFamily>>,
    /// Whether Services have addresses of both IP families: SingleStack, PreferDualStack or RequireDualStack. Without
    /// it, SingleStack.
    #[schemars(extend("default" = "SingleStack"))]
    pub ip_family_policy: Option<IpFamilyPolicy>,
    /// Any text. When it changes, every node is restarted, one after the other.
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
    /// Whether several nodes may start at the same time. This needs ScyllaDB 2026.2 or newer. Without it, false: nodes
    /// start one by one.
    pub enable_parallel_node_operations: Option<bool>,
}

/// How all nodes run ScyllaDB.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaDBOptions {
    /// Image of ScyllaDB, such as "docker.io/scylladb/scylla:2026.2.4". The tag says the version; a newer one starts a
    /// rolling upgrade.
    pub image: Option<String>,
    /// Addresses of nodes outside of this object from which new nodes learn of the cluster that they join. Without it,
    /// nodes know of each other only.
    pub external_seeds: Option<Vec<String>>,
    /// Turns on Alternator, the API that understands DynamoDB clients; it is served with TLS on port 8043. Without it,
    /// Alternator is off.
    pub alternator_options: Option<AlternatorOptions>,
    /// Arguments to add to ScyllaDB's command line. They can break what the operator relies on, so prefer
    /// customConfigMapRef.
    #[serde(rename = "additionalScyllaDBArguments")]
    pub additional_scylladb_arguments: Option<Vec<String>>,
    /// Whether ScyllaDB leaves out its checks of the Kubernetes node. For trying things out, never for data that
    /// matters. Without it, the checks are made.
    pub enable_developer_mode: Option<bool>,
}

/// How all nodes run the agent of ScyllaDB Manager.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaDBManagerAgentOptions {
    /// Image of the agent, such as "docker.io/scylladb/scylla-manager-agent:3.12.0".
    pub image: Option<String>,
}

/// How Alternator is served.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AlternatorOptions {
    /// How far writes are kept from disturbing each other: always_use_lwt, forbid_rmw, only_rmw_uses_lwt or unsafe_rmw.
    pub write_isolation: Option<AlternatorWriteIsolation>,
    /// The certificate that Alternator shows to its clients. Without it, the operator makes one.
    #[schemars(extend("default" = {"type": "OperatorManaged"}))]
    pub serving_certificate: Option<TlsCertificate>,
}

/// How far Alternator keeps writes from disturbing each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(transform = schema::any_text)]
pub enum AlternatorWriteIsolation {
    /// Every write is a lightweight transaction: always right, and slowest.
    AlwaysUseLwt,
    /// Writes that depend on what was there before are refused, and the others need no transaction.
    ForbidRmw,
    /// Only writes that depend on what was there before are lightweight transactions. Right as long as no item is
    /// written both ways.
    OnlyRmwUsesLwt,
    /// No write is a transaction, so that one may overwrite another unseen.
    UnsafeRmw,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// A certificate, and where it comes from.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TlsCertificate {
    /// Who makes the certificate: OperatorManaged or UserManaged.
    #[serde(rename = "type")]
    pub certificate_type: Option<TlsCertificateType>,
    /// Options of type OperatorManaged.
    pub operator_managed_options: Option<OperatorManagedTlsCertificateOptions>,
    /// Options of type UserManaged.
    pub user_managed_options: Option<UserManagedTlsCertificateOptions>,
}

/// Who makes a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum TlsCertificateType {
    /// The operator makes it and renews it in time.
    OperatorManaged,
    /// It is given in a Secret.
    UserManaged,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// A certificate that the operator makes.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OperatorManagedTlsCertificateOptions {
    /// Additional DNS names of the certificate, besides those of the operator. Use it for a load balancer or an Ingress
    /// of your own.
    #[serde(rename = "additionalDNSNames")]
    pub additional_dns_names: Option<Vec<String>>,
    /// Additional IP addresses of the certificate, besides those of the operator. Use it for a load balancer of your
    /// own.
    #[serde(rename = "additionalIPAddresses")]
    pub additional_ip_addresses: Option<Vec<String>>,
}

/// A certificate that is given.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UserManagedTlsCertificateOptions {
    /// Name of a Secret of type kubernetes.io/tls in the same namespace, with the certificate and its key.
    pub secret_name: Option<String>,
}

/// How Pods resolve names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum DnsPolicy {
    /// By the Kubernetes cluster first, also for Pods in the network of their Kubernetes node.
    ClusterFirstWithHostNet,
    /// By the Kubernetes cluster first, but not for Pods in the network of their Kubernetes node.
    ClusterFirst,
    /// As their Kubernetes node does.
    Default,
    /// Not at all, except by what the Pod itself says.
    None,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// A version of the internet protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum IpFamily {
    /// Version 4.
    IPv4,
    /// Version 6.
    IPv6,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// Whether Services have addresses of both IP families.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::known_text)]
pub enum IpFamilyPolicy {
    /// Of one.
    SingleStack,
    /// Of both where the Kubernetes cluster has both, of one elsewhere.
    PreferDualStack,
    /// Of both; where the Kubernetes cluster has one only, there is no Service.
    RequireDualStack,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// Status of the datacenter.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaDBDatacenterStatus {
    /// The generation of this object that the rest of the status speaks of.
    pub observed_generation: Option<i64>,
    /// Conditions of the datacenter: Available, Progressing and Degraded, and Progressing and Degraded for each
    /// component. It is as specified when Available is True and both others are False.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Option<Vec<Condition>>,
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
    /// Status of each rack.
    pub racks: Option<Vec<RackStatus>>,
}
