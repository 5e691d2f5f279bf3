//! The HTTP API of etcd-backup-restore, the sidecar that keeps the backups of an etcd cluster.
//!
//! Asked is the Service of all sidecars. The one that leads takes snapshots; the others pass requests on to it.

mod error;
mod exchange;
mod last_elements;
#[cfg(test)]
mod tests;

use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};

pub use error::Error;

use crate::{
    MAX_NAME,
    server::{Resolver, Server, NoResponse, TlsTrust},
};

/// The port of the API where an Etcd names no other.
pub const PORT: u16 = 8080;

/// How long it may take to learn what there is. A sidecar that does not find its leader answers after half a minute.
const LISTING: Duration = Duration::from_secs(60);

/// What a snapshot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotKind {
    /// Everything.
    Full,
    /// What changed since the snapshot before.
    Delta,
}

/// A snapshot, as the sidecar tells of it. Only its name is certain to be told.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// What it holds; none when the sidecar says something that is not known here.
    #[serde(default, deserialize_with = "kind")]
    pub kind: Option<SnapshotKind>,
    /// The name of its file.
    #[serde(rename = "snapName", deserialize_with = "name")]
    pub name: String,
    /// The folder of its file, if it has one of its own.
    #[serde(default, rename = "snapDir", deserialize_with = "name")]
    pub dir: String,
    /// When it was taken.
    #[serde(default)]
    pub created_on: Timestamp,
    /// The first revision that it holds.
    #[serde(default)]
    pub start_revision: i64,
    /// The last revision that it holds.
    #[serde(default)]
    pub last_revision: i64,
    /// Whether it was asked for as the last one of its cluster.
    #[serde(default)]
    pub is_final: bool,
}

/// The snapshots from which the cluster would be restored now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatestSnapshots {
    /// The last full one.
    pub full: Option<Snapshot>,
    /// The last one after it.
    pub delta: Option<Snapshot>,
}

/// The sidecars of one etcd cluster.
#[derive(Clone, Debug)]
pub struct Sidecar {
    server: Server,
}

impl Sidecar {
    /// The sidecars at an address such as `https://main-client.default.svc:8080`. For https, `ca_bundle` is the PEM bundle
    /// of those who are trusted, and nobody else is; for http there are none.
    pub fn new(address: &str, ca_bundle: Option<&[u8]>, resolver: &Resolver) -> Result<Self, Error> {
        let trust = ca_bundle.map(|ca_bundle| TlsTrust { ca_bundle, client_certificate: None });
        let server =
            Server::new(address, trust, b"http/1.1", resolver).map_err(|source| Error::invalid_server(address, source))?;
        Ok(Self { server })
    }

    /// The same, whose certificate is checked for this name and not for the host of the address.
    pub fn verified_as(self, name: &str) -> Result<Self, Error> {
        let address = self.server.to_string();
        let server = self.server.verified_as(name).map_err(|source| Error::invalid_server(&address, source))?;
        Ok(Self { server })
    }

    /// The snapshots that there are.
    pub async fn latest_snapshots(&self) -> Result<LatestSnapshots, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Response {
            full_snapshot: Option<Snapshot>,
            delta_snapshots: Option<Vec<Snapshot>>,
        }
        let response: Response = self.call(Method::GET, "/snapshot/latest", LISTING).await?;
        let delta = response.delta_snapshots.and_then(|mut deltas| deltas.pop());
        Ok(LatestSnapshots { full: response.full_snapshot, delta })
    }

    /// Takes a snapshot, and waits for it as long as `time_limit`. None: nothing has changed since the snapshot before, so
    /// there is no need for a delta.
    ///
    /// The request is sent once, whatever becomes of it. A sidecar that has it goes on even when nobody waits any longer.
    /// Only full snapshots can be final ones: then a second one of the same revision is not taken, and the first is told.
    pub async fn take_snapshot(&self, kind: SnapshotKind, is_final: bool, time_limit: Duration) -> Result<Option<Snapshot>, Error> {
        let path = match (kind, is_final) {
            (SnapshotKind::Full, false) => "/snapshot/full",
            (SnapshotKind::Full, true) => "/snapshot/full?final=true",
            (SnapshotKind::Delta, _) => "/snapshot/delta",
        };
        match kind {
            SnapshotKind::Delta => self.call(Method::POST, path, time_limit).await,
            // There is always something to be had in full.
            SnapshotKind::Full => self.call(Method::POST, path, time_limit).await.map(Some),
        }
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &'static str,
        time_limit: Duration,
    ) -> Result<T, Error> {
        let call = format!("{method} {}{path}", self.server);
        let body = exchange::call(&self.server, method, path, &call, time_limit).await?;
        serde_json::from_slice(&body).map_err(|source| Error::NoResponse { call, source: NoResponse::malformed(source) })
    }
}

/// A name, which ends in statuses and is compared with those there.
fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(messina_text::line(&String::deserialize(deserializer)?, MAX_NAME))
}

fn kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SnapshotKind>, D::Error> {
    Ok(match String::deserialize(deserializer)?.as_str() {
        "Full" => Some(SnapshotKind::Full),
        "Incr" => Some(SnapshotKind::Delta),
        _ => None,
    })
}
