//! `kubectl messina status`: clusters, racks and nodes, with the state of each node as ScyllaDB sees it.
//!
//! ```text
//! gather   asks the API server, and through it the nodes       (I/O)
//! model    puts together what they say                         (pure)
//! render   as a tree for people                                (pure)
//! ```

pub mod gather;
pub mod model;
pub(crate) mod pods;
mod render;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::ValueEnum;

use gather::Question;
use model::{Found, Status};
pub use render::text;

pub use crate::page::Look;
use crate::{
    cluster::{self, Access, Error},
    plan::print,
};

/// What to show, and how.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The ScyllaDBDatacenter to show; all of them, if none is named
    #[arg(value_name = "NAME", conflicts_with = "all_namespaces")]
    pub name: Option<String>,
    /// Where to look; without it, in the namespace of the kubeconfig's context
    #[arg(short, long, value_name = "NAME", conflicts_with = "all_namespaces")]
    pub namespace: Option<String>,
    /// Looks in all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// How to reach the cluster.
    #[command(flatten)]
    pub access: Access,
    /// As a tree for people, or as a JSON document for programs
    #[arg(short, long, value_name = "FORM", default_value = "text")]
    pub output: Form,
    /// Draws the tree with letters that every terminal has
    #[arg(long)]
    pub ascii: bool,
}

/// How to show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// As a tree.
    Text,
    /// As a JSON document.
    Json,
}

/// Shows it, or says in one sentence why it cannot.
pub async fn run(options: &Options) -> Result<ExitCode> {
    let status = match status(options).await {
        Ok(status) => status,
        Err(error) => {
            eprintln!("{error}");
            return Ok(ExitCode::FAILURE);
        }
    };
    let shown = match options.output {
        Form::Json => serde_json::to_string_pretty(&status).context("writing JSON")? + "\n",
        Form::Text => text(&status, Look::of_output(options.ascii)),
    };
    print(&shown)?;
    Ok(ExitCode::SUCCESS)
}

async fn status(options: &Options) -> Result<Status, Error> {
    let config = options.access.config().await?;
    let namespace = options.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let client = cluster::client(config)?;
    let question = Question {
        namespace: (!options.all_namespaces).then_some(namespace),
        name: options.name.clone(),
        ..Question::default()
    };
    let Found { datacenters, problems } = gather::gather(&client, &question).await?;
    Ok(Status::new(&datacenters, problems, question.namespace))
}
