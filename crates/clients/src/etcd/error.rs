use thiserror::Error;

use super::Code;
use crate::server::{BadAddress, BadAuthorities, BadIdentity, Silence, Unconnected, Unusable};

/// etcd tells these two apart in words only; its own clients go by them too.
const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
const FUTURE: &str = "etcdserver: mvcc: required revision is a future revision";

/// A call that failed. `call` says which, such as `etcdserverpb.Maintenance/Defragment at http://main-client.default.svc:2379`.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the fields say what their names say")]
pub enum Error {
    /// The address cannot be used.
    #[error("{address:?} is no address of etcd")]
    BadAddress { address: String, source: BadAddress },
    /// The authorities that are to be trusted cannot be used.
    #[error("the certificate of {address} cannot be checked")]
    BadAuthorities { address: String, source: BadAuthorities },
    /// What we are to show to etcd cannot be used.
    #[error("the certificate to be shown to {address} cannot be used")]
    BadIdentity { address: String, source: BadIdentity },
    /// There was no connection, so that nobody got the request.
    #[error("{call} was not sent, because there is no connection")]
    NotSent { call: String, source: std::io::Error },
    /// Whoever listens there has not proved to be etcd. Nobody got the request.
    #[error("{call} was not sent, because the certificate there is not trusted")]
    NotTrusted { call: String, source: rustls::Error },
    /// etcd does not take our certificate, or wants one and has got none. It has not looked at the request.
    #[error("{call} was not looked at, because our certificate is not accepted")]
    NotAdmitted { call: String, source: rustls::Error },
    /// The request was sent and may have been carried out, or may be even now.
    #[error("{call} was sent, but not answered; it may have been carried out all the same")]
    NoAnswer { call: String, source: Silence },
    /// The revision was given up before.
    #[error("{call} found revision {revision} compacted already")]
    AlreadyCompacted { call: String, revision: i64 },
    /// There is no such revision yet.
    #[error("{call} found no revision {revision} yet")]
    FutureRevision { call: String, revision: i64 },
    /// etcd says no, in these words. When it gave up waiting (`Unavailable`), it may come to it all the same.
    #[error("{call} was answered with {code}: {message}")]
    Answered { call: String, code: Code, message: String },
}

impl Error {
    pub(super) fn unusable(address: &str, source: Unusable) -> Self {
        let address = address.to_owned();
        match source {
            Unusable::Address(source) => Self::BadAddress { address, source },
            Unusable::Authorities(source) => Self::BadAuthorities { address, source },
            Unusable::Identity(source) => Self::BadIdentity { address, source },
        }
    }

    pub(super) fn unconnected(call: String, source: Unconnected) -> Self {
        match source {
            Unconnected::Failed(source) => Self::NotSent { call, source },
            Unconnected::NotTrusted(source) => Self::NotTrusted { call, source },
            Unconnected::NotAdmitted(source) => Self::NotAdmitted { call, source },
        }
    }

    /// The same, if it is about a compaction.
    pub(super) fn of_compaction(self, revision: i64) -> Self {
        match self {
            Self::Answered { call, code: Code::OutOfRange, message } if message == COMPACTED => {
                Self::AlreadyCompacted { call, revision }
            }
            Self::Answered { call, code: Code::OutOfRange, message } if message == FUTURE => {
                Self::FutureRevision { call, revision }
            }
            other => other,
        }
    }

    /// Whether the same call would fail again, unless something else is changed first.
    pub fn is_final(&self) -> bool {
        match self {
            Self::BadAddress { .. }
            | Self::BadAuthorities { .. }
            | Self::BadIdentity { .. }
            | Self::NotTrusted { .. }
            | Self::NotAdmitted { .. }
            | Self::AlreadyCompacted { .. }
            | Self::FutureRevision { .. } => true,
            Self::Answered { code, .. } => code.is_final(),
            Self::NotSent { .. } | Self::NoAnswer { .. } => false,
        }
    }

    /// The error in a form for programs.
    ///
    /// | code | error |
    /// |---|---|
    /// | `ERR_ETCD_ADDRESS_INVALID` | `BadAddress` |
    /// | `ERR_ETCD_AUTHORITIES_INVALID` | `BadAuthorities` |
    /// | `ERR_ETCD_IDENTITY_INVALID` | `BadIdentity` |
    /// | `ERR_ETCD_CERTIFICATE_NOT_TRUSTED` | `NotTrusted` |
    /// | `ERR_ETCD_CERTIFICATE_NOT_ACCEPTED` | `NotAdmitted` |
    /// | `ERR_ETCD_UNREACHABLE` | `NotSent` |
    /// | `ERR_ETCD_NOT_ANSWERED` | `NoAnswer` |
    /// | `ERR_ETCD_REVISION_COMPACTED` | `AlreadyCompacted` |
    /// | `ERR_ETCD_REVISION_NOT_REACHED` | `FutureRevision` |
    /// | `ERR_ETCD_UNAVAILABLE` | an answer with `Unavailable` |
    /// | `ERR_ETCD_REQUEST_REFUSED` | any other answer that is final |
    /// | `ERR_ETCD_FAILED` | any other answer |
    pub fn code(&self) -> &'static str {
        match self {
            Self::BadAddress { .. } => "ERR_ETCD_ADDRESS_INVALID",
            Self::BadAuthorities { .. } => "ERR_ETCD_AUTHORITIES_INVALID",
            Self::BadIdentity { .. } => "ERR_ETCD_IDENTITY_INVALID",
            Self::NotTrusted { .. } => "ERR_ETCD_CERTIFICATE_NOT_TRUSTED",
            Self::NotAdmitted { .. } => "ERR_ETCD_CERTIFICATE_NOT_ACCEPTED",
            Self::NotSent { .. } => "ERR_ETCD_UNREACHABLE",
            Self::NoAnswer { .. } => "ERR_ETCD_NOT_ANSWERED",
            Self::AlreadyCompacted { .. } => "ERR_ETCD_REVISION_COMPACTED",
            Self::FutureRevision { .. } => "ERR_ETCD_REVISION_NOT_REACHED",
            Self::Answered { code: Code::Unavailable, .. } => "ERR_ETCD_UNAVAILABLE",
            Self::Answered { code, .. } if code.is_final() => "ERR_ETCD_REQUEST_REFUSED",
            Self::Answered { .. } => "ERR_ETCD_FAILED",
        }
    }
}
