use http::StatusCode;
use thiserror::Error;

use crate::server::{InvalidAddress, InvalidCaBundle, NoResponse, NotConnected, InvalidServer};

/// A call that failed. `call` says which, such as `POST http://main-client.default.svc:8080/snapshot/full`.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the fields say what their names say")]
pub enum Error {
    /// The address cannot be used.
    #[error("{address:?} is no address of etcd-backup-restore")]
    InvalidAddress { address: String, source: InvalidAddress },
    /// The authorities that are to be trusted cannot be used.
    #[error("the certificate of {address} cannot be checked")]
    InvalidCaBundle { address: String, source: InvalidCaBundle },
    /// There was no connection, so that nobody got the request.
    #[error("{call} was not sent, because there is no connection")]
    NotSent { call: String, source: std::io::Error },
    /// Whoever listens there has not proved to be the sidecar. Nobody got the request.
    #[error("{call} was not sent, because the certificate there is not trusted")]
    NotTrusted { call: String, source: rustls::Error },
    /// The request was sent and may have been carried out, or may be even now.
    #[error("{call} was sent, but not answered; it may have been carried out all the same")]
    NoResponse { call: String, source: NoResponse },
    /// The sidecar says no. It gives no reasons.
    #[error("{call} was answered with {status}: {}", meaning(*status))]
    ErrorResponse { call: String, status: StatusCode },
}

impl Error {
    pub(super) fn invalid_server(address: &str, source: InvalidServer) -> Self {
        let address = address.to_owned();
        match source {
            InvalidServer::Address(source) => Self::InvalidAddress { address, source },
            InvalidServer::CaBundle(source) => Self::InvalidCaBundle { address, source },
            // There is none to be wrong.
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
            // Sidecars ask for no certificate. One that does is not the one we look for, or not yet.
            NotConnected::ClientCertificateRejected(source) => Self::NotSent { call, source: std::io::Error::other(source) },
        }
    }

    /// Whether the same call would fail again, unless something else is changed first.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::InvalidAddress { .. } | Self::InvalidCaBundle { .. } | Self::NotTrusted { .. } => true,
            Self::ErrorResponse { status, .. } => *status == StatusCode::BAD_REQUEST,
            Self::NotSent { .. } | Self::NoResponse { .. } => false,
        }
    }

    /// Whether there may be a snapshot all the same. One that was saved is answered with 500 when what comes after it
    /// fails; and a sidecar that passed the request on answers with 502 when its leader does not.
    pub fn may_have_been_carried_out(&self) -> bool {
        match self {
            Self::NoResponse { .. } => true,
            Self::ErrorResponse { status, .. } => status.is_server_error() && *status != StatusCode::SERVICE_UNAVAILABLE,
            _ => false,
        }
    }

    /// The error in a form for programs.
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
    /// | `ERR_SNAPSHOT_ANSWER_UNEXPECTED` | any other answer |
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

/// What the sidecar means, who says nothing but a number.
fn meaning(status: StatusCode) -> &'static str {
    match status {
        StatusCode::BAD_REQUEST => "the request is not understood; perhaps the sidecar serves nothing but HTTPS",
        StatusCode::METHOD_NOT_ALLOWED => {
            "no sidecar takes snapshots at present: etcd has no leader, the leader's sidecar is not healthy, or no store \
             is configured"
        }
        StatusCode::INTERNAL_SERVER_ERROR => {
            "it failed: etcd or the store does not work, the sidecar is starting, or deltas are switched off"
        }
        StatusCode::SERVICE_UNAVAILABLE => "the sidecar is not there for anybody at present",
        StatusCode::BAD_GATEWAY => "the request was passed on to the leader's sidecar, which did not answer",
        _ => "that is no answer that the sidecar is known to give",
    }
}
