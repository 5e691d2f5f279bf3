use std::{borrow::Cow, fmt, net::SocketAddr, sync::Arc};

type LookUp = dyn Fn(&str, u16) -> Option<SocketAddr> + Send + Sync;

/// How names are found: by DNS, unless a program outside of the cluster is told other ways. What a server is trusted for is
/// its name, whichever way it was found.
#[derive(Clone, Default)]
pub struct Resolver {
    look_up: Option<Arc<LookUp>>,
    /// The domain of the Kubernetes cluster, such as `cluster.local`.
    domain: Option<Arc<str>>,
}

impl Resolver {
    /// By DNS. Names of Services and pods, which end in `.svc`, are looked up in the domain of this cluster and nowhere else.
    pub fn in_cluster(domain: &str) -> Self {
        Self { domain: Some(domain.trim_matches('.').into()), ..Self::default() }
    }

    /// Hosts and ports are looked up with `look_up` first; what it does not know, DNS is asked for.
    pub fn with_lookup(look_up: impl Fn(&str, u16) -> Option<SocketAddr> + Send + Sync + 'static) -> Self {
        Self { look_up: Some(Arc::new(look_up)), ..Self::default() }
    }

    /// The domain of the Kubernetes cluster, where it is known.
    pub fn domain(&self) -> Option<&str> {
        self.domain.as_deref()
    }

    pub(super) fn look_up(&self, host: &str, port: u16) -> Option<SocketAddr> {
        self.look_up.as_ref().and_then(|look_up| look_up(host, port))
    }

    /// The name that DNS is asked for. A name of the cluster gets its domain and a dot at its end, without which the resolver
    /// would try it in the search domains of the Kubernetes node first, and as a public name last: whoever answers there
    /// would get what is meant for etcd.
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
            (Some(_), _) => formatter.write_str("Reach(told)"),
            (None, Some(domain)) => write!(formatter, "Reach(DNS of {domain})"),
            (None, None) => formatter.write_str("Reach(DNS)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_cluster_are_looked_up_there_and_nowhere_else() {
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
