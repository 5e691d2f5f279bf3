//! Removes a cluster, or what is left of it.

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

/// The name of this program among processes.
const OWN_NAME: &str = "testbed";

/// Removes all clusters whose processes are gone, except those that another process is starting or stopping. The caller
/// holds the lock of `locked`.
pub(super) fn remove_dead(locked: &str) -> Result<()> {
    for cluster in all()?.iter().filter(|cluster| cluster.state() == State::Dead && cluster.name != locked) {
        if let Ok(_lock) = Lock::try_take(&lock_file(&cluster.name)?)? {
            erase(&cluster.name)?;
        }
    }
    match Cluster::read(locked)? {
        Some(cluster) if cluster.state() == State::Running => Ok(()),
        // Also without a description: a run may have been killed before it wrote one.
        _ => erase(locked),
    }
}

/// Removes everything that a cluster of this name can have left.
pub(super) fn erase(name: &str) -> Result<()> {
    let folder = folder(name)?;
    end_processes(name, &folder)?;
    // Only root can have created these.
    if nix::unistd::Uid::effective().is_root() && exec::find("ip").is_some() {
        let _choosing = network::lock()?;
        network::remove_nodes(name)?;
        cgroup::remove(name)?;
        network::remove_unused_fabric()?;
    }
    cache::remove(&folder)
}

/// The process that owns all others of a cluster: the init process of their PID namespace, found by its arguments.
pub(super) fn owner(folder: &Path) -> Option<Pid> {
    let arguments = arguments_of_owner(folder);
    let is_owner = |pid: &i32| command_of(*pid).ends_with(&arguments) && is_first(*pid);
    processes().find(is_owner).map(Pid::from_raw)
}

/// The end of the command line of a cluster's owner, and of `unshare`, which starts it.
fn arguments_of_owner(folder: &Path) -> Vec<u8> {
    format!("\0supervise\0{}\0", folder.display()).into_bytes()
}

fn processes() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Whether a process is the init process of a PID namespace.
fn is_first(pid: i32) -> bool {
    // "NSpid: 4711 1": its PID here, and in its own namespace
    let numbers = status_of(pid, "NSpid:");
    let mut numbers = numbers.split_whitespace();
    numbers.next().is_some() && numbers.next_back() == Some("1")
}

/// The arguments of a process, each followed by a zero byte.
fn command_of(pid: i32) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

/// A field of the status of a process.
fn status_of(pid: i32, key: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default().to_owned()
}

/// Kills all processes of a cluster and returns when they are gone.
fn end_processes(name: &str, folder: &Path) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while let Some(pid) = processes().find(|pid| is_left(*pid, name, folder)) {
        if Instant::now() > deadline {
            return Err(Error::refused(format!("process {pid} does not end: inspect it with `ps -p {pid}`")));
        }
        // In each iteration, because a killed testbed may have left an `unshare` that has not started the owner yet.
        if let Some(owner) = owner(folder) {
            let _already_gone = signal::kill(owner, signal::Signal::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Whether a process that will end by itself could still change something of a cluster.
fn is_left(pid: i32, name: &str, folder: &Path) -> bool {
    let command = command_of(pid);
    let is_left = if command.is_empty() {
        // A killed owner has no arguments any more, but exists until all other processes of its namespace have ended.
        // It may be that of another cluster, which ends as soon.
        status_of(pid, "Name:").trim() == OWN_NAME && is_first(pid)
    } else {
        let network = network::namespace(name, 0);
        let network = network.trim_end_matches('0').as_bytes();
        // The owner, `unshare`, which waits for it, and programs that a killed testbed was running.
        command.ends_with(&arguments_of_owner(folder))
            || command.starts_with(b"ip\0") && command.windows(network.len()).any(|part| part == network)
    };
    is_left && exec::is_alive(pid)
}
