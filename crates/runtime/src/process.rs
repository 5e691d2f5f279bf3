//! A process from its start to its end: it leads or waits to lead, and works while it leads.

use std::{
    future::Future,
    sync::{Arc, Weak},
    time::Duration,
};

use kube::Client;
use tokio::{task::JoinSet, time::timeout};
use tracing::{info, warn};

use crate::{
    caches::{Caches, Surroundings},
    controller::AnyController,
    fence::Fence,
    lease::{Candidate, Settings},
    server::Readiness,
    store::Version,
};

/// Time for workers to finish what they are at, when the process is to end.
const FINISH: Duration = Duration::from_secs(5);
/// Time to give the lease back. An API server that is away is not waited for.
const RELEASE: Duration = Duration::from_secs(2);

/// What a process needs to work.
pub struct Process {
    /// Reaches the API server through the fence.
    pub client: Client,
    /// Reaches the API server past the fence, for the lease alone.
    pub lease_client: Client,
    /// Keeps writes back while the process does not lead.
    pub fence: Fence,
    /// The lease; none for a process that is alone, whose fence is open.
    pub lease: Option<Settings>,
    /// The one namespace that is looked at; none for all.
    pub namespace: Option<String>,
    /// How many objects each controller works on at once.
    pub workers: usize,
    /// What everything shares.
    pub surroundings: Arc<Surroundings>,
    /// Told what is missing.
    pub readiness: Readiness,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Process").field("lease", &self.lease).finish_non_exhaustive()
    }
}

impl Process {
    /// Runs until `stop` is there. `controllers` says what is watched and who works on it.
    pub async fn run(
        self,
        controllers: impl Fn(&mut Caches) -> Vec<Arc<dyn AnyController>>,
        stop: impl Future<Output = ()>,
    ) {
        let mut stop = std::pin::pin!(stop);
        let Some(lease) = self.lease.clone() else {
            let working = self.work(&controllers, 0, std::future::pending());
            working.until(stop).await;
            return;
        };
        let name = format!("{}/{}", lease.namespace, lease.name);
        let candidate = Candidate::new(self.lease_client.clone(), lease, self.fence.clone());
        loop {
            // One that waits for its turn is as ready as can be.
            self.readiness.is_told_by(Vec::new);
            info!(lease = name, "waiting to lead");
            let mut holder = tokio::select! {
                holder = candidate.wins() => holder,
                () = &mut stop => return,
            };
            info!(lease = name, "leading");
            self.surroundings.metrics.leading(true);
            let version = holder.version();
            let is_over = self.work(&controllers, version, holder.holds()).until(&mut stop).await;
            self.surroundings.metrics.leading(false);
            self.surroundings.metrics.forget_refreshes();
            if is_over {
                let released = timeout(RELEASE, holder.releases()).await;
                let problem = match released {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => crate::error::chain(&error),
                    Err(_) => "the API server does not answer".into(),
                };
                warn!(problem, lease = name, "the lease could not be given back; it runs out by itself");
                return;
            }
            warn!(lease = name, "the lease is lost; nothing more is written");
        }
    }

    fn work<L: Future<Output = ()>>(
        &self,
        controllers: &impl Fn(&mut Caches) -> Vec<Arc<dyn AnyController>>,
        version: Version,
        lost: L,
    ) -> Working<L> {
        let mut caches =
            Caches::new(self.client.clone(), self.namespace.clone(), Arc::clone(&self.surroundings), version);
        let controllers = controllers(&mut caches);
        let collections = caches.collections();
        let counted = Arc::clone(&collections);
        self.surroundings.metrics.on_read(move |metrics| {
            for collection in counted.values() {
                let (objects, unreadable) = collection.size();
                metrics.cached(collection.name(), objects, unreadable);
            }
        });
        // They end with the lease, whoever asks whether the process is ready.
        let working: Vec<Weak<dyn AnyController>> = controllers.iter().map(Arc::downgrade).collect();
        self.readiness.is_told_by(move || {
            let missing = collections.values().filter(|collection| collection.is_awaited());
            let waiting = working.iter().filter_map(|controller| controller.upgrade()?.waits_for());
            missing.map(|collection| collection.name().to_owned()).chain(waiting).collect()
        });
        let (mut watches, mut workers) = (JoinSet::new(), JoinSet::new());
        caches.start(&mut watches);
        for controller in &controllers {
            Arc::clone(controller).start(self.workers, &mut workers);
        }
        Working { controllers, watches, workers, lost }
    }
}

/// A time of leading.
struct Working<L> {
    controllers: Vec<Arc<dyn AnyController>>,
    watches: JoinSet<()>,
    workers: JoinSet<()>,
    lost: L,
}

impl<L: Future<Output = ()>> Working<L> {
    /// Works until the lease is lost or `stop` is there; whether it was the latter. Nothing goes on afterwards.
    async fn until(mut self, stop: impl Future<Output = ()>) -> bool {
        let mut lost = std::pin::pin!(self.lost);
        let is_over = tokio::select! {
            () = &mut lost => false,
            () = stop => true,
        };
        for controller in &self.controllers {
            controller.stop();
        }
        if is_over {
            // The lease is renewed meanwhile; what is not done in time is broken off.
            let finished = async { while self.workers.join_next().await.is_some() {} };
            tokio::select! {
                _ = timeout(FINISH, finished) => {}
                () = &mut lost => {}
            }
        }
        self.workers.shutdown().await;
        self.watches.shutdown().await;
        is_over
    }
}
