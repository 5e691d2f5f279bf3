//! Finalizers.

/// On a ScyllaDBManagerClusterRegistration: removes the cluster from ScyllaDB Manager before the object is deleted.
pub const MANAGER_CLUSTER_REGISTRATION: &str =
    "scylla-operator.scylladb.com/scylladbmanagerclusterregistration-deletion";
/// On a ScyllaDBManagerTask: removes the task from ScyllaDB Manager before the object is deleted.
pub const MANAGER_TASK: &str = "scylla-operator.scylladb.com/scylladbmanagertask-deletion";
/// On an EtcdOperatorTask: cleans up the task before the object is deleted.
pub const ETCD_OPERATOR_TASK: &str = "druid.gardener.cloud/etcdoperatortask";
