//! Formats of private keys in Secrets.
//!
//! The libraries of this operator read PKCS#8; scylla-operator reads and writes only the older formats for each type of
//! key (PKCS#1 and SEC 1). So all three are read, and new keys are written in the older ones, which both can read.

use base64::{Engine, prelude::BASE64_STANDARD};
use ring::{
    rand::SecureRandom,
    rsa,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair, KeyPair},
};
use x509_parser::pem::Pem;

const INTEGER: u8 = 0x02;

const OCTETS: u8 = 0x04;

const OBJECT_ID: u8 = 0x06;

const SEQUENCE: u8 = 0x30;

const CURVE: u8 = 0xa0;

const PUBLIC_KEY: u8 = 0xa1;

/// `ecPublicKey`, with its tag.
const ELLIPTIC: [u8; 9] = [OBJECT_ID, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];

/// `rsaEncryption` and its empty parameters, with their tags.
const RSA: [u8; 13] = [OBJECT_ID, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0];

/// A DER element.
#[derive(Clone, Copy)]
struct Element<'a> {
    tag: u8,
    content: &'a [u8],
    /// With tag and length.
    whole: &'a [u8],
}

/// Removes and returns the first element of `input`.
fn take<'a>(input: &mut &'a [u8]) -> Option<Element<'a>> {
    let all = *input;
    let (&tag, rest) = all.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f)).filter(|(bytes, _)| bytes.len() <= 4)?;
        (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
    };
    let (content, rest) = rest.split_at_checked(length)?;
    *input = rest;
    Some(Element { tag, content, whole: all.get(..all.len() - rest.len())? })
}

fn take_tagged<'a>(input: &mut &'a [u8], tag: u8) -> Option<Element<'a>> {
    take(input).filter(|element| element.tag == tag)
}

fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let bytes: Vec<u8> = length.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
    let mut whole = vec![tag];
    match u8::try_from(length) {
        Ok(short) if short < 0x80 => whole.push(short),
        _ => {
            // A length has eight bytes at most.
            whole.push(0x80 | u8::try_from(bytes.len()).unwrap_or(8));
            whole.extend(bytes);
        }
    }
    whole.extend(content);
    whole
}

/// Converts a private key in any of the formats to PKCS#8.
pub fn as_pkcs8(pem: &[u8]) -> Option<Vec<u8>> {
    let pem = Pem::iter_from_buffer(pem).next()?.ok()?;
    let key = |algorithm: &[u8]| {
        let version = element(INTEGER, &[0]);
        element(SEQUENCE, &[version, element(SEQUENCE, algorithm), element(OCTETS, &pem.contents)].concat())
    };
    match pem.label.as_str() {
        "PRIVATE KEY" => Some(pem.contents),
        "RSA PRIVATE KEY" => Some(key(&RSA)),
        "EC PRIVATE KEY" => {
            let mut fields = take_tagged(&mut pem.contents.as_slice(), SEQUENCE)?.content;
            take_tagged(&mut fields, INTEGER)?;
            take_tagged(&mut fields, OCTETS)?;
            let curve = take_tagged(&mut fields, CURVE)?.content;
            Some(key(&[&ELLIPTIC, curve].concat()))
        }
        _ => None,
    }
}

/// Converts an elliptic curve key from PKCS#8 to SEC 1, which scylla-operator can read.
pub fn elliptic_key_pem(pkcs8: &[u8]) -> Option<String> {
    let mut fields = take_tagged(&mut &*pkcs8, SEQUENCE)?.content;
    take_tagged(&mut fields, INTEGER)?;
    let mut algorithm = take_tagged(&mut fields, SEQUENCE)?.content;
    take_tagged(&mut algorithm, OBJECT_ID).filter(|kind| kind.whole == ELLIPTIC)?;
    let curve = take_tagged(&mut algorithm, OBJECT_ID)?.whole;
    let mut key = take_tagged(&mut take_tagged(&mut fields, OCTETS)?.content, SEQUENCE)?.content;
    let (version, private) = (take_tagged(&mut key, INTEGER)?, take_tagged(&mut key, OCTETS)?);
    let public = std::iter::from_fn(|| take(&mut key)).find(|field| field.tag == PUBLIC_KEY)?;
    let fields = [version.whole, private.whole, &element(CURVE, curve), public.whole].concat();
    Some(pem("EC PRIVATE KEY", &element(SEQUENCE, &fields)))
}

/// Returns an RSA key from PKCS#1 as PEM, as scylla-operator writes it.
pub fn rsa_key_pem(pkcs1: &[u8]) -> String {
    pem("RSA PRIVATE KEY", pkcs1)
}

/// Returns DER as PEM.
pub(crate) fn pem(label: &str, der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    // Base64 is ASCII, so lines can be cut anywhere.
    let lines: Vec<&str> = (0..text.len()).step_by(64).filter_map(|at| text.get(at..text.len().min(at + 64))).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
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

    #[test]
    fn elements_of_all_lengths_are_encoded() {
        for length in [0, 1, 127, 128, 255, 256, 70_000] {
            let content = vec![7; length];
            let whole = element(OCTETS, &content);
            let mut input = whole.as_slice();
            let read = take(&mut input).unwrap();
            assert_eq!((read.tag, read.content, read.whole, input), (OCTETS, &content[..], &whole[..], &[][..]));
        }
    }
}
