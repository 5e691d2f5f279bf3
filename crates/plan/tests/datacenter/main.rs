//! Decisions for a ScyllaDBDatacenter: the peers' cases and objects, and properties that hold for any input.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod cases;
mod certificates;
mod chance;
mod cleanup;
mod compare;
mod faults;
mod golden;
mod ingresses;
mod lost;
mod operations;
mod pods;
mod properties;
mod recovery;
mod refusals;
mod restarts;
mod rollout;
mod rounds;
mod seen;
mod storage;
mod takeover;
mod token;
mod topology;
mod upgrades;
mod witnesses;
mod world;

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};
use k8s_openapi::{Metadata, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use messina_api::scylla::v1alpha1::ScyllaDBDatacenter;
use messina_plan::datacenter::{
    self, Cached, Datacenter, InvalidField, Observed, Plan, Report, RolloutState,
    cached::{trim_claim, trim_class, trim_pod, trim_volume},
    certificates::{self as planned_certificates, SigningRequest},
    validate,
};
use ring::rand::SystemRandom;
use serde_json::{Value, json};

/// Observes with trimmed objects, as in the operator's caches.
fn observe(cached: &Cached) -> Observed {
    let mut cached = cached.clone();
    cached.pods.values_mut().for_each(trim_pod);
    cached.claims.values_mut().for_each(trim_claim);
    cached.volumes.values_mut().for_each(trim_volume);
    cached.storage_classes.values_mut().for_each(trim_class);
    Observed::from_cached(cached.prove(&SystemRandom::new()), [])
}

fn plan(cached: &Cached) -> Plan {
    datacenter::plan(&observe(cached))
}

fn report(cached: &Cached) -> Report {
    datacenter::report(&observe(cached))
}

fn signing_requests(cached: &Cached) -> Vec<SigningRequest> {
    planned_certificates::signing_requests(&observe(cached))
}

fn rollout_state(cached: &Cached) -> RolloutState {
    datacenter::rollout_state(&observe(cached))
}

fn change_of_identity(cached: &Cached) -> Option<InvalidField> {
    datacenter::change_of_identity(&observe(cached))
}

const OPERATOR_IMAGE: &str = "scylladb/scylla-operator:latest";

/// The folder of optional facts: tests that need them are skipped without it.
fn shared() -> PathBuf {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    env::var_os("MESSINA_SHARED").map_or(beside, PathBuf::from)
}

fn read_yaml(file: &Path) -> Value {
    serde_saphyr::from_str(&fs::read_to_string(file).unwrap())
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn datacenter(object: Value) -> Datacenter {
    validate(&serde_json::from_value::<ScyllaDBDatacenter>(object).unwrap())
        .unwrap_or_else(|faults| panic!("{faults:?}"))
}

/// A datacenter with these racks and numbers of nodes.
fn datacenter_with(racks: &[(&str, i32)], spec: Value) -> Datacenter {
    let racks: Vec<Value> = racks
        .iter()
        .map(|(name, nodes)| json!({"name": name, "nodes": nodes, "scyllaDB": {"storage": {"capacity": "1Gi"}}}))
        .collect();
    let mut object = json!({
        "metadata": {"name": "orders", "namespace": "shop", "uid": "the-uid", "generation": 1},
        "spec": {
            "clusterName": "orders", "datacenterName": "dc", "racks": racks,
            "scyllaDB": {"image": "scylladb/scylla:2026.2.4"}, "scyllaDBManagerAgent": {"image": "agent:3.12.0"},
        },
    });
    compare::merge(&mut object["spec"], &spec);
    datacenter(object)
}

fn cached(datacenter: Datacenter) -> Cached {
    Cached { new_token: "fresh".into(), ..Cached::new(datacenter, OPERATOR_IMAGE) }
}

/// The object with this name, whatever it was called before.
fn with_name<K: Metadata<Ty = ObjectMeta>>(name: &str, mut object: K) -> K {
    object.metadata_mut().name = Some(name.to_owned());
    object
}

fn name_of(stateful_set: &StatefulSet) -> String {
    stateful_set.metadata.name.clone().unwrap()
}

/// Returns the StatefulSet with the status of a complete rollout.
fn rolled_out(mut stateful_set: StatefulSet) -> StatefulSet {
    let replicas = stateful_set.spec.as_ref().unwrap().replicas.unwrap();
    stateful_set.metadata.generation = Some(1);
    stateful_set.status = Some(StatefulSetStatus {
        observed_generation: Some(1),
        replicas,
        current_replicas: Some(replicas),
        ready_replicas: Some(replicas),
        available_replicas: Some(replicas),
        updated_replicas: Some(replicas),
        ..StatefulSetStatus::default()
    });
    stateful_set
}
