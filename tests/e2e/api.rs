//! The custom resources on the real API server.

mod defaults;
mod definitions;
mod examples;
mod numbers;
mod rules;
mod schema;
mod writing;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

/// A ScyllaCluster with this spec, after which other fields of the object may follow.
fn cluster(name: &str, spec: &str) -> String {
    format!("{{apiVersion: scylla.scylladb.com/v1, kind: ScyllaCluster, metadata: {{name: {name}}}, spec: {spec}}}")
}

/// A ScyllaDBDatacenter with this spec.
fn datacenter(name: &str, spec: &str) -> String {
    other("ScyllaDBDatacenter", name, &format!("spec: {spec}"))
}

/// An EtcdOperatorTask with this spec, after which other fields of the object may follow; as after the name, of its
/// metadata.
fn task(name: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: druid.gardener.cloud/v1alpha1, kind: EtcdOperatorTask, metadata: {{name: {name}}}, spec: {spec}}}"
    )
}

/// An object of another kind of ours, with these fields beside its name.
fn other(kind: &str, name: &str, fields: &str) -> String {
    format!("{{apiVersion: scylla.scylladb.com/v1alpha1, kind: {kind}, metadata: {{name: {name}}}, {fields}}}")
}

/// Shows every part of a definition's schema with the path of the field that it describes: `spec.racks[].name`.
fn each_field(definition: &CustomResourceDefinition, mut look: impl FnMut(&str, &Value)) {
    for version in &definition.spec.versions {
        let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
        let schema = schema.expect("every version has a schema");
        walk("", &serde_json::to_value(schema).unwrap(), &mut look);
    }
}

fn walk(path: &str, schema: &Value, look: &mut impl FnMut(&str, &Value)) {
    look(path, schema);
    for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
        let dot = if path.is_empty() { "" } else { "." };
        walk(&format!("{path}{dot}{field}"), schema, look);
    }
    for (key, suffix) in [("items", "[]"), ("additionalProperties", "{}")] {
        if schema[key].is_object() {
            walk(&format!("{path}{suffix}"), &schema[key], look);
        }
    }
}
