#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{error::Error as _, net::SocketAddr};

use bytes::Bytes;
use h2::server::{self, SendResponse};
use http::{HeaderMap, Request, Response};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use super::{messages::Header, *};
use crate::{
    fakes::{
        CertificateAuthority, Identity, NAME, closed_address, resolver, silent_server, start_server, tls_acceptor,
    },
    server::{NoResponse, Stream},
};

const LONG_TIMEOUT: Duration = Duration::from_secs(20);
const SHORT_TIMEOUT: Duration = Duration::from_millis(200);

/// How the etcd of a test responds.
#[derive(Clone)]
enum Reply {
    /// With a message and a success.
    Message(Vec<u8>),
    /// With a code and an error message in the headers.
    GrpcError(&'static str, &'static str),
    /// With a code and an error message in the trailers, after a message.
    ErrorAfterMessage(&'static str, &'static str),
    /// With an HTTP status that is not of gRPC.
    HttpStatus(u16),
    /// With these bytes and a success.
    RawBytes(&'static [u8]),
    /// With a message and no gRPC status.
    NoStatus,
    /// Closes the connection in the middle of the response.
    Disconnect,
    /// Does not respond.
    Silent,
}

type Requests = mpsc::UnboundedReceiver<(String, Vec<u8>)>;

async fn etcd(tls: Option<TlsAcceptor>, reply: Reply) -> (SocketAddr, Requests) {
    let (recorded, requests) = mpsc::unbounded_channel();
    let address = start_server(tls, move |stream| serve(stream, recorded.clone(), reply.clone())).await;
    (address, requests)
}

async fn serve(stream: Box<dyn Stream>, recorded: mpsc::UnboundedSender<(String, Vec<u8>)>, reply: Reply) {
    let Ok(mut connection) = server::handshake(stream).await else { return };
    let (hang_up, mut hung_up) = mpsc::channel::<()>(1);
    loop {
        tokio::select! {
            accepted = connection.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    tokio::spawn(serve_request(request, respond, recorded.clone(), reply.clone(), hang_up.clone()));
                }
                _ => return,
            },
            _ = hung_up.recv() => return,
        }
    }
}

async fn serve_request(
    request: Request<h2::RecvStream>,
    mut respond: SendResponse<Bytes>,
    recorded: mpsc::UnboundedSender<(String, Vec<u8>)>,
    reply: Reply,
    hang_up: mpsc::Sender<()>,
) {
    assert_eq!(request.headers()["content-type"], "application/grpc");
    assert_eq!(request.headers()["te"], "trailers");
    let path = request.uri().path().to_owned();
    let mut stream = request.into_body();
    let mut request = vec![];
    while let Some(data) = stream.data().await {
        request.extend_from_slice(&data.unwrap());
    }
    // Not every test reads the requests.
    let _ = recorded.send((path, request));

    let ended = |code: &'static str, message: &'static str| {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-status", code.parse().unwrap());
        headers.insert("grpc-message", message.parse().unwrap());
        headers
    };
    let head = |status: u16| Response::builder().status(status).header("content-type", "application/grpc");
    match reply {
        Reply::Message(message) => {
            let mut frame = vec![0];
            frame.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
            frame.extend_from_slice(&message);
            let mut body = respond.send_response(head(200).body(()).unwrap(), false).unwrap();
            body.send_data(frame.into(), false).unwrap();
            body.send_trailers(ended("0", "")).unwrap();
        }
        Reply::GrpcError(code, message) => {
            let mut response = head(200).body(()).unwrap();
            response.headers_mut().extend(ended(code, message));
            respond.send_response(response, true).unwrap();
        }
        Reply::ErrorAfterMessage(code, message) => {
            let mut body = respond.send_response(head(200).body(()).unwrap(), false).unwrap();
            body.send_data(Bytes::from_static(&[0, 0, 0, 0, 0]), false).unwrap();
            body.send_trailers(ended(code, message)).unwrap();
        }
        Reply::HttpStatus(status) => {
            respond.send_response(head(status).body(()).unwrap(), true).unwrap();
        }
        Reply::RawBytes(bytes) => {
            let mut body = respond.send_response(head(200).body(()).unwrap(), false).unwrap();
            body.send_data(Bytes::from_static(bytes), false).unwrap();
            body.send_trailers(ended("0", "")).unwrap();
        }
        Reply::NoStatus => {
            let mut body = respond.send_response(head(200).body(()).unwrap(), false).unwrap();
            body.send_data(Bytes::from_static(&[0, 0, 0, 0, 0]), true).unwrap();
        }
        Reply::Disconnect => {
            let mut body = respond.send_response(head(200).body(()).unwrap(), false).unwrap();
            body.send_data(Bytes::from_static(&[0, 0, 0, 0, 9, 8]), false).unwrap();
            hang_up.send(()).await.unwrap();
            std::future::pending::<()>().await;
        }
        Reply::Silent => std::future::pending().await,
    }
}

fn at(address: SocketAddr) -> Etcd {
    Etcd::new(&format!("http://{NAME}:2379"), None, &resolver(address)).unwrap()
}

fn securely_at(address: SocketAddr, authority: &CertificateAuthority, identity: Option<Identity>) -> Etcd {
    let tls = Tls { ca_bundle: authority.pem(), client_certificate: identity };
    Etcd::new(&format!("https://{NAME}:2379"), Some(&tls), &resolver(address)).unwrap()
}

fn header() -> Option<Header> {
    Some(Header { cluster_id: 1, member_id: 2, revision: 203, raft_term: 3 })
}

#[tokio::test]
async fn requests_and_responses_are_encoded_as_etcd_defines_them() {
    let members = MemberListResponse {
        members: vec![messages::Member {
            id: 7,
            name: "main-0".to_owned(),
            client_urls: vec!["http://main-0:2379".to_owned()],
            is_learner: true,
        }],
    };
    let (address, mut requests) = etcd(None, Reply::Message(members.encode_to_vec())).await;
    let member = ClusterMember {
        id: 7,
        name: "main-0".to_owned(),
        client_urls: vec!["http://main-0:2379".to_owned()],
        is_learner: true,
    };
    assert_eq!(at(address).members().await.unwrap(), [member]);
    let recorded = requests.recv().await.unwrap();
    assert_eq!(recorded, ("/etcdserverpb.Cluster/MemberList".to_owned(), vec![0, 0, 0, 0, 2, 8, 1]));

    let status = StatusResponse { header: header(), leader: 0, db_size: 9, ..StatusResponse::default() };
    let (address, mut requests) = etcd(None, Reply::Message(status.encode_to_vec())).await;
    let status = at(address).status().await.unwrap();
    assert_eq!((status.member_id, status.leader, status.revision, status.db_size), (2, None, 203, 9));
    assert_eq!(requests.recv().await.unwrap(), ("/etcdserverpb.Maintenance/Status".to_owned(), vec![0; 5]));

    let done = HeaderResponse { header: header() };
    let (address, mut requests) = etcd(None, Reply::Message(done.encode_to_vec())).await;
    at(address).defragment(LONG_TIMEOUT).await.unwrap();
    assert_eq!(requests.recv().await.unwrap(), ("/etcdserverpb.Maintenance/Defragment".to_owned(), vec![0; 5]));
    at(address).compact(300, true).await.unwrap();
    let recorded = requests.recv().await.unwrap();
    assert_eq!(recorded, ("/etcdserverpb.KV/Compact".to_owned(), vec![0, 0, 0, 0, 5, 8, 0xac, 2, 16, 1]));
    assert!(at(address).is_healthy().await.unwrap());
    let recorded = requests.recv().await.unwrap();
    assert_eq!(recorded.0, "/etcdserverpb.KV/Range");
    assert_eq!(recorded.1, [&[0, 0, 0, 0, 10, 10, 6][..], b"health", &[72, 1]].concat());
    assert_eq!(requests.recv().await.unwrap(), ("/etcdserverpb.Maintenance/Alarm".to_owned(), vec![0; 5]));
    assert!(requests.try_recv().is_err());
}

#[tokio::test]
async fn member_is_unhealthy_with_an_alarm_or_without_a_leader() {
    let alarm = |alarm| messages::AlarmMember { member_id: 7, alarm };
    let alarms = AlarmResponse { alarms: vec![alarm(1), alarm(2), alarm(5)] };
    let (address, _) = etcd(None, Reply::Message(alarms.encode_to_vec())).await;
    let kinds: Vec<_> = at(address).alarms().await.unwrap().into_iter().map(|alarm| alarm.kind).collect();
    assert_eq!(kinds, [AlarmKind::NoSpace, AlarmKind::Corrupt, AlarmKind::Other(5)]);
    assert!(!at(address).is_healthy().await.unwrap());
    let (address, _) = etcd(None, Reply::GrpcError("14", "etcdserver: no leader")).await;
    assert!(!at(address).is_healthy().await.unwrap());
    let (address, _) = etcd(None, Reply::GrpcError("3", "etcdserver: user name is empty")).await;
    assert!(matches!(at(address).is_healthy().await, Err(Error::ErrorResponse { code: Code::InvalidArgument, .. })));
    assert!(matches!(at(closed_address()).is_healthy().await, Err(Error::NotSent { .. })));
}

#[tokio::test]
async fn every_grpc_code_maps_to_an_error_code() {
    let expected = [
        ("14", Code::Unavailable, "ERR_ETCD_UNAVAILABLE", false),
        ("3", Code::InvalidArgument, "ERR_ETCD_REQUEST_REFUSED", true),
        ("7", Code::PermissionDenied, "ERR_ETCD_REQUEST_REFUSED", true),
        ("12", Code::Unimplemented, "ERR_ETCD_REQUEST_REFUSED", true),
        ("8", Code::ResourceExhausted, "ERR_ETCD_FAILED", false),
        ("9", Code::FailedPrecondition, "ERR_ETCD_FAILED", false),
        ("2", Code::Unknown, "ERR_ETCD_FAILED", false),
        ("99", Code::Unknown, "ERR_ETCD_FAILED", false),
    ];
    for (number, expected, error_code, is_permanent) in expected {
        for reply in [
            Reply::GrpcError(number, "etcdserver: 100%25 no"),
            Reply::ErrorAfterMessage(number, "etcdserver: 100%25 no"),
        ] {
            let (address, _) = etcd(None, reply).await;
            let error = at(address).defragment(LONG_TIMEOUT).await.unwrap_err();
            let Error::ErrorResponse { code, message, .. } = &error else { panic!("{number}: {error:?}") };
            assert_eq!((*code, message.as_str()), (expected, "etcdserver: 100% no"));
            assert_eq!((error.code(), error.is_permanent()), (error_code, is_permanent), "{number}");
        }
    }
    let (address, _) = etcd(None, Reply::GrpcError("2", "no%1B[2J%0A%E2%80%AEspace%07")).await;
    let error = at(address).defragment(LONG_TIMEOUT).await.unwrap_err().to_string();
    assert!(error.ends_with(": no space"), "{error:?}");
    let (address, _) = etcd(None, Reply::HttpStatus(404)).await;
    let error = at(address).status().await.unwrap_err();
    let message = "etcdserverpb.Maintenance/Status at http://main-client.default:2379 returned Unimplemented: HTTP 404";
    assert!(error.to_string().starts_with(message), "{error}");
    let (address, _) = etcd(None, Reply::HttpStatus(503)).await;
    assert_eq!(at(address).status().await.unwrap_err().code(), "ERR_ETCD_UNAVAILABLE");
}

#[tokio::test]
async fn compacted_and_future_revisions_are_distinguished() {
    let (address, _) =
        etcd(None, Reply::GrpcError("11", "etcdserver: mvcc: required revision has been compacted")).await;
    let error = at(address).compact(5, false).await.unwrap_err();
    assert!(matches!(error, Error::AlreadyCompacted { revision: 5, .. }), "{error:?}");
    assert_eq!((error.code(), error.is_permanent()), ("ERR_ETCD_REVISION_COMPACTED", true));
    let (address, _) =
        etcd(None, Reply::GrpcError("11", "etcdserver: mvcc: required revision is a future revision")).await;
    let error = at(address).compact(5, false).await.unwrap_err();
    assert!(matches!(error, Error::FutureRevision { revision: 5, .. }), "{error:?}");
    assert_eq!((error.code(), error.is_permanent()), ("ERR_ETCD_REVISION_NOT_REACHED", true));
    let (address, _) = etcd(None, Reply::GrpcError("11", "something new")).await;
    assert!(matches!(at(address).compact(5, false).await, Err(Error::ErrorResponse { code: Code::OutOfRange, .. })));
}

#[tokio::test]
async fn request_is_not_sent_without_a_connection() {
    let error = at(closed_address()).defragment(LONG_TIMEOUT).await.unwrap_err();
    assert!(matches!(error, Error::NotSent { .. }), "{error:?}");
    assert_eq!((error.code(), error.is_permanent()), ("ERR_ETCD_UNREACHABLE", false));
    let error = securely_at(silent_server().await, &CertificateAuthority::new(), None)
        .defragment(SHORT_TIMEOUT)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NotSent { .. }), "{error:?}");
}

#[tokio::test]
async fn request_without_a_response_may_have_been_carried_out() {
    for address in [silent_server().await, etcd(None, Reply::Silent).await.0] {
        let error = at(address).defragment(SHORT_TIMEOUT).await.unwrap_err();
        assert!(matches!(error, Error::NoResponse { source: NoResponse::TimedOut(SHORT_TIMEOUT), .. }), "{error:?}");
        assert_eq!((error.code(), error.is_permanent()), ("ERR_ETCD_NOT_ANSWERED", false));
    }
    let (address, mut requests) = etcd(None, Reply::Disconnect).await;
    let error = at(address).defragment(LONG_TIMEOUT).await.unwrap_err();
    assert!(matches!(error, Error::NoResponse { source: NoResponse::Disconnected(_), .. }), "{error:?}");
    requests.recv().await.unwrap();
    assert!(requests.try_recv().is_err(), "the request was sent twice");
    // A server that does not speak HTTP/2.
    let address = start_server(None, |mut stream| async move {
        use tokio::io::AsyncWriteExt;
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    let error = at(address).defragment(LONG_TIMEOUT).await.unwrap_err();
    assert!(matches!(error, Error::NoResponse { source: NoResponse::Disconnected(_), .. }), "{error:?}");
}

#[tokio::test]
async fn success_without_exactly_one_message_is_no_response() {
    let replies = [
        Reply::NoStatus,
        Reply::GrpcError("0", ""),
        Reply::RawBytes(&[]),
        Reply::RawBytes(&[0, 0, 0, 0, 3, 8]),
        Reply::RawBytes(&[1, 0, 0, 0, 0]),
        Reply::RawBytes(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        Reply::RawBytes(&[0, 0, 0, 0, 1, 8]),
    ];
    for (number, reply) in replies.into_iter().enumerate() {
        let (address, _) = etcd(None, reply).await;
        let error = at(address).status().await.unwrap_err();
        assert!(matches!(error, Error::NoResponse { source: NoResponse::Malformed(_), .. }), "{number}: {error:?}");
    }
}

#[tokio::test]
async fn server_certificate_is_verified_by_ca_name_and_expiry() {
    let (ours, other) = (CertificateAuthority::new(), CertificateAuthority::new());
    let done = || Reply::Message(HeaderResponse { header: header() }.encode_to_vec());
    let (address, _) = etcd(Some(tls_acceptor(&ours.issue(NAME), None)), done()).await;
    securely_at(address, &ours, None).defragment(LONG_TIMEOUT).await.unwrap();
    let untrusted = [
        ("signed by another CA", other.issue(NAME)),
        ("expired", ours.issue_expired(NAME)),
        ("for another name", ours.issue("main-client.other")),
    ];
    for (what, identity) in untrusted {
        let (address, mut requests) = etcd(Some(tls_acceptor(&identity, None)), done()).await;
        let error = securely_at(address, &ours, None).defragment(LONG_TIMEOUT).await.unwrap_err();
        assert!(matches!(error, Error::NotTrusted { .. }), "{what}: {error:?}");
        assert_eq!((error.code(), error.is_permanent()), ("ERR_ETCD_CERTIFICATE_NOT_TRUSTED", true));
        assert!(requests.try_recv().is_err(), "the request was sent although the certificate is {what}");
    }
}

#[tokio::test]
async fn client_certificate_is_sent_to_an_etcd_that_requires_it() {
    let (ours, other) = (CertificateAuthority::new(), CertificateAuthority::new());
    let done = Reply::Message(HeaderResponse { header: header() }.encode_to_vec());
    let (address, mut requests) = etcd(Some(tls_acceptor(&ours.issue(NAME), Some(&ours))), done).await;
    securely_at(address, &ours, Some(ours.issue("messina"))).defragment(LONG_TIMEOUT).await.unwrap();
    requests.recv().await.unwrap();
    let refused =
        [("none", None), ("of another CA", Some(other.issue("messina"))), ("expired", Some(ours.issue_expired("x")))];
    for (what, identity) in refused {
        let error = securely_at(address, &ours, identity).defragment(LONG_TIMEOUT).await.unwrap_err();
        assert!(matches!(error, Error::ClientCertificateRejected { .. }), "{what}: {error:?}");
        assert_eq!((error.code(), error.is_permanent()), ("ERR_ETCD_CERTIFICATE_NOT_ACCEPTED", true));
        assert!(requests.try_recv().is_err(), "{what}");
    }
}

#[tokio::test]
async fn invalid_address_or_certificate_is_reported_before_a_request() {
    let authority = CertificateAuthority::new();
    let made = |address: &str, tls: Option<Tls>| Etcd::new(address, tls.as_ref(), &Resolver::default());
    let tls = |ca_bundle: Vec<u8>, client_certificate| Some(Tls { ca_bundle, client_certificate });
    assert_eq!(made("main-client:2379", None).unwrap_err().code(), "ERR_ETCD_ADDRESS_INVALID");
    assert_eq!(made("https://main-client:2379", None).unwrap_err().code(), "ERR_ETCD_AUTHORITIES_INVALID");
    assert_eq!(made("http://x:2379", tls(authority.pem(), None)).unwrap_err().code(), "ERR_ETCD_ADDRESS_INVALID");
    assert_eq!(made("https://x:2379", tls(vec![], None)).unwrap_err().code(), "ERR_ETCD_AUTHORITIES_INVALID");
    let ((certificate, key), (_, other_key)) = (authority.issue("a"), authority.issue("b"));
    let identities = [
        ("there is no client certificate", (vec![], key.clone())),
        ("the key of the client certificate cannot be decoded", (certificate.clone(), vec![])),
        (
            "the client certificate does not match its key, or the type of the key is not supported",
            (certificate.clone(), other_key),
        ),
    ];
    for (message, identity) in identities {
        let error = made("https://x:2379", tls(authority.pem(), Some(identity))).unwrap_err();
        assert_eq!((error.code(), error.is_permanent()), ("ERR_ETCD_IDENTITY_INVALID", true));
        assert_eq!(error.source().unwrap().to_string(), message);
    }
    let etcd = made("https://x:2379", tls(authority.pem(), Some((certificate, key)))).unwrap();
    assert_eq!(format!("{etcd:?}"), "Etcd { server: Server(https://x:2379) }");
}

#[tokio::test]
async fn member_list_over_the_limit_is_no_response() {
    let list = |count: usize, name: &str| {
        let member = messages::Member { id: 1, name: name.to_owned(), ..messages::Member::default() };
        Reply::Message(MemberListResponse { members: vec![member; count] }.encode_to_vec())
    };
    let (address, _) = etcd(None, list(MAX_MEMBERS, "main-0")).await;
    assert_eq!(at(address).members().await.unwrap().len(), MAX_MEMBERS);
    for (count, name, message) in [(MAX_MEMBERS + 1, "main-0", "lists 33 members"), (20_000, "main-0", "longer than")] {
        let (address, _) = etcd(None, list(count, name)).await;
        let error = at(address).members().await.unwrap_err();
        assert_eq!((error.code(), error.is_permanent()), ("ERR_ETCD_NOT_ANSWERED", false));
        let source = error.source().unwrap().source().unwrap().to_string();
        assert!(source.contains(message), "{source}");
    }
}
