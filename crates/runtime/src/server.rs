//! What a process tells over HTTP: `/metrics`, `/healthz`, `/readyz`.

use std::sync::{Arc, PoisonError, RwLock};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use tokio::net::TcpListener;

use crate::metrics::Metrics;

type WaitsFor = Box<dyn Fn() -> Vec<String> + Send + Sync>;

/// Whether a process is ready, as it knows itself.
#[derive(Clone, Default)]
pub struct Readiness(Arc<RwLock<Option<WaitsFor>>>);

impl std::fmt::Debug for Readiness {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Readiness").field(&self.waits_for()).finish()
    }
}

impl Readiness {
    /// From now on `waits_for` says what is missing; nothing means that the process is ready.
    pub fn is_told_by(&self, waits_for: impl Fn() -> Vec<String> + Send + Sync + 'static) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(waits_for));
    }

    /// What is missing.
    pub fn waits_for(&self) -> Vec<String> {
        match self.0.read().unwrap_or_else(PoisonError::into_inner).as_ref() {
            Some(waits_for) => waits_for(),
            None => vec!["the API server".into()],
        }
    }
}

/// Answers until the process ends.
pub async fn serve(listener: TcpListener, metrics: Metrics, readiness: Readiness) -> std::io::Result<()> {
    let router = Router::new()
        .route("/metrics", get(tell_metrics))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(tell_readiness))
        .with_state((metrics, readiness));
    axum::serve(listener, router).await
}

type Told = State<(Metrics, Readiness)>;

async fn tell_metrics(State((metrics, _)): Told) -> Result<([(&'static str, &'static str); 1], String), StatusCode> {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    metrics.text().map(|text| ([("content-type", kind)], text)).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

async fn tell_readiness(State((_, readiness)): Told) -> (StatusCode, String) {
    let waits_for = readiness.waits_for();
    if waits_for.is_empty() {
        (StatusCode::OK, "ready\n".into())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for {}\n", waits_for.join(", ")))
    }
}
