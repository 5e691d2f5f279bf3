//! The objects that the peer created for two datacenters on a real API server.

use std::{collections::BTreeMap, fs};

use crate::plan;
use messina_api::{
    names::annotation::{self, INPUTS_HASH},
    scylla::v1alpha1::ScyllaDBDatacenter,
};
use messina_plan::datacenter::{Cached, Gates, Plan, is_rolled_out, validate};
use serde_json::{Value, json};

use crate::{
    certificates,
    compare::{Difference, describe, differences, meaning, with_our_certificates, with_our_commands},
    name_of, read_yaml, rolled_out, shared,
};

/// Objects that are not planned yet, or not here. Each is the beginning of a file's name.
const LEFT_OUT: [(&str, &str); 5] = [
    ("scyllacluster-", "the user's own"),
    ("scylladbdatacenter-", "the user's own"),
    ("scylladbdatacenternodesstatusreport-", "status reports come with bootstrap synchronisation"),
    ("scylladbmanagerclusterregistration-", "registrations are a decision of their own"),
    ("scylladbmanagertask-", "tasks are a decision of their own"),
];

/// Fields that the API server or another program fills in, by the end of the path.
const FILLED_IN: [&str; 24] = [
    ".status",
    ".metadata.generation",
    ".restartPolicy",
    ".schedulerName",
    ".serviceAccount",
    ".persistentVolumeClaimRetentionPolicy",
    ".revisionHistoryLimit",
    ".terminationMessagePath",
    ".terminationMessagePolicy",
    ".successThreshold",
    ".readinessProbe.failureThreshold",
    ".readinessProbe.periodSeconds",
    ".readinessProbe.timeoutSeconds",
    ".scheme",
    ".fieldRef.apiVersion",
    ".configMap.defaultMode",
    ".secret.defaultMode",
    ".volumeMode",
    ".clusterIP",
    ".clusterIPs",
    ".internalTrafficPolicy",
    ".sessionAffinity",
    // By the sidecar.
    ".internal.scylla-operator.scylladb.com/host-id",
    ".internal.scylla-operator.scylladb.com/current-token-ring-hash",
];

#[test]
fn minimal_datacenter_is_as_the_peers() {
    as_the_peers("minimal");
}

#[test]
fn full_datacenter_is_as_the_peers() {
    as_the_peers("full");
}

fn as_the_peers(name: &str) {
    let folder = shared().join("compat/golden").join(name);
    let Ok(files) = fs::read_dir(folder.join("objects")) else {
        return eprintln!("skipped: {} is not there, so there are no objects to compare with", folder.display());
    };
    let ours = by_file(&completely_planned(name, &read_yaml(&folder.join("input-datacenter.yaml"))), name);
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    let (mut compared, mut left_out, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for file in files {
        let stem = file.file_stem().unwrap().to_string_lossy().into_owned();
        let exception = LEFT_OUT.iter().find(|(beginning, _)| stem.starts_with(&beginning.replace("NAME", name)));
        if let Some((_, reason)) = exception {
            left_out.push(format!("{stem}: {reason}"));
            continue;
        }
        let Some(ours) = ours.get(&with_our_certificates(&stem)) else { panic!("{stem} is not planned") };
        let found = unlike(&with_our_certificates(&read_yaml(&file).to_string()), ours);
        if !found.is_empty() {
            failed.push(format!("{stem}:\n{}", describe(&found)));
        }
        compared.push(stem);
    }
    eprintln!("golden {name}: {} objects compared, {} left out", compared.len(), left_out.len());
    left_out.iter().for_each(|line| eprintln!("  left out {line}"));
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let more: Vec<&String> =
        ours.keys().filter(|stem| !compared.iter().any(|one| with_our_certificates(one) == **stem)).collect();
    assert!(more.is_empty(), "planned, and not there with the peer: {more:?}");
}

/// The API server fills in defaults. They must not lead to another plan.
#[test]
fn objects_stored_by_an_api_server_are_as_planned() {
    for name in ["minimal", "full"] {
        let folder = shared().join("compat/golden").join(name);
        if !folder.exists() {
            return eprintln!("skipped: {} is not there, so there are no objects to compare with", folder.display());
        }
        let mut cached = completely_observed(name, &read_yaml(&folder.join("input-datacenter.yaml")));
        for ours in cached.stateful_sets.values_mut() {
            let stateful_set = name_of(ours);
            let file = folder.join(format!("objects/statefulset-{stateful_set}.yaml"));
            let mut kept: Value = serde_json::from_str(&with_our_certificates(&read_yaml(&file).to_string())).unwrap();
            with_our_commands(&mut kept);
            remove_applied_hash(&mut kept);
            let hash = json!(ours)["spec"]["template"]["metadata"]["annotations"][INPUTS_HASH].clone();
            kept["spec"]["template"]["metadata"]["annotations"][INPUTS_HASH] = hash;
            *ours = serde_json::from_value(kept).unwrap();
            assert!(is_rolled_out(ours), "{stateful_set}");
        }
        let settled = plan(&cached);
        assert_eq!((settled.progressing, settled.degraded, settled.untouched), (vec![], vec![], vec![]), "{name}");
        // Proves that the comparison detects differences: an API server that dropped one field.
        let one = cached.stateful_sets.values_mut().next().unwrap();
        one.spec.as_mut().unwrap().template.spec.as_mut().unwrap().termination_grace_period_seconds = Some(30);
        assert_eq!(plan(&cached).progressing.len(), 1, "{name}");
    }
}

fn completely_planned(name: &str, input: &Value) -> Plan {
    plan(&completely_observed(name, input))
}

/// Returns the observation after all racks are rolled out, with the feature gates of the peer.
fn completely_observed(name: &str, input: &Value) -> Cached {
    let mut object: ScyllaDBDatacenter = serde_json::from_value(input.clone()).unwrap();
    object.metadata.uid = Some("<uid>".into());
    let datacenter = validate(&object).unwrap_or_else(|faults| panic!("{name}: {faults:?}"));
    let gates = Gates { automatic_tls_certificates: true, bootstrap_synchronisation: true };
    let new_token = "random".into();
    let mut cached =
        Cached { gates, new_token, ..Cached::new(datacenter, "docker.io/scylladb/scylla-operator:latest") };
    for look in 0.. {
        certificates::sign_orders(&mut cached);
        let plan = plan(&cached);
        assert!(look < 100, "{name} does not come to rest: {:#?}", plan.progressing);
        if plan.progressing.is_empty() && plan.objects.cql_connection_configs.is_some() {
            return cached;
        }
        certificates::store(&mut cached, &plan);
        certificates::give_addresses(&mut cached, &plan);
        // As written by sidecars and cleanups.
        for service in cached.services.values_mut() {
            let annotations = service.metadata.annotations.get_or_insert_default();
            for key in [annotation::CURRENT_TOKEN_RING_HASH, annotation::LAST_CLEANED_UP_TOKEN_RING_HASH] {
                annotations.insert(key.into(), "ring".into());
            }
        }
        for stateful_set in plan.objects.stateful_sets {
            cached.stateful_sets.insert(rolled_out(stateful_set));
        }
    }
    unreachable!("it comes to rest, or is said not to")
}

fn by_file(plan: &Plan, datacenter: &str) -> BTreeMap<String, Value> {
    let stem = |object: &Value| {
        let kind = object["kind"].as_str().unwrap_or_else(|| panic!("{datacenter}: {object}")).to_lowercase();
        format!("{kind}-{}", object["metadata"]["name"].as_str().unwrap())
    };
    let all = plan.objects.in_order().map(|(_, object)| json!(object));
    all.map(|object| (stem(&object), object)).collect()
}

/// Returns the differences between our object and the peer's.
fn unlike(expected: &str, ours: &Value) -> Vec<Difference> {
    let mut expected: Value = serde_json::from_str(expected).unwrap();
    let mut ours = ours.clone();
    match expected["kind"].as_str().unwrap() {
        "StatefulSet" => with_our_commands(&mut expected),
        "ConfigMap" => {
            files_as_read(&mut expected);
            files_as_read(&mut ours);
        }
        _ => {}
    }
    remove_applied_hash(&mut expected);
    let found = differences(&meaning(&expected), &meaning(&ours)).into_iter();
    found.filter(|one| !is_filled_in(one) && !is_generated(one)).collect()
}

/// The peer copies the annotation of `kubectl apply` from the user's object. We never do.
fn remove_applied_hash(object: &mut Value) {
    match object {
        Value::Object(fields) => {
            fields.remove("kubectl.kubernetes.io/last-applied-configuration");
            fields.values_mut().for_each(remove_applied_hash);
        }
        Value::Array(elements) => elements.iter_mut().for_each(remove_applied_hash),
        _ => {}
    }
}

fn is_filled_in(one: &Difference) -> bool {
    one.is_missing_in_ours() && FILLED_IN.iter().any(|end| one.path.ends_with(end))
}

/// Hashes, tokens, certificates, and results of cleanups differ in every run. So do keys of the same kind, and the texts of
/// reasons.
fn is_generated(one: &Difference) -> bool {
    let ends = [
        "/inputs-hash",
        ".data.auth-token.yaml",
        "/last-cleaned-up-token-ring-hash",
        ".data.tls.crt",
        ".data.tls.key",
        ".data.ca-bundle.crt",
        "/not-before",
        "/not-after",
        "/key-algorithm",
        "/key-size",
        "/refresh-reason",
    ];
    one.actual.is_some() && one.expected.is_some() && ends.iter().any(|end| one.path.ends_with(end))
}

fn files_as_read(config_map: &mut Value) {
    for (file, text) in config_map["data"].as_object_mut().into_iter().flatten() {
        if file.ends_with(".yaml") {
            *text = serde_saphyr::from_str(text.as_str().unwrap()).unwrap();
        }
    }
}
