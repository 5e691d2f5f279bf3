//! Deadlines on a host whose CPUs other hosts may take for minutes (steal time).

use std::{
    fs,
    time::{Duration, Instant},
};

/// How many times its limit a deadline may last at most, with progress.
const LONGEST: u32 = 5;

/// A limit of time without progress. Steal time of this host's CPUs does not count.
#[derive(Debug)]
pub struct Deadline {
    limit: Duration,
    began: Moment,
    progressed: Moment,
}

impl Deadline {
    /// A deadline that ends `limit` after now, unless there is progress.
    pub fn new(limit: Duration) -> Self {
        let now = Moment::now();
        Self { limit, began: now, progressed: now }
    }

    /// Restarts the limit, because something changed. Endless changes do not extend it for ever.
    pub fn progress(&mut self) {
        self.progressed = Moment::now();
    }

    /// The remaining time; none when the limit is exceeded.
    pub fn left(&self) -> Option<Duration> {
        let since_progress = self.limit.checked_sub(self.progressed.usable())?;
        let in_all = (self.limit * LONGEST).checked_sub(self.began.usable())?;
        Some(since_progress.min(in_all)).filter(|left| !left.is_zero())
    }

    /// The wall-clock time since the beginning.
    pub fn waited(&self) -> Duration {
        self.began.elapsed()
    }
}

/// A moment, with the counters of the CPUs at that time.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    at: Instant,
    cpus: CpuCounters,
}

impl Moment {
    /// The current moment.
    pub fn now() -> Self {
        Self { at: Instant::now(), cpus: CpuCounters::now() }
    }

    /// The wall-clock time since then.
    pub fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }

    /// The time since then without steal time.
    pub fn usable(&self) -> Duration {
        self.at.elapsed().mul_f64(1.0 - self.stolen())
    }

    /// The proportion of steal time since then, from 0 to 1.
    pub fn stolen(&self) -> f64 {
        CpuCounters::now().stolen_since(self.cpus)
    }
}

/// The CPU counters since the host started, in hundredths of a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CpuCounters {
    all: u64,
    stolen: u64,
}

impl CpuCounters {
    /// The current counters; zero if the kernel does not report them.
    fn now() -> Self {
        fs::read_to_string("/proc/stat").ok().and_then(|text| Self::read(&text)).unwrap_or_default()
    }

    /// The proportion of steal time since `before`, from 0 to 1.
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
    fn guest_time_is_not_counted_twice() {
        let read = CpuCounters::read("cpu  10 20 30 40 5 1 2 100 7 8\ncpu0 1 1 1 1 1 1 1 1 1 1").unwrap();
        assert_eq!(read, CpuCounters { all: 208, stolen: 100 });
        assert_eq!(CpuCounters::read("intr 1 2 3"), None);
    }

    #[test]
    fn steal_time_is_a_proportion_of_the_time_since_then() {
        let before = CpuCounters { all: 1000, stolen: 500 };
        assert_eq!(CpuCounters { all: 2000, stolen: 1400 }.stolen_since(before), 0.9);
        assert_eq!(before.stolen_since(before), 0.0);
        assert_eq!(CpuCounters::default().stolen_since(before), 0.0, "the kernel does not report it");
    }

    #[test]
    fn progress_extends_a_deadline_but_not_for_ever() {
        let ago = |seconds| Moment { at: Instant::now() - Duration::from_secs(seconds), ..Moment::now() };
        let deadline = |began, progressed| Deadline {
            limit: Duration::from_secs(10),
            began: ago(began),
            progressed: ago(progressed),
        };
        assert!(deadline(30, 5).left().is_some(), "progress was five seconds ago");
        assert!(deadline(30, 11).left().is_none(), "nothing has changed for eleven seconds");
        assert!(deadline(60, 1).left().is_none(), "five times the limit is over");
    }
}
