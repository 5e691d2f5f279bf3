//! Waits until a cluster is ready, and reports why it is not.

use std::{cell::RefCell, fs, path::PathBuf, process::Child, time::Duration};

use tokio::task::JoinSet;

use super::{Cluster, Kind};
use crate::{
    cache,
    error::{Doing, Error, Result},
    etcd, exec,
    harness::{self, Seen},
    manifests, node,
    progress::Steps,
    supervise,
    tools::NodeTools,
};

/// The longest wait for one part of a cluster, on a busy host.
const TIMEOUT: Duration = Duration::from_secs(120);

impl Cluster {
    /// Waits until the cluster is ready. `supervisor` is its process, if it was started by this one.
    pub(super) async fn become_ready(&self, supervisor: Option<Child>, steps: &Steps) -> Result<()> {
        let step = steps.begin("waiting for the API server");
        let client = harness::client(&self.kubeconfig()).await?;
        let supervisor = RefCell::new(supervisor);
        let ready = harness::eventually("the API server to be ready", TIMEOUT, || async {
            if let Some(supervisor) = &mut *supervisor.borrow_mut()
                && let Ok(Some(status)) = supervisor.try_wait()
            {
                return Err(Error::refused(format!("the cluster's processes ended ({status})")));
            }
            Ok(match client.request_text(harness::get("/readyz")?).await {
                Ok(_) => Seen::Ready(()),
                Err(error) => Seen::NotYet(error.to_string()),
            })
        });
        ready.await.map_err(|error| self.explain(error, &["supervisor", "kube-apiserver"]))?;
        step.done("");
        let step = steps.begin("waiting for the default service account");
        let account = manifests::await_default_service_account(&client, TIMEOUT).await;
        account.map_err(|error| self.explain(error, &["kube-controller-manager"]))?;
        step.done("");
        if self.description.fake_nodes > 0 {
            let step = steps.begin(format!("creating {} simulated Kubernetes nodes", self.description.fake_nodes));
            manifests::install_storage(&client).await?;
            manifests::add_fake_nodes(&client, self.description.fake_nodes).await?;
            let nodes = manifests::await_nodes(&client, self.description.fake_nodes as usize, TIMEOUT).await;
            nodes.map_err(|error| self.explain(error, &["kwok"]))?;
            step.done("");
        }
        if self.description.kind == Kind::Full {
            self.nodes_become_ready(&client, steps).await?;
        }
        Ok(())
    }

    async fn nodes_become_ready(&self, client: &kube::Client, steps: &Steps) -> Result<()> {
        let step = steps.begin("installing DNS and the volume provisioner");
        manifests::install(client).await?;
        step.done("");
        let step = steps.begin("importing the images into the Kubernetes nodes");
        self.import_own_images().await.map_err(|error| self.explain(error, &["node-n1", "containerd-n1"]))?;
        step.done("");
        let step = steps.begin(format!("waiting for {} Kubernetes node(s)", self.description.nodes));
        let nodes = manifests::await_nodes(client, self.description.nodes.into(), TIMEOUT).await;
        nodes.map_err(|error| self.explain(error, &["kubelet-n1"]))?;
        step.done("");
        let step = steps.begin("waiting for DNS");
        let dns = manifests::await_dns(client, TIMEOUT).await;
        dns.map_err(|error| self.explain(error, &["kubelet-n1", "containerd-n1"]))?;
        step.done("");
        Ok(())
    }

    /// Starts the etcd cluster, if the cluster is to have one, and waits for it.
    pub(super) async fn etcd_becomes_ready(&self, steps: &Steps) -> Result<()> {
        let Some(shape) = self.description.etcd else { return Ok(()) };
        let ready = etcd::bring_up(self, shape, steps).await;
        ready.map_err(|error| self.explain(error, &["etcd-keeper", "kubelet-n1"]))
    }

    async fn import_own_images(&self) -> Result<()> {
        let tools = NodeTools::get(&Steps::quiet())?;
        let mut imports = JoinSet::new();
        for node in self.node_names() {
            let (tools, socket) = (tools.clone(), node::containerd_socket(&self.folder, &node));
            imports.spawn_blocking(move || node::import_own_images(&tools, &socket));
        }
        imports.join_all().await.into_iter().collect()
    }

    /// Adds the last log lines of these components to an error.
    fn explain(&self, error: Error, components: &[&str]) -> Error {
        let lines = components.iter().map(|component| {
            let log = supervise::log(&self.logs(), component);
            format!("\nThe last lines of {component}:\n{}", exec::tail(&log))
        });
        Error::refused(format!("{error}{}", lines.collect::<String>()))
    }

    /// Moves the logs to a folder that is kept when the cluster is removed.
    pub(super) fn keep_logs(&self) -> Result<PathBuf> {
        let logs = cache::root()?.join("logs");
        let kept = logs.join(format!("cluster-{}", self.name));
        cache::remove(&kept)?;
        fs::create_dir_all(&logs)
            .and_then(|()| fs::rename(self.logs(), &kept))
            .doing(|| format!("keeping logs in {}", kept.display()))?;
        Ok(kept)
    }
}
