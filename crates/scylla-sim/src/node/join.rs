//! The start of a node: it starts a ring, joins one, or rejoins its own.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{net::lookup_host, task::JoinSet, time::sleep};

use super::{Mode, Node, NodeError, topology::Agreement, view::named};
use crate::{
    disk::Bootstrapped,
    log,
    membership::{HostId, Member, Status},
    random,
    rules::{Change, Refusal},
    wire::{PeerRequest, PeerResponse, call},
};

/// The result of calling the seeds.
enum SeedsResult {
    /// No seed responded.
    NoResponse,
    /// Seeds responded, and none is in a ring.
    NoRing,
    /// A ring and its members.
    Ring(String, Vec<Member>),
}

const PAUSE: Duration = Duration::from_millis(200);

impl Node {
    /// Becomes a member of a ring.
    pub(super) async fn join(self: &Arc<Self>) -> Result<(), NodeError> {
        self.persist().await?;
        if self.with(|state| state.bootstrapped) == Bootstrapped::Completed {
            return self.rejoin().await;
        }
        self.set_mode(Mode::Joining);
        let deadline = Instant::now() + self.config.pace.join_timeout;
        let mut logged = String::new();
        let mut last = "Unable to contact any seeds".to_owned();
        loop {
            match self.call_seeds().await? {
                SeedsResult::Ring(ring, members) => {
                    self.with(|state| state.ring = Some(ring));
                    self.learn_ring(members)?;
                    match self.join_ring().await {
                        Ok(()) => return Ok(()),
                        Err(refusal) if refusal.is_final => return Err(NodeError::Refused(refusal.reason)),
                        Err(refusal) => last = refusal.reason,
                    }
                    // The node is in no ring before it has joined.
                    self.with(|state| state.ring = None);
                }
                SeedsResult::NoRing if self.may_start_ring() => return self.start_ring().await,
                SeedsResult::NoResponse if self.may_start_ring() && self.may_start_ring_alone(deadline) => {
                    return self.start_ring().await;
                }
                SeedsResult::NoRing => last = "The seeds are not members of a ring".to_owned(),
                SeedsResult::NoResponse => {}
            }
            if Instant::now() > deadline {
                return Err(NodeError::Refused(last));
            }
            if logged != last {
                log::info("storage_service", format!("Waiting to join: {last}"));
                logged.clone_from(&last);
            }
            sleep(PAUSE).await;
        }
    }

    /// Whether this node starts a ring if there is none. A node that replaces another one never does.
    fn may_start_ring(&self) -> bool {
        self.config.is_first_seed() && self.config.replaces.is_none()
    }

    /// Other seeds may be in a ring and not respond yet, so the node waits for them.
    fn may_start_ring_alone(&self, deadline: Instant) -> bool {
        let is_only_seed = self.config.seeds.len() == 1;
        is_only_seed || Instant::now() + self.config.pace.join_timeout > deadline + self.config.pace.failure_timeout
    }

    async fn seeds(&self) -> Vec<SocketAddr> {
        let own = self.storage(self.config.broadcast_address);
        let mut seeds = Vec::new();
        for seed in &self.config.seeds {
            match seed.parse() {
                Ok(address) => seeds.push(self.storage(address)),
                Err(_) => match lookup_host((seed.as_str(), self.config.storage_port)).await {
                    Ok(addresses) => seeds.extend(addresses),
                    Err(error) => log::warn("gossip", format!("Seed {seed} cannot be resolved: {error}")),
                },
            }
        }
        seeds.retain(|seed| *seed != own && !self.with(|s| s.faults.refuse_to.contains(&seed.ip().to_string())));
        seeds
    }

    /// Calls all seeds for their ring.
    async fn call_seeds(self: &Arc<Self>) -> Result<SeedsResult, NodeError> {
        let responses = self.send_hello(self.seeds().await).await;
        let mut rings = BTreeMap::<String, Vec<Member>>::new();
        let mut has_response = false;
        for response in responses {
            has_response = true;
            match response {
                PeerResponse::Members { ring, members } => rings.entry(ring).or_default().extend(members),
                PeerResponse::WrongCluster { name } => {
                    let own = &self.config.cluster_name;
                    return Err(NodeError::Refused(format!(
                        "ClusterName mismatch: a seed is of cluster {name}, not {own}"
                    )));
                }
                PeerResponse::Banned => {
                    self.with(|state| state.is_banned = true);
                    self.persist().await?;
                    return Err(NodeError::Banned(self.own.clone()));
                }
                _ => {}
            }
        }
        if rings.len() > 1 {
            return Err(NodeError::Refused("The seeds are members of different rings".to_owned()));
        }
        let found = rings.pop_first().map(|(ring, members)| SeedsResult::Ring(ring, members));
        Ok(found.unwrap_or(if has_response { SeedsResult::NoRing } else { SeedsResult::NoResponse }))
    }

    async fn send_hello(self: &Arc<Self>, addresses: Vec<SocketAddr>) -> Vec<PeerResponse> {
        let mut calls = JoinSet::new();
        for address in addresses {
            let (hello, time_limit) = (self.envelope(None, PeerRequest::Hello), self.response_timeout());
            calls.spawn(async move { call(address, &hello, time_limit).await });
        }
        calls.join_all().await.into_iter().flatten().collect()
    }

    /// Merges the members of the ring that seeds sent.
    fn learn_ring(&self, members: Vec<Member>) -> Result<(), NodeError> {
        self.with(|state| {
            for news in members {
                if news.host_id == self.own && news.status == Status::Left {
                    return Err(NodeError::Banned(self.own.clone()));
                }
                state.members.merge(news);
            }
            Ok(())
        })
    }

    /// Starts a ring.
    async fn start_ring(self: &Arc<Self>) -> Result<(), NodeError> {
        log::info("storage_service", "No ring is known to the seeds, and this node is the first of them: starting one");
        self.with(|state| {
            state.ring = Some(random::uuid());
            state.bootstrapped = Bootstrapped::Completed;
        });
        self.set_status(Status::Normal);
        self.persist().await?;
        self.with(|state| state.is_gossiping = true);
        Ok(())
    }

    /// Joins a ring, or finishes an interrupted join.
    async fn join_ring(self: &Arc<Self>) -> Result<(), Refusal> {
        if self.with(|state| state.members.is_in_ring(&self.own)) {
            log::info("storage_service", "The ring has this node already: finishing the interrupted join");
            return self.finish_join().await;
        }
        let change = match self.config.replaces.clone() {
            Some(dead) => Change::Replace(dead),
            None => Change::Bootstrap,
        };
        let agreement = self.agree_on(&change).await?;
        let outcome = self.while_agreed(&agreement, self.join_agreed(&agreement, &change)).await;
        self.release(&agreement).await;
        // A join that has begun is not retried by the same process.
        outcome.map_err(|refusal| Refusal::final_(refusal.reason))
    }

    async fn join_agreed(self: &Arc<Self>, agreement: &Agreement, change: &Change) -> Result<(), Refusal> {
        let name = change.name();
        let dead = change.dead().and_then(|dead| self.entry(dead));
        self.with(|state| {
            state.bootstrapped = Bootstrapped::InProgress;
            dead.iter().for_each(|dead| state.tokens.clone_from(&dead.tokens));
        });
        self.set_status(Status::Joining);
        self.set_mode(Mode::Bootstrap);
        self.persist().await.map_err(|error| Refusal::final_(error.to_string()))?;
        self.with(|state| state.is_gossiping = true);
        self.commit(agreement, self.entry(&self.own).into_iter().collect()).await?;
        log::info("storage_service", format!("Starting to {name}"));
        self.step(&format!("{name}-started"));
        self.stream(Self::bootstrap_duration).await;
        self.stream_rows_in(change).await?;
        self.step(&format!("{name}-streamed"));

        // The own state changes only after the commit, because gossip would propagate it.
        let left = dead.map(|dead| Member { status: Status::Left, ..dead });
        let facts: Vec<Member> = [self.next_entry(Status::Normal)].into_iter().chain(left).collect();
        self.commit(agreement, facts.clone()).await?;
        self.step(&format!("{name}-announced"));
        self.with(|state| facts.into_iter().for_each(|fact| _ = state.members.merge(fact)));
        self.finish_join().await?;
        self.step(&format!("{name}-finished"));
        Ok(())
    }

    async fn finish_join(self: &Arc<Self>) -> Result<(), Refusal> {
        self.with(|state| {
            state.bootstrapped = Bootstrapped::Completed;
            if let Some(own) = state.members.get(&self.own) {
                state.tokens.clone_from(&own.tokens);
            }
        });
        self.set_status(Status::Normal);
        self.persist().await.map_err(|error| Refusal::final_(error.to_string()))?;
        self.with(|state| state.is_gossiping = true);
        Ok(())
    }

    fn bootstrap_duration(&self) -> Duration {
        self.faults().bootstrap_ms.map_or(self.config.pace.bootstrap, Duration::from_millis)
    }

    /// Rejoins a ring after a restart, when a majority of it is reachable: a whole cluster can restart at once, but no
    /// node alone. If another node responds that this one was removed, it is.
    async fn rejoin(self: &Arc<Self>) -> Result<(), NodeError> {
        if self.config.replaces.is_some() {
            log::warn("storage_service", "replace_node_first_boot is ignored: this is not the first boot");
        }
        self.set_mode(Mode::Joining);
        self.find_ring().await?;
        self.set_status(Status::Normal);
        self.persist().await?;
        self.with(|state| state.is_gossiping = true);
        let mut logged = 0;
        while let Err((up, nodes)) = self.majority() {
            if logged != up {
                log::info("raft_group0", format!("Waiting for a majority: {up} of {nodes} node(s) are reachable"));
                logged = up;
            }
            sleep(PAUSE).await;
            // Other nodes may have changed their addresses.
            self.find_ring().await?;
        }
        Ok(())
    }

    /// Calls all nodes that may be in the ring.
    async fn find_ring(self: &Arc<Self>) -> Result<(), NodeError> {
        let others: Vec<(HostId, std::net::IpAddr)> = self.with(|state| {
            let others = state.members.present().filter(|member| member.host_id != self.own);
            let others = others.filter(|member| !named(&state.faults.refuse_to, &member.host_id, member.address));
            others.map(|member| (member.host_id.clone(), member.address)).collect()
        });
        let mut addresses = self.seeds().await;
        addresses.extend(others.iter().map(|(_, address)| self.storage(*address)));
        addresses.sort();
        addresses.dedup();
        for response in self.send_hello(addresses).await {
            match response {
                PeerResponse::Members { members, .. } => self.learn_ring(members)?,
                PeerResponse::Banned => {
                    self.with(|state| state.is_banned = true);
                    self.persist().await?;
                    return Err(NodeError::Banned(self.own.clone()));
                }
                PeerResponse::WrongRing => log::warn("gossip", "A seed is in another ring of the same name"),
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks that more than half of the ring is up, including this node. The error has the number of nodes that are
    /// up, and of all.
    fn majority(&self) -> Result<(), (usize, usize)> {
        self.with(|state| {
            let up = self.up(state);
            let ring = || state.members.ring();
            let (up, nodes) = (ring().filter(|member| up.contains(&member.host_id)).count(), ring().count());
            if 2 * up > nodes { Ok(()) } else { Err((up, nodes)) }
        })
    }
}
