//! Decisions about certificates.

use std::collections::BTreeMap;

use crate::{plan, signing_requests, with_name};
use jiff::SignedDuration;
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, LoadBalancerIngress, LoadBalancerStatus, Secret, ServiceStatus},
};
use messina_api::names::annotation::{self, certificate as noted};
use messina_plan::datacenter::{
    Cached, Component, Gates,
    certificates::{Purpose, SignedCertificate, keys},
};
use rcgen::KeyPair;
use serde_json::json;

use super::{
    DAY, SECRETS, authorities, ders, everything_is_trusted, give_addresses, is_trusted, later, names, pod, reconcile,
    settle, settled, sign, sign_orders, store, text, with_certificates,
};

#[test]
fn authorities_sign_only_after_they_are_stored() {
    let mut cached = with_certificates(json!({}));
    sign_orders(&mut cached);
    assert_eq!(cached.signed.keys().collect::<Vec<_>>(), [SECRETS[0], SECRETS[2]]);
    let first = plan(&cached);
    assert!(first.objects.certificates.iter().all(|chain| chain.authority.is_some()));
    assert!(first.objects.certificates.iter().all(|chain| chain.bundle.is_none() && chain.certificate.is_none()));
    assert!(first.objects.stateful_sets.is_empty(), "nodes wait for certificates");
    assert!(first.progressing.iter().any(|note| note.reason == "WaitingForCertificates"), "{:?}", first.progressing);
    store(&mut cached, &first);
    assert_eq!(reconcile(&mut cached), [SECRETS[3], SECRETS[1]]);
    assert!(everything_is_trusted(&cached));
    let last = plan(&cached);
    assert_eq!(last.objects.stateful_sets.len(), 1);
    assert_eq!(
        last.requeue_at,
        Some(cached.now + SignedDuration::from_secs(DAY)),
        "it is long before anything runs out"
    );
}

#[test]
fn certificates_are_created_only_where_enabled() {
    let mut cached = with_certificates(json!({}));
    cached.gates = Gates::default();
    assert_eq!(signing_requests(&cached), vec![]);
    let plan = plan(&cached);
    assert!(plan.objects.certificates.is_empty() && plan.objects.cql_connection_configs.is_none());
    assert_eq!((plan.objects.stateful_sets.len(), plan.requeue_at), (1, None));
    // Alternator has its certificate nevertheless, unless the user provides one.
    let mut alternator = with_certificates(json!({"scyllaDB": {"alternatorOptions": {}}}));
    alternator.gates = Gates::default();
    assert_eq!(
        settle(&mut alternator),
        ["orders-local-alternator-serving-ca", "orders-local-alternator-serving-certs"]
    );
}

/// Clients of a datacenter that scylla-operator has made trust its authority, which has another name, and read it in a ConfigMap of
/// that name.
#[test]
fn alternator_authority_of_scylla_operator_is_kept() {
    let (ours, served) = ("orders-local-alternator-serving-ca", "orders-local-alternator-serving-certs");
    let former = "orders-alternator-local-serving-ca";
    let mut cached = with_certificates(json!({"scyllaDB": {"alternatorOptions": {}}}));
    cached.gates = Gates::default();
    let mut order = signing_requests(&cached).remove(0);
    (order.secret, order.common_name) = (former.into(), Some(former.into()));
    let SignedCertificate { certificate, key } = sign(&order);
    let data = [("tls.crt", &certificate), ("tls.key", &key)];
    let data = data.map(|(name, text)| (name.to_owned(), ByteString(text.clone().into_bytes())));
    cached.secrets.insert(with_name(former, Secret { data: Some(data.into()), ..Secret::default() }));
    let bundle = [("ca-bundle.crt".to_owned(), certificate.clone())];
    cached.config_maps.insert(with_name(former, ConfigMap { data: Some(bundle.into()), ..ConfigMap::default() }));

    assert_eq!(reconcile(&mut cached), [""; 0], "no authority is made");
    assert_eq!(text(&cached.secrets[ours], "tls.crt"), certificate.as_bytes());
    assert_eq!(settle(&mut cached), [served]);
    assert!(is_trusted(&cached, served, former) && is_trusted(&cached, served, ours));

    // It has to be renewed: clients that read either ConfigMap trust both.
    later(&mut cached, 8 * 365 * DAY);
    assert_eq!(settle(&mut cached), [ours, served]);
    assert!(is_trusted(&cached, served, former) && is_trusted(&cached, served, ours));
    assert_eq!((authorities(&cached, former), authorities(&cached, ours)), (2, 2));

    // Without Alternator, nothing is written there, and nothing is removed.
    cached.datacenter.alternator = None;
    let untouched = plan(&cached).untouched;
    assert!(untouched.iter().any(|left| left.kind == "ConfigMap" && left.name == former), "{untouched:?}");
}

#[test]
fn alternator_certificate_contains_names_of_the_user() {
    let more = json!({"type": "OperatorManaged", "operatorManagedOptions": {
        "additionalDNSNames": ["tables.example.com"], "additionalIPAddresses": ["192.0.2.9", "2001:db8::9"]}});
    let cached = with_certificates(json!({"scyllaDB": {"alternatorOptions": {"servingCertificate": more}}}));
    let mut cached = Cached { gates: Gates::default(), ..cached };
    sign_orders(&mut cached);
    let first = plan(&cached);
    store(&mut cached, &first);
    let order = signing_requests(&cached).remove(0);
    assert_eq!((order.secret.as_str(), order.purpose), ("orders-local-alternator-serving-certs", Purpose::Serving));
    let names: Vec<&str> = order.dns_names.iter().map(String::as_str).collect();
    let services = ["orders-client.shop.svc", "orders-dc-a-0.shop.svc", "orders-dc-a-1.shop.svc"];
    assert_eq!(names, [&services[..], &["tables.example.com"]].concat());
    let addresses: Vec<String> = order.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["192.0.2.9", "2001:db8::9"]);
    // The operator does not check the user's own certificate.
    let own = json!({"type": "UserManaged", "userManagedOptions": {"secretName": "mine"}});
    let cached = with_certificates(json!({"scyllaDB": {"alternatorOptions": {"servingCertificate": own}}}));
    assert_eq!(signing_requests(&Cached { gates: Gates::default(), ..cached }), vec![]);
}

#[test]
fn certificates_are_kept_when_disabled() {
    let mut cached = settled(json!({}));
    cached.gates = Gates::default();
    let left: Vec<String> = plan(&cached).untouched.into_iter().map(|left| left.name).collect();
    assert_eq!(left, [SECRETS[0], SECRETS[2]]);
}

#[test]
fn failed_signing_is_reported_and_blocks_no_existing_rack() {
    let mut cached = settled(json!({}));
    let before = plan(&cached).objects.stateful_sets;
    later(&mut cached, 21 * DAY);
    for failure in [Err("no randomness".to_owned()), Ok(SignedCertificate { certificate: "x".into(), key: "y".into() })]
    {
        cached.signed = [(SECRETS[3].to_owned(), failure)].into();
        let plan = plan(&cached);
        assert_eq!(
            plan.degraded.iter().map(|note| (note.component, note.reason.as_str())).collect::<Vec<_>>(),
            [(Component::Certificates, "SigningFailed")]
        );
        assert_eq!(plan.objects.stateful_sets, before);
        assert!(plan.objects.certificates[1].certificate.is_none(), "the old one stays");
    }
}

/// Some keys take a while to generate.
#[test]
fn pending_signing_is_awaited_and_blocks_no_existing_rack() {
    let mut cached = settled(json!({}));
    cached.signed.clear();
    let before = plan(&cached).objects.stateful_sets;
    let mut without_authority = cached.clone();
    without_authority.secrets.remove(SECRETS[2]);
    later(&mut cached, 21 * DAY);
    for (cached, secret) in [(cached, SECRETS[3]), (without_authority, SECRETS[2])] {
        let plan = plan(&cached);
        let awaited = plan.progressing.iter().find(|note| note.reason == "WaitingForSignature").unwrap();
        assert!(awaited.message.starts_with(&format!("Secret shop/{secret} must be signed: ")), "{}", awaited.message);
        assert_eq!((plan.degraded, plan.objects.stateful_sets), (vec![], before.clone()), "{secret}");
        assert!(plan.objects.certificates[1].certificate.is_none(), "the old one stays");
        let is_kept =
            plan.objects.certificates[1].bundle.is_some() || plan.untouched.iter().any(|left| left.name == SECRETS[2]);
        assert!(is_kept, "clients read it still");
    }
}

#[test]
fn secrets_describe_their_certificates() {
    let cached = settled(json!({}));
    let expected = [
        (SECRETS[0], "true", "CN=orders-local-client-ca", "2026-11-15T11:59:59Z", "2036-11-12T12:00:00Z"),
        (SECRETS[1], "false", "CN=orders-local-client-ca", "2026-11-15T11:59:59Z", "2036-11-12T12:00:00Z"),
        (SECRETS[2], "true", "CN=orders-local-serving-ca", "2026-11-15T11:59:59Z", "2036-11-12T12:00:00Z"),
        (SECRETS[3], "false", "CN=orders-local-serving-ca", "2026-11-15T11:59:59Z", "2026-12-15T12:00:00Z"),
    ];
    for (name, is_authority, issuer, from, run_until) in expected {
        let secret = &cached.secrets[name];
        let annotations = secret.metadata.annotations.clone().unwrap();
        let expected: BTreeMap<String, String> = [
            (noted::COUNT, "1"),
            (noted::IS_CA, is_authority),
            (noted::ISSUER, issuer),
            (noted::KEY_ALGORITHM, "ECDSA"),
            (noted::KEY_SIZE, "256"),
            (noted::NOT_BEFORE, from),
            (noted::NOT_AFTER, run_until),
            (noted::REFRESH_REASON, "there is none"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        assert_eq!(annotations, expected, "{name}");
        assert_eq!(secret.type_.as_deref(), Some("kubernetes.io/tls"));
    }
}

#[test]
fn serving_certificate_contains_all_addresses_of_nodes() {
    let mut cached = with_certificates(json!({"dnsDomains": ["db.example.com"], "exposeOptions": {
        "nodeService": {"type": "LoadBalancer"}}}));
    let first = plan(&cached);
    give_addresses(&mut cached, &first);
    let one = cached.services.get_mut("orders-dc-a-0").unwrap();
    one.metadata.annotations.get_or_insert_default().insert(annotation::HOST_ID.into(), "id-0".into());
    let ingress = |ip: Option<&str>, hostname: Option<&str>| LoadBalancerIngress {
        ip: ip.map(str::to_owned),
        hostname: hostname.map(str::to_owned),
        ..LoadBalancerIngress::default()
    };
    let ingress = vec![ingress(Some("192.0.2.7"), None), ingress(None, Some("lb.example.com"))];
    let load_balancer = Some(LoadBalancerStatus { ingress: Some(ingress) });
    one.status = Some(ServiceStatus { load_balancer, ..ServiceStatus::default() });
    settle(&mut cached);
    let expected = [
        "DNSName(cql.db.example.com)",
        "DNSName(id-0.cql.db.example.com)",
        "DNSName(lb.example.com)",
        "DNSName(orders-client.shop.svc)",
        "DNSName(orders-dc-a-0.shop.svc)",
        "DNSName(orders-dc-a-1.shop.svc)",
        "IPAddress(0a:00:00:01)",
        "IPAddress(0a:00:00:02)",
        "IPAddress(0a:00:00:03)",
        "IPAddress(0a:01:00:01)",
        "IPAddress(0a:01:00:02)",
        "IPAddress(c0:00:02:07)",
    ];
    assert_eq!(names(&cached).into_iter().collect::<Vec<_>>(), expected);
    let progressing = plan(&cached).progressing;
    let message = &progressing.iter().find(|note| note.component == Component::Certificates).unwrap().message;
    assert!(message.contains("node shop/orders-dc-a-1 to report its host ID"), "{message}");
    assert!(message.contains("Service shop/orders-dc-a-1 to get an address of its load balancer"), "{message}");
    assert!(!message.contains("orders-dc-a-0"), "{message}");
}

/// Nodes join one by one; their certificate is signed less often.
#[test]
fn new_nodes_are_added_to_the_certificate_together() {
    let mut cached = with_certificates(json!({}));
    settle(&mut cached);
    let first = plan(&cached);
    give_addresses(&mut cached, &first);
    let last = cached.pods.remove("orders-dc-a-1").unwrap();
    later(&mut cached, 10);
    assert_eq!(reconcile(&mut cached), [""; 0], "the other node has not joined yet");
    later(&mut cached, 109);
    assert_eq!(reconcile(&mut cached), [SECRETS[3]], "it takes too long");
    later(&mut cached, 600);
    assert_eq!(reconcile(&mut cached), [""; 0], "there is nothing new");
    cached.pods.insert(last);
    assert_eq!(reconcile(&mut cached), [SECRETS[3]], "all are there, so it is done at once");
    assert_eq!(plan(&cached).progressing.iter().filter(|note| note.component == Component::Certificates).count(), 0);
}

#[test]
fn changed_address_of_a_node_costs_one_signature() {
    let mut cached = settled(json!({}));
    later(&mut cached, 3600);
    cached.pods.remove("orders-dc-a-1");
    assert_eq!(reconcile(&mut cached), [""; 0], "its old address does no harm");
    cached.pods.insert(pod("orders-dc-a-1", "10.1.0.99"));
    assert_eq!(settle(&mut cached), [SECRETS[3]]);
    assert!(names(&cached).contains("IPAddress(0a:01:00:63)"));
}

/// Certificates are renewed in time, and not before.
#[test]
fn certificates_are_renewed_in_time() {
    let mut cached = settled(json!({}));
    later(&mut cached, 20 * DAY - 2);
    assert_eq!(reconcile(&mut cached), [""; 0]);
    let next = plan(&cached).requeue_at.unwrap();
    assert_eq!(next, cached.now + SignedDuration::from_secs(1));
    cached.now = next;
    assert_eq!(settle(&mut cached), [SECRETS[3]]);
    let reason = &cached.secrets[SECRETS[3]].metadata.annotations.as_ref().unwrap()[noted::REFRESH_REASON];
    assert_eq!(reason, "it is renewed from 2026-12-05T11:59:59Z on");
    // Normally the serving certificate is renewed repeatedly meanwhile; here it was not.
    cached.now = "2034-11-13T11:59:58Z".parse().unwrap();
    assert_eq!(settle(&mut cached), [SECRETS[3]]);
    later(&mut cached, 1);
    assert_eq!(settle(&mut cached), [SECRETS[0], SECRETS[2], SECRETS[3], SECRETS[1]]);
    assert!(everything_is_trusted(&cached));
    assert_eq!((authorities(&cached, SECRETS[0]), authorities(&cached, SECRETS[2])), (2, 2), "both are trusted");
    cached.now = "2036-11-12T12:00:00Z".parse().unwrap();
    settle(&mut cached);
    assert_eq!((authorities(&cached, SECRETS[0]), authorities(&cached, SECRETS[2])), (1, 1), "one ran out");
    assert!(everything_is_trusted(&cached));
}

#[test]
fn damaged_certificates_are_repaired_with_minimal_changes() {
    type Damage = fn(&mut Cached, &str);
    let gone: Damage = |cached, name| drop(cached.secrets.remove(name));
    let emptied: Damage = |cached, name| cached.secrets.get_mut(name).unwrap().data = None;
    let other_key: Damage = |cached, name| {
        let key = keys::elliptic_key_pem(KeyPair::generate().unwrap().serialized_der()).unwrap();
        cached.secrets.get_mut(name).unwrap().data.as_mut().unwrap().insert("tls.key".into(), ByteString(key.into()));
    };
    let last_byte: Damage = |cached, name| {
        let data = cached.secrets.get_mut(name).unwrap().data.as_mut().unwrap();
        let mut der = ders(&data["tls.crt"].0).remove(0);
        *der.last_mut().unwrap() ^= 1;
        let text = rcgen_pem(&der);
        data.insert("tls.crt".into(), ByteString(text.into()));
    };
    let swapped: Damage = |cached, name| {
        let other = if name == SECRETS[1] { SECRETS[3] } else { SECRETS[1] };
        let data = cached.secrets[other].data.clone();
        cached.secrets.get_mut(name).unwrap().data = data;
    };
    for (number, damage) in [gone, emptied, other_key, last_byte, swapped].into_iter().enumerate() {
        for (name, follows) in
            [(SECRETS[0], Some(SECRETS[1])), (SECRETS[1], None), (SECRETS[2], Some(SECRETS[3])), (SECRETS[3], None)]
        {
            let mut cached = settled(json!({}));
            let before = cached.secrets.clone();
            damage(&mut cached, name);
            let expected: Vec<&str> = [name].into_iter().chain(follows).collect();
            assert_eq!(settle(&mut cached), expected, "damage {number} of {name}");
            assert!(everything_is_trusted(&cached), "damage {number} of {name}");
            let same = before.iter().filter(|(name, _)| !expected.contains(&name.as_str()));
            for (name, secret) in same.filter(|(name, _)| SECRETS.contains(&name.as_str())) {
                assert_eq!(cached.secrets[name], *secret, "{name} stays");
            }
        }
    }
}

fn rcgen_pem(der: &[u8]) -> String {
    use base64::{Engine, prelude::BASE64_STANDARD};
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", BASE64_STANDARD.encode(der))
}

#[test]
fn bundle_is_recreated() {
    for text in
        [None, Some(""), Some("nothing"), Some("-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n")]
    {
        let mut cached = settled(json!({}));
        let bundle: &mut ConfigMap = cached.config_maps.get_mut(SECRETS[2]).unwrap();
        bundle.data = text.map(|text| [("ca-bundle.crt".to_owned(), text.to_owned())].into());
        assert_eq!(settle(&mut cached), [""; 0]);
        assert!(everything_is_trusted(&cached), "{text:?}");
    }
}

#[test]
fn connection_config_is_created_for_each_domain() {
    let mut cached = settled(json!({"dnsDomains": ["db.example.com"]}));
    cached.cqls_ingress_port = Some(9142);
    settle(&mut cached);
    let secret = plan(&cached).objects.cql_connection_configs.unwrap();
    let file = String::from_utf8(text(&secret, "db.example.com")).unwrap();
    let file: serde_json::Value = serde_saphyr::from_str(&file).unwrap();
    let of_secret = |name: &str, key: &str| {
        use base64::{Engine, prelude::BASE64_STANDARD};
        json!(BASE64_STANDARD.encode(text(&cached.secrets[name], key)))
    };
    assert_eq!(file["datacenters"]["dc"]["server"], "cql.db.example.com:9142");
    assert_eq!(file["datacenters"]["dc"]["nodeDomain"], "cql.db.example.com");
    assert_eq!(file["authInfos"]["admin"]["clientCertificateData"], of_secret(SECRETS[1], "tls.crt"));
    assert_eq!(file["authInfos"]["admin"]["clientKeyData"], of_secret(SECRETS[1], "tls.key"));
    assert_eq!(file["contexts"]["default"], json!({"datacenterName": "dc", "authInfoName": "admin"}));
}
