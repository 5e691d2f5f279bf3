//! `druid.gardener.cloud/v1alpha1`.

mod etcd;
mod task;

pub use etcd::*;
pub use task::*;
