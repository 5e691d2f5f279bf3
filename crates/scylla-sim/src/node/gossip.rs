//! Nodes ask each other all the time whether they are there. Each believes its own eyes alone: a node is up for those
//! whom it answers, so opinions may differ. What nodes say of themselves travels through all.

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
    rules::{Refusal, Standing, agree},
    web,
    wire::{Answer, Envelope, Link, Question, receive, send},
};

/// A cluster of up to so many nodes keeps the pace that it was given.
const SMALL: u32 = 8;

impl Node {
    /// Answers other nodes, until it is dropped.
    pub(super) async fn answer_nodes(self: Arc<Self>, listener: TcpListener) {
        web::accept(listener, move |stream| Arc::clone(&self).answer_node(stream)).await;
    }

    async fn answer_node(self: Arc<Self>, mut stream: TcpStream) {
        while let Ok(envelope) = receive::<Envelope>(&mut stream).await {
            self.unpaused().await;
            let is_refused = self.with(|state| named(&state.faults.refuse_from, &envelope.from, envelope.address));
            if is_refused {
                return;
            }
            let Some(answer) = self.answer(envelope).await else { return };
            if send(&mut stream, &answer).await.is_err() {
                return;
            }
        }
    }

    /// The answer to another node; none where this one takes no part.
    async fn answer(self: &Arc<Self>, envelope: Envelope) -> Option<Answer> {
        let Envelope { cluster, ring, from, to, question, .. } = envelope;
        if cluster != self.config.cluster_name {
            return Some(Answer::WrongCluster { name: self.config.cluster_name.clone() });
        }
        if to.is_some_and(|to| to != self.own) {
            return Some(Answer::NotMe { host_id: self.own.clone() });
        }
        let own_ring = self.ring();
        let Some(own_ring) = own_ring.filter(|_| self.is_gossiping()) else {
            // Cut off, it is as silent as a dead one; before it joined, it says so.
            return (self.ring().is_none()).then_some(Answer::NoRing);
        };
        if self.with(|state| state.members.has_left(&from)) {
            return Some(Answer::Banned);
        }
        if ring.is_some_and(|ring| ring != own_ring) {
            return Some(Answer::WrongRing);
        }
        Some(match question {
            Question::Ping { .. } => self.pong(),
            Question::Hello => self.members(own_ring),
            Question::Sync { members } => {
                self.learn(members).await;
                self.members(own_ring)
            }
            Question::Commit { attempt, members } => {
                let patience = self.config.pace.failure_timeout;
                if !self.with(|state| state.promise.stands(&attempt, Instant::now(), patience)) {
                    return Some(Answer::Refused(Refusal::for_now(format!(
                        "node {} promised no such change",
                        self.own
                    ))));
                }
                self.learn(members).await;
                // Without a disk nothing can be kept, and then it is as silent as a dead one.
                if self.is_gossiping() { Answer::Done } else { return None }
            }
            Question::Wish(wish) => {
                let patience = self.config.pace.failure_timeout;
                let outcome = self.with(|state| {
                    let up = self.up(state);
                    agree(&wish, &Standing { own: &self.own, members: &state.members, up: &up })?;
                    state.promise.give(wish, Instant::now(), patience)
                });
                outcome.map_or_else(Answer::Refused, |()| Answer::Done)
            }
            Question::Renew { attempt } => {
                let patience = self.config.pace.failure_timeout;
                if self.with(|state| state.promise.renew(&attempt, Instant::now(), patience)) {
                    Answer::Done
                } else {
                    let reason = format!("node {} no longer holds to it", self.own);
                    Answer::Refused(Refusal::for_now(reason))
                }
            }
            Question::Release { attempt } => {
                self.with(|state| state.promise.end(&attempt));
                Answer::Done
            }
            Question::Shutdown => {
                self.with(|state| state.heard.remove(&from));
                self.tell_changes();
                Answer::Done
            }
            Question::Write(write) => {
                self.apply_write(&write);
                Answer::Done
            }
            Question::Tables => Answer::Tables(self.dump_tables()),
            Question::Keyspace(keyspace) => self.keep_keyspace(keyspace).await?,
            Question::Rows(rows) => self.keep_rows(rows).await?,
            Question::Copies => Answer::Copies(self.copies()),
        })
    }

    fn pong(&self) -> Answer {
        self.with(|state| Answer::Pong {
            from: self.own.clone(),
            heartbeat: state.heartbeat,
            digest: state.members.digest(),
        })
    }

    fn members(&self, ring: String) -> Answer {
        Answer::Members { ring, members: self.with(|state| state.members.all().cloned().collect()) }
    }

    /// Takes what another node knows.
    pub(super) async fn learn(self: &Arc<Self>, news: Vec<Member>) {
        let (has_changed, is_banned) = self.with(|state| {
            let mut has_changed = false;
            for news in news {
                if news.host_id == self.own {
                    // Nobody knows this node better than itself, but for one thing.
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
                            state.heard.remove(&host_id);
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
            // On failure it isolates itself, and says why.
            let _ = self.persist().await;
        }
    }

    /// Others say that this node is no longer one of them.
    pub(super) async fn ban(self: &Arc<Self>) {
        if self.with(|state| state.is_leaving_for_good) {
            return;
        }
        self.stop_communication();
        self.with(|state| state.is_banned = true);
        let _ = self.persist().await;
        self.give_up(NodeError::Banned(self.own.clone()).to_string());
    }

    /// Asks all others again and again, until it is dropped.
    pub(super) async fn gossip(self: Arc<Self>) {
        loop {
            sleep(self.pause_between_rounds()).await;
            self.unpaused().await;
            if !self.is_gossiping() {
                continue;
            }
            self.forget_the_vanished();
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
                        link.give_back();
                    });
                }
            }
            self.look_for_seeds(&known);
            self.tell_changes();
        }
    }

    /// Everybody asks everybody, so that rounds become rarer in large clusters; but never so rare that a node seems down.
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
        let ping = self.envelope(Some(host_id.clone()), Question::Ping { heartbeat, digest });
        let answer = link.ask(&ping, self.answer_timeout()).await;
        let others = match answer {
            Ok(Answer::Pong { from, heartbeat, digest: others }) if from == *host_id => {
                self.with(|state| {
                    state.heard.insert(from.clone(), Instant::now());
                    state.heartbeats.insert(from.clone(), heartbeat);
                    if let Some(since) = state.joining_since.get_mut(&from) {
                        *since = Instant::now();
                    }
                });
                others
            }
            Ok(Answer::Banned) => return self.ban().await,
            _ => return,
        };
        self.tell_changes();
        self.replay_hints(host_id, link.address.ip()).await;
        if others != digest && self.is_gossiping() {
            let members = self.with(|state| state.members.all().cloned().collect());
            let sync = self.envelope(Some(host_id.clone()), Question::Sync { members });
            if let Ok(Answer::Members { members, .. }) = link.ask(&sync, self.answer_timeout()).await {
                self.learn(members).await;
            }
        }
    }

    /// Nodes whose addresses all changed at once find each other through seeds: those at which nobody is known to be.
    fn look_for_seeds(self: &Arc<Self>, known: &BTreeSet<IpAddr>) {
        let own = self.config.broadcast_address;
        let seeds = self.config.seeds.iter().filter_map(|seed| seed.parse().ok());
        for seed in seeds.filter(|seed| *seed != own && !known.contains(seed)) {
            let node = Arc::clone(self);
            tokio::spawn(async move {
                let members = node.with(|state| state.members.all().cloned().collect());
                let sync = node.envelope(None, Question::Sync { members });
                let answer = crate::wire::ask(node.storage(seed), &sync, node.config.pace.gossip_interval).await;
                if let Ok(Answer::Members { members, .. }) = answer {
                    node.learn(members).await;
                }
            });
        }
    }

    /// A node that vanished while it joined never was in the ring.
    fn forget_the_vanished(&self) {
        let patience = self.config.pace.failure_timeout * 2;
        self.with(|state| {
            let joining = state.members.present().filter(|m| m.status == Status::Joining && m.host_id != self.own);
            let joining: Vec<HostId> = joining.map(|member| member.host_id.clone()).collect();
            let mut is_gone = |host_id: &HostId| {
                state.joining_since.entry(host_id.clone()).or_insert_with(Instant::now).elapsed() > patience
            };
            let vanished: Vec<HostId> = joining.into_iter().filter(|host_id| is_gone(host_id)).collect();
            for host_id in vanished {
                log::info("gossip", format!("Node {host_id} vanished while it joined, removing it from gossip"));
                state.members.forget_joining(&host_id);
                state.joining_since.remove(&host_id);
            }
        });
    }

    /// Logs who came and who went.
    pub(super) fn tell_changes(&self) {
        self.with(|state| {
            let up: Vec<HostId> = self.up(state).into_iter().filter(|host_id| *host_id != self.own).collect();
            let describe = |host_id: &HostId| match state.members.get(host_id) {
                Some(member) => format!("{host_id}/{}", member.address),
                None => host_id.to_string(),
            };
            for host_id in up.iter().filter(|host_id| !state.were_up.contains(host_id)) {
                log::info("gossip", format!("Node {} is now UP", describe(host_id)));
            }
            for host_id in state.were_up.iter().filter(|host_id| !up.contains(host_id)) {
                log::info("gossip", format!("Node {} is now DOWN", describe(host_id)));
            }
            state.were_up = up;
        });
    }
}
