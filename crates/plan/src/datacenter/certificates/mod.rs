//! Certificates for clients of ScyllaDB: which are to be signed and why, and the objects that hold them.
//!
//! There is a chain for each purpose: an authority that signs itself, a bundle of the authorities that are trusted, and
//! what the authority signs. Whatever is good stays as it is. [`signing_requests`] says what is to be signed; whoever has random
//! bytes signs it, and gives it back in [`Observed::signed`].
//!
//! An authority signs only when it is seen to be stored, and only then it comes into the bundle: nothing ever depends on a
//! key that was lost in a crash. A bundle keeps former authorities until they run out, so that clients trust both.

mod addresses;
mod objects;
mod verdict;

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use messina_api::names::{self, annotation};

use self::verdict::{CertificateCheck, ValidCertificate};
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
        state::Current,
    },
    words,
};

/// However far away the next time is: clocks are set, and machines sleep.
const MAX_REQUEUE_INTERVAL: SignedDuration = SignedDuration::from_hours(24);

/// What is decided for the certificates of a datacenter.
#[derive(Default)]
pub(crate) struct Certificates {
    pub(crate) chains: Vec<CertificateChain>,
    pub(crate) connection_configs: Option<Secret>,
    pub(crate) progressing: Vec<Note>,
    pub(crate) degraded: Vec<Note>,
    pub(crate) untouched: Vec<Untouched>,
    /// Whether pods would find less than they need when they start.
    pub(crate) are_incomplete: bool,
    pub(crate) requeue_at: Option<Timestamp>,
}

pub(crate) fn chains(current: &Current<'_>) -> Vec<Chain> {
    let observed = current.observed;
    chains_of(&observed.datacenter, observed.gates, || addresses(current))
}

/// What is to be signed now.
pub fn signing_requests(observed: &Observed) -> Vec<SigningRequest> {
    let current = &Current::new(observed);
    let now = observed.now;
    let mut signing_requests = Vec::new();
    for chain in chains(current) {
        let stored = observed.secrets.get(&chain.authority);
        let good = match chain.authority().check(observed) {
            CertificateCheck::ValidCertificate(good) => good,
            CertificateCheck::Sign(reason) => {
                signing_requests.push(chain.authority().order(reason, None, now));
                continue;
            }
        };
        let (Some(authority), Some(signer)) = (good.certificates.first(), stored.and_then(pair)) else { continue };
        if let CertificateCheck::Sign(reason) = chain.certificate.check(observed) {
            signing_requests.push(chain.certificate.order(reason, Some((authority, signer)), now));
        }
    }
    signing_requests
}

/// Certificate and key of a Secret.
fn pair(secret: &Secret) -> Option<SignedCertificate> {
    let text = |key| bytes(secret, key).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    Some(SignedCertificate { certificate: text(CERTIFICATE)?, key: text(KEY)? })
}

/// The objects that hold certificates, from what is there and what was signed.
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
        let message =
            format!("nodes are certified for all their names and addresses as soon as they have them: {pending}");
        made.progressing.push(note("WaitingForAddresses", message));
    }
    if observed.gates.automatic_tls_certificates {
        made.connection_configs = connection_configs(observed, &made.chains);
    }
    made.untouched = untouched(observed, &made.chains);
    made.requeue_at =
        made.requeue_at.map(|at| at.min(observed.now.saturating_add(MAX_REQUEUE_INTERVAL).unwrap_or(Timestamp::MAX)));
    made
}

fn note(reason: &'static str, message: String) -> Note {
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
                "Secret {namespace}/{name} is signed as soon as its authority, Secret {namespace}/{authority}, is stored"
            );
            self.progressing.push(note("WaitingForAuthority", message));
        }
        let has_certificate = objects.certificate.is_some() || observed.secrets.contains_key(&chain.certificate.name);
        let has_bundle = objects.bundle.is_some() || observed.config_maps.contains_key(&chain.authority);
        self.are_incomplete |= !has_certificate || !has_bundle;
        self.chains.push(objects);
    }

    /// The Secret of a certificate, and what is good of the one that is stored.
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
                    let reason = words::annotation(stored, annotation::certificate::REFRESH_REASON);
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
                let message = format!("{about} cannot be signed: {problem}; it is tried again when something changes");
                self.degraded.push(note("SigningFailed", message));
                return (None, None);
            }
            None => {
                self.progressing.push(note("WaitingForSignature", format!("{about} is to be signed: {reason}")));
                return (None, None);
            }
        };
        let pair = [signed.certificate.as_bytes(), signed.key.as_bytes()];
        let certificates = Certificate::read_all(pair[0]).unwrap_or_default();
        if certificates.is_empty() {
            self.degraded.push(note("SigningFailed", format!("what was signed for {about} cannot be read")));
            return (None, None);
        }
        (Some(objects::secret(datacenter, &desired.name, pair, &certificates, Some(&reason))), None)
    }

    /// The authority, and those before it that have not run out.
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

/// None while one of those is not there of which the files consist.
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

/// Bundles that nobody plans now: nodes and clients may read them still.
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

/// What there will be once everything is signed, with a text in place of certificates and keys.
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
