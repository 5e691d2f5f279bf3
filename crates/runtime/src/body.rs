//! Response bodies with timeouts. An API server that crashes during a response closes no connection, and the reader of
//! the response would wait for ever.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use kube::client::Body;
use tokio::time::{Instant, Sleep, sleep};
use tower::{BoxError, Layer, Service};

/// Timeouts of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Longest time without data.
    pub(crate) pause: Duration,
    /// Longest time until it is complete; none for a watch, which does not end.
    pub(crate) whole: Option<Duration>,
}

impl Limits {
    /// Returns the timeouts of the response to a request.
    fn of(request: &Request<Body>) -> Self {
        let is_watch = request.uri().query().is_some_and(|query| query.split('&').any(|one| one == "watch=true"));
        match is_watch {
            true => Self { pause: crate::watch::IDLE_TIMEOUT, whole: None },
            false => Self { pause: Duration::from_secs(30), whole: Some(Duration::from_secs(300)) },
        }
    }
}

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
#[error("the response of the API server stalled: no data, or no end, for {} s", .0.as_secs())]
struct Stalled(Duration);

/// A body with [`Limits`].
pub(crate) struct Timed<B> {
    body: Pin<Box<B>>,
    limits: Limits,
    pause: Pin<Box<Sleep>>,
    whole: Option<Pin<Box<Sleep>>>,
}

impl<B> Timed<B> {
    pub(crate) fn new(body: B, limits: Limits) -> Self {
        let whole = limits.whole.map(|whole| Box::pin(sleep(whole)));
        Self { body: Box::pin(body), limits, pause: Box::pin(sleep(limits.pause)), whole }
    }
}

impl<B> http_body::Body for Timed<B>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let limits = self.limits;
        if let Some(whole) = self.whole.as_mut()
            && whole.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Some(Err(Stalled(limits.whole.unwrap_or_default()).into())));
        }
        if let Poll::Ready(frame) = self.body.as_mut().poll_frame(context) {
            self.pause.as_mut().reset(Instant::now() + limits.pause);
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        self.pause.as_mut().poll(context).map(|()| Some(Err(Stalled(limits.pause).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The layer that limits the responses of a service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing;

impl<S> Layer<S> for Timing {
    type Service = TimedService<S>;

    fn layer(&self, inner: S) -> TimedService<S> {
        TimedService(inner)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct TimedService<S>(S);

impl<S, B> Service<Request<Body>> for TimedService<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: 'static,
{
    type Response = Response<Timed<B>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Timed<B>>, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let limits = Limits::of(&request);
        let answer = self.0.call(request);
        async move { Ok(answer.await?.map(|body| Timed::new(body, limits))) }.boxed()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use futures::{StreamExt, stream};
    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    fn request(uri: &str) -> Request<Body> {
        Request::builder().uri(uri).body(Body::empty()).unwrap()
    }

    /// Reads a body of so many frames with pauses in between, after which it sends nothing and does not end.
    async fn frames_read(frames: u32, pause: Duration, limits: Limits) -> (u32, Duration, String) {
        let stream = stream::iter(0..frames).then(move |_| async move {
            sleep(pause).await;
            Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"x")))
        });
        let mut body = Timed::new(StreamBody::new(stream.chain(stream::pending())), limits);
        let (mut read, began) = (0, Instant::now());
        loop {
            match body.frame().await {
                Some(Ok(_)) => read += 1,
                Some(Err(error)) => return (read, began.elapsed(), error.to_string()),
                None => return (read, began.elapsed(), String::new()),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_stops_in_the_middle_is_given_up() {
        let second = Duration::from_secs(1);
        let limits = Limits::of(&request("/api/v1/namespaces/a/pods?limit=500"));
        let (read, time, problem) = frames_read(3, second, limits).await;
        assert_eq!((read, time), (3, second * 33));
        assert_eq!(problem, "the response of the API server stalled: no data, or no end, for 30 s");
        let (read, time, _) = frames_read(1000, second * 20, limits).await;
        assert_eq!((read, time), (14, second * 300), "even if data arrive slowly");
    }

    #[tokio::test(start_paused = true)]
    async fn watch_may_be_idle_for_as_long_as_it_lasts() {
        let limits = Limits::of(&request("/api/v1/pods?&watch=true&timeoutSeconds=290"));
        let (read, time, _) = frames_read(10, Duration::from_secs(290), limits).await;
        assert_eq!((read, time), (10, Duration::from_secs(2900) + crate::watch::IDLE_TIMEOUT));
    }

    #[tokio::test(start_paused = true)]
    async fn complete_response_is_passed_on() {
        let body = Timed::new(Body::from(b"whole".to_vec()), Limits::of(&request("/version")));
        assert_eq!(body.collect().await.unwrap().to_bytes(), "whole");
    }
}
