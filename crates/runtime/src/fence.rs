//! The fence: a process writes to the API server only while it is the leader.
//!
//! It is a layer of the client. While it is closed, requests that could change objects fail at once. The holder of the
//! lease opens it, each time for no longer than the lease is certain to last.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use http::{Method, Request, Response};
use kube::client::Body;
use tokio::time::Instant;
use tower::{BoxError, Layer, Service};

/// The error of a write that was not sent, because this process is not the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this process does not hold the lease, so the write was not sent")]
pub struct NotLeading;

/// Open while this process is the leader. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Fence(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    open_until: Option<Instant>,
    /// When a write last ended without an answer: it may yet be executed.
    gave_up: Option<Instant>,
}

impl Fence {
    /// Creates a fence for a process without leader election.
    pub fn open_for_ever() -> Self {
        let fence = Self::default();
        // A time that the clock can still represent.
        fence.open_until(Instant::now() + Duration::from_secs(100 * 365 * 24 * 3600));
        fence
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether writes are sent now.
    pub fn is_open(&self) -> bool {
        self.until().is_some_and(|until| Instant::now() < until)
    }

    /// Returns when it closes by itself; none if it is closed.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.state().open_until
    }

    pub(crate) fn open_until(&self, until: Instant) {
        self.state().open_until = Some(until);
    }

    pub(crate) fn close(&self) {
        self.state().open_until = None;
    }

    /// Whether a write ended without an answer within this time.
    pub(crate) fn gave_up_within(&self, time: Duration) -> bool {
        self.state().gave_up.is_some_and(|when| when.elapsed() < time)
    }
}

impl<S> Layer<S> for Fence {
    type Service = Fenced<S>;

    fn layer(&self, inner: S) -> Fenced<S> {
        Fenced { inner, fence: self.clone() }
    }
}

/// A service behind a fence.
#[derive(Clone, Debug)]
pub struct Fenced<S> {
    inner: S,
    fence: Fence,
}

impl<S, B> Service<Request<Body>> for Fenced<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // The service whose `poll_ready` was called is the one to use.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let fence = self.fence.clone();
        let only_reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        async move {
            // Checked here and not in `call`: on a busy Kubernetes node, time passes until this is first polled.
            if only_reads {
                return inner.call(request).await;
            }
            if !fence.is_open() {
                return Err(NotLeading.into());
            }
            let mut write = Write { fence, is_answered: false };
            let answer = inner.call(request).await;
            // A server that answers with an error of its own may still execute the write.
            write.is_answered = answer.as_ref().is_ok_and(|answer| !answer.status().is_server_error());
            answer
        }
        .boxed()
    }
}

/// A write that was sent.
struct Write {
    fence: Fence,
    is_answered: bool,
}

impl Drop for Write {
    fn drop(&mut self) {
        if !self.is_answered {
            self.fence.state().gave_up = Some(Instant::now());
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use tower::{ServiceExt, service_fn};

    use super::*;

    /// Sends a request with this method.
    async fn send(fence: &Fence, method: Method) -> Result<(), String> {
        let server = service_fn(|_: Request<Body>| async { Ok::<_, BoxError>(Response::new(())) });
        let request = Request::builder().method(method).body(Body::empty()).unwrap();
        fence.layer(server).oneshot(request).await.map(drop).map_err(|error| error.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn writes_pass_only_an_open_fence_and_reads_pass_any() {
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
    async fn write_that_is_polled_after_the_fence_has_closed_does_not_pass() {
        let fence = Fence::default();
        let mut fenced = fence.layer(service_fn(|_: Request<Body>| async { Ok::<_, BoxError>(Response::new(())) }));
        fence.open_until(Instant::now() + Duration::from_secs(1));
        let request = Request::builder().method(Method::POST).body(Body::empty()).unwrap();
        let called = fenced.ready().await.unwrap().call(request);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(called.await.is_err(), "it was called in time, and not polled");
    }

    #[tokio::test(start_paused = true)]
    async fn write_without_an_answer_is_remembered() {
        let fence = Fence::open_for_ever();
        send(&fence, Method::POST).await.unwrap();
        let second = Duration::from_secs(1);
        assert!(!fence.gave_up_within(second), "it was answered");
        let request = |method| Request::builder().method(method).body(Body::empty()).unwrap();
        let silent = service_fn(|_: Request<Body>| std::future::pending::<Result<Response<()>, BoxError>>());
        let broken_off = |method| tokio::time::timeout(second, fence.layer(silent).oneshot(request(method)));
        assert!(broken_off(Method::GET).await.is_err());
        assert!(!fence.gave_up_within(second), "it changes nothing");
        assert!(broken_off(Method::POST).await.is_err());
        assert!(fence.gave_up_within(second));
        tokio::time::advance(second).await;
        assert!(!fence.gave_up_within(second), "it was long ago");
        let failing =
            service_fn(|_: Request<Body>| async { Err::<Response<()>, _>(BoxError::from("the connection broke")) });
        fence.layer(failing).oneshot(request(Method::DELETE)).await.unwrap_err();
        assert!(fence.gave_up_within(second), "it is unknown whether it was executed");
        tokio::time::advance(second).await;
        for (status, is_given_up) in [(409, false), (503, true)] {
            let server = service_fn(move |_: Request<Body>| async move {
                Ok::<_, BoxError>(Response::builder().status(status).body(()).unwrap())
            });
            fence.layer(server).oneshot(request(Method::PUT)).await.unwrap();
            assert_eq!(fence.gave_up_within(second), is_given_up, "{status}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn fence_closes_by_itself_when_its_time_is_up() {
        let fence = Fence::default();
        fence.open_until(Instant::now() + Duration::from_secs(1));
        tokio::time::advance(Duration::from_millis(999)).await;
        assert!(fence.is_open());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!fence.is_open());
    }
}
