//! The rows on the disk of one node.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Keyspace, Ring, Row};

/// The maximum number of rows of a node.
pub const MAX_ROWS: usize = 10_000;

/// A value and its timestamp. The value with the latest timestamp applies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    /// In microseconds, as in ScyllaDB.
    pub written: i64,
    /// The value.
    pub value: String,
}

/// The keyspaces of a node, its rows, and its hints for nodes that are down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copies {
    /// By name.
    pub keyspaces: BTreeMap<String, Keyspace>,
    /// By keyspace and key.
    pub(super) rows: BTreeMap<String, BTreeMap<String, Cell>>,
    /// Writes that a replica has missed, by host ID.
    pub(super) hints: BTreeMap<String, Vec<Row>>,
}

impl Copies {
    /// All rows.
    pub fn rows(&self) -> impl Iterator<Item = Row> {
        self.rows.iter().flat_map(|(keyspace, rows)| {
            rows.iter().map(|(key, cell)| Row { keyspace: keyspace.clone(), key: key.clone(), cell: cell.clone() })
        })
    }

    /// A row.
    pub fn get(&self, keyspace: &str, key: &str) -> Option<&Cell> {
        self.rows.get(keyspace)?.get(key)
    }

    /// Returns the number of rows.
    pub fn count(&self) -> usize {
        self.rows.values().map(BTreeMap::len).sum()
    }

    /// Stores a row, unless a later version exists. Returns whether there was space for it.
    #[must_use]
    pub fn put(&mut self, row: Row) -> bool {
        let has_room = self.count() < MAX_ROWS;
        let rows = self.rows.entry(row.keyspace).or_default();
        match rows.get_mut(&row.key) {
            Some(cell) => *cell = row.cell.max(cell.clone()),
            None if has_room => _ = rows.insert(row.key, row.cell),
            None => return false,
        }
        true
    }

    /// Drops the rows of one or all keyspaces of which the node is no replica. Returns their number.
    pub fn clean_up(&mut self, ring: &Ring, host: &str, keyspace: Option<&str>) -> usize {
        let before = self.count();
        for (name, rows) in self.rows.iter_mut().filter(|(name, _)| keyspace.is_none_or(|only| only == *name)) {
            if let Some(definition) = self.keyspaces.get(name) {
                rows.retain(|key, _| ring.replicas(definition, key).contains(host));
            }
        }
        before - self.count()
    }

    /// Stores a hint for a replica that missed a write.
    pub fn add_hint(&mut self, host: &str, row: Row) {
        let hints = self.hints.entry(host.to_owned()).or_default();
        if hints.len() < MAX_ROWS {
            hints.push(row);
        }
    }

    /// Returns the hints for a replica.
    pub fn hints(&self, host: &str) -> Vec<Row> {
        self.hints.get(host).cloned().unwrap_or_default()
    }

    /// Drops the hints that a replica has received.
    pub fn drop_hints(&mut self, host: &str, taken: &[Row]) {
        if let Some(hints) = self.hints.get_mut(host) {
            hints.retain(|hint| !taken.contains(hint));
        }
        self.hints.retain(|_, hints| !hints.is_empty());
    }
}
