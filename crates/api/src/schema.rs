//! Generates the OpenAPI schema of a definition from its Rust types.
//!
//! schemars generates a JSON schema with one definition for each type from the Rust types and their documentation. This
//! module converts it to a structural schema: it adds the facts that the API server publishes about Kubernetes' own
//! types ([`FACTS`]), resolves references, and replaces keywords that the API server does not accept.

use std::{collections::BTreeSet, sync::LazyLock};

use schemars::{JsonSchema, Schema, generate::SchemaSettings};
use serde_json::{Map, Value, json};

/// List types, map types and defaults of the embedded Kubernetes types, by definition and field. `testbed schema-facts`
/// generates them from the OpenAPI document of the API server.
static FACTS: LazyLock<Map<String, Value>> = LazyLock::new(|| {
    // The file is a part of this crate, and every test of a CRD reads it.
    #[expect(clippy::expect_used)]
    serde_json::from_str(include_str!("kubernetes-facts.json")).expect("kubernetes-facts.json is a JSON object")
});

/// Pattern of a quantity: a number with a decimal or binary suffix, or an exponent.
const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// Returns the structural schema of `T` and the Kubernetes types that it embeds.
pub(crate) fn structural<T: JsonSchema>() -> (Value, BTreeSet<String>) {
    let settings = SchemaSettings::openapi3().with(|settings| {
        settings.meta_schema = None;
        settings.transforms.clear();
    });
    let mut root = settings.into_generator().into_root_schema_for::<T>().to_value();
    let definitions = match root.pointer_mut("/components/schemas").map(Value::take) {
        Some(Value::Object(mut definitions)) => {
            definitions.iter_mut().for_each(|(name, definition)| add_facts(name, definition));
            definitions
        }
        _ => Map::new(),
    };
    if let Value::Object(root) = &mut root {
        root.remove("components");
        root.remove("title");
    }
    resolve(&mut root, &definitions);
    (root, definitions.into_iter().map(|(name, _)| name).filter(|name| is_kubernetes(name)).collect())
}

fn is_kubernetes(definition: &str) -> bool {
    definition.starts_with("io.k8s.")
}

/// Adds the facts of a Kubernetes type that its Rust type does not have.
fn add_facts(name: &str, definition: &mut Value) {
    let Value::Object(definition) = definition else { return };
    if is_kubernetes(name) {
        // The kinds embed thousands of fields of Kubernetes: with their descriptions, the definitions would exceed the
        // size limit of etcd. `kubectl explain pod.spec` has them.
        definition.remove("description");
    }
    match name {
        "io.k8s.apimachinery.pkg.api.resource.Quantity" => {
            definition.insert("anyOf".into(), json!([{"type": "integer"}, {"type": "string"}]));
            definition.insert("pattern".into(), QUANTITY.into());
        }
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString" => {
            definition.insert("anyOf".into(), json!([{"type": "integer"}, {"type": "string"}]));
        }
        // Each embeds a LocalObjectReference, which is an atomic map.
        "io.k8s.api.core.v1.ConfigMapVolumeSource"
        | "io.k8s.api.core.v1.ConfigMapProjection"
        | "io.k8s.api.core.v1.SecretProjection" => {
            definition.insert("x-kubernetes-map-type".into(), "atomic".into());
        }
        "io.k8s.apimachinery.pkg.apis.meta.v1.Condition" => {
            add_to_properties(
                definition,
                &json!({
                    "message": {"maxLength": 32768},
                    "observedGeneration": {"minimum": 0},
                    "reason": {"minLength": 1, "maxLength": 1024, "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
                    "status": {"enum": ["True", "False", "Unknown"]},
                    "type": {"maxLength": 316, "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"},
                }),
            );
        }
        _ => {}
    }
    if let Some(facts) = FACTS.get(name) {
        // The Rust types require more fields than the API server, because they have no optional strings.
        definition.remove("required");
        if let Some(Value::Object(own)) = facts.get("self") {
            definition.extend(own.clone());
        }
        if let Some(properties) = facts.get("properties") {
            add_to_properties(definition, properties);
        }
    }
}

fn add_to_properties(definition: &mut Map<String, Value>, facts: &Value) {
    let (Some(Value::Object(properties)), Value::Object(facts)) = (definition.get_mut("properties"), facts) else {
        return;
    };
    for (field, facts) in facts {
        if let (Some(Value::Object(property)), Value::Object(facts)) = (properties.get_mut(field), facts) {
            property.extend(facts.clone());
        }
    }
}

/// Resolves references and converts keywords, recursively.
fn resolve(schema: &mut Value, definitions: &Map<String, Value>) {
    let Value::Object(object) = schema else { return };
    let embedded = flatten(object, definitions);
    for key in ["properties", "additionalProperties", "items"] {
        match object.get_mut(key) {
            Some(Value::Object(properties)) if key == "properties" => {
                for property in properties.values_mut() {
                    resolve(property, definitions);
                }
            }
            Some(inner) => resolve(inner, definitions),
            None => {}
        }
    }
    if embedded && let Some(Value::Object(properties)) = object.get_mut("properties") {
        // Descriptions of fields are removed, too: see `add_facts`.
        for property in properties.values_mut() {
            if let Value::Object(property) = property {
                property.remove("description");
            }
        }
    }
}

/// Merges `$ref`, `allOf` and `anyOf` with null into the object. Returns whether the schema is one of Kubernetes' own
/// types.
fn flatten(object: &mut Map<String, Value>, definitions: &Map<String, Value>) -> bool {
    let mut embedded = false;
    loop {
        let part = if let Some(reference) = object.remove("$ref") {
            let name = reference.as_str().and_then(|r| r.rsplit('/').next()).unwrap_or_default().to_owned();
            embedded |= is_kubernetes(&name);
            definitions.get(&name).cloned()
        } else if let Some(Value::Array(mut parts)) = object.remove("allOf") {
            // schemars generates at most one part: the reference of a field with a description.
            parts.pop()
        } else if let Some(parts) = object.get_mut("anyOf").and_then(Value::as_array_mut)
            && parts.iter().any(is_null)
        {
            parts.retain(|part| !is_null(part));
            let only = parts.pop();
            object.remove("anyOf");
            only
        } else {
            break;
        };
        if let Some(Value::Object(part)) = part {
            for (key, value) in part {
                object.entry(key).or_insert(value);
            }
        }
    }
    // Structural schemas do not need these: all fields are optional.
    object.remove("nullable");
    if let Some(Value::Array(types)) = object.get_mut("type") {
        types.retain(|t| t != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            object.insert("type".into(), only);
        }
    }
    if let Some(Value::String(text)) = object.get_mut("description") {
        // `kubectl explain` wraps lines itself.
        *text = text.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")).collect::<Vec<_>>().join("\n\n");
    }
    if object.get("default") == Some(&Value::Null) {
        object.remove("default");
    }
    if object.get("additionalProperties") == Some(&Value::Bool(false)) {
        object.remove("additionalProperties");
    }
    embedded
}

fn is_null(schema: &Value) -> bool {
    schema.get("type").is_some_and(|t| t == "null")
        || schema.get("nullable") == Some(&Value::Bool(true)) && schema.get("enum") == Some(&json!([null]))
}

/// For an enum with unknown values: the API server accepts any string.
pub(crate) fn any_text(schema: &mut Schema) {
    let description = schema.get("description").cloned();
    *schema = schemars::json_schema!({"type": "string"});
    if let Some(description) = description {
        schema.insert("description".into(), description);
    }
}

/// For an enum with unknown values: the API server accepts the known values only.
pub(crate) fn known_text(schema: &mut Schema) {
    let values = known_values(schema.as_value());
    any_text(schema);
    schema.insert("enum".into(), values.into());
}

fn known_values(schema: &Value) -> Vec<Value> {
    let alternatives =
        ["anyOf", "oneOf"].iter().filter_map(|key| schema.get(key)).filter_map(Value::as_array).flatten();
    let own = schema.get("enum").and_then(Value::as_array).into_iter().flatten().chain(schema.get("const")).cloned();
    own.chain(alternatives.flat_map(known_values)).collect()
}
