//! The plan: the result of a decision.

use std::iter;

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
use serde::Serialize;

pub use crate::outcome::{ObjectKind, ObservedVersion, Preconditions, Untouched};
use crate::{datacenter::model::component::Component, outcome};

/// A patch of single fields.
pub type FieldPatch = outcome::FieldPatch<Component>;

/// An object to delete.
pub type Deletion = outcome::Deletion<Component>;

/// Reason and message for a condition of a component.
pub type Note = outcome::Note<Component>;

/// The desired state of a datacenter's objects, and what to report.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The objects to apply.
    pub objects: Objects,
    /// Patches of single fields, each for the observed version of an object. They are applied after the objects.
    pub changes: Vec<FieldPatch>,
    /// Objects to delete, each by its UID, after the patches.
    pub deletions: Vec<Deletion>,
    /// Objects that must still have the observed version when another object is written.
    pub preconditions: Preconditions,
    /// Other objects of the datacenter that the operator must neither change nor delete now.
    pub untouched: Vec<Untouched>,
    /// What is in progress, and the next action: conditions `Progressing`.
    pub progressing: Vec<Note>,
    /// What has failed, and the remedy: conditions `Degraded`.
    pub degraded: Vec<Note>,
    /// Warnings, which have no condition: what the operator cannot do, and why.
    pub warnings: Vec<Note>,
    /// When to reconcile again even if nothing has changed.
    pub requeue_at: Option<Timestamp>,
}

/// The objects to apply.
#[derive(Clone, Debug, PartialEq)]
pub struct Objects {
    /// The ServiceAccount of the pods.
    pub service_account: ServiceAccount,
    /// The RoleBinding of that ServiceAccount.
    pub role_binding: RoleBinding,
    /// The token that agents and ScyllaDB Manager share; none while the token is unknown.
    pub agent_auth_token: Option<Secret>,
    /// The operator's part of `scylla.yaml`.
    pub managed_config: ConfigMap,
    /// The operator's part of the agents' configuration.
    pub managed_agent_config: ConfigMap,
    /// The snitch configuration of each rack.
    pub snitch_configs: Vec<ConfigMap>,
    /// The PodDisruptionBudget of all nodes.
    pub pod_disruption_budget: PodDisruptionBudget,
    /// The Service of all nodes.
    pub identity_service: Service,
    /// The Service of each node.
    pub member_services: Vec<Service>,
    /// Certificate authorities and certificates, in no particular order.
    pub certificates: Vec<CertificateChain>,
    /// The CQL connection configs of the administrator; none while the client certificate does not exist.
    pub cql_connection_configs: Option<Secret>,
    /// The StatefulSets that are up to date, or are created or changed now.
    pub stateful_sets: Vec<StatefulSet>,
    /// The Ingresses for CQL of all nodes and of each node, if the specification has them.
    pub ingresses: Vec<Ingress>,
    /// The cleanup Jobs to create. Existing Jobs stay as they are.
    pub cleanup_jobs: Vec<Job>,
}

impl Objects {
    /// Returns all objects with their components, in the order in which they are applied: first what the pods need,
    /// then the pods, then what is for nodes that exist.
    pub fn in_order(&self) -> impl Iterator<Item = (Component, DesiredObject<'_>)> {
        use DesiredObject as Object;
        // Destructured, so that a new kind of object cannot be forgotten here.
        let Self {
            service_account,
            role_binding,
            agent_auth_token,
            managed_config,
            managed_agent_config,
            snitch_configs,
            pod_disruption_budget,
            identity_service,
            member_services,
            certificates,
            cql_connection_configs,
            stateful_sets,
            ingresses,
            cleanup_jobs,
        } = self;
        // The CQL connection configs contain the certificates.
        let certificates = certificates
            .iter()
            .flat_map(CertificateChain::in_order)
            .chain(cql_connection_configs.as_ref().map(Object::Secret));
        let configs = [managed_config, managed_agent_config].into_iter().chain(snitch_configs).map(Object::ConfigMap);
        let services = iter::once(identity_service).chain(member_services).map(Object::Service);
        of(Component::ServiceAccount, [Object::ServiceAccount(service_account)])
            .chain(of(Component::RoleBinding, [Object::RoleBinding(role_binding)]))
            .chain(of(Component::AgentToken, agent_auth_token.as_ref().map(Object::Secret)))
            .chain(of(Component::Certificates, certificates))
            .chain(of(Component::Config, configs))
            .chain(of(Component::Service, services))
            .chain(of(Component::PodDisruptionBudget, [Object::PodDisruptionBudget(pod_disruption_budget)]))
            .chain(of(Component::StatefulSet, stateful_sets.iter().map(Object::StatefulSet)))
            .chain(of(Component::Ingress, ingresses.iter().map(Object::Ingress)))
            .chain(of(Component::Job, cleanup_jobs.iter().map(Object::Job)))
    }
}

fn of<'a>(
    component: Component,
    objects: impl IntoIterator<Item = DesiredObject<'a>>,
) -> impl Iterator<Item = (Component, DesiredObject<'a>)> {
    objects.into_iter().map(move |object| (component, object))
}

/// A desired object of any kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
#[expect(missing_docs, reason = "they are Kubernetes' own kinds")]
pub enum DesiredObject<'a> {
    ServiceAccount(&'a ServiceAccount),
    RoleBinding(&'a RoleBinding),
    Secret(&'a Secret),
    ConfigMap(&'a ConfigMap),
    Service(&'a Service),
    PodDisruptionBudget(&'a PodDisruptionBudget),
    StatefulSet(&'a StatefulSet),
    Ingress(&'a Ingress),
    Job(&'a Job),
}

/// The state of the rollout of a change of the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolloutState {
    /// All nodes are up and up to date.
    Complete,
    /// Nodes have to restart, none has yet, and all are up.
    Pending,
    /// Nodes have to restart and none has yet, because not all are up.
    Blocked,
    /// Some nodes are up to date, and others have to restart.
    InProgress,
    /// No node has to restart, but not all are up.
    NotReady,
}

/// A node that has to restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Restart {
    /// Name of the StatefulSet.
    pub(crate) stateful_set: String,
    /// The ordinal of the pod.
    pub(crate) ordinal: i32,
}

impl Restart {
    /// Name of the pod and of the Service.
    pub(crate) fn member(&self) -> String {
        names::datacenter::member(&self.stateful_set, self.ordinal)
    }
}

/// A certificate authority (CA) and the certificate that it signs. Objects that are none stay as they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CertificateChain {
    /// The CA.
    pub authority: Option<Secret>,
    /// The bundle of trusted CAs.
    pub bundle: Option<ConfigMap>,
    /// The same bundle under scylla-operator's name, where clients may still read it.
    pub former_bundle: Option<ConfigMap>,
    /// The certificate that the CA signs.
    pub certificate: Option<Secret>,
}

impl CertificateChain {
    /// Returns the CA before what it signs.
    fn in_order(&self) -> impl Iterator<Item = DesiredObject<'_>> {
        let Self { authority, bundle, former_bundle, certificate } = self;
        let bundles = bundle.iter().chain(former_bundle).map(DesiredObject::ConfigMap);
        authority.iter().map(DesiredObject::Secret).chain(bundles).chain(certificate.iter().map(DesiredObject::Secret))
    }
}
