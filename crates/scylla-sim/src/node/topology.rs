//! Changes of the ring. A node that wants one asks every member of the ring, the one with the lowest host ID first: of
//! two that want something at the same moment, that member answers one first. All must agree, and go on agreeing while
//! it lasts. What has happened is told to all before it is over.

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
    rules::{Change, Refusal, Standing, Wish, agree, makes_sense},
    wire::{Answer, Question, ask},
};

const COMMIT_TIMEOUT: Duration = Duration::from_secs(30);

/// Everybody agreed to a change.
pub(super) struct Agreement {
    attempt: String,
    /// Who agreed, the node itself left out.
    members: Vec<(HostId, IpAddr)>,
}

impl Node {
    /// Asks every member of the ring for a change.
    pub(super) async fn agree_on(self: &Arc<Self>, change: &Change) -> Result<Agreement, Refusal> {
        let dead = change.dead();
        let ring: Vec<(HostId, IpAddr)> =
            self.with(|state| state.members.ring().map(|member| (member.host_id.clone(), member.address)).collect());
        let wish = Wish {
            change: change.clone(),
            by: self.own.clone(),
            address: self.config.broadcast_address,
            ring: ring.iter().map(|(host_id, _)| host_id.clone()).collect::<BTreeSet<_>>(),
            attempt: random::uuid(),
        };
        // What makes no sense need not be asked, least of all of those that are down.
        self.with(|state| makes_sense(&wish, &state.members))?;
        let mut agreement = Agreement { attempt: wish.attempt.clone(), members: Vec::new() };
        // Members are kept by host ID, so they are in order.
        for (host_id, address) in ring.into_iter().filter(|(host_id, _)| Some(host_id) != dead) {
            let answer = if host_id == self.own {
                self.agree_itself(wish.clone())
            } else {
                self.agree_with(&host_id, address, wish.clone()).await
            };
            if let Err(refusal) = answer {
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

    fn agree_itself(&self, wish: Wish) -> Result<(), Refusal> {
        let patience = self.config.pace.failure_timeout;
        self.with(|state| {
            let up = self.up(state);
            agree(&wish, &Standing { own: &self.own, members: &state.members, up: &up })?;
            state.promise.give(wish, Instant::now(), patience)
        })
    }

    async fn agree_with(&self, host_id: &HostId, address: IpAddr, wish: Wish) -> Result<(), Refusal> {
        let name = wish.change.name();
        match self.ask_member(host_id, address, Question::Wish(wish)).await {
            Some(Answer::Done) => Ok(()),
            Some(Answer::Refused(refusal)) => Err(refusal),
            Some(Answer::Banned) => Err(Refusal::final_(format!("node {} was removed from the cluster", self.own))),
            Some(_) | None => {
                Err(Refusal::for_now(format!("{name}: node {host_id} at {address} is down: it does not answer")))
            }
        }
    }

    /// Asks a member of the ring, on a connection of its own.
    pub(super) async fn ask_member(&self, host_id: &HostId, address: IpAddr, question: Question) -> Option<Answer> {
        if self.with(|state| named(&state.faults.refuse_to, host_id, address)) {
            return None;
        }
        // To keep something takes as long as the disk takes.
        let is_kept = matches!(question, Question::Commit { .. } | Question::Rows(_) | Question::Keyspace(_));
        let patience = if is_kept { COMMIT_TIMEOUT } else { self.answer_timeout() };
        let envelope = self.envelope(Some(host_id.clone()), question);
        ask(self.storage(address), &envelope, patience).await.ok()
    }

    /// Asks all who agreed at once.
    async fn ask_all(
        self: &Arc<Self>,
        members: &[(HostId, IpAddr)],
        question: Question,
    ) -> Vec<(HostId, Option<Answer>)> {
        let mut questions = JoinSet::new();
        for (host_id, address) in members.iter().cloned() {
            let (node, question) = (Arc::clone(self), question.clone());
            questions.spawn(async move {
                let answer = node.ask_member(&host_id, address, question).await;
                (host_id, answer)
            });
        }
        questions.join_all().await
    }

    pub(super) async fn release(self: &Arc<Self>, agreement: &Agreement) {
        self.with(|state| state.promise.end(&agreement.attempt));
        let release = Question::Release { attempt: agreement.attempt.clone() };
        self.ask_all(&agreement.members, release).await;
    }

    /// Does work for as long as everybody goes on agreeing.
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

    /// Returns when somebody does not agree any more, or was silent for as long as a promise stands.
    async fn renew(self: &Arc<Self>, agreement: &Agreement) -> Refusal {
        let patience = self.config.pace.failure_timeout;
        let attempt = &agreement.attempt;
        let start = Instant::now();
        let mut heard: BTreeMap<HostId, Instant> =
            agreement.members.iter().map(|(host_id, _)| (host_id.clone(), start)).collect();
        let mut rounds = interval(self.config.pace.gossip_interval);
        loop {
            rounds.tick().await;
            self.unpaused().await;
            // The node's own promise, where it is a member itself.
            self.with(|state| state.promise.renew(attempt, Instant::now(), patience));
            let asked = Instant::now();
            for (host_id, answer) in
                self.ask_all(&agreement.members, Question::Renew { attempt: attempt.clone() }).await
            {
                match answer {
                    Some(Answer::Done) => _ = heard.insert(host_id, asked),
                    Some(_) => return Refusal::for_now(format!("node {host_id} withdrew from the topology change")),
                    None => {}
                }
            }
            if let Some((host_id, _)) = heard.iter().find(|(_, heard)| heard.elapsed() > patience) {
                return Refusal::for_now(format!("node {host_id} went down during the topology change"));
            }
        }
    }

    /// Makes a change a fact: members keep it. It is one as soon as one of them does, because it travels from there.
    pub(super) async fn commit(self: &Arc<Self>, agreement: &Agreement, facts: Vec<Member>) -> Result<(), Refusal> {
        let wanted = agreement.members.len();
        let commit = Question::Commit { attempt: agreement.attempt.clone(), members: facts };
        let answers = self.ask_all(&agreement.members, commit).await;
        let kept = answers.iter().filter(|(_, answer)| matches!(answer, Some(Answer::Done))).count();
        if kept == 0 && wanted > 0 {
            return Err(Refusal::for_now("no member of the ring kept the change"));
        }
        if kept < wanted {
            log::warn(
                "storage_service",
                format!("{kept} of {wanted} members kept the change; the others will hear of it"),
            );
        }
        Ok(())
    }

    /// The member's entry as it stands.
    pub(super) fn entry(&self, host_id: &HostId) -> Option<Member> {
        self.with(|state| state.members.get(host_id).cloned())
    }

    /// Streams for as long as it is told, even when that changes meanwhile.
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

    /// Gives the node's tokens away and leaves for good.
    pub(crate) async fn decommission(self: &Arc<Self>) -> Result<(), Refusal> {
        let mode = self.mode();
        if mode != Mode::Normal || !self.serves_clients() {
            return Err(Refusal::final_(format!(
                "decommission: the node is in {mode} mode with native transport {}; it must be NORMAL, and a drained node restarted",
                if self.serves_clients() { "on" } else { "off" }
            )));
        }
        let agreement = self.agree_on(&Change::Decommission).await?;
        let mut outcome = self.while_agreed(&agreement, self.hand_over(&agreement)).await;
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

    async fn hand_over(self: &Arc<Self>, agreement: &Agreement) -> Result<(), Refusal> {
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

    /// Each node holds one replica of a row at most, so some have no place to go to.
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
        // From here on others no longer answer this node.
        self.with(|state| state.is_leaving_for_good = true);
        if let Err(refusal) = self.commit(agreement, left.clone()).await {
            self.with(|state| state.is_leaving_for_good = false);
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

    /// Gives the tokens of a dead node away.
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

    /// Passes a write to a table on to all who are up.
    pub(crate) async fn pass_on(self: &Arc<Self>, write: serde_json::Value) {
        let others = self.with(|state| {
            let up = self.up(state);
            let others = state.members.ring().filter(|m| m.host_id != self.own && up.contains(&m.host_id));
            others.map(|member| (member.host_id.clone(), member.address)).collect::<Vec<_>>()
        });
        self.ask_all(&others, Question::Write(write)).await;
    }

    /// Stops serving, for a restart.
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

    /// Tells those alive that this node stops.
    pub(super) async fn announce_shutdown(self: &Arc<Self>) {
        if !self.is_gossiping() {
            return;
        }
        self.with(|state| state.is_gossiping = false);
        log::info("gossip", "Announcing shutdown");
        let view = self.view();
        let others = view.members.present().filter(|member| member.host_id != self.own && view.is_up(member));
        let others: Vec<_> = others.map(|member| (member.host_id.clone(), member.address)).collect();
        let patience = Duration::from_millis(500);
        let _ = tokio::time::timeout(patience, self.ask_all(&others, Question::Shutdown)).await;
    }
}
