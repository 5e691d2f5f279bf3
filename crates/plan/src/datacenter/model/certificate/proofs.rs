//! Cache of verified properties of certificates, so that they are not verified again.

use std::collections::BTreeSet;

use ring::rand::SecureRandom;
use sha2::{Digest, Sha256};

use crate::datacenter::model::certificate::reading::Certificate;

/// The verified properties of a datacenter's certificates: that a key belongs to it, and that a CA has signed it. A
/// verification takes milliseconds, and its result never changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proofs(BTreeSet<[u8; 32]>);

/// A property of a certificate that depends on two PEM files and nothing else.
pub(crate) enum Statement<'a> {
    /// The key belongs to the first certificate.
    KeyFits { certificate: &'a [u8], key: &'a [u8] },
    /// The first CA has signed the first certificate.
    SignedBy { certificate: &'a [u8], authority: &'a [u8] },
}

impl Statement<'_> {
    fn id(&self) -> [u8; 32] {
        let (what, about) = match self {
            Self::KeyFits { certificate, key } => ("key", [certificate, key]),
            Self::SignedBy { certificate, authority } => ("signature", [certificate, authority]),
        };
        let mut hash = Sha256::new().chain_update(what);
        for bytes in about {
            hash.update(bytes.len().to_be_bytes());
            hash.update(bytes);
        }
        hash.finalize().into()
    }

    fn holds(&self, random: &dyn SecureRandom) -> bool {
        let first = |text: &[u8]| Certificate::read_all(text).and_then(|all| all.into_iter().next());
        match self {
            Self::KeyFits { certificate, key } => first(certificate).is_some_and(|own| own.fits(key, random)),
            Self::SignedBy { certificate, authority } => match (first(certificate), first(authority)) {
                (Some(own), Some(authority)) => own.is_signed_by(&authority),
                _ => false,
            },
        }
    }
}

impl Proofs {
    /// Whether this was verified.
    pub(crate) fn contain(&self, statement: &Statement<'_>) -> bool {
        self.0.contains(&statement.id())
    }

    /// Returns the proofs of those statements that are true. What these proofs contain is not verified again.
    pub(crate) fn of<'a>(
        &self,
        statements: impl IntoIterator<Item = Statement<'a>>,
        random: &dyn SecureRandom,
    ) -> Self {
        let proven = statements.into_iter().filter_map(|statement| {
            let id = statement.id();
            (self.0.contains(&id) || statement.holds(random)).then_some(id)
        });
        Self(proven.collect())
    }
}
