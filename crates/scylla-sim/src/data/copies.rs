//! What one node has on its disk.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Keyspace, Ring, Row};

/// A node takes no more rows than this.
pub const MOST_ROWS: usize = 10_000;

/// A value, and when it was written. Of two, the later one counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    /// In microseconds, as in ScyllaDB.
    pub written: i64,
    /// The value.
    pub value: String,
}

/// The keyspaces that a node knows, the rows that it holds, and those that it keeps for nodes that are down.
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

    /// How many rows there are.
    pub fn count(&self) -> usize {
        self.rows.values().map(BTreeMap::len).sum()
    }

    /// Takes a row, unless a later version is there. Answers whether there was room for it.
    #[must_use]
    pub fn put(&mut self, row: Row) -> bool {
        let has_room = self.count() < MOST_ROWS;
        let rows = self.rows.entry(row.keyspace).or_default();
        match rows.get_mut(&row.key) {
            Some(cell) => *cell = row.cell.max(cell.clone()),
            None if has_room => _ = rows.insert(row.key, row.cell),
            None => return false,
        }
        true
    }

    /// Drops the rows of a keyspace, or of all, of which the node is no replica. Answers how many.
    pub fn clean_up(&mut self, ring: &Ring, host: &str, keyspace: Option<&str>) -> usize {
        let before = self.count();
        for (name, rows) in self.rows.iter_mut().filter(|(name, _)| keyspace.is_none_or(|only| only == *name)) {
            if let Some(definition) = self.keyspaces.get(name) {
                rows.retain(|key, _| ring.replicas(definition, key).contains(host));
            }
        }
        before - self.count()
    }

    /// Keeps a row for a replica that did not take it.
    pub fn add_hint(&mut self, host: &str, row: Row) {
        let hints = self.hints.entry(host.to_owned()).or_default();
        if hints.len() < MOST_ROWS {
            hints.push(row);
        }
    }

    /// The rows that are kept for a replica.
    pub fn hints(&self, host: &str) -> Vec<Row> {
        self.hints.get(host).cloned().unwrap_or_default()
    }

    /// Forgets what a replica has taken meanwhile.
    pub fn drop_hints(&mut self, host: &str, taken: &[Row]) {
        if let Some(hints) = self.hints.get_mut(host) {
            hints.retain(|hint| !taken.contains(hint));
        }
        self.hints.retain(|_, hints| !hints.is_empty());
    }
}
