//! The caches of a process: one watch for each kind, shared by all controllers.

use std::{collections::BTreeMap, sync::Arc};

use kube::{Client, Resource, api::ObjectMeta};
use tokio::task::JoinSet;

use crate::{
    apply::{Collection, StoreCollection},
    events::Events,
    queue::ObjectKey,
    references::{self, References},
    shared_context::SharedContext,
    store::{Kind, Store, Version},
    watch::{Filter, Scope, Watch},
};

type Start = Box<dyn FnOnce(&mut JoinSet<()>) + Send>;

/// The stores of a process and the watches that feed them.
pub struct Caches {
    client: Client,
    namespace: Option<String>,
    context: Arc<SharedContext>,
    min_resource_version: Version,
    collections: BTreeMap<String, Arc<dyn Collection>>,
    starts: Vec<Start>,
}

impl Caches {
    /// Creates caches of one namespace, or of all. Lists that are older than `min_resource_version` are refused.
    pub fn new(
        client: Client,
        namespace: Option<String>,
        context: Arc<SharedContext>,
        min_resource_version: Version,
    ) -> Self {
        Self { client, namespace, context, min_resource_version, collections: BTreeMap::new(), starts: Vec::new() }
    }

    /// Watches the objects of a kind that the label selector matches. To be called once per kind. `trim` removes fields
    /// that the operator does not read.
    pub fn watch<K: Kind>(&mut self, labels: Option<&str>, trim: fn(&mut K)) -> Arc<Store<K>> {
        self.watch_scope(Scope { labels: labels.map(str::to_owned), ..Scope::default() }, trim)
    }

    /// Watches the objects of a kind with this name in all namespaces, even if the operator watches only one. The
    /// permission is optional: see [`Store::is_forbidden`].
    pub fn watch_named<K: Kind>(&mut self, name: &str, trim: fn(&mut K)) -> Arc<Store<K>> {
        let store = self.watch_in(None, Scope { name: Some(name.to_owned()), ..Scope::default() }, trim);
        store.may_be_forbidden();
        store
    }

    /// Watches all objects of a cluster-scoped kind. The permission is optional: see [`Store::is_forbidden`].
    pub fn watch_cluster_scoped<K: Kind>(&mut self, trim: fn(&mut K)) -> Arc<Store<K>> {
        let store = self.watch_in(None, Scope::default(), trim);
        store.may_be_forbidden();
        store
    }

    /// Watches the metadata of all objects of a cluster-scoped kind. The permission is optional: see
    /// [`Store::is_forbidden`].
    pub fn watch_cluster_scoped_metadata<K>(
        &mut self,
        trim: fn(&mut kube::core::PartialObjectMeta<K>),
    ) -> Arc<Store<kube::core::PartialObjectMeta<K>>>
    where
        kube::core::PartialObjectMeta<K>: Kind,
        K: Resource<DynamicType = ()>,
    {
        let store = self.watch_in(None, Scope { is_metadata_only: true, ..Scope::default() }, trim);
        store.may_be_forbidden();
        store
    }

    /// Watches the objects of an optional kind, which need not be installed: see [`Store::is_missing`].
    pub fn watch_if_served<K: Kind>(&mut self, trim: fn(&mut K)) -> Arc<Store<K>> {
        let store = self.watch_scope(Scope::default(), trim);
        store.may_be_missing();
        store
    }

    /// Watches the metadata of all objects of a kind that may be neither installed nor readable: no controller waits for it.
    pub fn watch_optional_metadata<K>(
        &mut self,
        trim: fn(&mut kube::core::PartialObjectMeta<K>),
    ) -> Arc<Store<kube::core::PartialObjectMeta<K>>>
    where
        kube::core::PartialObjectMeta<K>: Kind,
        K: Resource<DynamicType = ()>,
    {
        let store = self.watch_scope(Scope { is_metadata_only: true, ..Scope::default() }, trim);
        store.may_be_missing();
        store.may_be_forbidden();
        store
    }

    /// Watches the metadata of objects of a kind that the label selector matches. `trim` removes fields that the
    /// operator does not read: `managedFields` are most of the metadata of many kinds.
    pub fn watch_metadata<K>(
        &mut self,
        labels: Option<&str>,
        trim: fn(&mut kube::core::PartialObjectMeta<K>),
    ) -> Arc<Store<kube::core::PartialObjectMeta<K>>>
    where
        kube::core::PartialObjectMeta<K>: Kind,
        K: Resource<DynamicType = ()>,
    {
        let scope = Scope { labels: labels.map(str::to_owned), is_metadata_only: true, ..Scope::default() };
        self.watch_scope(scope, trim)
    }

    /// Watches the objects of a kind that other objects refer to. To be called once per kind. Metadata of objects with
    /// the well-known names are always cached, so that missing ones cost no request.
    pub fn references<K>(&mut self, well_known_names: &[&'static str]) -> Arc<References<K>>
    where
        K: Kind,
        kube::core::PartialObjectMeta<K>: Kind,
    {
        let store = Arc::new(Store::default());
        let references = References::new(self.client.clone(), Arc::clone(&store), well_known_names);
        let scope = Scope { namespace: self.namespace.clone(), is_metadata_only: true, ..Scope::default() };
        let name = format!("{} (references)", K::plural(&()));
        let filter: Filter = Box::new(references.filter());
        self.add(References::<K>::collection(), name, store, scope, references::trim, Some(filter));
        references
    }

    fn watch_scope<K: Kind>(&mut self, scope: Scope, trim: fn(&mut K)) -> Arc<Store<K>> {
        self.watch_in(self.namespace.clone(), scope, trim)
    }

    fn watch_in<K: Kind>(&mut self, namespace: Option<String>, scope: Scope, trim: fn(&mut K)) -> Arc<Store<K>> {
        let scope = Scope { namespace, ..scope };
        let store = Arc::new(Store::<K>::default());
        self.add(K::url_path(&(), None), K::plural(&()).into_owned(), Arc::clone(&store), scope, trim, None);
        store
    }

    fn add<K: Kind>(
        &mut self,
        path: String,
        name: String,
        store: Arc<Store<K>>,
        scope: Scope,
        trim: fn(&mut K),
        filter: Option<Filter>,
    ) {
        store.set_min_resource_version(self.min_resource_version);
        self.collections.insert(path, Arc::new(StoreCollection { store: Arc::clone(&store), name }));
        let watch = Watch {
            store,
            scope,
            client: self.client.clone(),
            trim,
            filter,
            context: Arc::clone(&self.context),
            streams_lists: true,
        };
        self.starts.push(Box::new(move |tasks| drop(tasks.spawn(watch.run()))));
    }

    /// Starts the watches. All listeners must be registered by now.
    pub(crate) fn start(&mut self, tasks: &mut JoinSet<()>) {
        for start in self.starts.drain(..) {
            start(tasks);
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

impl std::fmt::Debug for Caches {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Caches").field("kinds", &self.collections.keys()).finish_non_exhaustive()
    }
}

/// Returns the key of an object's controller, if that is of this kind.
pub fn controller_key<K: Kind>(metadata: &ObjectMeta) -> Option<ObjectKey> {
    let owner = crate::store::controller_of(metadata)?;
    let group = owner.api_version.rsplit_once('/').map_or("", |(group, _)| group);
    let is_ours = owner.kind == K::kind(&()) && group == K::group(&());
    is_ours.then(|| ObjectKey { namespace: metadata.namespace.clone(), name: owner.name.clone() })
}
