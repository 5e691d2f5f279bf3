#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::SignedDuration;
use k8s_openapi::{
    ByteString,
    api::core::v1::{Pod, PodStatus, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use messina_api::names::annotation::certificate::{ISSUER, KEY_ALGORITHM, KEY_SIZE};
use messina_plan::datacenter::{self, Cached, Gates, Observed, Plan, validate};
use rcgen::PublicKeyData;
use ring::rand::SystemRandom;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    server::WebPkiClientVerifier,
    time_provider::TimeProvider,
};
use serde_json::json;

use super::*;

const P256: KeyKind = KeyKind::Ecdsa(EcdsaKeySize::Bits256);
const P384: KeyKind = KeyKind::Ecdsa(EcdsaKeySize::Bits384);
const RSA: KeyKind = KeyKind::Rsa(RsaKeySize::Bits2048);

/// Returns a datacenter of one node that has all its addresses, and no certificates.
pub(crate) fn cached() -> Cached {
    let object = json!({
        "metadata": {"name": "orders", "namespace": "shop", "uid": "the-uid"},
        "spec": {
            "clusterName": "orders", "datacenterName": "dc", "scyllaDB": {"image": "scylladb/scylla:2026.2.4"},
            "racks": [{"name": "a", "nodes": 1, "scyllaDB": {"storage": {"capacity": "1Gi"}}}],
        },
    });
    let datacenter = validate(&serde_json::from_value(object).unwrap()).unwrap();
    let gates = Gates { automatic_tls_certificates: true, ..Gates::default() };
    let mut cached =
        Cached { gates, now: "2026-12-01T00:00:00Z".parse().unwrap(), ..Cached::new(datacenter, "messina:test") };
    let planned = plan(&cached).objects;
    for mut service in planned.member_services.into_iter().chain([planned.identity_service]) {
        service.spec.as_mut().unwrap().cluster_ip = Some("10.0.0.1".into());
        cached.services.insert(service);
    }
    let status = PodStatus { pod_ip: Some("10.1.0.1".into()), ..PodStatus::default() };
    let metadata = ObjectMeta { name: Some("orders-dc-a-0".into()), ..ObjectMeta::default() };
    cached.pods.insert(Pod { metadata, status: Some(status), ..Pod::default() });
    cached
}

pub(crate) fn observe(cached: &Cached) -> Observed {
    Observed::from_cached(cached.clone().prove(&SystemRandom::new()), [])
}

fn plan(cached: &Cached) -> Plan {
    datacenter::plan(&observe(cached))
}

fn signing_requests(cached: &Cached) -> Vec<SigningRequest> {
    datacenter::certificates::signing_requests(&observe(cached))
}

/// Plans and signs until no certificate is due. Returns the names of the Secrets that were signed.
pub(crate) fn settle(cached: &mut Cached, kind: KeyKind) -> Vec<String> {
    let mut all = Vec::new();
    for _ in 0..4 {
        let signed = signing_requests(cached).into_iter().map(|order| {
            let signed = sign(&order, &Key::new(kind).unwrap()).unwrap();
            (order.secret, Ok(signed))
        });
        cached.signed = signed.collect::<BTreeMap<_, Result<SignedCertificate, String>>>();
        all.extend(cached.signed.keys().cloned());
        let plan = plan(cached);
        assert_eq!(plan.degraded, vec![]);
        for chain in plan.objects.certificates {
            let secrets = chain.authority.into_iter().chain(chain.certificate);
            cached.secrets.extend(secrets);
            cached.config_maps.extend(chain.bundle);
        }
    }
    assert_eq!(signing_requests(cached), vec![], "certificates are signed again and again");
    all
}

fn pair(cached: &Cached, secret: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let data = cached.secrets[secret].data.as_ref().unwrap();
    let certificates = CertificateDer::pem_slice_iter(&data["tls.crt"].0).collect::<Result<_, _>>().unwrap();
    (certificates, PrivateKeyDer::from_pem_slice(&data["tls.key"].0).unwrap())
}

/// A clock that always returns the same time.
#[derive(Debug)]
struct Clock(Timestamp);

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(self.0.as_second().try_into().ok()?)))
    }
}

/// Returns the root certificates of a CA bundle.
fn root_store(bundle: &str) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(authority.unwrap()).unwrap();
    }
    Arc::new(roots)
}

fn bundle(cached: &Cached, name: &str) -> String {
    cached.config_maps[name].data.as_ref().unwrap()["ca-bundle.crt"].clone()
}

/// Returns an annotation of a Secret.
fn annotation<'a>(cached: &'a Cached, secret: &str, key: &str) -> &'a str {
    &cached.secrets[secret].metadata.annotations.as_ref().unwrap()[key]
}

/// Returns whether a client that trusts `authorities` and a node complete a mutual TLS handshake, without a network.
fn handshake_succeeds(cached: &Cached, authorities: &str, name: &str) -> bool {
    let (chain, key) = pair(cached, "orders-local-serving-certs");
    let clients = root_store(&bundle(cached, "orders-local-client-ca"));
    let provider = Arc::new(default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(clients, Arc::clone(&provider)).build().unwrap();
    let clock = Arc::new(Clock(cached.now));
    let server = ServerConfig::builder_with_details(Arc::clone(&provider), Arc::clone(&clock) as Arc<dyn TimeProvider>);
    let server = server.with_safe_default_protocol_versions();
    let server = server.unwrap().with_client_cert_verifier(verifier).with_single_cert(chain, key).unwrap();
    let client = ClientConfig::builder_with_details(provider, clock).with_safe_default_protocol_versions().unwrap();
    let (chain, key) = pair(cached, "orders-local-user-admin");
    let client = client.with_root_certificates(root_store(authorities)).with_client_auth_cert(chain, key).unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    for _ in 0..10 {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        server.read_tls(&mut wire.as_slice()).unwrap();
        if server.process_new_packets().is_err() {
            return false;
        }
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        client.read_tls(&mut wire.as_slice()).unwrap();
        if client.process_new_packets().is_err() {
            return false;
        }
        if !client.is_handshaking() && !server.is_handshaking() {
            return true;
        }
    }
    false
}

#[test]
fn clients_and_nodes_complete_mutual_tls() {
    for kind in [P256, P384, RSA] {
        let mut cached = cached();
        settle(&mut cached, kind);
        let authorities = bundle(&cached, "orders-local-serving-ca");
        for name in ["orders-client.shop.svc", "orders-dc-a-0.shop.svc", "10.0.0.1", "10.1.0.1"] {
            assert!(handshake_succeeds(&cached, &authorities, name), "{name}, {kind:?}");
        }
        for name in ["example.com", "10.0.0.2"] {
            assert!(!handshake_succeeds(&cached, &authorities, name), "{name}, {kind:?}");
        }
        let others = bundle(&cached, "orders-local-client-ca");
        assert!(!handshake_succeeds(&cached, &others, "10.0.0.1"), "the client CA signs no serving certificates");
    }
}

/// The setting may change at any time: existing certificates keep their keys until they are renewed, and CAs sign for
/// keys of every type.
#[test]
fn change_of_key_type_renews_no_certificate() {
    for (first, then) in [(P256, P384), (P384, RSA), (RSA, P256)] {
        let mut cached = cached();
        settle(&mut cached, first);
        assert_eq!(settle(&mut cached, then), [""; 0], "{first:?}, {then:?}");
        cached.secrets.remove("orders-local-serving-certs");
        assert_eq!(settle(&mut cached, then), ["orders-local-serving-certs"]);
        assert!(
            handshake_succeeds(&cached, &bundle(&cached, "orders-local-serving-ca"), "10.0.0.1"),
            "{first:?}, {then:?}"
        );
        for (secret, kind) in [("orders-local-serving-ca", first), ("orders-local-serving-certs", then)] {
            let expected = match kind {
                KeyKind::Ecdsa(EcdsaKeySize::Bits256) => ("ECDSA", "256"),
                KeyKind::Ecdsa(EcdsaKeySize::Bits384) => ("ECDSA", "384"),
                KeyKind::Rsa(_) => ("RSA", "2048"),
            };
            let annotation = |key| annotation(&cached, secret, key);
            assert_eq!((annotation(KEY_ALGORITHM), annotation(KEY_SIZE)), expected, "{secret}");
        }
        cached.now += SignedDuration::from_hours(20 * 24);
        assert_eq!(settle(&mut cached, first), ["orders-local-serving-certs"], "its renewal is due");
    }
}

/// scylla-operator does not parse PKCS #8.
#[test]
fn keys_are_stored_in_the_format_that_scylla_operator_parses() {
    for (kind, label) in [(P256, "EC"), (P384, "EC"), (RSA, "RSA")] {
        let key = Key::new(kind).unwrap();
        let (begin, end) =
            (format!("-----BEGIN {label} PRIVATE KEY-----\n"), format!("\n-----END {label} PRIVATE KEY-----\n"));
        assert!(key.pem().starts_with(&begin) && key.pem().ends_with(&end), "{kind:?}");
        let read = PrivateKeyDer::from_pem_slice(key.pem().as_bytes()).unwrap();
        assert!(matches!(
            (kind, &read),
            (KeyKind::Ecdsa(_), PrivateKeyDer::Sec1(_)) | (KeyKind::Rsa(_), PrivateKeyDer::Pkcs1(_))
        ));
        let signer = default_provider().key_provider.load_private_key(read).unwrap();
        let public = signer.public_key().unwrap();
        assert_eq!(public.as_ref(), key_pair(key.pem()).unwrap().subject_public_key_info(), "{kind:?}");
    }
}

/// The library that signs does not support RSA keys of every size.
#[test]
fn rsa_keys_of_all_sizes_sign() {
    for size in RsaKeySize::value_variants() {
        let order = signing_requests(&cached()).remove(0);
        let signed = sign(&order, &Key::new(KeyKind::Rsa(*size)).unwrap()).unwrap();
        let mut cached = cached();
        let name = order.secret.clone();
        cached.signed = [(order.secret, Ok(signed))].into();
        let chains = plan(&cached).objects.certificates;
        let authority = chains.into_iter().filter_map(|chain| chain.authority).next().unwrap();
        cached.secrets.insert(authority);
        let annotation = |key| annotation(&cached, &name, key);
        assert_eq!((annotation(KEY_ALGORITHM), annotation(KEY_SIZE)), ("RSA", size.bits().to_string().as_str()));
    }
}

/// A client that read the bundle before the CA changed does not trust the new one; one that reads it now trusts both.
#[test]
fn new_bundle_trusts_the_old_and_the_new_ca() {
    let mut cached = cached();
    settle(&mut cached, KeyKind::default());
    let (old_bundle, old) = (bundle(&cached, "orders-local-serving-ca"), cached.secrets.clone());
    cached.secrets.remove("orders-local-serving-ca");
    assert_eq!(settle(&mut cached, KeyKind::default()), ["orders-local-serving-ca", "orders-local-serving-certs"]);
    let new_bundle = bundle(&cached, "orders-local-serving-ca");
    assert!(handshake_succeeds(&cached, &new_bundle, "10.0.0.1"));
    assert!(!handshake_succeeds(&cached, &old_bundle, "10.0.0.1"));
    cached.secrets = old;
    assert!(handshake_succeeds(&cached, &new_bundle, "10.0.0.1"), "a node that has not loaded its new certificate yet");
}

#[test]
fn certificates_expire_and_are_renewed() {
    let mut cached = cached();
    settle(&mut cached, KeyKind::default());
    let authorities = bundle(&cached, "orders-local-serving-ca");
    cached.now += SignedDuration::from_hours(30 * 24);
    assert!(handshake_succeeds(&cached, &authorities, "10.0.0.1"), "the last second");
    cached.now += SignedDuration::from_secs(1);
    assert!(!handshake_succeeds(&cached, &authorities, "10.0.0.1"), "it has expired");
    assert_eq!(settle(&mut cached, KeyKind::default()), ["orders-local-serving-certs"]);
    assert!(handshake_succeeds(&cached, &authorities, "10.0.0.1"), "it was renewed");
}

/// scylla-operator generates RSA keys. Its CA is valid, so it stays and keeps signing.
#[test]
fn ca_of_scylla_operator_keeps_signing() {
    let data = [("tls.crt", include_str!("rsa-authority.crt")), ("tls.key", include_str!("rsa-authority.key"))];
    let data = data.map(|(key, text)| (key.to_owned(), ByteString(text.into())));
    let metadata = ObjectMeta { name: Some("orders-local-serving-ca".into()), ..ObjectMeta::default() };
    let authority = Secret { metadata, data: Some(data.into()), ..Secret::default() };
    let mut cached = cached();
    cached.secrets.insert(authority);
    let signed = settle(&mut cached, KeyKind::default());
    assert_eq!(signed, ["orders-local-client-ca", "orders-local-serving-certs", "orders-local-user-admin"]);
    let stored = &cached.secrets["orders-local-serving-ca"];
    assert_eq!(stored.data.as_ref().unwrap()["tls.key"].0, include_bytes!("rsa-authority.key"));
    let annotation = |secret, key| annotation(&cached, secret, key);
    assert_eq!(annotation("orders-local-serving-ca", KEY_ALGORITHM), "RSA");
    assert_eq!(annotation("orders-local-serving-ca", KEY_SIZE), "2048");
    assert_eq!(annotation("orders-local-serving-certs", ISSUER), "CN=orders-local-serving-ca");
    assert_eq!(annotation("orders-local-serving-certs", KEY_ALGORITHM), "ECDSA");
    assert!(handshake_succeeds(&cached, &bundle(&cached, "orders-local-serving-ca"), "10.0.0.1"));
}

#[test]
fn signing_fails_for_invalid_names_and_keys() {
    let mut cached = cached();
    let mut order = signing_requests(&cached).remove(0);
    order.dns_names.insert("ü".into());
    assert!(
        matches!(sign(&order, &Key::new(KeyKind::default()).unwrap()), Err(SigningError::Name { name, .. }) if name == "ü")
    );
    settle(&mut cached, KeyKind::default());
    cached.secrets.remove("orders-local-serving-certs");
    let mut order = signing_requests(&cached).remove(0);
    order.signer.as_mut().unwrap().key = "nothing".into();
    assert!(matches!(sign(&order, &Key::new(KeyKind::default()).unwrap()), Err(SigningError::Authority(_))));
}
