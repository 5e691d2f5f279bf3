//! Makes keys, and signs what is to be signed.

use std::time::SystemTime;

use clap::ValueEnum;
use jiff::Timestamp;
use messina_plan::datacenter::certificates::{Order, Purpose, Signed, keys};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, SanType,
};
use thiserror::Error;

/// How long the keys of certificates are, in bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum KeySize {
    /// P-256.
    #[value(name = "256")]
    Bits256,
    /// P-384.
    #[default]
    #[value(name = "384")]
    Bits384,
}

/// Something that cannot be signed.
#[derive(Debug, Error)]
pub enum SigningError {
    /// There is no randomness.
    #[error("no key can be made")]
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

/// Makes a key, and signs a certificate for it.
pub fn sign(order: &Order, size: KeySize) -> Result<Signed, SigningError> {
    let kind = match size {
        KeySize::Bits256 => &PKCS_ECDSA_P256_SHA256,
        KeySize::Bits384 => &PKCS_ECDSA_P384_SHA384,
    };
    let key = KeyPair::generate_for(kind).map_err(SigningError::Key)?;
    let text = keys::elliptic_key_pem(key.serialized_der());
    let text = text.ok_or(SigningError::Key(rcgen::Error::CouldNotParseKeyPair))?;
    let params = params(order)?;
    let certificate = match &order.signer {
        None => params.self_signed(&key),
        Some(signer) => params.signed_by(&key, &authority(signer).map_err(SigningError::Authority)?),
    };
    Ok(Signed { certificate: certificate.map_err(SigningError::Signature)?.pem(), key: text })
}

fn authority(signer: &Signed) -> Result<Issuer<'static, KeyPair>, rcgen::Error> {
    let key = keys::as_pkcs8(signer.key.as_bytes()).ok_or(rcgen::Error::CouldNotParseKeyPair)?;
    Issuer::from_ca_cert_pem(&signer.certificate, KeyPair::try_from(key)?)
}

fn params(order: &Order) -> Result<CertificateParams, SigningError> {
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
