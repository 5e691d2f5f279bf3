//! Kubernetes clusters on this host, for development and tests.
//!
//! [`cluster`] starts and stops clusters, [`tools`] gets the programs they consist of, [`harness`] is what tests use.
//! How the parts fit together is drawn in `docs/internals/testbed.md`.

pub mod audit;
pub mod bench;
pub mod cache;
pub mod cgroup;
pub mod cluster;
pub mod components;
pub mod deadline;
pub mod demo;
#[cfg(test)]
mod dependencies;
pub mod deploy;
pub mod error;
pub mod etcd;
pub mod exec;
pub mod facts;
pub mod faults;
pub mod harness;
pub mod image;
#[cfg(test)]
mod imports;
pub mod inotify;
pub mod manifests;
pub mod network;
pub mod node;
pub mod pki;
pub mod progress;
pub mod provisioner;
pub mod release;
pub mod reserved;
pub mod suitability;
pub mod suite;
pub mod supervise;
pub mod tools;

pub use error::{Error, Result};
