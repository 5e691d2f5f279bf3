//! Round trips: any object that the API server accepts is written as it was read.

mod generate;

use std::{cell::RefCell, collections::BTreeSet};

use kube::{CustomResourceExt, core::object::HasStatus};
use messina_api::{
    druid::v1alpha1::{Etcd, EtcdOperatorTask},
    scylla::{
        v1::ScyllaCluster,
        v1alpha1::{
            RemoteKubernetesCluster, RemoteOwner, ScyllaDBCluster, ScyllaDBDatacenter,
            ScyllaDBManagerClusterRegistration, ScyllaDBManagerTask, ScyllaDBStatusReport,
        },
    },
};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{DEFINITIONS, Definition, element, first, properties};
use generate::QUANTITY;

/// Number of objects that are generated for each kind.
const CASES: u32 = 256;

trait Kind: CustomResourceExt + Serialize + DeserializeOwned {
    fn definition() -> &'static Definition {
        let resource = Self::api_resource();
        let is_it = |definition: &&Definition| {
            definition.kind == resource.kind && definition.api_version == resource.api_version
        };
        DEFINITIONS.iter().find(is_it).unwrap_or_else(|| panic!("{} has no definition", resource.kind))
    }

    /// Reads and writes an object.
    fn rewritten(object: &Value) -> Result<Value, String> {
        let read =
            serde_json::from_value::<Self>(object.clone()).map_err(|error| format!("cannot be read: {error}"))?;
        serde_json::to_value(read).map_err(|error| format!("cannot be written: {error}"))
    }
}

impl<T: CustomResourceExt + Serialize + DeserializeOwned> Kind for T {}

/// Defines the same tests for each kind, in a module with its name.
macro_rules! kinds {
    ($($name:ident: $Kind:ident,)*) => {
        $(mod $name {
            use super::*;

            #[test]
            fn any_object_survives_a_round_trip() {
                super::any_object_survives_a_round_trip::<$Kind>();
            }

            #[test]
            fn each_field_alone_survives_a_round_trip() {
                super::each_field_alone_survives_a_round_trip::<$Kind>();
            }

            #[test]
            fn empty_object_is_read() {
                super::empty_object_is_read::<$Kind>();
            }
        })*

        #[test]
        fn every_kind_is_tested() {
            let tested = BTreeSet::from([$(stringify!($Kind)),*]);
            assert_eq!(tested, DEFINITIONS.iter().map(|definition| definition.kind.as_str()).collect());
        }
    };
}

kinds! {
    scylla_cluster: ScyllaCluster,
    scylladb_cluster: ScyllaDBCluster,
    scylladb_datacenter: ScyllaDBDatacenter,
    scylladb_manager_cluster_registration: ScyllaDBManagerClusterRegistration,
    scylladb_manager_task: ScyllaDBManagerTask,
    scylladb_status_report: ScyllaDBStatusReport,
    remote_kubernetes_cluster: RemoteKubernetesCluster,
    remote_owner: RemoteOwner,
    etcd_operator_task: EtcdOperatorTask,
}

fn any_object_survives_a_round_trip<K: Kind>() {
    let definition = K::definition();
    let generated = RefCell::new(BTreeSet::new());
    // The same objects in every run, so that failures are reproducible and every field is generated in each run.
    let mut runner = TestRunner::new_with_rng(
        Config { cases: CASES, failure_persistence: None, ..Config::default() },
        TestRng::deterministic_rng(RngAlgorithm::ChaCha),
    );
    let result = runner.run(&generate::any_object(definition), |object| {
        visit_values(&definition.schema, &mut object.clone(), "", &mut |path, _, _| {
            generated.borrow_mut().insert(path.to_owned());
        });
        survives::<K>(&object).map_err(TestCaseError::fail)
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(reason, object)) => panic!("{}: {reason}\nin {object:#}", definition.kind),
        Err(TestError::Abort(reason)) => panic!("{}: no objects could be made up: {reason}", definition.kind),
    }

    let (generated, all) = (generated.into_inner(), fields_of_ours(definition));
    let missed: Vec<&String> = all.difference(&generated).collect();
    assert!(missed.is_empty(), "{}: no object had any of {missed:#?}", definition.kind);
    eprintln!(
        "{}: {CASES} objects with {} fields, among them all {} of ours",
        definition.kind,
        generated.len(),
        all.len()
    );
}

fn each_field_alone_survives_a_round_trip<K: Kind>() {
    let definition = K::definition();
    let objects = generate::sparse_objects(definition);
    let fault = |object: &Value| survives::<K>(object).err().map(|fault| format!("{fault} in {object}"));
    let faults: Vec<String> = objects.iter().filter_map(fault).collect();
    assert!(faults.is_empty(), "{}: {} faults:\n  {}", definition.kind, faults.len(), first(&faults));
    eprintln!("{}: {} objects", definition.kind, objects.len());
}

fn empty_object_is_read<K: Kind>() {
    let definition = K::definition();
    let object = generate::empty_object(definition);
    assert_eq!(K::rewritten(&object), Ok(as_written(definition, &object)));
}

/// Returns how a round trip changes an object, as an error.
fn survives<K: Kind>(object: &Value) -> Result<(), String> {
    let expected = as_written(K::definition(), object);
    let mut differences = Vec::new();
    differ("", &expected, &K::rewritten(object)?, &mut differences);
    if differences.is_empty() { Ok(()) } else { Err(differences.join("\n")) }
}

/// Returns an object in the form in which it is written: a numeric quantity is a string, and an absent spec is empty.
/// Generated times are already in the form in which they are written: in UTC, with whole seconds.
fn as_written(definition: &Definition, object: &Value) -> Value {
    let mut object = object.clone();
    if definition.schema["properties"].get("spec").is_some() && object.get("spec").is_none() {
        object["spec"] = json!({});
    }
    visit_values(&definition.schema, &mut object, "", &mut |_, schema, value| {
        if schema["pattern"] == QUANTITY && value.is_number() {
            *value = Value::String(value.to_string());
        }
    });
    object
}

/// Calls `visit` with every field and element in a value, its schema, and its path in the schema.
fn visit_values(schema: &Value, value: &mut Value, path: &str, visit: &mut impl FnMut(&str, &Value, &mut Value)) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                if let Some(property) = schema["properties"].get(name) {
                    let path = format!("{path}.{name}");
                    visit(&path, property, field);
                    visit_values(property, field, &path, visit);
                } else if let Some(element) = element(schema) {
                    let path = format!("{path}[]");
                    visit(&path, element, field);
                    visit_values(element, field, &path, visit);
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                if let Some(element) = element(schema) {
                    let path = format!("{path}[]");
                    visit(&path, element, item);
                    visit_values(element, item, &path, visit);
                }
            }
        }
        _ => {}
    }
}

/// Returns the paths of the fields that are not inside one of Kubernetes' types: those with descriptions.
fn fields_of_ours(definition: &Definition) -> BTreeSet<String> {
    fn add(schema: &Value, path: &str, paths: &mut BTreeSet<String>) {
        for (name, property) in properties(schema).filter(|(_, property)| property.get("description").is_some()) {
            let path = format!("{path}.{name}");
            add(property, &path, paths);
            paths.insert(path);
        }
        if let Some(element) = element(schema) {
            add(element, &format!("{path}[]"), paths);
        }
    }
    let mut paths = BTreeSet::new();
    add(&definition.schema, "", &mut paths);
    paths
}

fn differ(path: &str, expected: &Value, written: &Value, differences: &mut Vec<String>) {
    match (expected, written) {
        (Value::Object(expected), Value::Object(written)) => {
            for name in expected.keys().chain(written.keys().filter(|name| !expected.contains_key(*name))) {
                let path = format!("{path}.{name}");
                match (expected.get(name), written.get(name)) {
                    (Some(expected), Some(written)) => differ(&path, expected, written, differences),
                    (Some(expected), None) => differences.push(format!("{path}: {expected} is lost")),
                    (None, written) => differences.push(format!("{path}: {written:?} is added")),
                }
            }
        }
        (Value::Array(expected), Value::Array(written)) if expected.len() == written.len() => {
            for (expected, written) in expected.iter().zip(written) {
                differ(&format!("{path}[]"), expected, written, differences);
            }
        }
        _ if expected == written => {}
        _ => differences.push(format!("{path}: {expected} becomes {written}")),
    }
}

/// Objects that the definitions reject, but that an API server may contain, because an earlier or later definition, or
/// one of a peer, accepted them.
#[test]
fn objects_that_the_definitions_reject_are_read() {
    type Rewrite = fn(&Value) -> Result<Value, String>;
    let kept = |object: Value| (object.clone(), object);
    let rows: [(&str, Rewrite, (Value, Value)); 12] = [
        (
            "a kind of Service that is not known yet",
            ScyllaCluster::rewritten,
            kept(json!({"spec": {"exposeOptions": {"nodeService": {"type": "Teleport"}}}})),
        ),
        (
            "a provider of certificates that the definition does not list",
            ScyllaCluster::rewritten,
            kept(json!({"spec": {"alternator": {"servingCertificate": {"type": "SomeoneElse"}}}})),
        ),
        (
            "an IP family policy that the definition does not list",
            ScyllaDBDatacenter::rewritten,
            kept(json!({"spec": {"ipFamilyPolicy": "TripleStack", "ipFamilies": ["IPv8", ""]}})),
        ),
        (
            "a state of a node that the definition does not list",
            ScyllaDBStatusReport::rewritten,
            kept(json!({"datacenters": [{"nodes": [{"observedNodes": [{"hostID": "a", "status": "SIDEWAYS"}]}]}]})),
        ),
        (
            "a state of a task that the definition does not list",
            EtcdOperatorTask::rewritten,
            kept(
                json!({"spec": {"type": "Teleport"}, "status": {"state": "Postponed", "lastOperation": {"state": ""}}}),
            ),
        ),
        (
            "a type of task that is not known yet",
            ScyllaDBManagerTask::rewritten,
            kept(json!({"spec": {"type": "Restore"}})),
        ),
        (
            "a task without the type that the definition requires",
            EtcdOperatorTask::rewritten,
            kept(json!({"spec": {"etcdRef": {"name": "main"}}})),
        ),
        (
            "a Service without the type that the definition requires",
            ScyllaCluster::rewritten,
            kept(json!({"spec": {"exposeOptions": {"nodeService": {}}}})),
        ),
        (
            "fields that are null",
            ScyllaCluster::rewritten,
            (
                json!({"spec": {"version": null, "repairs": null, "datacenter": {"racks": null}}, "status": null}),
                json!({"spec": {"datacenter": {}}}),
            ),
        ),
        (
            "fields that are not known, which are not kept",
            ScyllaDBCluster::rewritten,
            (
                json!({"spec": {"datacenters": [{"name": "eu", "moon": 2}], "comets": []}, "status": {"star": {}}}),
                json!({"spec": {"datacenters": [{"name": "eu"}]}, "status": {}}),
            ),
        ),
        (
            "a quantity that is a number",
            ScyllaDBManagerTask::rewritten,
            (
                json!({"spec": {"repair": {"smallTableThreshold": 1073741824}}}),
                json!({"spec": {"repair": {"smallTableThreshold": "1073741824"}}}),
            ),
        ),
        (
            "a quantity that is a number, where the fields of a template stand beside others",
            ScyllaDBDatacenter::rewritten,
            (
                json!({"spec": {"racks": [{"name": "a", "scyllaDB": {"resources": {"limits": {"cpu": 2}}}}]}}),
                json!({"spec": {"racks": [{"name": "a", "scyllaDB": {"resources": {"limits": {"cpu": "2"}}}}]}}),
            ),
        ),
    ];
    for (what, rewritten, (given, expected)) in rows {
        let written = rewritten(&with_metadata(given)).unwrap_or_else(|error| panic!("{what} {error}"));
        let mut differences = Vec::new();
        differ("", &with_metadata(expected), &without_type(written), &mut differences);
        assert!(differences.is_empty(), "{what}: {differences:#?}");
    }
}

fn with_metadata(mut object: Value) -> Value {
    object["metadata"] = json!({"name": "example", "namespace": "default"});
    object
}

/// Written objects have a kind, even if they were read without one.
fn without_type(mut object: Value) -> Value {
    let fields = object.as_object_mut().unwrap();
    assert!(fields.remove("apiVersion").is_some() && fields.remove("kind").is_some(), "{fields:?} has no kind");
    object
}

/// Etcd has no definition here to generate objects from, and other fields are not kept.
#[test]
fn etcd_has_the_fields_that_tasks_need() {
    let etcd: Etcd = serde_saphyr::from_str(
        r#"
        apiVersion: druid.gardener.cloud/v1alpha1
        kind: Etcd
        metadata: {name: main, namespace: garden, generation: 7}
        spec:
          replicas: 3
          labels: {app: etcd-statefulset}
          selector: {matchLabels: {app: etcd-statefulset}}
          etcd:
            clientPort: 2381
            quota: 8Gi
            metrics: basic
            clientUrlTls:
              tlsCASecretRef: {name: ca-etcd, namespace: garden, dataKey: ca.crt}
              serverTLSSecretRef: {name: etcd-server}
              clientTLSSecretRef: {name: etcd-client, namespace: garden}
          backup:
            port: 8081
            fullSnapshotSchedule: "0 */24 * * *"
            tls:
              tlsCASecretRef: {name: ca-backup}
              serverTLSSecretRef: {name: backup-server}
              clientTLSSecretRef: {name: backup-client}
            store: {provider: S3, container: snapshots, prefix: main, secretRef: {name: s3}}
          sharedConfig: {autoCompactionMode: periodic}
        status:
          observedGeneration: 6
          ready: false
          readyReplicas: 2
          replicas: 3
          currentReplicas: 3
          conditions:
          - type: Ready
            status: "True"
            reason: Quorate
            message: The majority of etcd members is ready
            lastTransitionTime: "2024-05-06T07:08:09Z"
            lastUpdateTime: "2024-05-06T07:08:10Z"
          members:
          - {name: main-0, id: 8e9e05c52164694d, role: Leader, status: Ready, reason: LeaseSucceeded}
          - {name: main-1, role: Observer, status: Dreaming}
        "#,
    )
    .unwrap();

    assert_eq!(etcd.metadata.name.as_deref(), Some("main"));
    assert_eq!(etcd.metadata.generation, Some(7));
    assert_eq!(
        serde_json::to_value(&etcd.spec).unwrap(),
        json!({
            "replicas": 3,
            "etcd": {"clientPort": 2381, "clientUrlTls": {
                "tlsCASecretRef": {"name": "ca-etcd", "namespace": "garden", "dataKey": "ca.crt"},
                "clientTLSSecretRef": {"name": "etcd-client", "namespace": "garden"},
            }},
            "backup": {
                "port": 8081,
                "tls": {"tlsCASecretRef": {"name": "ca-backup"}, "clientTLSSecretRef": {"name": "backup-client"}},
                "store": {"provider": "S3", "container": "snapshots", "prefix": "main", "secretRef": {"name": "s3"}},
            },
        })
    );
    assert_eq!(
        serde_json::to_value(etcd.status()).unwrap(),
        json!({
            "observedGeneration": 6, "ready": false, "readyReplicas": 2, "replicas": 3,
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Quorate",
                "message": "The majority of etcd members is ready", "lastTransitionTime": "2024-05-06T07:08:09Z",
            }],
            "members": [
                {"name": "main-0", "role": "Leader", "status": "Ready"},
                {"name": "main-1", "role": "Observer", "status": "Dreaming"},
            ],
        })
    );
}

#[test]
fn empty_etcd_is_read() {
    let etcd: Etcd = serde_json::from_value(with_metadata(json!({}))).unwrap();
    assert_eq!(etcd, Etcd { metadata: etcd.metadata.clone(), ..Etcd::default() });
    assert_eq!(etcd.metadata.name.as_deref(), Some("example"));
}
