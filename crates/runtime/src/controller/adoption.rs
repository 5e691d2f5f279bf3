//! Adoption: an object becomes the controller of orphans that a former object of the same name left.

use std::sync::{Arc, PoisonError};

use jiff::Timestamp;
use kube::Resource as _;

use super::{
    interface::Controller,
    running::{Adoptable, CACHE_LAG_REQUEUE, Memory, Running, reference, status_of},
};
use crate::{
    apply::Orphan,
    caches::controller_key,
    error::Error,
    events::Note,
    queue::{ObjectKey, Outcome},
    reasons,
    store::{Change, Kind, Store, controller_of, key_of},
};

/// A new object waits at most this many seconds for the garbage collector to delete or orphan the dependents of a
/// former object of its name.
const FORMER_SECONDS: i64 = 60;

impl<C: Controller> Running<C> {
    /// Adopts orphans of a kind. `named` returns the owner that their labels name. An orphan is adopted only if this
    /// field manager has written it, which excludes a copy with the same labels, or if the user has assigned it by
    /// annotation.
    pub fn adopts<K: Kind>(
        self: &Arc<Self>,
        store: &Arc<Store<K>>,
        named: impl Fn(&K) -> Option<ObjectKey> + Copy + Send + Sync + 'static,
    ) {
        let queue = Arc::clone(&self.queue);
        store.on_change(move |change: &Change<K>| {
            let orphan = change.after.as_ref().filter(|object| controller_of(object.meta()).is_none());
            orphan.and_then(|orphan| named(orphan)).into_iter().for_each(|key| queue.add(key));
        });
        self.applier.adopted().insert(K::url_path(&(), None));
        let of_former = Arc::clone(store);
        let has_former = move |key: &ObjectKey, uid: Option<&str>| {
            of_former.all().iter().any(|one| {
                let is_own = controller_of(one.meta()).map(|owner| owner.uid.as_str()) == uid;
                controller_key::<C::Object>(one.meta()).as_ref() == Some(key) && !is_own
            })
        };
        let (store, context) = (Arc::clone(store), Arc::clone(&self.context));
        let orphans = move |key: &ObjectKey| {
            let is_adoptable = |one: &&Arc<K>| {
                named(one).as_ref() == Some(key)
                    && one.meta().deletion_timestamp.is_none()
                    && (context.has_written(one.meta()) || context.is_assigned_to(one.meta(), &key.name))
            };
            let orphans = store.without_controller();
            orphans.iter().filter(is_adoptable).map(|one| Orphan::new(one.as_ref())).collect()
        };
        let adoptable = Adoptable { orphans: Box::new(orphans), has_former: Box::new(has_former) };
        self.adoptable.lock().unwrap_or_else(PoisonError::into_inner).push(adoptable);
    }

    pub(super) fn orphans_of(&self, key: &ObjectKey) -> Vec<Orphan> {
        let kinds = self.adoptable.lock().unwrap_or_else(PoisonError::into_inner);
        kinds.iter().flat_map(|kind| (kind.orphans)(key)).collect()
    }

    /// Whether an object is new, and the garbage collector has yet to delete or orphan the dependents of a former
    /// object of its name. It is not reconciled until then. If that takes longer than [`FORMER_SECONDS`], `NameTaken`
    /// is reported.
    pub(super) fn awaits_garbage_collection(&self, key: &ObjectKey, object: &C::Object) -> bool {
        let created = object.meta().creation_timestamp.as_ref().map(|time| time.0);
        let is_new = created.is_some_and(|created| Timestamp::now().duration_since(created).as_secs() < FORMER_SECONDS);
        if !is_new || !status_of(object).is_null() {
            return false;
        }
        let kinds = self.adoptable.lock().unwrap_or_else(PoisonError::into_inner);
        kinds.iter().any(|kind| (kind.has_former)(key, object.meta().uid.as_deref()))
    }

    /// Adopts orphans before the object's dependents are observed. If one cannot be adopted, the others still are.
    pub(super) async fn adopt(
        &self,
        object: &C::Object,
        orphans: &[Orphan],
        memory: &mut Memory,
    ) -> Result<Outcome, Error> {
        let Some(owner) = object.controller_owner_ref(&()) else { return Ok(Outcome::Done) };
        self.controller.may_adopt(object)?;
        let key = key_of(object.meta());
        let (mut adopted, mut failure) = (Vec::new(), None);
        for orphan in orphans {
            // Read from the API server for each: the garbage collector deletes what an owner adopts that is gone.
            let now = self.read_metadata(&key).await?;
            if !now.is_some_and(|now| now.uid == object.meta().uid && now.deletion_timestamp.is_none()) {
                break;
            }
            match self.applier.adopt(orphan, &owner, &mut memory.expectations).await {
                Ok(true) => adopted.push(orphan.name()),
                Ok(false) => {}
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        if !adopted.is_empty() {
            memory.has_progressed = true;
            let message = format!(
                "Adopted orphans of a former object of this name: {}. They are deleted together with this object.",
                adopted.join(", ")
            );
            self.context.events.emit(reference(object), Note::normal(reasons::ADOPTED, message));
        }
        failure.map_or(Ok(Outcome::After(CACHE_LAG_REQUEUE)), Err)
    }
}
