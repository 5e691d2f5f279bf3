use thiserror::Error;

use super::Code;
use crate::server::{
    InvalidAddress, InvalidCaBundle, InvalidClientCertificate, InvalidServer, NoResponse, NotConnected,
};

/// etcd distinguishes these two errors only by their messages; its own clients compare them too.
const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
const FUTURE: &str = "etcdserver: mvcc: required revision is a future revision";

/// A call that failed. `call` names it, such as `etcdserverpb.Maintenance/Defragment at
/// http://main-client.default.svc:2379`.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the fields say what their names say")]
pub enum Error {
    /// The address is invalid.
    #[error("{address:?} is not a valid address of etcd")]
    InvalidAddress { address: String, source: InvalidAddress },
    /// The CA bundle is invalid.
    #[error("the certificate of {address} cannot be verified")]
    InvalidCaBundle { address: String, source: InvalidCaBundle },
    /// The client certificate is invalid.
    #[error("the client certificate for {address} is invalid")]
    InvalidClientCertificate { address: String, source: InvalidClientCertificate },
    /// The client could not connect, so the request was not sent.
    #[error("{call} was not sent, because the connection failed")]
    NotSent { call: String, source: std::io::Error },
    /// The server certificate is not trusted, so the request was not sent.
    #[error("{call} was not sent, because the server certificate is not trusted")]
    NotTrusted { call: String, source: rustls::Error },
    /// etcd rejected the client certificate, or requires one and got none. It did not process the request.
    #[error("{call} was not processed, because etcd rejected the client certificate or got none")]
    ClientCertificateRejected { call: String, source: rustls::Error },
    /// The request was sent and got no response. It may have been carried out, or may be in progress.
    #[error("{call} was sent, but got no response; it may have been carried out")]
    NoResponse { call: String, source: NoResponse },
    /// The revision is already compacted.
    #[error("{call} failed: revision {revision} is already compacted")]
    AlreadyCompacted { call: String, revision: i64 },
    /// The revision is a future one.
    #[error("{call} failed: revision {revision} does not exist yet")]
    FutureRevision { call: String, revision: i64 },
    /// etcd returned an error. After `Unavailable`, it may still carry out the request.
    #[error("{call} returned {code}: {message}")]
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

    /// Converts the errors that are specific to a compaction.
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

    /// Whether a retry of the call would fail in the same way until a user corrects the cause.
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

    /// Returns the machine-readable code of the error.
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
    /// | `ERR_ETCD_UNAVAILABLE` | an error response with `Unavailable` |
    /// | `ERR_ETCD_REQUEST_REFUSED` | any other error response that is permanent |
    /// | `ERR_ETCD_FAILED` | any other error response |
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
