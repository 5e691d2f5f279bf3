//! `kubectl messina why KIND/NAME`: why an object is not done yet, in sentences.
//!
//! ```text
//! gather   reads the object, the objects that it owns, and events from the API server    (I/O)
//! explain  says in sentences what they mean                                              (pure)
//! ```

mod explain;
mod gather;
mod kinds;

use std::process::ExitCode;

use anyhow::Result;
use jiff::Timestamp;

pub use explain::text;
pub use gather::{Explained, gather};
pub use kinds::ExplainedKind;

use crate::{
    cluster::{self, Access, Error},
    page::Style,
    plan::print,
};

/// Arguments of `why`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The object, such as scylladbdatacenter/orders; kinds can be shortened as for kubectl
    #[arg(value_name = "KIND/NAME", value_parser = kinds::parse)]
    pub object: (&'static ExplainedKind, String),
    /// Shows all messages, also those that follow from others
    #[arg(long)]
    pub all: bool,
    /// The namespace of the object (default: the namespace of the kubeconfig's context)
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// The cluster to use.
    #[command(flatten)]
    pub access: Access,
}

/// Prints the explanation, or an error in one sentence.
pub async fn run(options: &Options) -> Result<ExitCode> {
    match read_object(options).await {
        Ok(found) => {
            print(&text(&found, Timestamp::now(), Style::of_output(false), options.all))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            eprintln!("{error}");
            Ok(ExitCode::FAILURE)
        }
    }
}

async fn read_object(options: &Options) -> Result<Explained, Error> {
    let config = options.access.config().await?;
    let namespace = options.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let client = cluster::client(config)?;
    let (kind, name) = &options.object;
    gather(&client, kind, &namespace, name).await
}
