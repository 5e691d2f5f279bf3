//! Parses certificates.

use std::{collections::BTreeSet, net::IpAddr};

use jiff::Timestamp;
use ring::rand::SecureRandom;
use x509_parser::{
    certificate::X509Certificate,
    extensions::{GeneralName, ParsedExtension},
    oid_registry::{OID_KEY_TYPE_EC_PUBLIC_KEY, OID_PKCS1_RSAENCRYPTION},
    parse_x509_certificate,
    pem::Pem,
};

use crate::datacenter::model::certificate::keys::{self, pem};

/// The properties of a certificate that decisions read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Certificate {
    der: Vec<u8>,
    pub(crate) subject: String,
    pub(crate) issuer: String,
    pub(crate) not_before: Timestamp,
    pub(crate) not_after: Timestamp,
    pub(crate) is_authority: bool,
    pub(crate) is_for_clients: bool,
    pub(crate) is_for_servers: bool,
    pub(crate) dns_names: BTreeSet<String>,
    pub(crate) addresses: BTreeSet<IpAddr>,
    pub(crate) key_algorithm: &'static str,
    pub(crate) key_size: usize,
    public_key: Vec<u8>,
    key_id: Option<Vec<u8>>,
    issuer_key_id: Option<Vec<u8>>,
}

impl Certificate {
    /// Parses all certificates of a PEM file, in order; none if one of them is malformed.
    pub(crate) fn read_all(text: &[u8]) -> Option<Vec<Self>> {
        Pem::iter_from_buffer(text).map(|block| Self::read(&block.ok()?.contents)).collect()
    }

    fn read(der: &[u8]) -> Option<Self> {
        let (rest, certificate) = parse_x509_certificate(der).ok()?;
        if !rest.is_empty() {
            return None;
        }
        let (mut key_id, mut issuer_key_id) = (None, None);
        for extension in certificate.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::SubjectKeyIdentifier(id) => key_id = Some(id.0.to_vec()),
                ParsedExtension::AuthorityKeyIdentifier(id) => {
                    issuer_key_id = id.key_identifier.as_ref().map(|id| id.0.to_vec());
                }
                _ => {}
            }
        }
        let usage = certificate.key_usage().ok()?.map(|usage| usage.value);
        let purposes = certificate.extended_key_usage().ok()?.map(|usage| usage.value);
        let signs = usage.is_none_or(|usage| usage.digital_signature());
        let (dns_names, addresses) = alternative_names(&certificate)?;
        let key = certificate.public_key();
        let algorithm = &key.algorithm.algorithm;
        Some(Self {
            subject: certificate.subject().to_string(),
            issuer: certificate.issuer().to_string(),
            not_before: Timestamp::from_second(certificate.validity().not_before.timestamp()).ok()?,
            not_after: Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()?,
            is_authority: certificate.is_ca() && usage.is_none_or(|usage| usage.key_cert_sign()),
            is_for_clients: signs && purposes.is_some_and(|purposes| purposes.client_auth),
            is_for_servers: signs && purposes.is_none_or(|purposes| purposes.server_auth || purposes.any),
            dns_names,
            addresses,
            key_algorithm: if *algorithm == OID_PKCS1_RSAENCRYPTION {
                "RSA"
            } else if *algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY {
                "ECDSA"
            } else {
                "Unknown"
            },
            key_size: key.parsed().map_or(0, |key| key.key_size()),
            public_key: key.subject_public_key.data.to_vec(),
            key_id,
            issuer_key_id,
            der: der.to_vec(),
        })
    }

    /// Returns the certificate as PEM.
    pub(crate) fn pem(&self) -> String {
        pem("CERTIFICATE", &self.der)
    }

    /// Whether this private key belongs to the certificate.
    pub(crate) fn fits(&self, key: &[u8], random: &dyn SecureRandom) -> bool {
        keys::public_key(key, random).is_some_and(|public| public == self.public_key)
    }

    /// Whether the CA has signed this certificate, regardless of validity periods.
    pub(crate) fn is_signed_by(&self, authority: &Self) -> bool {
        let (Ok((_, own)), Ok((_, signer))) =
            (parse_x509_certificate(&self.der), parse_x509_certificate(&authority.der))
        else {
            return false;
        };
        // If both have a key identifier, these must match: some clients rely on it.
        let is_same_key = match (&self.issuer_key_id, &authority.key_id) {
            (Some(issuer), Some(own)) => issuer == own,
            _ => true,
        };
        is_same_key
            && own.issuer().as_raw() == signer.subject().as_raw()
            && own.verify_signature(Some(signer.public_key())).is_ok()
    }
}

/// Returns DNS names and IP addresses; none if there are alternative names of other types, or malformed ones.
fn alternative_names(certificate: &X509Certificate<'_>) -> Option<(BTreeSet<String>, BTreeSet<IpAddr>)> {
    let (mut dns_names, mut addresses) = (BTreeSet::new(), BTreeSet::new());
    let names = certificate.subject_alternative_name().ok()?;
    for name in names.iter().flat_map(|names| &names.value.general_names) {
        match name {
            GeneralName::DNSName(name) => {
                dns_names.insert((*name).to_owned());
            }
            GeneralName::IPAddress(bytes) => {
                let four = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
                addresses.insert(four.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from)).ok()?);
            }
            _ => return None,
        }
    }
    Some((dns_names, addresses))
}
