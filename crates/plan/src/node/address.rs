//! The broadcast address of a node.

use std::{fmt, net::IpAddr, str::FromStr};

use k8s_openapi::api::core::v1::{Pod, Service};
use messina_api::scylla::v1alpha1::BroadcastAddressType;
use thiserror::Error;

/// A family of IP addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    /// Whether `text` is an address of this family.
    fn has(self, text: &str) -> bool {
        match text.parse() {
            Ok(IpAddr::V4(_)) => self == Self::V4,
            Ok(IpAddr::V6(_)) => self == Self::V6,
            Err(_) => false,
        }
    }

    /// Returns the wildcard address, on which a process listens on all interfaces.
    pub fn any_address(self) -> &'static str {
        match self {
            Self::V4 => "0.0.0.0",
            Self::V6 => "::",
        }
    }
}

impl fmt::Display for IpFamily {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// An unknown IP family.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("IP family {0:?} is not supported: use IPv4 or IPv6")]
pub struct UnknownFamily(String);

impl FromStr for IpFamily {
    type Err = UnknownFamily;

    fn from_str(text: &str) -> Result<Self, UnknownFamily> {
        match text {
            "IPv4" => Ok(Self::V4),
            "IPv6" => Ok(Self::V6),
            other => Err(UnknownFamily(other.to_owned())),
        }
    }
}

/// Why a node has no broadcast address. Most of these errors are temporary.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AddressError {
    /// The pod has no address, or none of the family.
    #[error("Pod {pod:?} has no {} address yet", family_or_ip(.family))]
    NoPodIp {
        /// Name of the pod.
        pod: String,
        /// The required family.
        family: Option<IpFamily>,
    },
    /// The Service has no cluster IP, or none of the family.
    #[error("Service {service:?} has no cluster {} address", family_or_ip(.family))]
    NoClusterIp {
        /// Name of the Service.
        service: String,
        /// The required family.
        family: Option<IpFamily>,
    },
    /// The Service has no address of a load balancer, or none of the family.
    #[error("Service {service:?} has no {} address and no host name of a load balancer yet", family_or_ip(.family))]
    NoIngress {
        /// Name of the Service.
        service: String,
        /// The required family.
        family: Option<IpFamily>,
    },
    /// The type is not known to this version of the operator.
    #[error("broadcast address type {0:?} is not supported: use PodIP, ServiceClusterIP or ServiceLoadBalancerIngress")]
    UnknownType(String),
}

fn family_or_ip(family: &Option<IpFamily>) -> String {
    family.map_or_else(|| "IP".to_owned(), |family| family.to_string())
}

/// The addresses of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodAddresses {
    /// `status.podIP`.
    pub ip: Option<String>,
    /// `status.podIPs`.
    pub ips: Vec<String>,
}

impl PodAddresses {
    /// Reads the addresses of a pod.
    pub fn of(pod: &Pod) -> Self {
        let status = pod.status.as_ref();
        let ips = status.and_then(|status| status.pod_ips.as_ref()).into_iter().flatten();
        Self { ip: status.and_then(|status| status.pod_ip.clone()), ips: ips.map(|ip| ip.ip.clone()).collect() }
    }

    fn first(&self, family: Option<IpFamily>) -> Option<String> {
        first(self.ip.iter().chain(&self.ips), family)
    }
}

/// The cluster IPs of a Service, and the addresses of its load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceAddresses {
    /// `spec.clusterIP`.
    pub cluster_ip: Option<String>,
    /// `spec.clusterIPs`.
    pub cluster_ips: Vec<String>,
    /// `status.loadBalancer.ingress`.
    pub ingress: Vec<IngressPoint>,
}

/// An ingress point of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IngressPoint {
    /// Its address.
    pub ip: Option<String>,
    /// Its host name.
    pub hostname: Option<String>,
}

impl ServiceAddresses {
    /// Reads the addresses of a Service.
    pub fn of(service: &Service) -> Self {
        let spec = service.spec.as_ref();
        let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
        let points = balancer.and_then(|balancer| balancer.ingress.as_ref()).into_iter().flatten();
        Self {
            cluster_ip: spec.and_then(|spec| spec.cluster_ip.clone()),
            cluster_ips: spec.and_then(|spec| spec.cluster_ips.clone()).unwrap_or_default(),
            ingress: points
                .map(|point| IngressPoint { ip: point.ip.clone(), hostname: point.hostname.clone() })
                .collect(),
        }
    }

    fn first_cluster_ip(&self, family: Option<IpFamily>) -> Option<String> {
        first(self.cluster_ip.iter().chain(&self.cluster_ips), family)
    }

    fn first_ingress(&self, family: Option<IpFamily>) -> Option<String> {
        let address = first(self.ingress.iter().filter_map(|point| point.ip.as_ref()), family);
        // A host name may resolve to any family, so it is accepted for each.
        address.or_else(|| self.ingress.iter().find_map(|point| point.hostname.clone()).filter(|name| !name.is_empty()))
    }
}

/// Returns the broadcast address or host name of a node. Without a `family`, it is the first address.
pub fn broadcast_address(
    address_type: &BroadcastAddressType,
    service: &Service,
    pod: &Pod,
    family: Option<IpFamily>,
) -> Result<String, AddressError> {
    let name = |name: &Option<String>| name.clone().unwrap_or_default();
    let (service_name, pod_name) = (name(&service.metadata.name), name(&pod.metadata.name));
    let (service, pod) = (ServiceAddresses::of(service), PodAddresses::of(pod));
    announced_address(address_type, (&service_name, &service), (&pod_name, &pod), family)
}

/// Returns the broadcast address for the names and addresses of a Service and a pod: see [`broadcast_address`].
pub(crate) fn announced_address(
    address_type: &BroadcastAddressType,
    (service_name, service): (&str, &ServiceAddresses),
    (pod_name, pod): (&str, &PodAddresses),
    family: Option<IpFamily>,
) -> Result<String, AddressError> {
    match address_type {
        BroadcastAddressType::PodIP => {
            pod.first(family).ok_or_else(|| AddressError::NoPodIp { pod: pod_name.to_owned(), family })
        }
        BroadcastAddressType::ServiceClusterIP => service
            .first_cluster_ip(family)
            .ok_or_else(|| AddressError::NoClusterIp { service: service_name.to_owned(), family }),
        BroadcastAddressType::ServiceLoadBalancerIngress => service
            .first_ingress(family)
            .ok_or_else(|| AddressError::NoIngress { service: service_name.to_owned(), family }),
        BroadcastAddressType::Other(other) => Err(AddressError::UnknownType(other.clone())),
    }
}

/// Whether the address that a node broadcasts is outdated: its Service has other addresses now, and not this one. A
/// Service without any address does not count, because it may get the same one again.
pub fn is_outdated(
    announced: &str,
    address_type: &BroadcastAddressType,
    service: &Service,
    pod: &Pod,
    family: Option<IpFamily>,
) -> bool {
    let addresses = ServiceAddresses::of(service);
    let is_there = |text: &String| text == announced;
    let has_it = match address_type {
        BroadcastAddressType::ServiceClusterIP => {
            addresses.cluster_ip.iter().chain(&addresses.cluster_ips).any(is_there)
        }
        // A load balancer may have several addresses, in any order.
        BroadcastAddressType::ServiceLoadBalancerIngress => {
            addresses.ingress.iter().any(|point| point.ip.iter().chain(&point.hostname).any(is_there))
        }
        // A pod keeps its addresses as long as its containers run.
        BroadcastAddressType::PodIP | BroadcastAddressType::Other(_) => true,
    };
    !has_it && broadcast_address(address_type, service, pod, family).is_ok()
}

/// Returns the first address, of the family if one is given. A headless Service has "None" as its cluster IP.
fn first<'a>(mut texts: impl Iterator<Item = &'a String>, family: Option<IpFamily>) -> Option<String> {
    let is_wanted = |text: &&String| match family {
        Some(family) => family.has(text),
        None => text.parse::<IpAddr>().is_ok(),
    };
    texts.find(is_wanted).map(ToOwned::to_owned)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_address_is_outdated_when_there_is_another_in_its_place() {
        use BroadcastAddressType::{PodIP, ServiceClusterIP, ServiceLoadBalancerIngress};
        let cluster = |ip: &str| json!({"spec": {"clusterIP": ip, "clusterIPs": [ip, "fd00::1"]}});
        let balancer = |points: Value| json!({"status": {"loadBalancer": {"ingress": points}}});
        let two = json!([{"ip": "192.0.2.9"}, {"ip": "192.0.2.1"}]);
        for (announced, address_type, service, expected) in [
            ("10.0.0.1", ServiceClusterIP, cluster("10.0.0.1"), false),
            ("fd00::1", ServiceClusterIP, cluster("10.0.0.1"), false),
            ("10.0.0.2", ServiceClusterIP, cluster("10.0.0.1"), true),
            ("10.0.0.2", ServiceClusterIP, json!({"spec": {"clusterIP": "None"}}), false),
            ("192.0.2.1", ServiceLoadBalancerIngress, balancer(two), false),
            ("192.0.2.1", ServiceLoadBalancerIngress, balancer(json!([{"ip": "192.0.2.9"}])), true),
            ("name.example", ServiceLoadBalancerIngress, balancer(json!([{"hostname": "name.example"}])), false),
            ("192.0.2.1", ServiceLoadBalancerIngress, balancer(json!([])), false),
            ("192.0.2.1", ServiceLoadBalancerIngress, balancer(json!([{"ip": "fd00::9"}])), false),
            ("10.1.0.1", PodIP, cluster("10.0.0.1"), false),
        ] {
            let object: Service = serde_json::from_value(service.clone()).unwrap();
            let found = is_outdated(announced, &address_type, &object, &Pod::default(), Some(IpFamily::V4));
            assert_eq!(found, expected, "{announced} {service}");
        }
    }
}
