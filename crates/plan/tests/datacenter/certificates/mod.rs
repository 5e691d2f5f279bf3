//! Which certificates are signed, when, and where they are stored.

mod decisions;
mod properties;

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodStatus, Secret};
use messina_plan::datacenter::{
    Cached, Gates, Plan,
    certificates::{Purpose, SignedCertificate, SigningRequest, keys},
};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use x509_parser::{certificate::X509Certificate, pem::Pem};

use crate::{cached, datacenter_with, plan, signing_requests, with_name};

const SECRETS: [&str; 4] =
    ["orders-local-client-ca", "orders-local-user-admin", "orders-local-serving-ca", "orders-local-serving-certs"];
const DAY: i64 = 24 * 3600;

/// Signs as a real signer does, with temporary keys.
fn sign(order: &SigningRequest) -> SignedCertificate {
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
        Some(SignedCertificate { certificate, key: signer }) => {
            let signer = KeyPair::try_from(keys::as_pkcs8(signer.as_bytes()).unwrap()).unwrap();
            params.signed_by(&key, &Issuer::from_ca_cert_pem(certificate, signer).unwrap())
        }
    };
    SignedCertificate {
        certificate: certificate.unwrap().pem(),
        key: keys::elliptic_key_pem(key.serialized_der()).unwrap(),
    }
}

/// Signs all orders.
pub(crate) fn sign_orders(cached: &mut Cached) {
    cached.signed = signing_requests(cached).iter().map(|order| (order.secret.clone(), Ok(sign(order)))).collect();
}

/// Signs and stores certificates until all are stored.
pub(crate) fn make_all(cached: &mut Cached) {
    for _ in 0..3 {
        sign_orders(cached);
        let plan = plan(cached);
        store(cached, &plan);
        if cached.signed.is_empty() {
            return;
        }
    }
}

/// Stores planned certificates as the API server would.
pub(crate) fn store(cached: &mut Cached, plan: &Plan) {
    let objects = &plan.objects;
    let secrets = objects.certificates.iter().flat_map(|chain| chain.authority.iter().chain(&chain.certificate));
    let secrets = secrets.chain(&objects.cql_connection_configs).cloned();
    cached.secrets.extend(secrets);
    let bundles =
        objects.certificates.iter().flat_map(|chain| [&chain.bundle, &chain.former_bundle]).flatten().cloned();
    cached.config_maps.extend(bundles);
}

/// Gives every Service and every pod an address, as the API server and the kubelet do.
pub(crate) fn give_addresses(cached: &mut Cached, plan: &Plan) {
    for mut service in plan.objects.member_services.iter().cloned().chain([plan.objects.identity_service.clone()]) {
        let name = service.metadata.name.clone().unwrap();
        let number = cached.services.len() + 1;
        let spec = service.spec.as_mut().unwrap();
        if spec.cluster_ip.is_none() {
            spec.cluster_ip = Some(format!("10.0.0.{number}"));
        }
        let is_node = !name.ends_with("-client");
        if !cached.services.contains_key(&name) {
            cached.services.insert(service);
        }
        if is_node && !cached.pods.contains_key(&name) {
            cached.pods.insert(pod(&name, &format!("10.1.0.{number}")));
        }
    }
}

fn pod(name: &str, address: &str) -> Pod {
    let status = PodStatus { pod_ip: Some(address.into()), ..PodStatus::default() };
    with_name(name, Pod { status: Some(status), ..Pod::default() })
}

fn with_certificates(spec: serde_json::Value) -> Cached {
    let mut cached = cached(datacenter_with(&[("a", 2)], spec));
    cached.gates = Gates { automatic_tls_certificates: true, ..Gates::default() };
    cached.now = "2026-11-15T12:00:00Z".parse().unwrap();
    cached
}

/// Reconciles once, and stores all decisions. Returns the names of what was signed.
fn reconcile(cached: &mut Cached) -> Vec<String> {
    sign_orders(cached);
    let plan = plan(cached);
    assert_eq!(plan.degraded, vec![]);
    store(cached, &plan);
    cached.signed.keys().cloned().collect()
}

/// Reconciles until nothing is signed.
fn settle(cached: &mut Cached) -> Vec<String> {
    let mut all = Vec::new();
    for _ in 0..5 {
        let signed = reconcile(cached);
        if signed.is_empty() {
            return all;
        }
        all.extend(signed);
    }
    panic!("it goes on for ever: {all:?}");
}

/// Returns a datacenter with all certificates and addresses.
fn settled(spec: serde_json::Value) -> Cached {
    let mut cached = with_certificates(spec);
    let first = plan(&cached);
    give_addresses(&mut cached, &first);
    settle(&mut cached);
    cached
}

fn later(cached: &mut Cached, seconds: i64) {
    cached.now += SignedDuration::from_secs(seconds);
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
fn is_trusted(cached: &Cached, certificate: &str, bundle: &str) -> bool {
    let now = x509_parser::time::ASN1Time::from_timestamp(cached.now.as_second()).unwrap();
    let own = ders(&text(&cached.secrets[certificate], "tls.crt"));
    let own = parsed(&own[0]);
    let bundle = cached.config_maps[bundle].data.as_ref().unwrap()["ca-bundle.crt"].clone();
    own.validity().is_valid_at(now)
        && ders(bundle.as_bytes()).iter().map(|der| parsed(der)).any(|authority| {
            authority.validity().is_valid_at(now) && own.verify_signature(Some(authority.public_key())).is_ok()
        })
}

fn everything_is_trusted(cached: &Cached) -> bool {
    is_trusted(cached, SECRETS[1], SECRETS[0]) && is_trusted(cached, SECRETS[3], SECRETS[2])
}

fn authorities(cached: &Cached, bundle: &str) -> usize {
    ders(cached.config_maps[bundle].data.as_ref().unwrap()["ca-bundle.crt"].as_bytes()).len()
}

fn names(cached: &Cached) -> BTreeSet<String> {
    let der = ders(&text(&cached.secrets[SECRETS[3]], "tls.crt"));
    let certificate = parsed(&der[0]);
    let names = certificate.subject_alternative_name().unwrap().unwrap();
    names.value.general_names.iter().map(ToString::to_string).collect()
}
