//! `kubectl messina`: how ScyllaDB clusters stand and why, what a manifest would become, and work on etcd clusters.

use std::{io, process::ExitCode};

use clap::{Parser, Subcommand};
use messina_kubectl::{etcd, plan, status, why};
use tokio::runtime::{self, Runtime};

/// Looks at ScyllaDB clusters on Kubernetes, and has work done on etcd clusters.
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
    /// Prints what the operator would create for manifests, without a cluster
    Plan(plan::Options),
    /// Has work done on etcd clusters, and follows it
    #[command(subcommand)]
    Etcd(etcd::Command),
}

fn main() -> anyhow::Result<ExitCode> {
    match Cli::parse().command {
        Command::Status(options) => asking()?.block_on(status::run(&options)),
        Command::Why(options) => asking()?.block_on(why::run(&options)),
        Command::Plan(options) => plan::run(&options),
        Command::Etcd(command) => asking()?.block_on(etcd::run(&command)),
    }
}

/// What runs requests to a cluster.
fn asking() -> io::Result<Runtime> {
    runtime::Builder::new_current_thread().enable_all().build()
}
