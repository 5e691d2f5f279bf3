//! A strict simulation of a ScyllaDB node, for tests of an operator.
//!
//! It speaks what an operator, ScyllaDB Manager and clients speak to a node (arguments, files, REST, metrics, the first
//! words of CQL, a little of Alternator), keeps a ring with others of its kind, and refuses what ScyllaDB refuses. It
//! holds the rows that a test writes, and streams them as ScyllaDB would.
//!
//! ```text
//! args, config      what the node is told: arguments, scylla.yaml, rackdc properties
//! membership        who is in the ring; how two opinions on it become one
//! rules             which change of the ring is granted, pure
//! data/             keyspaces, rows, replicas, and what changes of the ring stream, pure
//! disk              what survives a crash
//! wire              how nodes talk to one another
//! node/             the running node: start, gossip, topology changes, rows, faults
//! rest/             the REST API
//! cql, alternator/, metrics   what clients see
//! tools/            nodetool, scylla, scylla-manager-agent, simctl
//! ```

pub mod alternator;
pub mod args;
pub mod config;
mod cql;
pub mod data;
pub mod disk;
pub mod image;
pub mod log;
pub mod membership;
mod metrics;
pub mod node;
mod random;
mod rest;
pub mod rules;
mod tls;
pub mod tools;
mod web;
mod wire;
