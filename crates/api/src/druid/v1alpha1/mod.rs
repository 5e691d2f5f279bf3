//! `druid.gardener.cloud/v1alpha1`.

mod config;
mod etcd;
mod task;

pub use config::*;
pub use etcd::*;
pub use task::*;
