//! What is decided for a ScyllaDBDatacenter: the peers' cases and objects, and rules that hold whatever the input.

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
mod world;

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};
use messina_api::scylla::v1alpha1::ScyllaDBDatacenter;
use messina_plan::datacenter::{self, Datacenter, Observed, Plan, Report, cached, validate};
use serde_json::{Value, json};

/// Decides from no more than the operator's caches have.
fn plan(observed: &Observed) -> Plan {
    datacenter::plan(&as_cached(observed))
}

/// Tells no more than the operator's caches have.
fn report(observed: &Observed) -> Report {
    datacenter::report(&as_cached(observed))
}

fn as_cached(observed: &Observed) -> Observed {
    let mut cached = observed.clone();
    cached.pods.values_mut().for_each(cached::trim_pod);
    cached.claims.values_mut().for_each(cached::trim_claim);
    cached.storage_classes.values_mut().for_each(cached::trim_class);
    cached
}

const OPERATOR_IMAGE: &str = "scylladb/scylla-operator:latest";

/// Facts that tests use where they are there; the project stands without them.
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

fn observed(datacenter: Datacenter) -> Observed {
    Observed { new_token: "fresh".into(), ..Observed::new(datacenter, OPERATOR_IMAGE) }
}

fn name_of(stateful_set: &StatefulSet) -> String {
    stateful_set.metadata.name.clone().unwrap()
}

/// The StatefulSet as it is when Kubernetes has done everything that it asks for.
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
