//! What goes wrong on command.

use serde::{Deserialize, Serialize};

use super::Node;
use crate::{args::Arguments, log};

/// Where a node can be told to crash.
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

/// The faults of a node at a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Faults {
    /// The step at which the node crashes.
    pub crash_at: Option<String>,
    /// Whether `crash_at` acts but once on a disk: given as an argument, it would crash every new start too.
    pub crash_once: bool,
    /// Nodes that are not listened to, by host ID or address.
    pub refuse_from: Vec<String>,
    /// Nodes that are not spoken to.
    pub refuse_to: Vec<String>,
    /// How many milliseconds a bootstrap takes, where that differs from what the node was started with.
    pub bootstrap_ms: Option<u64>,
    /// How many a decommission takes, likewise.
    pub decommission_ms: Option<u64>,
    /// Whether the REST API goes on telling what was true when this began.
    pub is_view_frozen: bool,
    /// Nodes that the REST API says are down, by host ID or address.
    pub say_down: Vec<String>,
    /// Nodes that the REST API says are up.
    pub say_up: Vec<String>,
    /// The version of the schema that the node says it has, where that differs from what the others have.
    pub schema: Option<String>,
    /// Whether the node refuses to take snapshots.
    pub refuse_snapshots: bool,
    /// Whether the node refuses to clean up.
    pub refuse_cleanups: bool,
    /// Whether there is no room on the disk.
    pub is_disk_full: bool,
    /// Whether the node answers nobody.
    pub is_paused: bool,
    /// How many replicas the keyspaces of users have in a datacenter, those with most.
    pub replicas: Option<usize>,
}

impl Faults {
    /// Those that act before the start.
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
    /// Ends the process here when it was told to, as if it had been killed.
    pub(super) fn step(&self, step: &str) {
        log::info("sim", format!("step {step}"));
        let faults = self.with(|state| state.faults.clone());
        if faults.crash_at.as_deref() == Some(step)
            && !(faults.crash_once && self.disk.note_once(&format!("crashed-at-{step}")))
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
