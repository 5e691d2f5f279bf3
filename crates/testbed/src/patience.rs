//! Deadlines on a host whose processors others take away for minutes.

use std::{
    fs,
    time::{Duration, Instant},
};

/// How often the limit may pass anew because something changed, before it is over all the same.
const LONGEST: u32 = 5;

/// A limit of time without progress. Time in which the processors of this host were somebody else's does not count.
#[derive(Debug)]
pub struct Patience {
    limit: Duration,
    began: Moment,
    progressed: Moment,
}

impl Patience {
    /// Lasts for `limit` from now on, unless there is progress.
    pub fn new(limit: Duration) -> Self {
        let now = Moment::now();
        Self { limit, began: now, progressed: now }
    }

    /// Something changed: the limit counts from now on. Changes that go on without end do not extend it for ever.
    pub fn progress(&mut self) {
        self.progressed = Moment::now();
    }

    /// How much of it is left; none when it is over.
    pub fn left(&self) -> Option<Duration> {
        let since_progress = self.limit.checked_sub(self.progressed.usable())?;
        let in_all = (self.limit * LONGEST).checked_sub(self.began.usable())?;
        Some(since_progress.min(in_all)).filter(|left| !left.is_zero())
    }

    /// How long it has lasted, as a clock on the wall tells.
    pub fn waited(&self) -> Duration {
        self.began.elapsed()
    }
}

/// A moment, and what the processors had done by then.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    at: Instant,
    processors: Processors,
}

impl Moment {
    /// This one.
    pub fn now() -> Self {
        Self { at: Instant::now(), processors: Processors::now() }
    }

    /// The time since then, as a clock on the wall tells.
    pub fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }

    /// The time since then in which the processors were there for this host.
    pub fn usable(&self) -> Duration {
        self.at.elapsed().mul_f64(1.0 - self.stolen())
    }

    /// Which part of the processors' time since then was taken away, from 0 to 1.
    pub fn stolen(&self) -> f64 {
        Processors::now().stolen_since(self.processors)
    }
}

/// What the processors have done since the host started, in hundredths of a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Processors {
    all: u64,
    stolen: u64,
}

impl Processors {
    /// All zeros where the kernel does not say.
    fn now() -> Self {
        fs::read_to_string("/proc/stat").ok().and_then(|text| Self::read(&text)).unwrap_or_default()
    }

    /// Which part of the time since then was taken away, from 0 to 1.
    fn stolen_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all);
        let stolen = self.stolen.saturating_sub(before.stolen);
        if all == 0 { 0.0 } else { (stolen as f64 / all as f64).min(1.0) }
    }

    /// "cpu  user nice system idle iowait irq softirq steal guest guest_nice": guests are in user and nice already.
    fn read(text: &str) -> Option<Self> {
        let numbers = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
        let numbers: Vec<u64> = numbers.map(|number| number.parse().ok()).collect::<Option<_>>()?;
        Some(Self { all: numbers.iter().sum(), stolen: *numbers.get(7)? })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn guests_are_not_counted_twice() {
        let read = Processors::read("cpu  10 20 30 40 5 1 2 100 7 8\ncpu0 1 1 1 1 1 1 1 1 1 1").unwrap();
        assert_eq!(read, Processors { all: 208, stolen: 100 });
        assert_eq!(Processors::read("intr 1 2 3"), None);
    }

    #[test]
    fn the_stolen_part_is_that_of_the_time_since_then() {
        let before = Processors { all: 1000, stolen: 500 };
        assert_eq!(Processors { all: 2000, stolen: 1400 }.stolen_since(before), 0.9);
        assert_eq!(before.stolen_since(before), 0.0);
        assert_eq!(Processors::default().stolen_since(before), 0.0, "where the kernel does not say");
    }

    #[test]
    fn progress_extends_a_limit_but_not_for_ever() {
        let ago = |seconds| Moment { at: Instant::now() - Duration::from_secs(seconds), ..Moment::now() };
        let patience = |began, progressed| Patience {
            limit: Duration::from_secs(10),
            began: ago(began),
            progressed: ago(progressed),
        };
        assert!(patience(30, 5).left().is_some(), "it went on five seconds ago");
        assert!(patience(30, 11).left().is_none(), "nothing has changed for eleven seconds");
        assert!(patience(60, 1).left().is_none(), "it has gone on for five times the limit");
    }
}
