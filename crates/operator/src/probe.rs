//! `messina probe`: answers Kubernetes' probes for ScyllaDB, and says how the node sees its ring.

use std::{net::IpAddr, pin::pin, time::Duration};

use anyhow::Result;
use futures::StreamExt;
use http::StatusCode;
use hyper::body::Bytes;
use messina_clients::scylla::{Error, Node};
use messina_plan::node::ring::{SelfReport, is_under_maintenance, unready};
use serde::Serialize;
use tokio::{sync::watch, time::timeout};
use tracing::info;

use crate::{
    kubernetes::{Access, Member, chain},
    pod, scylla, serve,
    single_flight::SingleFlight,
};

/// How long ScyllaDB may take for one answer. Kubernetes waits for ten seconds at least.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it may take to ask ScyllaDB for all nodes of its ring.
const RING_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the ring is told as it was.
const RING_REUSED_FOR: Duration = Duration::from_secs(1);
/// How many clients may wait for the ring.
const MOST_WAITING_FOR_RING: usize = 16;

/// Which node to ask, and where to answer.
#[derive(Debug, clap::Args)]
#[expect(missing_docs, reason = "the fields that have no words of their own are groups of options that have")]
pub struct Options {
    /// The port on which to answer /readyz, /healthz and /nodes
    #[arg(long, default_value_t = 8080)]
    pub port: u16,
    /// Name of the node's Service
    #[arg(long)]
    pub service_name: String,
    /// Where ScyllaDB's REST API is
    #[arg(long, default_value = "127.0.0.1")]
    pub scylla_localhost_address: IpAddr,
    #[command(flatten)]
    pub access: Access,
}

/// Runs until it is stopped.
pub fn run(options: Options) -> Result<()> {
    pod::runtime()?.block_on(async {
        let member = options.access.member(&options.service_name).await?;
        let (said, hear) = watch::channel(false);
        let handler = ProbeHandler::new(Node::at_ip(options.scylla_localhost_address).within(PATIENCE), hear);
        tokio::select! {
            // Signals are listened for first.
            biased;
            stopped = pod::stopped(member.is_going()) => stopped,
            never = serve::serve(options.port, move |path| handler.clone().respond(path)) => match never? {},
            () = follow_maintenance(&member, &said) => Ok(()),
        }
    })
}

/// Keeps in mind whether the node is under maintenance. Without news what was known stays.
async fn follow_maintenance(member: &Member, said: &watch::Sender<bool>) {
    let mut services = pin!(member.service());
    while let Some(service) = services.next().await {
        let is_now = is_under_maintenance(service.and_then(|service| service.metadata.labels).as_ref());
        if said.send_replace(is_now) != is_now {
            info!("the node is {} under maintenance", if is_now { "now" } else { "no longer" });
        }
    }
}

/// What ScyllaDB is asked for. Each question is asked once at a time, and none waits for another one.
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
                None => unavailable("the node was not asked"),
            },
            "/healthz" if is_under_maintenance => serve::text(StatusCode::OK, "the node is under maintenance"),
            "/healthz" => match self.health.get(|| health(node)).await {
                Some(Ok(())) => serve::text(StatusCode::OK, "ScyllaDB answers"),
                Some(Err(reason)) => unavailable(reason),
                None => unavailable("the node was not asked"),
            },
            "/nodes" => match self.ring.get(|| ring(node)).await {
                Some(Ok(ring)) => serve::json(ring),
                Some(Err(reason)) => unavailable(reason),
                None => unavailable("too many clients wait for the ring; ask again later"),
            },
            _ => serve::text(StatusCode::NOT_FOUND, "there are /readyz, /healthz and /nodes"),
        }
    }
}

async fn health(node: Node) -> Result<(), String> {
    node.ping().await.map_err(|error| chain(&error))
}

async fn readiness(node: Node) -> Result<(), String> {
    unready(&report(node).await.map_err(|error| chain(&error))?)
}

async fn ring(node: Node) -> Result<Bytes, String> {
    let asked = timeout(RING_TIMEOUT, observe_ring(node)).await;
    let ring = asked.map_err(|_| format!("ScyllaDB did not tell of its ring within {RING_TIMEOUT:?}"))?;
    let ring = ring.map_err(|error| chain(&error))?;
    serde_json::to_vec(&ring).map(Bytes::from).map_err(|error| error.to_string())
}

fn unavailable(reason: impl AsRef<str>) -> serve::HttpResponse {
    serve::text(StatusCode::SERVICE_UNAVAILABLE, reason)
}

async fn report(node: Node) -> Result<SelfReport, Error> {
    Ok(SelfReport {
        mode: scylla::mode(node).await?,
        has_native_transport: node.has_native_transport().await?,
        host_id: node.host_id().await?,
        host_ids: node.host_ids().await?,
        live: node.live().await?,
    })
}

/// The ring as the node sees it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Ring {
    /// The host ID of the node that is asked.
    #[serde(rename = "hostID")]
    host_id: String,
    /// Its version of ScyllaDB.
    version: String,
    nodes: Vec<RingNode>,
}

#[derive(Serialize)]
struct RingNode {
    address: String,
    /// None for a node that owns no tokens yet.
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
