//! The operator's memory, file descriptors, threads and metrics.

use std::{collections::BTreeSet, fs, time::Duration};

use messina_testbed::harness::{Seen, eventually};

use super::LIMIT;
use crate::robustness::operator_process::Operator;

/// File descriptors more than before. The number of idle connections to the API server changes by itself.
const MORE_DESCRIPTORS: usize = 3;
/// Threads more than before. Threads that look up names end ten seconds after their last use.
const MORE_THREADS: usize = 3;
/// Series more than before. Verbs, results and codes of the API server have series from their first occurrence on, and
/// not all of them occur in the first round. No series of an object may be among them.
const MORE_SERIES: usize = 20;
/// How much larger the resident memory may be, in percent.
const MORE_MEMORY_PERCENT: u64 = 10;

/// The figures at one time.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    /// Resident memory in KiB.
    memory: u64,
    descriptors: usize,
    /// No metric has the number of tasks of the runtime.
    threads: usize,
    /// Names of series, with their labels.
    series: BTreeSet<String>,
    /// Objects in the caches.
    pub(super) objects: u64,
}

impl Figures {
    pub(super) async fn of(operator: &Operator) -> Self {
        let process = format!("/proc/{}", operator.id());
        let descriptors = fs::read_dir(format!("{process}/fd")).unwrap().count();
        let (memory, threads) = (status_field(operator, "VmRSS:"), status_field(operator, "Threads:"));
        let (_, text) = operator.get("/metrics").await;
        let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
        let objects = samples.clone().filter(|(series, _)| series.starts_with("messina_cache_objects"));
        let objects = objects.filter_map(|(_, value)| value.parse::<u64>().ok()).sum();
        let series = samples.map(|(series, _)| series.to_owned()).collect();
        Self { memory, descriptors, threads: usize::try_from(threads).unwrap(), series, objects }
    }

    /// The figures of an idle operator, once they have not changed for a second.
    pub(super) async fn settled(operator: &Operator) -> Self {
        eventually("the operator to be idle", LIMIT, async || {
            let before = Self::of(operator).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            let now = Self::of(operator).await;
            let await_metric = |figures: &Self| (figures.descriptors, figures.threads, figures.series.len());
            Ok(if await_metric(&before) == await_metric(&now) {
                Seen::Ready(now)
            } else {
                Seen::NotYet(format!("{:?}", await_metric(&now)))
            })
        })
        .await
        .unwrap()
    }

    /// The figures with their limits: name, before, now, at most, unit.
    fn rows(&self, before: &Self, memory_slack: u64) -> [(&'static str, u64, u64, u64, &'static str); 4] {
        let count = |number: usize| number as u64;
        let most_memory = before.memory + before.memory * MORE_MEMORY_PERCENT / 100 + memory_slack;
        let row =
            |name, before: usize, now: usize, more: usize| (name, count(before), count(now), count(before + more), "");
        [
            ("resident memory", before.memory, self.memory, most_memory, "KiB"),
            row("file descriptors", before.descriptors, self.descriptors, MORE_DESCRIPTORS),
            row("threads", before.threads, self.threads, MORE_THREADS),
            row("metric series", before.series.len(), self.series.len(), MORE_SERIES),
        ]
    }

    /// The figures that exceed their limits.
    pub(super) fn growth(&self, before: &Self, memory_slack: u64, names: &str) -> Vec<String> {
        let rows = self.rows(before, memory_slack);
        let grown =
            rows.into_iter().filter(|(_, _, now, most, _)| now > most).map(|(name, before, now, most, unit)| {
                format!("{name} grew by {} {unit}, from {before} to {now}; at most {most} are expected", now - before)
            });
        let of_objects = self.series.iter().filter(|series| series.contains(names));
        grown.chain(of_objects.map(|series| format!("the series {series} is of an object that is deleted"))).collect()
    }

    /// Prints both.
    pub(super) fn print(&self, before: &Self, memory_slack: u64) {
        println!("{:<20} {:>14} {:>12} {:>12}", "", "after warm-up", "at the end", "at most");
        for (name, before, now, most, unit) in self.rows(before, memory_slack) {
            println!("{name:<20} {before:>14} {now:>12} {most:>12} {unit}");
        }
        for series in self.series.difference(&before.series) {
            println!("a series that is new since the warm-up: {series}");
        }
    }
}

/// A number in the operator's `/proc/PID/status`, such as memory in KiB.
pub(super) fn status_field(operator: &Operator, key: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", operator.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
