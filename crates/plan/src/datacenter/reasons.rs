//! The reasons of conditions and events of a ScyllaDBDatacenter.

messina_text::reasons! {
    /// The specification asks for no node at all. The operator keeps the last node of the datacenter.
    CANNOT_DECOMMISSION_LAST_NODE = "CannotDecommissionLastNode";
    /// A cleanup Job is complete. The operator records the token ring that the node was cleaned up for.
    CLEANED_UP = "CleanedUp";
    /// The operator creates a cleanup Job for a node.
    CLEANING_UP = "CleaningUp";
    /// A cleanup Job failed. The operator creates another one when the failed one is deleted.
    CLEANUP_FAILED = "CleanupFailed";
    /// The nodes have no ScyllaDB Manager agent, so the operator cannot clean them up.
    CLEANUP_NOT_AVAILABLE = "CleanupNotAvailable";
    /// The operator creates the StatefulSet of a rack. Its nodes then join.
    CREATING_STATEFUL_SET = "CreatingStatefulSet";
    /// The rack has its former number of nodes again before the decommission of a node began.
    DECOMMISSION_CANCELLED = "DecommissionCancelled";
    /// A node is leaving the token ring.
    DECOMMISSION_IN_PROGRESS = "DecommissionInProgress";
    /// ScyllaDB refuses the decommission of a node. The message quotes ScyllaDB.
    DECOMMISSION_REFUSED = "DecommissionRefused";
    /// The operator requests the decommission of a node.
    DECOMMISSION_REQUESTED = "DecommissionRequested";
    /// The operator deletes the PersistentVolumeClaim of a node that has left or is being replaced.
    DELETING_CLAIM = "DeletingClaim";
    /// The operator deletes the Service of a node that never joined.
    DELETING_SERVICE = "DeletingService";
    /// A node that has joined finds its volume empty and does not start.
    DISK_IS_EMPTY = "DiskIsEmpty";
    /// The operator requests a larger volume for a node.
    EXPANDING_VOLUME = "ExpandingVolume";
    /// The storage driver failed to expand a volume and retries.
    EXPANSION_FAILS = "ExpansionFails";
    /// The StorageClass does not allow volume expansion, or does not exist.
    EXPANSION_FORBIDDEN = "ExpansionForbidden";
    /// The storage driver cannot provide the requested size.
    EXPANSION_INFEASIBLE = "ExpansionInfeasible";
    /// A volume has grown and its file system has not yet. Some drivers need a restart of the pod.
    FILE_SYSTEM_RESIZE_PENDING = "FileSystemResizePending";
    /// A field of a StatefulSet differs from the specification and cannot be changed in place.
    IMMUTABLE_FIELD = "ImmutableField";
    /// Fields of the specification are invalid. The operator changes nothing until they are corrected.
    INVALID_SPECIFICATION = "InvalidSpecification";
    /// The operator keeps the PersistentVolumeClaim of a node that has left, and annotates it with the host ID of that
    /// node.
    KEEPING_CLAIM = "KeepingClaim";
    /// The operator removes a label that requests a decommission which the specification does not ask for.
    LABEL_REMOVED = "LabelRemoved";
    /// A node is in the token ring although its StatefulSet has no replica for it. The operator raises the replicas.
    MEMBER_BEYOND_REPLICAS = "MemberBeyondReplicas";
    /// Not all nodes are ready.
    MEMBERS_NOT_READY = "MembersNotReady";
    /// Not all pods have the current specification.
    MEMBERS_NOT_UPDATED = "MembersNotUpdated";
    /// A node is to be replaced and its host ID is unknown.
    NO_HOST_ID = "NoHostID";
    /// A node has left the token ring. The operator scales its StatefulSet in.
    NODE_DECOMMISSIONED = "NodeDecommissioned";
    /// The Kubernetes node and the local volume of a node are lost. The node has to be replaced.
    NODE_GONE = "NodeGone";
    /// A node is to be replaced although it is up.
    NODE_IS_UP = "NodeIsUp";
    /// The operator deletes the Service of a node that has left the token ring.
    NODE_REMOVED = "NodeRemoved";
    /// A new node has replaced a former one.
    NODE_REPLACED = "NodeReplaced";
    /// A node has the label of node maintenance. The operator begins no other change.
    NODE_UNDER_MAINTENANCE = "NodeUnderMaintenance";
    /// A node runs the new version of ScyllaDB.
    NODE_UPGRADED = "NodeUpgraded";
    /// A feature is disabled because the operator may not read what it needs for it.
    PERMISSION_MISSING = "PermissionMissing";
    /// A node agrees on the schema and takes snapshots before its upgrade.
    PREPARING_NODE = "PreparingNode";
    /// The nodes prepare an upgrade of ScyllaDB.
    PREPARING_UPGRADE = "PreparingUpgrade";
    /// The operator deletes the StatefulSet of a rack that is not in the specification and has no nodes.
    RACK_REMOVED = "RackRemoved";
    /// A rack was removed from the specification while its StatefulSet does not exist and its nodes are in the token
    /// ring.
    RACK_WITHOUT_STATEFUL_SET = "RackWithoutStatefulSet";
    /// Not all racks run the desired version of ScyllaDB.
    RACKS_NOT_AT_DESIRED_VERSION = "RacksNotAtDesiredVersion";
    /// The operator deletes and recreates a StatefulSet around its pods, which keep running.
    RECREATING_STATEFUL_SET = "RecreatingStatefulSet";
    /// A rack is not in the specification. The operator decommissions its nodes.
    REMOVING_RACK = "RemovingRack";
    /// The request to replace a node was removed in time, or the node came back.
    REPLACEMENT_CANCELLED = "ReplacementCancelled";
    /// The token ring or an address has changed since a cleanup Job was created.
    REPLACING_JOB = "ReplacingJob";
    /// A node is being replaced by an empty one.
    REPLACING_NODE = "ReplacingNode";
    /// The operator deletes a pod that cannot start, because the specification was corrected.
    REPLACING_POD = "ReplacingPod";
    /// The operator deletes the pod of a node whose address has changed.
    RESTARTING_NODE = "RestartingNode";
    /// A StatefulSet has more nodes than the specification asks for. The operator decommissions the last one.
    SCALING_IN = "ScalingIn";
    /// A StatefulSet has fewer nodes than the specification asks for. The operator adds one at a time.
    SCALING_OUT = "ScalingOut";
    /// The nodes do not agree on the schema, so an upgrade cannot begin.
    SCHEMA_DISAGREEMENT = "SchemaDisagreement";
    /// A certificate could not be signed. The message names the cause.
    SIGNING_FAILED = "SigningFailed";
    /// A node could not take its snapshots before an upgrade.
    SNAPSHOT_FAILED = "SnapshotFailed";
    /// A node could not remove the snapshots of an upgrade.
    SNAPSHOT_NOT_REMOVED = "SnapshotNotRemoved";
    /// A PersistentVolumeClaim of a former node has the name that a new node needs.
    STALE_CLAIM = "StaleClaim";
    /// The specification asks for less storage than the volumes have.
    STORAGE_CANNOT_SHRINK = "StorageCannotShrink";
    /// A node leaves the token ring that is not the last one of its rack.
    UNEXPECTED_DECOMMISSION = "UnexpectedDecommission";
    /// The annotations of a node's Service contradict each other, so its cleanup cannot be decided.
    UNEXPECTED_SERVICE_STATE = "UnexpectedServiceState";
    /// A Service belongs to a node that the specification does not contain and whose host ID is unknown.
    UNKNOWN_NODE = "UnknownNode";
    /// The Secret with the token of the agents cannot be read.
    UNREADABLE_SECRET = "UnreadableSecret";
    /// The operator updates a StatefulSet. A node restarts.
    UPDATING_STATEFUL_SET = "UpdatingStatefulSet";
    /// An upgrade of ScyllaDB begins.
    UPGRADE_BEGINS = "UpgradeBegins";
    /// A node that is down has not prepared the upgrade.
    UPGRADE_BLOCKED = "UpgradeBlocked";
    /// All nodes run the new version of ScyllaDB.
    UPGRADE_DONE = "UpgradeDone";
    /// A node was upgraded without its preparation, because it was down or the upgrade was undone.
    UPGRADE_HOOKS_SKIPPED = "UpgradeHooksSkipped";
    /// The address of a node is unknown, so it cannot be cleaned up yet.
    WAITING_FOR_ADDRESS = "WaitingForAddress";
    /// The serving certificates do not cover all names and addresses of the nodes yet.
    WAITING_FOR_ADDRESSES = "WaitingForAddresses";
    /// A certificate authority is not stored yet.
    WAITING_FOR_AUTHORITY = "WaitingForAuthority";
    /// A StatefulSet waits for the certificates of its nodes.
    WAITING_FOR_CERTIFICATES = "WaitingForCertificates";
    /// The PersistentVolumeClaim of a node does not exist yet, or is being deleted.
    WAITING_FOR_CLAIM = "WaitingForClaim";
    /// A ConfigMap that the specification references does not exist.
    WAITING_FOR_CONFIG_MAP = "WaitingForConfigMap";
    /// The host ID of a node is not known yet.
    WAITING_FOR_HOST_ID = "WaitingForHostID";
    /// A cleanup Job is running.
    WAITING_FOR_JOB_COMPLETION = "WaitingForJobCompletion";
    /// A change waits for the end of node maintenance.
    WAITING_FOR_MAINTENANCE = "WaitingForMaintenance";
    /// After a loss of all nodes, a rack that is needed for a majority is not in the specification.
    WAITING_FOR_MAJORITY = "WaitingForMajority";
    /// A volume expansion waits for a node that joins, leaves or is being replaced.
    WAITING_FOR_NODE = "WaitingForNode";
    /// A cleanup waits for nodes that are down or change.
    WAITING_FOR_NODES = "WaitingForNodes";
    /// A change of one node waits for another node.
    WAITING_FOR_OTHER_NODE = "WaitingForOtherNode";
    /// A StatefulSet waits for other racks to be rolled out.
    WAITING_FOR_OTHER_RACKS = "WaitingForOtherRacks";
    /// A change waits until a pod is gone.
    WAITING_FOR_POD = "WaitingForPod";
    /// A change waits for the end of a replacement.
    WAITING_FOR_REPLACEMENT = "WaitingForReplacement";
    /// A node does not see all other nodes up, or has not answered yet.
    WAITING_FOR_RING = "WaitingForRing";
    /// A Secret that the specification references does not exist.
    WAITING_FOR_SECRET = "WaitingForSecret";
    /// A cleanup waits for a node that has not joined yet.
    WAITING_FOR_SERVICE = "WaitingForService";
    /// A cleanup waits for a sidecar that has not reported the token ring yet.
    WAITING_FOR_SERVICE_STATE = "WaitingForServiceState";
    /// A StatefulSet waits for ConfigMaps and Secrets that its rack references.
    WAITING_FOR_SETTINGS = "WaitingForSettings";
    /// A key of a certificate is being generated.
    WAITING_FOR_SIGNATURE = "WaitingForSignature";
    /// A StatefulSet is recreated when its rack is idle.
    WAITING_FOR_STATEFUL_SET = "WaitingForStatefulSet";
    /// Pods of a StatefulSet are not ready.
    WAITING_FOR_STATEFUL_SET_ROLLOUT = "WaitingForStatefulSetRollout";
    /// The Secret with the token of the agents is not stored yet.
    WAITING_FOR_TOKEN = "WaitingForToken";
    /// A cleanup waits until all nodes see the same token ring.
    WAITING_FOR_TOKEN_RING = "WaitingForTokenRing";
    /// Another datacenter restarts its nodes first: see the flag --datacenters-at-once.
    WAITING_FOR_TURN = "WaitingForTurn";
    /// A volume has not reached its requested size yet.
    WAITING_FOR_VOLUME = "WaitingForVolume";
    /// A node has to restart and waits for its turn.
    WAITING_TO_RESTART = "WaitingToRestart";
}
