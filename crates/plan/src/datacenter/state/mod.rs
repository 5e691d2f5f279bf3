//! The current state of a datacenter, derived from what was observed.

pub(crate) mod counts;
pub(crate) mod disks;
pub(crate) mod joining;
pub(crate) mod member;
pub(crate) mod nodes;
pub(crate) mod preconditions;
pub(crate) mod ring;
pub(crate) mod stateful_set;
pub mod takeover;
pub(crate) mod upgrade;
pub(crate) mod user_objects;

use std::collections::BTreeMap;

use self::{
    disks::joined_disks,
    member::{Member, members},
    ring::Ring,
};
use crate::datacenter::model::observed::Observed;

/// The current state of a datacenter, computed once for all decisions.
pub(crate) struct Current<'a> {
    pub(crate) observed: &'a Observed,
    /// The members, and the token ring as their nodes report it.
    pub(crate) ring: Ring<'a>,
    /// Host IDs of nodes that have joined and not left, by member, as annotated on claims.
    pub(crate) disks: BTreeMap<&'a str, &'a str>,
}

impl<'a> Current<'a> {
    pub(crate) fn new(observed: &'a Observed) -> Self {
        let ring = Ring::new(observed, members(observed));
        let disks = joined_disks(observed, &ring.members);
        Self { observed, ring, disks }
    }

    /// Returns the members of all racks, existing, desired and removed, in order.
    pub(crate) fn members(&self) -> &[Member<'a>] {
        &self.ring.members
    }

    /// Whether the node of this member has joined, according to its Service or its claim.
    pub(crate) fn is_known(&self, member: &str) -> bool {
        self.observed.services.get(member).is_some_and(|service| service.has_joined) || self.disks.contains_key(member)
    }
}
