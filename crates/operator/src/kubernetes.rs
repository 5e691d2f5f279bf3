//! Access of a node's pod to the API server.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use futures::{Stream, StreamExt, stream};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{
    Api, Client, Config,
    api::{Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::NamespaceResourceScope,
    runtime::{WatchStreamExt, watcher},
};
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The delay after a failed request.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// How often an object is listed and watched from scratch. After a restore of the API server's etcd from a backup, an
/// old watch gets no events until the resource version exceeds the one from before the restore.
const REWATCH_INTERVAL: Duration = Duration::from_secs(600);

/// The API server and the namespace.
#[derive(Clone, Debug, clap::Args)]
pub struct Access {
    /// Namespace of the node (default: that of the pod's service account)
    #[arg(long)]
    pub namespace: Option<String>,
    /// Path of a kubeconfig (default: the pod's service account)
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
}

impl Access {
    /// Prepares access to the objects of the member `name`.
    pub(crate) async fn member(&self, name: &str) -> Result<MemberApi> {
        // Fails if another part of the process has installed the same provider before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut config = match &self.kubeconfig {
            Some(file) => {
                let read = Kubeconfig::read_from(file).with_context(|| format!("reading {}", file.display()))?;
                Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
                    .await
                    .with_context(|| format!("loading {}", file.display()))?
            }
            None => Config::incluster().context("this process does not run in a pod; set --kubeconfig")?,
        };
        // The callers log failures and retry themselves.
        config.default_retry = false;
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).context("creating the client of the API server")?;
        Ok(MemberApi {
            name: name.to_owned(),
            pods: Api::namespaced(client.clone(), &namespace),
            services: Api::namespaced(client, &namespace),
        })
    }
}

/// Access to the pod and the Service of a member, which have the same name.
#[derive(Clone)]
pub(crate) struct MemberApi {
    /// The name of the member's pod and Service.
    pub name: String,
    /// All pods of the namespace.
    pub pods: Api<Pod>,
    /// All Services of the namespace.
    pub services: Api<Service>,
}

impl MemberApi {
    /// Watches the Service. Yields `None` when it does not exist.
    pub(crate) fn watch_service(&self) -> impl Stream<Item = Option<Service>> + Send + use<> {
        watch(self.services.clone(), &self.name)
    }

    /// Watches the pod. Yields `None` when it does not exist.
    pub(crate) fn watch_pod(&self) -> impl Stream<Item = Option<Pod>> + Send + use<> {
        watch(self.pods.clone(), &self.name)
    }

    /// Resolves if the pod is being deleted when this is called, and never otherwise. Call it after installing signal
    /// handlers: the first process of a container loses a SIGTERM that arrives before that, the kubelet sends it once,
    /// and the pod would stay for its whole grace period.
    pub(crate) async fn resolve_if_terminating(&self) {
        loop {
            match timeout(TIMEOUT, self.pods.get_metadata_opt(&self.name)).await {
                Ok(Ok(pod)) if pod.as_ref().is_some_and(|pod| pod.metadata.deletion_timestamp.is_some()) => {
                    info!("the pod is being deleted: this container exits");
                    return;
                }
                Ok(Ok(_)) => std::future::pending().await,
                Ok(Err(error)) => {
                    warn!(error = %chain(&error), "cannot read whether the pod is being deleted; retrying");
                }
                Err(_) => {
                    warn!("cannot read whether the pod is being deleted; retrying: no response within {TIMEOUT:?}")
                }
            }
            sleep(RETRY_DELAY).await;
        }
    }

    /// Patches the Service if it still has the resource version of `seen`, and returns the new version.
    pub(crate) async fn patch_service_if_unchanged(
        &self,
        seen: &Service,
        mut change: serde_json::Value,
    ) -> Result<Service> {
        change["metadata"]["resourceVersion"] = seen.metadata.resource_version.clone().into();
        self.patch_service(seen, change).await
    }

    /// Patches the Service if it still has the UID of `seen`, and returns the new version.
    pub(crate) async fn patch_service(&self, seen: &Service, mut change: serde_json::Value) -> Result<Service> {
        // The API server rejects the patch if another Service of this name has taken its place.
        change["metadata"]["uid"] = seen.metadata.uid.clone().into();
        let parameters = PatchParams { field_manager: Some("messina-sidecar".to_owned()), ..PatchParams::default() };
        let change = Patch::Merge(change);
        let patched = self.services.patch(&self.name, &parameters, &change);
        let timed_out = || format!("the API server did not respond within {TIMEOUT:?}");
        timeout(TIMEOUT, patched).await.with_context(timed_out)?.context("patching the Service")
    }
}

/// Watches one object. Retries while the API server is unavailable.
fn watch<K>(objects: Api<K>, name: &str) -> impl Stream<Item = Option<K>> + Send + use<K>
where
    K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned
        + Send
        + 'static,
{
    let name = name.to_owned();
    let watched = name.clone();
    let attempt =
        move || watcher::watch_object(objects.clone(), &watched).default_backoff().take_until(sleep(REWATCH_INTERVAL));
    let versions = stream::repeat_with(attempt).flatten();
    versions.filter_map(move |version| {
        let version = match version {
            Ok(version) => Some(version),
            Err(error) => {
                warn!(error = %chain(&error), "cannot watch {} {name}; retrying", K::kind(&()));
                None
            }
        };
        std::future::ready(version)
    })
}

/// Returns an error and its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Some errors already contain the message of their cause.
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::{
        convert::Infallible,
        sync::Arc,
        sync::atomic::{AtomicU64, Ordering},
    };

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// The API server's etcd was restored, so that resource versions are lower than before and the watch gets no
    /// events.
    #[tokio::test(start_paused = true)]
    async fn watch_lists_again_when_it_gets_no_events() {
        let version = Arc::new(AtomicU64::new(900));
        let stored = Arc::clone(&version);
        let service = tower::service_fn(move |request: Request<Body>| {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let version = stored.load(Ordering::SeqCst).to_string();
            let list = json!({
                "kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": version},
                "items": [{"metadata": {"name": "one", "namespace": "shop", "resourceVersion": version}}],
            });
            async move {
                if is_watch {
                    std::future::pending::<()>().await;
                }
                Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes())))
            }
        });
        let services = Api::<Service>::namespaced(Client::new(service, "shop"), "shop");
        let mut versions = std::pin::pin!(watch(services, "one"));
        let mut next = async || versions.next().await.unwrap().unwrap().metadata.resource_version.unwrap();
        assert_eq!(next().await, "900");
        version.store(500, Ordering::SeqCst);
        assert_eq!(next().await, "500");
    }
}
