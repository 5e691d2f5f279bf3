//! What was proven of certificates, so that it is not proven at each reconcile.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use messina_plan::datacenter::certificates::Proofs;
use messina_runtime::queue::ObjectKey;

/// So many datacenters are remembered; then it begins anew. Each has two proofs at most for each of its certificates.
const MOST: usize = 10_000;

/// What was last proven of each datacenter.
#[derive(Debug, Default)]
pub(super) struct Proven(Mutex<HashMap<ObjectKey, Proofs>>);

impl Proven {
    pub(super) fn of(&self, datacenter: &ObjectKey) -> Proofs {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(datacenter).cloned().unwrap_or_default()
    }

    pub(super) fn remember(&self, datacenter: &ObjectKey, proofs: &Proofs) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.get(datacenter) == Some(proofs) {
            return;
        }
        if known.len() >= MOST && !known.contains_key(datacenter) {
            known.clear();
        }
        known.insert(datacenter.clone(), proofs.clone());
    }

    pub(super) fn forget(&self, datacenter: &ObjectKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(datacenter);
    }
}
