//! The controller of ScyllaDBDatacenters.

mod components;
mod counts;
mod expiry;
mod new_keys;
mod observe;
mod proven;
mod report;
mod scylla_operator;
mod turns;

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

pub use counts::Counts;
pub use expiry::Expiry;

use self::{new_keys::NewKeys, proven::Proven, scylla_operator::ScyllaOperator, turns::Turns};
use super::trim;
use crate::certificates::KeyKind;

/// What is the same for all datacenters.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The image of this program, which also runs beside each node.
    pub operator_image: String,
    /// The image of the exporter of a machine's metrics.
    pub node_exporter_image: String,
    /// What is switched on.
    pub gates: Gates,
    /// How often the containers of nodes are probed.
    pub probe_period: ProbePeriod,
    /// The kernel settings that datacenters may set.
    pub allowed_sysctls: Allowed,
    /// What the keys of new certificates are.
    pub keys: KeyKind,
    /// The port at which Ingresses take CQL over TLS, if clients are to know it.
    pub cqls_ingress_port: Option<u16>,
    /// The name of scylla-operator's lease, in whatever namespace it is.
    pub scylla_operator_lease: String,
    /// Whether scylla-operator is known not to run, so that its lease is not read.
    pub scylla_operator_absent: bool,
    /// How many datacenters restart their nodes at once for what changed of the operator; none for all.
    pub datacenters_at_once: usize,
    /// Until when certificates are valid, for all to see.
    pub expiry: Expiry,
    /// What is counted of nodes, and of what becomes of them.
    pub counts: Counts,
}

/// Brings about what ScyllaDBDatacenters ask for.
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
    machines: Arc<Store<PartialObjectMeta<Node>>>,
    named_config_maps: Arc<References<ConfigMap>>,
    named_secrets: Arc<References<Secret>>,
    proven: Arc<Proven>,
    scylla_operator: Arc<ScyllaOperator>,
    turns: Arc<Turns>,
}

/// What is watched, and who is looked at when it changes. Jobs are watched already.
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
    let proven = Arc::new(Proven::default());
    let turns = Arc::new(Turns::new(settings.datacenters_at_once));
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
        machines: caches.watch_cluster_scoped_metadata(trim_machine),
        named_config_maps: caches.references(&[datacenter::USUAL_CONFIG_MAP]),
        named_secrets: caches.references(&[datacenter::USUAL_AGENT_SECRET]),
        proven: Arc::clone(&proven),
        scylla_operator: Arc::clone(&scylla_operator),
        turns: Arc::clone(&turns),
    };
    let all_datacenters = Arc::clone(&datacenters);
    let expiry = controller.settings.expiry.clone();
    let own_keys = Arc::downgrade(&new_keys);
    controller.secrets.on_change(move |change| {
        expiry.take_in(change);
        own_keys.upgrade().into_iter().for_each(|keys| keys.take_in(change));
    });
    let (named_config_maps, named_secrets) =
        (Arc::clone(&controller.named_config_maps), Arc::clone(&controller.named_secrets));
    let own_keys = Arc::downgrade(&new_keys);
    let own_turns = Arc::downgrade(&turns);
    let own_proofs = Arc::downgrade(&proven);
    datacenters.on_change(move |change| {
        own_turns.upgrade().into_iter().for_each(|turns| turns.take_in(change));
        let uid =
            |object: &Option<Arc<ScyllaDBDatacenter>>| object.as_ref().and_then(|object| object.metadata.uid.clone());
        if uid(&change.before) != uid(&change.after) {
            own_keys.upgrade().into_iter().for_each(|keys| keys.forget(&change.key));
            own_proofs.upgrade().into_iter().for_each(|proven| proven.forget(&change.key));
        }
    });
    let [of_datacenters, of_services, of_jobs] = [(); 3].map(|()| controller.settings.counts.clone());
    datacenters.on_change(move |change| of_datacenters.datacenter(change));
    controller.services.on_change(move |change| of_services.service(change));
    jobs.on_change(move |change| of_jobs.job(change));
    let DatacenterController { stateful_sets, services, config_maps, secrets, ingresses, pods, claims, .. } =
        &controller;
    let (stateful_sets, services) = (Arc::clone(stateful_sets), Arc::clone(services));
    let (config_maps, secrets) = (Arc::clone(config_maps), Arc::clone(secrets));
    let (ingresses, pods, claims) = (Arc::clone(ingresses), Arc::clone(pods), Arc::clone(claims));
    let classes = Arc::clone(&controller.storage_classes);
    let (volumes, machines) = (Arc::clone(&controller.volumes), Arc::clone(&controller.machines));
    let running = Running::new(caches, controller, datacenters, Backoff::default());
    turns.on_change(running.waker());
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
            if scylla_operator.take_in(change) { all() } else { Vec::new() }
        });
    }
    running.watches(&pods, |pod| labelled_datacenter(pod).into_iter().collect());
    running.watches(&claims, |claim| labelled_datacenter(claim).into_iter().collect());
    let all = Arc::clone(&claims);
    running.watches(&classes, move |class| of_claims(&all, |claim| is_of_class(claim, class)));
    let all = Arc::clone(&claims);
    running.watches(&volumes, move |volume| of_claims(&all, |claim| has_volume(claim, volume)));
    // Machines tell of themselves all the time. What matters is which ones there are.
    running.watch_changes(&machines, move |change| {
        let labels = |machine: &Option<Arc<PartialObjectMeta<Node>>>| {
            machine.as_ref().map(|machine| machine.metadata.labels.clone().unwrap_or_default())
        };
        if labels(&change.before) == labels(&change.after) { Vec::new() } else { of_claims(&claims, |_| true) }
    });
    running
}

impl Drop for DatacenterController {
    fn drop(&mut self) {
        // Whoever leads now tells of them.
        self.settings.expiry.forget();
        self.settings.counts.forget();
    }
}

/// What a datacenter has of a kind, also where a former one of the same name left it behind.
fn owns<K: Kind>(running: &Arc<Running<DatacenterController>>, store: &Arc<Store<K>>) {
    running.owns(store);
    running.adopts(store, datacenter_of);
}

/// The datacenter that an object is of, by its labels.
fn datacenter_of<K: Kind>(object: &K) -> Option<ObjectKey> {
    labelled_datacenter(object.meta())
}

fn labelled_datacenter(metadata: &ObjectMeta) -> Option<ObjectKey> {
    let name = metadata.labels.as_ref()?.get(label::CLUSTER)?;
    Some(ObjectKey { namespace: metadata.namespace.clone(), name: name.clone() })
}

/// The datacenters that have such claims.
fn of_claims(
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

/// Takes away what no controller reads, and then what decisions on datacenters do not need.
fn trimmed<K: Kind>(object: &mut K, trim_more: fn(&mut K)) {
    trim(object);
    trim_more(object);
}

/// Leaves of a machine which one it is.
fn trim_machine(machine: &mut PartialObjectMeta<Node>) {
    let metadata = &mut machine.metadata;
    (metadata.annotations, metadata.managed_fields, metadata.owner_references) = (None, None, None);
}

impl Controller for DatacenterController {
    type Object = ScyllaDBDatacenter;
    type Observed = Observed;
    type Plan = Plan;
    const NAME: &'static str = "datacenter";

    const SUSPENDED: &'static str = scylla_operator::CONDITION;

    fn suspended(&self, object: &ScyllaDBDatacenter) -> Option<Suspension> {
        // What cannot be read is told when it is observed.
        let uid = object.metadata.uid.as_deref().unwrap_or_default();
        let hold = self.scylla_operator.holds(&self.stateful_sets.controlled_by(uid).unwrap_or_default());
        if hold.is_some() {
            self.turns.stand_back(&key_of(&object.metadata));
        }
        hold
    }

    fn blocked_on(&self) -> Option<String> {
        self.scylla_operator.blocked_on()
    }

    fn observe(&self, object: &Arc<ScyllaDBDatacenter>) -> impl Future<Output = Result<Observed, Error>> + Send {
        self.observed(object).inspect_ok(|observed| {
            let key = key_of(&object.metadata);
            self.settings.counts.observed(observed);
            // It may have been deleted meanwhile; its series were removed then, and nothing would remove them again.
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
