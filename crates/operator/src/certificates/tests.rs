#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::SignedDuration;
use k8s_openapi::{
    ByteString,
    api::core::v1::{Pod, PodStatus, Secret},
};
use messina_api::names::annotation::certificate::{ISSUER, KEY_ALGORITHM, KEY_SIZE};
use messina_plan::datacenter::{Gates, Observed, certificates::orders, plan, validate};
use rcgen::PublicKeyData;
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

/// A datacenter of one node that has all its addresses, and no certificates.
pub(crate) fn observed() -> Observed {
    let object = json!({
        "metadata": {"name": "orders", "namespace": "shop", "uid": "the-uid"},
        "spec": {
            "clusterName": "orders", "datacenterName": "dc", "scyllaDB": {"image": "scylladb/scylla:2026.2.4"},
            "racks": [{"name": "a", "nodes": 1, "scyllaDB": {"storage": {"capacity": "1Gi"}}}],
        },
    });
    let datacenter = validate(&serde_json::from_value(object).unwrap()).unwrap();
    let gates = Gates { automatic_tls_certificates: true, ..Gates::default() };
    let mut observed =
        Observed { gates, now: "2026-12-01T00:00:00Z".parse().unwrap(), ..Observed::new(datacenter, "messina:test") };
    let planned = plan(&observed).objects;
    for mut service in planned.member_services.into_iter().chain([planned.identity_service]) {
        service.spec.as_mut().unwrap().cluster_ip = Some("10.0.0.1".into());
        observed.services.insert(service.metadata.name.clone().unwrap(), service);
    }
    let status = PodStatus { pod_ip: Some("10.1.0.1".into()), ..PodStatus::default() };
    observed.pods.insert("orders-dc-a-0".into(), Pod { status: Some(status), ..Pod::default() });
    observed
}

/// Looks until nothing is to be signed, with real signatures.
pub(crate) fn settle(observed: &mut Observed, kind: KeyKind) -> Vec<String> {
    let mut all = Vec::new();
    for _ in 0..4 {
        let signed = orders(observed).into_iter().map(|order| {
            let signed = sign(&order, &Key::new(kind).unwrap()).unwrap();
            (order.secret, Ok(signed))
        });
        observed.signed = signed.collect::<BTreeMap<_, Result<Signed, String>>>();
        all.extend(observed.signed.keys().cloned());
        let plan = plan(observed);
        assert_eq!(plan.wrong, vec![]);
        for chain in plan.objects.certificates {
            let secrets = chain.authority.into_iter().chain(chain.certificate);
            observed.secrets.extend(secrets.map(|secret| (secret.metadata.name.clone().unwrap(), secret)));
            observed.config_maps.extend(chain.bundle.map(|bundle| (bundle.metadata.name.clone().unwrap(), bundle)));
        }
    }
    assert_eq!(orders(observed), vec![], "it goes on for ever");
    all
}

fn pair(observed: &Observed, secret: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let data = observed.secrets[secret].data.as_ref().unwrap();
    let certificates = CertificateDer::pem_slice_iter(&data["tls.crt"].0).collect::<Result<_, _>>().unwrap();
    (certificates, PrivateKeyDer::from_pem_slice(&data["tls.key"].0).unwrap())
}

/// A clock that stands.
#[derive(Debug)]
struct Clock(Timestamp);

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(self.0.as_second().try_into().ok()?)))
    }
}

/// Whom somebody trusts who has read this bundle.
fn trust(bundle: &str) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(authority.unwrap()).unwrap();
    }
    Arc::new(roots)
}

fn bundle(observed: &Observed, name: &str) -> String {
    observed.config_maps[name].data.as_ref().unwrap()["ca-bundle.crt"].clone()
}

/// What is noted on a Secret.
fn noted<'a>(observed: &'a Observed, secret: &str, key: &str) -> &'a str {
    &observed.secrets[secret].metadata.annotations.as_ref().unwrap()[key]
}

/// Whether a client that trusts `authorities` and a node come to speak with each other, both ways known. There is no wire
/// between them.
fn is_reached_at(observed: &Observed, authorities: &str, name: &str) -> bool {
    let (chain, key) = pair(observed, "orders-local-serving-certs");
    let clients = trust(&bundle(observed, "orders-local-client-ca"));
    let provider = Arc::new(default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(clients, Arc::clone(&provider)).build().unwrap();
    let clock = Arc::new(Clock(observed.now));
    let server = ServerConfig::builder_with_details(Arc::clone(&provider), Arc::clone(&clock) as Arc<dyn TimeProvider>);
    let server = server.with_safe_default_protocol_versions();
    let server = server.unwrap().with_client_cert_verifier(verifier).with_single_cert(chain, key).unwrap();
    let client = ClientConfig::builder_with_details(provider, clock).with_safe_default_protocol_versions().unwrap();
    let (chain, key) = pair(observed, "orders-local-user-admin");
    let client = client.with_root_certificates(trust(authorities)).with_client_auth_cert(chain, key).unwrap();
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
fn clients_and_nodes_trust_each_other() {
    for kind in [P256, P384, RSA] {
        let mut observed = observed();
        settle(&mut observed, kind);
        let authorities = bundle(&observed, "orders-local-serving-ca");
        for name in ["orders-client.shop.svc", "orders-dc-a-0.shop.svc", "10.0.0.1", "10.1.0.1"] {
            assert!(is_reached_at(&observed, &authorities, name), "{name}, {kind:?}");
        }
        for name in ["example.com", "10.0.0.2"] {
            assert!(!is_reached_at(&observed, &authorities, name), "{name}, {kind:?}");
        }
        let others = bundle(&observed, "orders-local-client-ca");
        assert!(!is_reached_at(&observed, &others, "10.0.0.1"), "the other authority signs no servers");
    }
}

/// The setting may change at any time: what is there keeps its key until its time comes, and signs for keys of every kind.
#[test]
fn nothing_is_made_anew_because_another_kind_of_key_is_wanted() {
    for (first, then) in [(P256, P384), (P384, RSA), (RSA, P256)] {
        let mut observed = observed();
        settle(&mut observed, first);
        assert_eq!(settle(&mut observed, then), [""; 0], "{first:?}, {then:?}");
        observed.secrets.remove("orders-local-serving-certs");
        assert_eq!(settle(&mut observed, then), ["orders-local-serving-certs"]);
        assert!(
            is_reached_at(&observed, &bundle(&observed, "orders-local-serving-ca"), "10.0.0.1"),
            "{first:?}, {then:?}"
        );
        for (secret, kind) in [("orders-local-serving-ca", first), ("orders-local-serving-certs", then)] {
            let expected = match kind {
                KeyKind::Ecdsa(EcdsaKeySize::Bits256) => ("ECDSA", "256"),
                KeyKind::Ecdsa(EcdsaKeySize::Bits384) => ("ECDSA", "384"),
                KeyKind::Rsa(_) => ("RSA", "2048"),
            };
            let noted = |key| noted(&observed, secret, key);
            assert_eq!((noted(KEY_ALGORITHM), noted(KEY_SIZE)), expected, "{secret}");
        }
        observed.now += SignedDuration::from_hours(20 * 24);
        assert_eq!(settle(&mut observed, first), ["orders-local-serving-certs"], "its time has come");
    }
}

/// The peer knows keys only in the form that each kind has of its own.
#[test]
fn keys_are_stored_in_the_form_that_the_peer_reads() {
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

/// Who signs does not take RSA keys of every size.
#[test]
fn rsa_keys_of_all_sizes_sign() {
    for size in RsaKeySize::value_variants() {
        let order = orders(&observed()).remove(0);
        let signed = sign(&order, &Key::new(KeyKind::Rsa(*size)).unwrap()).unwrap();
        let mut observed = observed();
        let name = order.secret.clone();
        observed.signed = [(order.secret, Ok(signed))].into();
        let chains = plan(&observed).objects.certificates;
        let authority = chains.into_iter().filter_map(|chain| chain.authority).next().unwrap();
        observed.secrets.insert(name.clone(), authority);
        let noted = |key| noted(&observed, &name, key);
        assert_eq!((noted(KEY_ALGORITHM), noted(KEY_SIZE)), ("RSA", size.bits().to_string().as_str()));
    }
}

/// A client that read the bundle before the authority changed does not know the new one; one that reads it now knows both.
#[test]
fn who_reads_the_bundle_trusts_the_old_and_the_new() {
    let mut observed = observed();
    settle(&mut observed, KeyKind::default());
    let (old_bundle, old) = (bundle(&observed, "orders-local-serving-ca"), observed.secrets.clone());
    observed.secrets.remove("orders-local-serving-ca");
    assert_eq!(settle(&mut observed, KeyKind::default()), ["orders-local-serving-ca", "orders-local-serving-certs"]);
    let new_bundle = bundle(&observed, "orders-local-serving-ca");
    assert!(is_reached_at(&observed, &new_bundle, "10.0.0.1"));
    assert!(!is_reached_at(&observed, &old_bundle, "10.0.0.1"));
    observed.secrets = old;
    assert!(is_reached_at(&observed, &new_bundle, "10.0.0.1"), "a node that has not read its new certificate yet");
}

#[test]
fn certificates_end_when_they_are_to() {
    let mut observed = observed();
    settle(&mut observed, KeyKind::default());
    let authorities = bundle(&observed, "orders-local-serving-ca");
    observed.now += SignedDuration::from_hours(30 * 24);
    assert!(is_reached_at(&observed, &authorities, "10.0.0.1"), "the last second");
    observed.now += SignedDuration::from_secs(1);
    assert!(!is_reached_at(&observed, &authorities, "10.0.0.1"), "it has run out");
    assert_eq!(settle(&mut observed, KeyKind::default()), ["orders-local-serving-certs"]);
    assert!(is_reached_at(&observed, &authorities, "10.0.0.1"), "it was renewed");
}

/// The peer makes RSA keys, in another form. What it made is good, so it stays, and signs on.
#[test]
fn an_authority_with_another_kind_of_key_signs_on() {
    let data = [("tls.crt", include_str!("rsa-authority.crt")), ("tls.key", include_str!("rsa-authority.key"))];
    let data = data.map(|(key, text)| (key.to_owned(), ByteString(text.into())));
    let authority = Secret { data: Some(data.into()), ..Secret::default() };
    let mut observed = observed();
    observed.secrets.insert("orders-local-serving-ca".into(), authority);
    let signed = settle(&mut observed, KeyKind::default());
    assert_eq!(signed, ["orders-local-client-ca", "orders-local-serving-certs", "orders-local-user-admin"]);
    let stored = &observed.secrets["orders-local-serving-ca"];
    assert_eq!(stored.data.as_ref().unwrap()["tls.key"].0, include_bytes!("rsa-authority.key"));
    let noted = |secret, key| noted(&observed, secret, key);
    assert_eq!(noted("orders-local-serving-ca", KEY_ALGORITHM), "RSA");
    assert_eq!(noted("orders-local-serving-ca", KEY_SIZE), "2048");
    assert_eq!(noted("orders-local-serving-certs", ISSUER), "CN=orders-local-serving-ca");
    assert_eq!(noted("orders-local-serving-certs", KEY_ALGORITHM), "ECDSA");
    assert!(is_reached_at(&observed, &bundle(&observed, "orders-local-serving-ca"), "10.0.0.1"));
}

#[test]
fn what_cannot_be_signed_is_an_error() {
    let mut observed = observed();
    let mut order = orders(&observed).remove(0);
    order.dns_names.insert("ü".into());
    assert!(
        matches!(sign(&order, &Key::new(KeyKind::default()).unwrap()), Err(SigningError::Name { name, .. }) if name == "ü")
    );
    settle(&mut observed, KeyKind::default());
    observed.secrets.remove("orders-local-serving-certs");
    let mut order = orders(&observed).remove(0);
    order.signer.as_mut().unwrap().key = "nothing".into();
    assert!(matches!(sign(&order, &Key::new(KeyKind::default()).unwrap()), Err(SigningError::Authority(_))));
}
