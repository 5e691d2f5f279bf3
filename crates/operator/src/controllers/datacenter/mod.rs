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
    caches::Caches,
    controller::{Controller, Running, Suspension},
    error::Error,
    queue::{Backoff, ObjectKey},
    references::References,
    status::Report,
    store::{Kind, Store, key_of},
};
use messina_text::Reason;

pub use counts::Counts;
pub use expiry::Expiry;

use self::{
    new_keys::NewKeys, operator_rollouts::OperatorRollouts, proof_cache::ProofCache, scylla_operator::ScyllaOperator,
};
use super::{reasons, trim};
use crate::certificates::KeyKind;

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
    new_keys: Arc<NewKeys>,
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
    proof_cache: Arc<ProofCache>,
    scylla_operator: Arc<ScyllaOperator>,
    rollouts: Arc<OperatorRollouts>,
}

/// Starts the watches of the controller, and defines which datacenters their events enqueue. `jobs` is watched already.
pub fn start(caches: &mut Caches, jobs: &Arc<Store<Job>>, settings: Settings) -> Arc<Running<DatacenterController>> {
    let ours = format!("{}={}", label::MANAGED_BY, label::value::OPERATOR);
    let nodes = format!("{}={}", label::POD_TYPE, label::value::SCYLLADB_NODE);
    let datacenters = caches.watch::<ScyllaDBDatacenter>(None, trim);
    let service_accounts = caches.watch_metadata::<ServiceAccount>(Some(&ours), trim);
    let role_bindings = caches.watch::<RoleBinding>(Some(&ours), trim);
    let budgets = caches.watch::<PodDisruptionBudget>(Some(&ours), trim);
    let leases =
        (!settings.scylla_operator_absent).then(|| caches.watch_named::<Lease>(&settings.scylla_operator_lease, trim));
    let scylla_operator = Arc::new(ScyllaOperator::new(&settings.scylla_operator_lease, leases.clone()));
    let new_keys = Arc::new(NewKeys::new(settings.keys));
    let proof_cache = Arc::new(ProofCache::default());
    let rollouts = Arc::new(OperatorRollouts::new(settings.datacenters_at_once));
    let controller = DatacenterController {
        settings,
        datacenters: Arc::clone(&datacenters),
        new_keys: Arc::clone(&new_keys),
        stateful_sets: caches.watch(Some(&ours), trim),
        services: caches.watch(Some(&ours), trim),
        config_maps: caches.watch(Some(&ours), trim),
        secrets: caches.watch(Some(&ours), trim),
        ingresses: caches.watch(Some(&ours), trim),
        jobs: Arc::clone(jobs),
        pods: caches.watch(Some(&nodes), |one| trimmed(one, cached::trim_pod)),
        claims: caches.watch(Some(&ours), |one| trimmed(one, cached::trim_claim)),
        storage_classes: caches.watch_cluster_scoped(|one| trimmed(one, cached::trim_class)),
        volumes: caches.watch_cluster_scoped(|one| trimmed(one, cached::trim_volume)),
        kubernetes_nodes: caches.watch_cluster_scoped_metadata(trim_kubernetes_node),
        named_config_maps: caches.references(&[datacenter::USUAL_CONFIG_MAP]),
        named_secrets: caches.references(&[datacenter::USUAL_AGENT_SECRET]),
        proof_cache: Arc::clone(&proof_cache),
        scylla_operator: Arc::clone(&scylla_operator),
        rollouts: Arc::clone(&rollouts),
    };
    let all_datacenters = Arc::clone(&datacenters);
    let expiry = controller.settings.expiry.clone();
    let weak_keys = Arc::downgrade(&new_keys);
    controller.secrets.on_change(move |change| {
        expiry.observe_change(change);
        weak_keys.upgrade().into_iter().for_each(|keys| keys.observe_change(change));
    });
    let (named_config_maps, named_secrets) =
        (Arc::clone(&controller.named_config_maps), Arc::clone(&controller.named_secrets));
    let weak_keys = Arc::downgrade(&new_keys);
    let weak_rollouts = Arc::downgrade(&rollouts);
    let weak_proofs = Arc::downgrade(&proof_cache);
    datacenters.on_change(move |change| {
        weak_rollouts.upgrade().into_iter().for_each(|rollouts| rollouts.observe_change(change));
        let uid =
            |object: &Option<Arc<ScyllaDBDatacenter>>| object.as_ref().and_then(|object| object.metadata.uid.clone());
        if uid(&change.before) != uid(&change.after) {
            weak_keys.upgrade().into_iter().for_each(|keys| keys.forget(&change.key));
            weak_proofs.upgrade().into_iter().for_each(|proofs| proofs.forget(&change.key));
        }
    });
    let [datacenter_counts, service_counts, job_counts] = [(); 3].map(|()| controller.settings.counts.clone());
    datacenters.on_change(move |change| datacenter_counts.observe_datacenter(change));
    controller.services.on_change(move |change| service_counts.observe_service(change));
    jobs.on_change(move |change| job_counts.observe_job(change));
    let DatacenterController { stateful_sets, services, config_maps, secrets, ingresses, pods, claims, .. } =
        &controller;
    let (stateful_sets, services) = (Arc::clone(stateful_sets), Arc::clone(services));
    let (config_maps, secrets) = (Arc::clone(config_maps), Arc::clone(secrets));
    let (ingresses, pods, claims) = (Arc::clone(ingresses), Arc::clone(pods), Arc::clone(claims));
    let classes = Arc::clone(&controller.storage_classes);
    let (volumes, kubernetes_nodes) = (Arc::clone(&controller.volumes), Arc::clone(&controller.kubernetes_nodes));
    let running = Running::new(caches, controller, datacenters, Backoff::default());
    rollouts.on_change(running.waker());
    running.on_task_done(new_keys.background_tasks());
    owns(&running, &stateful_sets);
    owns(&running, &services);
    owns(&running, &config_maps);
    owns(&running, &secrets);
    owns(&running, &service_accounts);
    owns(&running, &role_bindings);
    owns(&running, &budgets);
    owns(&running, &ingresses);
    owns(&running, jobs);
    running.refers_to(&named_config_maps);
    running.refers_to(&named_secrets);
    if let Some(leases) = leases {
        running.watch_changes(&leases, move |change| {
            let all = || all_datacenters.all().iter().map(|one| key_of(&one.metadata)).collect();
            if scylla_operator.observe_change(change) { all() } else { Vec::new() }
        });
    }
    running.watches(&pods, |pod| labelled_datacenter(pod).into_iter().collect());
    running.watches(&claims, |claim| labelled_datacenter(claim).into_iter().collect());
    let all = Arc::clone(&claims);
    running.watches(&classes, move |class| datacenters_of_claims(&all, |claim| is_of_class(claim, class)));
    let all = Arc::clone(&claims);
    running.watches(&volumes, move |volume| datacenters_of_claims(&all, |claim| has_volume(claim, volume)));
    // The kubelet updates its Kubernetes node all the time. Only creation, deletion and labels matter here.
    running.watch_changes(&kubernetes_nodes, move |change| {
        let labels = |node: &Option<Arc<PartialObjectMeta<Node>>>| {
            node.as_ref().map(|node| node.metadata.labels.clone().unwrap_or_default())
        };
        if labels(&change.before) == labels(&change.after) {
            Vec::new()
        } else {
            datacenters_of_claims(&claims, |_| true)
        }
    });
    running
}

impl Drop for DatacenterController {
    fn drop(&mut self) {
        // The new leader exports these metrics.
        self.settings.expiry.clear();
        self.settings.counts.clear_gauges();
    }
}

/// Enqueues the datacenter that owns an object, and the one that may adopt it from a former datacenter of the same
/// name.
fn owns<K: Kind>(running: &Arc<Running<DatacenterController>>, store: &Arc<Store<K>>) {
    running.owns(store);
    running.adopts(store, datacenter_of);
}

/// Returns the datacenter of an object, by its label.
fn datacenter_of<K: Kind>(object: &K) -> Option<ObjectKey> {
    labelled_datacenter(object.meta())
}

fn labelled_datacenter(metadata: &ObjectMeta) -> Option<ObjectKey> {
    let name = metadata.labels.as_ref()?.get(label::CLUSTER)?;
    Some(ObjectKey { namespace: metadata.namespace.clone(), name: name.clone() })
}

/// Returns the datacenters that have such claims.
fn datacenters_of_claims(
    claims: &Store<PersistentVolumeClaim>,
    is_concerned: impl Fn(&PersistentVolumeClaim) -> bool,
) -> Vec<ObjectKey> {
    let concerned = claims.all().into_iter().filter(|claim| is_concerned(claim));
    let datacenters: BTreeSet<ObjectKey> = concerned.filter_map(|claim| datacenter_of(claim.as_ref())).collect();
    datacenters.into_iter().collect()
}

fn is_of_class(claim: &PersistentVolumeClaim, class: &ObjectMeta) -> bool {
    let of = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref());
    of.is_some() && of == class.name.as_ref()
}

fn has_volume(claim: &PersistentVolumeClaim, volume: &ObjectMeta) -> bool {
    let has = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref());
    has.is_some() && has == volume.name.as_ref()
}

/// Drops what no controller reads, and then what plans of datacenters do not need, to save memory.
fn trimmed<K: Kind>(object: &mut K, trim_more: fn(&mut K)) {
    trim(object);
    trim_more(object);
}

/// Drops all metadata of a Kubernetes node but its identity and labels.
fn trim_kubernetes_node(node: &mut PartialObjectMeta<Node>) {
    let metadata = &mut node.metadata;
    (metadata.annotations, metadata.managed_fields, metadata.owner_references) = (None, None, None);
}

impl Controller for DatacenterController {
    type Object = ScyllaDBDatacenter;
    type Observed = Observed;
    type Plan = Plan;
    const NAME: &'static str = "datacenter";

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
