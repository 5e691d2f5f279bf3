//! Rows: writes go to all replicas that are up, and topology changes stream rows to new replicas.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
    sync::{Arc, PoisonError},
};

use jiff::Timestamp;
use tokio::task::JoinSet;

use super::{Mode, Node, State};
use crate::{
    data::{Cell, Copies, Keyspace, MAX_ROWS, Owner, Ring, Row, Unavailable, streamed},
    disk::DiskError,
    log,
    membership::{HostId, Member, Status},
    rules::{Change, Refusal},
    wire::{PeerRequest, PeerResponse},
};

fn owner(member: &Member) -> Owner {
    Owner {
        host: member.host_id.to_string(),
        datacenter: member.datacenter.clone(),
        rack: member.rack.clone(),
        tokens: member.tokens.clone(),
    }
}

/// Returns the current ring, and the ring after all pending topology changes.
fn rings(state: &State) -> (Ring, Ring) {
    let now = Ring::of(state.members.ring().map(owner));
    let joining: Vec<&Member> = state
        .members
        .present()
        .filter(|member| member.status == Status::Joining && !member.tokens.is_empty())
        .collect();
    // A node that replaces another one has the tokens of that node.
    let stays = |member: &&Member| {
        member.status == Status::Normal && !joining.iter().any(|joining| joining.tokens == member.tokens)
    };
    let after = Ring::of(state.members.ring().filter(stays).chain(joining.iter().copied()).map(owner));
    (now, after)
}

fn failed(error: &DiskError) -> Refusal {
    Refusal::for_now(error.to_string())
}

impl Node {
    /// What is on the disk.
    pub(crate) fn copies(&self) -> Copies {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The keyspaces that were created.
    pub(crate) fn created_keyspaces(&self) -> Vec<String> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner).keyspaces.keys().cloned().collect()
    }

    /// Changes the stored rows. On failure the node isolates itself.
    async fn change_copies<T>(self: &Arc<Self>, change: impl FnOnce(&mut Copies) -> T) -> Result<T, DiskError> {
        let order = Arc::clone(&self.saved_copies).lock_owned().await;
        let (outcome, changed) = {
            let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
            let before = copies.clone();
            let outcome = change(&mut copies);
            (outcome, (*copies != before).then(|| copies.clone()))
        };
        let Some(copies) = changed else { return Ok(outcome) };
        let node = Arc::clone(self);
        // Changes are stored in order, even if the caller is cancelled.
        let saved = tokio::task::spawn_blocking(move || {
            let _order = order;
            node.disk.save_copies(&copies)
        });
        let saved = saved.await.unwrap_or_else(|error| Err(DiskError::Write { source: io::Error::other(error) }));
        saved.inspect_err(|error| self.isolate(error))?;
        Ok(outcome)
    }

    fn other_members(&self) -> Vec<(HostId, IpAddr)> {
        self.with(|state| {
            let others = state.members.present().filter(|member| member.host_id != self.own);
            others.map(|member| (member.host_id.clone(), member.address)).collect()
        })
    }

    /// Creates a keyspace, on all nodes of the ring.
    pub(crate) async fn create_keyspace(self: &Arc<Self>, keyspace: Keyspace) -> Result<(), Refusal> {
        if self.mode() != Mode::Normal {
            return Err(Refusal::final_(format!("the node is in {} mode", self.mode())));
        }
        for (host_id, address) in self.other_members() {
            let response = self.call_member(&host_id, address, PeerRequest::Keyspace(keyspace.clone())).await;
            if !matches!(response, Some(PeerResponse::Done)) {
                return Err(Refusal::for_now(format!("node {host_id} at {address} does not take the keyspace")));
            }
        }
        match self.store_keyspace(keyspace).await {
            Some(_) => Ok(()),
            None => Err(Refusal::for_now("the keyspace cannot be stored")),
        }
    }

    /// Stores a keyspace. Returns no response if the disk fails.
    pub(super) async fn store_keyspace(self: &Arc<Self>, keyspace: Keyspace) -> Option<PeerResponse> {
        let kept = self.change_copies(|copies| copies.keyspaces.insert(keyspace.name.clone(), keyspace)).await;
        kept.ok().map(|_| PeerResponse::Done)
    }

    /// Stores rows. Returns no response if the disk fails.
    pub(super) async fn store_rows(self: &Arc<Self>, rows: Vec<Row>) -> Option<PeerResponse> {
        let put_all = |copies: &mut Copies| rows.into_iter().all(|row| copies.put(row));
        match self.change_copies(put_all).await.ok()? {
            true => Some(PeerResponse::Done),
            false => Some(PeerResponse::Refused(Refusal::final_(format!("a simulated node takes {MAX_ROWS} rows")))),
        }
    }

    /// Sends rows to each of these nodes. Returns the nodes that stored them.
    async fn send_rows(self: &Arc<Self>, rows: BTreeMap<String, Vec<Row>>) -> BTreeSet<String> {
        let addresses: BTreeMap<String, (HostId, IpAddr)> =
            self.other_members().into_iter().map(|member| (member.0.to_string(), member)).collect();
        let (mut sent, mut kept) = (JoinSet::new(), BTreeSet::new());
        for (host, rows) in rows {
            if host == self.own.as_str() {
                if matches!(self.store_rows(rows).await, Some(PeerResponse::Done)) {
                    kept.insert(host);
                }
            } else if let Some((host_id, address)) = addresses.get(&host).cloned() {
                let node = Arc::clone(self);
                sent.spawn(async move {
                    let response = node.call_member(&host_id, address, PeerRequest::Rows(rows)).await;
                    matches!(response, Some(PeerResponse::Done)).then_some(host)
                });
            }
        }
        kept.extend(sent.join_all().await.into_iter().flatten());
        kept
    }

    /// Writes rows to all of their replicas that are up, and to nodes that are about to become replicas. A quorum has
    /// to be up, and to acknowledge them. Hints are stored for the other replicas.
    pub(crate) async fn write_rows(
        self: &Arc<Self>,
        keyspace: &str,
        rows: BTreeMap<String, String>,
    ) -> Result<(), Refusal> {
        if self.mode() != Mode::Normal && self.mode() != Mode::Leaving || !self.serves_clients() {
            return Err(Refusal::final_(format!("the node is in {} mode and serves no clients", self.mode())));
        }
        let Some(keyspace) = self.copies().keyspaces.remove(keyspace) else {
            return Err(Refusal::final_(format!("Can't find a keyspace {keyspace}")));
        };
        let (now, after, up) = self.with(|state| {
            let (now, after) = rings(state);
            (now, after, self.up(state))
        });
        let up: BTreeSet<&str> = up.iter().map(HostId::as_str).collect();
        let written = Timestamp::now().as_microsecond();
        let mut targets = Vec::new();
        for (key, value) in rows {
            let replicas = now.replicas(&keyspace, &key);
            let required = keyspace.quorum();
            let alive = replicas.intersection(&up).count();
            if alive < required {
                return Err(Refusal::for_now(Unavailable::Quorum { required, alive }.to_string()));
            }
            let pending: BTreeSet<&str> = after.replicas(&keyspace, &key).difference(&replicas).copied().collect();
            let row = Row { keyspace: keyspace.name.clone(), key: key.clone(), cell: Cell { written, value } };
            targets.push((row, replicas, pending));
        }
        let mut sent = BTreeMap::<String, Vec<Row>>::new();
        for (row, replicas, pending) in &targets {
            for host in replicas.iter().filter(|host| up.contains(*host)).chain(pending) {
                sent.entry((*host).to_owned()).or_default().push(row.clone());
            }
        }
        let kept = self.send_rows(sent).await;
        let missed = targets.iter().flat_map(|(row, replicas, _)| {
            let hosts = replicas.iter().filter(|host| !kept.contains(**host));
            hosts.map(move |host| ((*host).to_owned(), row.clone()))
        });
        let missed: Vec<(String, Row)> = missed.collect();
        self.change_copies(|copies| missed.into_iter().for_each(|(host, row)| copies.add_hint(&host, row)))
            .await
            .map_err(|error| failed(&error))?;
        for (row, replicas, pending) in &targets {
            let acknowledged = replicas.iter().filter(|host| kept.contains(**host)).count();
            if acknowledged < keyspace.quorum() || !pending.iter().all(|host| kept.contains(*host)) {
                return Err(Refusal::for_now(format!(
                    "Operation timed out for {}.{} - received only {acknowledged} responses",
                    keyspace.name, row.key
                )));
            }
        }
        Ok(())
    }

    /// Sends a node its hints.
    pub(super) async fn replay_hints(self: &Arc<Self>, host_id: &HostId, address: IpAddr) {
        let hints = self.copies.lock().unwrap_or_else(PoisonError::into_inner).hints(host_id.as_str());
        if hints.is_empty() {
            return;
        }
        if let Some(PeerResponse::Done) = self.call_member(host_id, address, PeerRequest::Rows(hints.clone())).await {
            log::info("hints_manager", format!("{} writes were sent to {host_id}", hints.len()));
            // On failure the node isolates itself and logs the cause.
            let _ = self.change_copies(|copies| copies.drop_hints(host_id.as_str(), &hints)).await;
        }
    }

    /// Returns the rows of the other nodes of the ring, except for those that do not respond.
    async fn copies_of_others(self: &Arc<Self>) -> Vec<(String, Copies)> {
        let mut calls = JoinSet::new();
        for (host_id, address) in self.other_members() {
            let node = Arc::clone(self);
            calls.spawn(async move {
                match node.call_member(&host_id, address, PeerRequest::Copies).await {
                    Some(PeerResponse::Copies(copies)) => Some((host_id.to_string(), copies)),
                    _ => None,
                }
            });
        }
        calls.join_all().await.into_iter().flatten().collect()
    }

    /// Streams the keyspaces, and the rows of which this node becomes a replica, from their replicas.
    pub(super) async fn stream_rows_in(self: &Arc<Self>, change: &Change) -> Result<(), Refusal> {
        let own = self.own.as_str();
        let now = self.with(|state| Ring::of(state.members.ring().map(owner)));
        let others = match change.dead() {
            Some(dead) => now.without(dead.as_str()),
            None => now.clone(),
        };
        let after = others.with(owner(&self.next_entry(Status::Normal)));
        let sources = self.copies_of_others().await;
        let keyspaces: BTreeMap<String, Keyspace> =
            sources.iter().flat_map(|(_, copies)| copies.keyspaces.clone()).collect();
        let is_source = |host: &str| sources.iter().any(|(source, _)| source == host);
        for (name, keyspace) in &keyspaces {
            if let Some(token) = now.range_without_source(&after, keyspace, own, is_source) {
                let refusal = Unavailable::Source { keyspace: name.clone(), token };
                return Err(Refusal::for_now(format!("{}: {refusal}", change.name())));
            }
        }
        let rows: Vec<Row> =
            sources.iter().flat_map(|(source, copies)| streamed(&now, &after, source, own, copies)).collect();
        log::info("stream_session", format!("{} copies of rows received", rows.len()));
        let has_room = self.change_copies(|copies| {
            copies.keyspaces.extend(keyspaces);
            rows.into_iter().all(|row| copies.put(row))
        });
        match has_room.await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Refusal::final_(format!("a simulated node takes {MAX_ROWS} rows"))),
            Err(error) => Err(failed(&error)),
        }
    }

    /// Streams the rows of a leaving node to their new replicas: from the node itself, or from the other replicas if it
    /// is dead.
    pub(super) async fn stream_rows_of(self: &Arc<Self>, leaves: &HostId) -> Result<(), Refusal> {
        let now = self.with(|state| Ring::of(state.members.ring().map(owner)));
        let after = now.without(leaves.as_str());
        let mut sources = vec![(self.own.to_string(), self.copies())];
        if *leaves != self.own {
            sources.extend(self.copies_of_others().await);
        }
        let mut rows = BTreeMap::<String, Vec<Row>>::new();
        for to in after.hosts() {
            for (from, copies) in &sources {
                let streamed = streamed(&now, &after, from, to, copies);
                if !streamed.is_empty() {
                    rows.entry(to.to_owned()).or_default().extend(streamed);
                }
            }
        }
        let targets: BTreeSet<String> = rows.keys().cloned().collect();
        let kept = self.send_rows(rows).await;
        match targets.difference(&kept).next() {
            Some(host) => Err(Refusal::for_now(format!("streaming to node {host} failed"))),
            None => Ok(()),
        }
    }

    /// Drops rows of which this node is no replica. As in ScyllaDB, not while it is about to become a replica of other
    /// rows, which it may already have.
    pub(crate) async fn clean_up(self: &Arc<Self>, keyspace: Option<&str>) -> Result<(), Refusal> {
        if self.faults().refuse_cleanups {
            return Err(Refusal::for_now("cleanups fail on command"));
        }
        let own = self.own.as_str();
        let dropped = self.change_copies(|copies| {
            let (now, after) = self.with(|state| rings(state));
            let mut keyspaces = copies.keyspaces.values().filter(|one| keyspace.is_none_or(|only| only == one.name));
            let is_busy = self.mode() == Mode::Bootstrap || keyspaces.any(|keyspace| now.gains(&after, keyspace, own));
            (!is_busy).then(|| copies.clean_up(&now, own, keyspace))
        });
        match dropped.await {
            Ok(Some(dropped)) => {
                log::info("compaction_manager", format!("Cleanup: {dropped} copies of rows dropped"));
                Ok(())
            }
            Ok(None) => Err(Refusal::for_now("Can not perform cleanup operation when topology changes")),
            Err(error) => Err(failed(&error)),
        }
    }
}
