//! The controller of ScyllaDBDatacenters.

mod components;
mod counts;
mod expiry;
mod new_keys;
mod observe;
mod operator_rollouts;
mod proof_cache;
mod report;
mod scylla_operator;

use std::{collections::BTreeSet, sync::Arc};

use futures::TryFutureExt as _;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    batch::v1::Job,
    coordination::v1::Lease,
    core::v1::{ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount},
    networking::v1::Ingress,
    policy::v1::PodDisruptionBudget,
    rbac::v1::RoleBinding,
    storage::v1::StorageClass,
};
use kube::{api::ObjectMeta, core::PartialObjectMeta};
use messina_api::{names::label, scylla::v1alpha1::ScyllaDBDatacenter};
use messina_plan::{
    datacenter::{self, Gates, Observed, Plan, ProbePeriod, cached},
    node::sysctl::Allowed,
};
use messina_runtime::{
    apply::{Applied, ComponentPlan},
    cluster::{Cluster, Selection},
    controller::{Controller, ControllerBuilder, Running, Suspension},
    error::Error,
    queue::ObjectKey,
    references::References,
    status::Report,
    store::{Change, Store, key_of},
};
use messina_text::Reason;

pub use counts::Counts;
pub use expiry::Expiry;

use self::{
    new_keys::NewKeys, operator_rollouts::OperatorRollouts, proof_cache::ProofCache, scylla_operator::ScyllaOperator,
};
use super::{created, jobs, reasons};
use crate::certificates::KeyKind;

/// The field manager of the controller.
pub const FIELD_MANAGER: &str = "messina";

/// The settings that apply to all datacenters.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The image of this program, which also runs in the pod of each node.
    pub operator_image: String,
    /// The image of node_exporter.
    pub node_exporter_image: String,
    /// The feature gates.
    pub gates: Gates,
    /// How often the containers of nodes are probed.
    pub probe_period: ProbePeriod,
    /// The kernel settings that datacenters may set.
    pub allowed_sysctls: Allowed,
    /// The type and size of new keys.
    pub keys: KeyKind,
    /// The port of CQL over TLS on Ingresses, for the clients' CQL connection configs.
    pub cqls_ingress_port: Option<u16>,
    /// The name of scylla-operator's Lease, in any namespace.
    pub scylla_operator_lease: String,
    /// Whether scylla-operator is known not to run, so that its Lease is not read.
    pub scylla_operator_absent: bool,
    /// How many datacenters may restart their nodes at once because the operator has changed; 0 for all.
    pub datacenters_at_once: usize,
    /// The metric of when certificates expire.
    pub expiry: Expiry,
    /// The metrics of nodes and topology operations.
    pub counts: Counts,
}

/// The controller of ScyllaDBDatacenters.
#[derive(Debug)]
pub struct DatacenterController {
    settings: Settings,
    datacenters: Arc<Store<ScyllaDBDatacenter>>,
    stateful_sets: Arc<Store<StatefulSet>>,
    services: Arc<Store<Service>>,
    config_maps: Arc<Store<ConfigMap>>,
    secrets: Arc<Store<Secret>>,
    ingresses: Arc<Store<Ingress>>,
    jobs: Arc<Store<Job>>,
    pods: Arc<Store<Pod>>,
    claims: Arc<Store<PersistentVolumeClaim>>,
    storage_classes: Arc<Store<StorageClass>>,
    volumes: Arc<Store<PersistentVolume>>,
    kubernetes_nodes: Arc<Store<PartialObjectMeta<Node>>>,
    named_config_maps: Arc<References<ConfigMap>>,
    named_secrets: Arc<References<Secret>>,
    new_keys: NewKeys,
    proof_cache: ProofCache,
    scylla_operator: ScyllaOperator,
    rollouts: OperatorRollouts,
}

/// Declares the controller: its objects, and the changes that requeue them.
pub fn declare(cluster: &mut Cluster, settings: Settings) -> Arc<Running<DatacenterController>> {
    let lease = (!settings.scylla_operator_absent).then(|| Selection::named(&settings.scylla_operator_lease));
    let controller = DatacenterController::new(cluster, settings, lease.clone());
    let mut builder = ControllerBuilder::new(cluster, controller, Selection::all());
    builder
        .observes(Selection::all(), DatacenterController::observe_datacenter)
        .observes(created(), DatacenterController::observe_secret)
        .observes(created(), |controller, change| controller.settings.counts.observe_service(change))
        .observes(jobs(), |controller, change| controller.settings.counts.observe_job(change))
        .owns(created::<StatefulSet>())
        .owns(created::<Service>())
        .owns(created::<ConfigMap>())
        .owns(created::<Secret>())
        .owns(created::<PartialObjectMeta<ServiceAccount>>().metadata_only())
        .owns(created::<RoleBinding>())
        .owns(created::<PodDisruptionBudget>())
        .owns(created::<Ingress>())
        .owns(jobs())
        .watches(pods(), |_, pod| datacenter_of(pod))
        .watches(claims(), |_, claim| datacenter_of(claim))
        .watches(storage_classes(), |controller, class| controller.having(|claim| is_of_class(claim, class)))
        .watches(volumes(), |controller, volume| controller.having(|claim| has_volume(claim, volume)))
        .watches_changes(kubernetes_nodes(), DatacenterController::affected_by_node)
        .refers_to::<ConfigMap>()
        .refers_to::<Secret>()
        .requeued_by(|controller, requeue| controller.rollouts.on_change(requeue))
        .requeued_by(|controller, requeue| controller.new_keys.background_tasks().on_done(requeue));
    if let Some(lease) = lease {
        builder.watches_changes(lease, DatacenterController::affected_by_lease);
    }
    builder.build()
}

fn pods() -> Selection<Pod> {
    let nodes = format!("{}={}", label::POD_TYPE, label::value::SCYLLADB_NODE);
    Selection::labelled(nodes).trimmed(cached::trim_pod)
}

fn claims() -> Selection<PersistentVolumeClaim> {
    created().trimmed(cached::trim_claim)
}

fn storage_classes() -> Selection<StorageClass> {
    Selection::cluster_scoped().trimmed(cached::trim_class)
}

fn volumes() -> Selection<PersistentVolume> {
    Selection::cluster_scoped().trimmed(cached::trim_volume)
}

fn kubernetes_nodes() -> Selection<PartialObjectMeta<Node>> {
    Selection::cluster_scoped().metadata_only().trimmed(trim_kubernetes_node)
}

/// Drops all metadata of a Kubernetes node but its identity and labels.
fn trim_kubernetes_node(node: &mut PartialObjectMeta<Node>) {
    let metadata = &mut node.metadata;
    (metadata.annotations, metadata.managed_fields, metadata.owner_references) = (None, None, None);
}

/// Returns the datacenter of an object, by its label.
fn datacenter_of(metadata: &ObjectMeta) -> Option<ObjectKey> {
    let name = metadata.labels.as_ref()?.get(label::CLUSTER)?;
    Some(ObjectKey { namespace: metadata.namespace.clone(), name: name.clone() })
}

fn is_of_class(claim: &PersistentVolumeClaim, class: &ObjectMeta) -> bool {
    let of = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref());
    of.is_some() && of == class.name.as_ref()
}

fn has_volume(claim: &PersistentVolumeClaim, volume: &ObjectMeta) -> bool {
    let has = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref());
    has.is_some() && has == volume.name.as_ref()
}

impl DatacenterController {
    fn new(cluster: &mut Cluster, settings: Settings, lease: Option<Selection<Lease>>) -> Self {
        let leases = lease.map(|lease| cluster.store(lease));
        Self {
            datacenters: cluster.store(Selection::all()),
            stateful_sets: cluster.store(created()),
            services: cluster.store(created()),
            config_maps: cluster.store(created()),
            secrets: cluster.store(created()),
            ingresses: cluster.store(created()),
            jobs: cluster.store(jobs()),
            pods: cluster.store(pods()),
            claims: cluster.store(claims()),
            storage_classes: cluster.store(storage_classes()),
            volumes: cluster.store(volumes()),
            kubernetes_nodes: cluster.store(kubernetes_nodes()),
            named_config_maps: cluster.references(&[datacenter::USUAL_CONFIG_MAP]),
            named_secrets: cluster.references(&[datacenter::USUAL_AGENT_SECRET]),
            new_keys: NewKeys::new(settings.keys),
            proof_cache: ProofCache::default(),
            scylla_operator: ScyllaOperator::new(&settings.scylla_operator_lease, leases),
            rollouts: OperatorRollouts::new(settings.datacenters_at_once),
            settings,
        }
    }

    fn observe_datacenter(&self, change: &Change<ScyllaDBDatacenter>) {
        self.rollouts.observe_change(change);
        let uid =
            |object: &Option<Arc<ScyllaDBDatacenter>>| object.as_ref().and_then(|object| object.metadata.uid.clone());
        if uid(&change.before) != uid(&change.after) {
            self.new_keys.forget(&change.key);
            self.proof_cache.forget(&change.key);
        }
        self.settings.counts.observe_datacenter(change);
    }

    fn observe_secret(&self, change: &Change<Secret>) {
        self.settings.expiry.observe_change(change);
        self.new_keys.observe_change(change);
    }

    /// Returns all datacenters when scylla-operator's Lease is acquired or released.
    fn affected_by_lease(&self, change: &Change<Lease>) -> Vec<ObjectKey> {
        let all = || self.datacenters.all().iter().map(|one| key_of(&one.metadata)).collect();
        if self.scylla_operator.observe_change(change) { all() } else { Vec::new() }
    }

    /// Returns the datacenters that a change of a Kubernetes node affects. The kubelet updates its node all the time:
    /// only creation, deletion and labels matter.
    fn affected_by_node(&self, change: &Change<PartialObjectMeta<Node>>) -> BTreeSet<ObjectKey> {
        let labels = |node: &Option<Arc<PartialObjectMeta<Node>>>| {
            node.as_ref().map(|node| node.metadata.labels.clone().unwrap_or_default())
        };
        let is_same = labels(&change.before) == labels(&change.after);
        if is_same { BTreeSet::new() } else { self.having(|_| true) }
    }

    /// Returns the datacenters that have such claims.
    fn having(&self, is_such: impl Fn(&PersistentVolumeClaim) -> bool) -> BTreeSet<ObjectKey> {
        let such = self.claims.all().into_iter().filter(|claim| is_such(claim));
        such.filter_map(|claim| datacenter_of(&claim.metadata)).collect()
    }
}

impl Drop for DatacenterController {
    fn drop(&mut self) {
        // The new leader exports these metrics.
        self.settings.expiry.clear();
        self.settings.counts.clear_gauges();
    }
}

impl Controller for DatacenterController {
    type Object = ScyllaDBDatacenter;
    type Observed = Observed;
    type Plan = Plan;
    const NAME: &'static str = "datacenter";
    const FIELD_MANAGER: &'static str = FIELD_MANAGER;
    const ORPHAN_OWNER: Option<fn(&ObjectMeta) -> Option<ObjectKey>> = Some(datacenter_of);
    const SUSPENDED: Reason = reasons::SCYLLA_OPERATOR_ACTIVE;

    fn suspended(&self, object: &ScyllaDBDatacenter) -> Option<Suspension> {
        // StatefulSets that cannot be parsed are reported by `observe`.
        let uid = object.metadata.uid.as_deref().unwrap_or_default();
        let hold = self.scylla_operator.hold(&self.stateful_sets.controlled_by(uid).unwrap_or_default());
        if hold.is_some() {
            self.rollouts.skip(&key_of(&object.metadata));
        }
        hold
    }

    fn blocked_on(&self) -> Option<String> {
        self.scylla_operator.blocking_reason()
    }

    fn observe(&self, object: &Arc<ScyllaDBDatacenter>) -> impl Future<Output = Result<Observed, Error>> + Send {
        self.observe_object(object).inspect_ok(|observed| {
            let key = key_of(&object.metadata);
            self.settings.counts.record_nodes(observed);
            // If it was deleted meanwhile, its series were removed then, and nothing else would remove them again.
            if !matches!(self.datacenters.get(&key), Ok(Some(_))) {
                self.settings.counts.remove_datacenter(&key);
            }
        })
    }

    fn may_adopt(&self, object: &ScyllaDBDatacenter) -> Result<(), Error> {
        self.check_adoption(object)
    }

    fn plan(&self, observed: &Observed) -> Plan {
        datacenter::plan(observed)
    }

    fn components(&self, observed: &Observed, plan: &Plan) -> Result<Vec<ComponentPlan>, Error> {
        components::components(observed, plan)
    }

    fn report(&self, observed: &Observed, plan: &Plan, _: &[Applied]) -> Report {
        report::report(observed, plan)
    }
}
