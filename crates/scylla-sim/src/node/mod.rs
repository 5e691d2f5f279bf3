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
    rules::ChangeLock,
    tls::TlsError,
    wire::{Envelope, Link, PeerRequest},
};

/// The operation mode of a node, as in ScyllaDB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It reads its disk and contacts other nodes.
    Starting,
    /// It requests to join a ring.
    Joining,
    /// It streams the data that it will own.
    Bootstrap,
    /// It is in the ring.
    Normal,
    /// It streams its data to other nodes.
    Leaving,
    /// It is decommissioned.
    Decommissioned,
    /// It stops serving.
    Draining,
    /// It has stopped serving until it is restarted.
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
    /// An I/O error, such as a port in use.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The TLS files are invalid.
    #[error("TLS of {what} cannot be set up")]
    Tls {
        /// The interface.
        what: &'static str,
        /// The cause.
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
    /// Other nodes removed or replaced it.
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
    /// Its host ID.
    pub(crate) own: HostId,
    pub(crate) started: Instant,
    pub(crate) tables: Mutex<Tables>,
    copies: Mutex<Copies>,
    /// Rows are stored in the order in which they change.
    saved_copies: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<State>,
    /// Persistent connections, one for each member.
    links: Mutex<HashMap<HostId, Arc<Link>>>,
    /// The number of the latest stored state: older states are not stored.
    saved: tokio::sync::Mutex<u64>,
    is_paused: watch::Sender<bool>,
    serves_clients: watch::Sender<bool>,
    /// Why the node has to stop.
    end: watch::Sender<Option<String>>,
}

/// The mutable state.
struct State {
    mode: Mode,
    members: Membership,
    /// The time of the last response of each other node.
    last_response: BTreeMap<HostId, Instant>,
    /// The nodes that were up at the last check, to log changes.
    up_before: Vec<HostId>,
    /// The time of the last state of each joining node.
    joining_since: BTreeMap<HostId, Instant>,
    heartbeat: u64,
    heartbeats: BTreeMap<HostId, u64>,
    ring: Option<String>,
    bootstrapped: Bootstrapped,
    is_banned: bool,
    tokens: Vec<i64>,
    generation: u64,
    is_gossiping: bool,
    /// Whether this node is committing that it has left, so that others may respond that it is banned.
    is_leaving_permanently: bool,
    lock: ChangeLock,
    faults: Faults,
    frozen_view: Option<View>,
    /// Number of states to store.
    changes: u64,
}

impl Node {
    /// Reads the disk, or creates a new node on an empty one.
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
            last_response: BTreeMap::new(),
            up_before: Vec::new(),
            joining_since: BTreeMap::new(),
            heartbeat: 0,
            heartbeats: BTreeMap::new(),
            ring: local.as_ref().and_then(|local| local.ring.clone()),
            bootstrapped: local.as_ref().map_or(Bootstrapped::NeedsBootstrap, |local| local.bootstrapped),
            is_banned: false,
            tokens,
            generation: now.max(generation + 1),
            is_gossiping: false,
            is_leaving_permanently: false,
            lock: ChangeLock::default(),
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

    /// Returns the mode.
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

    /// Its generation, which increases with every start.
    pub(crate) fn generation(&self) -> u64 {
        self.with(|state| state.generation)
    }

    /// Returns the last known heartbeat of a node.
    pub(crate) fn heartbeat(&self, host_id: &HostId) -> u64 {
        self.with(|state| {
            if *host_id == self.own {
                state.heartbeat
            } else {
                state.heartbeats.get(host_id).copied().unwrap_or_default()
            }
        })
    }

    /// Returns the ID of its ring.
    pub(crate) fn ring(&self) -> Option<String> {
        self.with(|state| state.ring.clone())
    }

    /// Returns its current or future tokens.
    pub(crate) fn tokens(&self) -> Vec<i64> {
        self.with(|state| state.tokens.clone())
    }

    /// Returns the next state of this node, with this status.
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

    /// Changes the status of this node.
    fn set_status(&self, status: Status) {
        let entry = self.next_entry(status);
        self.with(|state| state.members.merge(entry));
    }

    /// Stores the state. On failure the node isolates itself, as ScyllaDB does: it must not send a state that is not
    /// stored.
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
        // A slow disk must not delay responses to other nodes.
        let outcome = tokio::task::spawn_blocking(move || node.disk.save(&local)).await;
        let outcome = outcome.unwrap_or_else(|error| Err(DiskError::Write { source: io::Error::other(error) }));
        match &outcome {
            Ok(()) => *saved = change,
            Err(error) => self.isolate(error),
        }
        outcome
    }

    /// Isolates the node from other nodes and clients. The process and its REST API continue.
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

    /// Changes the active faults.
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
            // A real database writes continuously; here a write is forced, so that the fault takes effect.
            let _ = self.persist().await;
        }
    }

    /// Returns the active faults.
    pub(crate) fn faults(&self) -> Faults {
        self.with(|state| state.faults.clone())
    }

    fn envelope(&self, to: Option<HostId>, request: PeerRequest) -> Envelope {
        Envelope {
            cluster: self.config.cluster_name.clone(),
            ring: self.ring(),
            from: self.own.clone(),
            address: self.config.broadcast_address,
            to,
            request,
        }
    }

    fn storage(&self, address: std::net::IpAddr) -> SocketAddr {
        SocketAddr::new(address, self.config.storage_port)
    }

    /// Returns the timeout of requests to other nodes.
    fn response_timeout(&self) -> Duration {
        self.config.pace.failure_timeout / 2
    }

    /// Terminates the process with a reason.
    fn terminate(&self, reason: String) {
        self.end.send_if_modified(|end| end.is_none() && end.replace(reason).is_none());
    }
}
