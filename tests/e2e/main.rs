//! End-to-end tests, on the real API server and on real nodes.
//!
//! `make test` starts the clusters that they share and removes them. Run by themselves, tests start what is missing and
//! leave it running for the next run.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod api;
mod certificates;
mod changes;
mod datacenter;
mod etcd;
mod faults;
mod fields;
mod hostile;
mod kubectl;
mod kubectl_etcd;
mod lease;
mod observer;
mod plan;
mod policies;
mod recovery;
mod robustness;
mod runtime;
mod settings;
mod takeover;
mod testbed;
mod upgrade;
mod volumes;
