//! Objects in ScyllaDB Manager: [`ScyllaDBManagerClusterRegistration`] and [`ScyllaDBManagerTask`].

use k8s_openapi::{apimachinery::pkg::api::resource::Quantity, apimachinery::pkg::apis::meta::v1::Condition};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::schema;

/// A cluster in the same namespace.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LocalScyllaDBReference {
    /// Kind of the cluster: ScyllaDBCluster or ScyllaDBDatacenter.
    pub kind: Option<String>,
    /// Name of the cluster.
    pub name: Option<String>,
}

/// The cluster to register.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[kube(
    group = "scylla.scylladb.com",
    version = "v1alpha1",
    kind = "ScyllaDBManagerClusterRegistration",
    namespaced,
    status = "ScyllaDBManagerClusterRegistrationStatus",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default))",
    schema = "disabled",
    category = "scylladb",
    annotation("scylla-operator.scylladb.com/internal-api-type", "true"),
    printcolumn(
        name = "PROGRESSING",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Progressing')].status"
    ),
    printcolumn(name = "DEGRADED", type_ = "string", json_path = ".status.conditions[?(@.type=='Degraded')].status"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct ScyllaDBManagerClusterRegistrationSpec {
    /// The cluster, in the namespace of this object, to register with ScyllaDB Manager.
    #[serde(rename = "scyllaDBClusterRef")]
    pub scylladb_cluster_ref: Option<LocalScyllaDBReference>,
}

/// Status of the registration.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaDBManagerClusterRegistrationStatus {
    /// The most recent generation of this object that the operator has observed.
    pub observed_generation: Option<i64>,
    /// Conditions of the registration: Progressing and Degraded, and the same for each component.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Option<Vec<Condition>>,
    /// The ID of the cluster in ScyllaDB Manager.
    #[serde(rename = "clusterID")]
    pub cluster_id: Option<String>,
}

/// The type of a task of ScyllaDB Manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::any_text)]
pub enum ScyllaDBManagerTaskType {
    /// Copies the data of the cluster to an object store.
    Backup,
    /// Repairs the data of the cluster.
    Repair,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// A task, and the cluster that it is for.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[kube(
    group = "scylla.scylladb.com",
    version = "v1alpha1",
    kind = "ScyllaDBManagerTask",
    namespaced,
    status = "ScyllaDBManagerTaskStatus",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default))",
    schema = "disabled",
    category = "scylladb",
    printcolumn(
        name = "PROGRESSING",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Progressing')].status"
    ),
    printcolumn(name = "DEGRADED", type_ = "string", json_path = ".status.conditions[?(@.type=='Degraded')].status"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct ScyllaDBManagerTaskSpec {
    /// The cluster, in the namespace of this object, that the task is for: a ScyllaDBCluster or a ScyllaDBDatacenter
    /// that is registered with ScyllaDB Manager.
    #[serde(rename = "scyllaDBClusterRef")]
    pub scylladb_cluster_ref: Option<LocalScyllaDBReference>,
    /// What the task does: Backup or Repair. The field of the same name holds its options.
    #[serde(rename = "type")]
    pub task_type: Option<ScyllaDBManagerTaskType>,
    /// Options of a task of type Backup.
    pub backup: Option<ScyllaDBManagerBackupTaskOptions>,
    /// Options of a task of type Repair.
    pub repair: Option<ScyllaDBManagerRepairTaskOptions>,
}

/// Schedule and retries of a task.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaDBManagerTaskSchedule {
    /// When the task runs, as a cron expression of five fields (minute, hour, day of month, month, day of week), or as
    /// one of @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly and "@every <duration>". If unset, the
    /// task runs once.
    pub cron: Option<String>,
    /// Number of retries of a failed run before the task fails.
    pub num_retries: Option<i64>,
    /// How long to wait before the first retry, as a duration such as "10m"; each further wait is twice the one before.
    pub retry_wait: Option<String>,
    /// Earliest time of the first run, as a time in RFC 3339 form. If unset, the task starts at once.
    #[schemars(extend("format" = "date-time"))]
    pub start_date: Option<String>,
}

/// Options of a backup.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaDBManagerBackupTaskOptions {
    /// When the task runs.
    #[serde(flatten)]
    pub schedule: ScyllaDBManagerTaskSchedule,
    /// Datacenters to back up, as glob patterns; a pattern that begins with "!" excludes. Defaults to all.
    pub dc: Option<Vec<String>>,
    /// Keyspaces and tables to back up, as glob patterns such as "orders" or "!orders.tmp_*"; one that begins with "!"
    /// excludes. Defaults to all.
    pub keyspace: Option<Vec<String>>,
    /// Locations of the backups, each as "[<dc>:]<provider>:<bucket>", for instance "s3:backups" or
    /// "eu:gcs:backups-eu".
    pub location: Option<Vec<String>>,
    /// Upper limits of the upload rate of a node in MiB per second, each as "[<dc>:]<limit>".
    pub rate_limit: Option<Vec<String>>,
    /// How many backups are kept.
    pub retention: Option<i64>,
    /// How many nodes take their snapshot at the same time, each as "[<dc>:]<limit>"; one without a datacenter is for
    /// all datacenters that are not named.
    pub snapshot_parallel: Option<Vec<String>>,
    /// How many nodes upload at the same time, each as "[<dc>:]<limit>"; one without a datacenter is for all
    /// datacenters that are not named.
    pub upload_parallel: Option<Vec<String>>,
}

/// Options of a repair.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaDBManagerRepairTaskOptions {
    /// When the task runs.
    #[serde(flatten)]
    pub schedule: ScyllaDBManagerTaskSchedule,
    /// Datacenters to repair, as glob patterns; a pattern that begins with "!" excludes. Defaults to all.
    pub dc: Option<Vec<String>>,
    /// Keyspaces and tables to repair, as glob patterns such as "orders" or "!orders.tmp_*"; one that begins with "!"
    /// excludes. Defaults to all.
    pub keyspace: Option<Vec<String>>,
    /// Whether the repair stops at the first error.
    pub fail_fast: Option<bool>,
    /// The address of a node; only what that node replicates is repaired. If unset, all nodes are repaired.
    pub host: Option<String>,
    /// Whether nodes that are down are skipped. Otherwise they fail the repair.
    pub ignore_down_hosts: Option<bool>,
    /// How many token ranges of a node are repaired at the same time. 0 means as many as the node allows; a greater
    /// number is lowered to that.
    pub intensity: Option<i64>,
    /// How many repair jobs run at the same time on different nodes. 0 means as many as the cluster allows; a greater
    /// number is lowered to that.
    pub parallel: Option<i64>,
    /// Tables smaller than this are repaired as a whole, which is faster for them.
    pub small_table_threshold: Option<Quantity>,
}

/// Status of the task.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScyllaDBManagerTaskStatus {
    /// The most recent generation of this object that the operator has observed.
    pub observed_generation: Option<i64>,
    /// Conditions of the task: Progressing and Degraded, and the same for each component.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Option<Vec<Condition>>,
    /// The ID of the task in ScyllaDB Manager.
    #[serde(rename = "taskID")]
    pub task_id: Option<String>,
}
