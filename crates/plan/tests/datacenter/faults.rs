//! Faults of a specification, and their fields.

use messina_api::{
    names::annotation::{ADOPT, IGNORED_DOWN_NODES},
    scylla::v1alpha1::ScyllaDBDatacenter,
};
use messina_plan::datacenter::{refusal, validate};
use serde_json::{Value, json};

use crate::{compare::merge, datacenter_with};

fn faults_of(change: Value) -> Vec<String> {
    let mut object = json!({
        "metadata": {"name": "orders", "namespace": "shop", "uid": "the-uid"},
        "spec": {
            "clusterName": "orders",
            "scyllaDB": {"image": "scylladb/scylla:2026.2.4"},
            "racks": [{"name": "a", "nodes": 3, "scyllaDB": {"storage": {"capacity": "1Gi"}}}],
        },
    });
    merge(&mut object, &change);
    let object: ScyllaDBDatacenter = serde_json::from_value(object).unwrap();
    validate(&object).err().unwrap_or_default().into_iter().map(|fault| fault.field).collect()
}

fn rack(name: &str, more: Value) -> Value {
    let mut rack = json!({"name": name, "nodes": 1, "scyllaDB": {"storage": {"capacity": "1Gi"}}});
    merge(&mut rack, &more);
    rack
}

#[test]
fn every_fault_names_its_field() {
    for (change, fields) in [
        (json!({}), &[] as &[&str]),
        (json!({"metadata": {"uid": null}}), &["metadata.uid"]),
        (json!({"metadata": {"name": "a.b"}}), &["metadata.name"]),
        (json!({"spec": {"clusterName": ""}}), &["spec.clusterName"]),
        (json!({"spec": {"datacenterName": "US"}}), &["spec.datacenterName"]),
        (json!({"spec": {"scyllaDB": {"image": "scylladb/scylla"}}}), &["spec.scyllaDB.image"]),
        (json!({"spec": {"scyllaDB": {"image": "scylla:-1"}}}), &["spec.scyllaDB.image"]),
        (json!({"spec": {"scyllaDBManagerAgent": {}}}), &["spec.scyllaDBManagerAgent.image"]),
        (json!({"spec": {"racks": [rack("a", json!({})), rack("a", json!({}))]}}), &["spec.racks[1].name"]),
        (json!({"spec": {"racks": [rack("", json!({}))]}}), &["spec.racks[0].name"]),
        (json!({"spec": {"racks": [rack("A", json!({}))]}}), &["spec.racks[0].name"]),
        (json!({"spec": {"racks": [rack(&"a".repeat(50), json!({}))]}}), &["spec.racks[0].name"]),
        (json!({"spec": {"racks": [rack("a", json!({"nodes": -1}))]}}), &["spec.racks[0].nodes"]),
        (json!({"spec": {"racks": [rack("a", json!({"nodes": 2_000_000_000}))]}}), &["spec.racks[0].nodes"]),
        (
            json!({"spec": {"racks": [rack("a", json!({"scyllaDB": {"storage": {"capacity": "1 GB"}}}))]}}),
            &["spec.racks[0].scyllaDB.storage.capacity"],
        ),
        (
            json!({"spec": {"racks": [rack("a", json!({"scyllaDB": {"resources": {"limits": {"cpu": "two"}}}}))]}}),
            &["spec.racks[0].scyllaDB.resources.limits[cpu]"],
        ),
        (json!({"spec": {"metadata": {"labels": {"a b": "c"}}}}), &["spec.metadata.labels"]),
        (json!({"spec": {"metadata": {"annotations": {"/": "c"}}}}), &["spec.metadata.annotations"]),
        (
            json!({"spec": {"racks": [rack("a", json!({"scyllaDB": {"customConfigMapRef": "A"}}))]}}),
            &["spec.racks[0].scyllaDB.customConfigMapRef"],
        ),
        (json!({"spec": {"dnsPolicy": "Sometimes"}}), &["spec.dnsPolicy"]),
        (
            json!({"spec": {"exposeOptions": {"broadcastOptions": {"nodes": {"podIP": {"source": "Spec"}}}}}}),
            &["spec.exposeOptions.broadcastOptions.nodes.podIP.source"],
        ),
        (
            json!({"spec": {"exposeOptions": {"broadcastOptions": {"clients": {"podIP": {"source": "Spec"}}}}}}),
            &["spec.exposeOptions.broadcastOptions.clients.podIP.source"],
        ),
        (json!({"spec": {"exposeOptions": {"broadcastOptions": {"clients": {"podIP": {"source": "Status"}}}}}}), &[]),
        (json!({"spec": {"ipFamilies": ["IPv4", "IPv5"]}}), &["spec.ipFamilies[1]"]),
        (
            json!({"spec": {"scyllaDB": {"alternatorOptions": {"writeIsolation": "none"}}}}),
            &["spec.scyllaDB.alternatorOptions.writeIsolation"],
        ),
        (
            json!({"spec": {"scyllaDB": {"alternatorOptions": {"servingCertificate": {"type": "UserManaged"}}}}}),
            &["spec.scyllaDB.alternatorOptions.servingCertificate.userManagedOptions.secretName"],
        ),
        (
            json!({"metadata": {"annotations": {"internal.scylla-operator.scylladb.com/sysctls": "fs.aio-max-nr=1"}}}),
            &["metadata.annotations[internal.scylla-operator.scylladb.com/sysctls]"],
        ),
    ] {
        assert_eq!(faults_of(change.clone()), fields, "{change}");
    }
}

#[test]
fn empty_object_has_faults_and_does_not_panic() {
    let faults = validate(&ScyllaDBDatacenter::default()).err().unwrap();
    let fields: Vec<&str> = faults.iter().map(|fault| fault.field.as_str()).collect();
    assert_eq!(
        fields,
        ["metadata.name", "metadata.namespace", "metadata.uid", "spec.clusterName", "spec.scyllaDB.image"]
    );
    assert!(faults.iter().all(|fault| fault.message.contains(':')), "each says what to do: {faults:?}");
    let refusal = refusal(&faults);
    assert_eq!(refusal.message.lines().next(), Some("metadata.name: the value is required: set it"));
}

#[test]
fn ignored_down_nodes_are_read_and_not_propagated_to_pods() {
    let object = json!({
        "metadata": {
            "name": "orders", "namespace": "shop", "uid": "the-uid",
            "annotations": {IGNORED_DOWN_NODES: "first, second", ADOPT: "orders", "team": "blue"},
        },
        "spec": {
            "clusterName": "orders",
            "scyllaDB": {"image": "scylladb/scylla:2026.2.4"},
            "racks": [{"name": "a", "nodes": 3, "scyllaDB": {"storage": {"capacity": "1Gi"}}}],
        },
    });
    let datacenter = validate(&serde_json::from_value(object).unwrap()).unwrap();
    assert_eq!(datacenter.ignored_down_nodes, ["first".to_owned(), "second".to_owned()].into());
    assert_eq!(datacenter.annotations.into_keys().collect::<Vec<_>>(), ["team"]);
}

#[test]
fn rack_overrides_the_rack_template() {
    let datacenter = datacenter_with(
        &[("a", 1)],
        json!({
            "rackTemplate": {
                "nodes": 5,
                "topologyLabelSelector": {"region": "eu", "zone": "any"},
                "placement": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["x"]}]}, {},
                ]}}},
                "scyllaDB": {
                    "storage": {"capacity": "5Gi", "storageClassName": "fast"},
                    "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}},
                    "volumes": [{"name": "of-template"}],
                },
            },
            "racks": [rack("a", json!({
                "topologyLabelSelector": {"zone": "eu-1"},
                "scyllaDB": {"resources": {"limits": {"cpu": "2"}}, "volumes": [{"name": "of-rack"}]},
            }))],
        }),
    );
    let rack = &datacenter.racks[0];
    assert_eq!(rack.nodes, 1);
    assert_eq!((rack.storage.capacity.0.as_str(), rack.storage.class.as_deref()), ("1Gi", Some("fast")));
    assert_eq!(json!(rack.resources), json!({"limits": {"cpu": "2", "memory": "1Gi"}}));
    let volumes: Vec<&str> = rack.volumes.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(volumes, ["of-template", "of-rack"]);
    let requirements = json!([
        {"key": "region", "operator": "In", "values": ["eu"]},
        {"key": "zone", "operator": "In", "values": ["eu-1"]},
    ]);
    let affinity = json!(rack.placement.node_affinity);
    let terms = &affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    assert_eq!(terms[0]["matchExpressions"], requirements);
    assert_eq!(terms[1]["matchExpressions"], requirements);
    assert_eq!(terms[0]["matchFields"][0]["values"], json!(["x"]));
}
