//! A process from start to end: it takes part in the leader election, and runs its controllers while it leads.

use std::{
    collections::BTreeSet,
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
    cluster::Cluster,
    controller::AnyController,
    fence::Fence,
    lease::{Candidate, Settings},
    server::Readiness,
    shared_context::SharedContext,
    store::Version,
};

/// Time for workers to finish their current objects when the process is stopped.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before the controllers are restarted after a watch or a worker has ended by itself.
const RESTART_PAUSE: Duration = Duration::from_secs(5);
/// Time to release the lease, so that an API server that does not answer does not delay the end.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// The settings of a process.
pub struct Process {
    /// The client behind the fence.
    pub client: Client,
    /// The client without the fence, for the lease alone.
    pub lease_client: Client,
    /// Blocks writes while the process is not the leader.
    pub fence: Fence,
    /// The lease; none without leader election, with an open fence.
    pub lease: Option<Settings>,
    /// The namespace to watch; none for all.
    pub namespace: Option<String>,
    /// How many objects each controller reconciles concurrently.
    pub workers: usize,
    /// The context that all controllers share.
    pub context: Arc<SharedContext>,
    /// Reports whether the process is ready and healthy.
    pub readiness: Readiness,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Process").field("lease", &self.lease).finish_non_exhaustive()
    }
}

impl Process {
    /// Runs until `stop` completes. `controllers` registers the watches and returns the controllers.
    pub async fn run(
        self,
        controllers: impl Fn(&mut Cluster) -> Vec<Arc<dyn AnyController>>,
        stop: impl Future<Output = ()>,
    ) {
        let mut stop = std::pin::pin!(stop);
        let Some(lease) = self.lease.clone() else {
            while self.work(&controllers, 0, std::future::pending()).until(&mut stop).await != End::Stopped {
                self.context.metrics.forget_refreshes();
                sleep(RESTART_PAUSE).await;
            }
            return;
        };
        let name = format!("{}/{}", lease.namespace, lease.name);
        let candidate = Candidate::new(self.lease_client.clone(), lease, self.fence.clone());
        loop {
            // A candidate that waits for the lease is ready.
            self.readiness.set_checks(candidate.blocked_on(), Vec::new);
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
                warn!(lease = name, "the lease is lost; this process writes nothing until it holds it again");
                continue;
            }
            let problem = match timeout(RELEASE_TIMEOUT, holder.release()).await {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(crate::error::chain(&error)),
                Err(_) => Some("the API server does not answer".into()),
            };
            if let Some(problem) = problem {
                warn!(problem, lease = name, "the lease could not be released; it expires by itself");
            }
            if end == End::Stopped {
                return;
            }
            sleep(RESTART_PAUSE).await;
        }
    }

    fn work<L: Future<Output = ()>>(
        &self,
        controllers: &impl Fn(&mut Cluster) -> Vec<Arc<dyn AnyController>>,
        version: Version,
        lost: L,
    ) -> Working<L> {
        let mut cluster = Cluster::new(self.client.clone(), self.namespace.clone(), Arc::clone(&self.context), version);
        let controllers = controllers(&mut cluster);
        let collections = cluster.collections();
        self.context.metrics.on_read(move |metrics| {
            for collection in collections.values() {
                let (objects, unreadable) = collection.size();
                metrics.cached(collection.name(), objects, unreadable);
            }
        });
        // Weak references: the controllers end with the lease, even while a probe runs.
        let working: Vec<Weak<dyn AnyController>> = controllers.iter().map(Arc::downgrade).collect();
        let watched = working.clone();
        let stuck = move || watched.iter().filter_map(|controller| controller.upgrade()?.stuck()).collect();
        let blocked_on = move || {
            let controllers = working.iter().filter_map(Weak::upgrade);
            let blocked: BTreeSet<String> = controllers.flat_map(|controller| controller.blocked_on()).collect();
            blocked.into_iter().collect()
        };
        self.readiness.set_checks(blocked_on, stuck);
        let (mut watches, mut workers) = (JoinSet::new(), JoinSet::new());
        cluster.start(&mut watches);
        for controller in &controllers {
            Arc::clone(controller).start(self.workers, &mut workers);
        }
        Working { controllers, watches, workers, lost }
    }
}

/// The watches and workers of one term as the leader.
struct Working<L> {
    controllers: Vec<Arc<dyn AnyController>>,
    watches: JoinSet<()>,
    workers: JoinSet<()>,
    lost: L,
}

/// Why a term as the leader ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Another process may lead.
    LeaseLost,
    /// The process is stopped.
    Stopped,
    /// A watch or a worker ended, which none of them normally does: the caches are no longer reliable.
    TaskEnded,
}

impl<L: Future<Output = ()>> Working<L> {
    /// Runs until the lease is lost, `stop` completes, or a watch or worker ends. All tasks have ended when this
    /// returns.
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
            // The lease is renewed meanwhile; workers that do not finish in time are aborted.
            let finished = async { while self.workers.join_next().await.is_some() {} };
            tokio::select! {
                _ = timeout(FINISH_TIMEOUT, finished) => {}
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
        Some(problem) => {
            error!(task, problem, "internal error: restarting with new caches; please report this as a bug")
        }
        // The task has logged why.
        None => warn!(task, "restarting with new caches"),
    }
    End::TaskEnded
}
