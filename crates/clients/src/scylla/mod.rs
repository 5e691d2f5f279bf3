//! The REST API of a ScyllaDB node. The node serves it on loopback only, so the caller shares the node's network, or asks
//! through the node's [`agent`].

pub mod agent;
mod error;
mod exchange;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use http::Method;
use serde::{Deserialize, de::DeserializeOwned};

pub use self::error::Error;

/// The port of the REST API.
pub const PORT: u16 = 10000;

/// How long a call may take that does no work.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What came of the request to leave the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decommission {
    /// The node has left.
    Done,
    /// It may be leaving still: its mode tells.
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

/// Which keyspaces are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keyspaces {
    /// All of them.
    All,
    /// Those of users.
    User,
    /// Those whose data is spread over nodes.
    NonLocal,
}

/// A node.
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
    /// The node whose REST API is at `address`.
    pub fn at(address: SocketAddr) -> Self {
        Self { address, timeout: TIMEOUT }
    }

    /// The node whose REST API is at the usual port of `ip`.
    pub fn at_ip(ip: IpAddr) -> Self {
        Self::at(SocketAddr::new(ip, PORT))
    }

    /// The same node, asked with less or more patience.
    #[must_use]
    pub fn within(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Whether the API answers at all.
    pub async fn ping(self) -> Result<(), Error> {
        self.get::<serde_json::Value>("/system/uptime_ms").await.map(drop)
    }

    /// What the node is doing, in ScyllaDB's word.
    pub async fn operation_mode(self) -> Result<String, Error> {
        self.get("/storage_service/operation_mode").await
    }

    /// The node's host ID.
    pub async fn host_id(self) -> Result<String, Error> {
        self.get("/storage_service/hostid/local").await
    }

    /// The host IDs of all nodes that own tokens, by address.
    pub async fn host_ids(self) -> Result<BTreeMap<String, String>, Error> {
        self.entries("/storage_service/host_id").await
    }

    /// The addresses of the nodes that this one sees alive.
    pub async fn live(self) -> Result<BTreeSet<String>, Error> {
        self.get("/gossiper/endpoint/live/").await
    }

    /// The addresses of the nodes that this one sees down.
    pub async fn down(self) -> Result<BTreeSet<String>, Error> {
        self.get("/gossiper/endpoint/down/").await
    }

    /// The addresses of the nodes that are about to join.
    pub async fn joining(self) -> Result<BTreeSet<String>, Error> {
        self.get("/storage_service/nodes/joining").await
    }

    /// The addresses of the nodes that are about to leave.
    pub async fn leaving(self) -> Result<BTreeSet<String>, Error> {
        self.get("/storage_service/nodes/leaving").await
    }

    /// The addresses of the nodes that take other tokens.
    pub async fn moving(self) -> Result<BTreeSet<String>, Error> {
        self.get("/storage_service/nodes/moving").await
    }

    /// The tokens of the whole ring.
    pub async fn tokens(self) -> Result<Vec<String>, Error> {
        self.get("/storage_service/tokens").await
    }

    /// The tokens that the node at `address` owns. One that is joining owns none yet.
    pub async fn tokens_of(self, address: &str) -> Result<Vec<String>, Error> {
        self.get(&format!("/storage_service/tokens/{}", escaped(address))).await
    }

    /// Whether the node takes clients that speak CQL.
    pub async fn has_native_transport(self) -> Result<bool, Error> {
        self.get("/storage_service/native_transport").await
    }

    /// Names of keyspaces.
    pub async fn keyspaces(self, which: Keyspaces) -> Result<Vec<String>, Error> {
        let query = match which {
            Keyspaces::All => "",
            Keyspaces::User => "?type=user",
            Keyspaces::NonLocal => "?type=non_local_strategy",
        };
        self.get(&format!("/storage_service/keyspaces{query}")).await
    }

    /// The version of ScyllaDB.
    pub async fn version(self) -> Result<String, Error> {
        self.get("/storage_service/scylla_release_version").await
    }

    /// The datacenter of the node at `address`, or of this node.
    pub async fn datacenter(self, address: Option<&str>) -> Result<String, Error> {
        self.get(&format!("/snitch/datacenter{}", host_query(address))).await
    }

    /// The rack of the node at `address`, or of this node.
    pub async fn rack(self, address: Option<&str>) -> Result<String, Error> {
        self.get(&format!("/snitch/rack{}", host_query(address))).await
    }

    /// The versions of the schema, and the addresses of the nodes that have each.
    pub async fn schema_versions(self) -> Result<BTreeMap<String, Vec<String>>, Error> {
        self.entries("/storage_proxy/schema_versions").await
    }

    /// Makes the node leave the ring, which may take days. The answer is waited for as long as `time_limit`; a node that
    /// has not answered then goes on leaving.
    pub async fn decommission(self, time_limit: Duration) -> Result<Decommission, Error> {
        match self.within(time_limit).post("/storage_service/decommission").await {
            Ok(()) => Ok(Decommission::Done),
            Err(Error::TimedOut { .. }) => Ok(Decommission::Unanswered),
            Err(error) => Err(error),
        }
    }

    /// Makes the node write all to disk and cease to serve, until it is started anew.
    pub async fn drain(self, time_limit: Duration) -> Result<(), Error> {
        self.within(time_limit).post("/storage_service/drain").await
    }

    /// Removes data of a keyspace that the node no longer owns.
    pub async fn cleanup(self, keyspace: &str, time_limit: Duration) -> Result<(), Error> {
        self.within(time_limit).post(&format!("/storage_service/keyspace_cleanup/{}", escaped(keyspace))).await
    }

    /// Stops a cleanup that is going on.
    pub async fn stop_cleanup(self) -> Result<(), Error> {
        self.post("/compaction_manager/stop_compaction?type=CLEANUP").await
    }

    /// Writes the recent data of a keyspace to disk.
    pub async fn flush(self, keyspace: &str, time_limit: Duration) -> Result<(), Error> {
        self.within(time_limit).post(&format!("/storage_service/keyspace_flush/{}", escaped(keyspace))).await
    }

    /// Keeps the data of a keyspace as it is now, under the name `tag`.
    pub async fn take_snapshot(self, tag: &str, keyspace: &str, time_limit: Duration) -> Result<(), Error> {
        self.within(time_limit).post(&snapshot_path(tag, keyspace)).await
    }

    /// The snapshots there are, by tag.
    pub async fn snapshots(self) -> Result<BTreeMap<String, Vec<TableSnapshot>>, Error> {
        self.entries("/storage_service/snapshots").await
    }

    /// Removes what [`take_snapshot`](Self::take_snapshot) kept.
    pub async fn remove_snapshot(self, tag: &str, keyspace: &str) -> Result<(), Error> {
        exchange::call(self.address, Method::DELETE, &snapshot_path(tag, keyspace), self.timeout).await.map(drop)
    }

    /// Removes all snapshots of this name, whatever keyspaces they are of.
    pub async fn clear_snapshot(self, tag: &str, time_limit: Duration) -> Result<(), Error> {
        let path = format!("/storage_service/snapshots?tag={}", escaped(tag));
        exchange::call(self.address, Method::DELETE, &path, time_limit).await.map(drop)
    }

    /// Removes a dead node from the ring for good. Its data is made anew from that of others.
    pub async fn remove_node(self, host_id: &str, time_limit: Duration) -> Result<(), Error> {
        self.within(time_limit).post(&format!("/storage_service/remove_node?host_id={}", escaped(host_id))).await
    }

    async fn get<T: DeserializeOwned>(self, path: &str) -> Result<T, Error> {
        let body = exchange::call(self.address, Method::GET, path, self.timeout).await?;
        serde_json::from_slice(&body).map_err(|source| Error::Unexpected { call: format!("GET {path}"), source })
    }

    async fn entries<V: DeserializeOwned>(self, path: &str) -> Result<BTreeMap<String, V>, Error> {
        let entries: Vec<Entry<V>> = self.get(path).await?;
        Ok(entries.into_iter().map(|entry| (entry.key, entry.value)).collect())
    }

    async fn post(self, path: &str) -> Result<(), Error> {
        exchange::call(self.address, Method::POST, path, self.timeout).await.map(drop)
    }
}

fn host_query(address: Option<&str>) -> String {
    address.map(|address| format!("?host={}", escaped(address))).unwrap_or_default()
}

fn snapshot_path(tag: &str, keyspace: &str) -> String {
    format!("/storage_service/snapshots?tag={}&kn={}", escaped(tag), escaped(keyspace))
}

/// A text that may stand in a path or a query. Colons are left as they are: ScyllaDB takes addresses literally.
fn escaped(text: &str) -> String {
    let letter = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(letter).collect()
}

/// Whether all nodes that can be reached have the same schema.
pub fn schema_agrees(versions: &BTreeMap<String, Vec<String>>) -> bool {
    versions.keys().filter(|version| *version != "UNREACHABLE").count() == 1
}
