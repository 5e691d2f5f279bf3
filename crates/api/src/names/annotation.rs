//! Annotations. Each comment says on which objects, who sets it, and what it means.

/// On a CustomResourceDefinition: the operator creates objects of this kind for itself.
pub const INTERNAL_API_TYPE: &str = "scylla-operator.scylladb.com/internal-api-type";
/// On every object of the operator, by the operator: hash of the object as the operator last applied it, so that it
/// applies changes only.
pub const APPLIED_HASH: &str = "messina.scylladb.com/applied-hash";
/// On an object that the operator reconciles, by the user: pauses its reconciliation. "false" is the same as no
/// annotation; any other value can be a reason.
pub const PAUSE: &str = "messina.scylladb.com/pause";
/// On an object without an owner, by the user: name of the object that adopts it.
pub const ADOPT: &str = "messina.scylladb.com/adopt";
/// On a pod template, by the operator: hash of the configuration that the pods read only when they start.
pub const INPUTS_HASH: &str = "scylla-operator.scylladb.com/inputs-hash";
/// On a StatefulSet, by the operator: hash of the inputs that correspond to the [`INPUTS_HASH`] of an operator that did
/// not read the ConfigMaps and Secrets of users. Nodes are not restarted while it is the same.
pub const INPUTS_STAND_FOR: &str = "messina.scylladb.com/inputs-stand-for";
/// On a pod template, by the operator: `forceRedeploymentReason` of the spec.
pub const FORCE_REDEPLOYMENT_REASON: &str = "scylla-operator.scylladb.com/force-redeployment-reason";
/// On a pod template, by the operator: whether Prometheus scrapes the pod.
pub const PROMETHEUS_SCRAPE: &str = "prometheus.io/scrape";
/// On a pod template, by the operator: the port of those metrics.
pub const PROMETHEUS_PORT: &str = "prometheus.io/port";
/// On an object that was applied by `kubectl`, by `kubectl`: what was applied. The operator does not copy it to other
/// objects.
pub const LAST_APPLIED_CONFIGURATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// On a member Service, by the node's sidecar: host ID of the node.
pub const HOST_ID: &str = "internal.scylla-operator.scylladb.com/host-id";
/// On a member Service, by the node's sidecar: "true" as soon as the node has joined the cluster.
pub const NODE_JOINED: &str = "internal.scylla-operator.scylladb.com/node-joined-scylladb-cluster";
/// On a member Service, by the node's sidecar: hash of the current token ring.
pub const CURRENT_TOKEN_RING_HASH: &str = "internal.scylla-operator.scylladb.com/current-token-ring-hash";
/// On a member Service, by the operator: hash of the token ring at the last cleanup, or [`NEVER_CLEANED_UP`].
pub const LAST_CLEANED_UP_TOKEN_RING_HASH: &str =
    "internal.scylla-operator.scylladb.com/last-cleaned-up-token-ring-hash";
/// Value of [`LAST_CLEANED_UP_TOKEN_RING_HASH`] for a new node.
pub const NEVER_CLEANED_UP: &str = "NeverCleanedUp";
/// On a cleanup Job, by the operator: hash of the token ring that the cleanup is for.
pub const CLEANUP_TOKEN_RING_HASH: &str = "internal.scylla-operator.scylladb.com/cleanup-token-ring-hash";
/// On a member Service, by the operator: host ID of the node to decommission. Together with the label
/// [`DECOMMISSIONED`](super::label::DECOMMISSIONED) it requests the decommission of that node, and of no other.
pub const LEAVING_HOST_ID: &str = "messina.scylladb.com/leaving-host-id";
/// On a member Service, by the node's sidecar: host ID of the node whose decommission has begun, or is about to.
pub const LEAVING_BEGAN: &str = "messina.scylladb.com/leaving-began";
/// On a member Service, by the node's sidecar: in JSON, the host ID of the node to decommission, and why ScyllaDB
/// refused it.
pub const LEAVING_REFUSED: &str = "messina.scylladb.com/leaving-refused";
/// On a member Service, by the operator: requests the token ring as the node reports it. The value is a number that is
/// never used twice.
pub const RING_QUESTION: &str = "messina.scylladb.com/ring-question";
/// On a member Service, by the node's sidecar while [`RING_QUESTION`] is set: the token ring, in JSON, with the number
/// of the request.
pub const RING_ANSWER: &str = "messina.scylladb.com/ring-answer";
/// On a member Service, by the node's sidecar: UID of its pod, which the operator has to recreate, because the node
/// broadcasts an address that the Service no longer has.
pub const RESTART_REQUEST: &str = "messina.scylladb.com/restart-request";
/// On a member Service, by the node's sidecar: UID of its pod, in which ScyllaDB does not start, because the node has
/// joined and its volume is empty.
pub const EMPTY_DISK: &str = "messina.scylladb.com/empty-disk";
/// On a member Service, by the user: host ID of the node that [`EMPTY_DISK`] reports. The node is abandoned, and a new
/// node starts without replacing it: for datacenters in which no other node knows it.
pub const START_EMPTY: &str = "messina.scylladb.com/start-empty";
/// On a member Service, by the node's sidecar: the requests that it supports. [`SIDECAR_PROTOCOL_VALUE`] means
/// [`RING_QUESTION`] and [`UPGRADE_REQUEST`]; a rollout does not wait for sidecars without this annotation.
pub const SIDECAR_PROTOCOL: &str = "messina.scylladb.com/sidecar-protocol";
/// Value of [`SIDECAR_PROTOCOL`].
pub const SIDECAR_PROTOCOL_VALUE: &str = "1";
/// On a member Service, by the operator while the version of ScyllaDB changes: the snapshots that the node has to keep
/// for that, in JSON: `{"hostID", "from", "to", "keep": ["system", "data"]}`.
pub const UPGRADE_REQUEST: &str = "messina.scylladb.com/upgrade-request";
/// On a member Service, by the node's sidecar in response to [`UPGRADE_REQUEST`]: the snapshots that it keeps, and the
/// step that failed, in JSON: `{"hostID", "to", "kept", "failed": {"step", "why"}}`.
pub const UPGRADE_ANSWER: &str = "messina.scylladb.com/upgrade-answer";
/// The annotations that a node's sidecar writes on its member Service; the admission policy for nodes in
/// `deploy/operator.yaml` lists the same, and rejects others. Sidecars of scylla-operator write the first three.
pub const BY_SIDECAR: [&str; 10] = [
    HOST_ID,
    NODE_JOINED,
    CURRENT_TOKEN_RING_HASH,
    LEAVING_BEGAN,
    LEAVING_REFUSED,
    RING_ANSWER,
    RESTART_REQUEST,
    EMPTY_DISK,
    SIDECAR_PROTOCOL,
    UPGRADE_ANSWER,
];
/// On a ScyllaDBDatacenter, by the user: "true" skips the check of the schema agreement and the snapshots before an
/// upgrade of ScyllaDB.
pub const SKIP_UPGRADE_HOOKS: &str = "messina.scylladb.com/skip-upgrade-hooks";
/// On a ScyllaDBDatacenter, by the user: host IDs of nodes of other datacenters, separated by commas, that do not block
/// restarts while they are down.
pub const IGNORED_DOWN_NODES: &str = "messina.scylladb.com/ignored-down-nodes";
/// On a member Service, by the operator: UID of the claim at the start of the node's replacement; empty if there was
/// none.
pub const REPLACING_CLAIM: &str = "messina.scylladb.com/replacing-claim-uid";
/// On a claim, by the operator: host ID of the node whose data it holds, if the node has joined.
pub const JOINED_HOST_ID: &str = "messina.scylladb.com/joined-host-id";
/// On a claim, by the operator: the last image of ScyllaDB that the node ran.
pub const LAST_IMAGE: &str = "messina.scylladb.com/last-image";
/// On a claim, by the operator: host ID of the node whose data it holds, if the node has left the token ring.
pub const LEFT_HOST_ID: &str = "messina.scylladb.com/left-host-id";
/// On a ScyllaDBDatacenter, by the user: `Delete` deletes the claims of nodes that have left; otherwise they are kept
/// until a new node needs their names.
pub const CLAIMS_OF_LEFT_NODES: &str = "messina.scylladb.com/claims-of-left-nodes";

/// On a member Service, by the user: "true" lets the node bootstrap although not all nodes report each other as UP.
pub const FORCE_PROCEED_TO_BOOTSTRAP: &str = "scylla-operator.scylladb.com/force-proceed-to-bootstrap";
/// On a member Service, by the user: "true" starts ScyllaDB regardless of missing preconditions, "false" prevents its
/// start.
pub const FORCE_IGNITION_VALUE: &str = "internal.scylla-operator.scylladb.com/force-ignition-value";
/// On a node's pod, by its sidecar: the status of nodes as this node reports it, a JSON
/// [`NodeStatusReportAnnotation`](crate::scylla::v1alpha1::NodeStatusReportAnnotation).
pub const NODE_STATUS_REPORT: &str = "internal.scylla.scylladb.com/scylladb-node-status-report";
/// On a ScyllaDBDatacenter of a ScyllaDBCluster, by the operator: name of the status report of the whole cluster, which
/// nodes read instead of that of their datacenter.
pub const STATUS_REPORT_OVERRIDE_REF: &str =
    "internal.scylla-operator.scylladb.com/scylladb-status-report-override-ref";

/// On a ScyllaCluster, by the user: "true" disables its registration with the global ScyllaDB Manager.
pub const DISABLE_GLOBAL_MANAGER: &str = "scylla-operator.scylladb.com/disable-global-scylladb-manager-integration";
/// On a ScyllaDBDatacenter, by the translation of v1: the pods use the host network.
pub const HOST_NETWORKING: &str = "internal.scylla-operator.scylladb.com/host-networking";
/// On a ScyllaDBDatacenter, by the translation of v1: kernel settings, a JSON list of "name=value".
pub const SYSCTLS: &str = "internal.scylla-operator.scylladb.com/sysctls";
/// On a ScyllaDBDatacenter, by the translation of v1: Alternator's port for plain HTTP.
pub const ALTERNATOR_PORT: &str = "internal.scylla-operator.scylladb.com/alternator-port";
/// On a ScyllaDBDatacenter, by the translation of v1: whether Alternator also serves plain HTTP.
pub const ALTERNATOR_INSECURE_ENABLE_HTTP: &str =
    "internal.scylla-operator.scylladb.com/alternator-insecure-enable-http";
/// On a ScyllaDBDatacenter, by the translation of v1: whether Alternator serves without authorization.
pub const ALTERNATOR_INSECURE_DISABLE_AUTHORIZATION: &str =
    "internal.scylla-operator.scylladb.com/alternator-insecure-disable-authorization";

/// On a ScyllaDBDatacenter of a ScyllaDBCluster, by the operator: name of the Secret whose token the agents use.
pub const AGENT_AUTH_TOKEN_OVERRIDE_SECRET_REF: &str =
    "internal.scylla-operator.scylladb.com/scylladb-manager-agent-auth-token-override-secret-ref";
/// On a cluster, by the translation of v1, and on its registration, by the operator: name in ScyllaDB Manager instead
/// of the default one.
pub const MANAGER_CLUSTER_NAME_OVERRIDE: &str =
    "internal.scylla-operator.scylladb.com/scylladb-manager-cluster-name-override";
/// Alias of [`MANAGER_CLUSTER_NAME_OVERRIDE`] and [`MANAGER_TASK_NAME_OVERRIDE`]. No controller reads or writes it; it
/// is not propagated to the objects of a datacenter.
pub const NAME_OVERRIDE: &str = "internal.scylla-operator.scylladb.com/name-override";
/// On a ScyllaDBManagerTask, by the translation of v1: name in ScyllaDB Manager instead of the object's.
pub const MANAGER_TASK_NAME_OVERRIDE: &str =
    "internal.scylla-operator.scylladb.com/scylladb-manager-task-name-override";
/// On a ScyllaDBManagerTask, by the operator: the task as ScyllaDB Manager returns it, in JSON, for the status of v1.
pub const MANAGER_TASK_STATUS: &str = "internal.scylla-operator.scylladb.com/scylladb-manager-task-status";
/// On a ScyllaDBManagerTask, by the translation of v1: interval between runs.
pub const MANAGER_TASK_INTERVAL_OVERRIDE: &str =
    "internal.scylla-operator.scylladb.com/scylladb-manager-task-schedule-interval-override";
/// On a ScyllaDBManagerTask, by the translation of v1: start date, which may be "now" with a delay.
pub const MANAGER_TASK_START_DATE_OVERRIDE: &str =
    "internal.scylla-operator.scylladb.com/scylladb-manager-task-schedule-start-date-override";
/// On a ScyllaDBManagerTask, by the translation of v1: time zone of the schedule.
pub const MANAGER_TASK_TIMEZONE_OVERRIDE: &str =
    "internal.scylla-operator.scylladb.com/scylladb-manager-task-schedule-timezone-override";
/// On a ScyllaDBManagerTask, by the translation of v1: intensity of a repair, which may be a fraction.
pub const MANAGER_TASK_REPAIR_INTENSITY_OVERRIDE: &str =
    "internal.scylla-operator.scylladb.com/scylladb-manager-task-repair-intensity-override";
/// On a ScyllaDBManagerTask, by the translation of v1: threshold of a repair's small tables, with its unit.
pub const MANAGER_TASK_REPAIR_SMALL_TABLE_THRESHOLD_OVERRIDE: &str =
    "internal.scylla-operator.scylladb.com/scylladb-manager-task-repair-small-table-threshold-override";
/// On a ScyllaDBManagerTask, by the translation of v1: the operator adopts a task of that name in ScyllaDB Manager that
/// has no owner UID.
pub const MANAGER_TASK_FORCE_ADOPT: &str =
    "internal.scylla-operator.scylladb.com/scylladb-manager-task-missing-owner-uid-force-adopt";
/// On a ScyllaDBManagerTask, by the translation of v1: `backup.dc` is not validated: v1 allowed more.
pub const MANAGER_TASK_BACKUP_DC_NO_VALIDATE: &str =
    "internal.scylla-operator.scylladb.com/scylladb-manager-task-backup-dc-no-validate";
/// On a ScyllaDBManagerTask, by the translation of v1: `backup.keyspace` is not validated: v1 allowed more.
pub const MANAGER_TASK_BACKUP_KEYSPACE_NO_VALIDATE: &str =
    "internal.scylla-operator.scylladb.com/scylladb-manager-task-backup-keyspace-no-validate";
/// On a ScyllaDBManagerTask, by the translation of v1: `backup.location` is not validated: v1 allowed more.
pub const MANAGER_TASK_BACKUP_LOCATION_NO_VALIDATE: &str =
    "internal.scylla-operator.scylladb.com/scylladb-manager-task-backup-location-no-validate";
/// On a ScyllaDBManagerTask, by the translation of v1: `backup.rateLimit` is not validated: v1 allowed more.
pub const MANAGER_TASK_BACKUP_RATE_LIMIT_NO_VALIDATE: &str =
    "internal.scylla-operator.scylladb.com/scylladb-manager-task-backup-rate-limit-no-validate";
/// On a ScyllaDBManagerTask, by the translation of v1: `backup.retention` is not validated: v1 allowed more.
pub const MANAGER_TASK_BACKUP_RETENTION_NO_VALIDATE: &str =
    "internal.scylla-operator.scylladb.com/scylladb-manager-task-backup-retention-no-validate";
/// On a ScyllaDBManagerTask, by the translation of v1: `backup.snapshotParallel` is not validated: v1 allowed more.
pub const MANAGER_TASK_BACKUP_SNAPSHOT_PARALLEL_NO_VALIDATE: &str =
    "internal.scylla-operator.scylladb.com/scylladb-manager-task-backup-snapshot-parallel-no-validate";
/// On a ScyllaDBManagerTask, by the translation of v1: `backup.uploadParallel` is not validated: v1 allowed more.
pub const MANAGER_TASK_BACKUP_UPLOAD_PARALLEL_NO_VALIDATE: &str =
    "internal.scylla-operator.scylladb.com/scylladb-manager-task-backup-upload-parallel-no-validate";
/// On a ScyllaDBManagerTask, by the translation of v1: `repair.dc` is not validated: v1 allowed more.
pub const MANAGER_TASK_REPAIR_DC_NO_VALIDATE: &str =
    "internal.scylla-operator.scylladb.com/scylladb-manager-task-repair-dc-no-validate";
/// On a ScyllaDBManagerTask, by the translation of v1: `repair.keyspace` is not validated: v1 allowed more.
pub const MANAGER_TASK_REPAIR_KEYSPACE_NO_VALIDATE: &str =
    "internal.scylla-operator.scylladb.com/scylladb-manager-task-repair-keyspace-no-validate";
/// On a ScyllaDBManagerTask, by the translation of v1: `repair.parallel` is not validated: v1 allowed more.
pub const MANAGER_TASK_REPAIR_PARALLEL_NO_VALIDATE: &str =
    "internal.scylla-operator.scylladb.com/scylladb-manager-task-repair-parallel-no-validate";

/// Annotations on a Secret with a certificate, by the operator: fields of the certificate, readable without decoding
/// it.
pub mod certificate {
    /// Number of certificates in the Secret.
    pub const COUNT: &str = "certificates.internal.scylla-operator.scylladb.com/count";
    /// "true" if it is a CA certificate.
    pub const IS_CA: &str = "certificates.internal.scylla-operator.scylladb.com/is-ca";
    /// Name of the issuer.
    pub const ISSUER: &str = "certificates.internal.scylla-operator.scylladb.com/issuer";
    /// Algorithm of the key, such as RSA.
    pub const KEY_ALGORITHM: &str = "certificates.internal.scylla-operator.scylladb.com/key-algorithm";
    /// Size of the key in bits.
    pub const KEY_SIZE: &str = "certificates.internal.scylla-operator.scylladb.com/key-size";
    /// Start of the certificate's validity.
    pub const NOT_BEFORE: &str = "certificates.internal.scylla-operator.scylladb.com/not-before";
    /// End of the certificate's validity.
    pub const NOT_AFTER: &str = "certificates.internal.scylla-operator.scylladb.com/not-after";
    /// Reason of the last reissue.
    pub const REFRESH_REASON: &str = "certificates.internal.scylla-operator.scylladb.com/refresh-reason";
}
