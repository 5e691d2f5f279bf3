//! The HTTP endpoints of a process: `/metrics`, `/healthz` and `/readyz`.

use std::{
    convert::Infallible,
    sync::{Arc, PoisonError, RwLock},
};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use http::Request;
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tower::ServiceExt;

use crate::{http_server, metrics::Metrics};

type Problems = Box<dyn Fn() -> Vec<String> + Send + Sync>;

/// Return what keeps the process from being ready, and what from being healthy.
struct Checks {
    blocked_on: Problems,
    stuck: Problems,
}

/// Whether the process is ready and healthy.
#[derive(Clone, Default)]
pub struct Readiness(Arc<RwLock<Option<Checks>>>);

impl std::fmt::Debug for Readiness {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Readiness").field(&self.blocked_on()).finish()
    }
}

impl Readiness {
    /// Sets the checks. The process is ready while `blocked_on` returns nothing, and healthy while `stuck` returns
    /// nothing.
    pub fn set_checks(
        &self,
        blocked_on: impl Fn() -> Vec<String> + Send + Sync + 'static,
        stuck: impl Fn() -> Vec<String> + Send + Sync + 'static,
    ) {
        let checks = Checks { blocked_on: Box::new(blocked_on), stuck: Box::new(stuck) };
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(checks);
    }

    /// Returns the controllers that are stuck.
    pub fn stuck(&self) -> Vec<String> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).as_ref().map_or_else(Vec::new, |checks| (checks.stuck)())
    }

    /// Returns what the process waits for before it is ready.
    pub fn blocked_on(&self) -> Vec<String> {
        match self.0.read().unwrap_or_else(PoisonError::into_inner).as_ref() {
            Some(checks) => (checks.blocked_on)(),
            None => vec!["the API server".into()],
        }
    }
}

/// Serves the endpoints until the process ends.
pub async fn serve(listener: TcpListener, metrics: Metrics, readiness: Readiness) -> Infallible {
    let router = Router::new()
        .route("/metrics", get(metrics_text))
        .route("/healthz", get(health))
        .route("/readyz", get(ready))
        .with_state((metrics, readiness));
    let answer = move |request: Request<Incoming>| {
        let router = router.clone();
        async move {
            let Ok(response) = router.oneshot(request).await;
            response
        }
    };
    http_server::serve(listener, answer).await
}

type Served = State<(Metrics, Readiness)>;

async fn metrics_text(State((metrics, _)): Served) -> Result<([(&'static str, &'static str); 1], String), StatusCode> {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    metrics.text().map(|text| ([("content-type", kind)], text)).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

async fn health(State((_, readiness)): Served) -> (StatusCode, String) {
    let stuck = readiness.stuck();
    if stuck.is_empty() {
        (StatusCode::OK, "ok\n".into())
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, format!("stuck: {}\n", stuck.join("; ")))
    }
}

async fn ready(State((_, readiness)): Served) -> (StatusCode, String) {
    let blocked_on = readiness.blocked_on();
    if blocked_on.is_empty() {
        (StatusCode::OK, "ready\n".into())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for {}\n", blocked_on.join(", ")))
    }
}
