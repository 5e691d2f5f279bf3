//! The topology changes that a member of the ring agrees to. All members have to agree.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::membership::{HostId, Membership};

/// A topology change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// A new node joins with new tokens.
    Bootstrap,
    /// A new node replaces a dead one and gets its tokens.
    Replace(HostId),
    /// A node leaves the ring.
    Decommission,
    /// A dead node is removed from the ring.
    Removal(HostId),
}

impl Change {
    /// Returns its name in logs and in the names of steps.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bootstrap => "bootstrap",
            Self::Replace(_) => "replace",
            Self::Decommission => "decommission",
            Self::Removal(_) => "removenode",
        }
    }

    /// Returns the dead node of the change.
    pub fn dead(&self) -> Option<&HostId> {
        match self {
            Self::Replace(dead) | Self::Removal(dead) => Some(dead),
            Self::Bootstrap | Self::Decommission => None,
        }
    }
}

/// A request for agreement to a topology change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeRequest {
    /// The change.
    pub change: Change,
    /// The node that makes the change.
    pub by: HostId,
    /// Its address.
    pub address: IpAddr,
    /// The members of the ring as that node knows them.
    pub ring: BTreeSet<HostId>,
    /// The ID of this attempt.
    pub attempt: String,
}

/// Why a change is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Whether a retry would be refused, too.
    pub is_final: bool,
    /// The cause.
    pub reason: String,
}

/// The state of the member that gets a request.
pub struct MemberState<'a> {
    /// Its host ID.
    pub own: &'a HostId,
    /// The members that it knows.
    pub members: &'a Membership,
    /// The nodes that are up, including itself.
    pub up: &'a BTreeSet<HostId>,
}

impl Refusal {
    /// Creates a permanent refusal.
    pub fn final_(reason: impl Into<String>) -> Self {
        Self { is_final: true, reason: reason.into() }
    }

    /// Creates a temporary refusal.
    pub fn for_now(reason: impl Into<String>) -> Self {
        Self { is_final: false, reason: reason.into() }
    }
}

/// Checks a change regardless of which nodes are up. A refusal is permanent.
pub fn validate(request: &ChangeRequest, members: &Membership) -> Result<(), Refusal> {
    let name = request.change.name();
    if members.has_left(&request.by) {
        return Err(Refusal::final_(format!("node {} left the cluster and will not rejoin the ring", request.by)));
    }
    if let Some(dead) = request.change.dead().filter(|dead| !members.is_in_ring(dead)) {
        return Err(Refusal::final_(format!("{name}: host ID {dead} is not in the ring")));
    }
    if request.change == Change::Decommission && members.ring().count() == 1 {
        return Err(Refusal::final_("decommission: this is the last node of the ring"));
    }
    let is_newcomer = matches!(request.change, Change::Bootstrap | Change::Replace(_));
    let mut others = members.ring().filter(|m| m.host_id != request.by && Some(&m.host_id) != request.change.dead());
    if is_newcomer && others.any(|member| member.address == request.address) {
        let address = request.address;
        return Err(Refusal::final_(format!(
            "A node with address {address} already exists, cancelling join. Use replace_node_first_boot to replace it"
        )));
    }
    Ok(())
}

/// Checks whether a member agrees to a change, regardless of other changes in progress.
pub fn agree(request: &ChangeRequest, state: &MemberState<'_>) -> Result<(), Refusal> {
    let MemberState { own, members, up } = state;
    validate(request, members)?;
    if !members.is_in_ring(own) {
        return Err(Refusal::for_now(format!("node {own} is not a member of the ring itself")));
    }
    if let Some(dead) = request.change.dead().filter(|dead| up.contains(*dead)) {
        return Err(Refusal::for_now(format!("{}: node {dead} is alive in the view of {own}", request.change.name())));
    }
    let ring: BTreeSet<HostId> = members.ring().map(|member| member.host_id.clone()).collect();
    let down: Vec<&str> = ring
        .iter()
        .filter(|host_id| !up.contains(*host_id) && Some(*host_id) != request.change.dead())
        .map(HostId::as_str)
        .collect();
    if !down.is_empty() {
        let (name, down) = (request.change.name(), down.join(", "));
        return Err(Refusal::for_now(format!("{name}: in the view of {own}, these nodes are down: {down}")));
    }
    if ring != request.ring {
        return Err(Refusal::for_now(format!("{}: node {own} knows another ring", request.change.name())));
    }
    Ok(())
}

/// The change that a member has agreed to: one at a time.
#[derive(Debug, Default)]
pub struct ChangeLock {
    held: Option<(ChangeRequest, Instant)>,
}

impl ChangeLock {
    /// Returns the change that holds the lock at `now`. The lock expires after `time_limit` without a renewal, and
    /// later commits of the change are refused.
    pub fn current(&self, now: Instant, time_limit: Duration) -> Option<&ChangeRequest> {
        self.held
            .as_ref()
            .filter(|(_, renewed)| now.saturating_duration_since(*renewed) < time_limit)
            .map(|(request, _)| request)
    }

    /// Acquires the lock for a change, unless another one holds it.
    pub fn acquire(&mut self, request: ChangeRequest, now: Instant, time_limit: Duration) -> Result<(), Refusal> {
        if let Some(held) = self.current(now, time_limit).filter(|held| held.attempt != request.attempt) {
            let (name, by) = (held.change.name(), &held.by);
            return Err(Refusal::for_now(format!("another topology change is in progress: {name} by {by}")));
        }
        self.held = Some((request, now));
        Ok(())
    }

    /// Renews the lock of an attempt, if it holds it.
    pub fn renew(&mut self, attempt: &str, now: Instant, time_limit: Duration) -> bool {
        let is_held = self.is_held(attempt, now, time_limit);
        if is_held && let Some((_, renewed)) = &mut self.held {
            *renewed = now;
        }
        is_held
    }

    /// Whether this attempt holds the lock.
    pub fn is_held(&self, attempt: &str, now: Instant, time_limit: Duration) -> bool {
        self.current(now, time_limit).is_some_and(|held| held.attempt == attempt)
    }

    /// Releases the lock.
    pub fn end(&mut self, attempt: &str) {
        if self.held.as_ref().is_some_and(|(held, _)| held.attempt == attempt) {
            self.held = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::{
        Member, Status,
        examples::{host, member},
    };

    fn request(change: Change, by: u8, ring: &[u8]) -> ChangeRequest {
        let ring = ring.iter().map(|&number| host(number)).collect();
        ChangeRequest {
            change,
            by: host(by),
            address: [10, 0, 0, by].into(),
            ring,
            attempt: format!("attempt of {by}"),
        }
    }

    /// Returns the response of node 1, which knows nodes 1 to 3 and 9, which has left, when `up` are up.
    fn respond(request: &ChangeRequest, up: &[u8]) -> Result<(), Refusal> {
        let ring = [1, 2, 3].map(|number| member(number, Status::Normal));
        let members = Membership::of(ring.into_iter().chain([member(9, Status::Left)]));
        let up = up.iter().map(|&number| host(number)).collect();
        agree(request, &MemberState { own: &host(1), members: &members, up: &up })
    }

    fn is_final(response: Result<(), Refusal>) -> Option<bool> {
        response.err().map(|refusal| refusal.is_final)
    }

    #[test]
    fn members_agree_to_valid_changes_only() {
        let dead = || host(3);
        let all = [1, 2, 3];
        for (request, up, refused, why) in [
            (request(Change::Bootstrap, 4, &all), vec![1, 2, 3], None, "all are up"),
            (request(Change::Bootstrap, 4, &all), vec![1, 2], Some(false), "a node is down"),
            (request(Change::Bootstrap, 4, &[1, 2]), vec![1, 2, 3], Some(false), "the newcomer knows too little"),
            (request(Change::Bootstrap, 9, &all), vec![1, 2, 3], Some(true), "it left before"),
            (request(Change::Replace(dead()), 4, &all), vec![1, 2], None, "the replaced one is down"),
            (request(Change::Replace(dead()), 4, &all), vec![1, 2, 3], Some(false), "the replaced one is up"),
            (request(Change::Replace(dead()), 4, &all), vec![1], Some(false), "another one is down"),
            (request(Change::Replace(host(7)), 4, &all), vec![1, 2, 3], Some(true), "no node has that host ID"),
            (request(Change::Replace(host(9)), 4, &all), vec![1, 2, 3], Some(true), "that one left"),
            (request(Change::Decommission, 2, &all), vec![1, 2, 3], None, "all are up"),
            (request(Change::Decommission, 2, &all), vec![1, 2], Some(false), "a node is down"),
            (request(Change::Removal(dead()), 2, &all), vec![1, 2], None, "the removed one is down"),
            (request(Change::Removal(dead()), 2, &all), vec![1, 2, 3], Some(false), "the removed one is up"),
            (request(Change::Removal(host(9)), 2, &all), vec![1, 2, 3], Some(true), "that one left"),
        ] {
            assert_eq!(is_final(respond(&request, &up)), refused, "{why}: {request:?}");
        }
    }

    #[test]
    fn only_a_replacement_gets_the_address_of_a_member() {
        let at_3 = |change| ChangeRequest { address: [10, 0, 0, 3].into(), ..request(change, 4, &[1, 2, 3]) };
        assert_eq!(is_final(respond(&at_3(Change::Bootstrap), &[1, 2])), Some(true));
        assert_eq!(is_final(respond(&at_3(Change::Replace(host(3))), &[1, 2])), None);
        assert_eq!(is_final(respond(&at_3(Change::Replace(host(2))), &[1, 3])), Some(true));
    }

    #[test]
    fn last_node_is_not_decommissioned() {
        let members = Membership::of([member(1, Status::Normal), Member { version: 2, ..member(2, Status::Left) }]);
        let up = [host(1)].into();
        let response =
            agree(&request(Change::Decommission, 1, &[1]), &MemberState { own: &host(1), members: &members, up: &up });
        assert_eq!(is_final(response), Some(true));
    }

    #[test]
    fn lock_is_held_by_one_change_at_a_time() {
        let time_limit = Duration::from_secs(2);
        let start = Instant::now();
        let mut lock = ChangeLock::default();
        let (first, second) = (request(Change::Bootstrap, 4, &[]), request(Change::Bootstrap, 5, &[]));
        assert_eq!(lock.acquire(first.clone(), start, time_limit), Ok(()));
        assert_eq!(lock.acquire(first.clone(), start, time_limit), Ok(()), "requested again by the same attempt");
        assert_eq!(is_final(lock.acquire(second.clone(), start, time_limit)), Some(false));
        assert!(lock.renew(&first.attempt, start + Duration::from_secs(1), time_limit));
        assert_eq!(
            is_final(lock.acquire(second.clone(), start + Duration::from_millis(2500), time_limit)),
            Some(false)
        );
        assert!(!lock.renew(&first.attempt, start + Duration::from_secs(4), time_limit), "too late");
        assert_eq!(lock.acquire(second.clone(), start + Duration::from_secs(4), time_limit), Ok(()));
        lock.end(&first.attempt);
        assert!(lock.current(start + Duration::from_secs(4), time_limit).is_some(), "only its own attempt releases it");
        lock.end(&second.attempt);
        assert_eq!(lock.current(start + Duration::from_secs(4), time_limit), None);
    }
}
