//! `messina`: the operator and everything that belongs to it, one subcommand each.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use messina_operator::{crds, operator};

/// Runs ScyllaDB and etcd on Kubernetes.
#[derive(Parser)]
#[command(name = "messina", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Keeps what users asked for: runs the controllers
    Operator(Box<operator::Options>),
    /// Prints the CustomResourceDefinitions as a YAML stream
    Crds {
        /// Writes them into this folder instead, one file each, and removes definitions that are no more
        #[arg(long)]
        output: Option<PathBuf>,
    },
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Operator(options) => {
            tracing_subscriber::fmt().with_env_filter("info").with_writer(std::io::stderr).init();
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(operator::run(*options))
        }
        Command::Crds { output: None } => crds::print(),
        Command::Crds { output: Some(folder) } => crds::write(&folder),
    }
}
