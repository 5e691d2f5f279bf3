//! The options of each type of task: what stands in `config` of an [`EtcdOperatorTask`](super::EtcdOperatorTask).
//!
//! An option that does not exist is refused: it is more likely a slip of the pen than something to be left out.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::StoreSpec;

/// Options of OnDemandSnapshot.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct OnDemandSnapshotConfig {
    /// What is taken: full, which is everything, or delta, which is what changed since the last snapshot. Without it, full.
    #[serde(alias = "type")]
    pub snapshot_type: Option<SnapshotType>,
    /// Marks a full snapshot as the last one of this etcd cluster, as before it is moved elsewhere.
    pub is_final: Option<bool>,
    /// Time in seconds after which the task has failed, however often it was tried. Without it, 900 for a full snapshot and
    /// 60 for a delta.
    pub timeout_seconds: Option<i32>,
    /// `timeoutSeconds` of a full snapshot. Use that one.
    pub timeout_seconds_full: Option<i32>,
    /// `timeoutSeconds` of a delta. Use that one.
    pub timeout_seconds_delta: Option<i32>,
}

/// What a snapshot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SnapshotType {
    /// Everything.
    Full,
    /// What changed since the last snapshot.
    Delta,
}

/// Options of Defragment.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct DefragmentConfig {
    /// Time in seconds after which the task has failed. Without it, 1800.
    pub timeout_seconds: Option<i32>,
    /// Time in seconds for one member. A member does not answer while it is at it. Without it, 300.
    pub member_timeout_seconds: Option<i32>,
}

/// Options of Compact.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct CompactConfig {
    /// How many of the last revisions are kept, so that clients that lag behind can catch up. Without it, 10000.
    pub retain_revisions: Option<i64>,
    /// Whether the task waits until the space is really free within the members' files. Without it, true.
    pub physical: Option<bool>,
    /// Time in seconds after which the task has failed. Without it, 600.
    pub timeout_seconds: Option<i32>,
}

/// Options of CompactSnapshots.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct CompactSnapshotsConfig {
    /// Whether the new snapshot's database is defragmented. Without it, true.
    pub defragment: Option<bool>,
    /// Time in seconds after which the task has failed. Without it, 10800.
    pub timeout_seconds: Option<i32>,
}

/// Options of CopyBackups.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct CopyBackupsConfig {
    /// Where the snapshots go.
    pub target_store: Option<StoreSpec>,
    /// Where the snapshots come from. Without it, the store of the Etcd.
    pub source_store: Option<StoreSpec>,
    /// How many full snapshots are copied, the newest first, each with its deltas. Without it, all.
    pub max_backups: Option<i32>,
    /// The greatest age in days of snapshots that are copied. Without it, any.
    pub max_backup_age: Option<i32>,
    /// Time in seconds after which the task has failed. Without it, 10800.
    pub timeout_seconds: Option<i32>,
}
