//! Applies the desired objects in order, and writes only what differs.
//!
//! A missing object is created with POST, so that an object of another owner with the same name is never overwritten.
//! An existing object is changed by server-side apply, so that the fields of other managers stay; the first time, only
//! at the observed resource version. An owned object that is no longer desired is deleted by UID. Whether anything
//! differs is decided from the caches alone.

mod collection;
mod components;
mod creation;
mod records;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::{Client, api::ObjectMeta};
use serde_json::Value;
use tokio::time::Instant;
use tracing::info;

use self::records::{applied_records, fields};
pub(crate) use self::{
    collection::{Collection, StoreCollection},
    records::compact_records,
};
pub use self::{
    components::{ComponentPlan, Deletion, Desired, FieldPatch, ObservedVersion, Progress, no_longer_desired},
    records::Predecessor,
};

use crate::{
    cluster::Cluster,
    difference::difference,
    error::Error,
    events::Note,
    ledger::Expectation,
    queue::ObjectKey,
    reasons,
    request::send,
    shared_context::SharedContext,
    store::{Kind, Version, controller_of, version_of},
};

/// The controller of the applied objects, in the sense of an owner reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// UID of the object that owns them.
    pub uid: String,
}

/// The result of applying a component.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The name of the component.
    pub component: &'static str,
    /// The objects that were written, each as kind and name.
    pub written: Vec<String>,
    /// The events to emit for what was written.
    pub events: Vec<Note>,
    /// The error of a write, or the fault that the plan reports: the component is degraded.
    pub failure: Option<Error>,
    /// Why the component is progressing.
    pub progressing: Option<Progress>,
    /// The reason and message while the component is not progressing.
    pub remark: Option<Progress>,
}

/// An object whose owner was deleted without it.
pub(crate) struct Orphan {
    kind: String,
    collection: String,
    path: String,
    metadata: ObjectMeta,
}

impl Orphan {
    pub(crate) fn new<K: Kind>(object: &K) -> Self {
        let metadata = object.meta().clone();
        let path = K::url_path(&(), metadata.namespace.as_deref());
        Self { kind: K::kind(&()).into_owned(), collection: K::url_path(&(), None), path, metadata }
    }

    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.kind, self.metadata.name.as_deref().unwrap_or_default())
    }
}

/// The state of the caches from which the desired objects were planned.
pub(crate) struct Decision<'a> {
    /// The resource version of each cache, by the URL path of its collection.
    pub(crate) versions: BTreeMap<String, Version>,
    /// Whether a dependent of the owner was deleted since.
    pub(crate) has_lost_dependents: &'a (dyn Fn() -> bool + Send + Sync),
}

/// Writes objects to the API server.
pub(crate) struct Applier {
    pub(crate) client: Client,
    pub(crate) collections: Arc<BTreeMap<String, Arc<dyn Collection>>>,
    pub(crate) context: Arc<SharedContext>,
    pub(crate) field_manager: &'static str,
    /// The collections whose orphans are adopted.
    pub(crate) adopted: BTreeSet<String>,
    /// Objects that are known to match: the hash of the desired object, and the resource version it was compared with.
    /// This saves the comparison, and keeps the operator from writing a field that the API server drops again and
    /// again.
    pub(crate) up_to_date: Mutex<HashMap<(String, ObjectKey), (String, Version)>>,
    /// Objects that this process has written, with their UIDs: expectations ensure that no older state of them is used.
    /// The cached state of all others may be older than a write of the previous leader.
    pub(crate) written: Mutex<HashMap<(String, ObjectKey), String>>,
    /// When the labels of objects were restored, by the objects' URL paths.
    pub(crate) labelled: Mutex<HashMap<String, Instant>>,
}

impl Applier {
    /// Creates a writer to an API server, which adopts orphans in the collections `adopted`.
    pub(crate) fn new(cluster: &Cluster, field_manager: &'static str, adopted: BTreeSet<String>) -> Self {
        Self {
            client: cluster.client().clone(),
            collections: cluster.collections(),
            context: Arc::clone(cluster.context()),
            field_manager,
            adopted,
            up_to_date: Mutex::default(),
            written: Mutex::default(),
            labelled: Mutex::default(),
        }
    }

    /// Returns the resource version of each cache. To be called before the caches are read for a decision.
    pub(crate) fn versions(&self) -> BTreeMap<String, Version> {
        self.collections.iter().map(|(name, collection)| (name.clone(), collection.version())).collect()
    }

    /// Applies components in order. A component that fails blocks only the components that need it. Every write is
    /// recorded in `expectations`. An object that was changed or deleted since `decision` is not written: the plan did
    /// not know of it.
    pub(crate) async fn apply(
        &self,
        owner: &Owner,
        components: Vec<ComponentPlan>,
        decision: &Decision<'_>,
        expectations: &mut Vec<Expectation>,
    ) -> Vec<Applied> {
        let mut results: Vec<Applied> = Vec::with_capacity(components.len());
        for component in components {
            let mut result = Applied {
                component: component.name,
                written: Vec::new(),
                events: Vec::new(),
                failure: None,
                progressing: component.progressing.clone(),
                remark: component.remark.clone(),
            };
            let missing =
                results.iter().find(|done| done.failure.is_some() && component.needs.contains(&done.component));
            if let Some(missing) = missing {
                let message = format!("Waiting for component {}, which could not be applied.", missing.component);
                result.progressing = Some(Progress { reason: reasons::WAITING, message });
            } else {
                let fault = component.fault.clone();
                result.failure =
                    self.apply_component(owner, component, decision, &mut result, expectations).await.err();
                result.failure = result.failure.or(fault);
            }
            let is_final = matches!(result.failure, Some(Error::NotLeading(_)));
            results.push(result);
            if is_final {
                break;
            }
        }
        results
    }

    async fn apply_component(
        &self,
        owner: &Owner,
        component: ComponentPlan,
        decision: &Decision<'_>,
        result: &mut Applied,
        expectations: &mut Vec<Expectation>,
    ) -> Result<(), Error> {
        for desired in component.objects {
            let name = desired.named();
            if self.reconcile_object(owner, desired, decision, expectations).await? {
                result.written.push(name);
            }
        }
        for change in component.changes {
            self.patch_fields(&change, decision, expectations).await?;
            result.written.push(format!("{} {}", change.kind, change.key));
            result.events.extend(change.event);
        }
        for object in component.deletions {
            self.delete(&object, decision, expectations).await?;
            result.written.push(format!("{} {}", object.kind, object.key));
            result.events.extend(object.event);
        }
        Ok(())
    }

    /// Patches single fields of an object. They have a field manager of their own, so that applying the whole object
    /// neither includes nor removes them.
    async fn patch_fields(
        &self,
        change: &FieldPatch,
        decision: &Decision<'_>,
        expectations: &mut Vec<Expectation>,
    ) -> Result<(), Error> {
        let doing = || format!("changing {} {}", change.kind, change.key);
        self.check_preconditions(doing, &change.preconditions, decision, expectations).await?;
        let path = format!("{}/{}?fieldManager={}-steps", change.path, change.key.name, self.field_manager);
        match self.send(Method::PATCH, &path, "application/merge-patch+json", &change.patch).await {
            Ok(metadata) => {
                info!(kind = change.kind, object = %change.key, patch = %change.patch, "changed");
                expectations.push(Expectation::seen(&change.collection, &change.key, &metadata));
                Ok(())
            }
            // It was deleted: the watch reports that.
            Err(kube::Error::Api(status)) if status.is_not_found() => Err(Error::Conflict { doing: doing() }),
            Err(error) => Err(self.failed(doing, error, &change.collection, &change.path, &change.key, expectations)),
        }
    }

    /// Reads the preconditions of a write from the API server. Where a cache lags behind, an expectation defers the
    /// next decision.
    async fn check_preconditions(
        &self,
        doing: impl Fn() -> String,
        all: &[ObservedVersion],
        decision: &Decision<'_>,
        expectations: &mut Vec<Expectation>,
    ) -> Result<(), Error> {
        for one in all {
            let named = format!("{} {}", one.kind, one.key);
            let path = format!("{}/{}", one.path, one.key.name);
            let now = match self.send(Method::GET, &path, "", &Value::Null).await {
                Ok(metadata) => Some(metadata),
                Err(kube::Error::Api(status)) if status.is_not_found() => None,
                Err(error) => return Err(Error::of(|| format!("reading {named}"), error)),
            };
            if one.matches(now.as_ref()) {
                continue;
            }
            let was_known = |now: &ObjectMeta| decision.versions.get(&one.collection) >= Some(&version_of(now));
            if one.version.is_none() && now.as_ref().is_some_and(was_known) {
                return Err(Error::NotFoundByLabels { named });
            }
            expectations.push(Expectation::unknown(&one.collection, &one.path, &one.key));
            return Err(Error::Conflict { doing: format!("{} with precondition {named}", doing()) });
        }
        Ok(())
    }

    /// Creates or changes an object where it differs from the desired one. Returns whether it was written.
    async fn reconcile_object(
        &self,
        owner: &Owner,
        desired: Desired,
        decision: &Decision<'_>,
        expectations: &mut Vec<Expectation>,
    ) -> Result<bool, Error> {
        let collection = self.collections.get(&desired.collection).ok_or_else(|| Error::Invalid {
            reason: reasons::NOT_WATCHED,
            message: format!("internal error: the operator writes {} but does not watch them", desired.collection),
        })?;
        let (desired, hash) = desired.with_hash(self.context.hash_annotation);
        let Some(live) = collection.live(&desired.key)? else {
            if (decision.has_lost_dependents)() {
                return Err(Error::Conflict { doing: format!("creating {}", desired.named()) });
            }
            return self.create(owner, &desired, decision, expectations).await;
        };
        if controller_of(&live.metadata).is_none_or(|controller| controller.uid != owner.uid) {
            return Err(self.name_taken(&desired, &live.metadata));
        }
        // It is recreated once it is gone.
        if live.metadata.deletion_timestamp.is_some() {
            return Ok(false);
        }
        let version = version_of(&live.metadata);
        let id = (desired.collection.clone(), desired.key.clone());
        if self.up_to_date().get(&id).is_some_and(|certain| *certain == (hash.clone(), version)) {
            return Ok(false);
        }
        let (ours, former) = (self.records(&live.metadata), self.former_records(&live.metadata));
        let applied_hash = live.metadata.annotations.as_ref().and_then(|all| all.get(self.context.hash_annotation));
        let why = match applied_hash {
            _ if !former.is_empty() => Some("the fields of the previous operator are taken over".into()),
            Some(applied) if *applied == hash => {
                let fields: Vec<Value> = ours.iter().filter_map(|(_, entry)| fields(entry)).collect();
                difference(&desired.value, &live.value, &fields.iter().collect::<Vec<_>>())
            }
            _ => Some("the desired object has changed".into()),
        };
        if let Some(why) = why {
            if decision.versions.get(&desired.collection).is_none_or(|decided| version > *decided) {
                return Err(Error::Conflict { doing: format!("changing {}", desired.named()) });
            }
            let doing = || format!("changing {}", desired.named());
            self.check_preconditions(doing, &desired.preconditions, decision, expectations).await?;
            // A previous leader may have written a later version than the cached one.
            let mut of_version = match self.written().get(&id) {
                Some(uid) if Some(uid) == live.metadata.uid.as_ref() && !desired.must_match_version => None,
                _ => live.metadata.resource_version.clone(),
            };
            let is_update = |(_, entry): &(usize, &ManagedFieldsEntry)| entry.operation.as_deref() == Some("Update");
            if !former.is_empty() || ours.iter().any(is_update) {
                // A predecessor may still write: its managed fields are taken over at the observed version, or not at
                // all.
                let seen = live.metadata.resource_version.as_deref().filter(|_| !former.is_empty());
                let tested = seen.or(of_version.as_deref());
                let taken_over = self.own_as_applied(&desired, &live.metadata, tested, expectations).await?;
                // What a predecessor writes meanwhile is not overwritten.
                of_version = if former.is_empty() { of_version.and(taken_over) } else { taken_over };
            }
            let new = self.patch(&desired, &live.metadata, of_version, expectations).await?;
            self.written().insert(id.clone(), live.metadata.uid.clone().unwrap_or_default());
            if new > version {
                info!(kind = desired.kind, object = %desired.key, why, "changed");
                return Ok(true);
            }
        }
        self.up_to_date().insert(id, (hash, version));
        Ok(false)
    }

    /// Returns our entries of `managedFields`, with their indexes.
    fn records<'a>(&self, metadata: &'a ObjectMeta) -> Vec<(usize, &'a ManagedFieldsEntry)> {
        let is_ours = |entry: &ManagedFieldsEntry| {
            entry.manager.as_deref() == Some(self.field_manager) && entry.subresource.is_none()
        };
        metadata.managed_fields.iter().flatten().enumerate().filter(|(_, entry)| is_ours(entry)).collect()
    }

    /// Returns the predecessor's entries of `managedFields`, with their indexes.
    fn former_records<'a>(&self, metadata: &'a ObjectMeta) -> Vec<(usize, &'a ManagedFieldsEntry)> {
        let Some(predecessor) = self.context.predecessor else { return Vec::new() };
        let is_former = |entry: &ManagedFieldsEntry| {
            entry.manager.as_deref().is_some_and(predecessor.is_manager) && entry.subresource.is_none()
        };
        metadata.managed_fields.iter().flatten().enumerate().filter(|(_, entry)| is_former(entry)).collect()
    }

    /// Applies the desired object to an existing one with server-side apply. The UID is a precondition, and so is
    /// `of_version` where it is given. Returns the new version.
    async fn patch(
        &self,
        desired: &Desired,
        metadata: &ObjectMeta,
        of_version: Option<String>,
        expectations: &mut Vec<Expectation>,
    ) -> Result<Version, Error> {
        let doing = || format!("changing {}", desired.named());
        let path = format!("{}/{}?fieldManager={}&force=true", desired.path, desired.key.name, self.field_manager);
        let mut value = desired.value.clone();
        value["metadata"]["uid"] = metadata.uid.clone().into();
        if let Some(version) = of_version {
            value["metadata"]["resourceVersion"] = version.into();
        }
        match self.send(Method::PATCH, &path, "application/apply-patch+yaml", &value).await {
            Ok(new) => {
                expectations.push(Expectation::seen(&desired.collection, &desired.key, &new));
                Ok(version_of(&new))
            }
            Err(error) => {
                Err(self.failed(doing, error, &desired.collection, &desired.path, &desired.key, expectations))
            }
        }
    }

    /// Rewrites `managedFields` so that all fields that we created, or that a predecessor wrote, are recorded as
    /// applied by us. Otherwise server-side apply would keep those of them that are no longer desired. Returns the new
    /// version.
    async fn own_as_applied(
        &self,
        desired: &Desired,
        metadata: &ObjectMeta,
        of_version: Option<&str>,
        expectations: &mut Vec<Expectation>,
    ) -> Result<Option<String>, Error> {
        let doing = || format!("taking over the fields of {}", desired.named());
        let mut records = [self.records(metadata), self.former_records(metadata)].concat();
        // All but the first are removed, from the last one on.
        records.sort_by_key(|(place, _)| *place);
        let state_labels = self.context.predecessor.map_or(&[][..], |predecessor| predecessor.state_labels);
        let manager = self.field_manager;
        let patch = applied_records(metadata.uid.as_deref(), of_version, manager, state_labels, &records);
        let path = format!("{}/{}", desired.path, desired.key.name);
        match self.send(Method::PATCH, &path, "application/json-patch+json", &patch).await {
            Ok(metadata) => {
                expectations.push(Expectation::seen(&desired.collection, &desired.key, &metadata));
                Ok(metadata.resource_version)
            }
            // A failed `test` operation means that the object has changed.
            Err(kube::Error::Api(status)) if status.code == 422 => {
                expectations.push(Expectation::unknown(&desired.collection, &desired.path, &desired.key));
                Err(Error::Conflict { doing: doing() })
            }
            Err(error) => {
                Err(self.failed(doing, error, &desired.collection, &desired.path, &desired.key, expectations))
            }
        }
    }

    async fn delete(
        &self,
        object: &Deletion,
        decision: &Decision<'_>,
        expectations: &mut Vec<Expectation>,
    ) -> Result<(), Error> {
        let doing = || format!("deleting {} {}", object.kind, object.key);
        self.check_preconditions(doing, &object.preconditions, decision, expectations).await?;
        let path = format!("{}/{}", object.path, object.key.name);
        let options = object.options();
        match self.send(Method::DELETE, &path, "application/json", &options).await {
            Ok(_) => info!(kind = object.kind, object = %object.key, "deleted"),
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => {
                return Err(self.failed(doing, error, &object.collection, &object.path, &object.key, expectations));
            }
        }
        expectations.push(Expectation::gone(&object.collection, &object.key, &object.uid));
        Ok(())
    }

    /// Converts the error of a write. A write without an answer may have been executed, and a conflict means that the
    /// cache lags behind: in both cases an expectation has the object read before the next decision.
    fn failed(
        &self,
        doing: impl FnOnce() -> String,
        error: kube::Error,
        collection: &str,
        path: &str,
        key: &ObjectKey,
        expectations: &mut Vec<Expectation>,
    ) -> Error {
        let error = Error::of(doing, error);
        if error.leaves_state_unknown() {
            expectations.push(Expectation::unknown(collection, path, key));
        }
        error
    }

    async fn send(&self, method: Method, path: &str, content: &str, value: &Value) -> kube::Result<ObjectMeta> {
        send(&self.client, method, path, content, value).await
    }

    fn up_to_date(&self) -> std::sync::MutexGuard<'_, HashMap<(String, ObjectKey), (String, Version)>> {
        self.up_to_date.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn written(&self) -> std::sync::MutexGuard<'_, HashMap<(String, ObjectKey), String>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops what is remembered of objects that are gone.
    pub(crate) fn forget_missing(&self) {
        let is_there = |(collection, key): &(String, ObjectKey)| {
            self.collections.get(collection).is_some_and(|collection| collection.seen(key).is_some())
        };
        self.up_to_date().retain(|id, _| is_there(id));
        self.written().retain(|id, _| is_there(id));
    }
}
