//! What is proven of certificates, so that it is not proven again.

use std::collections::BTreeSet;

use ring::rand::SecureRandom;
use sha2::{Digest, Sha256};

use crate::datacenter::model::certificate::reading::Certificate;

/// What was proven of the certificates of a datacenter: whose key it is, and who has signed. A proof takes milliseconds, and
/// what is proven stays so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proofs(BTreeSet<[u8; 32]>);

/// What can be proven of two texts, and depends on nothing else.
pub(crate) enum Statement<'a> {
    /// The key is that of the first certificate.
    KeyFits { certificate: &'a [u8], key: &'a [u8] },
    /// The first certificate of the authority has signed the first certificate.
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
    /// Whether this was proven.
    pub(crate) fn contain(&self, statement: &Statement<'_>) -> bool {
        self.0.contains(&statement.id())
    }

    /// Those of the statements that hold. What these proofs contain is not proven again.
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
