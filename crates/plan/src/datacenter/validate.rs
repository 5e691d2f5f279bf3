//! From a ScyllaDBDatacenter as it was read to one that can be relied on.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::{LocalObjectReference, PodReadinessGate, ResourceRequirements, Volume, VolumeMount},
    apimachinery::pkg::api::resource::Quantity,
};
use messina_api::{
    names::{self, annotation, image_version},
    scylla::v1alpha1::{
        AlternatorOptions, AlternatorWriteIsolation, BroadcastAddress, BroadcastAddressType, DnsPolicy, ExposeOptions,
        IpFamily, IpFamilyPolicy, NodeServiceOptions, NodeServiceType, Placement, RackSpec, RackTemplate,
        ScyllaDBDatacenter, ScyllaDBDatacenterSpec, TlsCertificateType, TrafficPolicy,
    },
};

use super::{
    metadata,
    quantity::{self, Amount},
    version::Version,
};

/// Longest name of a StatefulSet: its pods carry it in a label of at most 63 characters, with a hash of 10 behind a dash.
const LONGEST_STATEFUL_SET_NAME: usize = 52;
/// More nodes than any rack has. It keeps a slip of the finger from becoming as many Services.
pub(crate) const MOST_NODES: i32 = 1000;
/// The first version whose nodes may join at the same time.
const PARALLEL_SINCE: Version = Version::release(2026, 2, 0);

/// Something in an object that keeps it from being worked on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
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

impl Rack {
    /// The ConfigMap with the user's settings of ScyllaDB; it need not be there.
    pub fn config_map(&self) -> &str {
        self.custom_config_map.as_deref().unwrap_or("scylla-config")
    }

    /// The Secret with the user's settings of the agent; it need not be there.
    pub fn agent_secret(&self) -> &str {
        self.agent_custom_config_secret.as_deref().unwrap_or("scylla-agent-config-secret")
    }
}

#[derive(Default)]
struct Faults(Vec<Fault>);

impl Faults {
    fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(Fault { field: field.into(), message: message.into() });
    }

    fn not_negative(&mut self, field: &str, value: Option<i32>) {
        if let Some(value) = value.filter(|value| *value < 0) {
            self.add(field, format!("{value} is less than 0: set it to 0 or more, or leave it out"));
        }
    }
}

/// Turns the object into a value that can be relied on, or says everything that is wrong with it.
pub fn validate(object: &ScyllaDBDatacenter) -> Result<Datacenter, Vec<Fault>> {
    let mut faults = Faults::default();
    let datacenter = read(object, &mut faults);
    match datacenter {
        Some(datacenter) if faults.0.is_empty() => Ok(datacenter),
        _ => Err(faults.0),
    }
}

/// None only together with a fault.
fn read(object: &ScyllaDBDatacenter, faults: &mut Faults) -> Option<Datacenter> {
    let spec = &object.spec;
    let scylladb = spec.scylladb.clone().unwrap_or_default();
    let given = object.metadata.annotations.clone().unwrap_or_default();
    let name = required(object.metadata.name.as_ref(), "metadata.name", faults);
    let namespace = required(object.metadata.namespace.as_ref(), "metadata.namespace", faults);
    let uid = required(object.metadata.uid.as_ref(), "metadata.uid", faults);
    let cluster_name = required(spec.cluster_name.as_ref(), "spec.clusterName", faults);
    let image = image(scylladb.image.as_deref(), "spec.scyllaDB.image", faults);
    let version = image.as_deref().and_then(|image| version(image, faults));
    let agent_image = spec
        .scylladb_manager_agent
        .as_ref()
        .and_then(|agent| self::image(agent.image.as_deref(), "spec.scyllaDBManagerAgent.image", faults));
    faults.not_negative("spec.minReadySeconds", spec.min_ready_seconds);
    faults.not_negative("spec.minTerminationGracePeriodSeconds", spec.min_termination_grace_period_seconds);
    known_values(spec, faults);
    let node_service = spec.expose_options.as_ref().and_then(|options| options.node_service.clone());
    service_values(node_service.as_ref(), faults);
    let (nodes_broadcast, clients_broadcast) = broadcast(spec.expose_options.as_ref(), faults);
    let alternator = scylladb.alternator_options.as_ref().map(|options| alternator(options, &given, faults));
    let parallel_node_operations = spec.enable_parallel_node_operations == Some(true);
    if let (true, Some(version)) = (parallel_node_operations, &version) {
        parallel_needs(version, faults);
    }
    if let Some(template) = &spec.rack_template {
        template_values(template, faults);
    }
    let scylla_datacenter = spec.datacenter_name.clone().filter(|name| !name.is_empty()).or(name.clone());
    let racks = racks(spec, faults);
    if let (Some(name), Some(scylla_datacenter)) = (&name, &scylla_datacenter) {
        stateful_set_names(name, scylla_datacenter, &racks, faults);
    }
    let is_load_balanced =
        node_service.as_ref().is_some_and(|service| service.service_type == Some(NodeServiceType::LoadBalancer));
    Some(Datacenter {
        name: name?,
        namespace: namespace?,
        uid: uid?,
        generation: object.metadata.generation.unwrap_or_default(),
        labels: metadata::propagated_labels(object.metadata.labels.as_ref()),
        annotations: metadata::propagated_annotations(&given),
        pod_labels: spec.metadata.as_ref().and_then(|metadata| metadata.labels.clone()),
        pod_annotations: spec.metadata.as_ref().and_then(|metadata| metadata.annotations.clone()),
        cluster_name: cluster_name?,
        scylla_datacenter: scylla_datacenter?,
        image: image?,
        version: version?,
        agent_image,
        external_seeds: scylladb.external_seeds.unwrap_or_default(),
        additional_arguments: scylladb.additional_scylladb_arguments.unwrap_or_default(),
        developer_mode: scylladb.enable_developer_mode == Some(true),
        alternator,
        racks,
        node_service,
        nodes_broadcast,
        clients_broadcast,
        image_pull_secrets: spec.image_pull_secrets.clone().unwrap_or_default(),
        dns_policy: spec.dns_policy.clone().unwrap_or(DnsPolicy::ClusterFirstWithHostNet),
        ip_families: spec.ip_families.clone().unwrap_or_default(),
        ip_family_policy: spec.ip_family_policy.clone(),
        force_redeployment_reason: spec.force_redeployment_reason.clone().filter(|reason| !reason.is_empty()),
        readiness_gates: spec.readiness_gates.clone().unwrap_or_default(),
        // A load balancer takes longer to notice a node than Kubernetes itself.
        min_ready_seconds: spec.min_ready_seconds.unwrap_or(if is_load_balanced { 60 } else { 5 }),
        min_termination_grace_period_seconds: spec.min_termination_grace_period_seconds,
        parallel_node_operations,
        host_network: given.contains_key(annotation::HOST_NETWORKING),
        sysctls: sysctls(&given, faults),
        token_override: given.get(annotation::AGENT_AUTH_TOKEN_OVERRIDE_SECRET_REF).cloned(),
    })
}

fn required(value: Option<&String>, field: &str, faults: &mut Faults) -> Option<String> {
    let value = value.filter(|value| !value.is_empty());
    if value.is_none() {
        faults.add(field, "it is missing: set it");
    }
    value.cloned()
}

fn image(image: Option<&str>, field: &str, faults: &mut Faults) -> Option<String> {
    let image = image.unwrap_or_default();
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    if image.is_empty() {
        faults.add(field, "it is missing: name an image as <repository>:<version>");
    } else if !image.chars().all(is_allowed) || !image.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        faults.add(field, format!("{image:?} is no name of an image: write it as <repository>:<version>"));
    } else {
        return Some(image.to_owned());
    }
    None
}

/// The version becomes a label, so it must be one.
fn version(image: &str, faults: &mut Faults) -> Option<String> {
    let field = "spec.scyllaDB.image";
    match image_version(image) {
        Ok(version) if is_label_value(version) => return Some(version.to_owned()),
        Ok(version) => faults.add(
            field,
            format!(
                "{version:?} is no version: a tag has at most 63 letters, digits, dashes, dots or underscores, and \
                 begins and ends with a letter or a digit"
            ),
        ),
        Err(no_version) => faults.add(field, no_version.to_string()),
    }
    None
}

fn parallel_needs(version: &str, faults: &mut Faults) {
    if !Version::parse(version).is_some_and(|version| version.is_at_least(&PARALLEL_SINCE)) {
        faults.add(
            "spec.enableParallelNodeOperations",
            format!(
                "nodes may start at the same time with ScyllaDB 2026.2.0 or newer, and {version:?} is not known to be: \
                 use such an image, or set this to false"
            ),
        );
    }
}

/// Texts that stand for one of a few values.
fn known_values(spec: &ScyllaDBDatacenterSpec, faults: &mut Faults) {
    if let Some(DnsPolicy::Other(other)) = &spec.dns_policy {
        unknown("spec.dnsPolicy", other, "ClusterFirstWithHostNet, ClusterFirst, Default or None", faults);
    }
    for (position, family) in spec.ip_families.iter().flatten().enumerate() {
        if let IpFamily::Other(other) = family {
            unknown(&format!("spec.ipFamilies[{position}]"), other, "IPv4 or IPv6", faults);
        }
    }
    if let Some(IpFamilyPolicy::Other(other)) = &spec.ip_family_policy {
        unknown("spec.ipFamilyPolicy", other, "SingleStack, PreferDualStack or RequireDualStack", faults);
    }
}

fn unknown(field: &str, value: &str, known: &str, faults: &mut Faults) {
    faults.add(field, format!("{value:?} is not known: use {known}"));
}

fn service_values(service: Option<&NodeServiceOptions>, faults: &mut Faults) {
    let Some(service) = service else { return };
    let known = "Headless, ClusterIP or LoadBalancer";
    match &service.service_type {
        None => faults.add("spec.exposeOptions.nodeService.type", format!("it is missing: use {known}")),
        Some(NodeServiceType::Other(other)) => {
            unknown("spec.exposeOptions.nodeService.type", other, known, faults);
        }
        Some(_) => {}
    }
    let policies = [
        ("externalTrafficPolicy", &service.external_traffic_policy),
        ("internalTrafficPolicy", &service.internal_traffic_policy),
    ];
    for (field, policy) in policies {
        if let Some(TrafficPolicy::Other(other)) = policy {
            unknown(&format!("spec.exposeOptions.nodeService.{field}"), other, "Cluster or Local", faults);
        }
    }
}

/// What nodes and clients connect to. A node has no address that its Service does not have.
fn broadcast(options: Option<&ExposeOptions>, faults: &mut Faults) -> (BroadcastAddressType, BroadcastAddressType) {
    let service_type = options
        .and_then(|options| options.node_service.as_ref())
        .and_then(|service| service.service_type.clone())
        .unwrap_or(NodeServiceType::ClusterIP);
    let Some(options) = options.and_then(|options| options.broadcast_options.as_ref()) else {
        return (BroadcastAddressType::ServiceClusterIP, BroadcastAddressType::ServiceClusterIP);
    };
    let mut address = |name: &str, address: Option<&BroadcastAddress>| {
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
                unknown(&field, other, "PodIP, ServiceClusterIP or ServiceLoadBalancerIngress", faults);
                None
            }
        };
        if let Some(needs) = needs {
            faults.add(
                field,
                format!(
                    "Services of nodes have no such address: set spec.exposeOptions.nodeService.type to {needs}, or \
                     announce another address"
                ),
            );
        }
        address
    };
    let clients = address("clients", options.clients.as_ref());
    (address("nodes", options.nodes.as_ref()), clients)
}

/// Alternator's options; some come as annotations from the older API.
fn alternator(options: &AlternatorOptions, given: &BTreeMap<String, String>, faults: &mut Faults) -> Alternator {
    let annotation_field = |key: &str| format!("metadata.annotations[{key}]");
    if let Some(AlternatorWriteIsolation::Other(other)) = &options.write_isolation {
        let known = "always_use_lwt, forbid_rmw, only_rmw_uses_lwt or unsafe_rmw";
        unknown("spec.scyllaDB.alternatorOptions.writeIsolation", other, known, faults);
    }
    let mut flag = |key: &str| match given.get(key).map(String::as_str) {
        Some("true") => Some(true),
        Some("false") => Some(false),
        Some(other) => {
            unknown(&annotation_field(key), other, "true or false", faults);
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
            unknown(&annotation_field(annotation::ALTERNATOR_PORT), port, "a number from 1 to 65535", faults);
        }
        number
    });
    Alternator {
        write_isolation: options.write_isolation.clone().unwrap_or(AlternatorWriteIsolation::AlwaysUseLwt),
        http_port: port.map(i32::from).or(enable_http.then_some(8000)),
        // Whoever chose a port has been served without authorization, and still is.
        authorization: !disable_authorization.unwrap_or(port.is_some()),
        user_certificate: user_certificate(options, faults),
    }
}

fn user_certificate(options: &AlternatorOptions, faults: &mut Faults) -> Option<String> {
    let certificate = options.serving_certificate.as_ref()?;
    let field = "spec.scyllaDB.alternatorOptions.servingCertificate";
    match certificate.certificate_type.as_ref()? {
        TlsCertificateType::OperatorManaged => None,
        TlsCertificateType::UserManaged => {
            let secret = certificate.user_managed_options.as_ref().and_then(|options| options.secret_name.as_ref());
            required(secret, &format!("{field}.userManagedOptions.secretName"), faults)
        }
        TlsCertificateType::Other(other) => {
            unknown(&format!("{field}.type"), other, "OperatorManaged or UserManaged", faults);
            None
        }
    }
}

fn sysctls(given: &BTreeMap<String, String>, faults: &mut Faults) -> Vec<String> {
    let Some(text) = given.get(annotation::SYSCTLS) else { return Vec::new() };
    serde_json::from_str(text).unwrap_or_else(|_| {
        let field = format!("metadata.annotations[{}]", annotation::SYSCTLS);
        faults.add(field, "it is no JSON list of texts: write it as [\"name=value\"]");
        Vec::new()
    })
}

fn template_values(template: &RackTemplate, faults: &mut Faults) {
    faults.not_negative("spec.rackTemplate.nodes", template.nodes);
    let storage = template.scylladb.as_ref().and_then(|scylladb| scylladb.storage.as_ref());
    let capacity = storage.and_then(|storage| storage.capacity.as_deref()).filter(|capacity| !capacity.is_empty());
    if let Some(capacity) = capacity {
        quantity_of(capacity, "spec.rackTemplate.scyllaDB.storage.capacity", faults);
    }
}

fn quantity_of(text: &str, field: &str, faults: &mut Faults) -> Option<Quantity> {
    match Amount::parse(text) {
        Some(amount) if amount.is_positive() => return Some(Quantity(amount.canonical())),
        Some(_) => faults.add(field, format!("{text:?} is not more than 0: name a size such as 500Gi")),
        None => faults.add(field, format!("{text:?} is no quantity: name a size such as 500Gi")),
    }
    None
}

fn racks(spec: &ScyllaDBDatacenterSpec, faults: &mut Faults) -> Vec<Rack> {
    let template = spec.rack_template.clone().unwrap_or_default();
    let racks = spec.racks.as_deref().unwrap_or_default();
    let mut names = BTreeSet::new();
    let mut valid = Vec::new();
    for (position, rack) in racks.iter().enumerate() {
        let field = format!("spec.racks[{position}]");
        let name_field = format!("{field}.name");
        let name = required(rack.name.as_ref(), &name_field, faults);
        if let Some(name) = &name
            && !names.insert(name.clone())
        {
            faults.add(name_field, format!("another rack is called {name:?} too: give each rack a name of its own"));
        }
        valid.extend(self::rack(name, position, rack, &template, &field, faults));
    }
    valid
}

/// A rack: what it says itself comes before what the template says; volumes add up.
fn rack(
    name: Option<String>,
    ordinal: usize,
    rack: &RackSpec,
    template: &RackTemplate,
    field: &str,
    faults: &mut Faults,
) -> Option<Rack> {
    let own = &rack.template;
    faults.not_negative(&format!("{field}.nodes"), own.nodes);
    let nodes = own.nodes.or(template.nodes).unwrap_or(0);
    if nodes > MOST_NODES {
        faults.add(format!("{field}.nodes"), format!("{nodes} is too many: a rack has at most {MOST_NODES} nodes"));
    }
    // The template first, then the rack, so that the rack comes last where the last one counts.
    let scylladb: Vec<_> = [&template.scylladb, &own.scylladb].into_iter().flatten().collect();
    let agent: Vec<_> = [&template.scylladb_manager_agent, &own.scylladb_manager_agent].into_iter().flatten().collect();
    let storage: Vec<_> = scylladb.iter().filter_map(|one| one.storage.as_ref()).collect();
    let services: Vec<_> = [&template.expose_options, &own.expose_options]
        .into_iter()
        .filter_map(|options| options.as_ref()?.node_service.as_ref())
        .collect();
    let claims: Vec<_> = storage.iter().filter_map(|one| one.metadata.as_ref()).collect();
    let capacity = storage
        .iter()
        .rev()
        .filter_map(|one| one.capacity.as_deref())
        .find(|text| !text.is_empty())
        .unwrap_or_default();
    let capacity = quantity_of(capacity, &format!("{field}.scyllaDB.storage.capacity"), faults);
    let scylladb_resources = resources(
        scylladb.iter().filter_map(|one| one.resources.as_ref()),
        &format!("{field}.scyllaDB.resources"),
        faults,
    );
    let agent_resources = resources(
        agent.iter().filter_map(|one| one.resources.as_ref()),
        &format!("{field}.scyllaDBManagerAgent.resources"),
        faults,
    );
    let topology = merged([&template.topology_label_selector, &own.topology_label_selector].into_iter().flatten());
    Some(Rack {
        name: name?,
        ordinal,
        nodes,
        placement: placement(own.placement.as_ref().or(template.placement.as_ref()), topology),
        resources: scylladb_resources,
        storage: Storage {
            capacity: capacity?,
            class: storage.iter().rev().find_map(|one| one.storage_class_name.clone()),
            labels: merged(claims.iter().filter_map(|one| one.labels.as_ref())),
            annotations: merged(claims.iter().filter_map(|one| one.annotations.as_ref())),
        },
        custom_config_map: scylladb.iter().rev().find_map(|one| one.custom_config_map_ref.clone()),
        volumes: scylladb.iter().flat_map(|one| one.volumes.clone().unwrap_or_default()).collect(),
        volume_mounts: scylladb.iter().flat_map(|one| one.volume_mounts.clone().unwrap_or_default()).collect(),
        agent_resources,
        agent_custom_config_secret: agent.iter().rev().find_map(|one| one.custom_config_secret_ref.clone()),
        agent_volumes: agent.iter().flat_map(|one| one.volumes.clone().unwrap_or_default()).collect(),
        agent_volume_mounts: agent.iter().flat_map(|one| one.volume_mounts.clone().unwrap_or_default()).collect(),
        service_labels: merged(services.iter().filter_map(|one| one.labels.as_ref())),
        service_annotations: merged(services.iter().filter_map(|one| one.annotations.as_ref())),
    })
}

/// The later map has its way.
fn merged<'a>(maps: impl Iterator<Item = &'a BTreeMap<String, String>>) -> BTreeMap<String, String> {
    maps.flat_map(|map| map.clone()).collect()
}

/// Every Kubernetes node that the placement allows must also have the labels of `topology`.
fn placement(placement: Option<&Placement>, topology: BTreeMap<String, String>) -> Placement {
    use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};

    let mut placement = placement.cloned().unwrap_or_default();
    if topology.is_empty() {
        return placement;
    }
    let requirement = |(key, value): (&String, &String)| NodeSelectorRequirement {
        key: key.clone(),
        operator: "In".into(),
        values: Some(vec![value.clone()]),
    };
    let affinity = placement.node_affinity.get_or_insert_default();
    let terms =
        &mut affinity.required_during_scheduling_ignored_during_execution.get_or_insert_default().node_selector_terms;
    if terms.is_empty() {
        terms.push(NodeSelectorTerm::default());
    }
    for term in terms {
        term.match_expressions.get_or_insert_default().extend(topology.iter().map(requirement));
    }
    placement
}

fn resources<'a>(
    levels: impl Iterator<Item = &'a ResourceRequirements>,
    field: &str,
    faults: &mut Faults,
) -> Option<ResourceRequirements> {
    let mut all = ResourceRequirements::default();
    let mut add =
        |all: &mut Option<BTreeMap<String, Quantity>>, more: &Option<BTreeMap<String, Quantity>>, kind: &str| {
            for (resource, quantity) in more.iter().flatten() {
                match quantity::canonical(quantity) {
                    Some(quantity) => {
                        all.get_or_insert_default().insert(resource.clone(), quantity);
                    }
                    None => faults.add(
                        format!("{field}.{kind}[{resource}]"),
                        format!("{:?} is no quantity: write it as 2, 500m or 4Gi", quantity.0),
                    ),
                }
            }
        };
    for level in levels {
        add(&mut all.limits, &level.limits, "limits");
        add(&mut all.requests, &level.requests, "requests");
        if level.claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
            all.claims.clone_from(&level.claims);
        }
    }
    (all != ResourceRequirements::default()).then_some(all)
}

/// Names of StatefulSets go on to Services and labels, so not every text will do.
fn stateful_set_names(name: &str, scylla_datacenter: &str, racks: &[Rack], faults: &mut Faults) {
    for rack in racks {
        let stateful_set = names::datacenter::rack_stateful_set(name, scylla_datacenter, &rack.name);
        let field = format!("spec.racks[{}].name", rack.ordinal);
        let wrong =
            [("metadata.name", name), ("spec.datacenterName", scylla_datacenter), (field.as_str(), rack.name.as_str())]
                .into_iter()
                .find(|(_, part)| {
                    !part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
                });
        if let Some((field, part)) = wrong {
            faults.add(
                field,
                format!(
                    "{part:?} becomes part of the names of Services: use lower case letters, digits and dashes only"
                ),
            );
        } else if stateful_set.starts_with('-') || stateful_set.ends_with('-') {
            faults.add(field, format!("nodes would be called {stateful_set}-0: begin and end names without a dash"));
        } else if stateful_set.len() > LONGEST_STATEFUL_SET_NAME {
            faults.add(
                field,
                format!(
                    "the StatefulSet would be called {stateful_set}, which is longer than {LONGEST_STATEFUL_SET_NAME} \
                     characters: use shorter names for the datacenter or the rack"
                ),
            );
        }
    }
}

fn is_label_value(text: &str) -> bool {
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && is_end(text.chars().next())
        && is_end(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}
