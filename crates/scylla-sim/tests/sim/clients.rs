//! Interfaces of clients: CQL and Alternator.

use std::{
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::Arc,
};

use jiff::Timestamp;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use ring::{digest, hmac};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime},
};
use serde_json::{Value, json};

use crate::harness::{Cluster, Node, PATIENCE, all_see_all, exchange, http, request, until};

/// Trusts all certificates: tests check them.
#[derive(Debug)]
struct TrustsAll;

impl ServerCertVerifier for TrustsAll {
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
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// A TLS connection and the server certificate.
fn tls(address: SocketAddr) -> io::Result<(StreamOwned<ClientConnection, TcpStream>, Vec<u8>)> {
    tls_as(address, None)
}

/// A TLS connection with this client certificate.
fn tls_as(
    address: SocketAddr,
    client: Option<Client>,
) -> io::Result<(StreamOwned<ClientConnection, TcpStream>, Vec<u8>)> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustsAll));
    let config = match client {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => builder.with_client_auth_cert(vec![certificate], key).unwrap(),
    };
    let name = ServerName::from(address.ip()).to_owned();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut stream = StreamOwned::new(connection, stream);
    stream.conn.complete_io(&mut stream.sock)?;
    let certificate = stream.conn.peer_certificates().and_then(|chain| chain.first()).map(|first| first.to_vec());
    Ok((stream, certificate.unwrap_or_default()))
}

type Client = (CertificateDer<'static>, PrivateKeyDer<'static>);

/// Writes a CA certificate to a file, and returns a client certificate of that CA.
fn client_of_authority(file: &Path) -> Client {
    let authority_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    fs::write(file, params.self_signed(&authority_key).unwrap().pem()).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut client = CertificateParams::new(vec![]).unwrap();
    client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = client.signed_by(&key, &Issuer::new(params, authority_key)).unwrap();
    (certificate.der().clone(), PrivateKeyDer::Pkcs8(key.serialize_der().into()))
}

/// One HTTP exchange over TLS: the response and the server certificate.
pub(crate) fn https(address: SocketAddr, request: &str) -> io::Result<((u16, String), Vec<u8>)> {
    let (mut stream, certificate) = tls(address)?;
    Ok((exchange(&mut stream, request)?, certificate))
}

/// Writes a new certificate and its key.
fn write_certificate(folder: &Path) -> Vec<u8> {
    let made = rcgen::generate_simple_self_signed(vec!["node".to_owned()]).unwrap();
    for (file, text) in [("tls.crt", made.cert.pem()), ("tls.key", made.signing_key.serialize_pem())] {
        let temporary = folder.join(format!("{file}.new"));
        fs::write(&temporary, text).unwrap();
        fs::rename(temporary, folder.join(file)).unwrap();
    }
    made.cert.der().to_vec()
}

/// Returns opcode and body of the response to a CQL request without a body.
fn cql(stream: &mut (impl Read + Write), opcode: u8) -> (u8, Vec<u8>) {
    stream.write_all(&[4, 0, 0, 1, opcode, 0, 0, 0, 0]).unwrap();
    let mut header = [0; 9];
    stream.read_exact(&mut header).unwrap();
    assert_eq!(header[..4], [0x84, 0, 0, 1]);
    let mut body = vec![0; u32::from_be_bytes([header[5], header[6], header[7], header[8]]) as usize];
    stream.read_exact(&mut body).unwrap();
    (header[4], body)
}

#[test]
fn cql_handshake_succeeds_while_native_transport_is_on() {
    let cluster = Cluster::new();
    let node = &cluster.ring(1)[0];
    let address = SocketAddr::new(node.address, 9042);
    let mut stream = until("CQL is served", || TcpStream::connect(address).map_err(|error| error.to_string()));
    let (opcode, body) = cql(&mut stream, 5);
    assert_eq!(opcode, 6, "SUPPORTED");
    assert!(String::from_utf8_lossy(&body).contains("CQL_VERSION"));
    assert_eq!(cql(&mut stream, 1), (2, vec![]), "READY");
    let (opcode, body) = cql(&mut stream, 7);
    assert_eq!((opcode, &body[..4]), (0, &[0, 0, 0, 0x0a][..]), "a protocol error");
    assert_eq!(node.ask("DELETE", "/storage_service/native_transport", "").unwrap().0, 200);
    until("CQL is off", || match TcpStream::connect(address) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let mut rest = Vec::new();
    assert_eq!(stream.read_to_end(&mut rest).unwrap_or(0), 0, "the connection ends too");
}

#[test]
fn cql_with_a_login_and_encryption() {
    let cluster = Cluster::new();
    let node = cluster.node(1);
    let first = write_certificate(&node.folder);
    let encryption = json!({
        "enabled": true, "certificate": node.folder.join("tls.crt"), "keyfile": node.folder.join("tls.key"),
    });
    let mut node = node
        .configured("client_encryption_options", encryption)
        .configured("native_transport_port_ssl", json!(9142))
        .configured("authenticator", json!("PasswordAuthenticator"));
    node.start();
    node.becomes("NORMAL");
    let address = SocketAddr::new(node.address, 9142);
    let (mut stream, certificate) = until("CQL is served", || tls(address).map_err(|error| error.to_string()));
    assert_eq!(certificate, first);
    assert_eq!(cql(&mut stream, 1).0, 3, "AUTHENTICATE");
    let second = write_certificate(&node.folder);
    assert_eq!(tls(address).unwrap().1, second, "the certificate is read again");
    // A broken file changes nothing.
    fs::write(node.folder.join("tls.crt"), "").unwrap();
    assert_eq!(tls(address).unwrap().1, second);
    let mut plain = TcpStream::connect(SocketAddr::new(node.address, 9042)).unwrap();
    assert_eq!(cql(&mut plain, 5).0, 6);
}

#[test]
fn cql_requires_a_client_certificate_if_configured() {
    let cluster = Cluster::new();
    let node = cluster.node(1);
    write_certificate(&node.folder);
    let client = client_of_authority(&node.folder.join("ca.crt"));
    let stranger = client_of_authority(&node.folder.join("other-ca.crt"));
    let encryption = json!({
        "enabled": true, "certificate": node.folder.join("tls.crt"), "keyfile": node.folder.join("tls.key"),
        "require_client_auth": true, "truststore": node.folder.join("ca.crt"),
    });
    // Without a port of its own, encryption uses the regular port.
    let mut node = node.configured("client_encryption_options", encryption);
    node.start();
    node.becomes("NORMAL");
    let address = SocketAddr::new(node.address, 9042);
    until("CQL is served", || TcpStream::connect(address).map_err(|error| error.to_string()));
    let (mut stream, _) = tls_as(address, Some(client)).unwrap();
    assert_eq!(cql(&mut stream, 5).0, 6, "SUPPORTED");
    for client in [None, Some(stranger)] {
        // The client gets the refusal when it reads.
        let refused = tls_as(address, client).and_then(|(mut stream, _)| {
            stream.write_all(&[4, 0, 0, 1, 5, 0, 0, 0, 0])?;
            stream.read_exact(&mut [0; 9])
        });
        assert!(refused.is_err());
    }
}

#[test]
fn node_without_its_certificate_does_not_start() {
    let cluster = Cluster::new();
    let encryption = json!({ "enabled": true, "certificate": "/nowhere/tls.crt", "keyfile": "/nowhere/tls.key" });
    let mut node = cluster.node(1).configured("client_encryption_options", encryption);
    node.start();
    node.fails("TLS of client_encryption_options cannot be set up");
}

/// A request of Alternator, signed as AWS' clients do.
fn signed(address: SocketAddr, operation: &str, body: &Value, user: &str, secret: &str) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let sha = |text: &str| hex(digest::digest(&digest::SHA256, text.as_bytes()).as_ref());
    let mac =
        |key: &[u8], text: &str| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec();
    let now = Timestamp::now();
    let (date, day) = (now.strftime("%Y%m%dT%H%M%SZ").to_string(), now.strftime("%Y%m%d").to_string());
    let target = format!("DynamoDB_20120810.{operation}");
    let body = body.to_string();
    let names = "host;x-amz-date;x-amz-target";
    let canonical =
        format!("POST\n/\n\nhost:{address}\nx-amz-date:{date}\nx-amz-target:{target}\n\n{names}\n{}", sha(&body));
    let scope = format!("{day}/us-east-1/dynamodb/aws4_request");
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", sha(&canonical));
    let key = mac(&mac(&mac(&mac(format!("AWS4{secret}").as_bytes(), &day), "us-east-1"), "dynamodb"), "aws4_request");
    let signature = hex(&mac(&key, &text));
    let headers = format!(
        "x-amz-date: {date}\r\nx-amz-target: {target}\r\nauthorization: AWS4-HMAC-SHA256 Credential={user}/{scope}, SignedHeaders={names}, Signature={signature}\r\n"
    );
    request(address, "POST", "/", &headers, &body)
}

fn alternator(cluster: &Cluster, number: u8) -> Node {
    let node = cluster.node(number);
    write_certificate(&node.folder);
    let files = json!({ "certificate": node.folder.join("tls.crt"), "keyfile": node.folder.join("tls.key") });
    node.configured("alternator_encryption_options", files)
        .configured("alternator_https_port", json!(8043))
        .configured("alternator_enforce_authorization", json!(true))
        .with("--sim-alternator-user=alice:$6$salt$hash")
        .with("--alternator-write-isolation=only_rmw_uses_lwt")
}

#[test]
fn alternator_accepts_requests_signed_with_the_right_secret() {
    let cluster = Cluster::new();
    let mut node = alternator(&cluster, 1);
    node.start();
    node.becomes("NORMAL");
    let address = SocketAddr::new(node.address, 8043);
    let list = |user: &str, secret: &str| {
        https(address, &signed(address, "ListTables", &json!({}), user, secret)).map_err(|error| error.to_string())
    };
    let ((status, body), _) = until("Alternator is served", || list("alice", "$6$salt$hash"));
    assert_eq!((status, body.as_str()), (200, r#"{"TableNames":[]}"#));
    for (user, secret) in [("alice", "wrong"), ("bob", "$6$salt$hash")] {
        let ((status, body), _) = list(user, secret).unwrap();
        assert_eq!((status, body.contains("#UnrecognizedClientException")), (400, true), "{user}: {body}");
    }
    let unsigned = request(address, "POST", "/", "x-amz-target: DynamoDB_20120810.ListTables\r\n", "{}");
    let ((status, body), _) = https(address, &unsigned).unwrap();
    assert_eq!((status, body.contains("#MissingAuthenticationTokenException")), (400, true), "{body}");
    let forged =
        signed(address, "ListTables", &json!({}), "alice", "$6$salt$hash").replace("ListTables", "DescribeTable");
    assert_eq!(https(address, &forged).unwrap().0.0, 400, "the signature is of another request");

    // Health and the list of nodes need no signature.
    let ((status, body), before) = https(address, &request(address, "GET", "/", "", "")).unwrap();
    assert_eq!((status, body), (200, format!("healthy: {address}")));
    let ((_, body), _) = https(address, &request(address, "GET", "/localnodes", "", "")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), json!([node.address]));
    let written = write_certificate(&node.folder);
    let (_, after) = https(address, &request(address, "GET", "/", "", "")).unwrap();
    assert_ne!(after, before);
    assert_eq!(after, written, "the certificate is read again");
}

#[test]
fn alternator_has_items_on_every_node_and_after_a_restart() {
    let cluster = Cluster::new();
    let mut nodes = Vec::new();
    for number in [1, 2] {
        let mut node = alternator(&cluster, number);
        node.start();
        node.becomes("NORMAL");
        nodes.push(node);
        all_see_all(&nodes);
    }
    let ask = |node: &Node, operation: &str, body: Value| {
        let address = SocketAddr::new(node.address, 8043);
        let request = || signed(address, operation, &body, "alice", "$6$salt$hash");
        let ((status, text), _) =
            until("Alternator is served", || https(address, &request()).map_err(|error| error.to_string()));
        assert_eq!(status, 200, "{operation}: {text}");
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let schema = json!([{ "AttributeName": "id", "KeyType": "HASH" }]);
    ask(&nodes[0], "CreateTable", json!({ "TableName": "t", "KeySchema": schema }));
    let item = json!({ "id": { "S": "a" }, "value": { "N": "1" } });
    ask(&nodes[1], "PutItem", json!({ "TableName": "t", "Item": item }));
    let get = || json!({ "TableName": "t", "Key": { "id": { "S": "a" } } });
    assert_eq!(ask(&nodes[0], "GetItem", get())["Item"], item);
    nodes[0].kill();
    nodes[0].start();
    nodes[0].becomes("NORMAL");
    assert_eq!(ask(&nodes[0], "GetItem", get())["Item"], item);
    assert_eq!(ask(&nodes[0], "DescribeTable", json!({ "TableName": "t" }))["Table"]["TableStatus"], "ACTIVE");
}

#[test]
fn alternator_serves_plain_http_if_it_is_enabled() {
    let cluster = Cluster::new();
    let mut node = cluster.node(1).with("--alternator-port=8000").with("--alternator-write-isolation").with("always");
    node.start();
    node.becomes("NORMAL");
    let address = SocketAddr::new(node.address, 8000);
    let answer = until("Alternator is served", || http(address, "GET", "/", ""));
    assert_eq!(answer, (200, format!("healthy: {address}")));
    assert!(TcpStream::connect(SocketAddr::new(node.address, 8043)).is_err(), "and not where it is not");
    assert_eq!(node.get("/v2/config/alternator_port"), json!(8000));
}
