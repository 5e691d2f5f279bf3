//! The programs of a node's pod, as processes, with fakes of ScyllaDB and the API server.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod api;
mod node;
mod process;
mod server;

mod cleanup;
mod flood;
mod helpers;
mod sidecar;
