//! Of several copies of the operator one leads: whoever holds a Lease.
//!
//! The holder renews the lease three times as often as needed and keeps its [`Fence`] open for as long as the lease is
//! certain to be its own, counted on its own clock from before each renewal was sent. A candidate watches the lease and
//! takes it when it was given back, or when it has seen no renewal for the whole duration, counted on the candidate's own
//! clock. So clocks need not agree, and the old holder's fence is closed before the new one's opens.

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
    contact::is_reported_elsewhere,
    error::chain,
    fence::Fence,
    queue,
    store::{Version, version_of},
};

/// Which lease, and for whom.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The lease's namespace.
    pub namespace: String,
    /// The lease's name.
    pub name: String,
    /// Whom the lease is for; no two processes may say the same.
    pub identity: String,
    /// How many seconds the lease holds without being renewed.
    pub seconds: u16,
}

impl Settings {
    fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }

    /// How long a holder relies on a renewal: a little less than others do.
    fn certain(&self) -> Duration {
        self.duration().mul_f64(0.9)
    }

    fn pause(&self) -> Duration {
        self.duration() / 3
    }

    /// How long a lease that was renewed just now keeps others out. Never less than its holder relies on, whatever the
    /// lease says: somebody may have edited it.
    fn remaining(&self, lease: &Lease) -> Duration {
        let spec = lease.spec.as_ref();
        let is_held = spec.and_then(|spec| spec.holder_identity.as_deref()).is_some_and(|holder| !holder.is_empty());
        let said = spec.and_then(|spec| spec.lease_duration_seconds).and_then(|seconds| u64::try_from(seconds).ok());
        let said = Duration::from_secs(said.unwrap_or_default());
        if is_held { said.max(self.duration()) } else { Duration::ZERO }
    }
}

/// A candidate for a lease, or its holder.
#[derive(Debug)]
pub struct Candidate {
    leases: Api<Lease>,
    settings: Settings,
    fence: Fence,
    /// Whether the lease can be read and, where it was tried, written.
    is_usable: Arc<AtomicBool>,
}

impl Candidate {
    /// A candidate whose leadership opens `fence`. `client` must not be behind that fence itself.
    pub fn new(client: Client, settings: Settings, fence: Fence) -> Self {
        Self { leases: Api::namespaced(client, &settings.namespace), settings, fence, is_usable: Arc::default() }
    }

    /// What it waits for, but for its turn.
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
        let mut told = Told::default();
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
                        self.is_usable.store(true, Ordering::Relaxed);
                        free_at = Some(Instant::now() + lease.as_ref().map_or(Duration::ZERO, |lease| self.settings.remaining(lease)));
                        seen = lease;
                    }
                    // What was seen stays seen: without news the lease runs out.
                    Err(error) => told.tell(&error, &self.settings.name, "the lease cannot be watched"),
                },
                () = until_free => {
                    let before = Instant::now();
                    match self.take(seen.clone()).await {
                        Ok(lease) => {
                            self.fence.open_until(before + self.settings.certain());
                            self.is_usable.store(true, Ordering::Relaxed);
                            return Holder { candidate: self, lease };
                        }
                        // Another candidate was faster, or the storage was restored and the watch is of a future that was
                        // undone: the lease is read, because the watch may stay silent.
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
                            told.tell(&error, &self.settings.name, "the lease cannot be taken");
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

    /// The API server refuses it when the lease has another version by now.
    async fn replace(&self, lease: Lease) -> kube::Result<Lease> {
        self.leases.replace(&lease.name_any(), &PostParams::default(), &lease).await
    }
}

/// When the lease is watched again after a failure: never so much later that somebody who could lead waits for it.
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

/// What was told of a lease: the same trouble is told once, and that of the whole way to the API server elsewhere.
#[derive(Debug, Default)]
struct Told(String);

impl Told {
    fn tell(&mut self, error: &(dyn std::error::Error + 'static), lease: &str, what: &str) {
        let problem = chain(error);
        if is_reported_elsewhere(error) || self.0 == problem {
            debug!(lease, problem, "{what}");
        } else {
            warn!(lease, problem, "{what}");
            self.0 = problem;
        }
    }
}

/// Whether the lease is not as it was when it was last seen.
fn is_outdated(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_conflict() || status.is_not_found() || status.is_already_exists())
}

/// Who holds the lease. When it is dropped the fence closes, and the lease runs out by itself.
#[derive(Debug)]
pub struct Holder<'a> {
    candidate: &'a Candidate,
    lease: Lease,
}

impl Holder<'_> {
    /// The state of the API server's storage when the lease was taken. Whatever former holders wrote is older.
    pub fn version(&self) -> Version {
        version_of(&self.lease.metadata)
    }

    /// Renews the lease for as long as that succeeds. Returns when it is lost; the fence is closed by then.
    pub async fn renew_until_lost(&mut self) {
        let Candidate { settings, fence, .. } = self.candidate;
        let mut pause = settings.pause();
        let mut told = Told::default();
        loop {
            sleep(pause).await;
            let before = Instant::now();
            let Some(until) = fence.until().filter(|until| before < *until) else { break };
            // One answer that does not come may not use up the time for a second try.
            match timeout_at(until.min(before + settings.pause()), self.try_renew()).await {
                Ok(Ok(true)) => {
                    fence.open_until(before + settings.certain());
                    pause = settings.pause();
                    told = Told::default();
                }
                Ok(Ok(false)) => break,
                Ok(Err(error)) => {
                    told.tell(&error, &settings.name, "the lease could not be renewed");
                    pause = settings.pause() / 5;
                }
                Err(_) => {
                    debug!(lease = settings.name, "the API server did not answer when the lease was to be renewed");
                    pause = settings.pause() / 5;
                }
            }
        }
        fence.close();
    }

    /// Renews the lease; false when it is somebody else's, or when the API server shows an older state than before: what this
    /// process has cached is then of a future that was undone.
    async fn try_renew(&mut self) -> kube::Result<bool> {
        match self.candidate.write_renewal(self.lease.clone()).await {
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
                if version_of(&lease.metadata) < self.version() {
                    warn!(
                        lease = self.candidate.settings.name,
                        "the API server shows an older state than before, as after a restore of its storage: starting over \
                         with new caches"
                    );
                    return Ok(false);
                }
                // When that version was written is not known, so it does not count; this one does.
                self.lease = self.candidate.write_renewal(lease).await?;
            }
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Gives the lease back, so that another need not wait for it to run out. A lease under which a write was given up just
    /// now is left to run out: that write may still be on its way, and would arrive while another leads.
    pub async fn release(self) -> kube::Result<()> {
        let Candidate { settings, fence, .. } = self.candidate;
        // Closed first: between the two nobody leads, which is better than two.
        fence.close();
        if fence.gave_up_within(settings.duration()) {
            info!(lease = settings.name, "a write was not answered; the lease is left to run out");
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
    fn a_held_lease_keeps_others_out_for_as_long_as_its_holder_relies_on_it() {
        let settings = Settings { namespace: "a".into(), name: "b".into(), identity: "me".into(), seconds: 15 };
        for (lease, seconds, why) in [
            (held_by(Some("other"), Some(15)), 15, "as it says"),
            (held_by(Some("other"), Some(60)), 60, "another version may hold it for longer"),
            (held_by(Some("other"), Some(1)), 15, "edited by hand"),
            (held_by(Some("other"), Some(-1)), 15, "nonsense"),
            (held_by(Some("other"), None), 15, "nothing said"),
            (held_by(Some("me"), Some(15)), 15, "of an earlier life, whose writes may be under way"),
            (held_by(None, Some(15)), 0, "given back"),
            (held_by(Some(""), Some(15)), 0, "given back by others' custom"),
        ] {
            assert_eq!(settings.remaining(&lease), Duration::from_secs(seconds), "{why}");
        }
        assert!(settings.certain() < settings.duration());
    }

    #[test]
    fn a_lease_that_cannot_be_watched_is_looked_for_often_enough_to_take_it_in_time() {
        let mut retries = Retries { longest: Duration::from_secs(5), failures: 0 };
        let waits: Vec<_> = retries.by_ref().take(40).collect();
        assert!(waits[0] <= Duration::from_millis(500), "the first comes soon: {waits:?}");
        assert!(waits.iter().all(|wait| *wait <= Duration::from_secs(5)), "{waits:?}");
        assert!(waits[39] >= Duration::from_millis(2500), "an API server in trouble is not pressed: {waits:?}");
        retries.reset();
        assert!(retries.next() <= Some(Duration::from_millis(500)));
    }
}
