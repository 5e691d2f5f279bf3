//! The desired state that a controller plans: components with objects, field patches and deletions.

use std::{collections::HashSet, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD_NO_PAD};
use kube::api::ObjectMeta;
use messina_text::Reason;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{error::Error, events::Note, queue::ObjectKey, store::Kind};

/// A desired object of any kind.
#[derive(Clone, Debug)]
pub struct Desired {
    pub(super) kind: String,
    /// URL path of the kind, in all namespaces.
    pub(super) collection: String,
    /// URL path of the kind, in the object's namespace.
    pub(super) path: String,
    pub(super) key: ObjectKey,
    pub(super) value: Value,
    pub(super) preconditions: Vec<ObservedVersion>,
    pub(super) must_match_version: bool,
}

impl Desired {
    /// Converts a desired object.
    pub fn new<K: Kind>(object: &K) -> Result<Self, Error> {
        let metadata = object.meta();
        let key = crate::store::key_of(metadata);
        let kind = K::kind(&()).into_owned();
        let mut value = serde_json::to_value(object)
            .map_err(|source| Error::NotJson { doing: format!("{kind} {key}"), source: Arc::new(source) })?;
        value["apiVersion"] = K::api_version(&()).into();
        value["kind"] = kind.clone().into();
        let path = K::url_path(&(), key.namespace.as_deref());
        Ok(Self {
            kind,
            collection: K::url_path(&(), None),
            path,
            key,
            value,
            preconditions: Vec::new(),
            must_match_version: false,
        })
    }

    /// Writes the object only if these other objects still have their observed versions.
    #[must_use]
    pub fn with_preconditions(self, preconditions: Vec<ObservedVersion>) -> Self {
        Self { preconditions, ..self }
    }

    /// Writes the object only at its observed resource version: a process that was suspended for a while and is no
    /// longer the leader must not revert what the new leader has written.
    #[must_use]
    pub fn matching_observed_version(self) -> Self {
        Self { must_match_version: true, ..self }
    }

    /// Namespace and name of the object.
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// Adds the annotation with the hash of the desired object, which shows when another object is desired. Returns the
    /// hash, too.
    pub(super) fn with_hash(mut self, annotation: &str) -> (Self, String) {
        let hash = BASE64_STANDARD_NO_PAD.encode(&Sha256::digest(self.value.to_string())[..15]);
        self.value["metadata"]["annotations"][annotation] = hash.clone().into();
        (self, hash)
    }

    pub(super) fn named(&self) -> String {
        format!("{} {}", self.kind, self.key)
    }
}

/// The observed version of another object: a precondition of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedVersion {
    pub(super) kind: String,
    pub(super) collection: String,
    pub(super) path: String,
    pub(super) key: ObjectKey,
    pub(super) version: Option<String>,
}

impl ObservedVersion {
    /// The object has this resource version; none if it does not exist.
    pub fn new<K: Kind>(key: ObjectKey, version: Option<String>) -> Self {
        Self {
            kind: K::kind(&()).into_owned(),
            collection: K::url_path(&(), None),
            path: K::url_path(&(), key.namespace.as_deref()),
            key,
            version,
        }
    }

    /// Whether the object, whose current metadata is given, still has the observed version.
    pub(super) fn matches(&self, now: Option<&ObjectMeta>) -> bool {
        self.version.as_ref() == now.and_then(|metadata| metadata.resource_version.as_ref())
    }
}

/// Reason and message of a component's Progressing condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The reason, in CamelCase.
    pub reason: Reason,
    /// What the component waits for, and what happens next.
    pub message: String,
}

/// The plan of a component: objects that belong together. Each component has a Progressing and a Degraded condition.
#[derive(Clone, Debug, Default)]
pub struct ComponentPlan {
    /// The name, with which the types of its conditions begin.
    pub name: &'static str,
    /// Components that have to be applied before.
    pub needs: &'static [&'static str],
    /// The desired objects, in the order in which they are applied.
    pub objects: Vec<Desired>,
    /// Patches of single fields, made after the objects are applied.
    pub changes: Vec<FieldPatch>,
    /// Owned objects to delete. An object that the plan does not name is not deleted.
    pub deletions: Vec<Deletion>,
    /// Why the component is progressing, although all objects are applied.
    pub progressing: Option<Progress>,
    /// Why the component is degraded, although all objects are applied.
    pub fault: Option<Error>,
    /// Reason and message while the component is not progressing.
    pub remark: Option<Progress>,
}

/// A patch of single fields of an object that other field managers may write, too. The observed resource version is its
/// precondition: what was decided from that version may not hold for the next one.
#[derive(Clone, Debug)]
pub struct FieldPatch {
    pub(super) kind: String,
    pub(super) collection: String,
    pub(super) path: String,
    pub(super) key: ObjectKey,
    pub(super) patch: Value,
    pub(super) preconditions: Vec<ObservedVersion>,
    pub(super) event: Option<Note>,
}

impl FieldPatch {
    /// A merge patch for the observed version of an object. `event` is emitted when it is done.
    pub fn new<K: Kind>(object: &K, mut patch: Value, event: Option<Note>) -> Self {
        let metadata = object.meta();
        let key = crate::store::key_of(metadata);
        patch["metadata"]["uid"] = metadata.uid.clone().into();
        patch["metadata"]["resourceVersion"] = metadata.resource_version.clone().into();
        Self {
            kind: K::kind(&()).into_owned(),
            collection: K::url_path(&(), None),
            path: K::url_path(&(), key.namespace.as_deref()),
            key,
            patch,
            preconditions: Vec::new(),
            event,
        }
    }

    /// Patches only if these other objects still have their observed versions.
    #[must_use]
    pub fn with_preconditions(self, preconditions: Vec<ObservedVersion>) -> Self {
        Self { preconditions, ..self }
    }
}

/// The deletion of an object.
#[derive(Clone, Debug)]
pub struct Deletion {
    pub(super) kind: String,
    pub(super) collection: String,
    pub(super) path: String,
    pub(super) key: ObjectKey,
    pub(super) uid: String,
    /// The resource version that is a precondition, if any.
    version: Option<String>,
    /// Whether its dependents are orphaned instead of deleted.
    orphans: bool,
    pub(super) preconditions: Vec<ObservedVersion>,
    pub(super) event: Option<Note>,
}

impl Deletion {
    /// Namespace and name of the object.
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// Deletes the object with this UID, and no other of the same name.
    pub fn new<K: Kind>(object: &K) -> Self {
        let metadata = object.meta();
        let key = crate::store::key_of(metadata);
        Self {
            kind: K::kind(&()).into_owned(),
            collection: K::url_path(&(), None),
            path: K::url_path(&(), key.namespace.as_deref()),
            uid: metadata.uid.clone().unwrap_or_default(),
            key,
            version: None,
            orphans: false,
            preconditions: Vec::new(),
            event: None,
        }
    }

    /// Deletes only if these other objects still have their observed versions.
    #[must_use]
    pub fn with_preconditions(self, preconditions: Vec<ObservedVersion>) -> Self {
        Self { preconditions, ..self }
    }

    /// Deletes only at this resource version, if one is given.
    #[must_use]
    pub fn with_resource_version(self, version: Option<String>) -> Self {
        Self { version, ..self }
    }

    /// Orphans its dependents instead of deleting them.
    #[must_use]
    pub fn orphaning(self, orphans: bool) -> Self {
        Self { orphans, ..self }
    }

    /// Emits an event when it is done.
    #[must_use]
    pub fn with_event(self, event: Option<Note>) -> Self {
        Self { event, ..self }
    }

    /// Returns the DeleteOptions.
    pub(super) fn options(&self) -> Value {
        let policy = if self.orphans { "Orphan" } else { "Background" };
        let mut options = json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy, "preconditions": {"uid": self.uid},
        });
        if let Some(version) = &self.version {
            options["preconditions"]["resourceVersion"] = version.clone().into();
        }
        options
    }
}

/// Returns deletions of the owned objects that are not desired.
pub fn no_longer_desired<K: Kind>(owned: &[Arc<K>], desired: &[Desired]) -> Vec<Deletion> {
    let collection = K::url_path(&(), None);
    let names: HashSet<&ObjectKey> =
        desired.iter().filter(|desired| desired.collection == collection).map(|desired| &desired.key).collect();
    let is_unwanted = |object: &&Arc<K>| {
        !names.contains(&crate::store::key_of(object.meta())) && object.meta().deletion_timestamp.is_none()
    };
    owned.iter().filter(is_unwanted).map(|object| Deletion::new(object.as_ref())).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;

    use super::*;

    #[test]
    fn deletion_has_the_uid_as_precondition_and_a_propagation_policy() {
        let metadata = json!({"name": "a", "namespace": "shop", "uid": "u", "resourceVersion": "7"});
        let service: Service = serde_json::from_value(json!({"metadata": metadata})).unwrap_or_default();
        let with_all = Deletion::new(&service).options();
        assert_eq!(
            (&with_all["propagationPolicy"], &with_all["preconditions"]),
            (&json!("Background"), &json!({"uid": "u"}))
        );
        let alone = Deletion::new(&service).with_resource_version(Some("7".into())).orphaning(true).options();
        let preconditions = json!({"uid": "u", "resourceVersion": "7"});
        assert_eq!((&alone["propagationPolicy"], &alone["preconditions"]), (&json!("Orphan"), &preconditions));
    }

    #[test]
    fn field_patch_has_uid_and_version_as_preconditions() {
        let metadata = json!({"name": "a", "namespace": "shop", "uid": "u", "resourceVersion": "7"});
        let service: Service = serde_json::from_value(json!({"metadata": metadata})).unwrap_or_default();
        let change = FieldPatch::new(&service, json!({"metadata": {"labels": {"x": null}}}), None);
        let expected = json!({"metadata": {"labels": {"x": null}, "uid": "u", "resourceVersion": "7"}});
        assert_eq!((change.patch, change.path.as_str()), (expected, "/api/v1/namespaces/shop/services"));
    }
}
