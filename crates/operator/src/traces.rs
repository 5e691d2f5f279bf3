//! Export of traces by OTLP over HTTP.
//!
//! Spans are put into a queue without blocking, and a thread of the SDK exports them. Spans that cannot be exported are
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

use crate::{kubernetes::chain, logging::BaseSubscriber};

/// The environment variable that OpenTelemetry defines for the endpoint.
const ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// The path of traces below the endpoint.
const PATH: &str = "/v1/traces";
/// Timeout of one export.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of the last export, when the process ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// Longer responses of the collector are errors.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;

/// Returns the endpoint that was given, or that of the environment variable.
pub fn endpoint(given: Option<&str>) -> Option<String> {
    let of_variable = || std::env::var(ENDPOINT_VARIABLE).ok();
    given.map(str::to_owned).or_else(of_variable).filter(|endpoint| !endpoint.is_empty())
}

/// Traces that are exported to a collector.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    /// Exports traces to `endpoint`, with this replica's identity. Call it in the tokio runtime that sends the
    /// requests.
    pub fn export_to(endpoint: &str, identity: &str) -> Result<Self> {
        let uri: Uri = endpoint.parse().with_context(|| format!("the OTLP endpoint {endpoint:?} is not a URL"))?;
        // Fails if another part of the process has installed the same provider before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let connector = match uri.scheme_str() {
            Some("http") => without_tls()?,
            Some("https") => HttpsConnectorBuilder::new()
                .try_with_platform_verifier()
                .context("loading the system's root certificates, which are needed to verify the OTLP endpoint")?,
            _ => bail!("the OTLP endpoint {endpoint:?} must begin with http:// or https://"),
        };
        let connector = connector.https_or_http().enable_http1().build();
        let exporter_client = HttpExporter {
            client: Client::builder(TokioExecutor::new()).build(connector),
            runtime: Handle::current(),
            endpoint: endpoint.to_owned(),
            is_failing: Arc::default(),
        };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(exporter_client)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(traces_url(endpoint))
            .with_timeout(EXPORT_TIMEOUT)
            .build()
            .with_context(|| format!("preparing to export traces to {endpoint}"))?;
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

    /// Returns the layer that records this program's spans, independently of the log level.
    pub(crate) fn layer(&self) -> Filtered<OpenTelemetryLayer<BaseSubscriber, SdkTracer>, Targets, BaseSubscriber> {
        let layer = tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("messina"))
            .with_location(false)
            .with_threads(false)
            .with_target(false);
        // Not the spans of libraries: exporting traces would create traces.
        layer.with_filter(Targets::new().with_target("messina", LevelFilter::DEBUG))
    }

    /// Exports the spans that are left, within a second.
    pub async fn shut_down(self) {
        let (done, is_done) = tokio::sync::oneshot::channel();
        // A plain thread: it blocks, and a tokio runtime waits for its own blocking threads when it ends.
        std::thread::spawn(move || {
            let _ = done.send(self.provider.shutdown_with_timeout(SHUTDOWN_TIMEOUT));
        });
        match timeout(SHUTDOWN_TIMEOUT, is_done).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => debug!(%error, "not all traces were exported"),
            _ => debug!("not all traces were exported in time"),
        }
    }
}

fn without_tls() -> Result<HttpsConnectorBuilder<hyper_rustls::builderstates::WantsSchemes>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    // No root certificates: this is for endpoints without TLS.
    let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    Ok(HttpsConnectorBuilder::new().with_tls_config(config))
}

/// Returns the URL of traces for an endpoint, which may already have their path.
fn traces_url(endpoint: &str) -> String {
    let base = endpoint.trim_end_matches('/');
    if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") }
}

/// The HTTP client of the exporter. The exporter's thread is outside of the tokio runtime that has the connections.
struct HttpExporter {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    runtime: Handle,
    endpoint: String,
    is_failing: Arc<AtomicBool>,
}

impl fmt::Debug for HttpExporter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Carrier").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl HttpExporter {
    /// Logs a failed export, but only the first of several in a row, and the first success after that.
    fn log_outcome(endpoint: &str, was_failing: bool, outcome: &Result<Response<Bytes>, HttpError>) {
        let problem = match outcome {
            Ok(response) if response.status().is_success() => {
                if was_failing {
                    info!(endpoint, "exporting traces works again");
                }
                return;
            }
            Ok(response) => format!("HTTP status {}", response.status()),
            Err(error) => chain(error.as_ref()),
        };
        if !was_failing {
            warn!(endpoint, problem, "cannot export traces; they are dropped until the endpoint accepts them");
        }
    }
}

impl HttpClient for HttpExporter {
    fn send_bytes<'a, 'b>(&'a self, request: Request<Bytes>) -> BoxFuture<'b, Result<Response<Bytes>, HttpError>>
    where
        'a: 'b,
        Self: 'b,
    {
        let (client, endpoint) = (self.client.clone(), self.endpoint.clone());
        let is_failing = Arc::clone(&self.is_failing);
        let sending = async move {
            let outcome = match timeout(EXPORT_TIMEOUT, send(client, request)).await {
                Ok(outcome) => outcome,
                Err(late) => Err(late.into()),
            };
            let fails = !outcome.as_ref().is_ok_and(|response| response.status().is_success());
            Self::log_outcome(&endpoint, is_failing.swap(fails, Ordering::Relaxed), &outcome);
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
    let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await?.to_bytes();
    Ok(Response::from_parts(head, body))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn path_of_traces_is_appended_to_the_endpoint() {
        for (endpoint, expected) in [
            ("http://a:4318", "http://a:4318/v1/traces"),
            ("http://a:4318/", "http://a:4318/v1/traces"),
            ("https://a/otlp", "https://a/otlp/v1/traces"),
            ("http://a/v1/traces", "http://a/v1/traces"),
        ] {
            assert_eq!(traces_url(endpoint), expected);
        }
    }

    #[tokio::test]
    async fn invalid_endpoint_is_rejected() {
        for (endpoint, words) in [("grpc://a:4317", "http://"), ("a b", "not a URL"), ("localhost:4318", "http://")] {
            let problem = format!("{:#}", Traces::export_to(endpoint, "me").unwrap_err());
            assert!(problem.contains(words) && problem.contains(endpoint), "{problem}");
        }
    }
}
