//! The desired certificates of a datacenter, and their certificate authorities (CAs).

use std::{
    collections::BTreeSet,
    fmt::{self, Debug},
    net::IpAddr,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use messina_api::names;

use crate::datacenter::model::{by_name::ByName, settings::Gates, spec::Datacenter};

/// Validity and renewal of CAs and client certificates.
const LONG: Term =
    Term { validity: SignedDuration::from_hours(10 * 365 * 24), refresh: SignedDuration::from_hours(8 * 365 * 24) };
/// Validity and renewal of serving certificates.
const SHORT: Term =
    Term { validity: SignedDuration::from_hours(30 * 24), refresh: SignedDuration::from_hours(20 * 24) };

#[derive(Clone, Copy, Debug)]
pub(crate) struct Term {
    pub(crate) validity: SignedDuration,
    pub(crate) refresh: SignedDuration,
}

/// The purpose of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A certificate authority.
    Authority,
    /// Client authentication.
    Client,
    /// Server authentication.
    Serving,
}

/// A certificate to sign, with a new key.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningRequest {
    /// The Secret that it is for.
    pub secret: String,
    /// Its purpose.
    pub purpose: Purpose,
    /// The common name of its subject; none if it has alternative names only.
    pub common_name: Option<String>,
    /// DNS names of the subject.
    pub dns_names: BTreeSet<String>,
    /// Addresses of the subject.
    pub addresses: BTreeSet<IpAddr>,
    /// From when on it is valid.
    pub not_before: Timestamp,
    /// Until when it is valid.
    pub not_after: Timestamp,
    /// Certificate and key of its CA, as PEM; none if it is self-signed.
    pub signer: Option<SignedCertificate>,
    /// Why it must be signed.
    pub reason: String,
}

impl Debug for SigningRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?} {}: {}", self.purpose, self.secret, self.reason)
    }
}

/// A certificate and its key, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct SignedCertificate {
    /// The certificate.
    pub certificate: String,
    /// The key, in a form that [`keys::as_pkcs8`] knows.
    pub key: String,
}

impl Debug for SignedCertificate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys must not be logged.
        formatter.write_str("Signed")
    }
}

/// A desired certificate, and its CA.
pub(crate) struct Chain {
    pub(crate) authority: String,
    /// scylla-operator's name of the CA, if that is different.
    pub(crate) former: Option<String>,
    pub(crate) certificate: DesiredCertificate,
}

pub(crate) struct DesiredCertificate {
    pub(crate) name: String,
    /// The name of another Secret, which is used if there is none of this name.
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
    /// Returns the Secret that stores it, under its current or its former name.
    pub(crate) fn stored<'a>(&self, secrets: &'a ByName<Secret>) -> Option<&'a Secret> {
        let former = || secrets.get(self.former.as_ref()?);
        secrets.get(&self.name).or_else(former)
    }
}

/// The names and addresses by which clients reach nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) dns_names: BTreeSet<String>,
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// Names and addresses that are not known yet, as parts of a message.
    pub(crate) pending: Vec<String>,
}
