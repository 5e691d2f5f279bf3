//! Objects that others name and do not own, such as a user's Secret.
//!
//! One watch for each kind tells what changes, and of all objects nothing but their metadata; what nobody names is left out
//! while it streams. An object that somebody names is read when it is needed for the first time, and again after it has
//! changed. So memory goes with what is named, and requests go with its changes.

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

/// The objects of one kind that others name.
pub struct References<K> {
    client: Client,
    metadata: Arc<Store<PartialObjectMeta<K>>>,
    state: Arc<Mutex<State<K>>>,
}

/// Who names an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Referrer {
    controller: &'static str,
    key: ObjectKey,
}

struct State<K> {
    /// Of objects with these names metadata is always kept, so that nobody has to ask whether they are there.
    usual_names: BTreeSet<&'static str>,
    named: HashMap<ObjectKey, Named<K>>,
    by_referrer: HashMap<Referrer, BTreeSet<ObjectKey>>,
    listeners: HashMap<&'static str, Listener>,
}

/// An object that somebody names.
struct Named<K> {
    referrers: BTreeSet<Referrer>,
    known: Known<K>,
    /// How often the watch told of it.
    changes: u64,
}

enum Known<K> {
    /// It is to be read.
    Nothing,
    Absent,
    Present(Arc<K>),
}

impl<K> Debug for References<K> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("References").field("named", &locked(&self.state).named.len()).finish_non_exhaustive()
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
        usual_names: &[&'static str],
    ) -> Arc<Self> {
        let state = State {
            usual_names: usual_names.iter().copied().collect(),
            named: HashMap::new(),
            by_referrer: HashMap::new(),
            listeners: HashMap::new(),
        };
        let state = Arc::new(Mutex::new(state));
        let own_state = Arc::downgrade(&state);
        metadata.on_change(move |change| {
            if let Some(state) = own_state.upgrade() {
                locked(&state).take_in(change);
            }
        });
        Arc::new(Self { client, metadata, state })
    }

    /// What the store of their metadata is called among those of a process.
    pub(crate) fn collection() -> String {
        format!("{} by reference", K::url_path(&(), None))
    }

    /// What the watch keeps of what it hears.
    pub(crate) fn filter(&self) -> impl Fn(&ObjectKey) -> bool + Send + Sync + 'static {
        let state = Arc::clone(&self.state);
        move |key| {
            let state = locked(&state);
            state.usual_names.contains(key.name.as_str()) || state.named.contains_key(key)
        }
    }

    /// Those of the objects that an object of a controller names that are there, by name. They are in its namespace. It is
    /// looked at again when one of them changes, until it names others.
    pub async fn read(
        &self,
        controller: &'static str,
        referrer: &ObjectKey,
        names: BTreeSet<String>,
    ) -> Result<BTreeMap<String, Arc<K>>, Error> {
        let key_of = |name: &String| ObjectKey { namespace: referrer.namespace.clone(), name: name.clone() };
        let referrer = Referrer { controller, key: referrer.clone() };
        // Before anything is read: from now on nothing is missed that changes.
        locked(&self.state).refer(referrer, names.iter().map(key_of).collect());
        let mut objects = BTreeMap::new();
        for name in names {
            if let Some(object) = self.one(&key_of(&name)).await? {
                objects.insert(name, object);
            }
        }
        Ok(objects)
    }

    /// An object names nothing any more.
    pub(crate) fn forget(&self, controller: &'static str, referrer: &ObjectKey) {
        locked(&self.state).refer(Referrer { controller, key: referrer.clone() }, BTreeSet::new());
    }

    /// Calls `listener` with the objects of a controller that name something that has changed.
    pub(crate) fn on_change(&self, controller: &'static str, listener: impl Fn(ObjectKey) + Send + Sync + 'static) {
        locked(&self.state).listeners.insert(controller, Box::new(listener));
    }

    async fn one(&self, key: &ObjectKey) -> Result<Option<Arc<K>>, Error> {
        let (changes, is_usual) = {
            let state = locked(&self.state);
            let changes = match state.named.get(key) {
                Some(Named { known: Known::Present(object), .. }) => return Ok(Some(Arc::clone(object))),
                Some(Named { known: Known::Absent, .. }) => return Ok(None),
                Some(named) => named.changes,
                // It is named by another object meanwhile, or by none: whatever is read now is not kept.
                None => u64::MAX,
            };
            (changes, state.usual_names.contains(key.name.as_str()))
        };
        let is_known_absent = is_usual && self.metadata.version() > 0 && self.metadata.get(key)?.is_none();
        let object = if is_known_absent { None } else { self.get(key).await? };
        let is_kept = match locked(&self.state).named.get_mut(key).filter(|named| named.changes == changes) {
            Some(named) => {
                named.known = object.clone().map_or(Known::Absent, Known::Present);
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
        // Without a version: the newest that there is.
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
    /// What an object names from now on.
    fn refer(&mut self, referrer: Referrer, keys: BTreeSet<ObjectKey>) {
        let before = match keys.is_empty() {
            true => self.by_referrer.remove(&referrer),
            false => self.by_referrer.insert(referrer.clone(), keys.clone()),
        };
        for key in before.iter().flatten().filter(|key| !keys.contains(*key)) {
            if let Some(named) = self.named.get_mut(key) {
                named.referrers.remove(&referrer);
                if named.referrers.is_empty() {
                    self.named.remove(key);
                }
            }
        }
        for key in keys {
            let new = || Named { referrers: BTreeSet::new(), known: Known::Nothing, changes: 0 };
            self.named.entry(key).or_insert_with(new).referrers.insert(referrer.clone());
        }
    }

    /// What the watch says of an object: whoever names it is looked at again, and reads it.
    fn take_in(&mut self, change: &Change<PartialObjectMeta<K>>)
    where
        PartialObjectMeta<K>: Kind,
    {
        let Some(named) = self.named.get_mut(&change.key) else { return };
        let version = change.after.as_ref().map(|metadata| version_of(&metadata.metadata));
        if let Known::Present(object) = &named.known
            && version == Some(version_of(object.meta()))
        {
            return;
        }
        named.known = Known::Nothing;
        named.changes += 1;
        for referrer in &named.referrers {
            if let Some(listener) = self.listeners.get(referrer.controller) {
                listener(referrer.key.clone());
            }
        }
    }
}

/// Leaves of an object which one it is.
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

    /// An API server with ConfigMaps by name and version, a watch that is told what to say, and who was looked at again.
    struct World {
        there: Arc<Mutex<BTreeMap<&'static str, Version>>>,
        requests: Arc<Mutex<Vec<String>>>,
        looked_at: Arc<Mutex<Vec<String>>>,
        references: Arc<References<ConfigMap>>,
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: Some("shop".into()), name: name.into() }
    }

    impl World {
        fn new(there: &[(&'static str, Version)]) -> Self {
            let there = Arc::new(Mutex::new(there.iter().copied().collect::<BTreeMap<_, _>>()));
            let (requests, looked_at) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<Mutex<Vec<String>>>::default());
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
            let ear = Arc::clone(&looked_at);
            references.on_change("toy", move |key| locked(&ear).push(key.name));
            let world = Self { there, requests, looked_at, references };
            world.lists(1);
            world
        }

        /// The watch begins with a list of what the filter keeps.
        fn lists(&self, version: Version) {
            let filter = self.references.filter();
            let all = locked(&self.there).clone();
            let kept = all.into_iter().map(|(name, version)| (key(name), entry(name, version)));
            self.references.metadata.replace(kept.filter(|(key, _)| filter(key)).collect(), version).unwrap();
        }

        /// An object changes, and the watch says so.
        fn changes(&self, name: &'static str, version: Version) {
            locked(&self.there).insert(name, version);
            self.tells(name, version);
        }

        fn tells(&self, name: &'static str, version: Version) {
            if self.references.filter()(&key(name)) {
                self.references.metadata.put(key(name), entry(name, version));
            }
        }

        fn goes(&self, name: &'static str, version: Version) {
            locked(&self.there).remove(name);
            self.references.metadata.remove(key(name), version);
        }

        /// What an object reads that names these.
        async fn reads(&self, referrer: &str, names: &[&str]) -> Vec<String> {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            let found = self.references.read("toy", &key(referrer), names).await.unwrap();
            found
                .into_iter()
                .map(|(name, object)| format!("{name} {}", object.data.as_ref().unwrap()["version"]))
                .collect()
        }

        /// What was asked for since the last time.
        fn requests(&self) -> Vec<String> {
            std::mem::take(&mut *locked(&self.requests))
        }

        fn looked_at(&self) -> Vec<String> {
            std::mem::take(&mut *locked(&self.looked_at))
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
    async fn an_object_is_read_once_and_again_after_it_has_changed() {
        let world = World::new(&[("mine", 5)]);
        assert_eq!(world.reads("a", &["mine"]).await, ["mine 5"]);
        assert_eq!(world.reads("a", &["mine"]).await, ["mine 5"]);
        assert_eq!(world.reads("b", &["mine"]).await, ["mine 5"]);
        assert_eq!(world.requests(), ["mine"], "one request, whoever asks and how often");
        world.tells("mine", 5);
        assert_eq!(world.looked_at(), [""; 0], "what is known is no news");
        world.changes("mine", 7);
        assert_eq!(world.looked_at(), ["a", "b"]);
        assert_eq!(world.reads("a", &["mine"]).await, ["mine 7"]);
        world.goes("mine", 9);
        assert_eq!(world.looked_at(), ["a", "b"]);
        assert_eq!(world.reads("b", &["mine"]).await, [""; 0]);
        assert_eq!(world.reads("a", &["mine"]).await, [""; 0]);
        assert_eq!(world.requests(), ["mine", "mine"]);
        world.changes("mine", 11);
        assert_eq!(world.looked_at(), ["a", "b"]);
        assert_eq!(world.reads("a", &["mine"]).await, ["mine 11"]);
    }

    #[tokio::test]
    async fn objects_with_the_usual_names_cost_no_request_when_they_are_not_there() {
        let world = World::new(&[]);
        assert_eq!(world.reads("a", &["usual"]).await, [""; 0]);
        assert_eq!(world.requests(), [""; 0]);
        world.changes("usual", 5);
        assert_eq!(world.looked_at(), ["a"]);
        assert_eq!(world.reads("a", &["usual"]).await, ["usual 5"]);
    }

    #[tokio::test]
    async fn a_deletion_that_the_watch_missed_is_seen_in_its_next_list() {
        let world = World::new(&[("mine", 5)]);
        assert_eq!(world.reads("a", &["mine"]).await, ["mine 5"]);
        locked(&world.there).clear();
        world.lists(20);
        assert_eq!(world.looked_at(), ["a"]);
        assert_eq!(world.reads("a", &["mine"]).await, [""; 0]);
    }

    #[tokio::test]
    async fn nothing_is_kept_of_what_nobody_names() {
        let world = World::new(&[("mine", 5), ("other", 6)]);
        assert!(world.references.metadata.is_empty());
        world.changes("other", 8);
        assert!(world.references.metadata.is_empty());
        world.reads("a", &["mine"]).await;
        world.reads("a", &["other"]).await;
        assert_eq!(locked(&world.references.state).named.len(), 1);
        world.changes("mine", 10);
        assert_eq!(world.looked_at(), [""; 0], "it is not named any more");
        world.references.forget("toy", &key("a"));
        let state = locked(&world.references.state);
        assert!(state.named.is_empty() && state.by_referrer.is_empty());
    }

    #[tokio::test]
    async fn what_is_deleted_while_it_is_read_for_the_first_time_is_read_again() {
        let world = World::new(&[("mine", 5)]);
        locked(&world.references.state).refer(Referrer { controller: "toy", key: key("a") }, [key("mine")].into());
        let key = key("mine");
        // The answer was on its way when the watch told that it is gone.
        let read = world.references.one(&key);
        let told = async { world.references.metadata.remove(key.clone(), 7) };
        let (object, ()) = tokio::join!(read, told);
        assert!(object.unwrap().is_some(), "the answer is older");
        assert_eq!(world.looked_at(), ["a"]);
        locked(&world.there).clear();
        assert_eq!(world.reads("a", &["mine"]).await, [""; 0]);
    }

    #[tokio::test]
    async fn what_changes_while_it_is_read_is_read_again() {
        let world = World::new(&[("mine", 5)]);
        locked(&world.references.state).refer(Referrer { controller: "toy", key: key("a") }, [key("mine")].into());
        // The answer is on its way when the watch tells of a later version.
        let key = key("mine");
        let read = world.references.one(&key);
        let told = async { world.tells("mine", 7) };
        let (object, ()) = tokio::join!(read, told);
        assert_eq!(version_of(&object.unwrap().unwrap().metadata), 5);
        locked(&world.there).insert("mine", 7);
        assert_eq!(world.reads("a", &["mine"]).await, ["mine 7"]);
    }
}
