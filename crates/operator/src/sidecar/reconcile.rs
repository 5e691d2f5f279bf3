//! The sidecar's reconcile loop while ScyllaDB runs: it publishes the node's state on its Service, and decommissions
//! the node and prepares it for upgrades as the Service requests.

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
use messina_text::Backoff;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::{Options, prepare::BroadcastAddresses, upgrade::reconcile_snapshots};
use crate::{
    kubernetes::{MemberApi, chain},
    pod, scylla,
};

/// The interval of reconciles while the node joins, leaves, prepares an upgrade or reports the ring.
const SHORT_INTERVAL: Duration = Duration::from_millis(500);
/// The interval of reconciles while the node serves.
const LONG_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout of a request to ScyllaDB.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of the decommission request. The node's mode shows its result, too.
const DECOMMISSION_TIMEOUT: Duration = Duration::from_secs(3600);
/// After so long in mode LEAVING an earlier refusal no longer applies.
const REFUSAL_EXPIRY: Duration = Duration::from_secs(600);
/// Delays after failures.
const RETRIES: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(30) };
/// Delays after ScyllaDB refused a decommission: the user has to fix the cause.
const REFUSED_RETRIES: Backoff = Backoff { longest: Duration::from_secs(300), ..RETRIES };

/// Why ScyllaDB must be stopped. The kubelet restarts the container.
pub(super) enum RestartReason {
    /// The node must be decommissioned, which ScyllaDB refuses while it is drained.
    Drained,
    /// The node is being replaced, which was requested after ScyllaDB had started.
    BeingReplaced,
}

/// Reconciles the node until ScyllaDB must be restarted.
pub(super) async fn reconcile(options: &Options, member: &MemberApi, broadcast: &BroadcastAddresses) -> RestartReason {
    let mut reconciler = NodeReconciler {
        node: options.node().within(TIMEOUT),
        member,
        options,
        broadcast,
        service: None,
        leaving: None,
        leaves_since: None,
        upgrading: None,
        upgraded: None,
        writes: RetryTimer::default(),
        requests: RetryTimer::default(),
        attempts: RetryTimer::default(),
        last_logged: String::new(),
        refusal: None,
        has_saved_io_properties: false,
        has_saved_host_id: false,
    };
    let mut versions = pin!(member.watch_service());
    let mut next_reconcile = Instant::now();
    loop {
        tokio::select! {
            Some(version) = versions.next() => reconciler.service = version,
            outcome = decommissioned(&mut reconciler.leaving) => reconciler.on_decommissioned(outcome),
            answer = prepared(&mut reconciler.upgrading) => reconciler.on_prepared(answer),
            () = sleep_until(next_reconcile) => {}
        }
        match reconciler.reconcile().await {
            Ok(interval) => next_reconcile = Instant::now() + interval,
            Err(restart) => return restart,
        }
    }
}

/// Waits for the response to the decommission request, if there is one. Cancellation by `select!` does not lose the
/// request.
async fn decommissioned(leaving: &mut Option<Leaving>) -> Result<Decommission, Error> {
    match leaving {
        Some(request) => request.await,
        None => std::future::pending().await,
    }
}

/// Waits for the result of preparing an upgrade, if that is running.
async fn prepared(upgrading: &mut Option<Upgrading>) -> upgrade::UpgradeAnswer {
    match upgrading {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}

type Upgrading = BoxFuture<'static, upgrade::UpgradeAnswer>;
type Leaving = BoxFuture<'static, Result<Decommission, Error>>;

/// Reconciles the node with the requests on its Service.
struct NodeReconciler<'a> {
    node: Node,
    member: &'a MemberApi,
    options: &'a Options,
    broadcast: &'a BroadcastAddresses,
    /// The Service as last observed or written.
    service: Option<Service>,
    /// The decommission request that has no response yet.
    leaving: Option<Leaving>,
    /// Since when the node has been in mode LEAVING.
    leaves_since: Option<Instant>,
    /// The preparation of an upgrade that is running.
    upgrading: Option<Upgrading>,
    /// The result of the preparation, which has yet to be written.
    upgraded: Option<upgrade::UpgradeAnswer>,
    /// Backoff of writes to the Service.
    writes: RetryTimer,
    /// Backoff of decommission requests.
    requests: RetryTimer,
    /// Backoff of preparing an upgrade.
    attempts: RetryTimer,
    /// The last line that `log_once` has logged.
    last_logged: String,
    /// ScyllaDB's message when it refused the last decommission request, which has yet to be written.
    refusal: Option<String>,
    has_saved_io_properties: bool,
    has_saved_host_id: bool,
}

impl NodeReconciler<'_> {
    /// Reconciles once. Returns the interval until the next reconcile.
    async fn reconcile(&mut self) -> Result<Duration, RestartReason> {
        let (mode, observation) = match observe(self.node).await {
            Ok(observed) => observed,
            Err(error) => {
                self.log_once(format!("ScyllaDB's REST API does not respond: {}", chain(&error)));
                return Ok(SHORT_INTERVAL);
            }
        };
        self.log_once(format!("ScyllaDB is in mode {mode}"));
        // A node that serves is up, and the operator does not replace nodes that are up.
        if mode != Mode::Normal && self.is_being_replaced(&observation.host_id) {
            return Err(RestartReason::BeingReplaced);
        }
        self.publish(&observation).await;
        self.request_restart().await;
        let is_member = observation.is_member == Some(true);
        if is_member && mode == Mode::Normal {
            self.save_io_properties();
            self.save_host_id(&observation.host_id);
        }
        let reports_ring = self.report_ring(&mode, &observation.host_id).await;
        let is_upgrading = self.prepare_upgrade(&mode, &observation.host_id).await;
        let is_leaving = self.decommission(&mode, &observation.host_id).await?;
        Ok(if is_member && !is_leaving && !reports_ring && !is_upgrading { LONG_INTERVAL } else { SHORT_INTERVAL })
    }

    /// Takes the next step before or after an upgrade that the Service requests. Returns whether there is more to do.
    async fn prepare_upgrade(&mut self, mode: &Mode, host_id: &str) -> bool {
        let Some(service) = &self.service else { return false };
        let answer = self.upgraded.as_ref().and_then(|answer| upgrade::change(service.annotations(), answer));
        if let Some(text) = answer {
            let what = json!({annotation::UPGRADE_ANSWER: text});
            // Fails if the request has changed meanwhile. The next reconcile reads the new one first.
            if !self.write_if_unchanged(json!({"metadata": {"annotations": what}}), &what).await {
                return true;
            }
        }
        self.upgraded = None;
        let Some(service) = &self.service else { return false };
        let Some(work) = upgrade::work(service.annotations(), host_id, mode) else { return false };
        if self.upgrading.is_none() && self.attempts.is_over() {
            info!(?work, "reconciling snapshots for an upgrade");
            self.upgrading = Some(reconcile_snapshots(self.node, work).boxed());
        }
        true
    }

    fn on_prepared(&mut self, answer: upgrade::UpgradeAnswer) {
        self.upgrading = None;
        match &answer.failed {
            None => self.attempts = RetryTimer::default(),
            Some(failure) => {
                warn!(?failure, "a step for the upgrade has failed; retrying");
                self.attempts.delay_retry(RETRIES);
            }
        }
        self.upgraded = Some(answer);
    }

    /// Writes changes of the node's state to the Service.
    async fn publish(&mut self, observation: &Observation) {
        let Some(service) = &self.service else { return };
        let new = changes(service.annotations(), observation);
        if !new.is_empty() {
            self.write(json!({"metadata": {"annotations": new}}), &new).await;
        }
    }

    /// Requests the recreation of the pod while the node has an outdated broadcast address, and withdraws the request
    /// otherwise.
    async fn request_restart(&mut self) {
        let Some(service) = &self.service else { return };
        let pod = self.broadcast.outdated_pod_uid(self.options, service);
        if service.annotations().get(annotation::RESTART_REQUEST).map(String::as_str) != pod {
            let what = json!({annotation::RESTART_REQUEST: pod});
            self.write_if_unchanged(json!({"metadata": {"annotations": what}}), &what).await;
        }
    }

    /// Writes how the node sees the token ring, as long as the Service requests it. Returns whether it does. Only a
    /// node in mode NORMAL reports: one that starts or leaves may have an old view of the ring.
    async fn report_ring(&mut self, mode: &Mode, host_id: &str) -> bool {
        let Some(service) = &self.service else { return false };
        let question = answer::question(service.annotations()).map(ToOwned::to_owned);
        let report = match &question {
            Some(question) if *mode == Mode::Normal => match scylla::view(self.node).await {
                Ok(view) => Some(RingAnswer::new(question, host_id, self.broadcast.pod_uid(), &view)),
                Err(error) => {
                    warn!(error = %chain(&error), "cannot read the token ring from ScyllaDB");
                    None
                }
            },
            _ => None,
        };
        if let Some(text) = answer::change(service.annotations(), report.as_ref()) {
            let what = json!({annotation::RING_ANSWER: text});
            self.write(json!({"metadata": {"annotations": what}}), &what).await;
        }
        question.is_some()
    }

    async fn write(&mut self, change: Value, what: &(impl Debug + Sync)) -> bool {
        self.patch(change, what, false).await
    }

    /// Patches the Service only if it still has the observed resource version, for changes that are right for that
    /// version only.
    async fn write_if_unchanged(&mut self, change: Value, what: &(impl Debug + Sync)) -> bool {
        self.patch(change, what, true).await
    }

    async fn patch(&mut self, change: Value, what: &(impl Debug + Sync), only_if_unchanged: bool) -> bool {
        let Some(service) = &self.service else { return false };
        if !self.writes.is_over() {
            return false;
        }
        let outcome = if only_if_unchanged {
            self.member.patch_service_if_unchanged(service, change).await
        } else {
            self.member.patch_service(service, change).await
        };
        match outcome {
            Ok(written) => {
                info!(?what, "patched the Service");
                self.service = Some(written);
                self.writes = RetryTimer::default();
                true
            }
            Err(error) => {
                warn!("cannot patch the Service; retrying: {error:#}");
                self.writes.delay_retry(RETRIES);
                false
            }
        }
    }

    /// Takes the next step of a decommission that the Service requests. Returns whether it requests one.
    async fn decommission(&mut self, mode: &Mode, host_id: &str) -> Result<bool, RestartReason> {
        let Some(service) = &self.service else { return Ok(false) };
        let asked = DecommissionRequest::of(service.labels(), service.annotations());
        let (is_named, has_begun) = (asked.names(host_id), asked.began == Some(host_id));
        // Only read when a decommission of this node is requested.
        let has_native_transport = match mode {
            Mode::Normal if is_named => self.node.has_native_transport().await.unwrap_or(false),
            _ => false,
        };
        let next = step(asked, host_id, mode, has_native_transport);
        if let Some(why) = self.refusal.as_deref().filter(|_| *mode == Mode::Normal && has_begun) {
            // Records that the decommission has not begun after all, so that the user can cancel it.
            let refusal = Refusal::new(host_id, why).text();
            let what = json!({annotation::LEAVING_BEGAN: null, annotation::LEAVING_REFUSED: refusal});
            if self.write_if_unchanged(json!({"metadata": {"annotations": what}}), &what).await {
                self.refusal = None;
            }
            return Ok(is_named);
        }
        let retried = Refusal::with_retry(service.annotations(), host_id, is_named);
        if let Some(refusal) = retried.filter(|_| self.requests.is_over()) {
            let what = json!({annotation::LEAVING_REFUSED: refusal.text()});
            self.write_if_unchanged(json!({"metadata": {"annotations": what}}), &what).await;
            return Ok(false);
        }
        let now = Instant::now();
        self.leaves_since = (*mode == Mode::Leaving).then(|| self.leaves_since.unwrap_or(now));
        let leaves_for_long = self.leaves_since.is_some_and(|since| now - since >= REFUSAL_EXPIRY);
        if is_refusal_over(service.annotations(), host_id, leaves_for_long) {
            let what = json!({annotation::LEAVING_REFUSED: null});
            self.write(json!({"metadata": {"annotations": what}}), &what).await;
        }
        match next {
            DecommissionStep::Nothing => return Ok(false),
            DecommissionStep::Wait => {}
            DecommissionStep::Announce if self.leaving.is_none() && self.requests.is_over() => {
                let what = json!({annotation::LEAVING_BEGAN: host_id});
                self.write_if_unchanged(json!({"metadata": {"annotations": what}}), &what).await;
            }
            DecommissionStep::Announce => {}
            DecommissionStep::Start => self.start_decommission(),
            DecommissionStep::Confirm => {
                let what = BTreeMap::from([(label::DECOMMISSIONED, label::value::TRUE.to_owned())]);
                self.write(json!({"metadata": {"labels": what}}), &what).await;
            }
            DecommissionStep::Restart => return Err(RestartReason::Drained),
        }
        Ok(true)
    }

    fn start_decommission(&mut self) {
        // The node may stay in mode NORMAL for a while after the request, which must not be sent twice.
        if self.leaving.is_none() && self.requests.is_over() {
            info!("decommissioning the node");
            self.leaving = Some(self.node.decommission(DECOMMISSION_TIMEOUT).boxed());
        }
    }

    fn on_decommissioned(&mut self, outcome: Result<Decommission, Error>) {
        self.leaving = None;
        match outcome {
            Ok(Decommission::Done) => info!("the node is decommissioned"),
            Ok(Decommission::Unanswered) => {
                info!("the decommission request has timed out; the node's mode shows its progress");
            }
            Err(error) => {
                warn!(error = %chain(&error), "the decommission request has failed; retrying");
                match error {
                    // Not a refusal if an earlier sidecar has already started the decommission.
                    Error::Refused { message, .. } if !is_under_way(&message) => {
                        self.refusal = Some(message);
                        self.requests.delay_retry(REFUSED_RETRIES);
                    }
                    _ => self.requests.delay_retry(RETRIES),
                }
            }
        }
    }

    /// Saves the disk measurements, so that the next start need not measure again.
    fn save_io_properties(&mut self) {
        if self.has_saved_io_properties {
            return;
        }
        self.has_saved_io_properties = true;
        let (measured, saved) = (&self.options.files.io_properties, self.options.files.saved_io_properties());
        if saved.exists() || !measured.is_file() {
            return;
        }
        match fs::read(measured).map_err(Into::into).and_then(|contents| pod::write_atomically(&saved, &contents)) {
            Ok(()) => info!(file = %saved.display(), "saved the disk measurements"),
            Err(error) => warn!("cannot save the disk measurements: {error:#}"),
        }
    }

    /// Saves the host ID on the disk, so that the next start knows it before ScyllaDB runs.
    fn save_host_id(&mut self, host_id: &str) {
        if self.has_saved_host_id {
            return;
        }
        self.has_saved_host_id = true;
        let file = self.options.files.saved_host_id();
        if fs::read_to_string(&file).is_ok_and(|saved| saved == host_id) {
            return;
        }
        if let Err(error) = pod::write_atomically(&file, host_id.as_bytes()) {
            warn!("cannot save the host ID on the disk: {error:#}");
        }
    }

    fn is_being_replaced(&self, host_id: &str) -> bool {
        let service = self.service.as_ref();
        service.is_some_and(|service| is_being_replaced(service.labels(), service.annotations(), Some(host_id), None))
    }

    fn log_once(&mut self, line: String) {
        if self.last_logged != line {
            info!("{line}");
            self.last_logged = line;
        }
    }
}

/// Reads the node's state from its REST API. Fails if one of the requests fails.
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

/// When an action that failed may be retried.
#[derive(Debug, Default)]
struct RetryTimer {
    /// The delay after the last failure, and its end.
    last: Option<(Duration, Instant)>,
}

impl RetryTimer {
    fn is_over(&self) -> bool {
        self.last.is_none_or(|(_, end)| end <= Instant::now())
    }

    fn delay_retry(&mut self, backoff: Backoff) {
        let delay = self.last.map_or(backoff.first, |(delay, _)| backoff.delay_after(delay));
        self.last = Some((delay, Instant::now() + delay));
    }
}
