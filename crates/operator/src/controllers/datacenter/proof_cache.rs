//! A cache of verified certificates, so that signatures are not verified at each reconcile.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use messina_plan::datacenter::certificates::Proofs;
use messina_runtime::queue::ObjectKey;

/// The cache is cleared when it has so many datacenters. Each has at most two proofs for each of its certificates.
const MAX_DATACENTERS: usize = 10_000;

/// The last proofs of each datacenter.
#[derive(Debug, Default)]
pub(super) struct ProofCache(Mutex<HashMap<ObjectKey, Proofs>>);

impl ProofCache {
    pub(super) fn get(&self, datacenter: &ObjectKey) -> Proofs {
        let cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cache.get(datacenter).cloned().unwrap_or_default()
    }

    pub(super) fn insert(&self, datacenter: &ObjectKey, proofs: &Proofs) {
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.get(datacenter) == Some(proofs) {
            return;
        }
        if cache.len() >= MAX_DATACENTERS && !cache.contains_key(datacenter) {
            cache.clear();
        }
        cache.insert(datacenter.clone(), proofs.clone());
    }

    pub(super) fn forget(&self, datacenter: &ObjectKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(datacenter);
    }
}
