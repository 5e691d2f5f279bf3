//! `managedFields`: which field manager owns which field of an object.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use kube::api::ObjectMeta;
use serde_json::{Value, json};

/// The operator that managed the objects before, and whose fields are taken over.
#[derive(Clone, Copy, Debug)]
pub struct Predecessor {
    /// Whether a field manager belongs to it.
    pub is_manager: fn(&str) -> bool,
    /// Labels of its objects that hold state: they are kept, and have no field manager afterwards.
    pub state_labels: &'static [&'static str],
}

/// Returns the JSON patch that merges our entries and those of a predecessor into one Apply entry of ours. The patch
/// addresses entries by index, so it tests that they have not moved.
pub(super) fn applied_records(
    uid: Option<&str>,
    of_version: Option<&str>,
    field_manager: &str,
    state_labels: &[&str],
    records: &[(usize, &ManagedFieldsEntry)],
) -> Value {
    let place = |index: usize, member: &str| format!("/metadata/managedFields/{index}{member}");
    let mut patch = vec![json!({"op": "test", "path": "/metadata/uid", "value": uid})];
    patch
        .extend(of_version.map(|version| json!({"op": "test", "path": "/metadata/resourceVersion", "value": version})));
    let mut fields = Value::Null;
    for (index, entry) in records {
        patch.push(json!({"op": "test", "path": place(*index, "/manager"), "value": entry.manager}));
        patch.push(json!({"op": "test", "path": place(*index, "/operation"), "value": entry.operation}));
        let mut own = self::fields(entry).unwrap_or_default();
        if entry.manager.as_deref() != Some(field_manager) {
            forget_labels(&mut own, state_labels);
        }
        merge(&mut fields, &own);
    }
    if let Some(((first, _), others)) = records.split_first() {
        patch.push(json!({"op": "replace", "path": place(*first, "/manager"), "value": field_manager}));
        patch.push(json!({"op": "replace", "path": place(*first, "/operation"), "value": "Apply"}));
        patch.push(json!({"op": "replace", "path": place(*first, "/fieldsV1"), "value": fields}));
        // From the last to the first, so that indexes stay valid.
        patch.extend(others.iter().rev().map(|(index, _)| json!({"op": "remove", "path": place(*index, "")})));
    }
    Value::Array(patch)
}

/// Removes labels from an entry's fields.
fn forget_labels(fields: &mut Value, labels: &[&str]) {
    if let Some(recorded) = fields.pointer_mut("/f:metadata/f:labels").and_then(Value::as_object_mut) {
        recorded.retain(|name, _| !labels.iter().any(|label| name.strip_prefix("f:") == Some(label)));
    }
}

/// Compacts `managedFields`, which are most of a small object. The fields of other managers are dropped, because the
/// operator does not read them. Those of our managers and of a predecessor become a string, because a tree takes many
/// times the memory. Indexes stay the same, and the time of the predecessor's last write is kept.
pub(crate) fn compact_records(
    metadata: &mut ObjectMeta,
    field_managers: &BTreeSet<&'static str>,
    predecessor: Option<Predecessor>,
) {
    for entry in metadata.managed_fields.iter_mut().flatten() {
        let manager = entry.manager.as_deref().filter(|_| entry.subresource.is_none());
        let is_former = manager.is_some_and(|manager| predecessor.is_some_and(|former| (former.is_manager)(manager)));
        let is_read = is_former || manager.is_some_and(|manager| field_managers.contains(manager));
        entry.time = entry.time.take().filter(|_| is_former);
        entry.fields_v1 = fields(entry).filter(|_| is_read).map(|fields| FieldsV1(Value::String(fields.to_string())));
    }
}

/// Returns the fields of an entry, compacted or not.
pub(super) fn fields(entry: &ManagedFieldsEntry) -> Option<Value> {
    match &entry.fields_v1.as_ref()?.0 {
        Value::String(text) => serde_json::from_str(text).ok(),
        fields => Some(fields.clone()),
    }
}

/// Merges the fields of one entry into those of another.
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
    fn compacted_records_stay_readable() {
        let recorded = json!({"f:metadata": {"f:labels": {"f:x": {}}}});
        let records = json!([
            {"manager": "other", "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {}}},
            {"manager": "us", "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": recorded},
        ]);
        let mut metadata: ObjectMeta = serde_json::from_value(json!({"managedFields": records})).unwrap_or_default();
        for _ in 0..2 {
            compact_records(&mut metadata, &["us"].into(), None);
            let entries: Vec<_> = metadata.managed_fields.iter().flatten().collect();
            assert_eq!(entries.iter().map(|entry| fields(entry)).collect::<Vec<_>>(), [None, Some(recorded.clone())]);
            assert!(entries.iter().all(|entry| entry.fields_v1.as_ref().is_none_or(|fields| fields.0.is_string())));
        }
    }

    const FORMER: Predecessor = Predecessor { is_manager: |manager| manager == "former", state_labels: &["state"] };

    #[test]
    fn compaction_keeps_records_of_a_predecessor_with_their_time() {
        let time = "2026-01-02T03:04:05Z";
        let records = json!([
            {"manager": "former", "operation": "Update", "time": time, "fieldsV1": {"f:data": {}}},
            {"manager": "former", "operation": "Update", "time": time, "fieldsV1": {"f:status": {}}, "subresource": "status"},
        ]);
        let mut metadata: ObjectMeta = serde_json::from_value(json!({"managedFields": records})).unwrap_or_default();
        compact_records(&mut metadata, &["us"].into(), Some(FORMER));
        let entries: Vec<_> = metadata.managed_fields.iter().flatten().collect();
        assert_eq!(entries.iter().map(|entry| fields(entry)).collect::<Vec<_>>(), [Some(json!({"f:data": {}})), None]);
        assert_eq!(entries.iter().map(|entry| entry.time.is_some()).collect::<Vec<_>>(), [true, false]);
    }

    /// Server-side apply then removes what the predecessor wrote and we do not apply; its state labels stay, without a
    /// manager.
    #[test]
    fn records_of_a_predecessor_become_ours_except_its_state_labels() {
        let records = json!([
            {"manager": "user", "operation": "Update", "fieldsV1": {"f:metadata": {"f:annotations": {"f:note": {}}}}},
            {"manager": "former", "operation": "Update", "fieldsV1": {
                "f:metadata": {"f:labels": {"f:state": {}, "f:app": {}}}, "f:spec": {"f:hook": {}},
            }},
            {"manager": "us", "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
        ]);
        let metadata: ObjectMeta = serde_json::from_value(json!({"managedFields": records})).unwrap_or_default();
        let entries: Vec<(usize, &ManagedFieldsEntry)> =
            metadata.managed_fields.iter().flatten().enumerate().skip(1).collect();
        let patch = applied_records(Some("u"), Some("7"), "us", FORMER.state_labels, &entries);
        let change = |operation: &str, path: &str| {
            let found =
                patch.as_array().into_iter().flatten().find(|one| one["op"] == operation && one["path"] == path);
            found.map(|one| one["value"].clone())
        };
        assert_eq!(change("test", "/metadata/resourceVersion"), Some(json!("7")));
        assert_eq!(change("replace", "/metadata/managedFields/1/manager"), Some(json!("us")));
        assert_eq!(change("replace", "/metadata/managedFields/1/operation"), Some(json!("Apply")));
        let merged = json!({"f:metadata": {"f:labels": {"f:app": {}}}, "f:spec": {"f:hook": {}, "f:replicas": {}}});
        assert_eq!(change("replace", "/metadata/managedFields/1/fieldsV1"), Some(merged));
        assert_eq!(change("remove", "/metadata/managedFields/2"), Some(Value::Null));
        assert_eq!(change("test", "/metadata/managedFields/0/manager"), None, "the user's record is not changed");
    }
}
