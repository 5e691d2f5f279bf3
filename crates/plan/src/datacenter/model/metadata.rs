//! Labels, annotations and owner references of the objects of a datacenter.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use messina_api::names::{
    annotation,
    label::{self, value},
};

use crate::datacenter::model::spec::{Datacenter, Rack};

type Map = BTreeMap<String, String>;

/// Labels of a datacenter that are not propagated to its objects.
const OWN_LABELS: [&str; 1] = [label::REGISTER_WITH_GLOBAL_MANAGER];

/// Annotations of a datacenter that are not propagated to its objects: a change of them would restart nodes.
const OWN_ANNOTATIONS: [&str; 9] = [
    annotation::PAUSE,
    annotation::ADOPT,
    label::MANAGED_HASH,
    annotation::CLAIMS_OF_LEFT_NODES,
    annotation::SKIP_UPGRADE_HOOKS,
    annotation::IGNORED_DOWN_NODES,
    annotation::MANAGER_CLUSTER_NAME_OVERRIDE,
    annotation::NAME_OVERRIDE,
    annotation::LAST_APPLIED_CONFIGURATION,
];

pub(crate) fn propagated_labels(labels: Option<&Map>) -> Map {
    without(labels.cloned().unwrap_or_default(), &OWN_LABELS)
}

pub(crate) fn propagated_annotations(annotations: &Map) -> Map {
    without(annotations.clone(), &OWN_ANNOTATIONS)
}

fn without(mut map: Map, keys: &[&str]) -> Map {
    map.retain(|key, _| !keys.contains(&key.as_str()));
    map
}

/// Returns the labels that select all objects of the datacenter.
pub(crate) fn cluster_labels(datacenter: &Datacenter) -> Map {
    map([
        (label::APP, value::SCYLLA),
        (label::NAME, value::SCYLLA),
        (label::MANAGED_BY, value::OPERATOR),
        (label::CLUSTER, &datacenter.name),
    ])
}

/// Returns the labels that select all objects of a rack.
pub(crate) fn rack_labels(datacenter: &Datacenter, rack: &str) -> Map {
    let own = map([(label::DATACENTER, datacenter.scylla_datacenter.as_str()), (label::RACK, rack)]);
    with(cluster_labels(datacenter), own)
}

/// Returns the operator's labels of a rack's StatefulSet and pods.
pub(crate) fn node_labels(datacenter: &Datacenter, rack: &Rack) -> Map {
    let own = map([
        (label::RACK_ORDINAL, rack.ordinal.to_string().as_str()),
        (label::SCYLLA_VERSION, &datacenter.version),
        (label::POD_TYPE, value::SCYLLADB_NODE),
    ]);
    with(rack_labels(datacenter, &rack.name), own)
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

/// Returns the metadata of an object that the datacenter owns, with the datacenter's labels and annotations.
pub(crate) fn owned(datacenter: &Datacenter, name: String, labels: Map) -> ObjectMeta {
    owned_with(datacenter, name, with(datacenter.labels.clone(), labels), datacenter.annotations.clone())
}

/// Returns the metadata of an object that the datacenter owns, with these labels and annotations.
pub(crate) fn owned_with(datacenter: &Datacenter, name: String, labels: Map, annotations: Map) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(datacenter.namespace.clone()),
        labels: some(labels),
        annotations: some(annotations),
        owner_references: Some(vec![OwnerReference {
            api_version: "scylla.scylladb.com/v1alpha1".into(),
            kind: "ScyllaDBDatacenter".into(),
            name: datacenter.name.clone(),
            uid: datacenter.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]),
        ..ObjectMeta::default()
    }
}
