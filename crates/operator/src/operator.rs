//! `messina operator`: runs the controllers.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use clap::Args;
use messina_api::names::{annotation, scylla_operator};
use messina_clients::Resolver;
use messina_plan::{
    datacenter::{Gates, NODE_EXPORTER_IMAGE, ProbePeriod},
    etcd_task::job,
    node::sysctl::{Allowed, Pattern},
};
use messina_runtime::{
    client::{Source, Transport, client},
    cluster::Cluster,
    controller::AnyController,
    events::Events,
    fence::Fence,
    lease,
    metrics::Metrics,
    process::Process,
    server::{Readiness, serve},
    shared_context::SharedContext,
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tracing::info;

use crate::{
    certificates::{EcdsaKeySize, KeyKind, KeyType, RsaKeySize},
    controllers::{PREDECESSOR, datacenter, etcd_task, unserved::Unserved},
    logging,
    traces::{self, Traces},
};

/// Settings of the operator. Each flag can be given as an environment variable.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Path of a kubeconfig (default: the one that kubectl would use, or the pod's service account)
    #[arg(long, env = "MESSINA_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig (default: its current context)
    #[arg(long, env = "MESSINA_CONTEXT", value_name = "NAME", requires = "kubeconfig")]
    pub context: Option<String>,
    /// Namespace to watch (default: all)
    #[arg(long, env = "MESSINA_NAMESPACE", value_name = "NAME")]
    pub namespace: Option<String>,
    /// Image of this program, which also runs in the pod of each node
    #[arg(long, env = "MESSINA_IMAGE", value_name = "IMAGE")]
    pub image: String,
    /// Image of node_exporter, for ScyllaDB images that do not contain it
    #[arg(long, env = "MESSINA_NODE_EXPORTER_IMAGE", value_name = "IMAGE", default_value = NODE_EXPORTER_IMAGE)]
    pub node_exporter_image: String,
    /// Image of etcd-backup-restore for the Jobs of etcd tasks whose Etcd does not specify one
    #[arg(long, env = "MESSINA_BACKUP_RESTORE_IMAGE", value_name = "IMAGE", default_value = job::IMAGE)]
    pub backup_restore_image: String,
    /// DNS domain of the Kubernetes cluster (default: the one in /etc/resolv.conf, or cluster.local)
    #[arg(long, env = "MESSINA_CLUSTER_DOMAIN", value_name = "DOMAIN", value_parser = parse_domain)]
    pub cluster_domain: Option<String>,
    /// Whether the operator issues and renews the certificates with which nodes serve CQL
    #[arg(long, env = "MESSINA_AUTOMATIC_TLS_CERTIFICATES", value_name = "true|false", default_value = "true", action = clap::ArgAction::Set)]
    pub automatic_tls_certificates: bool,
    /// Type of the keys of new certificates
    #[arg(long, env = "MESSINA_CRYPTO_KEY_TYPE", value_name = "TYPE", default_value = "ECDSA", ignore_case = true)]
    pub crypto_key_type: KeyType,
    /// Size of new ECDSA keys, in bits
    #[arg(long, env = "MESSINA_CRYPTO_ECDSA_KEY_SIZE", value_name = "BITS", default_value = "256")]
    pub crypto_ecdsa_key_size: EcdsaKeySize,
    /// Size of new RSA keys, in bits
    #[arg(long, env = "MESSINA_CRYPTO_RSA_KEY_SIZE", value_name = "BITS", default_value = "4096")]
    pub crypto_rsa_key_size: RsaKeySize,
    /// Port of CQL over TLS on Ingresses, for the clients' CQL connection configs (default: no port in them)
    #[arg(long, env = "MESSINA_CQLS_INGRESS_PORT", value_name = "PORT")]
    pub cqls_ingress_port: Option<std::num::NonZeroU16>,
    /// Period of the probes of a node's containers, in seconds: 1 to 10. The shorter, the sooner a ready node is
    /// reported as ready. A change restarts all nodes, one after the other
    #[arg(long, env = "MESSINA_NODE_PROBE_SECONDS", value_name = "SECONDS", default_value = "10", value_parser = probe_seconds)]
    pub node_probe_seconds: std::num::NonZeroU8,
    /// Comma-separated sysctls that ScyllaDBDatacenters may set besides fs.aio-max-nr, net.* and vm.*, such as
    /// kernel.numa_balancing or fs.*. They affect all pods of a Kubernetes node
    #[arg(long, env = "MESSINA_ALLOWED_SYSCTLS", value_name = "NAMES", value_delimiter = ',')]
    pub allowed_sysctls: Vec<Pattern>,
    /// Number of datacenters that may restart their nodes at once because the operator or one of its settings has
    /// changed; 0 for all
    #[arg(long, env = "MESSINA_DATACENTERS_AT_ONCE", value_name = "NUMBER", default_value = "1")]
    pub datacenters_at_once: usize,
    /// Number of objects that each controller reconciles at once
    #[arg(long, env = "MESSINA_WORKERS", value_name = "NUMBER", default_value = "8")]
    pub workers: std::num::NonZeroUsize,
    /// Run without leader election. Only safe if there is exactly one replica of the operator
    #[arg(long, env = "MESSINA_NO_LEADER_ELECTION")]
    pub no_leader_election: bool,
    /// Namespace of the operator's Lease (default: the namespace of the operator's pod)
    #[arg(long, env = "MESSINA_LEASE_NAMESPACE", value_name = "NAME")]
    pub lease_namespace: Option<String>,
    /// Name of the operator's Lease
    #[arg(long, env = "MESSINA_LEASE_NAME", value_name = "NAME", default_value = "messina")]
    pub lease_name: String,
    /// Duration of the Lease, in seconds: without a renewal for so long, another replica becomes the leader
    #[arg(long, env = "MESSINA_LEASE_SECONDS", value_name = "SECONDS", default_value = "15", value_parser = clap::value_parser!(u16).range(3..=3600))]
    pub lease_seconds: u16,
    /// Name of scylla-operator's Lease. While a Lease of this name is held in any namespace, the operator does not
    /// change datacenters
    #[arg(long, env = "MESSINA_SCYLLA_OPERATOR_LEASE", value_name = "NAME", default_value = scylla_operator::LEASE)]
    pub scylla_operator_lease: String,
    /// Declare that scylla-operator does not run in this cluster, so that its Lease is not read. Without this flag, an
    /// operator that is not permitted to read that Lease changes no datacenter
    #[arg(long, env = "MESSINA_SCYLLA_OPERATOR_ABSENT")]
    pub scylla_operator_absent: bool,
    /// Identity of this replica in the Lease, unique among replicas (default: the host name and a random suffix)
    #[arg(long, env = "MESSINA_IDENTITY", value_name = "NAME")]
    pub identity: Option<String>,
    /// Address on which /metrics, /healthz and /readyz are served
    #[arg(long, env = "MESSINA_LISTEN", value_name = "ADDRESS", default_value = "0.0.0.0:8080")]
    pub listen: std::net::SocketAddr,
    /// OTLP/HTTP endpoint to which traces are exported, such as http://collector:4318 (default:
    /// OTEL_EXPORTER_OTLP_ENDPOINT, or no traces if that is not set)
    #[arg(long, env = "MESSINA_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
}

impl Options {
    fn source(&self) -> Source {
        match &self.kubeconfig {
            Some(path) => Source::File { path: path.clone(), context: self.context.clone() },
            None => Source::Inferred,
        }
    }

    /// Returns the DNS domain of the cluster's Services.
    fn cluster_domain(&self) -> String {
        let of_pod = || {
            let resolv_conf = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
            cluster_domain_of_pod(&resolv_conf).unwrap_or(DEFAULT_CLUSTER_DOMAIN).to_owned()
        };
        self.cluster_domain.clone().unwrap_or_else(of_pod)
    }

    /// Returns the settings that apply to all datacenters.
    pub fn datacenters(&self, metrics: &Metrics) -> datacenter::Settings {
        datacenter::Settings {
            operator_image: self.image.clone(),
            node_exporter_image: self.node_exporter_image.clone(),
            gates: Gates { automatic_tls_certificates: self.automatic_tls_certificates, ..Gates::default() },
            probe_period: ProbePeriod::from_seconds(self.node_probe_seconds),
            allowed_sysctls: Allowed::with(self.allowed_sysctls.iter().cloned()),
            keys: match self.crypto_key_type {
                KeyType::Ecdsa => KeyKind::Ecdsa(self.crypto_ecdsa_key_size),
                KeyType::Rsa => KeyKind::Rsa(self.crypto_rsa_key_size),
            },
            cqls_ingress_port: self.cqls_ingress_port.map(Into::into),
            scylla_operator_lease: self.scylla_operator_lease.clone(),
            scylla_operator_absent: self.scylla_operator_absent,
            datacenters_at_once: self.datacenters_at_once,
            expiry: datacenter::Expiry::new(metrics),
            counts: datacenter::Counts::new(metrics),
        }
    }
}

fn probe_seconds(text: &str) -> Result<std::num::NonZeroU8, String> {
    let seconds =
        text.parse().ok().filter(|seconds: &std::num::NonZeroU8| seconds.get() <= ProbePeriod::DEFAULT_SECONDS);
    seconds.ok_or_else(|| format!("must be between 1 and {}", ProbePeriod::DEFAULT_SECONDS))
}

/// Returns a function that declares the operator's controllers and their watches.
pub fn controllers(
    datacenters: datacenter::Settings,
    etcd_tasks: etcd_task::Settings,
    unserved: Unserved,
) -> impl Fn(&mut Cluster) -> Vec<Arc<dyn AnyController>> {
    move |cluster| {
        unserved.start(cluster);
        vec![datacenter::declare(cluster, datacenters.clone()), etcd_task::declare(cluster, etcd_tasks.clone())]
    }
}

/// Creates the context that all controllers share.
pub fn context(metrics: Metrics, events: Events) -> SharedContext {
    SharedContext::new(metrics, events, annotation::APPLIED_HASH)
        .with_pause_annotation(annotation::PAUSE)
        .with_adoption_annotation(annotation::ADOPT)
        .with_predecessor(PREDECESSOR)
}

/// Runs the operator until it receives SIGTERM or SIGINT, and logs what it does.
pub fn main(options: Options, log: &logging::Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(async {
        let identity = options.identity.clone().unwrap_or_else(generate_identity);
        let endpoint = traces::endpoint(options.otlp_endpoint.as_deref());
        let traces = endpoint.map(|endpoint| Traces::export_to(&endpoint, &identity)).transpose()?;
        logging::start(log, traces.as_ref());
        logging::log_panics();
        let outcome = run(options, identity).await;
        if let Some(traces) = traces {
            traces.shut_down().await;
        }
        outcome
    });
    // Not a plain drop, which would wait for an RSA key that is being generated and that no controller needs any more.
    runtime.shutdown_background();
    outcome
}

async fn run(options: Options, identity: String) -> anyhow::Result<()> {
    let metrics = Metrics::default();
    let readiness = Readiness::default();
    let listener = TcpListener::bind(options.listen)
        .await
        .with_context(|| format!("cannot listen on {}: choose another address with --listen", options.listen))?;
    // The kernel chooses the port if --listen has port 0.
    let address = listener.local_addr().unwrap_or(options.listen);
    info!(%address, identity, "serving /metrics, /healthz and /readyz");
    let mut server = tokio::spawn(serve(listener, metrics.clone(), readiness.clone()));

    let transport = Transport::new(options.source()).await?;
    let namespace = transport.default_namespace();
    let lease = (!options.no_leader_election).then(|| lease::Settings {
        namespace: options.lease_namespace.clone().unwrap_or_else(|| namespace.clone()),
        name: options.lease_name.clone(),
        identity: identity.clone(),
        seconds: options.lease_seconds,
    });
    let fence = if lease.is_some() { Fence::default() } else { Fence::open_for_ever() };
    let fenced = client(transport.clone(), &namespace, metrics.clone(), Some(fence.clone()));
    let (events, writer) = Events::new(metrics.clone());
    let etcd_tasks = etcd_task::Settings {
        registry: etcd_task::Registry::default(),
        resolver: Resolver::in_cluster(&options.cluster_domain()),
        fence: fence.clone(),
        backup_restore_image: options.backup_restore_image.clone(),
        task_metrics: etcd_task::TaskMetrics::new(&metrics),
    };
    let datacenters = options.datacenters(&metrics);
    let unserved = Unserved::new(&metrics);
    let process = Process {
        client: fenced.clone(),
        lease_client: client(transport, &namespace, metrics.clone(), None),
        fence,
        lease,
        namespace: options.namespace.clone(),
        workers: options.workers.get(),
        context: Arc::new(context(metrics, events)),
        readiness,
    };
    let mut writing = tokio::spawn(async move { writer.run(fenced, "messina", &identity).await });
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
    let stop = async {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        info!("stopping");
    };
    // Neither the server nor the writer of events ends by itself. Without them the operator could not be observed, so
    // it exits.
    tokio::select! {
        () = process.run(controllers(datacenters, etcd_tasks, unserved), stop) => {}
        ended = &mut server => bail!("the HTTP server of /metrics, /healthz and /readyz has ended: {ended:?}"),
        ended = &mut writing => bail!("the task that writes events has ended: {ended:?}"),
    }
    // The controllers have stopped, so there are no new events. Those that are queued get a second to be written.
    let _ = tokio::time::timeout(Duration::from_secs(1), writing).await;
    server.abort();
    Ok(())
}

/// The DNS domain of most clusters.
const DEFAULT_CLUSTER_DOMAIN: &str = "cluster.local";

/// Returns the cluster's DNS domain from the resolv.conf that the kubelet writes for a pod: its search domains are
/// those of the pod's namespace, of all Services and of the cluster.
fn cluster_domain_of_pod(resolv_conf: &str) -> Option<&str> {
    let mut searches = resolv_conf.lines().filter_map(|line| line.trim_start().strip_prefix("search"));
    let last = searches.rfind(|domains| domains.starts_with(char::is_whitespace))?;
    let domain = last.split_whitespace().find_map(|domain| domain.strip_prefix("svc."))?.trim_end_matches('.');
    (!domain.is_empty()).then_some(domain)
}

fn parse_domain(text: &str) -> Result<String, String> {
    let is_label = |label: &str| {
        let is_inner = |letter: u8| letter.is_ascii_alphanumeric() || letter == b'-';
        !label.is_empty() && label.len() <= 63 && label.bytes().all(is_inner)
    };
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.split('.').all(is_label) {
        Ok(name.to_owned())
    } else {
        Err("must be a DNS domain, such as cluster.local".into())
    }
}

/// Returns the host name with a random suffix, which no other replica has.
fn generate_identity() -> String {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    format!("{host}-{:08x}", std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0) as u32)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use clap::{Command, FromArgMatches};

    use super::*;

    /// The page that lists all settings.
    const PAGE: &str = include_str!("../../../docs/reference/flags.md");

    fn command() -> Command {
        logging::Options::augment_args(Options::augment_args(Command::new("operator")))
    }

    /// Flag, variable and default of each setting.
    fn settings() -> Vec<[String; 3]> {
        let command = command();
        let text = |text: &std::ffi::OsStr| text.to_str().unwrap().to_owned();
        let settings = command.get_arguments().map(|argument| {
            let defaults = argument.get_default_values().iter().map(|value| text(value));
            let is_switch = !argument.get_action().takes_values();
            let default: Vec<String> = if is_switch { vec![] } else { defaults.collect() };
            let name = argument.get_long().map(|name| format!("--{name}")).unwrap_or_default();
            [name, argument.get_env().map(text).unwrap_or_default(), default.join(",")]
        });
        settings.collect()
    }

    #[test]
    fn every_setting_has_a_flag_an_environment_variable_and_a_help_text() {
        for [flag, variable, _] in settings() {
            let name = flag.strip_prefix("--").unwrap().to_uppercase().replace('-', "_");
            assert_eq!(variable, format!("MESSINA_{name}"), "{flag}");
        }
        for argument in command().get_arguments() {
            assert!(argument.get_help().is_some(), "{} has no help text", argument.get_id());
        }
        let help = command().render_long_help().to_string();
        for [flag, variable, _] in settings() {
            assert!(help.contains(&flag) && help.contains(&format!("[env: {variable}=")), "{flag} in --help:\n{help}");
        }
    }

    #[test]
    fn cluster_domain_is_read_from_resolv_conf() {
        for (resolv_conf, expected) in [
            ("search messina.svc.prod.example svc.prod.example prod.example corp.example\n", Some("prod.example")),
            ("nameserver 10.0.0.10\nsearch x.svc.cluster.local svc.cluster.local cluster.local", Some("cluster.local")),
            ("search svc.a.\n", Some("a")),
            ("search svc.a\nsearch svc.b\n", Some("b")),
            ("search corp.example svc.\n", None),
            ("# search svc.a\nsearching svc.a\n", None),
            ("", None),
        ] {
            assert_eq!(cluster_domain_of_pod(resolv_conf), expected, "{resolv_conf}");
        }
        assert_eq!(parse_domain("cluster.local.").as_deref(), Ok("cluster.local"));
        for text in ["", ".", "a..b", "a b", "a/b"] {
            assert!(parse_domain(text).is_err(), "{text}");
        }
    }

    #[test]
    fn keys_are_ecdsa_by_default() {
        let keys = |arguments: &[&str]| {
            let matches = command().try_get_matches_from([&["operator", "--image=messina"], arguments].concat())?;
            Ok::<_, clap::Error>(Options::from_arg_matches(&matches)?.datacenters(&Metrics::default()).keys)
        };
        for (arguments, expected) in [
            (&[][..], KeyKind::Ecdsa(EcdsaKeySize::Bits256)),
            (&["--crypto-ecdsa-key-size=384"], KeyKind::Ecdsa(EcdsaKeySize::Bits384)),
            (&["--crypto-rsa-key-size=2048"], KeyKind::Ecdsa(EcdsaKeySize::Bits256)),
            (&["--crypto-key-type=RSA"], KeyKind::Rsa(RsaKeySize::Bits4096)),
            (&["--crypto-key-type=rsa", "--crypto-rsa-key-size=2048"], KeyKind::Rsa(RsaKeySize::Bits2048)),
            (&["--crypto-key-type=RSA", "--crypto-rsa-key-size=3072"], KeyKind::Rsa(RsaKeySize::Bits3072)),
        ] {
            assert_eq!(keys(arguments).unwrap(), expected, "{arguments:?}");
        }
        for argument in ["--crypto-key-type=DSA", "--crypto-rsa-key-size=1024", "--crypto-ecdsa-key-size=521"] {
            assert!(keys(&[argument]).is_err(), "{argument}");
        }
    }

    #[test]
    fn documentation_lists_all_settings_and_no_others() {
        let is_setting = |line: &&str| line.starts_with("| `--");
        let cell = |text: &str| text.trim().trim_matches('`').to_owned();
        let rows = PAGE.lines().filter(is_setting).map(|line| {
            let cells: Vec<String> = line.split('|').map(cell).collect();
            [cells[1].clone(), cells[2].clone(), cells[3].clone()]
        });
        let (mut listed, mut expected): (Vec<_>, Vec<_>) = (rows.collect(), settings());
        listed.sort();
        expected.sort();
        assert_eq!(listed, expected, "docs/reference/flags.md: flag, variable and default of each setting");
    }
}
