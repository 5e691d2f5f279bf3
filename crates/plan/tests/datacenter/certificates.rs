//! Which certificates are signed, when, and what becomes of them.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, LoadBalancerIngress, LoadBalancerStatus, Pod, PodStatus, Secret, ServiceStatus},
};
use messina_api::names::annotation::{self, certificate as noted};
use messina_plan::datacenter::{
    Gates, Observed, Part, Plan,
    certificates::{Order, Purpose, Signed, keys, orders},
    plan,
};
use proptest::{collection::vec, prelude::*, sample::select};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use serde_json::json;
use x509_parser::{certificate::X509Certificate, pem::Pem};

use crate::{datacenter_with, observed};

const SECRETS: [&str; 4] =
    ["orders-local-client-ca", "orders-local-user-admin", "orders-local-serving-ca", "orders-local-serving-certs"];
const DAY: i64 = 24 * 3600;

/// Signs as a real signer does, with keys that nobody keeps.
fn sign(order: &Order) -> Signed {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    if let Some(name) = &order.common_name {
        params.distinguished_name.push(DnType::CommonName, name.as_str());
    }
    let dns_names = order.dns_names.iter().map(|name| SanType::DnsName(name.as_str().try_into().unwrap()));
    params.subject_alt_names = dns_names.chain(order.addresses.iter().copied().map(SanType::IpAddress)).collect();
    let time = |time: Timestamp| std::time::SystemTime::from(time).into();
    (params.not_before, params.not_after) = (time(order.not_before), time(order.not_after));
    params.use_authority_key_identifier_extension = order.signer.is_some();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    match order.purpose {
        Purpose::Authority => {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages.push(KeyUsagePurpose::KeyCertSign);
        }
        Purpose::Client => params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth],
        Purpose::Serving => {}
    }
    let key = KeyPair::generate().unwrap();
    let certificate = match &order.signer {
        None => params.self_signed(&key),
        Some(Signed { certificate, key: signer }) => {
            let signer = KeyPair::try_from(keys::as_pkcs8(signer.as_bytes()).unwrap()).unwrap();
            params.signed_by(&key, &Issuer::from_ca_cert_pem(certificate, signer).unwrap())
        }
    };
    Signed { certificate: certificate.unwrap().pem(), key: keys::elliptic_key_pem(key.serialized_der()).unwrap() }
}

/// Signs everything that is to be signed.
pub(crate) fn sign_orders(observed: &mut Observed) {
    observed.signed = orders(observed).iter().map(|order| (order.secret.clone(), Ok(sign(order)))).collect();
}

/// Signs and stores certificates until all are there.
pub(crate) fn make_all(observed: &mut Observed) {
    for _ in 0..3 {
        sign_orders(observed);
        let plan = plan(observed);
        store(observed, &plan);
        if observed.signed.is_empty() {
            return;
        }
    }
}

/// Puts planned certificates where the API server would keep them.
pub(crate) fn store(observed: &mut Observed, plan: &Plan) {
    let objects = &plan.objects;
    let secrets = objects.certificates.iter().flat_map(|chain| chain.authority.iter().chain(&chain.certificate));
    let secrets = secrets.chain(&objects.cql_connection_configs).cloned();
    observed.secrets.extend(secrets.map(|secret| (secret.metadata.name.clone().unwrap(), secret)));
    let bundles = objects.certificates.iter().filter_map(|chain| chain.bundle.clone());
    observed.config_maps.extend(bundles.map(|bundle| (bundle.metadata.name.clone().unwrap(), bundle)));
}

/// Puts only the first few where the API server would keep them, in the order in which they are written: then the operator
/// crashes.
fn store_some(observed: &mut Observed, plan: &Plan, count: usize) {
    let mut left = count;
    let mut is_written = || {
        let is_written = left > 0;
        left = left.saturating_sub(1);
        is_written
    };
    for chain in &plan.objects.certificates {
        let name = |name: &Option<String>| name.clone().unwrap();
        for secret in chain.authority.iter().filter(|_| is_written()) {
            observed.secrets.insert(name(&secret.metadata.name), secret.clone());
        }
        for bundle in chain.bundle.iter().filter(|_| is_written()) {
            observed.config_maps.insert(name(&bundle.metadata.name), bundle.clone());
        }
        for secret in chain.certificate.iter().filter(|_| is_written()) {
            observed.secrets.insert(name(&secret.metadata.name), secret.clone());
        }
    }
}

/// What an API server and a kubelet do: every Service and every pod has an address.
pub(crate) fn give_addresses(observed: &mut Observed, plan: &Plan) {
    for mut service in plan.objects.member_services.iter().cloned().chain([plan.objects.identity_service.clone()]) {
        let name = service.metadata.name.clone().unwrap();
        let number = observed.services.len() + 1;
        let spec = service.spec.as_mut().unwrap();
        if spec.cluster_ip.is_none() {
            spec.cluster_ip = Some(format!("10.0.0.{number}"));
        }
        let is_node = !name.ends_with("-client");
        observed.services.entry(name.clone()).or_insert(service);
        if is_node {
            observed.pods.entry(name).or_insert_with(|| pod(&format!("10.1.0.{number}")));
        }
    }
}

fn pod(address: &str) -> Pod {
    Pod { status: Some(PodStatus { pod_ip: Some(address.into()), ..PodStatus::default() }), ..Pod::default() }
}

fn with_certificates(spec: serde_json::Value) -> Observed {
    let mut observed = observed(datacenter_with(&[("a", 2)], spec));
    observed.gates = Gates { automatic_tls_certificates: true, ..Gates::default() };
    observed.now = "2026-11-15T12:00:00Z".parse().unwrap();
    observed
}

/// One look, and everything that it decides is stored. Gives the names of what was signed.
fn look(observed: &mut Observed) -> Vec<String> {
    sign_orders(observed);
    let plan = plan(observed);
    assert_eq!(plan.wrong, vec![]);
    store(observed, &plan);
    observed.signed.keys().cloned().collect()
}

/// Looks until nothing is signed.
fn settle(observed: &mut Observed) -> Vec<String> {
    let mut all = Vec::new();
    for _ in 0..5 {
        let signed = look(observed);
        if signed.is_empty() {
            return all;
        }
        all.extend(signed);
    }
    panic!("it goes on for ever: {all:?}");
}

/// A datacenter whose nodes have all that they will have.
fn settled(spec: serde_json::Value) -> Observed {
    let mut observed = with_certificates(spec);
    let first = plan(&observed);
    give_addresses(&mut observed, &first);
    settle(&mut observed);
    observed
}

fn later(observed: &mut Observed, seconds: i64) {
    observed.now += SignedDuration::from_secs(seconds);
}

fn text(secret: &Secret, key: &str) -> Vec<u8> {
    secret.data.as_ref().unwrap()[key].0.clone()
}

fn ders(pem: &[u8]) -> Vec<Vec<u8>> {
    Pem::iter_from_buffer(pem).map(|block| block.unwrap().contents).collect()
}

fn parsed(der: &[u8]) -> X509Certificate<'_> {
    x509_parser::parse_x509_certificate(der).unwrap().1
}

/// Whether an authority in the bundle has signed the certificate, and both are valid now.
fn is_trusted(observed: &Observed, certificate: &str, bundle: &str) -> bool {
    let now = x509_parser::time::ASN1Time::from_timestamp(observed.now.as_second()).unwrap();
    let own = ders(&text(&observed.secrets[certificate], "tls.crt"));
    let own = parsed(&own[0]);
    let bundle = observed.config_maps[bundle].data.as_ref().unwrap()["ca-bundle.crt"].clone();
    own.validity().is_valid_at(now)
        && ders(bundle.as_bytes()).iter().map(|der| parsed(der)).any(|authority| {
            authority.validity().is_valid_at(now) && own.verify_signature(Some(authority.public_key())).is_ok()
        })
}

fn everything_is_trusted(observed: &Observed) -> bool {
    is_trusted(observed, SECRETS[1], SECRETS[0]) && is_trusted(observed, SECRETS[3], SECRETS[2])
}

fn authorities(observed: &Observed, bundle: &str) -> usize {
    ders(observed.config_maps[bundle].data.as_ref().unwrap()["ca-bundle.crt"].as_bytes()).len()
}

fn names(observed: &Observed) -> BTreeSet<String> {
    let der = ders(&text(&observed.secrets[SECRETS[3]], "tls.crt"));
    let certificate = parsed(&der[0]);
    let names = certificate.subject_alternative_name().unwrap().unwrap();
    names.value.general_names.iter().map(ToString::to_string).collect()
}

#[test]
fn authorities_come_first_and_sign_only_when_they_are_stored() {
    let mut observed = with_certificates(json!({}));
    sign_orders(&mut observed);
    assert_eq!(observed.signed.keys().collect::<Vec<_>>(), [SECRETS[0], SECRETS[2]]);
    let first = plan(&observed);
    assert!(first.objects.certificates.iter().all(|chain| chain.authority.is_some()));
    assert!(first.objects.certificates.iter().all(|chain| chain.bundle.is_none() && chain.certificate.is_none()));
    assert!(first.objects.stateful_sets.is_empty(), "nodes wait for certificates");
    assert!(first.waiting.iter().any(|note| note.reason == "WaitingForCertificates"), "{:?}", first.waiting);
    store(&mut observed, &first);
    assert_eq!(look(&mut observed), [SECRETS[3], SECRETS[1]]);
    assert!(everything_is_trusted(&observed));
    let last = plan(&observed);
    assert_eq!(last.objects.stateful_sets.len(), 1);
    assert_eq!(
        last.again_at,
        Some(observed.now + SignedDuration::from_secs(DAY)),
        "it is long before anything runs out"
    );
}

#[test]
fn nothing_is_made_unless_it_is_switched_on() {
    let mut observed = with_certificates(json!({}));
    observed.gates = Gates::default();
    assert_eq!(orders(&observed), vec![]);
    let plan = plan(&observed);
    assert!(plan.objects.certificates.is_empty() && plan.objects.cql_connection_configs.is_none());
    assert_eq!((plan.objects.stateful_sets.len(), plan.again_at), (1, None));
    // Alternator has its certificate all the same, unless the user gives one.
    let mut alternator = with_certificates(json!({"scyllaDB": {"alternatorOptions": {}}}));
    alternator.gates = Gates::default();
    assert_eq!(
        settle(&mut alternator),
        ["orders-local-alternator-serving-ca", "orders-local-alternator-serving-certs"]
    );
}

#[test]
fn alternator_is_certified_for_what_the_user_adds() {
    let more = json!({"type": "OperatorManaged", "operatorManagedOptions": {
        "additionalDNSNames": ["tables.example.com"], "additionalIPAddresses": ["192.0.2.9", "2001:db8::9"]}});
    let observed = with_certificates(json!({"scyllaDB": {"alternatorOptions": {"servingCertificate": more}}}));
    let mut observed = Observed { gates: Gates::default(), ..observed };
    sign_orders(&mut observed);
    let first = plan(&observed);
    store(&mut observed, &first);
    let order = orders(&observed).remove(0);
    assert_eq!((order.secret.as_str(), order.purpose), ("orders-local-alternator-serving-certs", Purpose::Serving));
    let names: Vec<&str> = order.dns_names.iter().map(String::as_str).collect();
    let services = ["orders-client.shop.svc", "orders-dc-a-0.shop.svc", "orders-dc-a-1.shop.svc"];
    assert_eq!(names, [&services[..], &["tables.example.com"]].concat());
    let addresses: Vec<String> = order.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["192.0.2.9", "2001:db8::9"]);
    // The user's own certificate is the user's business.
    let own = json!({"type": "UserManaged", "userManagedOptions": {"secretName": "mine"}});
    let observed = with_certificates(json!({"scyllaDB": {"alternatorOptions": {"servingCertificate": own}}}));
    assert_eq!(orders(&Observed { gates: Gates::default(), ..observed }), vec![]);
}

#[test]
fn what_was_made_stays_when_it_is_switched_off() {
    let mut observed = settled(json!({}));
    observed.gates = Gates::default();
    let left: Vec<String> = plan(&observed).left_alone.into_iter().map(|left| left.name).collect();
    assert_eq!(left, [SECRETS[0], SECRETS[2]]);
}

#[test]
fn what_cannot_be_signed_is_told_and_holds_nothing_up_that_is_there() {
    let mut observed = settled(json!({}));
    let before = plan(&observed).objects.stateful_sets;
    later(&mut observed, 21 * DAY);
    for failure in [Err("no randomness".to_owned()), Ok(Signed { certificate: "x".into(), key: "y".into() })] {
        observed.signed = [(SECRETS[3].to_owned(), failure)].into();
        let plan = plan(&observed);
        assert_eq!(
            plan.wrong.iter().map(|note| (note.part, note.reason)).collect::<Vec<_>>(),
            [(Part::Certificates, "SigningFailed")]
        );
        assert_eq!(plan.objects.stateful_sets, before);
        assert!(plan.objects.certificates[1].certificate.is_none(), "the old one stays");
    }
}

#[test]
fn secrets_say_what_they_hold() {
    let observed = settled(json!({}));
    let expected = [
        (SECRETS[0], "true", "CN=orders-local-client-ca", "2026-11-15T11:59:59Z", "2036-11-12T12:00:00Z"),
        (SECRETS[1], "false", "CN=orders-local-client-ca", "2026-11-15T11:59:59Z", "2036-11-12T12:00:00Z"),
        (SECRETS[2], "true", "CN=orders-local-serving-ca", "2026-11-15T11:59:59Z", "2036-11-12T12:00:00Z"),
        (SECRETS[3], "false", "CN=orders-local-serving-ca", "2026-11-15T11:59:59Z", "2026-12-15T12:00:00Z"),
    ];
    for (name, is_authority, issuer, from, until) in expected {
        let secret = &observed.secrets[name];
        let annotations = secret.metadata.annotations.clone().unwrap();
        let expected: BTreeMap<String, String> = [
            (noted::COUNT, "1"),
            (noted::IS_CA, is_authority),
            (noted::ISSUER, issuer),
            (noted::KEY_ALGORITHM, "ECDSA"),
            (noted::KEY_SIZE, "256"),
            (noted::NOT_BEFORE, from),
            (noted::NOT_AFTER, until),
            (noted::REFRESH_REASON, "there is none"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        assert_eq!(annotations, expected, "{name}");
        assert_eq!(secret.type_.as_deref(), Some("kubernetes.io/tls"));
    }
}

#[test]
fn nodes_are_certified_for_every_way_to_them() {
    let mut observed = with_certificates(json!({"dnsDomains": ["db.example.com"], "exposeOptions": {
        "nodeService": {"type": "LoadBalancer"}}}));
    let first = plan(&observed);
    give_addresses(&mut observed, &first);
    let one = observed.services.get_mut("orders-dc-a-0").unwrap();
    one.metadata.annotations.get_or_insert_default().insert(annotation::HOST_ID.into(), "id-0".into());
    let ingress = |ip: Option<&str>, hostname: Option<&str>| LoadBalancerIngress {
        ip: ip.map(str::to_owned),
        hostname: hostname.map(str::to_owned),
        ..LoadBalancerIngress::default()
    };
    let ingress = vec![ingress(Some("192.0.2.7"), None), ingress(None, Some("lb.example.com"))];
    let load_balancer = Some(LoadBalancerStatus { ingress: Some(ingress) });
    one.status = Some(ServiceStatus { load_balancer, ..ServiceStatus::default() });
    settle(&mut observed);
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
    assert_eq!(names(&observed).into_iter().collect::<Vec<_>>(), expected);
    let waiting = plan(&observed).waiting;
    let message = &waiting.iter().find(|note| note.part == Part::Certificates).unwrap().message;
    assert!(message.contains("the node of Service shop/orders-dc-a-1 is to tell its host ID"), "{message}");
    assert!(message.contains("the load balancer of Service shop/orders-dc-a-1 is to get an address"), "{message}");
    assert!(!message.contains("orders-dc-a-0"), "{message}");
}

/// Nodes come one by one; their certificate is not signed as often.
#[test]
fn nodes_that_come_together_are_certified_together() {
    let mut observed = with_certificates(json!({}));
    settle(&mut observed);
    let first = plan(&observed);
    give_addresses(&mut observed, &first);
    let last = observed.pods.remove("orders-dc-a-1").unwrap();
    later(&mut observed, 10);
    assert_eq!(look(&mut observed), [""; 0], "the other node is to come");
    later(&mut observed, 49);
    assert_eq!(look(&mut observed), [SECRETS[3]], "it takes too long");
    later(&mut observed, 600);
    assert_eq!(look(&mut observed), [""; 0], "there is nothing new");
    observed.pods.insert("orders-dc-a-1".into(), last);
    assert_eq!(look(&mut observed), [SECRETS[3]], "all are there, so it is done at once");
    assert_eq!(plan(&observed).waiting.iter().filter(|note| note.part == Part::Certificates).count(), 0);
}

#[test]
fn a_node_that_comes_back_with_another_address_costs_one_signature() {
    let mut observed = settled(json!({}));
    later(&mut observed, 3600);
    observed.pods.remove("orders-dc-a-1");
    assert_eq!(look(&mut observed), [""; 0], "its old address does no harm");
    observed.pods.insert("orders-dc-a-1".into(), pod("10.1.0.99"));
    assert_eq!(settle(&mut observed), [SECRETS[3]]);
    assert!(names(&observed).contains("IPAddress(0a:01:00:63)"));
}

/// Everything is renewed in its time, and nothing before.
#[test]
fn everything_has_its_time() {
    let mut observed = settled(json!({}));
    later(&mut observed, 20 * DAY - 2);
    assert_eq!(look(&mut observed), [""; 0]);
    let next = plan(&observed).again_at.unwrap();
    assert_eq!(next, observed.now + SignedDuration::from_secs(1));
    observed.now = next;
    assert_eq!(settle(&mut observed), [SECRETS[3]]);
    let reason = &observed.secrets[SECRETS[3]].metadata.annotations.as_ref().unwrap()[noted::REFRESH_REASON];
    assert_eq!(reason, "it is renewed from 2026-12-05T11:59:59Z on");
    // Meanwhile what serves is renewed again and again; here it was forgotten.
    observed.now = "2034-11-13T11:59:58Z".parse().unwrap();
    assert_eq!(settle(&mut observed), [SECRETS[3]]);
    later(&mut observed, 1);
    assert_eq!(settle(&mut observed), [SECRETS[0], SECRETS[2], SECRETS[3], SECRETS[1]]);
    assert!(everything_is_trusted(&observed));
    assert_eq!((authorities(&observed, SECRETS[0]), authorities(&observed, SECRETS[2])), (2, 2), "both are trusted");
    observed.now = "2036-11-12T12:00:00Z".parse().unwrap();
    settle(&mut observed);
    assert_eq!((authorities(&observed, SECRETS[0]), authorities(&observed, SECRETS[2])), (1, 1), "one ran out");
    assert!(everything_is_trusted(&observed));
}

#[test]
fn damage_is_repaired_and_costs_no_more_than_it_must() {
    type Damage = fn(&mut Observed, &str);
    let gone: Damage = |observed, name| drop(observed.secrets.remove(name));
    let emptied: Damage = |observed, name| observed.secrets.get_mut(name).unwrap().data = None;
    let other_key: Damage = |observed, name| {
        let key = keys::elliptic_key_pem(KeyPair::generate().unwrap().serialized_der()).unwrap();
        observed.secrets.get_mut(name).unwrap().data.as_mut().unwrap().insert("tls.key".into(), ByteString(key.into()));
    };
    let last_byte: Damage = |observed, name| {
        let data = observed.secrets.get_mut(name).unwrap().data.as_mut().unwrap();
        let mut der = ders(&data["tls.crt"].0).remove(0);
        *der.last_mut().unwrap() ^= 1;
        let text = rcgen_pem(&der);
        data.insert("tls.crt".into(), ByteString(text.into()));
    };
    let swapped: Damage = |observed, name| {
        let other = if name == SECRETS[1] { SECRETS[3] } else { SECRETS[1] };
        let data = observed.secrets[other].data.clone();
        observed.secrets.get_mut(name).unwrap().data = data;
    };
    for (number, damage) in [gone, emptied, other_key, last_byte, swapped].into_iter().enumerate() {
        for (name, follows) in
            [(SECRETS[0], Some(SECRETS[1])), (SECRETS[1], None), (SECRETS[2], Some(SECRETS[3])), (SECRETS[3], None)]
        {
            let mut observed = settled(json!({}));
            let before = observed.secrets.clone();
            damage(&mut observed, name);
            let expected: Vec<&str> = [name].into_iter().chain(follows).collect();
            assert_eq!(settle(&mut observed), expected, "damage {number} of {name}");
            assert!(everything_is_trusted(&observed), "damage {number} of {name}");
            let same = before.iter().filter(|(name, _)| !expected.contains(&name.as_str()));
            for (name, secret) in same.filter(|(name, _)| SECRETS.contains(&name.as_str())) {
                assert_eq!(observed.secrets[name], *secret, "{name} stays");
            }
        }
    }
}

fn rcgen_pem(der: &[u8]) -> String {
    use base64::{Engine, prelude::BASE64_STANDARD};
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", BASE64_STANDARD.encode(der))
}

#[test]
fn a_bundle_is_made_anew() {
    for text in
        [None, Some(""), Some("nothing"), Some("-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n")]
    {
        let mut observed = settled(json!({}));
        let bundle: &mut ConfigMap = observed.config_maps.get_mut(SECRETS[2]).unwrap();
        bundle.data = text.map(|text| [("ca-bundle.crt".to_owned(), text.to_owned())].into());
        assert_eq!(settle(&mut observed), [""; 0]);
        assert!(everything_is_trusted(&observed), "{text:?}");
    }
}

#[test]
fn clients_get_a_file_for_each_domain() {
    let mut observed = settled(json!({"dnsDomains": ["db.example.com"]}));
    observed.cqls_ingress_port = Some(9142);
    settle(&mut observed);
    let secret = plan(&observed).objects.cql_connection_configs.unwrap();
    let file = String::from_utf8(text(&secret, "db.example.com")).unwrap();
    let file: serde_json::Value = serde_saphyr::from_str(&file).unwrap();
    let of_secret = |name: &str, key: &str| {
        use base64::{Engine, prelude::BASE64_STANDARD};
        json!(BASE64_STANDARD.encode(text(&observed.secrets[name], key)))
    };
    assert_eq!(file["datacenters"]["dc"]["server"], "cql.db.example.com:9142");
    assert_eq!(file["datacenters"]["dc"]["nodeDomain"], "cql.db.example.com");
    assert_eq!(file["authInfos"]["admin"]["clientCertificateData"], of_secret(SECRETS[1], "tls.crt"));
    assert_eq!(file["authInfos"]["admin"]["clientKeyData"], of_secret(SECRETS[1], "tls.key"));
    assert_eq!(file["contexts"]["default"], json!({"datacenterName": "dc", "authInfoName": "admin"}));
}

#[derive(Clone, Debug)]
enum Event {
    Later(i64),
    Gone(usize),
    BundleGone(usize),
    PodGone(usize),
    PodBack(u8),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => select(vec![5, 70, 3600, 7 * DAY, 19 * DAY, 31 * DAY, 400 * DAY, 2500 * DAY]).prop_map(Event::Later),
        1 => (0..4_usize).prop_map(Event::Gone),
        1 => (0..2_usize).prop_map(Event::BundleGone),
        1 => (0..2_usize).prop_map(Event::PodGone),
        1 => (10..250_u8).prop_map(Event::PodBack),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// After a few looks everything is trusted and nothing more is signed; and nobody who trusted a bundle is left out
    /// before the authorities in it ran out.
    #[test]
    fn whatever_happens(events in vec(event(), 1..12)) {
        let mut observed = settled(json!({}));
        for event in events {
            let mut old_bundle = observed.config_maps[SECRETS[2]].data.as_ref().unwrap()["ca-bundle.crt"].clone();
            match event {
                Event::Later(seconds) => later(&mut observed, seconds),
                Event::Gone(number) => drop(observed.secrets.remove(SECRETS[number])),
                Event::BundleGone(number) => {
                    observed.config_maps.remove(SECRETS[2 * number]);
                    old_bundle = String::new();
                }
                Event::PodGone(number) => drop(observed.pods.remove(&format!("orders-dc-a-{number}"))),
                Event::PodBack(number) => {
                    observed.pods.insert("orders-dc-a-0".into(), pod(&format!("10.1.1.{number}")));
                }
            }
            settle(&mut observed);
            prop_assert!(everything_is_trusted(&observed));
            prop_assert_eq!(look(&mut observed), Vec::<String>::new(), "two looks in a row");
            let now = x509_parser::time::ASN1Time::from_timestamp(observed.now.as_second()).unwrap();
            let bundle = ders(observed.config_maps[SECRETS[2]].data.as_ref().unwrap()["ca-bundle.crt"].as_bytes());
            for former in ders(old_bundle.as_bytes()).into_iter().filter(|der| parsed(der).validity().not_after > now) {
                prop_assert!(bundle.contains(&former), "an authority that is still good is not trusted any more");
            }
            let next = plan(&observed).again_at.unwrap();
            prop_assert!(next > observed.now, "it is looked at again at once");
        }
    }

    /// However often the operator crashes between two writes, a node never shows what the stored bundle does not trust.
    #[test]
    fn a_crash_after_any_write(crashes in vec(0..7_usize, 1..8), gone in vec(0..4_usize, 0..3), is_new in any::<bool>()) {
        let mut observed = if is_new { with_certificates(json!({})) } else { settled(json!({})) };
        // What nodes and clients use is there or not; authorities are what is lost.
        let gone: Vec<&str> = gone.into_iter().map(|number| SECRETS[number]).filter(|name| name.ends_with("-ca")).collect();
        for name in gone {
            observed.secrets.remove(name);
        }
        later(&mut observed, 21 * DAY);
        for count in crashes {
            sign_orders(&mut observed);
            let plan = plan(&observed);
            store_some(&mut observed, &plan, count);
            for (certificate, bundle) in [(SECRETS[1], SECRETS[0]), (SECRETS[3], SECRETS[2])] {
                if observed.secrets.contains_key(certificate) {
                    prop_assert!(is_trusted(&observed, certificate, bundle), "{certificate}");
                }
            }
        }
        settle(&mut observed);
        prop_assert!(everything_is_trusted(&observed));
    }

    /// Up to the time that a plan names, nothing is signed.
    #[test]
    fn nothing_is_renewed_before_its_time(rests in vec(0.0..1.0_f64, 1..30)) {
        let mut observed = settled(json!({}));
        for rest in rests {
            let next = plan(&observed).again_at.unwrap();
            let all = next.duration_since(observed.now).as_secs_f64();
            // A moment before the next one, at the latest.
            later(&mut observed, ((all * rest) as i64).min(all as i64 - 1).max(0));
            prop_assert_eq!(orders(&observed), vec![]);
            observed.now = next;
            settle(&mut observed);
        }
    }
}
