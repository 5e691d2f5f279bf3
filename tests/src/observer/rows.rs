//! The rows that a test has written, and the nodes that hold them.
//!
//! An acknowledged row has a replica at any time: a copy with the acknowledged value, on an existing disk of a node
//! that owns tokens. A copy on the disk of a node that has left does not count, because no other node reads it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use jiff::Timestamp;
use messina_scylla_sim::data::{Copies, Ring};

/// Keyspace and key of a row.
pub type RowId = (String, String);

/// The disk of a node that owns tokens.
#[derive(Clone, Copy, Debug)]
pub struct Holder<'a> {
    /// The name of the node, for messages.
    pub name: &'a str,
    /// Its host ID.
    pub host: &'a str,
    /// The rows on the disk.
    pub copies: &'a Copies,
}

/// A row that no node holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRow {
    /// The row.
    pub id: RowId,
    /// The nodes that were last seen to hold it.
    pub former_holders: BTreeSet<String>,
}

impl fmt::Display for LostRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((keyspace, key), former) = (&self.id, &self.former_holders);
        let former: Vec<&str> = former.iter().map(String::as_str).collect();
        write!(f, "row {keyspace}.{key} has no replica any more; it was last held by {}", former.join(", "))
    }
}

#[derive(Clone, Debug)]
struct Acknowledged {
    value: String,
    at: Timestamp,
    holders: BTreeSet<String>,
}

impl Acknowledged {
    fn is_on(&self, (keyspace, key): &RowId, holder: &Holder<'_>) -> bool {
        holder.copies.get(keyspace, key).is_some_and(|cell| cell.value == self.value)
    }
}

/// All rows that were acknowledged.
#[derive(Clone, Debug, Default)]
pub struct Rows(BTreeMap<RowId, Acknowledged>);

impl Rows {
    /// Registers an acknowledged write: from `at` on, its row has to have replicas.
    pub fn acknowledge(&mut self, keyspace: &str, key: &str, value: &str, at: Timestamp) {
        let row = Acknowledged { value: value.into(), at, holders: BTreeSet::new() };
        self.0.insert((keyspace.into(), key.into()), row);
    }

    /// The number of rows.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Rows from before `began` that no node holds.
    pub fn without_replica(&self, holders: &[Holder<'_>], began: Timestamp) -> BTreeSet<RowId> {
        let is_missing = |(id, row): &(&RowId, &Acknowledged)| {
            row.at <= began && !holders.iter().any(|holder| row.is_on(id, holder))
        };
        self.0.iter().filter(is_missing).map(|(id, _)| id.clone()).collect()
    }

    /// Records the nodes that hold each row, if any does.
    pub fn remember(&mut self, holders: &[Holder<'_>]) {
        for (id, row) in &mut self.0 {
            let names: BTreeSet<String> =
                holders.iter().filter(|holder| row.is_on(id, holder)).map(|holder| holder.name.to_owned()).collect();
            if !names.is_empty() {
                row.holders = names;
            }
        }
    }

    /// Removes a lost row, so that it is reported once.
    pub fn lose(&mut self, id: &RowId) -> Option<LostRow> {
        let row = self.0.remove(id)?;
        Some(LostRow { id: id.clone(), former_holders: row.holders })
    }

    /// Rows that have fewer live replicas than their keyspace asks for, each with its replicas. `live` are the nodes
    /// that are up.
    pub fn under_replicated(&self, ring: &Ring, live: &[Holder<'_>]) -> Vec<String> {
        let keyspaces: BTreeMap<_, _> = live.iter().flat_map(|holder| &holder.copies.keyspaces).collect();
        let mut found = Vec::new();
        for (id, row) in &self.0 {
            let (name, key) = id;
            let Some(keyspace) = keyspaces.get(name) else {
                found.push(format!("{name}.{key}: no node that is up knows the keyspace"));
                continue;
            };
            let replicas = ring.replicas(keyspace, key);
            let up: Vec<&Holder<'_>> =
                live.iter().filter(|one| replicas.contains(one.host) && row.is_on(id, one)).collect();
            for (datacenter, factor) in &keyspace.replication {
                let is_local =
                    |one: &&&Holder<'_>| ring.owner(one.host).is_some_and(|owner| owner.datacenter == *datacenter);
                let local: Vec<&str> = up.iter().filter(is_local).map(|one| one.name).collect();
                if local.len() < *factor {
                    let names = local.join(", ");
                    found.push(format!("{name}.{key}: {} of {factor} replicas in {datacenter}: {names}", local.len()));
                }
            }
        }
        found
    }
}
