//! `messina probe`: serves the kubelet's probes of ScyllaDB, and the token ring as the node sees it.

use std::{net::IpAddr, pin::pin, time::Duration};

use anyhow::Result;
use futures::StreamExt;
use http::StatusCode;
use hyper::body::Bytes;
use messina_clients::scylla::{Error, Node};
use messina_plan::node::ring::{SelfReport, check_readiness, is_under_maintenance};
use serde::Serialize;
use tokio::{sync::watch, time::timeout};
use tracing::info;

use crate::{
    kubernetes::{Access, MemberApi, chain},
    pod, scylla, serve,
    single_flight::SingleFlight,
};

/// Timeout of a request to ScyllaDB. The kubelet's probes wait for ten seconds at least.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of reading the token ring, which takes several requests.
const RING_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the token ring is served from the cache.
const RING_REUSED_FOR: Duration = Duration::from_secs(1);
/// How many clients may wait for the token ring at once.
const MOST_WAITING_FOR_RING: usize = 16;

/// The node to probe, and where the probes are served.
#[derive(Debug, clap::Args)]
#[expect(missing_docs, reason = "the flattened groups document their own fields")]
pub struct Options {
    /// Port on which /readyz, /healthz and /nodes are served
    #[arg(long, default_value_t = 8080)]
    pub port: u16,
    /// Name of the node's Service
    #[arg(long)]
    pub service_name: String,
    /// IP address of ScyllaDB's REST API
    #[arg(long, default_value = "127.0.0.1")]
    pub scylla_localhost_address: IpAddr,
    #[command(flatten)]
    pub access: Access,
}

/// Serves probes until the container is stopped.
pub fn run(options: Options) -> Result<()> {
    pod::runtime()?.block_on(async {
        let member = options.access.member(&options.service_name).await?;
        let (sender, receiver) = watch::channel(false);
        let handler = ProbeHandler::new(Node::at_ip(options.scylla_localhost_address).within(TIMEOUT), receiver);
        tokio::select! {
            // First, so that signal handlers are installed before anything else.
            biased;
            stopped = pod::wait_for_stop(member.resolve_if_terminating()) => stopped,
            never = serve::serve(options.port, move |path| handler.clone().respond(path)) => match never? {},
            () = watch_maintenance(&member, &sender) => Ok(()),
        }
    })
}

/// Sends whether the Service has the label of maintenance. The last value stays while the API server is unavailable.
async fn watch_maintenance(member: &MemberApi, sender: &watch::Sender<bool>) {
    let mut services = pin!(member.watch_service());
    while let Some(service) = services.next().await {
        let is_now = is_under_maintenance(service.and_then(|service| service.metadata.labels).as_ref());
        if sender.send_replace(is_now) != is_now {
            info!("the node is {} under maintenance", if is_now { "now" } else { "no longer" });
        }
    }
}

/// Responds to probes. ScyllaDB gets at most one request of each kind at a time, and no kind waits for another one.
#[derive(Clone)]
struct ProbeHandler {
    node: Node,
    is_under_maintenance: watch::Receiver<bool>,
    health: SingleFlight<Result<(), String>>,
    readiness: SingleFlight<Result<(), String>>,
    ring: SingleFlight<Result<Bytes, String>>,
}

impl ProbeHandler {
    fn new(node: Node, is_under_maintenance: watch::Receiver<bool>) -> Self {
        Self {
            node,
            is_under_maintenance,
            health: SingleFlight::new(),
            readiness: SingleFlight::new(),
            ring: SingleFlight::cached(RING_REUSED_FOR, MOST_WAITING_FOR_RING),
        }
    }

    async fn respond(self, path: String) -> serve::HttpResponse {
        let is_under_maintenance = *self.is_under_maintenance.borrow();
        let node = self.node;
        match path.as_str() {
            "/readyz" if is_under_maintenance => unavailable("the node is under maintenance"),
            "/readyz" => match self.readiness.get(|| readiness(node)).await {
                Some(Ok(())) => serve::text(StatusCode::OK, "the node is up and normal"),
                Some(Err(reason)) => unavailable(reason),
                None => unavailable("internal error: the check of the node's readiness has panicked"),
            },
            "/healthz" if is_under_maintenance => serve::text(StatusCode::OK, "the node is under maintenance"),
            "/healthz" => match self.health.get(|| health(node)).await {
                Some(Ok(())) => serve::text(StatusCode::OK, "ScyllaDB's REST API responds"),
                Some(Err(reason)) => unavailable(reason),
                None => unavailable("internal error: the check of the node's health has panicked"),
            },
            "/nodes" => match self.ring.get(|| ring(node)).await {
                Some(Ok(ring)) => serve::json(ring),
                Some(Err(reason)) => unavailable(reason),
                None => unavailable("too many clients wait for the token ring; retry later"),
            },
            _ => serve::text(StatusCode::NOT_FOUND, "not found; available paths: /readyz, /healthz and /nodes"),
        }
    }
}

async fn health(node: Node) -> Result<(), String> {
    node.ping().await.map_err(|error| chain(&error))
}

async fn readiness(node: Node) -> Result<(), String> {
    check_readiness(&self_report(node).await.map_err(|error| chain(&error))?)
}

async fn ring(node: Node) -> Result<Bytes, String> {
    let ring = timeout(RING_TIMEOUT, observe_ring(node)).await;
    let ring = ring.map_err(|_| format!("reading ScyllaDB's token ring took longer than {RING_TIMEOUT:?}"))?;
    let ring = ring.map_err(|error| chain(&error))?;
    serde_json::to_vec(&ring).map(Bytes::from).map_err(|error| error.to_string())
}

fn unavailable(reason: impl AsRef<str>) -> serve::HttpResponse {
    serve::text(StatusCode::SERVICE_UNAVAILABLE, reason)
}

async fn self_report(node: Node) -> Result<SelfReport, Error> {
    Ok(SelfReport {
        mode: scylla::mode(node).await?,
        has_native_transport: node.has_native_transport().await?,
        host_id: node.host_id().await?,
        host_ids: node.host_ids().await?,
        live: node.live().await?,
    })
}

/// The token ring as the node sees it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Ring {
    /// The host ID of the node that was probed.
    #[serde(rename = "hostID")]
    host_id: String,
    /// Its version of ScyllaDB.
    version: String,
    nodes: Vec<RingNode>,
}

#[derive(Serialize)]
struct RingNode {
    address: String,
    /// `None` for a node that owns no tokens yet.
    #[serde(rename = "hostID")]
    host_id: Option<String>,
    state: String,
    datacenter: String,
    rack: String,
    tokens: usize,
}

async fn observe_ring(node: Node) -> Result<Ring, Error> {
    let view = scylla::view(node).await?;
    let mut nodes = vec![];
    for address in view.addresses() {
        nodes.push(RingNode {
            address: address.to_owned(),
            host_id: view.host_ids.get(address).cloned(),
            state: view.state(address),
            datacenter: node.datacenter(Some(address)).await?,
            rack: node.rack(Some(address)).await?,
            tokens: node.tokens_of(address).await?.len(),
        });
    }
    Ok(Ring { host_id: node.host_id().await?, version: node.version().await?, nodes })
}
