//! What is known when a plan is made, and how it is built from what caches hold.

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

/// What caches hold of a datacenter, and the values that come with it: all that an [`Observed`] is built from. Pods, claims,
/// StorageClasses and volumes are as [`crate::datacenter::model::cached`] leaves them, or whole.
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
    /// The pods of the datacenter's nodes. All of them: a node that has none is taken for stopped.
    pub pods: ByName<Pod>,
    /// The claims for the nodes' disks.
    pub claims: ByName<PersistentVolumeClaim>,
    /// The volumes that these claims name.
    pub volumes: ByName<PersistentVolume>,
    /// All StorageClasses.
    pub storage_classes: ByName<StorageClass>,
    /// The ConfigMaps that the datacenter owns.
    pub config_maps: ByName<ConfigMap>,
    /// The Secrets that the datacenter owns.
    pub secrets: ByName<Secret>,
    /// What the user has put beside the datacenter.
    pub user_objects: UserObjects,
    /// The Ingresses that the datacenter owns.
    pub ingresses: ByName<Ingress>,
    /// The Jobs that the datacenter owns.
    pub jobs: ByName<Job>,
    /// The image of this operator, which also runs beside each node.
    pub operator_image: String,
    /// The image of the exporter of a machine's metrics, for versions of ScyllaDB that come without.
    pub node_exporter_image: String,
    /// What is switched on.
    pub gates: Gates,
    /// How often the containers of nodes are probed.
    pub probe_period: ProbePeriod,
    /// A random text to become the token of the agents. It is used only as long as there is no other token.
    pub new_token: String,
    /// What was signed of [`crate::datacenter::certificates::signing_requests`], by the name of the Secret, or why that failed.
    pub signed: BTreeMap<String, Result<SignedCertificate, String>>,
    /// What was proven of certificates: see [`Cached::prove`].
    pub proofs: Proofs,
    /// The port at which an Ingress takes CQL, for clients' files; none where it is the usual one.
    pub cqls_ingress_port: Option<u16>,
    /// Kinds outside of the namespace that the operator may not read.
    pub unreadable_kinds: BTreeSet<OptionalKind>,
    /// Whether nodes may restart for what changed of the operator.
    pub turn: Turn,
    /// The time.
    pub now: Timestamp,
}

impl Cached {
    /// A datacenter of which nothing else is known yet.
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

    /// Proves what holds of the certificates that are stored, but for what was proven before. What is not proven does not hold.
    /// `random` has no part in the result: it is asked for to read a key.
    #[must_use]
    pub fn prove(self, random: &dyn SecureRandom) -> Self {
        let proofs = stored::prove(&self.datacenter, self.gates, &self.secrets, &self.proofs, random);
        Self { proofs, ..self }
    }
}

/// What is known when a plan is made. Maps go by name; everything is of the datacenter's namespace.
///
/// It is built by [`Observed::from_cached`] and in no other way. Of Services, pods, claims, StorageClasses and Jobs it has what
/// decisions read (`facts`). StatefulSets, ConfigMaps, Secrets and Ingresses stay as Kubernetes has them: they are compared
/// with desired objects as a whole, or handed back.
#[derive(Clone, Debug)]
pub struct Observed {
    pub(crate) datacenter: Datacenter,
    pub(crate) status: ScyllaDBDatacenterStatus,
    pub(crate) stateful_sets: ByName<StatefulSet>,
    pub(crate) services: BTreeMap<String, NodeService>,
    pub(crate) pods: BTreeMap<String, NodePod>,
    pub(crate) claims: BTreeMap<String, Claim>,
    /// Names of the volumes of these claims whose Kubernetes nodes are gone for good.
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
    /// The certificates that the Secrets hold, by the names that these are to have.
    pub(crate) certificates: BTreeMap<String, StoredCertificate>,
    pub(crate) cqls_ingress_port: Option<u16>,
    pub(crate) unreadable_kinds: BTreeSet<OptionalKind>,
    pub(crate) turn: Turn,
    pub(crate) now: Timestamp,
}

impl Observed {
    /// Reads what decisions are made of. `kubernetes_nodes` are the metadata of all Kubernetes nodes.
    pub fn from_cached<'a>(
        cached: Cached,
        kubernetes_nodes: impl IntoIterator<Item = &'a ObjectMeta, IntoIter: Clone>,
    ) -> Self {
        let kubernetes_nodes = kubernetes_nodes.into_iter();
        // What may not be read is not taken for gone.
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

    /// The time.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Notes whether nodes may restart for what changed of the operator, which is decided from all else that was observed.
    pub fn set_turn(&mut self, turn: Turn) {
        self.turn = turn;
    }

    /// Notes what was signed of [`crate::datacenter::certificates::signing_requests`], by the name of the Secret, or why that failed.
    pub fn set_signed(&mut self, signed: BTreeMap<String, Result<SignedCertificate, String>>) {
        self.signed = signed;
    }

    /// The claim for the disk of a node.
    pub(crate) fn claim_of(&self, member: &str) -> Option<&Claim> {
        self.claims.get(&names::datacenter::data_claim(member))
    }
}

/// What is to be known of the objects of one kind.
fn facts<K, F>(objects: &ByName<K>, read: fn(&K) -> F) -> BTreeMap<String, F> {
    objects.iter().map(|(name, object)| (name.clone(), read(object))).collect()
}

/// Whether a datacenter may change what pods are made of. What the user changed does not wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Turn {
    /// It may.
    #[default]
    Own,
    /// It is the turn of this one, and others may come before, too.
    After(String),
}

/// Objects that are the user's own. All of them that are there: nodes are restarted when one comes or goes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UserObjects {
    /// Those that [`Datacenter::config_map_references`] names.
    pub config_maps: BTreeMap<String, Arc<ConfigMap>>,
    /// Those that [`Datacenter::secret_references`] names.
    pub secrets: BTreeMap<String, Arc<Secret>>,
}
