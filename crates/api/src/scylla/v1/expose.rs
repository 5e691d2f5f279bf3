//! How the nodes of a cluster are made reachable.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::ObjectTemplateMetadata;
use crate::schema;

/// How the nodes are made reachable, and which addresses they announce.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ExposeOptions {
    /// Deprecated and experimental: CQL behind a proxy that routes to nodes by the SNI of the TLS client. Use
    /// `nodeService` and `broadcastOptions` instead.
    pub cql: Option<CqlExposeOptions>,
    /// The Service that each node has.
    #[schemars(extend("default" = {"type": "ClusterIP"}))]
    pub node_service: Option<NodeServiceTemplate>,
    /// Which of its addresses a node announces. Without it, that of its Service inside of Kubernetes.
    pub broadcast_options: Option<NodeBroadcastOptions>,
}

/// How the nodes of one rack are made reachable.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RackExposeOptions {
    /// Labels and annotations of the nodes' Services in this rack. They win over those of the whole cluster.
    pub node_service: Option<ObjectTemplateMetadata>,
}

/// How CQL is made reachable from outside.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CqlExposeOptions {
    /// Deprecated and experimental: the Ingresses that lead to the nodes.
    pub ingress: Option<IngressOptions>,
}

/// Ingresses that lead to the nodes, one for each and one for all together.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressOptions {
    /// Whether there are no Ingresses after all. Without it, there are.
    pub disabled: Option<bool>,
    /// The IngressClass, and with it the proxy, that serves them. Without it, the default one.
    pub ingress_class_name: Option<String>,
    /// Labels that are added to those of the operator.
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations that are added to those of the operator.
    pub annotations: Option<BTreeMap<String, String>>,
}

/// What kind of Service a node has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum NodeServiceType {
    /// No address of its own: its name leads to the address of the pod.
    Headless,
    /// An address inside of Kubernetes that outlives the pod.
    ClusterIP,
    /// An address at a load balancer outside of Kubernetes.
    LoadBalancer,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// The Service that each node has.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["type"]))]
pub struct NodeServiceTemplate {
    /// What kind of Service it is: Headless, ClusterIP or LoadBalancer.
    #[serde(rename = "type")]
    pub service_type: Option<NodeServiceType>,
    /// For type LoadBalancer: how outside traffic finds the pod, Cluster or Local, as in a Service.
    pub external_traffic_policy: Option<String>,
    /// How traffic inside of Kubernetes finds the pod, Cluster or Local, as in a Service.
    pub internal_traffic_policy: Option<String>,
    /// For type LoadBalancer: which load balancer makes the address. Without it, the default one.
    pub load_balancer_class: Option<String>,
    /// For type LoadBalancer: whether the Service takes ports of the machines too. Without it, it does.
    pub allocate_load_balancer_node_ports: Option<bool>,
    /// Labels that are added to those of the operator.
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations that are added to those of the operator; load balancers are often configured by them.
    pub annotations: Option<BTreeMap<String, String>>,
}

/// Which of its addresses a node announces.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeBroadcastOptions {
    /// The address for other nodes, `broadcast_address` in ScyllaDB's configuration.
    #[schemars(extend("default" = {"type": "ServiceClusterIP"}))]
    pub nodes: Option<BroadcastOptions>,
    /// The address for clients, `broadcast_rpc_address` in ScyllaDB's configuration.
    #[schemars(extend("default" = {"type": "ServiceClusterIP"}))]
    pub clients: Option<BroadcastOptions>,
}

/// Where an announced address comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum BroadcastAddressType {
    /// The address of the pod.
    PodIP,
    /// The address of the node's Service inside of Kubernetes.
    ServiceClusterIP,
    /// The address of the node's Service at the load balancer.
    ServiceLoadBalancerIngress,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// An address that a node announces.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BroadcastOptions {
    /// Where the address comes from: PodIP, ServiceClusterIP or ServiceLoadBalancerIngress.
    #[serde(rename = "type")]
    pub address_type: Option<BroadcastAddressType>,
    /// For type PodIP: how the address of the pod is found.
    #[serde(rename = "podIP")]
    pub pod_ip: Option<PodIpAddressOptions>,
}

/// Where the address of a pod is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum PodIpSource {
    /// In the status of the pod.
    Status,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// How the address of a pod is found.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodIpAddressOptions {
    /// Where the address is read. The only value is Status, the status of the pod.
    #[schemars(extend("default" = "Status"))]
    pub source: Option<PodIpSource>,
}
