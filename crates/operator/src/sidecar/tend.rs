//! What the sidecar does while ScyllaDB runs: it says on the node's Service what the node is, and makes the node leave
//! the ring when that is asked for.

use std::{collections::BTreeMap, fs, pin::pin, time::Duration};

use anyhow::Result;
use futures::{FutureExt, StreamExt, future::BoxFuture};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use messina_api::names::label;
use messina_clients::scylla::{Decommission, Error, Node};
use messina_plan::node::{
    Mode,
    decommission::{Step, step},
    facts::{Observation, changes, is_member, knows_ring},
};
use serde_json::json;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::Files;
use crate::{
    kubernetes::{Member, chain},
    pod,
};

/// How often to look at a node that has yet to join, or that is leaving.
const OFTEN: Duration = Duration::from_millis(500);
/// How often to look at a node that serves.
const SELDOM: Duration = Duration::from_secs(5);
/// How long ScyllaDB may take for one answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait for the answer that a node has left. Its mode tells too.
const LEAVING_PATIENCE: Duration = Duration::from_secs(3600);
/// Pauses after failed writes and refused requests, from the first to the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// ScyllaDB must be ended and started anew.
pub(super) struct MustRestart;

/// Tends the node until it must be started anew.
pub(super) async fn tend(node: Node, member: &Member, files: &Files) -> MustRestart {
    let mut tender = Tender {
        node: node.within(PATIENCE),
        member,
        files,
        service: None,
        leaving: None,
        writes: Pause::default(),
        requests: Pause::default(),
        told: String::new(),
        has_kept_io_properties: false,
    };
    let mut versions = pin!(member.service());
    let mut next_look = Instant::now();
    loop {
        tokio::select! {
            Some(version) = versions.next() => tender.service = version,
            outcome = left(&mut tender.leaving) => tender.answered(outcome),
            () = sleep_until(next_look) => {}
        }
        match tender.look().await {
            Ok(pause) => next_look = Instant::now() + pause,
            Err(restart) => return restart,
        }
    }
}

/// The answer to the request to leave, if one is awaited. A plain future in a loop's `select!` must not lose it.
async fn left(leaving: &mut Option<Leaving>) -> Result<Decommission, Error> {
    match leaving {
        Some(request) => request.await,
        None => std::future::pending().await,
    }
}

type Leaving = BoxFuture<'static, Result<Decommission, Error>>;

struct Tender<'a> {
    node: Node,
    member: &'a Member,
    files: &'a Files,
    /// The Service as it was last seen, or as it was last written.
    service: Option<Service>,
    /// The request to leave that is not answered yet.
    leaving: Option<Leaving>,
    writes: Pause,
    requests: Pause,
    /// What was last told of ScyllaDB's answers, to be told once.
    told: String,
    has_kept_io_properties: bool,
}

impl Tender<'_> {
    /// Looks at the node, does what is to be done, and answers when to look again.
    async fn look(&mut self) -> Result<Duration, MustRestart> {
        let (mode, observation) = match observe(self.node).await {
            Ok(observed) => observed,
            Err(error) => {
                self.tell(format!("ScyllaDB does not answer: {}", chain(&error)));
                return Ok(OFTEN);
            }
        };
        self.tell(format!("ScyllaDB is in mode {mode}"));
        self.publish(&observation).await;
        let is_member = observation.is_member == Some(true);
        if is_member && mode == Mode::Normal {
            self.keep_io_properties();
        }
        let is_leaving = self.decommission(&mode).await?;
        Ok(if is_member && !is_leaving { SELDOM } else { OFTEN })
    }

    /// Writes on the Service what is new of the node.
    async fn publish(&mut self, observation: &Observation) {
        let Some(service) = &self.service else { return };
        let new = changes(service.annotations(), observation);
        if !new.is_empty() {
            self.write(json!({"metadata": {"annotations": new}}), &new).await;
        }
    }

    async fn write(&mut self, change: serde_json::Value, what: &BTreeMap<&'static str, String>) {
        let Some(service) = &self.service else { return };
        if !self.writes.is_over() {
            return;
        }
        match self.member.change_service(service, change).await {
            Ok(written) => {
                info!(?what, "written on the Service");
                self.service = Some(written);
                self.writes = Pause::default();
            }
            Err(error) => {
                warn!("the Service cannot be changed now: {error:#}");
                self.writes.grow();
            }
        }
    }

    /// Makes the node leave the ring if that is asked for, step by step; answers whether it is.
    async fn decommission(&mut self, mode: &Mode) -> Result<bool, MustRestart> {
        let label = |service: &Service| service.labels().get(label::DECOMMISSIONED).cloned();
        let asked = self.service.as_ref().and_then(label);
        // The node need not be asked when nobody else asks.
        let has_native_transport = match (asked.as_deref(), mode) {
            (Some(_), Mode::Normal) => self.node.has_native_transport().await.unwrap_or(false),
            _ => false,
        };
        match step(asked.as_deref(), mode, has_native_transport) {
            Step::Nothing => return Ok(false),
            Step::Wait => {}
            Step::Start => self.leave(),
            Step::Confirm => {
                let what = BTreeMap::from([(label::DECOMMISSIONED, label::value::TRUE.to_owned())]);
                self.write(json!({"metadata": {"labels": what}}), &what).await;
            }
            Step::Restart => return Err(MustRestart),
        }
        Ok(true)
    }

    fn leave(&mut self) {
        // A node that was asked may be in mode NORMAL for a while still: it is asked once.
        if self.leaving.is_none() && self.requests.is_over() {
            info!("the node leaves the ring");
            self.leaving = Some(self.node.decommission(LEAVING_PATIENCE).boxed());
        }
    }

    fn answered(&mut self, outcome: Result<Decommission, Error>) {
        self.leaving = None;
        match outcome {
            Ok(Decommission::Done) => info!("the node has left the ring"),
            Ok(Decommission::Unanswered) => info!("the node has not answered for long; its mode tells how far it is"),
            Err(error) => {
                warn!(error = %chain(&error), "the node cannot leave the ring now");
                self.requests.grow();
            }
        }
    }

    /// Keeps what ScyllaDB measured of its disk, so that the next start need not measure again.
    fn keep_io_properties(&mut self) {
        if self.has_kept_io_properties {
            return;
        }
        self.has_kept_io_properties = true;
        let (measured, kept) = (&self.files.io_properties, self.files.kept_io_properties());
        if kept.exists() || !measured.is_file() {
            return;
        }
        match fs::read(measured).map_err(Into::into).and_then(|contents| pod::write_whole(&kept, &contents)) {
            Ok(()) => info!(file = %kept.display(), "kept what ScyllaDB measured of its disk"),
            Err(error) => warn!("what ScyllaDB measured of its disk cannot be kept: {error:#}"),
        }
    }

    fn tell(&mut self, news: String) {
        if self.told != news {
            info!("{news}");
            self.told = news;
        }
    }
}

/// What the node says of itself. Either all is answered, or nothing is known.
async fn observe(node: Node) -> Result<(Mode, Observation), Error> {
    let mode = node.operation_mode().await?;
    let host_id = node.host_id().await?;
    let mut own_tokens = None;
    if knows_ring(&mode) {
        let host_ids = node.host_ids().await?;
        if let Some((address, _)) = host_ids.iter().find(|(_, id)| **id == host_id) {
            own_tokens = Some(node.tokens_of(address).await?.len());
        }
    }
    let is_member = is_member(&mode, own_tokens);
    let ring = match is_member {
        Some(true) => Some(node.tokens().await?),
        _ => None,
    };
    Ok((mode, Observation { host_id, is_member, ring }))
}

/// A pause after failures, longer after each.
#[derive(Debug, Default)]
struct Pause {
    last: Option<(Duration, Instant)>,
}

impl Pause {
    fn is_over(&self) -> bool {
        self.last.is_none_or(|(_, end)| end <= Instant::now())
    }

    fn grow(&mut self) {
        let (first, longest) = PAUSES;
        let pause = self.last.map_or(first, |(pause, _)| (pause * 2).min(longest));
        self.last = Some((pause, Instant::now() + pause));
    }
}
