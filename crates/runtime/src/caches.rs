//! The watches of a process: one for each kind, whoever reads it.

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
    /// Of one namespace, or of all. Lists that are older than `min_resource_version` are refused.
    pub fn new(
        client: Client,
        namespace: Option<String>,
        context: Arc<SharedContext>,
        min_resource_version: Version,
    ) -> Self {
        Self { client, namespace, context, min_resource_version, collections: BTreeMap::new(), starts: Vec::new() }
    }

    /// The objects of a kind that have these labels. To be asked for once for each kind; `trim` takes away what nobody
    /// reads.
    pub fn watch<K: Kind>(&mut self, labels: Option<&str>, trim: fn(&mut K)) -> Arc<Store<K>> {
        self.watch_scope(Scope { labels: labels.map(str::to_owned), ..Scope::default() }, trim)
    }

    /// The objects of a kind that have this name, in all namespaces, whichever are looked at else. Where they may not be read,
    /// nobody waits for them: see [`Store::is_forbidden`].
    pub fn watch_named<K: Kind>(&mut self, name: &str, trim: fn(&mut K)) -> Arc<Store<K>> {
        let store = self.watch_in(None, Scope { name: Some(name.to_owned()), ..Scope::default() }, trim);
        store.may_be_forbidden();
        store
    }

    /// All objects of a kind that is in no namespace. Where they may not be read, nobody waits for them: see
    /// [`Store::is_forbidden`].
    pub fn watch_cluster_scoped<K: Kind>(&mut self, trim: fn(&mut K)) -> Arc<Store<K>> {
        let store = self.watch_in(None, Scope::default(), trim);
        store.may_be_forbidden();
        store
    }

    /// The metadata of all objects of a kind that is in no namespace. Where they may not be read, nobody waits for them: see
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

    /// The objects of a kind that may not be installed at all: nobody waits for it.
    pub fn watch_if_served<K: Kind>(&mut self, trim: fn(&mut K)) -> Arc<Store<K>> {
        let store = self.watch_scope(Scope::default(), trim);
        store.may_be_missing();
        store
    }

    /// The metadata of objects of a kind that have these labels. `trim` takes away what nobody reads: who owns which field
    /// is most of the metadata of many kinds.
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

    /// The objects of a kind that others name. To be asked for once for each kind, whoever names them; metadata of objects
    /// with the usual names is kept in any case, so that those which are not there cost no request.
    pub fn references<K>(&mut self, usual_names: &[&'static str]) -> Arc<References<K>>
    where
        K: Kind,
        kube::core::PartialObjectMeta<K>: Kind,
    {
        let store = Arc::new(Store::default());
        let references = References::new(self.client.clone(), Arc::clone(&store), usual_names);
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

    /// Begins to watch. Whoever wants to hear of changes has said so by now.
    pub(crate) fn start(&mut self, tasks: &mut JoinSet<()>) {
        for start in self.starts.drain(..) {
            start(tasks);
        }
    }

    pub(crate) fn collections(&self) -> Arc<BTreeMap<String, Arc<dyn Collection>>> {
        Arc::new(self.collections.clone())
    }

    /// The one namespace that is watched; none for all.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// What people are told.
    pub fn events(&self) -> &Events {
        &self.context.events
    }

    pub(crate) fn context(&self) -> &Arc<SharedContext> {
        &self.context
    }

    /// Reaches the API server through the fence.
    pub fn client(&self) -> &Client {
        &self.client
    }
}

impl std::fmt::Debug for Caches {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Caches").field("kinds", &self.collections.keys()).finish_non_exhaustive()
    }
}

/// The key of the object that keeps another, if it is of this kind.
pub fn controller_key<K: Kind>(metadata: &ObjectMeta) -> Option<ObjectKey> {
    let owner = crate::store::controller_of(metadata)?;
    let group = owner.api_version.rsplit_once('/').map_or("", |(group, _)| group);
    let is_ours = owner.kind == K::kind(&()) && group == K::group(&());
    is_ours.then(|| ObjectKey { namespace: metadata.namespace.clone(), name: owner.name.clone() })
}
