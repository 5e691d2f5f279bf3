//! What survives a crash: a file for the node's state and one for its rows, each written whole.

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

/// How far a node has come, as ScyllaDB notes it in `system.local`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Bootstrapped {
    /// It never was in a ring.
    NeedsBootstrap,
    /// It was stopped while it joined one.
    InProgress,
    /// It is in a ring.
    Completed,
    /// It left, and does not come back.
    Decommissioned,
}

/// What a node knows of itself and of others when it starts again: the one row of `system.local`, and more.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Local {
    /// Who it is.
    pub host_id: HostId,
    /// The cluster that it belongs to by name.
    pub cluster_name: String,
    /// How far it has come.
    pub bootstrapped: Bootstrapped,
    /// Which ring it is in: two rings of one name stay apart.
    pub ring: Option<String>,
    /// Others said that it is no longer one of them.
    pub is_banned: bool,
    /// Of its last start.
    pub generation: u64,
    /// Its tokens.
    pub tokens: Vec<i64>,
    /// Where it stands.
    pub data_center: String,
    /// Where it stands there.
    pub rack: String,
    /// Its version.
    pub release_version: String,
    /// All that it knows of, those that left too.
    pub members: Vec<Member>,
}

/// The disk does not do what it should.
#[derive(Debug, Error)]
pub enum DiskError {
    /// It cannot be read.
    #[error("Disk error: cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It cannot be written.
    #[error("Disk error: std::system_error (error system:{}, {source})", source.raw_os_error().unwrap_or_default())]
    Write {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What stands there is no state of a node.
    #[error("malformed sstable {}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
}

/// The table `system.local` has the same ID everywhere.
const LOCAL_TABLE: &str = "system/local-7ad54392bcdd35a684174e047860b377";
const LOCAL_FILE: &str = "me-3g00_0000_00000000000000001-big-Data.db";
/// Beside the tables.
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

    /// From now on, or no longer, there is no room for anything.
    pub fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    /// What the node stored last; nothing on a new disk.
    pub fn load(&self) -> Result<Option<Local>, DiskError> {
        let path = self.data_dir.join(LOCAL_TABLE).join(LOCAL_FILE);
        if path.exists() { read(&path).map(Some) } else { Ok(None) }
    }

    /// Stores what the node knows. It is there whole, or as it was before.
    pub fn save(&self, local: &Local) -> Result<(), DiskError> {
        let path = self.data_dir.join(LOCAL_TABLE).join(LOCAL_FILE);
        let text = serde_json::to_vec(local).map_err(io::Error::other);
        text.and_then(|text| self.write(&path, &text)).map_err(|source| DiskError::Write { source })
    }

    /// The file with the node's rows.
    pub fn copies_file(&self) -> PathBuf {
        self.data_dir.join(COPIES_FILE)
    }

    /// The rows that the node stored last; none on a new disk.
    pub fn load_copies(&self) -> Result<Copies, DiskError> {
        let path = self.copies_file();
        if path.exists() { read(&path) } else { Ok(Copies::default()) }
    }

    /// Stores the node's rows. They are there whole, or as they were before.
    pub fn save_copies(&self, copies: &Copies) -> Result<(), DiskError> {
        let text = serde_json::to_vec(copies).map_err(io::Error::other);
        text.and_then(|text| self.write(&self.copies_file(), &text)).map_err(|source| DiskError::Write { source })
    }

    /// Writes a file whole, and waits until it is on the disk.
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

    /// Whether a fault that acts once has acted on this disk; from now on it has.
    pub fn note_once(&self, fault: &str) -> bool {
        let path = self.workdir.join(format!("sim-{fault}"));
        path.exists() || fs::write(&path, "").is_err()
    }

    /// Loses everything. The directory itself may be a mount and stays.
    pub fn lose(&self) -> io::Result<()> {
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
