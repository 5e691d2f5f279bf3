//! `kubectl messina why KIND/NAME`: why an object is not done yet, in sentences.
//!
//! ```text
//! gather   asks the API server for the object, what it has, and what was said of it    (I/O)
//! explain  what that means                                                             (pure)
//! ```

mod explain;
mod gather;
mod subject;

use std::process::ExitCode;

use anyhow::Result;
use jiff::Timestamp;

pub use explain::text;
pub use gather::{Found, gather};
pub use subject::Subject;

use crate::{
    cluster::{self, Access, Error},
    page::Look,
    plan::print,
};

/// What to explain.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The object, such as scylladbdatacenter/orders; kinds can be shortened as for kubectl
    #[arg(value_name = "KIND/NAME", value_parser = subject::parse)]
    pub object: (&'static Subject, String),
    /// Where it is; without it, in the namespace of the kubeconfig's context
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// How to reach the cluster.
    #[command(flatten)]
    pub access: Access,
}

/// Explains it, or says in one sentence why that cannot be done.
pub async fn run(options: &Options) -> Result<ExitCode> {
    match found(options).await {
        Ok(found) => {
            print(&text(&found, Timestamp::now(), Look::of_output(false)))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            eprintln!("{error}");
            Ok(ExitCode::FAILURE)
        }
    }
}

async fn found(options: &Options) -> Result<Found, Error> {
    let config = options.access.config().await?;
    let namespace = options.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let client = cluster::client(config)?;
    let (subject, name) = &options.object;
    gather(&client, subject, &namespace, name).await
}
