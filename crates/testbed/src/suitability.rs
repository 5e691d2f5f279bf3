//! Checks whether this host can run the testbed.

use std::{path::Path, process::Command};

use crate::{
    cache,
    error::{Error, Result},
    exec,
    progress::Steps,
};

/// Programs of this host that Kubernetes nodes need, and the Debian package of each.
const PROGRAMS: [(&str, &str); 5] =
    [("ip", "iproute2"), ("nft", "nftables"), ("iptables", "iptables"), ("unshare", "util-linux"), ("mount", "mount")];

/// Fails where Kubernetes nodes cannot run. Installs missing programs first, where that is possible.
pub fn check_nodes(steps: &Steps) -> Result<()> {
    check_linux()?;
    let instead = "use --light for tests without pods, or name an existing cluster with --kubeconfig";
    if !nix::unistd::Uid::effective().is_root() {
        return Err(Error::refused(format!("Kubernetes nodes need root: run it with sudo, {instead}")));
    }
    if !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() && !Path::new("/sys/fs/cgroup/memory").exists() {
        return Err(Error::refused(format!(
            "Kubernetes nodes need cgroups, and /sys/fs/cgroup has none: mount them, {instead}"
        )));
    }
    if missing_programs().is_empty() {
        return Ok(());
    }
    let _lock = cache::lock_apt(steps)?;
    // Another process may have installed them meanwhile.
    let missing = missing_programs();
    if missing.is_empty() {
        return Ok(());
    }
    if exec::find("apt-get").is_none() {
        let names: Vec<_> = missing.iter().map(|(program, _)| *program).collect();
        let names = names.join(", ");
        return Err(Error::refused(format!(
            "Kubernetes nodes need {names}: install them with this host's package manager"
        )));
    }
    let packages: Vec<_> = missing.iter().map(|(_, package)| *package).chain(["libseccomp2"]).collect();
    let step = steps.begin(format!("installing {}", packages.join(", ")));
    let log = cache::root()?.join("logs/apt.log");
    exec::run("apt-get update", Command::new("apt-get").args(["update", "-qq"]), &log, |_| {})?;
    exec::run(
        "apt-get install",
        Command::new("apt-get")
            .args(["install", "-y", "-qq", "--no-install-recommends"])
            .args(&packages)
            .env("DEBIAN_FRONTEND", "noninteractive"),
        &log,
        |line| step.progress(line),
    )?;
    step.done("");
    Ok(())
}

fn missing_programs() -> Vec<(&'static str, &'static str)> {
    PROGRAMS.into_iter().filter(|(program, _)| exec::find(program).is_none()).collect()
}

/// Fails where not even the control plane runs.
pub fn check_linux() -> Result<()> {
    if cfg!(not(target_os = "linux")) {
        return Err(Error::refused(
            "the testbed runs on Linux only: start it in a Linux virtual machine, or name an existing cluster with --kubeconfig",
        ));
    }
    Ok(())
}
