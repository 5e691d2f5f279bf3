//! Rate limit of status updates.

use std::time::Duration;

use tokio::time::Instant;

/// Shortest interval between two status updates of an object: changes in between are written together.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest interval while only messages change: users and programs do not wait for them.
const DETAILS_INTERVAL: Duration = Duration::from_secs(20);
/// While such updates follow one another, the interval doubles each time, up to this.
const MAX_INTERVAL: Duration = Duration::from_secs(80);

/// What changes in a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusChange {
    /// The status of a condition or a count, for which a user or a program may wait.
    Transition,
    /// Only messages.
    Details,
}

/// When the status of an object was last written, and when it may be written again.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    written: Option<Instant>,
    details_interval: Option<Duration>,
}

impl Pace {
    /// Whether the status was not written yet.
    pub(crate) fn is_new(&self) -> bool {
        self.written.is_none()
    }

    /// Allows the next status update at once.
    pub(crate) fn reset(&mut self) {
        self.written = None;
    }

    /// Returns how long to wait until a change may be written.
    pub(crate) fn wait(&self, change: StatusChange, now: Instant) -> Duration {
        let pause = match change {
            StatusChange::Transition => MIN_INTERVAL,
            StatusChange::Details => self.details_interval.unwrap_or(DETAILS_INTERVAL),
        };
        self.written.map(|written| pause.saturating_sub(now.duration_since(written))).unwrap_or_default()
    }

    /// Records that the status is written now.
    pub(crate) fn record_write(&mut self, change: StatusChange, now: Instant) {
        let last = self.details_interval.unwrap_or(DETAILS_INTERVAL);
        let follows = self.written.is_some_and(|written| now.duration_since(written) < 2 * last);
        self.details_interval = match change {
            _ if !follows => None,
            StatusChange::Transition => self.details_interval,
            StatusChange::Details => Some((2 * last).min(MAX_INTERVAL)),
        };
        self.written = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the seconds at which the status is written if it changes every second.
    fn written(change: StatusChange, seconds: u64) -> Vec<u64> {
        let (mut pace, began) = (Pace::default(), Instant::now());
        let mut written = Vec::new();
        for second in 0..seconds {
            let now = began + Duration::from_secs(second);
            if pace.wait(change, now).is_zero() {
                pace.record_write(change, now);
                written.push(second);
            }
        }
        written
    }

    #[test]
    fn interval_of_details_doubles_up_to_its_limit() {
        assert_eq!(written(StatusChange::Details, 400), [0, 20, 60, 140, 220, 300, 380]);
        assert_eq!(written(StatusChange::Transition, 4), [0, 1, 2, 3]);
    }

    #[test]
    fn transition_does_not_wait_for_details_and_the_interval_is_reset_after_a_while() {
        let (mut pace, began) = (Pace::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        for seconds in [0, 20, 60] {
            pace.record_write(StatusChange::Details, at(seconds));
        }
        assert_eq!(pace.wait(StatusChange::Details, at(61)), Duration::from_secs(79));
        assert_eq!(pace.wait(StatusChange::Transition, at(61)), Duration::ZERO);
        pace.record_write(StatusChange::Transition, at(61));
        assert_eq!(pace.wait(StatusChange::Details, at(61)), MAX_INTERVAL, "details still follow one another");
        pace.record_write(StatusChange::Transition, at(1000));
        assert_eq!(pace.wait(StatusChange::Details, at(1000)), DETAILS_INTERVAL);
        pace.reset();
        assert_eq!(pace.wait(StatusChange::Details, at(1000)), Duration::ZERO);
    }
}
