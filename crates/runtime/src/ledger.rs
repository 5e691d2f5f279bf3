//! Expectations: no object is reconciled from a cache that is older than the operator's own last write for it.
//!
//! Every write records what the caches must show before the object that it was made for is reconciled again. If it is
//! unknown whether a write was executed, the written object is read from the API server first.

use std::{collections::BTreeMap, sync::Arc};

use http::Method;
use kube::{Client, api::ObjectMeta};
use serde_json::Value;

use crate::{
    apply::Collection,
    error::Error,
    queue::ObjectKey,
    request::send,
    store::{Version, version_of},
};

/// What a cache must show before an object is reconciled again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expectation {
    collection: String,
    key: ObjectKey,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    /// The resource version of a write, or a later one.
    Version(Version),
    /// The resource version of a read, or a later one.
    Read(Version),
    /// That the object with this UID is deleted, or being deleted.
    Gone(String),
    /// Unknown: the answer to a write was lost, or was a conflict. The object is read at this URL path of its
    /// collection.
    Unknown(String),
}

impl Expectation {
    pub(crate) fn seen(collection: &str, key: &ObjectKey, metadata: &ObjectMeta) -> Self {
        Self { collection: collection.into(), key: key.clone(), what: What::Version(version_of(metadata)) }
    }

    pub(crate) fn read(collection: &str, key: &ObjectKey, metadata: &ObjectMeta) -> Self {
        Self { collection: collection.into(), key: key.clone(), what: What::Read(version_of(metadata)) }
    }

    pub(crate) fn gone(collection: &str, key: &ObjectKey, uid: &str) -> Self {
        Self { collection: collection.into(), key: key.clone(), what: What::Gone(uid.into()) }
    }

    pub(crate) fn unknown(collection: &str, path: &str, key: &ObjectKey) -> Self {
        Self { collection: collection.into(), key: key.clone(), what: What::Unknown(path.into()) }
    }

    /// Whether it results from a write that is known to be executed.
    pub(crate) fn is_write(&self) -> bool {
        !matches!(self.what, What::Read(_) | What::Unknown(_))
    }

    /// Whether the cache meets it.
    fn is_met(&self, collections: &BTreeMap<String, Arc<dyn Collection>>) -> bool {
        let Some(collection) = collections.get(&self.collection) else { return true };
        match &self.what {
            What::Version(version) | What::Read(version) => collection.version() >= *version,
            What::Gone(uid) => {
                collection.seen(&self.key).is_none_or(|(_, seen)| seen != *uid) || {
                    let live = collection.live(&self.key).ok().flatten();
                    live.is_some_and(|live| live.metadata.deletion_timestamp.is_some())
                }
            }
            What::Unknown(_) => false,
        }
    }

    /// Reads the object of a write whose result is unknown.
    async fn resolve(&mut self, client: &Client) -> Result<(), Error> {
        let What::Unknown(path) = &self.what else { return Ok(()) };
        let path = format!("{path}/{}", self.key.name);
        self.what = match send(client, Method::GET, &path, "", &Value::Null).await {
            Ok(metadata) => What::Version(version_of(&metadata)),
            // Not created, or deleted: neither needs a certain version of the cache.
            Err(kube::Error::Api(status)) if status.is_not_found() => What::Version(0),
            Err(error) => return Err(Error::of(|| format!("reading {}", self.key), error)),
        };
        Ok(())
    }
}

/// Whether the caches meet all expectations. Those that are met are removed.
pub(crate) async fn is_caught_up(
    expectations: &mut Vec<Expectation>,
    client: &Client,
    collections: &BTreeMap<String, Arc<dyn Collection>>,
) -> Result<bool, Error> {
    for expectation in &mut *expectations {
        expectation.resolve(client).await?;
    }
    expectations.retain(|expectation| !expectation.is_met(collections));
    Ok(expectations.is_empty())
}
