//! Which change of the ring a member grants, and to whom. Every member of the ring is asked; one that says no is enough.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::membership::{HostId, Membership};

/// A change of the ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// A new node takes tokens of its own.
    Bootstrap,
    /// A new node takes the tokens of a dead one.
    Replace(HostId),
    /// A node gives its tokens away and goes.
    Decommission,
    /// A dead node's tokens are given away.
    Removal(HostId),
}

impl Change {
    /// Its name, as it stands in logs and in the names of steps.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bootstrap => "bootstrap",
            Self::Replace(_) => "replace",
            Self::Decommission => "decommission",
            Self::Removal(_) => "removenode",
        }
    }

    /// The dead node that it is about.
    pub fn dead(&self) -> Option<&HostId> {
        match self {
            Self::Replace(dead) | Self::Removal(dead) => Some(dead),
            Self::Bootstrap | Self::Decommission => None,
        }
    }
}

/// A wish to change the ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    /// What is to change.
    pub change: Change,
    /// The node that does it.
    pub by: HostId,
    /// Its address.
    pub address: IpAddr,
    /// The ring as that node knows it.
    pub ring: BTreeSet<HostId>,
    /// Tells this attempt from others.
    pub attempt: String,
}

/// Why a change is not granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Whether asking again later makes no sense.
    pub is_final: bool,
    /// Why.
    pub reason: String,
}

/// What a member knows when it is asked.
pub struct Standing<'a> {
    /// Itself.
    pub own: &'a HostId,
    /// Who it knows.
    pub members: &'a Membership,
    /// Whom it sees alive, itself included.
    pub up: &'a BTreeSet<HostId>,
}

impl Refusal {
    /// Asking again makes no sense.
    pub fn final_(reason: impl Into<String>) -> Self {
        Self { is_final: true, reason: reason.into() }
    }

    /// It may be granted later.
    pub fn for_now(reason: impl Into<String>) -> Self {
        Self { is_final: false, reason: reason.into() }
    }
}

/// Whether a change makes sense at all, whoever is up. Where it does not, waiting does not help.
pub fn makes_sense(wish: &Wish, members: &Membership) -> Result<(), Refusal> {
    let name = wish.change.name();
    if members.has_left(&wish.by) {
        return Err(Refusal::final_(format!("node {} left the cluster and will not rejoin the ring", wish.by)));
    }
    if let Some(dead) = wish.change.dead().filter(|dead| !members.is_in_ring(dead)) {
        return Err(Refusal::final_(format!("{name}: host ID {dead} is not in the ring")));
    }
    if wish.change == Change::Decommission && members.ring().count() == 1 {
        return Err(Refusal::final_("decommission: this is the last node of the ring"));
    }
    let is_newcomer = matches!(wish.change, Change::Bootstrap | Change::Replace(_));
    let mut others = members.ring().filter(|m| m.host_id != wish.by && Some(&m.host_id) != wish.change.dead());
    if is_newcomer && others.any(|member| member.address == wish.address) {
        let address = wish.address;
        return Err(Refusal::final_(format!(
            "A node with address {address} already exists, cancelling join. Use replace_node_first_boot to replace it"
        )));
    }
    Ok(())
}

/// Whether a member agrees to a change, leaving aside what else is going on.
pub fn agree(wish: &Wish, standing: &Standing<'_>) -> Result<(), Refusal> {
    let Standing { own, members, up } = standing;
    makes_sense(wish, members)?;
    if !members.is_in_ring(own) {
        return Err(Refusal::for_now(format!("node {own} is not a member of the ring itself")));
    }
    if let Some(dead) = wish.change.dead().filter(|dead| up.contains(*dead)) {
        return Err(Refusal::for_now(format!("{}: node {dead} is alive in the view of {own}", wish.change.name())));
    }
    let ring: BTreeSet<HostId> = members.ring().map(|member| member.host_id.clone()).collect();
    let down: Vec<&str> = ring
        .iter()
        .filter(|host_id| !up.contains(*host_id) && Some(*host_id) != wish.change.dead())
        .map(HostId::as_str)
        .collect();
    if !down.is_empty() {
        let (name, down) = (wish.change.name(), down.join(", "));
        return Err(Refusal::for_now(format!("{name}: in the view of {own}, these nodes are down: {down}")));
    }
    if ring != wish.ring {
        return Err(Refusal::for_now(format!("{}: node {own} knows another ring", wish.change.name())));
    }
    Ok(())
}

/// The change that a member agreed to. It agrees to one at a time.
#[derive(Debug, Default)]
pub struct Promise {
    held: Option<(Wish, Instant)>,
}

impl Promise {
    /// The change that is promised at `now`. Without word from its doer a promise ends after `patience`, and what the doer
    /// then still wants to make a fact is refused.
    pub fn current(&self, now: Instant, patience: Duration) -> Option<&Wish> {
        self.held
            .as_ref()
            .filter(|(_, renewed)| now.saturating_duration_since(*renewed) < patience)
            .map(|(wish, _)| wish)
    }

    /// Promises a change, unless another one is promised.
    pub fn give(&mut self, wish: Wish, now: Instant, patience: Duration) -> Result<(), Refusal> {
        if let Some(held) = self.current(now, patience).filter(|held| held.attempt != wish.attempt) {
            let (name, by) = (held.change.name(), &held.by);
            return Err(Refusal::for_now(format!("another topology change is in progress: {name} by {by}")));
        }
        self.held = Some((wish, now));
        Ok(())
    }

    /// Prolongs a promise that still stands.
    pub fn renew(&mut self, attempt: &str, now: Instant, patience: Duration) -> bool {
        let stands = self.stands(attempt, now, patience);
        if stands && let Some((_, renewed)) = &mut self.held {
            *renewed = now;
        }
        stands
    }

    /// Whether this very promise stands.
    pub fn stands(&self, attempt: &str, now: Instant, patience: Duration) -> bool {
        self.current(now, patience).is_some_and(|held| held.attempt == attempt)
    }

    /// Ends a promise.
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

    fn wish(change: Change, by: u8, ring: &[u8]) -> Wish {
        let ring = ring.iter().map(|&number| host(number)).collect();
        Wish { change, by: host(by), address: [10, 0, 0, by].into(), ring, attempt: format!("attempt of {by}") }
    }

    /// The answer of node 1, which knows of nodes 1 to 3 and of 9, which left, and sees `up`.
    fn answer(wish: &Wish, up: &[u8]) -> Result<(), Refusal> {
        let ring = [1, 2, 3].map(|number| member(number, Status::Normal));
        let members = Membership::of(ring.into_iter().chain([member(9, Status::Left)]));
        let up = up.iter().map(|&number| host(number)).collect();
        agree(wish, &Standing { own: &host(1), members: &members, up: &up })
    }

    fn is_final(answer: Result<(), Refusal>) -> Option<bool> {
        answer.err().map(|refusal| refusal.is_final)
    }

    #[test]
    fn what_is_granted_and_what_is_not() {
        let dead = || host(3);
        let all = [1, 2, 3];
        for (wish, up, refused, why) in [
            (wish(Change::Bootstrap, 4, &all), vec![1, 2, 3], None, "all are up"),
            (wish(Change::Bootstrap, 4, &all), vec![1, 2], Some(false), "a node is down"),
            (wish(Change::Bootstrap, 4, &[1, 2]), vec![1, 2, 3], Some(false), "the newcomer knows too little"),
            (wish(Change::Bootstrap, 9, &all), vec![1, 2, 3], Some(true), "it left before"),
            (wish(Change::Replace(dead()), 4, &all), vec![1, 2], None, "the replaced one is down"),
            (wish(Change::Replace(dead()), 4, &all), vec![1, 2, 3], Some(false), "the replaced one is up"),
            (wish(Change::Replace(dead()), 4, &all), vec![1], Some(false), "another one is down"),
            (wish(Change::Replace(host(7)), 4, &all), vec![1, 2, 3], Some(true), "nobody has that host ID"),
            (wish(Change::Replace(host(9)), 4, &all), vec![1, 2, 3], Some(true), "that one left"),
            (wish(Change::Decommission, 2, &all), vec![1, 2, 3], None, "all are up"),
            (wish(Change::Decommission, 2, &all), vec![1, 2], Some(false), "a node is down"),
            (wish(Change::Removal(dead()), 2, &all), vec![1, 2], None, "the removed one is down"),
            (wish(Change::Removal(dead()), 2, &all), vec![1, 2, 3], Some(false), "the removed one is up"),
            (wish(Change::Removal(host(9)), 2, &all), vec![1, 2, 3], Some(true), "that one left"),
        ] {
            assert_eq!(is_final(answer(&wish, &up)), refused, "{why}: {wish:?}");
        }
    }

    #[test]
    fn an_address_is_taken_by_a_replacement_alone() {
        let at_3 = |change| Wish { address: [10, 0, 0, 3].into(), ..wish(change, 4, &[1, 2, 3]) };
        assert_eq!(is_final(answer(&at_3(Change::Bootstrap), &[1, 2])), Some(true));
        assert_eq!(is_final(answer(&at_3(Change::Replace(host(3))), &[1, 2])), None);
        assert_eq!(is_final(answer(&at_3(Change::Replace(host(2))), &[1, 3])), Some(true));
    }

    #[test]
    fn the_last_node_stays() {
        let members = Membership::of([member(1, Status::Normal), Member { version: 2, ..member(2, Status::Left) }]);
        let up = [host(1)].into();
        let answer =
            agree(&wish(Change::Decommission, 1, &[1]), &Standing { own: &host(1), members: &members, up: &up });
        assert_eq!(is_final(answer), Some(true));
    }

    #[test]
    fn one_change_is_promised_at_a_time() {
        let patience = Duration::from_secs(2);
        let start = Instant::now();
        let mut promise = Promise::default();
        let (first, second) = (wish(Change::Bootstrap, 4, &[]), wish(Change::Bootstrap, 5, &[]));
        assert_eq!(promise.give(first.clone(), start, patience), Ok(()));
        assert_eq!(promise.give(first.clone(), start, patience), Ok(()), "asked again by the same");
        assert_eq!(is_final(promise.give(second.clone(), start, patience)), Some(false));
        assert!(promise.renew(&first.attempt, start + Duration::from_secs(1), patience));
        assert_eq!(is_final(promise.give(second.clone(), start + Duration::from_millis(2500), patience)), Some(false));
        assert!(!promise.renew(&first.attempt, start + Duration::from_secs(4), patience), "too late");
        assert_eq!(promise.give(second.clone(), start + Duration::from_secs(4), patience), Ok(()));
        promise.end(&first.attempt);
        assert!(promise.current(start + Duration::from_secs(4), patience).is_some(), "ended by its own doer alone");
        promise.end(&second.attempt);
        assert_eq!(promise.current(start + Duration::from_secs(4), patience), None);
    }
}
