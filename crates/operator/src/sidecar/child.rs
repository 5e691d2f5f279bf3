//! ScyllaDB as a child of this process.

use std::process::Command;

use anyhow::{Context, Result};
use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use tracing::{info, warn};

/// The running process.
#[derive(Debug)]
pub(super) struct Child(Pid);

impl Child {
    /// Starts ScyllaDB.
    pub(super) fn start(mut command: Command) -> Result<Self> {
        info!(?command, "starting ScyllaDB");
        let program = command.get_program().to_owned();
        let child = command.spawn().with_context(|| format!("starting {}", program.to_string_lossy()))?;
        // `reap` waits for it together with all other children of this process, not through `child`.
        Ok(Self(Pid::from_raw(i32::try_from(child.id()).context("the process ID is out of range")?)))
    }

    /// Sends ScyllaDB a signal.
    pub(super) fn signal(&self, signal: Signal) {
        match kill(self.0, signal) {
            Ok(()) => info!(%signal, "signal sent to ScyllaDB"),
            Err(error) => warn!(%signal, %error, "cannot send the signal to ScyllaDB"),
        }
    }

    /// Reaps all processes that have ended: the first process of a container inherits orphans. Returns ScyllaDB's exit
    /// status once it has ended, or 128 plus the signal that killed it.
    pub(super) fn reap(&self) -> Result<Option<i32>> {
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, status)) if pid == self.0 => return Ok(Some(status)),
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == self.0 => return Ok(Some(128 + signal as i32)),
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(None),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error).context("waiting for ScyllaDB"),
            }
        }
    }
}
