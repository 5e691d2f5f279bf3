//! Formats of private keys in Secrets.
//!
//! The libraries of this operator read PKCS#8; scylla-operator reads and writes only the older formats for each type of
//! key (PKCS#1 and SEC 1). So all three are read, and new keys are written in the older ones, which both can read.

use pkcs8::{
    AlgorithmIdentifierRef, PrivateKeyInfo,
    der::{Decode, Encode, asn1::AnyRef, pem::LineEnding},
};
use ring::{
    rand::SecureRandom,
    rsa,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair, KeyPair},
};
use sec1::{EcParameters, EcPrivateKey};
use x509_parser::pem::Pem;

/// Returns a private key as PKCS#8, from any of the forms in which Secrets hold keys.
pub fn as_pkcs8(pem: &[u8]) -> Option<Vec<u8>> {
    let pem = Pem::iter_from_buffer(pem).next()?.ok()?;
    let wrapped = |algorithm| PrivateKeyInfo::new(algorithm, &pem.contents).to_der().ok();
    match pem.label.as_str() {
        "PRIVATE KEY" => Some(pem.contents),
        "RSA PRIVATE KEY" => wrapped(pkcs1::ALGORITHM_ID),
        "EC PRIVATE KEY" => {
            let curve = EcPrivateKey::from_der(&pem.contents).ok()?.parameters?.named_curve()?;
            wrapped(AlgorithmIdentifierRef { oid: sec1::ALGORITHM_OID, parameters: Some(AnyRef::from(&curve)) })
        }
        _ => None,
    }
}

/// Returns an ECDSA key from PKCS#8 in the form that scylla-operator reads as well.
pub fn elliptic_key_pem(pkcs8: &[u8]) -> Option<String> {
    let key = PrivateKeyInfo::from_der(pkcs8).ok().filter(|key| key.algorithm.oid == sec1::ALGORITHM_OID)?;
    let curve = EcParameters::NamedCurve(key.algorithm.parameters_oid().ok()?);
    let key = EcPrivateKey { parameters: Some(curve), ..EcPrivateKey::from_der(key.private_key).ok()? };
    key.public_key?;
    Some(pem("EC PRIVATE KEY", &key.to_der().ok()?))
}

/// Returns an RSA key from PKCS#1 in the form that scylla-operator writes.
pub fn rsa_key_pem(pkcs1: &[u8]) -> String {
    pem("RSA PRIVATE KEY", pkcs1)
}

/// Encodes DER as PEM.
pub(crate) fn pem(label: &'static str, der: &[u8]) -> String {
    // Only a label that is not printable, or a length beyond usize, fails.
    pkcs8::der::pem::encode_string(label, LineEnding::LF, der).unwrap_or_default()
}

/// Returns the public key of a private key, as in certificates; none if the key is malformed or of an unsupported type.
/// `ring` needs `random` to parse a key; the result does not depend on it.
pub(crate) fn public_key(pem: &[u8], random: &dyn SecureRandom) -> Option<Vec<u8>> {
    let pkcs8 = as_pkcs8(pem)?;
    [&ECDSA_P384_SHA384_ASN1_SIGNING, &ECDSA_P256_SHA256_ASN1_SIGNING]
        .into_iter()
        .find_map(|kind| EcdsaKeyPair::from_pkcs8(kind, &pkcs8, random).ok())
        .map(|key| key.public_key().as_ref().to_vec())
        .or_else(|| Some(rsa::KeyPair::from_pkcs8(&pkcs8).ok()?.public_key().as_ref().to_vec()))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use rcgen::{PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384};
    use ring::rand::SystemRandom;

    use super::*;

    fn public_key(pem: &[u8]) -> Option<Vec<u8>> {
        super::public_key(pem, &SystemRandom::new())
    }

    #[test]
    fn key_is_the_same_in_every_format() {
        for kind in [&PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384] {
            let key = rcgen::KeyPair::generate_for(kind).unwrap();
            let old = elliptic_key_pem(key.serialized_der()).unwrap();
            assert!(old.starts_with("-----BEGIN EC PRIVATE KEY-----\n"), "{old}");
            assert!(old.lines().all(|line| line.len() <= 64), "{old}");
            assert_eq!(public_key(old.as_bytes()).unwrap(), key.public_key_raw());
            assert_eq!(public_key(key.serialize_pem().as_bytes()).unwrap(), key.public_key_raw());
            let again = rcgen::KeyPair::try_from(as_pkcs8(old.as_bytes()).unwrap()).unwrap();
            assert_eq!(again.public_key_raw(), key.public_key_raw());
        }
    }

    #[test]
    fn malformed_keys_are_rejected() {
        let key = rcgen::KeyPair::generate().unwrap();
        let whole = elliptic_key_pem(key.serialized_der()).unwrap();
        for text in ["", "tls", "-----BEGIN EC PRIVATE KEY-----\nMA==\n-----END EC PRIVATE KEY-----\n"] {
            assert_eq!(public_key(text.as_bytes()), None, "{text:?}");
        }
        let der = x509_parser::pem::Pem::iter_from_buffer(whole.as_bytes()).next().unwrap().unwrap().contents;
        for length in 0..der.len() {
            assert_eq!(public_key(pem("EC PRIVATE KEY", &der[..length]).as_bytes()), None, "{length}");
        }
        // A flipped bit of the private key: it does not match the public key any more.
        let mut other = der;
        other[10] ^= 1;
        assert_eq!(public_key(pem("EC PRIVATE KEY", &other).as_bytes()), None);
    }
}
