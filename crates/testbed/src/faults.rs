//! Injects faults between a program and the API server, as a layer of its client.
//!
//! A test decides for each request whether and how it fails. Nothing is random.

use std::{
    collections::HashMap,
    fmt::{self, Debug},
    future::pending,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header::USER_AGENT};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::client::Body;
use serde_json::json;
use tokio::sync::Notify;
use tower::{BoxError, Layer, Service};

/// A request to the API server, as rules see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiRequest {
    /// The HTTP method.
    pub method: Method,
    /// The URI, with its query.
    pub uri: Uri,
    /// Its number among writes, from 0; none for reads.
    pub write: Option<usize>,
    /// Whether it is a watch.
    pub is_watch: bool,
    /// Whether it requests all objects, as a list or as the beginning of a watch.
    pub is_list: bool,
}

/// The fault of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    None,
    /// The response has this status code, and the request is not carried out.
    Fail(StatusCode),
    /// The request does not reach the API server.
    LoseRequest,
    /// The request is carried out, and the response is lost.
    LoseReply,
    /// The request is sent after this time.
    Delay(Duration),
    /// The program crashes before the request is sent.
    CrashBefore,
    /// The program crashes after the request was carried out, before the response arrives.
    CrashAfter,
    /// The request is sent when [`Faults::release`] is called.
    Hold,
    /// A watch ends after this number of lines.
    CutAfter(usize),
    /// A watch that begins with a list ends this number of lines after the list.
    CutAfterList(usize),
    /// Each line of a watch is delayed by this time.
    DelayLines(Duration),
    /// A list has the same response as the first time, and a watch that begins with it ends after it.
    OldList,
}

type Rule = Box<dyn Fn(&ApiRequest) -> Fault + Send + Sync>;

/// A layer that injects faults. Clones share their counts and recorded responses, so that they can outlive the program.
#[derive(Clone)]
pub struct Faults(Arc<State>);

struct State {
    rule: Mutex<Rule>,
    writes: AtomicUsize,
    crashed: Notify,
    held: Notify,
    released: Notify,
    /// The user agent of all requests.
    name: Option<HeaderValue>,
    /// First responses to lists, by URI.
    lists: Mutex<HashMap<String, Vec<u8>>>,
    log: Mutex<Vec<String>>,
    /// Requests besides watches.
    requests: Mutex<Vec<String>>,
}

impl Debug for Faults {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Faults").field("writes", &self.writes()).finish_non_exhaustive()
    }
}

impl Faults {
    /// Injects the faults that `rule` returns.
    pub fn new(rule: impl Fn(&ApiRequest) -> Fault + Send + Sync + 'static) -> Self {
        Self::with_name(None, rule)
    }

    /// Injects the faults that `rule` returns. Each request has the user agent `name`, for the audit log.
    pub fn named(name: &str, rule: impl Fn(&ApiRequest) -> Fault + Send + Sync + 'static) -> Self {
        Self::with_name(HeaderValue::from_str(name).ok(), rule)
    }

    fn with_name(name: Option<HeaderValue>, rule: impl Fn(&ApiRequest) -> Fault + Send + Sync + 'static) -> Self {
        Self(Arc::new(State {
            rule: Mutex::new(Box::new(rule)),
            writes: AtomicUsize::new(0),
            crashed: Notify::new(),
            held: Notify::new(),
            released: Notify::new(),
            name,
            lists: Mutex::default(),
            log: Mutex::default(),
            requests: Mutex::default(),
        }))
    }

    /// No faults; requests are counted.
    pub fn none() -> Self {
        Self::new(|_| Fault::None)
    }

    /// Replaces the rule.
    pub fn follow(&self, rule: impl Fn(&ApiRequest) -> Fault + Send + Sync + 'static) {
        *self.0.rule.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(rule);
    }

    /// The number of writes.
    pub fn writes(&self) -> usize {
        self.0.writes.load(Ordering::SeqCst)
    }

    /// The writes in order: method and path.
    pub fn written(&self) -> Vec<String> {
        self.0.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The requests other than watches, in order: method and path.
    pub fn requested(&self) -> Vec<String> {
        self.0.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The number of requests other than watches.
    pub fn requests(&self) -> usize {
        self.0.requests.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Waits until a request is held.
    pub async fn held(&self) {
        self.0.held.notified().await;
    }

    /// Releases the held request, or the next one that will be held.
    pub fn release(&self) {
        self.0.released.notify_one();
    }

    /// Waits until a rule injects a crash. The test that runs the program then ends it.
    pub async fn crashed(&self) {
        self.0.crashed.notified().await;
    }

    fn asked(&self, request: &Request<Body>) -> ApiRequest {
        let query = request.uri().query().unwrap_or_default();
        let has = |pair: &str| query.split('&').any(|one| one == pair);
        let is_write = !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        let write = is_write.then(|| self.0.writes.fetch_add(1, Ordering::SeqCst));
        let line = format!("{} {}", request.method(), request.uri().path());
        if !has("watch=true") {
            self.0.requests.lock().unwrap_or_else(PoisonError::into_inner).push(line.clone());
        }
        if is_write {
            self.0.log.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
        ApiRequest {
            method: request.method().clone(),
            uri: request.uri().clone(),
            write,
            is_watch: has("watch=true"),
            is_list: has("sendInitialEvents=true") || (has("limit=500") && !has("watch=true")),
        }
    }

    async fn crash<T>(&self) -> T {
        self.0.crashed.notify_one();
        pending().await
    }

    fn remembered(&self, address: &str) -> Option<Vec<u8>> {
        self.0.lists.lock().unwrap_or_else(PoisonError::into_inner).get(address).cloned()
    }
}

impl<S> Layer<S> for Faults {
    type Service = Faulty<S>;

    fn layer(&self, inner: S) -> Faulty<S> {
        Faulty { inner, faults: self.clone() }
    }
}

/// A client service with faults.
#[derive(Clone, Debug)]
pub struct Faulty<S> {
    inner: S,
    faults: Faults,
}

/// The body of a response that a fault may have changed.
pub type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;

fn lost(what: &str) -> BoxError {
    io::Error::new(io::ErrorKind::ConnectionReset, what.to_owned()).into()
}

impl<S> Service<Request<Body>> for Faulty<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<ResponseBody>, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let faults = self.faults.clone();
        if let Some(name) = &faults.0.name {
            request.headers_mut().insert(USER_AGENT, name.clone());
        }
        // The service that reported to be ready has to be used, not its clone.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        async move {
            let asked = faults.asked(&request);
            let fault = (faults.0.rule.lock().unwrap_or_else(PoisonError::into_inner))(&asked);
            let address = asked.uri.to_string();
            match fault {
                Fault::None if asked.is_list => Ok(remember(inner.call(request).await?, &asked, faults)),
                Fault::None => inner.call(request).await.map(unchanged),
                Fault::Fail(code) => refusal(code),
                Fault::LoseRequest => Err(lost("the request was lost")),
                Fault::LoseReply => {
                    drop(whole(inner.call(request).await?).await?);
                    Err(lost("the reply was lost"))
                }
                Fault::Delay(time) => {
                    tokio::time::sleep(time).await;
                    inner.call(request).await.map(unchanged)
                }
                Fault::CrashBefore => faults.crash().await,
                Fault::CrashAfter => {
                    drop(whole(inner.call(request).await?).await?);
                    faults.crash().await
                }
                Fault::Hold => {
                    faults.0.held.notify_one();
                    faults.0.released.notified().await;
                    inner.call(request).await.map(unchanged)
                }
                Fault::CutAfterList(lines) => {
                    let mut left = None;
                    Ok(by_line(inner.call(request).await?, move |_, line| {
                        match &mut left {
                            Some(0) => return false,
                            Some(left) => *left -= 1,
                            None => left = is_end_of_list(line).then_some(lines),
                        }
                        true
                    }))
                }
                Fault::CutAfter(lines) => Ok(by_line(inner.call(request).await?, move |line, _| line < lines)),
                Fault::DelayLines(time) => Ok(delayed(inner.call(request).await?, time)),
                Fault::OldList => match faults.remembered(&address) {
                    Some(old) => Ok(Response::new(said(old))),
                    None => Ok(remember(inner.call(request).await?, &asked, faults)),
                },
            }
        }
        .boxed()
    }
}

/// Reads a response to its end: only then it is certain that the request was carried out.
async fn whole(response: Response<Body>) -> Result<Bytes, BoxError> {
    Ok(response.into_body().collect().await?.to_bytes())
}

fn unchanged(response: Response<Body>) -> Response<ResponseBody> {
    response.map(|body| body.map_err(BoxError::from).boxed_unsync())
}

fn said(text: Vec<u8>) -> ResponseBody {
    Full::from(text).map_err(|never| match never {}).boxed_unsync()
}

fn refusal(code: StatusCode) -> Result<Response<ResponseBody>, BoxError> {
    let reason = match code {
        StatusCode::CONFLICT => "Conflict",
        StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
        _ => "InternalError",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "a fault injected by a test", "reason": reason, "code": code.as_u16(),
    });
    let text = status.to_string().into_bytes();
    Ok(Response::builder().status(code).header("content-type", "application/json").body(said(text))?)
}

/// Forwards lines as long as `goes_on` returns true, which gets the number of earlier lines and the line.
fn by_line(
    response: Response<Body>,
    goes_on: impl FnMut(usize, &[u8]) -> bool + Send + 'static,
) -> Response<ResponseBody> {
    response.map(|body| {
        let chunks = body.into_data_stream();
        let start = (Box::pin(chunks), Vec::<u8>::new(), 0_usize, goes_on);
        let lines = stream::unfold(start, |(mut chunks, mut rest, mut count, mut goes_on)| async move {
            loop {
                if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = rest.drain(..=end).collect();
                    if !goes_on(count, &line) {
                        return None;
                    }
                    count += 1;
                    let frame = Ok::<_, BoxError>(http_body::Frame::data(Bytes::from(line)));
                    return Some((frame, (chunks, rest, count, goes_on)));
                }
                match chunks.next().await? {
                    Ok(chunk) => rest.extend_from_slice(&chunk),
                    Err(error) => return Some((Err(error.into()), (chunks, rest, count, goes_on))),
                }
            }
        });
        StreamBody::new(lines).boxed_unsync()
    })
}

fn delayed(response: Response<Body>, time: Duration) -> Response<ResponseBody> {
    by_line(response, |_, _| true).map(|body| {
        let frames = body.into_data_stream().then(move |chunk| async move {
            tokio::time::sleep(time).await;
            chunk.map(http_body::Frame::data)
        });
        StreamBody::new(frames).boxed_unsync()
    })
}

/// Records the first response to a list.
fn remember(response: Response<Body>, asked: &ApiRequest, faults: Faults) -> Response<ResponseBody> {
    let address = asked.uri.to_string();
    if !response.status().is_success() || !asked.is_watch || faults.remembered(&address).is_some() {
        return unchanged(response);
    }
    let mut so_far = Some(Vec::new());
    by_line(response, move |_, line| {
        if let Some(lines) = &mut so_far {
            lines.extend_from_slice(line);
            if is_end_of_list(line)
                && let Some(lines) = so_far.take()
            {
                faults.0.lists.lock().unwrap_or_else(PoisonError::into_inner).insert(address.clone(), lines);
            }
        }
        true
    })
}

fn is_end_of_list(line: &[u8]) -> bool {
    line.windows(INITIAL_EVENTS_END.len()).any(|window| window == INITIAL_EVENTS_END)
}

const INITIAL_EVENTS_END: &[u8] = b"k8s.io/initial-events-end";
