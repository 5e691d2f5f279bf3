//! `kubectl messina`: how ScyllaDB clusters stand, and what a manifest would become.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use messina_kubectl::{plan, status};

/// Looks at ScyllaDB clusters on Kubernetes.
#[derive(Parser)]
#[command(name = "kubectl-messina", bin_name = "kubectl messina", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Shows clusters, racks and nodes, with the state of each node as ScyllaDB sees it
    Status(status::Options),
    /// Prints what the operator would create for manifests, without a cluster
    Plan(plan::Options),
}

fn main() -> anyhow::Result<ExitCode> {
    match Cli::parse().command {
        Command::Status(options) => {
            tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(status::run(&options))
        }
        Command::Plan(options) => plan::run(&options),
    }
}
