//! `messina cleanup-job`: runs a cleanup of all keyspaces on a node, and exits when it is done.
//!
//! The requests go through ScyllaDB Manager's agent of the node. The program stops the node's cleanup when it is
//! stopped itself, and stops a cleanup that an earlier run has left when it starts: there is at most one, and a Job
//! always waits for it.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail};
use messina_clients::scylla::agent::Agent;
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use crate::{kubernetes::chain, pod};

/// Timeout of the cleanup of one keyspace. The response comes when it is done.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// How long this program tries to stop the cleanup when it is stopped itself. The grace period of its pod is 30
/// seconds.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// The delay between two attempts to stop the cleanup.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The node to clean up, and the token of its agent.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Path of the agents' configuration with auth_token
    #[arg(long, value_name = "FILE")]
    pub manager_auth_config_path: PathBuf,
    /// IP address or host name of the node's agent
    #[arg(long, value_name = "ADDRESS")]
    pub node_address: String,
}

#[derive(Deserialize)]
struct Settings {
    auth_token: Option<String>,
}

/// Cleans up the node. Fails if a keyspace could not be cleaned up.
pub fn run(options: &Options) -> Result<()> {
    let token = token(options)?;
    let agent = Agent::new(&options.node_address, &token).context("--node-address or the token is invalid")?;
    pod::runtime()?.block_on(async {
        tokio::select! {
            outcome = clean_up(&agent) => outcome,
            stopped = pod::wait_for_stop(std::future::pending()) => {
                stopped?;
                stop(&agent).await?;
                bail!("stopped by a signal before the cleanup was done")
            }
        }
    })
}

fn token(options: &Options) -> Result<String> {
    let file = &options.manager_auth_config_path;
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let settings: Settings =
        serde_saphyr::from_str(&text).map_err(|_| anyhow::anyhow!("{} is not YAML with auth_token", file.display()))?;
    match settings.auth_token {
        Some(token) if !token.is_empty() => Ok(token),
        _ => bail!("{} has no auth_token", file.display()),
    }
}

/// Cleans up all keyspaces, one after another. Continues with the next one when one fails.
async fn clean_up(agent: &Agent) -> Result<()> {
    agent.stop_cleanup().await.context("stopping the cleanup of an earlier run")?;
    let keyspaces = agent.vnode_keyspaces().await.context("listing the keyspaces")?;
    info!(?agent, ?keyspaces, "cleaning up");
    let mut failed = Vec::new();
    for keyspace in keyspaces {
        let began = Instant::now();
        match agent.cleanup(&keyspace, CLEANUP_TIMEOUT).await {
            Ok(()) => info!(keyspace, seconds = began.elapsed().as_secs(), "cleaned up"),
            Err(error) => {
                warn!(keyspace, problem = chain(&error), "cleanup failed");
                failed.push(format!("{keyspace}: {}", chain(&error)));
            }
        }
    }
    if !failed.is_empty() {
        bail!("cleanup failed for keyspaces: {}", failed.join("; "));
    }
    info!("cleanup of all keyspaces is done");
    Ok(())
}

async fn stop(agent: &Agent) -> Result<()> {
    info!("stopping the cleanup");
    let attempts = async {
        while let Err(error) = agent.stop_cleanup().await {
            warn!(problem = chain(&error), "cannot stop the cleanup; retrying");
            sleep(RETRY_DELAY).await;
        }
    };
    let timed_out = || format!("the cleanup could not be stopped within {STOP_TIMEOUT:?} and continues on the node");
    timeout(STOP_TIMEOUT, attempts).await.with_context(timed_out)
}
