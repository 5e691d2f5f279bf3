//! An HTTP server for probes and unauthenticated clients: whatever a client does, the kubelet's probes are answered.
//!
//! Each connection serves one request. There are at most [`MOST_CONNECTIONS`]; one more takes the place of the oldest
//! one that is not a probe, such as one that sends its request slowly, or does not read its response. Probes are never
//! closed in favor of others: they are answered within seconds. Nor is a connection that is new, because it may be a
//! probe.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    error::Error,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{Request, Response};
use http_body::Body;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::{AbortHandle, yield_now},
    time::{Instant, sleep, timeout},
};
use tracing::{debug, warn};

/// How many connections are open at a time. The probe of a node has 40Mi of memory; with [`MOST_BUFFERED`] they take a
/// tenth of that.
pub const MOST_CONNECTIONS: usize = 128;
/// Bytes that are read of a request before it is refused as too large.
const MOST_BUFFERED: usize = 16 << 10;
/// How long a client may take to send its request. The kubelet sends it at once.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a connection may be open. The kubelet waits for a probe for 30 seconds at most.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(40);
/// For how long a connection is new. As long as all connections are new, this limits how many are accepted: a full
/// queue of the kernel, 1024, is worked off in two seconds.
const NEW: Duration = Duration::from_millis(250);
/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// What the kubelet requests.
const PROBES: [&str; 2] = ["/healthz", "/readyz"];

/// Serves requests for ever.
pub async fn serve<F, A, B>(listener: TcpListener, answer: F) -> Infallible
where
    F: Fn(Request<Incoming>) -> A + Clone + Send + 'static,
    A: Future<Output = Response<B>> + Send,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let connections = Connections::default();
    let mut number = 0;
    loop {
        connections.make_room().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                number += 1;
                connections.open(number, stream, answer.clone());
            }
            Err(error) => {
                warn!(%error, "a connection cannot be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
        // Other tasks run in between, however many connections there are to accept.
        yield_now().await;
    }
}

/// The connections that are open.
#[derive(Clone, Default)]
struct Connections {
    /// By number, so the oldest first.
    open: Arc<Mutex<BTreeMap<u64, Connection>>>,
    /// One was closed, or may be.
    closed: Arc<Notify>,
}

struct Connection {
    task: AbortHandle,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    /// It was accepted then, and its request is not read yet.
    Accepted(Instant),
    /// It waits for the response to a probe.
    Probe,
    /// It waits for the response to another request, or for its client to read a response.
    Other,
}

impl State {
    /// For how long it may not be closed in favor of others; none where that is not known.
    fn protected_for(self) -> Option<Duration> {
        match self {
            Self::Accepted(at) => Some(NEW.saturating_sub(at.elapsed())),
            Self::Probe => None,
            Self::Other => Some(Duration::ZERO),
        }
    }
}

impl Connections {
    /// Waits until another connection may be accepted.
    async fn make_room(&self) {
        while let Err(pause) = self.close_oldest() {
            // Something may be closed before.
            let _ = timeout(pause, self.closed.notified()).await;
        }
    }

    /// Closes the oldest connection that may be closed, if there are as many as there may be. Where none may, says when
    /// to try again.
    fn close_oldest(&self) -> Result<(), Duration> {
        let mut open = self.lock();
        if open.len() < MOST_CONNECTIONS {
            return Ok(());
        }
        let protected = open.iter().filter_map(|(number, one)| Some((one.state.protected_for()?, *number)));
        match protected.min() {
            Some((Duration::ZERO, oldest)) => {
                if let Some(connection) = open.remove(&oldest) {
                    connection.task.abort();
                    debug!("too many connections: the oldest one is closed");
                }
                Ok(())
            }
            Some((pause, _)) => Err(pause),
            None => Err(CONNECTION_TIMEOUT),
        }
    }

    fn open<F, A, B>(&self, number: u64, stream: TcpStream, answer: F)
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + 'static,
        A: Future<Output = Response<B>> + Send,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let place = Place { connections: self.clone(), number };
        // Held until the connection is noted, so that it cannot end before.
        let mut open = self.lock();
        let task = tokio::spawn(async move {
            let place = &place;
            let service = service_fn(move |request: Request<Incoming>| {
                let answer = answer.clone();
                async move {
                    let is_probe = PROBES.contains(&request.uri().path());
                    place.set(if is_probe { State::Probe } else { State::Other });
                    let response = answer(request).await;
                    place.set(State::Other);
                    Ok::<_, Infallible>(response)
                }
            });
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT);
            server.keep_alive(false).max_buf_size(MOST_BUFFERED);
            match timeout(CONNECTION_TIMEOUT, server.serve_connection(TokioIo::new(stream), service)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(%error, "a connection broke"),
                Err(_) => debug!("a connection was open for too long"),
            }
        });
        open.insert(number, Connection { task: task.abort_handle(), state: State::Accepted(Instant::now()) });
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Connection>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one connection among those that are open, which it has as long as this lives.
struct Place {
    connections: Connections,
    number: u64,
}

impl Place {
    fn set(&self, state: State) {
        if let Some(connection) = self.connections.lock().get_mut(&self.number) {
            connection.state = state;
        }
        if matches!(state, State::Other) {
            self.connections.closed.notify_one();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.lock().remove(&self.number);
        self.connections.closed.notify_one();
    }
}
