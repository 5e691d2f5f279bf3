//! No write leaves the process unless it leads.
//!
//! The fence stands in front of the API server: while it is closed, requests that could change anything fail at once.
//! Whoever holds the lease opens it, each time for no longer than the lease is certain to last.

use std::{
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use http::{Method, Request};
use kube::client::Body;
use tokio::time::Instant;
use tower::{BoxError, Layer, Service};

/// Why a write was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this process does not hold the lease, so it changes nothing")]
pub struct NotLeading;

/// Open as long as this process leads. Clones are the same fence.
#[derive(Clone, Debug, Default)]
pub struct Fence(Arc<Mutex<Option<Instant>>>);

impl Fence {
    /// A fence for a process that is alone.
    pub fn open_for_ever() -> Self {
        // So far that clocks can still express it.
        Self(Arc::new(Mutex::new(Some(Instant::now() + Duration::from_secs(100 * 365 * 24 * 3600)))))
    }

    /// Whether a write may leave now.
    pub fn is_open(&self) -> bool {
        self.until().is_some_and(|until| Instant::now() < until)
    }

    /// When it closes by itself; none when it is closed for good.
    pub(crate) fn until(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn open_until(&self, until: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
    }

    pub(crate) fn close(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl<S> Layer<S> for Fence {
    type Service = Fenced<S>;

    fn layer(&self, inner: S) -> Fenced<S> {
        Fenced { inner, fence: self.clone() }
    }
}

/// A way to the API server with a fence in front of it.
#[derive(Clone, Debug)]
pub struct Fenced<S> {
    inner: S,
    fence: Fence,
}

impl<S> Service<Request<Body>> for Fenced<S>
where
    S: Service<Request<Body>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // The service that was asked whether it is ready is the one to use.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let fence = self.fence.clone();
        let only_reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        async move {
            // Not before the request is on its way: on a busy machine, time passes until this is first polled.
            if only_reads || fence.is_open() { inner.call(request).await } else { Err(NotLeading.into()) }
        }
        .boxed()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use tower::{ServiceExt, service_fn};

    use super::*;

    /// What becomes of a request with this method.
    async fn send(fence: &Fence, method: Method) -> Result<(), String> {
        let server = service_fn(|_: Request<Body>| async { Ok::<_, BoxError>(()) });
        let request = Request::builder().method(method).body(Body::empty()).unwrap();
        fence.layer(server).oneshot(request).await.map_err(|error| error.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn writes_pass_an_open_fence_only_and_reads_pass_any() {
        let fence = Fence::default();
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            fence.close();
            assert_eq!(send(&fence, method.clone()).await, Err(NotLeading.to_string()), "{method} and a closed fence");
            fence.open_until(Instant::now() + Duration::from_secs(1));
            assert_eq!(send(&fence, method.clone()).await, Ok(()), "{method} and an open fence");
        }
        fence.close();
        assert_eq!(send(&fence, Method::GET).await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_asked_for_in_time_and_is_sent_too_late_does_not_pass() {
        let fence = Fence::default();
        let mut fenced = fence.layer(service_fn(|_: Request<Body>| async { Ok::<_, BoxError>(()) }));
        fence.open_until(Instant::now() + Duration::from_secs(1));
        let request = Request::builder().method(Method::POST).body(Body::empty()).unwrap();
        let called = fenced.ready().await.unwrap().call(request);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(called.await.is_err(), "it was called in time, and not polled");
    }

    #[tokio::test(start_paused = true)]
    async fn a_fence_closes_by_itself_when_its_time_is_up() {
        let fence = Fence::default();
        fence.open_until(Instant::now() + Duration::from_secs(1));
        tokio::time::advance(Duration::from_millis(999)).await;
        assert!(fence.is_open());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!fence.is_open());
    }
}
