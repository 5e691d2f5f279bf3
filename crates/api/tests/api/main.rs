//! Tests of the API: the definitions are valid, objects are unchanged by a round trip, and names are those of the
//! peers.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod compat;
mod definitions;
mod roundtrip;

use std::{
    path::{Path, PathBuf},
    sync::LazyLock,
};

use messina_api::crd;
use serde_json::{Map, Value};

/// Facts and tools that tests use if they exist.
fn shared() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared")
}

/// A kind and its schema.
struct Definition {
    kind: String,
    api_version: String,
    namespaced: bool,
    schema: Value,
}

/// Every version of every kind. Generated once, because the largest schema has thousands of nodes.
static DEFINITIONS: LazyLock<Vec<Definition>> = LazyLock::new(|| {
    let of = |definition: Value| {
        let spec = &definition["spec"];
        let definitions = spec["versions"].as_array().unwrap().iter().map(|version| Definition {
            kind: spec["names"]["kind"].as_str().unwrap().to_owned(),
            api_version: format!("{}/{}", spec["group"].as_str().unwrap(), version["name"].as_str().unwrap()),
            namespaced: spec["scope"] == "Namespaced",
            schema: version["schema"]["openAPIV3Schema"].clone(),
        });
        definitions.collect::<Vec<_>>()
    };
    crd::all().into_iter().flat_map(|definition| of(serde_json::to_value(definition).unwrap())).collect()
});

/// Returns the properties of a schema; none if it is not that of an object.
fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema["properties"].as_object().into_iter().flatten()
}

/// Returns the schema of the elements of a list, or of the values of a map.
fn element(schema: &Value) -> Option<&Value> {
    schema.get("items").or(schema.get("additionalProperties"))
}

fn is_required(schema: &Value, property: &str) -> bool {
    schema["required"].as_array().is_some_and(|required| required.iter().any(|name| name == property))
}

/// Calls `visit` with every node of a schema and its path; `[]` stands for an element of a list or a map.
fn visit_nodes<'a>(schema: &'a Value, path: &str, visit: &mut impl FnMut(&str, &'a Map<String, Value>)) {
    visit(path, schema.as_object().unwrap_or_else(|| panic!("{path}: {schema} is not a schema")));
    for (name, property) in properties(schema) {
        visit_nodes(property, &format!("{path}.{name}"), visit);
    }
    if let Some(element) = element(schema) {
        visit_nodes(element, &format!("{path}[]"), visit);
    }
}

/// Returns the first faults, one on each line.
fn first(faults: &[String]) -> String {
    faults[..faults.len().min(20)].join("\n  ")
}
