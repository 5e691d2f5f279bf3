//! How the nodes of a datacenter are exposed: their Services, their Ingresses and the addresses that they broadcast.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::schema;

/// How nodes are exposed inside and outside of the Kubernetes cluster.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ExposeOptions {
    /// The Service of each node. If unset, nodes have Services of type ClusterIP.
    #[schemars(extend("default" = {"type": "ClusterIP"}))]
    pub node_service: Option<NodeServiceOptions>,
    /// The addresses that nodes broadcast. Their types cannot be changed while there are nodes.
    pub broadcast_options: Option<BroadcastOptions>,
    /// Exposes CQL outside of the Kubernetes cluster through Ingresses, which route by TLS SNI. Deprecated: use
    /// Services of type LoadBalancer in nodeService.
    pub cql: Option<CqlExposeOptions>,
}

/// The Service of a node.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeServiceOptions {
    /// Labels of the Services. If unset, they get the labels of their ScyllaDBDatacenter.
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations of the Services. If unset, they get the annotations of their ScyllaDBDatacenter.
    pub annotations: Option<BTreeMap<String, String>>,
    /// Type of the Services: Headless, ClusterIP or LoadBalancer.
    #[serde(rename = "type")]
    pub service_type: Option<NodeServiceType>,
    /// externalTrafficPolicy of the Services: Cluster or Local.
    pub external_traffic_policy: Option<TrafficPolicy>,
    /// internalTrafficPolicy of the Services: Cluster or Local.
    pub internal_traffic_policy: Option<TrafficPolicy>,
    /// For type LoadBalancer: whether the Services also have node ports. Defaults to true.
    pub allocate_load_balancer_node_ports: Option<bool>,
    /// The load balancer implementation that serves the Services of type LoadBalancer, such as "service.k8s.aws/nlb".
    /// Defaults to the default implementation of the Kubernetes cluster.
    pub load_balancer_class: Option<String>,
}

/// Type of the Service of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum NodeServiceType {
    /// A headless Service: its DNS name resolves to the address of the Pod.
    Headless,
    /// A ClusterIP, which stays when the Pod is recreated.
    ClusterIP,
    /// A ClusterIP and an external load balancer.
    LoadBalancer,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// Traffic policy of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum TrafficPolicy {
    /// To the Pod on any Kubernetes node.
    Cluster,
    /// Only to a Pod on the Kubernetes node at which the traffic arrives.
    Local,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// The addresses that a node broadcasts.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BroadcastOptions {
    /// The address that other nodes connect to: ScyllaDB's broadcast_address. Defaults to the address of the Pod.
    #[schemars(extend("default" = {"type": "PodIP"}))]
    pub nodes: Option<BroadcastAddress>,
    /// The address that clients connect to: ScyllaDB's broadcast_rpc_address. Defaults to the address of the Pod.
    #[schemars(extend("default" = {"type": "PodIP"}))]
    pub clients: Option<BroadcastAddress>,
}

/// An address that a node broadcasts.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BroadcastAddress {
    /// Source of the address: PodIP, ServiceClusterIP or ServiceLoadBalancerIngress. The latter two require a
    /// nodeService with such an address.
    #[serde(rename = "type")]
    pub address_type: Option<BroadcastAddressType>,
    /// Options of type PodIP.
    #[serde(rename = "podIP")]
    pub pod_ip: Option<PodIpOptions>,
}

/// Source of a broadcast address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum BroadcastAddressType {
    /// The address of the Pod, which changes whenever the Pod is recreated.
    PodIP,
    /// The ClusterIP of the node's Service.
    ServiceClusterIP,
    /// The load balancer ingress of the node's Service: an IP address or a host name.
    ServiceLoadBalancerIngress,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// Options of type PodIP.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodIpOptions {
    /// Source of the address. The only value is Status: the status of the Pod. Defaults to Status.
    #[schemars(extend("default" = "Status"))]
    pub source: Option<PodIpSource>,
}

/// Source of the address of a Pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum PodIpSource {
    /// The status of the Pod.
    Status,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// How CQL is exposed outside of the Kubernetes cluster.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CqlExposeOptions {
    /// Creates an Ingress to the encrypted CQL port of each node, and one to any node, for each of dnsDomains.
    /// Deprecated: use Services of type LoadBalancer in nodeService. If unset, there are no Ingresses.
    pub ingress: Option<CqlIngressOptions>,
}

/// The Ingresses of CQL.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CqlIngressOptions {
    /// Labels of the Ingresses. If unset, they get the labels of their ScyllaDBDatacenter.
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations of the Ingresses. If unset, they get the annotations of their ScyllaDBDatacenter.
    pub annotations: Option<BTreeMap<String, String>>,
    /// Name of the IngressClass whose controller serves the Ingresses.
    pub ingress_class_name: Option<String>,
}

/// How the nodes of a rack are exposed.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RackExposeOptions {
    /// The Service of each node of the rack.
    pub node_service: Option<RackNodeServiceOptions>,
}

/// Labels and annotations of the Services of a rack.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RackNodeServiceOptions {
    /// Labels of the Services of the rack, in addition to those of all Services of nodes.
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations of the Services of the rack, in addition to those of all Services of nodes.
    pub annotations: Option<BTreeMap<String, String>>,
}
