//! Faults that a test injects into an etcd cluster.

use std::{fs, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{EtcdCluster, MemberProcess};
use crate::{
    error::{Doing, Error, Result},
    harness::{self, Seen},
};

impl EtcdCluster {
    /// Kills a process of a member, and returns when its container runs again. The kubelet delays each further restart
    /// of a container (back-off).
    pub async fn kill(&self, member: u8, process_kind: MemberProcess) -> Result<()> {
        let (container, process) = self.process(member, process_kind).await?;
        kill(process, Signal::SIGKILL).doing(|| format!("killing process {process}"))?;
        let what = format!("{} of member {member} to run again", process_kind.container());
        harness::until(self.pods(), &self.pod_name(member), &what, Duration::from_secs(120), |pod| {
            match pod.as_ref().and_then(|pod| container_of(pod, process_kind)) {
                Some(now) if now != container => Seen::Ready(()),
                now => Seen::NotYet(format!("{now:?}")),
            }
        })
        .await
    }

    /// Stops a process of a member, so that it answers no requests until [`Self::resume`]. On a busy host it takes a
    /// while until all its threads have stopped.
    pub async fn pause(&self, member: u8, process_kind: MemberProcess) -> Result<()> {
        let (_, process) = self.process(member, process_kind).await?;
        kill(process, Signal::SIGSTOP).doing(|| format!("stopping process {process}"))?;
        harness::eventually(&format!("process {process} to stop"), Duration::from_secs(30), || async {
            let states = thread_states(process)?;
            Ok(if states.iter().all(|state| *state == 'T') {
                Seen::Ready(())
            } else {
                Seen::NotYet(format!("{states:?}"))
            })
        })
        .await
    }

    /// Continues a stopped process.
    pub async fn resume(&self, member: u8, process_kind: MemberProcess) -> Result<()> {
        self.signal(member, process_kind, Signal::SIGCONT).await
    }

    /// Sends a signal to a process of a member.
    pub async fn signal(&self, member: u8, process_kind: MemberProcess, signal: Signal) -> Result<()> {
        let (_, process) = self.process(member, process_kind).await?;
        kill(process, signal).doing(|| format!("sending {signal} to process {process}"))
    }

    /// The container of a process of a member, and its PID on this host.
    async fn process(&self, member: u8, process_kind: MemberProcess) -> Result<(String, Pid)> {
        let name = self.pod_name(member);
        let pod = self.pods().get(&name).await.doing(|| format!("looking for the pod {name}"))?;
        let container = container_of(&pod, process_kind);
        let container =
            container.ok_or_else(|| Error::refused(format!("{} of {name} does not run", process_kind.container())))?;
        let process = process_of(&container)?;
        Ok((container, process))
    }

    /// Moves the leadership to another member, and returns when that leads.
    pub async fn move_leadership(&self, to: u8) -> Result<()> {
        let target = self.member(to).await?;
        let id = target.status().await?.id;
        let leader = self.leader().await?;
        if leader.name != target.name {
            leader.hand_over(id).await?;
        }
        harness::eventually(&format!("{} to lead", target.name), Duration::from_secs(30), || async {
            let status = target.status().await?;
            Ok(if status.leads() { Seen::Ready(()) } else { Seen::NotYet(format!("{status:?}")) })
        })
        .await
    }
}

/// The states of the threads of a process: one letter for each.
fn thread_states(process: Pid) -> Result<Vec<char>> {
    let folder = format!("/proc/{process}/task");
    let threads = fs::read_dir(&folder).doing(|| format!("reading {folder}"))?;
    let state = |thread: fs::DirEntry| {
        // The name before it is in parentheses and may contain anything.
        let text = fs::read_to_string(thread.path().join("stat")).ok()?;
        text.rsplit_once(") ")?.1.chars().next()
    };
    // A thread that ends meanwhile does not count.
    Ok(threads.filter_map(|thread| state(thread.ok()?)).collect())
}

/// The ID of the running container of a process.
fn container_of(pod: &Pod, process_kind: MemberProcess) -> Option<String> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let status = statuses.iter().find(|status| status.name == process_kind.container())?;
    status.state.as_ref()?.running.as_ref()?;
    // "containerd://0123..."
    Some(status.container_id.as_ref()?.rsplit('/').next()?.to_owned())
}

/// The process of a container, found by its cgroup.
fn process_of(container: &str) -> Result<Pid> {
    let entries = fs::read_dir("/proc").doing(|| "reading /proc".into())?;
    let processes = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let is_in =
        |pid: &i32| fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| groups.contains(container));
    let found = processes.into_iter().find(is_in).map(Pid::from_raw);
    found.ok_or_else(|| Error::refused(format!("no process is in the container {container}")))
}
