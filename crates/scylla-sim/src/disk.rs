//! The persistent state of a node: a file for the node's state and one for its rows, each written atomically.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use thiserror::Error;

use crate::{
    data::Copies,
    membership::{HostId, Member},
};

/// The bootstrap state of a node, as in ScyllaDB's `system.local`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Bootstrapped {
    /// The node has never joined a ring.
    NeedsBootstrap,
    /// The node was stopped while it joined.
    InProgress,
    /// It is in a ring.
    Completed,
    /// The node was decommissioned.
    Decommissioned,
}

/// The state of a node after a restart: the row of `system.local`, and more.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Local {
    /// Its host ID.
    pub host_id: HostId,
    /// The name of its cluster.
    pub cluster_name: String,
    /// Its bootstrap state.
    pub bootstrapped: Bootstrapped,
    /// The ID of its ring: two rings of the same name do not merge.
    pub ring: Option<String>,
    /// Whether other nodes have removed or replaced it.
    pub is_banned: bool,
    /// The generation of its last start.
    pub generation: u64,
    /// Its tokens.
    pub tokens: Vec<i64>,
    /// Its datacenter.
    pub data_center: String,
    /// Its rack.
    pub rack: String,
    /// Its version.
    pub release_version: String,
    /// All members that it knows, including those that have left.
    pub members: Vec<Member>,
}

/// An error of the disk.
#[derive(Debug, Error)]
pub enum DiskError {
    /// A file cannot be read.
    #[error("Disk error: cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("Disk error: std::system_error (error system:{}, {source})", source.raw_os_error().unwrap_or_default())]
    Write {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file does not hold the state of a node.
    #[error("malformed sstable {}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
}

/// The table `system.local` has the same ID everywhere.
const LOCAL_TABLE: &str = "system/local-7ad54392bcdd35a684174e047860b377";
const LOCAL_FILE: &str = "me-3g00_0000_00000000000000001-big-Data.db";
/// Next to the tables.
const COPIES_FILE: &str = "sim-rows.json";
const NO_SPACE: i32 = 28;

/// A node's disk.
#[derive(Debug)]
pub struct Disk {
    workdir: PathBuf,
    data_dir: PathBuf,
    is_full: AtomicBool,
}

impl Disk {
    /// The disk with these directories.
    pub fn new(workdir: PathBuf, data_dir: PathBuf) -> Self {
        Self { workdir, data_dir, is_full: AtomicBool::new(false) }
    }

    /// Sets whether the disk is full.
    pub fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    /// Returns the stored state of the node; none on a new disk.
    pub fn load(&self) -> Result<Option<Local>, DiskError> {
        let path = self.data_dir.join(LOCAL_TABLE).join(LOCAL_FILE);
        if path.exists() { read(&path).map(Some) } else { Ok(None) }
    }

    /// Stores the state of the node, atomically.
    pub fn save(&self, local: &Local) -> Result<(), DiskError> {
        let path = self.data_dir.join(LOCAL_TABLE).join(LOCAL_FILE);
        let text = serde_json::to_vec(local).map_err(io::Error::other);
        text.and_then(|text| self.write(&path, &text)).map_err(|source| DiskError::Write { source })
    }

    /// The file with the node's rows.
    pub fn copies_file(&self) -> PathBuf {
        self.data_dir.join(COPIES_FILE)
    }

    /// Returns the stored rows of the node; none on a new disk.
    pub fn load_copies(&self) -> Result<Copies, DiskError> {
        let path = self.copies_file();
        if path.exists() { read(&path) } else { Ok(Copies::default()) }
    }

    /// Stores the rows of the node, atomically.
    pub fn save_copies(&self, copies: &Copies) -> Result<(), DiskError> {
        let text = serde_json::to_vec(copies).map_err(io::Error::other);
        text.and_then(|text| self.write(&self.copies_file(), &text)).map_err(|source| DiskError::Write { source })
    }

    /// Writes a file atomically, and waits until it is on the disk.
    pub fn write(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        if self.is_full.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(NO_SPACE));
        }
        let directory = path.parent().unwrap_or(&self.data_dir);
        fs::create_dir_all(directory)?;
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".tmp");
        let temporary = directory.join(name);
        let mut file = fs::File::create(&temporary)?;
        io::Write::write_all(&mut file, content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        fs::File::open(directory)?.sync_all()
    }

    /// Records that a fault that applies once has occurred. Returns whether it had occurred before.
    pub fn mark_once(&self, fault: &str) -> bool {
        let path = self.workdir.join(format!("sim-{fault}"));
        path.exists() || fs::write(&path, "").is_err()
    }

    /// Deletes everything. The directory itself may be a mount and is kept.
    pub fn erase(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.workdir)? {
            let path = entry?.path();
            if path.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
        }
        Ok(())
    }
}

/// Reads a file that a node has stored.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T, DiskError> {
    let text = fs::read(path).map_err(|source| DiskError::Read { path: path.to_owned(), source })?;
    serde_json::from_slice(&text).map_err(|source| DiskError::Malformed { path: path.to_owned(), source })
}
