//! Delays between retries.

use std::time::Duration;

/// Exponential backoff: the delay doubles with every failure in a row.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// Delay after the first failure.
    pub first: Duration,
    /// Longest delay.
    pub longest: Duration,
}

impl Backoff {
    /// The backoff of objects that a controller requeues.
    pub const DEFAULT: Self = Self { first: Duration::from_millis(500), longest: Duration::from_secs(300) };

    /// Returns the delay after `failures` in a row.
    pub fn delay(self, failures: u32) -> Duration {
        let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(doubled).min(self.longest)
    }

    /// Returns the delay that follows `last`, for callers that keep the delay instead of the number of failures.
    pub fn delay_after(self, last: Duration) -> Duration {
        last.saturating_mul(2).min(self.longest)
    }

    /// Returns the delay after `failures` in a row with jitter: `chance`, from 0 to 1, spreads what failed together over
    /// the second half of the delay.
    pub fn wait(self, failures: u32, chance: f64) -> Duration {
        self.delay(failures).mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn delay_doubles_up_to_its_limit() {
        let backoff = Backoff { first: SECOND, longest: SECOND * 60 };
        let mut delay = SECOND;
        for (failures, seconds) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32), (7, 60), (8, 60)] {
            assert_eq!(backoff.delay(failures), SECOND * seconds, "after {failures}");
            assert_eq!(delay, backoff.delay(failures), "after {failures}, by the delay before");
            delay = backoff.delay_after(delay);
        }
        assert_eq!(backoff.delay(0), SECOND);
        for failures in [31, 32, 33, 34, u32::MAX] {
            assert_eq!(backoff.delay(failures), SECOND * 60, "after {failures}");
        }
        assert_eq!(backoff.delay_after(Duration::MAX), SECOND * 60);
        for (chance, seconds) in [(0.0, 4), (0.5, 6), (1.0, 8), (-1.0, 4), (2.0, 8)] {
            assert_eq!(backoff.wait(4, chance), SECOND * seconds, "by a chance of {chance}");
        }
    }
}
