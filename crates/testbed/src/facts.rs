//! Schema facts of Kubernetes' own types that their Rust types lack: how lists and maps are merged, which fields are
//! required, and their default values. The API server publishes them.

use kube::Client;
use serde_json::{Map, Value};

use crate::{
    error::{Doing, Error, Result, malformed},
    harness,
};

/// The OpenAPI documents of the types that Messina's kinds embed.
const DOCUMENTS: [&str; 2] = ["/openapi/v3/api/v1", "/openapi/v3/apis/apps/v1"];

/// The schema extensions that are kept.
const KEPT: [&str; 3] = ["x-kubernetes-list-map-keys", "x-kubernetes-list-type", "x-kubernetes-map-type"];

/// Reads the facts of all types that Messina's kinds embed from an API server.
pub async fn gather(client: &Client) -> Result<Value> {
    let mut schemas = Map::new();
    for path in DOCUMENTS {
        let document: Value = client.request(harness::get(path)?).await.doing(|| format!("reading {path}"))?;
        if let Some(Value::Object(found)) = document.pointer("/components/schemas") {
            schemas.extend(found.clone());
        }
    }
    let mut facts = Map::new();
    for name in messina_api::crd::embedded_types() {
        let schema =
            schemas.get(&name).ok_or_else(|| Error::refused(format!("the API server does not describe {name}")))?;
        facts.insert(name, of_type(schema));
    }
    serde_json::to_value(facts).map_err(malformed("writing the facts"))
}

fn of_type(schema: &Value) -> Value {
    let required = schema.get("required").cloned();
    let is_required = |field: &str| {
        required.as_ref().and_then(Value::as_array).is_some_and(|fields| fields.iter().any(|name| name == field))
    };
    let mut own = kept(schema);
    own.extend(required.clone().map(|fields| ("required".to_owned(), fields)));
    let mut properties = Map::new();
    for (field, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let mut facts = kept(property);
        // Required fields and whole objects have the zero value of their Go type in the document, which is not a
        // default.
        if let Some(default) =
            property.get("default").filter(|default| !is_required(field) && **default != Value::Object(Map::new()))
        {
            facts.insert("default".into(), default.clone());
        }
        if !facts.is_empty() {
            properties.insert(field.clone(), facts.into());
        }
    }
    let mut facts = Map::new();
    for (name, part) in [("self", own), ("properties", properties)] {
        if !part.is_empty() {
            facts.insert(name.into(), part.into());
        }
    }
    facts.into()
}

fn kept(schema: &Value) -> Map<String, Value> {
    KEPT.iter().filter_map(|key| Some(((*key).to_owned(), schema.get(key)?.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn merge_rules_and_real_defaults_are_kept_and_zero_values_are_not() {
        let described = json!({
            "description": "Something.",
            "required": ["name"],
            "x-kubernetes-map-type": "atomic",
            "properties": {
                "name": {"type": "string", "default": ""},
                "mode": {"type": "string", "default": "Shared"},
                "part": {"allOf": [{"$ref": "#/components/schemas/Part"}], "default": {}},
                "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["key"],
                    "x-kubernetes-patch-strategy": "merge"},
            },
        });
        let facts = json!({
            "self": {"required": ["name"], "x-kubernetes-map-type": "atomic"},
            "properties": {
                "mode": {"default": "Shared"},
                "list": {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["key"]},
            },
        });
        assert_eq!(of_type(&described), facts);
    }

    #[test]
    fn type_without_extensions_and_defaults_has_no_facts() {
        assert_eq!(of_type(&json!({"type": "object", "properties": {"a": {"type": "string"}}})), json!({}));
    }
}
