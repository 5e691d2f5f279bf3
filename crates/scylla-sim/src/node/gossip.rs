//! Gossip: nodes ping each other periodically. A node is up for the nodes that get its responses, so views may differ.
//! The state of each node is propagated by all nodes.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::{Arc, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::{
    net::{TcpListener, TcpStream},
    time::sleep,
};

use super::{Node, NodeError, view::named};
use crate::{
    log,
    membership::{HostId, Member, Status},
    rules::{MemberState, Refusal, agree},
    web,
    wire::{Envelope, Link, PeerRequest, PeerResponse, receive, send},
};

/// The maximum number of nodes for which the configured gossip interval applies.
const SMALL: u32 = 8;

impl Node {
    /// Serves other nodes until it is dropped.
    pub(super) async fn serve_nodes(self: Arc<Self>, listener: TcpListener) {
        web::accept(listener, move |stream| Arc::clone(&self).serve_node(stream)).await;
    }

    async fn serve_node(self: Arc<Self>, mut stream: TcpStream) {
        while let Ok(envelope) = receive::<Envelope>(&mut stream).await {
            self.unpaused().await;
            let is_refused = self.with(|state| named(&state.faults.refuse_from, &envelope.from, envelope.address));
            if is_refused {
                return;
            }
            let Some(response) = self.respond(envelope).await else { return };
            if send(&mut stream, &response).await.is_err() {
                return;
            }
        }
    }

    /// Returns the response to another node; none if this one is isolated.
    async fn respond(self: &Arc<Self>, envelope: Envelope) -> Option<PeerResponse> {
        let Envelope { cluster, ring, from, to, request, .. } = envelope;
        if cluster != self.config.cluster_name {
            return Some(PeerResponse::WrongCluster { name: self.config.cluster_name.clone() });
        }
        if to.is_some_and(|to| to != self.own) {
            return Some(PeerResponse::NotMe { host_id: self.own.clone() });
        }
        let own_ring = self.ring();
        let Some(own_ring) = own_ring.filter(|_| self.is_gossiping()) else {
            // An isolated node does not respond; one that has not joined says so.
            return (self.ring().is_none()).then_some(PeerResponse::NoRing);
        };
        if self.with(|state| state.members.has_left(&from)) {
            return Some(PeerResponse::Banned);
        }
        if ring.is_some_and(|ring| ring != own_ring) {
            return Some(PeerResponse::WrongRing);
        }
        Some(match request {
            PeerRequest::Ping { .. } => self.pong(),
            PeerRequest::Hello => self.members(own_ring),
            PeerRequest::Sync { members } => {
                self.learn(members).await;
                self.members(own_ring)
            }
            PeerRequest::Commit { attempt, members } => {
                let time_limit = self.config.pace.failure_timeout;
                if !self.with(|state| state.lock.is_held(&attempt, Instant::now(), time_limit)) {
                    return Some(PeerResponse::Refused(Refusal::for_now(format!(
                        "node {} has not agreed to this change",
                        self.own
                    ))));
                }
                self.learn(members).await;
                // A node whose disk fails isolates itself, and does not respond.
                if self.is_gossiping() { PeerResponse::Done } else { return None }
            }
            PeerRequest::Agree(request) => {
                let time_limit = self.config.pace.failure_timeout;
                let outcome = self.with(|state| {
                    let up = self.up(state);
                    agree(&request, &MemberState { own: &self.own, members: &state.members, up: &up })?;
                    state.lock.acquire(request, Instant::now(), time_limit)
                });
                outcome.map_or_else(PeerResponse::Refused, |()| PeerResponse::Done)
            }
            PeerRequest::Renew { attempt } => {
                let time_limit = self.config.pace.failure_timeout;
                if self.with(|state| state.lock.renew(&attempt, Instant::now(), time_limit)) {
                    PeerResponse::Done
                } else {
                    let reason = format!("node {} no longer agrees to the change", self.own);
                    PeerResponse::Refused(Refusal::for_now(reason))
                }
            }
            PeerRequest::Release { attempt } => {
                self.with(|state| state.lock.end(&attempt));
                PeerResponse::Done
            }
            PeerRequest::Shutdown => {
                self.with(|state| state.last_response.remove(&from));
                self.log_changes();
                PeerResponse::Done
            }
            PeerRequest::Write(write) => {
                self.apply_write(&write);
                PeerResponse::Done
            }
            PeerRequest::Tables => PeerResponse::Tables(self.dump_tables()),
            PeerRequest::Keyspace(keyspace) => self.store_keyspace(keyspace).await?,
            PeerRequest::Rows(rows) => self.store_rows(rows).await?,
            PeerRequest::Copies => PeerResponse::Copies(self.copies()),
        })
    }

    fn pong(&self) -> PeerResponse {
        self.with(|state| PeerResponse::Pong {
            from: self.own.clone(),
            heartbeat: state.heartbeat,
            digest: state.members.digest(),
        })
    }

    fn members(&self, ring: String) -> PeerResponse {
        PeerResponse::Members { ring, members: self.with(|state| state.members.all().cloned().collect()) }
    }

    /// Merges the members that another node knows.
    pub(super) async fn learn(self: &Arc<Self>, news: Vec<Member>) {
        let (has_changed, is_banned) = self.with(|state| {
            let mut has_changed = false;
            for news in news {
                if news.host_id == self.own {
                    // The node's own state is authoritative, except for its removal.
                    if news.status == Status::Left && !state.members.has_left(&self.own) {
                        return (true, true);
                    }
                    continue;
                }
                let (host_id, status) = (news.host_id.clone(), news.status);
                if state.members.merge(news) {
                    has_changed = true;
                    match status {
                        Status::Joining => _ = state.joining_since.insert(host_id, Instant::now()),
                        Status::Left => {
                            state.last_response.remove(&host_id);
                            log::info("gossip", format!("Node {host_id} left the ring"));
                        }
                        Status::Normal | Status::Leaving => {}
                    }
                }
            }
            (has_changed, false)
        });
        if is_banned {
            self.ban().await;
        } else if has_changed {
            // On failure the node isolates itself and logs the cause.
            let _ = self.persist().await;
        }
    }

    /// Handles that other nodes have removed this one.
    pub(super) async fn ban(self: &Arc<Self>) {
        if self.with(|state| state.is_leaving_permanently) {
            return;
        }
        self.stop_communication();
        self.with(|state| state.is_banned = true);
        let _ = self.persist().await;
        self.terminate(NodeError::Banned(self.own.clone()).to_string());
    }

    /// Pings all other nodes periodically until it is dropped.
    pub(super) async fn gossip(self: Arc<Self>) {
        loop {
            sleep(self.pause_between_rounds()).await;
            self.unpaused().await;
            if !self.is_gossiping() {
                continue;
            }
            self.remove_vanished_nodes();
            let others = self.with(|state| {
                state.heartbeat += 1;
                let others = state.members.present().filter(|member| member.host_id != self.own);
                let others = others.filter(|m| !named(&state.faults.refuse_to, &m.host_id, m.address));
                others.map(|member| (member.host_id.clone(), member.address)).collect::<Vec<_>>()
            });
            self.links().retain(|host_id, _| others.iter().any(|(other, _)| other == host_id));
            let known: BTreeSet<IpAddr> = others.iter().map(|(_, address)| *address).collect();
            for (host_id, address) in others {
                let link = self.link(&host_id, address);
                if link.take() {
                    let node = Arc::clone(&self);
                    tokio::spawn(async move {
                        node.ping(&host_id, &link).await;
                        link.release();
                    });
                }
            }
            self.contact_unknown_seeds(&known);
            self.log_changes();
        }
    }

    /// All nodes ping all nodes, so the interval is longer in large clusters; but never so long that a node appears
    /// down.
    fn pause_between_rounds(&self) -> Duration {
        let pace = &self.config.pace;
        let members = u32::try_from(self.with(|state| state.members.present().count())).unwrap_or(u32::MAX);
        let pause = pace.gossip_interval.saturating_mul(members.max(SMALL)) / SMALL;
        pause.min(pace.failure_timeout / 4).max(pace.gossip_interval)
    }

    fn links(&self) -> MutexGuard<'_, HashMap<HostId, Arc<Link>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn link(&self, host_id: &HostId, address: IpAddr) -> Arc<Link> {
        let address = self.storage(address);
        let mut links = self.links();
        let link = links.entry(host_id.clone()).or_insert_with(|| Arc::new(Link::new(address)));
        if link.address != address {
            *link = Arc::new(Link::new(address));
        }
        Arc::clone(link)
    }

    async fn ping(self: &Arc<Self>, host_id: &HostId, link: &Link) {
        let (heartbeat, digest) = self.with(|state| (state.heartbeat, state.members.digest()));
        let ping = self.envelope(Some(host_id.clone()), PeerRequest::Ping { heartbeat, digest });
        let response = link.call(&ping, self.response_timeout()).await;
        let others = match response {
            Ok(PeerResponse::Pong { from, heartbeat, digest: others }) if from == *host_id => {
                self.with(|state| {
                    state.last_response.insert(from.clone(), Instant::now());
                    state.heartbeats.insert(from.clone(), heartbeat);
                    if let Some(since) = state.joining_since.get_mut(&from) {
                        *since = Instant::now();
                    }
                });
                others
            }
            Ok(PeerResponse::Banned) => return self.ban().await,
            _ => return,
        };
        self.log_changes();
        self.replay_hints(host_id, link.address.ip()).await;
        if others != digest && self.is_gossiping() {
            let members = self.with(|state| state.members.all().cloned().collect());
            let sync = self.envelope(Some(host_id.clone()), PeerRequest::Sync { members });
            if let Ok(PeerResponse::Members { members, .. }) = link.call(&sync, self.response_timeout()).await {
                self.learn(members).await;
            }
        }
    }

    /// Contacts seeds with an address of no known member, so that nodes whose addresses all changed find each other.
    fn contact_unknown_seeds(self: &Arc<Self>, known: &BTreeSet<IpAddr>) {
        let own = self.config.broadcast_address;
        let seeds = self.config.seeds.iter().filter_map(|seed| seed.parse().ok());
        for seed in seeds.filter(|seed| *seed != own && !known.contains(seed)) {
            let node = Arc::clone(self);
            tokio::spawn(async move {
                let members = node.with(|state| state.members.all().cloned().collect());
                let sync = node.envelope(None, PeerRequest::Sync { members });
                let response = crate::wire::call(node.storage(seed), &sync, node.config.pace.gossip_interval).await;
                if let Ok(PeerResponse::Members { members, .. }) = response {
                    node.learn(members).await;
                }
            });
        }
    }

    /// Removes nodes that vanished while they joined.
    fn remove_vanished_nodes(&self) {
        let time_limit = self.config.pace.failure_timeout * 2;
        self.with(|state| {
            let joining = state.members.present().filter(|m| m.status == Status::Joining && m.host_id != self.own);
            let joining: Vec<HostId> = joining.map(|member| member.host_id.clone()).collect();
            let mut is_gone = |host_id: &HostId| {
                state.joining_since.entry(host_id.clone()).or_insert_with(Instant::now).elapsed() > time_limit
            };
            let vanished: Vec<HostId> = joining.into_iter().filter(|host_id| is_gone(host_id)).collect();
            for host_id in vanished {
                log::info("gossip", format!("Node {host_id} vanished while it joined, removing it from gossip"));
                state.members.remove_joining(&host_id);
                state.joining_since.remove(&host_id);
            }
        });
    }

    /// Logs nodes that came up or went down.
    pub(super) fn log_changes(&self) {
        self.with(|state| {
            let up: Vec<HostId> = self.up(state).into_iter().filter(|host_id| *host_id != self.own).collect();
            let describe = |host_id: &HostId| match state.members.get(host_id) {
                Some(member) => format!("{host_id}/{}", member.address),
                None => host_id.to_string(),
            };
            for host_id in up.iter().filter(|host_id| !state.up_before.contains(host_id)) {
                log::info("gossip", format!("Node {} is now UP", describe(host_id)));
            }
            for host_id in state.up_before.iter().filter(|host_id| !up.contains(host_id)) {
                log::info("gossip", format!("Node {} is now DOWN", describe(host_id)));
            }
            state.up_before = up;
        });
    }
}
