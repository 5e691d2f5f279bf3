//! What the sidecar does while ScyllaDB runs: it says on the node's Service what the node is, makes the node leave the ring
//! when that is asked for, and prepares it for another version.

use std::{collections::BTreeMap, fmt::Debug, fs, pin::pin, time::Duration};

use anyhow::Result;
use futures::{FutureExt, StreamExt, future::BoxFuture};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use messina_api::names::{annotation, label};
use messina_clients::scylla::{Decommission, Error, Node};
use messina_plan::node::{
    Mode,
    answer::{self, RingAnswer},
    decommission::{DecommissionRequest, DecommissionStep, Refusal, is_refusal_over, is_under_way, step},
    facts::{Observation, changes, is_member, knows_ring},
    replaced::is_being_replaced,
    upgrade,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::{Options, prepare::Announced, upgrade::carry_out};
use crate::{
    kubernetes::{Member, chain},
    pod, scylla,
};

/// How often to look at a node that has yet to join, or that is leaving.
const OFTEN: Duration = Duration::from_millis(500);
/// How often to look at a node that serves.
const SELDOM: Duration = Duration::from_secs(5);
/// How long ScyllaDB may take for one answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait for the answer that a node has left. Its mode tells too.
const LEAVING_PATIENCE: Duration = Duration::from_secs(3600);
/// A node that has been leaving for so long was not refused.
const NOT_REFUSED: Duration = Duration::from_secs(600);
/// Pauses after failed writes, from the first to the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// The longest pause after ScyllaDB refused to leave: somebody has to do something about it.
const LONGEST_REFUSED: Duration = Duration::from_secs(300);

/// ScyllaDB must be ended and started anew, if it may be.
pub(super) enum MustRestart {
    /// It is to leave the ring, and cannot while it is drained.
    Drained,
    /// Another node takes its place, which was written down when it had already been started.
    GivenUp,
}

/// Tends the node until it must be started anew.
pub(super) async fn tend(options: &Options, member: &Member, announced: &Announced) -> MustRestart {
    let mut tender = Tender {
        node: options.node().within(PATIENCE),
        member,
        options,
        announced,
        service: None,
        leaving: None,
        leaves_since: None,
        upgrading: None,
        upgraded: None,
        writes: Pause::default(),
        requests: Pause::default(),
        attempts: Pause::default(),
        told: String::new(),
        refusal: None,
        has_kept_io_properties: false,
        has_kept_host_id: false,
    };
    let mut versions = pin!(member.service());
    let mut next_look = Instant::now();
    loop {
        tokio::select! {
            Some(version) = versions.next() => tender.service = version,
            outcome = left(&mut tender.leaving) => tender.answered(outcome),
            answer = prepared(&mut tender.upgrading) => tender.prepared(answer),
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

/// What came of preparing for another version, if that is under way.
async fn prepared(upgrading: &mut Option<Upgrading>) -> upgrade::UpgradeAnswer {
    match upgrading {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}

type Upgrading = BoxFuture<'static, upgrade::UpgradeAnswer>;
type Leaving = BoxFuture<'static, Result<Decommission, Error>>;

struct Tender<'a> {
    node: Node,
    member: &'a Member,
    options: &'a Options,
    announced: &'a Announced,
    /// The Service as it was last seen, or as it was last written.
    service: Option<Service>,
    /// The request to leave that is not answered yet.
    leaving: Option<Leaving>,
    /// Since when the node has been seen to leave.
    leaves_since: Option<Instant>,
    /// What is being done for another version.
    upgrading: Option<Upgrading>,
    /// What came of that, to be written.
    upgraded: Option<upgrade::UpgradeAnswer>,
    writes: Pause,
    requests: Pause,
    /// Pauses between attempts to prepare for another version.
    attempts: Pause,
    /// What was last told of ScyllaDB's answers, to be told once.
    told: String,
    /// ScyllaDB said no when it was last asked to leave, in these words, which are yet to be written.
    refusal: Option<String>,
    has_kept_io_properties: bool,
    has_kept_host_id: bool,
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
        // One that serves is seen to be up, and is not given up any more.
        if mode != Mode::Normal && self.is_being_replaced(&observation.host_id) {
            return Err(MustRestart::GivenUp);
        }
        self.publish(&observation).await;
        self.ask_for_restart().await;
        let is_member = observation.is_member == Some(true);
        if is_member && mode == Mode::Normal {
            self.keep_io_properties();
            self.keep_host_id(&observation.host_id);
        }
        let is_asked = self.answer(&mode, &observation.host_id).await;
        let is_upgrading = self.prepare_upgrade(&mode, &observation.host_id).await;
        let is_leaving = self.decommission(&mode, &observation.host_id).await?;
        Ok(if is_member && !is_leaving && !is_asked && !is_upgrading { SELDOM } else { OFTEN })
    }

    /// Does what the Service asks for before and after a change of the version, one thing at a time; answers whether
    /// something is left to do.
    async fn prepare_upgrade(&mut self, mode: &Mode, host_id: &str) -> bool {
        let Some(service) = &self.service else { return false };
        let said = self.upgraded.as_ref().and_then(|answer| upgrade::change(service.annotations(), answer));
        if let Some(text) = said {
            let what = json!({annotation::UPGRADE_ANSWER: text});
            // If something else is asked for meanwhile, it is looked at first.
            if !self.write_as_seen(json!({"metadata": {"annotations": what}}), &what).await {
                return true;
            }
        }
        self.upgraded = None;
        let Some(service) = &self.service else { return false };
        let Some(work) = upgrade::work(service.annotations(), host_id, mode) else { return false };
        if self.upgrading.is_none() && self.attempts.is_over() {
            info!(?work, "preparing for another version, or clearing up after it");
            self.upgrading = Some(carry_out(self.node, work).boxed());
        }
        true
    }

    fn prepared(&mut self, answer: upgrade::UpgradeAnswer) {
        self.upgrading = None;
        match &answer.failed {
            None => self.attempts = Pause::default(),
            Some(failure) => {
                warn!(?failure, "a step for the change of the version failed; it is tried again");
                self.attempts.grow();
            }
        }
        self.upgraded = Some(answer);
    }

    /// Writes on the Service what is new of the node.
    async fn publish(&mut self, observation: &Observation) {
        let Some(service) = &self.service else { return };
        let new = changes(service.annotations(), observation);
        if !new.is_empty() {
            self.write(json!({"metadata": {"annotations": new}}), &new).await;
        }
    }

    /// Asks to be started anew when the node announces an address that nobody finds it by, and not any longer than that.
    async fn ask_for_restart(&mut self) {
        let Some(service) = &self.service else { return };
        let pod = self.announced.outdated(self.options, service);
        if service.annotations().get(annotation::RESTART_REQUEST).map(String::as_str) != pod {
            let what = json!({annotation::RESTART_REQUEST: pod});
            self.write_as_seen(json!({"metadata": {"annotations": what}}), &what).await;
        }
    }

    /// Says how the node sees the ring, as long as somebody asks; answers whether somebody does. Only a node that serves is
    /// a witness: one that starts or leaves may know the ring of long ago.
    async fn answer(&mut self, mode: &Mode, host_id: &str) -> bool {
        let Some(service) = &self.service else { return false };
        let asked = answer::question(service.annotations()).map(ToOwned::to_owned);
        let told = match &asked {
            Some(asked) if *mode == Mode::Normal => match scylla::view(self.node).await {
                Ok(view) => Some(RingAnswer::new(asked, host_id, self.announced.pod_uid(), &view)),
                Err(error) => {
                    warn!(error = %chain(&error), "the node does not say how it sees the ring");
                    None
                }
            },
            _ => None,
        };
        if let Some(text) = answer::change(service.annotations(), told.as_ref()) {
            let what = json!({annotation::RING_ANSWER: text});
            self.write(json!({"metadata": {"annotations": what}}), &what).await;
        }
        asked.is_some()
    }

    async fn write(&mut self, change: Value, what: &(impl Debug + Sync)) -> bool {
        self.send(change, what, false).await
    }

    /// Writes only if the Service is as it was seen: what is written holds for that, and for nothing else.
    async fn write_as_seen(&mut self, change: Value, what: &(impl Debug + Sync)) -> bool {
        self.send(change, what, true).await
    }

    async fn send(&mut self, change: Value, what: &(impl Debug + Sync), only_as_seen: bool) -> bool {
        let Some(service) = &self.service else { return false };
        if !self.writes.is_over() {
            return false;
        }
        let outcome = if only_as_seen {
            self.member.change_service_as_seen(service, change).await
        } else {
            self.member.change_service(service, change).await
        };
        match outcome {
            Ok(written) => {
                info!(?what, "written on the Service");
                self.service = Some(written);
                self.writes = Pause::default();
                true
            }
            Err(error) => {
                warn!("the Service cannot be changed now: {error:#}");
                self.writes.grow();
                false
            }
        }
    }

    /// Makes the node leave the ring if that is asked of it, step by step; answers whether it is.
    async fn decommission(&mut self, mode: &Mode, host_id: &str) -> Result<bool, MustRestart> {
        let Some(service) = &self.service else { return Ok(false) };
        let asked = DecommissionRequest::of(service.labels(), service.annotations());
        let (is_named, has_begun) = (asked.names(host_id), asked.began == Some(host_id));
        // The node need not be asked when nobody else asks.
        let has_native_transport = match mode {
            Mode::Normal if is_named => self.node.has_native_transport().await.unwrap_or(false),
            _ => false,
        };
        let next = step(asked, host_id, mode, has_native_transport);
        if let Some(why) = self.refusal.as_deref().filter(|_| *mode == Mode::Normal && has_begun) {
            // It has not begun after all, so that the request can be withdrawn.
            let refusal = Refusal::new(host_id, why).text();
            let what = json!({annotation::LEAVING_BEGAN: null, annotation::LEAVING_REFUSED: refusal});
            if self.write_as_seen(json!({"metadata": {"annotations": what}}), &what).await {
                self.refusal = None;
            }
            return Ok(is_named);
        }
        let retried = Refusal::with_retry(service.annotations(), host_id, is_named);
        if let Some(refusal) = retried.filter(|_| self.requests.is_over()) {
            let what = json!({annotation::LEAVING_REFUSED: refusal.text()});
            self.write_as_seen(json!({"metadata": {"annotations": what}}), &what).await;
            return Ok(false);
        }
        let now = Instant::now();
        self.leaves_since = (*mode == Mode::Leaving).then(|| self.leaves_since.unwrap_or(now));
        let leaves_for_long = self.leaves_since.is_some_and(|since| now - since >= NOT_REFUSED);
        if is_refusal_over(service.annotations(), host_id, leaves_for_long) {
            let what = json!({annotation::LEAVING_REFUSED: null});
            self.write(json!({"metadata": {"annotations": what}}), &what).await;
        }
        match next {
            DecommissionStep::Nothing => return Ok(false),
            DecommissionStep::Wait => {}
            DecommissionStep::Announce if self.leaving.is_none() && self.requests.is_over() => {
                let what = json!({annotation::LEAVING_BEGAN: host_id});
                self.write_as_seen(json!({"metadata": {"annotations": what}}), &what).await;
            }
            DecommissionStep::Announce => {}
            DecommissionStep::Start => self.leave(),
            DecommissionStep::Confirm => {
                let what = BTreeMap::from([(label::DECOMMISSIONED, label::value::TRUE.to_owned())]);
                self.write(json!({"metadata": {"labels": what}}), &what).await;
            }
            DecommissionStep::Restart => return Err(MustRestart::Drained),
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
                match error {
                    // It was asked before, by a sidecar that is gone, and is at it.
                    Error::Refused { message, .. } if !is_under_way(&message) => {
                        self.refusal = Some(message);
                        self.requests.grow_to(LONGEST_REFUSED);
                    }
                    _ => self.requests.grow(),
                }
            }
        }
    }

    /// Keeps what ScyllaDB measured of its disk, so that the next start need not measure again.
    fn keep_io_properties(&mut self) {
        if self.has_kept_io_properties {
            return;
        }
        self.has_kept_io_properties = true;
        let (measured, kept) = (&self.options.files.io_properties, self.options.files.kept_io_properties());
        if kept.exists() || !measured.is_file() {
            return;
        }
        match fs::read(measured).map_err(Into::into).and_then(|contents| pod::write_whole(&kept, &contents)) {
            Ok(()) => info!(file = %kept.display(), "kept what ScyllaDB measured of its disk"),
            Err(error) => warn!("what ScyllaDB measured of its disk cannot be kept: {error:#}"),
        }
    }

    /// Keeps on the disk which node it is of, so that it is known before ScyllaDB runs.
    fn keep_host_id(&mut self, host_id: &str) {
        if self.has_kept_host_id {
            return;
        }
        self.has_kept_host_id = true;
        let file = self.options.files.kept_host_id();
        if fs::read_to_string(&file).is_ok_and(|kept| kept == host_id) {
            return;
        }
        if let Err(error) = pod::write_whole(&file, host_id.as_bytes()) {
            warn!("the host ID cannot be kept on the disk: {error:#}");
        }
    }

    fn is_being_replaced(&self, host_id: &str) -> bool {
        let service = self.service.as_ref();
        service.is_some_and(|service| is_being_replaced(service.labels(), service.annotations(), Some(host_id), None))
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
    let mode = scylla::mode(node).await?;
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
    let is_leaving = matches!(mode, Mode::Leaving | Mode::Decommissioned);
    Ok((mode, Observation { host_id, is_member, is_leaving, ring }))
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
        self.grow_to(PAUSES.1);
    }

    fn grow_to(&mut self, longest: Duration) {
        let (first, _) = PAUSES;
        let pause = self.last.map_or(first, |(pause, _)| (pause * 2).min(longest));
        self.last = Some((pause, Instant::now() + pause));
    }
}
