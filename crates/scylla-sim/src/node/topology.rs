//! Topology changes. A node that starts one requests the agreement of every member of the ring, the one with the lowest
//! host ID first, which orders concurrent requests. All members must agree, and renew their agreement while the change
//! lasts. The change is committed to all members before it ends.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    task::JoinSet,
    time::{interval, sleep},
};

use super::{Mode, Node, view::named};
use crate::{
    disk::Bootstrapped,
    log,
    membership::{HostId, Member, Status},
    random,
    rules::{Change, ChangeRequest, MemberState, Refusal, agree, validate},
    wire::{PeerRequest, PeerResponse, call},
};

const COMMIT_TIMEOUT: Duration = Duration::from_secs(30);

/// The agreement of all members to a change.
pub(super) struct Agreement {
    attempt: String,
    /// The members that agreed, except for the node itself.
    members: Vec<(HostId, IpAddr)>,
}

impl Node {
    /// Requests the agreement of every member of the ring to a change.
    pub(super) async fn agree_on(self: &Arc<Self>, change: &Change) -> Result<Agreement, Refusal> {
        let dead = change.dead();
        let ring: Vec<(HostId, IpAddr)> =
            self.with(|state| state.members.ring().map(|member| (member.host_id.clone(), member.address)).collect());
        let request = ChangeRequest {
            change: change.clone(),
            by: self.own.clone(),
            address: self.config.broadcast_address,
            ring: ring.iter().map(|(host_id, _)| host_id.clone()).collect::<BTreeSet<_>>(),
            attempt: random::uuid(),
        };
        // An invalid change is refused locally, even if members are down.
        self.with(|state| validate(&request, &state.members))?;
        let mut agreement = Agreement { attempt: request.attempt.clone(), members: Vec::new() };
        // Members are sorted by host ID.
        for (host_id, address) in ring.into_iter().filter(|(host_id, _)| Some(host_id) != dead) {
            let response = if host_id == self.own {
                self.agree_locally(request.clone())
            } else {
                self.request_agreement(&host_id, address, request.clone()).await
            };
            if let Err(refusal) = response {
                self.release(&agreement).await;
                return Err(refusal);
            }
            if host_id != self.own {
                agreement.members.push((host_id, address));
            }
        }
        log::info(
            "storage_service",
            format!("{}: all {} other members of the ring agree", change.name(), agreement.members.len()),
        );
        Ok(agreement)
    }

    fn agree_locally(&self, request: ChangeRequest) -> Result<(), Refusal> {
        let time_limit = self.config.pace.failure_timeout;
        self.with(|state| {
            let up = self.up(state);
            agree(&request, &MemberState { own: &self.own, members: &state.members, up: &up })?;
            state.lock.acquire(request, Instant::now(), time_limit)
        })
    }

    async fn request_agreement(
        &self,
        host_id: &HostId,
        address: IpAddr,
        request: ChangeRequest,
    ) -> Result<(), Refusal> {
        let name = request.change.name();
        match self.call_member(host_id, address, PeerRequest::Agree(request)).await {
            Some(PeerResponse::Done) => Ok(()),
            Some(PeerResponse::Refused(refusal)) => Err(refusal),
            Some(PeerResponse::Banned) => {
                Err(Refusal::final_(format!("node {} was removed from the cluster", self.own)))
            }
            Some(_) | None => {
                Err(Refusal::for_now(format!("{name}: node {host_id} at {address} is down: it does not answer")))
            }
        }
    }

    /// Calls a member of the ring, on a connection of its own.
    pub(super) async fn call_member(
        &self,
        host_id: &HostId,
        address: IpAddr,
        request: PeerRequest,
    ) -> Option<PeerResponse> {
        if self.with(|state| named(&state.faults.refuse_to, host_id, address)) {
            return None;
        }
        // Requests that are stored take as long as the disk takes.
        let is_kept = matches!(request, PeerRequest::Commit { .. } | PeerRequest::Rows(_) | PeerRequest::Keyspace(_));
        let time_limit = if is_kept { COMMIT_TIMEOUT } else { self.response_timeout() };
        let envelope = self.envelope(Some(host_id.clone()), request);
        call(self.storage(address), &envelope, time_limit).await.ok()
    }

    /// Calls several members at the same time.
    async fn call_all(
        self: &Arc<Self>,
        members: &[(HostId, IpAddr)],
        request: PeerRequest,
    ) -> Vec<(HostId, Option<PeerResponse>)> {
        let mut calls = JoinSet::new();
        for (host_id, address) in members.iter().cloned() {
            let (node, request) = (Arc::clone(self), request.clone());
            calls.spawn(async move {
                let response = node.call_member(&host_id, address, request).await;
                (host_id, response)
            });
        }
        calls.join_all().await
    }

    pub(super) async fn release(self: &Arc<Self>, agreement: &Agreement) {
        self.with(|state| state.lock.end(&agreement.attempt));
        let release = PeerRequest::Release { attempt: agreement.attempt.clone() };
        self.call_all(&agreement.members, release).await;
    }

    /// Runs `work` while all members renew their agreement.
    pub(super) async fn while_agreed<T>(
        self: &Arc<Self>,
        agreement: &Agreement,
        work: impl Future<Output = Result<T, Refusal>>,
    ) -> Result<T, Refusal> {
        tokio::select! {
            outcome = work => outcome,
            lost = self.renew(agreement) => Err(lost),
        }
    }

    /// Renews the agreement. Returns when a member withdraws, or does not respond until its lock expires.
    async fn renew(self: &Arc<Self>, agreement: &Agreement) -> Refusal {
        let time_limit = self.config.pace.failure_timeout;
        let attempt = &agreement.attempt;
        let start = Instant::now();
        let mut last_response: BTreeMap<HostId, Instant> =
            agreement.members.iter().map(|(host_id, _)| (host_id.clone(), start)).collect();
        let mut rounds = interval(self.config.pace.gossip_interval);
        loop {
            rounds.tick().await;
            self.unpaused().await;
            // The node's own lock, if it is a member itself.
            self.with(|state| state.lock.renew(attempt, Instant::now(), time_limit));
            let asked = Instant::now();
            for (host_id, response) in
                self.call_all(&agreement.members, PeerRequest::Renew { attempt: attempt.clone() }).await
            {
                match response {
                    Some(PeerResponse::Done) => _ = last_response.insert(host_id, asked),
                    Some(_) => return Refusal::for_now(format!("node {host_id} withdrew from the topology change")),
                    None => {}
                }
            }
            if let Some((host_id, _)) =
                last_response.iter().find(|(_, last_response)| last_response.elapsed() > time_limit)
            {
                return Refusal::for_now(format!("node {host_id} went down during the topology change"));
            }
        }
    }

    /// Commits a change: members store it. One member is enough, because gossip propagates it.
    pub(super) async fn commit(self: &Arc<Self>, agreement: &Agreement, facts: Vec<Member>) -> Result<(), Refusal> {
        let expected = agreement.members.len();
        let commit = PeerRequest::Commit { attempt: agreement.attempt.clone(), members: facts };
        let responses = self.call_all(&agreement.members, commit).await;
        let kept = responses.iter().filter(|(_, response)| matches!(response, Some(PeerResponse::Done))).count();
        if kept == 0 && expected > 0 {
            return Err(Refusal::for_now("no member of the ring kept the change"));
        }
        if kept < expected {
            log::warn(
                "storage_service",
                format!("{kept} of {expected} members kept the change; the others will hear of it"),
            );
        }
        Ok(())
    }

    /// Returns the current state of a member.
    pub(super) fn entry(&self, host_id: &HostId) -> Option<Member> {
        self.with(|state| state.members.get(host_id).cloned())
    }

    /// Waits for the duration of streaming, which may change meanwhile.
    pub(super) async fn stream(&self, duration: impl Fn(&Self) -> Duration) {
        let start = Instant::now();
        while let Some(rest) = duration(self).checked_sub(start.elapsed()).filter(|rest| !rest.is_zero()) {
            sleep(rest.min(Duration::from_millis(100))).await;
            self.unpaused().await;
        }
    }

    pub(super) fn decommission_duration(&self) -> Duration {
        self.faults().decommission_ms.map_or(self.config.pace.decommission, Duration::from_millis)
    }

    /// Decommissions this node.
    pub(crate) async fn decommission(self: &Arc<Self>) -> Result<(), Refusal> {
        let mode = self.mode();
        if mode != Mode::Normal || !self.serves_clients() {
            return Err(Refusal::final_(format!(
                "decommission: the node is in {mode} mode with native transport {}; it must be NORMAL, and a drained node restarted",
                if self.serves_clients() { "on" } else { "off" }
            )));
        }
        let agreement = self.agree_on(&Change::Decommission).await?;
        let mut outcome = self.while_agreed(&agreement, self.stream_out(&agreement)).await;
        if outcome.is_ok() {
            outcome = self.leave(&agreement).await;
        }
        if outcome.is_err() && self.mode() == Mode::Leaving {
            self.set_status(Status::Normal);
            self.set_mode(Mode::Normal);
            let _ = self.persist().await;
        }
        self.release(&agreement).await;
        outcome
    }

    async fn stream_out(self: &Arc<Self>, agreement: &Agreement) -> Result<(), Refusal> {
        self.set_mode(Mode::Leaving);
        self.set_status(Status::Leaving);
        self.commit(agreement, self.entry(&self.own).into_iter().collect()).await?;
        self.step("decommission-started");
        self.can_hold_all_replicas()?;
        self.stream(Self::decommission_duration).await;
        self.stream_rows_of(&self.own).await?;
        self.step("decommission-streamed");
        Ok(())
    }

    /// Checks that the remaining nodes can hold all replicas: each node holds one replica of a row at most.
    fn can_hold_all_replicas(&self) -> Result<(), Refusal> {
        let datacenter = &self.config.datacenter;
        let stay = self.with(|state| {
            let others = state.members.ring().filter(|one| one.host_id != self.own && one.datacenter == *datacenter);
            others.count()
        });
        match self.faults().replicas {
            Some(replicas) if stay < replicas => Err(Refusal::final_(format!(
                "decommission: {stay} node(s) would stay in datacenter {datacenter}, too few for a keyspace with {replicas} replicas"
            ))),
            _ => Ok(()),
        }
    }

    async fn leave(self: &Arc<Self>, agreement: &Agreement) -> Result<(), Refusal> {
        let left: Vec<Member> =
            self.entry(&self.own).map(|member| Member { status: Status::Left, ..member }).into_iter().collect();
        // From now on, other nodes respond that this node is banned.
        self.with(|state| state.is_leaving_permanently = true);
        if let Err(refusal) = self.commit(agreement, left.clone()).await {
            self.with(|state| state.is_leaving_permanently = false);
            return Err(refusal);
        }
        self.step("decommission-left");
        self.set_mode(Mode::Decommissioned);
        self.stop_communication();
        self.with(|state| {
            state.bootstrapped = Bootstrapped::Decommissioned;
            left.into_iter().for_each(|left| _ = state.members.merge(left));
        });
        self.persist().await.map_err(|error| Refusal::final_(error.to_string()))?;
        self.step("decommission-finished");
        Ok(())
    }

    /// Removes a dead node from the ring.
    pub(crate) async fn remove(self: &Arc<Self>, dead: HostId) -> Result<(), Refusal> {
        if self.mode() != Mode::Normal {
            return Err(Refusal::final_(format!("removenode: the node is in {} mode", self.mode())));
        }
        if dead == self.own {
            return Err(Refusal::final_("removenode: a node cannot remove itself"));
        }
        let agreement = self.agree_on(&Change::Removal(dead.clone())).await?;
        let outcome = self.while_agreed(&agreement, self.remove_agreed(&agreement, &dead)).await;
        self.release(&agreement).await;
        outcome
    }

    async fn remove_agreed(self: &Arc<Self>, agreement: &Agreement, dead: &HostId) -> Result<(), Refusal> {
        self.step("removenode-started");
        self.stream(Self::decommission_duration).await;
        self.stream_rows_of(dead).await?;
        self.step("removenode-streamed");
        let left: Vec<Member> =
            self.entry(dead).map(|member| Member { status: Status::Left, ..member }).into_iter().collect();
        self.commit(agreement, left.clone()).await?;
        self.step("removenode-announced");
        self.learn(left).await;
        self.step("removenode-finished");
        Ok(())
    }

    /// Forwards a write to a table to all nodes that are up.
    pub(crate) async fn forward_write(self: &Arc<Self>, write: serde_json::Value) {
        let others = self.with(|state| {
            let up = self.up(state);
            let others = state.members.ring().filter(|m| m.host_id != self.own && up.contains(&m.host_id));
            others.map(|member| (member.host_id.clone(), member.address)).collect::<Vec<_>>()
        });
        self.call_all(&others, PeerRequest::Write(write)).await;
    }

    /// Drains the node.
    pub(crate) async fn drain(self: &Arc<Self>) {
        if self.mode() == Mode::Drained {
            return;
        }
        self.set_mode(Mode::Draining);
        self.serve_clients(false);
        self.announce_shutdown().await;
        self.with(|state| state.is_gossiping = false);
        self.set_mode(Mode::Drained);
    }

    /// Announces the shutdown to all nodes that are up.
    pub(super) async fn announce_shutdown(self: &Arc<Self>) {
        if !self.is_gossiping() {
            return;
        }
        self.with(|state| state.is_gossiping = false);
        log::info("gossip", "Announcing shutdown");
        let view = self.view();
        let others = view.members.present().filter(|member| member.host_id != self.own && view.is_up(member));
        let others: Vec<_> = others.map(|member| (member.host_id.clone(), member.address)).collect();
        let time_limit = Duration::from_millis(500);
        let _ = tokio::time::timeout(time_limit, self.call_all(&others, PeerRequest::Shutdown)).await;
    }
}
