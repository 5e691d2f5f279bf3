//! The objects of one kind, for whom it does not matter which kind that is.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use kube::api::ObjectMeta;
use serde_json::Value;

use crate::{
    error::Error,
    queue::ObjectKey,
    store::{Kind, Store, Version, version_of},
};

/// An object as the cache has it.
pub(crate) struct Live {
    pub(crate) metadata: ObjectMeta,
    pub(crate) value: Value,
}

/// What is known of the objects of one kind, whatever kind it is.
pub(crate) trait Collection: Send + Sync {
    fn live(&self, key: &ObjectKey) -> Result<Option<Live>, Error>;
    /// Version and UID of an object; no object is no error here, and neither is one that cannot be read.
    fn seen(&self, key: &ObjectKey) -> Option<(Version, String)>;
    fn version(&self) -> Version;
    fn complete(&self) -> BoxFuture<'_, ()>;
    /// Whether it is still to be seen what there is.
    fn is_awaited(&self) -> bool;
    fn size(&self) -> (usize, usize);
    /// What it is called in metrics.
    fn name(&self) -> &str;
}

/// A store as a collection.
pub(crate) struct Shelf<K> {
    pub(crate) store: Arc<Store<K>>,
    /// What it is called in metrics.
    pub(crate) name: String,
}

impl<K: Kind> Collection for Shelf<K> {
    fn live(&self, key: &ObjectKey) -> Result<Option<Live>, Error> {
        let Some(object) = self.store.get(key)? else { return Ok(None) };
        let value = serde_json::to_value(object.as_ref())
            .map_err(|source| Error::NotJson { doing: key.to_string(), source: Arc::new(source) })?;
        Ok(Some(Live { metadata: object.meta().clone(), value }))
    }

    fn seen(&self, key: &ObjectKey) -> Option<(Version, String)> {
        match self.store.get(key) {
            Ok(object) => {
                object.map(|object| (version_of(object.meta()), object.meta().uid.clone().unwrap_or_default()))
            }
            Err(unreadable) => Some((self.store.version(), unreadable.metadata.uid.clone().unwrap_or_default())),
        }
    }

    fn version(&self) -> Version {
        self.store.version()
    }

    fn complete(&self) -> BoxFuture<'_, ()> {
        self.store.complete().boxed()
    }

    fn is_awaited(&self) -> bool {
        self.store.is_awaited()
    }

    fn size(&self) -> (usize, usize) {
        (self.store.len(), self.store.unreadable())
    }

    fn name(&self) -> &str {
        &self.name
    }
}
