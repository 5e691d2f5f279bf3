//! One API server: a client, and one cache for each kind of object, shared by all controllers.

use std::{
    any::{Any, TypeId},
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use kube::{Client, api::ObjectMeta, core::PartialObjectMeta};
use tokio::task::JoinSet;

use crate::{
    apply::{Collection, StoreCollection, compact_records},
    events::Events,
    queue::ObjectKey,
    references::{self, References},
    shared_context::SharedContext,
    store::{Kind, Store, Version},
    watch::{Filter, Scope, Trim, Watch},
};

type Start = Box<dyn FnOnce(&mut JoinSet<()>, &FieldManagers) + Send>;

/// The field managers of all controllers.
type FieldManagers = Arc<BTreeSet<&'static str>>;

/// Which objects of a kind are cached, and which of their fields.
#[derive(Clone, Debug)]
pub struct Selection<K> {
    scope: Scope,
    is_in_all_namespaces: bool,
    may_be_missing: bool,
    may_be_forbidden: bool,
    trim: fn(&mut K),
}

impl<K: Kind> Selection<K> {
    /// All objects of the namespace that the operator watches, or of all namespaces.
    pub fn all() -> Self {
        Self {
            scope: Scope::default(),
            is_in_all_namespaces: false,
            may_be_missing: false,
            may_be_forbidden: false,
            trim: |_| (),
        }
    }

    /// Those that the label selector matches.
    pub fn labelled(selector: impl Into<String>) -> Self {
        Self { scope: Scope { labels: Some(selector.into()), ..Scope::default() }, ..Self::all() }
    }

    /// Those with this name in all namespaces, even if the operator watches only one. The permission is optional.
    pub fn named(name: &str) -> Self {
        Self { scope: Scope { name: Some(name.to_owned()), ..Scope::default() }, ..Self::cluster_scoped() }
    }

    /// All objects of a cluster-scoped kind. The permission is optional.
    pub fn cluster_scoped() -> Self {
        Self { is_in_all_namespaces: true, ..Self::all() }.if_permitted()
    }

    /// Controllers work without the kind, which need not be installed: see [`Store::is_missing`].
    #[must_use]
    pub fn if_served(self) -> Self {
        Self { may_be_missing: true, ..self }
    }

    /// Controllers work without the permission to read the kind: see [`Store::is_forbidden`].
    #[must_use]
    pub fn if_permitted(self) -> Self {
        Self { may_be_forbidden: true, ..self }
    }

    /// Removes fields that the operator does not read, to save memory.
    #[must_use]
    pub fn trimmed(self, trim: fn(&mut K)) -> Self {
        Self { trim, ..self }
    }
}

impl<K> Selection<PartialObjectMeta<K>>
where
    PartialObjectMeta<K>: Kind,
{
    /// Requests only metadata from the API server.
    #[must_use]
    pub fn metadata_only(self) -> Self {
        Self { scope: Scope { is_metadata_only: true, ..self.scope }, ..self }
    }
}

/// The store of a kind with its selection, without the trim function.
struct Registered {
    scope: Scope,
    may_be_missing: bool,
    may_be_forbidden: bool,
    store: Arc<dyn Any + Send + Sync>,
}

/// A client of one API server, and the caches of its objects with the watches that feed them.
pub struct Cluster {
    client: Client,
    namespace: Option<String>,
    context: Arc<SharedContext>,
    min_resource_version: Version,
    stores: HashMap<TypeId, Registered>,
    references: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
    /// The stores by the URL paths of their collections.
    collections: BTreeMap<String, Arc<dyn Collection>>,
    field_managers: BTreeSet<&'static str>,
    starts: Vec<Start>,
}

impl Cluster {
    /// Creates caches of one namespace, or of all. Lists that are older than `min_resource_version` are refused.
    pub fn new(
        client: Client,
        namespace: Option<String>,
        context: Arc<SharedContext>,
        min_resource_version: Version,
    ) -> Self {
        Self {
            client,
            namespace,
            context,
            min_resource_version,
            stores: HashMap::new(),
            references: HashMap::new(),
            collections: BTreeMap::new(),
            field_managers: BTreeSet::new(),
            starts: Vec::new(),
        }
    }

    /// Returns the cache of a kind, and watches the kind from now on. All controllers share it.
    ///
    /// # Panics
    ///
    /// If the kind was registered with another selection. That is known when the operator starts.
    pub fn store<K: Kind>(&mut self, selection: Selection<K>) -> Arc<Store<K>> {
        let Selection { scope, is_in_all_namespaces, may_be_missing, may_be_forbidden, trim } = selection;
        let namespace = self.namespace.clone().filter(|_| !is_in_all_namespaces);
        let scope = Scope { namespace, ..scope };
        if let Some(known) = self.stores.get(&TypeId::of::<K>()) {
            let is_same = (&known.scope, known.may_be_missing, known.may_be_forbidden)
                == (&scope, may_be_missing, may_be_forbidden);
            assert!(is_same, "two controllers cache different selections of {}", K::plural(&()));
            if let Ok(store) = Arc::clone(&known.store).downcast() {
                return store;
            }
        }
        let store = Arc::new(Store::<K>::default());
        if may_be_missing {
            store.may_be_missing();
        }
        if may_be_forbidden {
            store.may_be_forbidden();
        }
        let predecessor = self.context.predecessor;
        let trim = move |field_managers: &FieldManagers| -> Trim<K> {
            let field_managers = Arc::clone(field_managers);
            Box::new(move |object| {
                trim(object);
                compact_records(object.meta_mut(), &field_managers, predecessor);
            })
        };
        let (path, name) = (K::url_path(&(), None), K::plural(&()).into_owned());
        let registered = Registered {
            scope: scope.clone(),
            may_be_missing,
            may_be_forbidden,
            store: Arc::<Store<K>>::clone(&store),
        };
        self.stores.insert(TypeId::of::<K>(), registered);
        self.add(path, name, Arc::clone(&store), scope, trim, None);
        store
    }

    /// Returns the cache of the objects of a kind that other objects refer to, and watches them from now on. All
    /// controllers share it. Metadata of objects with the well-known names are always cached, so that missing ones
    /// cost no request.
    pub fn references<K>(&mut self, well_known_names: &[&'static str]) -> Arc<References<K>>
    where
        K: Kind,
        PartialObjectMeta<K>: Kind,
    {
        let known = self.references.get(&TypeId::of::<K>()).map(Arc::clone);
        if let Some(references) = known.and_then(|known| known.downcast::<References<K>>().ok()) {
            references.add_well_known_names(well_known_names);
            return references;
        }
        let store = Arc::new(Store::default());
        let references = References::new(self.client.clone(), Arc::clone(&store), well_known_names);
        let scope = Scope { namespace: self.namespace.clone(), is_metadata_only: true, ..Scope::default() };
        let name = format!("{} (references)", K::plural(&()));
        let filter: Filter = Box::new(references.filter());
        self.references.insert(TypeId::of::<K>(), Arc::<References<K>>::clone(&references));
        let trim = |_: &FieldManagers| -> Trim<PartialObjectMeta<K>> { Box::new(references::trim) };
        self.add(References::<K>::collection(), name, store, scope, trim, Some(filter));
        references
    }

    fn add<K: Kind>(
        &mut self,
        path: String,
        name: String,
        store: Arc<Store<K>>,
        scope: Scope,
        trim: impl FnOnce(&FieldManagers) -> Trim<K> + Send + 'static,
        filter: Option<Filter>,
    ) {
        store.set_min_resource_version(self.min_resource_version);
        let collection = Arc::new(StoreCollection { store: Arc::clone(&store), name });
        let replaced = self.collections.insert(path, collection);
        assert!(replaced.is_none(), "{} are cached both in full and as metadata", K::plural(&()));
        let (client, context) = (self.client.clone(), Arc::clone(&self.context));
        self.starts.push(Box::new(move |tasks, field_managers| {
            let trim = trim(field_managers);
            let watch = Watch { store, scope, client, trim, filter, context, streams_lists: true };
            tasks.spawn(watch.run());
        }));
    }

    /// Adds a field manager, whose managed fields are kept in the caches.
    pub(crate) fn add_field_manager(&mut self, field_manager: &'static str) {
        self.field_managers.insert(field_manager);
    }

    /// Starts the watches. All controllers must be declared by now.
    pub(crate) fn start(&mut self, tasks: &mut JoinSet<()>) {
        let field_managers = Arc::new(self.field_managers.clone());
        for start in self.starts.drain(..) {
            start(tasks, &field_managers);
        }
    }

    pub(crate) fn collections(&self) -> Arc<BTreeMap<String, Arc<dyn Collection>>> {
        Arc::new(self.collections.clone())
    }

    /// The namespace to watch; none for all.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// The recorder of events.
    pub fn events(&self) -> &Events {
        &self.context.events
    }

    pub(crate) fn context(&self) -> &Arc<SharedContext> {
        &self.context
    }

    /// The client behind the fence.
    pub fn client(&self) -> &Client {
        &self.client
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Cluster").field("kinds", &self.collections.keys()).finish_non_exhaustive()
    }
}

/// Returns the key of an object's controller, if that is of this kind.
pub fn controller_key<K: Kind>(metadata: &ObjectMeta) -> Option<ObjectKey> {
    let owner = crate::store::controller_of(metadata)?;
    let group = owner.api_version.rsplit_once('/').map_or("", |(group, _)| group);
    let is_ours = owner.kind == K::kind(&()) && group == K::group(&());
    is_ours.then(|| ObjectKey { namespace: metadata.namespace.clone(), name: owner.name.clone() })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::Response;
    use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    use kube::client::Body;

    use super::*;
    use crate::metrics::Metrics;

    fn cluster() -> Cluster {
        let service =
            tower::service_fn(|_: http::Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) });
        let (events, _) = Events::new(Metrics::default());
        let context = Arc::new(SharedContext::new(Metrics::default(), events, "test/hash"));
        Cluster::new(Client::new(service, "default"), Some("shop".into()), context, 0)
    }

    #[tokio::test]
    async fn controllers_share_one_watch_of_a_kind() {
        let mut cluster = cluster();
        let [first, second] = [(); 2].map(|()| cluster.store(Selection::<Secret>::labelled("a=b")));
        assert!(Arc::ptr_eq(&first, &second));
        let [first, second] = [["a"], ["b"]].map(|names| cluster.references::<Secret>(&names));
        assert!(Arc::ptr_eq(&first, &second));
        for name in ["a", "b"] {
            assert!(first.filter()(&ObjectKey { namespace: None, name: name.into() }), "{name}");
        }
        cluster.store(Selection::<ConfigMap>::all());
        assert_eq!(cluster.starts.len(), 3, "Secrets, references to Secrets, and ConfigMaps");
    }

    #[tokio::test]
    #[should_panic(expected = "different selections of secrets")]
    async fn a_second_selection_of_a_kind_is_an_error() {
        let mut cluster = cluster();
        cluster.store(Selection::<Secret>::labelled("a=b"));
        cluster.store(Selection::<Secret>::all());
    }

    #[tokio::test]
    #[should_panic(expected = "secrets are cached both in full and as metadata")]
    async fn a_kind_is_cached_in_full_or_as_metadata() {
        let mut cluster = cluster();
        cluster.store(Selection::<Secret>::all());
        cluster.store(Selection::<PartialObjectMeta<Secret>>::all().metadata_only());
    }
}
