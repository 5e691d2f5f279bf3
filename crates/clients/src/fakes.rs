//! Servers and certificate authorities for tests.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    future::Future,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd,
};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio::net::{TcpListener, TcpSocket};
use tokio_rustls::TlsAcceptor;

use crate::server::{Resolver, Stream};

/// The host name of servers in tests, which only [`resolver`] resolves.
pub(crate) const NAME: &str = "main-client.default";

/// A CA for tests.
pub(crate) struct CertificateAuthority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, both PEM.
pub(crate) type Identity = (Vec<u8>, Vec<u8>);

impl CertificateAuthority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> Vec<u8> {
        self.0.pem().into_bytes()
    }

    /// Issues a certificate for this name.
    pub(crate) fn issue(&self, name: &str) -> Identity {
        self.signed(CertificateParams::new([name.to_owned()]).unwrap())
    }

    /// Issues an expired certificate for this name.
    pub(crate) fn issue_expired(&self, name: &str) -> Identity {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
        self.signed(params)
    }

    fn signed(&self, mut params: CertificateParams) -> Identity {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (certificate.pem().into_bytes(), key.serialize_pem().into_bytes())
    }
}

/// Returns the TLS settings of a server with this certificate. With `clients`, it requires client certificates of that
/// CA.
pub(crate) fn tls_acceptor((certificate, key): &Identity, clients: Option<&CertificateAuthority>) -> TlsAcceptor {
    let provider = Arc::new(ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions().unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(&authority.pem()).unwrap()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        }
    };
    let chain = vec![CertificateDer::from_pem_slice(certificate).unwrap()];
    let mut config = builder.with_single_cert(chain, PrivateKeyDer::from_pem_slice(key).unwrap()).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// Starts a server that calls `serve` for every connection, and returns its address. It drops connections whose TLS
/// handshake fails.
pub(crate) async fn start_server<S, F>(tls: Option<TlsAcceptor>, serve: S) -> SocketAddr
where
    S: Fn(Box<dyn Stream>) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let stream: Box<dyn Stream> = match &tls {
                None => Box::new(stream),
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => Box::new(stream),
                    Err(_) => continue,
                },
            };
            tokio::spawn(serve(stream));
        }
    });
    address
}

/// Starts a server that accepts connections and never responds.
pub(crate) async fn silent_server() -> SocketAddr {
    start_server(None, |stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await
}

/// Returns an address at which no server listens. It stays bound until the process ends, so that no other program can
/// listen.
pub(crate) fn closed_address() -> SocketAddr {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = socket.local_addr().unwrap();
    std::mem::forget(socket);
    address
}

/// Returns a resolver that resolves all names to this address.
pub(crate) fn resolver(address: SocketAddr) -> Resolver {
    Resolver::with_lookup(move |_, _| Some(address))
}
