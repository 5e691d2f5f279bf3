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

/// A running child.
#[derive(Debug)]
pub(super) struct Child(Pid);

impl Child {
    /// Starts it.
    pub(super) fn start(mut command: Command) -> Result<Self> {
        info!(?command, "starting ScyllaDB");
        let program = command.get_program().to_owned();
        let child = command.spawn().with_context(|| format!("starting {}", program.to_string_lossy()))?;
        // It is waited for together with everything else that ends below this process, not through `child`.
        Ok(Self(Pid::from_raw(i32::try_from(child.id()).context("the number of a process is not one")?)))
    }

    /// Sends it a signal.
    pub(super) fn signal(&self, signal: Signal) {
        match kill(self.0, signal) {
            Ok(()) => info!(%signal, "passed on to ScyllaDB"),
            Err(error) => warn!(%signal, %error, "cannot be passed on to ScyllaDB"),
        }
    }

    /// Takes leave of all processes that have ended: the first process of a container inherits those that lost their
    /// parent. Answers the child's status once it is among them; one that was killed has 128 more than the signal.
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
