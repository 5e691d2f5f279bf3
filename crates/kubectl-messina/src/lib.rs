//! The kubectl plugin `kubectl messina`. One module for each subcommand.
//!
//! It depends neither on Linux nor on the operator, so that it runs wherever kubectl runs.

pub mod cluster;
mod conditions;
pub mod etcd;
mod page;
pub mod plan;
pub mod status;
#[cfg(test)]
mod testing;
pub mod why;
