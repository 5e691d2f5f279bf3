//! A stand-in for the REST API of a ScyllaDB node.

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

use crate::server::{self, Answers, Body, whole};

/// What the node says when it is asked.
#[derive(Clone, Debug)]
pub(crate) struct Says {
    pub(crate) mode: &'static str,
    pub(crate) host_id: &'static str,
    pub(crate) address: &'static str,
    pub(crate) live: Vec<&'static str>,
    pub(crate) own_tokens: Vec<&'static str>,
    pub(crate) native_transport: bool,
    /// Whether it answers the request to leave at once, with a refusal.
    pub(crate) refuses_to_leave: bool,
    /// The versions of the schema that it sees.
    pub(crate) schemas: Vec<&'static str>,
    /// Whether it takes no snapshots.
    pub(crate) refuses_snapshots: bool,
    /// Whether it does not say, for now, which racks nodes are in.
    pub(crate) withholds_racks: bool,
}

impl Default for Says {
    fn default() -> Self {
        Self {
            mode: "NORMAL",
            host_id: "11111111-1111-1111-1111-111111111111",
            address: "10.0.0.1",
            live: vec!["10.0.0.1"],
            own_tokens: vec!["-5", "7"],
            native_transport: true,
            refuses_to_leave: false,
            schemas: vec!["s1"],
            refuses_snapshots: false,
            withholds_racks: false,
        }
    }
}

pub(crate) struct FakeNode {
    says: Mutex<Says>,
    /// All calls but those that only read.
    calls: Mutex<Vec<String>>,
    /// Names and keyspaces.
    snapshots: Mutex<BTreeSet<(String, String)>>,
    /// Requests that are being answered, and the most there ever were at one time.
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
}

impl FakeNode {
    /// A node whose REST API is at the usual port of an address of the test's own.
    pub(crate) fn start(ip: [u8; 4], says: Says) -> Arc<Self> {
        let node = Arc::new(Self {
            says: Mutex::new(says),
            calls: Mutex::default(),
            snapshots: Mutex::default(),
            in_flight: AtomicUsize::default(),
            most_in_flight: AtomicUsize::default(),
        });
        server::serve(SocketAddr::from((Ipv4Addr::from(ip), 10000)), node.clone());
        node
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Says)) {
        change(&mut self.says.lock().unwrap());
    }

    pub(crate) fn says(&self) -> Says {
        self.says.lock().unwrap().clone()
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    /// The most requests that it was answering at one time.
    pub(crate) fn most_in_flight(&self) -> usize {
        self.most_in_flight.load(Ordering::SeqCst)
    }

    /// Requests that it is answering.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// Names of snapshots, each with its keyspace.
    pub(crate) fn snapshots(&self) -> BTreeSet<(String, String)> {
        self.snapshots.lock().unwrap().clone()
    }

    pub(crate) fn keep(&self, tag: &str, keyspace: &str) {
        self.snapshots.lock().unwrap().insert((tag.to_owned(), keyspace.to_owned()));
    }

    fn read(&self, path: &str, query: &str) -> Option<Value> {
        let says = self.says();
        Some(match path {
            "/system/uptime_ms" => json!(1000),
            "/storage_service/operation_mode" => json!(says.mode),
            "/storage_service/hostid/local" => json!(says.host_id),
            "/storage_service/host_id" => {
                json!([{"key": says.address, "value": says.host_id}, {"key": "10.0.0.2", "value": "two"}])
            }
            "/gossiper/endpoint/live/" => json!(says.live),
            "/gossiper/endpoint/down/" => json!(["10.0.0.2"]),
            "/storage_service/nodes/leaving" | "/storage_service/nodes/moving" => json!([]),
            "/storage_service/nodes/joining" => json!(["10.0.0.3"]),
            "/storage_service/tokens" => json!(["-5", "0", "7"]),
            "/storage_service/tokens/10.0.0.1" => json!(says.own_tokens),
            "/storage_service/tokens/10.0.0.2" => json!(["0"]),
            "/storage_service/tokens/10.0.0.3" => json!([]),
            "/storage_service/native_transport" => json!(says.native_transport),
            "/storage_service/scylla_release_version" => json!("2026.2.4"),
            "/storage_service/snapshots" => {
                let table = |(tag, keyspace)| json!({"key": tag, "value": [{"ks": keyspace, "cf": "t"}]});
                json!(self.snapshots().into_iter().map(table).collect::<Vec<_>>())
            }
            "/storage_service/keyspaces" if query.contains("non_local") => json!(["system_auth", "shop"]),
            "/storage_service/keyspaces" => json!(["system", "system_schema", "system_auth", "shop"]),
            "/storage_proxy/schema_versions" => {
                let version = |version: &&str| json!({"key": version, "value": ["10.0.0.1"]});
                json!(says.schemas.iter().map(version).collect::<Vec<_>>())
            }
            "/snitch/datacenter" => json!("dc1"),
            "/snitch/rack" => json!("r1"),
            _ => return None,
        })
    }
}

/// Counts a request that is being answered.
struct InFlight<'a>(&'a AtomicUsize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Answers for FakeNode {
    async fn answer(&self, request: Request<Bytes>) -> Response<Body> {
        self.most_in_flight.fetch_max(self.in_flight.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let _in_flight = InFlight(&self.in_flight);
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default().to_owned();
        while path == "/snitch/rack" && self.says().withholds_racks {
            sleep(Duration::from_millis(10)).await;
        }
        if request.method() == Method::GET {
            return match self.read(&path, &query) {
                Some(value) => whole(200, value.to_string()),
                None => whole(404, r#"{"message": "Not found", "code": 404}"#),
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
                whole(200, "")
            }
            "/storage_service/snapshots" if self.says().refuses_snapshots => {
                whole(500, r#"{"message": "no space left", "code": 500}"#)
            }
            "/storage_service/snapshots" => {
                let (tag, keyspace) = (parameter("tag").unwrap_or_default(), parameter("kn").unwrap_or_default());
                if self.snapshots().contains(&(tag.clone(), keyspace.clone())) {
                    return whole(500, r#"{"message": "already exists", "code": 500}"#);
                }
                self.keep(&tag, &keyspace);
                whole(200, "")
            }
            "/storage_service/drain" => {
                self.change(|says| says.mode = "DRAINED");
                whole(200, "")
            }
            "/storage_service/decommission" if self.says().refuses_to_leave => {
                whole(500, r#"{"message": "another node is joining", "code": 500}"#)
            }
            "/storage_service/decommission" => {
                self.change(|says| says.mode = "LEAVING");
                while self.says().mode == "LEAVING" {
                    sleep(Duration::from_millis(10)).await;
                }
                whole(200, "")
            }
            _ => whole(404, "{}"),
        }
    }
}
