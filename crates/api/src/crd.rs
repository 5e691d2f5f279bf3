//! The CustomResourceDefinitions of every kind that Messina serves.

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceValidation, ValidationRule,
};
use kube::CustomResourceExt;
use schemars::JsonSchema;
use serde_json::{Value, json};

use crate::{druid, immutable, schema, scylla::v1, scylla::v1alpha1};

/// Returns all definitions, in the order of their installation.
pub fn all() -> Vec<CustomResourceDefinition> {
    served().into_iter().map(|served| served.definition).collect()
}

/// Returns the types of Kubernetes that the definitions embed, by their names in the API server.
pub fn embedded_types() -> BTreeSet<String> {
    served().into_iter().flat_map(|served| served.embeds).collect()
}

/// A definition, and the types of Kubernetes that it embeds.
struct Served {
    definition: CustomResourceDefinition,
    embeds: BTreeSet<String>,
}

fn served() -> Vec<Served> {
    vec![
        definition::<v1::ScyllaCluster, v1::ScyllaClusterSpec, v1::ScyllaClusterStatus>(
            "A ScyllaDB cluster of one datacenter.",
        ),
        definition::<v1alpha1::ScyllaDBCluster, v1alpha1::ScyllaDBClusterSpec, v1alpha1::ScyllaDBClusterStatus>(
            "A ScyllaDB cluster of one or more datacenters, each in a Kubernetes cluster of its own.",
        ),
        with_rules(
            definition::<
                v1alpha1::ScyllaDBDatacenter,
                v1alpha1::ScyllaDBDatacenterSpec,
                v1alpha1::ScyllaDBDatacenterStatus,
            >("A datacenter of ScyllaDB: racks of nodes in this Kubernetes cluster."),
            immutable::datacenter_rules(),
        ),
        definition::<
            v1alpha1::ScyllaDBManagerClusterRegistration,
            v1alpha1::ScyllaDBManagerClusterRegistrationSpec,
            v1alpha1::ScyllaDBManagerClusterRegistrationStatus,
        >("Registration of a cluster with ScyllaDB Manager. The operator creates it; do not edit it."),
        definition::<
            v1alpha1::ScyllaDBManagerTask,
            v1alpha1::ScyllaDBManagerTaskSpec,
            v1alpha1::ScyllaDBManagerTaskStatus,
        >("A repair or a backup that ScyllaDB Manager runs on a cluster."),
        flat_definition::<v1alpha1::ScyllaDBStatusReport, v1alpha1::StatusReport>(),
        definition::<
            v1alpha1::RemoteKubernetesCluster,
            v1alpha1::RemoteKubernetesClusterSpec,
            v1alpha1::RemoteKubernetesClusterStatus,
        >("Another Kubernetes cluster, in which the operator may run datacenters."),
        flat_definition::<v1alpha1::RemoteOwner, v1alpha1::RemoteOwnership>(),
        requiring_spec(definition::<
            druid::v1alpha1::EtcdOperatorTask,
            druid::v1alpha1::EtcdOperatorTaskSpec,
            druid::v1alpha1::EtcdOperatorTaskStatus,
        >("An out-of-band operation on an etcd cluster, which runs once.")),
    ]
}

/// Returns the name of a definition's file in `deploy/crds/`.
pub fn file_name(definition: &CustomResourceDefinition) -> String {
    format!("{}_{}.yaml", definition.spec.group, definition.spec.names.plural)
}

/// Returns a definition as YAML.
pub fn yaml(definition: &CustomResourceDefinition) -> Result<String, serde_saphyr::ser_error::Error> {
    serde_saphyr::to_string(definition)
}

/// Returns the definition of a kind with `spec` and `status`.
fn definition<Kind: CustomResourceExt, Spec: JsonSchema, Status: JsonSchema>(description: &str) -> Served {
    let (spec, embeds_in_spec) = schema::structural::<Spec>();
    let (status, embeds_in_status) = schema::structural::<Status>();
    Served {
        definition: with_schema::<Kind>(json!({
            "description": description,
            "type": "object",
            "properties": {"spec": spec, "status": status},
        })),
        embeds: embeds_in_spec.into_iter().chain(embeds_in_status).collect(),
    }
}

/// A kind whose fields stand beside `metadata`.
fn flat_definition<Kind: CustomResourceExt, Fields: JsonSchema>() -> Served {
    let (schema, embeds) = schema::structural::<Fields>();
    Served { definition: with_schema::<Kind>(schema), embeds }
}

/// For a spec that may never change: one that is added later would be a change too.
fn requiring_spec(mut served: Served) -> Served {
    for version in &mut served.definition.spec.versions {
        if let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            schema.required = Some(vec!["spec".into()]);
        }
    }
    served
}

fn with_rules(mut served: Served, rules: Vec<ValidationRule>) -> Served {
    for version in &mut served.definition.spec.versions {
        if let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            schema.x_kubernetes_validations = Some(rules.clone());
        }
    }
    served
}

fn with_schema<Kind: CustomResourceExt>(mut schema: Value) -> CustomResourceDefinition {
    let mut definition = Kind::crd();
    for (field, description) in [("apiVersion", "Group and version of the API."), ("kind", "The kind of this object.")]
    {
        schema["properties"][field] = json!({"type": "string", "description": description});
    }
    schema["properties"]["metadata"] = json!({"type": "object"});
    // schemars and this crate generate JSON schemas only, and every test of a CRD runs this.
    #[expect(clippy::expect_used)]
    let schema: CustomResourceValidation =
        serde_json::from_value(json!({"openAPIV3Schema": schema})).expect("a JSON schema is a JSONSchemaProps");
    for version in &mut definition.spec.versions {
        version.schema = Some(schema.clone());
    }
    definition
}
