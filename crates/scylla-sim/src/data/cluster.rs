//! All nodes of a cluster in one process.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use super::{Cell, Copies, Keyspace, Owner, Ring, Row, streamed};

/// Not enough nodes are up.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum Unavailable {
    /// For a write.
    #[error("Cannot achieve consistency level for cl QUORUM. Requires {required}, alive {alive}")]
    Quorum {
        /// The number of required acknowledgements.
        required: usize,
        /// The number of nodes that are up.
        alive: usize,
    },
    /// For a topology change.
    #[error("unable to find sufficient sources for streaming range that ends at {token} in keyspace {keyspace}")]
    Source {
        /// The keyspace.
        keyspace: String,
        /// The end of the range.
        token: i64,
    },
}

/// Nodes with their disks. The caller decides which nodes are up.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    ring: Ring,
    keyspaces: BTreeMap<String, Keyspace>,
    /// By host ID, including nodes that have left.
    disks: BTreeMap<String, Copies>,
    clock: i64,
}

impl Cluster {
    /// Its ring.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Its keyspaces, by name.
    pub fn keyspaces(&self) -> &BTreeMap<String, Keyspace> {
        &self.keyspaces
    }

    /// The disks of the nodes that are in the ring, by host ID.
    pub fn disks(&self) -> impl Iterator<Item = (&str, &Copies)> {
        let members = self.disks.iter().filter(|(host, _)| self.ring.owner(host).is_some());
        members.map(|(host, copies)| (host.as_str(), copies))
    }

    /// Creates a keyspace.
    pub fn create_keyspace(&mut self, keyspace: Keyspace) {
        self.disks.values_mut().for_each(|disk| _ = disk.keyspaces.insert(keyspace.name.clone(), keyspace.clone()));
        self.keyspaces.insert(keyspace.name.clone(), keyspace);
    }

    /// Writes a row to all of its replicas that are up.
    pub fn write(
        &mut self,
        keyspace: &Keyspace,
        key: &str,
        value: &str,
        is_up: impl Fn(&str) -> bool,
    ) -> Result<(), Unavailable> {
        let replicas = self.ring.replicas(keyspace, key);
        let up: Vec<String> = replicas.into_iter().filter(|host| is_up(host)).map(ToOwned::to_owned).collect();
        if up.len() < keyspace.quorum() {
            return Err(Unavailable::Quorum { required: keyspace.quorum(), alive: up.len() });
        }
        self.clock += 1;
        let cell = Cell { written: self.clock, value: value.to_owned() };
        let row = Row { keyspace: keyspace.name.clone(), key: key.to_owned(), cell };
        up.iter().for_each(|host| self.put(host, row.clone()));
        Ok(())
    }

    fn put(&mut self, host: &str, row: Row) {
        let disk = self.disks.entry(host.to_owned()).or_default();
        assert!(disk.put(row), "{host} holds more rows than a simulated node takes");
    }

    /// Bootstraps a node with its own tokens.
    pub fn bootstrap(&mut self, owner: Owner, is_up: impl Fn(&str) -> bool) -> Result<(), Unavailable> {
        let after = self.ring.with(owner.clone());
        self.join(&owner.host, after, is_up)
    }

    /// Replaces a dead node; the new node gets its tokens.
    pub fn replace(&mut self, mut owner: Owner, dead: &str, is_up: impl Fn(&str) -> bool) -> Result<(), Unavailable> {
        owner.tokens = self.ring.owner(dead).map(|dead| dead.tokens.clone()).unwrap_or_default();
        let after = self.ring.without(dead).with(owner.clone());
        self.join(&owner.host, after, |host| host != dead && is_up(host))
    }

    fn join(&mut self, host: &str, after: Ring, is_up: impl Fn(&str) -> bool) -> Result<(), Unavailable> {
        for (name, keyspace) in &self.keyspaces {
            if let Some(token) = self.ring.range_without_source(&after, keyspace, host, &is_up) {
                return Err(Unavailable::Source { keyspace: name.clone(), token });
            }
        }
        let copies = Copies { keyspaces: self.keyspaces.clone(), ..Copies::default() };
        self.disks.insert(host.to_owned(), copies);
        self.change_ring(after, is_up);
        Ok(())
    }

    /// Decommissions a node: streams its data to the new replicas.
    pub fn decommission(&mut self, host: &str) {
        let after = self.ring.without(host);
        self.change_ring(after, |source| source == host);
    }

    /// Removes a dead node: its replicas are streamed from the others.
    pub fn remove(&mut self, dead: &str, is_up: impl Fn(&str) -> bool) {
        let after = self.ring.without(dead);
        self.change_ring(after, |source| source != dead && is_up(source));
    }

    /// Changes the ring, and streams rows to new replicas from the nodes that are sources. Former replicas keep the
    /// rows until a cleanup.
    fn change_ring(&mut self, after: Ring, is_source: impl Fn(&str) -> bool) {
        let sources: Vec<(&String, &Copies)> = self.disks.iter().filter(|(host, _)| is_source(host)).collect();
        let mut moved: Vec<(String, Row)> = Vec::new();
        for to in after.hosts() {
            for (from, copies) in &sources {
                let rows = streamed(&self.ring, &after, from, to, copies);
                moved.extend(rows.into_iter().map(|row| (to.to_owned(), row)));
            }
        }
        moved.into_iter().for_each(|(to, row)| self.put(&to, row));
        self.ring = after;
    }

    /// Cleans up a node: drops the rows that it does not own.
    pub fn clean_up(&mut self, host: &str) {
        let ring = self.ring.clone();
        self.disks.get_mut(host).map(|disk| disk.clean_up(&ring, host, None));
    }

    /// Removes the disk of a node.
    pub fn lose_disk(&mut self, host: &str) {
        self.disks.remove(host);
    }

    /// Returns the nodes of the ring that hold a row.
    pub fn holders(&self, keyspace: &str, key: &str) -> BTreeSet<&str> {
        self.disks().filter(|(_, copies)| copies.get(keyspace, key).is_some()).map(|(host, _)| host).collect()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::data::token_of;

    const ROWS: usize = 60;

    fn owner(host: &str) -> Owner {
        let (datacenter, rest) = host.split_once('/').unwrap();
        let tokens = (0..8).map(|number| token_of(&format!("{host} {number}"))).collect();
        Owner { host: host.into(), datacenter: datacenter.into(), rack: rest[..1].into(), tokens }
    }

    /// Nodes such as `dc/a1`, in rack `a` of the datacenter `dc`, with rows in a keyspace.
    fn cluster(hosts: &[&str], replication: &[(&str, usize)]) -> (Cluster, Keyspace) {
        let mut cluster = Cluster::default();
        let keyspace = Keyspace::new("ks", replication);
        cluster.create_keyspace(keyspace.clone());
        hosts.iter().for_each(|host| cluster.bootstrap(owner(host), |_| true).unwrap());
        for number in 0..ROWS {
            cluster.write(&keyspace, &number.to_string(), "value", |_| true).unwrap();
        }
        (cluster, keyspace)
    }

    /// Returns the number of rows of each node.
    fn counts(cluster: &Cluster) -> BTreeMap<&str, usize> {
        cluster.disks().map(|(host, copies)| (host, copies.count())).collect()
    }

    /// Returns the number of rows that no node of the ring holds, and of rows that one of their replicas does not hold.
    fn lost_and_missing(cluster: &Cluster, keyspace: &Keyspace) -> (usize, usize) {
        let keys: Vec<String> = (0..ROWS).map(|number| number.to_string()).collect();
        let is_lost = |key: &&String| cluster.holders("ks", key).is_empty();
        let is_missing = |key: &&String| {
            let replicas = cluster.ring().replicas(keyspace, key);
            let factor: usize = keyspace.replication.values().sum();
            replicas.len() < factor || !replicas.is_subset(&cluster.holders("ks", key))
        };
        (keys.iter().filter(is_lost).count(), keys.iter().filter(is_missing).count())
    }

    const THREE: &[&str] = &["dc/a1", "dc/b1", "dc/c1"];

    #[test]
    fn bootstrap_streams_and_former_replicas_keep_their_copies_until_cleanup() {
        let (mut cluster, keyspace) = cluster(THREE, &[("dc", 2)]);
        let before = counts(&cluster).values().sum::<usize>();
        assert_eq!(before, 2 * ROWS);
        cluster.bootstrap(owner("dc/a2"), |_| true).unwrap();
        assert_eq!(lost_and_missing(&cluster, &keyspace), (0, 0));
        let gained = counts(&cluster)["dc/a2"];
        assert!(gained > 0);
        assert_eq!(counts(&cluster).values().sum::<usize>(), before + gained, "no copy is dropped");
        THREE.iter().for_each(|host| cluster.clean_up(host));
        assert_eq!(counts(&cluster).values().sum::<usize>(), before, "the copies too many are dropped");
        assert_eq!(lost_and_missing(&cluster, &keyspace), (0, 0));
    }

    #[test]
    fn bootstrap_needs_a_source_for_each_range() {
        let (mut cluster, _) = cluster(THREE, &[("dc", 1)]);
        let refused = cluster.bootstrap(owner("dc/a2"), |host| host == "dc/c1").unwrap_err();
        assert!(refused.to_string().contains("sufficient sources"), "{refused}");
        assert_eq!(cluster.ring().hosts().count(), 3);
    }

    #[test]
    fn decommission_streams_to_the_next_replicas() {
        let (mut cluster, keyspace) = cluster(&["dc/a1", "dc/a2", "dc/b1", "dc/b2"], &[("dc", 1)]);
        for host in ["dc/a2", "dc/b1", "dc/b2"] {
            cluster.decommission(host);
            assert_eq!(lost_and_missing(&cluster, &keyspace), (0, 0), "without {host}");
        }
        assert_eq!(counts(&cluster), BTreeMap::from([("dc/a1", ROWS)]));
    }

    #[test]
    fn rows_that_a_node_does_not_own_are_not_streamed() {
        let (mut cluster, keyspace) = cluster(THREE, &[("dc", 1)]);
        cluster.bootstrap(owner("dc/a2"), |_| true).unwrap();
        // Former replicas still hold what the new node has lost, but no node streams from them.
        cluster.lose_disk("dc/a2");
        cluster.replace(owner("dc/a3"), "dc/a2", |_| true).unwrap_err();
        cluster.remove("dc/a2", |_| true);
        assert_eq!(lost_and_missing(&cluster, &keyspace), (0, 0), "the former replicas own it again, and had kept it");
        let (mut cluster, keyspace) = self::cluster(THREE, &[("dc", 1)]);
        cluster.bootstrap(owner("dc/a2"), |_| true).unwrap();
        THREE.iter().for_each(|host| cluster.clean_up(host));
        cluster.lose_disk("dc/a2");
        cluster.remove("dc/a2", |_| true);
        let (lost, missing) = lost_and_missing(&cluster, &keyspace);
        assert!(lost > 0 && lost == missing, "after cleanup there was one copy of each");
    }

    #[test]
    fn replacing_node_gets_the_rows_of_the_lost_one() {
        let (mut cluster, keyspace) = cluster(THREE, &[("dc", 2)]);
        let had = counts(&cluster)["dc/b1"];
        cluster.lose_disk("dc/b1");
        assert_eq!(lost_and_missing(&cluster, &keyspace), (0, had));
        cluster.replace(owner("dc/b2"), "dc/b1", |_| true).unwrap();
        assert_eq!(lost_and_missing(&cluster, &keyspace), (0, 0));
        assert_eq!(counts(&cluster)["dc/b2"], had);
    }

    #[test]
    fn disks_lost_faster_than_nodes_are_replaced_lose_rows() {
        let (mut cluster, keyspace) = cluster(THREE, &[("dc", 2)]);
        cluster.lose_disk("dc/a1");
        cluster.lose_disk("dc/b1");
        assert!(lost_and_missing(&cluster, &keyspace).0 > 0);
    }

    #[test]
    fn decommissioned_datacenter_loses_rows_without_other_replicas() {
        let hosts = ["north/a1", "north/b1", "south/a1", "south/b1"];
        for (replication, lost) in [(vec![("south", 2)], ROWS), (vec![("north", 1), ("south", 2)], 0)] {
            let (mut cluster, keyspace) = cluster(&hosts, &replication);
            cluster.decommission("south/a1");
            assert_eq!(lost_and_missing(&cluster, &keyspace), (0, ROWS), "one replica has no place");
            cluster.decommission("south/b1");
            assert_eq!(lost_and_missing(&cluster, &keyspace), (lost, ROWS), "{replication:?}");
        }
    }

    #[test]
    fn write_needs_a_quorum() {
        let (mut cluster, keyspace) = cluster(THREE, &[("dc", 3)]);
        assert_eq!(cluster.write(&keyspace, "new", "1", |host| host != "dc/a1"), Ok(()));
        assert_eq!(cluster.holders("ks", "new"), BTreeSet::from(["dc/b1", "dc/c1"]));
        let refused = cluster.write(&keyspace, "newer", "1", |host| host == "dc/a1");
        assert_eq!(refused, Err(Unavailable::Quorum { required: 2, alive: 1 }));
        assert_eq!(cluster.holders("ks", "newer"), BTreeSet::new());
    }

    #[test]
    fn later_value_replaces_an_earlier_one() {
        let row = |written, value: &str| {
            let cell = Cell { written, value: value.into() };
            Row { keyspace: "ks".into(), key: "k".into(), cell }
        };
        let mut copies = Copies::default();
        assert!(copies.put(row(2, "new")) && copies.put(row(1, "old")));
        assert_eq!(copies.get("ks", "k").map(|cell| cell.value.as_str()), Some("new"));
        copies.add_hint("a", row(2, "new"));
        copies.add_hint("a", row(3, "newer"));
        copies.drop_hints("a", &[row(2, "new")]);
        assert_eq!(copies.hints("a"), [row(3, "newer")]);
    }
}
