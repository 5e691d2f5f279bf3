//! Connections to a server: name resolution, TCP and TLS, which the clients of etcd and of etcd-backup-restore share.
//!
//! Each call has a connection of its own. Calls are few, and a reused connection may turn out to be broken after the
//! next request was sent: the client could not tell whether the request arrived, and sending it again could execute it
//! twice.

mod error;
mod resolver;
mod stream;
mod trust;

use std::{
    fmt, io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use http::{Uri, uri::Authority};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;

pub use error::{InvalidAddress, InvalidCaBundle, InvalidClientCertificate, NoResponse};
pub(crate) use error::{InvalidServer, NotConnected};
pub use resolver::Resolver;
use stream::AlertRecorder;
pub(crate) use stream::{Alert, Stream};
pub(crate) use trust::TlsTrust;

/// Maximum time for name resolution, TCP connect and TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The address of a server, with its resolver and TLS settings.
#[derive(Clone)]
pub(crate) struct Server {
    authority: Authority,
    host: String,
    port: u16,
    tls: Option<TlsSettings>,
    resolver: Resolver,
}

#[derive(Clone)]
struct TlsSettings {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// A new connection, on which no request was sent.
pub(crate) struct Connection {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) alert: Alert,
    /// Time that is left for the call.
    pub(crate) remaining: Duration,
}

impl Server {
    /// Creates a server for an address such as `https://main-client.default.svc:8080`. The scheme https requires
    /// `trust`, and `trust` requires https, so that no request is sent unencrypted by mistake.
    pub(crate) fn new(
        address: &str,
        trust: Option<TlsTrust<'_>>,
        protocol: &'static [u8],
        resolver: &Resolver,
    ) -> Result<Self, InvalidServer> {
        let uri: Uri = address.parse().map_err(InvalidAddress::Malformed)?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(InvalidAddress::Incomplete.into());
        };
        let is_secure = match scheme {
            "https" => true,
            "http" => false,
            _ => return Err(InvalidAddress::Incomplete.into()),
        };
        let named = authority.host();
        let port = authority.port_u16();
        let whole = port.map_or_else(|| named.to_owned(), |port| format!("{named}:{port}"));
        let has_more = uri.path() != "/" || uri.query().is_some() || authority.as_str() != whole;
        let host = named.trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() || has_more {
            return Err(InvalidAddress::Incomplete.into());
        }
        let tls = match (is_secure, trust) {
            (false, None) => None,
            (false, Some(_)) => return Err(InvalidAddress::Unprotected.into()),
            (true, None) => return Err(InvalidCaBundle::Missing.into()),
            (true, Some(trust)) => {
                let name = ServerName::try_from(host.clone()).map_err(InvalidAddress::Name)?;
                Some(TlsSettings { config: Arc::new(trust.config(protocol)?), name })
            }
        };
        let port = port.unwrap_or(if is_secure { 443 } else { 80 });
        Ok(Self { authority: authority.clone(), host, port, tls, resolver: resolver.clone() })
    }

    /// Verifies the server certificate against this name instead of the host of the address.
    pub(crate) fn verified_as(mut self, name: &str) -> Result<Self, InvalidServer> {
        if let Some(tls) = &mut self.tls {
            tls.name = ServerName::try_from(name.to_owned()).map_err(InvalidAddress::Name)?;
        }
        Ok(self)
    }

    /// `http` or `https`.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Host and port of the address.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Connects within the time limit of the call and within [`CONNECT_TIMEOUT`]. No request is sent before this
    /// succeeds.
    pub(crate) async fn connect(&self, time_limit: Duration) -> Result<Connection, NotConnected> {
        let started = Instant::now();
        let connect_limit = time_limit.min(CONNECT_TIMEOUT);
        let slow = |_| {
            io::Error::new(io::ErrorKind::TimedOut, format!("no connection was established within {connect_limit:?}"))
        };
        let (stream, alert) = timeout(connect_limit, self.open()).await.map_err(slow)??;
        Ok(Connection { stream, alert, remaining: time_limit.saturating_sub(started.elapsed()) })
    }

    async fn open(&self) -> Result<(Box<dyn Stream>, Alert), NotConnected> {
        let stream = self.dial().await?;
        stream.set_nodelay(true)?;
        let alert = Alert::default();
        let Some(TlsSettings { config, name }) = &self.tls else {
            return Ok((Box::new(stream), alert));
        };
        let connector = TlsConnector::from(Arc::clone(config));
        let stream = connector.connect(name.clone(), stream).await?;
        Ok((Box::new(AlertRecorder::new(stream, alert.clone())), alert))
    }

    async fn dial(&self) -> io::Result<TcpStream> {
        let known: Option<SocketAddr> = self.resolver.look_up(&self.host, self.port);
        match known {
            Some(address) => TcpStream::connect(address).await,
            None => TcpStream::connect((self.resolver.dns_name(&self.host).as_ref(), self.port)).await,
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}://{}", self.scheme(), self.authority)
    }
}

/// Omits keys.
impl fmt::Debug for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Server({self})")
    }
}
