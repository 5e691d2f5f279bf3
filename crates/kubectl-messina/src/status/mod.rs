//! `kubectl messina status`: clusters, racks and nodes, with the state of each node as ScyllaDB sees it.
//!
//! ```text
//! gather   queries the API server, and the nodes through its proxy    (I/O)
//! model    combines what they report                                  (pure)
//! render   draws it as a tree                                         (pure)
//! ```

pub mod gather;
pub mod model;
pub(crate) mod pods;
mod render;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::ValueEnum;

use gather::Query;
use model::{Found, Status};
pub use render::text;

pub use crate::page::Style;
use crate::{
    cluster::{self, Access, Error},
    plan::print,
};

/// Arguments of `status`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The ScyllaDBDatacenter to show (default: all)
    #[arg(value_name = "NAME", conflicts_with = "all_namespaces")]
    pub name: Option<String>,
    /// The namespace to search (default: the namespace of the kubeconfig's context)
    #[arg(short, long, value_name = "NAME", conflicts_with = "all_namespaces")]
    pub namespace: Option<String>,
    /// Searches all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// The cluster to use.
    #[command(flatten)]
    pub access: Access,
    /// The output format: a tree for people, or a JSON document for programs
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: OutputFormat,
    /// Draws the tree with ASCII characters only
    #[arg(long)]
    pub ascii: bool,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// A tree.
    Text,
    /// A JSON document.
    Json,
}

/// Prints the status, or an error in one sentence.
pub async fn run(options: &Options) -> Result<ExitCode> {
    let status = match status(options).await {
        Ok(status) => status,
        Err(error) => {
            eprintln!("{error}");
            return Ok(ExitCode::FAILURE);
        }
    };
    let shown = match options.output {
        OutputFormat::Json => serde_json::to_string_pretty(&status).context("writing JSON")? + "\n",
        OutputFormat::Text => text(&status, Style::of_output(options.ascii)),
    };
    print(&shown)?;
    Ok(ExitCode::SUCCESS)
}

async fn status(options: &Options) -> Result<Status, Error> {
    let config = options.access.config().await?;
    let namespace = options.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let client = cluster::client(config)?;
    let query = Query {
        namespace: (!options.all_namespaces).then_some(namespace),
        name: options.name.clone(),
        ..Query::default()
    };
    let Found { datacenters, problems } = gather::gather(&client, &query).await?;
    Ok(Status::new(&datacenters, problems, query.namespace))
}
