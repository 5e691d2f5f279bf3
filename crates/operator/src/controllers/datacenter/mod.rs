//! The controller of ScyllaDBDatacenters.

mod observe;
mod parts;
mod report;

use std::{future::ready, sync::Arc};

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount},
    policy::v1::PodDisruptionBudget,
    rbac::v1::RoleBinding,
};
use kube::core::PartialObjectMeta;
use messina_api::{names::label, scylla::v1alpha1::ScyllaDBDatacenter};
use messina_plan::datacenter::{self, Gates, Observed, Plan};
use messina_runtime::{
    apply::{Applied, Part},
    caches::Caches,
    controller::{Controller, Running},
    error::Error,
    queue::{Backoff, ObjectKey},
    status::Report,
    store::Store,
};

use super::trim;

/// What is the same for all datacenters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The image of this program, which also runs beside each node.
    pub operator_image: String,
    /// The image of the exporter of a machine's metrics.
    pub node_exporter_image: String,
    /// What is switched on.
    pub gates: Gates,
}

/// Brings about what ScyllaDBDatacenters ask for.
#[derive(Debug)]
pub struct DatacenterController {
    settings: Settings,
    stateful_sets: Arc<Store<StatefulSet>>,
    services: Arc<Store<Service>>,
    config_maps: Arc<Store<ConfigMap>>,
    secrets: Arc<Store<Secret>>,
    pods: Arc<Store<PartialObjectMeta<Pod>>>,
    claims: Arc<Store<PartialObjectMeta<PersistentVolumeClaim>>>,
}

/// What is watched, and who is looked at when it changes.
pub fn start(caches: &mut Caches, settings: Settings) -> Arc<Running<DatacenterController>> {
    let ours = format!("{}={}", label::MANAGED_BY, label::value::OPERATOR);
    let nodes = format!("{}={}", label::POD_TYPE, label::value::SCYLLADB_NODE);
    let datacenters = caches.watch::<ScyllaDBDatacenter>(None, trim);
    let service_accounts = caches.watch_metadata::<ServiceAccount>(Some(&ours), trim);
    let role_bindings = caches.watch::<RoleBinding>(Some(&ours), trim);
    let budgets = caches.watch::<PodDisruptionBudget>(Some(&ours), trim);
    let controller = DatacenterController {
        settings,
        stateful_sets: caches.watch(Some(&ours), trim),
        services: caches.watch(Some(&ours), trim),
        config_maps: caches.watch(Some(&ours), trim),
        secrets: caches.watch(Some(&ours), trim),
        pods: caches.watch_metadata(Some(&nodes), trim),
        claims: caches.watch_metadata(Some(&ours), trim),
    };
    let DatacenterController { stateful_sets, services, config_maps, secrets, pods, claims, .. } = &controller;
    let (stateful_sets, services) = (Arc::clone(stateful_sets), Arc::clone(services));
    let (config_maps, secrets) = (Arc::clone(config_maps), Arc::clone(secrets));
    let (pods, claims) = (Arc::clone(pods), Arc::clone(claims));
    let running = Running::new(caches, controller, datacenters, Backoff::default());
    running.owns(&stateful_sets);
    running.owns(&services);
    running.owns(&config_maps);
    running.owns(&secrets);
    running.owns(&service_accounts);
    running.owns(&role_bindings);
    running.owns(&budgets);
    running.watches(&pods, |pod| datacenter_of(pod).into_iter().collect());
    running.watches(&claims, |claim| datacenter_of(claim).into_iter().collect());
    running
}

/// The datacenter that a pod or a claim is of.
fn datacenter_of<K>(object: &PartialObjectMeta<K>) -> Option<ObjectKey> {
    let name = object.metadata.labels.as_ref()?.get(label::CLUSTER)?;
    Some(ObjectKey { namespace: object.metadata.namespace.clone(), name: name.clone() })
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
