//! `messina sidecar`: configures and runs ScyllaDB, and publishes its state on the node's Service.
//!
//! It is the first process of ScyllaDB's container: it starts ScyllaDB as its child, forwards signals, reaps orphans,
//! and exits when its child has exited. It keeps running while the API server is unavailable.

mod child;
mod prepare;
mod reconcile;
mod upgrade;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
    pin::pin,
    time::Duration,
};

use anyhow::{Context, Result};
use messina_api::scylla::v1alpha1::BroadcastAddressType;
use messina_clients::scylla::Node;
use messina_plan::node::{Mode, address::IpFamily};
use nix::sys::signal::Signal;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tracing::{info, warn};

use crate::{
    kubernetes::{Access, chain},
    pod::{self, Shared, address_type},
    scylla,
};
use child::Child;

/// The node, and how ScyllaDB is started and stopped.
#[derive(Debug, clap::Args)]
#[expect(missing_docs, reason = "the flattened groups document their own fields")]
pub struct Options {
    /// Name of the node's Service, which is also the pod's
    #[arg(long)]
    pub service_name: String,
    /// Type of the broadcast address for other nodes
    #[arg(long, value_parser = address_type)]
    pub nodes_broadcast_address_type: BroadcastAddressType,
    /// Type of the broadcast address for clients
    #[arg(long, value_parser = address_type)]
    pub clients_broadcast_address_type: BroadcastAddressType,
    /// Number of CPUs that ScyllaDB uses (--smp)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub cpu_count: u32,
    /// IP family of the listen and broadcast addresses: IPv4 or IPv6
    #[arg(long, default_value_t = IpFamily::V4)]
    pub ip_family: IpFamily,
    /// Comma-separated seeds outside of this datacenter
    #[arg(long, value_delimiter = ',')]
    pub external_seeds: Vec<String>,
    /// IP address of ScyllaDB's REST API (default: the loopback address of the IP family)
    #[arg(long)]
    pub scylla_localhost_address: Option<IpAddr>,
    /// Timeout of the drain before ScyllaDB is stopped, in seconds
    #[arg(long, default_value_t = 300)]
    pub drain_seconds: u64,
    /// Seconds for which a node continues to serve after SIGTERM and before its drain, so that load balancers can react
    #[arg(long, default_value_t = 0)]
    pub serve_seconds_before_stop: u64,
    #[command(flatten)]
    pub files: Files,
    #[command(flatten)]
    pub shared: Shared,
    #[command(flatten)]
    pub access: Access,
    /// User-defined arguments of ScyllaDB
    #[arg(last = true)]
    pub arguments: Vec<String>,
}

/// Paths of ScyllaDB's files.
#[derive(Debug, clap::Args)]
pub struct Files {
    /// Directory of ScyllaDB's configuration, with the image's defaults
    #[arg(long, default_value = "/etc/scylla")]
    pub config_dir: PathBuf,
    /// scylla.yaml of the operator, which is merged over the image's
    #[arg(
        long,
        default_value = "/var/run/configmaps/scylla-operator.scylladb.com/scylladb/managed-config/scylladb-managed-config.yaml"
    )]
    pub managed_config: PathBuf,
    /// cassandra-rackdc.properties of the operator
    #[arg(
        long,
        default_value = "/var/run/configmaps/scylla-operator.scylladb.com/scylladb/snitch-config/cassandra-rackdc.properties"
    )]
    pub snitch_config: PathBuf,
    /// Directory of the user's scylla.yaml and cassandra-rackdc.properties, if there are any
    #[arg(long, default_value = "/mnt/scylla-config")]
    pub user_config_dir: PathBuf,
    /// Directory of the node's data volume
    #[arg(long, default_value = "/var/lib/scylla")]
    pub data_dir: PathBuf,
    /// Disk measurements of iotune, which are saved on the data volume
    #[arg(long, default_value = "/etc/scylla.d/io_properties.yaml")]
    pub io_properties: PathBuf,
    /// Entrypoint of ScyllaDB's image
    #[arg(long, default_value = "/docker-entrypoint.py")]
    pub entrypoint: PathBuf,
}

impl Files {
    /// Returns the path of the saved disk measurements.
    fn saved_io_properties(&self) -> PathBuf {
        self.data_dir.join("io_properties.yaml")
    }

    /// Returns the path of the saved host ID of the node that owns the disk.
    fn saved_host_id(&self) -> PathBuf {
        self.data_dir.join("messina-host-id")
    }
}

impl Options {
    fn node(&self) -> Node {
        Node::at_ip(self.scylla_localhost_address.unwrap_or(match self.ip_family {
            IpFamily::V4 => Ipv4Addr::LOCALHOST.into(),
            IpFamily::V6 => Ipv6Addr::LOCALHOST.into(),
        }))
    }
}

/// Runs ScyllaDB, and exits with its exit status.
pub fn run(options: &Options) -> Result<()> {
    let status = pod::runtime()?.block_on(run_node(options))?;
    std::process::exit(status)
}

/// The signals that the first process of the container handles.
struct ContainerSignals {
    stop: Signals,
    interrupt: Signals,
    child_ended: Signals,
    hang_up: Signals,
    user_one: Signals,
    user_two: Signals,
}

impl ContainerSignals {
    fn listen() -> Result<Self> {
        let listen = |kind| signal(kind).context("listening for signals");
        Ok(Self {
            stop: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            child_ended: listen(SignalKind::child())?,
            hang_up: listen(SignalKind::hangup())?,
            user_one: listen(SignalKind::user_defined1())?,
            user_two: listen(SignalKind::user_defined2())?,
        })
    }
}

/// Prepares, starts and supervises ScyllaDB. Returns the status to exit with.
async fn run_node(options: &Options) -> Result<i32> {
    // First: the first process of a container gets only the signals that it has handlers for.
    let mut signals = ContainerSignals::listen()?;
    let member = options.access.member(&options.service_name).await?;
    let (command, broadcast) = tokio::select! {
        prepared = prepare::prepare(options, &member) => prepared?,
        _ = signals.stop.recv() => return Ok(stopped_early()),
        _ = signals.interrupt.recv() => return Ok(stopped_early()),
        () = member.resolve_if_terminating() => return Ok(stopped_early()),
    };
    let child = Child::start(command)?;
    let reconciling = reconcile::reconcile(options, &member, &broadcast);
    run_until_end(options, reconciling, &mut signals, &child).await
}

fn stopped_early() -> i32 {
    info!("stopped before ScyllaDB was started");
    0
}

async fn run_until_end(
    options: &Options,
    reconciling: impl Future<Output = reconcile::RestartReason>,
    signals: &mut ContainerSignals,
    child: &Child,
) -> Result<i32> {
    let mut reconciling = pin!(reconciling);
    let mut stopping = pin!(stop(options, options.node(), child));
    let mut is_stopping = false;
    loop {
        tokio::select! {
            _ = signals.child_ended.recv() => {
                if let Some(status) = child.reap()? {
                    info!(status, "ScyllaDB has exited");
                    return Ok(status);
                }
            }
            _ = signals.stop.recv() => is_stopping = true,
            _ = signals.interrupt.recv() => is_stopping = true,
            _ = signals.hang_up.recv() => child.signal(Signal::SIGHUP),
            _ = signals.user_one.recv() => child.signal(Signal::SIGUSR1),
            _ = signals.user_two.recv() => child.signal(Signal::SIGUSR2),
            // This resolves only when ScyllaDB must be restarted, which the kubelet does when the container has exited.
            reason = &mut reconciling, if !is_stopping => {
                match reason {
                    reconcile::RestartReason::Drained =>
                        warn!("ScyllaDB is drained and cannot be decommissioned in that mode: stopping it for a restart"),
                    reconcile::RestartReason::BeingReplaced =>
                        warn!("this node is being replaced and does not serve yet: stopping ScyllaDB"),
                }
                is_stopping = true;
            }
            // This never resolves: the loop ends when the child has exited.
            never = &mut stopping, if is_stopping => match never {},
        }
    }
}

/// Stops ScyllaDB gracefully. The pod's grace period limits how long that may take.
async fn stop(options: &Options, node: Node, child: &Child) -> std::convert::Infallible {
    info!("stopping ScyllaDB");
    keep_serving(node, Duration::from_secs(options.serve_seconds_before_stop)).await;
    drain(node, Duration::from_secs(options.drain_seconds)).await;
    // `messina ignition` writes the file again for the next container.
    if let Err(error) = pod::remove(&options.shared.ignition_file()) {
        warn!("{error:#}");
    }
    child.signal(Signal::SIGTERM);
    std::future::pending().await
}

/// Lets a node in mode NORMAL serve for a while. The pod is already terminating in its EndpointSlices.
async fn keep_serving(node: Node, time: Duration) {
    if !time.is_zero() && matches!(scylla::mode(node).await, Ok(Mode::Normal)) {
        info!(seconds = time.as_secs(), "ScyllaDB continues to serve, so that load balancers can react");
        tokio::time::sleep(time).await;
    }
}

/// Drains the node, so that it starts quickly. Does nothing in modes other than NORMAL: the node joins, leaves or is
/// drained already.
async fn drain(node: Node, timeout: Duration) {
    match scylla::mode(node).await {
        Ok(Mode::Normal) => match node.drain(timeout).await {
            Ok(()) => info!("ScyllaDB is drained"),
            Err(error) => warn!(error = %chain(&error), "drain failed: stopping ScyllaDB without it"),
        },
        Ok(mode) => info!(%mode, "ScyllaDB is not drained in this mode"),
        Err(error) => {
            info!(error = %chain(&error), "ScyllaDB's REST API does not respond: stopping ScyllaDB without a drain")
        }
    }
}
