//! Out-of-band operations on an etcd cluster: [`EtcdOperatorTask`].

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::schema;

/// The operation and its etcd cluster. The spec is immutable: create another task instead.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend(
    "required" = ["type"],
    // This compares `config` too. The API server would reject a rule of `config`, because it has no type.
    "x-kubernetes-validations" = [
        {
            "rule": "self == oldSelf",
            "message": "spec is immutable: create another EtcdOperatorTask",
        },
        {
            "rule": "[has(self.etcdReference), has(self.etcdRef), has(self.ownerEtcdReference)].filter(set, set)\
                .size() <= 1",
            "message": "etcdReference, etcdRef and ownerEtcdReference are aliases: set etcdReference only",
        },
    ],
))]
#[kube(
    group = "druid.gardener.cloud",
    version = "v1alpha1",
    kind = "EtcdOperatorTask",
    plural = "etcdoperatortasks",
    shortname = "eot",
    shortname = "eots",
    namespaced,
    status = "EtcdOperatorTaskStatus",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default))",
    schema = "disabled",
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    // At most one of the aliases is set, so this finds at most one name.
    printcolumn(
        name = "Etcd",
        type_ = "string",
        json_path = ".spec['etcdReference','etcdRef','ownerEtcdReference'].name"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "TTL", type_ = "integer", json_path = ".spec.ttlSecondsAfterFinished", priority = 1)
)]
pub struct EtcdOperatorTaskSpec {
    /// Type of the task: OnDemandSnapshot, Defragment, Compact, CompactSnapshots or CopyBackups.
    #[serde(rename = "type")]
    #[schemars(extend("minLength" = 1, "maxLength" = 64))]
    pub task_type: Option<EtcdOperatorTaskType>,
    /// Options of the task, as an object or as a string with the object in JSON. They depend on `type`. A task with
    /// invalid options is rejected.
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub config: Option<serde_json::Value>,
    /// Time in seconds after which a finished task is deleted; 0 deletes it at once.
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
    /// The etcd cluster of the task.
    pub etcd_reference: Option<EtcdReference>,
    /// Alias of `etcdReference`. Use `etcdReference`.
    pub etcd_ref: Option<EtcdReference>,
    /// Alias of `etcdReference`. Use `etcdReference`.
    pub owner_etcd_reference: Option<EtcdReference>,
}

impl EtcdOperatorTaskSpec {
    /// Returns the etcd cluster of the task, by any of the aliases.
    pub fn etcd_reference(&self) -> Option<&EtcdReference> {
        self.etcd_reference.as_ref().or(self.etcd_ref.as_ref()).or(self.owner_etcd_reference.as_ref())
    }
}

impl EtcdOperatorTask {
    /// Returns namespace and name of the task's Etcd; none if the task names none.
    pub fn etcd(&self) -> Option<(String, String)> {
        let reference = self.spec.etcd_reference()?;
        let name = reference.name.clone().filter(|name| !name.is_empty())?;
        let namespace = reference.namespace.clone().filter(|name| !name.is_empty());
        Some((namespace.or_else(|| self.metadata.namespace.clone()).unwrap_or_default(), name))
    }
}

/// Type of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum EtcdOperatorTaskType {
    /// Takes a snapshot of the etcd cluster now, in addition to its schedule.
    OnDemandSnapshot,
    /// Defragments the databases of the members, one member after the other.
    Defragment,
    /// Discards old revisions of all keys.
    Compact,
    /// Merges the last full snapshot and its deltas into a new full snapshot, in a Job.
    CompactSnapshots,
    /// Copies snapshots to another store.
    CopyBackups,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// An etcd cluster.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EtcdReference {
    /// Name of the Etcd.
    #[schemars(extend("maxLength" = 253))]
    pub name: Option<String>,
    /// Namespace of the Etcd. Defaults to the namespace of this object.
    #[schemars(extend("maxLength" = 63))]
    pub namespace: Option<String>,
}

/// Status of the task.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EtcdOperatorTaskStatus {
    /// The most recent generation of this object that the operator has observed.
    pub observed_generation: Option<i64>,
    /// State of the task: Pending, InProgress, Succeeded, Failed or Rejected.
    pub state: Option<TaskState>,
    /// When the task left the state Pending.
    pub initiated_at: Option<Time>,
    /// The last ten errors, the newest last.
    #[schemars(extend("maxItems" = 10))]
    pub last_errors: Option<Vec<LastError>>,
    /// The operation on the task that the operator performed last: its execution, or its deletion.
    pub last_operation: Option<LastOperation>,
    /// When the operator cleaned up the objects of the finished task. Unset for types of tasks without cleanup.
    pub cleaned_up_at: Option<Time>,
    /// Position in the queue of the etcd cluster: the number of tasks before this one.
    pub place: Option<i32>,
    /// Progress of a task with several steps.
    pub progress: Option<TaskProgress>,
    /// The newest snapshots before the task requested one. A newer snapshot is the requested one.
    pub before: Option<SnapshotsBefore>,
    /// The snapshot that the task took.
    pub snapshot: Option<TakenSnapshot>,
    /// The result for each member.
    pub members: Option<Vec<MemberOutcome>>,
    /// The revision to which etcd was compacted.
    pub compacted_revision: Option<i64>,
}

/// Progress of a task.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskProgress {
    /// Number of completed steps.
    pub done: Option<i32>,
    /// Number of all steps.
    pub total: Option<i32>,
}

/// The newest snapshots at a point in time.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotsBefore {
    /// Name of the newest full snapshot.
    pub full: Option<String>,
    /// Name of the newest delta after that.
    pub delta: Option<String>,
}

/// A snapshot.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TakenSnapshot {
    /// Its name in the store.
    pub name: Option<String>,
    /// Its type: Full, or Incr with the changes since the previous one.
    pub kind: Option<String>,
    /// The last revision in it.
    pub revision: Option<i64>,
    /// Whether it is marked as the final one of its etcd cluster.
    pub is_final: Option<bool>,
    /// When it was taken.
    pub created_on: Option<Time>,
}

/// The result for a member.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MemberOutcome {
    /// Name of the member.
    pub name: Option<String>,
    /// Size of its database before the task, in bytes.
    pub size_before: Option<i64>,
    /// Size of its database after the task, in bytes.
    pub size_after: Option<i64>,
}

/// State of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::known_text)]
pub enum TaskState {
    /// The task waits until it may run.
    Pending,
    /// In progress.
    InProgress,
    /// The task has succeeded.
    Succeeded,
    /// The task has failed.
    Failed,
    /// The operator rejected the task and did not run it.
    Rejected,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// An error of a task.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LastError {
    /// The machine-readable code, such as ERR_INVALID_CONFIG.
    pub code: Option<String>,
    /// The message.
    pub description: Option<String>,
    /// When the operator observed it.
    pub observed_at: Option<Time>,
}

/// An operation on a task.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LastOperation {
    /// Type of the operation: Delete while the task is being deleted; unset while the task is executed.
    #[serde(rename = "type")]
    pub operation_type: Option<OperationType>,
    /// State of the operation: InProgress, Completed or Failed. A failed deletion is retried.
    pub state: Option<OperationState>,
    /// When `type` or `state` changed last.
    pub last_transition_time: Option<Time>,
    /// Details of the operation: its current step, its result, or the cause of its failure.
    pub description: Option<String>,
}

/// Type of an operation on a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum OperationType {
    /// The task is deleted.
    Delete,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// State of an operation on a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum OperationState {
    /// In progress.
    InProgress,
    /// Completed.
    Completed,
    /// Failed.
    Failed,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etcd_reference_accepts_each_alias() {
        let reference = |name: &str| Some(EtcdReference { name: Some(name.into()), namespace: None });
        let mut spec = EtcdOperatorTaskSpec { owner_etcd_reference: reference("owner"), ..Default::default() };
        assert_eq!(spec.etcd_reference(), reference("owner").as_ref());
        spec.etcd_ref = reference("ref");
        assert_eq!(spec.etcd_reference(), reference("ref").as_ref());
        spec.etcd_reference = reference("reference");
        assert_eq!(spec.etcd_reference(), reference("reference").as_ref());
        assert_eq!(EtcdOperatorTaskSpec::default().etcd_reference(), None);
    }

    #[test]
    fn options_are_kept_as_an_object_and_as_a_string() -> Result<(), serde_json::Error> {
        for config in [serde_json::json!({"snapshotType": "full"}), serde_json::json!(r#"{"snapshotType":"full"}"#)] {
            let spec = serde_json::json!({"type": "OnDemandSnapshot", "config": config});
            assert_eq!(serde_json::to_value(serde_json::from_value::<EtcdOperatorTaskSpec>(spec.clone())?)?, spec);
        }
        Ok(())
    }
}
