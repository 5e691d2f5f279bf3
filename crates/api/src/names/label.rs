//! Labels. Each comment says on which objects, who sets it, and what it means.

/// On every object of a datacenter, by the operator: always [`value::SCYLLA`]. Part of selectors.
pub const APP: &str = "app";
/// On every object of a cluster, by the operator: the application that the object is a part of. Part of selectors.
pub const NAME: &str = "app.kubernetes.io/name";
/// On every object of a cluster, by the operator: that the operator manages the object. Part of selectors.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// On an EndpointSlice, by the operator: its manager, so that the controllers of Kubernetes do not change it.
pub const ENDPOINT_SLICE_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// On an EndpointSlice, by the operator: the Service that it belongs to.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// On a pod, by Kubernetes: its own name. Member Services select their one pod by it.
pub const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";

/// On every object of a datacenter, by the operator: name of the ScyllaDBDatacenter.
pub const CLUSTER: &str = "scylla/cluster";
/// On the objects of a rack, by the operator: name of the datacenter in ScyllaDB.
pub const DATACENTER: &str = "scylla/datacenter";
/// On the objects of a rack, by the operator: name of the rack.
pub const RACK: &str = "scylla/rack";
/// On a rack's StatefulSet and pods, by the operator: position of the rack in the spec, from 0.
pub const RACK_ORDINAL: &str = "scylla/rack-ordinal";
/// On a rack's StatefulSet and pods, by the operator: version of ScyllaDB.
pub const SCYLLA_VERSION: &str = "scylla/scylla-version";
/// On Services, by the operator: [`value::IDENTITY`] or [`value::MEMBER`].
pub const SERVICE_TYPE: &str = "scylla-operator.scylladb.com/scylla-service-type";
/// On pods and their StatefulSets and Jobs, by the operator: [`value::SCYLLADB_NODE`] or [`value::CLEANUP_JOB`].
pub const POD_TYPE: &str = "scylla-operator.scylladb.com/pod-type";
/// On Ingresses, by the operator: [`value::NODE`] or [`value::ANY_NODE`].
pub const INGRESS_TYPE: &str = "scylla-operator.scylladb.com/scylla-ingress-type";
/// On a cleanup Job, by the operator: name of the node that it cleans up.
pub const NODE_JOB: &str = "scylla-operator.scylladb.com/node-job";
/// On a cleanup Job, by the operator: what the Job does, [`value::CLEANUP`].
pub const NODE_JOB_TYPE: &str = "scylla-operator.scylladb.com/node-job-type";

/// On a member Service, by the user: requests the replacement of the node. The value is empty; it is
/// [`value::AUTOMATIC`] if the operator set the label, because the node's storage is lost.
pub const REPLACE: &str = "scylla/replace";
/// On a member Service, by the operator: host ID of the node that is being replaced.
pub const REPLACING_NODE_HOST_ID: &str = "internal.scylla-operator.scylladb.com/replacing-node-hostid";
/// On a member Service: "false", by the operator, requests the decommission of the node; "true", by its sidecar,
/// reports that the node is decommissioned.
pub const DECOMMISSIONED: &str = "scylla/decommissioned";
/// On a member Service, by the user: the node is under maintenance, and probes do not restart it.
pub const NODE_MAINTENANCE: &str = "scylla/node-maintenance";

/// On a ScyllaDBCluster or ScyllaDBDatacenter, by the user or the translation of v1: "true" registers it with the
/// global ScyllaDB Manager.
pub const REGISTER_WITH_GLOBAL_MANAGER: &str = "scylla-operator.scylladb.com/register-with-global-scylladb-manager";
/// On a ScyllaDBManagerClusterRegistration, by the operator: "true" if it is for the global ScyllaDB Manager.
pub const GLOBAL_MANAGER: &str = "internal.scylla-operator.scylladb.com/global-scylladb-manager";
/// On a cluster or task inside of ScyllaDB Manager, by the operator: UID of the Kubernetes object that owns it.
pub const OWNER_UID: &str = "scylla-operator.scylladb.com/owner-uid";
/// On a cluster or task inside of ScyllaDB Manager, by the operator: hash of what the operator wrote last.
pub const MANAGED_HASH: &str = "scylla-operator.scylladb.com/managed-hash";

/// On a status report, by the operator: name of the ScyllaDBDatacenter whose nodes read it before they bootstrap.
pub const STATUS_REPORT_SELECTOR: &str =
    "scylla-operator.scylladb.com/scylladb-datacenter-nodes-status-report-selector";
/// On a status report in another Kubernetes cluster, by the operator: name of the ScyllaDBCluster.
pub const REMOTE_CLUSTER_STATUS_REPORT: &str =
    "scylla-operator.scylladb.com/remote-cluster-scylladb-datacenter-nodes-status-report";

/// On the objects of a ScyllaDBCluster in its own namespace, by the operator: name of the ScyllaDBCluster.
pub const SCYLLADB_CLUSTER_NAME: &str = "scylla-operator.scylladb.com/scylladbcluster-name";
/// On the Service of a ScyllaDBCluster in its own namespace, by the operator: [`value::IDENTITY`].
pub const SCYLLADB_CLUSTER_LOCAL_SERVICE_TYPE: &str = "scylla-operator.scylladb.com/scylladbcluster-local-service-type";
/// On EndpointSlices in the namespace of a ScyllaDBCluster, by the operator: name of the ScyllaDBCluster.
pub const CLUSTER_ENDPOINTS: &str = "scylla-operator.scylladb.com/cluster-endpoints";
/// On EndpointSlices in another Kubernetes cluster, by the operator: name of the ScyllaDBCluster.
pub const REMOTE_CLUSTER_ENDPOINTS: &str = "scylla-operator.scylladb.com/remote-cluster-endpoints";
/// On an object in another Kubernetes cluster, by the operator: domain of the Kubernetes cluster whose operator manages
/// it.
pub const MANAGED_BY_CLUSTER: &str = "scylla-operator.scylladb.com/managed-by-cluster";
/// On an object in another Kubernetes cluster, by the operator: name of the ScyllaDBCluster that it belongs to.
pub const PARENT_CLUSTER_NAME: &str = "scylla-operator.scylladb.com/parent-scylladbcluster-name";
/// On an object in another Kubernetes cluster, by the operator: namespace of that ScyllaDBCluster.
pub const PARENT_CLUSTER_NAMESPACE: &str = "scylla-operator.scylladb.com/parent-scylladbcluster-namespace";
/// On an object in another Kubernetes cluster, by the operator: the datacenter of that ScyllaDBCluster.
pub const PARENT_CLUSTER_DATACENTER_NAME: &str = "scylla-operator.scylladb.com/parent-scylladbcluster-datacenter-name";
/// On a RemoteOwner, by the operator: name of the RemoteKubernetesCluster that it is in.
pub const REMOTE_OWNER_CLUSTER: &str = "internal.scylla-operator.scylladb.com/remote-owner-cluster";
/// On a RemoteOwner, by the operator: group, version and resource of the object that it represents, joined by dashes.
pub const REMOTE_OWNER_GVR: &str = "internal.scylla-operator.scylladb.com/remote-owner-gvr";
/// On a RemoteOwner, by the operator: name of the object that it represents.
pub const REMOTE_OWNER_NAME: &str = "internal.scylla-operator.scylladb.com/remote-owner-name";
/// On a RemoteOwner, by the operator: namespace of the object that it represents.
pub const REMOTE_OWNER_NAMESPACE: &str = "internal.scylla-operator.scylladb.com/remote-owner-namespace";

/// Values of labels.
pub mod value {
    /// Of [`APP`](super::APP) and [`NAME`](super::NAME) for the objects of a datacenter.
    pub const SCYLLA: &str = "scylla";
    /// Of [`MANAGED_BY`](super::MANAGED_BY) for the objects of a datacenter.
    pub const OPERATOR: &str = "scylla-operator";
    /// Of [`NAME`](super::NAME) for the objects of a ScyllaDBCluster in its own namespace.
    pub const SCYLLADB_CLUSTER: &str = "scylla.scylladb.com";
    /// Of [`MANAGED_BY`](super::MANAGED_BY) for the objects of a ScyllaDBCluster in its own namespace.
    pub const CLUSTER_OPERATOR: &str = "scylla-operator.scylladb.com";
    /// Of [`MANAGED_BY`](super::MANAGED_BY) for the objects of a ScyllaDBCluster in another Kubernetes cluster.
    pub const REMOTE_OPERATOR: &str = "remote.scylla-operator.scylladb.com";
    /// Of [`SERVICE_TYPE`](super::SERVICE_TYPE): the Service of all nodes.
    pub const IDENTITY: &str = "identity";
    /// Of [`SERVICE_TYPE`](super::SERVICE_TYPE): the Service of one node.
    pub const MEMBER: &str = "member";
    /// Of [`POD_TYPE`](super::POD_TYPE): a node of ScyllaDB.
    pub const SCYLLADB_NODE: &str = "scylladb-node";
    /// Of [`POD_TYPE`](super::POD_TYPE): a cleanup, which removes data that a node no longer owns.
    pub const CLEANUP_JOB: &str = "cleanup-job";
    /// Of [`NODE_JOB_TYPE`](super::NODE_JOB_TYPE): a cleanup, which removes data that a node no longer owns.
    pub const CLEANUP: &str = "Cleanup";
    /// Of [`INGRESS_TYPE`](super::INGRESS_TYPE): the Ingress of one node.
    pub const NODE: &str = "Node";
    /// Of [`INGRESS_TYPE`](super::INGRESS_TYPE): the Ingress of all nodes.
    pub const ANY_NODE: &str = "AnyNode";
    /// Of [`REPLACE`](super::REPLACE): the operator requested the replacement.
    pub const AUTOMATIC: &str = "automatic";
    /// Of a boolean label.
    pub const TRUE: &str = "true";
    /// Of a boolean label.
    pub const FALSE: &str = "false";
}
