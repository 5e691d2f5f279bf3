//! Objects that others refer to but do not own, such as a user's Secret.
//!
//! One watch per kind reports changes, with metadata only; events of objects without a referrer are dropped as they
//! arrive. A referenced object is read when it is first needed, and again after it has changed. So memory is
//! proportional to the number of referenced objects, and requests to the number of their changes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kube::{
    Client,
    api::Request,
    core::{PartialObjectMeta, PartialObjectMetaExt as _},
};

use crate::{
    error::Error,
    queue::ObjectKey,
    store::{Change, Entry, Kind, Store, version_of},
};

type Listener = Box<dyn Fn(ObjectKey) + Send + Sync>;

/// The objects of one kind that others refer to.
pub struct References<K> {
    client: Client,
    metadata: Arc<Store<PartialObjectMeta<K>>>,
    state: Arc<Mutex<State<K>>>,
}

/// An object of a controller that refers to another object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Referrer {
    controller: &'static str,
    key: ObjectKey,
}

struct State<K> {
    /// Metadata of objects with these names are always cached, so that no request is needed if they do not exist.
    well_known_names: BTreeSet<&'static str>,
    referenced: HashMap<ObjectKey, Referenced<K>>,
    by_referrer: HashMap<Referrer, BTreeSet<ObjectKey>>,
    listeners: HashMap<&'static str, Listener>,
}

/// An object with at least one referrer.
struct Referenced<K> {
    referrers: BTreeSet<Referrer>,
    cached: Cached<K>,
    /// The number of changes that the watch has reported.
    changes: u64,
}

enum Cached<K> {
    /// It is yet to be read.
    Nothing,
    Absent,
    Present(Arc<K>),
}

impl<K> Debug for References<K> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("References")
            .field("named", &locked(&self.state).referenced.len())
            .finish_non_exhaustive()
    }
}

impl<K> References<K>
where
    K: Kind,
    PartialObjectMeta<K>: Kind,
{
    pub(crate) fn new(
        client: Client,
        metadata: Arc<Store<PartialObjectMeta<K>>>,
        well_known_names: &[&'static str],
    ) -> Arc<Self> {
        let state = State {
            well_known_names: well_known_names.iter().copied().collect(),
            referenced: HashMap::new(),
            by_referrer: HashMap::new(),
            listeners: HashMap::new(),
        };
        let state = Arc::new(Mutex::new(state));
        let own_state = Arc::downgrade(&state);
        metadata.on_change(move |change| {
            if let Some(state) = own_state.upgrade() {
                locked(&state).handle_change(change);
            }
        });
        Arc::new(Self { client, metadata, state })
    }

    pub(crate) fn add_well_known_names(&self, names: &[&'static str]) {
        locked(&self.state).well_known_names.extend(names);
    }

    /// The name of the collection of their metadata.
    pub(crate) fn collection() -> String {
        format!("{} by reference", K::url_path(&(), None))
    }

    /// Returns the filter of the watch: whether the metadata of an object are cached.
    pub(crate) fn filter(&self) -> impl Fn(&ObjectKey) -> bool + Send + Sync + 'static {
        let state = Arc::clone(&self.state);
        move |key| {
            let state = locked(&state);
            state.well_known_names.contains(key.name.as_str()) || state.referenced.contains_key(key)
        }
    }

    /// Reads the objects with these names in the referrer's namespace, and returns those that exist, by name. The
    /// referrer is requeued when one of them changes, until it refers to others.
    pub async fn read(
        &self,
        controller: &'static str,
        referrer: &ObjectKey,
        names: BTreeSet<String>,
    ) -> Result<BTreeMap<String, Arc<K>>, Error> {
        let key_of = |name: &String| ObjectKey { namespace: referrer.namespace.clone(), name: name.clone() };
        let referrer = Referrer { controller, key: referrer.clone() };
        // Before anything is read, so that no change is missed.
        locked(&self.state).refer(referrer, names.iter().map(key_of).collect());
        let mut objects = BTreeMap::new();
        for name in names {
            if let Some(object) = self.one(&key_of(&name)).await? {
                objects.insert(name, object);
            }
        }
        Ok(objects)
    }

    /// Removes a referrer.
    pub(crate) fn forget(&self, controller: &'static str, referrer: &ObjectKey) {
        locked(&self.state).refer(Referrer { controller, key: referrer.clone() }, BTreeSet::new());
    }

    /// Calls `listener` with the objects of a controller that refer to a changed object.
    pub(crate) fn on_change(&self, controller: &'static str, listener: impl Fn(ObjectKey) + Send + Sync + 'static) {
        locked(&self.state).listeners.insert(controller, Box::new(listener));
    }

    async fn one(&self, key: &ObjectKey) -> Result<Option<Arc<K>>, Error> {
        let (changes, is_well_known) = {
            let state = locked(&self.state);
            let changes = match state.referenced.get(key) {
                Some(Referenced { cached: Cached::Present(object), .. }) => return Ok(Some(Arc::clone(object))),
                Some(Referenced { cached: Cached::Absent, .. }) => return Ok(None),
                Some(referenced) => referenced.changes,
                // It has no referrer any more: the object that is read now is not cached.
                None => u64::MAX,
            };
            (changes, state.well_known_names.contains(key.name.as_str()))
        };
        let is_known_absent = is_well_known && self.metadata.version() > 0 && self.metadata.get(key)?.is_none();
        let object = if is_known_absent { None } else { self.get(key).await? };
        let is_kept =
            match locked(&self.state).referenced.get_mut(key).filter(|referenced| referenced.changes == changes) {
                Some(referenced) => {
                    referenced.cached = object.clone().map_or(Cached::Absent, Cached::Present);
                    true
                }
                None => false,
            };
        if let Some(object) = object.as_ref().filter(|_| is_kept) {
            let version = version_of(object.meta());
            let mut metadata = object.meta().clone().into_response_partial::<K>();
            trim(&mut metadata);
            self.metadata.put_read(key.clone(), Entry { version, object: Ok(Arc::new(metadata)) });
        }
        Ok(object)
    }

    async fn get(&self, key: &ObjectKey) -> Result<Option<Arc<K>>, Error> {
        if !key.is_possible() {
            return Ok(None);
        }
        let doing = || format!("reading {} {key}", K::kind(&()));
        let request = Request::new(K::url_path(&(), key.namespace.as_deref()));
        // Without a resource version, it is a consistent read.
        let request = request.get(&key.name, &kube::api::GetParams::default());
        let request = request.map_err(|error| Error::of(doing, kube::Error::BuildRequest(error)))?;
        match self.client.request::<K>(request).await {
            Ok(mut object) => {
                object.meta_mut().managed_fields = None;
                Ok(Some(Arc::new(object)))
            }
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
            Err(error) => Err(Error::of(doing, error)),
        }
    }
}

impl<K: Kind> State<K> {
    /// Replaces the objects that a referrer refers to.
    fn refer(&mut self, referrer: Referrer, keys: BTreeSet<ObjectKey>) {
        let before = match keys.is_empty() {
            true => self.by_referrer.remove(&referrer),
            false => self.by_referrer.insert(referrer.clone(), keys.clone()),
        };
        for key in before.iter().flatten().filter(|key| !keys.contains(*key)) {
            if let Some(referenced) = self.referenced.get_mut(key) {
                referenced.referrers.remove(&referrer);
                if referenced.referrers.is_empty() {
                    self.referenced.remove(key);
                }
            }
        }
        for key in keys {
            let new = || Referenced { referrers: BTreeSet::new(), cached: Cached::Nothing, changes: 0 };
            self.referenced.entry(key).or_insert_with(new).referrers.insert(referrer.clone());
        }
    }

    /// Handles a change that the watch reports: requeues the referrers, which read the object again.
    fn handle_change(&mut self, change: &Change<PartialObjectMeta<K>>)
    where
        PartialObjectMeta<K>: Kind,
    {
        let Some(referenced) = self.referenced.get_mut(&change.key) else { return };
        let version = change.after.as_ref().map(|metadata| version_of(&metadata.metadata));
        if let Cached::Present(object) = &referenced.cached
            && version == Some(version_of(object.meta()))
        {
            return;
        }
        referenced.cached = Cached::Nothing;
        referenced.changes += 1;
        for referrer in &referenced.referrers {
            if let Some(listener) = self.listeners.get(referrer.controller) {
                listener(referrer.key.clone());
            }
        }
    }
}

/// Removes all metadata but those that identify the object and its version.
pub(crate) fn trim<K>(object: &mut PartialObjectMeta<K>) {
    let metadata = std::mem::take(&mut object.metadata);
    object.metadata = kube::api::ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        ..kube::api::ObjectMeta::default()
    };
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::convert::Infallible;

    use http::{Request as HttpRequest, Response, StatusCode};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::client::Body;
    use serde_json::json;
    use tower::service_fn;

    use super::*;
    use crate::store::Version;

    /// An API server with ConfigMaps by name and version, a simulated watch, and the referrers that were requeued.
    struct World {
        there: Arc<Mutex<BTreeMap<&'static str, Version>>>,
        requests: Arc<Mutex<Vec<String>>>,
        requeued: Arc<Mutex<Vec<String>>>,
        references: Arc<References<ConfigMap>>,
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: Some("shop".into()), name: name.into() }
    }

    impl World {
        fn new(there: &[(&'static str, Version)]) -> Self {
            let there = Arc::new(Mutex::new(there.iter().copied().collect::<BTreeMap<_, _>>()));
            let (requests, requeued) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<Mutex<Vec<String>>>::default());
            let (kept, asked) = (Arc::clone(&there), Arc::clone(&requests));
            let server = service_fn(move |request: HttpRequest<Body>| {
                let name = request.uri().path().rsplit('/').next().unwrap().to_owned();
                let version = locked(&kept).get(name.as_str()).copied();
                locked(&asked).push(name.clone());
                let (status, body) = match version {
                    Some(version) => (
                        StatusCode::OK,
                        json!({
                            "apiVersion": "v1", "kind": "ConfigMap", "data": {"version": version.to_string()},
                            "metadata": {"name": name, "namespace": "shop", "resourceVersion": version.to_string()},
                        }),
                    ),
                    None => (
                        StatusCode::NOT_FOUND,
                        json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": ""}),
                    ),
                };
                let response = Response::builder().status(status).body(Body::from(body.to_string().into_bytes()));
                async move { Ok::<_, Infallible>(response.unwrap()) }
            });
            let references = References::new(Client::new(server, "shop"), Arc::default(), &["usual"]);
            let requeued_keys = Arc::clone(&requeued);
            references.on_change("toy", move |key| locked(&requeued_keys).push(key.name));
            let world = Self { there, requests, requeued, references };
            world.list(1);
            world
        }

        /// The watch begins with a list of the objects that pass the filter.
        fn list(&self, version: Version) {
            let filter = self.references.filter();
            let all = locked(&self.there).clone();
            let kept = all.into_iter().map(|(name, version)| (key(name), entry(name, version)));
            self.references.metadata.replace(kept.filter(|(key, _)| filter(key)).collect(), version).unwrap();
        }

        /// An object changes, and the watch reports it.
        fn change(&self, name: &'static str, version: Version) {
            locked(&self.there).insert(name, version);
            self.report(name, version);
        }

        fn report(&self, name: &'static str, version: Version) {
            if self.references.filter()(&key(name)) {
                self.references.metadata.put(key(name), entry(name, version));
            }
        }

        fn delete(&self, name: &'static str, version: Version) {
            locked(&self.there).remove(name);
            self.references.metadata.remove(key(name), version);
        }

        /// Returns what a referrer reads.
        async fn read(&self, referrer: &str, names: &[&str]) -> Vec<String> {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            let found = self.references.read("toy", &key(referrer), names).await.unwrap();
            found
                .into_iter()
                .map(|(name, object)| format!("{name} {}", object.data.as_ref().unwrap()["version"]))
                .collect()
        }

        /// Returns the requests since the last call.
        fn requests(&self) -> Vec<String> {
            std::mem::take(&mut *locked(&self.requests))
        }

        fn requeued(&self) -> Vec<String> {
            std::mem::take(&mut *locked(&self.requeued))
        }
    }

    fn entry(name: &str, version: Version) -> Entry<PartialObjectMeta<ConfigMap>> {
        let metadata = kube::api::ObjectMeta {
            name: Some(name.into()),
            namespace: Some("shop".into()),
            resource_version: Some(version.to_string()),
            ..kube::api::ObjectMeta::default()
        };
        Entry { version, object: Ok(Arc::new(metadata.into_response_partial())) }
    }

    #[tokio::test]
    async fn object_is_read_once_and_again_after_it_has_changed() {
        let world = World::new(&[("mine", 5)]);
        assert_eq!(world.read("a", &["mine"]).await, ["mine 5"]);
        assert_eq!(world.read("a", &["mine"]).await, ["mine 5"]);
        assert_eq!(world.read("b", &["mine"]).await, ["mine 5"]);
        assert_eq!(world.requests(), ["mine"], "one request for all referrers");
        world.report("mine", 5);
        assert_eq!(world.requeued(), [""; 0], "the same version is no change");
        world.change("mine", 7);
        assert_eq!(world.requeued(), ["a", "b"]);
        assert_eq!(world.read("a", &["mine"]).await, ["mine 7"]);
        world.delete("mine", 9);
        assert_eq!(world.requeued(), ["a", "b"]);
        assert_eq!(world.read("b", &["mine"]).await, [""; 0]);
        assert_eq!(world.read("a", &["mine"]).await, [""; 0]);
        assert_eq!(world.requests(), ["mine", "mine"]);
        world.change("mine", 11);
        assert_eq!(world.requeued(), ["a", "b"]);
        assert_eq!(world.read("a", &["mine"]).await, ["mine 11"]);
    }

    #[tokio::test]
    async fn missing_objects_with_well_known_names_cost_no_request() {
        let world = World::new(&[]);
        assert_eq!(world.read("a", &["usual"]).await, [""; 0]);
        assert_eq!(world.requests(), [""; 0]);
        world.change("usual", 5);
        assert_eq!(world.requeued(), ["a"]);
        assert_eq!(world.read("a", &["usual"]).await, ["usual 5"]);
    }

    #[tokio::test]
    async fn deletion_that_the_watch_missed_is_found_in_its_next_list() {
        let world = World::new(&[("mine", 5)]);
        assert_eq!(world.read("a", &["mine"]).await, ["mine 5"]);
        locked(&world.there).clear();
        world.list(20);
        assert_eq!(world.requeued(), ["a"]);
        assert_eq!(world.read("a", &["mine"]).await, [""; 0]);
    }

    #[tokio::test]
    async fn objects_without_a_referrer_are_not_cached() {
        let world = World::new(&[("mine", 5), ("other", 6)]);
        assert!(world.references.metadata.is_empty());
        world.change("other", 8);
        assert!(world.references.metadata.is_empty());
        world.read("a", &["mine"]).await;
        world.read("a", &["other"]).await;
        assert_eq!(locked(&world.references.state).referenced.len(), 1);
        world.change("mine", 10);
        assert_eq!(world.requeued(), [""; 0], "it has no referrer any more");
        world.references.forget("toy", &key("a"));
        let state = locked(&world.references.state);
        assert!(state.referenced.is_empty() && state.by_referrer.is_empty());
    }

    #[tokio::test]
    async fn object_that_is_deleted_during_its_first_read_is_read_again() {
        let world = World::new(&[("mine", 5)]);
        locked(&world.references.state).refer(Referrer { controller: "toy", key: key("a") }, [key("mine")].into());
        let key = key("mine");
        // The answer is under way when the watch reports the deletion.
        let read = world.references.one(&key);
        let reported = async { world.references.metadata.remove(key.clone(), 7) };
        let (object, ()) = tokio::join!(read, reported);
        assert!(object.unwrap().is_some(), "the answer is older");
        assert_eq!(world.requeued(), ["a"]);
        locked(&world.there).clear();
        assert_eq!(world.read("a", &["mine"]).await, [""; 0]);
    }

    #[tokio::test]
    async fn object_that_changes_during_a_read_is_read_again() {
        let world = World::new(&[("mine", 5)]);
        locked(&world.references.state).refer(Referrer { controller: "toy", key: key("a") }, [key("mine")].into());
        // The answer is under way when the watch reports a later version.
        let key = key("mine");
        let read = world.references.one(&key);
        let reported = async { world.report("mine", 7) };
        let (object, ()) = tokio::join!(read, reported);
        assert_eq!(version_of(&object.unwrap().unwrap().metadata), 5);
        locked(&world.there).insert("mine", 7);
        assert_eq!(world.read("a", &["mine"]).await, ["mine 7"]);
    }
}
