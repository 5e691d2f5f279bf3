//! `messina`: the operator and everything that belongs to it, one subcommand each.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use messina_operator::{await_node, crds, ignition, inject, operator, probe, sidecar};

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
    /// In a node's pod: configures and runs ScyllaDB, and speaks for it on the node's Service
    Sidecar(Box<sidecar::Options>),
    /// In a node's pod: says when ScyllaDB may start
    Ignition(ignition::Options),
    /// In a node's pod: answers Kubernetes' probes for ScyllaDB, and says how the node sees its ring
    Probe(probe::Options),
    /// In a node's pod: copies this program into a folder, for containers of other images to run
    Inject(inject::Options),
    /// In a node's pod: waits until ScyllaDB answers, then becomes another program
    AwaitNode(await_node::Options),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Operator(options) => {
            tracing_subscriber::fmt().with_env_filter("info").with_writer(std::io::stderr).init();
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()?
                .block_on(operator::run(*options))
        }
        Command::Crds { output: None } => crds::print(),
        Command::Crds { output: Some(folder) } => crds::write(&folder),
        Command::Sidecar(options) => sidecar::run(&options),
        Command::Ignition(options) => ignition::run(options),
        Command::Probe(options) => probe::run(options),
        Command::Inject(options) => inject::run(&options),
        Command::AwaitNode(options) => await_node::run(options),
    }
}
