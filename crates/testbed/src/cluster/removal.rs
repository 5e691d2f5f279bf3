//! Removing a cluster, whatever is left of it.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use nix::{sys::signal, unistd::Pid};

use super::{Cluster, State, all, folder, lock_file};
use crate::{
    cache::{self, Lock},
    cgroup,
    error::{Error, Result},
    exec, network,
};

/// Removes every cluster whose processes are gone, of whatever name, except those that someone is working on. The
/// caller holds the lock of `locked`.
pub(super) fn bury_dead(locked: &str) -> Result<()> {
    for cluster in all()?.iter().filter(|cluster| cluster.state() == State::Dead && cluster.name != locked) {
        if let Ok(_lock) = Lock::try_take(&lock_file(&cluster.name)?)? {
            erase(&cluster.name)?;
        }
    }
    match Cluster::read(locked)? {
        Some(cluster) if cluster.state() == State::Running => Ok(()),
        // Also where there is no description: a run may have been killed before it wrote one.
        _ => erase(locked),
    }
}

/// Removes all that a cluster of this name could have left, whatever of it there is.
pub(super) fn erase(name: &str) -> Result<()> {
    let folder = folder(name)?;
    kill_owner(&folder)?;
    // Only root can have made these.
    if nix::unistd::Uid::effective().is_root() && exec::find("ip").is_some() {
        let _choosing = network::lock()?;
        network::remove_nodes(name)?;
        cgroup::remove(name)?;
        network::remove_unused_fabric()?;
    }
    cache::remove(&folder)
}

/// The process that owns all others of a cluster: the first of their process namespace, found by its arguments.
pub(super) fn owner(folder: &Path) -> Option<Pid> {
    let arguments = format!("\0supervise\0{}\0", folder.display());
    let processes = fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_owner = |pid: &i32| {
        // "NSpid: 4711 1": its number here, and in its own namespace
        let numbers = status_of(*pid, "NSpid:");
        command_of(*pid).ends_with(arguments.as_bytes()) && numbers.split_whitespace().next_back() == Some("1")
    };
    processes.into_iter().find(is_owner).map(Pid::from_raw)
}

/// The arguments of a process, each with a zero byte behind it.
fn command_of(pid: i32) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

/// A line of what the kernel says of a process.
fn status_of(pid: i32, key: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default().to_owned()
}

/// Ends all processes of a cluster and returns when they are gone.
fn kill_owner(folder: &Path) -> Result<()> {
    let Some(owner) = owner(folder) else { return Ok(()) };
    let parent = status_of(owner.as_raw(), "PPid:").trim().parse().map(Pid::from_raw);
    let _already_gone = signal::kill(owner, signal::Signal::SIGKILL);
    let deadline = Instant::now() + Duration::from_secs(30);
    // The kernel ends all processes of the namespace, then this one; then `unshare`, which waits for it, ends too.
    let and_unshare = parent.ok().filter(|parent| command_of(parent.as_raw()).starts_with(b"unshare\0"));
    for pid in [owner].into_iter().chain(and_unshare) {
        while is_alive(pid) {
            if Instant::now() > deadline {
                return Err(Error::refused(format!("process {pid} does not end: look at it with `ps -p {pid}`")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

fn is_alive(pid: Pid) -> bool {
    // "123 (name) Z ...": ended, and nobody has asked how yet
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    state.is_some_and(|state| state != "Z" && state != "X")
}
