//! What the program `messina` does, one module for each subcommand.

pub mod await_node;
pub mod controllers;
pub mod crds;
pub mod ignition;
pub mod inject;
pub mod operator;
pub mod probe;
pub mod sidecar;

mod kubernetes;
mod logging;
mod pod;
mod serve;
