//! Client of the REST API of a ScyllaDB node. The node serves it on loopback only, so the caller has to share the
//! node's network namespace, or to call the node's [`agent`].

pub mod agent;
mod call;
mod error;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use bytes::Bytes;
use http::Method;
use serde::{Deserialize, de::DeserializeOwned};

pub use self::error::Error;

/// The port of the REST API.
pub const PORT: u16 = 10000;

/// Timeout of calls that do no work.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The outcome of a decommission request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decommission {
    /// The node has left the ring.
    Done,
    /// ScyllaDB did not respond in time. The decommission may be in progress: see the operation mode.
    Unanswered,
}

/// A snapshot of one table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct TableSnapshot {
    /// The keyspace.
    #[serde(rename = "ks")]
    pub keyspace: String,
    /// The table.
    #[serde(rename = "cf")]
    pub table: String,
}

/// A selection of keyspaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keyspaces {
    /// All keyspaces.
    All,
    /// User keyspaces.
    User,
    /// Keyspaces without the local replication strategy.
    NonLocal,
}

/// A client of a node.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    address: SocketAddr,
    timeout: Duration,
}

#[derive(Deserialize)]
struct Entry<V> {
    key: String,
    value: V,
}

impl Node {
    /// Creates a client for the REST API at `address`.
    pub fn at(address: SocketAddr) -> Self {
        Self { address, timeout: TIMEOUT }
    }

    /// Creates a client for the REST API at the default port of `ip`.
    pub fn at_ip(ip: IpAddr) -> Self {
        Self::at(SocketAddr::new(ip, PORT))
    }

    /// Sets the timeout of calls.
    #[must_use]
    pub fn within(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Checks that the API responds.
    pub async fn ping(self) -> Result<(), Error> {
        self.get::<serde_json::Value>("/system/uptime_ms").await.map(drop)
    }

    /// Returns the operation mode, such as `NORMAL`.
    pub async fn operation_mode(self) -> Result<String, Error> {
        self.get("/storage_service/operation_mode").await
    }

    /// Returns the node's host ID.
    pub async fn host_id(self) -> Result<String, Error> {
        self.get("/storage_service/hostid/local").await
    }

    /// Returns the host IDs of all nodes that own tokens, by address.
    pub async fn host_ids(self) -> Result<BTreeMap<String, String>, Error> {
        self.entries("/storage_service/host_id").await
    }

    /// Returns the addresses of the nodes that are up according to the gossip of this node.
    pub async fn live(self) -> Result<BTreeSet<String>, Error> {
        self.get("/gossiper/endpoint/live/").await
    }

    /// Returns the addresses of the nodes that are down according to the gossip of this node.
    pub async fn down(self) -> Result<BTreeSet<String>, Error> {
        self.get("/gossiper/endpoint/down/").await
    }

    /// Returns the addresses of the joining nodes.
    pub async fn joining(self) -> Result<BTreeSet<String>, Error> {
        self.get("/storage_service/nodes/joining").await
    }

    /// Returns the addresses of the leaving nodes.
    pub async fn leaving(self) -> Result<BTreeSet<String>, Error> {
        self.get("/storage_service/nodes/leaving").await
    }

    /// Returns the addresses of the moving nodes, whose tokens change.
    pub async fn moving(self) -> Result<BTreeSet<String>, Error> {
        self.get("/storage_service/nodes/moving").await
    }

    /// Returns the tokens of the whole ring.
    pub async fn tokens(self) -> Result<Vec<String>, Error> {
        self.get("/storage_service/tokens").await
    }

    /// Returns the tokens that the node at `address` owns. A joining node owns none.
    pub async fn tokens_of(self, address: &str) -> Result<Vec<String>, Error> {
        self.get(&format!("/storage_service/tokens/{}", escaped(address))).await
    }

    /// Whether the node accepts CQL clients.
    pub async fn has_native_transport(self) -> Result<bool, Error> {
        self.get("/storage_service/native_transport").await
    }

    /// Returns the names of keyspaces.
    pub async fn keyspaces(self, which: Keyspaces) -> Result<Vec<String>, Error> {
        let query = match which {
            Keyspaces::All => "",
            Keyspaces::User => "?type=user",
            Keyspaces::NonLocal => "?type=non_local_strategy",
        };
        self.get(&format!("/storage_service/keyspaces{query}")).await
    }

    /// Returns the version of ScyllaDB.
    pub async fn version(self) -> Result<String, Error> {
        self.get("/storage_service/scylla_release_version").await
    }

    /// Returns the datacenter of the node at `address`, or of this node.
    pub async fn datacenter(self, address: Option<&str>) -> Result<String, Error> {
        self.get(&format!("/snitch/datacenter{}", host_query(address))).await
    }

    /// Returns the rack of the node at `address`, or of this node.
    pub async fn rack(self, address: Option<&str>) -> Result<String, Error> {
        self.get(&format!("/snitch/rack{}", host_query(address))).await
    }

    /// Returns the schema versions, each with the addresses of the nodes that have it.
    pub async fn schema_versions(self) -> Result<BTreeMap<String, Vec<String>>, Error> {
        self.entries("/storage_proxy/schema_versions").await
    }

    /// Decommissions the node, which may take days. Waits for the response up to `time_limit`; the decommission continues
    /// after that.
    pub async fn decommission(self, time_limit: Duration) -> Result<Decommission, Error> {
        match self.within(time_limit).post("/storage_service/decommission").await {
            Ok(()) => Ok(Decommission::Done),
            Err(Error::TimedOut { .. }) => Ok(Decommission::Unanswered),
            Err(error) => Err(error),
        }
    }

    /// Drains the node: it flushes all data to disk and stops serving until it is restarted.
    pub async fn drain(self, time_limit: Duration) -> Result<(), Error> {
        self.within(time_limit).post("/storage_service/drain").await
    }

    /// Runs a cleanup: removes data of a keyspace that the node no longer owns.
    pub async fn cleanup(self, keyspace: &str, time_limit: Duration) -> Result<(), Error> {
        self.within(time_limit).post(&format!("/storage_service/keyspace_cleanup/{}", escaped(keyspace))).await
    }

    /// Stops a running cleanup.
    pub async fn stop_cleanup(self) -> Result<(), Error> {
        self.post("/compaction_manager/stop_compaction?type=CLEANUP").await
    }

    /// Flushes the memtables of a keyspace to disk.
    pub async fn flush(self, keyspace: &str, time_limit: Duration) -> Result<(), Error> {
        self.within(time_limit).post(&format!("/storage_service/keyspace_flush/{}", escaped(keyspace))).await
    }

    /// Takes a snapshot of a keyspace with this tag.
    pub async fn take_snapshot(self, tag: &str, keyspace: &str, time_limit: Duration) -> Result<(), Error> {
        self.within(time_limit).post(&snapshot_path(tag, keyspace)).await
    }

    /// Returns the snapshots, by tag.
    pub async fn snapshots(self) -> Result<BTreeMap<String, Vec<TableSnapshot>>, Error> {
        self.entries("/storage_service/snapshots").await
    }

    /// Removes the snapshot of a keyspace with this tag.
    pub async fn remove_snapshot(self, tag: &str, keyspace: &str) -> Result<(), Error> {
        self.call(Method::DELETE, &snapshot_path(tag, keyspace)).await.map(drop)
    }

    /// Removes the snapshots of all keyspaces with this tag.
    pub async fn clear_snapshot(self, tag: &str, time_limit: Duration) -> Result<(), Error> {
        let path = format!("/storage_service/snapshots?tag={}", escaped(tag));
        self.within(time_limit).call(Method::DELETE, &path).await.map(drop)
    }

    /// Removes a dead node from the ring. The remaining replicas stream its data.
    pub async fn remove_node(self, host_id: &str, time_limit: Duration) -> Result<(), Error> {
        self.within(time_limit).post(&format!("/storage_service/remove_node?host_id={}", escaped(host_id))).await
    }

    async fn get<T: DeserializeOwned>(self, path: &str) -> Result<T, Error> {
        let body = self.call(Method::GET, path).await?;
        serde_json::from_slice(&body).map_err(|source| Error::Unexpected { call: format!("GET {path}"), source })
    }

    async fn entries<V: DeserializeOwned>(self, path: &str) -> Result<BTreeMap<String, V>, Error> {
        let entries: Vec<Entry<V>> = self.get(path).await?;
        Ok(entries.into_iter().map(|entry| (entry.key, entry.value)).collect())
    }

    async fn post(self, path: &str) -> Result<(), Error> {
        self.call(Method::POST, path).await.map(drop)
    }

    async fn call(self, method: Method, path: &str) -> Result<Bytes, Error> {
        let connect = call::connect(self.address);
        call::call(connect, &self.address.to_string(), None, method, path, self.timeout).await
    }
}

fn host_query(address: Option<&str>) -> String {
    address.map(|address| format!("?host={}", escaped(address))).unwrap_or_default()
}

fn snapshot_path(tag: &str, keyspace: &str) -> String {
    format!("/storage_service/snapshots?tag={}&kn={}", escaped(tag), escaped(keyspace))
}

/// Percent-encodes a text for a path or a query. Colons are not encoded: ScyllaDB expects literal addresses.
fn escaped(text: &str) -> String {
    let letter = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(letter).collect()
}

/// Whether all reachable nodes have the same schema version.
pub fn schema_agrees(versions: &BTreeMap<String, Vec<String>>) -> bool {
    versions.keys().filter(|version| *version != "UNREACHABLE").count() == 1
}
