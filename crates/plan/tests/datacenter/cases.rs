//! The peer's cases of decisions for a datacenter.

use std::{collections::BTreeMap, fs, path::PathBuf, sync::Arc};

use crate::{plan, report, with_name};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ConfigMap, Container, Pod, PodSpec, Service},
};
use messina_api::scylla::{
    v1::ScyllaCluster,
    v1alpha1::{RackStatus, ScyllaDBDatacenter},
};
use messina_plan::{
    datacenter::{Cached, Component, Datacenter, Gates, InvalidField, is_rolled_out, validate},
    defaulting,
};
use serde_json::{Value, json};

use crate::{
    OPERATOR_IMAGE, cached, certificates,
    compare::{describe, differences, meaning, with_our_certificates, with_our_commands},
    name_of, read_yaml, rolled_out, shared,
};

/// Returns the cases of a decision; none, with a message, where the shared folder does not exist.
fn cases(decision: &str) -> Vec<(PathBuf, Value)> {
    let folder = shared().join("compat/cases").join(decision);
    let Ok(files) = fs::read_dir(&folder) else {
        eprintln!("skipped: {} is not there, so there are no cases to run", folder.display());
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} has no cases", folder.display());
    files.into_iter().map(|file| (file.clone(), read_yaml(&file))).collect()
}

/// Runs every case, and prints how many passed, and which were skipped and why.
pub(crate) fn run(decision: &str, check: impl Fn(&Value) -> Outcome) {
    let (mut passed, mut skipped, mut failed) = (0, Vec::new(), Vec::new());
    let cases = cases(decision);
    for (file, case) in &cases {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        match check(case) {
            Outcome::Passed => passed += 1,
            Outcome::Skipped(reason) => skipped.push(format!("{name}: {reason}")),
            Outcome::Failed(difference) => failed.push(format!("{name}:\n{difference}")),
        }
    }
    if !cases.is_empty() {
        eprintln!("{decision}: {passed} passed, {} skipped", skipped.len());
        skipped.iter().for_each(|line| eprintln!("  skipped {line}"));
    }
    assert!(failed.is_empty(), "{decision}: {} failed\n{}", failed.len(), failed.join("\n"));
}

pub(crate) enum Outcome {
    Passed,
    Skipped(&'static str),
    Failed(String),
}

pub(crate) fn same(expected: &Value, actual: &Value) -> Outcome {
    let found = differences(&meaning(expected), &meaning(actual));
    if found.is_empty() { Outcome::Passed } else { Outcome::Failed(describe(&found)) }
}

fn faulty(result: &Result<Datacenter, Vec<InvalidField>>, field: &str) -> Outcome {
    match result {
        Err(faults) if faults.len() == 1 && faults[0].field == field => Outcome::Passed,
        other => Outcome::Failed(format!("  expected a fault of {field}, got {other:?}")),
    }
}

/// Completes the object of a case with fields that are required and that the decision does not depend on.
fn completed(object: &Value) -> ScyllaDBDatacenter {
    let mut object = object.clone();
    let fill = |value: &mut Value, with: &str| {
        if value.as_str().unwrap_or_default().is_empty() {
            *value = with.into();
        }
    };
    fill(&mut object["metadata"]["name"], "basic");
    fill(&mut object["metadata"]["namespace"], "default");
    fill(&mut object["metadata"]["uid"], "the-uid");
    fill(&mut object["spec"]["clusterName"], "basic");
    fill(&mut object["spec"]["scyllaDB"]["image"], "scylladb/scylla:2026.2.0");
    for rack in object["spec"]["racks"].as_array_mut().into_iter().flatten() {
        if rack["scyllaDB"].is_null() {
            rack["scyllaDB"] = json!({"storage": {"capacity": "1Gi"}});
        }
    }
    serde_json::from_value(object).unwrap()
}

pub(crate) fn reliable(object: &Value) -> Datacenter {
    validate(&completed(object)).unwrap_or_else(|faults| panic!("{faults:?}"))
}

/// Removes the namespace from ours, where the case has none.
pub(crate) fn as_in_case(actual: Value, expected: &Value) -> Value {
    let mut actual = actual;
    if let (None, Some(metadata)) = (expected["metadata"].get("namespace"), actual["metadata"].as_object_mut()) {
        metadata.remove("namespace");
    }
    for field in ["apiVersion", "kind"] {
        if let (None, Some(fields)) = (expected.get(field), actual.as_object_mut()) {
            fields.remove(field);
        }
    }
    actual
}

#[test]
fn stateful_sets_are_as_in_the_cases() {
    run("datacenter/statefulset-for-rack", |case| {
        let mut object = completed(&case["scyllaDBDatacenter"]);
        object.spec.racks = Some(vec![serde_json::from_value(case["rack"].clone()).unwrap()]);
        let datacenter = validate(&object);
        if let Some(error) = case["expectedError"].as_str() {
            let about_storage = error.contains("storage capacity");
            let field = if about_storage {
                "spec.racks[0].scyllaDB.storage.capacity"
            } else {
                "spec.enableParallelNodeOperations"
            };
            return faulty(&datacenter, field);
        }
        let existing: Option<StatefulSet> = serde_json::from_value(case["existingStatefulSet"].clone()).unwrap();
        let gate = |name: &str| case["featureGates"][name].as_bool().unwrap();
        let mut cached = Cached {
            gates: Gates {
                automatic_tls_certificates: gate("AutomaticTLSCertificates"),
                bootstrap_synchronisation: gate("BootstrapSynchronisation"),
            },
            stateful_sets: existing.into_iter().map(Arc::new).collect(),
            node_exporter_image: "scylladb/scylladb-node-exporter:latest".into(),
            ..Cached::new(datacenter.unwrap(), OPERATOR_IMAGE)
        };
        certificates::make_all(&mut cached);
        let plan = plan(&cached);
        assert_eq!(plan.objects.stateful_sets.len(), 1);
        let expected = with_our_certificates(&case["expectedStatefulSet"].to_string());
        let mut expected: Value = serde_json::from_str(&expected).unwrap();
        with_our_commands(&mut expected);
        expected["status"] = Value::Null;
        let mut actual = as_in_case(json!(plan.objects.stateful_sets[0]), &expected);
        // The peer's hash was empty in these cases. Ours is set, and other tests check its value.
        let hash =
            &mut actual["spec"]["template"]["metadata"]["annotations"]["scylla-operator.scylladb.com/inputs-hash"];
        assert_eq!(hash.as_str().map(str::len), Some(88));
        *hash = "".into();
        same(&expected, &actual)
    });
}

#[test]
fn node_services_are_as_in_the_cases() {
    run("datacenter/member-service", |case| {
        let mut object = case["scyllaDBDatacenter"].clone();
        object["spec"]["racks"][0]["nodes"] = 1.into();
        let mut cached = cached(reliable(&object));
        let name = "basic-dc-rack-0";
        let existing: Option<Service> = serde_json::from_value(case["oldService"].clone()).unwrap();
        cached.services.extend(existing.map(|service| with_name(name, service)));
        // The case names the node freely; ours follow from their rack.
        let expected = case["expectedService"].to_string().replace("\"member\"", &format!("{name:?}"));
        let expected = expected.replace(
            &format!("\"scylla-operator.scylladb.com/scylla-service-type\":{name:?}"),
            "\"scylla-operator.scylladb.com/scylla-service-type\":\"member\"",
        );
        let mut expected: Value = serde_json::from_str(&expected).unwrap();
        expected["status"] = Value::Null;
        let services = plan(&cached).objects.member_services;
        assert_eq!(services.len(), 1);
        same(&expected, &as_in_case(json!(services[0]), &expected))
    });
}

/// Compares files by their parsed contents.
fn config_map_meaning(config_map: &Value) -> Value {
    let mut config_map = meaning(config_map);
    for (file, text) in config_map["data"].as_object_mut().unwrap() {
        let text_of = text.as_str().unwrap();
        *text = if file.ends_with(".yaml") {
            serde_saphyr::from_str(text_of).unwrap()
        } else {
            let lines: BTreeMap<&str, &str> = text_of.lines().filter_map(|line| line.split_once('=')).collect();
            json!(lines)
        };
    }
    config_map
}

fn same_config_map(expected: &Value, actual: &ConfigMap) -> Outcome {
    same(&config_map_meaning(expected), &config_map_meaning(&json!(actual)))
}

#[test]
fn managed_scylla_yaml_is_as_in_the_cases() {
    run("datacenter/managed-config", |case| {
        let mut cached = cached(reliable(&case["sdc"]));
        cached.gates.automatic_tls_certificates = case["enableTLSFeatureGate"].as_bool().unwrap();
        same_config_map(&case["expectedCM"], &plan(&cached).objects.managed_config)
    });
}

#[test]
fn managed_agent_config_is_as_in_the_cases() {
    run("datacenter/managed-agent-config", |case| {
        let cached = cached(reliable(&case["sdc"]));
        same_config_map(&case["expectedCM"], &plan(&cached).objects.managed_agent_config)
    });
}

#[test]
fn snitch_configs_are_as_in_the_cases() {
    run("datacenter/snitch-config", |case| {
        let ours = plan(&cached(reliable(&case["sdc"]))).objects.snitch_configs;
        let ours: Vec<Value> = ours.iter().map(|one| config_map_meaning(&json!(one))).collect();
        let expected = case["expectedCMs"].as_array().unwrap();
        let expected: Vec<Value> = expected.iter().map(config_map_meaning).collect();
        same(&json!(expected), &json!(ours))
    });
}

#[test]
fn parallel_node_operations_are_as_in_the_cases() {
    run("datacenter/parallel-node-operations", |case| {
        let result = validate(&completed(&case["scyllaDBDatacenter"]));
        if case["expectedErrorString"] != "" {
            return faulty(&result, "spec.enableParallelNodeOperations");
        }
        let expected = &case["expectedParallelNodeOperationsEnabled"];
        same(expected, &json!(result.unwrap().parallel_node_operations))
    });
}

#[test]
fn defaults_are_as_in_the_cases() {
    run("defaulting/scylladbdatacenter", |case| {
        let mut object: ScyllaDBDatacenter = serde_json::from_value(case["datacenter"].clone()).unwrap();
        defaulting::datacenter(&mut object);
        let expected: ScyllaDBDatacenter = serde_json::from_value(case["expected"].clone()).unwrap();
        same(&json!(expected), &json!(object))
    });
    run("defaulting/scyllacluster", |case| {
        let mut object: ScyllaCluster = serde_json::from_value(case["cluster"].clone()).unwrap();
        defaulting::cluster(&mut object);
        let expected: ScyllaCluster = serde_json::from_value(case["expected"].clone()).unwrap();
        same(&json!(expected), &json!(object))
    });
}

/// A rack of the case is a rack of the specification here, and the StatefulSet is called after it.
#[test]
fn rack_statuses_are_as_in_the_cases() {
    run("datacenter/rack-statuses", |case| {
        let names: Vec<&str> =
            case["expectedRacks"].as_array().unwrap().iter().map(|rack| rack["name"].as_str().unwrap()).collect();
        let mut object = case["scyllaDBDatacenter"].clone();
        object["spec"]["racks"] = names.iter().map(|name| json!({"name": name, "nodes": 1})).collect();
        let mut cached = cached(reliable(&object));
        cached.status = serde_json::from_value(case["status"].clone()).unwrap();
        for stateful_set in case["statefulSets"].as_array().unwrap() {
            let mut stateful_set: StatefulSet = serde_json::from_value(stateful_set.clone()).unwrap();
            let name = format!("basic-basic-{}", name_of(&stateful_set));
            stateful_set.metadata.name = Some(name.clone());
            // The case says what came of the pod and leaves the pod out.
            let container = Container {
                name: "scylla".into(),
                image: Some("scylladb/scylla:latest".into()),
                ..Container::default()
            };
            let spec = PodSpec { containers: vec![container], ..PodSpec::default() };
            cached.pods.insert(with_name(&format!("{name}-0"), Pod { spec: Some(spec), ..Pod::default() }));
            cached.stateful_sets.insert(with_name(&name, stateful_set));
        }
        let racks: Vec<RackStatus> = report(&cached).status.racks.unwrap();
        same(&case["expectedRacks"], &json!(racks))
    });
}

#[test]
fn created_racks_are_as_in_the_cases() {
    run("datacenter/missing-statefulsets", |case| {
        let error = case["expectedErrorString"].as_str().unwrap();
        if error.contains("apply failed") {
            return Outcome::Skipped("about an apply that fails; a plan applies nothing");
        }
        if case["expectedCreated"] == json!([]) {
            return Outcome::Skipped("about an apply that changes nothing; a plan applies nothing");
        }
        let names = |list: &Value| -> Vec<String> {
            let names = list.as_array().into_iter().flatten().map(|one| one["metadata"]["name"].as_str().unwrap());
            names.map(str::to_owned).collect()
        };
        let mut object = case["scyllaDBDatacenter"].clone();
        object["spec"]["racks"] =
            names(&case["required"]).iter().map(|name| json!({"name": name, "nodes": 1})).collect();
        let datacenter = validate(&completed(&object));
        if !error.is_empty() {
            return faulty(&datacenter, "spec.enableParallelNodeOperations");
        }
        let mut cached = cached(datacenter.unwrap());
        let all = {
            let mut parallel = cached.clone();
            parallel.datacenter.parallel_node_operations = true;
            plan(&parallel).objects.stateful_sets
        };
        for existing in case["existing"].as_object().unwrap().keys() {
            let name = format!("basic-basic-{existing}");
            let one = all.iter().find(|one| name_of(one) == name).unwrap();
            cached.stateful_sets.insert(rolled_out(one.clone()));
        }
        let plan = plan(&cached);
        let created: Vec<String> = plan
            .objects
            .stateful_sets
            .iter()
            .map(name_of)
            .filter(|name| !cached.stateful_sets.contains_key(name))
            .map(|name| name.trim_start_matches("basic-basic-").to_owned())
            .collect();
        let report = report(&cached);
        assert!(plan.state(Component::StatefulSet).progressing.is_some());
        assert_eq!(report.status.observed_generation, case["expectedConditions"][0]["observedGeneration"].as_i64());
        same(&json!(names(&case["expectedCreated"])), &json!(created))
    });
}

#[test]
fn rollouts_are_as_in_the_cases() {
    run("conditions/statefulset-rolled-out", |case| {
        let stateful_set: StatefulSet = serde_json::from_value(case["sts"].clone()).unwrap();
        same(&case["expected"], &json!(is_rolled_out(&stateful_set)))
    });
}

/// What a peer refuses to admit, we refuse to reconcile, for the same field.
#[test]
fn refusals_are_as_in_the_cases() {
    run("admission/scylladbdatacenter-create", |case| {
        let object: ScyllaDBDatacenter = serde_json::from_value(case["datacenter"].clone()).unwrap();
        let object = completed(&json!({"metadata": object.metadata, "spec": case["datacenter"]["spec"]}));
        let expected = case["expectedErrorList"].as_array().unwrap().iter().map(|one| one["field"].as_str().unwrap());
        // scylla-operator names a field that does not exist.
        let expected: Vec<String> =
            expected.map(|field| field.replace("scyllaDB.alternator.", "scyllaDB.alternatorOptions.")).collect();
        let mut object = object;
        if case["datacenter"]["spec"]["scyllaDB"]["image"] == "" {
            object.spec.scylladb.as_mut().unwrap().image = None;
        }
        let found = validate(&object).err().unwrap_or_default();
        let found: Vec<&str> = found.iter().map(|fault| fault.field.as_str()).collect();
        same(&json!(expected), &json!(found))
    });
}

/// Decisions for a datacenter whose cases are run by a test of their own name, and those that are not run here.
#[test]
fn every_decision_of_the_cases_has_a_test() {
    const RUN: [&str; 10] = [
        "cleanup-jobs",
        "ingresses",
        "managed-agent-config",
        "managed-config",
        "member-service",
        "missing-statefulsets",
        "parallel-node-operations",
        "rack-statuses",
        "snitch-config",
        "statefulset-for-rack",
    ];
    const NOT_HERE: [(&str, &str); 2] = [
        ("broadcast-address", "it is run with the other decisions of a node"),
        ("nodes-status-report", "the design has another kind for them, ScyllaDBStatusReport, without racks and places"),
    ];
    let folder = shared().join("compat/cases/datacenter");
    let Ok(decisions) = fs::read_dir(&folder) else {
        return eprintln!("skipped: {} is not there, so there are no cases to run", folder.display());
    };
    for decision in decisions {
        let name = decision.unwrap().file_name().to_string_lossy().into_owned();
        match NOT_HERE.iter().find(|(left_out, _)| *left_out == name) {
            Some((_, reason)) => eprintln!("{name} is not run here: {reason}"),
            None => assert!(RUN.contains(&name.as_str()), "the cases of {name} are not run"),
        }
    }
}
