//! `kubectl messina`: what a person runs. One module for each subcommand.
//!
//! Nothing here depends on Linux or on the operator itself, so that it runs wherever kubectl does.

pub mod cluster;
pub mod etcd;
mod page;
pub mod plan;
pub mod status;
#[cfg(test)]
mod testing;
pub mod why;
