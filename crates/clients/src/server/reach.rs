use std::{fmt, net::SocketAddr, sync::Arc};

type LookUp = dyn Fn(&str, u16) -> Option<SocketAddr> + Send + Sync;

/// How names are found. By default as everywhere in a cluster, by DNS; a program outside of it can be told other ways.
/// What a server is trusted for is its name, whichever way it was found.
#[derive(Clone, Default)]
pub struct Reach(Option<Arc<LookUp>>);

impl Reach {
    /// Hosts and ports are looked up with `look_up` first; what it does not know, DNS is asked for.
    pub fn through(look_up: impl Fn(&str, u16) -> Option<SocketAddr> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(look_up)))
    }

    pub(super) fn look_up(&self, host: &str, port: u16) -> Option<SocketAddr> {
        self.0.as_ref().and_then(|look_up| look_up(host, port))
    }
}

impl fmt::Debug for Reach {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_some() { "Reach(told)" } else { "Reach(DNS)" })
    }
}
