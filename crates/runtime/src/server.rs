//! What a process tells over HTTP: `/metrics`, `/healthz`, `/readyz`.

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

/// What keeps a process from being ready, and what from being healthy.
struct Sources {
    blocked_on: Problems,
    stuck: Problems,
}

/// Whether a process is ready and healthy, as it knows itself.
#[derive(Clone, Default)]
pub struct Readiness(Arc<RwLock<Option<Sources>>>);

impl std::fmt::Debug for Readiness {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Readiness").field(&self.blocked_on()).finish()
    }
}

impl Readiness {
    /// From now on `blocked_on` says what is missing; nothing means that the process is ready. `stuck` says what does not get
    /// any further; nothing means that the process is healthy.
    pub fn is_told_by(
        &self,
        blocked_on: impl Fn() -> Vec<String> + Send + Sync + 'static,
        stuck: impl Fn() -> Vec<String> + Send + Sync + 'static,
    ) {
        let sources = Sources { blocked_on: Box::new(blocked_on), stuck: Box::new(stuck) };
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(sources);
    }

    /// What does not get any further.
    pub fn stuck(&self) -> Vec<String> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).as_ref().map_or_else(Vec::new, |told| (told.stuck)())
    }

    /// What is missing.
    pub fn blocked_on(&self) -> Vec<String> {
        match self.0.read().unwrap_or_else(PoisonError::into_inner).as_ref() {
            Some(told) => (told.blocked_on)(),
            None => vec!["the API server".into()],
        }
    }
}

/// Answers until the process ends.
pub async fn serve(listener: TcpListener, metrics: Metrics, readiness: Readiness) -> Infallible {
    let router = Router::new()
        .route("/metrics", get(tell_metrics))
        .route("/healthz", get(tell_health))
        .route("/readyz", get(tell_readiness))
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

type Told = State<(Metrics, Readiness)>;

async fn tell_metrics(State((metrics, _)): Told) -> Result<([(&'static str, &'static str); 1], String), StatusCode> {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    metrics.text().map(|text| ([("content-type", kind)], text)).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

async fn tell_health(State((_, readiness)): Told) -> (StatusCode, String) {
    let stuck = readiness.stuck();
    if stuck.is_empty() {
        (StatusCode::OK, "ok\n".into())
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, format!("stuck: {}\n", stuck.join("; ")))
    }
}

async fn tell_readiness(State((_, readiness)): Told) -> (StatusCode, String) {
    let blocked_on = readiness.blocked_on();
    if blocked_on.is_empty() {
        (StatusCode::OK, "ready\n".into())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for {}\n", blocked_on.join(", ")))
    }
}
