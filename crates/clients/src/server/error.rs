//! Errors of connections that the clients of etcd and of etcd-backup-restore share.

use std::{io, time::Duration};

use rustls::pki_types::{InvalidDnsNameError, pem};
use thiserror::Error;

/// Why an address is invalid.
#[derive(Debug, Error)]
pub enum InvalidAddress {
    /// It is not a URL.
    #[error("it is not a URL")]
    Malformed(#[source] http::uri::InvalidUri),
    /// It is a URL, but not of the required form.
    #[error("it must have http:// or https://, a host and a port, and nothing else")]
    Incomplete,
    /// There is a CA bundle, but the scheme is not https.
    #[error("its scheme is not https, although a CA bundle is given")]
    Unprotected,
    /// The host is not valid in a certificate.
    #[error("its host is not a name that a certificate can have")]
    Name(#[source] InvalidDnsNameError),
}

/// Why a CA bundle is invalid.
#[derive(Debug, Error)]
pub enum InvalidCaBundle {
    /// The scheme is https, but there is no CA bundle.
    #[error("the scheme is https, but no CA bundle is given")]
    Missing,
    /// It holds no certificate.
    #[error("the CA bundle holds no certificate")]
    Empty,
    /// It is not valid PEM.
    #[error("the CA bundle is not valid PEM")]
    Malformed(#[source] pem::Error),
    /// It holds certificates, but no valid CA certificate.
    #[error("no certificate of the CA bundle can be decoded")]
    Unreadable(#[source] rustls::Error),
}

/// Why a client certificate or its key is invalid.
#[derive(Debug, Error)]
pub enum InvalidClientCertificate {
    /// There is no certificate.
    #[error("there is no client certificate")]
    NoCertificate,
    /// The certificate is not valid PEM.
    #[error("the client certificate is not valid PEM")]
    Certificate(#[source] pem::Error),
    /// The key is missing or is not valid PEM.
    #[error("the key of the client certificate cannot be decoded")]
    Key(#[source] pem::Error),
    /// The key does not match the certificate, or its type is not supported.
    #[error("the client certificate does not match its key, or the type of the key is not supported")]
    Mismatch(#[source] rustls::Error),
}

/// Why there is no valid response to a request that was sent.
#[derive(Debug, Error)]
pub enum NoResponse {
    /// The response did not arrive in time.
    #[error("no response arrived within {0:?}")]
    TimedOut(Duration),
    /// The connection broke before or during the response.
    #[error("the connection broke")]
    Disconnected(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The response reports success but cannot be decoded.
    #[error("the response cannot be decoded")]
    Malformed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl NoResponse {
    pub(crate) fn disconnected(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Disconnected(source.into())
    }

    pub(crate) fn malformed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Malformed(source.into())
    }
}

/// Why a client cannot be created.
#[derive(Debug)]
pub(crate) enum InvalidServer {
    Address(InvalidAddress),
    CaBundle(InvalidCaBundle),
    ClientCertificate(InvalidClientCertificate),
}

impl From<InvalidAddress> for InvalidServer {
    fn from(source: InvalidAddress) -> Self {
        Self::Address(source)
    }
}

impl From<InvalidCaBundle> for InvalidServer {
    fn from(source: InvalidCaBundle) -> Self {
        Self::CaBundle(source)
    }
}

impl From<InvalidClientCertificate> for InvalidServer {
    fn from(source: InvalidClientCertificate) -> Self {
        Self::ClientCertificate(source)
    }
}

/// Why there is no connection. The request was not processed in any of these cases.
#[derive(Debug)]
pub(crate) enum NotConnected {
    /// Connecting failed.
    Failed(io::Error),
    /// The server certificate is not trusted.
    NotTrusted(rustls::Error),
    /// The server rejected the client certificate, or requires one and got none.
    ClientCertificateRejected(rustls::Error),
}

impl From<io::Error> for NotConnected {
    fn from(error: io::Error) -> Self {
        match tls_error(&error) {
            Some(cause) if is_distrust(cause) => Self::NotTrusted(cause.clone()),
            Some(cause) if is_refusal(cause) => Self::ClientCertificateRejected(cause.clone()),
            _ => Self::Failed(error),
        }
    }
}

/// Returns the TLS error that caused an I/O error, if there is one.
pub(super) fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

fn is_distrust(error: &rustls::Error) -> bool {
    matches!(error, rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented)
}

/// Whether the server sent an alert that rejects the client certificate.
pub(super) fn is_refusal(error: &rustls::Error) -> bool {
    use rustls::AlertDescription as Alert;
    matches!(
        error,
        rustls::Error::AlertReceived(
            Alert::NoCertificate
                | Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::DecryptError
                | Alert::AccessDenied
                | Alert::CertificateRequired
        )
    )
}
