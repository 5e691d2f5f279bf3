//! From the caches to what a plan is made of.

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
    ByName, Cached, Datacenter, Explanation, InvalidField, UserObjects, Observed, OptionalKind, cannot_adopt,
    certificates::{SigningRequest, SignedCertificate, signing_requests},
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

impl DatacenterController {
    pub(super) async fn observed(&self, object: &ScyllaDBDatacenter) -> Result<Observed, Error> {
        let observed = self.observed_in_turn(object).await;
        if observed.is_err() {
            self.turns.stand_back(&key_of(&object.metadata));
        }
        observed
    }

    async fn observed_in_turn(&self, object: &ScyllaDBDatacenter) -> Result<Observed, Error> {
        let datacenter = self.validated(object)?;
        let key = key_of(&object.metadata);
        // First what may have to be asked for: what is read from the stores is of one moment.
        let named = UserObjects {
            config_maps: self.named_config_maps.read(Self::NAME, &key, datacenter.config_map_references()).await?,
            secrets: self.named_secrets.read(Self::NAME, &key, datacenter.secret_references()).await?,
        };
        let uid = datacenter.uid.clone();
        // Before volumes and machines: what could not be read until now may be old.
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
            named,
            ingresses: owned(&self.ingresses, &uid)?,
            jobs: owned(&self.jobs, &uid)?,
            node_exporter_image: self.settings.node_exporter_image.clone(),
            gates: self.settings.gates,
            probe_period: self.settings.probe_period,
            new_token: random_text()?,
            proofs: self.proven.of(&key),
            cqls_ingress_port: self.settings.cqls_ingress_port,
            unreadable_kinds,
            now: Timestamp::now(),
            ..Cached::new(datacenter, &self.settings.operator_image)
        };
        let cached = cached.prove(&SystemRandom::new());
        self.proven.remember(&key, &cached.proofs);
        let machines = self.machines.all();
        let mut observed = Observed::from_cached(cached, machines.iter().map(|one| &one.metadata));
        if let Some(fault) = change_of_identity(&observed) {
            return Err(invalid(&[fault]));
        }
        let is_known = observed.status().observed_generation == Some(observed.datacenter().generation);
        let turn = self.turns.turn(&key, of_user(&observed), is_known, || rollout_state(&observed));
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
            stateful_sets: left_behind(&self.stateful_sets, &key),
            config_maps: left_behind(&self.config_maps, &key),
            ..Cached::new(datacenter, &self.settings.operator_image)
        };
        cannot_adopt(&Observed::from_cached(cached, [])).map_or(Ok(()), |fault| Err(invalid(&[fault])))
    }

    /// Kinds outside of the namespace that the operator may not read.
    fn unreadable_kinds(&self) -> BTreeSet<OptionalKind> {
        let kinds = [
            (OptionalKind::StorageClass, self.storage_classes.is_forbidden()),
            (OptionalKind::PersistentVolume, self.volumes.is_forbidden()),
            (OptionalKind::Node, self.machines.is_forbidden()),
        ];
        kinds.into_iter().filter_map(|(kind, is_forbidden)| is_forbidden.then_some(kind)).collect()
    }

    /// Volumes of claims. One that cannot be read has no Kubernetes node to miss.
    fn volumes_of(&self, claims: &ByName<PersistentVolumeClaim>) -> ByName<PersistentVolume> {
        let names = claims.values().filter_map(|claim| claim.spec.as_ref()?.volume_name.clone());
        names.filter_map(|name| self.volumes.get(&ObjectKey { namespace: None, name }).ok()?).collect()
    }

    /// Certificates that are to be signed now, as far as there are keys for them.
    fn signed(&self, datacenter: &ObjectKey, observed: &Observed) -> BTreeMap<String, Result<SignedCertificate, String>> {
        let signing_requests = signing_requests(observed);
        let secrets: Vec<&str> = signing_requests.iter().map(|order| order.secret.as_str()).collect();
        let mut keys = self.new_keys.desired(datacenter, &secrets);
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

/// Tells versions of what the user wrote apart: the specification, and what nodes read of the objects that it names.
fn of_user(observed: &Observed) -> u64 {
    let mut hasher = DefaultHasher::new();
    (observed.datacenter().generation, version_of_settings(observed)).hash(&mut hasher);
    hasher.finish()
}

fn invalid(faults: &[InvalidField]) -> Error {
    let Explanation { reason, message } = refusal(faults);
    Error::Invalid { reason, message }
}

/// What has the datacenter's name on it. Fails when something of that cannot be read: it is there, so it may not be taken
/// for missing. What others have and cannot be read is their affair.
fn of_datacenter<K: Kind + Metadata<Ty = ObjectMeta>>(
    store: &Store<K>,
    datacenter: &Datacenter,
) -> Result<ByName<K>, Error> {
    let is_its = |key: &ObjectKey, labels: &BTreeMap<String, String>| {
        key.namespace.as_ref() == Some(&datacenter.namespace) && labels.get(label::CLUSTER) == Some(&datacenter.name)
    };
    Ok(store.select(is_its)?.into_iter().collect())
}

/// What a datacenter has of one kind, by name.
fn owned<K: Kind + Metadata<Ty = ObjectMeta>>(store: &Store<K>, uid: &str) -> Result<ByName<K>, Error> {
    Ok(store.controlled_by(uid)?.into_iter().collect())
}

/// What a former datacenter of this name left behind.
fn left_behind<K: Kind + Metadata<Ty = ObjectMeta>>(store: &Store<K>, key: &ObjectKey) -> ByName<K> {
    let orphans = store.without_controller().into_iter();
    orphans.filter(|one| datacenter_of(one.as_ref()).as_ref() == Some(key)).collect()
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
