//! What a controller wants: objects, changes and deletions, in parts.

use std::{collections::HashSet, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD_NO_PAD};
use kube::api::ObjectMeta;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{error::Error, events::Note, queue::ObjectKey, store::Kind};

/// An object as it should be, of whatever kind.
#[derive(Clone, Debug)]
pub struct Desired {
    pub(super) kind: String,
    /// Where objects of this kind are, in all namespaces.
    pub(super) collection: String,
    /// Where objects of this kind are, in the object's namespace.
    pub(super) path: String,
    pub(super) key: ObjectKey,
    pub(super) value: Value,
    pub(super) preconditions: Vec<ObservedVersion>,
    pub(super) must_match_version: bool,
}

impl Desired {
    /// An object as it should be.
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

    /// Written only if all of these are as they were seen.
    #[must_use]
    pub fn with_preconditions(self, preconditions: Vec<ObservedVersion>) -> Self {
        Self { preconditions, ..self }
    }

    /// Written only if it is of the version that was seen: a process that was stopped for a while, and leads no longer, must not
    /// undo what another one has done since.
    #[must_use]
    pub fn as_seen(self) -> Self {
        Self { must_match_version: true, ..self }
    }

    /// Which object it is.
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// Writes into the object by what it can be told that something else is wanted.
    pub(super) fn with_hash(mut self, annotation: &str) -> (Self, String) {
        let hash = BASE64_STANDARD_NO_PAD.encode(&Sha256::digest(self.value.to_string())[..15]);
        self.value["metadata"]["annotations"][annotation] = hash.clone().into();
        (self, hash)
    }

    pub(super) fn named(&self) -> String {
        format!("{} {}", self.kind, self.key)
    }
}

/// Another object that something rests on which is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedVersion {
    pub(super) kind: String,
    pub(super) collection: String,
    pub(super) path: String,
    pub(super) key: ObjectKey,
    pub(super) version: Option<String>,
}

impl ObservedVersion {
    /// The object has this version, or is not there.
    pub fn new<K: Kind>(key: ObjectKey, version: Option<String>) -> Self {
        Self {
            kind: K::kind(&()).into_owned(),
            collection: K::url_path(&(), None),
            path: K::url_path(&(), key.namespace.as_deref()),
            key,
            version,
        }
    }

    /// Whether the object is as it was seen, when this is what it is now.
    pub(super) fn is(&self, now: Option<&ObjectMeta>) -> bool {
        self.version.as_ref() == now.and_then(|metadata| metadata.resource_version.as_ref())
    }
}

/// Something that has to come about outside before a part is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// One word.
    pub reason: &'static str,
    /// What is awaited, and what happens then; of a remark, what is good to know.
    pub message: String,
}

/// Objects that belong together. Each part has a condition that says whether it is done, and one that says what is wrong.
#[derive(Clone, Debug, Default)]
pub struct ComponentPlan {
    /// Its name; conditions begin with it.
    pub name: &'static str,
    /// Parts that have to be in place before.
    pub needs: &'static [&'static str],
    /// The objects, in order.
    pub objects: Vec<Desired>,
    /// Changes of single fields, after the objects.
    pub changes: Vec<FieldPatch>,
    /// Objects that are to go, though they were ours: what the plan does not name stays.
    pub deletions: Vec<Deletion>,
    /// What is awaited.
    pub waits_for: Option<Waiting>,
    /// What is wrong, though all objects are in place.
    pub fault: Option<Error>,
    /// What is good to know where nothing is awaited.
    pub remark: Option<Waiting>,
}

/// A change of single fields of an object that may be kept by others too. It is made for one version of the object, and
/// for no other: what was decided from that version does not hold for the next one.
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
    /// A merge patch for the object as it was seen. `event` is told when it is done.
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

    /// Only if all of these are as they were seen.
    #[must_use]
    pub fn with_preconditions(self, preconditions: Vec<ObservedVersion>) -> Self {
        Self { preconditions, ..self }
    }
}

/// An object that is to go.
#[derive(Clone, Debug)]
pub struct Deletion {
    pub(super) kind: String,
    pub(super) collection: String,
    pub(super) path: String,
    pub(super) key: ObjectKey,
    pub(super) uid: String,
    /// The version that was seen, where it must be no other one.
    version: Option<String>,
    /// Whether what it owns stays.
    orphans: bool,
    pub(super) preconditions: Vec<ObservedVersion>,
    pub(super) event: Option<Note>,
}

impl Deletion {
    /// Which object it is.
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// This very object, and no other of its name.
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

    /// Only if all of these are as they were seen.
    #[must_use]
    pub fn with_preconditions(self, preconditions: Vec<ObservedVersion>) -> Self {
        Self { preconditions, ..self }
    }

    /// Only if it is still of this version, where there is one.
    #[must_use]
    pub fn of_version(self, version: Option<String>) -> Self {
        Self { version, ..self }
    }

    /// With what it owns, or without.
    #[must_use]
    pub fn orphaning(self, orphans: bool) -> Self {
        Self { orphans, ..self }
    }

    /// With an event to tell when it is done.
    #[must_use]
    pub fn telling(self, event: Option<Note>) -> Self {
        Self { event, ..self }
    }

    /// What the API server is told to do with it.
    pub(super) fn deletion(&self) -> Value {
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

/// Those of `owned` that are not among `desired`.
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
    fn a_deletion_is_for_one_object_and_takes_along_what_it_is_to() {
        let metadata = json!({"name": "a", "namespace": "shop", "uid": "u", "resourceVersion": "7"});
        let service: Service = serde_json::from_value(json!({"metadata": metadata})).unwrap_or_default();
        let with_all = Deletion::new(&service).deletion();
        assert_eq!(
            (&with_all["propagationPolicy"], &with_all["preconditions"]),
            (&json!("Background"), &json!({"uid": "u"}))
        );
        let alone = Deletion::new(&service).of_version(Some("7".into())).orphaning(true).deletion();
        let preconditions = json!({"uid": "u", "resourceVersion": "7"});
        assert_eq!((&alone["propagationPolicy"], &alone["preconditions"]), (&json!("Orphan"), &preconditions));
    }

    #[test]
    fn an_amendment_is_for_one_version_of_one_object() {
        let metadata = json!({"name": "a", "namespace": "shop", "uid": "u", "resourceVersion": "7"});
        let service: Service = serde_json::from_value(json!({"metadata": metadata})).unwrap_or_default();
        let change = FieldPatch::new(&service, json!({"metadata": {"labels": {"x": null}}}), None);
        let expected = json!({"metadata": {"labels": {"x": null}, "uid": "u", "resourceVersion": "7"}});
        assert_eq!((change.patch, change.path.as_str()), (expected, "/api/v1/namespaces/shop/services"));
    }
}
