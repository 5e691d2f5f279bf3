//! Caches without the type of their kind, for code that handles all kinds alike.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use kube::api::ObjectMeta;
use serde_json::Value;

use crate::{
    error::Error,
    queue::ObjectKey,
    store::{Kind, Store, Version, version_of},
};

/// A cached object.
pub(crate) struct Live {
    pub(crate) metadata: ObjectMeta,
    pub(crate) value: Value,
}

/// The cache of one kind, without its type.
pub(crate) trait Collection: Send + Sync {
    fn live(&self, key: &ObjectKey) -> Result<Option<Live>, Error>;
    /// Returns version and UID of an object, also of one that cannot be read; none if it is not cached.
    fn seen(&self, key: &ObjectKey) -> Option<(Version, String)>;
    fn version(&self) -> Version;
    fn wait_until_synced(&self) -> BoxFuture<'_, ()>;
    /// Whether the cache has not synced yet, or may no longer be read.
    fn is_unsynced(&self) -> bool;
    fn size(&self) -> (usize, usize);
    /// The name in metrics.
    fn name(&self) -> &str;
}

/// A store and its name.
pub(crate) struct StoreCollection<K> {
    pub(crate) store: Arc<Store<K>>,
    /// The name in metrics.
    pub(crate) name: String,
}

impl<K: Kind> Collection for StoreCollection<K> {
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

    fn wait_until_synced(&self) -> BoxFuture<'_, ()> {
        self.store.wait_until_synced().boxed()
    }

    fn is_unsynced(&self) -> bool {
        self.store.is_unsynced()
    }

    fn size(&self) -> (usize, usize) {
        (self.store.len(), self.store.unreadable())
    }

    fn name(&self) -> &str {
        &self.name
    }
}
