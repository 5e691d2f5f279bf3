//! Whether an object differs from the desired one, decided from the cache without a request.
//!
//! The API server records the manager of each field in `managedFields`. So an object matches if each desired field is
//! recorded as ours and has the desired value. A field that is no longer desired is noticed in another way: an
//! annotation has the hash of the last applied object.
//!
//! This decides only whether to write. What a change leads to, such as a restart of pods, is a decision of a plan, which
//! compares values regardless of who owns them.

use serde_json::{Map, Value};

/// Returns the first field of `live` that is missing or different, or no longer ours. `owned` are our fields in the
/// format of `managedFields` (FieldsV1).
pub(crate) fn difference(desired: &Value, live: &Value, owned: &[&Value]) -> Option<String> {
    desired.as_object().into_iter().flatten().find_map(|(name, value)| match name.as_str() {
        // These identify the object, and have no manager.
        "apiVersion" | "kind" => None,
        "metadata" => {
            let is_a_field = |name: &str| !matches!(name, "name" | "namespace" | "uid");
            let fields = value.as_object().into_iter().flatten().filter(|(name, _)| is_a_field(name));
            let fields: Map<String, Value> = fields.map(|(name, value)| (name.clone(), value.clone())).collect();
            in_member("metadata", &Value::Object(fields), Some(live), owned)
        }
        _ => in_member(name, value, Some(live), owned),
    })
}

/// Returns the difference in a member of an object.
fn in_member(name: &str, desired: &Value, live: Option<&Value>, owned: &[&Value]) -> Option<String> {
    let below: Vec<&Value> = owned.iter().filter_map(|fields| fields.get(format!("f:{name}"))).collect();
    in_value(desired, live.and_then(|live| live.get(name)), &below).map(|rest| format!(".{name}{rest}"))
}

/// Returns the difference in a value. `owned` are its managed fields; if there are none, it is not ours.
fn in_value(desired: &Value, live: Option<&Value>, owned: &[&Value]) -> Option<String> {
    if is_empty(desired) && (owned.is_empty() || live.is_none_or(is_empty)) {
        return None;
    }
    let Some(live) = live else { return Some(" is missing".into()) };
    if owned.is_empty() {
        return Some(" is no longer owned by this field manager".into());
    }
    match desired {
        Value::Object(members) if owned.iter().any(|fields| has_children(fields, "f:")) => {
            members.iter().find_map(|(name, value)| in_member(name, value, Some(live), owned))
        }
        Value::Array(items) if owned.iter().any(|fields| has_children(fields, "k:")) => {
            items.iter().find_map(|item| in_item(item, live, owned))
        }
        Value::Array(items) if owned.iter().any(|fields| has_children(fields, "v:")) => items.iter().find_map(|item| {
            let record = format!("v:{item}");
            let is_there = owned.iter().any(|fields| fields.get(&record).is_some())
                && live.as_array().is_some_and(|live| live.contains(item));
            (!is_there).then(|| format!(" lacks {item}"))
        }),
        // Atomic: defaults of the API server may be added, but no fields of other managers.
        _ => (!is_within(desired, live)).then(|| " is different".into()),
    }
}

/// Returns the difference in an item of an associative list (`x-kubernetes-list-type: map`).
fn in_item(desired: &Value, live: &Value, owned: &[&Value]) -> Option<String> {
    let records: Vec<(Value, &Value)> = owned
        .iter()
        .filter_map(|fields| fields.as_object())
        .flatten()
        .filter_map(|(name, record)| Some((serde_json::from_str(name.strip_prefix("k:")?).ok()?, record)))
        .filter(|(key, _)| is_within(key, desired))
        .collect();
    let Some((key, _)) = records.first() else {
        return Some(" has an item that this field manager does not own".into());
    };
    let live = live.as_array().into_iter().flatten().find(|item| is_within(key, item));
    let owned: Vec<&Value> = records.iter().map(|(_, record)| *record).collect();
    in_value(desired, live, &owned).map(|rest| format!("[{key}]{rest}"))
}

fn has_children(fields: &Value, prefix: &str) -> bool {
    fields.as_object().is_some_and(|fields| fields.keys().any(|name| name.starts_with(prefix)))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(members) => members.values().all(is_empty),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Whether everything in `part` is in `whole`. Lists have to be equally long.
fn is_within(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => part
            .iter()
            .all(|(name, value)| whole.get(name).map_or_else(|| is_empty(value), |whole| is_within(value, whole))),
        (Value::Array(part), Value::Array(whole)) => {
            part.len() == whole.len() && part.iter().zip(whole).all(|(part, whole)| is_within(part, whole))
        }
        (part, whole) => part == whole,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn differs(desired: &Value, live: &Value, owned: &[&Value]) -> bool {
        difference(desired, live, owned).is_some()
    }

    #[test]
    fn object_matches_if_each_desired_field_is_ours_and_has_the_desired_value() {
        let desired = json!({
            "apiVersion": "v1", "kind": "X", "metadata": {"name": "x", "labels": {"a": "1"}},
            "spec": {"n": 3, "ports": [{"port": 80, "protocol": "TCP", "name": "web"}], "tolerations": [{"key": "k"}],
                     "volumes": [{"name": "v", "emptyDir": {}}]},
        });
        let owned = json!({
            "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
            "f:spec": {
                "f:n": {}, "f:tolerations": {},
                "f:ports": {".": {}, "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}, "f:protocol": {}, "f:name": {}}},
                "f:volumes": {"k:{\"name\":\"v\"}": {".": {}, "f:name": {}, "f:emptyDir": {}}},
            },
        });
        let live = json!({
            "apiVersion": "v1", "kind": "X", "metadata": {"name": "x", "labels": {"a": "1", "theirs": "2"}, "uid": "u"},
            "spec": {
                "n": 3, "filledIn": true, "tolerations": [{"key": "k", "operator": "Equal"}],
                "ports": [{"port": 443, "protocol": "TCP"}, {"port": 80, "protocol": "TCP", "name": "web", "targetPort": 80}],
                "volumes": [{"name": "v", "emptyDir": {}}],
            },
        });
        assert_eq!(difference(&desired, &live, &[&owned]), None);

        let changed = |path: &str, value: Value| {
            let mut live = live.clone();
            if let Some(place) = live.pointer_mut(path) {
                *place = value;
            }
            live
        };
        for (path, value, why) in [
            ("/metadata/labels/a", json!("other"), "a value was changed"),
            ("/metadata/labels", json!({}), "a label was removed"),
            ("/spec/n", json!(4), "a number was changed"),
            ("/spec/ports", json!([{"port": 443, "protocol": "TCP"}]), "our item was removed"),
            ("/spec/ports/1/name", json!("other"), "our item was changed"),
            ("/spec/tolerations", json!([{"key": "k"}, {"key": "more"}]), "an item was added to our atomic list"),
        ] {
            assert!(differs(&desired, &changed(path, value), &[&owned]), "{why}");
        }

        let mut lost = owned.clone();
        if let Some(spec) = lost.pointer_mut("/f:spec").and_then(Value::as_object_mut) {
            spec.remove("f:tolerations");
        }
        assert!(differs(&desired, &live, &[&lost]), "another manager owns a field, though its value is right");
        assert!(!differs(&desired, &live, &[&lost, &owned]), "one of two records is enough");
        assert!(differs(&desired, &live, &[]), "nothing is recorded as ours");
    }

    #[test]
    fn empty_value_matches_a_missing_one() {
        let desired = json!({"metadata": {"name": "x", "annotations": {}}, "spec": {"affinity": {}}});
        let owned = json!({"f:spec": {"f:affinity": {}}});
        assert!(!differs(&desired, &json!({"metadata": {"name": "x"}, "spec": {"affinity": {}}}), &[&owned]));
        assert!(!differs(&desired, &json!({"metadata": {"name": "x"}, "spec": {}}), &[&owned]));
    }

    #[test]
    fn sets_are_compared_by_their_values() {
        let desired = json!({"metadata": {"finalizers": ["ours"]}});
        let owned = json!({"f:metadata": {"f:finalizers": {".": {}, "v:\"ours\"": {}}}});
        assert!(!differs(&desired, &json!({"metadata": {"finalizers": ["theirs", "ours"]}}), &[&owned]));
        assert!(differs(&desired, &json!({"metadata": {"finalizers": ["theirs"]}}), &[&owned]));
    }
}
