//! Compares live objects with desired ones by their values, to decide whether a change restarts nodes. Whether anything
//! has to be written is another question: there the runtime's `difference` also compares who owns each field.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use serde::Serialize;
use serde_json::Value;

use crate::{datacenter::layout::RESTARTED_AT, metadata::managed_fields};

/// Whether applying `desired` would change the pod template. Fields that the API server or other managers have set do
/// not count.
pub(crate) fn changes_pods(desired: &StatefulSet, live: &StatefulSet) -> bool {
    let (Some(then), Some(now)) = (&desired.spec, &live.spec) else { return false };
    !is_subset(&then.template, &now.template) || has_leftovers(desired, live)
}

/// Whether the live StatefulSet has all desired fields. Obsolete fields of this operator do not count.
pub(crate) fn is_up_to_date(desired: &StatefulSet, live: &StatefulSet) -> bool {
    // A shortcut for equal specifications.
    (desired.spec == live.spec && is_subset(&desired.metadata, &live.metadata)) || is_subset(desired, live)
}

/// Whether every field of `desired` is in `live` with the same value. Lists have the same elements, in any order where
/// elements have a key.
pub(crate) fn is_subset<T: Serialize + PartialEq>(desired: &T, live: &T) -> bool {
    if desired == live {
        return true;
    }
    match (serde_json::to_value(desired), serde_json::to_value(live)) {
        (Ok(desired), Ok(live)) => is_subset_value(&desired, &live),
        _ => false,
    }
}

fn is_subset_value(desired: &Value, live: &Value) -> bool {
    match (desired, live) {
        (Value::Object(desired), Value::Object(live)) => desired.iter().all(|(key, value)| match live.get(key) {
            Some(live) => is_subset_value(value, live),
            None => is_nothing(value),
        }),
        (Value::Array(desired), Value::Array(live)) => desired.len() == live.len() && is_subset_list(desired, live),
        _ => desired == live,
    }
}

fn is_subset_list(desired: &[Value], live: &[Value]) -> bool {
    let key = ["mountPath", "containerPort", "name"]
        .into_iter()
        .find(|key| desired.iter().chain(live).all(|element| element.get(key).is_some()));
    desired.iter().enumerate().all(|(position, element)| {
        let counterpart = match key {
            Some(key) => live.iter().find(|other| other.get(key) == element.get(key)),
            None => live.get(position),
        };
        counterpart.is_some_and(|other| is_subset_value(element, other))
    })
}

/// Whether the API server omits this value.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.values().all(is_nothing),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

/// Whether the live pod template has obsolete labels or annotations of this operator.
fn has_leftovers(desired: &StatefulSet, live: &StatefulSet) -> bool {
    let maps = |stateful_set: &StatefulSet| {
        let metadata = stateful_set.spec.as_ref().and_then(|spec| spec.template.metadata.clone()).unwrap_or_default();
        [("f:labels", metadata.labels.unwrap_or_default()), ("f:annotations", metadata.annotations.unwrap_or_default())]
    };
    let is_leftover = |field: &str, desired: &BTreeMap<String, String>, key: &String| {
        !desired.contains_key(key) && key != RESTARTED_AT && !belongs_to_others(live, field, key)
    };
    maps(desired)
        .iter()
        .zip(maps(live))
        .any(|((field, desired), (_, kept_map))| kept_map.keys().any(|key| is_leftover(field, desired, key)))
}

/// Whether managed fields show that this label or annotation was not set by a creator of the StatefulSet. Its creators
/// are the managers of its selector.
fn belongs_to_others(stateful_set: &StatefulSet, field: &str, key: &str) -> bool {
    let Some(managers) = stateful_set.metadata.managed_fields.as_ref().filter(|list| !list.is_empty()) else {
        return false;
    };
    let fields = managers.iter().filter_map(managed_fields);
    let makers: Vec<Value> = fields.filter(|fields| !fields["f:spec"]["f:selector"].is_null()).collect();
    let owns = |fields: &Value| !fields["f:spec"]["f:template"]["f:metadata"][field][format!("f:{key}")].is_null();
    !makers.is_empty() && !makers.iter().any(owns)
}
