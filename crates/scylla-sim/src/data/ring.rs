//! Which nodes are the replicas of a row: `NetworkTopologyStrategy` on a ring of tokens.

use std::collections::{BTreeMap, BTreeSet};

use super::Keyspace;

/// A node that owns tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its host ID.
    pub host: String,
    /// Its datacenter.
    pub datacenter: String,
    /// Its rack there.
    pub rack: String,
    /// Its tokens.
    pub tokens: Vec<i64>,
}

/// The token ring.
#[derive(Clone, Debug, Default)]
pub struct Ring {
    owners: BTreeMap<String, Owner>,
    /// Every token with the host ID of its owner, in order.
    tokens: Vec<(i64, String)>,
}

/// Returns the token of a key. ScyllaDB uses another hash; the simulation only needs the same one on all nodes.
pub fn token_of(key: &str) -> i64 {
    let hash = key
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    // Otherwise keys that differ only in their last byte would have adjacent tokens.
    let mixed = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).cast_signed()
}

impl Ring {
    /// The ring of these nodes.
    pub fn of(owners: impl IntoIterator<Item = Owner>) -> Self {
        let owners: BTreeMap<String, Owner> = owners.into_iter().map(|owner| (owner.host.clone(), owner)).collect();
        let tokens = owners.values().flat_map(|owner| owner.tokens.iter().map(|token| (*token, owner.host.clone())));
        let mut tokens: Vec<(i64, String)> = tokens.collect();
        tokens.sort();
        Self { owners, tokens }
    }

    /// The ring with this node, too.
    pub fn with(&self, owner: Owner) -> Self {
        Self::of(self.owners.values().cloned().chain([owner]))
    }

    /// The ring without this node.
    pub fn without(&self, host: &str) -> Self {
        Self::of(self.owners.values().filter(|owner| owner.host != host).cloned())
    }

    /// The host IDs of its nodes.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        self.owners.keys().map(String::as_str)
    }

    /// A node.
    pub fn owner(&self, host: &str) -> Option<&Owner> {
        self.owners.get(host)
    }

    /// Returns the replicas of a row: in each datacenter as many nodes as its replication factor, clockwise from the
    /// row's token, those of distinct racks first. Fewer if a datacenter has fewer nodes.
    pub fn replicas(&self, keyspace: &Keyspace, key: &str) -> BTreeSet<&str> {
        self.replicas_of_token(keyspace, token_of(key))
    }

    fn replicas_of_token(&self, keyspace: &Keyspace, token: i64) -> BTreeSet<&str> {
        let first = self.tokens.partition_point(|(other, _)| *other < token);
        let clockwise = self.tokens.iter().cycle().skip(first).take(self.tokens.len());
        let mut nodes: Vec<&Owner> = Vec::new();
        for (_, host) in clockwise {
            if !nodes.iter().any(|node| node.host == *host) {
                nodes.extend(self.owners.get(host));
            }
            if nodes.len() == self.owners.len() {
                break;
            }
        }
        let mut replicas = BTreeSet::new();
        for (datacenter, factor) in &keyspace.replication {
            let local: Vec<&Owner> = nodes.iter().copied().filter(|node| node.datacenter == *datacenter).collect();
            let mut racks = BTreeSet::new();
            let (distinct, others): (Vec<&Owner>, Vec<&Owner>) =
                local.into_iter().partition(|node| racks.insert(node.rack.as_str()));
            replicas.extend(distinct.into_iter().chain(others).take(*factor).map(|node| node.host.as_str()));
        }
        replicas
    }

    /// Ranges of which a node becomes a replica when this ring becomes `after`, each with those that are replicas now.
    fn gained<'a>(
        &'a self,
        after: &'a Self,
        keyspace: &'a Keyspace,
        host: &'a str,
    ) -> impl Iterator<Item = (i64, BTreeSet<&'a str>)> {
        // Between two tokens of either ring all rows have the same replicas.
        let ends: BTreeSet<i64> = self.tokens.iter().chain(&after.tokens).map(|(token, _)| *token).collect();
        ends.into_iter().filter_map(move |token| {
            let now = self.replicas_of_token(keyspace, token);
            let is_gained = !now.contains(host) && after.replicas_of_token(keyspace, token).contains(host);
            is_gained.then_some((token, now))
        })
    }

    /// Whether a node becomes a replica of anything when this ring becomes `after`.
    pub fn gains(&self, after: &Self, keyspace: &Keyspace, host: &str) -> bool {
        self.gained(after, keyspace, host).next().is_some()
    }

    /// The end of a range that a node gains when this ring becomes `after`, and of which no replica is up.
    pub fn range_without_source(
        &self,
        after: &Self,
        keyspace: &Keyspace,
        host: &str,
        is_up: impl Fn(&str) -> bool,
    ) -> Option<i64> {
        let mut gained = self.gained(after, keyspace, host);
        gained.find(|(_, now)| !now.is_empty() && !now.iter().any(|replica| is_up(replica))).map(|(token, _)| token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(host: &str, datacenter: &str, rack: &str, tokens: &[i64]) -> Owner {
        Owner { host: host.into(), datacenter: datacenter.into(), rack: rack.into(), tokens: tokens.into() }
    }

    fn at(ring: &Ring, keyspace: &Keyspace, token: i64) -> Vec<String> {
        ring.replicas_of_token(keyspace, token).into_iter().map(ToOwned::to_owned).collect()
    }

    #[test]
    fn replicas_are_clockwise_and_of_distinct_racks_first() {
        let ring = Ring::of([
            owner("a1", "dc", "a", &[10]),
            owner("a2", "dc", "a", &[20]),
            owner("b1", "dc", "b", &[30]),
            owner("c1", "dc", "c", &[40]),
        ]);
        let with = |factor| Keyspace::new("ks", &[("dc", factor)]);
        for (token, factor, expected, why) in [
            (5, 1, vec!["a1"], "the owner of the next token"),
            (10, 1, vec!["a1"], "a token belongs to the range that it ends"),
            (41, 1, vec!["a1"], "the ring is round"),
            (5, 2, vec!["a1", "b1"], "a2 is in the rack of a1"),
            (15, 3, vec!["a2", "b1", "c1"], "one in each rack"),
            (5, 4, vec!["a1", "a2", "b1", "c1"], "more replicas than racks"),
            (5, 9, vec!["a1", "a2", "b1", "c1"], "more replicas than nodes"),
        ] {
            assert_eq!(at(&ring, &with(factor), token), expected, "{why}");
        }
    }

    #[test]
    fn each_datacenter_has_replicas_of_its_own() {
        let ring = Ring::of([
            owner("n1", "north", "a", &[10]),
            owner("n2", "north", "b", &[20]),
            owner("s1", "south", "a", &[30]),
            owner("s2", "south", "b", &[40]),
        ]);
        let both = Keyspace::new("ks", &[("north", 1), ("south", 2)]);
        assert_eq!(at(&ring, &both, 15), ["n2", "s1", "s2"]);
        assert_eq!(at(&ring, &Keyspace::new("ks", &[("north", 2)]), 15), ["n1", "n2"]);
        assert_eq!(both.quorum(), 2);
    }

    #[test]
    fn keys_are_spread_over_the_ring() {
        let tokens = |from: i64| {
            (0..16_i64).map(move |number| from.wrapping_add(number.wrapping_mul(i64::MAX / 8))).collect::<Vec<_>>()
        };
        let nodes = ["a", "b", "c"]
            .iter()
            .zip(1..)
            .map(|(host, number)| owner(host, "dc", host, &tokens(i64::MIN + number * (i64::MAX / 24))));
        let ring = Ring::of(nodes);
        let keyspace = Keyspace::new("ks", &[("dc", 1)]);
        let mut counts = BTreeMap::<String, usize>::new();
        for number in 0..300 {
            let key = format!("row-{number}");
            ring.replicas(&keyspace, &key).into_iter().for_each(|host| *counts.entry(host.into()).or_default() += 1);
        }
        assert!(counts.len() == 3 && counts.values().all(|count| *count > 50), "{counts:?}");
    }

    #[test]
    fn range_needs_a_replica_that_is_up() {
        let ring = Ring::of([owner("a", "dc", "a", &[10]), owner("b", "dc", "b", &[20])]);
        let after = ring.with(owner("c", "dc", "c", &[15]));
        let one = Keyspace::new("ks", &[("dc", 1)]);
        assert_eq!(ring.range_without_source(&after, &one, "c", |_| true), None);
        // Rows from 11 to 15 are on b alone.
        assert_eq!(ring.range_without_source(&after, &one, "c", |host| host != "b"), Some(15));
        assert_eq!(ring.range_without_source(&after, &one, "c", |host| host != "a"), None);
        assert!(!ring.gains(&after, &one, "a") && ring.gains(&ring.without("b"), &one, "a"));
    }
}
