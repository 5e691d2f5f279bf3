//! The costs of tests: time and CPU time.

use std::{collections::HashMap, path::Path, time::Duration};

use serde::{Deserialize, Serialize};

use super::{process::Outcome, programs};
use crate::{
    cache,
    cluster::ClusterCost,
    deadline::Moment,
    error::{Result, malformed},
};

/// The cost of a test, in seconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Cost {
    pub(super) wall: f64,
    /// CPU time of its own processes.
    processor: f64,
    /// CPU time of its own clusters.
    clusters: f64,
}

/// The cost of a test run.
#[derive(Clone, Debug, Default)]
pub(super) struct Costs {
    tests: HashMap<String, Cost>,
    /// CPU time of shared clusters, by name.
    pub(super) shared: Vec<(String, Duration)>,
}

/// The file with the costs of the last complete run, which determine the order of the next one.
fn file() -> Result<std::path::PathBuf> {
    Ok(cache::root()?.join("test-costs.json"))
}

impl Costs {
    /// The costs of the last complete run; none on a new host.
    pub(super) fn last() -> Result<HashMap<String, Cost>> {
        // A file of an older version is ignored.
        Ok(cache::read_json(&file()?).ok().flatten().unwrap_or_default())
    }

    /// The costs of clusters that belonged to one test.
    pub(super) fn of_clusters(file: &Path) -> Result<Self> {
        let mut costs = Self::default();
        for line in cache::read(file)?.lines() {
            let ClusterCost { test, seconds, .. } =
                serde_json::from_str(line).map_err(malformed("reading the costs of clusters"))?;
            costs.tests.entry(test).or_default().clusters += seconds;
        }
        Ok(costs)
    }

    pub(super) fn add(&mut self, outcomes: &[Outcome]) {
        for outcome in outcomes {
            let cost = self.tests.entry(outcome.name.clone()).or_default();
            (cost.wall, cost.processor) = (outcome.wall.as_secs_f64(), outcome.cpu.as_secs_f64());
        }
    }

    /// Saves the costs for the next run. Tests that did not run keep their former costs.
    pub(super) fn remember(&self) -> Result<()> {
        let mut all = Self::last()?;
        all.extend(self.tests.clone());
        cache::write_json(&file()?, &all)?;
        cache::write_json(&programs::target_folder()?.join("test-costs.json"), &self.tests)
    }

    /// Prints the table, slowest first.
    pub(super) fn print(&self, began: &Moment) {
        let mut rows: Vec<(&String, &Cost)> = self.tests.iter().collect();
        rows.sort_by(|(_, one), (_, other)| other.wall.total_cmp(&one.wall));
        println!("\n  time s   own CPU s   clusters' CPU s   test");
        for (name, Cost { wall, processor, clusters }) in &rows {
            println!("{wall:>8.1} {processor:>11.1} {clusters:>17.1}   {name}");
        }
        for (name, time) in &self.shared {
            println!("{:>8} {:>11} {:>17.1}   the shared cluster {name}", "", "", time.as_secs_f64());
        }
        let own: f64 = rows.iter().map(|(_, cost)| cost.processor).sum();
        let clusters: f64 = rows.iter().map(|(_, cost)| cost.clusters).sum();
        let shared: f64 = self.shared.iter().map(|(_, time)| time.as_secs_f64()).sum();
        println!(
            "{:>8.1} {own:>11.1} {:>17.1}   all; {:.0} % steal time",
            began.elapsed().as_secs_f64(),
            clusters + shared,
            began.stolen() * 100.0
        );
    }
}
