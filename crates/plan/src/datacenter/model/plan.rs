//! What is decided.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    batch::v1::Job,
    core::v1::{ConfigMap, Secret, Service, ServiceAccount},
    networking::v1::Ingress,
    policy::v1::PodDisruptionBudget,
    rbac::v1::RoleBinding,
};
use messina_api::names;
use serde_json::Value;

use crate::datacenter::model::component::Component;

/// What is to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The objects to apply.
    pub objects: Objects,
    /// Changes of single fields, each for the very version of an object that was observed. They come after the objects.
    pub changes: Vec<FieldPatch>,
    /// Objects to delete, each by its UID, after the changes.
    pub deletions: Vec<Deletion>,
    /// What has to be as it was observed when something is written.
    pub preconditions: Preconditions,
    /// What the datacenter owns beside those objects, and must neither be changed nor removed now.
    pub untouched: Vec<Untouched>,
    /// What is not done yet, and what happens next.
    pub progressing: Vec<Note>,
    /// What is wrong, and what to do.
    pub degraded: Vec<Note>,
    /// What the specification leaves out, and what cannot be done without.
    pub warnings: Vec<Note>,
    /// When there is something to do though nothing has changed.
    pub requeue_at: Option<Timestamp>,
}

/// The objects to apply, in the order in which they are needed.
#[derive(Clone, Debug, PartialEq)]
pub struct Objects {
    /// The identity of the pods.
    pub service_account: ServiceAccount,
    /// What that identity may do.
    pub role_binding: RoleBinding,
    /// The token that agents and ScyllaDB Manager share; none while it is not known which one.
    pub agent_auth_token: Option<Secret>,
    /// The operator's part of `scylla.yaml`.
    pub managed_config: ConfigMap,
    /// The operator's part of the agents' configuration.
    pub managed_agent_config: ConfigMap,
    /// Which rack a node is in, for each rack.
    pub snitch_configs: Vec<ConfigMap>,
    /// How many nodes may be down at a time by the will of Kubernetes.
    pub pod_disruption_budget: PodDisruptionBudget,
    /// The Service that leads to any node.
    pub identity_service: Service,
    /// The Service of each node.
    pub member_services: Vec<Service>,
    /// Authorities and certificates, in no particular order.
    pub certificates: Vec<CertificateChain>,
    /// How the administrator's clients connect; none while their certificate is not stored, or not made at all.
    pub cql_connection_configs: Option<Secret>,
    /// The racks whose StatefulSets are as they are to be, or are changed now.
    pub stateful_sets: Vec<StatefulSet>,
    /// The Ingresses that lead to CQL of any node and of each node, where they are asked for.
    pub ingresses: Vec<Ingress>,
    /// The Jobs that are to begin to clean up nodes. Those that are there already are left alone.
    pub cleanup_jobs: Vec<Job>,
}

/// A kind of object that is changed in part, or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "they are Kubernetes' own kinds")]
pub enum ObjectKind {
    Service,
    StatefulSet,
    Pod,
    PersistentVolumeClaim,
}

impl ObjectKind {
    /// The part that nodes which come and go are told of: StatefulSets get fewer nodes when all else is in place.
    pub(crate) const fn component(self) -> Component {
        match self {
            Self::StatefulSet => Component::StatefulSet,
            Self::Service | Self::Pod | Self::PersistentVolumeClaim => Component::Service,
        }
    }
}

/// A change of single fields.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldPatch {
    /// The part of the work that it belongs to.
    pub component: Component,
    /// Kind of the object.
    pub kind: ObjectKind,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The version that was observed: if it is another one by then, nothing changes.
    pub version: String,
    /// What changes, as a merge patch.
    pub patch: Value,
    /// Reason and message of an event, when it is done.
    pub event: Option<(&'static str, String)>,
}

/// An object to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// The part of the work that it belongs to.
    pub component: Component,
    /// Kind of the object.
    pub kind: ObjectKind,
    /// Its name.
    pub name: String,
    /// Its UID: no other of that name is deleted.
    pub uid: String,
    /// The version that was observed, where the object must not have changed since: if it is another one by then, nothing is
    /// deleted.
    pub version: Option<String>,
    /// Whether what it owns stays.
    pub orphans: bool,
    /// Reason and message of an event, when it is done.
    pub event: Option<(&'static str, String)>,
}

/// An object that must stay as it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Untouched {
    /// Its kind.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
}

/// Something to tell about a part of the work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The part.
    pub component: Component,
    /// One word in CamelCase.
    pub reason: &'static str,
    /// What it is about, on which object, and what happens next.
    pub message: String,
}

/// How far a change of pods is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolloutState {
    /// All nodes are up, and as they are to be.
    Complete,
    /// Nodes are to change, and none has.
    Pending,
    /// Nodes are to change, none has, and not all are up.
    Blocked,
    /// Some nodes have changed, and others are yet to.
    InProgress,
    /// Nothing is to change, but not all nodes are up.
    NotReady,
}

/// An object as it was observed, or that there was none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedVersion {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its name.
    pub name: String,
    /// Its version; none where it was not there.
    pub version: Option<String>,
}

/// What writes rest on, by kind and name of what is written: if one of these is not as it was observed, it is not written.
pub type Preconditions = BTreeMap<(ObjectKind, String), Vec<ObservedVersion>>;

/// A node that is to restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Restart {
    /// Name of the StatefulSet.
    pub(crate) stateful_set: String,
    /// The place of the node in it.
    pub(crate) ordinal: i32,
}

impl Restart {
    /// Name of the pod and of the Service.
    pub(crate) fn member(&self) -> String {
        names::datacenter::member(&self.stateful_set, self.ordinal)
    }
}

/// An authority, and what it signs. What is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CertificateChain {
    /// The authority.
    pub authority: Option<Secret>,
    /// The authorities that are trusted.
    pub bundle: Option<ConfigMap>,
    /// The same, under the name that scylla-operator has for it, where clients may read it there.
    pub former_bundle: Option<ConfigMap>,
    /// What the authority signs.
    pub certificate: Option<Secret>,
}
