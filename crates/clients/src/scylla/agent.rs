//! A node, asked through the agent of ScyllaDB Manager that runs beside it. The agent passes requests on to the node's
//! REST API, for whoever knows the token of the cluster.
//!
//! Agents make their certificates themselves, and nobody vouches for them. So a connection is protected from who listens,
//! and not from who takes the place of the agent: the network between the pods is trusted with the token.

use std::{fmt, io, sync::Arc, time::Duration};

use http::{HeaderValue, Method};
use hyper::body::Bytes;
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{TIMEOUT, error::Error, escaped, exchange};

/// The port of agents.
pub const PORT: u16 = 10001;

/// A node that is asked through its agent.
#[derive(Clone)]
pub struct Agent {
    host: String,
    port: u16,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
    bearer: HeaderValue,
}

/// Why an agent cannot be asked, however often one tries.
#[derive(Debug, thiserror::Error)]
pub enum InvalidAgent {
    /// The address is none.
    #[error("{0:?} is neither an IP address nor the name of a host")]
    Host(String, #[source] rustls::pki_types::InvalidDnsNameError),
    /// The token cannot be sent.
    #[error("the token has characters that cannot be sent")]
    Token(#[source] http::header::InvalidHeaderValue),
    /// There is no way to protect the connection.
    #[error("connections cannot be secured")]
    Tls(#[source] rustls::Error),
}

impl Agent {
    /// The agent at the usual port of a host, which is an IP address or a name.
    pub fn new(host: &str, token: &str) -> Result<Self, InvalidAgent> {
        Self::at(host, PORT, token)
    }

    /// The agent at another port.
    pub fn at(host: &str, port: u16, token: &str) -> Result<Self, InvalidAgent> {
        let name = ServerName::try_from(host.to_owned()).map_err(|source| InvalidAgent::Host(host.to_owned(), source))?;
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

    /// The keyspaces whose data is spread over nodes by the ring. Where it is spread by tablets, ScyllaDB removes by itself
    /// what a node no longer owns.
    pub async fn keyspaces_by_ring(&self) -> Result<Vec<String>, Error> {
        let path = "/storage_service/keyspaces?type=non_local_strategy&replication=vnodes";
        let body = self.call(Method::GET, path, TIMEOUT).await?;
        serde_json::from_slice(&body).map_err(|source| Error::Unexpected { call: format!("GET {path}"), source })
    }

    /// Removes data of a keyspace that the node no longer owns, which may take hours.
    pub async fn cleanup(&self, keyspace: &str, time_limit: Duration) -> Result<(), Error> {
        let path = format!("/storage_service/keyspace_cleanup/{}", escaped(keyspace));
        self.call(Method::POST, &path, time_limit).await.map(drop)
    }

    /// Stops a cleanup that is going on.
    pub async fn stop_cleanup(&self) -> Result<(), Error> {
        self.call(Method::POST, "/compaction_manager/stop_compaction?type=CLEANUP", TIMEOUT).await.map(drop)
    }

    async fn call(&self, method: Method, path: &str, time_limit: Duration) -> Result<Bytes, Error> {
        let call = format!("{method} {path}");
        let whole = async {
            let address = self.authority();
            let stream = self.connect().await.map_err(|source| Error::Unreachable {
                call: call.clone(),
                address: address.clone(),
                source,
            })?;
            exchange::converse(stream, &method, path, &address, Some(&self.bearer), &|| call.clone()).await
        };
        let response = tokio::time::timeout(time_limit, whole).await;
        response.unwrap_or_else(|_| Err(Error::TimedOut { call: call.clone(), time_limit }))
    }

    async fn connect(&self) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        TlsConnector::from(Arc::clone(&self.config)).connect(self.name.clone(), stream).await
    }

    fn authority(&self) -> String {
        let host = &self.host;
        if host.contains(':') { format!("[{host}]:{}", self.port) } else { format!("{host}:{}", self.port) }
    }
}

/// Says nothing of the token.
impl fmt::Debug for Agent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Agent({})", self.authority())
    }
}

/// Takes whichever certificate is shown, as long as whoever shows it has its key.
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

    /// An agent that answers every request with this, and what it was asked: the first line, and the token.
    async fn agent_that_says(response: &'static str) -> (Agent, mpsc::UnboundedReceiver<(String, String)>) {
        let (recorded, requests) = mpsc::unbounded_channel();
        // Signed by somebody of whom nobody has heard, for another name.
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
                // Not every test wants to know.
                let _ = recorded.send((line, token.unwrap_or_default().to_owned()));
                stream.write_all(response.as_bytes()).await.unwrap();
                stream.shutdown().await.unwrap();
            }
        })
        .await;
        (Agent::at("127.0.0.1", address.port(), "secret").unwrap(), requests)
    }

    #[tokio::test]
    async fn the_agent_is_asked_with_the_token_whatever_its_certificate() {
        let response = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n[\"k s\"]";
        let (agent, mut requests) = agent_that_says(response).await;
        assert_eq!(agent.keyspaces_by_ring().await.unwrap(), ["k s"]);
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
    async fn a_failure_says_which_call_failed_and_why() {
        let refusal = "HTTP/1.1 401 Unauthorized\r\nContent-Length: 27\r\n\r\n{\"message\": \"unauthorized\"}";
        let (agent, _) = agent_that_says(refusal).await;
        let error = agent.stop_cleanup().await.unwrap_err();
        assert!(error.to_string().ends_with("was answered with 401 Unauthorized: unauthorized"), "{error}");
        let closed_address = Agent::at("127.0.0.1", fakes::closed_address().port(), "secret").unwrap();
        assert!(matches!(closed_address.stop_cleanup().await.unwrap_err(), Error::Unreachable { .. }));
        let silent_server = Agent::at("127.0.0.1", fakes::silent_server().await.port(), "secret").unwrap();
        let impatient = silent_server.cleanup("k", Duration::from_millis(50)).await.unwrap_err();
        assert!(matches!(impatient, Error::TimedOut { .. }), "{impatient}");
        assert!(matches!(Agent::new("no host", "secret"), Err(InvalidAgent::Host(..))));
        assert!(matches!(Agent::new("10.0.0.1", "se\ncret"), Err(InvalidAgent::Token(_))));
    }
}
