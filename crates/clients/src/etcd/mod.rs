//! etcd's own API, as far as maintenance needs it.
//!
//! It is gRPC, of which only the simplest form is used: one message there, one message back. That much is written here,
//! in `grpc`; a whole framework would be larger than the rest of this crate.

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
    HeaderResponse, AlarmRequest, AlarmResponse, CompactionRequest, MemberListRequest, MemberListResponse, EmptyRequest,
    RangeRequest, StatusResponse,
};

use crate::{
    MAX_MESSAGE, MAX_NAME,
    server::{Resolver, Server, NoResponse, TlsTrust},
};

/// No cluster has more members. Raft clusters have seldom more than seven; each member is a connection of ours.
pub const MAX_MEMBERS: usize = 32;

/// The port at which etcd serves clients where nothing else is said.
pub const PORT: u16 = 2379;

/// How long a call may take that does no work. etcd itself gives up after seven seconds.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long a compaction may take that is waited for until the disk shows it.
const COMPACTION: Duration = Duration::from_secs(600);

/// How etcd is trusted, and who we are to it.
#[derive(Clone)]
pub struct Tls {
    /// PEM bundle of the authorities that are trusted; nobody else is.
    pub ca_bundle: Vec<u8>,
    /// Certificate and key, both PEM, to show to an etcd that wants them.
    pub client_certificate: Option<(Vec<u8>, Vec<u8>)>,
}

/// Says nothing of the key.
impl fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tls").field("has_client_certificate", &self.client_certificate.is_some()).finish_non_exhaustive()
    }
}

/// A member of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterMember {
    /// Its ID.
    pub id: u64,
    /// Its name; empty as long as it has never run.
    pub name: String,
    /// Where clients find it, as it says itself; empty as long as it has never run.
    pub client_urls: Vec<String>,
    /// Whether it has no vote yet.
    pub is_learner: bool,
}

/// How the member stands that was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The ID of its cluster.
    pub cluster_id: u64,
    /// Its ID.
    pub member_id: u64,
    /// The ID of the member that leads, as this one sees it. None when there is no leader.
    pub leader: Option<u64>,
    /// The version of etcd.
    pub version: String,
    /// The last revision that it has.
    pub revision: i64,
    /// Bytes that its database takes on the disk.
    pub db_size: i64,
    /// Bytes of these that hold something. The rest is what defragmentation gives back.
    pub db_size_in_use: i64,
    /// The term of the leader.
    pub raft_term: u64,
    /// How far its log has come.
    pub raft_index: u64,
    /// How much of its log is in the database.
    pub raft_applied_index: u64,
    /// What is wrong with it, in its own words.
    pub errors: Vec<String>,
    /// Whether it has no vote yet.
    pub is_learner: bool,
}

/// An alarm. etcd keeps it until somebody takes it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// The member that raised it.
    pub member_id: u64,
    /// What it is about.
    pub kind: AlarmKind,
}

/// What an alarm is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlarmKind {
    /// The database has reached its quota; the cluster takes no more writes.
    NoSpace,
    /// The member's data differs from that of the others.
    Corrupt,
    /// Something that is not known here.
    Other(i32),
}

/// An etcd, or whichever one answers at an address that leads to several.
#[derive(Clone, Debug)]
pub struct Etcd {
    server: Server,
}

impl Etcd {
    /// The etcd at an address such as `https://main-client.default.svc:2379`. With `tls` the address must be https, and
    /// without it http. Nothing is sent before the first call.
    pub fn new(endpoint: &str, tls: Option<&Tls>, resolver: &Resolver) -> Result<Self, Error> {
        let trust = tls.map(|tls| TlsTrust {
            ca_bundle: &tls.ca_bundle,
            client_certificate: tls.client_certificate.as_ref().map(|(certificate, key)| (certificate.as_slice(), key.as_slice())),
        });
        let server = Server::new(endpoint, trust, b"h2", resolver).map_err(|source| Error::invalid_server(endpoint, source))?;
        Ok(Self { server })
    }

    /// The same, whose certificate is checked for this name and not for the host of the address.
    pub fn verified_as(self, name: &str) -> Result<Self, Error> {
        let endpoint = self.server.to_string();
        let server = self.server.verified_as(name).map_err(|source| Error::invalid_server(&endpoint, source))?;
        Ok(Self { server })
    }

    /// The members of the cluster, as its leader knows them. An answer with more than [`MAX_MEMBERS`] is an error.
    pub async fn members(&self) -> Result<Vec<ClusterMember>, Error> {
        let method = "/etcdserverpb.Cluster/MemberList";
        let response: MemberListResponse = self.call(method, &MemberListRequest { linearizable: true }, TIMEOUT).await?;
        if response.members.len() > MAX_MEMBERS {
            let (call, count) = (grpc::call_name(&self.server, method), response.members.len());
            let source =
                NoResponse::malformed(format!("it lists {count} members, and no more than {MAX_MEMBERS} are possible"));
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

    /// How the member stands that is asked.
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
            is_learner: response.is_learner,
        })
    }

    /// Writes the database of the member that is asked anew, without its gaps. The member serves nobody meanwhile, so
    /// members take turns, and the leader comes last. A member that has begun goes on even when nobody waits any longer.
    pub async fn defragment(&self, time_limit: Duration) -> Result<(), Error> {
        let _: HeaderResponse = self.call("/etcdserverpb.Maintenance/Defragment", &EmptyRequest {}, time_limit).await?;
        Ok(())
    }

    /// Gives up what keys were before `revision`, in the whole cluster. With `physical` it is waited for until the member
    /// that is asked has done it on its disk.
    pub async fn compact(&self, revision: i64, physical: bool) -> Result<(), Error> {
        let time_limit = if physical { COMPACTION } else { TIMEOUT };
        let request = CompactionRequest { revision, physical };
        let answered: Result<HeaderResponse, Error> = self.call("/etcdserverpb.KV/Compact", &request, time_limit).await;
        answered.map(drop).map_err(|error| error.of_compaction(revision))
    }

    /// The alarms of the cluster.
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

    /// Whether the member that is asked can serve: it reads through the leader, and there is no alarm. No answer is an
    /// error, because then nothing is known.
    pub async fn is_healthy(&self) -> Result<bool, Error> {
        let request = RangeRequest { key: b"health".to_vec(), count_only: true };
        let read: Result<HeaderResponse, Error> = self.call("/etcdserverpb.KV/Range", &request, TIMEOUT).await;
        match read {
            Ok(_) => Ok(self.alarms().await?.is_empty()),
            Err(Error::ErrorResponse { code: Code::Unavailable | Code::DeadlineExceeded | Code::DataLoss, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes a key. Maintenance writes none; tests need something to maintain.
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
