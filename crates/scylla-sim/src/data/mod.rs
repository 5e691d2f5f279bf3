//! The data of nodes, pure: keyspaces with a replication factor for each datacenter, rows, the nodes that hold replicas of
//! a row, and what each change of the token ring streams from node to node.
//!
//! ```text
//! ring       which nodes are the replicas of a row: NetworkTopologyStrategy
//! copies     what one node has on its disk
//! cluster    all nodes in one process, for simulations without processes
//! ```

mod cluster;
mod copies;
mod ring;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::{
    cluster::{Cluster, Unavailable},
    copies::{Cell, Copies, MAX_ROWS},
    ring::{Owner, Ring, token_of},
};

/// A keyspace with `NetworkTopologyStrategy`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keyspace {
    /// Its name.
    pub name: String,
    /// Replication factors, by datacenter.
    pub replication: BTreeMap<String, usize>,
}

impl Keyspace {
    /// A keyspace with these replication factors.
    pub fn new(name: &str, replication: &[(&str, usize)]) -> Self {
        let replication = replication.iter().map(|(datacenter, factor)| ((*datacenter).to_owned(), *factor));
        Self { name: name.to_owned(), replication: replication.collect() }
    }

    /// Returns the number of replicas that have to acknowledge a write.
    pub fn quorum(&self) -> usize {
        self.replication.values().sum::<usize>() / 2 + 1
    }
}

/// A row, as nodes send it to each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The keyspace that it is in.
    pub keyspace: String,
    /// Its key.
    pub key: String,
    /// The value and its timestamp.
    pub cell: Cell,
}

/// The rows that `to` gets from `from` when the ring `before` becomes `after`: those of which `from` is a replica
/// before and `to` becomes one. Rows that a node holds and does not own, because there was no cleanup yet, are not
/// streamed.
pub fn streamed(before: &Ring, after: &Ring, from: &str, to: &str, copies: &Copies) -> Vec<Row> {
    let is_streamed = |keyspace: &Keyspace, key: &str| {
        let old = before.replicas(keyspace, key);
        old.contains(from) && !old.contains(to) && after.replicas(keyspace, key).contains(to)
    };
    copies
        .rows()
        .filter(|row| copies.keyspaces.get(&row.keyspace).is_some_and(|of| is_streamed(of, &row.key)))
        .collect()
}
