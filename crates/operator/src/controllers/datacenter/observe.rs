//! The observed state of a datacenter, read from the caches.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use jiff::Timestamp;
use k8s_openapi::{
    Metadata,
    api::core::v1::{PersistentVolume, PersistentVolumeClaim},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use messina_api::{names::label, scylla::v1alpha1::ScyllaDBDatacenter};
use messina_plan::datacenter::{
    ByName, Cached, Datacenter, Explanation, InvalidField, Observed, OptionalKind, UserObjects, cannot_adopt,
    certificates::{SignedCertificate, SigningRequest, signing_requests},
    change_of_identity, refusal, rollout_state, validate_allowing, version_of_settings,
};
use messina_runtime::{
    controller::Controller as _,
    error::{Error, chain},
    queue::ObjectKey,
    store::{Kind, Store, key_of},
};
use ring::rand::SystemRandom;
use tracing::info;

use super::{DatacenterController, datacenter_of};
use crate::certificates;
use crate::controllers::reasons;

impl DatacenterController {
    pub(super) async fn observe_object(&self, object: &ScyllaDBDatacenter) -> Result<Observed, Error> {
        let observed = self.observe_once(object).await;
        if observed.is_err() {
            self.rollouts.skip(&key_of(&object.metadata));
        }
        observed
    }

    async fn observe_once(&self, object: &ScyllaDBDatacenter) -> Result<Observed, Error> {
        let datacenter = self.validated(object)?;
        let key = key_of(&object.metadata);
        // First the objects that may need requests: everything below is read from the stores at one moment.
        let named = UserObjects {
            config_maps: self.named_config_maps.read(Self::NAME, &key, datacenter.config_map_references()).await?,
            secrets: self.named_secrets.read(Self::NAME, &key, datacenter.secret_references()).await?,
        };
        let uid = datacenter.uid.clone();
        // Before volumes and Kubernetes nodes: a store that becomes readable after this line may be incomplete.
        let unreadable_kinds = self.unreadable_kinds();
        let claims = of_datacenter(&self.claims, &datacenter)?;
        let cached = Cached {
            status: object.status.clone().unwrap_or_default(),
            stateful_sets: owned(&self.stateful_sets, &uid)?,
            services: owned(&self.services, &uid)?,
            pods: of_datacenter(&self.pods, &datacenter)?,
            volumes: self.volumes_of(&claims),
            claims,
            storage_classes: self.storage_classes.all().into_iter().collect(),
            config_maps: owned(&self.config_maps, &uid)?,
            secrets: owned(&self.secrets, &uid)?,
            user_objects: named,
            ingresses: owned(&self.ingresses, &uid)?,
            jobs: owned(&self.jobs, &uid)?,
            node_exporter_image: self.settings.node_exporter_image.clone(),
            gates: self.settings.gates,
            probe_period: self.settings.probe_period,
            new_token: random_token()?,
            proofs: self.proof_cache.get(&key),
            cqls_ingress_port: self.settings.cqls_ingress_port,
            unreadable_kinds,
            now: Timestamp::now(),
            ..Cached::new(datacenter, &self.settings.operator_image)
        };
        let cached = cached.prove(&SystemRandom::new());
        self.proof_cache.insert(&key, &cached.proofs);
        let kubernetes_nodes = self.kubernetes_nodes.all();
        let mut observed = Observed::from_cached(cached, kubernetes_nodes.iter().map(|one| &one.metadata));
        if let Some(fault) = change_of_identity(&observed) {
            return Err(invalid(&[fault]));
        }
        let is_known = observed.status().observed_generation == Some(observed.datacenter().generation);
        let turn = self.rollouts.turn_of(&key, user_version(&observed), is_known, || rollout_state(&observed));
        observed.set_turn(turn);
        observed.set_signed(self.signed(&key, &observed));
        Ok(observed)
    }

    fn validated(&self, object: &ScyllaDBDatacenter) -> Result<Datacenter, Error> {
        validate_allowing(object, &self.settings.allowed_sysctls).map_err(|faults| invalid(&faults))
    }

    /// Checks the specification against the orphaned objects of a former datacenter.
    pub(super) fn check_adoption(&self, object: &ScyllaDBDatacenter) -> Result<(), Error> {
        let datacenter = self.validated(object)?;
        let key = key_of(&object.metadata);
        let cached = Cached {
            stateful_sets: orphans_of(&self.stateful_sets, &key),
            config_maps: orphans_of(&self.config_maps, &key),
            ..Cached::new(datacenter, &self.settings.operator_image)
        };
        cannot_adopt(&Observed::from_cached(cached, [])).map_or(Ok(()), |fault| Err(invalid(&[fault])))
    }

    /// Returns the cluster-scoped kinds that the operator is not permitted to read.
    fn unreadable_kinds(&self) -> BTreeSet<OptionalKind> {
        let kinds = [
            (OptionalKind::StorageClass, self.storage_classes.is_forbidden()),
            (OptionalKind::PersistentVolume, self.volumes.is_forbidden()),
            (OptionalKind::Node, self.kubernetes_nodes.is_forbidden()),
        ];
        kinds.into_iter().filter_map(|(kind, is_forbidden)| is_forbidden.then_some(kind)).collect()
    }

    /// Returns the volumes of claims. A volume that cannot be parsed is left out, as if its Kubernetes node existed.
    fn volumes_of(&self, claims: &ByName<PersistentVolumeClaim>) -> ByName<PersistentVolume> {
        let names = claims.values().filter_map(|claim| claim.spec.as_ref()?.volume_name.clone());
        names.filter_map(|name| self.volumes.get(&ObjectKey { namespace: None, name }).ok()?).collect()
    }

    /// Signs the certificates that are due and whose keys are ready.
    fn signed(
        &self,
        datacenter: &ObjectKey,
        observed: &Observed,
    ) -> BTreeMap<String, Result<SignedCertificate, String>> {
        let signing_requests = signing_requests(observed);
        let secrets: Vec<&str> = signing_requests.iter().map(|order| order.secret.as_str()).collect();
        let mut keys = self.new_keys.get_or_generate(datacenter, &secrets);
        let sign = |order: SigningRequest| {
            let signed = keys.remove(&order.secret)?.and_then(|key| {
                info!(secret = order.secret, reason = order.reason, "signing a certificate");
                certificates::sign(&order, &key).map_err(|error| chain(&error))
            });
            Some((order.secret, signed))
        };
        signing_requests.into_iter().filter_map(sign).collect()
    }
}

/// Returns a hash of the user's input: the specification, and what nodes read of the objects that it refers to.
fn user_version(observed: &Observed) -> u64 {
    let mut hasher = DefaultHasher::new();
    (observed.datacenter().generation, version_of_settings(observed)).hash(&mut hasher);
    hasher.finish()
}

fn invalid(faults: &[InvalidField]) -> Error {
    let Explanation { reason, message } = refusal(faults);
    Error::Invalid { reason, message }
}

/// Returns the objects with the datacenter's label. Fails if one of them cannot be parsed: it exists, so it must not be
/// taken for missing. Objects of other datacenters that cannot be parsed do not matter.
fn of_datacenter<K: Kind + Metadata<Ty = ObjectMeta>>(
    store: &Store<K>,
    datacenter: &Datacenter,
) -> Result<ByName<K>, Error> {
    let is_labelled = |key: &ObjectKey, labels: &BTreeMap<String, String>| {
        key.namespace.as_ref() == Some(&datacenter.namespace) && labels.get(label::CLUSTER) == Some(&datacenter.name)
    };
    Ok(store.select(is_labelled)?.into_iter().collect())
}

/// Returns the objects that a datacenter owns.
fn owned<K: Kind + Metadata<Ty = ObjectMeta>>(store: &Store<K>, uid: &str) -> Result<ByName<K>, Error> {
    Ok(store.controlled_by(uid)?.into_iter().collect())
}

/// Returns the objects without owner of a former datacenter of this name.
fn orphans_of<K: Kind + Metadata<Ty = ObjectMeta>>(store: &Store<K>, key: &ObjectKey) -> ByName<K> {
    let orphans = store.without_controller().into_iter();
    orphans.filter(|one| datacenter_of(one.meta()).as_ref() == Some(key)).collect()
}

/// Returns a random token.
fn random_token() -> Result<String, Error> {
    let mut bytes = [0; 32];
    rustls::crypto::ring::default_provider().secure_random.fill(&mut bytes).map_err(|_| Error::Invalid {
        reason: reasons::NO_RANDOMNESS,
        message:
            "The operating system provides no random bytes for the agents' token. The operator retries when an object \
                  of the datacenter changes."
                .into(),
    })?;
    Ok(bytes.iter().map(|byte| char::from(b"abcdefghijklmnopqrstuvwxyz234567"[usize::from(byte % 32)])).collect())
}
