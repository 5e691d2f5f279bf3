//! Preparation of ScyllaDB's start: ignition, configuration, addresses and seeds.

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
use messina_text::Backoff;
use serde_json::json;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::{Files, Options};
use crate::{kubernetes::MemberApi, pod};

const SCYLLA_YAML: &str = "scylla.yaml";
const RACKDC_PROPERTIES: &str = "cassandra-rackdc.properties";

/// Timeout of reading the node's objects from the API server.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Delays between attempts.
const RETRIES: Backoff = Backoff { first: Duration::from_millis(500), longest: Duration::from_secs(15) };

/// The broadcast addresses for nodes and for clients that ScyllaDB was started with.
#[derive(Debug)]
pub(super) struct BroadcastAddresses {
    addresses: [String; 2],
    pod: Pod,
}

impl BroadcastAddresses {
    fn new(options: &Options, service: &Service, pod: Pod) -> Result<Self, AddressError> {
        Ok(Self { addresses: addresses(options, service, &pod)?, pod })
    }

    /// Returns the UID of the pod.
    pub(super) fn pod_uid(&self) -> Option<&str> {
        self.pod.metadata.uid.as_deref()
    }

    /// Returns the UID of the pod if it must be recreated because its Service has other addresses now, for example
    /// because the Service was recreated.
    pub(super) fn outdated_pod_uid(&self, options: &Options, service: &Service) -> Option<&str> {
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

/// Waits until ScyllaDB may start, writes its configuration and returns the command that starts it. Returns only errors
/// that a retry cannot fix.
pub(super) async fn prepare(options: &Options, member: &MemberApi) -> Result<(Command, BroadcastAddresses)> {
    info!(file = %options.shared.ignition_file().display(), "waiting for ignition");
    options.shared.wait_for_ignition().await;
    configure(&options.files)?;
    let inputs = retry(|| read_inputs(options, member)).await;
    let io_properties = options.files.saved_io_properties();
    let io_properties = io_properties.is_file().then(|| io_properties.to_string_lossy().into_owned());
    let allowed_cpus = allowed_cpus();
    let start = StartParameters {
        seeds: &inputs.seeds,
        broadcast_address: &inputs.broadcast.addresses[0],
        broadcast_rpc_address: &inputs.broadcast.addresses[1],
        family: options.ip_family,
        cpu_count: options.cpu_count,
        allowed_cpus: allowed_cpus.as_deref(),
        replaces: inputs.replaces.as_deref(),
        io_properties: io_properties.as_deref(),
    };
    let arguments = managed(&start).or(Arguments::parse(&options.arguments.join(" ")));
    let mut command = Command::new(&options.files.entrypoint);
    command.args(arguments.words());
    Ok((command, inputs.broadcast))
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
    pod::write_atomically(&own, merge_yaml(&documents)?.as_bytes())?;

    let user = read_if_there(&files.user_config_dir.join(RACKDC_PROPERTIES))?;
    let merged = merge_rackdc(&read(&files.snitch_config)?, user.as_deref());
    pod::write_atomically(&files.config_dir.join(RACKDC_PROPERTIES), merged.as_bytes())
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

/// What ScyllaDB's arguments depend on in the objects of the node and its datacenter.
struct StartInputs {
    seeds: Vec<String>,
    broadcast: BroadcastAddresses,
    replaces: Option<String>,
}

async fn read_inputs(options: &Options, member: &MemberApi) -> Result<StartInputs> {
    let service = member.services.get(&member.name).await.context("reading the Service of this node")?;
    let own = member.pods.get(&member.name).await.context("reading the Pod of this node")?;
    if own.metadata.deletion_timestamp.is_some() {
        return Err(anyhow!("the Pod of this node is being deleted"));
    }
    let on_disk = read_if_there(&options.files.saved_host_id())?;
    if is_being_replaced(service.labels(), service.annotations(), on_disk.as_deref(), own.metadata.uid.as_deref()) {
        // An error that is retried, because the replacement may be cancelled.
        return Err(anyhow!(
            "this node is being replaced, according to its Service. To cancel that, remove the label {} from the \
             Service before the node's PersistentVolumeClaim is deleted",
            label::REPLACE
        ));
    }
    let missing_node = missing_disk_of(service.labels(), service.annotations(), is_empty(&options.files)?);
    let empty_for_pod = own.metadata.uid.as_deref().filter(|_| missing_node.is_some());
    if service.annotations().get(annotation::EMPTY_DISK).map(String::as_str) != empty_for_pod {
        let patch = json!({"metadata": {"annotations": {annotation::EMPTY_DISK: empty_for_pod}}});
        member.patch_service(&service, patch).await?;
    }
    if let Some(host_id) = missing_node {
        // An error that is retried, because the disk may come back.
        return Err(anyhow!(
            "the disk is empty, but should have the data of node {host_id}, which has joined the cluster. Restore the \
             disk, or set the label {} on the Service of this node to start a new node as its replacement",
            label::REPLACE
        ));
    }
    let broadcast = BroadcastAddresses::new(options, &service, own)?;

    let (pods, services) = datacenter(member, &service).await?;
    let asker = StartingNode {
        name: &member.name,
        address: &broadcast.addresses[0],
        address_type: &options.nodes_broadcast_address_type,
        family: options.ip_family,
    };
    // `--external-seeds=` has one empty element.
    let external: Vec<_> = options.external_seeds.iter().filter(|seed| !seed.is_empty()).cloned().collect();
    let seeds = seeds(asker, &pods, &services, &external)?;
    let replaces = service.labels().get(label::REPLACING_NODE_HOST_ID).filter(|host_id| !host_id.is_empty()).cloned();
    Ok(StartInputs { seeds, broadcast, replaces })
}

/// Returns whether ScyllaDB has never run on the disk. Files of the file system and of the sidecar do not count.
fn is_empty(files: &Files) -> Result<bool> {
    let ignored = [files.saved_host_id(), files.saved_io_properties(), files.data_dir.join("lost+found")];
    let doing = || format!("reading {}", files.data_dir.display());
    let entries = match fs::read_dir(&files.data_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        other => other.with_context(doing)?,
    };
    for entry in entries {
        if !ignored.contains(&entry.with_context(doing)?.path()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Lists the pods and Services of all nodes of the datacenter that `service` belongs to.
async fn datacenter(member: &MemberApi, service: &Service) -> Result<(Vec<Pod>, Vec<Service>)> {
    let name = service.labels().get(label::CLUSTER);
    let name = name.ok_or_else(|| anyhow!("the Service of this node has no label {}", label::CLUSTER))?;
    let all = format!("{}={},{}={name}", label::NAME, label::value::SCYLLA, label::CLUSTER);
    let nodes = format!("{all},{}={}", label::POD_TYPE, label::value::SCYLLADB_NODE);
    let members = format!("{all},{}={}", label::SERVICE_TYPE, label::value::MEMBER);
    let pods =
        member.pods.list(&ListParams::default().labels(&nodes)).await.context("listing the Pods of the nodes")?;
    let services = member
        .services
        .list(&ListParams::default().labels(&members))
        .await
        .context("listing the Services of the nodes")?;
    Ok((pods.items, services.items))
}

/// Retries until it succeeds: the API server may be unavailable, and other nodes may not have started yet.
async fn retry<T>(attempt: impl AsyncFn() -> Result<T>) -> T {
    let mut failures = 0;
    loop {
        let outcome = timeout(TIMEOUT, attempt()).await;
        match outcome.unwrap_or_else(|_| Err(anyhow!("the API server did not respond within {TIMEOUT:?}"))) {
            Ok(value) => return value,
            Err(error) => warn!("ScyllaDB cannot start yet: {error:#}"),
        }
        failures += 1;
        sleep(RETRIES.delay(failures)).await;
    }
}

/// Returns the CPUs that this process may run on, in the format of the kernel.
fn allowed_cpus() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(list.trim().to_owned())
}
