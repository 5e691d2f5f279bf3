//! `messina`: the operator and everything that belongs to it, one subcommand each.

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use messina_kubectl::plan;
use messina_operator::{await_node, cleanup_job, crds, ignition, inject, logging, operator, probe, sidecar, sysctl};

/// Runs ScyllaDB and etcd on Kubernetes.
#[derive(Parser)]
#[command(name = "messina", version)]
struct Cli {
    #[command(flatten)]
    log: logging::Options,
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
    /// Prints what the operator would create for manifests, without a cluster
    Plan(plan::Options),
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
    /// In a node's pod: sets kernel settings of the machine
    Sysctl(sysctl::Options),
    /// In a Job: has a node remove what it no longer owns
    CleanupJob(cleanup_job::Options),
}

fn main() -> anyhow::Result<ExitCode> {
    let Cli { log, command } = Cli::parse();
    // That of the operator begins later: traces need what it sets up first.
    if !matches!(command, Command::Operator(_)) {
        logging::start(&log, None);
    }
    match command {
        Command::Operator(options) => operator::main(*options, &log),
        Command::Plan(options) => return plan::run(&options),
        Command::Crds { output: None } => crds::print(),
        Command::Crds { output: Some(folder) } => crds::write(&folder),
        Command::Sidecar(options) => sidecar::run(&options),
        Command::Ignition(options) => ignition::run(options),
        Command::Probe(options) => probe::run(options),
        Command::Inject(options) => inject::run(&options),
        Command::AwaitNode(options) => await_node::run(options),
        Command::Sysctl(options) => sysctl::run(&options),
        Command::CleanupJob(options) => cleanup_job::run(&options),
    }?;
    Ok(ExitCode::SUCCESS)
}
