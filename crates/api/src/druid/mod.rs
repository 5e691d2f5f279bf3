//! The group `druid.gardener.cloud`.

pub mod v1alpha1;
