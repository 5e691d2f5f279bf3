//! Work on an etcd cluster outside of its everyday care: [`EtcdOperatorTask`].

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::schema;

/// What is to be done, and to which etcd cluster. It cannot be changed: create another task instead.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend(
    "required" = ["type"],
    // This compares `config` too. A rule of its own the API server would refuse there, because `config` has no type.
    "x-kubernetes-validations" = [
        {
            "rule": "self == oldSelf",
            "message": "a task cannot be changed once it exists: delete it, or create another one",
        },
        {
            "rule": "[has(self.etcdReference), has(self.etcdRef), has(self.ownerEtcdReference)].filter(set, set)\
                .size() <= 1",
            "message": "etcdReference, etcdRef and ownerEtcdReference mean the same: set only one of them, best \
                etcdReference",
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
    // At most one of the spellings is set, so this finds at most one name.
    printcolumn(
        name = "Etcd",
        type_ = "string",
        json_path = ".spec['etcdReference','etcdRef','ownerEtcdReference'].name"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "TTL", type_ = "integer", json_path = ".spec.ttlSecondsAfterFinished", priority = 1)
)]
pub struct EtcdOperatorTaskSpec {
    /// What the task does: OnDemandSnapshot, Defragment, Compact, CompactSnapshots or CopyBackups.
    #[serde(rename = "type")]
    #[schemars(extend("minLength" = 1, "maxLength" = 64))]
    pub task_type: Option<EtcdOperatorTaskType>,
    /// Options of the task, as an object or as a text that holds the same in JSON. Which ones there are depends on
    /// `type`. A task with options that it cannot use is rejected.
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub config: Option<serde_json::Value>,
    /// Time in seconds after which a finished task is deleted; 0 deletes it at once.
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
    /// The etcd cluster that the task works on.
    pub etcd_reference: Option<EtcdReference>,
    /// Another spelling of `etcdReference`. Use that one.
    pub etcd_ref: Option<EtcdReference>,
    /// An older spelling of `etcdReference`. Use that one.
    pub owner_etcd_reference: Option<EtcdReference>,
}

impl EtcdOperatorTaskSpec {
    /// The etcd cluster that the task works on, under whichever spelling it was given.
    pub fn etcd_reference(&self) -> Option<&EtcdReference> {
        self.etcd_reference.as_ref().or(self.etcd_ref.as_ref()).or(self.owner_etcd_reference.as_ref())
    }
}

impl EtcdOperatorTask {
    /// Namespace and name of the Etcd that the task works on; none where it names none.
    pub fn etcd(&self) -> Option<(String, String)> {
        let reference = self.spec.etcd_reference()?;
        let name = reference.name.clone().filter(|name| !name.is_empty())?;
        let namespace = reference.namespace.clone().filter(|name| !name.is_empty());
        Some((namespace.or_else(|| self.metadata.namespace.clone()).unwrap_or_default(), name))
    }
}

/// What a task does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum EtcdOperatorTaskType {
    /// Takes a snapshot of the etcd cluster now, and not when its schedule says so.
    OnDemandSnapshot,
    /// Gives space back to the members' machines, one member after the other.
    Defragment,
    /// Forgets old revisions of all keys.
    Compact,
    /// Makes one full snapshot of the last one and the deltas after it, away from the etcd cluster.
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
    /// Namespace of the Etcd. Without it, that of this object.
    #[schemars(extend("maxLength" = 63))]
    pub namespace: Option<String>,
}

/// What has become of the task.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EtcdOperatorTaskStatus {
    /// The generation of this object that the rest of the status speaks of.
    pub observed_generation: Option<i64>,
    /// State of the task: Pending or InProgress, and at the end Succeeded, Failed or Rejected.
    pub state: Option<TaskState>,
    /// When the task left the state Pending.
    pub initiated_at: Option<Time>,
    /// What went wrong, the newest error last; at most the last ten errors.
    #[schemars(extend("maxItems" = 10))]
    pub last_errors: Option<Vec<LastError>>,
    /// The operation on the task that the operator performed last: its execution, or its deletion.
    pub last_operation: Option<LastOperation>,
    /// When the operator removed what the finished task needed while it ran. Absent for types of task that leave nothing
    /// to remove.
    pub cleaned_up_at: Option<Time>,
    /// How many tasks on the same etcd cluster come before this one, while it waits.
    pub place: Option<i32>,
    /// How far a task with several steps has come.
    pub progress: Option<TaskProgress>,
    /// The newest snapshots when the task began. One that is newer is taken for the one that the task asked for.
    pub before: Option<SnapshotsBefore>,
    /// The snapshot that was taken.
    pub snapshot: Option<TakenSnapshot>,
    /// What became of each member.
    pub members: Option<Vec<MemberOutcome>>,
    /// The revision before which nothing is kept.
    pub compacted_revision: Option<i64>,
}

/// How far a task has come.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskProgress {
    /// Steps that are done.
    pub done: Option<i32>,
    /// All steps.
    pub total: Option<i32>,
}

/// The newest snapshots at some time.
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
    /// What it holds: Full or Incr, which is what changed since the one before.
    pub kind: Option<String>,
    /// The last revision in it.
    pub revision: Option<i64>,
    /// Whether it is marked as the last one of its etcd cluster.
    pub is_final: Option<bool>,
    /// When it was taken.
    pub created_on: Option<Time>,
}

/// What became of a member.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MemberOutcome {
    /// Name of the member.
    pub name: Option<String>,
    /// Size of its file before, in bytes.
    pub size_before: Option<i64>,
    /// Size of its file after, in bytes.
    pub size_after: Option<i64>,
}

/// Status of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::known_text)]
pub enum TaskState {
    /// It has been seen and waits until it may run.
    Pending,
    /// It runs.
    InProgress,
    /// It did what it was asked to do.
    Succeeded,
    /// It ran and did not do what it was asked to do.
    Failed,
    /// It was not run, because it makes no sense or may not run.
    Rejected,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// Something that went wrong.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LastError {
    /// What kind of error it is, in a form for programs, such as ERR_INVALID_CONFIG.
    pub code: Option<String>,
    /// What happened, in words.
    pub description: Option<String>,
    /// When it happened.
    pub observed_at: Option<Time>,
}

/// An operation on a task.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LastOperation {
    /// What the operation is: Delete once the task is being deleted; absent while the task is executed.
    #[serde(rename = "type")]
    pub operation_type: Option<OperationType>,
    /// State of the operation: InProgress, Completed or Failed. A failed deletion is retried.
    pub state: Option<OperationState>,
    /// When `type` or `state` changed last.
    pub last_transition_time: Option<Time>,
    /// Details of the operation: what is done or awaited, how it ended, or why it failed.
    pub description: Option<String>,
}

/// What an operation on a task is.
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
    /// It runs.
    InProgress,
    /// It is done.
    Completed,
    /// It failed.
    Failed,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_etcd_cluster_is_found_under_each_spelling() {
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
    fn options_are_kept_as_an_object_and_as_a_text() -> Result<(), serde_json::Error> {
        for config in [serde_json::json!({"snapshotType": "full"}), serde_json::json!(r#"{"snapshotType":"full"}"#)] {
            let spec = serde_json::json!({"type": "OnDemandSnapshot", "config": config});
            assert_eq!(serde_json::to_value(serde_json::from_value::<EtcdOperatorTaskSpec>(spec.clone())?)?, spec);
        }
        Ok(())
    }
}
