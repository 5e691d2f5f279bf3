//! Finalizers: what must happen before an object may go.

/// On a ScyllaDBManagerClusterRegistration: the cluster is removed from ScyllaDB Manager first.
pub const MANAGER_CLUSTER_REGISTRATION: &str =
    "scylla-operator.scylladb.com/scylladbmanagerclusterregistration-deletion";
/// On a ScyllaDBManagerTask: the task is removed from ScyllaDB Manager first.
pub const MANAGER_TASK: &str = "scylla-operator.scylladb.com/scylladbmanagertask-deletion";
/// On an EtcdOperatorTask: what the task needed while it ran is cleaned up first.
pub const ETCD_OPERATOR_TASK: &str = "druid.gardener.cloud/etcdoperatortask";
