//! Labels, annotations, owner references and managed fields of objects.

use std::collections::BTreeMap;

use k8s_openapi::{
    Metadata,
    apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, OwnerReference},
};
use serde_json::Value;

/// Labels or annotations.
pub(crate) type Map = BTreeMap<String, String>;

/// Returns the value of a label.
pub(crate) fn label<'a>(object: &'a impl Metadata<Ty = ObjectMeta>, key: &str) -> Option<&'a str> {
    object.metadata().labels.as_ref()?.get(key).map(String::as_str)
}

/// Returns the value of an annotation.
pub(crate) fn annotation<'a>(object: &'a impl Metadata<Ty = ObjectMeta>, key: &str) -> Option<&'a str> {
    object.metadata().annotations.as_ref()?.get(key).map(String::as_str)
}

/// Returns the fields of an entry of `managedFields`. Caches store them as text to save memory.
pub(crate) fn managed_fields(entry: &ManagedFieldsEntry) -> Option<Value> {
    match &entry.fields_v1.as_ref()?.0 {
        Value::String(text) => serde_json::from_str(text).ok(),
        fields => Some(fields.clone()),
    }
}

pub(crate) fn map<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Map {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Merges two maps; the second one takes precedence.
pub(crate) fn with(mut map: Map, more: Map) -> Map {
    map.extend(more);
    map
}

/// Returns none for an empty map, which the API server would omit.
pub(crate) fn some(map: Map) -> Option<Map> {
    (!map.is_empty()).then_some(map)
}

/// Returns the metadata of a template, which has neither name nor owner.
pub(crate) fn template(labels: Map, annotations: Map) -> ObjectMeta {
    ObjectMeta { labels: some(labels), annotations: some(annotations), ..ObjectMeta::default() }
}

/// An object of the user that owns others.
pub(crate) struct Owner<'a> {
    pub(crate) api_version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) uid: &'a str,
}

impl Owner<'_> {
    /// Returns the metadata of an object that it controls.
    pub(crate) fn metadata(&self, name: String, labels: Map, annotations: Map) -> ObjectMeta {
        ObjectMeta {
            name: Some(name),
            namespace: Some(self.namespace.to_owned()),
            owner_references: Some(vec![OwnerReference {
                api_version: self.api_version.to_owned(),
                kind: self.kind.to_owned(),
                name: self.name.to_owned(),
                uid: self.uid.to_owned(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..template(labels, annotations)
        }
    }
}
