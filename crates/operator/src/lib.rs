//! What the subcommands of `messina` do, one module each.

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
