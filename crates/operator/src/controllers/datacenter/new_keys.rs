//! Private keys of new certificates.
//!
//! An ECDSA key is generated in a moment, during the reconcile. An RSA key takes seconds, so a background task
//! generates it, and the datacenter is reconciled again when it is ready.
//!
//! The background task starts while the controller observes, not after everything else was applied: it has no effect
//! outside of this process, and certificates are renewed even where another object of the datacenter can never be
//! applied.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use k8s_openapi::api::core::v1::Secret;
use messina_runtime::{
    background_tasks::{BackgroundTaskState, BackgroundTasks},
    error::chain,
    queue::ObjectKey,
    store::{Change, controller_of},
};
use tokio::{sync::Semaphore, task::spawn_blocking};
use tracing::debug;

use crate::certificates::{Key, KeyKind};

/// Keys or errors by the names of their Secrets.
type KeysBySecret = BTreeMap<String, Result<Key, String>>;

/// Keys that are being generated, and those that are not stored in their Secrets yet.
#[derive(Debug)]
pub(super) struct NewKeys {
    kind: KeyKind,
    background_tasks: BackgroundTasks<KeysBySecret>,
    /// Keys by datacenter and Secret, until they are observed in the Secret: a Secret that cannot be written, for
    /// example because its name is taken, is retried with the same key.
    ready: Mutex<HashMap<ObjectKey, BTreeMap<String, Key>>>,
    /// Only one RSA key is generated at a time in the whole process, to leave CPU time for reconciles.
    permits: Arc<Semaphore>,
}

impl NewKeys {
    pub(super) fn new(kind: KeyKind) -> Self {
        let permits = Arc::new(Semaphore::new(1));
        Self { kind, background_tasks: BackgroundTasks::default(), ready: Mutex::default(), permits }
    }

    /// Returns the background tasks, whose datacenters must be reconciled when they are done.
    pub(super) fn background_tasks(&self) -> &BackgroundTasks<KeysBySecret> {
        &self.background_tasks
    }

    /// Returns the keys for these Secrets of a datacenter that are ready, and starts to generate the others. Drops the
    /// keys of its other Secrets.
    pub(super) fn get_or_generate(&self, datacenter: &ObjectKey, secrets: &[&str]) -> KeysBySecret {
        if matches!(self.kind, KeyKind::Ecdsa(_)) {
            let key = |secret: &&str| ((*secret).to_owned(), Key::new(self.kind).map_err(|error| chain(&error)));
            return secrets.iter().map(key).collect();
        }
        let mut ready = self.ready();
        let mut keys_by_secret: KeysBySecret =
            ready.remove(datacenter).unwrap_or_default().into_iter().map(|(secret, key)| (secret, Ok(key))).collect();
        let state = self.background_tasks.state(datacenter);
        if let BackgroundTaskState::Done(generated) = &state {
            keys_by_secret.extend(generated.clone());
            self.background_tasks.forget(datacenter);
        }
        keys_by_secret.retain(|secret, _| secrets.contains(&secret.as_str()));
        // Errors are returned once, and the next call tries again.
        let keys: BTreeMap<String, Key> =
            keys_by_secret.iter().filter_map(|(secret, key)| Some((secret.clone(), key.clone().ok()?))).collect();
        if !keys.is_empty() {
            ready.insert(datacenter.clone(), keys);
        }
        let missing = secrets.iter().filter(|secret| !keys_by_secret.contains_key(**secret));
        let missing: Vec<String> = missing.map(|secret| (*secret).to_owned()).collect();
        // A task that was running above may be done by now. The reconcile that it causes takes its result, which a new
        // task must not overwrite.
        if !missing.is_empty() && state != BackgroundTaskState::Running {
            debug!(?missing, "generating keys");
            let generating = generate(self.kind, missing.clone(), Arc::clone(&self.permits));
            let failed = |problem: String| missing.into_iter().map(|secret| (secret, Err(problem.clone()))).collect();
            self.background_tasks.start(datacenter.clone(), generating, failed);
        }
        keys_by_secret
    }

    /// Drops keys that are stored in a Secret. They are never used again, even if a user deletes the Secret to get a
    /// new key.
    pub(super) fn observe_change(&self, change: &Change<Secret>) {
        let Some(secret) = &change.after else { return };
        let (Some(data), Some(owner)) = (&secret.data, controller_of(&secret.metadata)) else { return };
        let datacenter = ObjectKey { namespace: change.key.namespace.clone(), name: owner.name.clone() };
        let mut ready = self.ready();
        let Some(keys) = ready.get_mut(&datacenter) else { return };
        keys.retain(|_, key| data.values().all(|stored| stored.0 != key.pem().as_bytes()));
        if keys.is_empty() {
            ready.remove(&datacenter);
        }
    }

    /// Drops the keys of a datacenter that was deleted.
    pub(super) fn forget(&self, datacenter: &ObjectKey) {
        self.ready().remove(datacenter);
        self.background_tasks.forget(datacenter);
    }

    fn ready(&self) -> MutexGuard<'_, HashMap<ObjectKey, BTreeMap<String, Key>>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn generate(kind: KeyKind, secrets: Vec<String>, permits: Arc<Semaphore>) -> KeysBySecret {
    let mut keys_by_secret = KeysBySecret::new();
    for secret in secrets {
        keys_by_secret.insert(secret, generate_one(kind, Arc::clone(&permits)).await);
    }
    keys_by_secret
}

async fn generate_one(kind: KeyKind, permits: Arc<Semaphore>) -> Result<Key, String> {
    let permit = permits.acquire_owned().await.map_err(|error| chain(&error))?;
    let generating = spawn_blocking(move || {
        // Generating a key cannot be cancelled, so the permit is released when it is done, not when its caller is
        // dropped.
        let _permit = permit;
        Key::new(kind)
    });
    // It panics if the system provides no random bytes, which becomes an error here.
    generating.await.map_err(|error| chain(&error))?.map_err(|error| chain(&error))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use k8s_openapi::{ByteString, apimachinery::pkg::apis::meta::v1::OwnerReference};
    use kube::api::ObjectMeta;
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::certificates::RsaKeySize;

    const KIND: KeyKind = KeyKind::Rsa(RsaKeySize::Bits2048);

    fn datacenter() -> ObjectKey {
        ObjectKey { namespace: Some("shop".into()), name: "orders".into() }
    }

    /// Polls until all keys are ready. Other threads generate them: the tokio runtime has one thread.
    async fn wait_for_keys(keys: &NewKeys, secrets: &[&str]) -> BTreeMap<String, Key> {
        let all = async {
            loop {
                let keys_by_secret = keys.get_or_generate(&datacenter(), secrets);
                if keys_by_secret.len() == secrets.len() {
                    return keys_by_secret.into_iter().map(|(secret, key)| (secret, key.unwrap())).collect();
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(120), all).await.unwrap()
    }

    fn stored(secret: &str, key: &Key) -> Change<Secret> {
        let owner = OwnerReference { name: "orders".into(), controller: Some(true), ..OwnerReference::default() };
        let metadata = ObjectMeta { owner_references: Some(vec![owner]), ..ObjectMeta::default() };
        let data = [("tls.key".to_owned(), ByteString(key.pem().into()))].into();
        let key = ObjectKey { namespace: Some("shop".into()), name: secret.into() };
        let after = Some(Arc::new(Secret { metadata, data: Some(data), ..Secret::default() }));
        Change::new(key, None, after)
    }

    #[test]
    fn ecdsa_keys_are_returned_at_once_and_never_repeated() {
        let keys = NewKeys::new(KeyKind::default());
        let [first, second] = [(); 2].map(|()| keys.get_or_generate(&datacenter(), &["a", "b"]));
        let all = first.into_values().chain(second.into_values()).map(|key| key.unwrap().pem().to_owned());
        assert_eq!(all.collect::<BTreeSet<String>>().len(), 4);
    }

    #[tokio::test]
    async fn rsa_keys_are_returned_until_they_are_stored() {
        let keys = NewKeys::new(KIND);
        assert_eq!(
            keys.get_or_generate(&datacenter(), &["a", "b"]),
            KeysBySecret::new(),
            "the reconcile does not wait for them"
        );
        let keys_by_secret = wait_for_keys(&keys, &["a", "b"]).await;
        assert_ne!(keys_by_secret["a"], keys_by_secret["b"]);
        assert_eq!(
            wait_for_keys(&keys, &["a", "b"]).await,
            keys_by_secret,
            "the Secrets could not be written, and are retried"
        );
        keys.observe_change(&stored("b", &keys_by_secret["b"]));
        keys.observe_change(&stored("a", &keys_by_secret["a"]));
        assert_eq!(keys.ready().len(), 0, "keys that are stored are dropped");
        let again = wait_for_keys(&keys, &["a"]).await;
        assert!(!keys_by_secret.values().any(|key| *key == again["a"]), "the Secret was deleted: it gets another key");
    }

    #[tokio::test]
    async fn keys_that_are_no_longer_requested_are_dropped() {
        let keys = NewKeys::new(KIND);
        let first = wait_for_keys(&keys, &["a"]).await;
        assert_eq!(keys.get_or_generate(&datacenter(), &[]), KeysBySecret::new());
        assert_ne!(wait_for_keys(&keys, &["a"]).await, first);
        keys.forget(&datacenter());
        assert_eq!(keys.ready().len(), 0);
        keys.get_or_generate(&datacenter(), &["a"]);
        keys.forget(&datacenter());
        assert_eq!(
            keys.background_tasks.state(&datacenter()),
            BackgroundTaskState::None,
            "it is deleted while a key is generated"
        );
    }

    /// More keys are requested while some are being generated: those are used, and only the others are generated then.
    #[tokio::test]
    async fn keys_that_are_being_generated_are_not_generated_twice() {
        let keys = NewKeys::new(KIND);
        keys.get_or_generate(&datacenter(), &["a"]);
        keys.get_or_generate(&datacenter(), &["a", "b"]);
        let early = async {
            loop {
                if let Some(key) = keys.get_or_generate(&datacenter(), &["a", "b"]).remove("a") {
                    return key.unwrap();
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        let early = timeout(Duration::from_secs(120), early).await.unwrap();
        let both = wait_for_keys(&keys, &["a", "b"]).await;
        assert_eq!(both["a"], early);
        assert_ne!(both["b"], early);
    }

    #[tokio::test]
    async fn permit_is_released_when_the_key_is_done_even_if_the_caller_is_dropped() {
        let permits = Arc::new(Semaphore::new(1));
        let generating = generate_one(KIND, Arc::clone(&permits));
        assert!(timeout(Duration::ZERO, generating).await.is_err(), "it is dropped at once");
        assert_eq!(permits.available_permits(), 0);
        drop(timeout(Duration::from_secs(120), permits.acquire()).await.unwrap().unwrap());
    }
}
