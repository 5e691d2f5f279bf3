//! A fake of the REST API of a ScyllaDB node.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{Method, Request, Response};
use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::server::{self, Body, Handler, response};

/// The responses of the fake node.
#[derive(Clone, Debug)]
pub(crate) struct NodeResponses {
    pub(crate) mode: &'static str,
    pub(crate) host_id: &'static str,
    pub(crate) address: &'static str,
    pub(crate) live: Vec<&'static str>,
    pub(crate) own_tokens: Vec<&'static str>,
    pub(crate) native_transport: bool,
    /// Whether it refuses a decommission.
    pub(crate) refuses_decommission: bool,
    /// The schema versions that it sees.
    pub(crate) schemas: Vec<&'static str>,
    /// Whether it refuses snapshots.
    pub(crate) refuses_snapshots: bool,
    /// Whether it delays its responses to requests for racks.
    pub(crate) delays_racks: bool,
}

impl Default for NodeResponses {
    fn default() -> Self {
        Self {
            mode: "NORMAL",
            host_id: "11111111-1111-1111-1111-111111111111",
            address: "10.0.0.1",
            live: vec!["10.0.0.1"],
            own_tokens: vec!["-5", "7"],
            native_transport: true,
            refuses_decommission: false,
            schemas: vec!["s1"],
            refuses_snapshots: false,
            delays_racks: false,
        }
    }
}

pub(crate) struct FakeNode {
    responses: Mutex<NodeResponses>,
    /// All requests but those that only read.
    calls: Mutex<Vec<String>>,
    /// Tags and keyspaces of snapshots.
    snapshots: Mutex<BTreeSet<(String, String)>>,
    /// Requests in flight, and the most there ever were at once.
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
}

impl FakeNode {
    /// Starts a node whose REST API has the default port of an IP address that only this test uses.
    pub(crate) fn start(ip: [u8; 4], responses: NodeResponses) -> Arc<Self> {
        let node = Arc::new(Self {
            responses: Mutex::new(responses),
            calls: Mutex::default(),
            snapshots: Mutex::default(),
            in_flight: AtomicUsize::default(),
            most_in_flight: AtomicUsize::default(),
        });
        server::serve(SocketAddr::from((Ipv4Addr::from(ip), 10000)), node.clone());
        node
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut NodeResponses)) {
        change(&mut self.responses.lock().unwrap());
    }

    pub(crate) fn responses(&self) -> NodeResponses {
        self.responses.lock().unwrap().clone()
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    /// Returns the largest number of requests that were in flight at once.
    pub(crate) fn most_in_flight(&self) -> usize {
        self.most_in_flight.load(Ordering::SeqCst)
    }

    /// Returns the number of requests in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// Returns the tags of snapshots, each with its keyspace.
    pub(crate) fn snapshots(&self) -> BTreeSet<(String, String)> {
        self.snapshots.lock().unwrap().clone()
    }

    pub(crate) fn add_snapshot(&self, tag: &str, keyspace: &str) {
        self.snapshots.lock().unwrap().insert((tag.to_owned(), keyspace.to_owned()));
    }

    fn read(&self, path: &str, query: &str) -> Option<Value> {
        let responses = self.responses();
        Some(match path {
            "/system/uptime_ms" => json!(1000),
            "/storage_service/operation_mode" => json!(responses.mode),
            "/storage_service/hostid/local" => json!(responses.host_id),
            "/storage_service/host_id" => {
                json!([{"key": responses.address, "value": responses.host_id}, {"key": "10.0.0.2", "value": "two"}])
            }
            "/gossiper/endpoint/live/" => json!(responses.live),
            "/gossiper/endpoint/down/" => json!(["10.0.0.2"]),
            "/storage_service/nodes/leaving" | "/storage_service/nodes/moving" => json!([]),
            "/storage_service/nodes/joining" => json!(["10.0.0.3"]),
            "/storage_service/tokens" => json!(["-5", "0", "7"]),
            "/storage_service/tokens/10.0.0.1" => json!(responses.own_tokens),
            "/storage_service/tokens/10.0.0.2" => json!(["0"]),
            "/storage_service/tokens/10.0.0.3" => json!([]),
            "/storage_service/native_transport" => json!(responses.native_transport),
            "/storage_service/scylla_release_version" => json!("2026.2.4"),
            "/storage_service/snapshots" => {
                let table = |(tag, keyspace)| json!({"key": tag, "value": [{"ks": keyspace, "cf": "t"}]});
                json!(self.snapshots().into_iter().map(table).collect::<Vec<_>>())
            }
            "/storage_service/keyspaces" if query.contains("non_local") => json!(["system_auth", "shop"]),
            "/storage_service/keyspaces" => json!(["system", "system_schema", "system_auth", "shop"]),
            "/storage_proxy/schema_versions" => {
                let version = |version: &&str| json!({"key": version, "value": ["10.0.0.1"]});
                json!(responses.schemas.iter().map(version).collect::<Vec<_>>())
            }
            "/snitch/datacenter" => json!("dc1"),
            "/snitch/rack" => json!("r1"),
            _ => return None,
        })
    }
}

/// Counts a request in flight.
struct InFlight<'a>(&'a AtomicUsize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Handler for FakeNode {
    async fn handle(&self, request: Request<Bytes>) -> Response<Body> {
        self.most_in_flight.fetch_max(self.in_flight.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let _in_flight = InFlight(&self.in_flight);
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default().to_owned();
        while path == "/snitch/rack" && self.responses().delays_racks {
            sleep(Duration::from_millis(10)).await;
        }
        if request.method() == Method::GET {
            return match self.read(&path, &query) {
                Some(value) => response(200, value.to_string()),
                None => response(404, r#"{"message": "Not found", "code": 404}"#),
            };
        }
        self.calls.lock().unwrap().push(format!("{} {path}", request.method()));
        let parameter = |name: &str| {
            let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).next()
        };
        match path.as_str() {
            "/storage_service/snapshots" if request.method() == Method::DELETE => {
                self.snapshots.lock().unwrap().retain(|(tag, _)| Some(tag) != parameter("tag").as_ref());
                response(200, "")
            }
            "/storage_service/snapshots" if self.responses().refuses_snapshots => {
                response(500, r#"{"message": "no space left", "code": 500}"#)
            }
            "/storage_service/snapshots" => {
                let (tag, keyspace) = (parameter("tag").unwrap_or_default(), parameter("kn").unwrap_or_default());
                if self.snapshots().contains(&(tag.clone(), keyspace.clone())) {
                    return response(500, r#"{"message": "already exists", "code": 500}"#);
                }
                self.add_snapshot(&tag, &keyspace);
                response(200, "")
            }
            "/storage_service/drain" => {
                self.change(|responses| responses.mode = "DRAINED");
                response(200, "")
            }
            "/storage_service/decommission" if self.responses().refuses_decommission => {
                response(500, r#"{"message": "another node is joining", "code": 500}"#)
            }
            "/storage_service/decommission" => {
                self.change(|responses| responses.mode = "LEAVING");
                while self.responses().mode == "LEAVING" {
                    sleep(Duration::from_millis(10)).await;
                }
                response(200, "")
            }
            _ => response(404, "{}"),
        }
    }
}
