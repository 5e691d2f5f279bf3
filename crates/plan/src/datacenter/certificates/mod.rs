//! Certificates for clients of ScyllaDB: which of them must be signed and why, and the objects that store them.
//!
//! There is a chain for each purpose: a self-signed certificate authority (CA), a bundle of the trusted CAs, and the
//! certificate that the CA signs. Valid certificates stay as they are. [`signing_requests`] returns what must be
//! signed; the controller signs it and passes the result in [`Observed::signed`], because this crate has no source of
//! randomness.
//!
//! A CA signs, and is added to the bundle, only after its Secret has been observed: no certificate depends on a key
//! that was lost in a crash. A bundle keeps former CAs until they expire, so that clients trust both.

mod addresses;
mod check;
mod objects;

use messina_text::Reason;
use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use messina_api::names::{self, annotation};

use self::check::{CertificateCheck, ValidCertificate};
pub use crate::datacenter::model::certificate::{
    chain::{Purpose, SignedCertificate, SigningRequest},
    keys,
    proofs::Proofs,
};
use crate::{
    datacenter::{
        certificates::addresses::addresses,
        layout::{BUNDLE, CERTIFICATE, KEY},
        model::{
            certificate::{
                chain::{Chain, DesiredCertificate, chains_of},
                reading::Certificate,
                stored::bytes,
            },
            component::Component,
            observed::Observed,
            plan::{CertificateChain, Note, Untouched},
        },
        reasons,
        state::Current,
    },
    metadata,
};

/// The longest time between two reconciles for the sake of certificates, because clocks are adjusted and hosts are
/// suspended.
const MAX_REQUEUE_INTERVAL: SignedDuration = SignedDuration::from_hours(24);

/// The certificates of a datacenter: desired objects and what to report.
#[derive(Default)]
pub(crate) struct Certificates {
    pub(crate) chains: Vec<CertificateChain>,
    pub(crate) connection_configs: Option<Secret>,
    pub(crate) progressing: Vec<Note>,
    pub(crate) degraded: Vec<Note>,
    pub(crate) untouched: Vec<Untouched>,
    /// Whether a Secret or ConfigMap that pods mount does not exist yet.
    pub(crate) are_incomplete: bool,
    pub(crate) requeue_at: Option<Timestamp>,
}

pub(crate) fn chains(current: &Current<'_>) -> Vec<Chain> {
    let observed = current.observed;
    chains_of(&observed.datacenter, observed.gates, || addresses(current))
}

/// Returns the certificates to sign now.
pub fn signing_requests(observed: &Observed) -> Vec<SigningRequest> {
    let current = &Current::new(observed);
    let now = observed.now;
    let mut signing_requests = Vec::new();
    for chain in chains(current) {
        let stored = observed.secrets.get(&chain.authority);
        let good = match chain.authority().check(observed) {
            CertificateCheck::ValidCertificate(good) => good,
            CertificateCheck::Sign(reason) => {
                signing_requests.push(chain.authority().signing_request(reason, None, now));
                continue;
            }
        };
        let (Some(authority), Some(signer)) = (good.certificates.first(), stored.and_then(pair)) else { continue };
        if let CertificateCheck::Sign(reason) = chain.certificate.check(observed) {
            signing_requests.push(chain.certificate.signing_request(reason, Some((authority, signer)), now));
        }
    }
    signing_requests
}

/// Returns the certificate and the key of a Secret.
fn pair(secret: &Secret) -> Option<SignedCertificate> {
    let text = |key| bytes(secret, key).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    Some(SignedCertificate { certificate: text(CERTIFICATE)?, key: text(KEY)? })
}

/// Returns the desired objects with certificates, from those that exist and those that were signed.
pub(crate) fn certificates(current: &Current<'_>) -> Certificates {
    let observed = current.observed;
    let mut made = Certificates::default();
    let mut pending = BTreeSet::new();
    for chain in chains(current) {
        made.add_chain(observed, &chain);
        pending.extend(chain.certificate.names.pending);
    }
    if !pending.is_empty() {
        let pending = pending.into_iter().collect::<Vec<_>>().join(", ");
        let message = format!(
            "The serving certificates do not cover all names and addresses of the nodes yet. Waiting for {pending}."
        );
        made.progressing.push(note(reasons::WAITING_FOR_ADDRESSES, message));
    }
    if observed.gates.automatic_tls_certificates {
        made.connection_configs = connection_configs(observed, &made.chains);
    }
    made.untouched = untouched(observed, &made.chains);
    made.requeue_at =
        made.requeue_at.map(|at| at.min(observed.now.saturating_add(MAX_REQUEUE_INTERVAL).unwrap_or(Timestamp::MAX)));
    made
}

fn note(reason: Reason, message: String) -> Note {
    Note { component: Component::Certificates, reason, message }
}

impl Certificates {
    fn add_chain(&mut self, observed: &Observed, chain: &Chain) {
        let (planned, good) = self.object(observed, &chain.authority());
        let mut objects = CertificateChain { authority: planned, ..CertificateChain::default() };
        let authority = good.as_ref().and_then(|good| good.certificates.first());
        if let Some(authority) = authority {
            objects.bundle = Some(self.bundle(observed, &chain.authority, authority));
            let former = chain.former.as_ref().filter(|former| observed.config_maps.contains_key(*former));
            objects.former_bundle = former.map(|former| self.bundle(observed, former, authority));
            objects.certificate = self.object(observed, &chain.certificate).0;
        } else {
            let namespace = &observed.datacenter.namespace;
            let (authority, name) = (&chain.authority, &chain.certificate.name);
            let message = format!(
                "Secret {namespace}/{name} is not signed yet. Waiting for its certificate authority, Secret \
                 {namespace}/{authority}, to be stored."
            );
            self.progressing.push(note(reasons::WAITING_FOR_AUTHORITY, message));
        }
        let has_certificate = objects.certificate.is_some() || observed.secrets.contains_key(&chain.certificate.name);
        let has_bundle = objects.bundle.is_some() || observed.config_maps.contains_key(&chain.authority);
        self.are_incomplete |= !has_certificate || !has_bundle;
        self.chains.push(objects);
    }

    /// Returns the desired Secret of a certificate, and the stored certificate if it is valid.
    fn object<'a>(
        &mut self,
        observed: &'a Observed,
        desired: &DesiredCertificate,
    ) -> (Option<Secret>, Option<ValidCertificate<'a>>) {
        let datacenter = &observed.datacenter;
        let stored = desired.stored(&observed.secrets);
        let reason = match desired.check(observed) {
            CertificateCheck::Sign(reason) => reason,
            CertificateCheck::ValidCertificate(good) => {
                self.requeue_before(good.requeue_at);
                let kept = stored.and_then(|stored| {
                    let reason = metadata::annotation(stored, annotation::certificate::REFRESH_REASON);
                    let pair = [bytes(stored, CERTIFICATE)?, bytes(stored, KEY)?];
                    Some(objects::secret(datacenter, &desired.name, pair, good.certificates, reason))
                });
                return (kept, Some(good));
            }
        };
        let about = format!("Secret {}/{}", datacenter.namespace, desired.name);
        let signed = match observed.signed.get(&desired.name) {
            Some(Ok(signed)) => signed,
            Some(Err(problem)) => {
                let message =
                    format!("{about} cannot be signed: {problem}. The operator tries again at the next reconcile.");
                self.degraded.push(note(reasons::SIGNING_FAILED, message));
                return (None, None);
            }
            None => {
                self.progressing.push(note(
                    reasons::WAITING_FOR_SIGNATURE,
                    format!("{about} must be signed: {reason}. The operator signs it."),
                ));
                return (None, None);
            }
        };
        let pair = [signed.certificate.as_bytes(), signed.key.as_bytes()];
        let certificates = Certificate::read_all(pair[0]).unwrap_or_default();
        if certificates.is_empty() {
            self.degraded.push(note(
                reasons::SIGNING_FAILED,
                format!("{about} cannot be written: the certificate that was signed for it is malformed."),
            ));
            return (None, None);
        }
        (Some(objects::secret(datacenter, &desired.name, pair, &certificates, Some(&reason))), None)
    }

    /// Returns the bundle with the CA, and the former ones that have not expired.
    fn bundle(&mut self, observed: &Observed, name: &str, authority: &Certificate) -> ConfigMap {
        let mut trusted = vec![authority.clone()];
        for former in
            stored_bundle(observed, name).and_then(|text| Certificate::read_all(text.as_bytes())).into_iter().flatten()
        {
            if former.is_authority && former.not_after > observed.now && !trusted.contains(&former) {
                self.requeue_before(former.not_after);
                trusted.push(former);
            }
        }
        let text: String = trusted.iter().map(Certificate::pem).collect();
        objects::bundle(&observed.datacenter, name, &text)
    }

    fn requeue_before(&mut self, time: Timestamp) {
        self.requeue_at = Some(self.requeue_at.map_or(time, |at| at.min(time)));
    }
}

fn stored_bundle<'a>(observed: &'a Observed, name: &str) -> Option<&'a String> {
    observed.config_maps.get(name)?.data.as_ref()?.get(BUNDLE)
}

/// Returns the connection configs of the administrator; none until the client certificate and the CA bundle exist.
fn connection_configs(observed: &Observed, chains: &[CertificateChain]) -> Option<Secret> {
    let datacenter = &observed.datacenter;
    let admin = names::datacenter::admin_client_certificate(&datacenter.name);
    let admin = chains
        .iter()
        .filter_map(|chain| chain.certificate.as_ref())
        .find(|one| one.metadata.name.as_ref() == Some(&admin))?;
    let serving = names::datacenter::serving_ca(&datacenter.name);
    let bundle = chains
        .iter()
        .filter_map(|chain| chain.bundle.as_ref())
        .find(|one| one.metadata.name.as_ref() == Some(&serving))?;
    let authorities = bundle.data.as_ref()?.get(BUNDLE)?;
    let client = [bytes(admin, CERTIFICATE)?, bytes(admin, KEY)?];
    Some(objects::connection_configs(datacenter, client, authorities.as_bytes(), observed.cqls_ingress_port))
}

/// Returns existing bundles that are not desired any more: nodes and clients may still read them.
fn untouched(observed: &Observed, chains: &[CertificateChain]) -> Vec<Untouched> {
    let name = &observed.datacenter.name;
    let bundles = [
        names::datacenter::client_ca(name),
        names::datacenter::serving_ca(name),
        names::datacenter::alternator_serving_ca(name),
        names::scylla_operator::alternator_serving_ca(name),
    ];
    let planned = chains.iter().flat_map(|chain| [&chain.bundle, &chain.former_bundle]).flatten();
    let planned: BTreeSet<&String> = planned.filter_map(|bundle| bundle.metadata.name.as_ref()).collect();
    bundles
        .into_iter()
        .filter(|name| observed.config_maps.contains_key(name) && !planned.contains(name))
        .map(|name| Untouched { kind: "ConfigMap", name })
        .collect()
}

/// Returns the objects that will exist when all certificates are signed, with a placeholder for certificates and keys.
pub(crate) fn outline(observed: &Observed, text: &str) -> (Vec<CertificateChain>, Option<Secret>) {
    let datacenter = &observed.datacenter;
    let secret = |name: &str| Some(objects::secret(datacenter, name, [text.as_bytes(); 2], &[], None));
    let chains = chains(&Current::new(observed)).into_iter().map(|chain| CertificateChain {
        authority: secret(&chain.authority),
        bundle: Some(objects::bundle(datacenter, &chain.authority, text)),
        former_bundle: None,
        certificate: secret(&chain.certificate.name),
    });
    let configs = observed.gates.automatic_tls_certificates.then(|| {
        objects::connection_configs(datacenter, [text.as_bytes(); 2], text.as_bytes(), observed.cqls_ingress_port)
    });
    (chains.collect(), configs)
}
