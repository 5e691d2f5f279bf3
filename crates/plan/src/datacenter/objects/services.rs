//! The Service of all nodes, and the Service of each node.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::core::v1::{Service, ServicePort, ServiceSpec},
    apimachinery::pkg::util::intstr::IntOrString,
};
use messina_api::{
    names::{
        self, annotation,
        label::{self, value},
    },
    scylla::v1alpha1::{IpFamily, IpFamilyPolicy, NodeServiceOptions, NodeServiceType, TrafficPolicy},
};

use crate::{
    datacenter::{
        model::{
            facts::{job::CleanupJob, service::NodeService},
            metadata::{cluster_labels, owned, owned_with, rack_labels},
            observed::Observed,
            plan::Untouched,
            spec::{Datacenter, Rack},
        },
        state::{Current, counts::nodes_to_keep},
    },
    metadata::{map, with},
};

/// Ports that every Service of a datacenter has.
const PORTS: [(&str, i32); 12] = [
    ("inter-node-communication", 7000),
    ("ssl-inter-node-communication", 7001),
    ("cql", 9042),
    ("cql-ssl", 9142),
    ("cql-shard-aware", 19042),
    ("cql-ssl-shard-aware", 19142),
    ("jmx-monitoring", 7199),
    ("agent-api", 10001),
    ("prometheus", 9180),
    ("agent-prometheus", 5090),
    ("node-exporter", 9100),
    ("thrift", 9160),
];

pub(crate) struct Services {
    pub(crate) identity: Service,
    pub(crate) members: Vec<Service>,
    pub(crate) untouched: Vec<Untouched>,
}

pub(crate) fn services(current: &Current<'_>, going: &BTreeSet<String>) -> Services {
    let observed = current.observed;
    let datacenter = &observed.datacenter;
    let mut members = Vec::new();
    for rack in &datacenter.racks {
        let stateful_set = datacenter.stateful_set_name(rack);
        for ordinal in 0..nodes_to_keep(current, rack) {
            let name = names::datacenter::member(&stateful_set, ordinal);
            // A Service that is about to be deleted is recreated afterwards.
            if going.contains(&name) {
                continue;
            }
            let job = observed.jobs.get(&names::datacenter::cleanup_job(&name));
            let service = member_service(datacenter, rack, &name, observed.services.get(&name), job);
            members.push(service);
        }
    }
    let untouched = superfluous(observed, &members);
    Services { identity: identity_service(datacenter), members, untouched }
}

/// Returns the Services of nodes that are not desired. They may be all that is left of a node, so they stay until it is
/// known that the node has left the ring.
fn superfluous(observed: &Observed, members: &[Service]) -> Vec<Untouched> {
    let planned: BTreeSet<&str> = members.iter().filter_map(|service| service.metadata.name.as_deref()).collect();
    let names: Vec<&String> = observed
        .services
        .iter()
        .filter(|(name, service)| service.is_member() && !planned.contains(name.as_str()))
        .map(|(name, _)| name)
        .collect();
    names.into_iter().map(|name| Untouched { kind: "Service", name: name.clone() }).collect()
}

pub(crate) fn identity_service(datacenter: &Datacenter) -> Service {
    let labels = with(cluster_labels(datacenter), map([(label::SERVICE_TYPE, value::IDENTITY)]));
    let selector = with(cluster_labels(datacenter), map([(label::POD_TYPE, value::SCYLLADB_NODE)]));
    Service {
        metadata: owned(datacenter, names::datacenter::identity_service(&datacenter.name), labels),
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".into()),
            selector: Some(selector),
            ports: Some(ports(datacenter)),
            ..ip_families(datacenter)
        }),
        ..Service::default()
    }
}

/// Returns the Service of a node. The sidecar's annotations, such as the host ID, are not part of it, but the hash of
/// the ring of the last cleanup is: from the completed cleanup Job, or marked as never cleaned up for a new node.
pub(crate) fn member_service(
    datacenter: &Datacenter,
    rack: &Rack,
    name: &str,
    existing: Option<&NodeService>,
    job: Option<&CleanupJob>,
) -> Service {
    let options = datacenter.node_service.clone().unwrap_or_default();
    let own = map([(label::SERVICE_TYPE, value::MEMBER)]);
    let labels = options.labels.clone().unwrap_or_else(|| datacenter.labels.clone());
    let labels = with(with(labels, rack.service_labels.clone()), with(rack_labels(datacenter, &rack.name), own));
    let annotations = options.annotations.clone().unwrap_or_else(|| datacenter.annotations.clone());
    let cleaned_up = existing.and_then(|existing| existing.cleaned_up_ring_hash.as_deref());
    let cleaned_up = job.and_then(CleanupJob::cleaned_up_ring).or(cleaned_up);
    let cleaned_up =
        map([(annotation::LAST_CLEANED_UP_TOKEN_RING_HASH, cleaned_up.unwrap_or(annotation::NEVER_CLEANED_UP))]);
    let annotations = with(with(annotations, rack.service_annotations.clone()), cleaned_up);
    Service {
        metadata: owned_with(datacenter, name.to_owned(), labels, annotations),
        spec: Some(member_spec(datacenter, &options, name)),
        ..Service::default()
    }
}

fn member_spec(datacenter: &Datacenter, options: &NodeServiceOptions, name: &str) -> ServiceSpec {
    let is_load_balanced = options.service_type == Some(NodeServiceType::LoadBalancer);
    ServiceSpec {
        type_: Some(if is_load_balanced { "LoadBalancer" } else { "ClusterIP" }.into()),
        cluster_ip: (options.service_type == Some(NodeServiceType::Headless)).then(|| "None".into()),
        selector: Some(map([(label::POD_NAME, name)])),
        ports: Some(ports(datacenter)),
        publish_not_ready_addresses: Some(true),
        internal_traffic_policy: options.internal_traffic_policy.as_ref().map(traffic_policy),
        external_traffic_policy: options.external_traffic_policy.as_ref().map(traffic_policy),
        allocate_load_balancer_node_ports: options.allocate_load_balancer_node_ports,
        load_balancer_class: options.load_balancer_class.clone(),
        ..ip_families(datacenter)
    }
}

fn traffic_policy(policy: &TrafficPolicy) -> String {
    match policy {
        TrafficPolicy::Cluster => "Cluster".into(),
        TrafficPolicy::Local => "Local".into(),
        TrafficPolicy::Other(other) => other.clone(),
    }
}

/// Returns the IP families; none for Kubernetes' default.
fn ip_families(datacenter: &Datacenter) -> ServiceSpec {
    if datacenter.ip_families.is_empty() {
        return ServiceSpec::default();
    }
    let policy = datacenter.ip_family_policy.as_ref().map(|policy| match policy {
        IpFamilyPolicy::SingleStack => "SingleStack".to_owned(),
        IpFamilyPolicy::PreferDualStack => "PreferDualStack".to_owned(),
        IpFamilyPolicy::RequireDualStack => "RequireDualStack".to_owned(),
        IpFamilyPolicy::Other(other) => other.clone(),
    });
    let families = datacenter.ip_families.iter().map(|family| ip_family(family).to_owned());
    ServiceSpec { ip_families: Some(families.collect()), ip_family_policy: policy, ..ServiceSpec::default() }
}

pub(crate) fn ip_family(family: &IpFamily) -> &str {
    match family {
        IpFamily::IPv4 => "IPv4",
        IpFamily::IPv6 => "IPv6",
        IpFamily::Other(other) => other,
    }
}

/// Returns Alternator's ports, if it is enabled.
pub(crate) fn alternator_ports(datacenter: &Datacenter) -> impl Iterator<Item = (&'static str, i32)> {
    let alternator = datacenter.alternator.as_ref();
    let http = alternator.and_then(|alternator| alternator.http_port);
    alternator.map(|_| ("alternator-tls", 8043)).into_iter().chain(http.map(|port| ("alternator", port)))
}

/// Returns the ports of a Service, with the API server's defaults, so that they can be compared with those of the
/// existing Service.
fn ports(datacenter: &Datacenter) -> Vec<ServicePort> {
    let port = |(name, port): (&str, i32)| ServicePort {
        name: Some(name.into()),
        port,
        protocol: Some("TCP".into()),
        target_port: Some(IntOrString::Int(port)),
        ..ServicePort::default()
    };
    PORTS.into_iter().chain(alternator_ports(datacenter)).map(port).collect()
}
