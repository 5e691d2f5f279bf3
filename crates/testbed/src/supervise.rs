//! Keeps the processes of a cluster, or of one of its Kubernetes nodes, running.

use std::{
    collections::HashMap,
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use nix::{errno::Errno, sys::wait, unistd::Pid};
use serde::{Deserialize, Serialize};

use crate::{
    cache,
    error::{Doing, Error, Result},
};

/// The pause before a process that ended is started again.
const PAUSE: Duration = Duration::from_secs(1);

/// The file, in a cluster's folder, that names its components.
pub const LIST: &str = "components.json";

/// A process that runs as long as the cluster does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Component {
    /// Its name in messages and logs.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<String>,
}

impl Component {
    /// A component that runs in the network namespace `netns`, if that is given.
    pub fn new(
        name: impl Into<String>,
        netns: Option<&str>,
        command: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        // Not `ip netns exec`, which hides /sys/fs/cgroup.
        let enter = netns.map(|netns| ["nsenter".to_owned(), format!("--net=/run/netns/{netns}")]);
        let command = enter.into_iter().flatten().chain(command.into_iter().map(Into::into)).collect();
        Self { name: name.into(), command }
    }

    fn start(&self, logs: &Path) -> Result<Pid> {
        let (program, arguments) =
            self.command.split_first().ok_or_else(|| Error::refused(format!("{} has no command", self.name)))?;
        let log = log(logs, &self.name);
        let file =
            File::options().create(true).append(true).open(&log).doing(|| format!("opening {}", log.display()))?;
        let also = file.try_clone().doing(|| format!("opening {}", log.display()))?;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(also)
            .spawn()
            .doing(|| format!("starting {}", self.name))?;
        Ok(Pid::from_raw(child.id().cast_signed()))
    }
}

/// The log of a component.
pub fn log(logs: &Path, component: &str) -> PathBuf {
    logs.join(format!("{component}.log"))
}

/// Runs the components of the cluster in `folder`.
pub fn run(folder: &Path) -> Result<()> {
    let list = folder.join(LIST);
    let components: Option<Vec<Component>> = cache::read_json(&list)?;
    let components = components.ok_or_else(|| Error::refused(format!("{} is not there", list.display())))?;
    supervise(components, &folder.join("log"))
}

/// Starts the components, and each of them again when it ends, for ever. As the init process of a PID namespace it also
/// reaps orphaned processes.
pub fn supervise(components: Vec<Component>, logs: &Path) -> Result<()> {
    let running = Arc::new(Mutex::new(HashMap::new()));
    for component in components {
        let pid = component.start(logs)?;
        locked(&running).insert(pid, component);
    }
    loop {
        let status = match wait::wait() {
            Ok(status) => status,
            Err(Errno::ECHILD) => return Err(Error::refused("nothing is left to supervise")),
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno).doing(|| "waiting for a process to end".into()),
        };
        let Some(component) = status.pid().and_then(|pid| locked(&running).remove(&pid)) else { continue };
        eprintln!("{} ended ({status:?}); starting it again", component.name);
        let (running, logs) = (Arc::clone(&running), logs.to_owned());
        std::thread::spawn(move || {
            std::thread::sleep(PAUSE);
            // Held until the process is registered, so that its end cannot be missed.
            let mut running = locked(&running);
            match component.start(&logs) {
                Ok(pid) => drop(running.insert(pid, component)),
                Err(error) => eprintln!("{error}"),
            }
        });
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
