//! The tools of a node: one program, whose name selects its function.

pub mod agent;
mod client;
pub mod nodetool;
pub mod simctl;
pub mod sstable;

use thiserror::Error;

use crate::{
    args::{ArgumentError, Arguments},
    config::{Caller, Config, ConfigError},
    log,
    node::{Node, NodeError},
};

/// Why a program fails.
#[derive(Debug, Error)]
pub enum ToolError {
    /// Arguments of a node.
    #[error(transparent)]
    Arguments(#[from] ArgumentError),
    /// Its configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The node itself.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// An invalid command line.
    #[error("{0}")]
    Usage(String),
    /// A node returned an error, or did not respond.
    #[error("{0}")]
    Response(String),
    /// Anything else.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Runs the program with this name.
pub fn run(name: &str, mut arguments: Vec<String>) -> Result<(), ToolError> {
    match name {
        "docker-entrypoint.py" | "docker-entrypoint" | "node" => node(arguments, Caller::Image),
        "scylla" if arguments.first().is_some_and(|first| first == "sstable") => sstable::run(&arguments[1..]),
        "scylla" if arguments.first().is_some_and(|first| first == "nodetool") => {
            block_on(nodetool::run(&arguments[1..]))
        }
        "scylla" => node(arguments, Caller::Scylla),
        "nodetool" => block_on(nodetool::run(&arguments)),
        "scylla-manager-agent" => block_on(agent::run(&arguments)),
        "simctl" => block_on(simctl::run(&arguments)),
        _ if !arguments.is_empty() => {
            let name = arguments.remove(0);
            let is_known = ["docker-entrypoint.py", "scylla", "nodetool", "scylla-manager-agent", "simctl", "node"];
            if is_known.contains(&name.as_str()) { run(&name, arguments) } else { Err(usage()) }
        }
        _ => Err(usage()),
    }
}

fn usage() -> ToolError {
    ToolError::Usage("call it as docker-entrypoint.py, scylla, nodetool, scylla-manager-agent or simctl, by name or as the first argument".to_owned())
}

fn block_on(work: impl Future<Output = Result<(), ToolError>>) -> Result<(), ToolError> {
    crate::node::block_on(work)?
}

fn node(arguments: Vec<String>, caller: Caller) -> Result<(), ToolError> {
    let config = Config::load(Arguments::parse(arguments)?, caller)?;
    let outcome = match Node::open(config) {
        Ok(node) => crate::node::block_on(node.run())?,
        Err(error) => Err(error),
    };
    outcome.inspect_err(|error| log::error("init", error)).map_err(ToolError::from)
}
