//! The folder of an etcd cluster's snapshots, and their restoration into another etcd.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use serde_json::Value;

use super::{member, programs::Programs};
use crate::{
    cache,
    error::{Doing, Error, Result, malformed},
    exec,
    progress::Steps,
};

/// The folder with the stores of all etcd clusters, in a cluster's folder and in that of every Kubernetes node.
pub const STORES: &str = "stores";

/// The store's folder in the folder that sidecars mount, so that a test can remove it.
pub(super) const CONTAINER: &str = "backups";

/// Restores the newest snapshots into a new etcd and prints its keys and values. It runs in a network namespace of its
/// own, because both programs open ports.
const RESTORE: &str = r#"set -eu
ip link set lo up
"$PROGRAMS/etcdbrctl" restore --data-dir="$SCRATCH/data" --restoration-temp-snapshots-dir="$SCRATCH/temp" \
    --snapstore-temp-directory="$SCRATCH/temp" --storage-provider=Local \
    --store-container="$CONTAINER" --store-prefix="$PREFIX" 1>&2
cd "$SCRATCH"
"$PROGRAMS/etcd" --data-dir="$SCRATCH/data" --unsafe-no-fsync 1>&2 &
until "$PROGRAMS/etcdctl" endpoint health 1>&2; do kill -0 $!; sleep 0.1; done
"$PROGRAMS/etcdctl" get '' --prefix --write-out=json
"#;

/// The snapshots of an etcd cluster.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    prefix: String,
}

/// A snapshot in a store, as described by its file name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The file's name.
    pub name: String,
    /// Whether it is a full snapshot; otherwise it is a delta snapshot.
    pub full: bool,
    /// The first revision in it.
    pub first: u64,
    /// The last revision in it.
    pub last: u64,
    /// When it was taken, in seconds since 1970.
    pub created: u64,
    /// Whether it was requested as the final one.
    pub is_final: bool,
}

impl Store {
    /// The store of an etcd cluster, which is created if need be.
    pub(super) fn of(cluster: &Path, namespace: &str, name: &str) -> Result<Self> {
        let folder = cluster.join(STORES).join(format!("{namespace}.{name}"));
        fs::create_dir_all(&folder).doing(|| format!("creating {}", folder.display()))?;
        Ok(Self { folder, prefix: name.into() })
    }

    fn place(&self) -> PathBuf {
        self.folder.join(CONTAINER)
    }

    fn away(&self) -> PathBuf {
        self.folder.join("away")
    }

    /// The folder with the snapshots' files, while the store is available.
    pub fn folder(&self) -> PathBuf {
        self.place().join(&self.prefix).join("v2")
    }

    /// All snapshots, oldest first; none before the first was taken.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>> {
        let folder = self.folder();
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
            entries => entries.doing(|| format!("reading {}", folder.display()))?,
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut snapshots: Vec<Snapshot> = names.filter_map(|name| Snapshot::named(&name)).collect();
        snapshots.sort_by_key(|snapshot| (snapshot.last, !snapshot.full, snapshot.created));
        Ok(snapshots)
    }

    /// Makes the store unavailable: all operations of the sidecars on it fail.
    pub fn take_away(&self) -> Result<()> {
        let away = self.away();
        if away.exists() {
            return Err(Error::refused(format!("{} is already unavailable", self.place().display())));
        }
        // Otherwise a sidecar would create it again, empty.
        cache::write(&away, "the store is unavailable\n")?;
        self.exchange()
    }

    /// Makes the store available again, with its former content.
    pub fn bring_back(&self) -> Result<()> {
        let away = self.away();
        if !away.exists() {
            return Err(Error::refused(format!("{} is available already", self.place().display())));
        }
        self.exchange()?;
        cache::remove(&away)
    }

    /// Exchanges both paths atomically, because sidecars create a store that does not exist.
    fn exchange(&self) -> Result<()> {
        let (place, away) = (self.place(), self.away());
        renameat2(AT_FDCWD, &place, AT_FDCWD, &away, RenameFlags::RENAME_EXCHANGE)
            .doing(|| format!("exchanging {} and {}", place.display(), away.display()))
    }

    /// Restores the newest full snapshot and the later delta snapshots into another etcd, and returns its keys and
    /// values.
    pub async fn restore(&self) -> Result<BTreeMap<String, String>> {
        let store = self.clone();
        let restored = tokio::task::spawn_blocking(move || store.restore_now()).await;
        restored.map_err(|error| Error::refused(format!("the restoration was aborted: {error}")))?
    }

    fn restore_now(&self) -> Result<BTreeMap<String, String>> {
        let programs = Programs::get(&Steps::quiet())?;
        let scratch = self.folder.join(format!("restore-{}", unique()));
        fs::create_dir_all(&scratch).doing(|| format!("creating {}", scratch.display()))?;
        let said = exec::output(
            &format!("restoring the snapshots in {}", self.folder().display()),
            Command::new("timeout")
                .args(["--kill-after=5", "120", "unshare", "--net", "--pid", "--fork", "--kill-child"])
                .args(["sh", "-c", RESTORE])
                .env("PROGRAMS", programs.folder())
                .env("SCRATCH", &scratch)
                .env("HOME", &self.folder)
                .env("CONTAINER", CONTAINER)
                .env("PREFIX", &self.prefix),
        );
        cache::remove(&scratch)?;
        let answer: Value = serde_json::from_str(&said?).map_err(malformed("reading the keys of etcd"))?;
        member::keys_and_values(&answer)
    }
}

impl Snapshot {
    /// Reads a name such as `Full-00000000-00000012-1763202000.gz.final`.
    fn named(name: &str) -> Option<Self> {
        let stem = name.split('.').next()?;
        let mut parts = stem.split('-');
        let full = match parts.next()? {
            "Full" => true,
            "Incr" => false,
            _ => return None,
        };
        let mut number = || parts.next()?.parse().ok();
        let (first, last, created) = (number()?, number()?, number()?);
        Some(Self { name: name.into(), full, first, last, created, is_final: name.ends_with(".final") })
    }
}

/// A number that is unique among the restorations of all processes.
fn unique() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn snapshot_is_read_from_its_file_name() {
        let snapshot = Snapshot::named("Full-00000000-00000012-1763202000.gz.final").unwrap();
        assert!(snapshot.full && snapshot.is_final);
        assert_eq!((snapshot.first, snapshot.last, snapshot.created), (0, 12, 1_763_202_000));
        let snapshot = Snapshot::named("Incr-00000013-00000014-1763202001.gz").unwrap();
        assert!(!snapshot.full && !snapshot.is_final);
        for name in ["", "lost+found", "Full-1-2.gz", "Chunk-1-2-3"] {
            assert_eq!(Snapshot::named(name), None, "{name}");
        }
    }

    #[test]
    fn store_has_its_content_when_it_is_available_again() {
        let scratch = std::env::temp_dir().join(format!("messina-store-test-{}", std::process::id()));
        let store = Store::of(&scratch, "ns", "main").unwrap();
        let file = store.folder().join("Full-00000000-00000001-1763202000.gz");
        cache::write(&file, "").unwrap();
        store.take_away().unwrap();
        assert!(fs::create_dir_all(store.folder()).is_err(), "it cannot be created");
        store.bring_back().unwrap();
        assert_eq!(store.snapshots().unwrap().len(), 1);
        assert!(store.bring_back().is_err(), "it is available already");
        cache::remove(&scratch).unwrap();
    }
}
