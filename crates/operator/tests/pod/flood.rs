//! `messina probe` with clients that try to keep it from responding to the kubelet.

use std::{
    io::Write,
    net::TcpStream,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    api::FakeApi,
    node::{FakeNode, NodeResponses},
    process::{Folder, Process, eventually, get, messina, read, request},
};

/// Half of the time that the kubelet gives ScyllaDB's liveness probe.
const KUBELET_TIMEOUT: Duration = Duration::from_secs(5);
/// Clients at a time.
const CLIENTS: usize = 500;

struct Probe {
    _folder: Folder,
    node: Arc<FakeNode>,
    process: Process,
    port: u16,
}

impl Probe {
    /// A probe that may have 256 files open, sockets among them: less than there are clients.
    fn start(number: u8) -> Self {
        let folder = Folder::new();
        let api = FakeApi::start(&folder.path("kubeconfig"));
        api.put("services", json!({"metadata": {"name": "n", "uid": "1", "labels": {}}}));
        let address = [127, 77, 4, number];
        let node = FakeNode::start(address, NodeResponses::default());
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "ulimit -n 256; exec \"$0\" \"$@\""]).arg(messina().get_program());
        command.args(["probe", "--port=0", "--service-name=n", "--kubeconfig"]).arg(folder.path("kubeconfig"));
        command.arg(format!("--scylla-localhost-address={}", std::net::Ipv4Addr::from(address)));
        let process = Process::start(command);
        let port = process.port();
        Self { _folder: folder, node, process, port }
    }

    /// Asserts that the kubelet's probes succeed in time.
    #[track_caller]
    fn assert_probes_succeed(&self) {
        for path in ["/healthz", "/readyz"] {
            let start = Instant::now();
            let (status, body) = get(self.port, path);
            assert_eq!(status, 200, "{path}: {body}");
            assert!(start.elapsed() < KUBELET_TIMEOUT, "{path} took {:?}", start.elapsed());
        }
    }
}

#[test]
fn probes_succeed_while_500_clients_request_the_ring() {
    let probe = Probe::start(1);
    probe.node.change(|responses| responses.delays_racks = true);
    let clients: Vec<TcpStream> = (0..CLIENTS).map(|_| request(probe.port, "/nodes")).collect();
    eventually("the ring is requested from ScyllaDB", || probe.node.in_flight() > 0);
    for _ in 0..20 {
        probe.assert_probes_succeed();
    }
    // One request for the ring, one for liveness or readiness.
    assert!(probe.node.most_in_flight() <= 2, "{} requests at a time", probe.node.most_in_flight());

    probe.node.change(|responses| responses.delays_racks = false);
    let responses: Vec<_> = clients.into_iter().filter_map(read).collect();
    let is_refused = |(status, body): &&(u16, String)| *status == 503 && body.contains("too many clients");
    let refused = responses.iter().filter(is_refused).count();
    let waited = responses.len() - refused;
    assert!((1..=16).contains(&waited), "{waited} clients waited for the ring");
    // On a slow host the probes above take longer than ScyllaDB is given for the ring.
    let is_answered = |(status, _): &&(u16, String)| [200, 503].contains(status);
    assert_eq!(responses.iter().filter(is_answered).count(), responses.len(), "{responses:?}");
    eventually("the ring is served again", || get(probe.port, "/nodes").0 == 200);
}

#[test]
fn probes_succeed_while_slow_clients_hold_connections() {
    let probe = Probe::start(2);
    let slow = |_| {
        let mut stream = TcpStream::connect(("127.0.0.1", probe.port)).unwrap();
        // Fails if the server has closed the connection.
        let _ = write!(stream, "GET /healthz HTTP/1.1\r\nX-Slow: ");
        stream
    };
    let slow: Vec<TcpStream> = (0..CLIENTS).map(slow).collect();
    probe.assert_probes_succeed();
    assert!(!probe.process.has_logged("cannot be accepted"), "the limit of connections was exceeded");
    drop(slow);
}

#[test]
fn probes_succeed_while_500_clients_send_probes() {
    let probe = Probe::start(3);
    let clients: Vec<TcpStream> =
        (0..CLIENTS).flat_map(|_| ["/healthz", "/readyz"]).map(|path| request(probe.port, path)).collect();
    probe.assert_probes_succeed();
    // One for liveness, one for readiness.
    assert!(probe.node.most_in_flight() <= 2, "{} requests at a time", probe.node.most_in_flight());
    let answered = clients.into_iter().filter_map(read).filter(|(status, _)| *status == 200).count();
    assert_eq!(answered, 2 * CLIENTS, "a probe has failed");
}
