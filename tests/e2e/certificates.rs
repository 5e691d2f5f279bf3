//! Certificates and their rotation, as a client of ScyllaDB sees them.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Pod, Secret},
};
use kube::api::{DeleteParams, Patch, PatchParams};
use messina_e2e::datacenter::{TestDatacenter, manifest};
use messina_testbed::harness::{Seen, eventually, until};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::testbed::skip_if_unsuitable;

const POD: &str = "orders-dc-a-0";
const SERVING: &str = "orders-local-serving-certs";
const SERVING_AUTHORITY: &str = "orders-local-serving-ca";
const ADMIN: &str = "orders-local-user-admin";
/// The timeout for Secrets to reach pods: a kubelet updates them about once a minute.
const SEEN_BY_NODES: Duration = Duration::from_secs(240);
const SOON: Duration = Duration::from_secs(60);

/// The CQL request OPTIONS, and the beginning of its response.
const OPTIONS: [u8; 9] = [4, 0, 0, 1, 5, 0, 0, 0, 0];
const SUPPORTED: [u8; 5] = [0x84, 0, 0, 1, 6];

/// The credentials of a client, as read from the API.
struct Knowledge {
    address: IpAddr,
    authorities: String,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Knowledge {
    async fn read(datacenter: &TestDatacenter) -> Self {
        let pod = datacenter.api::<Pod>().get(POD).await.unwrap();
        let bundle = datacenter.api::<ConfigMap>().get(SERVING_AUTHORITY).await.unwrap();
        let admin = data(datacenter, ADMIN).await;
        Self {
            address: pod.status.unwrap().pod_ip.unwrap().parse().unwrap(),
            authorities: bundle.data.unwrap()["ca-bundle.crt"].clone(),
            identity: Some(admin),
        }
    }

    /// Sends a CQL request over TLS, and returns the certificate of the node.
    async fn ask(&self) -> Result<Vec<u8>, String> {
        let asking = self.speak();
        timeout(Duration::from_secs(10), asking).await.map_err(|_| "no answer".to_owned())?
    }

    async fn speak(&self) -> Result<Vec<u8>, String> {
        let mut roots = RootCertStore::empty();
        for authority in certificates(self.authorities.as_bytes()) {
            roots.add(authority).unwrap();
        }
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match &self.identity {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let key = PrivateKeyDer::from_pem_slice(key).unwrap();
                config.with_client_auth_cert(certificates(certificate), key).unwrap()
            }
        };
        let problem = |error: std::io::Error| error.to_string();
        let stream = TcpStream::connect(SocketAddr::new(self.address, 9142)).await.map_err(problem)?;
        let name = ServerName::IpAddress(self.address.into());
        let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(problem)?;
        // A rejected client sees the error only when it reads.
        stream.write_all(&OPTIONS).await.map_err(problem)?;
        let mut beginning = [0; 5];
        stream.read_exact(&mut beginning).await.map_err(problem)?;
        assert_eq!(beginning, SUPPORTED, "the node speaks CQL");
        Ok(stream.get_ref().1.peer_certificates().unwrap()[0].to_vec())
    }
}

fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().unwrap()
}

/// Certificate and key of a Secret.
async fn data(datacenter: &TestDatacenter, secret: &str) -> (Vec<u8>, Vec<u8>) {
    let secret = datacenter.api::<Secret>().get(secret).await.unwrap();
    let mut data = secret.data.unwrap();
    (data.remove("tls.crt").unwrap().0, data.remove("tls.key").unwrap().0)
}

/// Waits until a client with new credentials sees the certificate of the Secret, which differs from `before`, and
/// returns it.
async fn shown(datacenter: &TestDatacenter, what: &str, before: &[u8]) -> Vec<u8> {
    eventually(what, SEEN_BY_NODES, async || {
        let stored = certificates(&data(datacenter, SERVING).await.0).remove(0).to_vec();
        Ok(match Knowledge::read(datacenter).await.ask().await {
            Ok(shown) if shown == stored && shown != before => Seen::Ready(shown),
            Ok(shown) if shown == before => Seen::NotYet("the former certificate is shown".into()),
            Ok(_) => Seen::NotYet("another certificate is shown".into()),
            Err(problem) => Seen::NotYet(problem),
        })
    })
    .await
    .unwrap()
}

/// Deletes a Secret, and waits until the operator has recreated it.
async fn replaced(datacenter: &TestDatacenter, name: &str) {
    let secrets = datacenter.api::<Secret>();
    let before = secrets.get(name).await.unwrap().metadata.uid;
    secrets.delete(name, &DeleteParams::default()).await.unwrap();
    until(secrets, name, "another Secret", SOON, |seen| match seen {
        Some(secret) if secret.metadata.uid != before => Seen::Ready(()),
        _ => Seen::NotYet("it is the old one, or none".into()),
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn client_sees_certificates_and_their_rotation() {
    skip_if_unsuitable!();
    let datacenter = TestDatacenter::create("certificates", &[]).await;
    let observer = datacenter.observe();
    datacenter.apply(&manifest(&[("a", 1)])).await;
    datacenter.settled(1).await;

    // The first certificate of the node had none of its addresses.
    let first = shown(&datacenter, "the node to show a certificate for its address", &[]).await;
    let known = Knowledge::read(&datacenter).await;
    let stranger = Knowledge { identity: None, ..Knowledge::read(&datacenter).await };
    stranger.ask().await.expect_err("clients without a certificate are refused");

    replaced(&datacenter, SERVING).await;
    let second = shown(&datacenter, "the node to show its new certificate", &first).await;
    assert_eq!(known.ask().await.as_ref(), Ok(&second), "who knew the authority before knows it still");

    switch_to_rsa_keys(&datacenter).await;
    datacenter.settled(1).await;
    assert_eq!(known.ask().await.as_ref(), Ok(&second), "certificates that are good stay, whatever their keys are");
    replaced(&datacenter, SERVING_AUTHORITY).await;
    old_and_new_authority_are_trusted(&datacenter).await;
    let third = shown(&datacenter, "the node to show a certificate of the new authority", &second).await;
    assert_eq!([&first, &second, &third].map(|one| has_rsa_key(one)), [false, false, true]);
    known.ask().await.expect_err("who does not know the new authority is not fooled");

    foreign_key_is_replaced(&datacenter).await;
    datacenter.settled(1).await;
    println!("the observer: {}", observer.ends());
    datacenter.remove().await;
}

/// Lets the operator create RSA keys from now on.
async fn switch_to_rsa_keys(datacenter: &TestDatacenter) {
    let deployments = datacenter.operator_api::<Deployment>();
    let settings = json!([
        {"name": "MESSINA_CRYPTO_KEY_TYPE", "value": "RSA"}, {"name": "MESSINA_CRYPTO_RSA_KEY_SIZE", "value": "2048"},
    ]);
    let containers = json!([{"name": "messina", "env": settings}]);
    let patch = Patch::Strategic(json!({"spec": {"template": {"spec": {"containers": containers}}}}));
    let generation = deployments.patch("messina", &PatchParams::default(), &patch).await.unwrap().metadata.generation;
    until(deployments, "messina", "the operator to run with other settings", SEEN_BY_NODES, |seen| {
        let status = seen.and_then(|deployment| deployment.status).unwrap_or_default();
        let is_seen = status.observed_generation >= generation;
        let counts = [status.replicas, status.updated_replicas, status.ready_replicas];
        let is_done = is_seen && counts == [Some(2); 3] && status.terminating_replicas.unwrap_or(0) == 0;
        if is_done { Seen::Ready(()) } else { Seen::NotYet(format!("{status:?}")) }
    })
    .await
    .unwrap();
}

/// Whether the key of a certificate is an RSA key: it names the algorithm (1.2.840.113549.1.1.1).
fn has_rsa_key(certificate: &[u8]) -> bool {
    const RSA: [u8; 11] = [6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1];
    certificate.windows(RSA.len()).any(|part| part == RSA)
}

async fn old_and_new_authority_are_trusted(datacenter: &TestDatacenter) {
    let bundles = datacenter.api::<ConfigMap>();
    until(bundles, SERVING_AUTHORITY, "a bundle of two authorities", SOON, |seen| {
        let text = seen.and_then(|bundle| bundle.data).and_then(|mut data| data.remove("ca-bundle.crt"));
        match certificates(text.unwrap_or_default().as_bytes()).len() {
            2 => Seen::Ready(()),
            other => Seen::NotYet(format!("{other} authorities")),
        }
    })
    .await
    .unwrap();
}

/// A key that does not belong to its certificate is replaced, together with the certificate.
async fn foreign_key_is_replaced(datacenter: &TestDatacenter) {
    let before = data(datacenter, ADMIN).await;
    let damage = json!({"stringData": {"tls.key": "nothing"}});
    datacenter.patch::<Secret>(ADMIN, damage).await;
    eventually("another certificate of the administrator", SOON, async || {
        let now = data(datacenter, ADMIN).await;
        let is_repaired = now.0 != before.0 && PrivateKeyDer::from_pem_slice(&now.1).is_ok();
        Ok(if is_repaired { Seen::Ready(()) } else { Seen::NotYet("it is damaged".into()) })
    })
    .await
    .unwrap();
}
