//! A strict simulation of a ScyllaDB node, for tests of an operator.
//!
//! It has the interfaces of a node for operators, ScyllaDB Manager and clients (arguments, files, REST, metrics, the
//! start of CQL connections, a part of Alternator), forms a ring with other simulated nodes, and refuses what ScyllaDB
//! refuses. It stores the rows that a test writes, and streams them as ScyllaDB would.
//!
//! ```text
//! args, config      the configuration: arguments, scylla.yaml, rackdc properties
//! membership        the members of the ring as one node knows them, and the merge of two views
//! rules             which topology changes a member agrees to, pure
//! data/             keyspaces, rows, replicas, and the streams of topology changes, pure
//! disk              the persistent state
//! wire              the protocol between nodes
//! node/             the running node: start, gossip, topology changes, rows, faults
//! rest/             the REST API
//! cql, alternator/, metrics   the interfaces of clients
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
