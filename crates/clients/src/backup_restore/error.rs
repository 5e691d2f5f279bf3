use http::StatusCode;
use thiserror::Error;

use crate::server::{InvalidAddress, InvalidCaBundle, InvalidServer, NoResponse, NotConnected};

/// A call that failed. `call` names it, such as `POST http://main-client.default.svc:8080/snapshot/full`.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the fields say what their names say")]
pub enum Error {
    /// The address is invalid.
    #[error("{address:?} is not a valid address of etcd-backup-restore")]
    InvalidAddress { address: String, source: InvalidAddress },
    /// The CA bundle is invalid.
    #[error("the certificate of {address} cannot be verified")]
    InvalidCaBundle { address: String, source: InvalidCaBundle },
    /// The client could not connect, so the request was not sent.
    #[error("{call} was not sent, because the connection failed")]
    NotSent { call: String, source: std::io::Error },
    /// The server certificate is not trusted, so the request was not sent.
    #[error("{call} was not sent, because the server certificate is not trusted")]
    NotTrusted { call: String, source: rustls::Error },
    /// The request was sent and got no response. It may have been carried out, or may be in progress.
    #[error("{call} was sent, but got no response; it may have been carried out")]
    NoResponse { call: String, source: NoResponse },
    /// The sidecar returned an error status. It returns no message with it.
    #[error("{call} returned {status}: {}", describe_status(*status))]
    ErrorResponse { call: String, status: StatusCode },
}

impl Error {
    pub(super) fn invalid_server(address: &str, source: InvalidServer) -> Self {
        let address = address.to_owned();
        match source {
            InvalidServer::Address(source) => Self::InvalidAddress { address, source },
            InvalidServer::CaBundle(source) => Self::InvalidCaBundle { address, source },
            // This client has no client certificate, so this does not occur.
            InvalidServer::ClientCertificate(source) => {
                let source = InvalidCaBundle::Unreadable(rustls::Error::General(source.to_string()));
                Self::InvalidCaBundle { address, source }
            }
        }
    }

    pub(super) fn not_connected(call: &str, source: NotConnected) -> Self {
        let call = call.to_owned();
        match source {
            NotConnected::Failed(source) => Self::NotSent { call, source },
            NotConnected::NotTrusted(source) => Self::NotTrusted { call, source },
            // Sidecars request no client certificate. A server that does is not the sidecar.
            NotConnected::ClientCertificateRejected(source) => {
                Self::NotSent { call, source: std::io::Error::other(source) }
            }
        }
    }

    /// Whether a retry of the call would fail in the same way until a user corrects the cause.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::InvalidAddress { .. } | Self::InvalidCaBundle { .. } | Self::NotTrusted { .. } => true,
            Self::ErrorResponse { status, .. } => *status == StatusCode::BAD_REQUEST,
            Self::NotSent { .. } | Self::NoResponse { .. } => false,
        }
    }

    /// Whether the snapshot may have been taken. The sidecar returns 500 also if it saved the snapshot and a later
    /// step failed, and 502 if it forwarded the request to its leader and got no response.
    pub fn may_have_been_carried_out(&self) -> bool {
        match self {
            Self::NoResponse { .. } => true,
            Self::ErrorResponse { status, .. } => {
                status.is_server_error() && *status != StatusCode::SERVICE_UNAVAILABLE
            }
            _ => false,
        }
    }

    /// Returns the machine-readable code of the error.
    ///
    /// | code | error |
    /// |---|---|
    /// | `ERR_SNAPSHOT_ADDRESS_INVALID` | `InvalidAddress` |
    /// | `ERR_SNAPSHOT_AUTHORITIES_INVALID` | `InvalidCaBundle` |
    /// | `ERR_SNAPSHOT_CERTIFICATE_NOT_TRUSTED` | `NotTrusted` |
    /// | `ERR_SNAPSHOT_SIDECAR_UNREACHABLE` | `NotSent` |
    /// | `ERR_SNAPSHOT_NOT_ANSWERED` | `NoResponse` |
    /// | `ERR_SNAPSHOT_REQUEST_REFUSED` | 400 |
    /// | `ERR_SNAPSHOT_SIDECAR_NOT_READY` | 405 |
    /// | `ERR_SNAPSHOT_FAILED` | 500 |
    /// | `ERR_SNAPSHOT_SIDECAR_UNAVAILABLE` | 503 |
    /// | `ERR_SNAPSHOT_ANSWER_UNEXPECTED` | any other status |
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidAddress { .. } => "ERR_SNAPSHOT_ADDRESS_INVALID",
            Self::InvalidCaBundle { .. } => "ERR_SNAPSHOT_AUTHORITIES_INVALID",
            Self::NotTrusted { .. } => "ERR_SNAPSHOT_CERTIFICATE_NOT_TRUSTED",
            Self::NotSent { .. } => "ERR_SNAPSHOT_SIDECAR_UNREACHABLE",
            Self::NoResponse { .. } => "ERR_SNAPSHOT_NOT_ANSWERED",
            Self::ErrorResponse { status, .. } => match *status {
                StatusCode::BAD_REQUEST => "ERR_SNAPSHOT_REQUEST_REFUSED",
                StatusCode::METHOD_NOT_ALLOWED => "ERR_SNAPSHOT_SIDECAR_NOT_READY",
                StatusCode::INTERNAL_SERVER_ERROR => "ERR_SNAPSHOT_FAILED",
                StatusCode::SERVICE_UNAVAILABLE => "ERR_SNAPSHOT_SIDECAR_UNAVAILABLE",
                _ => "ERR_SNAPSHOT_ANSWER_UNEXPECTED",
            },
        }
    }
}

/// Describes an error status of the sidecar, which returns no message of its own.
fn describe_status(status: StatusCode) -> &'static str {
    match status {
        StatusCode::BAD_REQUEST => "the sidecar rejected the request; it may serve HTTPS only",
        StatusCode::METHOD_NOT_ALLOWED => {
            "no sidecar takes snapshots at present: etcd has no leader, the leader's sidecar is not healthy, or no \
             store is configured"
        }
        StatusCode::INTERNAL_SERVER_ERROR => {
            "the snapshot failed: etcd or the store does not work, the sidecar is starting, or delta snapshots are \
             disabled"
        }
        StatusCode::SERVICE_UNAVAILABLE => "the sidecar is unavailable at present",
        StatusCode::BAD_GATEWAY => "the sidecar forwarded the request to the leader's sidecar and got no response",
        _ => "etcd-backup-restore is not known to return this status",
    }
}
