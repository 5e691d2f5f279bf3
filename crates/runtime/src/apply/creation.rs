//! The creation of objects, and what is done where an object of that name exists.

use std::{collections::hash_map::Entry, sync::PoisonError, time::Duration};

use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::info;

use super::{Applier, Decision, Orphan, Owner, components::Desired};
use crate::{
    error::Error,
    ledger::Expectation,
    store::{controller_of, key_of, version_of},
};

/// An object whose labels are missing again within this time after they were restored is reported: another program
/// removes them.
const LABEL_RESTORE_INTERVAL: Duration = Duration::from_secs(60);

impl Applier {
    pub(super) async fn create(
        &self,
        owner: &Owner,
        desired: &Desired,
        decision: &Decision<'_>,
        expectations: &mut Vec<Expectation>,
    ) -> Result<bool, Error> {
        let doing = || format!("creating {}", desired.named());
        self.check_preconditions(doing, &desired.preconditions, decision, expectations).await?;
        let path = format!("{}?fieldManager={}", desired.path, self.field_manager);
        match self.send(Method::POST, &path, "application/json", &desired.value).await {
            Ok(metadata) => {
                info!(kind = desired.kind, object = %desired.key, "created");
                let id = (desired.collection.clone(), desired.key.clone());
                self.written().insert(id, metadata.uid.clone().unwrap_or_default());
                expectations.push(Expectation::seen(&desired.collection, &desired.key, &metadata));
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                self.check_existing(owner, desired, decision, expectations).await?;
                // Components that need it were planned without it: a pod would start with a token that is not the
                // stored one.
                Err(Error::Conflict { doing: doing() })
            }
            Err(error) => {
                Err(self.failed(doing, error, &desired.collection, &desired.path, &desired.key, expectations))
            }
        }
    }

    /// Checks an existing object that the cache does not show. Either the owner controls it, and the cache lags behind
    /// or the object has lost the labels that the watch selects; or it belongs to another owner. Missing labels are
    /// restored; nothing else is written, because the desired object was planned without it. Returns an error where no
    /// watch event will follow.
    async fn check_existing(
        &self,
        owner: &Owner,
        desired: &Desired,
        decision: &Decision<'_>,
        expectations: &mut Vec<Expectation>,
    ) -> Result<(), Error> {
        let doing = || format!("reading {}", desired.named());
        let path = format!("{}/{}", desired.path, desired.key.name);
        let metadata = self.send(Method::GET, &path, "", &Value::Null).await.map_err(|error| {
            self.failed(doing, error, &desired.collection, &desired.path, &desired.key, expectations)
        })?;
        if controller_of(&metadata).is_none_or(|controller| controller.uid != owner.uid) {
            return Err(self.name_taken(desired, &metadata));
        }
        let labels = &desired.value["metadata"]["labels"];
        let is_labelled = |metadata: &ObjectMeta| {
            let has = |(name, value): (&String, &Value)| {
                metadata.labels.as_ref().and_then(|labels| labels.get(name)).map(String::as_str) == value.as_str()
            };
            labels.as_object().into_iter().flatten().all(has)
        };
        let is_late = decision.versions.get(&desired.collection) < Some(&version_of(&metadata));
        if is_late {
            expectations.push(Expectation::read(&desired.collection, &desired.key, &metadata));
        }
        if metadata.deletion_timestamp.is_some() && !is_late {
            // Without its labels, no watch reports when it is gone.
            let remedy = "is being deleted. The operator recreates it when it is gone".into();
            return Err(Error::NameTaken { kind: desired.kind.clone(), key: desired.key.clone(), remedy });
        }
        if metadata.deletion_timestamp.is_none() && !is_labelled(&metadata) {
            if !self.may_label(&path) {
                return Err(Error::NotFoundByLabels { named: desired.named() });
            }
            let doing = || format!("labelling {}", desired.named());
            let patch = json!({"metadata": {"uid": metadata.uid, "labels": labels}});
            let path = format!("{path}?fieldManager={}", self.field_manager);
            let labelled = self.send(Method::PATCH, &path, "application/merge-patch+json", &patch).await;
            let labelled = labelled.map_err(|error| {
                self.failed(doing, error, &desired.collection, &desired.path, &desired.key, expectations)
            })?;
            if !is_labelled(&labelled) {
                return Err(Error::NotFoundByLabels { named: desired.named() });
            }
            expectations.push(Expectation::seen(&desired.collection, &desired.key, &labelled));
        } else if !is_late {
            return Err(Error::NotFoundByLabels { named: desired.named() });
        }
        Ok(())
    }

    /// Whether the labels of an object may be restored: not twice within [`LABEL_RESTORE_INTERVAL`].
    pub(crate) fn may_label(&self, path: &str) -> bool {
        let mut labelled = self.labelled.lock().unwrap_or_else(PoisonError::into_inner);
        labelled.retain(|_, when| when.elapsed() < LABEL_RESTORE_INTERVAL);
        match labelled.entry(path.to_owned()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(Instant::now());
                true
            }
        }
    }

    /// Returns the error for a name that an object of another owner has. Its advice must not lead to data loss: the
    /// object may be an orphan of a former object.
    pub(super) fn name_taken(&self, desired: &Desired, metadata: &ObjectMeta) -> Error {
        let is_namesake = |other: &&OwnerReference| {
            let owners = desired.value["metadata"]["ownerReferences"].as_array();
            owners.into_iter().flatten().any(|own| own["kind"] == other.kind && own["name"] == other.name)
        };
        let remedy = match controller_of(metadata) {
            Some(former) if is_namesake(&former) => {
                "belongs to a deleted object of the same name. The operator recreates it when the garbage collector has \
                 deleted it"
                    .into()
            }
            Some(other) => {
                format!(
                    "belongs to {} {}, so the operator does not change it. Rename one of the two objects",
                    other.kind, other.name
                )
            }
            None if !self.adopted.contains(&desired.collection) => {
                "has no controller, so the operator does not change it. Rename it, or delete it if it is not in use"
                    .into()
            }
            None => format!(
                "has no controller, so the operator does not change it. If it is an orphan of a former object of this \
                 name, add the labels that the operator's objects have and the annotation {} with the name of the new \
                 object: the operator then adopts it. Only if it is not in use, rename or delete it",
                self.context.adoption_annotation.unwrap_or_default()
            ),
        };
        Error::NameTaken { kind: desired.kind.clone(), key: desired.key.clone(), remedy }
    }

    /// Makes `owner` the controller of an orphan. Returns false if the orphan is gone.
    pub(crate) async fn adopt(
        &self,
        orphan: &Orphan,
        owner: &OwnerReference,
        expectations: &mut Vec<Expectation>,
    ) -> Result<bool, Error> {
        let Orphan { kind, collection, path, metadata } = orphan;
        let key = key_of(metadata);
        let doing = || format!("adopting {kind} {key}");
        let owners: Vec<&OwnerReference> = metadata.owner_references.iter().flatten().chain([owner]).collect();
        let (uid, version) = (&metadata.uid, &metadata.resource_version);
        let patch = json!({"metadata": {"uid": uid, "resourceVersion": version, "ownerReferences": owners}});
        let address = format!("{path}/{}?fieldManager={}", key.name, self.field_manager);
        match self.send(Method::PATCH, &address, "application/merge-patch+json", &patch).await {
            Ok(metadata) => {
                info!(kind, object = %key, "adopted");
                expectations.push(Expectation::seen(collection, &key, &metadata));
                Ok(true)
            }
            // It was deleted: the watch reports that.
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(false),
            Err(error) => Err(self.failed(doing, error, collection, path, &key, expectations)),
        }
    }
}
