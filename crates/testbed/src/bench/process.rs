//! The operator as a process, with its memory, CPU time and metrics.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{Api, Client, api::PostParams, config::Kubeconfig};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{TIMEOUT, WORKERS, text};
use crate::{
    cache,
    cluster::Cluster,
    error::{Doing, Error, Result, malformed},
    harness::{self, Seen},
};

/// The operator's user name at the API server.
pub(super) const USER: &str = "system:serviceaccount:bench:operator";

const ACCOUNT: &str = "
apiVersion: v1
kind: Namespace
metadata:
  name: bench
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: operator
  namespace: bench
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: bench-operator
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: cluster-admin
subjects:
  - kind: ServiceAccount
    name: operator
    namespace: bench
";

/// Writes a kubeconfig with a ServiceAccount for the operator, so that its requests can be distinguished from others.
pub(super) async fn credentials(client: &Client, cluster: &Cluster) -> Result<PathBuf> {
    harness::apply(client, ACCOUNT, None).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "bench");
    let spec = TokenRequestSpec { expiration_seconds: Some(24 * 3600), ..TokenRequestSpec::default() };
    let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
    let answer = accounts.create_token_request("operator", &PostParams::default(), &request).await;
    let token =
        answer.doing(|| "requesting a token".into())?.status.and_then(|status| status.token).unwrap_or_default();
    let file = cluster.kubeconfig();
    let mut kubeconfig = Kubeconfig::read_from(&file).map_err(malformed("reading the kubeconfig"))?;
    for user in kubeconfig.auth_infos.iter_mut().filter_map(|user| user.auth_info.as_mut()) {
        *user = kube::config::AuthInfo { token: Some(token.clone().into()), ..Default::default() };
    }
    let own = file.with_file_name("bench.kubeconfig");
    cache::write_private(&own, serde_saphyr::to_string(&kubeconfig).map_err(malformed("writing a kubeconfig"))?)?;
    Ok(own)
}

/// A running operator. It is killed when this is dropped.
pub(super) struct Operator {
    child: Child,
    address: SocketAddr,
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _already_gone = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Operator {
    pub(super) fn start(program: &Path, kubeconfig: &Path, cluster: &Cluster) -> Result<Self> {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
        let address = free.doing(|| "looking for a free port".into())?;
        let log = cluster.logs().join("operator.log");
        let output = File::create(&log).doing(|| format!("creating {}", log.display()))?;
        let mut command = Command::new(program);
        command.args(["operator", "--kubeconfig", &text(kubeconfig), "--lease-namespace", "bench"]);
        command.args(["--image", "localhost/messina/operator:bench", "--listen", &address.to_string()]);
        command.args(["--workers", &WORKERS.to_string()]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output).spawn();
        let child = child.doing(|| format!("starting {}", program.display()))?;
        Ok(Self { child, address })
    }

    /// Waits until it holds the lease and its caches are filled.
    pub(super) async fn leads(&self) -> Result<()> {
        harness::eventually("the operator to lead and be ready", TIMEOUT, || async {
            // In this order, because an operator that waits for the lease is ready, too.
            let leads = self.ask("/metrics").is_ok_and(|text| text.lines().any(|line| line == "messina_leading 1"));
            Ok(match leads.then(|| self.ask("/readyz")) {
                Some(Ok(_)) => Seen::Ready(()),
                other => Seen::NotYet(format!("{other:?}")),
            })
        })
        .await
    }

    /// The requests that it counts itself, other than watches and those for the lease.
    pub(super) async fn requests(&self) -> Result<u64> {
        let text = self.ask("/metrics")?;
        let counts = text.lines().filter(|line| line.starts_with("messina_api_requests_total{"));
        let counts = counts.filter(|line| !line.contains("verb=\"watch\"") && !line.contains("resource=\"leases\""));
        Ok(counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum())
    }

    /// The resident memory in MiB.
    pub(super) fn memory(&self) -> Result<f64> {
        self.status("VmRSS:")
    }

    /// The maximum of resident memory in MiB.
    pub(super) fn peak_memory(&self) -> Result<f64> {
        self.status("VmHWM:")
    }

    /// Its CPU time in seconds.
    pub(super) fn cpu_seconds(&self) -> Result<f64> {
        let file = format!("/proc/{}/stat", self.child.id());
        let stat = fs::read_to_string(&file).doing(|| format!("reading {file}"))?;
        // After its name, which may contain anything: the 12th and 13th fields are ticks in user and system mode.
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        // Linux reports hundredths of a second on all hosts.
        Ok(ticks as f64 / 100.0)
    }

    /// Asks it to end, and waits for it.
    pub(super) fn stops(mut self) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(i32::MAX));
        kill(pid, Signal::SIGTERM).doing(|| "stopping the operator".into())?;
        self.child.wait().map(drop).doing(|| "waiting for the operator to end".into())
    }

    fn status(&self, key: &str) -> Result<f64> {
        let file = format!("/proc/{}/status", self.child.id());
        let status = fs::read_to_string(&file).doing(|| format!("reading {file}"))?;
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        let kibibytes =
            line.trim().trim_end_matches(" kB").parse::<f64>().map_err(malformed(format!("reading {file}")))?;
        Ok(kibibytes / 1024.0)
    }

    /// The response to a GET request; an error unless the status is 200.
    fn ask(&self, path: &str) -> Result<String> {
        let doing = || format!("requesting {path} of the operator");
        let mut stream = TcpStream::connect_timeout(&self.address, Duration::from_secs(1)).doing(doing)?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).doing(doing)?;
        write!(stream, "GET {path} HTTP/1.0\r\nhost: bench\r\n\r\n").doing(doing)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).doing(doing)?;
        let is_fine = answer.lines().next().is_some_and(|line| line.contains(" 200 "));
        if is_fine { Ok(answer) } else { Err(Error::refused(format!("the operator answers {path} with {answer}"))) }
    }
}
