//! Annotations, which carry facts and wishes that no field has a place for.

/// On a CustomResourceDefinition: objects of this kind are made by the operator for itself.
pub const INTERNAL_API_TYPE: &str = "scylla-operator.scylladb.com/internal-api-type";
/// On every object of the operator, by the operator: hash of what it was last written, so that a change of mind shows.
pub const APPLIED_HASH: &str = "messina.scylladb.com/applied-hash";
/// On an object that the operator keeps, by the user: nothing is done for it any more. "false" is as good as none; any
/// other value may say why.
pub const PAUSE: &str = "messina.scylladb.com/pause";
/// On an object without an owner, by the user: name of the object that takes it over.
pub const ADOPT: &str = "messina.scylladb.com/adopt";
/// On a pod template, by the operator: hash of the configuration that the pods read only when they start.
pub const INPUTS_HASH: &str = "scylla-operator.scylladb.com/inputs-hash";
/// On a StatefulSet, by the operator: hash of what [`INPUTS_HASH`] stands for where an operator made it that did not read
/// what users put beside a datacenter. As long as it is the same, nodes are not restarted.
pub const INPUTS_STAND_FOR: &str = "messina.scylladb.com/inputs-stand-for";
/// On a pod template, by the operator: the user's reason for a restart of all nodes.
pub const FORCE_REDEPLOYMENT_REASON: &str = "scylla-operator.scylladb.com/force-redeployment-reason";
/// On a pod template, by the operator: whether Prometheus reads the metrics of the pod.
pub const PROMETHEUS_SCRAPE: &str = "prometheus.io/scrape";
/// On a pod template, by the operator: the port of those metrics.
pub const PROMETHEUS_PORT: &str = "prometheus.io/port";
/// On an object that was applied by `kubectl`, by `kubectl`: what was applied. Never copied to other objects by us.
pub const LAST_APPLIED_CONFIGURATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// On a member Service, by the node's sidecar: host ID of the node.
pub const HOST_ID: &str = "internal.scylla-operator.scylladb.com/host-id";
/// On a member Service, by the node's sidecar: "true" as soon as the node has joined the cluster.
pub const NODE_JOINED: &str = "internal.scylla-operator.scylladb.com/node-joined-scylladb-cluster";
/// On a member Service, by the node's sidecar: hash of the token ring as it is.
pub const CURRENT_TOKEN_RING_HASH: &str = "internal.scylla-operator.scylladb.com/current-token-ring-hash";
/// On a member Service, by the operator: hash of the token ring at the last cleanup, or [`NEVER_CLEANED_UP`].
pub const LAST_CLEANED_UP_TOKEN_RING_HASH: &str =
    "internal.scylla-operator.scylladb.com/last-cleaned-up-token-ring-hash";
/// Value of [`LAST_CLEANED_UP_TOKEN_RING_HASH`] on a node that is new.
pub const NEVER_CLEANED_UP: &str = "NeverCleanedUp";
/// On a cleanup Job, by the operator: hash of the token ring that the cleanup is for.
pub const CLEANUP_TOKEN_RING_HASH: &str = "internal.scylla-operator.scylladb.com/cleanup-token-ring-hash";
/// On a member Service, by the operator: host ID of the node to decommission. Together with the label
/// [`DECOMMISSIONED`](super::label::DECOMMISSIONED) it makes that node leave, and no other.
pub const LEAVING_HOST_ID: &str = "messina.scylladb.com/leaving-host-id";
/// On a member Service, by the node's sidecar: host ID of the node that has begun to leave, or is about to.
pub const LEAVING_BEGAN: &str = "messina.scylladb.com/leaving-began";
/// On a member Service, by the node's sidecar: in JSON, the host ID of the node that was to leave, and why ScyllaDB refused.
pub const LEAVING_REFUSED: &str = "messina.scylladb.com/leaving-refused";
/// On a member Service, by the operator: asks the node for the ring as it sees it. The value is a number that is
/// never used twice.
pub const RING_QUESTION: &str = "messina.scylladb.com/ring-question";
/// On a member Service, by the node's sidecar as long as [`RING_QUESTION`] is there: the ring, in JSON, with the question
/// that is answered.
pub const RING_ANSWER: &str = "messina.scylladb.com/ring-answer";
/// On a member Service, by the node's sidecar: UID of its pod, which is to be recreated, because the node announces an
/// address that the Service does not have any more.
pub const RESTART_REQUEST: &str = "messina.scylladb.com/restart-request";
/// On a member Service, by the node's sidecar: UID of its pod, in which no node starts, because one that has joined should be on
/// the disk, and the disk is empty.
pub const EMPTY_DISK: &str = "messina.scylladb.com/empty-disk";
/// On a member Service, by the user: host ID of the node that [`EMPTY_DISK`] speaks of. It is given up, and a new node starts in its
/// place without replacing it: for where no other node could tell of it.
pub const START_EMPTY: &str = "messina.scylladb.com/start-empty";
/// On a member Service, by the node's sidecar: which requests it understands. [`SIDECAR_PROTOCOL_VALUE`] stands for
/// [`RING_QUESTION`] and [`UPGRADE_REQUEST`]; sidecars that write nothing here are not waited for in a rolling change.
pub const SIDECAR_PROTOCOL: &str = "messina.scylladb.com/sidecar-protocol";
/// Value of [`SIDECAR_PROTOCOL`].
pub const SIDECAR_PROTOCOL_VALUE: &str = "1";
/// On a member Service, by the operator while the version of ScyllaDB changes: which snapshots the node is to keep for
/// that, in JSON: `{"hostID", "from", "to", "keep": ["system", "data"]}`.
pub const UPGRADE_REQUEST: &str = "messina.scylladb.com/upgrade-request";
/// On a member Service, by the node's sidecar in answer to [`UPGRADE_REQUEST`]: which snapshots it keeps, and what has
/// failed, in JSON: `{"hostID", "to", "kept", "failed": {"step", "why"}}`.
pub const UPGRADE_ANSWER: &str = "messina.scylladb.com/upgrade-answer";
/// What a node's sidecar writes on the Service of the node; the admission policy for nodes in `deploy/operator.yaml` lists the
/// same, and lets it write nothing else. Sidecars of scylla-operator write the first three.
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
/// On a ScyllaDBDatacenter, by the user: "true" changes the version of ScyllaDB without asking nodes for agreement on
/// the schema and for snapshots before.
pub const SKIP_UPGRADE_HOOKS: &str = "messina.scylladb.com/skip-upgrade-hooks";
/// On a ScyllaDBDatacenter, by the user: host IDs of nodes elsewhere in the ring, separated by commas, that are down and hold no
/// restart up.
pub const IGNORED_DOWN_NODES: &str = "messina.scylladb.com/ignored-down-nodes";
/// On a member Service, by the operator: UID of the claim that a replacement of the node began with, or nothing.
pub const REPLACING_CLAIM: &str = "messina.scylladb.com/replacing-claim-uid";
/// On a claim, by the operator: host ID of the node whose data it holds, and which has joined.
pub const JOINED_HOST_ID: &str = "messina.scylladb.com/joined-host-id";
/// On a claim, by the operator: the image of ScyllaDB that the node last ran.
pub const LAST_IMAGE: &str = "messina.scylladb.com/last-image";
/// On a claim, by the operator: host ID of the node whose data it holds, and which has left the ring.
pub const LEFT_HOST_ID: &str = "messina.scylladb.com/left-host-id";
/// On a ScyllaDBDatacenter, by the user: `Delete` deletes claims of nodes that have left; else they are kept until their
/// names are needed again.
pub const CLAIMS_OF_LEFT_NODES: &str = "messina.scylladb.com/claims-of-left-nodes";

/// On a member Service, by the user: "true" lets the node join although not all nodes see each other up.
pub const FORCE_PROCEED_TO_BOOTSTRAP: &str = "scylla-operator.scylladb.com/force-proceed-to-bootstrap";
/// On a member Service, by the user: "true" lets the node's program start whatever is missing, "false" keeps it from
/// starting.
pub const FORCE_IGNITION_VALUE: &str = "internal.scylla-operator.scylladb.com/force-ignition-value";
/// On a node's pod, by its sidecar: which nodes the node sees, a JSON
/// [`NodeStatusReportAnnotation`](crate::scylla::v1alpha1::NodeStatusReportAnnotation).
pub const NODE_STATUS_REPORT: &str = "internal.scylla.scylladb.com/scylladb-node-status-report";
/// On a ScyllaDBDatacenter of a ScyllaDBCluster, by the operator: name of the status report of the whole cluster, which
/// nodes read in place of their datacenter's own.
pub const STATUS_REPORT_OVERRIDE_REF: &str =
    "internal.scylla-operator.scylladb.com/scylladb-status-report-override-ref";

/// On a ScyllaCluster, by the user: "true" keeps it away from the global ScyllaDB Manager.
pub const DISABLE_GLOBAL_MANAGER: &str = "scylla-operator.scylladb.com/disable-global-scylladb-manager-integration";
/// On a ScyllaDBDatacenter, by the translation of v1: the pods use the network of their Kubernetes node.
pub const HOST_NETWORKING: &str = "internal.scylla-operator.scylladb.com/host-networking";
/// On a ScyllaDBDatacenter, by the translation of v1: kernel settings, a JSON list of "name=value".
pub const SYSCTLS: &str = "internal.scylla-operator.scylladb.com/sysctls";
/// On a ScyllaDBDatacenter, by the translation of v1: Alternator's port for plain HTTP.
pub const ALTERNATOR_PORT: &str = "internal.scylla-operator.scylladb.com/alternator-port";
/// On a ScyllaDBDatacenter, by the translation of v1: whether Alternator serves plain HTTP too.
pub const ALTERNATOR_INSECURE_ENABLE_HTTP: &str =
    "internal.scylla-operator.scylladb.com/alternator-insecure-enable-http";
/// On a ScyllaDBDatacenter, by the translation of v1: whether Alternator serves without authorization.
pub const ALTERNATOR_INSECURE_DISABLE_AUTHORIZATION: &str =
    "internal.scylla-operator.scylladb.com/alternator-insecure-disable-authorization";

/// On a ScyllaDBDatacenter of a ScyllaDBCluster, by the operator: the Secret whose token the agents take.
pub const AGENT_AUTH_TOKEN_OVERRIDE_SECRET_REF: &str =
    "internal.scylla-operator.scylladb.com/scylladb-manager-agent-auth-token-override-secret-ref";
/// On a cluster, by the translation of v1, and on its registration, by the operator: name in ScyllaDB Manager in place
/// of the usual one.
pub const MANAGER_CLUSTER_NAME_OVERRIDE: &str =
    "internal.scylla-operator.scylladb.com/scylladb-manager-cluster-name-override";
/// Another spelling of [`MANAGER_CLUSTER_NAME_OVERRIDE`] and [`MANAGER_TASK_NAME_OVERRIDE`]. No controller reads or
/// writes it; it is not propagated to the objects of a datacenter.
pub const NAME_OVERRIDE: &str = "internal.scylla-operator.scylladb.com/name-override";
/// On a ScyllaDBManagerTask, by the translation of v1: name in ScyllaDB Manager in place of the object's.
pub const MANAGER_TASK_NAME_OVERRIDE: &str =
    "internal.scylla-operator.scylladb.com/scylladb-manager-task-name-override";
/// On a ScyllaDBManagerTask, by the operator: the task as ScyllaDB Manager has it, in JSON, for the status of v1.
pub const MANAGER_TASK_STATUS: &str = "internal.scylla-operator.scylladb.com/scylladb-manager-task-status";
/// On a ScyllaDBManagerTask, by the translation of v1: time from one run to the next.
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
/// On a ScyllaDBManagerTask, by the translation of v1: a task of that name in ScyllaDB Manager that carries nobody's
/// mark is taken over.
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

/// What the operator notes on a Secret beside the certificate that it holds, so that it can be read without decoding.
pub mod certificate {
    /// Number of certificates in the Secret.
    pub const COUNT: &str = "certificates.internal.scylla-operator.scylladb.com/count";
    /// "true" when the certificate may sign others.
    pub const IS_CA: &str = "certificates.internal.scylla-operator.scylladb.com/is-ca";
    /// Name of the authority that signed the certificate.
    pub const ISSUER: &str = "certificates.internal.scylla-operator.scylladb.com/issuer";
    /// Kind of the key, such as RSA.
    pub const KEY_ALGORITHM: &str = "certificates.internal.scylla-operator.scylladb.com/key-algorithm";
    /// Size of the key in bits.
    pub const KEY_SIZE: &str = "certificates.internal.scylla-operator.scylladb.com/key-size";
    /// When the certificate begins to be valid.
    pub const NOT_BEFORE: &str = "certificates.internal.scylla-operator.scylladb.com/not-before";
    /// When the certificate ceases to be valid.
    pub const NOT_AFTER: &str = "certificates.internal.scylla-operator.scylladb.com/not-after";
    /// Why the certificate was last reissued.
    pub const REFRESH_REASON: &str = "certificates.internal.scylla-operator.scylladb.com/refresh-reason";
}
