//! How the nodes of a datacenter are reached: their Services, their Ingresses and the addresses that they announce.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::schema;

/// How nodes are reached from inside and outside of the Kubernetes cluster.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ExposeOptions {
    /// The Service that each node has. Without it, nodes have Services of type ClusterIP.
    #[schemars(extend("default" = {"type": "ClusterIP"}))]
    pub node_service: Option<NodeServiceOptions>,
    /// The addresses under which nodes announce themselves. They cannot be changed later.
    pub broadcast_options: Option<BroadcastOptions>,
    /// How CQL clients outside of the Kubernetes cluster reach the nodes through a proxy that routes by host name.
    /// Deprecated: use Services of type LoadBalancer in nodeService.
    pub cql: Option<CqlExposeOptions>,
}

/// The Service of a node.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeServiceOptions {
    /// Labels to put on the Services. Without it, they get the labels of the object that they are made for.
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations to put on the Services. Without it, they get the annotations of the object that they are made for.
    pub annotations: Option<BTreeMap<String, String>>,
    /// Kind of Service: Headless gives a DNS name only, ClusterIP adds an address inside the Kubernetes cluster, and
    /// LoadBalancer adds one outside of it.
    #[serde(rename = "type")]
    pub service_type: Option<NodeServiceType>,
    /// Where traffic from outside of the Kubernetes cluster may be sent: Cluster or Local. Becomes the field of the
    /// same name in the Services.
    pub external_traffic_policy: Option<TrafficPolicy>,
    /// Where traffic from inside the Kubernetes cluster may be sent: Cluster or Local. Becomes the field of the same
    /// name in the Services.
    pub internal_traffic_policy: Option<TrafficPolicy>,
    /// Whether Services of type LoadBalancer also take a port on every Kubernetes node. Without it, they do.
    pub allocate_load_balancer_node_ports: Option<bool>,
    /// The load balancer implementation that serves the Services of type LoadBalancer, such as
    /// "service.k8s.aws/nlb". Without it, the one that the Kubernetes cluster has as its default.
    pub load_balancer_class: Option<String>,
}

/// Kind of Service that a node has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum NodeServiceType {
    /// A DNS name that leads to the Pod.
    Headless,
    /// An address inside the Kubernetes cluster that outlives the Pod.
    ClusterIP,
    /// As ClusterIP, and an address outside of the Kubernetes cluster.
    LoadBalancer,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// Where a Service sends traffic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum TrafficPolicy {
    /// Wherever the Pod runs.
    Cluster,
    /// Only to a Pod on the Kubernetes node at which the traffic arrives.
    Local,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// The addresses under which a node announces itself.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BroadcastOptions {
    /// What other nodes connect to: ScyllaDB's broadcast_address. Without it, the address of the Pod.
    #[schemars(extend("default" = {"type": "PodIP"}))]
    pub nodes: Option<BroadcastAddress>,
    /// What clients connect to: ScyllaDB's broadcast_rpc_address. Without it, the address of the Pod.
    #[schemars(extend("default" = {"type": "PodIP"}))]
    pub clients: Option<BroadcastAddress>,
}

/// An address under which a node announces itself.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BroadcastAddress {
    /// Whose address it is: PodIP, ServiceClusterIP or ServiceLoadBalancerIngress. The latter two need Services that
    /// have such an address.
    #[serde(rename = "type")]
    pub address_type: Option<BroadcastAddressType>,
    /// Options of type PodIP.
    #[serde(rename = "podIP")]
    pub pod_ip: Option<PodIpOptions>,
}

/// Whose address a node announces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum BroadcastAddressType {
    /// The address of the Pod, which changes whenever the Pod is recreated.
    PodIP,
    /// The address of the node's Service inside the Kubernetes cluster.
    ServiceClusterIP,
    /// The address, or host name, of the node's Service outside of the Kubernetes cluster.
    ServiceLoadBalancerIngress,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// Which address of a Pod is meant.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodIpOptions {
    /// Where the address is read: Status. Without it, Status.
    #[schemars(extend("default" = "Status"))]
    pub source: Option<PodIpSource>,
}

/// Where the address of a Pod is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum PodIpSource {
    /// In the status of the Pod.
    Status,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// How CQL clients outside of the Kubernetes cluster reach the nodes.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CqlExposeOptions {
    /// Makes an Ingress to the encrypted CQL port of each node, and one to any node, under each of dnsDomains.
    /// Deprecated: use Services of type LoadBalancer in nodeService. Without it, there are no Ingresses.
    pub ingress: Option<CqlIngressOptions>,
}

/// The Ingresses of CQL.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CqlIngressOptions {
    /// Labels to put on the Ingresses. Without it, they get the labels of the object that they are made for.
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations to put on the Ingresses. Without it, they get the annotations of the object that they are made for.
    pub annotations: Option<BTreeMap<String, String>>,
    /// Name of the IngressClass whose controller serves the Ingresses.
    pub ingress_class_name: Option<String>,
}

/// What a rack has of its own in how its nodes are reached.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RackExposeOptions {
    /// The Service that each node of the rack has.
    pub node_service: Option<RackNodeServiceOptions>,
}

/// What a rack has of its own in the Services of its nodes.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RackNodeServiceOptions {
    /// Labels of the Services of the rack, besides those that all Services of nodes have.
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations of the Services of the rack, besides those that all Services of nodes have.
    pub annotations: Option<BTreeMap<String, String>>,
}
