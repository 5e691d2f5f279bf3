//! What goes wrong between us and a server, before it is known which client it happened to.

use std::{io, time::Duration};

use rustls::pki_types::{InvalidDnsNameError, pem};
use thiserror::Error;

/// Why an address cannot be used.
#[derive(Debug, Error)]
pub enum InvalidAddress {
    /// It is no URL.
    #[error("it is no URL")]
    Malformed(#[source] http::uri::InvalidUri),
    /// It is a URL, but not of the form that is needed.
    #[error("it must have http:// or https://, a host and a port, and nothing else")]
    Incomplete,
    /// Somebody is to be trusted, and the address has no place for that.
    #[error("it is not https, although authorities are named")]
    Unprotected,
    /// No certificate can be for this host.
    #[error("its host is no name that a certificate can have")]
    Name(#[source] InvalidDnsNameError),
}

/// Why the authorities that are to be trusted cannot be used.
#[derive(Debug, Error)]
pub enum InvalidCaBundle {
    /// The address is https and nobody is to be trusted.
    #[error("https is asked for, but no authorities are named")]
    Missing,
    /// There is nothing in the bundle.
    #[error("the bundle holds no certificate")]
    Empty,
    /// The bundle is broken.
    #[error("the bundle is no PEM")]
    Malformed(#[source] pem::Error),
    /// There are certificates in it, but none of an authority.
    #[error("no certificate of the bundle can be read")]
    Unreadable(#[source] rustls::Error),
}

/// Why a certificate and its key cannot be shown to a server.
#[derive(Debug, Error)]
pub enum InvalidClientCertificate {
    /// There is no certificate.
    #[error("it holds no certificate")]
    NoCertificate,
    /// The certificate is broken.
    #[error("its certificate is no PEM")]
    Certificate(#[source] pem::Error),
    /// The key is broken or absent.
    #[error("its key cannot be read")]
    Key(#[source] pem::Error),
    /// The two do not belong together, or the key is of an unknown kind.
    #[error("certificate and key cannot be used together")]
    Mismatch(#[source] rustls::Error),
}

/// Why there is no answer to something that was sent.
#[derive(Debug, Error)]
pub enum NoResponse {
    /// The time was over.
    #[error("nothing came within {0:?}")]
    TimedOut(Duration),
    /// The connection broke before the answer was there, or in the middle of it.
    #[error("the connection broke")]
    Disconnected(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The answer says that all is well, but not in a form that can be understood.
    #[error("the answer cannot be understood")]
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

/// Why a server cannot be asked, however often one tries.
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

/// Why there is no connection. In any case nothing was asked.
#[derive(Debug)]
pub(crate) enum NotConnected {
    /// There is none.
    Failed(io::Error),
    /// There was one, to somebody who did not prove to be the one that was meant.
    NotTrusted(rustls::Error),
    /// There was one, to somebody who does not take our certificate, or wants one that we do not have.
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

/// What TLS has to say about it, if it has.
pub(super) fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

fn is_distrust(error: &rustls::Error) -> bool {
    matches!(error, rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented)
}

/// Whether the other side said that it is our certificate that it does not like.
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
