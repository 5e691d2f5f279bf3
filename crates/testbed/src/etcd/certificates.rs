//! The certificate authority of an etcd cluster and its certificates.

use std::net::{IpAddr, Ipv4Addr};

use base64::{Engine, engine::general_purpose::STANDARD};
use rcgen::{CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, KeyPair, SanType};
use serde_json::{Value, json};

use crate::{
    error::{Result, malformed},
    pki,
};

/// The key of the Secret with the authority's certificate.
pub(super) const BUNDLE: &str = "bundle.crt";

/// The names of the Secrets of an etcd cluster.
pub(super) struct Secrets {
    pub(super) authority: String,
    pub(super) server: String,
    pub(super) client: String,
}

impl Secrets {
    pub(super) fn of(name: &str) -> Self {
        Self {
            authority: format!("{name}-ca"),
            server: format!("{name}-server-tls"),
            client: format!("{name}-client-tls"),
        }
    }
}

/// Creates Secrets with a new authority, a certificate for the members and their sidecars, and one for their clients.
/// The authority's key is not stored. A sidecar verifies other sidecars with the authority of etcd, so both have the
/// same.
pub(super) fn make(namespace: &str, name: &str) -> Result<Vec<Value>> {
    let authority = CertifiedIssuer::self_signed(pki::authority(), pki::key()?)
        .map_err(malformed("making the authority of etcd"))?;
    // Members also use it as clients: etcd's JSON gateway is a client of its own server.
    let both = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let server = sign(&authority, &format!("{name}-server"), &server_names(namespace, name), both)?;
    let client = sign(&authority, &format!("{name}-client"), &[], vec![ExtendedKeyUsagePurpose::ClientAuth])?;
    let secrets = Secrets::of(name);
    Ok(vec![
        secret(&secrets.authority, "Opaque", &[(BUNDLE, &authority.pem())]),
        secret(&secrets.server, "kubernetes.io/tls", &[("tls.crt", &server.0), ("tls.key", &server.1)]),
        secret(&secrets.client, "kubernetes.io/tls", &[("tls.crt", &client.0), ("tls.key", &client.1)]),
    ])
}

/// The DNS names of the Service and of each member, with and without namespace and `svc`.
fn server_names(namespace: &str, name: &str) -> Vec<String> {
    let hosts = [format!("{name}-client"), format!("*.{name}-peer")];
    let ends = [String::new(), format!(".{namespace}"), format!(".{namespace}.svc")];
    let whole = hosts.iter().map(|host| format!("{host}.{namespace}.svc.cluster.local"));
    let names = hosts.iter().flat_map(|host| ends.iter().map(move |end| format!("{host}{end}"))).chain(whole);
    std::iter::once("localhost".to_owned()).chain(names).collect()
}

fn sign(
    authority: &CertifiedIssuer<'static, KeyPair>,
    subject: &str,
    names: &[String],
    usages: Vec<ExtendedKeyUsagePurpose>,
) -> Result<(String, String)> {
    let mut params =
        CertificateParams::new(names.to_vec()).map_err(malformed(format!("naming the certificate of {subject}")))?;
    if !names.is_empty() {
        params.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }
    params.distinguished_name = pki::name(subject, None);
    params.extended_key_usages = usages;
    let key = pki::key()?;
    let signed =
        params.signed_by(&key, authority).map_err(malformed(format!("signing the certificate of {subject}")))?;
    Ok((signed.pem(), key.serialize_pem()))
}

fn secret(name: &str, kind: &str, data: &[(&str, &String)]) -> Value {
    let data: serde_json::Map<String, Value> =
        data.iter().map(|(key, text)| ((*key).to_owned(), STANDARD.encode(text).into())).collect();
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": kind, "data": data})
}
