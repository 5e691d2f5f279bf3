//! The operator, running in this process, with faults between it and the API server.

use std::{path::Path, sync::Arc, time::Duration};

use messina_api::names::annotation;
use messina_operator::controllers::{FIELD_MANAGER, datacenter};
use messina_plan::datacenter::Gates;
use messina_runtime::{
    caches::{Caches, Surroundings},
    client::{self, Source, Transport},
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

/// An operator for one namespace. It ends at once, as by a crash, when this is dropped.
pub(crate) struct Operator {
    task: JoinHandle<()>,
    stop: Option<oneshot::Sender<()>>,
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Operator {
    /// One that is alone.
    pub(crate) async fn start(kubeconfig: &Path, namespace: &str, faults: &Faults) -> Self {
        Self::start_with(kubeconfig, namespace, faults, None).await
    }

    /// One that works while it holds the lease, whose requests pass the second faults, and behind this fence.
    pub(crate) async fn start_with(
        kubeconfig: &Path,
        namespace: &str,
        faults: &Faults,
        lease: Option<(lease::Settings, &Faults, Fence)>,
    ) -> Self {
        let transport = Transport::new(Source::File { path: kubeconfig.into(), context: None }).await.unwrap();
        let metrics = Metrics::default();
        let fence = lease.as_ref().map_or_else(Fence::open_for_ever, |(.., fence)| fence.clone());
        let client = client::client(faults.layer(transport.clone()), "default", metrics.clone(), Some(fence.clone()));
        let lease_faults = lease.as_ref().map_or(faults, |(_, faults, _)| *faults);
        let lease_client = client::client(lease_faults.layer(transport), "default", metrics.clone(), None);
        // Events tell people; whether they are written has no bearing on what becomes of objects.
        let (events, _) = Events::new(metrics.clone());
        let mut surroundings = Surroundings::new(metrics.clone(), events, FIELD_MANAGER, annotation::APPLIED_HASH);
        surroundings.backoff = Backoff { first: Duration::from_millis(20), longest: Duration::from_millis(200) };
        let process = Process {
            client,
            lease_client,
            fence,
            lease: lease.map(|(settings, ..)| settings),
            namespace: Some(namespace.into()),
            workers: 2,
            surroundings: Arc::new(surroundings),
            readiness: Readiness::default(),
        };
        let settings = datacenter::Settings {
            operator_image: "localhost/messina/operator:test".into(),
            node_exporter_image: "localhost/messina/node-exporter:test".into(),
            gates: Gates::default(),
        };
        let (stop, stopped) = oneshot::channel();
        let controllers = move |caches: &mut Caches| {
            let datacenters: Arc<dyn AnyController> = datacenter::start(caches, settings.clone());
            vec![datacenters]
        };
        let task = tokio::spawn(process.run(controllers, async {
            // Whoever drops the sender has the task aborted, too.
            let _ = stopped.await;
        }));
        Self { task, stop: Some(stop) }
    }

    /// Asks it to end in good order, and waits until it has.
    pub(crate) async fn stops(mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        let _ = (&mut self.task).await;
    }
}
