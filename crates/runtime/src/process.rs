//! A process from its start to its end: it leads or waits to lead, and works while it leads.

use std::{
    future::Future,
    sync::{Arc, Weak},
    time::Duration,
};

use kube::Client;
use tokio::{
    task::{JoinError, JoinSet},
    time::{sleep, timeout},
};
use tracing::{error, info, warn};

use crate::{
    caches::Caches,
    controller::AnyController,
    fence::Fence,
    lease::{Candidate, Settings},
    server::Readiness,
    shared_context::SharedContext,
    store::Version,
};

/// Time for workers to finish what they are at, when the process is to end.
const FINISH: Duration = Duration::from_secs(5);
/// Pause before starting over, should a part of the work have ended by itself.
const RESTART: Duration = Duration::from_secs(5);
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
    pub context: Arc<SharedContext>,
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
            while self.work(&controllers, 0, std::future::pending()).until(&mut stop).await != End::Stopped {
                self.context.metrics.forget_refreshes();
                sleep(RESTART).await;
            }
            return;
        };
        let name = format!("{}/{}", lease.namespace, lease.name);
        let candidate = Candidate::new(self.lease_client.clone(), lease, self.fence.clone());
        loop {
            // One that waits for its turn is as ready as can be.
            self.readiness.is_told_by(candidate.blocked_on(), Vec::new);
            info!(lease = name, "waiting to lead");
            let mut holder = tokio::select! {
                holder = candidate.acquire() => holder,
                () = &mut stop => return,
            };
            info!(lease = name, "leading");
            self.context.metrics.leading(true);
            let version = holder.version();
            let end = self.work(&controllers, version, holder.renew_until_lost()).until(&mut stop).await;
            self.context.metrics.leading(false);
            self.context.metrics.forget_refreshes();
            if end == End::LeaseLost {
                warn!(lease = name, "the lease is lost; nothing more is written");
                continue;
            }
            let problem = match timeout(RELEASE, holder.release()).await {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(crate::error::chain(&error)),
                Err(_) => Some("the API server does not answer".into()),
            };
            if let Some(problem) = problem {
                warn!(problem, lease = name, "the lease could not be given back; it runs out by itself");
            }
            if end == End::Stopped {
                return;
            }
            sleep(RESTART).await;
        }
    }

    fn work<L: Future<Output = ()>>(
        &self,
        controllers: &impl Fn(&mut Caches) -> Vec<Arc<dyn AnyController>>,
        version: Version,
        lost: L,
    ) -> Working<L> {
        let mut caches = Caches::new(self.client.clone(), self.namespace.clone(), Arc::clone(&self.context), version);
        let controllers = controllers(&mut caches);
        let collections = caches.collections();
        let counted = Arc::clone(&collections);
        self.context.metrics.on_read(move |metrics| {
            for collection in counted.values() {
                let (objects, unreadable) = collection.size();
                metrics.cached(collection.name(), objects, unreadable);
            }
        });
        // They end with the lease, whoever asks whether the process is ready.
        let working: Vec<Weak<dyn AnyController>> = controllers.iter().map(Arc::downgrade).collect();
        let watched = working.clone();
        let stuck = move || watched.iter().filter_map(|controller| controller.upgrade()?.stuck()).collect();
        let blocked_on = move || {
            let missing = collections.values().filter(|collection| collection.is_unsynced());
            let waiting = working.iter().filter_map(|controller| controller.upgrade()?.blocked_on());
            missing.map(|collection| collection.name().to_owned()).chain(waiting).collect()
        };
        self.readiness.is_told_by(blocked_on, stuck);
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

/// Why a time of leading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Another process may lead.
    LeaseLost,
    /// The process is to end.
    Stopped,
    /// A watch or a worker ended, which none of them does by itself: what is cached is not to be trusted any longer.
    TaskEnded,
}

impl<L: Future<Output = ()>> Working<L> {
    /// Works until the lease is lost, `stop` is there, or a part of the work has ended. Nothing goes on afterwards.
    async fn until(mut self, stop: impl Future<Output = ()>) -> End {
        let mut lost = std::pin::pin!(self.lost);
        let end = tokio::select! {
            () = &mut lost => End::LeaseLost,
            () = stop => End::Stopped,
            Some(ended) = self.watches.join_next() => task_ended("watch", &ended),
            Some(ended) = self.workers.join_next() => task_ended("worker", &ended),
        };
        for controller in &self.controllers {
            controller.stop();
        }
        if end != End::LeaseLost {
            // The lease is renewed meanwhile; what is not done in time is broken off.
            let finished = async { while self.workers.join_next().await.is_some() {} };
            tokio::select! {
                _ = timeout(FINISH, finished) => {}
                () = &mut lost => {}
            }
        }
        self.workers.shutdown().await;
        self.watches.shutdown().await;
        end
    }
}

fn task_ended(task: &str, ended: &Result<(), JoinError>) -> End {
    let problem = ended.as_ref().err().map(|error| crate::error::chain(error));
    match problem {
        Some(problem) => error!(task, problem, "internal error: starting over with new caches; please report this"),
        // It has said why.
        None => warn!(task, "starting over with new caches"),
    }
    End::TaskEnded
}
