//! The limit of inotify instances per user of this host. The programs of a cluster need about fifteen, and without them
//! containerd starts with a part of its plugins only: the usual 128 are too few for the clusters that fit on a host.

use std::{fs, path::Path};

use crate::{
    cache,
    error::{Doing, Result},
};

const LIMIT: &str = "/proc/sys/fs/inotify/max_user_instances";
const ENOUGH: u32 = 1024;
/// The file with the former limit.
const BEFORE: &str = "/run/messina-inotify";

/// Raises the limit where it is too low.
pub fn raise() -> Result<()> {
    let now = fs::read_to_string(LIMIT).doing(|| format!("reading {LIMIT}"))?;
    if now.trim().parse().is_ok_and(|now: u32| now >= ENOUGH) {
        return Ok(());
    }
    cache::write(Path::new(BEFORE), now)?;
    fs::write(LIMIT, ENOUGH.to_string()).doing(|| format!("writing {LIMIT}"))
}

/// Restores the former limit.
pub fn restore_limit() -> Result<()> {
    if let Ok(before) = fs::read_to_string(BEFORE) {
        fs::write(LIMIT, before).doing(|| format!("writing {LIMIT}"))?;
        cache::remove(Path::new(BEFORE))?;
    }
    Ok(())
}
