//! `messina`: the operator and everything that belongs to it, one subcommand each.

mod crds;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Runs ScyllaDB and etcd on Kubernetes.
#[derive(Parser)]
#[command(name = "messina", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Prints the CustomResourceDefinitions as a YAML stream
    Crds {
        /// Writes them into this folder instead, one file each, and removes definitions that are no more
        #[arg(long)]
        output: Option<PathBuf>,
    },
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Crds { output: None } => crds::print(),
        Command::Crds { output: Some(folder) } => crds::write(&folder),
    }
}
