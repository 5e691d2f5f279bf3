//! The cgroups of a cluster's pods.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::error::{Doing, Error, Result};

const ROOT: &str = "/sys/fs/cgroup";

/// The path of the pods of a Kubernetes node, below the root of each hierarchy.
pub fn path(cluster: &str, node: &str) -> String {
    format!("/messina-{cluster}/{node}")
}

/// The cgroup hierarchies of this host: one in version 2, one for each controller in version 1.
fn hierarchies() -> Result<Vec<PathBuf>> {
    if Path::new(ROOT).join("cgroup.controllers").exists() {
        return Ok(vec![ROOT.into()]);
    }
    let entries = fs::read_dir(ROOT).doing(|| format!("reading {ROOT}"))?;
    let folders = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    Ok(folders.filter(|folder| folder.join("cgroup.procs").exists() && !folder.is_symlink()).collect())
}

/// Creates the cgroups that the kubelet of a Kubernetes node expects.
pub fn make(cluster: &str, node: &str) -> Result<()> {
    for hierarchy in hierarchies()? {
        let mut folder = hierarchy;
        for part in path(cluster, node).split('/').filter(|part| !part.is_empty()) {
            if folder.join("cgroup.controllers").exists() {
                delegate(&folder)?;
            }
            let parent = folder.clone();
            folder.push(part);
            match fs::create_dir(&folder) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                other => other.doing(|| format!("creating {}", folder.display())),
            }?;
            // In version 1 these start empty, and a cgroup without CPUs or memory accepts no process.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if folder.join(file).exists() && !folder.join("cgroup.controllers").exists() {
                    fs::read(parent.join(file))
                        .and_then(|content| fs::write(folder.join(file), content))
                        .doing(|| format!("filling {}", folder.join(file).display()))?;
                }
            }
        }
        if folder.join("cgroup.controllers").exists() {
            delegate(&folder)?;
        }
    }
    Ok(())
}

/// Version 2: lets child cgroups use all controllers of this one.
fn delegate(folder: &Path) -> Result<()> {
    let controllers =
        fs::read_to_string(folder.join("cgroup.controllers")).doing(|| format!("reading {}", folder.display()))?;
    let enable: String = controllers.split_whitespace().map(|name| format!("+{name} ")).collect();
    if enable.is_empty() {
        return Ok(());
    }
    let file = folder.join("cgroup.subtree_control");
    fs::write(&file, enable.trim_end()).doing(|| format!("writing {}", file.display()))
}

/// Deletes all cgroups of a cluster whose processes have ended.
pub fn remove(cluster: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    for hierarchy in hierarchies()? {
        let top = hierarchy.join(format!("messina-{cluster}"));
        // A killed process leaves its cgroup a moment later; version 1 has no event for that.
        while let Err(error) = remove_tree(&top) {
            if Instant::now() > deadline {
                let left = processes(&top);
                return Err(Error::refused(format!(
                    "removing {}: {error}; processes left in it: {left:?}",
                    top.display()
                )));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

fn remove_tree(folder: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(folder)
}

fn processes(folder: &Path) -> Vec<String> {
    let own = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    let below = fs::read_dir(folder).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir());
    own.lines().map(str::to_owned).chain(below.flat_map(|entry| processes(&entry.path()))).collect()
}
