//! The controller of ScyllaDBDatacenters.

mod expiry;
mod new_keys;
mod observe;
mod parts;
mod report;

use std::{future::ready, sync::Arc};

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    batch::v1::Job,
    core::v1::{
        ConfigMap, ContainerStatus, PersistentVolumeClaim, Pod, PodCondition, PodStatus, Secret, Service,
        ServiceAccount,
    },
    networking::v1::Ingress,
    policy::v1::PodDisruptionBudget,
    rbac::v1::RoleBinding,
};
use kube::core::PartialObjectMeta;
use messina_api::{names::label, scylla::v1alpha1::ScyllaDBDatacenter};
use messina_plan::datacenter::{self, Gates, Observed, Plan, certificates::Proofs};
use messina_runtime::{
    apply::{Applied, Part},
    caches::Caches,
    controller::{Controller, Running},
    error::Error,
    queue::{Backoff, ObjectKey},
    status::Report,
    store::{Kind, Store},
};

pub use expiry::Expiry;

use self::new_keys::NewKeys;
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
    /// What the keys of new certificates are.
    pub keys: KeyKind,
    /// The port at which Ingresses take CQL over TLS, if clients are to know it.
    pub cqls_ingress_port: Option<u16>,
    /// Until when certificates are valid, for all to see.
    pub expiry: Expiry,
}

/// Brings about what ScyllaDBDatacenters ask for.
#[derive(Debug)]
pub struct DatacenterController {
    settings: Settings,
    new_keys: Arc<NewKeys>,
    stateful_sets: Arc<Store<StatefulSet>>,
    services: Arc<Store<Service>>,
    config_maps: Arc<Store<ConfigMap>>,
    secrets: Arc<Store<Secret>>,
    ingresses: Arc<Store<Ingress>>,
    jobs: Arc<Store<Job>>,
    pods: Arc<Store<Pod>>,
    claims: Arc<Store<PartialObjectMeta<PersistentVolumeClaim>>>,
    proofs: Proofs,
}

/// What is watched, and who is looked at when it changes. Jobs are watched already.
pub fn start(caches: &mut Caches, jobs: &Arc<Store<Job>>, settings: Settings) -> Arc<Running<DatacenterController>> {
    let ours = format!("{}={}", label::MANAGED_BY, label::value::OPERATOR);
    let nodes = format!("{}={}", label::POD_TYPE, label::value::SCYLLADB_NODE);
    let datacenters = caches.watch::<ScyllaDBDatacenter>(None, trim);
    let service_accounts = caches.watch_metadata::<ServiceAccount>(Some(&ours), trim);
    let role_bindings = caches.watch::<RoleBinding>(Some(&ours), trim);
    let budgets = caches.watch::<PodDisruptionBudget>(Some(&ours), trim);
    let new_keys = Arc::new(NewKeys::new(settings.keys));
    let controller = DatacenterController {
        settings,
        new_keys: Arc::clone(&new_keys),
        stateful_sets: caches.watch(Some(&ours), trim),
        services: caches.watch(Some(&ours), trim),
        config_maps: caches.watch(Some(&ours), trim),
        secrets: caches.watch(Some(&ours), trim),
        ingresses: caches.watch(Some(&ours), trim),
        jobs: Arc::clone(jobs),
        pods: caches.watch(Some(&nodes), trim_pod),
        claims: caches.watch_metadata(Some(&ours), trim),
        proofs: Proofs::default(),
    };
    let expiry = controller.settings.expiry.clone();
    let own_keys = Arc::downgrade(&new_keys);
    controller.secrets.on_change(move |change| {
        expiry.take_in(change);
        own_keys.upgrade().into_iter().for_each(|keys| keys.take_in(change));
    });
    let own_keys = Arc::downgrade(&new_keys);
    datacenters.on_change(move |change| {
        let uid =
            |object: &Option<Arc<ScyllaDBDatacenter>>| object.as_ref().and_then(|object| object.metadata.uid.clone());
        if uid(&change.before) != uid(&change.after) {
            own_keys.upgrade().into_iter().for_each(|keys| keys.forget(&change.key));
        }
    });
    let DatacenterController { stateful_sets, services, config_maps, secrets, ingresses, pods, claims, .. } =
        &controller;
    let (stateful_sets, services) = (Arc::clone(stateful_sets), Arc::clone(services));
    let (config_maps, secrets) = (Arc::clone(config_maps), Arc::clone(secrets));
    let (ingresses, pods, claims) = (Arc::clone(ingresses), Arc::clone(pods), Arc::clone(claims));
    let running = Running::new(caches, controller, datacenters, Backoff::default());
    running.awaits(new_keys.errands());
    running.owns(&stateful_sets);
    running.owns(&services);
    running.owns(&config_maps);
    running.owns(&secrets);
    running.owns(&service_accounts);
    running.owns(&role_bindings);
    running.owns(&budgets);
    running.owns(&ingresses);
    running.owns(jobs);
    running.watches(&pods, |pod| datacenter_of(pod).into_iter().collect());
    running.watches(&claims, |claim| datacenter_of(claim).into_iter().collect());
    running
}

impl Drop for DatacenterController {
    fn drop(&mut self) {
        // Whoever leads now tells of them.
        self.settings.expiry.forget();
    }
}

/// The datacenter that a pod or a claim is of.
fn datacenter_of<K: Kind>(object: &K) -> Option<ObjectKey> {
    let metadata = object.meta();
    let name = metadata.labels.as_ref()?.get(label::CLUSTER)?;
    Some(ObjectKey { namespace: metadata.namespace.clone(), name: name.clone() })
}

/// Leaves of a pod who it is, where it is reached, whether it is ready, and what keeps it from starting: there are many,
/// and the rest is long.
fn trim_pod(pod: &mut Pod) {
    trim(pod);
    pod.spec = None;
    let condition = |condition: PodCondition| PodCondition {
        type_: condition.type_,
        status: condition.status,
        ..PodCondition::default()
    };
    let container = |container: ContainerStatus| ContainerStatus {
        name: container.name,
        state: container.state,
        ..ContainerStatus::default()
    };
    pod.status = pod.status.take().map(|status| PodStatus {
        pod_ip: status.pod_ip,
        pod_ips: status.pod_ips,
        conditions: status.conditions.map(|all| all.into_iter().map(condition).collect()),
        container_statuses: status.container_statuses.map(|all| all.into_iter().map(container).collect()),
        ..PodStatus::default()
    });
}

impl Controller for DatacenterController {
    type Object = ScyllaDBDatacenter;
    type Observed = Observed;
    type Plan = Plan;
    const NAME: &'static str = "datacenter";

    fn observe(&self, object: &Arc<ScyllaDBDatacenter>) -> impl Future<Output = Result<Observed, Error>> + Send {
        ready(self.observed(object))
    }

    fn plan(&self, observed: &Observed) -> Plan {
        datacenter::plan(observed)
    }

    fn parts(&self, observed: &Observed, plan: &Plan) -> Result<Vec<Part>, Error> {
        parts::parts(observed, plan)
    }

    fn report(&self, observed: &Observed, plan: &Plan, _: &[Applied]) -> Report {
        report::report(observed, plan)
    }
}
