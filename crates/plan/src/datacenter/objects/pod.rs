//! The pod template of a node: containers and volumes.

use k8s_openapi::{
    api::core::v1::{
        Affinity, Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, EnvVar,
        EnvVarSource, ObjectFieldSelector, PodSecurityContext, PodSpec, ResourceFieldSelector, ResourceRequirements,
        SecretVolumeSource, SecurityContext, Volume, VolumeMount,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use messina_api::{
    names::{self, DATA_VOLUME},
    scylla::v1alpha1::{BroadcastAddressType, DnsPolicy, IpFamily},
};

use crate::{
    datacenter::{
        layout::{
            AGENT_CONFIG_FILE, AGENT_PORT, BARRIER_CONTAINER, CONFIG_MAPS, DATA_FOLDER, IGNITION_PORT,
            INJECTED_PROGRAM, NODE_EXPORTER_PORT, PROBE_PORT, PROGRAM, SCYLLA_CONTAINER, SECRETS, SHARED_FOLDER,
            TOKEN_FILE,
        },
        model::{
            observed::Observed,
            settings::ProbePeriod,
            spec::{Datacenter, Rack},
        },
        objects::{
            probe::Limits,
            services::{alternator_ports, ip_family},
        },
    },
    version::Version,
};

/// The first version whose data show whether a node has joined.
const BARRIER_SINCE: Version = Version::release(2025, 2, 0);

/// The first version whose image has no node exporter, pre-releases included.
const WITHOUT_NODE_EXPORTER_SINCE: Version = Version::release(2026, 3, 0);

pub(crate) fn pod_spec(observed: &Observed, rack: &Rack) -> PodSpec {
    let (datacenter, probes) = (&observed.datacenter, observed.probe_period);
    let placement = &rack.placement;
    let affinity = Affinity {
        node_affinity: placement.node_affinity.clone(),
        pod_affinity: placement.pod_affinity.clone(),
        pod_anti_affinity: placement.pod_anti_affinity.clone(),
    };
    let settings = (!datacenter.sysctls.is_empty()).then(|| kernel_settings(datacenter, &observed.operator_image));
    let barrier = has_barrier(observed).then(|| bootstrap_barrier(datacenter));
    let agent = datacenter.agent_image.as_deref().map(|image| agent(rack, image, probes));
    let node_exporter = has_node_exporter(datacenter).then(|| node_exporter(&observed.node_exporter_image, probes));
    PodSpec {
        host_network: datacenter.host_network.then_some(true),
        dns_policy: Some(dns_policy(&datacenter.dns_policy).to_owned()),
        security_context: Some(PodSecurityContext {
            run_as_user: Some(0),
            run_as_group: Some(0),
            ..PodSecurityContext::default()
        }),
        service_account_name: Some(names::datacenter::member_service_account(&datacenter.name)),
        affinity: (affinity != Affinity::default()).then_some(affinity),
        tolerations: placement.tolerations.clone().filter(|list| !list.is_empty()),
        readiness_gates: some(datacenter.readiness_gates.clone()),
        image_pull_secrets: some(datacenter.image_pull_secrets.clone()),
        termination_grace_period_seconds: Some(grace_period(datacenter)),
        init_containers: Some(
            [injection(&observed.operator_image)].into_iter().chain(settings).chain(barrier).collect(),
        ),
        containers: [
            scylla(observed, rack),
            status_probe(datacenter, &observed.operator_image, probes),
            ignition(datacenter, &observed.operator_image, probes),
        ]
        .into_iter()
        .chain(agent)
        .chain(node_exporter)
        .collect(),
        volumes: Some(volumes(observed, rack)),
        ..PodSpec::default()
    }
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// Whether pods have the bootstrap barrier. A version that cannot be compared counts as new.
fn has_barrier(observed: &Observed) -> bool {
    observed.gates.bootstrap_synchronisation
        && observed.datacenter.comparable_version().is_none_or(|version| version.is_at_least(&BARRIER_SINCE))
}

/// Whether pods have a node exporter container. An image whose version cannot be compared counts as having its own node
/// exporter.
fn has_node_exporter(datacenter: &Datacenter) -> bool {
    datacenter.comparable_version().is_some_and(|version| version.is_of_line(&WITHOUT_NODE_EXPORTER_SINCE))
}

fn dns_policy(policy: &DnsPolicy) -> &str {
    match policy {
        DnsPolicy::ClusterFirstWithHostNet => "ClusterFirstWithHostNet",
        DnsPolicy::ClusterFirst => "ClusterFirst",
        DnsPolicy::Default => "Default",
        DnsPolicy::None => "None",
        DnsPolicy::Other(other) => other,
    }
}

fn broadcast_type(address: &BroadcastAddressType) -> &str {
    match address {
        BroadcastAddressType::PodIP => "PodIP",
        BroadcastAddressType::ServiceClusterIP => "ServiceClusterIP",
        BroadcastAddressType::ServiceLoadBalancerIngress => "ServiceLoadBalancerIngress",
        BroadcastAddressType::Other(other) => other,
    }
}

fn broadcast_arguments(datacenter: &Datacenter) -> [String; 2] {
    [
        format!("--nodes-broadcast-address-type={}", broadcast_type(&datacenter.nodes_broadcast)),
        format!("--clients-broadcast-address-type={}", broadcast_type(&datacenter.clients_broadcast)),
    ]
}

fn command<'a>(words: impl IntoIterator<Item = &'a str>) -> Option<Vec<String>> {
    Some(words.into_iter().map(str::to_owned).collect())
}

pub(crate) fn container(name: &str, image: &str) -> Container {
    Container {
        name: name.into(),
        image: Some(image.into()),
        image_pull_policy: Some("IfNotPresent".into()),
        ..Container::default()
    }
}

/// Returns the init container that copies the operator's program for containers of other images.
fn injection(operator_image: &str) -> Container {
    Container {
        command: command([PROGRAM, "inject", SHARED_FOLDER]),
        resources: Some(fixed_resources("10m", "50Mi")),
        volume_mounts: Some(vec![mount("shared", SHARED_FOLDER)]),
        ..container("sidecar-injection", operator_image)
    }
}

/// Returns how long a node may take to stop: it keeps serving for the time in the specification, and then drains.
fn grace_period(datacenter: &Datacenter) -> i64 {
    900 + datacenter.min_termination_grace_period_seconds.map_or(0, i64::from)
}

/// Returns the init container that sets kernel settings of the Kubernetes node, which requires privileges.
fn kernel_settings(datacenter: &Datacenter, operator_image: &str) -> Container {
    // Only patterns that are used are listed, so that a change of other patterns of the operator does not restart
    // nodes.
    let others: Vec<String> = datacenter.other_sysctls.iter().map(|pattern| format!("--allow={pattern}")).collect();
    let words = [PROGRAM, "sysctl"].into_iter().chain(others.iter().map(String::as_str)).chain(["--"]);
    Container {
        command: command(words.chain(datacenter.sysctls.iter().map(String::as_str))),
        resources: Some(fixed_resources("10m", "50Mi")),
        security_context: Some(SecurityContext { privileged: Some(true), ..SecurityContext::default() }),
        ..container("sysctl-buddy", operator_image)
    }
}

/// Returns the init container that keeps a new node from joining until all nodes see each other up.
fn bootstrap_barrier(datacenter: &Datacenter) -> Container {
    // Nodes of other datacenters write no reports here, so host IDs without a report are expected.
    let has_others = !datacenter.external_seeds.is_empty();
    let selector = format!("--selector-label-value={}", datacenter.name);
    let allow = format!("--single-report-allow-non-reporting-host-ids={has_others}");
    let data = format!("--scylla-data-dir={DATA_FOLDER}/data");
    Container {
        command: command([
            INJECTED_PROGRAM,
            "bootstrap-barrier",
            "--service-name=$(SERVICE_NAME)",
            &data,
            &selector,
            &allow,
        ]),
        env: Some(vec![service_name()]),
        resources: Some(fixed_resources("50m", "100Mi")),
        volume_mounts: Some(vec![read_only(DATA_VOLUME, DATA_FOLDER), read_only("shared", SHARED_FOLDER)]),
        ..container(BARRIER_CONTAINER, &datacenter.image)
    }
}

pub(crate) fn scylla(observed: &Observed, rack: &Rack) -> Container {
    let (datacenter, probes) = (&observed.datacenter, observed.probe_period);
    Container {
        command: Some(scylla_command(datacenter)),
        env: Some(vec![service_name(), cpu_count()]),
        ports: Some(scylla_ports(datacenter)),
        resources: rack.resources.clone(),
        security_context: Some(SecurityContext {
            run_as_user: Some(0),
            run_as_group: Some(0),
            capabilities: Some(Capabilities { add: Some(vec!["SYS_NICE".into()]), drop: None }),
            ..SecurityContext::default()
        }),
        startup_probe: Some(probes.http("/healthz", PROBE_PORT, Limits { failures: 40, period: 10, timeout: 30 })),
        liveness_probe: Some(probes.http("/healthz", PROBE_PORT, Limits { failures: 12, period: 10, timeout: 10 })),
        readiness_probe: Some(probes.http("/readyz", PROBE_PORT, Limits { failures: 1, period: 10, timeout: 30 })),
        volume_mounts: Some(scylla_mounts(observed, rack)),
        ..container(SCYLLA_CONTAINER, &datacenter.image)
    }
}

/// Returns the command of the sidecar, which runs ScyllaDB with the arguments after `--`.
fn scylla_command(datacenter: &Datacenter) -> Vec<String> {
    let mut words = vec![INJECTED_PROGRAM.to_owned(), "sidecar".to_owned()];
    words.extend(broadcast_arguments(datacenter));
    words.extend([
        "--service-name=$(SERVICE_NAME)".to_owned(),
        "--cpu-count=$(CPU_COUNT)".to_owned(),
        format!("--ip-family={}", ip_family(datacenter.ip_family())),
    ]);
    if !datacenter.external_seeds.is_empty() {
        words.push(format!("--external-seeds={}", datacenter.external_seeds.join(",")));
    }
    if let Some(seconds) = datacenter.min_termination_grace_period_seconds.filter(|seconds| *seconds > 0) {
        words.push(format!("--serve-seconds-before-stop={seconds}"));
    }
    words.push("--".to_owned());
    words.extend(datacenter.additional_arguments.iter().cloned());
    words.push(format!("--developer-mode={}", i32::from(datacenter.developer_mode)));
    words
}

fn scylla_ports(datacenter: &Datacenter) -> Vec<ContainerPort> {
    let ports = [
        ("intra-node", 7000),
        ("tls-intra-node", 7001),
        ("cql", 9042),
        ("cql-ssl", 9142),
        ("jmx", 7199),
        ("prometheus", 9180),
        ("thrift", 9160),
    ];
    let node_exporter = (!has_node_exporter(datacenter)).then_some(("node-exporter", NODE_EXPORTER_PORT));
    let ports = ports.into_iter().chain(node_exporter).chain(alternator_ports(datacenter));
    ports.map(|(name, port)| container_port(name, port)).collect()
}

fn scylla_mounts(observed: &Observed, rack: &Rack) -> Vec<VolumeMount> {
    let mut mounts = vec![
        mount(DATA_VOLUME, DATA_FOLDER),
        mount("shared", SHARED_FOLDER),
        read_only("scylla-config-volume", "/mnt/scylla-config"),
        read_only("scylladb-managed-config", &format!("{CONFIG_MAPS}/managed-config")),
        read_only("scylladb-snitch-config", &format!("{CONFIG_MAPS}/snitch-config")),
        read_only("scylla-client-config-volume", "/mnt/scylla-client-config"),
    ];
    if observed.gates.automatic_tls_certificates {
        mounts.extend([
            read_only("scylladb-serving-certs", &format!("{SECRETS}/serving-certs")),
            read_only("scylladb-client-ca", &format!("{CONFIG_MAPS}/client-ca")),
            read_only("scylladb-user-admin", &format!("{SECRETS}/user-admin")),
        ]);
    }
    if observed.datacenter.alternator.is_some() {
        mounts.push(read_only("scylladb-alternator-serving-certs", &format!("{SECRETS}/alternator-serving-certs")));
    }
    mounts.extend(rack.volume_mounts.iter().cloned());
    mounts
}

/// Returns the container that serves the probes of the node.
fn status_probe(datacenter: &Datacenter, operator_image: &str, probes: ProbePeriod) -> Container {
    let loopback = if *datacenter.ip_family() == IpFamily::IPv6 { "::1" } else { "127.0.0.1" };
    let port = format!("--port={PROBE_PORT}");
    let address = format!("--scylla-localhost-address={loopback}");
    Container {
        command: command([PROGRAM, "probe", &port, "--service-name=$(SERVICE_NAME)", &address]),
        env: Some(vec![service_name()]),
        readiness_probe: Some(probes.tcp(PROBE_PORT, Limits { failures: 1, period: 5, timeout: 30 })),
        resources: Some(fixed_resources("50m", "40Mi")),
        ..container("scylladb-api-status-probe", operator_image)
    }
}

/// Returns the container that decides when ScyllaDB may start.
fn ignition(datacenter: &Datacenter, operator_image: &str, probes: ProbePeriod) -> Container {
    let [nodes, clients] = broadcast_arguments(datacenter);
    Container {
        command: command([PROGRAM, "ignition", "--service-name=$(SERVICE_NAME)", &nodes, &clients]),
        env: Some(vec![service_name()]),
        readiness_probe: Some(probes.http("/readyz", IGNITION_PORT, Limits { failures: 1, period: 5, timeout: 30 })),
        resources: Some(fixed_resources("50m", "40Mi")),
        volume_mounts: Some(vec![mount("shared", SHARED_FOLDER)]),
        ..container("scylladb-ignition", operator_image)
    }
}

/// Returns the container of the ScyllaDB Manager agent, which waits until the node runs.
pub(crate) fn agent(rack: &Rack, image: &str, probes: ProbePeriod) -> Container {
    let files = [
        format!("/etc/scylla-manager-agent/{AGENT_CONFIG_FILE}"),
        format!("/mnt/scylla-managed-agent-config/{AGENT_CONFIG_FILE}"),
        format!("/mnt/scylla-agent-config/{AGENT_CONFIG_FILE}"),
        format!("/mnt/scylla-agent-config/{TOKEN_FILE}"),
    ];
    let words = [INJECTED_PROGRAM, "await-node", "--", "scylla-manager-agent"];
    let mut mounts = vec![
        mount(DATA_VOLUME, DATA_FOLDER),
        one_file("scylla-managed-agent-config-volume", &files[1], AGENT_CONFIG_FILE),
        one_file("scylla-agent-config-volume", &files[2], AGENT_CONFIG_FILE),
        one_file("scylla-agent-auth-token-volume", &files[3], TOKEN_FILE),
        read_only("shared", SHARED_FOLDER),
    ];
    mounts.extend(rack.agent_volume_mounts.iter().cloned());
    Container {
        command: command(words.into_iter().chain(files.iter().flat_map(|file| ["-c", file]))),
        ports: Some(vec![container_port("agent-rest-api", AGENT_PORT)]),
        readiness_probe: Some(probes.tcp_with_defaults(AGENT_PORT)),
        resources: rack.agent_resources.clone(),
        volume_mounts: Some(mounts),
        ..container("scylla-manager-agent", image)
    }
}

/// Returns the node exporter container, for ScyllaDB images without one.
fn node_exporter(image: &str, probes: ProbePeriod) -> Container {
    Container {
        ports: Some(vec![container_port("node-exporter", NODE_EXPORTER_PORT)]),
        liveness_probe: Some(probes.tcp_with_defaults(NODE_EXPORTER_PORT)),
        resources: Some(fixed_resources("10m", "50Mi")),
        volume_mounts: Some(vec![read_only(DATA_VOLUME, DATA_FOLDER)]),
        ..container("scylladb-node-exporter", image)
    }
}

fn volumes(observed: &Observed, rack: &Rack) -> Vec<Volume> {
    let datacenter = &observed.datacenter;
    let name = &datacenter.name;
    let mut volumes = vec![
        Volume { name: "shared".into(), empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() },
        config_map("scylla-config-volume", rack.config_map(), Some(true)),
        config_map("scylladb-managed-config", &names::datacenter::managed_config(name), Some(false)),
        config_map("scylladb-snitch-config", &names::datacenter::snitch_config(name, &rack.name), Some(false)),
        config_map("scylla-managed-agent-config-volume", &names::datacenter::managed_agent_config(name), Some(false)),
        secret("scylla-agent-config-volume", rack.agent_secret(), Some(true)),
        secret("scylla-client-config-volume", "scylla-client-config-secret", Some(true)),
        secret("scylla-agent-auth-token-volume", &names::datacenter::agent_auth_token(name), None),
    ];
    if observed.gates.automatic_tls_certificates {
        volumes.extend([
            secret("scylladb-serving-certs", &names::datacenter::serving_certificate(name), None),
            config_map("scylladb-client-ca", &names::datacenter::client_ca(name), None),
            secret("scylladb-user-admin", &names::datacenter::admin_client_certificate(name), None),
        ]);
    }
    if let Some(alternator) = &datacenter.alternator {
        let made = names::datacenter::alternator_serving_certificate(name);
        let certificate = alternator.user_certificate.as_ref().unwrap_or(&made);
        volumes.push(secret("scylladb-alternator-serving-certs", certificate, Some(false)));
    }
    volumes.extend(rack.volumes.iter().cloned());
    volumes.extend(rack.agent_volumes.iter().cloned());
    volumes
}

fn config_map(volume: &str, name: &str, optional: Option<bool>) -> Volume {
    Volume {
        name: volume.into(),
        config_map: Some(ConfigMapVolumeSource { name: name.into(), optional, ..ConfigMapVolumeSource::default() }),
        ..Volume::default()
    }
}

fn secret(volume: &str, name: &str, optional: Option<bool>) -> Volume {
    Volume {
        name: volume.into(),
        secret: Some(SecretVolumeSource { secret_name: Some(name.into()), optional, ..SecretVolumeSource::default() }),
        ..Volume::default()
    }
}

fn mount(volume: &str, path: &str) -> VolumeMount {
    VolumeMount { name: volume.into(), mount_path: path.into(), ..VolumeMount::default() }
}

fn read_only(volume: &str, path: &str) -> VolumeMount {
    VolumeMount { read_only: Some(true), ..mount(volume, path) }
}

fn one_file(volume: &str, path: &str, file: &str) -> VolumeMount {
    VolumeMount { sub_path: Some(file.into()), ..read_only(volume, path) }
}

fn container_port(name: &str, port: i32) -> ContainerPort {
    ContainerPort {
        name: Some(name.into()),
        container_port: port,
        protocol: Some("TCP".into()),
        ..ContainerPort::default()
    }
}

/// Returns equal requests and limits.
fn fixed_resources(cpu: &str, memory: &str) -> ResourceRequirements {
    let quantities = [("cpu".to_owned(), Quantity(cpu.into())), ("memory".to_owned(), Quantity(memory.into()))];
    ResourceRequirements { limits: Some(quantities.clone().into()), requests: Some(quantities.into()), claims: None }
}

fn service_name() -> EnvVar {
    EnvVar {
        name: "SERVICE_NAME".into(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector { field_path: "metadata.name".into(), api_version: None }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    }
}

fn cpu_count() -> EnvVar {
    EnvVar {
        name: "CPU_COUNT".into(),
        value_from: Some(EnvVarSource {
            resource_field_ref: Some(ResourceFieldSelector {
                container_name: Some(SCYLLA_CONTAINER.into()),
                divisor: Some(Quantity("1".into())),
                resource: "limits.cpu".into(),
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    }
}
