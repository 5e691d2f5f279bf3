//! Certificates for clients of ScyllaDB: which are to be signed and why, and the objects that hold them.
//!
//! There is a chain for each purpose: an authority that signs itself, a bundle of the authorities that are trusted, and
//! what the authority signs. Whatever is good stays as it is. [`orders`] says what is to be signed; whoever has random
//! bytes signs it, and gives it back in [`Observed::signed`].
//!
//! An authority signs only when it is seen to be stored, and only then it comes into the bundle: nothing ever depends on a
//! key that was lost in a crash. A bundle keeps former authorities until they run out, so that clients trust both.

mod addresses;
pub mod keys;
mod objects;
mod proofs;
mod reading;
mod stored;

use std::{
    collections::BTreeSet,
    fmt::{self, Debug},
    net::IpAddr,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use messina_api::names::{self, annotation};

use super::{ByName, Datacenter, Gates, LeftAlone, Note, Observed, Part};
use crate::words;
use addresses::{Addresses, addresses};
use objects::{BUNDLE, CERTIFICATE, KEY, bytes};
pub use proofs::Proofs;
use reading::Certificate;
pub(crate) use stored::{StoredCertificate, prove, read};

const DAY: SignedDuration = SignedDuration::from_hours(24);
/// How long authorities, and certificates of clients, are valid, and when they are signed anew.
const LONG: Term =
    Term { validity: SignedDuration::from_hours(10 * 365 * 24), refresh: SignedDuration::from_hours(8 * 365 * 24) };
/// The same for what nodes serve with.
const SHORT: Term =
    Term { validity: SignedDuration::from_hours(30 * 24), refresh: SignedDuration::from_hours(20 * 24) };
/// Clocks differ.
const BACKDATED: SignedDuration = SignedDuration::from_secs(1);
/// While nodes get addresses one after another, they are certified together, once in this time.
const PAUSE: SignedDuration = SignedDuration::from_mins(2);
/// However far away the next time is: clocks are set, and machines sleep.
const LONGEST_REST: SignedDuration = DAY;

#[derive(Clone, Copy, Debug)]
struct Term {
    validity: SignedDuration,
    refresh: SignedDuration,
}

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To sign others.
    Authority,
    /// To say who a client is.
    Client,
    /// To say who a server is.
    Serving,
}

/// A certificate that is to be signed, with a key of its own.
#[derive(Clone, PartialEq, Eq)]
pub struct Order {
    /// The Secret that it is for.
    pub secret: String,
    /// What it is for.
    pub purpose: Purpose,
    /// The name of its subject; none where names and addresses say it all.
    pub common_name: Option<String>,
    /// DNS names of the subject.
    pub dns_names: BTreeSet<String>,
    /// Addresses of the subject.
    pub addresses: BTreeSet<IpAddr>,
    /// From when on it is valid.
    pub not_before: Timestamp,
    /// Until when it is valid.
    pub not_after: Timestamp,
    /// Certificate and key of who signs it, as texts; none where it signs itself.
    pub signer: Option<Signed>,
    /// Why it is to be signed.
    pub reason: String,
}

impl Debug for Order {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?} {}: {}", self.purpose, self.secret, self.reason)
    }
}

/// A certificate and its key, as texts.
#[derive(Clone, PartialEq, Eq)]
pub struct Signed {
    /// The certificate.
    pub certificate: String,
    /// The key, in a form that [`keys::as_pkcs8`] knows.
    pub key: String,
}

impl Debug for Signed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys are nobody's business.
        formatter.write_str("Signed")
    }
}

/// An authority, and what it signs. What is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CertificateChain {
    /// The authority.
    pub authority: Option<Secret>,
    /// The authorities that are trusted.
    pub bundle: Option<ConfigMap>,
    /// The same, under the name that scylla-operator has for it, where clients may read it there.
    pub former_bundle: Option<ConfigMap>,
    /// What the authority signs.
    pub certificate: Option<Secret>,
}

/// The certificate that is wanted, and who is to sign it.
struct Chain {
    authority: String,
    /// What scylla-operator calls the authority, where that is something else.
    former: Option<String>,
    certificate: Wish,
}

struct Wish {
    name: String,
    /// Another Secret that is as good as long as there is none of this name.
    former: Option<String>,
    purpose: Purpose,
    common_name: Option<String>,
    names: Addresses,
    term: Term,
}

/// How a certificate that is there stands.
enum Verdict<'a> {
    Good(Good<'a>),
    Sign(String),
}

struct Good<'a> {
    certificates: &'a [Certificate],
    /// When it is to be looked at again.
    again_at: Timestamp,
}

/// What is decided for the certificates of a datacenter.
#[derive(Default)]
pub(crate) struct Certificates {
    pub(crate) chains: Vec<CertificateChain>,
    pub(crate) connection_configs: Option<Secret>,
    pub(crate) waiting: Vec<Note>,
    pub(crate) wrong: Vec<Note>,
    pub(crate) left_alone: Vec<LeftAlone>,
    /// Whether pods would find less than they need when they start.
    pub(crate) are_awaited: bool,
    pub(crate) again_at: Option<Timestamp>,
}

fn chains(observed: &Observed) -> Vec<Chain> {
    chains_of(&observed.datacenter, observed.gates, || addresses(observed))
}

fn chains_of(datacenter: &Datacenter, gates: Gates, addresses: impl FnOnce() -> Addresses) -> Vec<Chain> {
    let has_cql = gates.automatic_tls_certificates;
    let alternator = datacenter.alternator.as_ref().filter(|alternator| alternator.user_certificate.is_none());
    if !has_cql && alternator.is_none() {
        return Vec::new();
    }
    let nodes = addresses();
    let mut chains = Vec::new();
    if has_cql {
        let admin = Addresses { dns_names: ["admin".to_owned()].into(), ..Addresses::default() };
        let name = names::datacenter::admin_client_certificate(&datacenter.name);
        chains.push(Chain {
            authority: names::datacenter::client_ca(&datacenter.name),
            former: None,
            certificate: Wish {
                name,
                purpose: Purpose::Client,
                former: None,
                common_name: None,
                names: admin,
                term: LONG,
            },
        });
        let name = names::datacenter::serving_certificate(&datacenter.name);
        chains.push(Chain {
            authority: names::datacenter::serving_ca(&datacenter.name),
            former: None,
            certificate: Wish {
                name,
                former: None,
                purpose: Purpose::Serving,
                common_name: None,
                names: nodes.clone(),
                term: SHORT,
            },
        });
    }
    if let Some(alternator) = alternator {
        let mut names = nodes;
        names.dns_names.extend(alternator.additional_dns_names.iter().cloned());
        names.addresses.extend(&alternator.additional_addresses);
        let name = names::datacenter::alternator_serving_certificate(&datacenter.name);
        chains.push(Chain {
            authority: names::datacenter::alternator_serving_ca(&datacenter.name),
            former: Some(names::scylla_operator::alternator_serving_ca(&datacenter.name)),
            certificate: Wish { name, former: None, purpose: Purpose::Serving, common_name: None, names, term: SHORT },
        });
    }
    chains
}

impl Chain {
    fn authority(&self) -> Wish {
        Wish {
            name: self.authority.clone(),
            former: self.former.clone(),
            purpose: Purpose::Authority,
            common_name: Some(self.authority.clone()),
            names: Addresses::default(),
            term: LONG,
        }
    }
}

impl Wish {
    /// The Secret that holds it, whatever it is called.
    fn stored<'a>(&self, secrets: &'a ByName<Secret>) -> Option<&'a Secret> {
        let former = || secrets.get(self.former.as_ref()?);
        secrets.get(&self.name).or_else(former)
    }

    /// Whether what is there can stay. What an authority is to have signed is judged only if the authority can stay.
    fn judge<'a>(&self, observed: &'a Observed) -> Verdict<'a> {
        let now = observed.now;
        let sign = |reason: &str| Verdict::Sign(reason.to_owned());
        let Some(stored) = observed.certificates.get(&self.name) else { return sign("there is none") };
        let Some(own) = stored.certificates.first() else { return sign("the certificate cannot be read") };
        if !stored.fits_key {
            return sign("the key is not that of the certificate");
        }
        let refresh_at = self.refresh_at(own);
        if now >= own.not_after {
            return Verdict::Sign(format!("it ran out at {}", own.not_after));
        }
        if now >= refresh_at {
            return Verdict::Sign(format!("it is renewed from {refresh_at} on"));
        }
        if !self.is_for_this(own) {
            return sign("it is for something else");
        }
        if !stored.is_signed {
            return sign("its authority has changed");
        }
        let wanted = &self.names;
        let has_all = wanted.dns_names.is_subset(&own.dns_names) && wanted.addresses.is_subset(&own.addresses);
        let has_no_more = own.dns_names.is_subset(&wanted.dns_names) && own.addresses.is_subset(&wanted.addresses);
        let is_complete = wanted.awaited.is_empty();
        let rest_ends = own.not_before.saturating_add(PAUSE).unwrap_or(Timestamp::MAX);
        let again_at = match (has_all, is_complete) {
            (true, true) if has_no_more => refresh_at,
            // A name too many does no harm while others are still to come.
            (true, false) => refresh_at,
            (false, false) if now < rest_ends => rest_ends.min(refresh_at),
            _ => return sign("nodes have other names or addresses"),
        };
        Verdict::Good(Good { certificates: &stored.certificates, again_at })
    }

    fn is_for_this(&self, certificate: &Certificate) -> bool {
        let subject = |name: &Option<String>| name.as_ref().map(|name| format!("CN={name}"));
        let is_former = self.former.is_some() && subject(&self.former).as_ref() == Some(&certificate.subject);
        (is_former || certificate.subject == subject(&self.common_name).unwrap_or_default())
            && match self.purpose {
                Purpose::Authority => certificate.is_authority,
                Purpose::Client => certificate.is_for_clients && !certificate.is_authority,
                Purpose::Serving => certificate.is_for_servers && !certificate.is_authority,
            }
    }

    /// When its time comes, or a fifth of its life is left, whichever comes first.
    fn refresh_at(&self, certificate: &Certificate) -> Timestamp {
        let fifth = certificate.not_after.duration_since(certificate.not_before) / 5;
        let latest = certificate.not_after.saturating_sub(fifth).unwrap_or(Timestamp::MIN);
        certificate.not_before.saturating_add(self.term.refresh).unwrap_or(Timestamp::MAX).min(latest)
    }

    /// Nothing outlives who signed it.
    fn order(&self, reason: String, signer: Option<(&Certificate, Signed)>, now: Timestamp) -> Order {
        let end = now.saturating_add(self.term.validity).unwrap_or(Timestamp::MAX);
        Order {
            secret: self.name.clone(),
            purpose: self.purpose,
            common_name: self.common_name.clone(),
            dns_names: self.names.dns_names.clone(),
            addresses: self.names.addresses.clone(),
            not_before: now.saturating_sub(BACKDATED).unwrap_or(Timestamp::MIN),
            not_after: signer.as_ref().map_or(end, |(authority, _)| end.min(authority.not_after)),
            signer: signer.map(|(_, signer)| signer),
            reason,
        }
    }
}

/// What is to be signed now.
pub fn orders(observed: &Observed) -> Vec<Order> {
    let now = observed.now;
    let mut orders = Vec::new();
    for chain in chains(observed) {
        let stored = observed.secrets.get(&chain.authority);
        let good = match chain.authority().judge(observed) {
            Verdict::Good(good) => good,
            Verdict::Sign(reason) => {
                orders.push(chain.authority().order(reason, None, now));
                continue;
            }
        };
        let (Some(authority), Some(signer)) = (good.certificates.first(), stored.and_then(pair)) else { continue };
        if let Verdict::Sign(reason) = chain.certificate.judge(observed) {
            orders.push(chain.certificate.order(reason, Some((authority, signer)), now));
        }
    }
    orders
}

/// Certificate and key of a Secret.
fn pair(secret: &Secret) -> Option<Signed> {
    let text = |key| bytes(secret, key).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    Some(Signed { certificate: text(CERTIFICATE)?, key: text(KEY)? })
}

/// The objects that hold certificates, from what is there and what was signed.
pub(crate) fn certificates(observed: &Observed) -> Certificates {
    let mut made = Certificates::default();
    let mut awaited = BTreeSet::new();
    for chain in chains(observed) {
        made.add_chain(observed, &chain);
        awaited.extend(chain.certificate.names.awaited);
    }
    if !awaited.is_empty() {
        let awaited = awaited.into_iter().collect::<Vec<_>>().join(", ");
        let message =
            format!("nodes are certified for all their names and addresses as soon as they have them: {awaited}");
        made.waiting.push(note("WaitingForAddresses", message));
    }
    if observed.gates.automatic_tls_certificates {
        made.connection_configs = connection_configs(observed, &made.chains);
    }
    made.left_alone = left_alone(observed, &made.chains);
    made.again_at = made.again_at.map(|at| at.min(observed.now.saturating_add(LONGEST_REST).unwrap_or(Timestamp::MAX)));
    made
}

fn note(reason: &'static str, message: String) -> Note {
    Note { part: Part::Certificates, reason, message }
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
            self.waiting.push(note("WaitingForAuthority", message));
        }
        let has_certificate = objects.certificate.is_some() || observed.secrets.contains_key(&chain.certificate.name);
        let has_bundle = objects.bundle.is_some() || observed.config_maps.contains_key(&chain.authority);
        self.are_awaited |= !has_certificate || !has_bundle;
        self.chains.push(objects);
    }

    /// The Secret of a certificate, and what is good of the one that is stored.
    fn object<'a>(&mut self, observed: &'a Observed, wish: &Wish) -> (Option<Secret>, Option<Good<'a>>) {
        let datacenter = &observed.datacenter;
        let stored = wish.stored(&observed.secrets);
        let reason = match wish.judge(observed) {
            Verdict::Sign(reason) => reason,
            Verdict::Good(good) => {
                self.look_again_at(good.again_at);
                let kept = stored.and_then(|stored| {
                    let reason = words::annotation(stored, annotation::certificate::REFRESH_REASON);
                    let pair = [bytes(stored, CERTIFICATE)?, bytes(stored, KEY)?];
                    Some(objects::secret(datacenter, &wish.name, pair, good.certificates, reason))
                });
                return (kept, Some(good));
            }
        };
        let about = format!("Secret {}/{}", datacenter.namespace, wish.name);
        let signed = match observed.signed.get(&wish.name) {
            Some(Ok(signed)) => signed,
            Some(Err(problem)) => {
                let message = format!("{about} cannot be signed: {problem}; it is tried again when something changes");
                self.wrong.push(note("SigningFailed", message));
                return (None, None);
            }
            None => {
                self.waiting.push(note("WaitingForSignature", format!("{about} is to be signed: {reason}")));
                return (None, None);
            }
        };
        let pair = [signed.certificate.as_bytes(), signed.key.as_bytes()];
        let certificates = Certificate::read_all(pair[0]).unwrap_or_default();
        if certificates.is_empty() {
            self.wrong.push(note("SigningFailed", format!("what was signed for {about} cannot be read")));
            return (None, None);
        }
        (Some(objects::secret(datacenter, &wish.name, pair, &certificates, Some(&reason))), None)
    }

    /// The authority, and those before it that have not run out.
    fn bundle(&mut self, observed: &Observed, name: &str, authority: &Certificate) -> ConfigMap {
        let mut trusted = vec![authority.clone()];
        for former in
            stored_bundle(observed, name).and_then(|text| Certificate::read_all(text.as_bytes())).into_iter().flatten()
        {
            if former.is_authority && former.not_after > observed.now && !trusted.contains(&former) {
                self.look_again_at(former.not_after);
                trusted.push(former);
            }
        }
        let text: String = trusted.iter().map(Certificate::pem).collect();
        objects::bundle(&observed.datacenter, name, &text)
    }

    fn look_again_at(&mut self, time: Timestamp) {
        self.again_at = Some(self.again_at.map_or(time, |at| at.min(time)));
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
fn left_alone(observed: &Observed, chains: &[CertificateChain]) -> Vec<LeftAlone> {
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
        .map(|name| LeftAlone { kind: "ConfigMap", name })
        .collect()
}

/// What there will be once everything is signed, with a text in place of certificates and keys.
pub(crate) fn outline(observed: &Observed, text: &str) -> (Vec<CertificateChain>, Option<Secret>) {
    let datacenter = &observed.datacenter;
    let secret = |name: &str| Some(objects::secret(datacenter, name, [text.as_bytes(); 2], &[], None));
    let chains = chains(observed).into_iter().map(|chain| CertificateChain {
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
