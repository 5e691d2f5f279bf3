//! `kubectl messina`: the status of ScyllaDB clusters and its causes, previews of manifests, and tasks on etcd clusters.

use std::{io, process::ExitCode};

use clap::{Parser, Subcommand};
use messina_kubectl::{etcd, plan, status, why};
use tokio::runtime::{self, Runtime};

/// Shows the status of ScyllaDB clusters on Kubernetes, and runs tasks on etcd clusters.
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
    /// Explains in sentences why an object is not done yet
    Why(why::Options),
    /// Prints the objects that the operator would create for manifests, without a cluster
    Plan(plan::Options),
    /// Runs tasks on etcd clusters, and follows them
    #[command(subcommand)]
    Etcd(etcd::Command),
}

fn main() -> anyhow::Result<ExitCode> {
    match Cli::parse().command {
        Command::Status(options) => async_runtime()?.block_on(status::run(&options)),
        Command::Why(options) => async_runtime()?.block_on(why::run(&options)),
        Command::Plan(options) => plan::run(&options),
        Command::Etcd(command) => async_runtime()?.block_on(etcd::run(&command)),
    }
}

/// The runtime for requests to a cluster.
fn async_runtime() -> io::Result<Runtime> {
    runtime::Builder::new_current_thread().enable_all().build()
}
