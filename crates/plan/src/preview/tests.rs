#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};

use super::*;

const EXAMPLE: &str = include_str!("../../../../deploy/examples/scylladbdatacenter.yaml");

fn settings() -> Settings {
    Settings {
        namespace: "default".into(),
        operator_image: "messina:test".into(),
        node_exporter_image: "exporter:test".into(),
    }
}

fn of(text: &str) -> Preview {
    preview(&[Manifest { file: "file.yaml".into(), text: text.into() }], &settings())
}

/// A datacenter with these fields beside the required ones.
fn datacenter(spec: &str) -> String {
    format!(
        "{{apiVersion: scylla.scylladb.com/v1alpha1, kind: ScyllaDBDatacenter, metadata: {{name: orders}}, spec: \
         {{clusterName: orders, scyllaDB: {{image: 'scylladb/scylla:2026.2.4'}}, {spec}}}}}"
    )
}

fn objects(preview: &Preview) -> Vec<Value> {
    serde_saphyr::from_multiple(&preview.datacenters[0].yaml().unwrap()).unwrap()
}

#[test]
fn preview_shows_all_objects_in_order_of_creation() {
    let preview = of(EXAMPLE);
    assert_eq!((&preview.errors, &preview.notes), (&vec![], &vec![]));
    let names: Vec<String> = objects(&preview)
        .iter()
        .map(|object| format!("{} {}", object["kind"], object["metadata"]["name"]).replace('"', ""))
        .collect();
    let expected = [
        "ServiceAccount payments-member",
        "RoleBinding payments-member",
        "Secret payments-auth-token",
        "Secret payments-local-client-ca",
        "ConfigMap payments-local-client-ca",
        "Secret payments-local-user-admin",
        "Secret payments-local-serving-ca",
        "ConfigMap payments-local-serving-ca",
        "Secret payments-local-serving-certs",
        "Secret payments-local-cql-connection-configs-admin",
        "ConfigMap payments-managed-config",
        "ConfigMap payments-manager-agent-config",
        "ConfigMap payments-a-snitch-config",
        "ConfigMap payments-b-snitch-config",
        "ConfigMap payments-c-snitch-config",
        "Service payments-client",
        "Service payments-eu-west-1-a-0",
        "Service payments-eu-west-1-b-0",
        "Service payments-eu-west-1-c-0",
        "PodDisruptionBudget payments",
        "StatefulSet payments-eu-west-1-a",
        "StatefulSet payments-eu-west-1-b",
        "StatefulSet payments-eu-west-1-c",
    ];
    assert_eq!(names, expected);
    let components = preview.datacenters[0].objects.in_order().map(|(component, _)| component);
    assert!(components.is_sorted(), "the order of the components");
}

/// The result must not depend on the order in which racks are created.
#[test]
fn preview_shows_racks_as_the_controller_creates_them() {
    let object = stored::as_stored(serde_saphyr::from_str(EXAMPLE).unwrap()).unwrap();
    let mut object: ScyllaDBDatacenter = serde_json::from_value(object).unwrap();
    object.metadata.uid = Some(UID.into());
    object.metadata.generation = Some(1);
    let mut cached = Cached {
        node_exporter_image: "exporter:test".into(),
        new_token: TOKEN.into(),
        gates: Gates { automatic_tls_certificates: true, ..Gates::default() },
        ..Cached::new(validate(&object).unwrap(), "messina:test")
    };
    assert!(plan(&observed(&cached)).objects.stateful_sets.is_empty(), "nodes wait for their certificates");
    store_outline(&mut cached);
    let mut created = Vec::new();
    for rack in 0..3 {
        let planned = plan(&observed(&cached)).objects;
        assert_eq!(planned.stateful_sets.len(), rack + 1, "one rack at a time");
        let new = planned.stateful_sets[rack].clone();
        created.push(new.clone());
        cached.stateful_sets.insert(rolled_out(new));
    }
    let shown = &of(EXAMPLE).datacenters[0].objects;
    assert_eq!(shown.stateful_sets, created);
    let observed = observed(&cached);
    assert_eq!(*shown, with_outline(&observed, plan(&observed)).objects);
}

#[test]
fn preview_shows_placeholders_for_values_of_the_cluster() {
    let preview = of(EXAMPLE);
    let stream = preview.datacenters[0].yaml().unwrap();
    assert_eq!(stream, of(EXAMPLE).datacenters[0].yaml().unwrap());
    let objects = objects(&preview);
    let secret = objects.iter().find(|object| object["kind"] == "Secret").unwrap();
    assert_eq!(secret["stringData"], json!({"auth-token.yaml": "auth_token: \"<random>\"\n"}));
    assert_eq!(secret["data"], Value::Null);
    for object in &objects {
        assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], UID, "{object}");
        assert_eq!(object["metadata"]["namespace"], "scylla", "{object}");
        assert_eq!(object["status"], Value::Null, "{object}");
    }
}

#[test]
fn objects_without_namespace_get_the_default_one() {
    let preview = of(&datacenter("racks: []"));
    assert_eq!(preview.errors, Vec::<String>::new());
    assert_eq!(preview.datacenters[0].datacenter.namespace, "default");
}

/// The API server fills in defaults before the controller sees the object.
#[test]
fn preview_sets_the_defaults_of_the_crd() {
    let service = |text: &str| {
        let objects = objects(&of(text));
        objects.into_iter().find(|object| object["kind"] == "Service").unwrap()["spec"].clone()
    };
    let silent = service(&datacenter("racks: []"));
    assert_eq!(silent["ipFamilies"], json!(["IPv4"]));
    assert_eq!(silent, service(&datacenter("racks: [], ipFamilies: [IPv4], ipFamilyPolicy: SingleStack")));
    assert_eq!(silent, service(&datacenter("racks: [], ipFamilies: null")));
    assert_ne!(silent, service(&datacenter("racks: [], ipFamilies: [IPv6]")));
}

#[test]
fn errors_name_file_object_and_field() {
    let about = "file.yaml: ScyllaDBDatacenter default/orders: ";
    for (spec, field, words) in [
        ("rakcs: []", "spec.rakcs", "unknown field"),
        ("racks: [], ipfamilies: []", "spec.ipfamilies", "use ipFamilies"),
        ("racks: [{name: a, nodes: three}]", "spec.racks[0].nodes", "must be an integer"),
        ("racks: {}", "spec.racks", "a list"),
        ("racks: [], ipFamilyPolicy: Some", "spec.ipFamilyPolicy", "is not supported: use one of SingleStack"),
        ("racks: [], minReadySeconds: -1", "spec.minReadySeconds", "less than 0"),
    ] {
        let preview = of(&datacenter(spec));
        assert_eq!(preview.errors.len(), 1, "{spec}: {:?}", preview.errors);
        assert!(preview.errors[0].starts_with(&format!("{about}{field}: ")), "{spec}: {:?}", preview.errors);
        assert!(preview.errors[0].contains(words), "{spec}: {:?}", preview.errors);
        assert!(preview.datacenters.is_empty(), "{spec}");
    }
}

#[test]
fn invalid_yaml_is_reported_with_file_and_line() {
    let preview = of("kind: ScyllaDBDatacenter\nspec:\n  racks: [\n");
    assert_eq!(preview.errors.len(), 1);
    assert!(preview.errors[0].starts_with("file.yaml: "), "{:?}", preview.errors);
    assert!(preview.errors[0].contains("line "), "{:?}", preview.errors);
    assert_eq!(of("just text").errors, ["file.yaml: a document is not a Kubernetes object"]);
}

#[test]
fn lists_are_unpacked_and_other_kinds_are_skipped() {
    let list =
        format!("{{kind: List, items: [{}, {{kind: Secret, metadata: {{name: mine}}}}]}}", datacenter("racks: []"));
    let preview = of(&format!("{list}\n---\n"));
    assert_eq!(preview.errors, Vec::<String>::new());
    assert_eq!(preview.datacenters.len(), 1);
    assert_eq!(preview.notes.len(), 1);
    assert!(preview.notes[0].starts_with("file.yaml: Secret default/mine: skipped"), "{:?}", preview.notes);
}
