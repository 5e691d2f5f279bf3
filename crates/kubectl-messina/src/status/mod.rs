//! `kubectl messina status`: clusters, racks and nodes, with the state of each node as ScyllaDB sees it.
//!
//! ```text
//! gather   asks the API server, and through it the nodes       (I/O)
//! model    puts together what they say                         (pure)
//! render   as a tree for people                                (pure)
//! ```

mod error;
pub mod gather;
pub mod model;
mod pods;
mod render;

use std::{
    env,
    io::{self, IsTerminal},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context, Result};
use clap::ValueEnum;

pub use error::Error;
use gather::Question;
use model::{Found, Status};
pub use render::{Look, text};

use crate::plan::print;

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
    /// A kubeconfig; without it, what kubectl would use
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig, if not its current one
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
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
        Form::Text => {
            let no_colour = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
            text(&status, Look { colours: io::stdout().is_terminal() && !no_colour, ascii: options.ascii })
        }
    };
    print(&shown)?;
    Ok(ExitCode::SUCCESS)
}

async fn status(options: &Options) -> Result<Status, Error> {
    let config = gather::config(options.kubeconfig.as_deref(), options.context.as_deref()).await?;
    let namespace = options.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let client = gather::client(config)?;
    let question = Question {
        namespace: (!options.all_namespaces).then_some(namespace),
        name: options.name.clone(),
        ..Question::default()
    };
    let Found { datacenters, problems } = gather::gather(&client, &question).await?;
    Ok(Status::new(&datacenters, problems, question.namespace))
}
