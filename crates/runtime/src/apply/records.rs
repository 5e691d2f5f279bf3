//! What is recorded of who owns which field of an object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use kube::api::ObjectMeta;
use serde_json::{Value, json};

/// The change that makes one record of ours, of the applied sort, out of all. Records are found by their places, so it
/// tests that they are still there.
pub(super) fn applied_records(
    uid: Option<&str>,
    of_version: Option<&str>,
    ours: &[(usize, &ManagedFieldsEntry)],
) -> Value {
    let place = |index: usize, member: &str| format!("/metadata/managedFields/{index}{member}");
    let mut patch = vec![json!({"op": "test", "path": "/metadata/uid", "value": uid})];
    patch
        .extend(of_version.map(|version| json!({"op": "test", "path": "/metadata/resourceVersion", "value": version})));
    let mut fields = Value::Null;
    for (index, entry) in ours {
        patch.push(json!({"op": "test", "path": place(*index, "/manager"), "value": entry.manager}));
        patch.push(json!({"op": "test", "path": place(*index, "/operation"), "value": entry.operation}));
        merge(&mut fields, &self::fields(entry).unwrap_or_default());
    }
    if let Some(((first, _), others)) = ours.split_first() {
        patch.push(json!({"op": "replace", "path": place(*first, "/operation"), "value": "Apply"}));
        patch.push(json!({"op": "replace", "path": place(*first, "/fieldsV1"), "value": fields}));
        // From the last to the first, so that places stay what they are.
        patch.extend(others.iter().rev().map(|(index, _)| json!({"op": "remove", "path": place(*index, "")})));
    }
    Value::Array(patch)
}

/// Makes what is recorded of who owns which field small: it is most of a small object. What is recorded for others goes,
/// because nobody reads it, and what is recorded for us becomes a text, because a tree takes many times the room. Places stay
/// the same.
pub fn compact_records(metadata: &mut ObjectMeta, field_manager: &str) {
    for entry in metadata.managed_fields.iter_mut().flatten() {
        entry.time = None;
        let is_ours = entry.manager.as_deref() == Some(field_manager) && entry.subresource.is_none();
        entry.fields_v1 = fields(entry).filter(|_| is_ours).map(|fields| FieldsV1(Value::String(fields.to_string())));
    }
}

/// The fields that are recorded, whether as a text or not.
pub(super) fn fields(entry: &ManagedFieldsEntry) -> Option<Value> {
    match &entry.fields_v1.as_ref()?.0 {
        Value::String(text) => serde_json::from_str(text).ok(),
        fields => Some(fields.clone()),
    }
}

/// Adds what is recorded in one place to what is recorded in another.
fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (into @ Value::Null, from) => *into = from.clone(),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_kept_small_and_stay_readable() {
        let recorded = json!({"f:metadata": {"f:labels": {"f:x": {}}}});
        let records = json!([
            {"manager": "other", "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {}}},
            {"manager": "us", "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": recorded},
        ]);
        let mut metadata: ObjectMeta = serde_json::from_value(json!({"managedFields": records})).unwrap_or_default();
        for _ in 0..2 {
            compact_records(&mut metadata, "us");
            let entries: Vec<_> = metadata.managed_fields.iter().flatten().collect();
            assert_eq!(entries.iter().map(|entry| fields(entry)).collect::<Vec<_>>(), [None, Some(recorded.clone())]);
            assert!(entries.iter().all(|entry| entry.fields_v1.as_ref().is_none_or(|fields| fields.0.is_string())));
        }
    }
}
