//! The members of the ring as one node knows them, and the merge of two views.

use std::{collections::BTreeMap, fmt, net::IpAddr};

use serde::{Deserialize, Serialize};

use crate::random;

/// The identity of a node. It never changes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostId(String);

impl HostId {
    /// Returns a new host ID.
    pub fn random() -> Self {
        Self(random::uuid())
    }

    /// Parses a UUID.
    pub fn parse(text: &str) -> Option<Self> {
        let lengths: Vec<usize> = text.split('-').map(str::len).collect();
        let is_hex = text.chars().all(|c| c == '-' || c.is_ascii_hexdigit());
        (lengths == [8, 4, 4, 4, 12] && is_hex).then(|| Self(text.to_ascii_lowercase()))
    }

    /// Returns the UUID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The status of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// It bootstraps or replaces another node, and does not own its tokens yet.
    Joining,
    /// It owns its tokens.
    Normal,
    /// It is being decommissioned, and still owns its tokens.
    Leaving,
    /// It was decommissioned, removed or replaced, and will never be a member again.
    Left,
}

/// A node, as others know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its host ID.
    pub host_id: HostId,
    /// The address that other nodes connect to.
    pub address: IpAddr,
    /// The address that clients connect to.
    pub rpc_address: IpAddr,
    /// Its datacenter.
    pub datacenter: String,
    /// Its rack.
    pub rack: String,
    /// Its status.
    pub status: Status,
    /// Its tokens.
    pub tokens: Vec<i64>,
    /// Its generation, which increases with every start.
    pub generation: u64,
    /// Increases with every change since the start.
    pub version: u64,
    /// Its version of ScyllaDB.
    pub release_version: String,
}

impl Member {
    /// Whether it owns tokens.
    pub fn is_in_ring(&self) -> bool {
        matches!(self.status, Status::Normal | Status::Leaving)
    }
}

/// All members that a node knows, including those that have left.
#[derive(Clone, Debug, Default)]
pub struct Membership {
    members: BTreeMap<HostId, Member>,
    /// Nodes that vanished while they joined, with their last generation and version: other nodes may still send these.
    removed: BTreeMap<HostId, (u64, u64)>,
    /// Cached, because it is read far more often than members change.
    digest: u64,
}

impl Membership {
    /// Creates a view from stored members.
    pub fn of(members: impl IntoIterator<Item = Member>) -> Self {
        let members = members.into_iter().map(|member| (member.host_id.clone(), member)).collect();
        let mut membership = Self { members, ..Self::default() };
        membership.digest = membership.digest_now();
        membership
    }

    /// Merges a member that another node sent, and returns whether it is newer. A node that has left stays so;
    /// otherwise the higher generation and version applies, which only the member itself increases.
    pub fn merge(&mut self, news: Member) -> bool {
        let age = (news.generation, news.version);
        if self.removed.get(&news.host_id).is_some_and(|&last_known| age <= last_known)
            && news.status == Status::Joining
        {
            return false;
        }
        let is_news = self.members.get(&news.host_id).is_none_or(|known| match (known.status, news.status) {
            (Status::Left, _) => false,
            (_, Status::Left) => true,
            _ => age > (known.generation, known.version),
        });
        if is_news {
            self.removed.remove(&news.host_id);
            self.members.insert(news.host_id.clone(), news);
            self.digest = self.digest_now();
        }
        is_news
    }

    /// Removes a node that vanished while it joined. It may join again.
    pub fn remove_joining(&mut self, host_id: &HostId) {
        if self.get(host_id).is_some_and(|member| member.status == Status::Joining)
            && let Some(member) = self.members.remove(host_id)
        {
            self.removed.insert(member.host_id, (member.generation, member.version));
            self.digest = self.digest_now();
        }
    }

    /// A member.
    pub fn get(&self, host_id: &HostId) -> Option<&Member> {
        self.members.get(host_id)
    }

    /// Returns all members, including those that have left.
    pub fn all(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// Returns the members that have not left.
    pub fn present(&self) -> impl Iterator<Item = &Member> {
        self.all().filter(|member| member.status != Status::Left)
    }

    /// Returns the members that own tokens.
    pub fn ring(&self) -> impl Iterator<Item = &Member> {
        self.all().filter(|member| member.is_in_ring())
    }

    /// Whether a member owns tokens.
    pub fn is_in_ring(&self, host_id: &HostId) -> bool {
        self.get(host_id).is_some_and(Member::is_in_ring)
    }

    /// Whether a node has left.
    pub fn has_left(&self, host_id: &HostId) -> bool {
        self.get(host_id).is_some_and(|member| member.status == Status::Left)
    }

    /// Returns the member at an address, preferably one that owns tokens.
    pub fn at(&self, address: IpAddr) -> Option<&Member> {
        self.ring().find(|member| member.address == address).or_else(|| self.present().find(|m| m.address == address))
    }

    /// Returns the tokens of the ring in order, each with its owner.
    pub fn tokens(&self) -> Vec<(i64, &Member)> {
        let mut tokens: Vec<_> =
            self.ring().flat_map(|member| member.tokens.iter().map(move |&t| (t, member))).collect();
        tokens.sort_by_key(|&(token, _)| token);
        tokens
    }

    /// Returns a hash of the view, so that nodes with equal views need not send all members.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    fn digest_now(&self) -> u64 {
        // FNV-1a: it must be the same in every process.
        let facts = self.all().map(|m| format!("{}/{}/{}/{:?};", m.host_id, m.generation, m.version, m.status));
        facts
            .collect::<String>()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}

#[cfg(test)]
pub(crate) mod examples {
    use super::*;

    /// Returns a host ID from a number.
    pub(crate) fn host(number: u8) -> HostId {
        HostId(format!("0000000{number}-0000-4000-8000-000000000000"))
    }

    /// A member at 10.0.0.`number`.
    pub(crate) fn member(number: u8, status: Status) -> Member {
        let address = IpAddr::from([10, 0, 0, number]);
        Member {
            host_id: host(number),
            address,
            rpc_address: address,
            datacenter: "dc1".to_owned(),
            rack: "a".to_owned(),
            status,
            tokens: vec![i64::from(number)],
            generation: 1,
            version: 1,
            release_version: "2026.2.4".to_owned(),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::{
        examples::{host, member},
        *,
    };

    #[test]
    fn host_ids_are_uuids() {
        let id = HostId::random();
        assert_eq!(HostId::parse(id.as_str()), Some(id.clone()));
        assert_ne!(HostId::random(), id);
        for text in ["", "10.0.0.1", "0000000g-0000-4000-8000-000000000000", "00000000000040008000000000000000"] {
            assert_eq!(HostId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn newer_state_of_a_member_replaces_an_older_one() {
        let mut members = Membership::of([member(1, Status::Normal)]);
        assert!(!members.merge(member(1, Status::Leaving)), "the same version");
        assert!(members.merge(Member { version: 2, ..member(1, Status::Leaving) }));
        assert!(members.merge(Member { generation: 2, ..member(1, Status::Normal) }), "it was started again");
        assert!(!members.merge(Member { version: 9, ..member(1, Status::Leaving) }), "from before the restart");
    }

    #[test]
    fn member_that_left_stays_so() {
        let mut members = Membership::of([member(1, Status::Normal)]);
        assert!(members.merge(member(1, Status::Left)));
        assert!(!members.merge(Member { generation: 99, ..member(1, Status::Normal) }));
        assert!(members.has_left(&host(1)));
        assert_eq!(members.present().count(), 0);
    }

    #[test]
    fn views_agree_for_any_order_of_merges() {
        let news =
            [member(1, Status::Normal), Member { version: 2, ..member(1, Status::Leaving) }, member(1, Status::Left)];
        let mut forward = Membership::default();
        let mut backward = Membership::default();
        news.iter().for_each(|news| _ = forward.merge(news.clone()));
        news.iter().rev().for_each(|news| _ = backward.merge(news.clone()));
        assert!(forward.has_left(&host(1)) && backward.has_left(&host(1)));
        let both = |first: &Membership, second: &Membership| {
            let mut sum = first.clone();
            second.all().for_each(|news| _ = sum.merge(news.clone()));
            sum.digest()
        };
        assert_eq!(both(&forward, &backward), both(&backward, &forward));
    }

    #[test]
    fn vanished_joining_node_stays_removed_until_it_joins_again() {
        let mut members = Membership::of([member(1, Status::Joining), member(2, Status::Normal)]);
        members.remove_joining(&host(1));
        members.remove_joining(&host(2));
        assert_eq!(members.present().map(|member| &member.host_id).collect::<Vec<_>>(), [&host(2)]);
        assert!(!members.merge(member(1, Status::Joining)), "hearsay");
        assert!(members.merge(Member { generation: 2, ..member(1, Status::Joining) }));
    }

    #[test]
    fn address_belongs_to_the_owner_of_tokens_first() {
        let joiner = Member { address: [10, 0, 0, 2].into(), ..member(1, Status::Joining) };
        let members = Membership::of([joiner, member(2, Status::Normal)]);
        assert_eq!(members.at([10, 0, 0, 2].into()).unwrap().host_id, host(2));
    }
}
