//! The client of the API server.
//!
//! ```text
//! counted  ->  fenced  ->  timed  ->  (faults, in tests)  ->  transport
//! ```
//!
//! The transport is recreated from its source when requests fail: an expired certificate or token may have been
//! replaced.

use std::{
    fmt::{self, Debug},
    future::pending,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use http::{Method, Request, Response, StatusCode, Uri};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder},
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::time::{Instant, sleep, timeout};
use tower::{BoxError, Layer, Service, ServiceBuilder};
use tracing::{Instrument, Span, debug_span, field::Empty};

use crate::{
    body::Timing,
    connectivity::{Connectivity, Starting},
    fence::Fence,
    metrics::Metrics,
};

/// Longest time until the response to a request begins.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// After this time without an answer to any request, the API server is reported as unreachable.
const SLOW_AFTER: Duration = Duration::from_secs(3);
/// Shortest interval between two reads of the source.
const MIN_RELOAD_INTERVAL: Duration = Duration::from_secs(2);

/// The source of the client's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The kubeconfig that kubectl would use, else the pod's service account.
    Inferred,
    /// A kubeconfig file.
    File {
        /// Its path.
        path: PathBuf,
        /// The context to use; none for the current one.
        context: Option<String>,
    },
}

/// Why no client can be created.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is neither a kubeconfig nor a service account.
    #[error("found neither a kubeconfig nor a service account: set a kubeconfig, or run in a pod")]
    Unknown(#[source] kube::config::InferConfigError),
    /// The kubeconfig is invalid or cannot be read.
    #[error("the kubeconfig {} cannot be used", path.display())]
    Kubeconfig {
        /// Its path.
        path: PathBuf,
        /// The error.
        #[source]
        source: kube::config::KubeconfigError,
    },
    /// A client cannot be created from the configuration.
    #[error("no client can be created from the configuration of the API server")]
    Client(#[source] kube::Error),
}

impl Source {
    /// Reads the current configuration.
    pub async fn config(&self) -> Result<Config, ConnectError> {
        let mut config = match self {
            Self::Inferred => Config::infer().await.map_err(ConnectError::Unknown)?,
            Self::File { path, context } => {
                let wrong = |source| ConnectError::Kubeconfig { path: path.clone(), source };
                let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
                let kubeconfig = Kubeconfig::read_from(path).map_err(wrong)?;
                Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(wrong)?
            }
        };
        // A write that the transport retries could be sent after the fence is closed.
        config.default_retry = false;
        config.connect_timeout = Some(Duration::from_secs(10));
        Ok(config)
    }

    async fn client(&self) -> Result<Client, ConnectError> {
        // Fails if another part of the process has installed it already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = ClientBuilder::try_from(self.config().await?).map_err(ConnectError::Client)?;
        Ok(builder.build())
    }
}

/// The transport to the API server, without fence and metrics.
#[derive(Clone)]
pub struct Transport {
    source: Source,
    state: Arc<Mutex<State>>,
    connectivity: Connectivity,
}

struct State {
    client: Client,
    created: Instant,
}

impl Debug for Transport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Transport").field("source", &self.source).finish_non_exhaustive()
    }
}

impl Transport {
    /// Creates a transport from its source.
    pub async fn new(source: Source) -> Result<Self, ConnectError> {
        let client = source.client().await?;
        let state = Arc::new(Mutex::new(State { client, created: Instant::now() }));
        Ok(Self { source, state, connectivity: Connectivity::new() })
    }

    /// The default namespace of the source.
    pub fn default_namespace(&self) -> String {
        self.client().default_namespace().to_owned()
    }

    fn client(&self) -> Client {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).client.clone()
    }

    /// Recreates the client from the source.
    async fn reload(&self) {
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.created.elapsed() < MIN_RELOAD_INTERVAL {
                return;
            }
            state.created = Instant::now();
        }
        match self.source.client().await {
            Ok(client) => {
                self.state.lock().unwrap_or_else(PoisonError::into_inner).client = client;
                self.connectivity.reloaded(None);
            }
            Err(error) => self.connectivity.reloaded(Some(crate::error::chain(&error))),
        }
    }

    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let sent = Instant::now();
        let client = self.client();
        let mut answer = std::pin::pin!(client.send(request));
        let slow = async {
            sleep(SLOW_AFTER).await;
            self.connectivity.is_slow(sent);
            pending().await
        };
        let answer = async {
            tokio::select! { answer = &mut answer => answer, () = slow => pending().await }
        };
        // For a watch, too: its response begins at once.
        match timeout(RESPONSE_TIMEOUT, answer).await {
            Ok(Ok(response)) if self.connectivity.is_starting(response.status()) => Err(Starting.into()),
            Ok(Ok(response)) => {
                self.connectivity.answered(response.status());
                if response.status() == StatusCode::UNAUTHORIZED {
                    self.reload().await;
                }
                Ok(response)
            }
            Ok(Err(error)) => {
                self.connectivity.failed(&crate::error::chain(&error));
                self.reload().await;
                Err(error.into())
            }
            Err(elapsed) => {
                self.connectivity.is_slow(sent);
                Err(elapsed.into())
            }
        }
    }
}

impl Service<Request<Body>> for Transport {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let transport = self.clone();
        async move { transport.send(request).await }.boxed()
    }
}

/// Creates a client with metrics, timeouts and an optional fence for its writes.
pub fn client<S, B>(transport: S, namespace: &str, metrics: Metrics, fence: Option<Fence>) -> Client
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let service = ServiceBuilder::new()
        .layer(Counting(metrics))
        .option_layer(fence)
        .map_err(BoxError::from)
        .layer(Timing)
        .service(transport);
    Client::new(service, namespace)
}

/// The layer that counts requests.
#[derive(Clone, Debug)]
struct Counting(Metrics);

impl<S> Layer<S> for Counting {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, metrics: self.0.clone() }
    }
}

struct Counted<S> {
    inner: S,
    metrics: Metrics,
}

impl<S, B> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (verb, resource) = describe(request.method(), request.uri());
        let span = if matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
            Span::none()
        } else {
            debug_span!("request", verb, resource, path = request.uri().path(), code = Empty)
        };
        let began = Instant::now();
        let metrics = self.metrics.clone();
        let answer = self.inner.call(request);
        async move {
            let answer = answer.await;
            let code = match &answer {
                Ok(response) => response.status().as_str().to_owned(),
                Err(error) if error.is::<crate::fence::NotLeading>() => "fenced".into(),
                Err(_) => "none".into(),
            };
            Span::current().record("code", &code);
            let took = (verb != "watch").then(|| began.elapsed());
            metrics.request(verb, resource, code, took);
            answer
        }
        .instrument(span)
        .boxed()
    }
}

fn is_watch(uri: &Uri) -> bool {
    uri.query().unwrap_or_default().split('&').any(|pair| pair == "watch=true")
}

/// Returns verb and resource of a request.
fn describe(method: &Method, uri: &Uri) -> (&'static str, String) {
    let segments: Vec<&str> = uri.path().split('/').filter(|segment| !segment.is_empty()).collect();
    let rest = match segments.as_slice() {
        ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
        _ => return ("other", String::new()),
    };
    let (resource, name, subresource) = match rest {
        ["namespaces", _, resource, rest @ ..] => (*resource, rest.first(), rest.get(1)),
        [resource, rest @ ..] => (*resource, rest.first(), rest.get(1)),
        [] => ("", None, None),
    };
    let verb = match *method {
        Method::GET if is_watch(uri) => "watch",
        Method::GET if name.is_none() => "list",
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    };
    // Paths contain names from users, which must not become labels of metrics.
    let subresource = subresource.filter(|subresource| ["status", "scale"].contains(subresource));
    (verb, subresource.map_or_else(|| resource.to_owned(), |subresource| format!("{resource}/{subresource}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_a_verb_and_a_resource() {
        for (method, uri, verb, resource) in [
            (Method::GET, "/api/v1/services?watch=true&x=y", "watch", "services"),
            (Method::GET, "/api/v1/namespaces/a/services", "list", "services"),
            (Method::GET, "/api/v1/namespaces/a/services/b", "get", "services"),
            (Method::GET, "/api/v1/namespaces/a", "get", "namespaces"),
            (
                Method::PATCH,
                "/apis/scylla.scylladb.com/v1alpha1/namespaces/a/scylladbdatacenters/b/status?fieldManager=x",
                "patch",
                "scylladbdatacenters/status",
            ),
            (Method::DELETE, "/apis/apps/v1/namespaces/a/statefulsets/b", "delete", "statefulsets"),
            (Method::GET, "/api/v1/namespaces/a/secrets/../../b", "get", "secrets"),
            (Method::GET, "/version", "other", ""),
        ] {
            let uri: Uri = uri.parse().unwrap_or_default();
            assert_eq!(describe(&method, &uri), (verb, resource.to_owned()), "{method} {uri}");
        }
    }
}
