//! The observed state from which a plan is made, and how it is built from caches.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        batch::v1::Job,
        core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service},
        networking::v1::Ingress,
        storage::v1::StorageClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use messina_api::{names, scylla::v1alpha1::ScyllaDBDatacenterStatus};
use ring::rand::SecureRandom;

use crate::datacenter::model::{
    by_name::ByName,
    certificate::{
        chain::SignedCertificate,
        proofs::Proofs,
        stored::{self, StoredCertificate},
    },
    facts::{
        Class, claim::Claim, job::CleanupJob, pod::NodePod, service::NodeService, volume::is_without_kubernetes_node,
    },
    optional_kind::OptionalKind,
    settings::{Gates, ProbePeriod},
    spec::Datacenter,
};

/// The cached objects of a datacenter and other inputs, from which an [`Observed`] is built. Pods, claims,
/// StorageClasses and volumes may be trimmed by [`crate::datacenter::model::cached`].
#[derive(Clone, Debug)]
pub struct Cached {
    /// The datacenter.
    pub datacenter: Datacenter,
    /// The status that was last reported.
    pub status: ScyllaDBDatacenterStatus,
    /// The StatefulSets that the datacenter owns.
    pub stateful_sets: ByName<StatefulSet>,
    /// The Services that the datacenter owns.
    pub services: ByName<Service>,
    /// The pods of all nodes of the datacenter. A node without a pod counts as stopped.
    pub pods: ByName<Pod>,
    /// The PersistentVolumeClaims of the nodes.
    pub claims: ByName<PersistentVolumeClaim>,
    /// The PersistentVolumes of these claims.
    pub volumes: ByName<PersistentVolume>,
    /// All StorageClasses.
    pub storage_classes: ByName<StorageClass>,
    /// The ConfigMaps that the datacenter owns.
    pub config_maps: ByName<ConfigMap>,
    /// The Secrets that the datacenter owns.
    pub secrets: ByName<Secret>,
    /// The user's ConfigMaps and Secrets that the specification references.
    pub user_objects: UserObjects,
    /// The Ingresses that the datacenter owns.
    pub ingresses: ByName<Ingress>,
    /// The Jobs that the datacenter owns.
    pub jobs: ByName<Job>,
    /// The image of this operator, which also runs in the sidecars of each node.
    pub operator_image: String,
    /// The image of the node exporter, for ScyllaDB images without one.
    pub node_exporter_image: String,
    /// The feature gates.
    pub gates: Gates,
    /// The period of probes.
    pub probe_period: ProbePeriod,
    /// A random token for the agents. It is used only if there is no other token.
    pub new_token: String,
    /// The certificates that were signed for [`crate::datacenter::certificates::signing_requests`], by Secret, or why
    /// that failed.
    pub signed: BTreeMap<String, Result<SignedCertificate, String>>,
    /// The verified properties of certificates: see [`Cached::prove`].
    pub proofs: Proofs,
    /// The port of the Ingress for CQL, for connection configs; none for the default one.
    pub cqls_ingress_port: Option<u16>,
    /// Cluster-scoped kinds that the operator may not read.
    pub unreadable_kinds: BTreeSet<OptionalKind>,
    /// Whether nodes may restart for a change that came with the operator.
    pub turn: Turn,
    /// The current time.
    pub now: Timestamp,
}

impl Cached {
    /// Returns a datacenter without any observed objects.
    pub fn new(datacenter: Datacenter, operator_image: &str) -> Self {
        Self {
            datacenter,
            status: ScyllaDBDatacenterStatus::default(),
            stateful_sets: ByName::default(),
            services: ByName::default(),
            pods: ByName::default(),
            claims: ByName::default(),
            volumes: ByName::default(),
            storage_classes: ByName::default(),
            config_maps: ByName::default(),
            secrets: ByName::default(),
            user_objects: UserObjects::default(),
            ingresses: ByName::default(),
            jobs: ByName::default(),
            operator_image: operator_image.to_owned(),
            node_exporter_image: String::new(),
            gates: Gates::default(),
            probe_period: ProbePeriod::default(),
            new_token: String::new(),
            signed: BTreeMap::new(),
            proofs: Proofs::default(),
            cqls_ingress_port: None,
            unreadable_kinds: BTreeSet::new(),
            turn: Turn::Own,
            now: Timestamp::UNIX_EPOCH,
        }
    }

    /// Verifies the keys and signatures of the stored certificates, except those that were verified before. The result
    /// does not depend on `random`, which is needed to parse a key.
    #[must_use]
    pub fn prove(self, random: &dyn SecureRandom) -> Self {
        let proofs = stored::prove(&self.datacenter, self.gates, &self.secrets, &self.proofs, random);
        Self { proofs, ..self }
    }
}

/// The observed state from which a plan is made. Maps are by name; all objects are in the datacenter's namespace.
///
/// It is only built by [`Observed::from_cached`]. Of Services, pods, claims, StorageClasses and Jobs it has the
/// properties that decisions read (`facts`). StatefulSets, ConfigMaps, Secrets and Ingresses are complete: they are
/// compared with desired objects, or returned.
#[derive(Clone, Debug)]
pub struct Observed {
    pub(crate) datacenter: Datacenter,
    pub(crate) status: ScyllaDBDatacenterStatus,
    pub(crate) stateful_sets: ByName<StatefulSet>,
    pub(crate) services: BTreeMap<String, NodeService>,
    pub(crate) pods: BTreeMap<String, NodePod>,
    pub(crate) claims: BTreeMap<String, Claim>,
    /// Names of the volumes of these claims whose Kubernetes nodes do not exist any more.
    pub(crate) lost_volumes: BTreeSet<String>,
    pub(crate) storage_classes: BTreeMap<String, Class>,
    pub(crate) config_maps: ByName<ConfigMap>,
    pub(crate) secrets: ByName<Secret>,
    pub(crate) user_objects: UserObjects,
    pub(crate) ingresses: ByName<Ingress>,
    pub(crate) jobs: BTreeMap<String, CleanupJob>,
    pub(crate) operator_image: String,
    pub(crate) node_exporter_image: String,
    pub(crate) gates: Gates,
    pub(crate) probe_period: ProbePeriod,
    pub(crate) new_token: String,
    pub(crate) signed: BTreeMap<String, Result<SignedCertificate, String>>,
    /// The certificates in the Secrets, by the desired names of these.
    pub(crate) certificates: BTreeMap<String, StoredCertificate>,
    pub(crate) cqls_ingress_port: Option<u16>,
    pub(crate) unreadable_kinds: BTreeSet<OptionalKind>,
    pub(crate) turn: Turn,
    pub(crate) now: Timestamp,
}

impl Observed {
    /// Builds the observed state. `kubernetes_nodes` are the metadata of all Kubernetes nodes.
    pub fn from_cached<'a>(
        cached: Cached,
        kubernetes_nodes: impl IntoIterator<Item = &'a ObjectMeta, IntoIter: Clone>,
    ) -> Self {
        let kubernetes_nodes = kubernetes_nodes.into_iter();
        // Volumes do not count as lost if the operator may not read the objects that would show it.
        let may_be_lost = !cached.unreadable_kinds.iter().any(|kind| kind.is_of_volumes());
        let is_lost =
            |volume: &&PersistentVolume| may_be_lost && is_without_kubernetes_node(volume, kubernetes_nodes.clone());
        let lost_volumes = cached.volumes.values().filter(is_lost).filter_map(|volume| volume.metadata.name.clone());
        let certificates = stored::read(&cached.datacenter, cached.gates, &cached.secrets, &cached.proofs);
        Self {
            lost_volumes: lost_volumes.collect(),
            datacenter: cached.datacenter,
            status: cached.status,
            stateful_sets: cached.stateful_sets,
            services: facts(&cached.services, NodeService::of),
            pods: facts(&cached.pods, NodePod::of),
            claims: facts(&cached.claims, Claim::of),
            storage_classes: facts(&cached.storage_classes, Class::of),
            config_maps: cached.config_maps,
            secrets: cached.secrets,
            user_objects: cached.user_objects,
            ingresses: cached.ingresses,
            jobs: facts(&cached.jobs, CleanupJob::of),
            operator_image: cached.operator_image,
            node_exporter_image: cached.node_exporter_image,
            gates: cached.gates,
            probe_period: cached.probe_period,
            new_token: cached.new_token,
            signed: cached.signed,
            certificates,
            cqls_ingress_port: cached.cqls_ingress_port,
            unreadable_kinds: cached.unreadable_kinds,
            turn: cached.turn,
            now: cached.now,
        }
    }

    /// The datacenter.
    pub fn datacenter(&self) -> &Datacenter {
        &self.datacenter
    }

    /// The status that was last reported.
    pub fn status(&self) -> &ScyllaDBDatacenterStatus {
        &self.status
    }

    /// The ConfigMaps that the datacenter owns.
    pub fn config_maps(&self) -> &ByName<ConfigMap> {
        &self.config_maps
    }

    /// The Ingresses that the datacenter owns.
    pub fn ingresses(&self) -> &ByName<Ingress> {
        &self.ingresses
    }

    /// The Jobs that the datacenter owns.
    pub fn jobs(&self) -> impl Iterator<Item = &CleanupJob> {
        self.jobs.values()
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Sets whether nodes may restart for a change that came with the operator, which is decided from the rest of the
    /// observed state.
    pub fn set_turn(&mut self, turn: Turn) {
        self.turn = turn;
    }

    /// Sets the certificates that were signed for [`crate::datacenter::certificates::signing_requests`], by Secret, or
    /// why that failed.
    pub fn set_signed(&mut self, signed: BTreeMap<String, Result<SignedCertificate, String>>) {
        self.signed = signed;
    }

    /// Returns the claim of a member.
    pub(crate) fn claim_of(&self, member: &str) -> Option<&Claim> {
        self.claims.get(&names::datacenter::data_claim(member))
    }
}

/// Reads the properties of all objects of one kind.
fn facts<K, F>(objects: &ByName<K>, read: fn(&K) -> F) -> BTreeMap<String, F> {
    objects.iter().map(|(name, object)| (name.clone(), read(object))).collect()
}

/// Whether a datacenter may roll out a change of the pods that came with a new operator version. Changes of the user do
/// not wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Turn {
    /// It may roll out.
    #[default]
    Own,
    /// It waits for the rollout of this datacenter, and possibly of others.
    After(String),
}

/// The existing ConfigMaps and Secrets of the user that the specification references. Nodes restart when one is created
/// or deleted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UserObjects {
    /// The ConfigMaps of [`Datacenter::config_map_references`].
    pub config_maps: BTreeMap<String, Arc<ConfigMap>>,
    /// The Secrets of [`Datacenter::secret_references`].
    pub secrets: BTreeMap<String, Arc<Secret>>,
}
