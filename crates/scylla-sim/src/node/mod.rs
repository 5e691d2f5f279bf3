//! The running node.

pub mod faults;
mod gossip;
mod join;
mod rows;
mod serve;
mod topology;
mod view;

use std::{
    collections::{BTreeMap, HashMap},
    fmt, io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use thiserror::Error;
use tokio::sync::watch;

pub use self::faults::Faults;
pub(crate) use self::{serve::block_on, view::View};
use crate::{
    alternator::Tables,
    config::Config,
    data::Copies,
    disk::{Bootstrapped, Disk, DiskError, Local},
    log,
    membership::{HostId, Member, Membership, Status},
    random,
    rules::Promise,
    tls::TlsError,
    wire::{Envelope, Link, Question},
};

/// What a node is doing, in ScyllaDB's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It reads its disk and looks for others.
    Starting,
    /// It asks to join a ring.
    Joining,
    /// It streams what it will own.
    Bootstrap,
    /// It is in the ring.
    Normal,
    /// It gives its tokens away.
    Leaving,
    /// It gave them away.
    Decommissioned,
    /// It stops serving.
    Draining,
    /// It stopped serving. Only a restart helps.
    Drained,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_uppercase())
    }
}

/// Why a node does not start, or stops.
#[derive(Debug, Error)]
pub enum NodeError {
    /// The disk fails.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A port cannot be had, or the like.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// No TLS from these files.
    #[error("TLS of {what} cannot be set up")]
    Tls {
        /// For what.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The disk belongs to a node of another cluster.
    #[error("Saved cluster name {saved} != configured name {configured}")]
    ClusterName {
        /// On the disk.
        saved: String,
        /// In the configuration.
        configured: String,
    },
    /// It was decommissioned.
    #[error(
        "This node was decommissioned and will not rejoin the ring. To use it again, remove its data; it will be a new node"
    )]
    Decommissioned,
    /// Others removed or replaced it.
    #[error("This node ({0}) was removed from the cluster: it is banned and will not rejoin the ring")]
    Banned(HostId),
    /// It cannot join.
    #[error("Startup failed: {0}")]
    Refused(String),
}

impl NodeError {
    fn tls(what: &'static str, source: TlsError) -> Self {
        Self::Tls { what, source: Box::new(source) }
    }
}

/// A node.
pub struct Node {
    pub(crate) config: Config,
    pub(crate) disk: Disk,
    /// Who it is.
    pub(crate) own: HostId,
    pub(crate) started: Instant,
    pub(crate) tables: Mutex<Tables>,
    copies: Mutex<Copies>,
    /// Rows are stored in the order in which they change.
    saved_copies: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<State>,
    /// Kept connections, one for each member.
    links: Mutex<HashMap<HostId, Arc<Link>>>,
    /// The order of what is stored: only the newest state counts.
    saved: tokio::sync::Mutex<u64>,
    is_paused: watch::Sender<bool>,
    serves_clients: watch::Sender<bool>,
    /// Why the node has to stop.
    end: watch::Sender<Option<String>>,
}

/// What changes while it runs.
struct State {
    mode: Mode,
    members: Membership,
    /// When each other node answered last.
    heard: BTreeMap<HostId, Instant>,
    /// Which nodes were up when this was looked at last, to tell of changes.
    were_up: Vec<HostId>,
    /// When a joining node was heard of last.
    joining_since: BTreeMap<HostId, Instant>,
    heartbeat: u64,
    heartbeats: BTreeMap<HostId, u64>,
    ring: Option<String>,
    bootstrapped: Bootstrapped,
    is_banned: bool,
    tokens: Vec<i64>,
    generation: u64,
    is_gossiping: bool,
    /// Others are being told that this node left; that they say so too is no surprise.
    is_leaving_for_good: bool,
    promise: Promise,
    faults: Faults,
    frozen_view: Option<View>,
    /// Counts what is to be stored.
    changes: u64,
}

impl Node {
    /// Reads the disk, or makes a new node on an empty one.
    pub fn open(config: Config) -> Result<Arc<Self>, NodeError> {
        let disk = Disk::new(config.workdir.clone(), config.data_dir.clone());
        let faults = Faults::of(&config.arguments);
        disk.set_full(faults.is_disk_full);
        let (local, copies) = (disk.load()?, disk.load_copies()?);
        let (own, generation) = match &local {
            None => (HostId::random(), 0),
            Some(local) if local.bootstrapped == Bootstrapped::Decommissioned => return Err(NodeError::Decommissioned),
            Some(local) if local.is_banned => return Err(NodeError::Banned(local.host_id.clone())),
            Some(local) if local.cluster_name != config.cluster_name => {
                let (saved, configured) = (local.cluster_name.clone(), config.cluster_name);
                return Err(NodeError::ClusterName { saved, configured });
            }
            Some(local) => (local.host_id.clone(), local.generation),
        };
        let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or_default();
        let tokens = match &local {
            Some(local) if !local.tokens.is_empty() => local.tokens.clone(),
            _ => std::iter::repeat_with(random::token).take(config.num_tokens).collect(),
        };
        let state = State {
            mode: Mode::Starting,
            members: Membership::of(local.iter().flat_map(|local| local.members.iter().cloned())),
            heard: BTreeMap::new(),
            were_up: Vec::new(),
            joining_since: BTreeMap::new(),
            heartbeat: 0,
            heartbeats: BTreeMap::new(),
            ring: local.as_ref().and_then(|local| local.ring.clone()),
            bootstrapped: local.as_ref().map_or(Bootstrapped::NeedsBootstrap, |local| local.bootstrapped),
            is_banned: false,
            tokens,
            generation: now.max(generation + 1),
            is_gossiping: false,
            is_leaving_for_good: false,
            promise: Promise::default(),
            frozen_view: None,
            changes: 0,
            faults: faults.clone(),
        };
        Ok(Arc::new(Self {
            config,
            disk,
            own,
            started: Instant::now(),
            tables: Mutex::default(),
            copies: Mutex::new(copies),
            saved_copies: Arc::default(),
            state: Mutex::new(state),
            links: Mutex::default(),
            saved: tokio::sync::Mutex::new(0),
            is_paused: watch::Sender::new(faults.is_paused),
            serves_clients: watch::Sender::new(false),
            end: watch::Sender::new(None),
        }))
    }

    fn with<R>(&self, look: impl FnOnce(&mut State) -> R) -> R {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What it is doing.
    pub(crate) fn mode(&self) -> Mode {
        self.with(|state| state.mode)
    }

    fn set_mode(&self, mode: Mode) {
        let before = self.with(|state| std::mem::replace(&mut state.mode, mode));
        if before != mode {
            log::info("storage_service", format!("entering {mode} mode"));
        }
    }

    /// Whether clients are served.
    pub(crate) fn serves_clients(&self) -> bool {
        *self.serves_clients.borrow()
    }

    /// Starts or stops serving clients.
    pub(crate) fn serve_clients(&self, serve: bool) {
        self.serves_clients.send_if_modified(|serves| std::mem::replace(serves, serve) != serve);
    }

    /// Whether it takes part in gossip.
    pub(crate) fn is_gossiping(&self) -> bool {
        self.with(|state| state.is_gossiping)
    }

    /// Waits while the node is paused.
    pub(crate) async fn unpaused(&self) {
        // The sender is part of the node, so there is always one.
        let _ = self.is_paused.subscribe().wait_for(|is_paused| !is_paused).await;
    }

    /// When it was started; grows with every start.
    pub(crate) fn generation(&self) -> u64 {
        self.with(|state| state.generation)
    }

    /// The heartbeat of a node, as last heard.
    pub(crate) fn heartbeat(&self, host_id: &HostId) -> u64 {
        self.with(|state| {
            if *host_id == self.own {
                state.heartbeat
            } else {
                state.heartbeats.get(host_id).copied().unwrap_or_default()
            }
        })
    }

    /// Which ring it is in.
    pub(crate) fn ring(&self) -> Option<String> {
        self.with(|state| state.ring.clone())
    }

    /// The tokens that it has, or will have.
    pub(crate) fn tokens(&self) -> Vec<i64> {
        self.with(|state| state.tokens.clone())
    }

    /// What the node says of itself next, once it has this status.
    fn next_entry(&self, status: Status) -> Member {
        self.with(|state| {
            let known = state.members.get(&self.own).filter(|member| member.generation == state.generation);
            Member {
                host_id: self.own.clone(),
                address: self.config.broadcast_address,
                rpc_address: self.config.broadcast_rpc_address,
                datacenter: self.config.datacenter.clone(),
                rack: self.config.rack.clone(),
                status,
                tokens: state.tokens.clone(),
                generation: state.generation,
                version: known.map_or(1, |member| member.version + 1),
                release_version: self.config.release_version.clone(),
            }
        })
    }

    /// Changes what the node says of itself.
    fn set_status(&self, status: Status) {
        let entry = self.next_entry(status);
        self.with(|state| state.members.merge(entry));
    }

    /// Stores what the node knows. On failure it isolates itself, as ScyllaDB does: what cannot be kept must not be told.
    async fn persist(self: &Arc<Self>) -> Result<(), DiskError> {
        let (change, local) = self.with(|state| {
            state.changes += 1;
            let local = Local {
                host_id: self.own.clone(),
                cluster_name: self.config.cluster_name.clone(),
                bootstrapped: state.bootstrapped,
                ring: state.ring.clone(),
                is_banned: state.is_banned,
                generation: state.generation,
                tokens: state.tokens.clone(),
                data_center: self.config.datacenter.clone(),
                rack: self.config.rack.clone(),
                release_version: self.config.release_version.clone(),
                members: state.members.all().filter(|member| member.status != Status::Joining).cloned().collect(),
            };
            (state.changes, local)
        });
        let mut saved = self.saved.lock().await;
        if change < *saved {
            return Ok(());
        }
        let node = Arc::clone(self);
        // Waiting for a disk must not keep the node from answering others.
        let outcome = tokio::task::spawn_blocking(move || node.disk.save(&local)).await;
        let outcome = outcome.unwrap_or_else(|error| Err(DiskError::Write { source: io::Error::other(error) }));
        match &outcome {
            Ok(()) => *saved = change,
            Err(error) => self.isolate(error),
        }
        outcome
    }

    /// Cuts the node off from others and from clients. The process and its REST API stay.
    pub(crate) fn isolate(&self, error: &DiskError) {
        log::error(
            "storage_service",
            format!("Shutting down communications due to I/O errors until operator intervention: {error}"),
        );
        self.stop_communication();
    }

    fn stop_communication(&self) {
        self.serve_clients(false);
        self.with(|state| state.is_gossiping = false);
    }

    /// Puts faults in force.
    pub(crate) async fn set_faults(self: &Arc<Self>, change: impl FnOnce(&mut Faults)) {
        let view = self.view();
        let (before, now) = self.with(|state| {
            let before = state.faults.clone();
            change(&mut state.faults);
            match state.faults.is_view_frozen {
                true if !before.is_view_frozen => state.frozen_view = Some(view),
                true => {}
                false => state.frozen_view = None,
            }
            (before, state.faults.clone())
        });
        self.disk.set_full(now.is_disk_full);
        self.is_paused.send_replace(now.is_paused);
        if now.is_disk_full && !before.is_disk_full {
            // A database writes all the time; this one is made to, so that it finds out.
            let _ = self.persist().await;
        }
    }

    /// The faults in force.
    pub(crate) fn faults(&self) -> Faults {
        self.with(|state| state.faults.clone())
    }

    fn envelope(&self, to: Option<HostId>, question: Question) -> Envelope {
        Envelope {
            cluster: self.config.cluster_name.clone(),
            ring: self.ring(),
            from: self.own.clone(),
            address: self.config.broadcast_address,
            to,
            question,
        }
    }

    fn storage(&self, address: std::net::IpAddr) -> SocketAddr {
        SocketAddr::new(address, self.config.storage_port)
    }

    /// How long an answer of another node is waited for.
    fn answer_timeout(&self) -> Duration {
        self.config.pace.failure_timeout / 2
    }

    /// Ends the process, with a reason.
    fn give_up(&self, reason: String) {
        self.end.send_if_modified(|end| end.is_none() && end.replace(reason).is_none());
    }
}
