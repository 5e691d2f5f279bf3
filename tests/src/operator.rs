//! The operator, running in this process, with faults between it and the API server.

use std::{path::Path, sync::Arc, time::Duration};

use messina_operator::operator::context;
use messina_runtime::{
    client::{self, Source, Transport},
    cluster::Cluster,
    controller::AnyController,
    events::Events,
    fence::Fence,
    lease,
    metrics::Metrics,
    process::Process,
    queue::Backoff,
    server::Readiness,
};
use messina_testbed::faults::Faults;
use tokio::{sync::oneshot, task::JoinHandle};
use tower::Layer;

use crate::expect_ok;

/// An operator for one namespace. When this is dropped, it ends at once, as in a crash.
#[derive(Debug)]
pub struct Operator {
    task: JoinHandle<()>,
    stop: Option<oneshot::Sender<()>>,
    metrics: Metrics,
}

/// A function that starts controllers.
pub trait Controllers: Fn(&mut Cluster, &Metrics) -> Vec<Arc<dyn AnyController>> + Send + Sync + 'static {}

impl<F: Fn(&mut Cluster, &Metrics) -> Vec<Arc<dyn AnyController>> + Send + Sync + 'static> Controllers for F {}

impl Drop for Operator {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Operator {
    /// Starts an operator without a lease.
    pub async fn start(kubeconfig: &Path, namespace: &str, faults: &Faults, controllers: impl Controllers) -> Self {
        Self::start_with(kubeconfig, namespace, faults, None, controllers).await
    }

    /// Starts an operator with a lease, for whose requests the second faults apply, and with this fence.
    pub async fn start_with(
        kubeconfig: &Path,
        namespace: &str,
        faults: &Faults,
        lease: Option<(lease::Settings, &Faults, Fence)>,
        controllers: impl Controllers,
    ) -> Self {
        let transport = expect_ok(Transport::new(Source::File { path: kubeconfig.into(), context: None }).await);
        let metrics = Metrics::default();
        let fence = lease.as_ref().map_or_else(Fence::open_for_ever, |(.., fence)| fence.clone());
        let client = client::client(faults.layer(transport.clone()), "default", metrics.clone(), Some(fence.clone()));
        let lease_faults = lease.as_ref().map_or(faults, |(_, faults, _)| *faults);
        let lease_client = client::client(lease_faults.layer(transport), "default", metrics.clone(), None);
        // Events are not needed, because they do not influence the state of objects.
        let (events, _) = Events::new(metrics.clone());
        let mut context = context(metrics.clone(), events);
        context.backoff = Backoff { first: Duration::from_millis(20), longest: Duration::from_millis(200) };
        let process = Process {
            client,
            lease_client,
            fence,
            lease: lease.map(|(settings, ..)| settings),
            namespace: Some(namespace.into()),
            workers: 2,
            context: Arc::new(context),
            readiness: Readiness::default(),
        };
        let (stop, stopped) = oneshot::channel();
        let counted = metrics.clone();
        let controllers = move |cluster: &mut Cluster| controllers(cluster, &counted);
        let task = tokio::spawn(process.run(controllers, async {
            // If the sender is dropped, the task is aborted, too.
            let _ = stopped.await;
        }));
        Self { task, stop: Some(stop), metrics }
    }

    /// Its metrics in the format of Prometheus.
    pub fn metrics(&self) -> String {
        expect_ok(self.metrics.text())
    }

    /// Stops it gracefully, and waits for its end.
    pub async fn stops(mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        let _ = (&mut self.task).await;
    }
}
