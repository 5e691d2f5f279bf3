//! What must be there before ScyllaDB starts: leave to start, configuration, addresses, seeds.

use std::{fs, io, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, anyhow};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{ResourceExt, api::ListParams};
use messina_api::names::{annotation, label};
use messina_plan::node::{
    address::{AddressError, broadcast_address, is_outdated},
    arguments::{Arguments, StartParameters, managed},
    configuration::{Document, merge_rackdc, merge_yaml},
    emptied::missing_disk_of,
    replaced::is_being_replaced,
    seeds::{StartingNode, seeds},
};
use serde_json::json;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::{Files, Options};
use crate::{kubernetes::Member, pod};

const SCYLLA_YAML: &str = "scylla.yaml";
const RACKDC_PROPERTIES: &str = "cassandra-rackdc.properties";

/// How long the API server may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pauses between attempts, from the first to the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));

/// The addresses that ScyllaDB announces, to nodes and to clients.
#[derive(Debug)]
pub(super) struct Announced {
    addresses: [String; 2],
    pod: Pod,
}

impl Announced {
    fn new(options: &Options, service: &Service, pod: Pod) -> Result<Self, AddressError> {
        Ok(Self { addresses: addresses(options, service, &pod)?, pod })
    }

    /// UID of the pod.
    pub(super) fn pod_uid(&self) -> Option<&str> {
        self.pod.metadata.uid.as_deref()
    }

    /// UID of the pod, if it is to be made anew: its Service has other addresses by now, say because it was deleted.
    pub(super) fn outdated(&self, options: &Options, service: &Service) -> Option<&str> {
        let types = [&options.nodes_broadcast_address_type, &options.clients_broadcast_address_type];
        let family = Some(options.ip_family);
        let is_outdated = |(address, one): (&String, _)| is_outdated(address, one, service, &self.pod, family);
        let is_any = self.addresses.iter().zip(types).any(is_outdated);
        self.pod_uid().filter(|_| is_any)
    }
}

fn addresses(options: &Options, service: &Service, pod: &Pod) -> Result<[String; 2], AddressError> {
    let address = |address_type| broadcast_address(address_type, service, pod, Some(options.ip_family));
    Ok([address(&options.nodes_broadcast_address_type)?, address(&options.clients_broadcast_address_type)?])
}

/// Waits until ScyllaDB may start, writes its configuration and answers how to start it. Only what no waiting will mend
/// is an error.
pub(super) async fn prepare(options: &Options, member: &Member) -> Result<(Command, Announced)> {
    info!(file = %options.shared.ignition().display(), "waiting for ignition");
    options.shared.ignited().await;
    configure(&options.files)?;
    let ring = patiently(|| look(options, member)).await;
    let io_properties = options.files.kept_io_properties();
    let io_properties = io_properties.is_file().then(|| io_properties.to_string_lossy().into_owned());
    let allowed_cpus = allowed_cpus();
    let start = StartParameters {
        seeds: &ring.seeds,
        broadcast_address: &ring.announced.addresses[0],
        broadcast_rpc_address: &ring.announced.addresses[1],
        family: options.ip_family,
        cpu_count: options.cpu_count,
        allowed_cpus: allowed_cpus.as_deref(),
        replaces: ring.replaces.as_deref(),
        io_properties: io_properties.as_deref(),
    };
    let arguments = managed(&start).or(Arguments::parse(&options.arguments.join(" ")));
    let mut command = Command::new(&options.files.entrypoint);
    command.args(arguments.words());
    Ok((command, ring.announced))
}

/// Writes the configuration that ScyllaDB will read.
fn configure(files: &Files) -> Result<()> {
    let own = files.config_dir.join(SCYLLA_YAML);
    let user = files.user_config_dir.join(SCYLLA_YAML);
    let mut texts = vec![(own.clone(), read(&own)?), (files.managed_config.clone(), read(&files.managed_config)?)];
    if let Some(text) = read_if_there(&user)? {
        texts.push((user, text));
    }
    let names: Vec<_> = texts.iter().map(|(file, _)| file.to_string_lossy()).collect();
    let documents: Vec<_> = texts.iter().zip(&names).map(|((_, text), name)| Document { name, text }).collect();
    pod::write_whole(&own, merge_yaml(&documents)?.as_bytes())?;

    let user = read_if_there(&files.user_config_dir.join(RACKDC_PROPERTIES))?;
    let merged = merge_rackdc(&read(&files.snitch_config)?, user.as_deref());
    pod::write_whole(&files.config_dir.join(RACKDC_PROPERTIES), merged.as_bytes())
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))
}

fn read_if_there(file: &Path) -> Result<Option<String>> {
    match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some).with_context(|| format!("reading {}", file.display())),
    }
}

/// What Kubernetes says of the node and its datacenter.
struct Ring {
    seeds: Vec<String>,
    announced: Announced,
    replaces: Option<String>,
}

async fn look(options: &Options, member: &Member) -> Result<Ring> {
    let service = member.services.get(&member.name).await.context("reading the Service of this node")?;
    let own = member.pods.get(&member.name).await.context("reading the Pod of this node")?;
    if own.metadata.deletion_timestamp.is_some() {
        return Err(anyhow!("the Pod of this node is being deleted"));
    }
    let on_disk = read_if_there(&options.files.kept_host_id())?;
    if is_being_replaced(service.labels(), service.annotations(), on_disk.as_deref(), own.metadata.uid.as_deref()) {
        // Tried again, because it may be withdrawn.
        return Err(anyhow!(
            "the Service of this node says that another node takes its place; it starts only if the label {} is taken \
             away before its disk is deleted",
            label::REPLACE
        ));
    }
    let is_emptied = missing_disk_of(service.labels(), service.annotations(), is_empty(&options.files)?);
    let emptied = own.metadata.uid.as_deref().filter(|_| is_emptied.is_some());
    if service.annotations().get(annotation::EMPTY_DISK).map(String::as_str) != emptied {
        let what = json!({"metadata": {"annotations": {annotation::EMPTY_DISK: emptied}}});
        member.change_service(&service, what).await?;
    }
    if let Some(host_id) = is_emptied {
        // Tried again, because the disk may come back.
        return Err(anyhow!(
            "the disk is empty, and node {host_id}, which has joined, should be on it; a new node starts here only as its \
             replacement: set the label {} on the Service of this node",
            label::REPLACE
        ));
    }
    let announced = Announced::new(options, &service, own)?;

    let (pods, services) = datacenter(member, &service).await?;
    let asker = StartingNode {
        name: &member.name,
        address: &announced.addresses[0],
        address_type: &options.nodes_broadcast_address_type,
        family: options.ip_family,
    };
    // An option that is given with nothing in it names nobody.
    let external: Vec<_> = options.external_seeds.iter().filter(|seed| !seed.is_empty()).cloned().collect();
    let seeds = seeds(asker, &pods, &services, &external)?;
    let replaces = service.labels().get(label::REPLACING_NODE_HOST_ID).filter(|host_id| !host_id.is_empty()).cloned();
    Ok(Ring { seeds, announced, replaces })
}

/// Whether no node was ever on the disk. What the file system and the sidecar have there does not count.
fn is_empty(files: &Files) -> Result<bool> {
    let own = [files.kept_host_id(), files.kept_io_properties(), files.data_dir.join("lost+found")];
    let doing = || format!("reading {}", files.data_dir.display());
    let entries = match fs::read_dir(&files.data_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        other => other.with_context(doing)?,
    };
    for entry in entries {
        if !own.contains(&entry.with_context(doing)?.path()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// All nodes of the datacenter that `service` belongs to.
async fn datacenter(member: &Member, service: &Service) -> Result<(Vec<Pod>, Vec<Service>)> {
    let name = service.labels().get(label::CLUSTER);
    let name = name.ok_or_else(|| anyhow!("the Service of this node has no label {}", label::CLUSTER))?;
    let all = format!("{}={},{}={name}", label::NAME, label::value::SCYLLA, label::CLUSTER);
    let nodes = format!("{all},{}={}", label::POD_TYPE, label::value::SCYLLADB_NODE);
    let members = format!("{all},{}={}", label::SERVICE_TYPE, label::value::MEMBER);
    let pods = member.pods.list(&ListParams::default().labels(&nodes)).await.context("reading the nodes' Pods")?;
    let services =
        member.services.list(&ListParams::default().labels(&members)).await.context("reading the nodes' Services")?;
    Ok((pods.items, services.items))
}

/// Tries until it succeeds: the API server may be away, and other nodes may not have come so far yet.
async fn patiently<T>(attempt: impl AsyncFn() -> Result<T>) -> T {
    let (mut pause, longest) = PAUSES;
    loop {
        let outcome = timeout(PATIENCE, attempt()).await;
        match outcome.unwrap_or_else(|_| Err(anyhow!("the API server does not answer"))) {
            Ok(value) => return value,
            Err(error) => warn!("ScyllaDB cannot start yet: {error:#}"),
        }
        sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

/// The processors that this process may run on, as the kernel lists them.
fn allowed_cpus() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(list.trim().to_owned())
}
