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

/// Desired state of the datacenter.
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
    /// Labels and annotations of the Pods. If unset, Pods get those of this object.
    pub metadata: Option<ObjectTemplateMetadata>,
    /// Name of the ScyllaDB cluster that this datacenter is a part of. All datacenters of a cluster have the same name.
    /// It cannot be changed.
    pub cluster_name: Option<String>,
    /// Name of the datacenter in ScyllaDB. Defaults to the name of this object. It cannot be changed while there are
    /// nodes.
    pub datacenter_name: Option<String>,
    /// Options of ScyllaDB, for all nodes.
    #[serde(rename = "scyllaDB")]
    pub scylladb: Option<ScyllaDBOptions>,
    /// Options of the ScyllaDB Manager agent, for all nodes. If unset, nodes have no agent, and ScyllaDB Manager cannot
    /// run tasks on them.
    #[serde(rename = "scyllaDBManagerAgent")]
    pub scylladb_manager_agent: Option<ScyllaDBManagerAgentOptions>,
    /// Template of the racks. Fields of a rack take precedence.
    pub rack_template: Option<RackTemplate>,
    /// The racks of the datacenter.
    pub racks: Option<Vec<RackSpec>>,
    /// How the nodes are exposed. If unset, by Services of type ClusterIP.
    pub expose_options: Option<ExposeOptions>,
    /// Secrets in the same namespace with the credentials of image registries.
    pub image_pull_secrets: Option<Vec<LocalObjectReference>>,
    /// DNS policy of the Pods: ClusterFirstWithHostNet, ClusterFirst, Default or None. Defaults to
    /// ClusterFirstWithHostNet.
    pub dns_policy: Option<DnsPolicy>,
    /// DNS domains of the datacenter, such as "db.example.com". The operator issues certificates and creates Ingresses
    /// for them. If unset, there are only DNS names inside the Kubernetes cluster.
    pub dns_domains: Option<Vec<String>>,
    /// IP families of the Services: IPv4 and IPv6. ScyllaDB uses the first one. Defaults to IPv4. The first one cannot
    /// be changed while there are nodes.
    #[schemars(extend("default" = ["IPv4"]))]
    pub ip_families: Option<Vec<IpFamily>>,
    /// Whether Services have addresses of both IP families: SingleStack, PreferDualStack or RequireDualStack. Defaults
    /// to SingleStack.
    #[schemars(extend("default" = "SingleStack"))]
    pub ip_family_policy: Option<IpFamilyPolicy>,
    /// Any text. A change starts a rolling restart of all nodes.
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
    /// Whether several nodes may start at the same time. This needs ScyllaDB 2026.2 or newer. Defaults to false: nodes
    /// start one by one.
    pub enable_parallel_node_operations: Option<bool>,
}

/// Options of ScyllaDB, for all nodes.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaDBOptions {
    /// Image of ScyllaDB, such as "docker.io/scylladb/scylla:2026.2.4". The tag is the version; a newer one starts a
    /// rolling upgrade.
    pub image: Option<String>,
    /// Addresses of seed nodes outside of this object. Use them to add a datacenter to an existing cluster.
    pub external_seeds: Option<Vec<String>>,
    /// Enables Alternator, the DynamoDB-compatible API, with TLS on port 8043. If unset, Alternator is disabled.
    pub alternator_options: Option<AlternatorOptions>,
    /// Additional arguments of ScyllaDB's command line. They can conflict with those of the operator, so prefer
    /// customConfigMapRef.
    #[serde(rename = "additionalScyllaDBArguments")]
    pub additional_scylladb_arguments: Option<Vec<String>>,
    /// Whether ScyllaDB runs in developer mode, which skips its checks of the Kubernetes node. Not for production.
    /// Defaults to false.
    pub enable_developer_mode: Option<bool>,
}

/// Options of the ScyllaDB Manager agent, for all nodes.
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
    /// Write isolation of Alternator: always_use_lwt, forbid_rmw, only_rmw_uses_lwt or unsafe_rmw.
    pub write_isolation: Option<AlternatorWriteIsolation>,
    /// The serving certificate of Alternator. If unset, the operator issues one.
    #[schemars(extend("default" = {"type": "OperatorManaged"}))]
    pub serving_certificate: Option<TlsCertificate>,
}

/// Write isolation of Alternator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(transform = schema::any_text)]
pub enum AlternatorWriteIsolation {
    /// Every write is a lightweight transaction.
    AlwaysUseLwt,
    /// Read-modify-write requests are rejected, and no write is a lightweight transaction.
    ForbidRmw,
    /// Only read-modify-write requests are lightweight transactions. Safe if no item is written both ways.
    OnlyRmwUsesLwt,
    /// No write is a lightweight transaction, so concurrent read-modify-write requests can lose updates.
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
    /// Who provides the certificate: OperatorManaged or UserManaged.
    #[serde(rename = "type")]
    pub certificate_type: Option<TlsCertificateType>,
    /// Options of type OperatorManaged.
    pub operator_managed_options: Option<OperatorManagedTlsCertificateOptions>,
    /// Options of type UserManaged.
    pub user_managed_options: Option<UserManagedTlsCertificateOptions>,
}

/// Who provides a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum TlsCertificateType {
    /// The operator issues and renews it.
    OperatorManaged,
    /// The user provides it in a Secret.
    UserManaged,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// A certificate that the operator issues.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OperatorManagedTlsCertificateOptions {
    /// Additional DNS names of the certificate, in addition to those of the operator, such as that of a load balancer
    /// or an Ingress.
    #[serde(rename = "additionalDNSNames")]
    pub additional_dns_names: Option<Vec<String>>,
    /// Additional IP addresses of the certificate, in addition to those of the operator, such as that of a load
    /// balancer.
    #[serde(rename = "additionalIPAddresses")]
    pub additional_ip_addresses: Option<Vec<String>>,
}

/// A certificate that the user provides.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UserManagedTlsCertificateOptions {
    /// Name of a Secret of type kubernetes.io/tls in the same namespace, with the certificate and its key.
    pub secret_name: Option<String>,
}

/// DNS policy of Pods, as Kubernetes defines it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum DnsPolicy {
    /// By the Kubernetes cluster first, also for Pods in the host network.
    ClusterFirstWithHostNet,
    /// By the Kubernetes cluster first, but not for Pods in the host network.
    ClusterFirst,
    /// As their Kubernetes node does.
    Default,
    /// Only by the dnsConfig of the Pod.
    None,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// An IP family.
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
    /// Addresses of one IP family.
    SingleStack,
    /// Addresses of both IP families, if the Kubernetes cluster supports both.
    PreferDualStack,
    /// Addresses of both IP families; the Service is not created if the Kubernetes cluster supports only one.
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
    /// The most recent generation of this object that the operator has observed.
    pub observed_generation: Option<i64>,
    /// Conditions of the datacenter: Available, Progressing and Degraded, and Progressing and Degraded for each
    /// component. The rollout is complete when Available is True and both others are False.
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
    /// Number of nodes that match the spec.
    pub updated_nodes: Option<i32>,
    /// Number of nodes that are ready.
    pub ready_nodes: Option<i32>,
    /// Number of nodes that have been ready for at least minReadySeconds.
    pub available_nodes: Option<i32>,
    /// Status of each rack.
    pub racks: Option<Vec<RackStatus>>,
}
