//! Brings objects to where they should be: in order, writing only what differs.
//!
//! What is not there is created: a name that somebody else has stays theirs. What is there is changed by
//! server-side apply, so that fields of others stay as they are; the first time, only if nobody has changed it since it was
//! looked at. What we own and no longer want is deleted, by UID.
//! Whether anything is to be written is decided from the caches alone.

mod collection;
mod components;
mod records;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, OwnerReference};
use kube::{Client, api::ObjectMeta};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::info;

pub(crate) use self::collection::{Collection, Shelf};
use self::records::{applied_records, fields};
pub use self::{
    components::{ComponentPlan, Deletion, Desired, FieldPatch, ObservedVersion, Waiting, no_longer_desired},
    records::{Predecessor, compact_records},
};

use crate::{
    difference::difference,
    error::Error,
    events::Note,
    ledger::Expectation,
    queue::ObjectKey,
    request::send,
    shared_context::SharedContext,
    store::{Kind, Version, controller_of, key_of, version_of},
};

/// For whom objects are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// UID of the object that has them.
    pub uid: String,
}

/// What came of a part.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The part.
    pub component: &'static str,
    /// What was written, by name.
    pub written: Vec<String>,
    /// What is to be told of what was written.
    pub events: Vec<Note>,
    /// What went wrong, or is wrong.
    pub failure: Option<Error>,
    /// What is awaited.
    pub waits_for: Option<Waiting>,
    /// What is good to know where nothing is awaited.
    pub remark: Option<Waiting>,
}

/// An object that has no controller any more.
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

/// What was known when it was decided what there should be.
pub(crate) struct Decision<'a> {
    /// The state of things that each cache showed, by where its objects are.
    pub(crate) versions: BTreeMap<String, Version>,
    /// Whether anything of the owner's has gone since.
    pub(crate) has_lost: &'a (dyn Fn() -> bool + Send + Sync),
}

/// Whoever takes the labels of an object away within this time after they were given is another program, and not a user's slip.
const LABELLED: Duration = Duration::from_secs(60);

/// Writes objects.
pub(crate) struct Applier {
    pub(crate) client: Client,
    pub(crate) collections: Arc<BTreeMap<String, Arc<dyn Collection>>>,
    pub(crate) context: Arc<SharedContext>,
    /// See [`Applier::adopted`].
    pub(crate) adopted: Mutex<BTreeSet<String>>,
    /// Objects that are as wanted for certain: the hash of what was wanted, and the version that was looked at. It saves
    /// the comparison, and keeps a field that the server will not have from being written for ever.
    pub(crate) certain: Mutex<HashMap<(String, ObjectKey), (String, Version)>>,
    /// Objects that this process has written, with their UIDs: the ledger sees to it that no older state of them is looked
    /// at. Of others, what is looked at may be older than what was written before this process began.
    pub(crate) written: Mutex<HashMap<(String, ObjectKey), String>>,
    /// When objects were given their labels back, by their paths.
    pub(crate) labelled: Mutex<HashMap<String, Instant>>,
}

impl Applier {
    /// Which state of things each cache shows. To be asked for before anything is decided.
    pub(crate) fn versions(&self) -> BTreeMap<String, Version> {
        self.collections.iter().map(|(name, collection)| (name.clone(), collection.version())).collect()
    }

    /// Brings parts in place. What fails keeps only those parts back that need it. Whatever was written is noted in
    /// `expectations`. What has changed or gone since it was decided is not written: who decided did not know of it.
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
                waits_for: component.waits_for.clone(),
                remark: component.remark.clone(),
            };
            let missing =
                results.iter().find(|done| done.failure.is_some() && component.needs.contains(&done.component));
            if let Some(missing) = missing {
                result.waits_for =
                    Some(Waiting { reason: "Waiting", message: format!("It needs {} first.", missing.component) });
            } else {
                let fault = component.fault.clone();
                result.failure = self.apply_part(owner, component, decision, &mut result, expectations).await.err();
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

    async fn apply_part(
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
            self.amend(&change, decision, expectations).await?;
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

    /// Changes single fields. They are recorded under a name of their own: what is applied as a whole neither has them
    /// nor takes them away.
    async fn amend(
        &self,
        change: &FieldPatch,
        decision: &Decision<'_>,
        expectations: &mut Vec<Expectation>,
    ) -> Result<(), Error> {
        let doing = || format!("changing {} {}", change.kind, change.key);
        self.are_as_seen(doing, &change.preconditions, decision, expectations).await?;
        let path = format!("{}/{}?fieldManager={}-steps", change.path, change.key.name, self.context.field_manager);
        match self.send(Method::PATCH, &path, "application/merge-patch+json", &change.patch).await {
            Ok(metadata) => {
                info!(kind = change.kind, object = %change.key, patch = %change.patch, "changed");
                expectations.push(Expectation::seen(&change.collection, &change.key, &metadata));
                Ok(())
            }
            // It is gone, which the watch will tell.
            Err(kube::Error::Api(status)) if status.is_not_found() => Err(Error::Conflict { doing: doing() }),
            Err(error) => Err(self.failed(doing, error, &change.collection, &change.path, &change.key, expectations)),
        }
    }

    /// Looks at what a write rests on, past the caches. Where one is behind, nothing is decided before it has caught up.
    async fn are_as_seen(
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
                Err(error) => return Err(Error::of(|| format!("looking at {named}"), error)),
            };
            if one.is(now.as_ref()) {
                continue;
            }
            let was_known = |now: &ObjectMeta| decision.versions.get(&one.collection) >= Some(&version_of(now));
            if one.version.is_none() && now.as_ref().is_some_and(was_known) {
                return Err(Error::NotFoundByLabels { named });
            }
            expectations.push(Expectation::doubt(&one.collection, &one.path, &one.key));
            return Err(Error::Conflict { doing: format!("{}, which rests on {named}", doing()) });
        }
        Ok(())
    }

    /// Writes an object, if it is not as it should be.
    async fn reconcile_object(
        &self,
        owner: &Owner,
        desired: Desired,
        decision: &Decision<'_>,
        expectations: &mut Vec<Expectation>,
    ) -> Result<bool, Error> {
        let collection = self.collections.get(&desired.collection).ok_or_else(|| Error::Invalid {
            reason: "NotWatched",
            message: format!("{} are written but not watched", desired.collection),
        })?;
        let (desired, hash) = desired.with_hash(self.context.hash_annotation);
        let Some(live) = collection.live(&desired.key)? else {
            if (decision.has_lost)() {
                return Err(Error::Conflict { doing: format!("creating {}", desired.named()) });
            }
            return self.create(owner, &desired, decision, expectations).await;
        };
        if controller_of(&live.metadata).is_none_or(|controller| controller.uid != owner.uid) {
            return Err(self.taken(&desired, &live.metadata));
        }
        // What is about to go comes back by itself once it is gone.
        if live.metadata.deletion_timestamp.is_some() {
            return Ok(false);
        }
        let version = version_of(&live.metadata);
        let id = (desired.collection.clone(), desired.key.clone());
        if self.certain().get(&id).is_some_and(|certain| *certain == (hash.clone(), version)) {
            return Ok(false);
        }
        let (ours, former) = (self.records(&live.metadata), self.former_records(&live.metadata));
        let said = live.metadata.annotations.as_ref().and_then(|all| all.get(self.context.hash_annotation));
        let why = match said {
            _ if !former.is_empty() => Some("its fields are taken over".into()),
            Some(said) if *said == hash => {
                let fields: Vec<Value> = ours.iter().filter_map(|(_, entry)| fields(entry)).collect();
                difference(&desired.value, &live.value, &fields.iter().collect::<Vec<_>>())
            }
            _ => Some("something else is wanted".into()),
        };
        if let Some(why) = why {
            if decision.versions.get(&desired.collection).is_none_or(|decided| version > *decided) {
                return Err(Error::Conflict { doing: format!("changing {}", desired.named()) });
            }
            let doing = || format!("changing {}", desired.named());
            self.are_as_seen(doing, &desired.preconditions, decision, expectations).await?;
            // Whoever wrote it before may have written later than what is seen here.
            let mut of_version = match self.written().get(&id) {
                Some(uid) if Some(uid) == live.metadata.uid.as_ref() && !desired.must_match_version => None,
                _ => live.metadata.resource_version.clone(),
            };
            let is_update = |(_, entry): &(usize, &ManagedFieldsEntry)| entry.operation.as_deref() == Some("Update");
            if !former.is_empty() || ours.iter().any(is_update) {
                // A predecessor may still write: its records are taken over as they were seen, or not at all.
                let seen = live.metadata.resource_version.as_deref().filter(|_| !former.is_empty());
                let tested = seen.or(of_version.as_deref());
                let taken_over = self.own_as_applied(&desired, &live.metadata, tested, expectations).await?;
                // What a predecessor writes meanwhile is not overwritten unseen.
                of_version = if former.is_empty() { of_version.and(taken_over) } else { taken_over };
            }
            let new = self.patch(&desired, &live.metadata, of_version, expectations).await?;
            self.written().insert(id.clone(), live.metadata.uid.clone().unwrap_or_default());
            if new > version {
                info!(kind = desired.kind, object = %desired.key, why, "changed");
                return Ok(true);
            }
        }
        self.certain().insert(id, (hash, version));
        Ok(false)
    }

    /// What is recorded as ours, with its place in the list.
    fn records<'a>(&self, metadata: &'a ObjectMeta) -> Vec<(usize, &'a ManagedFieldsEntry)> {
        let is_ours = |entry: &ManagedFieldsEntry| {
            entry.manager.as_deref() == Some(self.context.field_manager) && entry.subresource.is_none()
        };
        metadata.managed_fields.iter().flatten().enumerate().filter(|(_, entry)| is_ours(entry)).collect()
    }

    /// What is recorded as a predecessor's.
    fn former_records<'a>(&self, metadata: &'a ObjectMeta) -> Vec<(usize, &'a ManagedFieldsEntry)> {
        let Some(predecessor) = self.context.predecessor else { return Vec::new() };
        let is_former = |entry: &ManagedFieldsEntry| {
            entry.manager.as_deref().is_some_and(predecessor.is_manager) && entry.subresource.is_none()
        };
        metadata.managed_fields.iter().flatten().enumerate().filter(|(_, entry)| is_former(entry)).collect()
    }

    async fn create(
        &self,
        owner: &Owner,
        desired: &Desired,
        decision: &Decision<'_>,
        expectations: &mut Vec<Expectation>,
    ) -> Result<bool, Error> {
        let doing = || format!("creating {}", desired.named());
        self.are_as_seen(doing, &desired.preconditions, decision, expectations).await?;
        let path = format!("{}?fieldManager={}", desired.path, self.context.field_manager);
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
                // Whatever needs it was decided without knowing it: a pod would start with a token that nobody has stored.
                Err(Error::Conflict { doing: doing() })
            }
            Err(error) => {
                Err(self.failed(doing, error, &desired.collection, &desired.path, &desired.key, expectations))
            }
        }
    }

    /// The object is there although the cache does not show it. Either it is ours, and the cache is late or the object
    /// has lost the labels by which it is found; or it is somebody else's. It is not written as a whole: what is wanted was
    /// decided without knowing it. An error where no watch tells when that is over.
    async fn check_existing(
        &self,
        owner: &Owner,
        desired: &Desired,
        decision: &Decision<'_>,
        expectations: &mut Vec<Expectation>,
    ) -> Result<(), Error> {
        let doing = || format!("looking at {}", desired.named());
        let path = format!("{}/{}", desired.path, desired.key.name);
        let metadata = self.send(Method::GET, &path, "", &Value::Null).await.map_err(|error| {
            self.failed(doing, error, &desired.collection, &desired.path, &desired.key, expectations)
        })?;
        if controller_of(&metadata).is_none_or(|controller| controller.uid != owner.uid) {
            return Err(self.taken(desired, &metadata));
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
            // No watch tells when it is gone.
            let remedy = "is being deleted: it is recreated when it is gone".into();
            return Err(Error::Taken { kind: desired.kind.clone(), key: desired.key.clone(), remedy });
        }
        if metadata.deletion_timestamp.is_none() && !is_labelled(&metadata) {
            if !self.may_label(&path) {
                return Err(Error::NotFoundByLabels { named: desired.named() });
            }
            let doing = || format!("labelling {}", desired.named());
            let patch = json!({"metadata": {"uid": metadata.uid, "labels": labels}});
            let path = format!("{path}?fieldManager={}", self.context.field_manager);
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

    /// Whether an object was not given its labels a moment ago already.
    pub(crate) fn may_label(&self, path: &str) -> bool {
        let mut labelled = self.labelled.lock().unwrap_or_else(PoisonError::into_inner);
        labelled.retain(|_, when| when.elapsed() < LABELLED);
        match labelled.entry(path.to_owned()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(Instant::now());
                true
            }
        }
    }

    /// The error for a name that another object has. Its advice must not lead to a loss: orphaned objects look like this, too.
    fn taken(&self, desired: &Desired, metadata: &ObjectMeta) -> Error {
        let is_namesake = |other: &&OwnerReference| {
            let owners = desired.value["metadata"]["ownerReferences"].as_array();
            owners.into_iter().flatten().any(|own| own["kind"] == other.kind && own["name"] == other.name)
        };
        let remedy = match controller_of(metadata) {
            Some(former) if is_namesake(&former) => {
                "belongs to a former object of this name that was deleted: it is recreated when it is gone".into()
            }
            Some(other) => {
                format!(
                    "belongs to {} {}, so it is left alone: give one of the two another name",
                    other.kind, other.name
                )
            }
            None if !self.adopted().contains(&desired.collection) => {
                "has no owner, so it is left alone: rename it, or delete it if nobody needs it".into()
            }
            None => format!(
                "has no owner, so it is left alone. If a former object of this name left it, add the labels that the operator's \
                 objects have and the annotation {} with the name of the new object: the operator adopts it. Only if nobody needs \
                 it, rename or delete it",
                self.context.adoption_annotation.unwrap_or_default()
            ),
        };
        Error::Taken { kind: desired.kind.clone(), key: desired.key.clone(), remedy }
    }

    /// Makes `owner` the controller of an orphan; false where the orphan is gone.
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
        let address = format!("{path}/{}?fieldManager={}", key.name, self.context.field_manager);
        match self.send(Method::PATCH, &address, "application/merge-patch+json", &patch).await {
            Ok(metadata) => {
                info!(kind, object = %key, "adopted");
                expectations.push(Expectation::seen(collection, &key, &metadata));
                Ok(true)
            }
            // It is gone, which the watch will tell.
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(false),
            Err(error) => Err(self.failed(doing, error, collection, path, &key, expectations)),
        }
    }

    /// Applies what is wanted to an object that is there, and to no other of its name, nor to another version of it where
    /// one is given.
    async fn patch(
        &self,
        desired: &Desired,
        metadata: &ObjectMeta,
        of_version: Option<String>,
        expectations: &mut Vec<Expectation>,
    ) -> Result<Version, Error> {
        let doing = || format!("changing {}", desired.named());
        let path =
            format!("{}/{}?fieldManager={}&force=true", desired.path, desired.key.name, self.context.field_manager);
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

    /// What we created is recorded as ours in another way than what we apply, and what a predecessor wrote is recorded as its
    /// own, so that fields which we do not apply would stay. This records all of it as applied by us, and returns the version
    /// that comes of it.
    async fn own_as_applied(
        &self,
        desired: &Desired,
        metadata: &ObjectMeta,
        of_version: Option<&str>,
        expectations: &mut Vec<Expectation>,
    ) -> Result<Option<String>, Error> {
        let doing = || format!("taking over the fields of {}", desired.named());
        let mut records = [self.records(metadata), self.former_records(metadata)].concat();
        // Those behind the first are removed from the last one on.
        records.sort_by_key(|(place, _)| *place);
        let state_labels = self.context.predecessor.map_or(&[][..], |predecessor| predecessor.state_labels);
        let manager = self.context.field_manager;
        let patch = applied_records(metadata.uid.as_deref(), of_version, manager, state_labels, &records);
        let path = format!("{}/{}", desired.path, desired.key.name);
        match self.send(Method::PATCH, &path, "application/json-patch+json", &patch).await {
            Ok(metadata) => {
                expectations.push(Expectation::seen(&desired.collection, &desired.key, &metadata));
                Ok(metadata.resource_version)
            }
            // A test that fails says that the object has changed meanwhile.
            Err(kube::Error::Api(status)) if status.code == 422 => {
                expectations.push(Expectation::doubt(&desired.collection, &desired.path, &desired.key));
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
        self.are_as_seen(doing, &object.preconditions, decision, expectations).await?;
        let path = format!("{}/{}", object.path, object.key.name);
        let options = object.deletion();
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

    /// A request that was not answered may have been carried out, and one that met another version was made from a cache
    /// that is late: nothing more is written before it is known what there is.
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
        if error.leaves_doubt() {
            expectations.push(Expectation::doubt(collection, path, key));
        }
        error
    }

    async fn send(&self, method: Method, path: &str, content: &str, value: &Value) -> kube::Result<ObjectMeta> {
        send(&self.client, method, path, content, value).await
    }

    /// Collections of which orphaned objects are adopted.
    pub(crate) fn adopted(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.adopted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn certain(&self) -> std::sync::MutexGuard<'_, HashMap<(String, ObjectKey), (String, Version)>> {
        self.certain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn written(&self) -> std::sync::MutexGuard<'_, HashMap<(String, ObjectKey), String>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets objects that are gone.
    pub(crate) fn forget_missing(&self) {
        let is_there = |(collection, key): &(String, ObjectKey)| {
            self.collections.get(collection).is_some_and(|collection| collection.seen(key).is_some())
        };
        self.certain().retain(|id, _| is_there(id));
        self.written().retain(|id, _| is_there(id));
    }
}
