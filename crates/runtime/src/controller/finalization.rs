//! Finalization: what the operator does between the deletion of an object and the removal of its finalizer.

use std::sync::Arc;

use kube::{Resource as _, api::ObjectMeta};
use serde_json::json;

use super::{
    interface::{Controller, Finalize, FinalizeStep},
    running::{CACHE_LAG_REQUEUE, Memory, Running, StatusWrite, status_of},
};
use crate::{error::Error, pace::StatusChange, queue::Outcome};

impl<C: Controller> Running<C> {
    pub(super) async fn finalize(&self, object: &Arc<C::Object>, memory: &mut Memory) -> Result<Outcome, Error> {
        let Some(finalizer) = C::FINALIZER.filter(|finalizer| finalizers(object.meta()).contains(finalizer)) else {
            return Ok(Outcome::Done);
        };
        let Finalize { status, step } = self.controller.finalize(object).await?;
        if let Some(desired) = status {
            // A finalization has few steps, and the user waits for it.
            memory.pace.reset();
            let current = status_of(object.as_ref());
            if self.write_status(object.meta(), &current, &desired, StatusChange::Transition, memory).await?
                != StatusWrite::Unchanged
            {
                return Ok(Outcome::After(CACHE_LAG_REQUEUE));
            }
        }
        match step {
            FinalizeStep::After(pause) => Ok(Outcome::After(pause)),
            FinalizeStep::RemoveFinalizer => {
                self.set_finalizers(object.meta(), memory, |all| all.retain(|one| *one != finalizer)).await?;
                Ok(Outcome::Done)
            }
        }
    }

    pub(super) async fn set_finalizers<'a>(
        &self,
        metadata: &'a ObjectMeta,
        memory: &mut Memory,
        change: impl FnOnce(&mut Vec<&'a str>),
    ) -> Result<(), Error> {
        let mut all = finalizers(metadata);
        change(&mut all);
        // A merge patch replaces the whole list, so the resource version is a precondition.
        let patch = json!({"metadata": {
            "finalizers": all, "uid": metadata.uid, "resourceVersion": metadata.resource_version,
        }});
        self.patch(metadata, "", &patch, memory).await
    }
}

pub(super) fn finalizers(metadata: &ObjectMeta) -> Vec<&str> {
    metadata.finalizers.iter().flatten().map(String::as_str).collect()
}
