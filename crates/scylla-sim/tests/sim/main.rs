//! Nodes as real processes, on loopback addresses of their own.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod changes;
mod clients;
mod crashes;
mod faults;
mod harness;
mod ring;
mod rows;
mod tools;
