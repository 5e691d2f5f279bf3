//! Decisions for a ScyllaDBDatacenter: which objects it needs, in which order its racks change, and how it stands.
//!
//! A node is taken away only in the way of `topology`: when the ring says that it has left. By no other way does a
//! StatefulSet get fewer replicas, or is a StatefulSet, a Service, a pod or a claim of a node given up.

mod access;
mod by_name;
pub mod cached;
pub mod certificates;
mod cleanup;
mod config;
mod difference;
mod facts;
mod identity;
mod ingresses;
mod joining;
mod metadata;
mod named;
mod observed;
mod operations;
mod permissions;
mod pod;
mod probe;
mod quantity;
mod recovery;
mod restart;
mod rollout;
mod seen;
mod services;
mod stateful_set;
mod status;
mod storage;
pub mod takeover;
mod token;
mod topology;
mod validate;
mod version;
mod volumes;

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    batch::v1::Job,
    core::v1::{ConfigMap, Secret, Service, ServiceAccount},
    networking::v1::Ingress,
    policy::v1::PodDisruptionBudget,
    rbac::v1::RoleBinding,
};
use serde_json::Value;

pub use by_name::ByName;
pub use certificates::CertificateChain;
pub use facts::CleanupJob;
pub use identity::{cannot_adopt, change_of_identity};
pub use observed::{Cached, Gates, Named, Observed, Turn};
pub use operations::{Ending, NodeState, Operation, cleanup_that_ended, node_states, operation_that_ended};
pub use permissions::OptionalKind;
pub use probe::ProbePeriod;
pub use rollout::is_rolled_out;
pub use seen::{RestsOn, Seen};
pub use status::{INVALID_SPECIFICATION, Report, State, Told, refusal, report};
pub(crate) use validate::may_start_together;
pub use validate::{
    Alternator, Datacenter, Fault, Rack, Storage, USUAL_AGENT_SECRET, USUAL_CONFIG_MAP, validate, validate_allowing,
};
pub use volumes::is_without_machine;

use self::topology::Topology;

/// The image of the exporter of a machine's metrics, where no other one is named.
pub const NODE_EXPORTER_IMAGE: &str = "docker.io/scylladb/scylladb-node-exporter:latest";

/// What is to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The objects to apply.
    pub objects: Objects,
    /// Changes of single fields, each for the very version of an object that was observed. They come after the objects.
    pub changes: Vec<Change>,
    /// Objects to delete, each by its UID, after the changes.
    pub deletions: Vec<Deletion>,
    /// What has to be as it was observed when something is written.
    pub rests_on: RestsOn,
    /// What the datacenter owns beside those objects, and must neither be changed nor removed now.
    pub left_alone: Vec<LeftAlone>,
    /// What is not done yet, and what happens next.
    pub waiting: Vec<Note>,
    /// What is wrong, and what to do.
    pub wrong: Vec<Note>,
    /// What the specification leaves out, and what cannot be done without.
    pub ignored: Vec<Note>,
    /// When there is something to do though nothing has changed.
    pub again_at: Option<Timestamp>,
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
pub enum Kind {
    Service,
    StatefulSet,
    Pod,
    PersistentVolumeClaim,
}

impl Kind {
    /// The part that nodes which come and go are told of: StatefulSets get fewer nodes when all else is in place.
    pub(crate) const fn part(self) -> Part {
        match self {
            Self::StatefulSet => Part::StatefulSet,
            Self::Service | Self::Pod | Self::PersistentVolumeClaim => Part::Service,
        }
    }
}

/// A change of single fields.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The part of the work that it belongs to.
    pub part: Part,
    /// Kind of the object.
    pub kind: Kind,
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
    pub part: Part,
    /// Kind of the object.
    pub kind: Kind,
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
pub struct LeftAlone {
    /// Its kind.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
}

/// Something to tell about a part of the work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The part.
    pub part: Part,
    /// One word in CamelCase.
    pub reason: &'static str,
    /// What it is about, on which object, and what happens next.
    pub message: String,
}

/// A part of the work, which has conditions of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The ServiceAccount of the pods.
    ServiceAccount,
    /// The RoleBinding of the pods.
    RoleBinding,
    /// The token of the agents.
    AgentToken,
    /// Certificates and their authorities.
    Certificates,
    /// The ConfigMaps.
    Config,
    /// The StatefulSets.
    StatefulSet,
    /// The nodes' disks.
    Storage,
    /// The Services.
    Service,
    /// The PodDisruptionBudget.
    PodDisruptionBudget,
    /// The Ingresses.
    Ingress,
    /// The Jobs that clean up nodes.
    Job,
}

impl Part {
    /// All parts, in the order of the work.
    pub const ALL: [Self; 11] = [
        Self::ServiceAccount,
        Self::RoleBinding,
        Self::AgentToken,
        Self::Certificates,
        Self::Config,
        Self::StatefulSet,
        Self::Storage,
        Self::Service,
        Self::PodDisruptionBudget,
        Self::Ingress,
        Self::Job,
    ];

    /// What the types of its conditions begin with.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ServiceAccount => "ServiceAccountController",
            Self::RoleBinding => "RoleBindingController",
            Self::AgentToken => "AgentTokenController",
            Self::Certificates => "CertController",
            Self::Config => "ConfigController",
            Self::StatefulSet => "StatefulSetController",
            Self::Storage => "StorageController",
            Self::Service => "ServiceController",
            Self::PodDisruptionBudget => "PDBController",
            Self::Ingress => "IngressController",
            Self::Job => "JobController",
        }
    }
}

/// How far a change of pods is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rolling {
    /// All nodes are up, and as they are to be.
    Done,
    /// Nodes are to change, and none has.
    Pending,
    /// Nodes are to change, none has, and not all are up.
    Held,
    /// Some nodes have changed, and others are yet to.
    Begun,
    /// Nothing is to change, but not all nodes are up.
    Unsettled,
}

/// Tells versions of what the user wrote apart, as far as nodes read it.
pub fn version_of_settings(observed: &Observed) -> Vec<String> {
    observed.datacenter.racks.iter().map(|rack| config::inputs(observed, rack).all).collect()
}

/// How far a change of pods is.
pub fn rolling(observed: &Observed) -> Rolling {
    rollout::racks(observed).rolling()
}

/// Decides what is to be.
pub fn plan(observed: &Observed) -> Plan {
    let datacenter = &observed.datacenter;
    let token = token::token(observed);
    let racks = rollout::racks(observed);
    let (mut names_of_nodes, are_nodes_named) = recovery::name_nodes(observed);
    let topology = Topology { are_nodes_named, ..topology::topology(observed, &racks) };
    names_of_nodes.retain(|one| topology.changes.iter().all(|other| other.name != one.name));
    let services = services::services(observed, &topology.going);
    let certificates = certificates::certificates(observed);
    let mut rollout = rollout::rollout(observed, racks, &topology);
    if certificates.are_awaited {
        rollout.hold(observed, "WaitingForCertificates", "the certificates are there that its nodes serve with");
    }
    let missing = named::missing(observed);
    if !missing.is_empty() {
        rollout.hold(observed, "WaitingForSettings", "the settings are there that its racks name");
    }
    let mut growth = storage::growth(observed, &topology, &rollout);
    let mut recovery = recovery::recovery(observed);
    if !token.wrong.is_empty() {
        // No StatefulSet would be made in place of one that is deleted.
        growth.deletions.clear();
    }
    if !token.wrong.is_empty() || certificates.are_awaited || !missing.is_empty() {
        recovery = recovery::Recovery::default();
    }
    if !recovery.deletions.is_empty() {
        growth.deletions.clear();
    }
    let marks = recovery::marks(observed, &topology.changes);
    growth.changes.retain(|one| marks.iter().all(|mark| mark.name != one.name));
    let ingresses = ingresses::ingresses(observed);
    // ScyllaDB refuses to clean up while nodes come or go. A label that is wrong holds nothing up, and neither does a rack that
    // is removed: its last node may refuse to leave, and is asked again only when the others are cleaned up.
    let is_of_nodes = |note: &Note| note.part == Part::StatefulSet && note.reason != topology::REFUSES;
    let is_settled = !topology.is_leaving
        && topology.waiting.is_empty()
        && !topology.wrong.iter().any(is_of_nodes)
        && rollout.waiting.iter().all(|note| note.reason == rollout::REMOVING_RACK)
        && rollout.wrong.is_empty();
    let cleanup = cleanup::cleanup(observed, is_settled);
    let mut rests_on = topology.rests_on;
    for (deleted, seen) in recovery.rests_on {
        rests_on.entry(deleted).or_default().extend(seen);
    }
    for (written, seen) in seen::of_stateful_sets(observed, &rollout.stateful_sets, &rollout.restarting) {
        rests_on.entry(written).or_default().extend(seen);
    }
    Plan {
        objects: Objects {
            service_account: access::service_account(datacenter),
            role_binding: access::role_binding(datacenter),
            agent_auth_token: token.secret,
            managed_config: config::managed_config(datacenter, observed.gates),
            managed_agent_config: config::managed_agent_config(datacenter),
            snitch_configs: datacenter.racks.iter().map(|rack| config::snitch_config(datacenter, rack)).collect(),
            pod_disruption_budget: access::pod_disruption_budget(datacenter),
            identity_service: services.identity,
            member_services: services.members,
            certificates: certificates.chains,
            cql_connection_configs: certificates.connection_configs,
            stateful_sets: rollout.stateful_sets,
            ingresses: ingresses.ingresses,
            cleanup_jobs: cleanup.jobs,
        },
        changes: [topology.changes, names_of_nodes, marks, growth.changes].concat(),
        deletions: [topology.deletions, growth.deletions, rollout.deletions, recovery.deletions].concat(),
        rests_on,
        left_alone: [
            rollout.left_alone,
            services.left_alone,
            config::left_alone(observed),
            certificates.left_alone,
            ingresses.left_alone,
            cleanup.left_alone,
        ]
        .concat(),
        waiting: [
            token.waiting,
            missing,
            certificates.waiting,
            topology.waiting,
            rollout.waiting,
            recovery.waiting,
            growth.waiting,
            ingresses.waiting,
            cleanup.waiting,
        ]
        .concat(),
        wrong: [
            token.wrong,
            certificates.wrong,
            topology.wrong,
            rollout.wrong,
            recovery.wrong,
            growth.wrong,
            cleanup.wrong,
        ]
        .concat(),
        ignored: [permissions::warnings(&observed.unreadable_kinds), cleanup.ignored].concat(),
        again_at: certificates.again_at,
    }
}
