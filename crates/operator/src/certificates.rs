//! Generates private keys and signs certificates.

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

/// The type of private keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum KeyType {
    /// Short, and generated in a moment.
    #[default]
    #[value(name = "ECDSA")]
    Ecdsa,
    /// For clients that do not support ECDSA. Generating one takes seconds.
    #[value(name = "RSA")]
    Rsa,
}

/// The size of ECDSA keys, in bits.
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

/// The size of RSA keys, in bits. The library that signs with them supports no other sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RsaKeySize {
    /// The smallest that is considered safe.
    #[value(name = "2048")]
    Bits2048,
    /// As strong as P-256.
    #[value(name = "3072")]
    Bits3072,
    /// scylla-operator's default.
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

/// The type and size of new keys.
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

/// A private key without a certificate, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(String);

impl Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key must not appear in logs.
        formatter.write_str("Key")
    }
}

impl Key {
    /// Generates a key. For RSA this takes seconds, and panics if the system provides no random bytes.
    pub fn new(kind: KeyKind) -> Result<Self, SigningError> {
        match kind {
            KeyKind::Ecdsa(size) => ecdsa_key(size).map_err(SigningError::EcdsaKey),
            KeyKind::Rsa(size) => rsa_key(size).map_err(SigningError::RsaKey),
        }
        .map(Self)
    }

    /// Returns the key as PEM.
    pub fn pem(&self) -> &str {
        &self.0
    }
}

fn ecdsa_key(size: EcdsaKeySize) -> Result<String, rcgen::Error> {
    let kind = match size {
        EcdsaKeySize::Bits256 => &PKCS_ECDSA_P256_SHA256,
        EcdsaKeySize::Bits384 => &PKCS_ECDSA_P384_SHA384,
    };
    let key = KeyPair::generate_for(kind)?;
    keys::elliptic_key_pem(key.serialized_der()).ok_or(rcgen::Error::CouldNotParseKeyPair)
}

/// Generates an RSA key. The crate `rsa` is used only here: nothing else is parsed, signed or decrypted with it.
fn rsa_key(size: RsaKeySize) -> Result<String, rsa::Error> {
    let key = RsaPrivateKey::new(&mut OsRng, size.bits())?;
    Ok(keys::rsa_key_pem(key.to_pkcs1_der()?.as_bytes()))
}

/// Why a key could not be generated or a certificate not be signed.
#[derive(Debug, Error)]
pub enum SigningError {
    /// The system provides no random bytes.
    #[error("cannot generate an ECDSA key")]
    EcdsaKey(#[source] rcgen::Error),
    /// The key could not be generated or encoded.
    #[error("cannot generate an RSA key")]
    RsaKey(#[source] rsa::Error),
    /// The new key cannot be parsed.
    #[error("cannot parse the new private key")]
    Key(#[source] rcgen::Error),
    /// The name is not a valid subject alternative name.
    #[error("{name:?} is not a valid DNS name for a certificate")]
    Name {
        /// The name.
        name: String,
        /// The cause.
        #[source]
        source: rcgen::Error,
    },
    /// The certificate or the key of the CA cannot be parsed.
    #[error("cannot parse the certificate or the private key of the CA")]
    Authority(#[source] rcgen::Error),
    /// Signing failed.
    #[error("cannot sign the certificate")]
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

/// Parses a stored key.
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
    // A self-signed certificate has no authority key identifier.
    params.use_authority_key_identifier_extension = order.signer.is_some();
    match order.purpose {
        Purpose::Authority => {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages.push(KeyUsagePurpose::KeyCertSign);
        }
        Purpose::Client => params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth],
        // No extended key usage, as scylla-operator does it, so that clients accept it whatever usage they require.
        Purpose::Serving => {}
    }
    Ok(params)
}

#[cfg(test)]
pub(crate) mod tests;
