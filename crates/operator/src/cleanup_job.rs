//! `messina cleanup-job`: has a node remove what it no longer owns, and ends when that is done.
//!
//! The node is asked through its agent. A run that is stopped stops the cleanup, too, and one that begins stops what an
//! earlier one has left: there is one at most, and somebody waits for its end.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail};
use messina_clients::scylla::agent::Agent;
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use crate::{kubernetes::chain, pod};

/// How long the cleanup of one keyspace may take. It is a request that is answered at its end.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// How long it is tried to stop the cleanup when this program is stopped. Kubernetes waits for half a minute.
const STOPPING: Duration = Duration::from_secs(20);
/// Between two attempts to stop it.
const PAUSE: Duration = Duration::from_secs(1);

/// Which node, and how it is asked.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// A file of the agents' configuration that holds their token
    #[arg(long, value_name = "FILE")]
    pub manager_auth_config_path: PathBuf,
    /// Where the node's agent is reached: an IP address or the name of a host
    #[arg(long, value_name = "ADDRESS")]
    pub node_address: String,
}

#[derive(Deserialize)]
struct Settings {
    auth_token: Option<String>,
}

/// Cleans up, or says why not.
pub fn run(options: &Options) -> Result<()> {
    let token = token(options)?;
    let agent = Agent::new(&options.node_address, &token).context("--node-address and the token cannot be used")?;
    pod::runtime()?.block_on(async {
        tokio::select! {
            outcome = clean_up(&agent) => outcome,
            stopped = pod::stopped(std::future::pending()) => {
                stopped?;
                stop(&agent).await?;
                bail!("stopped before the node was cleaned up")
            }
        }
    })
}

fn token(options: &Options) -> Result<String> {
    let file = &options.manager_auth_config_path;
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let settings: Settings =
        serde_saphyr::from_str(&text).map_err(|_| anyhow::anyhow!("{} is no YAML with a token", file.display()))?;
    match settings.auth_token {
        Some(token) if !token.is_empty() => Ok(token),
        _ => bail!("{} has no auth_token", file.display()),
    }
}

/// All keyspaces, one after another. One that fails does not keep the others back.
async fn clean_up(agent: &Agent) -> Result<()> {
    agent.stop_cleanup().await.context("stopping a cleanup that may be under way")?;
    let keyspaces = agent.vnode_keyspaces().await.context("asking for the keyspaces")?;
    info!(?agent, ?keyspaces, "cleaning up");
    let mut failed = Vec::new();
    for keyspace in keyspaces {
        let began = Instant::now();
        match agent.cleanup(&keyspace, LONGEST).await {
            Ok(()) => info!(keyspace, seconds = began.elapsed().as_secs(), "cleaned up"),
            Err(error) => {
                warn!(keyspace, problem = chain(&error), "not cleaned up");
                failed.push(format!("{keyspace}: {}", chain(&error)));
            }
        }
    }
    if !failed.is_empty() {
        bail!("keyspaces that were not cleaned up: {}", failed.join("; "));
    }
    info!("the node holds only what it owns");
    Ok(())
}

async fn stop(agent: &Agent) -> Result<()> {
    info!("stopping the cleanup");
    let trying = async {
        while let Err(error) = agent.stop_cleanup().await {
            warn!(problem = chain(&error), "the cleanup could not be stopped");
            sleep(PAUSE).await;
        }
    };
    timeout(STOPPING, trying).await.context("the cleanup goes on, because it could not be stopped")
}
