//! From the caches to what a plan is made of.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use messina_api::{names::label, scylla::v1alpha1::ScyllaDBDatacenter};
use messina_plan::datacenter::{
    Datacenter, Observed,
    certificates::{Order, Signed, orders},
    validate,
};
use messina_runtime::{
    error::{Error, chain},
    queue::ObjectKey,
    store::{Kind, Store, key_of},
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
        let pods = of_datacenter(&self.pods, &datacenter)?.map(named).collect();
        let claims = of_datacenter(&self.claims, &datacenter)?.map(named);
        let claims = claims.map(|(name, claim)| (name, claim.metadata)).collect();
        let mut observed = Observed {
            datacenter,
            status: object.status.clone().unwrap_or_default(),
            stateful_sets,
            services: owned(&self.services, &uid)?,
            pods,
            claims,
            config_maps: owned(&self.config_maps, &uid)?,
            secrets: owned(&self.secrets, &uid)?,
            ingresses: owned(&self.ingresses, &uid)?,
            jobs: owned(&self.jobs, &uid)?,
            operator_image: self.settings.operator_image.clone(),
            node_exporter_image: self.settings.node_exporter_image.clone(),
            gates: self.settings.gates,
            new_token: random_text()?,
            signed: BTreeMap::new(),
            proofs: self.proofs.clone(),
            cqls_ingress_port: self.settings.cqls_ingress_port,
            now: Timestamp::now(),
        };
        observed.signed = self.signed(&key_of(&object.metadata), &observed);
        Ok(observed)
    }

    /// Certificates that are to be signed now, as far as there are keys for them.
    fn signed(&self, datacenter: &ObjectKey, observed: &Observed) -> BTreeMap<String, Result<Signed, String>> {
        let orders = orders(observed);
        let secrets: Vec<&str> = orders.iter().map(|order| order.secret.as_str()).collect();
        let mut keys = self.new_keys.wanted(datacenter, &secrets);
        let sign = |order: Order| {
            let signed = keys.remove(&order.secret)?.and_then(|key| {
                info!(secret = order.secret, reason = order.reason, "signing a certificate");
                certificates::sign(&order, &key).map_err(|error| chain(&error))
            });
            Some((order.secret, signed))
        };
        orders.into_iter().filter_map(sign).collect()
    }
}

/// What has the datacenter's name on it. Fails when something of that kind cannot be read: it is there, so it may not be
/// taken for missing.
fn of_datacenter<K: Kind>(store: &Store<K>, datacenter: &Datacenter) -> Result<impl Iterator<Item = Arc<K>>, Error> {
    if store.unreadable() > 0 {
        return Err(Error::Invalid {
            reason: "Unreadable",
            message: "pods or claims cannot be read, so it is not known which nodes there are".into(),
        });
    }
    let is_its = |object: &Arc<K>| {
        let metadata = object.meta();
        let cluster = metadata.labels.as_ref().and_then(|labels| labels.get(label::CLUSTER));
        metadata.namespace.as_ref() == Some(&datacenter.namespace) && cluster == Some(&datacenter.name)
    };
    Ok(store.all().into_iter().filter(is_its))
}

/// What a datacenter has of one kind, by name.
fn owned<K: Kind>(store: &Store<K>, uid: &str) -> Result<BTreeMap<String, K>, Error> {
    Ok(store.controlled_by(uid)?.into_iter().map(named).collect())
}

fn named<K: Kind>(object: Arc<K>) -> (String, K) {
    (object.meta().name.clone().unwrap_or_default(), K::clone(&object))
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
