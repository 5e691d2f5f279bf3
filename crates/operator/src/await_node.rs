//! `messina await-node`: waits until ScyllaDB's REST API responds, then executes another program.

use std::{
    ffi::OsString,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::unix::process::CommandExt,
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use messina_clients::scylla::{Error, Node};
use tokio::time::sleep;
use tracing::info;

use crate::{
    kubernetes::Access,
    pod::{self, Shared},
};

/// How often ScyllaDB is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The node to wait for, and the program to execute.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// IP address of ScyllaDB's REST API (default: 127.0.0.1 or ::1)
    #[arg(long)]
    pub scylla_localhost_address: Option<IpAddr>,
    /// Name of the pod, to exit if it was already being deleted when this program started
    #[arg(long, env = "HOSTNAME")]
    pub pod_name: Option<String>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its fields are documented")]
    pub shared: Shared,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its fields are documented")]
    pub access: Access,
    /// Program to execute, and its arguments
    #[arg(last = true, required = true)]
    pub program: Vec<OsString>,
}

/// Waits, then executes the program. Returns only if that fails or if a signal arrives meanwhile.
pub fn run(options: Options) -> Result<()> {
    let (program, arguments) =
        options.program.split_first().ok_or_else(|| anyhow!("no program to execute: name one after --"))?;
    let has_responded = pod::runtime()?.block_on(async {
        tokio::select! {
            // First, so that signal handlers are installed before it logs that it waits.
            biased;
            stopped = pod::wait_for_stop(resolve_if_terminating(&options)) => stopped.map(|()| false),
            () = wait_for_node(&options) => Ok(true),
        }
    })?;
    if !has_responded {
        info!("stopped before ScyllaDB's REST API responded");
        return Ok(());
    }
    info!(program = %program.to_string_lossy(), "ScyllaDB's REST API responds: executing the program");
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("executing {}", program.to_string_lossy()))
}

/// See [`MemberApi::resolve_if_terminating`](crate::kubernetes::Member::is_going).
async fn resolve_if_terminating(options: &Options) {
    let Some(name) = &options.pod_name else { return std::future::pending().await };
    match options.access.member(name).await {
        Ok(member) => member.resolve_if_terminating().await,
        Err(error) => {
            info!("cannot read whether the pod is being deleted: {error:#}");
            std::future::pending().await
        }
    }
}

async fn wait_for_node(options: &Options) {
    info!(file = %options.shared.ignition_file().display(), "waiting for ignition");
    options.shared.wait_for_ignition().await;
    let loopback = || vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let addresses: Vec<IpAddr> = options.scylla_localhost_address.map_or_else(loopback, |address| vec![address]);
    info!(?addresses, "waiting for ScyllaDB's REST API");
    while !responds_at_any(&addresses).await {
        sleep(POLL_INTERVAL).await;
    }
}

async fn responds_at_any(addresses: &[IpAddr]) -> bool {
    for &address in addresses {
        // An HTTP error is a response, too.
        if matches!(Node::at_ip(address).ping().await, Ok(()) | Err(Error::Refused { .. })) {
            return true;
        }
    }
    false
}
