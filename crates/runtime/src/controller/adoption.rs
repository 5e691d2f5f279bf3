//! Adoption: an object becomes the controller of orphans that a former object of the same name left.

use jiff::Timestamp;
use kube::Resource as _;

use super::{
    interface::Controller,
    running::{CACHE_LAG_REQUEUE, Memory, Running, reference, status_of},
};
use crate::{
    apply::Orphan,
    error::Error,
    events::Note,
    queue::{ObjectKey, Outcome},
    reasons,
    store::key_of,
};

/// A new object waits at most this many seconds for the garbage collector to delete or orphan the dependents of a
/// former object of its name.
const FORMER_SECONDS: i64 = 60;

impl<C: Controller> Running<C> {
    pub(super) fn orphans_of(&self, key: &ObjectKey) -> Vec<Orphan> {
        self.adoptable.iter().flat_map(|kind| (kind.orphans)(key)).collect()
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
        self.adoptable.iter().any(|kind| (kind.has_former)(key, object.meta().uid.as_deref()))
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
