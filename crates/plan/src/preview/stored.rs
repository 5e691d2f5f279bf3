//! Admission of an object as by the API server: validation against the schema of its CustomResourceDefinition, and
//! defaults.
//!
//! Types, required fields, enumerations and unknown fields are validated. CEL rules are not: what they forbid is found
//! by `validate`, or by the API server.

use std::sync::LazyLock;

use messina_api::crd;
use serde_json::{Map, Value};

use crate::datacenter::InvalidField;

/// The schema of a ScyllaDBDatacenter.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let definitions = crd::all();
    let definition = definitions.iter().find(|definition| definition.spec.names.kind == "ScyllaDBDatacenter");
    let version = definition.and_then(|definition| definition.spec.versions.first());
    let schema = version.and_then(|version| version.schema.as_ref()?.open_api_v3_schema.as_ref());
    schema.and_then(|schema| serde_json::to_value(schema).ok()).unwrap_or_default()
});

/// Returns the object as the API server would store it, or all its invalid fields.
pub(super) fn as_stored(mut object: Value) -> Result<Value, Vec<InvalidField>> {
    let mut invalid = Vec::new();
    admit("", &SCHEMA, &mut object, &mut invalid);
    if invalid.is_empty() { Ok(object) } else { Err(invalid) }
}

fn admit(path: &str, schema: &Value, value: &mut Value, invalid: &mut Vec<InvalidField>) {
    if let Some(message) = unlike(schema, value) {
        return invalid.push(InvalidField { field: path.to_owned(), message });
    }
    match value {
        Value::Object(fields) => admit_fields(path, schema, fields, invalid),
        Value::Array(elements) => {
            for (position, element) in elements.iter_mut().enumerate() {
                admit(&format!("{path}[{position}]"), &schema["items"], element, invalid);
            }
        }
        _ => {}
    }
}

fn admit_fields(path: &str, schema: &Value, fields: &mut Map<String, Value>, invalid: &mut Vec<InvalidField>) {
    let below = |field: &str| if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") };
    let Some(properties) = schema["properties"].as_object() else {
        for (field, value) in fields {
            admit(&below(field), &schema["additionalProperties"], value, invalid);
        }
        return;
    };
    // A null is the same as an omitted field, except where the field is nullable.
    fields.retain(|field, value| !value.is_null() || properties.get(field).is_none_or(|own| own["nullable"] == true));
    for (field, own) in properties {
        if !own["default"].is_null() {
            fields.entry(field.clone()).or_insert_with(|| own["default"].clone());
        }
    }
    for field in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !fields.contains_key(field) {
            invalid.push(InvalidField { field: below(field), message: "the value is required: set it".into() });
        }
    }
    for (field, value) in fields {
        match properties.get(field) {
            Some(own) => admit(&below(field), own, value, invalid),
            None if schema["x-kubernetes-preserve-unknown-fields"] == true => {}
            None => invalid.push(InvalidField { field: below(field), message: unknown(field, properties) }),
        }
    }
}

fn unknown(field: &str, properties: &Map<String, Value>) -> String {
    let meant = properties.keys().find(|known| known.eq_ignore_ascii_case(field));
    match meant {
        Some(meant) => format!("unknown field: use {meant}"),
        None => "unknown field: remove it, or correct its name".into(),
    }
}

/// Returns why a value does not match its schema.
fn unlike(schema: &Value, value: &Value) -> Option<String> {
    if schema["x-kubernetes-int-or-string"] == true || schema.is_null() {
        return None;
    }
    let (is, fits) = match (value, schema["type"].as_str()?) {
        (Value::Null, _) => ("null", schema["nullable"] == true),
        (Value::Bool(_), wanted) => ("a boolean", wanted == "boolean"),
        (Value::Number(number), wanted) => {
            ("a number", wanted == "number" || (wanted == "integer" && (number.is_i64() || number.is_u64())))
        }
        (Value::String(_), wanted) => ("a string", wanted == "string"),
        (Value::Array(_), wanted) => ("a list", wanted == "array"),
        (Value::Object(_), wanted) => ("a mapping", wanted == "object"),
    };
    if !fits {
        let wanted = match schema["type"].as_str()? {
            "boolean" => "a boolean",
            "integer" => "an integer",
            "number" => "a number",
            "string" => "a string",
            "array" => "a list",
            _ => "a mapping",
        };
        return Some(format!("{value} is {is}, and must be {wanted}"));
    }
    let known: Vec<&Value> = schema["enum"].as_array()?.iter().collect();
    let words = known.iter().filter_map(|word| word.as_str()).collect::<Vec<_>>().join(", ");
    (!known.contains(&value)).then(|| format!("{value} is not supported: use one of {words}"))
}
