//! Tasks of ScyllaDB Manager for a cluster, and their status.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// Name and schedule of a task.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskSpec {
    /// Name of the task, here and in ScyllaDB Manager. No two repairs, and no two backups, of a cluster share one.
    pub name: Option<String>,
    /// Earliest time of the first run: a time in RFC 3339 form, or "now" with an optional delay in days, hours, minutes
    /// and seconds, such as "now+3d2h10m". If unset, the task starts at once.
    pub start_date: Option<String>,
    /// Deprecated: time from one run to the next in days, hours, minutes and seconds, such as "7d". Use `cron`.
    pub interval: Option<String>,
    /// When the task runs, as a cron expression of five fields (minute, hour, day of month, month, day of week), or as
    /// one of @monthly, @weekly, @daily, @midnight, @hourly and "@every <duration>". If neither it nor `interval` is
    /// set, the task runs once.
    pub cron: Option<String>,
    /// Time zone of `cron`, such as "Europe/Warsaw". Defaults to the time zone of ScyllaDB Manager.
    pub timezone: Option<String>,
    /// Number of retries of a failed run before the task fails.
    #[schemars(extend("default" = 3))]
    pub num_retries: Option<i64>,
    /// How long to wait before the first retry, as a duration such as "10m"; each further wait is twice the one before.
    /// If unset, ScyllaDB Manager chooses.
    pub retry_wait: Option<String>,
}

/// A repair that ScyllaDB Manager runs.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RepairTaskSpec {
    /// Name and schedule.
    #[serde(flatten)]
    pub task: TaskSpec,
    /// Datacenters to repair, as glob patterns; a pattern that begins with "!" excludes. Defaults to all.
    pub dc: Option<Vec<String>>,
    /// Keyspaces and tables to repair, as glob patterns such as "orders" or "!orders.tmp_*"; one that begins with "!"
    /// excludes. Defaults to all.
    pub keyspace: Option<Vec<String>>,
    /// Whether the repair stops at the first error. Defaults to false.
    pub fail_fast: Option<bool>,
    /// How many token ranges of a node are repaired at the same time, as a number in a text. "0" means as many as the
    /// node allows, and a number between 0 and 1 works like 1. A higher number is faster, causes more load, and repeats
    /// more work after an interruption.
    #[schemars(extend("default" = "1"))]
    pub intensity: Option<String>,
    /// How many repair jobs run at the same time on different nodes. 0 means as many as the cluster allows: the number
    /// of nodes divided by the replication factor.
    #[schemars(extend("default" = 0))]
    pub parallel: Option<i64>,
    /// Tables smaller than this are repaired as a whole, which is faster for them. A number and its unit: B, MiB, GiB
    /// or TiB.
    #[schemars(extend("default" = "1GiB"))]
    pub small_table_threshold: Option<String>,
    /// The address of a node; only what that node replicates is repaired. If unset, all nodes are repaired.
    pub host: Option<String>,
    /// Whether nodes that are down are skipped. Otherwise they fail the repair. Defaults to false.
    pub ignore_down_hosts: Option<bool>,
}

/// A backup that ScyllaDB Manager takes.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupTaskSpec {
    /// Name and schedule.
    #[serde(flatten)]
    pub task: TaskSpec,
    /// Datacenters to back up, as glob patterns; a pattern that begins with "!" excludes. Defaults to all.
    pub dc: Option<Vec<String>>,
    /// Keyspaces and tables to back up, as glob patterns such as "orders" or "!orders.tmp_*"; one that begins with "!"
    /// excludes. Defaults to all.
    pub keyspace: Option<Vec<String>>,
    /// Locations of the backups, each as "[<dc>:]<provider>:<bucket>", for instance "s3:backups" or
    /// "eu:gcs:backups-eu". A bucket's name consists of letters, digits, dashes and dots.
    pub location: Option<Vec<String>>,
    /// Upper limits of the upload rate of a node in MiB per second, each as "[<dc>:]<limit>"; 0 is no limit. If unset,
    /// ScyllaDB Manager chooses.
    pub rate_limit: Option<Vec<String>>,
    /// How many backups are kept.
    #[schemars(extend("default" = 3))]
    pub retention: Option<i64>,
    /// How many nodes take their snapshot at the same time, each as "[<dc>:]<limit>"; one without a datacenter is for
    /// all datacenters that are not named.
    pub snapshot_parallel: Option<Vec<String>>,
    /// How many nodes upload at the same time, each as "[<dc>:]<limit>"; one without a datacenter is for all
    /// datacenters that are not named.
    pub upload_parallel: Option<Vec<String>>,
}

/// Status of a task in ScyllaDB Manager.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskStatus {
    /// Name of the task.
    pub name: Option<String>,
    /// Earliest time of the first run, as a time in RFC 3339 form.
    pub start_date: Option<String>,
    /// Interval between runs.
    pub interval: Option<String>,
    /// When the task runs, as a cron expression.
    pub cron: Option<String>,
    /// Time zone of `cron`.
    pub timezone: Option<String>,
    /// Number of retries of a failed run.
    pub num_retries: Option<i64>,
    /// How long to wait before the first retry.
    pub retry_wait: Option<String>,
    /// Labels of the task in ScyllaDB Manager; the operator finds its own tasks by them.
    pub labels: Option<BTreeMap<String, String>>,
    /// The ID of the task in ScyllaDB Manager.
    pub id: Option<String>,
    /// Why the task could not be created or changed in ScyllaDB Manager. Unset if there is no error.
    pub error: Option<String>,
}

/// A repair as ScyllaDB Manager has it. All fields except `id`, `labels` and `error` have the same meaning as in
/// `spec.repairs`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RepairTaskStatus {
    /// Name, schedule and status.
    #[serde(flatten)]
    pub task: TaskStatus,
    /// Datacenters to repair.
    pub dc: Option<Vec<String>>,
    /// Keyspaces and tables to repair.
    pub keyspace: Option<Vec<String>>,
    /// Whether the repair stops at the first error.
    pub fail_fast: Option<bool>,
    /// How many token ranges of a node are repaired at the same time.
    pub intensity: Option<String>,
    /// How many repair jobs run at the same time.
    pub parallel: Option<i64>,
    /// Tables smaller than this are repaired as a whole.
    pub small_table_threshold: Option<String>,
    /// The address of the only node whose data is repaired.
    pub host: Option<String>,
    /// Whether nodes that are down are skipped.
    pub ignore_down_hosts: Option<bool>,
}

/// A backup as ScyllaDB Manager has it. All fields except `id`, `labels` and `error` have the same meaning as in
/// `spec.backups`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupTaskStatus {
    /// Name, schedule and status.
    #[serde(flatten)]
    pub task: TaskStatus,
    /// Datacenters to back up.
    pub dc: Option<Vec<String>>,
    /// Keyspaces and tables to back up.
    pub keyspace: Option<Vec<String>>,
    /// Locations of the backups.
    pub location: Option<Vec<String>>,
    /// Upper limits of the upload rate of a node.
    pub rate_limit: Option<Vec<String>>,
    /// How many backups are kept.
    pub retention: Option<i64>,
    /// How many nodes take their snapshot at the same time.
    pub snapshot_parallel: Option<Vec<String>>,
    /// How many nodes upload at the same time.
    pub upload_parallel: Option<Vec<String>>,
}
