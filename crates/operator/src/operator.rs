//! `messina operator`: keeps what users asked for.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use clap::Args;
use messina_api::names::{annotation, scylla_operator};
use messina_clients::Reach;
use messina_plan::{
    datacenter::{Gates, NODE_EXPORTER_IMAGE, ProbePeriod},
    etcd_task::job,
    node::sysctl::{Allowed, Pattern},
};
use messina_runtime::{
    caches::Caches,
    client::{Source, Transport, client},
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
    controllers::{self, FIELD_MANAGER, PREDECESSOR, datacenter, etcd_task},
    logging,
    traces::{self, Traces},
};

/// How the operator runs. Each flag can be given as an environment variable.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// A kubeconfig; without it, what kubectl would use, or the pod's service account
    #[arg(long, env = "MESSINA_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig, if not its current one
    #[arg(long, env = "MESSINA_CONTEXT", value_name = "NAME", requires = "kubeconfig")]
    pub context: Option<String>,
    /// Namespace to watch (default: all)
    #[arg(long, env = "MESSINA_NAMESPACE", value_name = "NAME")]
    pub namespace: Option<String>,
    /// The image of this program, which also runs beside each node
    #[arg(long, env = "MESSINA_IMAGE", value_name = "IMAGE")]
    pub image: String,
    /// The image of the exporter of a machine's metrics, for versions of ScyllaDB that come without
    #[arg(long, env = "MESSINA_NODE_EXPORTER_IMAGE", value_name = "IMAGE", default_value = NODE_EXPORTER_IMAGE)]
    pub node_exporter_image: String,
    /// The image of etcd-backup-restore that tasks run as Jobs, where the Etcd names none
    #[arg(long, env = "MESSINA_BACKUP_RESTORE_IMAGE", value_name = "IMAGE", default_value = job::IMAGE)]
    pub backup_restore_image: String,
    /// The DNS domain of the Kubernetes cluster; without it, what /etc/resolv.conf says, and cluster.local if that names none
    #[arg(long, env = "MESSINA_CLUSTER_DOMAIN", value_name = "DOMAIN", value_parser = domain)]
    pub cluster_domain: Option<String>,
    /// Whether CQL is served with certificates that the operator makes and renews
    #[arg(long, env = "MESSINA_AUTOMATIC_TLS_CERTIFICATES", value_name = "true|false", default_value = "true", action = clap::ArgAction::Set)]
    pub automatic_tls_certificates: bool,
    /// What keys new certificates have
    #[arg(long, env = "MESSINA_CRYPTO_KEY_TYPE", value_name = "TYPE", default_value = "ECDSA", ignore_case = true)]
    pub crypto_key_type: KeyType,
    /// How many bits the keys of new certificates have where they are ECDSA keys
    #[arg(long, env = "MESSINA_CRYPTO_ECDSA_KEY_SIZE", value_name = "BITS", default_value = "384")]
    pub crypto_ecdsa_key_size: EcdsaKeySize,
    /// How many bits the keys of new certificates have where they are RSA keys
    #[arg(long, env = "MESSINA_CRYPTO_RSA_KEY_SIZE", value_name = "BITS", default_value = "4096")]
    pub crypto_rsa_key_size: RsaKeySize,
    /// The port at which Ingresses take CQL over TLS, for the files by which clients connect; without it, they name none
    #[arg(long, env = "MESSINA_CQLS_INGRESS_PORT", value_name = "PORT")]
    pub cqls_ingress_port: Option<std::num::NonZeroU16>,
    /// Seconds between two probes of a node's containers: 1 to 10. The fewer, the sooner a node that is ready is seen to be. A
    /// change restarts all nodes, one after the other
    #[arg(long, env = "MESSINA_NODE_PROBE_SECONDS", value_name = "SECONDS", default_value = "10", value_parser = probe_seconds)]
    pub node_probe_seconds: std::num::NonZeroU8,
    /// Kernel settings that ScyllaDBDatacenters may set besides fs.aio-max-nr, net.* and vm.*, such as kernel.numa_balancing or
    /// fs.*, divided by commas. They concern all pods of a Kubernetes node
    #[arg(long, env = "MESSINA_ALLOWED_SYSCTLS", value_name = "NAMES", value_delimiter = ',')]
    pub allowed_sysctls: Vec<Pattern>,
    /// How many datacenters restart their nodes at once because this program, or one of its settings, has changed; 0 for all
    #[arg(long, env = "MESSINA_DATACENTERS_AT_ONCE", value_name = "NUMBER", default_value = "1")]
    pub datacenters_at_once: usize,
    /// How many objects each controller works on at once
    #[arg(long, env = "MESSINA_WORKERS", value_name = "NUMBER", default_value = "8")]
    pub workers: std::num::NonZeroUsize,
    /// Runs without a lease. Only for a copy that is alone for certain
    #[arg(long, env = "MESSINA_NO_LEADER_ELECTION")]
    pub no_leader_election: bool,
    /// The namespace of the lease; without it, the namespace that this program runs in
    #[arg(long, env = "MESSINA_LEASE_NAMESPACE", value_name = "NAME")]
    pub lease_namespace: Option<String>,
    /// The name of the lease
    #[arg(long, env = "MESSINA_LEASE_NAME", value_name = "NAME", default_value = "messina")]
    pub lease_name: String,
    /// After how many seconds without a sign of life another copy leads
    #[arg(long, env = "MESSINA_LEASE_SECONDS", value_name = "SECONDS", default_value = "15", value_parser = clap::value_parser!(u16).range(3..=3600))]
    pub lease_seconds: u16,
    /// Name of scylla-operator's Lease. While one of this name is held in any namespace, the operator does not change
    /// datacenters
    #[arg(long, env = "MESSINA_SCYLLA_OPERATOR_LEASE", value_name = "NAME", default_value = scylla_operator::LEASE)]
    pub scylla_operator_lease: String,
    /// States that scylla-operator does not run in this cluster, so that its Lease is not read. Without it, an operator that may
    /// not read that Lease changes no datacenter
    #[arg(long, env = "MESSINA_SCYLLA_OPERATOR_ABSENT")]
    pub scylla_operator_absent: bool,
    /// By what this copy is known; no two copies may have the same. Without it, the host's name and random letters
    #[arg(long, env = "MESSINA_IDENTITY", value_name = "NAME")]
    pub identity: Option<String>,
    /// Where /metrics, /healthz and /readyz are served
    #[arg(long, env = "MESSINA_LISTEN", value_name = "ADDRESS", default_value = "0.0.0.0:8080")]
    pub listen: std::net::SocketAddr,
    /// Where traces are sent by OTLP over HTTP, such as http://collector:4318; without it, what OTEL_EXPORTER_OTLP_ENDPOINT
    /// says, and none without that
    #[arg(long, env = "MESSINA_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
}

impl Options {
    fn source(&self) -> Source {
        match &self.kubeconfig {
            Some(path) => Source::File { path: path.clone(), context: self.context.clone() },
            None => Source::Usual,
        }
    }

    /// The domain of the cluster, in which Services are looked up.
    fn cluster_domain(&self) -> String {
        let of_pod = || {
            let resolv_conf = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
            domain_of_pod(&resolv_conf).unwrap_or(USUAL_DOMAIN).to_owned()
        };
        self.cluster_domain.clone().unwrap_or_else(of_pod)
    }

    /// What is the same for all datacenters.
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
    seconds.ok_or_else(|| format!("it has to be 1 to {}", ProbePeriod::DEFAULT_SECONDS))
}

/// The controllers of the operator, and what they watch.
pub fn controllers(
    datacenters: datacenter::Settings,
    etcd_tasks: etcd_task::Settings,
) -> impl Fn(&mut Caches) -> Vec<Arc<dyn AnyController>> {
    move |caches| {
        let jobs = controllers::jobs(caches);
        vec![datacenter::start(caches, &jobs, datacenters.clone()), etcd_task::start(caches, &jobs, etcd_tasks.clone())]
    }
}

/// What all controllers share.
pub fn context(metrics: Metrics, events: Events) -> SharedContext {
    SharedContext::new(metrics, events, FIELD_MANAGER, annotation::APPLIED_HASH)
        .paused_by(annotation::PAUSE)
        .adopting_by(annotation::ADOPT)
        .taking_over(PREDECESSOR)
}

/// Runs until it is told to stop, and tells of it.
pub fn main(options: Options, log: &logging::Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(async {
        let identity = options.identity.clone().unwrap_or_else(own_identity);
        let endpoint = traces::endpoint(options.otlp_endpoint.as_deref());
        let traces = endpoint.map(|endpoint| Traces::sent_to(&endpoint, &identity)).transpose()?;
        logging::start(log, traces.as_ref());
        logging::log_panics();
        let outcome = run(options, identity).await;
        if let Some(traces) = traces {
            traces.finish().await;
        }
        outcome
    });
    // A key that is being made is nobody's by now, and it would be waited for.
    runtime.shutdown_background();
    outcome
}

async fn run(options: Options, identity: String) -> anyhow::Result<()> {
    let metrics = Metrics::default();
    let readiness = Readiness::default();
    let listener = TcpListener::bind(options.listen).await.with_context(|| {
        format!("nothing can be served at {}: choose another address with --listen", options.listen)
    })?;
    // The port may have been chosen by the system.
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
        reach: Reach::in_cluster(&options.cluster_domain()),
        fence: fence.clone(),
        backup_restore_image: options.backup_restore_image.clone(),
        counts: etcd_task::Counts::new(&metrics),
    };
    let datacenters = options.datacenters(&metrics);
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
    let mut terminate = signal(SignalKind::terminate()).context("signals cannot be received")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("signals cannot be received")?;
    let stop = async {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        info!("stopping");
    };
    // Neither of the two ends by itself; without them nobody would know how the operator is.
    tokio::select! {
        () = process.run(controllers(datacenters, etcd_tasks), stop) => {}
        ended = &mut server => bail!("/metrics, /healthz and /readyz are no longer served: {ended:?}"),
        ended = &mut writing => bail!("events are no longer written: {ended:?}"),
    }
    // Nothing more is told once nobody works; what is under way gets a moment.
    let _ = tokio::time::timeout(Duration::from_secs(1), writing).await;
    server.abort();
    Ok(())
}

/// The domain of most clusters.
const USUAL_DOMAIN: &str = "cluster.local";

/// The domain of a cluster, as the kubelet writes it into a pod: the search domains are those of the pod's namespace, of all
/// Services and of the cluster.
fn domain_of_pod(resolv_conf: &str) -> Option<&str> {
    let mut searches = resolv_conf.lines().filter_map(|line| line.trim_start().strip_prefix("search"));
    let last = searches.rfind(|domains| domains.starts_with(char::is_whitespace))?;
    let domain = last.split_whitespace().find_map(|domain| domain.strip_prefix("svc."))?.trim_end_matches('.');
    (!domain.is_empty()).then_some(domain)
}

fn domain(text: &str) -> Result<String, String> {
    let is_label = |label: &str| {
        let is_inner = |letter: u8| letter.is_ascii_alphanumeric() || letter == b'-';
        !label.is_empty() && label.len() <= 63 && label.bytes().all(is_inner)
    };
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.split('.').all(is_label) { Ok(name.to_owned()) } else { Err("give a domain, such as cluster.local".into()) }
}

/// The host's name, and letters that no other copy has.
fn own_identity() -> String {
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
    fn every_setting_has_a_flag_a_variable_of_the_same_name_and_a_text() {
        for [flag, variable, _] in settings() {
            let name = flag.strip_prefix("--").unwrap().to_uppercase().replace('-', "_");
            assert_eq!(variable, format!("MESSINA_{name}"), "{flag}");
        }
        for argument in command().get_arguments() {
            assert!(argument.get_help().is_some(), "{} has no text", argument.get_id());
        }
        let help = command().render_long_help().to_string();
        for [flag, variable, _] in settings() {
            assert!(help.contains(&flag) && help.contains(&format!("[env: {variable}=")), "{flag} in --help:\n{help}");
        }
    }

    #[test]
    fn the_domain_of_the_cluster_is_that_of_the_pod() {
        for (resolv_conf, expected) in [
            ("search messina.svc.prod.example svc.prod.example prod.example corp.example\n", Some("prod.example")),
            ("nameserver 10.0.0.10\nsearch x.svc.cluster.local svc.cluster.local cluster.local", Some("cluster.local")),
            ("search svc.a.\n", Some("a")),
            ("search svc.a\nsearch svc.b\n", Some("b")),
            ("search corp.example svc.\n", None),
            ("# search svc.a\nsearching svc.a\n", None),
            ("", None),
        ] {
            assert_eq!(domain_of_pod(resolv_conf), expected, "{resolv_conf}");
        }
        assert_eq!(domain("cluster.local.").as_deref(), Ok("cluster.local"));
        for text in ["", ".", "a..b", "a b", "a/b"] {
            assert!(domain(text).is_err(), "{text}");
        }
    }

    #[test]
    fn keys_are_elliptic_unless_it_is_said_otherwise() {
        let keys = |arguments: &[&str]| {
            let matches = command().try_get_matches_from([&["operator", "--image=messina"], arguments].concat())?;
            Ok::<_, clap::Error>(Options::from_arg_matches(&matches)?.datacenters(&Metrics::default()).keys)
        };
        for (arguments, expected) in [
            (&[][..], KeyKind::Ecdsa(EcdsaKeySize::Bits384)),
            (&["--crypto-ecdsa-key-size=256"], KeyKind::Ecdsa(EcdsaKeySize::Bits256)),
            (&["--crypto-rsa-key-size=2048"], KeyKind::Ecdsa(EcdsaKeySize::Bits384)),
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
    fn the_page_lists_all_settings_and_no_others() {
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
