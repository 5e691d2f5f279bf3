//! What is known of the objects of one kind, fed by one watch and shared by all who read it.

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

/// A state of the API server's storage. Later states have greater numbers.
pub type Version = u64;

/// The version that an object says it has.
pub fn version_of(metadata: &ObjectMeta) -> Version {
    metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// Which object it is.
pub fn key_of(metadata: &ObjectMeta) -> ObjectKey {
    ObjectKey { namespace: metadata.namespace.clone(), name: metadata.name.clone().unwrap_or_default() }
}

/// The one owner that keeps the object.
pub fn controller_of(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// An object that is there and cannot be read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{kind} {} cannot be read: {problem}", key_of(metadata))]
pub struct Unreadable {
    /// Its kind.
    pub kind: String,
    /// Its metadata, by which it is found and whom it concerns.
    pub metadata: ObjectMeta,
    /// What is wrong.
    pub problem: String,
}

/// An object as it was last seen.
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

/// What became of an object.
#[derive(Clone, Debug)]
pub struct Change<K> {
    /// Which object.
    pub key: ObjectKey,
    /// What it was; none where it was not there or could not be read.
    pub before: Option<Arc<K>>,
    /// What it is; none where it is gone or cannot be read.
    pub after: Option<Arc<K>>,
    /// What it was where it was there and could not be read.
    pub unreadable_before: Option<Arc<Unreadable>>,
    /// What it is where it is there and cannot be read.
    pub unreadable_after: Option<Arc<Unreadable>>,
}

impl<K> Change<K> {
    /// The change of an object that can be read, or is not there.
    pub fn new(key: ObjectKey, before: Option<Arc<K>>, after: Option<Arc<K>>) -> Self {
        Self { key, before, after, unreadable_before: None, unreadable_after: None }
    }

    /// Whether the object is gone. One that cannot be read is not.
    pub fn is_gone(&self) -> bool {
        self.after.is_none() && self.unreadable_after.is_none()
    }
}

impl<K: Kind> Change<K> {
    /// The metadata that the object had, whether or not it could be read.
    pub fn metadata_before(&self) -> Option<&ObjectMeta> {
        metadata(self.before.as_ref(), self.unreadable_before.as_ref())
    }

    /// The metadata that the object has, whether or not it can be read.
    pub fn metadata_after(&self) -> Option<&ObjectMeta> {
        metadata(self.after.as_ref(), self.unreadable_after.as_ref())
    }

    /// Both. Whom a change concerns is decided from these: an object that cannot be read holds up whoever needs it, and they
    /// have to be woken when it can be read again, or is gone.
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

/// The objects of one kind, as far as the watch has told of them.
pub struct Store<K> {
    state: RwLock<State<K>>,
    listeners: RwLock<Vec<Listener<K>>>,
    /// The state of the storage that this store shows; zero until it is complete for the first time.
    version: watch::Sender<Version>,
    /// Whether the kind is known not to be installed; none where it has to be.
    is_missing: watch::Sender<Option<bool>>,
    /// Whether the API server does not let us read the kind; none where it has to.
    is_forbidden: watch::Sender<Option<bool>>,
    /// Whether it does not, though it has to: what the store shows is old.
    is_refused: AtomicBool,
    permission_listeners: RwLock<Vec<Box<dyn Fn() + Send + Sync>>>,
}

#[derive(Debug)]
struct State<K> {
    objects: HashMap<ObjectKey, Entry<K>>,
    by_controller: HashMap<String, BTreeSet<ObjectKey>>,
    /// Those that have no controller.
    alone: BTreeSet<ObjectKey>,
    /// No list of an earlier state is believed.
    floor: Version,
}

/// A list shows a state that is older than one that is known to have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the API server gave a list of version {given}, although version {known} has already been")]
pub struct Outdated {
    /// What the list shows.
    pub given: Version,
    /// What was already seen.
    pub known: Version,
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        Self {
            state: RwLock::new(State {
                objects: HashMap::new(),
                by_controller: HashMap::new(),
                alone: BTreeSet::new(),
                floor: 0,
            }),
            listeners: RwLock::default(),
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
    /// One object.
    pub fn get(&self, key: &ObjectKey) -> Result<Option<Arc<K>>, Arc<Unreadable>> {
        self.read().objects.get(key).map(|entry| entry.object.clone()).transpose()
    }

    /// The objects whose controller has this UID, in order of their names. Fails when one of them cannot be read: it is
    /// there, so it may not be taken for missing.
    pub fn controlled_by(&self, uid: &str) -> Result<Vec<Arc<K>>, Arc<Unreadable>> {
        let state = self.read();
        let keys = state.by_controller.get(uid).into_iter().flatten();
        keys.filter_map(|key| state.objects.get(key)).map(|entry| entry.object.clone()).collect()
    }

    /// The objects that have no controller and can be read, in order of their names.
    pub fn without_controller(&self) -> Vec<Arc<K>> {
        let state = self.read();
        state.alone.iter().filter_map(|key| state.objects.get(key)?.object.clone().ok()).collect()
    }

    /// All objects that can be read.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.read().objects.values().filter_map(|entry| entry.object.clone().ok()).collect()
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.read().objects.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The objects for which this holds, by where they are and their labels. Fails when one of them cannot be read: it is
    /// there, so it may not be taken for missing.
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

    /// How many of them cannot be read.
    pub fn unreadable(&self) -> usize {
        self.read().objects.values().filter(|entry| entry.object.is_err()).count()
    }

    /// Calls `listener` at every change from now on.
    pub fn on_change(&self, listener: impl Fn(&Change<K>) + Send + Sync + 'static) {
        self.listeners.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(listener));
    }

    /// The state of the storage that this store shows; zero until it is complete.
    pub fn version(&self) -> Version {
        *self.version.borrow()
    }

    /// Whether the kind is known not to be installed, where that may be.
    pub fn is_missing(&self) -> bool {
        self.version() == 0 && *self.is_missing.borrow() == Some(true)
    }

    /// Whether the API server does not let us read the kind, where that may be. What the store shows is then nothing, or old.
    pub fn is_forbidden(&self) -> bool {
        *self.is_forbidden.borrow() == Some(true)
    }

    /// Whether it is still to be seen what there is.
    pub(crate) fn is_awaited(&self) -> bool {
        let is_unknown = self.version() == 0 && !self.is_missing() && !self.is_forbidden();
        is_unknown || self.is_refused.load(Ordering::Relaxed)
    }

    /// Waits until the store is complete; where the kind need not be installed or readable, until that is known.
    pub async fn complete(&self) {
        let (mut version, mut is_missing) = (self.version.subscribe(), self.is_missing.subscribe());
        let mut is_forbidden = self.is_forbidden.subscribe();
        // The senders live as long as the store, so they cannot be gone.
        tokio::select! {
            _ = version.wait_for(|version| *version > 0) => {}
            _ = is_missing.wait_for(|is_missing| *is_missing == Some(true)) => {}
            _ = is_forbidden.wait_for(|is_forbidden| *is_forbidden == Some(true)) => {}
        }
    }

    /// The work goes on without this kind, should the API server not let us read it.
    pub(crate) fn may_be_forbidden(&self) {
        self.is_forbidden.send_replace(Some(false));
    }

    /// Calls `listener` when the API server lets us read the kind from now on, or does not, where either may be.
    pub(crate) fn on_permission_change(&self, listener: impl Fn() + Send + Sync + 'static) {
        self.permission_listeners.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(listener));
    }

    /// Whether the API server lets us read the kind.
    pub(crate) fn set_forbidden(&self, is_forbidden: bool) {
        self.is_refused.store(is_forbidden && self.is_forbidden.borrow().is_none(), Ordering::Relaxed);
        let is_news = self.is_forbidden.send_if_modified(|known| {
            known.is_some_and(|known| known != is_forbidden) && {
                *known = Some(is_forbidden);
                true
            }
        });
        if is_news {
            let listeners = self.permission_listeners.read().unwrap_or_else(PoisonError::into_inner);
            listeners.iter().for_each(|listener| listener());
        }
    }

    /// The kind need not be installed.
    pub(crate) fn may_be_missing(&self) {
        self.is_missing.send_replace(Some(false));
    }

    /// The API server does not know the kind.
    pub(crate) fn not_served(&self) {
        self.is_missing.send_if_modified(|is_missing| *is_missing == Some(false) && is_missing.replace(true).is_some());
    }

    /// No list that is older than this is believed.
    pub(crate) fn min_resource_version(&self, version: Version) {
        let mut state = self.write();
        state.floor = state.floor.max(version);
    }

    /// Replaces everything by a list that shows the state `version`.
    pub(crate) fn replace(&self, objects: HashMap<ObjectKey, Entry<K>>, version: Version) -> Result<(), Outdated> {
        let changes = {
            let mut state = self.write();
            if version < state.floor {
                return Err(Outdated { given: version, known: state.floor });
            }
            let gone: Vec<ObjectKey> =
                state.objects.keys().filter(|key| !objects.contains_key(*key)).cloned().collect();
            let mut changes: Vec<Change<K>> = gone.into_iter().filter_map(|key| state.put(key, None)).collect();
            changes.extend(objects.into_iter().filter_map(|(key, entry)| state.put(key, Some(entry))));
            state.floor = version;
            changes
        };
        self.advance_and_tell(version, changes);
        Ok(())
    }

    /// Takes in what the watch says of one object. What is older than what is known is left out.
    pub(crate) fn put(&self, key: ObjectKey, entry: Entry<K>) {
        let version = entry.version;
        let change = self.write().put_newer(key, version, Some(entry));
        self.advance_and_tell(version, change);
    }

    /// Takes in an object that was read beside the watch, which may not have come as far.
    pub(crate) fn learn(&self, key: ObjectKey, entry: Entry<K>) {
        let version = entry.version;
        let change = self.write().put_newer(key, version, Some(entry));
        self.tell(change);
    }

    /// Takes in that an object went at this version.
    pub(crate) fn remove(&self, key: ObjectKey, version: Version) {
        let change = self.write().put_newer(key, version, None);
        self.advance_and_tell(version, change);
    }

    /// The watch says that nothing else happened up to this version.
    pub(crate) fn advance(&self, version: Version) {
        self.write().floor_at_least(version);
        self.version.send_if_modified(|known| {
            let is_news = version > *known;
            *known = version.max(*known);
            is_news
        });
    }

    /// Whoever hears of a change finds the store up to date.
    fn advance_and_tell(&self, version: Version, changes: impl IntoIterator<Item = Change<K>>) {
        self.advance(version);
        self.tell(changes);
    }

    fn tell(&self, changes: impl IntoIterator<Item = Change<K>>) {
        let listeners = self.listeners.read().unwrap_or_else(PoisonError::into_inner);
        for change in changes {
            for listener in listeners.iter() {
                // The watch and the other listeners go on; the panic itself is logged where it happens.
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
    fn floor_at_least(&mut self, version: Version) {
        self.floor = self.floor.max(version);
    }

    fn put_newer(&mut self, key: ObjectKey, version: Version, entry: Option<Entry<K>>) -> Option<Change<K>> {
        let known = self.objects.get(&key).map_or(0, |known| known.version);
        if version < known { None } else { self.put(key, entry) }
    }

    /// What changed, if anything did.
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
                self.alone.remove(&key);
                self.by_controller.entry(uid).or_default().insert(key.clone());
            }
            None if version.is_some() => _ = self.alone.insert(key.clone()),
            None => _ = self.alone.remove(&key),
        }
        // That something is gone is news, also where it was not known.
        if version.is_some() && old.as_ref().map(|old| old.version) == version {
            return None;
        }
        let (before, unreadable_before) = split(old.map(|old| old.object));
        let (after, unreadable_after) = split(after);
        Some(Change { key, before, after, unreadable_before, unreadable_after })
    }
}

/// An object that can be read, or one that cannot.
fn split<K>(object: Option<Result<Arc<K>, Arc<Unreadable>>>) -> (Option<Arc<K>>, Option<Arc<Unreadable>>) {
    match object {
        Some(Ok(object)) => (Some(object), None),
        Some(Err(unreadable)) => (None, Some(unreadable)),
        None => (None, None),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::sync::Mutex;

    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: Some("a".into()), name: name.into() }
    }

    fn entry(name: &str, controller: Option<&str>, version: Version) -> (ObjectKey, Entry<ConfigMap>) {
        let owner = |uid: &str| OwnerReference { uid: uid.into(), controller: Some(true), ..OwnerReference::default() };
        let metadata = ObjectMeta {
            name: Some(name.into()),
            namespace: Some("a".into()),
            resource_version: Some(version.to_string()),
            owner_references: controller.map(|uid| vec![owner(uid)]),
            ..ObjectMeta::default()
        };
        let object = ConfigMap { metadata, ..ConfigMap::default() };
        (key(name), Entry { version, object: Ok(Arc::new(object)) })
    }

    fn unreadable(name: &str, version: Version) -> (ObjectKey, Entry<ConfigMap>) {
        let owner = OwnerReference { uid: "owner".into(), controller: Some(true), ..OwnerReference::default() };
        let metadata = ObjectMeta {
            name: Some(name.into()),
            namespace: Some("a".into()),
            uid: Some("u".into()),
            owner_references: Some(vec![owner]),
            labels: Some([("of".to_owned(), "one".to_owned())].into()),
            ..ObjectMeta::default()
        };
        let problem = Unreadable { kind: "ConfigMap".into(), metadata, problem: "data: a number".into() };
        (key(name), Entry { version, object: Err(Arc::new(problem)) })
    }

    /// A store, and what its listener heard.
    fn store() -> (Store<ConfigMap>, Arc<Mutex<Vec<String>>>) {
        let heard = Arc::<Mutex<Vec<String>>>::default();
        let store = Store::default();
        let ear = Arc::clone(&heard);
        store.on_change(move |change: &Change<ConfigMap>| {
            let word = match (&change.before, &change.after) {
                (None, Some(_)) => "came",
                (Some(_), Some(_)) => "changed",
                (Some(_), None) => "went",
                (None, None) => "unknown",
            };
            ear.lock().unwrap().push(format!("{} {word}", change.key.name));
        });
        (store, heard)
    }

    fn names(objects: Result<Vec<Arc<ConfigMap>>, Arc<Unreadable>>) -> Vec<String> {
        objects.unwrap().iter().map(|object| object.metadata.name.clone().unwrap()).collect()
    }

    #[test]
    fn a_list_replaces_what_was_known_and_tells_only_of_changes() {
        let (store, heard) = store();
        assert_eq!(store.version(), 0);
        store.replace([entry("x", None, 1), entry("y", None, 2)].into(), 5).unwrap();
        assert_eq!(store.version(), 5);
        heard.lock().unwrap().clear();
        store.replace([entry("y", None, 2), entry("z", None, 7)].into(), 8).unwrap();
        let mut heard = heard.lock().unwrap().clone();
        heard.sort();
        assert_eq!(heard, ["x went", "z came"]);
    }

    #[test]
    fn a_list_older_than_what_was_seen_is_refused() {
        let (store, _) = store();
        store.replace([entry("x", None, 1)].into(), 5).unwrap();
        store.advance(9);
        assert_eq!(store.replace(HashMap::new(), 8), Err(Outdated { given: 8, known: 9 }));
        assert_eq!(store.len(), 1);
        store.min_resource_version(20);
        assert_eq!(store.replace(HashMap::new(), 19), Err(Outdated { given: 19, known: 20 }));
    }

    #[test]
    fn news_older_than_what_is_known_is_left_out() {
        let (store, heard) = store();
        store.replace([entry("x", Some("new"), 7)].into(), 7).unwrap();
        let (key, old) = entry("x", Some("old"), 3);
        store.put(key.clone(), old);
        store.remove(key, 6);
        assert_eq!(names(store.controlled_by("new")), ["x"]);
        assert_eq!(*heard.lock().unwrap(), ["x came"]);
    }

    #[test]
    fn objects_are_found_by_their_controller() {
        let (store, _) = store();
        store.replace([entry("x", Some("one"), 1), entry("y", Some("one"), 1), entry("z", None, 1)].into(), 1).unwrap();
        assert_eq!(names(store.controlled_by("one")), ["x", "y"]);
        let (key, other) = entry("x", Some("two"), 2);
        store.put(key.clone(), other);
        assert_eq!(names(store.controlled_by("one")), ["y"]);
        assert_eq!(names(store.controlled_by("two")), ["x"]);
        store.remove(key, 3);
        assert_eq!(names(store.controlled_by("two")), Vec::<String>::new());
    }

    #[test]
    fn changes_of_unreadable_objects_name_whom_they_concern() {
        let store = Store::<ConfigMap>::default();
        let seen = Arc::<Mutex<Vec<(Option<String>, Option<String>, bool)>>>::default();
        let own = Arc::clone(&seen);
        store.on_change(move |change: &Change<ConfigMap>| {
            let owner = |metadata: Option<&ObjectMeta>| metadata.and_then(controller_of).map(|owner| owner.uid.clone());
            let (before, after) = (owner(change.metadata_before()), owner(change.metadata_after()));
            own.lock().unwrap().push((before, after, change.is_gone()));
        });
        let owner = || Some("owner".to_owned());
        for ((key, entry), expected) in [
            (unreadable("x", 1), (None, owner(), false)),
            (unreadable("x", 2), (owner(), owner(), false)),
            (self::entry("x", Some("owner"), 3), (owner(), owner(), false)),
            (unreadable("x", 4), (owner(), owner(), false)),
        ] {
            store.put(key, entry);
            assert_eq!(seen.lock().unwrap().pop(), Some(expected));
        }
        store.remove(key("x"), 5);
        assert_eq!(seen.lock().unwrap().pop(), Some((owner(), None, true)), "whoever it held up is woken");
    }

    #[test]
    fn a_kind_that_may_not_be_read_any_more_is_awaited_where_it_has_to_be_read() {
        let [required, optional] = [Store::<ConfigMap>::default(), Store::<ConfigMap>::default()];
        optional.may_be_forbidden();
        for store in [&required, &optional] {
            store.replace(HashMap::new(), 1).unwrap();
            assert!(!store.is_awaited());
            store.set_forbidden(true);
        }
        assert_eq!((required.is_awaited(), optional.is_awaited()), (true, false));
        required.set_forbidden(false);
        assert!(!required.is_awaited());
    }

    #[test]
    fn what_cannot_be_read_is_not_missing() {
        let (store, _) = store();
        store.replace([unreadable("x", 1), entry("y", Some("owner"), 1)].into(), 1).unwrap();
        assert!(store.get(&key("x")).is_err());
        assert!(store.controlled_by("owner").is_err());
        assert_eq!(names(Ok(store.all())), ["y"]);
        let of = |whom: &'static str| {
            move |_: &ObjectKey, labels: &BTreeMap<String, String>| labels.get("of").is_some_and(|one| one == whom)
        };
        assert!(store.select(of("one")).is_err(), "it concerns those whose it is");
        assert_eq!(names(store.select(of("another"))), Vec::<String>::new(), "and nobody else");
        assert_eq!((store.len(), store.unreadable()), (2, 1));
    }
}
