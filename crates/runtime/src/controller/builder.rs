//! The declaration of a controller: the objects that it reconciles, and the changes that requeue them.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use kube::{Resource as _, api::ObjectMeta, core::PartialObjectMeta};

use super::{
    interface::Controller,
    running::{Adoptable, Forget, Running},
};
use crate::{
    apply::{Applier, Orphan},
    cluster::{Cluster, Selection, controller_key},
    queue::{ObjectKey, Queue},
    references::References,
    shared_context::SharedContext,
    store::{Change, Kind, Store, Version, controller_of, key_of},
};

/// Declares a controller. Functions get the controller itself. They are called in the order of changes, and those of
/// [`Self::observes`] before any object is requeued for the same change.
pub struct ControllerBuilder<'a, C: Controller> {
    cluster: &'a mut Cluster,
    controller: Arc<C>,
    objects: Arc<Store<C::Object>>,
    queue: Arc<Queue>,
    losses: Arc<Mutex<HashMap<ObjectKey, Version>>>,
    needs: BTreeSet<String>,
    forgets: Vec<Forget>,
    adoptable: Vec<Adoptable>,
    adopted: BTreeSet<String>,
}

impl<C: Controller> std::fmt::Debug for ControllerBuilder<'_, C> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ControllerBuilder").field("name", &C::NAME).finish_non_exhaustive()
    }
}

impl<'a, C: Controller> ControllerBuilder<'a, C> {
    /// Begins with the objects that the controller reconciles.
    pub fn new(cluster: &'a mut Cluster, controller: C, objects: Selection<C::Object>) -> Self {
        let objects = cluster.store(objects);
        let queue = Queue::new(C::BACKOFF);
        let added = Arc::clone(&queue);
        objects.requeue_on_change(move |change| added.add(change.key.clone()));
        Self {
            cluster,
            controller: Arc::new(controller),
            objects,
            queue,
            losses: Arc::default(),
            needs: [collection::<C::Object>()].into(),
            forgets: Vec::new(),
            adoptable: Vec::new(),
            adopted: BTreeSet::new(),
        }
    }

    /// Reconciles an object whenever a dependent changes whose controller it is. Adopts orphans if the controller has
    /// [`Controller::ORPHAN_OWNER`].
    pub fn owns<K: Kind>(&mut self, selection: Selection<K>) -> &mut Self {
        let store = self.cluster.store(selection);
        self.needs.insert(collection::<K>());
        let (queue, losses, own_store) = (Arc::clone(&self.queue), Arc::clone(&self.losses), Arc::downgrade(&store));
        store.requeue_on_change(move |change: &Change<K>| {
            let lost = change.metadata_before().filter(|_| change.is_gone());
            if let (Some(store), Some(lost)) = (own_store.upgrade(), lost)
                && let Some(owner) = controller_key::<C::Object>(lost)
            {
                losses.lock().unwrap_or_else(PoisonError::into_inner).insert(owner, store.version());
            }
            for key in change.metadata().filter_map(controller_key::<C::Object>) {
                queue.add(key);
            }
        });
        if let Some(owner) = C::ORPHAN_OWNER {
            self.adopts(&store, owner);
        }
        self
    }

    /// Adopts orphans of a kind. `owner` returns the owner that their labels name. An orphan is adopted only if the
    /// controller's field manager has written it, which excludes a copy with the same labels, or if the user has
    /// assigned it by annotation.
    fn adopts<K: Kind>(&mut self, store: &Arc<Store<K>>, owner: fn(&ObjectMeta) -> Option<ObjectKey>) {
        let queue = Arc::clone(&self.queue);
        store.requeue_on_change(move |change: &Change<K>| {
            let orphan = change.after.as_ref().filter(|object| controller_of(object.meta()).is_none());
            orphan.and_then(|orphan| owner(orphan.meta())).into_iter().for_each(|key| queue.add(key));
        });
        self.adopted.insert(collection::<K>());
        let of_former = Arc::clone(store);
        let has_former = move |key: &ObjectKey, uid: Option<&str>| {
            of_former.all().iter().any(|one| {
                let is_own = controller_of(one.meta()).map(|owner| owner.uid.as_str()) == uid;
                controller_key::<C::Object>(one.meta()).as_ref() == Some(key) && !is_own
            })
        };
        let (store, context) = (Arc::clone(store), Arc::clone(self.cluster.context()));
        let orphans = move |key: &ObjectKey| {
            let is_adoptable = |one: &&Arc<K>| {
                owner(one.meta()).as_ref() == Some(key)
                    && one.meta().deletion_timestamp.is_none()
                    && (has_written::<C>(one.meta()) || context.is_assigned_to(one.meta(), &key.name))
            };
            let orphans = store.without_controller();
            orphans.iter().filter(is_adoptable).map(|one| Orphan::new(one.as_ref())).collect()
        };
        self.adoptable.push(Adoptable { orphans: Box::new(orphans), has_former: Box::new(has_former) });
    }

    /// Reconciles the objects that `concerns` returns whenever an object of another kind changes. `concerns` gets its
    /// metadata before and after the change, which are known even of objects that cannot be read.
    pub fn watches<K: Kind, I: IntoIterator<Item = ObjectKey>>(
        &mut self,
        selection: Selection<K>,
        concerns: impl Fn(&C, &ObjectMeta) -> I + Send + Sync + 'static,
    ) -> &mut Self {
        self.watches_changes(selection, move |controller, change| {
            change.metadata().flat_map(|metadata| concerns(controller, metadata)).collect::<Vec<_>>()
        })
    }

    /// Reconciles the objects that `concerns` returns for a change of an object of another kind.
    pub fn watches_changes<K: Kind, I: IntoIterator<Item = ObjectKey>>(
        &mut self,
        selection: Selection<K>,
        concerns: impl Fn(&C, &Change<K>) -> I + Send + Sync + 'static,
    ) -> &mut Self {
        let store = self.cluster.store(selection);
        self.needs.insert(collection::<K>());
        self.requeue_all_on_permission_change(&store);
        // A weak reference, because the controller has the store.
        let (queue, controller) = (Arc::clone(&self.queue), Arc::downgrade(&self.controller));
        store.requeue_on_change(move |change: &Change<K>| {
            let Some(controller) = controller.upgrade() else { return };
            concerns(&controller, change).into_iter().for_each(|key| queue.add(key));
        });
        self
    }

    /// Reconciles all objects when a permission is granted or revoked: their conditions report missing permissions.
    fn requeue_all_on_permission_change<K: Kind>(&self, store: &Store<K>) {
        // A weak reference, because the store may be the one of these objects.
        let (queue, objects) = (Arc::clone(&self.queue), Arc::downgrade(&self.objects));
        store.on_permission_change(move || {
            let objects = objects.upgrade().map(|objects| objects.all()).unwrap_or_default();
            objects.iter().for_each(|one| queue.add(key_of(one.meta())));
        });
    }

    /// Calls `observe` for every change of an object, before the change requeues any object.
    pub fn observes<K: Kind>(
        &mut self,
        selection: Selection<K>,
        observe: impl Fn(&C, &Change<K>) + Send + Sync + 'static,
    ) -> &mut Self {
        let controller = Arc::downgrade(&self.controller);
        self.cluster.store(selection).on_change(move |change| {
            controller.upgrade().into_iter().for_each(|controller| observe(&controller, change));
        });
        self
    }

    /// Reconciles an object whenever an object changes that it refers to: see [`Cluster::references`].
    pub fn refers_to<K>(&mut self) -> &mut Self
    where
        K: Kind,
        PartialObjectMeta<K>: Kind,
    {
        let references = self.cluster.references::<K>(&[]);
        self.needs.insert(References::<K>::collection());
        let queue = Arc::clone(&self.queue);
        references.on_change(C::NAME, move |key| queue.add(key));
        self.forgets.push(Box::new(move |key: &ObjectKey| references.forget(C::NAME, key)));
        self
    }

    /// Gives a part of the controller, such as its background tasks, the function that requeues an object.
    pub fn requeued_by(&mut self, register: impl FnOnce(&C, Box<dyn Fn(ObjectKey) + Send + Sync>)) -> &mut Self {
        let queue = Arc::clone(&self.queue);
        register(&self.controller, Box::new(move |key| queue.add(key)));
        self
    }

    /// Completes the declaration. The controller starts with the [`Cluster`].
    pub fn build(self) -> Arc<Running<C>> {
        let Self { cluster, controller, objects, queue, losses, needs, forgets, adoptable, adopted } = self;
        cluster.add_field_manager(C::FIELD_MANAGER);
        let context: Arc<SharedContext> = Arc::clone(cluster.context());
        let counted = Arc::clone(&queue);
        context.metrics.on_read(move |metrics| metrics.queue(C::NAME, counted.load()));
        Arc::new(Running {
            controller,
            objects,
            queue,
            applier: Applier::new(cluster, C::FIELD_MANAGER, adopted),
            context,
            memories: Mutex::default(),
            losses,
            needs,
            forgets,
            adoptable,
        })
    }
}

/// The name of a kind's collection.
fn collection<K: Kind>() -> String {
    K::url_path(&(), None)
}

/// Whether the field manager of a controller has written an object.
fn has_written<C: Controller>(metadata: &ObjectMeta) -> bool {
    let mut records = metadata.managed_fields.iter().flatten();
    records.any(|record| record.manager.as_deref() == Some(C::FIELD_MANAGER) && record.subresource.is_none())
}
