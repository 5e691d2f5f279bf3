//! The finalizer that keeps a deleted object until everything is done that has to precede its removal.

use kube::api::ObjectMeta;
use serde_json::json;

use super::{
    interface::Controller,
    running::{Memory, Running},
};
use crate::error::Error;

impl<C: Controller> Running<C> {
    /// Whether an object is being deleted and has our finalizer.
    pub(super) fn is_finalizing(metadata: &ObjectMeta) -> bool {
        let has_finalizer = C::FINALIZER.is_some_and(|finalizer| finalizers(metadata).contains(&finalizer));
        metadata.deletion_timestamp.is_some() && has_finalizer
    }

    /// Removes our finalizer, so that the API server removes the object.
    pub(super) async fn remove_finalizer(&self, metadata: &ObjectMeta, memory: &mut Memory) -> Result<(), Error> {
        self.set_finalizers(metadata, memory, |all| all.retain(|one| Some(*one) != C::FINALIZER)).await
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
