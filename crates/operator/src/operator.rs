//! `messina operator`: keeps what users asked for.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use clap::Args;
use messina_api::names::annotation;
use messina_plan::datacenter::Gates;
use messina_runtime::{
    caches::{Caches, Surroundings},
    client::{Source, Transport, client},
    controller::AnyController,
    events::Events,
    fence::Fence,
    lease,
    metrics::Metrics,
    process::Process,
    server::{Readiness, serve},
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tracing::info;

use crate::controllers::{FIELD_MANAGER, datacenter};

/// How the operator runs. Each flag can be given as an environment variable.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// A kubeconfig; without it, what kubectl would use, or the pod's service account
    #[arg(long, env = "MESSINA_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig, if not its current one
    #[arg(long, env = "MESSINA_CONTEXT", value_name = "NAME", requires = "kubeconfig")]
    pub context: Option<String>,
    /// Looks at this namespace only
    #[arg(long, env = "MESSINA_NAMESPACE", value_name = "NAME")]
    pub namespace: Option<String>,
    /// The image of this program, which also runs beside each node
    #[arg(long, env = "MESSINA_IMAGE", value_name = "IMAGE")]
    pub image: String,
    /// The image of the exporter of a machine's metrics, for versions of ScyllaDB that come without
    #[arg(
        long,
        env = "MESSINA_NODE_EXPORTER_IMAGE",
        value_name = "IMAGE",
        default_value = "docker.io/scylladb/scylladb-node-exporter:latest"
    )]
    pub node_exporter_image: String,
    /// How many objects each controller works on at once
    #[arg(long, env = "MESSINA_WORKERS", value_name = "NUMBER", default_value = "8")]
    pub workers: std::num::NonZeroUsize,
    /// Runs without a lease. Only for a copy that is alone for certain
    #[arg(long, env = "MESSINA_NO_LEADER_ELECTION")]
    pub no_leader_election: bool,
    /// The namespace of the lease; without it, the namespace that this program runs in
    #[arg(long, env = "MESSINA_LEASE_NAMESPACE", value_name = "NAME")]
    pub lease_namespace: Option<String>,
    /// The name of the lease
    #[arg(long, env = "MESSINA_LEASE_NAME", value_name = "NAME", default_value = "messina")]
    pub lease_name: String,
    /// After how many seconds without a sign of life another copy leads
    #[arg(long, env = "MESSINA_LEASE_SECONDS", value_name = "SECONDS", default_value = "15", value_parser = clap::value_parser!(u16).range(3..=3600))]
    pub lease_seconds: u16,
    /// By what this copy is known; no two copies may have the same. Without it, the host's name and random letters
    #[arg(long, env = "MESSINA_IDENTITY", value_name = "NAME")]
    pub identity: Option<String>,
    /// Where /metrics, /healthz and /readyz are served
    #[arg(long, env = "MESSINA_LISTEN", value_name = "ADDRESS", default_value = "0.0.0.0:8080")]
    pub listen: std::net::SocketAddr,
}

impl Options {
    fn source(&self) -> Source {
        match &self.kubeconfig {
            Some(path) => Source::File { path: path.clone(), context: self.context.clone() },
            None => Source::Usual,
        }
    }

    /// What is the same for all datacenters.
    pub fn datacenters(&self) -> datacenter::Settings {
        datacenter::Settings {
            operator_image: self.image.clone(),
            node_exporter_image: self.node_exporter_image.clone(),
            gates: Gates::default(),
        }
    }
}

/// The controllers of the operator, and what they watch.
pub fn controllers(settings: datacenter::Settings) -> impl Fn(&mut Caches) -> Vec<Arc<dyn AnyController>> {
    move |caches| vec![datacenter::start(caches, settings.clone())]
}

/// Runs until it is told to stop.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let metrics = Metrics::default();
    let readiness = Readiness::default();
    let listener = TcpListener::bind(options.listen).await.with_context(|| {
        format!("nothing can be served at {}: choose another address with --listen", options.listen)
    })?;
    let server = tokio::spawn(serve(listener, metrics.clone(), readiness.clone()));

    let transport = Transport::new(options.source()).await?;
    let namespace = transport.default_namespace();
    let identity = options.identity.clone().unwrap_or_else(own_identity);
    let lease = (!options.no_leader_election).then(|| lease::Settings {
        namespace: options.lease_namespace.clone().unwrap_or_else(|| namespace.clone()),
        name: options.lease_name.clone(),
        identity: identity.clone(),
        seconds: options.lease_seconds,
    });
    let fence = if lease.is_some() { Fence::default() } else { Fence::open_for_ever() };
    let fenced = client(transport.clone(), &namespace, metrics.clone(), Some(fence.clone()));
    let (events, writer) = Events::new(metrics.clone());
    let process = Process {
        client: fenced.clone(),
        lease_client: client(transport, &namespace, metrics.clone(), None),
        fence,
        lease,
        namespace: options.namespace.clone(),
        workers: options.workers.get(),
        surroundings: Arc::new(Surroundings::new(metrics, events, FIELD_MANAGER, annotation::APPLIED_HASH)),
        readiness,
    };
    let writing = tokio::spawn(async move { writer.run(fenced, "messina", &identity).await });
    let mut terminate = signal(SignalKind::terminate()).context("signals cannot be received")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("signals cannot be received")?;
    let stop = async {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        info!("stopping");
    };
    process.run(controllers(options.datacenters()), stop).await;
    // Nothing more is told once nobody works; what is under way gets a moment.
    let _ = tokio::time::timeout(Duration::from_secs(1), writing).await;
    server.abort();
    Ok(())
}

/// The host's name, and letters that no other copy has.
fn own_identity() -> String {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    format!("{host}-{:08x}", std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0) as u32)
}
