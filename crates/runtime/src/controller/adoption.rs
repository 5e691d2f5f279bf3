//! Adoption: an object takes over what a former one of the same name left behind without a controller.

use std::sync::{Arc, PoisonError};

use jiff::Timestamp;
use kube::Resource as _;

use super::{
    interface::Controller,
    running::{Adoptable, CATCHING_UP, Memory, Running, reference, status_of},
};
use crate::{
    apply::Orphan,
    caches::controller_key,
    error::Error,
    events::Note,
    queue::{ObjectKey, Outcome},
    store::{Change, Kind, Store, controller_of, key_of},
};

/// A new object waits for at most this many seconds for the garbage collector to delete or release what a former object of its
/// name owned.
const FORMER_SECONDS: i64 = 60;

impl<C: Controller> Running<C> {
    /// Adopts objects of a kind that have no controller. `named` names the object that they belong to by their labels. Only what
    /// this field manager wrote is adopted, which a copy with the same labels is not, or what the user gives away by annotation.
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
            let is_theirs = |one: &&Arc<K>| {
                named(one).as_ref() == Some(key)
                    && one.meta().deletion_timestamp.is_none()
                    && (context.has_written(one.meta()) || context.is_given_to(one.meta(), &key.name))
            };
            let alone = store.without_controller();
            alone.iter().filter(is_theirs).map(|one| Orphan::new(one.as_ref())).collect()
        };
        let adoptable = Adoptable { orphans: Box::new(orphans), has_former: Box::new(has_former) };
        self.adoptable.lock().unwrap_or_else(PoisonError::into_inner).push(adoptable);
    }

    pub(super) fn orphans_of(&self, key: &ObjectKey) -> Vec<Orphan> {
        let kinds = self.adoptable.lock().unwrap_or_else(PoisonError::into_inner);
        kinds.iter().flat_map(|kind| (kind.orphans)(key)).collect()
    }

    /// Whether an object is new, and the garbage collector has yet to delete or release what a former object of its name owned.
    /// Nothing is decided until then. What takes longer is reported as `NameTaken`.
    pub(super) fn awaits_former(&self, key: &ObjectKey, object: &C::Object) -> bool {
        let created = object.meta().creation_timestamp.as_ref().map(|time| time.0);
        let is_new = created.is_some_and(|created| Timestamp::now().duration_since(created).as_secs() < FORMER_SECONDS);
        if !is_new || !status_of(object).is_null() {
            return false;
        }
        let kinds = self.adoptable.lock().unwrap_or_else(PoisonError::into_inner);
        kinds.iter().any(|kind| (kind.has_former)(key, object.meta().uid.as_deref()))
    }

    /// Adopts orphans, before anything is decided from what the object owns. An orphan that cannot be adopted does not keep the
    /// others from it.
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
            // Read past the cache, for each: the garbage collector deletes what an owner that is gone adopts.
            let now = self.asked(&key).await?;
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
                "Adopted objects that a former object of this name left: {}. From now on, they are deleted with this one.",
                adopted.join(", ")
            );
            self.context.events.tell(reference(object), Note::normal("Adopted", message));
        }
        failure.map_or(Ok(Outcome::After(CATCHING_UP)), Err)
    }
}
