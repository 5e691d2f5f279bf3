//! Certificates as Secrets hold them.

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

/// A certificate that a Secret holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredCertificate {
    /// It, and what is stored behind it; empty where that cannot be read, or there is no key.
    pub(crate) certificates: Vec<Certificate>,
    /// Whether the key is its own.
    pub(crate) fits_key: bool,
    /// Whether the authority that is stored has signed it; itself, if it is that authority.
    pub(crate) is_signed: bool,
}

/// Certificate, key and authority, as texts.
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

/// The Secrets of the certificates that a datacenter is to have, by the names of these, with what they hold.
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

/// What is proven of the certificates that are stored. What `known` contains is not proven again, and what is of no use any more
/// is left out: there are two proofs at most for each Secret.
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

/// Reads the certificates that are stored, by their names. What is not proven does not hold.
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

/// The bytes under a key of a Secret.
pub(crate) fn bytes<'a>(secret: &'a Secret, key: &str) -> Option<&'a [u8]> {
    secret.data.as_ref()?.get(key).map(|bytes| bytes.0.as_slice())
}
