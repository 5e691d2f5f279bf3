#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{error::Error as _, net::SocketAddr};

use http::StatusCode;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::fakes::{CertificateAuthority, NAME, closed_address, resolver, silent_server, start_server, tls_acceptor};

const LONG_TIMEOUT: Duration = Duration::from_secs(20);
const SHORT_TIMEOUT: Duration = Duration::from_millis(200);

const FULL: &str = r#"{"createdOn":"2026-11-15T09:30:00.123456789Z","immutabilityExpriyTime":"0001-01-01T00:00:00Z",
    "versionID":null,"kind":"Full","snapDir":"","snapName":"Full-00000000-00000203-1763199000.gz","prefix":"etcd-main/v2",
    "compressionSuffix":".gz","startRevision":0,"lastRevision":203,"isChunk":false,"isFinal":true}"#;
const DELTA: &str = r#"{"createdOn":"2026-11-15T09:31:00Z","kind":"Incr","snapDir":"","startRevision":204,
    "snapName":"Incr-00000204-00000210-1763199060.gz","lastRevision":210}"#;

type Requests = mpsc::UnboundedReceiver<String>;

/// Starts a sidecar that sends the same response to every request and closes the connection. Returns its address and
/// the requests that it receives.
async fn sidecar(tls: Option<TlsAcceptor>, response: String) -> (SocketAddr, Requests) {
    let (recorded, requests) = mpsc::unbounded_channel();
    let address = start_server(tls, move |mut stream| {
        let (recorded, response) = (recorded.clone(), response.clone());
        async move {
            let mut request = vec![];
            while !request.ends_with(b"\r\n\r\n") {
                match stream.read_u8().await {
                    Ok(byte) => request.push(byte),
                    Err(_) => return,
                }
            }
            // Not every test reads the requests.
            let _ = recorded.send(String::from_utf8(request).unwrap());
            // The client may close the connection before the end.
            let _ = stream.write_all(response.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    })
    .await;
    (address, requests)
}

fn ok(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn at(address: SocketAddr) -> Sidecar {
    Sidecar::new(&format!("http://{NAME}:8080"), None, &resolver(address)).unwrap()
}

fn securely_at(address: SocketAddr, authority: &CertificateAuthority) -> Sidecar {
    Sidecar::new(&format!("https://{NAME}:8080"), Some(&authority.pem()), &resolver(address)).unwrap()
}

/// Requests a full snapshot and returns the error.
async fn failure(sidecar: &Sidecar, time_limit: Duration) -> Error {
    sidecar.take_snapshot(SnapshotKind::Full, false, time_limit).await.unwrap_err()
}

#[tokio::test]
async fn responses_of_the_sidecar_are_decoded() {
    let full = Snapshot {
        kind: Some(SnapshotKind::Full),
        name: "Full-00000000-00000203-1763199000.gz".to_owned(),
        dir: String::new(),
        created_on: "2026-11-15T09:30:00.123456789Z".parse().unwrap(),
        start_revision: 0,
        last_revision: 203,
        is_final: true,
    };
    let (address, _) = sidecar(None, ok(FULL)).await;
    assert_eq!(at(address).take_snapshot(SnapshotKind::Full, true, LONG_TIMEOUT).await.unwrap(), Some(full.clone()));
    let (address, _) = sidecar(None, ok(DELTA)).await;
    let delta = at(address).take_snapshot(SnapshotKind::Delta, false, LONG_TIMEOUT).await.unwrap().unwrap();
    assert_eq!((delta.kind, delta.start_revision, delta.last_revision), (Some(SnapshotKind::Delta), 204, 210));
    let (address, _) = sidecar(None, ok("null")).await;
    assert_eq!(at(address).take_snapshot(SnapshotKind::Delta, false, LONG_TIMEOUT).await.unwrap(), None);
    let (address, _) = sidecar(None, ok(r#"{"snapName":"Full\u001b[2J\n\u202e-1"}"#)).await;
    let taken = at(address).take_snapshot(SnapshotKind::Full, false, LONG_TIMEOUT).await.unwrap().unwrap();
    assert_eq!(taken.name, "Full -1", "the name is sanitized");
    let (address, _) = sidecar(None, ok(r#"{"snapName":"x","kind":"New"}"#)).await;
    let unknown = at(address).take_snapshot(SnapshotKind::Full, false, LONG_TIMEOUT).await.unwrap().unwrap();
    assert_eq!((unknown.kind, unknown.created_on), (None, Timestamp::UNIX_EPOCH));

    let (address, _) = sidecar(None, ok(&format!(r#"{{"fullSnapshot":{FULL},"deltaSnapshots":[{DELTA}]}}"#))).await;
    assert_eq!(at(address).latest_snapshots().await.unwrap(), LatestSnapshots { full: Some(full), delta: Some(delta) });
    let (address, _) = sidecar(None, ok(r#"{"fullSnapshot":null,"deltaSnapshots":null}"#)).await;
    assert_eq!(at(address).latest_snapshots().await.unwrap(), LatestSnapshots::default());
}

#[tokio::test]
async fn requests_use_the_paths_of_the_sidecar() {
    let (address, mut requests) = sidecar(None, ok(FULL)).await;
    let sidecar = at(address);
    sidecar.take_snapshot(SnapshotKind::Full, false, LONG_TIMEOUT).await.unwrap();
    sidecar.take_snapshot(SnapshotKind::Full, true, LONG_TIMEOUT).await.unwrap();
    sidecar.take_snapshot(SnapshotKind::Delta, false, LONG_TIMEOUT).await.unwrap();
    sidecar.take_snapshot(SnapshotKind::Delta, true, LONG_TIMEOUT).await.unwrap();
    // The response is not a list of snapshots, but the request is recorded.
    let _ = sidecar.latest_snapshots().await;
    let expected = [
        "POST /snapshot/full",
        "POST /snapshot/full?final=true",
        "POST /snapshot/delta",
        "POST /snapshot/delta",
        "GET /snapshot/latest",
    ];
    for call in expected {
        let request = requests.recv().await.unwrap();
        assert!(request.starts_with(&format!("{call} HTTP/1.1\r\n")), "{request}");
        assert!(request.contains("host: main-client.default:8080\r\n"), "{request}");
    }
    assert!(requests.try_recv().is_err());
}

#[tokio::test]
async fn every_status_maps_to_an_error_code() {
    let expected = [
        (400, "ERR_SNAPSHOT_REQUEST_REFUSED", true, false),
        (405, "ERR_SNAPSHOT_SIDECAR_NOT_READY", false, false),
        (500, "ERR_SNAPSHOT_FAILED", false, true),
        (502, "ERR_SNAPSHOT_ANSWER_UNEXPECTED", false, true),
        (503, "ERR_SNAPSHOT_SIDECAR_UNAVAILABLE", false, false),
        (404, "ERR_SNAPSHOT_ANSWER_UNEXPECTED", false, false),
        // Redirects are not followed: that would be a second request.
        (307, "ERR_SNAPSHOT_ANSWER_UNEXPECTED", false, false),
        (204, "ERR_SNAPSHOT_ANSWER_UNEXPECTED", false, false),
    ];
    for (number, code, is_permanent, may_be) in expected {
        let response = format!("HTTP/1.1 {number} No\r\nLocation: /snapshot/full\r\nContent-Length: 0\r\n\r\n");
        let (address, mut requests) = sidecar(None, response).await;
        let error = failure(&at(address), LONG_TIMEOUT).await;
        assert!(matches!(&error, Error::ErrorResponse { status, .. } if status.as_u16() == number), "{error:?}");
        assert_eq!((error.code(), error.is_permanent()), (code, is_permanent), "{number}");
        assert_eq!(error.may_have_been_carried_out(), may_be, "{number}");
        requests.recv().await.unwrap();
        assert!(requests.try_recv().is_err(), "the request was sent twice after {number}");
    }
    let error = Error::ErrorResponse { call: "POST x".to_owned(), status: StatusCode::METHOD_NOT_ALLOWED };
    assert!(error.to_string().starts_with("POST x returned 405 Method Not Allowed: no sidecar takes"));
}

#[tokio::test]
async fn request_is_not_sent_without_a_connection() {
    let error = failure(&at(closed_address()), LONG_TIMEOUT).await;
    assert!(matches!(error, Error::NotSent { .. }), "{error:?}");
    assert_eq!((error.code(), error.is_permanent()), ("ERR_SNAPSHOT_SIDECAR_UNREACHABLE", false));
    assert!(!error.may_have_been_carried_out());
    // The domain `invalid` is reserved and has no names.
    let unresolvable = Sidecar::new("http://sidecar.invalid:8080", None, &Resolver::default()).unwrap();
    let error = failure(&unresolvable, LONG_TIMEOUT).await;
    assert!(matches!(error, Error::NotSent { .. }), "{error:?}");
}

#[tokio::test]
async fn name_without_a_lookup_result_is_resolved_by_dns() {
    let (address, _) = sidecar(None, ok(FULL)).await;
    let empty_lookup = Resolver::with_lookup(|_, _| None);
    let sidecar = Sidecar::new(&format!("http://localhost:{}/", address.port()), None, &empty_lookup).unwrap();
    sidecar.take_snapshot(SnapshotKind::Full, false, LONG_TIMEOUT).await.unwrap();
}

#[tokio::test]
async fn request_is_not_sent_when_the_tls_handshake_does_not_end() {
    let error = failure(&securely_at(silent_server().await, &CertificateAuthority::new()), SHORT_TIMEOUT).await;
    assert!(
        matches!(&error, Error::NotSent { source, .. } if source.kind() == std::io::ErrorKind::TimedOut),
        "{error:?}"
    );
    // Nor when the server does not use TLS.
    let (address, mut requests) = sidecar(None, ok(FULL)).await;
    let client = securely_at(address, &CertificateAuthority::new());
    let asking = tokio::spawn(async move { failure(&client, SHORT_TIMEOUT).await });
    let error = asking.await.unwrap();
    assert!(matches!(error, Error::NotSent { .. }), "{error:?}");
    assert!(requests.try_recv().is_err());
}

#[tokio::test]
async fn request_without_a_response_may_have_been_carried_out() {
    let error = failure(&at(silent_server().await), SHORT_TIMEOUT).await;
    assert!(matches!(&error, Error::NoResponse { source: NoResponse::TimedOut(SHORT_TIMEOUT), .. }), "{error:?}");
    let answers = [
        ("nothing", String::new()),
        ("half a head", "HTTP/1.1 200 OK\r\nContent-".to_owned()),
        ("half a body", "HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{\"snapName\":\"x\"}".to_owned()),
        ("half a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nnull".to_owned()),
        ("no HTTP", "SSH-2.0-OpenSSH_9.6\r\n".to_owned()),
    ];
    for (what, response) in answers {
        let (address, mut requests) = sidecar(None, response).await;
        let error = failure(&at(address), LONG_TIMEOUT).await;
        assert!(matches!(&error, Error::NoResponse { source: NoResponse::Disconnected(_), .. }), "{what}: {error:?}");
        assert!(error.may_have_been_carried_out() && !error.is_permanent());
        assert_eq!(error.code(), "ERR_SNAPSHOT_NOT_ANSWERED");
        requests.recv().await.unwrap();
        assert!(requests.try_recv().is_err(), "the request was sent twice after {what}");
    }
}

#[tokio::test]
async fn success_without_a_snapshot_is_no_response() {
    for body in ["", "{}", "null", "[]", "<html>", r#"{"snapName":7}"#, r#"{"snapName":"x","createdOn":"today"}"#] {
        let (address, _) = sidecar(None, ok(body)).await;
        let error = failure(&at(address), LONG_TIMEOUT).await;
        assert!(matches!(&error, Error::NoResponse { source: NoResponse::Malformed(_), .. }), "{body}: {error:?}");
    }
}

#[tokio::test]
async fn long_list_is_reduced_to_its_last_element() {
    let deltas = vec![DELTA; 60_000].join(",");
    let whole = format!(r#"{{"deltaSnapshots":[{deltas},{FULL}],"fullSnapshot":{FULL}}}"#);
    assert!((8 << 20..16 << 20).contains(&whole.len()), "{}", whole.len());
    let (address, _) = sidecar(None, ok(&whole)).await;
    let latest = at(address).latest_snapshots().await.unwrap();
    assert_eq!(latest.full.unwrap(), latest.delta.unwrap());
}

#[tokio::test]
async fn response_over_the_limit_is_no_response() {
    let long = "x".repeat(100_000);
    let answers = [
        ("a long list", format!("[{}]", "{},".repeat(6 << 20))),
        ("a long name", format!(r#"{{"deltaSnapshots":[{{"snapName":"{long}"}}]}}"#)),
        ("a long field", format!(r#"{{"fullSnapshot":{{"snapName":"x","more":"{long}"}}}}"#)),
        ("many fields", format!("{{{}", r#""x":{},"#.repeat(20_000))),
    ];
    for (what, response) in answers {
        let (address, _) = sidecar(None, ok(&response)).await;
        let error = at(address).latest_snapshots().await.unwrap_err();
        assert!(matches!(&error, Error::NoResponse { source: NoResponse::Malformed(_), .. }), "{what}: {error:?}");
    }
}

#[tokio::test]
async fn server_certificate_is_verified_by_ca_name_and_expiry() {
    let (ours, other) = (CertificateAuthority::new(), CertificateAuthority::new());
    let (address, mut requests) = sidecar(Some(tls_acceptor(&ours.issue(NAME), None)), ok(FULL)).await;
    securely_at(address, &ours).take_snapshot(SnapshotKind::Full, false, LONG_TIMEOUT).await.unwrap();
    requests.recv().await.unwrap();
    // One matching CA certificate of the bundle suffices.
    let both = [other.pem(), ours.pem()].concat();
    let trusting = Sidecar::new(&format!("https://{NAME}"), Some(&both), &resolver(address)).unwrap();
    trusting.take_snapshot(SnapshotKind::Full, false, LONG_TIMEOUT).await.unwrap();

    let untrusted = [
        ("signed by another CA", other.issue(NAME)),
        ("expired", ours.issue_expired(NAME)),
        ("for another name", ours.issue("main-client.other")),
    ];
    for (what, identity) in untrusted {
        let (address, mut requests) = sidecar(Some(tls_acceptor(&identity, None)), ok(FULL)).await;
        let error = failure(&securely_at(address, &ours), LONG_TIMEOUT).await;
        assert!(matches!(error, Error::NotTrusted { .. }), "{what}: {error:?}");
        assert_eq!((error.code(), error.is_permanent()), ("ERR_SNAPSHOT_CERTIFICATE_NOT_TRUSTED", true));
        assert!(error.source().unwrap().to_string().contains("invalid peer certificate"), "{what}");
        assert!(!error.may_have_been_carried_out());
        assert!(requests.try_recv().is_err(), "the request was sent although the certificate is {what}");
    }
}

/// etcd-druid dials the name without `.svc`, so a certificate that works with it has this name, and possibly no other.
#[tokio::test]
async fn verified_as_replaces_the_name_of_the_address() {
    let ours = CertificateAuthority::new();
    let (address, _) = sidecar(Some(tls_acceptor(&ours.issue(NAME), None)), ok(FULL)).await;
    let at_service = || Sidecar::new(&format!("https://{NAME}.svc"), Some(&ours.pem()), &resolver(address)).unwrap();
    let error = failure(&at_service(), LONG_TIMEOUT).await;
    assert!(matches!(error, Error::NotTrusted { .. }), "{error:?}");
    at_service().verified_as(NAME).unwrap().take_snapshot(SnapshotKind::Full, false, LONG_TIMEOUT).await.unwrap();
    let error = failure(&at_service().verified_as("main-client.other").unwrap(), LONG_TIMEOUT).await;
    assert!(matches!(error, Error::NotTrusted { .. }), "{error:?}");
    assert!(matches!(at_service().verified_as("no name"), Err(Error::InvalidAddress { .. })));
}

#[tokio::test]
async fn invalid_address_or_ca_bundle_is_reported_before_a_request() {
    let bundle = CertificateAuthority::new().pem();
    let made = |address: &str, ca_bundle: Option<&[u8]>| Sidecar::new(address, ca_bundle, &Resolver::default());
    let addresses = [
        "",
        "main-client",
        "main-client:8080",
        "/snapshot",
        "ftp://main-client:8080",
        "http://",
        "http://:8080",
        "http://a b:8080",
        "http://user@main-client:8080",
        "http://main-client:99999",
        "http://main-client:8080/x",
        "http://main-client:8080/?final=true",
    ];
    for address in addresses {
        let error = made(address, None).unwrap_err();
        assert!(matches!(error, Error::InvalidAddress { .. }), "{address}: {error:?}");
        assert_eq!((error.code(), error.is_permanent()), ("ERR_SNAPSHOT_ADDRESS_INVALID", true));
    }
    // A CA bundle requires https, and https requires a CA bundle.
    assert!(matches!(made("http://main-client:8080", Some(&bundle)), Err(Error::InvalidAddress { .. })));
    assert!(matches!(made("https://main-client:8080", None), Err(Error::InvalidCaBundle { .. })));
    assert!(matches!(made("https://main_client!:8080", Some(&bundle)), Err(Error::InvalidAddress { .. })));
    assert!(made("http://[::1]:8080", None).is_ok() && made("https://10.0.0.1:8080", Some(&bundle)).is_ok());

    let key = CertificateAuthority::new().issue(NAME).1;
    let broken = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
    let bundles = [
        ("the CA bundle holds no certificate", Vec::new()),
        ("the CA bundle holds no certificate", b"nothing of that kind".to_vec()),
        ("the CA bundle holds no certificate", key),
        ("the CA bundle is not valid PEM", b"-----BEGIN CERTIFICATE-----\nMIIB".to_vec()),
        ("no certificate of the CA bundle can be decoded", broken.into()),
    ];
    for (words, ca_bundle) in bundles {
        let error = made("https://main-client:8080", Some(&ca_bundle)).unwrap_err();
        assert!(matches!(error, Error::InvalidCaBundle { .. }), "{error:?}");
        assert_eq!((error.code(), error.is_permanent()), ("ERR_SNAPSHOT_AUTHORITIES_INVALID", true));
        assert_eq!(error.source().unwrap().to_string(), words);
    }
    // A certificate that cannot be decoded is ignored if there is another one.
    assert!(made("https://main-client:8080", Some(&[broken.as_bytes(), &bundle].concat())).is_ok());
}
