use std::{borrow::Cow, fmt, net::SocketAddr, sync::Arc};

type LookUp = dyn Fn(&str, u16) -> Option<SocketAddr> + Send + Sync;

/// Resolves host names by DNS, or first by a lookup function if the program runs outside of the Kubernetes cluster.
/// The server certificate is verified against the name in both cases.
#[derive(Clone, Default)]
pub struct Resolver {
    look_up: Option<Arc<LookUp>>,
    /// The domain of the Kubernetes cluster, such as `cluster.local`.
    domain: Option<Arc<str>>,
}

impl Resolver {
    /// Resolves by DNS. Names of Services and pods, which end in `.svc`, are resolved only in the domain of this
    /// Kubernetes cluster.
    pub fn in_cluster(domain: &str) -> Self {
        Self { domain: Some(domain.trim_matches('.').into()), ..Self::default() }
    }

    /// Resolves hosts and ports with `look_up` first, and by DNS if it returns none.
    pub fn with_lookup(look_up: impl Fn(&str, u16) -> Option<SocketAddr> + Send + Sync + 'static) -> Self {
        Self { look_up: Some(Arc::new(look_up)), ..Self::default() }
    }

    /// The domain of the Kubernetes cluster, if it is known.
    pub fn domain(&self) -> Option<&str> {
        self.domain.as_deref()
    }

    pub(super) fn look_up(&self, host: &str, port: u16) -> Option<SocketAddr> {
        self.look_up.as_ref().and_then(|look_up| look_up(host, port))
    }

    /// Returns the name to resolve by DNS. A name of the cluster gets its domain and a trailing dot. Without them, the
    /// system resolver would try it in the search domains of the Kubernetes node first and as a public name last, and
    /// another server could receive requests for etcd.
    pub(super) fn dns_name<'a>(&self, host: &'a str) -> Cow<'a, str> {
        let Some(domain) = &self.domain else { return host.into() };
        if host.ends_with(".svc") {
            format!("{host}.{domain}.").into()
        } else if host.strip_suffix(domain.as_ref()).is_some_and(|name| name.ends_with(".svc.")) {
            format!("{host}.").into()
        } else {
            host.into()
        }
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.look_up, &self.domain) {
            (Some(_), _) => formatter.write_str("Resolver(lookup function)"),
            (None, Some(domain)) => write!(formatter, "Resolver(DNS of {domain})"),
            (None, None) => formatter.write_str("Resolver(DNS)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dns_name_makes_names_of_the_cluster_absolute() {
        for domain in ["cluster.local", "cluster.local."] {
            let resolver = Resolver::in_cluster(domain);
            for (host, expected) in [
                ("main-client.dev.svc", "main-client.dev.svc.cluster.local."),
                ("main-0.main-peer.dev.svc", "main-0.main-peer.dev.svc.cluster.local."),
                ("main-client.dev.svc.cluster.local", "main-client.dev.svc.cluster.local."),
                ("main-client.dev.svc.cluster.local.", "main-client.dev.svc.cluster.local."),
                ("etcd.example.com", "etcd.example.com"),
                ("svc", "svc"),
                ("10.0.0.1", "10.0.0.1"),
                ("fd00::1", "fd00::1"),
            ] {
                assert_eq!(resolver.dns_name(host), expected);
            }
        }
        assert_eq!(Resolver::in_cluster("prod.example").dns_name("a.b.svc"), "a.b.svc.prod.example.");
        assert_eq!(Resolver::default().dns_name("a.b.svc"), "a.b.svc", "outside of a cluster");
    }
}
