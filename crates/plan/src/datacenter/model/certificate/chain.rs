//! The certificates that a datacenter is to have, and who signs them.

use std::{
    collections::BTreeSet,
    fmt::{self, Debug},
    net::IpAddr,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use messina_api::names;

use crate::datacenter::model::{by_name::ByName, settings::Gates, spec::Datacenter};

/// How long authorities, and certificates of clients, are valid, and when they are signed anew.
const LONG: Term =
    Term { validity: SignedDuration::from_hours(10 * 365 * 24), refresh: SignedDuration::from_hours(8 * 365 * 24) };
/// The same for what nodes serve with.
const SHORT: Term =
    Term { validity: SignedDuration::from_hours(30 * 24), refresh: SignedDuration::from_hours(20 * 24) };

#[derive(Clone, Copy, Debug)]
pub(crate) struct Term {
    pub(crate) validity: SignedDuration,
    pub(crate) refresh: SignedDuration,
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
pub struct SigningRequest {
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
    pub signer: Option<SignedCertificate>,
    /// Why it is to be signed.
    pub reason: String,
}

impl Debug for SigningRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?} {}: {}", self.purpose, self.secret, self.reason)
    }
}

/// A certificate and its key, as texts.
#[derive(Clone, PartialEq, Eq)]
pub struct SignedCertificate {
    /// The certificate.
    pub certificate: String,
    /// The key, in a form that [`keys::as_pkcs8`] knows.
    pub key: String,
}

impl Debug for SignedCertificate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys are nobody's business.
        formatter.write_str("Signed")
    }
}

/// The certificate that is wanted, and who is to sign it.
pub(crate) struct Chain {
    pub(crate) authority: String,
    /// What scylla-operator calls the authority, where that is something else.
    pub(crate) former: Option<String>,
    pub(crate) certificate: DesiredCertificate,
}

pub(crate) struct DesiredCertificate {
    pub(crate) name: String,
    /// Another Secret that is as good as long as there is none of this name.
    pub(crate) former: Option<String>,
    pub(crate) purpose: Purpose,
    pub(crate) common_name: Option<String>,
    pub(crate) names: Addresses,
    pub(crate) term: Term,
}

pub(crate) fn chains_of(datacenter: &Datacenter, gates: Gates, addresses: impl FnOnce() -> Addresses) -> Vec<Chain> {
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
            certificate: DesiredCertificate {
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
            certificate: DesiredCertificate {
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
            certificate: DesiredCertificate {
                name,
                former: None,
                purpose: Purpose::Serving,
                common_name: None,
                names,
                term: SHORT,
            },
        });
    }
    chains
}

impl Chain {
    pub(crate) fn authority(&self) -> DesiredCertificate {
        DesiredCertificate {
            name: self.authority.clone(),
            former: self.former.clone(),
            purpose: Purpose::Authority,
            common_name: Some(self.authority.clone()),
            names: Addresses::default(),
            term: LONG,
        }
    }
}

impl DesiredCertificate {
    /// The Secret that holds it, whatever it is called.
    pub(crate) fn stored<'a>(&self, secrets: &'a ByName<Secret>) -> Option<&'a Secret> {
        let former = || secrets.get(self.former.as_ref()?);
        secrets.get(&self.name).or_else(former)
    }
}

/// By what clients reach nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) dns_names: BTreeSet<String>,
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// What nodes are still to get, in words.
    pub(crate) pending: Vec<String>,
}
