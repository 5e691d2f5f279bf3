//! The way to the API server.

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

/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// The pause after a request that failed.
const PAUSE: Duration = Duration::from_secs(2);

/// After so long an object is read anew. When the storage of the API server was restored from a backup, a watch hears of nothing
/// until as much has changed as was undone.
const READ_ANEW: Duration = Duration::from_secs(600);

/// Which API server, and which namespace.
#[derive(Clone, Debug, clap::Args)]
pub struct Access {
    /// The namespace of the node; without it, that of the pod's service account
    #[arg(long)]
    pub namespace: Option<String>,
    /// The API server and credentials; without it, those of the pod
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
}

impl Access {
    /// The member `name`, to be asked after.
    pub(crate) async fn member(&self, name: &str) -> Result<Member> {
        // Ours is the only one, but another part of the program may have chosen it already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut config = match &self.kubeconfig {
            Some(file) => {
                let read = Kubeconfig::read_from(file).with_context(|| format!("reading {}", file.display()))?;
                Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.context("using it")?
            }
            None => Config::incluster().context("this runs in no pod; outside of one, use --kubeconfig")?,
        };
        // What fails is told at once, and tried again here.
        config.default_retry = false;
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).context("preparing the connection to the API server")?;
        Ok(Member {
            name: name.to_owned(),
            pods: Api::namespaced(client.clone(), &namespace),
            services: Api::namespaced(client, &namespace),
        })
    }
}

/// A node of a datacenter in Kubernetes: its pod and its Service have the same name.
#[derive(Clone)]
pub(crate) struct Member {
    /// That name.
    pub name: String,
    /// The pods beside it.
    pub pods: Api<Pod>,
    /// The Services beside it.
    pub services: Api<Service>,
}

impl Member {
    /// The Service as it is and as it becomes; none when it is not there.
    pub(crate) fn service(&self) -> impl Stream<Item = Option<Service>> + Send + use<> {
        versions(self.services.clone(), &self.name)
    }

    /// The pod as it is and as it becomes; none when it is not there.
    pub(crate) fn pod(&self) -> impl Stream<Item = Option<Pod>> + Send + use<> {
        versions(self.pods.clone(), &self.name)
    }

    /// Ends if the pod is being deleted when this is called, and never otherwise: call it once signals are listened for. The
    /// first process of a container loses a signal that comes before that, and Kubernetes sends it once: the pod would stay for
    /// its whole grace period.
    pub(crate) async fn is_going(&self) {
        loop {
            match timeout(PATIENCE, self.pods.get_metadata_opt(&self.name)).await {
                Ok(Ok(pod)) if pod.as_ref().is_some_and(|pod| pod.metadata.deletion_timestamp.is_some()) => {
                    info!("the pod is being deleted: this container ends");
                    return;
                }
                Ok(Ok(_)) => std::future::pending().await,
                Ok(Err(error)) => warn!(error = %chain(&error), "it is not known whether the pod is being deleted"),
                Err(_) => warn!("it is not known whether the pod is being deleted: the API server does not answer"),
            }
            sleep(PAUSE).await;
        }
    }

    /// Changes the Service, if nobody has changed it since it was seen, and answers what it is then.
    pub(crate) async fn change_service_as_seen(
        &self,
        seen: &Service,
        mut change: serde_json::Value,
    ) -> Result<Service> {
        change["metadata"]["resourceVersion"] = seen.metadata.resource_version.clone().into();
        self.change_service(seen, change).await
    }

    /// Changes the Service, if it is still the one that was seen, and answers what it is then.
    pub(crate) async fn change_service(&self, seen: &Service, mut change: serde_json::Value) -> Result<Service> {
        // The API server refuses a change for another object of the same name.
        change["metadata"]["uid"] = seen.metadata.uid.clone().into();
        let parameters = PatchParams { field_manager: Some("messina-sidecar".to_owned()), ..PatchParams::default() };
        let change = Patch::Merge(change);
        let changed = self.services.patch(&self.name, &parameters, &change);
        timeout(PATIENCE, changed).await.context("the API server does not answer")?.context("changing the Service")
    }
}

/// One object as it is and as it becomes. An API server that is away is waited for.
fn versions<K>(objects: Api<K>, name: &str) -> impl Stream<Item = Option<K>> + Send + use<K>
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
    let watch = move || watcher::watch_object(objects.clone(), &watched).default_backoff().take_until(sleep(READ_ANEW));
    let versions = stream::repeat_with(watch).flatten();
    versions.filter_map(move |version| {
        let version = match version {
            Ok(version) => Some(version),
            Err(error) => {
                warn!(error = %chain(&error), "the {} {name} cannot be watched now", K::kind(&()));
                None
            }
        };
        std::future::ready(version)
    })
}

/// An error and what caused it, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Some say the words of their cause themselves.
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

    /// The storage was restored, so that versions are lower than before, and the watch is silent.
    #[tokio::test(start_paused = true)]
    async fn an_object_is_read_anew_where_its_watch_stays_silent() {
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
        let mut versions = std::pin::pin!(versions(services, "one"));
        let mut next = async || versions.next().await.unwrap().unwrap().metadata.resource_version.unwrap();
        assert_eq!(next().await, "900");
        version.store(500, Ordering::SeqCst);
        assert_eq!(next().await, "500");
    }
}
