//! The options of each type of task: `config` of an [`EtcdOperatorTask`](super::EtcdOperatorTask).
//!
//! Unknown options are rejected: they are more likely typing errors than options that can be ignored.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::StoreSpec;

/// Options of OnDemandSnapshot.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct OnDemandSnapshotConfig {
    /// The type of the snapshot: full, or delta with the changes since the last snapshot. Defaults to full.
    #[serde(alias = "type")]
    pub snapshot_type: Option<SnapshotType>,
    /// Marks a full snapshot as the final one of this etcd cluster, for instance before a migration.
    pub is_final: Option<bool>,
    /// Deadline of the task in seconds, including all retries. Defaults to 900 for a full snapshot and 60 for a delta.
    pub timeout_seconds: Option<i32>,
    /// Alias of `timeoutSeconds` for full snapshots. Use `timeoutSeconds`.
    pub timeout_seconds_full: Option<i32>,
    /// Alias of `timeoutSeconds` for deltas. Use `timeoutSeconds`.
    pub timeout_seconds_delta: Option<i32>,
}

/// The type of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SnapshotType {
    /// All data.
    Full,
    /// The changes since the last snapshot.
    Delta,
}

/// Options of Defragment.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct DefragmentConfig {
    /// Deadline of the task in seconds. Defaults to 1800.
    pub timeout_seconds: Option<i32>,
    /// Timeout in seconds for one member, which does not respond while it defragments. Defaults to 300.
    pub member_timeout_seconds: Option<i32>,
}

/// Options of Compact.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct CompactConfig {
    /// Number of the latest revisions to keep, so that clients that lag behind can catch up. Defaults to 10000.
    pub retain_revisions: Option<i64>,
    /// Whether the task waits until the compaction is applied to the database of the member. Defaults to true.
    pub physical: Option<bool>,
    /// Deadline of the task in seconds. Defaults to 600.
    pub timeout_seconds: Option<i32>,
}

/// Options of CompactSnapshots.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct CompactSnapshotsConfig {
    /// Whether the new snapshot's database is defragmented. Defaults to true.
    pub defragment: Option<bool>,
    /// Deadline of the task in seconds. Defaults to 10800.
    pub timeout_seconds: Option<i32>,
}

/// Options of CopyBackups.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct CopyBackupsConfig {
    /// The store to copy snapshots to.
    pub target_store: Option<StoreSpec>,
    /// The store to copy snapshots from. Defaults to the store of the Etcd.
    pub source_store: Option<StoreSpec>,
    /// Maximum number of full snapshots to copy, the newest first, each with its deltas. Defaults to all.
    pub max_backups: Option<i32>,
    /// Maximum age in days of snapshots to copy. Defaults to any.
    pub max_backup_age: Option<i32>,
    /// Deadline of the task in seconds. Defaults to 10800.
    pub timeout_seconds: Option<i32>,
}
