//! `messina sidecar`: configures and runs ScyllaDB, and speaks for it on the node's Service.
//!
//! It is the first process of ScyllaDB's container: it starts ScyllaDB as its child, passes signals on, reaps what nobody
//! else does, and ends when its child has ended. Nothing that happens to the API server ends it.

mod child;
mod prepare;
mod tend;
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

/// Which node this is, and what it needs.
#[derive(Debug, clap::Args)]
#[expect(missing_docs, reason = "the fields that have no words of their own are groups of options that have")]
pub struct Options {
    /// Name of the node's Service, which is also the pod's
    #[arg(long)]
    pub service_name: String,
    /// Whose address the node announces to other nodes
    #[arg(long, value_parser = address_type)]
    pub nodes_broadcast_address_type: BroadcastAddressType,
    /// Whose address the node announces to clients
    #[arg(long, value_parser = address_type)]
    pub clients_broadcast_address_type: BroadcastAddressType,
    /// How many processors ScyllaDB uses
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub cpu_count: u32,
    /// The family of the addresses that the node listens on and announces: IPv4 or IPv6
    #[arg(long, default_value_t = IpFamily::V4)]
    pub ip_family: IpFamily,
    /// Nodes outside of this datacenter to ask for the ring, divided by commas
    #[arg(long, value_delimiter = ',')]
    pub external_seeds: Vec<String>,
    /// Where ScyllaDB's REST API is; without it, loopback of the family
    #[arg(long)]
    pub scylla_localhost_address: Option<IpAddr>,
    /// For how many seconds ScyllaDB may drain before it is stopped nevertheless
    #[arg(long, default_value_t = 300)]
    pub drain_seconds: u64,
    /// For how many seconds a node that is to stop goes on serving, so that load balancers can turn to others
    #[arg(long, default_value_t = 0)]
    pub serve_seconds_before_stop: u64,
    #[command(flatten)]
    pub files: Files,
    #[command(flatten)]
    pub shared: Shared,
    #[command(flatten)]
    pub access: Access,
    /// The user's arguments for ScyllaDB
    #[arg(last = true)]
    pub arguments: Vec<String>,
}

/// Where files are.
#[derive(Debug, clap::Args)]
pub struct Files {
    /// The folder that ScyllaDB reads its configuration from, with what the image has there
    #[arg(long, default_value = "/etc/scylla")]
    pub config_dir: PathBuf,
    /// The operator's part of scylla.yaml
    #[arg(
        long,
        default_value = "/var/run/configmaps/scylla-operator.scylladb.com/scylladb/managed-config/scylladb-managed-config.yaml"
    )]
    pub managed_config: PathBuf,
    /// The operator's cassandra-rackdc.properties
    #[arg(
        long,
        default_value = "/var/run/configmaps/scylla-operator.scylladb.com/scylladb/snitch-config/cassandra-rackdc.properties"
    )]
    pub snitch_config: PathBuf,
    /// The folder with the user's scylla.yaml and cassandra-rackdc.properties, if there are any
    #[arg(long, default_value = "/mnt/scylla-config")]
    pub user_config_dir: PathBuf,
    /// The node's disk
    #[arg(long, default_value = "/var/lib/scylla")]
    pub data_dir: PathBuf,
    /// What ScyllaDB measured of the disk, to be kept on it
    #[arg(long, default_value = "/etc/scylla.d/io_properties.yaml")]
    pub io_properties: PathBuf,
    /// The image's entrypoint, which runs ScyllaDB
    #[arg(long, default_value = "/docker-entrypoint.py")]
    pub entrypoint: PathBuf,
}

impl Files {
    /// Where the measured properties of the disk are kept.
    fn kept_io_properties(&self) -> PathBuf {
        self.data_dir.join("io_properties.yaml")
    }

    /// Where it is kept which node the disk is of.
    fn kept_host_id(&self) -> PathBuf {
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

/// Runs ScyllaDB, and ends this process as ScyllaDB ended.
pub fn run(options: &Options) -> Result<()> {
    let status = pod::runtime()?.block_on(live(options))?;
    std::process::exit(status)
}

/// What the container is told from outside.
struct Told {
    stop: Signals,
    interrupt: Signals,
    child_ended: Signals,
    hang_up: Signals,
    user_one: Signals,
    user_two: Signals,
}

impl Told {
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

/// The whole life of the node in this container; answers the status to exit with.
async fn live(options: &Options) -> Result<i32> {
    // Before anything else: the first process of a container gets only the signals that it listens for.
    let mut told = Told::listen()?;
    let member = options.access.member(&options.service_name).await?;
    let (command, announced) = tokio::select! {
        prepared = prepare::prepare(options, &member) => prepared?,
        _ = told.stop.recv() => return Ok(stopped_early()),
        _ = told.interrupt.recv() => return Ok(stopped_early()),
        () = member.is_going() => return Ok(stopped_early()),
    };
    let child = Child::start(command)?;
    let tending = tend::tend(options, &member, &announced);
    run_until_end(options, tending, &mut told, &child).await
}

fn stopped_early() -> i32 {
    info!("stopped before ScyllaDB was started");
    0
}

async fn run_until_end(
    options: &Options,
    tending: impl Future<Output = tend::MustRestart>,
    told: &mut Told,
    child: &Child,
) -> Result<i32> {
    let mut tending = pin!(tending);
    let mut stopping = pin!(stop(options, options.node(), child));
    let mut is_stopping = false;
    loop {
        tokio::select! {
            _ = told.child_ended.recv() => {
                if let Some(status) = child.reap()? {
                    info!(status, "ScyllaDB has ended");
                    return Ok(status);
                }
            }
            _ = told.stop.recv() => is_stopping = true,
            _ = told.interrupt.recv() => is_stopping = true,
            _ = told.hang_up.recv() => child.signal(Signal::SIGHUP),
            _ = told.user_one.recv() => child.signal(Signal::SIGUSR1),
            _ = told.user_two.recv() => child.signal(Signal::SIGUSR2),
            // Tending ends only when ScyllaDB must be started anew, which Kubernetes does when it has ended.
            reason = &mut tending, if !is_stopping => {
                match reason {
                    tend::MustRestart::Drained =>
                        warn!("ScyllaDB is drained and cannot leave the ring so: it is stopped, to be started anew"),
                    tend::MustRestart::GivenUp =>
                        warn!("another node takes the place of this one, which does not serve yet: ScyllaDB is stopped"),
                }
                is_stopping = true;
            }
            // It never ends: the child does.
            never = &mut stopping, if is_stopping => match never {},
        }
    }
}

/// Brings ScyllaDB to its end, in order. How long that takes at most is Kubernetes' affair.
async fn stop(options: &Options, node: Node, child: &Child) -> std::convert::Infallible {
    info!("stopping ScyllaDB");
    serve_on(node, Duration::from_secs(options.serve_seconds_before_stop)).await;
    drain(node, Duration::from_secs(options.drain_seconds)).await;
    // The next container waits for a word of its own.
    if let Err(error) = pod::remove(&options.shared.ignition()) {
        warn!("{error:#}");
    }
    child.signal(Signal::SIGTERM);
    std::future::pending().await
}

/// Lets a node that serves do so for a while. Kubernetes has told all who ask it that the pod is going.
async fn serve_on(node: Node, time: Duration) {
    if !time.is_zero() && matches!(scylla::mode(node).await, Ok(Mode::Normal)) {
        info!(seconds = time.as_secs(), "ScyllaDB serves for a while, so that clients can turn to other nodes");
        tokio::time::sleep(time).await;
    }
}

/// Lets the node write all to disk, so that it starts quickly. One that is on its way in or out of the ring, or drained
/// already, is left alone.
async fn drain(node: Node, patience: Duration) {
    match scylla::mode(node).await {
        Ok(Mode::Normal) => match node.drain(patience).await {
            Ok(()) => info!("ScyllaDB is drained"),
            Err(error) => warn!(error = %chain(&error), "ScyllaDB is stopped without being drained"),
        },
        Ok(mode) => info!(%mode, "ScyllaDB is not drained in this mode"),
        Err(error) => info!(error = %chain(&error), "ScyllaDB does not answer, so it is not drained"),
    }
}
