//! `messina inject`: copies this program to a directory that other containers of the pod mount, too.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use anyhow::{Context, Result};

use crate::pod;

/// The name of the copy.
const NAME: &str = "messina";

/// Where to copy the program.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Directory to copy this program to
    #[arg(default_value = "/mnt/shared")]
    pub folder: PathBuf,
}

/// Copies this program.
pub fn run(options: &Options) -> Result<()> {
    let program = std::env::current_exe().context("finding the path of this program")?;
    let copy = options.folder.join(NAME);
    let temporary = pod::temporary_path(&copy);
    fs::copy(&program, &temporary)
        .with_context(|| format!("copying {} to {}", program.display(), temporary.display()))?;
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("setting mode 0755 of {}", temporary.display()))?;
    fs::rename(&temporary, &copy).with_context(|| format!("renaming {} to {}", temporary.display(), copy.display()))
}
