//! The cache of the objects of one kind, fed by one watch and shared by all its readers.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Debug,
    panic::AssertUnwindSafe,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, api::ObjectMeta};
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::watch;

use crate::queue::ObjectKey;

/// A kind of object that can be watched.
pub trait Kind:
    Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static
{
}

impl<K> Kind for K where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static
{
}

/// A resource version. Later ones are greater.
pub type Version = u64;

/// Returns the resource version of an object.
pub fn version_of(metadata: &ObjectMeta) -> Version {
    metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// Returns namespace and name of an object.
pub fn key_of(metadata: &ObjectMeta) -> ObjectKey {
    ObjectKey { namespace: metadata.namespace.clone(), name: metadata.name.clone().unwrap_or_default() }
}

/// Returns the owner reference to the controller of an object.
pub fn controller_of(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// An object that exists and cannot be read, because it does not match the type of its kind.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{kind} {} cannot be read: {problem}", key_of(metadata))]
pub struct Unreadable {
    /// Its kind.
    pub kind: String,
    /// Its metadata, which identify it, its owner and the objects that it concerns.
    pub metadata: ObjectMeta,
    /// The error of decoding it.
    pub problem: String,
}

/// A cached object and its version.
#[derive(Clone, Debug)]
pub(crate) struct Entry<K> {
    pub(crate) version: Version,
    pub(crate) object: Result<Arc<K>, Arc<Unreadable>>,
}

impl<K: Kind> Entry<K> {
    pub(crate) fn controller(&self) -> Option<&str> {
        match &self.object {
            Ok(object) => controller_of(object.meta()).map(|owner| owner.uid.as_str()),
            Err(unreadable) => controller_of(&unreadable.metadata).map(|owner| owner.uid.as_str()),
        }
    }
}

/// A change of an object: created, updated or deleted.
#[derive(Clone, Debug)]
pub struct Change<K> {
    /// Namespace and name of the object.
    pub key: ObjectKey,
    /// The object before; none if it did not exist or could not be read.
    pub before: Option<Arc<K>>,
    /// The object after; none if it is deleted or cannot be read.
    pub after: Option<Arc<K>>,
    /// The object before, if it existed and could not be read.
    pub unreadable_before: Option<Arc<Unreadable>>,
    /// The object after, if it exists and cannot be read.
    pub unreadable_after: Option<Arc<Unreadable>>,
}

impl<K> Change<K> {
    /// The change of an object that could be read before and after, if it existed.
    pub fn new(key: ObjectKey, before: Option<Arc<K>>, after: Option<Arc<K>>) -> Self {
        Self { key, before, after, unreadable_before: None, unreadable_after: None }
    }

    /// Whether the object was deleted. One that cannot be read was not.
    pub fn is_gone(&self) -> bool {
        self.after.is_none() && self.unreadable_after.is_none()
    }
}

impl<K: Kind> Change<K> {
    /// Returns the metadata before the change, whether or not the object could be read.
    pub fn metadata_before(&self) -> Option<&ObjectMeta> {
        metadata(self.before.as_ref(), self.unreadable_before.as_ref())
    }

    /// Returns the metadata after the change, whether or not the object can be read.
    pub fn metadata_after(&self) -> Option<&ObjectMeta> {
        metadata(self.after.as_ref(), self.unreadable_after.as_ref())
    }

    /// Whether the object was deleted by this change and still exists, because it has a finalizer.
    pub fn begins_deletion(&self) -> bool {
        let is_deleted = |metadata: Option<&ObjectMeta>| metadata.is_some_and(|one| one.deletion_timestamp.is_some());
        is_deleted(self.metadata_after()) && !is_deleted(self.metadata_before())
    }

    /// Returns the metadata before and after the change. Which objects to requeue is decided from these: an object that
    /// cannot be read blocks the objects that need it, which must be requeued when it can be read again or is deleted.
    pub fn metadata(&self) -> impl Iterator<Item = &ObjectMeta> {
        [self.metadata_before(), self.metadata_after()].into_iter().flatten()
    }
}

fn metadata<'a, K: Kind>(
    readable: Option<&'a Arc<K>>,
    unreadable: Option<&'a Arc<Unreadable>>,
) -> Option<&'a ObjectMeta> {
    readable.map(|object| object.meta()).or(unreadable.map(|unreadable| &unreadable.metadata))
}

type Listener<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;

/// The cache of the objects of one kind, like an informer's.
pub struct Store<K> {
    state: RwLock<State<K>>,
    listeners: RwLock<Vec<Listener<K>>>,
    /// Called after all listeners.
    requeues: RwLock<Vec<Listener<K>>>,
    /// The resource version of the cache; zero until it has synced for the first time.
    version: watch::Sender<Version>,
    /// Whether the kind is known not to be installed; none if it is required.
    is_missing: watch::Sender<Option<bool>>,
    /// Whether the API server forbids reading the kind; none if the permission is required.
    is_forbidden: watch::Sender<Option<bool>>,
    /// Whether the API server forbids reading the kind although the permission is required: the cache is stale.
    is_refused: AtomicBool,
    permission_listeners: RwLock<Vec<Box<dyn Fn() + Send + Sync>>>,
}

#[derive(Debug)]
struct State<K> {
    objects: HashMap<ObjectKey, Entry<K>>,
    by_controller: HashMap<String, BTreeSet<ObjectKey>>,
    /// Those that have no controller.
    without_controller: BTreeSet<ObjectKey>,
    /// Lists of an earlier resource version are refused.
    min_version: Version,
}

/// A list is older than a resource version that was already observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the API server returned a list at resource version {given}, older than the observed resource version {known}")]
pub struct Outdated {
    /// The resource version of the list.
    pub given: Version,
    /// The resource version that was already observed.
    pub known: Version,
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        Self {
            state: RwLock::new(State {
                objects: HashMap::new(),
                by_controller: HashMap::new(),
                without_controller: BTreeSet::new(),
                min_version: 0,
            }),
            listeners: RwLock::default(),
            requeues: RwLock::default(),
            version: watch::Sender::new(0),
            is_missing: watch::Sender::new(None),
            is_forbidden: watch::Sender::new(None),
            is_refused: AtomicBool::new(false),
            permission_listeners: RwLock::default(),
        }
    }
}

impl<K> Debug for Store<K> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Store").field("version", &*self.version.borrow()).finish_non_exhaustive()
    }
}

impl<K: Kind> Store<K> {
    /// Returns an object; none if it does not exist.
    pub fn get(&self, key: &ObjectKey) -> Result<Option<Arc<K>>, Arc<Unreadable>> {
        self.read().objects.get(key).map(|entry| entry.object.clone()).transpose()
    }

    /// Returns the objects whose controller has this UID, in the order of their names. Fails if one of them cannot be
    /// read: it exists, so it must not be taken for missing.
    pub fn controlled_by(&self, uid: &str) -> Result<Vec<Arc<K>>, Arc<Unreadable>> {
        let state = self.read();
        let keys = state.by_controller.get(uid).into_iter().flatten();
        keys.filter_map(|key| state.objects.get(key)).map(|entry| entry.object.clone()).collect()
    }

    /// Returns the objects that have no controller and can be read, in the order of their names.
    pub fn without_controller(&self) -> Vec<Arc<K>> {
        let state = self.read();
        state.without_controller.iter().filter_map(|key| state.objects.get(key)?.object.clone().ok()).collect()
    }

    /// Returns all objects that can be read.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.read().objects.values().filter_map(|entry| entry.object.clone().ok()).collect()
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.read().objects.len()
    }

    /// Whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the objects that are selected by key and labels. Fails if one of them cannot be read: it exists, so it
    /// must not be taken for missing.
    pub fn select(
        &self,
        is_selected: impl Fn(&ObjectKey, &BTreeMap<String, String>) -> bool,
    ) -> Result<Vec<Arc<K>>, Arc<Unreadable>> {
        let none = BTreeMap::new();
        let state = self.read();
        let is_one = |(key, entry): &(&ObjectKey, &Entry<K>)| match &entry.object {
            Ok(object) => is_selected(key, object.meta().labels.as_ref().unwrap_or(&none)),
            Err(unreadable) => is_selected(key, unreadable.metadata.labels.as_ref().unwrap_or(&none)),
        };
        state.objects.iter().filter(is_one).map(|(_, entry)| entry.object.clone()).collect()
    }

    /// Returns the number of objects that cannot be read.
    pub fn unreadable(&self) -> usize {
        self.read().objects.values().filter(|entry| entry.object.is_err()).count()
    }

    /// Calls `listener` on every change from now on.
    pub fn on_change(&self, listener: impl Fn(&Change<K>) + Send + Sync + 'static) {
        self.listeners.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(listener));
    }

    /// Calls `requeue` on every change from now on, after all listeners: a worker may reconcile the object at once.
    pub(crate) fn requeue_on_change(&self, requeue: impl Fn(&Change<K>) + Send + Sync + 'static) {
        self.requeues.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(requeue));
    }

    /// Returns the resource version of the cache; zero until it has synced.
    pub fn version(&self) -> Version {
        *self.version.borrow()
    }

    /// Whether the kind is optional and known not to be installed.
    pub fn is_missing(&self) -> bool {
        self.version() == 0 && *self.is_missing.borrow() == Some(true)
    }

    /// Whether the permission to read the kind is optional and missing. The cache is then empty or stale.
    pub fn is_forbidden(&self) -> bool {
        *self.is_forbidden.borrow() == Some(true)
    }

    /// Whether the cache has not synced, or is stale because a required permission is missing.
    pub(crate) fn is_unsynced(&self) -> bool {
        let is_unknown = self.version() == 0 && !self.is_missing() && !self.is_forbidden();
        is_unknown || self.is_refused.load(Ordering::Relaxed)
    }

    /// Waits until the cache has synced or, for an optional kind, until it is known to be missing or forbidden.
    pub async fn wait_until_synced(&self) {
        let (mut version, mut is_missing) = (self.version.subscribe(), self.is_missing.subscribe());
        let mut is_forbidden = self.is_forbidden.subscribe();
        // The senders live as long as the store, so no channel is closed.
        tokio::select! {
            _ = version.wait_for(|version| *version > 0) => {}
            _ = is_missing.wait_for(|is_missing| *is_missing == Some(true)) => {}
            _ = is_forbidden.wait_for(|is_forbidden| *is_forbidden == Some(true)) => {}
        }
    }

    /// Makes the permission to read the kind optional: controllers work without it.
    pub(crate) fn may_be_forbidden(&self) {
        self.is_forbidden.send_replace(Some(false));
    }

    /// Calls `listener` when an optional permission to read the kind is granted or revoked.
    pub(crate) fn on_permission_change(&self, listener: impl Fn() + Send + Sync + 'static) {
        self.permission_listeners.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(listener));
    }

    /// Records whether the API server forbids reading the kind.
    pub(crate) fn set_forbidden(&self, is_forbidden: bool) {
        self.is_refused.store(is_forbidden && self.is_forbidden.borrow().is_none(), Ordering::Relaxed);
        let is_changed = self.is_forbidden.send_if_modified(|known| {
            known.is_some_and(|known| known != is_forbidden) && {
                *known = Some(is_forbidden);
                true
            }
        });
        if is_changed {
            let listeners = self.permission_listeners.read().unwrap_or_else(PoisonError::into_inner);
            listeners.iter().for_each(|listener| listener());
        }
    }

    /// Makes the kind optional: it need not be installed.
    pub(crate) fn may_be_missing(&self) {
        self.is_missing.send_replace(Some(false));
    }

    /// Records that the API server does not serve the kind.
    pub(crate) fn set_not_served(&self) {
        self.is_missing.send_if_modified(|is_missing| *is_missing == Some(false) && is_missing.replace(true).is_some());
    }

    /// Refuses lists that are older than this resource version.
    pub(crate) fn set_min_resource_version(&self, version: Version) {
        self.write().raise_min_version(version);
    }

    /// Replaces all objects by a list at resource version `version`.
    pub(crate) fn replace(&self, objects: HashMap<ObjectKey, Entry<K>>, version: Version) -> Result<(), Outdated> {
        let changes = {
            let mut state = self.write();
            if version < state.min_version {
                return Err(Outdated { given: version, known: state.min_version });
            }
            let gone: Vec<ObjectKey> =
                state.objects.keys().filter(|key| !objects.contains_key(*key)).cloned().collect();
            let mut changes: Vec<Change<K>> = gone.into_iter().filter_map(|key| state.put(key, None)).collect();
            changes.extend(objects.into_iter().filter_map(|(key, entry)| state.put(key, Some(entry))));
            state.min_version = version;
            changes
        };
        self.advance_and_notify(version, changes);
        Ok(())
    }

    /// Stores an object from a watch event. An event that is older than the cached object is ignored.
    pub(crate) fn put(&self, key: ObjectKey, entry: Entry<K>) {
        let version = entry.version;
        let change = self.write().put_newer(key, version, Some(entry));
        self.advance_and_notify(version, change);
    }

    /// Stores an object that was read with a GET. The version of the cache stays, because the watch may lag behind.
    pub(crate) fn put_read(&self, key: ObjectKey, entry: Entry<K>) {
        let version = entry.version;
        let change = self.write().put_newer(key, version, Some(entry));
        self.notify(change);
    }

    /// Removes an object that was deleted at this resource version.
    pub(crate) fn remove(&self, key: ObjectKey, version: Version) {
        let change = self.write().put_newer(key, version, None);
        self.advance_and_notify(version, change);
    }

    /// Raises the resource version of the cache: the watch has reached it, as a bookmark says.
    pub(crate) fn advance(&self, version: Version) {
        self.write().raise_min_version(version);
        self.version.send_if_modified(|known| {
            let is_newer = version > *known;
            *known = version.max(*known);
            is_newer
        });
    }

    /// Advances first, so that listeners find the cache up to date.
    fn advance_and_notify(&self, version: Version, changes: impl IntoIterator<Item = Change<K>>) {
        self.advance(version);
        self.notify(changes);
    }

    fn notify(&self, changes: impl IntoIterator<Item = Change<K>>) {
        let listeners = self.listeners.read().unwrap_or_else(PoisonError::into_inner);
        let requeues = self.requeues.read().unwrap_or_else(PoisonError::into_inner);
        for change in changes {
            for listener in listeners.iter().chain(requeues.iter()) {
                // The watch and the other listeners continue; the panic itself is logged by the panic hook.
                let _ = std::panic::catch_unwind(AssertUnwindSafe(|| listener(&change)));
            }
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, State<K>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<K>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Kind> State<K> {
    fn raise_min_version(&mut self, version: Version) {
        self.min_version = self.min_version.max(version);
    }

    fn put_newer(&mut self, key: ObjectKey, version: Version, entry: Option<Entry<K>>) -> Option<Change<K>> {
        let known = self.objects.get(&key).map_or(0, |known| known.version);
        if version < known { None } else { self.put(key, entry) }
    }

    /// Stores or removes an object. Returns the change, if there is any.
    fn put(&mut self, key: ObjectKey, entry: Option<Entry<K>>) -> Option<Change<K>> {
        let after = entry.as_ref().map(|entry| entry.object.clone());
        let version = entry.as_ref().map(|entry| entry.version);
        let controller = entry.as_ref().and_then(Entry::controller).map(str::to_owned);
        let old = match entry {
            Some(entry) => self.objects.insert(key.clone(), entry),
            None => self.objects.remove(&key),
        };
        if let Some(uid) = old.as_ref().and_then(Entry::controller).filter(|uid| controller.as_deref() != Some(uid))
            && let Some(keys) = self.by_controller.get_mut(uid)
        {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_controller.remove(uid);
            }
        }
        match controller {
            Some(uid) => {
                self.without_controller.remove(&key);
                self.by_controller.entry(uid).or_default().insert(key.clone());
            }
            None if version.is_some() => _ = self.without_controller.insert(key.clone()),
            None => _ = self.without_controller.remove(&key),
        }
        // A deletion is a change even if the object was not cached.
        if version.is_some() && old.as_ref().map(|old| old.version) == version {
            return None;
        }
        let (before, unreadable_before) = split(old.map(|old| old.object));
        let (after, unreadable_after) = split(after);
        Some(Change { key, before, after, unreadable_before, unreadable_after })
    }
}

/// Splits an object into a readable and an unreadable one.
fn split<K>(object: Option<Result<Arc<K>, Arc<Unreadable>>>) -> (Option<Arc<K>>, Option<Arc<Unreadable>>) {
    match object {
        Some(Ok(object)) => (Some(object), None),
        Some(Err(unreadable)) => (None, Some(unreadable)),
        None => (None, None),
    }
}

#[cfg(test)]
mod tests;
