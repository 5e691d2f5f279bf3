//! How the nodes of a cluster are exposed.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::ObjectTemplateMetadata;
use crate::schema;

/// How the nodes are exposed, and which addresses they broadcast.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ExposeOptions {
    /// Deprecated and experimental: CQL behind a proxy that routes to nodes by the SNI of the TLS client. Use
    /// `nodeService` and `broadcastOptions` instead.
    pub cql: Option<CqlExposeOptions>,
    /// The Service of each node.
    #[schemars(extend("default" = {"type": "ClusterIP"}))]
    pub node_service: Option<NodeServiceTemplate>,
    /// The addresses that a node broadcasts. Defaults to the ClusterIP of its Service.
    pub broadcast_options: Option<NodeBroadcastOptions>,
}

/// How the nodes of one rack are exposed.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RackExposeOptions {
    /// Labels and annotations of the nodes' Services in this rack. They take precedence over those of the whole
    /// cluster.
    pub node_service: Option<ObjectTemplateMetadata>,
}

/// How CQL is exposed.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CqlExposeOptions {
    /// Deprecated and experimental: Ingresses for CQL.
    pub ingress: Option<IngressOptions>,
}

/// Ingresses for CQL, one for each node and one for all nodes.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressOptions {
    /// Whether no Ingresses are created. Defaults to false.
    pub disabled: Option<bool>,
    /// The IngressClass of the Ingresses. Defaults to the default IngressClass.
    pub ingress_class_name: Option<String>,
    /// Labels in addition to those of the operator.
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations in addition to those of the operator.
    pub annotations: Option<BTreeMap<String, String>>,
}

/// Type of the Service of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum NodeServiceType {
    /// A headless Service: its DNS name resolves to the address of the pod.
    Headless,
    /// A ClusterIP, which stays when the pod is recreated.
    ClusterIP,
    /// A ClusterIP and an external load balancer.
    LoadBalancer,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// The Service of each node.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["type"]))]
pub struct NodeServiceTemplate {
    /// Type of the Service: Headless, ClusterIP or LoadBalancer.
    #[serde(rename = "type")]
    pub service_type: Option<NodeServiceType>,
    /// For type LoadBalancer: externalTrafficPolicy of the Service, Cluster or Local.
    pub external_traffic_policy: Option<String>,
    /// internalTrafficPolicy of the Service, Cluster or Local.
    pub internal_traffic_policy: Option<String>,
    /// For type LoadBalancer: the load balancer class. Defaults to the default implementation of the Kubernetes
    /// cluster.
    pub load_balancer_class: Option<String>,
    /// For type LoadBalancer: whether the Service also has node ports. Defaults to true.
    pub allocate_load_balancer_node_ports: Option<bool>,
    /// Labels in addition to those of the operator.
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations in addition to those of the operator, such as settings of a load balancer.
    pub annotations: Option<BTreeMap<String, String>>,
}

/// The addresses that a node broadcasts.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeBroadcastOptions {
    /// The address that other nodes connect to: ScyllaDB's `broadcast_address`.
    #[schemars(extend("default" = {"type": "ServiceClusterIP"}))]
    pub nodes: Option<BroadcastOptions>,
    /// The address that clients connect to: ScyllaDB's `broadcast_rpc_address`.
    #[schemars(extend("default" = {"type": "ServiceClusterIP"}))]
    pub clients: Option<BroadcastOptions>,
}

/// Source of a broadcast address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum BroadcastAddressType {
    /// The address of the pod.
    PodIP,
    /// The ClusterIP of the node's Service.
    ServiceClusterIP,
    /// The load balancer ingress of the node's Service.
    ServiceLoadBalancerIngress,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// An address that a node broadcasts.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BroadcastOptions {
    /// Source of the address: PodIP, ServiceClusterIP or ServiceLoadBalancerIngress.
    #[serde(rename = "type")]
    pub address_type: Option<BroadcastAddressType>,
    /// Options of type PodIP.
    #[serde(rename = "podIP")]
    pub pod_ip: Option<PodIpAddressOptions>,
}

/// Source of the address of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum PodIpSource {
    /// The status of the pod.
    Status,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// Options of type PodIP.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodIpAddressOptions {
    /// Source of the address. The only value is Status: the status of the pod.
    #[schemars(extend("default" = "Status"))]
    pub source: Option<PodIpSource>,
}
