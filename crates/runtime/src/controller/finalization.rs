//! Finalization: what is done between the deletion of an object and its removal.

use std::sync::Arc;

use kube::{Resource as _, api::ObjectMeta};
use serde_json::json;

use super::{
    interface::{Controller, Finalize, FinalizeStep},
    running::{CATCHING_UP, Memory, Running, Written, status_of},
};
use crate::{error::Error, pace::News, queue::Outcome};

impl<C: Controller> Running<C> {
    pub(super) async fn finalize(&self, object: &Arc<C::Object>, memory: &mut Memory) -> Result<Outcome, Error> {
        let Some(finalizer) = C::FINALIZER.filter(|finalizer| finalizers(object.meta()).contains(finalizer)) else {
            return Ok(Outcome::Done);
        };
        let Finalize { status, step } = self.controller.finalize(object).await?;
        if let Some(desired) = status {
            // A deletion has few steps, and a user waits for it.
            memory.pace.hurry();
            let current = status_of(object.as_ref());
            if self.write_status(object.meta(), &current, &desired, News::Awaited, memory).await? != Written::Not {
                return Ok(Outcome::After(CATCHING_UP));
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
        // The list is replaced as a whole, so it must not have changed meanwhile.
        let patch = json!({"metadata": {
            "finalizers": all, "uid": metadata.uid, "resourceVersion": metadata.resource_version,
        }});
        self.patch(metadata, "", &patch, memory).await
    }
}

pub(super) fn finalizers(metadata: &ObjectMeta) -> Vec<&str> {
    metadata.finalizers.iter().flatten().map(String::as_str).collect()
}
