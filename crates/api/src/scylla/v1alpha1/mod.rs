//! `scylla.scylladb.com/v1alpha1`.

mod cluster;
mod datacenter;
mod expose;
mod manager;
mod rack;
mod remote;
mod status_report;

pub use cluster::*;
pub use datacenter::*;
pub use expose::*;
pub use manager::*;
pub use rack::*;
pub use remote::*;
pub use status_report::*;
