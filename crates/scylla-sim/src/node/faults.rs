//! Fault injection.

use serde::{Deserialize, Serialize};

use super::Node;
use crate::{args::Arguments, log};

/// The steps at which a node can crash.
pub const STEPS: &[&str] = &[
    "bootstrap-started",
    "bootstrap-streamed",
    "bootstrap-announced",
    "bootstrap-finished",
    "replace-started",
    "replace-streamed",
    "replace-announced",
    "replace-finished",
    "decommission-started",
    "decommission-streamed",
    "decommission-left",
    "decommission-finished",
    "removenode-started",
    "removenode-streamed",
    "removenode-announced",
    "removenode-finished",
];

/// The active faults of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Faults {
    /// The step at which the node crashes.
    pub crash_at: Option<String>,
    /// Whether `crash_at` applies only once to a disk: as an argument, it would crash every restart.
    pub crash_once: bool,
    /// Nodes whose requests are refused, by host ID or address.
    pub refuse_from: Vec<String>,
    /// Nodes that get no requests.
    pub refuse_to: Vec<String>,
    /// The duration of a bootstrap in milliseconds, if it differs from the configuration.
    pub bootstrap_ms: Option<u64>,
    /// The duration of a decommission in milliseconds, if it differs from the configuration.
    pub decommission_ms: Option<u64>,
    /// Whether the REST API keeps returning the state at the time of this fault.
    pub is_view_frozen: bool,
    /// Nodes that the REST API reports as down, by host ID or address.
    pub report_down: Vec<String>,
    /// Nodes that the REST API reports as up.
    pub report_up: Vec<String>,
    /// The schema version that the node reports, if it differs from that of the others.
    pub schema: Option<String>,
    /// Whether the node refuses to take snapshots.
    pub refuse_snapshots: bool,
    /// Whether the node refuses to clean up.
    pub refuse_cleanups: bool,
    /// Whether the disk is full.
    pub is_disk_full: bool,
    /// Whether the node does not respond.
    pub is_paused: bool,
    /// The highest replication factor of user keyspaces in a datacenter.
    pub replicas: Option<usize>,
}

impl Faults {
    /// Returns the faults that apply before the start.
    pub(crate) fn of(arguments: &Arguments) -> Self {
        let list = |option| arguments.all(option).iter().flat_map(|list| list.split(',')).map(str::to_owned).collect();
        let crash_at = arguments.get("sim-crash-at").map(str::to_owned);
        Self {
            crash_once: crash_at.is_some(),
            crash_at,
            refuse_from: list("sim-refuse-from"),
            refuse_to: list("sim-refuse-to"),
            is_disk_full: arguments.is_on("sim-full-disk"),
            is_paused: arguments.is_on("sim-paused"),
            ..Self::default()
        }
    }
}

impl Node {
    /// Crashes the process if a fault requests it at this step.
    pub(super) fn step(&self, step: &str) {
        log::info("sim", format!("step {step}"));
        let faults = self.with(|state| state.faults.clone());
        if faults.crash_at.as_deref() == Some(step)
            && !(faults.crash_once && self.disk.mark_once(&format!("crashed-at-{step}")))
        {
            crash(&format!("at {step}"));
        }
    }
}

/// Ends the process as if it had been killed: nothing is announced and nothing is written.
pub(crate) fn crash(why: &str) -> ! {
    log::error("sim", format!("crash: {why}"));
    std::process::exit(137)
}
