//! Of several copies of the operator one leads: whoever holds a Lease.
//!
//! The holder renews the lease three times as often as needed and keeps its [`Fence`] open for as long as the lease is
//! certain to be its own, counted on its own clock from before each renewal was sent. A candidate watches the lease and
//! takes it when it was given back, or when it has seen no renewal for the whole duration, counted on the candidate's own
//! clock. So clocks need not agree, and the old holder's fence is closed before the new one's opens.

use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{
    Api, Client, ResourceExt,
    api::PostParams,
    runtime::{WatchStreamExt, watcher},
};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::warn;

use crate::fence::Fence;

/// Which lease, and for whom.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The lease's namespace.
    pub namespace: String,
    /// The lease's name.
    pub name: String,
    /// Whom the lease is for; no two processes may say the same.
    pub identity: String,
    /// How long the lease holds without being renewed, in whole seconds.
    pub duration: Duration,
}

impl Settings {
    fn seconds(&self) -> i32 {
        i32::try_from(self.duration.as_secs()).unwrap_or(i32::MAX)
    }

    /// How long a holder relies on a renewal: a little less than others do.
    fn certain(&self) -> Duration {
        self.duration.mul_f64(0.9)
    }

    fn pause(&self) -> Duration {
        self.duration / 3
    }
}

/// A candidate for a lease, or its holder.
#[derive(Debug)]
pub struct Candidate {
    leases: Api<Lease>,
    settings: Settings,
    fence: Fence,
}

impl Candidate {
    /// A candidate whose leadership opens `fence`. `client` must not be behind that fence itself.
    pub fn new(client: Client, settings: Settings, fence: Fence) -> Self {
        Self { leases: Api::namespaced(client, &settings.namespace), settings, fence }
    }

    /// Waits until this candidate holds the lease.
    pub async fn wins(&self) -> Holder<'_> {
        let versions = watcher::watch_object(self.leases.clone(), &self.settings.name).default_backoff();
        let mut versions = std::pin::pin!(versions);
        let mut seen: Option<Lease> = None;
        // When the lease that was seen may be taken; none while nothing is known of it.
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
                        free_at = Some(Instant::now() + lease.as_ref().map_or(Duration::ZERO, remaining));
                        seen = lease;
                    }
                    // What was seen stays seen: without news the lease runs out.
                    Err(error) => warn!(%error, lease = self.settings.name, "the lease cannot be watched"),
                },
                () = until_free => {
                    let before = Instant::now();
                    match self.take(seen.clone()).await {
                        Ok(lease) => {
                            self.fence.open_until(before + self.settings.certain());
                            return Holder { candidate: self, lease };
                        }
                        // Somebody was faster, of which the watch will tell.
                        Err(error) if is_outdated(&error) => free_at = None,
                        Err(error) => {
                            warn!(%error, lease = self.settings.name, "the lease cannot be taken");
                            free_at = Some(Instant::now() + self.settings.pause());
                        }
                    }
                }
            }
        }
    }

    /// Writes this candidate into the lease, unless it has changed since it was seen.
    async fn take(&self, seen: Option<Lease>) -> kube::Result<Lease> {
        let now = MicroTime(Timestamp::now());
        let transitions = seen.as_ref().and_then(|lease| lease.spec.as_ref()?.lease_transitions).unwrap_or(-1);
        let spec = LeaseSpec {
            holder_identity: Some(self.settings.identity.clone()),
            lease_duration_seconds: Some(self.settings.seconds()),
            lease_transitions: Some(transitions.saturating_add(1)),
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

    /// The API server refuses it when the lease has another version by now.
    async fn replace(&self, lease: Lease) -> kube::Result<Lease> {
        self.leases.replace(&lease.name_any(), &PostParams::default(), &lease).await
    }
}

/// Whether the lease is not as it was when it was last seen.
fn is_outdated(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_conflict() || status.is_not_found() || status.is_already_exists())
}

/// How long a lease that was renewed just now keeps others out.
fn remaining(lease: &Lease) -> Duration {
    let spec = lease.spec.as_ref();
    let is_held = spec.and_then(|spec| spec.holder_identity.as_deref()).is_some_and(|holder| !holder.is_empty());
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds).and_then(|seconds| u64::try_from(seconds).ok());
    if is_held { Duration::from_secs(seconds.unwrap_or_default()) } else { Duration::ZERO }
}

/// Who holds the lease. When it is dropped the fence closes, and the lease runs out by itself.
#[derive(Debug)]
pub struct Holder<'a> {
    candidate: &'a Candidate,
    lease: Lease,
}

impl Holder<'_> {
    /// Renews the lease for as long as that succeeds. Returns when it is lost; the fence is closed by then.
    pub async fn holds(&mut self) {
        let Candidate { settings, fence, .. } = self.candidate;
        let mut pause = settings.pause();
        loop {
            sleep(pause).await;
            let before = Instant::now();
            let Some(until) = fence.until().filter(|until| before < *until) else { break };
            // One answer that does not come may not use up the time for a second try.
            match timeout_at(until.min(before + settings.pause()), self.renew()).await {
                Ok(Ok(true)) => {
                    fence.open_until(before + settings.certain());
                    pause = settings.pause();
                }
                Ok(Ok(false)) => break,
                Ok(Err(error)) => {
                    warn!(%error, lease = settings.name, "the lease could not be renewed");
                    pause = settings.pause() / 5;
                }
                Err(_) => {
                    warn!(lease = settings.name, "the API server did not answer when the lease was to be renewed");
                    pause = settings.pause() / 5;
                }
            }
        }
        fence.close();
    }

    /// Renews the lease; false when it is somebody else's.
    async fn renew(&mut self) -> kube::Result<bool> {
        let mut lease = self.lease.clone();
        lease.spec.get_or_insert_default().renew_time = Some(MicroTime(Timestamp::now()));
        match self.candidate.replace(lease).await {
            Ok(lease) => self.lease = lease,
            Err(error) if is_outdated(&error) => {
                // It has another version: because it is somebody else's, or because the answer to a renewal was lost.
                let Some(lease) = self.candidate.leases.get_opt(&self.candidate.settings.name).await? else {
                    return Ok(false);
                };
                let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
                if holder != Some(&self.candidate.settings.identity) {
                    return Ok(false);
                }
                // When that version was written is not known, so it does not count; this one does.
                let mut lease = lease;
                lease.spec.get_or_insert_default().renew_time = Some(MicroTime(Timestamp::now()));
                self.lease = self.candidate.replace(lease).await?;
            }
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Gives the lease back, so that another need not wait for it to run out.
    pub async fn releases(self) -> kube::Result<()> {
        // Closed first: between the two nobody leads, which is better than two.
        self.candidate.fence.close();
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
