//! Client of the REST API of a node through the ScyllaDB Manager agent that runs beside it. The agent forwards
//! requests that carry the auth token of the cluster.
//!
//! The certificates of agents are self-signed and not verified. So TLS protects a connection from eavesdropping, and
//! not from a server that impersonates the agent: the network between the pods is trusted with the token.

use std::{fmt, io, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method};
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{TIMEOUT, call, error::Error, escaped};

/// The port of the agent.
pub const PORT: u16 = 10001;

/// A client of a node through its agent.
#[derive(Clone)]
pub struct Agent {
    host: String,
    port: u16,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
    bearer: HeaderValue,
}

/// Why a client of an agent cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum InvalidAgent {
    /// The host is invalid.
    #[error("{0:?} is neither an IP address nor a host name")]
    Host(String, #[source] rustls::pki_types::InvalidDnsNameError),
    /// The token is invalid.
    #[error("the auth token has characters that are not valid in an HTTP header")]
    Token(#[source] http::header::InvalidHeaderValue),
    /// The TLS settings are invalid.
    #[error("TLS cannot be configured")]
    Tls(#[source] rustls::Error),
}

impl Agent {
    /// Creates a client for the default port of a host, which is an IP address or a name.
    pub fn new(host: &str, token: &str) -> Result<Self, InvalidAgent> {
        Self::at(host, PORT, token)
    }

    /// Creates a client for another port.
    pub fn at(host: &str, port: u16, token: &str) -> Result<Self, InvalidAgent> {
        let name =
            ServerName::try_from(host.to_owned()).map_err(|source| InvalidAgent::Host(host.to_owned(), source))?;
        let mut bearer = HeaderValue::from_str(&format!("Bearer {token}")).map_err(InvalidAgent::Token)?;
        bearer.set_sensitive(true);
        let provider = ring::default_provider();
        let verifier = AnyCertificate(provider.signature_verification_algorithms);
        let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .map_err(InvalidAgent::Tls)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { host: host.to_owned(), port, name, config: Arc::new(config), bearer })
    }

    /// Returns the keyspaces that are replicated by vnodes. For keyspaces with tablets, ScyllaDB itself removes data
    /// that a node no longer owns.
    pub async fn vnode_keyspaces(&self) -> Result<Vec<String>, Error> {
        let path = "/storage_service/keyspaces?type=non_local_strategy&replication=vnodes";
        let body = self.call(Method::GET, path, TIMEOUT).await?;
        serde_json::from_slice(&body).map_err(|source| Error::Unexpected { call: format!("GET {path}"), source })
    }

    /// Runs a cleanup: removes data of a keyspace that the node no longer owns. It may take hours.
    pub async fn cleanup(&self, keyspace: &str, time_limit: Duration) -> Result<(), Error> {
        let path = format!("/storage_service/keyspace_cleanup/{}", escaped(keyspace));
        self.call(Method::POST, &path, time_limit).await.map(drop)
    }

    /// Stops a running cleanup.
    pub async fn stop_cleanup(&self) -> Result<(), Error> {
        self.call(Method::POST, "/compaction_manager/stop_compaction?type=CLEANUP", TIMEOUT).await.map(drop)
    }

    async fn call(&self, method: Method, path: &str, time_limit: Duration) -> Result<Bytes, Error> {
        call::call(self.connect(), &self.authority(), Some(&self.bearer), method, path, time_limit).await
    }

    async fn connect(&self) -> io::Result<TlsStream<TcpStream>> {
        let stream = call::connect((self.host.as_str(), self.port)).await?;
        TlsConnector::from(Arc::clone(&self.config)).connect(self.name.clone(), stream).await
    }

    fn authority(&self) -> String {
        let host = &self.host;
        if host.contains(':') { format!("[{host}]:{}", self.port) } else { format!("{host}:{}", self.port) }
    }
}

/// Omits the token.
impl fmt::Debug for Agent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Agent({})", self.authority())
    }
}

/// Accepts any certificate, as long as the server has its key.
#[derive(Debug)]
struct AnyCertificate(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        sync::mpsc,
    };

    use super::*;
    use crate::fakes::{self, CertificateAuthority};

    /// Starts an agent that sends the same response to every request. Returns a client and the requests that the agent
    /// receives: the first line and the token.
    async fn start_agent(response: &'static str) -> (Agent, mpsc::UnboundedReceiver<(String, String)>) {
        let (recorded, requests) = mpsc::unbounded_channel();
        // Signed by an unknown CA, for another name.
        let tls = fakes::tls_acceptor(&CertificateAuthority::new().issue("elsewhere"), None);
        let address = fakes::start_server(Some(tls), move |mut stream| {
            let recorded = recorded.clone();
            async move {
                let mut request = vec![];
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(stream.read_u8().await.unwrap());
                }
                let request = String::from_utf8(request).unwrap();
                let token = request.lines().find_map(|line| line.strip_prefix("authorization: "));
                let line = request.lines().next().unwrap().to_owned();
                // Not every test reads the requests.
                let _ = recorded.send((line, token.unwrap_or_default().to_owned()));
                stream.write_all(response.as_bytes()).await.unwrap();
                stream.shutdown().await.unwrap();
            }
        })
        .await;
        (Agent::at("127.0.0.1", address.port(), "secret").unwrap(), requests)
    }

    #[tokio::test]
    async fn requests_carry_the_token_with_any_server_certificate() {
        let response = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n[\"k s\"]";
        let (agent, mut requests) = start_agent(response).await;
        assert_eq!(agent.vnode_keyspaces().await.unwrap(), ["k s"]);
        agent.cleanup("k s", Duration::from_secs(5)).await.unwrap();
        agent.stop_cleanup().await.unwrap();
        let expected = [
            "GET /storage_service/keyspaces?type=non_local_strategy&replication=vnodes",
            "POST /storage_service/keyspace_cleanup/k%20s",
            "POST /compaction_manager/stop_compaction?type=CLEANUP",
        ];
        for call in expected {
            assert_eq!(requests.recv().await.unwrap(), (format!("{call} HTTP/1.1"), "Bearer secret".to_owned()));
        }
        assert!(!format!("{agent:?}").contains("secret"));
    }

    #[tokio::test]
    async fn errors_name_the_call_and_the_cause() {
        let refusal = "HTTP/1.1 401 Unauthorized\r\nContent-Length: 27\r\n\r\n{\"message\": \"unauthorized\"}";
        let (agent, _) = start_agent(refusal).await;
        let error = agent.stop_cleanup().await.unwrap_err();
        assert!(error.to_string().ends_with("returned 401 Unauthorized: unauthorized"), "{error}");
        let closed_address = Agent::at("127.0.0.1", fakes::closed_address().port(), "secret").unwrap();
        assert!(matches!(closed_address.stop_cleanup().await.unwrap_err(), Error::Unreachable { .. }));
        let silent_server = Agent::at("127.0.0.1", fakes::silent_server().await.port(), "secret").unwrap();
        let timed_out = silent_server.cleanup("k", Duration::from_millis(50)).await.unwrap_err();
        assert!(matches!(timed_out, Error::TimedOut { .. }), "{timed_out}");
        assert!(matches!(Agent::new("no host", "secret"), Err(InvalidAgent::Host(..))));
        assert!(matches!(Agent::new("10.0.0.1", "se\ncret"), Err(InvalidAgent::Token(_))));
    }
}
