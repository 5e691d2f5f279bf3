//! Whether an object that an API server keeps already says what we want it to say.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use serde::Serialize;
use serde_json::Value;

use crate::datacenter::layout::RESTARTED_AT;

/// Whether applying `wanted` would change what pods are made of. Fields that only the API server or others know of do not
/// count.
pub(crate) fn changes_pods(wanted: &StatefulSet, kept: &StatefulSet) -> bool {
    let (Some(then), Some(now)) = (&wanted.spec, &kept.spec) else { return false };
    !is_subset(&then.template, &now.template) || has_leftovers(wanted, kept)
}

/// Whether all that is wanted is kept, what was ours and is to go left aside.
pub(crate) fn is_up_to_date(wanted: &StatefulSet, kept: &StatefulSet) -> bool {
    // What is equal need not be looked at closely.
    (wanted.spec == kept.spec && is_subset(&wanted.metadata, &kept.metadata)) || is_subset(wanted, kept)
}

/// Whether every field of `wanted` is in `kept` with the same value. Lists have the same elements, in any order where
/// elements have a key.
pub(crate) fn is_subset<T: Serialize + PartialEq>(wanted: &T, kept: &T) -> bool {
    if wanted == kept {
        return true;
    }
    match (serde_json::to_value(wanted), serde_json::to_value(kept)) {
        (Ok(wanted), Ok(kept)) => is_subset_value(&wanted, &kept),
        _ => false,
    }
}

fn is_subset_value(wanted: &Value, kept: &Value) -> bool {
    match (wanted, kept) {
        (Value::Object(wanted), Value::Object(kept)) => wanted.iter().all(|(key, value)| match kept.get(key) {
            Some(kept) => is_subset_value(value, kept),
            None => is_nothing(value),
        }),
        (Value::Array(wanted), Value::Array(kept)) => wanted.len() == kept.len() && is_subset_list(wanted, kept),
        _ => wanted == kept,
    }
}

fn is_subset_list(wanted: &[Value], kept: &[Value]) -> bool {
    let key = ["mountPath", "containerPort", "name"]
        .into_iter()
        .find(|key| wanted.iter().chain(kept).all(|element| element.get(key).is_some()));
    wanted.iter().enumerate().all(|(position, element)| {
        let counterpart = match key {
            Some(key) => kept.iter().find(|other| other.get(key) == element.get(key)),
            None => kept.get(position),
        };
        counterpart.is_some_and(|other| is_subset_value(element, other))
    })
}

/// What an API server leaves out.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.values().all(is_nothing),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

/// Whether the pod template has labels or annotations that were ours and are to go.
fn has_leftovers(wanted: &StatefulSet, kept: &StatefulSet) -> bool {
    let maps = |stateful_set: &StatefulSet| {
        let metadata = stateful_set.spec.as_ref().and_then(|spec| spec.template.metadata.clone()).unwrap_or_default();
        [("f:labels", metadata.labels.unwrap_or_default()), ("f:annotations", metadata.annotations.unwrap_or_default())]
    };
    let is_leftover = |field: &str, wanted: &BTreeMap<String, String>, key: &String| {
        !wanted.contains_key(key) && key != RESTARTED_AT && !belongs_to_others(kept, field, key)
    };
    maps(wanted)
        .iter()
        .zip(maps(kept))
        .any(|((field, wanted), (_, kept_map))| kept_map.keys().any(|key| is_leftover(field, wanted, key)))
}

/// Whether the API server knows that none of those who made the StatefulSet set this label or annotation. Who made it is
/// whoever set its selector.
fn belongs_to_others(stateful_set: &StatefulSet, field: &str, key: &str) -> bool {
    let Some(managers) = stateful_set.metadata.managed_fields.as_ref().filter(|list| !list.is_empty()) else {
        return false;
    };
    let fields = managers.iter().filter_map(|manager| match &manager.fields_v1.as_ref()?.0 {
        // So that it takes less room.
        Value::String(text) => serde_json::from_str(text).ok(),
        fields => Some(fields.clone()),
    });
    let makers: Vec<Value> = fields.filter(|fields| !fields["f:spec"]["f:selector"].is_null()).collect();
    let owns = |fields: &Value| !fields["f:spec"]["f:template"]["f:metadata"][field][format!("f:{key}")].is_null();
    !makers.is_empty() && !makers.iter().any(owns)
}
