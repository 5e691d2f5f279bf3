//! From the caches to what a plan is made of.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use messina_api::{names, scylla::v1alpha1::ScyllaDBDatacenter};
use messina_plan::datacenter::{
    Observed,
    certificates::{Order, Signed, orders},
    validate,
};
use messina_runtime::{
    error::{Error, chain},
    queue::ObjectKey,
    store::{Kind, Store},
};
use tracing::info;

use super::DatacenterController;
use crate::certificates;

impl DatacenterController {
    pub(super) fn observed(&self, object: &ScyllaDBDatacenter) -> Result<Observed, Error> {
        let datacenter = validate(object).map_err(|faults| {
            let lines: Vec<String> = faults.iter().map(|fault| format!("{}: {}", fault.field, fault.message)).collect();
            Error::Invalid { reason: "InvalidSpecification", message: lines.join("\n") }
        })?;
        let uid = datacenter.uid.clone();
        let stateful_sets = owned(&self.stateful_sets, &uid)?;
        let services = owned(&self.services, &uid)?;
        let first_pods = stateful_sets.keys().map(|name| names::datacenter::member(name, 0));
        let pods = first_pods.chain(services.keys().cloned());
        let pods = pods.filter_map(|name| self.pod(&datacenter.namespace, name)).collect();
        let mut observed = Observed {
            datacenter,
            status: object.status.clone().unwrap_or_default(),
            stateful_sets,
            services,
            pods,
            config_maps: owned(&self.config_maps, &uid)?,
            secrets: owned(&self.secrets, &uid)?,
            ingresses: owned(&self.ingresses, &uid)?,
            jobs: owned(&self.jobs, &uid)?,
            operator_image: self.settings.operator_image.clone(),
            node_exporter_image: self.settings.node_exporter_image.clone(),
            gates: self.settings.gates,
            new_token: random_text()?,
            signed: BTreeMap::new(),
            cqls_ingress_port: self.settings.cqls_ingress_port,
            now: Timestamp::now(),
        };
        observed.signed = self.signed(&observed);
        Ok(observed)
    }

    /// Certificates that are to be signed now.
    fn signed(&self, observed: &Observed) -> BTreeMap<String, Result<Signed, String>> {
        let sign = |order: Order| {
            info!(secret = order.secret, reason = order.reason, "signing a certificate");
            let signed = certificates::sign(&order, self.settings.key_size).map_err(|error| chain(&error));
            (order.secret, signed)
        };
        orders(observed).into_iter().map(sign).collect()
    }

    /// A pod, as far as it is kept.
    fn pod(&self, namespace: &str, name: String) -> Option<(String, Pod)> {
        let key = ObjectKey { namespace: Some(namespace.to_owned()), name };
        let pod = self.pods.get(&key).ok().flatten()?;
        Some((key.name, Pod::clone(&pod)))
    }
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
