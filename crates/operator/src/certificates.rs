//! Makes keys, and signs what is to be signed.

use std::{
    fmt::{self, Debug},
    time::SystemTime,
};

use clap::ValueEnum;
use jiff::Timestamp;
use messina_plan::datacenter::certificates::{Purpose, SignedCertificate, SigningRequest, keys};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, SanType,
};
use rsa::{RsaPrivateKey, pkcs1::EncodeRsaPrivateKey, rand_core::OsRng};
use thiserror::Error;

/// By what the keys of certificates sign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum KeyType {
    /// Short, and made in a moment.
    #[default]
    #[value(name = "ECDSA")]
    Ecdsa,
    /// For clients that know nothing else. It takes seconds to make one.
    #[value(name = "RSA")]
    Rsa,
}

/// How long ECDSA keys are, in bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum EcdsaKeySize {
    /// P-256.
    #[default]
    #[value(name = "256")]
    Bits256,
    /// P-384.
    #[value(name = "384")]
    Bits384,
}

/// How long RSA keys are, in bits. What signs with them takes no others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RsaKeySize {
    /// The shortest that still counts as safe.
    #[value(name = "2048")]
    Bits2048,
    /// As strong as P-256.
    #[value(name = "3072")]
    Bits3072,
    /// What the peer makes.
    #[default]
    #[value(name = "4096")]
    Bits4096,
}

impl RsaKeySize {
    const fn bits(self) -> usize {
        match self {
            Self::Bits2048 => 2048,
            Self::Bits3072 => 3072,
            Self::Bits4096 => 4096,
        }
    }
}

/// What new keys are to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// ECDSA, of this size.
    Ecdsa(EcdsaKeySize),
    /// RSA, of this size.
    Rsa(RsaKeySize),
}

impl Default for KeyKind {
    fn default() -> Self {
        Self::Ecdsa(EcdsaKeySize::default())
    }
}

/// A private key that no certificate has yet, in the form in which it is stored.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(String);

impl Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys are nobody's business.
        formatter.write_str("Key")
    }
}

impl Key {
    /// Makes a key. Where it is an RSA key, this takes seconds, and it panics where the system gives no random bytes.
    pub fn new(kind: KeyKind) -> Result<Self, SigningError> {
        match kind {
            KeyKind::Ecdsa(size) => elliptic_key(size).map_err(SigningError::EcdsaKey),
            KeyKind::Rsa(size) => rsa_key(size).map_err(SigningError::RsaKey),
        }
        .map(Self)
    }

    /// The key as it is stored.
    pub fn pem(&self) -> &str {
        &self.0
    }
}

fn elliptic_key(size: EcdsaKeySize) -> Result<String, rcgen::Error> {
    let kind = match size {
        EcdsaKeySize::Bits256 => &PKCS_ECDSA_P256_SHA256,
        EcdsaKeySize::Bits384 => &PKCS_ECDSA_P384_SHA384,
    };
    let key = KeyPair::generate_for(kind)?;
    keys::elliptic_key_pem(key.serialized_der()).ok_or(rcgen::Error::CouldNotParseKeyPair)
}

/// Here, and nowhere else, the crate `rsa` is used: it makes keys, and nothing is ever signed or read with it.
fn rsa_key(size: RsaKeySize) -> Result<String, rsa::Error> {
    let key = RsaPrivateKey::new(&mut OsRng, size.bits())?;
    Ok(keys::rsa_key_pem(key.to_pkcs1_der()?.as_bytes()))
}

/// Something that cannot be signed.
#[derive(Debug, Error)]
pub enum SigningError {
    /// There is no randomness.
    #[error("no ECDSA key can be made")]
    EcdsaKey(#[source] rcgen::Error),
    /// It could not be made, or not be written down.
    #[error("no RSA key can be made")]
    RsaKey(#[source] rsa::Error),
    /// Nothing can be signed for it.
    #[error("the new key cannot be used")]
    Key(#[source] rcgen::Error),
    /// No certificate can hold it.
    #[error("{name:?} cannot be in a certificate")]
    Name {
        /// The name.
        name: String,
        /// Why.
        #[source]
        source: rcgen::Error,
    },
    /// The authority signs nothing.
    #[error("the authority cannot be used")]
    Authority(#[source] rcgen::Error),
    /// It was not signed.
    #[error("it could not be signed")]
    Signature(#[source] rcgen::Error),
}

/// Signs a certificate for a key.
pub fn sign(order: &SigningRequest, key: &Key) -> Result<SignedCertificate, SigningError> {
    let pair = key_pair(&key.0).map_err(SigningError::Key)?;
    let params = params(order)?;
    let certificate = match &order.signer {
        None => params.self_signed(&pair),
        Some(signer) => params.signed_by(&pair, &authority(signer).map_err(SigningError::Authority)?),
    };
    Ok(SignedCertificate { certificate: certificate.map_err(SigningError::Signature)?.pem(), key: key.0.clone() })
}

/// A stored key, ready to sign.
fn key_pair(pem: &str) -> Result<KeyPair, rcgen::Error> {
    KeyPair::try_from(keys::as_pkcs8(pem.as_bytes()).ok_or(rcgen::Error::CouldNotParseKeyPair)?)
}

fn authority(signer: &SignedCertificate) -> Result<Issuer<'static, KeyPair>, rcgen::Error> {
    Issuer::from_ca_cert_pem(&signer.certificate, key_pair(&signer.key)?)
}

fn params(order: &SigningRequest) -> Result<CertificateParams, SigningError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    if let Some(name) = &order.common_name {
        params.distinguished_name.push(DnType::CommonName, name.as_str());
    }
    for name in &order.dns_names {
        let text = name.as_str().try_into().map_err(|source| SigningError::Name { name: name.clone(), source })?;
        params.subject_alt_names.push(SanType::DnsName(text));
    }
    params.subject_alt_names.extend(order.addresses.iter().copied().map(SanType::IpAddress));
    let time = |time: Timestamp| SystemTime::from(time).into();
    (params.not_before, params.not_after) = (time(order.not_before), time(order.not_after));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.is_ca = IsCa::ExplicitNoCa;
    // What signs itself names no other key.
    params.use_authority_key_identifier_extension = order.signer.is_some();
    match order.purpose {
        Purpose::Authority => {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages.push(KeyUsagePurpose::KeyCertSign);
        }
        Purpose::Client => params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth],
        // As the peer has it: whoever restricts nothing can be asked by every client.
        Purpose::Serving => {}
    }
    Ok(params)
}

#[cfg(test)]
pub(crate) mod tests;
