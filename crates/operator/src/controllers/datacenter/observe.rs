//! From the caches to what a plan is made of.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Pod};
use messina_api::{names, scylla::v1alpha1::ScyllaDBDatacenter};
use messina_plan::datacenter::{Observed, validate};
use messina_runtime::{
    error::Error,
    queue::ObjectKey,
    store::{Kind, Store},
};

use super::DatacenterController;

impl DatacenterController {
    pub(super) fn observed(&self, object: &ScyllaDBDatacenter) -> Result<Observed, Error> {
        let datacenter = validate(object).map_err(|faults| {
            let lines: Vec<String> = faults.iter().map(|fault| format!("{}: {}", fault.field, fault.message)).collect();
            Error::Invalid { reason: "InvalidSpecification", message: lines.join("\n") }
        })?;
        let uid = datacenter.uid.clone();
        let stateful_sets = owned(&self.stateful_sets, &uid)?;
        let members = stateful_sets.iter().flat_map(|(name, stateful_set)| members(name, stateful_set));
        let pods = members.filter_map(|member| self.pod(&datacenter.namespace, &member)).collect();
        Ok(Observed {
            datacenter,
            status: object.status.clone().unwrap_or_default(),
            stateful_sets,
            services: owned(&self.services, &uid)?,
            pods,
            config_maps: owned(&self.config_maps, &uid)?,
            secrets: owned(&self.secrets, &uid)?,
            ingresses: owned(&self.ingresses, &uid)?,
            jobs: owned(&self.jobs, &uid)?,
            operator_image: self.settings.operator_image.clone(),
            node_exporter_image: self.settings.node_exporter_image.clone(),
            gates: self.settings.gates,
            new_token: random_text()?,
        })
    }

    /// A pod: its metadata and its addresses.
    fn pod(&self, namespace: &str, name: &str) -> Option<(String, Pod)> {
        let key = ObjectKey { namespace: Some(namespace.to_owned()), name: name.to_owned() };
        let pod = self.pods.get(&key).ok().flatten()?;
        Some((name.to_owned(), Pod::clone(&pod)))
    }
}

/// The names of a rack's nodes; of its first one at least.
fn members(name: &str, stateful_set: &StatefulSet) -> Vec<String> {
    let replicas = stateful_set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    (0..replicas.max(1)).map(|ordinal| names::datacenter::member(name, ordinal)).collect()
}

/// What a datacenter has of one kind, by name.
fn owned<K: Kind>(store: &Store<K>, uid: &str) -> Result<BTreeMap<String, K>, Error> {
    let named = |object: Arc<K>| (object.meta().name.clone().unwrap_or_default(), K::clone(&object));
    Ok(store.controlled_by(uid)?.into_iter().map(named).collect())
}

/// A text that nobody can guess.
fn random_text() -> Result<String, Error> {
    let mut bytes = [0; 32];
    rustls::crypto::ring::default_provider().secure_random.fill(&mut bytes).map_err(|_| Error::Invalid {
        reason: "NoRandomness",
        message: "the system gives no random bytes for a token; it is tried again when something changes".into(),
    })?;
    Ok(bytes.iter().map(|byte| char::from(b"abcdefghijklmnopqrstuvwxyz234567"[usize::from(byte % 32)])).collect())
}
