//! Certificates in Secrets.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use ring::rand::SecureRandom;

use crate::datacenter::{
    layout::{CERTIFICATE, KEY},
    model::{
        by_name::ByName,
        certificate::{
            chain::{Addresses, DesiredCertificate, chains_of},
            proofs::{Proofs, Statement},
            reading::Certificate,
        },
        settings::Gates,
        spec::Datacenter,
    },
};

/// A certificate in a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredCertificate {
    /// The certificate and its chain; empty if one of them is malformed, or there is no key.
    pub(crate) certificates: Vec<Certificate>,
    /// Whether the key belongs to the certificate.
    pub(crate) fits_key: bool,
    /// Whether the stored CA has signed it; for the CA, whether it is self-signed.
    pub(crate) is_signed: bool,
}

/// Certificate, key and CA, as PEM.
struct Texts<'a> {
    certificate: &'a [u8],
    key: &'a [u8],
    authority: Option<&'a [u8]>,
}

impl<'a> Texts<'a> {
    fn key_fits(&self) -> Statement<'a> {
        Statement::KeyFits { certificate: self.certificate, key: self.key }
    }

    fn signed_by_authority(&self) -> Option<Statement<'a>> {
        Some(Statement::SignedBy { certificate: self.certificate, authority: self.authority? })
    }
}

/// Returns the contents of the Secrets of the desired certificates, by name.
fn texts<'a>(datacenter: &Datacenter, gates: Gates, secrets: &'a ByName<Secret>) -> Vec<(String, Option<Texts<'a>>)> {
    let mut found = Vec::new();
    for chain in chains_of(datacenter, gates, Addresses::default) {
        let authority = chain.authority();
        let signer = authority.stored(secrets).and_then(|secret| bytes(secret, CERTIFICATE));
        let mut add = |desired: &DesiredCertificate| {
            let Some(secret) = desired.stored(secrets) else { return };
            let texts = || {
                Some(Texts { certificate: bytes(secret, CERTIFICATE)?, key: bytes(secret, KEY)?, authority: signer })
            };
            found.push((desired.name.clone(), texts()));
        };
        add(&authority);
        add(&chain.certificate);
    }
    found
}

/// Verifies the stored certificates. What `known` contains is not verified again, and obsolete proofs are dropped:
/// there are at most two for each Secret.
pub(crate) fn prove(
    datacenter: &Datacenter,
    gates: Gates,
    secrets: &ByName<Secret>,
    known: &Proofs,
    random: &dyn SecureRandom,
) -> Proofs {
    let texts = texts(datacenter, gates, secrets);
    let readable = texts.iter().filter_map(|(_, texts)| texts.as_ref());
    let statements = readable.flat_map(|texts| [Some(texts.key_fits()), texts.signed_by_authority()]).flatten();
    known.of(statements, random)
}

/// Reads the stored certificates, by name. Properties without a proof count as false.
pub(crate) fn read(
    datacenter: &Datacenter,
    gates: Gates,
    secrets: &ByName<Secret>,
    proofs: &Proofs,
) -> BTreeMap<String, StoredCertificate> {
    let stored = |texts: Option<Texts<'_>>| StoredCertificate {
        certificates: texts.as_ref().and_then(|texts| Certificate::read_all(texts.certificate)).unwrap_or_default(),
        fits_key: texts.as_ref().is_some_and(|texts| proofs.contain(&texts.key_fits())),
        is_signed: texts
            .and_then(|texts| texts.signed_by_authority())
            .is_some_and(|statement| proofs.contain(&statement)),
    };
    texts(datacenter, gates, secrets).into_iter().map(|(name, texts)| (name, stored(texts))).collect()
}

/// Returns the value of a key of a Secret.
pub(crate) fn bytes<'a>(secret: &'a Secret, key: &str) -> Option<&'a [u8]> {
    secret.data.as_ref()?.get(key).map(|bytes| bytes.0.as_slice())
}
