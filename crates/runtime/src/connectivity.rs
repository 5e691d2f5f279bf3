//! Whether the API server can be reached. The start and the end of an outage are logged once each, so that the errors
//! of single requests meanwhile need no warnings.

use std::{
    error::Error as StdError,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::StatusCode;
use tokio::time::Instant;
use tracing::{debug, info, info_span, span::EnteredSpan, warn};

use crate::fence::NotLeading;

/// How long an API server may take to serve all kinds, once it answers.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The API server answers, but does not serve all kinds yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the API server is starting")]
pub(crate) struct Starting;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    /// The API server does not answer.
    Unreachable,
    /// The API server answers 401 Unauthorized.
    Unauthorized,
}

/// The state of the connection to the API server. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Connectivity(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    outage: Option<(Outage, Instant)>,
    answered: Instant,
    /// When the last outage ended.
    recovered: Option<Instant>,
    /// The error of the last reload of the configuration; empty if it succeeded.
    reload_error: String,
}

impl Connectivity {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            outage: None,
            answered: Instant::now(),
            recovered: None,
            reload_error: String::new(),
        })))
    }

    /// Records that the API server answered with this code.
    pub(crate) fn answered(&self, code: StatusCode) {
        self.locked().answered = Instant::now();
        if code == StatusCode::UNAUTHORIZED {
            if self.begin_outage(Outage::Unauthorized) {
                let _span = connection_span();
                warn!(
                    "the API server rejects this client (401 Unauthorized): its certificate or token has expired or \
                     was revoked. Replace it; the operator reads it again without a restart"
                );
            }
            return;
        }
        if let Some((outage, seconds)) = self.end_outage() {
            let _span = connection_span();
            match outage {
                Outage::Unreachable => info!(seconds, "the API server answers again"),
                Outage::Unauthorized => info!(seconds, "the API server accepts this client again"),
            }
        }
    }

    /// Whether an answer with this code only means that the API server is starting: it serves some kinds before others.
    pub(crate) fn is_starting(&self, code: StatusCode) -> bool {
        let state = self.locked();
        let may_be_starting =
            state.outage.is_some() || state.recovered.is_some_and(|when| when.elapsed() < START_TIMEOUT);
        may_be_starting && matches!(code, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS)
    }

    /// Records that a request could not be sent, or was not answered.
    pub(crate) fn failed(&self, problem: &str) {
        if self.begin_outage(Outage::Unreachable) {
            let _span = connection_span();
            warn!(problem, "the API server cannot be reached; retrying");
        }
    }

    /// Records that a request of time `sent` is not answered yet. That is an outage if no other was answered since.
    pub(crate) fn is_slow(&self, sent: Instant) {
        if self.locked().answered < sent {
            self.failed(&format!("no answer for {} s", sent.elapsed().as_secs()));
        }
    }

    /// Records the result of a reload of the client's configuration.
    pub(crate) fn reloaded(&self, problem: Option<String>) {
        let problem = problem.unwrap_or_default();
        let before = std::mem::replace(&mut self.locked().reload_error, problem.clone());
        let _span = connection_span();
        if problem == before {
            debug!(problem, "reloaded the configuration of the API server");
        } else if problem.is_empty() {
            info!("the configuration of the API server can be reloaded again");
        } else {
            warn!(problem, "the configuration of the API server cannot be reloaded; using the previous one");
        }
    }

    /// Records an outage. Returns whether it is new.
    fn begin_outage(&self, outage: Outage) -> bool {
        let mut state = self.locked();
        let is_new = state.outage.is_none_or(|(known, _)| known != outage);
        if is_new {
            state.outage = Some((outage, Instant::now()));
        }
        is_new
    }

    /// Ends the outage, if there is one. Returns it and its duration in seconds.
    fn end_outage(&self) -> Option<(Outage, u64)> {
        let mut state = self.locked();
        let ended = state.outage.take().map(|(outage, since)| (outage, since.elapsed().as_secs()));
        if ended.is_some() {
            state.recovered = Some(Instant::now());
        }
        ended
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Enters a span without a parent: messages in it do not concern the object that is being reconciled.
fn connection_span() -> EnteredSpan {
    info_span!(parent: None, "connection").entered()
}

/// Whether an error needs no warning, because this module reports it as an outage, or because the process is not the
/// leader.
pub(crate) fn is_reported_elsewhere(error: &(dyn StdError + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        match error.downcast_ref::<kube::Error>() {
            Some(kube::Error::Service(_)) => return true,
            Some(kube::Error::Api(status)) => return status.code == StatusCode::UNAUTHORIZED,
            _ if error.is::<NotLeading>() => return true,
            _ => cause = error.source(),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn outage_and_its_end_are_reported_once() {
        let connectivity = Connectivity::new();
        assert_eq!(connectivity.end_outage(), None, "there is no outage at first");
        assert!(connectivity.begin_outage(Outage::Unreachable));
        tokio::time::advance(Duration::from_secs(7)).await;
        assert!(!connectivity.begin_outage(Outage::Unreachable), "it is the same outage");
        assert!(connectivity.begin_outage(Outage::Unauthorized), "it is another outage");
        assert!(connectivity.begin_outage(Outage::Unreachable));
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(connectivity.end_outage(), Some((Outage::Unreachable, 3)));
        assert_eq!(connectivity.end_outage(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_answer_is_no_outage_while_other_requests_are_answered() {
        let connectivity = Connectivity::new();
        tokio::time::advance(Duration::from_secs(1)).await;
        let sent = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        connectivity.answered(StatusCode::OK);
        connectivity.is_slow(sent);
        assert_eq!(connectivity.end_outage(), None);
        let sent = Instant::now() + Duration::from_secs(1);
        tokio::time::advance(Duration::from_secs(4)).await;
        connectivity.is_slow(sent);
        assert_eq!(connectivity.end_outage(), Some((Outage::Unreachable, 0)));
    }

    #[tokio::test(start_paused = true)]
    async fn api_server_may_take_a_while_to_serve_everything_after_an_outage() {
        let connectivity = Connectivity::new();
        let busy = StatusCode::SERVICE_UNAVAILABLE;
        assert!(!connectivity.is_starting(busy), "there was no outage before");
        connectivity.failed("connection refused");
        assert!(
            connectivity.is_starting(StatusCode::TOO_MANY_REQUESTS),
            "the answer to lists while the storage initializes"
        );
        assert!(connectivity.is_starting(busy) && !connectivity.is_starting(StatusCode::FORBIDDEN));
        connectivity.answered(StatusCode::OK);
        assert!(connectivity.is_starting(busy));
        tokio::time::advance(START_TIMEOUT).await;
        assert!(!connectivity.is_starting(busy), "by now it should have started");
    }

    #[test]
    fn unanswered_and_unauthorized_requests_are_reported_as_outages() {
        let refused = |code: u16| kube::Error::Api(Box::new(Status { code, ..Status::default() }));
        assert!(is_reported_elsewhere(&kube::Error::Service("connection refused".into())));
        assert!(is_reported_elsewhere(&refused(401)));
        assert!(!is_reported_elsewhere(&refused(403)));
        assert!(is_reported_elsewhere(&NotLeading));
        let watching = kube::runtime::watcher::Error::WatchFailed(kube::Error::Service("gone".into()));
        assert!(is_reported_elsewhere(&watching), "even if it is wrapped");
        assert!(!is_reported_elsewhere(&std::io::Error::other("disk")));
    }
}
