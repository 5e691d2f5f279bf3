//! Nothing is decided from a cache that is older than our own last write.
//!
//! For every write it is noted what the caches must show before the object that it was for is looked at again. A write of
//! which it is not known whether it was carried out is asked about first.

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

/// What a cache must show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expectation {
    collection: String,
    key: ObjectKey,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    /// The object as of this version, or a later state of things.
    Version(Version),
    /// The same of an object that was read, not written.
    Read(Version),
    /// That the object with this UID is gone, or going.
    Gone(String),
    /// Nobody knows: the answer to a write was lost. The path is where its objects are.
    Doubt(String),
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

    pub(crate) fn doubt(collection: &str, path: &str, key: &ObjectKey) -> Self {
        Self { collection: collection.into(), key: key.clone(), what: What::Doubt(path.into()) }
    }

    /// Whether a write is known to have been carried out.
    pub(crate) fn is_of_a_write(&self) -> bool {
        !matches!(self.what, What::Read(_) | What::Doubt(_))
    }

    /// Whether the cache shows it.
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
            What::Doubt(_) => false,
        }
    }

    /// Asks what became of a write whose answer was lost.
    async fn resolve(&mut self, client: &Client) -> Result<(), Error> {
        let What::Doubt(path) = &self.what else { return Ok(()) };
        let path = format!("{path}/{}", self.key.name);
        self.what = match send(client, Method::GET, &path, "", &Value::Null).await {
            Ok(metadata) => What::Version(version_of(&metadata)),
            // Not created, or gone: the cache shows that or will, and neither does harm.
            Err(kube::Error::Api(status)) if status.is_not_found() => What::Version(0),
            Err(error) => return Err(Error::of(|| format!("looking at {}", self.key), error)),
        };
        Ok(())
    }
}

/// Whether the caches show everything that is expected of them; what is met is forgotten.
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
