//! The Secrets and ConfigMaps that store certificates and keys.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use messina_api::names::{self, annotation::certificate};
use serde_json::{Value, json};

use crate::{
    datacenter::{
        certificates::addresses::cql_domain,
        layout::{BUNDLE, CERTIFICATE, KEY},
        model::{
            certificate::reading::Certificate,
            metadata::{cluster_labels, owned_with},
            spec::Datacenter,
        },
    },
    metadata::{map, with},
};

/// Returns a Secret with a certificate and its key, and with properties of the certificate as annotations.
pub(crate) fn secret(
    datacenter: &Datacenter,
    name: &str,
    pair: [&[u8]; 2],
    certificates: &[Certificate],
    reason: Option<&str>,
) -> Secret {
    let data = [CERTIFICATE, KEY].into_iter().zip(pair);
    Secret {
        metadata: owned_with(datacenter, name.to_owned(), cluster_labels(datacenter), notes(certificates, reason)),
        type_: Some("kubernetes.io/tls".into()),
        data: Some(data.map(|(key, bytes)| (key.to_owned(), ByteString(bytes.to_vec()))).collect()),
        ..Secret::default()
    }
}

fn notes(certificates: &[Certificate], reason: Option<&str>) -> BTreeMap<String, String> {
    let Some(first) = certificates.first() else { return BTreeMap::new() };
    let notes = map([
        (certificate::COUNT, certificates.len().to_string().as_str()),
        (certificate::IS_CA, &first.is_authority.to_string()),
        (certificate::ISSUER, &first.issuer),
        (certificate::KEY_ALGORITHM, first.key_algorithm),
        (certificate::KEY_SIZE, &first.key_size.to_string()),
        (certificate::NOT_BEFORE, &first.not_before.to_string()),
        (certificate::NOT_AFTER, &first.not_after.to_string()),
    ]);
    with(notes, map(reason.map(|reason| (certificate::REFRESH_REASON, reason))))
}

/// Returns a ConfigMap with the trusted CAs.
pub(crate) fn bundle(datacenter: &Datacenter, name: &str, text: &str) -> ConfigMap {
    ConfigMap {
        metadata: owned_with(datacenter, name.to_owned(), cluster_labels(datacenter), BTreeMap::new()),
        data: Some(map([(BUNDLE, text)])),
        ..ConfigMap::default()
    }
}

/// Returns a Secret with a CQLConnectionConfig for each DNS domain, with which a driver connects as administrator.
/// `client` is the certificate and the key of the administrator, `authorities` are the CAs of the serving certificates.
pub(crate) fn connection_configs(
    datacenter: &Datacenter,
    client: [&[u8]; 2],
    authorities: &[u8],
    port: Option<u16>,
) -> Secret {
    let files = datacenter.dns_domains.iter().map(|domain| {
        let file = connection_config(datacenter, domain, client, authorities, port);
        // JSON is valid YAML.
        (domain.clone(), ByteString(format!("{file:#}\n").into_bytes()))
    });
    let files: BTreeMap<String, ByteString> = files.collect();
    let name = names::datacenter::admin_cql_connection_configs(&datacenter.name);
    Secret {
        metadata: owned_with(datacenter, name, cluster_labels(datacenter), BTreeMap::new()),
        type_: Some("Opaque".into()),
        data: Some(files).filter(|files| !files.is_empty()),
        ..Secret::default()
    }
}

fn connection_config(
    datacenter: &Datacenter,
    domain: &str,
    [certificate, key]: [&[u8]; 2],
    authorities: &[u8],
    port: Option<u16>,
) -> Value {
    let domain = cql_domain(domain);
    let server = port.map_or_else(|| domain.clone(), |port| format!("{domain}:{port}"));
    let name = &datacenter.scylla_datacenter;
    json!({
        "apiVersion": "cqlclient.scylla.scylladb.com/v1alpha1",
        "kind": "CQLConnectionConfig",
        "datacenters": {name: {
            "certificateAuthorityData": BASE64_STANDARD.encode(authorities),
            "server": server,
            "nodeDomain": domain,
        }},
        "authInfos": {"admin": {
            "clientCertificateData": BASE64_STANDARD.encode(certificate),
            "clientKeyData": BASE64_STANDARD.encode(key),
            "username": "cassandra",
            "password": "cassandra",
        }},
        "contexts": {"default": {"datacenterName": name, "authInfoName": "admin"}},
        "currentContext": "default",
        "parameters": {"defaultConsistency": "QUORUM", "defaultSerialConsistency": "SERIAL"},
    })
}
