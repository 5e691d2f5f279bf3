//! Client of etcd's gRPC API, with the calls that maintenance needs.
//!
//! All of them are unary calls. The module `grpc` implements these; a gRPC framework would be larger than the rest of
//! this crate.

mod code;
mod error;
mod grpc;
mod messages;
#[cfg(test)]
mod tests;

use std::{fmt, time::Duration};

use prost::Message;

pub use code::Code;
pub use error::Error;
use messages::{
    AlarmRequest, AlarmResponse, CompactionRequest, EmptyRequest, HeaderResponse, MemberListRequest,
    MemberListResponse, RangeRequest, StatusResponse,
};

use crate::{
    MAX_MESSAGE, MAX_NAME,
    server::{NoResponse, Resolver, Server, TlsTrust},
};

/// Maximum number of members of a cluster. Raft clusters seldom have more than seven, and the client opens a
/// connection to each.
pub const MAX_MEMBERS: usize = 32;

/// The default client port of etcd.
pub const PORT: u16 = 2379;

/// Timeout of calls that do no work. etcd itself times out after seven seconds.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of a physical compaction.
const COMPACTION_TIMEOUT: Duration = Duration::from_secs(600);

/// TLS settings of a client.
#[derive(Clone)]
pub struct Tls {
    /// The only trusted CA certificates, in PEM.
    pub ca_bundle: Vec<u8>,
    /// Client certificate and key, both in PEM, for an etcd that requires them.
    pub client_certificate: Option<(Vec<u8>, Vec<u8>)>,
}

/// Omits the key.
impl fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Tls")
            .field("has_client_certificate", &self.client_certificate.is_some())
            .finish_non_exhaustive()
    }
}

/// A member of an etcd cluster, as the member list has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterMember {
    /// Its ID.
    pub id: u64,
    /// Its name; empty before it has started for the first time.
    pub name: String,
    /// Its advertised client URLs; empty before it has started for the first time.
    pub client_urls: Vec<String>,
    /// Whether it is a learner, which does not vote. Learners refuse all calls of this client except for `status`.
    pub is_learner: bool,
}

/// The status of the member that was called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The ID of its cluster.
    pub cluster_id: u64,
    /// Its ID.
    pub member_id: u64,
    /// The ID of the leader that this member knows; none if it knows no leader.
    pub leader: Option<u64>,
    /// The version of etcd.
    pub version: String,
    /// Its latest revision.
    pub revision: i64,
    /// Size of its database on disk, in bytes.
    pub db_size: i64,
    /// Bytes of the database that are in use. Defragmentation frees the rest.
    pub db_size_in_use: i64,
    /// The Raft term.
    pub raft_term: u64,
    /// The Raft committed index.
    pub raft_index: u64,
    /// The Raft applied index.
    pub raft_applied_index: u64,
    /// The errors that the member reports.
    pub errors: Vec<String>,
}

/// An alarm. etcd keeps it until a user disarms it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// The member that raised it.
    pub member_id: u64,
    /// The kind of alarm.
    pub kind: AlarmKind,
}

/// The kind of an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlarmKind {
    /// The database has reached its quota, and the cluster rejects writes.
    NoSpace,
    /// The member's data differs from that of the others.
    Corrupt,
    /// An unknown kind.
    Other(i32),
}

/// A client of one etcd member, or of a Service that selects several.
#[derive(Clone, Debug)]
pub struct Etcd {
    server: Server,
}

impl Etcd {
    /// Creates a client for an address such as `https://main-client.default.svc:2379`. The scheme has to be https with
    /// `tls`, and http without. The client connects at the first call.
    pub fn new(endpoint: &str, tls: Option<&Tls>, resolver: &Resolver) -> Result<Self, Error> {
        let trust = tls.map(|tls| TlsTrust {
            ca_bundle: &tls.ca_bundle,
            client_certificate: tls
                .client_certificate
                .as_ref()
                .map(|(certificate, key)| (certificate.as_slice(), key.as_slice())),
        });
        let server =
            Server::new(endpoint, trust, b"h2", resolver).map_err(|source| Error::invalid_server(endpoint, source))?;
        Ok(Self { server })
    }

    /// Verifies the server certificate against this name instead of the host of the address.
    pub fn verified_as(self, name: &str) -> Result<Self, Error> {
        let endpoint = self.server.to_string();
        let server = self.server.verified_as(name).map_err(|source| Error::invalid_server(&endpoint, source))?;
        Ok(Self { server })
    }

    /// Returns the members of the cluster by a linearizable read. A response with more than [`MAX_MEMBERS`] is an
    /// error.
    pub async fn members(&self) -> Result<Vec<ClusterMember>, Error> {
        let method = "/etcdserverpb.Cluster/MemberList";
        let response: MemberListResponse =
            self.call(method, &MemberListRequest { linearizable: true }, TIMEOUT).await?;
        if response.members.len() > MAX_MEMBERS {
            let (call, count) = (grpc::call_name(&self.server, method), response.members.len());
            let source = NoResponse::malformed(format!("it lists {count} members, and the maximum is {MAX_MEMBERS}"));
            return Err(Error::NoResponse { call, source });
        }
        let member = |member: messages::Member| ClusterMember {
            id: member.id,
            name: messina_text::line(&member.name, MAX_NAME),
            client_urls: member.client_urls,
            is_learner: member.is_learner,
        };
        Ok(response.members.into_iter().map(member).collect())
    }

    /// Returns the status of the member that is called.
    pub async fn status(&self) -> Result<Status, Error> {
        let response: StatusResponse = self.call("/etcdserverpb.Maintenance/Status", &EmptyRequest {}, TIMEOUT).await?;
        let header = response.header.unwrap_or_default();
        Ok(Status {
            cluster_id: header.cluster_id,
            member_id: header.member_id,
            leader: Some(response.leader).filter(|leader| *leader != 0),
            version: messina_text::line(&response.version, MAX_NAME),
            revision: header.revision,
            db_size: response.db_size,
            db_size_in_use: response.db_size_in_use,
            raft_term: response.raft_term,
            raft_index: response.raft_index,
            raft_applied_index: response.raft_applied_index,
            errors: response.errors.iter().map(|error| messina_text::line(error, MAX_MESSAGE)).collect(),
        })
    }

    /// Defragments the database of the member that is called. The member does not serve requests meanwhile, so callers
    /// defragment one member after the other, the leader last. The member continues after the timeout.
    pub async fn defragment(&self, time_limit: Duration) -> Result<(), Error> {
        let _: HeaderResponse = self.call("/etcdserverpb.Maintenance/Defragment", &EmptyRequest {}, time_limit).await?;
        Ok(())
    }

    /// Compacts the revisions before `revision` in the whole cluster. With `physical`, etcd responds only after the
    /// member that is called has applied the compaction to its database.
    pub async fn compact(&self, revision: i64, physical: bool) -> Result<(), Error> {
        let time_limit = if physical { COMPACTION_TIMEOUT } else { TIMEOUT };
        let request = CompactionRequest { revision, physical };
        let result: Result<HeaderResponse, Error> = self.call("/etcdserverpb.KV/Compact", &request, time_limit).await;
        result.map(drop).map_err(|error| error.of_compaction(revision))
    }

    /// Returns the alarms of the cluster.
    pub async fn alarms(&self) -> Result<Vec<Alarm>, Error> {
        let response: AlarmResponse = self.call("/etcdserverpb.Maintenance/Alarm", &AlarmRequest {}, TIMEOUT).await?;
        let alarm = |alarm: messages::AlarmMember| Alarm {
            member_id: alarm.member_id,
            kind: match alarm.alarm {
                1 => AlarmKind::NoSpace,
                2 => AlarmKind::Corrupt,
                other => AlarmKind::Other(other),
            },
        };
        Ok(response.alarms.into_iter().map(alarm).collect())
    }

    /// Whether the member that is called can serve: a linearizable read succeeds, and there is no alarm. No response
    /// is an error, because the health is unknown then.
    pub async fn is_healthy(&self) -> Result<bool, Error> {
        let request = RangeRequest { key: b"health".to_vec(), count_only: true };
        let read: Result<HeaderResponse, Error> = self.call("/etcdserverpb.KV/Range", &request, TIMEOUT).await;
        match read {
            Ok(_) => Ok(self.alarms().await?.is_empty()),
            Err(Error::ErrorResponse { code: Code::Unavailable | Code::DeadlineExceeded | Code::DataLoss, .. }) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes a key, for tests.
    #[cfg(test)]
    pub(crate) async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let request = messages::PutRequest { key: key.to_vec(), value: value.to_vec() };
        let _: HeaderResponse = self.call("/etcdserverpb.KV/Put", &request, TIMEOUT).await?;
        Ok(())
    }

    async fn call<A: Message + Default>(
        &self,
        method: &'static str,
        request: &impl Message,
        time_limit: Duration,
    ) -> Result<A, Error> {
        grpc::call(&self.server, method, request, time_limit).await
    }
}
