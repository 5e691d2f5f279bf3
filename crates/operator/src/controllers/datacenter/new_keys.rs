//! Keys for certificates that are to be signed.
//!
//! ECDSA keys are made in a moment, where they are needed. An RSA key takes seconds, so it is made beside the workers, as an
//! errand, and the datacenter is looked at again when it is there.
//!
//! Errands are begun as soon as somebody looks, not when there is nothing left to write: nobody outside notices that a key
//! is made, so no word has to come before the deed, and certificates are renewed also where something else of the
//! datacenter can never be written.

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

/// Keys by the names of the Secrets that they are for, or why there is none.
type Made = BTreeMap<String, Result<Key, String>>;

/// Keys that are made, and those that are there and not stored yet.
#[derive(Debug)]
pub(super) struct NewKeys {
    kind: KeyKind,
    background_tasks: BackgroundTasks<Made>,
    /// By datacenter and Secret, until they are seen to be stored: a Secret that cannot be written, say because its name is
    /// taken, is tried again and again, and no key is made for each attempt.
    ready: Mutex<HashMap<ObjectKey, BTreeMap<String, Key>>>,
    /// One RSA key is made at a time in the whole process, so that the processor is there for the others, too.
    turns: Arc<Semaphore>,
}

impl NewKeys {
    pub(super) fn new(kind: KeyKind) -> Self {
        let turns = Arc::new(Semaphore::new(1));
        Self { kind, background_tasks: BackgroundTasks::default(), ready: Mutex::default(), turns }
    }

    /// Those who wait for keys are to be looked at when these are back.
    pub(super) fn background_tasks(&self) -> &BackgroundTasks<Made> {
        &self.background_tasks
    }

    /// Keys for these Secrets of a datacenter, as far as they are there. Those that are missing are being made then. What
    /// was made for other Secrets is forgotten.
    pub(super) fn desired(&self, datacenter: &ObjectKey, secrets: &[&str]) -> Made {
        if matches!(self.kind, KeyKind::Ecdsa(_)) {
            let key = |secret: &&str| ((*secret).to_owned(), Key::new(self.kind).map_err(|error| chain(&error)));
            return secrets.iter().map(key).collect();
        }
        let mut ready = self.ready();
        let mut made: Made =
            ready.remove(datacenter).unwrap_or_default().into_iter().map(|(secret, key)| (secret, Ok(key))).collect();
        let state = self.background_tasks.state(datacenter);
        if let BackgroundTaskState::Done(brought) = &state {
            made.extend(brought.clone());
            self.background_tasks.forget(datacenter);
        }
        made.retain(|secret, _| secrets.contains(&secret.as_str()));
        // What failed is told, and made another time.
        let keys: BTreeMap<String, Key> =
            made.iter().filter_map(|(secret, key)| Some((secret.clone(), key.clone().ok()?))).collect();
        if !keys.is_empty() {
            ready.insert(datacenter.clone(), keys);
        }
        let missing = secrets.iter().filter(|secret| !made.contains_key(**secret));
        let missing: Vec<String> = missing.map(|secret| (*secret).to_owned()).collect();
        // One that is under way may be back by now: it is looked at then, and nothing may take the place of what it brings.
        if !missing.is_empty() && state != BackgroundTaskState::Running {
            debug!(?missing, "making keys");
            let making = make(self.kind, missing.clone(), Arc::clone(&self.turns));
            let failed = |problem: String| missing.into_iter().map(|secret| (secret, Err(problem.clone()))).collect();
            self.background_tasks.start(datacenter.clone(), making, failed);
        }
        made
    }

    /// A key that was stored once is never used again, whatever becomes of the Secret: who deletes it wants another key.
    pub(super) fn take_in(&self, change: &Change<Secret>) {
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

    /// Forgets the keys of a datacenter that is gone.
    pub(super) fn forget(&self, datacenter: &ObjectKey) {
        self.ready().remove(datacenter);
        self.background_tasks.forget(datacenter);
    }

    fn ready(&self) -> MutexGuard<'_, HashMap<ObjectKey, BTreeMap<String, Key>>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn make(kind: KeyKind, secrets: Vec<String>, turns: Arc<Semaphore>) -> Made {
    let mut made = Made::new();
    for secret in secrets {
        made.insert(secret, make_one(kind, Arc::clone(&turns)).await);
    }
    made
}

async fn make_one(kind: KeyKind, turns: Arc<Semaphore>) -> Result<Key, String> {
    let turn = turns.acquire_owned().await.map_err(|error| chain(&error))?;
    let making = spawn_blocking(move || {
        // A key cannot be broken off, so the turn ends with the key, not with whoever waits for it.
        let _turn = turn;
        Key::new(kind)
    });
    // It panics where there are no random bytes, which is an error like others here.
    making.await.map_err(|error| chain(&error))?.map_err(|error| chain(&error))
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

    /// Looks until all are there. They are made beside this thread, which is the only one of the runtime.
    async fn awaited(keys: &NewKeys, secrets: &[&str]) -> BTreeMap<String, Key> {
        let all = async {
            loop {
                let made = keys.desired(&datacenter(), secrets);
                if made.len() == secrets.len() {
                    return made.into_iter().map(|(secret, key)| (secret, key.unwrap())).collect();
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
    fn elliptic_keys_are_there_at_once_and_never_the_same() {
        let keys = NewKeys::new(KeyKind::default());
        let [first, second] = [(); 2].map(|()| keys.desired(&datacenter(), &["a", "b"]));
        let all = first.into_values().chain(second.into_values()).map(|key| key.unwrap().pem().to_owned());
        assert_eq!(all.collect::<BTreeSet<String>>().len(), 4);
    }

    #[tokio::test]
    async fn rsa_keys_come_later_and_stay_until_they_are_stored() {
        let keys = NewKeys::new(KIND);
        assert_eq!(keys.desired(&datacenter(), &["a", "b"]), Made::new(), "nobody waits for them");
        let made = awaited(&keys, &["a", "b"]).await;
        assert_ne!(made["a"], made["b"]);
        assert_eq!(awaited(&keys, &["a", "b"]).await, made, "they could not be written, and it is tried again");
        keys.take_in(&stored("b", &made["b"]));
        keys.take_in(&stored("a", &made["a"]));
        assert_eq!(keys.ready().len(), 0, "what is stored is not kept");
        let again = awaited(&keys, &["a"]).await;
        assert!(!made.values().any(|key| *key == again["a"]), "the Secret was deleted: it gets another key");
    }

    #[tokio::test]
    async fn what_is_not_asked_for_any_more_is_forgotten() {
        let keys = NewKeys::new(KIND);
        let first = awaited(&keys, &["a"]).await;
        assert_eq!(keys.desired(&datacenter(), &[]), Made::new());
        assert_ne!(awaited(&keys, &["a"]).await, first);
        keys.forget(&datacenter());
        assert_eq!(keys.ready().len(), 0);
        keys.desired(&datacenter(), &["a"]);
        keys.forget(&datacenter());
        assert_eq!(
            keys.background_tasks.state(&datacenter()),
            BackgroundTaskState::None,
            "it is gone while a key is made"
        );
    }

    /// More is asked for while keys are made: those are kept, and only the others are made then.
    #[tokio::test]
    async fn what_is_under_way_is_not_made_twice() {
        let keys = NewKeys::new(KIND);
        keys.desired(&datacenter(), &["a"]);
        keys.desired(&datacenter(), &["a", "b"]);
        let early = async {
            loop {
                if let Some(key) = keys.desired(&datacenter(), &["a", "b"]).remove("a") {
                    return key.unwrap();
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        let early = timeout(Duration::from_secs(120), early).await.unwrap();
        let both = awaited(&keys, &["a", "b"]).await;
        assert_eq!(both["a"], early);
        assert_ne!(both["b"], early);
    }

    #[tokio::test]
    async fn a_turn_ends_with_its_key_also_where_nobody_waits_for_it() {
        let turns = Arc::new(Semaphore::new(1));
        let making = make_one(KIND, Arc::clone(&turns));
        assert!(timeout(Duration::ZERO, making).await.is_err(), "it is broken off at once");
        assert_eq!(turns.available_permits(), 0);
        drop(timeout(Duration::from_secs(120), turns.acquire()).await.unwrap().unwrap());
    }
}
