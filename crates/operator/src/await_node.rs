//! `messina await-node`: waits until ScyllaDB answers, then becomes another program.

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

/// How often to ask.
const LOOK: Duration = Duration::from_millis(500);

/// What to wait for, and what to become.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Where ScyllaDB's REST API is; without it, loopback of either family
    #[arg(long)]
    pub scylla_localhost_address: Option<IpAddr>,
    /// Name of the pod; without it, or outside of one, nobody knows that it was being deleted already when this began
    #[arg(long, env = "HOSTNAME")]
    pub pod_name: Option<String>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its fields say it")]
    pub shared: Shared,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its fields say it")]
    pub access: Access,
    /// The program to become, and its arguments
    #[arg(last = true, required = true)]
    pub program: Vec<OsString>,
}

/// Waits, then becomes the program; returns only if that fails or if it is stopped while it waits.
pub fn run(options: Options) -> Result<()> {
    let (program, arguments) = options.program.split_first().ok_or_else(|| anyhow!("no program is given"))?;
    let is_there = pod::runtime()?.block_on(async {
        tokio::select! {
            // Signals are listened for before it says that it waits.
            biased;
            stopped = pod::stopped(is_going(&options)) => stopped.map(|()| false),
            () = node_answers(&options) => Ok(true),
        }
    })?;
    if !is_there {
        info!("stopped before ScyllaDB answered");
        return Ok(());
    }
    info!(program = %program.to_string_lossy(), "ScyllaDB answers: starting the program");
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("starting {}", program.to_string_lossy()))
}

/// See [`Member::is_going`](crate::kubernetes::Member::is_going).
async fn is_going(options: &Options) {
    let Some(name) = &options.pod_name else { return std::future::pending().await };
    match options.access.member(name).await {
        Ok(member) => member.is_going().await,
        Err(error) => {
            info!("it is not known whether the pod is being deleted: {error:#}");
            std::future::pending().await
        }
    }
}

async fn node_answers(options: &Options) {
    info!(file = %options.shared.ignition().display(), "waiting for ignition");
    options.shared.ignited().await;
    let loopback = || vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let addresses: Vec<IpAddr> = options.scylla_localhost_address.map_or_else(loopback, |address| vec![address]);
    info!(?addresses, "waiting for ScyllaDB's REST API");
    while !any_answers(&addresses).await {
        sleep(LOOK).await;
    }
}

async fn any_answers(addresses: &[IpAddr]) -> bool {
    for &address in addresses {
        // A refusal is an answer.
        if matches!(Node::at_ip(address).ping().await, Ok(()) | Err(Error::Refused { .. })) {
            return true;
        }
    }
    false
}
