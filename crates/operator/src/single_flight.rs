//! Requests that are sent one at a time, however many clients want their response.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};

/// A request of which at most one is in flight. Clients that call meanwhile share its response.
pub(crate) struct SingleFlight<T: Clone> {
    /// For how long a response is returned to later clients.
    reused_for: Duration,
    /// How many clients may wait for a response at once.
    most_waiting: usize,
    last: Arc<Mutex<Option<Flight<T>>>>,
}

/// A request that resolves to its response and the time of that. `None` if its task has panicked.
type Flight<T> = Shared<BoxFuture<'static, Option<(T, Instant)>>>;

impl<T: Clone> Clone for SingleFlight<T> {
    fn clone(&self) -> Self {
        Self { last: self.last.clone(), ..*self }
    }
}

impl<T: Clone + Send + Sync + 'static> SingleFlight<T> {
    /// Shares a response among the clients that wait for it, without caching it.
    pub(crate) fn new() -> Self {
        Self { reused_for: Duration::ZERO, most_waiting: usize::MAX, last: Arc::default() }
    }

    /// Caches a response for `reused_for`, and lets at most `most_waiting` clients wait for it.
    pub(crate) fn cached(reused_for: Duration, most_waiting: usize) -> Self {
        Self { reused_for, most_waiting, last: Arc::default() }
    }

    /// Returns the response to `request`, which is sent if none is in flight. Returns `None` if too many clients wait
    /// for it, or if its task has panicked.
    pub(crate) async fn get<F>(&self, request: impl FnOnce() -> F) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let flight = {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            let current = last.as_ref().filter(|flight| match flight.peek() {
                Some(Some((_, at))) => at.elapsed() < self.reused_for,
                Some(None) => false,
                None => true,
            });
            match current {
                Some(flight) if flight.peek().is_none() && waiting(flight) >= self.most_waiting => return None,
                Some(flight) => flight.clone(),
                None => {
                    let request = request();
                    // In a task of its own, so that it continues when the client that caused it disconnects.
                    let task = tokio::spawn(async move { (request.await, Instant::now()) });
                    last.insert(task.map(Result::ok).boxed().shared()).clone()
                }
            }
        };
        flight.await.map(|(response, _)| response)
    }
}

/// Returns how many clients wait for a response. One more handle is kept for later clients.
fn waiting<T: Clone>(flight: &Flight<T>) -> usize {
    flight.strong_count().unwrap_or(0).saturating_sub(1)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::watch;

    use super::*;

    /// Requests that get their responses when the test says so, and how many there were.
    struct Requests {
        sent: Arc<AtomicUsize>,
        answered: watch::Sender<bool>,
    }

    impl Requests {
        fn new() -> Self {
            Self { sent: Arc::default(), answered: watch::channel(false).0 }
        }

        fn request(&self) -> impl Future<Output = usize> + Send + use<> {
            let number = self.sent.fetch_add(1, Ordering::SeqCst);
            let mut answered = self.answered.subscribe();
            async move {
                answered.wait_for(|answered| *answered).await.unwrap();
                number
            }
        }
    }

    #[tokio::test]
    async fn one_request_is_in_flight_at_a_time() {
        let (flight, requests) = (SingleFlight::new(), Requests::new());
        let mut all = futures::future::join_all((0..9).map(|_| flight.get(|| requests.request()))).boxed_local();
        assert!(futures::poll!(&mut all).is_pending());
        requests.answered.send_replace(true);
        assert_eq!(all.await, [Some(0); 9]);
        assert_eq!(flight.get(|| requests.request()).await, Some(1), "an earlier response is not returned again");
    }

    #[tokio::test]
    async fn cached_response_is_returned_again_and_surplus_clients_do_not_wait() {
        let (flight, requests) = (SingleFlight::cached(Duration::from_secs(3600), 2), Requests::new());
        let mut first = flight.get(|| requests.request()).boxed_local();
        let mut second = flight.get(|| requests.request()).boxed_local();
        assert!(futures::poll!(&mut first).is_pending() && futures::poll!(&mut second).is_pending());
        assert_eq!(flight.get(|| requests.request()).await, None);
        drop(second);
        requests.answered.send_replace(true);
        assert_eq!(first.await, Some(0));
        assert_eq!(flight.get(|| requests.request()).await, Some(0));
        assert_eq!(requests.sent.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn request_continues_without_the_client_that_caused_it() {
        let (flight, requests) = (SingleFlight::cached(Duration::from_secs(3600), 2), Requests::new());
        let mut first = flight.get(|| requests.request()).boxed_local();
        assert!(futures::poll!(&mut first).is_pending());
        drop(first);
        requests.answered.send_replace(true);
        assert_eq!(flight.get(|| requests.request()).await, Some(0));
    }
}
