//! Whether the API server answers. It is told once when it stops, and once when it begins again; whoever meets the same
//! trouble meanwhile need not tell it too.

use std::{
    error::Error as StdError,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::StatusCode;
use tokio::time::Instant;
use tracing::{debug, info, info_span, span::EnteredSpan, warn};

use crate::fence::NotLeading;

/// How long an API server may take to start, once it answers.
const START: Duration = Duration::from_secs(30);

/// The API server answers, but is not all there yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the API server is starting")]
pub(crate) struct Starting;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// Nothing is heard from it.
    Silence,
    /// It answers, but does not know who asks.
    Unknown,
}

/// How it stands with the API server. Clones are of the same mind.
#[derive(Clone, Debug)]
pub(crate) struct Contact(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    trouble: Option<(Trouble, Instant)>,
    answered: Instant,
    /// When the last trouble was over.
    recovered: Option<Instant>,
    /// What was wrong with the source when it was last read anew.
    unusable: String,
}

impl Contact {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            trouble: None,
            answered: Instant::now(),
            recovered: None,
            unusable: String::new(),
        })))
    }

    /// It answered with this code.
    pub(crate) fn answered(&self, code: StatusCode) {
        self.locked().answered = Instant::now();
        if code == StatusCode::UNAUTHORIZED {
            if self.begins(Trouble::Unknown) {
                let _apart = apart();
                warn!(
                    "the API server does not know this client: its certificate or token has run out or was withdrawn. \
                     Replace it; it is read again without a restart"
                );
            }
            return;
        }
        if let Some((trouble, seconds)) = self.ends() {
            let _apart = apart();
            match trouble {
                Trouble::Silence => info!(seconds, "the API server answers again"),
                Trouble::Unknown => info!(seconds, "the API server knows this client again"),
            }
        }
    }

    /// Whether an answer with this code says no more than that the API server is not all there yet: one that starts serves
    /// some kinds before others.
    pub(crate) fn is_starting(&self, code: StatusCode) -> bool {
        let state = self.locked();
        let is_shaky = state.trouble.is_some() || state.recovered.is_some_and(|when| when.elapsed() < START);
        is_shaky && matches!(code, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS)
    }

    /// A request could not be sent, or its answer did not come.
    pub(crate) fn failed(&self, problem: &str) {
        if self.begins(Trouble::Silence) {
            let _apart = apart();
            warn!(problem, "the API server cannot be reached; trying again until it can");
        }
    }

    /// A request that was sent at `sent` is not answered yet. That is trouble if no other was answered since.
    pub(crate) fn is_slow(&self, sent: Instant) {
        if self.locked().answered < sent {
            self.failed(&format!("no answer for {} s", sent.elapsed().as_secs()));
        }
    }

    /// What came of reading the source anew.
    pub(crate) fn read_anew(&self, problem: Option<String>) {
        let problem = problem.unwrap_or_default();
        let before = std::mem::replace(&mut self.locked().unusable, problem.clone());
        let _apart = apart();
        if problem == before {
            debug!(problem, "the way to the API server was read anew");
        } else if problem.is_empty() {
            info!("the way to the API server can be read again");
        } else {
            warn!(problem, "the way to the API server cannot be read anew; the old one is used until it can");
        }
    }

    /// Whether this trouble is new.
    fn begins(&self, trouble: Trouble) -> bool {
        let mut state = self.locked();
        let is_new = state.trouble.is_none_or(|(known, _)| known != trouble);
        if is_new {
            state.trouble = Some((trouble, Instant::now()));
        }
        is_new
    }

    /// The trouble that is over now, if there was any, and how many seconds it lasted.
    fn ends(&self) -> Option<(Trouble, u64)> {
        let mut state = self.locked();
        let ended = state.trouble.take().map(|(trouble, since)| (trouble, since.elapsed().as_secs()));
        if ended.is_some() {
            state.recovered = Some(Instant::now());
        }
        ended
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is told while this is held is no matter of the object that is worked on.
fn apart() -> EnteredSpan {
    info_span!(parent: None, "connection").entered()
}

/// Whether an error is of a kind that is told here, or nothing to tell: whoever meets it need not tell it again.
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
    async fn trouble_is_told_once_and_so_is_its_end() {
        let contact = Contact::new();
        assert_eq!(contact.ends(), None, "all is well at first");
        assert!(contact.begins(Trouble::Silence));
        tokio::time::advance(Duration::from_secs(7)).await;
        assert!(!contact.begins(Trouble::Silence), "no news");
        assert!(contact.begins(Trouble::Unknown), "another trouble is news");
        assert!(contact.begins(Trouble::Silence));
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(contact.ends(), Some((Trouble::Silence, 3)));
        assert_eq!(contact.ends(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_is_no_silence_while_others_are_answered() {
        let contact = Contact::new();
        tokio::time::advance(Duration::from_secs(1)).await;
        let sent = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        contact.answered(StatusCode::OK);
        contact.is_slow(sent);
        assert_eq!(contact.ends(), None);
        let sent = Instant::now() + Duration::from_secs(1);
        tokio::time::advance(Duration::from_secs(4)).await;
        contact.is_slow(sent);
        assert_eq!(contact.ends(), Some((Trouble::Silence, 0)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_comes_back_may_take_a_while_to_serve_everything() {
        let contact = Contact::new();
        let busy = StatusCode::SERVICE_UNAVAILABLE;
        assert!(!contact.is_starting(busy), "nothing was wrong before");
        contact.failed("connection refused");
        assert!(
            contact.is_starting(StatusCode::TOO_MANY_REQUESTS),
            "lists are told to wait for the storage in this way"
        );
        assert!(contact.is_starting(busy) && !contact.is_starting(StatusCode::FORBIDDEN));
        contact.answered(StatusCode::OK);
        assert!(contact.is_starting(busy));
        tokio::time::advance(START).await;
        assert!(!contact.is_starting(busy), "by now it should have started");
    }

    #[test]
    fn an_error_is_told_here_if_nothing_was_answered_or_the_client_is_not_known() {
        let refused = |code: u16| kube::Error::Api(Box::new(Status { code, ..Status::default() }));
        assert!(is_reported_elsewhere(&kube::Error::Service("connection refused".into())));
        assert!(is_reported_elsewhere(&refused(401)));
        assert!(!is_reported_elsewhere(&refused(403)));
        assert!(is_reported_elsewhere(&NotLeading));
        let watching = kube::runtime::watcher::Error::WatchFailed(kube::Error::Service("gone".into()));
        assert!(is_reported_elsewhere(&watching), "whoever wraps it");
        assert!(!is_reported_elsewhere(&std::io::Error::other("disk")));
    }
}
