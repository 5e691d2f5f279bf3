//! From the caches to what a plan is made of.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::core::PartialObjectMeta;
use messina_api::{names::label, scylla::v1alpha1::ScyllaDBDatacenter};
use messina_plan::datacenter::{Observed, validate};
use messina_runtime::{
    error::Error,
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
        let (namespace, name) = (Some(datacenter.namespace.as_str()), datacenter.name.as_str());
        let pods = of_datacenter(&self.pods, namespace, name)?
            .map(|metadata| Pod { metadata, ..Pod::default() })
            .map(|pod| (pod.metadata.name.clone().unwrap_or_default(), pod))
            .collect();
        let claims = of_datacenter(&self.claims, namespace, name)?
            .map(|metadata| (metadata.name.clone().unwrap_or_default(), metadata))
            .collect();
        Ok(Observed {
            datacenter,
            status: object.status.clone().unwrap_or_default(),
            stateful_sets,
            services: owned(&self.services, &uid)?,
            pods,
            claims,
            config_maps: owned(&self.config_maps, &uid)?,
            secrets: owned(&self.secrets, &uid)?,
            operator_image: self.settings.operator_image.clone(),
            node_exporter_image: self.settings.node_exporter_image.clone(),
            gates: self.settings.gates,
            new_token: random_text()?,
        })
    }
}

/// The metadata of what has the datacenter's name on it. Fails when something of that kind cannot be read: it is there,
/// so it may not be taken for missing.
fn of_datacenter<K>(
    store: &Store<PartialObjectMeta<K>>,
    namespace: Option<&str>,
    datacenter: &str,
) -> Result<impl Iterator<Item = ObjectMeta>, Error>
where
    PartialObjectMeta<K>: Kind,
{
    if store.unreadable() > 0 {
        return Err(Error::Invalid {
            reason: "Unreadable",
            message: "pods or claims cannot be read, so it is not known which nodes there are".into(),
        });
    }
    let is_its = |metadata: &ObjectMeta| {
        let cluster = metadata.labels.as_ref().and_then(|labels| labels.get(label::CLUSTER));
        metadata.namespace.as_deref() == namespace && cluster.is_some_and(|cluster| cluster == datacenter)
    };
    let all = store.all().into_iter().map(|object| object.metadata.clone());
    Ok(all.filter(is_its).collect::<Vec<_>>().into_iter())
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
