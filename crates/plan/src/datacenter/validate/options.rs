//! Validates the options that all nodes share: images, addresses, Alternator, kernel settings.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use messina_api::{
    names::{annotation, image_version},
    scylla::v1alpha1::{
        AlternatorOptions, AlternatorWriteIsolation, BroadcastAddress, BroadcastAddressType, DnsPolicy, ExposeOptions,
        IpFamily, IpFamilyPolicy, NodeServiceOptions, NodeServiceType, PodIpSource, ScyllaDBDatacenterSpec,
        TlsCertificate, TlsCertificateType, TrafficPolicy,
    },
};

use crate::{
    datacenter::{
        model::spec::Alternator,
        validate::{
            forms::{self, is_label_value, is_qualified_name, is_subdomain},
            invalid_fields::{InvalidFields, required},
        },
    },
    node::sysctl::{self, Allowed, Name},
    version::Version,
};

/// The first version whose nodes may join at the same time.
const PARALLEL_SINCE: Version = Version::release(2026, 2, 0);

/// The path of Alternator's options. scylla-operator's messages name `spec.scyllaDB.alternator`, which does not exist.
const ALTERNATOR: &str = "spec.scyllaDB.alternatorOptions";

pub(crate) fn image(image: Option<&str>, field: &str, invalid: &mut InvalidFields) -> Option<String> {
    let image = image.unwrap_or_default();
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    if image.is_empty() {
        invalid.add(field, "the value is required: set an image such as <repository>:<version>");
    } else if !image.chars().all(is_allowed) || !image.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        invalid.add(field, format!("{image:?} is not a valid image: use the form <repository>:<version>"));
    } else {
        return Some(image.to_owned());
    }
    None
}

/// Validates the version of an image, which becomes the value of a label.
pub(crate) fn version(image: &str, invalid: &mut InvalidFields) -> Option<String> {
    let field = "spec.scyllaDB.image";
    match image_version(image) {
        Ok(version) if is_label_value(version) => return Some(version.to_owned()),
        Ok(version) => invalid.add(
            field,
            format!(
                "{version:?} is not a valid version: use a tag of at most 63 letters, digits, dashes, dots or \
                 underscores, with a letter or a digit at both ends"
            ),
        ),
        Err(no_version) => invalid.add(field, no_version.to_string()),
    }
    None
}

/// Whether nodes of this version may join at the same time.
pub(crate) fn may_start_together(version: &str) -> bool {
    Version::parse(version).is_some_and(|version| version.is_at_least(&PARALLEL_SINCE))
}

pub(crate) fn parallel_needs(version: &str, invalid: &mut InvalidFields) {
    if !may_start_together(version) {
        invalid.add(
            "spec.enableParallelNodeOperations",
            format!(
                "parallel node operations require ScyllaDB 2026.2.0 or newer, and the image has version {version:?}: \
                 use a newer image, or set this to false"
            ),
        );
    }
}

/// Validates the fields that are enumerations.
pub(crate) fn known_values(spec: &ScyllaDBDatacenterSpec, invalid: &mut InvalidFields) {
    if let Some(DnsPolicy::Other(other)) = &spec.dns_policy {
        unknown("spec.dnsPolicy", other, "ClusterFirstWithHostNet, ClusterFirst, Default or None", invalid);
    }
    for (position, family) in spec.ip_families.iter().flatten().enumerate() {
        if let IpFamily::Other(other) = family {
            unknown(&format!("spec.ipFamilies[{position}]"), other, "IPv4 or IPv6", invalid);
        }
    }
    if let Some(IpFamilyPolicy::Other(other)) = &spec.ip_family_policy {
        unknown("spec.ipFamilyPolicy", other, "SingleStack, PreferDualStack or RequireDualStack", invalid);
    }
}

fn unknown(field: &str, value: &str, known: &str, invalid: &mut InvalidFields) {
    invalid.add(field, format!("{value:?} is not supported: use {known}"));
}

pub(crate) fn service_values(service: Option<&NodeServiceOptions>, invalid: &mut InvalidFields) {
    let Some(service) = service else { return };
    let known = "Headless, ClusterIP or LoadBalancer";
    match &service.service_type {
        None => invalid.add("spec.exposeOptions.nodeService.type", format!("the value is required: use {known}")),
        Some(NodeServiceType::Other(other)) => {
            unknown("spec.exposeOptions.nodeService.type", other, known, invalid);
        }
        Some(_) => {}
    }
    if let Some(class) = service.load_balancer_class.as_ref().filter(|class| !is_qualified_name(class)) {
        let field = "spec.exposeOptions.nodeService.loadBalancerClass";
        invalid.add(field, format!("{class:?} is not a valid load balancer class: use the form example.com/class"));
    }
    forms::labels(service.labels.as_ref(), "spec.exposeOptions.nodeService.labels", invalid);
    forms::annotations(service.annotations.as_ref(), "spec.exposeOptions.nodeService.annotations", invalid);
    let policies = [
        ("externalTrafficPolicy", &service.external_traffic_policy),
        ("internalTrafficPolicy", &service.internal_traffic_policy),
    ];
    for (field, policy) in policies {
        if let Some(TrafficPolicy::Other(other)) = policy {
            unknown(&format!("spec.exposeOptions.nodeService.{field}"), other, "Cluster or Local", invalid);
        }
    }
}

/// Validates the DNS domains of Ingresses and certificates. Ingresses require one at least.
pub(crate) fn domains(spec: &ScyllaDBDatacenterSpec, invalid: &mut InvalidFields) {
    let domains = spec.dns_domains.as_deref().unwrap_or_default();
    for (position, domain) in domains.iter().enumerate().filter(|(_, domain)| !is_subdomain(domain)) {
        let message = format!("{domain:?} is not a valid DNS domain: use a domain such as db.example.com");
        invalid.add(format!("spec.dnsDomains[{position}]"), message);
    }
    let cql = spec.expose_options.as_ref().and_then(|options| options.cql.as_ref());
    if domains.is_empty() && cql.is_some_and(|cql| cql.ingress.is_some()) {
        invalid.add("spec.dnsDomains", "Ingresses require a domain: set one, or remove spec.exposeOptions.cql.ingress");
    }
}

/// Validates the types of the addresses that nodes broadcast to nodes and to clients. The Service of a node must have
/// such an address.
pub(crate) fn broadcast(
    options: Option<&ExposeOptions>,
    invalid: &mut InvalidFields,
) -> (BroadcastAddressType, BroadcastAddressType) {
    let service_type = options
        .and_then(|options| options.node_service.as_ref())
        .and_then(|service| service.service_type.clone())
        .unwrap_or(NodeServiceType::ClusterIP);
    let Some(options) = options.and_then(|options| options.broadcast_options.as_ref()) else {
        // A headless Service has no address: nodes would wait for it and never start.
        let address = if service_type == NodeServiceType::Headless {
            BroadcastAddressType::PodIP
        } else {
            BroadcastAddressType::ServiceClusterIP
        };
        return (address.clone(), address);
    };
    let mut address = |name: &str, address: Option<&BroadcastAddress>| {
        let source = address.and_then(|address| address.pod_ip.as_ref()?.source.as_ref());
        if let Some(PodIpSource::Other(other)) = source {
            unknown(&format!("spec.exposeOptions.broadcastOptions.{name}.podIP.source"), other, "Status", invalid);
        }
        let field = format!("spec.exposeOptions.broadcastOptions.{name}.type");
        let address = address.and_then(|address| address.address_type.clone()).unwrap_or(BroadcastAddressType::PodIP);
        let needs = match &address {
            BroadcastAddressType::PodIP => None,
            BroadcastAddressType::ServiceClusterIP => {
                (service_type == NodeServiceType::Headless).then_some("ClusterIP or LoadBalancer")
            }
            BroadcastAddressType::ServiceLoadBalancerIngress => {
                (service_type != NodeServiceType::LoadBalancer).then_some("LoadBalancer")
            }
            BroadcastAddressType::Other(other) => {
                unknown(&field, other, "PodIP, ServiceClusterIP or ServiceLoadBalancerIngress", invalid);
                None
            }
        };
        if let Some(needs) = needs {
            invalid.add(
                field,
                format!(
                    "the Services of nodes have no such address: set spec.exposeOptions.nodeService.type to {needs}, \
                     or use another broadcast address type"
                ),
            );
        }
        address
    };
    let clients = address("clients", options.clients.as_ref());
    (address("nodes", options.nodes.as_ref()), clients)
}

/// Validates Alternator's options. Some of them come as annotations, from the older API (ScyllaCluster).
pub(crate) fn alternator(
    options: &AlternatorOptions,
    given: &BTreeMap<String, String>,
    invalid: &mut InvalidFields,
) -> Alternator {
    let annotation_field = |key: &str| format!("metadata.annotations[{key}]");
    if let Some(AlternatorWriteIsolation::Other(other)) = &options.write_isolation {
        let known = "always_use_lwt, forbid_rmw, only_rmw_uses_lwt or unsafe_rmw";
        unknown(&format!("{ALTERNATOR}.writeIsolation"), other, known, invalid);
    }
    let mut flag = |key: &str| match given.get(key).map(String::as_str) {
        Some("true") => Some(true),
        Some("false") => Some(false),
        Some(other) => {
            unknown(&annotation_field(key), other, "true or false", invalid);
            None
        }
        None => None,
    };
    let enable_http = flag(annotation::ALTERNATOR_INSECURE_ENABLE_HTTP) == Some(true);
    let disable_authorization = flag(annotation::ALTERNATOR_INSECURE_DISABLE_AUTHORIZATION);
    let port = given.get(annotation::ALTERNATOR_PORT).filter(|port| !port.is_empty() && *port != "0");
    let port: Option<u16> = port.and_then(|port| {
        let number = port.parse().ok();
        if number.is_none() {
            unknown(&annotation_field(annotation::ALTERNATOR_PORT), port, "a number from 1 to 65535", invalid);
        }
        number
    });
    let additional = options.serving_certificate.as_ref().and_then(|one| one.operator_managed_options.clone());
    let additional = additional.unwrap_or_default();
    let addresses = additional.additional_ip_addresses.unwrap_or_default();
    Alternator {
        write_isolation: options.write_isolation.clone().unwrap_or(AlternatorWriteIsolation::AlwaysUseLwt),
        http_port: port.map(i32::from).or(enable_http.then_some(8000)),
        // Where the user has set a port, authorization has always been off by default, and stays so.
        authorization: !disable_authorization.unwrap_or(port.is_some()),
        user_certificate: user_certificate(options, invalid),
        additional_dns_names: additional.additional_dns_names.unwrap_or_default(),
        // Invalid addresses are reported by `certificate_names`.
        additional_addresses: addresses.iter().filter_map(|address| address.parse().ok()).collect(),
    }
}

fn user_certificate(options: &AlternatorOptions, invalid: &mut InvalidFields) -> Option<String> {
    let certificate = options.serving_certificate.as_ref()?;
    let field = format!("{ALTERNATOR}.servingCertificate");
    match certificate.certificate_type.as_ref()? {
        TlsCertificateType::OperatorManaged => {
            certificate_names(certificate, &format!("{field}.operatorManagedOptions"), invalid);
            None
        }
        TlsCertificateType::UserManaged => {
            let field = format!("{field}.userManagedOptions.secretName");
            let secret = certificate.user_managed_options.as_ref().and_then(|options| options.secret_name.as_ref());
            let secret = required(secret, &field, invalid)?;
            forms::object_name(&secret, &field, invalid).then_some(secret)
        }
        TlsCertificateType::Other(other) => {
            unknown(&format!("{field}.type"), other, "OperatorManaged or UserManaged", invalid);
            None
        }
    }
}

/// Validates the names and addresses for which the operator signs a certificate.
fn certificate_names(certificate: &TlsCertificate, field: &str, invalid: &mut InvalidFields) {
    let options = certificate.operator_managed_options.clone().unwrap_or_default();
    for name in options.additional_dns_names.iter().flatten().filter(|name| !is_subdomain(name)) {
        invalid.add(
            format!("{field}.additionalDNSNames"),
            format!("{name:?} is not a valid DNS name: use a name such as db.example.com"),
        );
    }
    for address in options.additional_ip_addresses.iter().flatten().filter(|one| one.parse::<IpAddr>().is_err()) {
        let message =
            format!("{address:?} is not a valid IP address: use an address such as 10.9.8.7 or 2001:db8::ffff");
        invalid.add(format!("{field}.additionalIPAddresses"), message);
    }
}

/// Returns the kernel settings (sysctls), and the operator's patterns that allow those of them which are not allowed by
/// default.
pub(crate) fn sysctls(
    given: &BTreeMap<String, String>,
    allowed: &Allowed,
    invalid: &mut InvalidFields,
) -> (Vec<String>, BTreeSet<String>) {
    let Some(text) = given.get(annotation::SYSCTLS) else { return Default::default() };
    let field = format!("metadata.annotations[{}]", annotation::SYSCTLS);
    let Ok(settings) = serde_json::from_str::<Vec<String>>(text) else {
        invalid.add(field, "the value is not a JSON list of strings: use the form [\"name=value\"]");
        return Default::default();
    };
    let mut others = BTreeSet::new();
    for setting in &settings {
        let Some(name) = sysctl::divide(setting).and_then(|(name, _)| name.parse::<Name>().ok()) else {
            invalid
                .add(&field, format!("{setting:?} is not a valid kernel setting: use the form fs.aio-max-nr=30000000"));
            continue;
        };
        if Allowed::is_usual(&name) {
            continue;
        }
        match allowed.other(&name) {
            Some(pattern) => _ = others.insert(pattern.to_string()),
            None => invalid.add(
                &field,
                format!(
                    "{setting:?} is not allowed, because it affects all pods of a Kubernetes node: remove it, or \
                     allow it with the operator's flag --allowed-sysctls. Allowed settings: {allowed}"
                ),
            ),
        }
    }
    (settings, others)
}
