//! The user's cache folder, and locks that let concurrent runs create each entry only once.

use std::{
    fs::{self, File, TryLockError},
    io::{Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    error::{Doing, Error, Result, malformed},
    exec,
    progress::Steps,
};

/// `$XDG_CACHE_HOME/messina`, or `~/.cache/messina`.
pub fn root() -> Result<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .map(|cache| cache.join("messina"))
        .ok_or_else(|| Error::refused("there is no cache folder: set HOME or XDG_CACHE_HOME to an absolute path"))
}

/// A file lock that is held until it is dropped, and that the kernel releases when its holder dies.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held for its effect")] File);

impl Lock {
    /// Takes the lock, or returns its holder. Waits if the holder was killed: a child that it has just forked has the
    /// lock, too, until it executes its program.
    pub fn try_take(path: &Path) -> Result<Result<Self, String>> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let mut file = open(path)?;
            match file.try_lock() {
                Ok(()) => return write_holder(file, path).map(Ok),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(source)) => {
                    return Err(Error::Io { doing: format!("locking {}", path.display()), source });
                }
            }
            let mut holder = String::new();
            file.read_to_string(&mut holder).doing(|| format!("reading {}", path.display()))?;
            // A new holder may not have written its process ID yet.
            let is_alive = holder.trim().parse().is_ok_and(exec::is_alive);
            if is_alive || Instant::now() > deadline {
                return Ok(Err(format!("process {}", holder.trim())));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Takes the lock of an existing file or folder, and waits for its holder.
    pub fn wait(path: &Path) -> Result<Self> {
        let file = File::open(path).doing(|| format!("opening {}", path.display()))?;
        file.lock().doing(|| format!("locking {}", path.display()))?;
        Ok(Self(file))
    }

    /// Takes the lock; while another process holds it, waits and prints so.
    pub fn take(path: &Path, steps: &Steps, what: &str) -> Result<Self> {
        if let Ok(lock) = Self::try_take(path)? {
            return Ok(lock);
        }
        let step = steps.begin(format!("waiting for another run: {what}"));
        let file = open(path)?;
        file.lock().doing(|| format!("locking {}", path.display()))?;
        step.done("");
        write_holder(file, path)
    }
}

/// Takes the lock of apt-get. Debian's container images delete the downloaded archives after each update, even those
/// that another process is installing.
pub fn lock_apt(steps: &Steps) -> Result<Lock> {
    Lock::take(&root()?.join("apt.lock"), steps, "installing Debian packages")
}

fn open(path: &Path) -> Result<File> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).doing(|| format!("creating {}", parent.display()))?;
    }
    File::options()
        .create(true)
        .read(true)
        .write(true)
        .truncate(false)
        .open(path)
        .doing(|| format!("opening {}", path.display()))
}

/// Writes the process ID of the holder to the file, for other processes.
fn write_holder(mut file: File, path: &Path) -> Result<Lock> {
    file.set_len(0)
        .and_then(|()| write!(file, "{}", std::process::id()))
        .doing(|| format!("writing {}", path.display()))?;
    Ok(Lock(file))
}

/// Creates the folder `dir` once, however many processes ask for it at the same time. It is created under another name
/// and renamed when it is complete, so an interrupted run leaves no incomplete `dir`.
pub fn once(dir: &Path, steps: &Steps, what: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    if dir.exists() {
        return Ok(());
    }
    let _lock = Lock::take(&beside(dir, "lock"), steps, what)?;
    if dir.exists() {
        return Ok(());
    }
    remove_partial(dir)?;
    // Each process uses a name of its own: a child of a killed run may still write to the folder of that run.
    let partial = beside(dir, &format!("partial-{}", std::process::id()));
    fs::create_dir_all(&partial).doing(|| format!("creating {}", partial.display()))?;
    if let Err(error) = make(&partial) {
        // Frees space on a disk that may be full.
        remove(&partial)?;
        return Err(error);
    }
    fs::rename(&partial, dir).doing(|| format!("renaming {} to {}", partial.display(), dir.display()))
}

/// Deletes incomplete folders of killed runs; the caller holds the lock.
fn remove_partial(dir: &Path) -> Result<()> {
    let prefix = beside(dir, "partial-");
    let siblings = dir.parent().into_iter().flat_map(fs::read_dir).flatten().filter_map(|entry| entry.ok());
    siblings
        .map(|entry| entry.path())
        .filter(|path| path.to_string_lossy().starts_with(&*prefix.to_string_lossy()))
        .try_for_each(|path| remove(&path))
}

fn beside(dir: &Path, suffix: &str) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(suffix);
    dir.with_file_name(name)
}

/// Appends a line of JSON to a file, in one write: several processes may append at once.
pub fn append_line(file: &Path, value: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(value).map_err(malformed(format!("writing {}", file.display())))? + "\n";
    let opened = File::options().create(true).append(true).open(file);
    opened.and_then(|mut file| file.write_all(line.as_bytes())).doing(|| format!("writing {}", file.display()))
}

/// Deletes a folder or file that may not exist.
pub fn remove(path: &Path) -> Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other.doing(|| format!("removing {}", path.display())),
    }
}

/// Writes a file and the folders above it. Readers see all of its content or none.
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    write_with(path, content, 0o644)
}

/// Writes a file that only its owner may read.
pub fn write_private(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    write_with(path, content, 0o600)
}

fn write_with(path: &Path, content: impl AsRef<[u8]>, mode: u32) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).doing(|| format!("creating {}", parent.display()))?;
    }
    let new = beside(path, "new");
    File::options()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(mode)
        .open(&new)
        .and_then(|mut file| file.write_all(content.as_ref()))
        .and_then(|()| fs::rename(&new, path))
        .doing(|| format!("writing {}", path.display()))
}

/// Reads a text file.
pub fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).doing(|| format!("reading {}", path.display()))
}

/// Reads a value from a JSON file; none if the file does not exist.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        text => text.doing(|| format!("reading {}", path.display()))?,
    };
    serde_json::from_slice(&text).map(Some).map_err(malformed(format!("reading {}", path.display())))
}

/// Writes a value to a JSON file.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    write(path, serde_json::to_vec_pretty(value).map_err(malformed(format!("writing {}", path.display())))?)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn scratch(test: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("messina-cache-test-{test}-{}", std::process::id()));
        remove(&folder).unwrap();
        folder
    }

    #[test]
    fn lock_names_a_live_holder_and_waits_after_a_killed_one() {
        let path = scratch("killed").join("some.lock");
        let lock = Lock::try_take(&path).unwrap().unwrap();
        let refused = Lock::try_take(&path).unwrap().map(drop);
        assert_eq!(refused, Err(format!("process {}", std::process::id())));
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        fs::write(&path, ended.id().to_string()).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| Lock::try_take(&path).unwrap().map(drop));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waits.is_finished(), "a child of the killed holder has it");
            drop(lock);
            assert_eq!(waits.join().unwrap(), Ok(()));
        });
        remove(&scratch("killed")).unwrap();
    }

    #[test]
    fn folder_is_created_once_for_concurrent_callers() {
        let scratch = scratch("once");
        let (dir, made) = (scratch.join("thing"), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    once(&dir, &Steps::quiet(), "making a thing", |partial| {
                        made.fetch_add(1, Ordering::SeqCst);
                        write(&partial.join("whole"), "yes")
                    })
                    .unwrap();
                    assert_eq!(read(&dir.join("whole")).unwrap(), "yes");
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
        remove(&scratch).unwrap();
    }

    #[test]
    fn failed_or_interrupted_creation_leaves_no_folder() {
        let scratch = scratch("fails");
        let dir = scratch.join("thing");
        let interrupted = scratch.join("thing.partial-1");
        write(&interrupted.join("half"), "").unwrap();
        let failed = once(&dir, &Steps::quiet(), "making a thing", |_| Err(Error::refused("no")));
        assert_eq!(failed.unwrap_err().to_string(), "no");
        assert!(!dir.exists() && !interrupted.exists());
        once(&dir, &Steps::quiet(), "making a thing", |_| Ok(())).unwrap();
        assert!(dir.exists());
        remove(&scratch).unwrap();
    }

    #[test]
    fn lock_names_its_holder_and_is_free_when_dropped() {
        let scratch = scratch("lock");
        let file = scratch.join("lock");
        let held = Lock::try_take(&file).unwrap().unwrap();
        assert_eq!(Lock::try_take(&file).unwrap().unwrap_err(), format!("process {}", std::process::id()));
        drop(held);
        assert!(Lock::try_take(&file).unwrap().is_ok());
        remove(&scratch).unwrap();
    }
}
