//! A server that simulates the sidecars of many etcd clusters, and counts requests.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use messina_clients::Resolver;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// The requests to one etcd cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) snapshots: Vec<Value>,
    under_way: usize,
    /// The maximum of concurrent requests.
    pub(super) at_once: usize,
}

#[derive(Default)]
struct State {
    by_host: HashMap<String, Seen>,
    /// How long a snapshot takes.
    takes: Duration,
}

/// The sidecars.
pub(super) struct Sidecars {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    _tasks: JoinSet<()>,
}

impl Sidecars {
    pub(super) async fn new(takes: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State { by_host: HashMap::new(), takes }));
        let (shared, mut tasks) = (Arc::clone(&state), JoinSet::new());
        tasks.spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                // A request continues when its client is gone, as in real sidecars.
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    let _ = answer(connection, &shared).await;
                });
            }
        });
        Self { address, state, _tasks: tasks }
    }

    pub(super) fn reach(&self) -> Resolver {
        let address = self.address;
        Resolver::with_lookup(move |_, _| Some(address))
    }

    /// The requests to each etcd cluster, by host.
    pub(super) fn seen(&self) -> BTreeMap<String, Seen> {
        self.state.lock().unwrap().by_host.clone().into_iter().collect()
    }
}

async fn answer(mut connection: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut buffer = [0; 4096];
        let length = connection.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        request.extend_from_slice(&buffer[..length]);
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let host = request
        .lines()
        .find_map(|line| line.to_lowercase().strip_prefix("host:").map(|host| host.trim().to_owned()))
        .unwrap_or_default();
    let body = if path == "/snapshot/latest" {
        let state = state.lock().unwrap();
        let last = state.by_host.get(&host).and_then(|seen| seen.snapshots.last().cloned());
        json!({"fullSnapshot": last, "deltaSnapshots": null})
    } else {
        take(state, &host).await
    };
    let body = body.to_string();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    connection.write_all(format!("{head}{body}").as_bytes()).await?;
    connection.shutdown().await
}

async fn take(state: &Mutex<State>, host: &str) -> Value {
    let takes = {
        let mut state = state.lock().unwrap();
        let seen = state.by_host.entry(host.to_owned()).or_default();
        seen.under_way += 1;
        seen.at_once = seen.at_once.max(seen.under_way);
        state.takes
    };
    tokio::time::sleep(takes).await;
    let mut state = state.lock().unwrap();
    let seen = state.by_host.entry(host.to_owned()).or_default();
    seen.under_way -= 1;
    let revision = seen.snapshots.len() + 1;
    let snapshot = json!({
        "kind": "Full", "snapName": format!("Full-00000000-{revision:08}"), "snapDir": "", "isFinal": false,
        "createdOn": "2026-11-15T00:00:00Z", "startRevision": 0, "lastRevision": revision,
    });
    seen.snapshots.push(snapshot.clone());
    snapshot
}
