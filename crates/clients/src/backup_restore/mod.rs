//! Client of the HTTP API of etcd-backup-restore, the sidecar that takes the backups of an etcd cluster.
//!
//! It calls the Service of all sidecars. The leader takes snapshots; the others forward requests to it.

mod error;
mod last_elements;
#[cfg(test)]
mod tests;

use std::{io, time::Duration};

use http::{Method, Response, StatusCode};
use http_body_util::BodyExt;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use tokio::time::timeout;

pub use error::Error;
use last_elements::LastElements;

use crate::{
    MAX_NAME, exchange,
    server::{Connection, NoResponse, NotConnected, Resolver, Server, TlsTrust},
};

/// The port of the API, unless the Etcd sets another.
pub const PORT: u16 = 8080;

/// Maximum length of a response. The longest lists all delta snapshots since the last full one; little of it is kept.
const MAX_RESPONSE: usize = 16 << 20;

/// Timeout for the list of snapshots. A sidecar that does not find its leader responds after half a minute.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);

/// The kind of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotKind {
    /// All data.
    Full,
    /// The changes since the previous snapshot.
    Delta,
}

/// A snapshot, as the sidecar reports it. Only the name is always present.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// The kind; none if the sidecar reports an unknown one.
    #[serde(default, deserialize_with = "kind")]
    pub kind: Option<SnapshotKind>,
    /// The file name.
    #[serde(rename = "snapName", deserialize_with = "name")]
    pub name: String,
    /// The directory of the file, if it has one of its own.
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
    /// Whether it was requested as the final snapshot of the cluster.
    #[serde(default)]
    pub is_final: bool,
}

/// The latest snapshots, from which the cluster would be restored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatestSnapshots {
    /// The latest full snapshot.
    pub full: Option<Snapshot>,
    /// The latest delta snapshot after it.
    pub delta: Option<Snapshot>,
}

/// A client of the sidecars of one etcd cluster.
#[derive(Clone, Debug)]
pub struct Sidecar {
    server: Server,
}

impl Sidecar {
    /// Creates a client for an address such as `https://main-client.default.svc:8080`. For https, `ca_bundle` is
    /// required and holds the only trusted CA certificates, in PEM; for http it has to be none.
    pub fn new(address: &str, ca_bundle: Option<&[u8]>, resolver: &Resolver) -> Result<Self, Error> {
        let trust = ca_bundle.map(|ca_bundle| TlsTrust { ca_bundle, client_certificate: None });
        let server = Server::new(address, trust, b"http/1.1", resolver)
            .map_err(|source| Error::invalid_server(address, source))?;
        Ok(Self { server })
    }

    /// Verifies the server certificate against this name instead of the host of the address.
    pub fn verified_as(self, name: &str) -> Result<Self, Error> {
        let address = self.server.to_string();
        let server = self.server.verified_as(name).map_err(|source| Error::invalid_server(&address, source))?;
        Ok(Self { server })
    }

    /// Returns the latest snapshots.
    pub async fn latest_snapshots(&self) -> Result<LatestSnapshots, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Response {
            full_snapshot: Option<Snapshot>,
            delta_snapshots: Option<Vec<Snapshot>>,
        }
        let response: Response = self.call(Method::GET, "/snapshot/latest", LIST_TIMEOUT).await?;
        let delta = response.delta_snapshots.and_then(|mut deltas| deltas.pop());
        Ok(LatestSnapshots { full: response.full_snapshot, delta })
    }

    /// Takes a snapshot and waits for it up to `time_limit`. Returns none if nothing has changed since the previous
    /// snapshot, so that no delta snapshot is needed.
    ///
    /// The request is sent once and never retried. The sidecar continues after the timeout. Only full snapshots can be
    /// final: a second final snapshot of the same revision is not taken, and the first one is returned.
    pub async fn take_snapshot(
        &self,
        kind: SnapshotKind,
        is_final: bool,
        time_limit: Duration,
    ) -> Result<Option<Snapshot>, Error> {
        let path = match (kind, is_final) {
            (SnapshotKind::Full, false) => "/snapshot/full",
            (SnapshotKind::Full, true) => "/snapshot/full?final=true",
            (SnapshotKind::Delta, _) => "/snapshot/delta",
        };
        match kind {
            SnapshotKind::Delta => self.call(Method::POST, path, time_limit).await,
            // A full snapshot is always taken.
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
        let request = exchange::request(method, path, self.server.authority().as_str())
            .map_err(|source| Error::not_connected(&call, NotConnected::Failed(io::Error::other(source))))?;
        let Connection { stream, remaining, .. } =
            self.server.connect(time_limit).await.map_err(|source| Error::not_connected(&call, source))?;
        let response = timeout(remaining, exchange::send(stream, request, MAX_RESPONSE, read)).await;
        let result = match response.unwrap_or(Err(NoResponse::TimedOut(time_limit))) {
            Ok((StatusCode::OK, body)) => serde_json::from_slice(&body).map_err(NoResponse::malformed),
            Ok((status, _)) => return Err(Error::ErrorResponse { call, status }),
            Err(source) => Err(source),
        };
        result.map_err(|source| Error::NoResponse { call, source })
    }
}

/// Returns the status of a response and, if it is 200, the body reduced by [`LastElements`].
async fn read(response: Response<exchange::Body>) -> Result<(StatusCode, Vec<u8>), NoResponse> {
    let (status, mut last_elements) = (response.status(), LastElements::default());
    // Any other status suffices, even if the connection breaks before the end of the body.
    if status == StatusCode::OK {
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            if let Some(bytes) = frame.map_err(exchange::body_error)?.data_ref() {
                last_elements.add(bytes).map_err(NoResponse::malformed)?;
            }
        }
    }
    Ok((status, last_elements.into_text()))
}

/// Deserializes a name and sanitizes it, because it is written to statuses and compared with names there.
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
