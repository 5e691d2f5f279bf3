//! What was done, step by step, for whoever collects traces: OTLP over HTTP.
//!
//! Spans are put into a queue that never makes anybody wait, and are sent by a thread of their own. What cannot be sent is
//! dropped.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail};
use futures::{FutureExt, future::BoxFuture};
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use opentelemetry::{KeyValue, trace::TracerProvider};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    trace::{SdkTracer, SdkTracerProvider},
};
use rustls::{ClientConfig, RootCertStore};
use tokio::{runtime::Handle, time::timeout};
use tracing::{debug, info, level_filters::LevelFilter, warn};
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::{
    Layer,
    filter::{Filtered, Targets},
};

use crate::{kubernetes::chain, logging::Below};

/// The variable that all programs with traces read.
const USUAL_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// Where traces go, below the endpoint.
const PATH: &str = "/v1/traces";
/// How long one delivery may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the last delivery may take, when the process ends.
const FAREWELL: Duration = Duration::from_secs(1);
/// Nobody needs a longer answer.
const LONGEST_ANSWER: usize = 64 * 1024;

/// The endpoint that was given, or the one that the usual variable names.
pub fn endpoint(given: Option<&str>) -> Option<String> {
    let usual = || std::env::var(USUAL_VARIABLE).ok();
    given.map(str::to_owned).or_else(usual).filter(|endpoint| !endpoint.is_empty())
}

/// Traces that are sent somewhere.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    /// Traces that are sent to `endpoint`, with this copy's name. To be called in the runtime that sends them.
    pub fn sent_to(endpoint: &str, identity: &str) -> Result<Self> {
        let uri: Uri = endpoint.parse().with_context(|| format!("the OTLP endpoint {endpoint:?} is no URL"))?;
        // Another part of the process may have been first, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let connector = match uri.scheme_str() {
            Some("http") => plain()?,
            Some("https") => HttpsConnectorBuilder::new()
                .try_with_platform_verifier()
                .context("no certificates are known by which the OTLP endpoint could be believed")?,
            _ => bail!("the OTLP endpoint {endpoint:?} should begin with http:// or https://"),
        };
        let connector = connector.https_or_http().enable_http1().build();
        let carrier = Carrier {
            client: Client::builder(TokioExecutor::new()).build(connector),
            runtime: Handle::current(),
            endpoint: endpoint.to_owned(),
            is_failing: Arc::default(),
        };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(carrier)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(address(endpoint))
            .with_timeout(PATIENCE)
            .build()
            .with_context(|| format!("traces cannot be sent to {endpoint}"))?;
        let resource = Resource::builder()
            .with_service_name("messina")
            .with_attributes([
                KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
                KeyValue::new("service.instance.id", identity.to_owned()),
            ])
            .build();
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        Ok(Self { provider })
    }

    /// What makes spans of what this program does. Whatever is logged, and in whatever detail.
    pub(crate) fn layer(&self) -> Filtered<OpenTelemetryLayer<Below, SdkTracer>, Targets, Below> {
        let layer = tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("messina"))
            .with_location(false)
            .with_threads(false)
            .with_target(false);
        // Not what the libraries below do: sending traces would make traces.
        layer.with_filter(Targets::new().with_target("messina", LevelFilter::DEBUG))
    }

    /// Sends what is left, if that takes no longer than a moment.
    pub async fn finish(self) {
        let (done, is_done) = tokio::sync::oneshot::channel();
        // It blocks, and a runtime waits for its own blocking threads when it ends.
        std::thread::spawn(move || {
            let _ = done.send(self.provider.shutdown_with_timeout(FAREWELL));
        });
        match timeout(FAREWELL, is_done).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => debug!(%error, "not all traces were sent"),
            _ => debug!("not all traces were sent in time"),
        }
    }
}

fn plain() -> Result<HttpsConnectorBuilder<hyper_rustls::builderstates::WantsSchemes>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    // Nobody is believed, because nobody is asked: this is for endpoints without TLS.
    let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    Ok(HttpsConnectorBuilder::new().with_tls_config(config))
}

/// Where traces go, if this is the endpoint for everything.
fn address(endpoint: &str) -> String {
    let base = endpoint.trim_end_matches('/');
    if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") }
}

/// Carries traces away. It is used by a thread outside of the runtime that has the connections.
struct Carrier {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    runtime: Handle,
    endpoint: String,
    is_failing: Arc<AtomicBool>,
}

impl fmt::Debug for Carrier {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Carrier").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl Carrier {
    /// A collector that is away is told once, and so is its return.
    fn tell(endpoint: &str, was_failing: bool, outcome: &Result<Response<Bytes>, HttpError>) {
        let problem = match outcome {
            Ok(response) if response.status().is_success() => {
                if was_failing {
                    info!(endpoint, "traces are sent again");
                }
                return;
            }
            Ok(response) => format!("it answers {}", response.status()),
            Err(error) => chain(error.as_ref()),
        };
        if !was_failing {
            warn!(endpoint, problem, "traces cannot be sent; they are dropped until they can");
        }
    }
}

impl HttpClient for Carrier {
    fn send_bytes<'a, 'b>(&'a self, request: Request<Bytes>) -> BoxFuture<'b, Result<Response<Bytes>, HttpError>>
    where
        'a: 'b,
        Self: 'b,
    {
        let (client, endpoint) = (self.client.clone(), self.endpoint.clone());
        let is_failing = Arc::clone(&self.is_failing);
        let sending = async move {
            let outcome = match timeout(PATIENCE, send(client, request)).await {
                Ok(outcome) => outcome,
                Err(late) => Err(late.into()),
            };
            let fails = !outcome.as_ref().is_ok_and(|response| response.status().is_success());
            Self::tell(&endpoint, is_failing.swap(fails, Ordering::Relaxed), &outcome);
            outcome
        };
        let sending = self.runtime.spawn(sending);
        async move { sending.await? }.boxed()
    }
}

async fn send(
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, HttpError> {
    let (head, body) = client.request(request.map(Full::new)).await?.into_parts();
    let body = Limited::new(body, LONGEST_ANSWER).collect().await?.to_bytes();
    Ok(Response::from_parts(head, body))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_for_everything_unless_it_says_otherwise() {
        for (endpoint, expected) in [
            ("http://a:4318", "http://a:4318/v1/traces"),
            ("http://a:4318/", "http://a:4318/v1/traces"),
            ("https://a/otlp", "https://a/otlp/v1/traces"),
            ("http://a/v1/traces", "http://a/v1/traces"),
        ] {
            assert_eq!(address(endpoint), expected);
        }
    }

    #[tokio::test]
    async fn an_endpoint_that_cannot_be_used_is_refused() {
        for (endpoint, words) in [("grpc://a:4317", "http://"), ("a b", "no URL"), ("localhost:4318", "http://")] {
            let problem = format!("{:#}", Traces::sent_to(endpoint, "me").unwrap_err());
            assert!(problem.contains(words) && problem.contains(endpoint), "{problem}");
        }
    }
}
