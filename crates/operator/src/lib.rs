//! The subcommands of `messina`, one module each.

pub mod await_node;
pub mod certificates;
pub mod cleanup_job;
pub mod controllers;
pub mod crds;
pub mod ignition;
pub mod inject;
pub mod logging;
pub mod operator;
pub mod probe;
pub mod sidecar;
pub mod sysctl;
pub mod traces;

mod kubernetes;
mod pod;
#[cfg(test)]
mod reference;
mod scylla;
mod serve;
mod single_flight;
