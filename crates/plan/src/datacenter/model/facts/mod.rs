//! The properties of Kubernetes objects that decisions read.
//!
//! Each property is read in one place, whether caches have trimmed the object (see `cached`) or not.

pub(crate) mod claim;
pub(crate) mod job;
pub(crate) mod pod;
pub(crate) mod service;
#[cfg(test)]
mod tests;
pub(crate) mod volume;

use k8s_openapi::{api::storage::v1::StorageClass, apimachinery::pkg::apis::meta::v1::ObjectMeta};

/// Name, UID and resource version of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectReference {
    pub(crate) name: String,
    pub(crate) uid: Option<String>,
    pub(crate) version: Option<String>,
}

impl ObjectReference {
    pub(crate) fn of(metadata: &ObjectMeta) -> Self {
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone(),
            version: metadata.resource_version.clone(),
        }
    }
}

/// A StorageClass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    pub(crate) allows_expansion: bool,
}

impl Class {
    pub(crate) fn of(class: &StorageClass) -> Self {
        Self { allows_expansion: class.allow_volume_expansion == Some(true) }
    }
}
