//! `messina cleanup-job`, with a fake of the node's agent.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    process::Command,
    sync::{Arc, Mutex},
};

use http::{Method, Request, Response};
use hyper::body::Bytes;
use nix::sys::signal::Signal;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{PrivateKeyDer, pem::PemObject},
};
use tokio_rustls::TlsAcceptor;

use crate::{
    process::{Folder, Process, eventually, messina},
    server::{Body, Handler, response, serve_secured},
};

const KEYSPACES: &str = r#"["orders", "broken", "users"]"#;

struct FakeAgent {
    /// Paths of the requests with the right token.
    calls: Mutex<Vec<String>>,
    /// A keyspace whose cleanup fails, and one whose cleanup never ends.
    broken: &'static str,
    endless: &'static str,
}

impl FakeAgent {
    fn start(ip: [u8; 4], broken: &'static str, endless: &'static str) -> Arc<Self> {
        let certified = rcgen::generate_simple_self_signed(["agent".to_owned()]).unwrap();
        let key = PrivateKeyDer::from_pem_slice(certified.signing_key.serialize_pem().as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certified.cert.der().clone()], key)
            .unwrap();
        let agent = Arc::new(Self { calls: Mutex::default(), broken, endless });
        let address = SocketAddr::from((Ipv4Addr::from(ip), 10001));
        serve_secured(address, TlsAcceptor::from(Arc::new(config)), agent.clone());
        agent
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }
}

impl Handler for FakeAgent {
    async fn handle(&self, request: Request<Bytes>) -> Response<Body> {
        if request.headers().get("authorization").is_none_or(|token| token != "Bearer secret") {
            return response(401, r#"{"message": "unauthorized", "code": 401}"#);
        }
        let path = request.uri().path().to_owned();
        self.calls.lock().unwrap().push(path.clone());
        let name = path.rsplit('/').next().unwrap_or_default();
        match request.method() {
            &Method::GET => response(200, KEYSPACES),
            _ if name == self.broken => response(500, r#"{"message": "the disk is full", "code": 500}"#),
            _ if name == self.endless => std::future::pending().await,
            _ => response(200, "0"),
        }
    }
}

fn job(folder: &Folder, address: &str, token: &str) -> Command {
    fs::write(folder.path("auth-token.yaml"), format!("auth_token: {token}\n")).unwrap();
    let mut command = messina();
    command.arg("cleanup-job").arg("--manager-auth-config-path").arg(folder.path("auth-token.yaml"));
    command.arg(format!("--node-address={address}"));
    command
}

fn cleanup(keyspace: &str) -> String {
    format!("/storage_service/keyspace_cleanup/{keyspace}")
}

#[test]
fn every_keyspace_is_cleaned_up() {
    let agent = FakeAgent::start([127, 77, 6, 1], "", "");
    let folder = Folder::new();
    let output = job(&folder, "127.77.6.1", "secret").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let expected = [
        "/compaction_manager/stop_compaction".to_owned(),
        "/storage_service/keyspaces".to_owned(),
        cleanup("orders"),
        cleanup("broken"),
        cleanup("users"),
    ];
    assert_eq!(agent.calls(), expected);
}

#[test]
fn failed_cleanup_of_a_keyspace_fails_the_job_after_the_others() {
    let agent = FakeAgent::start([127, 77, 6, 2], "broken", "");
    let folder = Folder::new();
    let output = job(&folder, "127.77.6.2", "secret").output().unwrap();
    let logged = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && logged.contains("broken: ") && logged.contains("the disk is full"),
        "{output:?}"
    );
    assert_eq!(agent.calls().last(), Some(&cleanup("users")));
}

#[test]
fn sigterm_stops_the_cleanup() {
    let agent = FakeAgent::start([127, 77, 6, 3], "", "orders");
    let folder = Folder::new();
    let mut process = Process::start(job(&folder, "127.77.6.3", "secret"));
    eventually("the cleanup is running", || agent.calls().last() == Some(&cleanup("orders")));
    process.signal(Signal::SIGTERM);
    assert_ne!(process.end().code(), Some(0));
    assert_eq!(agent.calls().last().map(String::as_str), Some("/compaction_manager/stop_compaction"));
}

#[test]
fn wrong_and_missing_tokens_are_errors() {
    let agent = FakeAgent::start([127, 77, 6, 4], "", "");
    let folder = Folder::new();
    let output = job(&folder, "127.77.6.4", "wrong").output().unwrap();
    let logged = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && logged.contains("unauthorized"), "{logged}");
    assert!(!logged.contains("wrong"), "the token is logged: {logged}");
    let output = job(&folder, "127.77.6.4", "").output().unwrap();
    let logged = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && logged.contains("has no auth_token"), "{logged}");
    assert_eq!(agent.calls(), Vec::<String>::new());
}
