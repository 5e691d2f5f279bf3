use thiserror::Error;

use super::Code;
use crate::server::{InvalidAddress, InvalidCaBundle, InvalidClientCertificate, NoResponse, NotConnected, InvalidServer};

/// etcd tells these two apart in words only; its own clients go by them too.
const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
const FUTURE: &str = "etcdserver: mvcc: required revision is a future revision";

/// A call that failed. `call` says which, such as `etcdserverpb.Maintenance/Defragment at http://main-client.default.svc:2379`.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the fields say what their names say")]
pub enum Error {
    /// The address cannot be used.
    #[error("{address:?} is no address of etcd")]
    InvalidAddress { address: String, source: InvalidAddress },
    /// The authorities that are to be trusted cannot be used.
    #[error("the certificate of {address} cannot be checked")]
    InvalidCaBundle { address: String, source: InvalidCaBundle },
    /// What we are to show to etcd cannot be used.
    #[error("the certificate to be shown to {address} cannot be used")]
    InvalidClientCertificate { address: String, source: InvalidClientCertificate },
    /// There was no connection, so that nobody got the request.
    #[error("{call} was not sent, because there is no connection")]
    NotSent { call: String, source: std::io::Error },
    /// Whoever listens there has not proved to be etcd. Nobody got the request.
    #[error("{call} was not sent, because the certificate there is not trusted")]
    NotTrusted { call: String, source: rustls::Error },
    /// etcd does not take our certificate, or wants one and has got none. It has not looked at the request.
    #[error("{call} was not looked at, because our certificate is not accepted")]
    ClientCertificateRejected { call: String, source: rustls::Error },
    /// The request was sent and may have been carried out, or may be even now.
    #[error("{call} was sent, but not answered; it may have been carried out all the same")]
    NoResponse { call: String, source: NoResponse },
    /// The revision was given up before.
    #[error("{call} found revision {revision} compacted already")]
    AlreadyCompacted { call: String, revision: i64 },
    /// There is no such revision yet.
    #[error("{call} found no revision {revision} yet")]
    FutureRevision { call: String, revision: i64 },
    /// etcd says no, in these words. When it gave up waiting (`Unavailable`), it may come to it all the same.
    #[error("{call} was answered with {code}: {message}")]
    ErrorResponse { call: String, code: Code, message: String },
}

impl Error {
    pub(super) fn invalid_server(address: &str, source: InvalidServer) -> Self {
        let address = address.to_owned();
        match source {
            InvalidServer::Address(source) => Self::InvalidAddress { address, source },
            InvalidServer::CaBundle(source) => Self::InvalidCaBundle { address, source },
            InvalidServer::ClientCertificate(source) => Self::InvalidClientCertificate { address, source },
        }
    }

    pub(super) fn not_connected(call: String, source: NotConnected) -> Self {
        match source {
            NotConnected::Failed(source) => Self::NotSent { call, source },
            NotConnected::NotTrusted(source) => Self::NotTrusted { call, source },
            NotConnected::ClientCertificateRejected(source) => Self::ClientCertificateRejected { call, source },
        }
    }

    /// The same, if it is about a compaction.
    pub(super) fn of_compaction(self, revision: i64) -> Self {
        match self {
            Self::ErrorResponse { call, code: Code::OutOfRange, message } if message == COMPACTED => {
                Self::AlreadyCompacted { call, revision }
            }
            Self::ErrorResponse { call, code: Code::OutOfRange, message } if message == FUTURE => {
                Self::FutureRevision { call, revision }
            }
            other => other,
        }
    }

    /// Whether the same call would fail again, unless something else is changed first.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::InvalidAddress { .. }
            | Self::InvalidCaBundle { .. }
            | Self::InvalidClientCertificate { .. }
            | Self::NotTrusted { .. }
            | Self::ClientCertificateRejected { .. }
            | Self::AlreadyCompacted { .. }
            | Self::FutureRevision { .. } => true,
            Self::ErrorResponse { code, .. } => code.is_permanent(),
            Self::NotSent { .. } | Self::NoResponse { .. } => false,
        }
    }

    /// The error in a form for programs.
    ///
    /// | code | error |
    /// |---|---|
    /// | `ERR_ETCD_ADDRESS_INVALID` | `InvalidAddress` |
    /// | `ERR_ETCD_AUTHORITIES_INVALID` | `InvalidCaBundle` |
    /// | `ERR_ETCD_IDENTITY_INVALID` | `InvalidClientCertificate` |
    /// | `ERR_ETCD_CERTIFICATE_NOT_TRUSTED` | `NotTrusted` |
    /// | `ERR_ETCD_CERTIFICATE_NOT_ACCEPTED` | `ClientCertificateRejected` |
    /// | `ERR_ETCD_UNREACHABLE` | `NotSent` |
    /// | `ERR_ETCD_NOT_ANSWERED` | `NoResponse` |
    /// | `ERR_ETCD_REVISION_COMPACTED` | `AlreadyCompacted` |
    /// | `ERR_ETCD_REVISION_NOT_REACHED` | `FutureRevision` |
    /// | `ERR_ETCD_UNAVAILABLE` | an answer with `Unavailable` |
    /// | `ERR_ETCD_REQUEST_REFUSED` | any other answer that is final |
    /// | `ERR_ETCD_FAILED` | any other answer |
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidAddress { .. } => "ERR_ETCD_ADDRESS_INVALID",
            Self::InvalidCaBundle { .. } => "ERR_ETCD_AUTHORITIES_INVALID",
            Self::InvalidClientCertificate { .. } => "ERR_ETCD_IDENTITY_INVALID",
            Self::NotTrusted { .. } => "ERR_ETCD_CERTIFICATE_NOT_TRUSTED",
            Self::ClientCertificateRejected { .. } => "ERR_ETCD_CERTIFICATE_NOT_ACCEPTED",
            Self::NotSent { .. } => "ERR_ETCD_UNREACHABLE",
            Self::NoResponse { .. } => "ERR_ETCD_NOT_ANSWERED",
            Self::AlreadyCompacted { .. } => "ERR_ETCD_REVISION_COMPACTED",
            Self::FutureRevision { .. } => "ERR_ETCD_REVISION_NOT_REACHED",
            Self::ErrorResponse { code: Code::Unavailable, .. } => "ERR_ETCD_UNAVAILABLE",
            Self::ErrorResponse { code, .. } if code.is_permanent() => "ERR_ETCD_REQUEST_REFUSED",
            Self::ErrorResponse { .. } => "ERR_ETCD_FAILED",
        }
    }
}
