//! `messina`: the operator, the programs of a node's pod and the command-line tools, one subcommand each.

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
    /// Run the controllers for ScyllaDBDatacenters and etcd tasks
    Operator(Box<operator::Options>),
    /// Print the CustomResourceDefinitions as a YAML stream
    Crds {
        /// Directory to write them to instead, one file each. Other YAML files in it are deleted
        #[arg(long)]
        output: Option<PathBuf>,
    },
    /// Print the objects that the operator would create for manifests, without a cluster
    Plan(plan::Options),
    /// In a node's pod: configure and run ScyllaDB, and publish its state on the node's Service
    Sidecar(Box<sidecar::Options>),
    /// In a node's pod: create the file that lets ScyllaDB start once its prerequisites are met
    Ignition(ignition::Options),
    /// In a node's pod: serve the kubelet's probes of ScyllaDB, and the token ring as the node sees it
    Probe(probe::Options),
    /// In a node's pod: copy this program to a directory, for containers of other images to run
    Inject(inject::Options),
    /// In a node's pod: wait until ScyllaDB's REST API responds, then exec another program
    AwaitNode(await_node::Options),
    /// In a node's pod: set kernel parameters (sysctls) of the Kubernetes node
    Sysctl(sysctl::Options),
    /// In a Job: run a cleanup of all keyspaces on a node, which deletes data of tokens that it no longer owns
    CleanupJob(cleanup_job::Options),
}

fn main() -> anyhow::Result<ExitCode> {
    let Cli { log, command } = Cli::parse();
    // The operator starts logging later: traces need its tokio runtime and its identity.
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
