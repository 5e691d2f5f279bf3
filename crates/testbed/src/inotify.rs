//! How many watchers of files a user of this machine may have. Kubernetes' programs have about fifteen in each cluster, and
//! where there are no more, containerd starts without half of itself: the usual 128 are too few for the clusters that fit.

use std::{fs, path::Path};

use crate::{
    cache,
    error::{Doing, Result},
};

const LIMIT: &str = "/proc/sys/fs/inotify/max_user_instances";
const ENOUGH: u32 = 1024;
/// Here stands what it was.
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

/// Makes it what it was.
pub fn put_back() -> Result<()> {
    if let Ok(before) = fs::read_to_string(BEFORE) {
        fs::write(LIMIT, before).doing(|| format!("writing {LIMIT}"))?;
        cache::remove(Path::new(BEFORE))?;
    }
    Ok(())
}
