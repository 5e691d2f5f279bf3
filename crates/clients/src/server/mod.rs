//! A server that is named by its address: how it is found, connected to and trusted. What the clients of etcd and of its
//! sidecar have in common.
//!
//! There is one connection for each call. Calls are few, and a connection that was used before may turn out to be broken
//! when the next request is already on its way: then nobody could tell whether it had arrived, and sending it again would
//! be the wrong answer to that.

mod error;
mod reach;
mod stream;
mod trust;

use std::{
    fmt, io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use http::{HeaderValue, Uri, uri::Authority};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;

pub use error::{BadAddress, BadAuthorities, BadIdentity, Silence};
pub(crate) use error::{Unconnected, Unusable};
pub use reach::Reach;
use stream::Noticing;
pub(crate) use stream::{Alert, Stream};
pub(crate) use trust::Trust;

/// How long it may take until a server is found, connected to and trusted.
const CONNECTING: Duration = Duration::from_secs(5);

/// A server, and how it is reached.
#[derive(Clone)]
pub(crate) struct Server {
    authority: Authority,
    host: String,
    port: u16,
    secured: Option<Secured>,
    reach: Reach,
}

#[derive(Clone)]
struct Secured {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// A connection on which nothing was asked yet.
pub(crate) struct Connection {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) alert: Alert,
    /// What is left of the time for the call.
    pub(crate) remaining: Duration,
}

impl Server {
    /// The server at an address such as `https://main-client.default.svc:8080`. For https there must be somebody to trust;
    /// where there is, nothing is sent unprotected.
    pub(crate) fn new(
        address: &str,
        trust: Option<Trust<'_>>,
        protocol: &'static [u8],
        reach: &Reach,
    ) -> Result<Self, Unusable> {
        let uri: Uri = address.parse().map_err(BadAddress::Malformed)?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(BadAddress::Incomplete.into());
        };
        let is_secure = match scheme {
            "https" => true,
            "http" => false,
            _ => return Err(BadAddress::Incomplete.into()),
        };
        let named = authority.host();
        let port = authority.port_u16();
        let whole = port.map_or_else(|| named.to_owned(), |port| format!("{named}:{port}"));
        let has_more = uri.path() != "/" || uri.query().is_some() || authority.as_str() != whole;
        let host = named.trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() || has_more {
            return Err(BadAddress::Incomplete.into());
        }
        let secured = match (is_secure, trust) {
            (false, None) => None,
            (false, Some(_)) => return Err(BadAddress::Unprotected.into()),
            (true, None) => return Err(BadAuthorities::Missing.into()),
            (true, Some(trust)) => {
                let name = ServerName::try_from(host.clone()).map_err(BadAddress::Name)?;
                Some(Secured { config: Arc::new(trust.config(protocol)?), name })
            }
        };
        let port = port.unwrap_or(if is_secure { 443 } else { 80 });
        Ok(Self { authority: authority.clone(), host, port, secured, reach: reach.clone() })
    }

    /// The same, whose certificate is checked for this name and not for the host of the address.
    pub(crate) fn verified_as(mut self, name: &str) -> Result<Self, Unusable> {
        if let Some(secured) = &mut self.secured {
            secured.name = ServerName::try_from(name.to_owned()).map_err(BadAddress::Name)?;
        }
        Ok(self)
    }

    /// `http` or `https`.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.secured.is_some() { "https" } else { "http" }
    }

    /// Host and port, as the address has them.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The value of the header `Host`.
    pub(crate) fn host_header(&self) -> Result<HeaderValue, io::Error> {
        HeaderValue::from_str(self.authority.as_str()).map_err(io::Error::other)
    }

    /// Connects within the time that a call may take, and within [`CONNECTING`]. Nothing is asked of anybody before this
    /// has succeeded.
    pub(crate) async fn connect(&self, at_most: Duration) -> Result<Connection, Unconnected> {
        let started = Instant::now();
        let patience = at_most.min(CONNECTING);
        let slow = |_| io::Error::new(io::ErrorKind::TimedOut, format!("there was no connection within {patience:?}"));
        let (stream, alert) = timeout(patience, self.open()).await.map_err(slow)??;
        Ok(Connection { stream, alert, remaining: at_most.saturating_sub(started.elapsed()) })
    }

    async fn open(&self) -> Result<(Box<dyn Stream>, Alert), Unconnected> {
        let stream = self.dial().await?;
        stream.set_nodelay(true)?;
        let alert = Alert::default();
        let Some(Secured { config, name }) = &self.secured else {
            return Ok((Box::new(stream), alert));
        };
        let connector = TlsConnector::from(Arc::clone(config));
        let stream = connector.connect(name.clone(), stream).await?;
        Ok((Box::new(Noticing::new(stream, alert.clone())), alert))
    }

    async fn dial(&self) -> io::Result<TcpStream> {
        let known: Option<SocketAddr> = self.reach.look_up(&self.host, self.port);
        match known {
            Some(address) => TcpStream::connect(address).await,
            None => TcpStream::connect((self.reach.dns_name(&self.host).as_ref(), self.port)).await,
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}://{}", self.scheme(), self.authority)
    }
}

/// Says nothing of keys.
impl fmt::Debug for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Server({self})")
    }
}
