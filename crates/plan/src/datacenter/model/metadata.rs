//! Labels, annotations and owner references of the objects of a datacenter.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use messina_api::names::{
    annotation,
    label::{self, value},
};

use crate::{
    datacenter::model::spec::{Datacenter, Rack},
    metadata::{Map, Owner, map, with},
};

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

/// Returns the metadata of an object that the datacenter owns, with the datacenter's labels and annotations.
pub(crate) fn owned(datacenter: &Datacenter, name: String, labels: Map) -> ObjectMeta {
    owned_with(datacenter, name, with(datacenter.labels.clone(), labels), datacenter.annotations.clone())
}

/// Returns the metadata of an object that the datacenter owns, with these labels and annotations.
pub(crate) fn owned_with(datacenter: &Datacenter, name: String, labels: Map, annotations: Map) -> ObjectMeta {
    let owner = Owner {
        api_version: "scylla.scylladb.com/v1alpha1",
        kind: "ScyllaDBDatacenter",
        namespace: &datacenter.namespace,
        name: &datacenter.name,
        uid: &datacenter.uid,
    };
    owner.metadata(name, labels, annotations)
}
