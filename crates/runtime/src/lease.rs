//! Leader election: of several replicas of the operator, the holder of a Lease leads.
//!
//! The holder renews the lease three times as often as needed and keeps its [`Fence`] open while the lease is certain
//! to be its own, measured on its own clock from before each renewal was sent. A candidate watches the lease and
//! acquires it when it was released, or when it has observed no renewal for the whole duration, measured on the
//! candidate's own clock. So clocks need not agree, and the old holder's fence is closed before the new holder's opens.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{
    Api, Client, ResourceExt,
    api::PostParams,
    runtime::{WatchStreamExt, utils::Backoff, watcher},
};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::{debug, info, warn};

use crate::{
    connectivity::is_reported_elsewhere,
    error::chain,
    fence::Fence,
    queue,
    store::{Version, version_of},
};

/// Settings of the leader election.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The lease's namespace.
    pub namespace: String,
    /// The lease's name.
    pub name: String,
    /// The holder identity of this process, which must be unique.
    pub identity: String,
    /// After how many seconds without a renewal the lease expires.
    pub seconds: u16,
}

impl Settings {
    fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }

    /// How long the holder relies on a renewal: a little less than candidates do.
    fn certain(&self) -> Duration {
        self.duration().mul_f64(0.9)
    }

    fn pause(&self) -> Duration {
        self.duration() / 3
    }

    /// Returns how long a candidate waits for a lease that was renewed just now. Never less than the holder relies on,
    /// even if the lease has a shorter duration: a user may have edited it.
    fn remaining(&self, lease: &Lease) -> Duration {
        let spec = lease.spec.as_ref();
        let is_held = spec.and_then(|spec| spec.holder_identity.as_deref()).is_some_and(|holder| !holder.is_empty());
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds).and_then(|seconds| u64::try_from(seconds).ok());
        let duration = Duration::from_secs(seconds.unwrap_or_default());
        if is_held { duration.max(self.duration()) } else { Duration::ZERO }
    }
}

/// A candidate for a lease, or its holder.
#[derive(Debug)]
pub struct Candidate {
    leases: Api<Lease>,
    settings: Settings,
    fence: Fence,
    /// Whether the lease can be read and, as far as that was tried, written.
    is_usable: Arc<AtomicBool>,
}

impl Candidate {
    /// A candidate whose leadership opens `fence`. `client` must not be behind that fence itself.
    pub fn new(client: Client, settings: Settings, fence: Fence) -> Self {
        Self { leases: Api::namespaced(client, &settings.namespace), settings, fence, is_usable: Arc::default() }
    }

    /// Returns what keeps this candidate from acquiring the lease, other than another holder.
    pub(crate) fn blocked_on(&self) -> impl Fn() -> Vec<String> + Send + Sync + 'static {
        let (is_usable, lease) =
            (Arc::clone(&self.is_usable), format!("{}/{}", self.settings.namespace, self.settings.name));
        move || {
            if is_usable.load(Ordering::Relaxed) {
                Vec::new()
            } else {
                vec![format!("the Lease {lease} to be readable and writable")]
            }
        }
    }

    /// Waits until this candidate holds the lease.
    pub async fn acquire(&self) -> Holder<'_> {
        self.is_usable.store(false, Ordering::Relaxed);
        let retries = Retries { longest: self.settings.pause(), failures: 0 };
        let versions = watcher::watch_object(self.leases.clone(), &self.settings.name).backoff(retries);
        let mut versions = std::pin::pin!(versions);
        let mut seen: Option<Lease> = None;
        let mut log = FailureLog::default();
        // When the observed lease may be acquired; none while it was not observed.
        let mut free_at: Option<Instant> = None;
        loop {
            let until_free = async {
                match free_at {
                    Some(time) => sleep_until(time).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(version) = versions.next() => match version {
                    Ok(lease) => {
                        self.is_usable.store(true, Ordering::Relaxed);
                        free_at = Some(Instant::now() + lease.as_ref().map_or(Duration::ZERO, |lease| self.settings.remaining(lease)));
                        seen = lease;
                    }
                    // The observed lease stays valid: without further events it expires.
                    Err(error) => log.log(&error, &self.settings.name, "the lease cannot be watched"),
                },
                () = until_free => {
                    let before = Instant::now();
                    match self.try_acquire(seen.clone()).await {
                        Ok(lease) => {
                            self.fence.open_until(before + self.settings.certain());
                            self.is_usable.store(true, Ordering::Relaxed);
                            return Holder { candidate: self, lease };
                        }
                        // Another candidate was faster, or the storage was restored from a backup and the watch is at a
                        // later resource version: the lease is read, because the watch may send no event.
                        Err(error) if is_outdated(&error) => {
                            let now = Instant::now();
                            match self.leases.get_opt(&self.settings.name).await {
                                Ok(lease) => {
                                    free_at = Some(now + lease.as_ref().map_or(self.settings.pause(), |lease| {
                                        self.settings.remaining(lease).max(self.settings.pause())
                                    }));
                                    seen = lease;
                                }
                                Err(_) => free_at = Some(now + self.settings.pause()),
                            }
                        }
                        Err(error) => {
                            self.is_usable.store(false, Ordering::Relaxed);
                            log.log(&error, &self.settings.name, "the lease cannot be acquired");
                            free_at = Some(Instant::now() + self.settings.pause());
                        }
                    }
                }
            }
        }
    }

    /// Makes this candidate the holder, unless the lease has changed since it was observed.
    async fn try_acquire(&self, seen: Option<Lease>) -> kube::Result<Lease> {
        let now = MicroTime(Timestamp::now());
        let transitions = seen.as_ref().and_then(|lease| lease.spec.as_ref()?.lease_transitions);
        let spec = LeaseSpec {
            holder_identity: Some(self.settings.identity.clone()),
            lease_duration_seconds: Some(self.settings.seconds.into()),
            lease_transitions: Some(transitions.map_or(0, |count| count.saturating_add(1))),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            ..LeaseSpec::default()
        };
        match seen {
            Some(lease) => self.replace(Lease { spec: Some(spec), ..lease }).await,
            None => {
                let metadata = ObjectMeta { name: Some(self.settings.name.clone()), ..ObjectMeta::default() };
                self.leases.create(&PostParams::default(), &Lease { metadata, spec: Some(spec) }).await
            }
        }
    }

    async fn write_renewal(&self, mut lease: Lease) -> kube::Result<Lease> {
        lease.spec.get_or_insert_default().renew_time = Some(MicroTime(Timestamp::now()));
        self.replace(lease).await
    }

    /// Updates the lease. The API server refuses it if the lease has another resource version.
    async fn replace(&self, lease: Lease) -> kube::Result<Lease> {
        self.leases.replace(&lease.name_any(), &PostParams::default(), &lease).await
    }
}

/// Backoff of the watch of the lease: never so long that it delays the election noticeably.
#[derive(Debug)]
struct Retries {
    longest: Duration,
    failures: u32,
}

impl Iterator for Retries {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.failures = self.failures.saturating_add(1);
        let pauses = queue::Backoff { first: self.longest / 10, longest: self.longest };
        Some(pauses.wait(self.failures, queue::chance()))
    }
}

impl Backoff for Retries {
    fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Logs failures of a lease: the same failure is a warning once, and a failure to reach the API server is reported
/// elsewhere.
#[derive(Debug, Default)]
struct FailureLog(String);

impl FailureLog {
    fn log(&mut self, error: &(dyn std::error::Error + 'static), lease: &str, what: &str) {
        let problem = chain(error);
        if is_reported_elsewhere(error) || self.0 == problem {
            debug!(lease, problem, "{what}");
        } else {
            warn!(lease, problem, "{what}");
            self.0 = problem;
        }
    }
}

/// Whether the lease has changed since it was observed.
fn is_outdated(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_conflict() || status.is_not_found() || status.is_already_exists())
}

/// The holder of the lease. When it is dropped the fence closes, and the lease expires.
#[derive(Debug)]
pub struct Holder<'a> {
    candidate: &'a Candidate,
    lease: Lease,
}

impl Holder<'_> {
    /// Returns the resource version of the lease. All writes of former holders are older.
    pub fn version(&self) -> Version {
        version_of(&self.lease.metadata)
    }

    /// Renews the lease until it is lost. The fence is closed when this returns.
    pub async fn renew_until_lost(&mut self) {
        let Candidate { settings, fence, .. } = self.candidate;
        let mut pause = settings.pause();
        let mut log = FailureLog::default();
        loop {
            sleep(pause).await;
            let before = Instant::now();
            let Some(until) = fence.until().filter(|until| before < *until) else { break };
            // One lost answer must not use up the time for a second attempt.
            match timeout_at(until.min(before + settings.pause()), self.try_renew()).await {
                Ok(Ok(true)) => {
                    fence.open_until(before + settings.certain());
                    pause = settings.pause();
                    log = FailureLog::default();
                }
                Ok(Ok(false)) => break,
                Ok(Err(error)) => {
                    log.log(&error, &settings.name, "the lease could not be renewed");
                    pause = settings.pause() / 5;
                }
                Err(_) => {
                    debug!(lease = settings.name, "the API server did not answer the renewal of the lease");
                    pause = settings.pause() / 5;
                }
            }
        }
        fence.close();
    }

    /// Renews the lease. Returns false if another process holds it, or if the API server shows an older state than
    /// before: its storage was restored from a backup, and the caches contain changes that the restore has reverted.
    async fn try_renew(&mut self) -> kube::Result<bool> {
        match self.candidate.write_renewal(self.lease.clone()).await {
            Ok(lease) => self.lease = lease,
            Err(error) if is_outdated(&error) => {
                // It has another version: another process holds it, or the answer to a renewal was lost.
                let Some(lease) = self.candidate.leases.get_opt(&self.candidate.settings.name).await? else {
                    return Ok(false);
                };
                let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
                if holder != Some(&self.candidate.settings.identity) {
                    return Ok(false);
                }
                if version_of(&lease.metadata) < self.version() {
                    warn!(
                        lease = self.candidate.settings.name,
                        "the API server shows an older state than before, as after a restore of its storage: \
                         restarting with new caches"
                    );
                    return Ok(false);
                }
                // When that version was written is unknown, so the lease is renewed once more.
                self.lease = self.candidate.write_renewal(lease).await?;
            }
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Releases the lease, so that the next holder need not wait until it expires. If a write has recently timed out,
    /// the lease is not released: that write may still be executed, and must not be while another process leads.
    pub async fn release(self) -> kube::Result<()> {
        let Candidate { settings, fence, .. } = self.candidate;
        // Closed first: for a moment no process leads, which is better than two.
        fence.close();
        if fence.gave_up_within(settings.duration()) {
            info!(lease = settings.name, "a write was not answered: the lease is not released, but expires");
            return Ok(());
        }
        let mut lease = self.lease.clone();
        lease.spec.get_or_insert_default().holder_identity = None;
        self.candidate.replace(lease).await.map(drop)
    }
}

impl Drop for Holder<'_> {
    fn drop(&mut self) {
        self.candidate.fence.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_by(holder: Option<&str>, seconds: Option<i32>) -> Lease {
        let spec = LeaseSpec {
            holder_identity: holder.map(str::to_owned),
            lease_duration_seconds: seconds,
            ..Default::default()
        };
        Lease { spec: Some(spec), ..Default::default() }
    }

    #[test]
    fn candidate_waits_at_least_as_long_as_the_holder_relies_on_its_lease() {
        let settings = Settings { namespace: "a".into(), name: "b".into(), identity: "me".into(), seconds: 15 };
        for (lease, seconds, why) in [
            (held_by(Some("other"), Some(15)), 15, "its own duration"),
            (held_by(Some("other"), Some(60)), 60, "another version may hold it for longer"),
            (held_by(Some("other"), Some(1)), 15, "edited by hand"),
            (held_by(Some("other"), Some(-1)), 15, "nonsense"),
            (held_by(Some("other"), None), 15, "without a duration"),
            (held_by(Some("me"), Some(15)), 15, "of a former process, whose writes may be under way"),
            (held_by(None, Some(15)), 0, "released"),
            (held_by(Some(""), Some(15)), 0, "released as by client-go"),
        ] {
            assert_eq!(settings.remaining(&lease), Duration::from_secs(seconds), "{why}");
        }
        assert!(settings.certain() < settings.duration());
    }

    #[test]
    fn backoff_of_the_watch_is_short_enough_to_acquire_the_lease_in_time() {
        let mut retries = Retries { longest: Duration::from_secs(5), failures: 0 };
        let waits: Vec<_> = retries.by_ref().take(40).collect();
        assert!(waits[0] <= Duration::from_millis(500), "the first comes soon: {waits:?}");
        assert!(waits.iter().all(|wait| *wait <= Duration::from_secs(5)), "{waits:?}");
        assert!(waits[39] >= Duration::from_millis(2500), "a failing API server is not overloaded: {waits:?}");
        retries.reset();
        assert!(retries.next() <= Some(Duration::from_millis(500)));
    }
}
