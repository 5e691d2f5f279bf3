//! `messina sysctl`: sets kernel parameters of the Kubernetes node, from a privileged container.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use messina_plan::node::sysctl::{Allowed, Name, Pattern, divide};
use tracing::info;

/// The kernel parameters to set.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Directory of the kernel parameters
    #[arg(long, default_value = "/proc/sys")]
    pub folder: PathBuf,
    /// Sysctls that may be set besides fs.aio-max-nr, net.* and vm.*, such as kernel.numa_balancing or fs.*
    #[arg(long = "allow", value_name = "NAME")]
    pub allowed: Vec<Pattern>,
    /// Sysctls to set, such as fs.aio-max-nr=30000000
    #[arg(last = true, required = true)]
    pub settings: Vec<String>,
}

/// Sets the parameters that have another value. Sets none of them if one is not allowed.
pub fn run(options: &Options) -> Result<()> {
    let allowed = Allowed::with(options.allowed.iter().cloned());
    let settings: Vec<(Name, &str)> =
        options.settings.iter().map(|setting| parse(setting, &allowed)).collect::<Result<_>>()?;
    settings.iter().try_for_each(|(name, value)| set(&options.folder, name, value))
}

/// Parses a setting and checks that it is allowed. The operator has done so before, but this container is privileged,
/// so it does not rely on that.
fn parse<'a>(setting: &'a str, allowed: &Allowed) -> Result<(Name, &'a str)> {
    let Some((name, value)) = divide(setting) else {
        bail!("{setting:?} is not a sysctl: write it as name=value");
    };
    let name: Name = name.parse()?;
    if !allowed.has(&name) {
        bail!("{setting:?} is not allowed: allowed sysctls are {allowed}");
    }
    Ok((name, value))
}

fn set(folder: &Path, name: &Name, value: &str) -> Result<()> {
    let name = name.path();
    let path = folder.join(&name);
    let current = fs::read_to_string(&path)
        .with_context(|| format!("reading sysctl {name}: this kernel does not have it, or hides it"))?;
    if words(&current) == words(value) {
        return Ok(());
    }
    fs::write(&path, value).with_context(|| format!("setting sysctl {name} to {value}"))?;
    info!(name, value, "sysctl set");
    Ok(())
}

/// Splits a value into its numbers: the kernel separates them with tabs, whatever separated them when they were set.
fn words(value: &str) -> Vec<&str> {
    value.split_whitespace().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a directory in place of /proc/sys, with these settings.
    fn kernel(test: &str, settings: &[(&str, &str)]) -> Result<PathBuf> {
        let folder = std::env::temp_dir().join(format!("messina-sysctl-{test}-{}", std::process::id()));
        for (path, value) in settings {
            let file = folder.join(path);
            fs::create_dir_all(file.parent().unwrap_or(&folder))?;
            fs::write(file, value)?;
        }
        Ok(folder)
    }

    fn run_in(folder: &Path, allowed: &[&str], settings: &[&str]) -> Result<()> {
        let settings = settings.iter().map(|one| (*one).to_owned()).collect();
        let allowed = allowed.iter().map(|one| one.parse()).collect::<Result<_, _>>()?;
        run(&Options { folder: folder.to_owned(), allowed, settings })
    }

    #[test]
    fn sysctls_are_set_and_unknown_ones_are_errors() -> Result<()> {
        let folder = kernel("set", &[("net/core/somaxconn", "128\n"), ("fs/aio-max-nr", "65536\n")])?;
        run_in(&folder, &[], &["fs.aio-max-nr = 30000000", "net/core/somaxconn=4096"])?;
        assert_eq!(fs::read_to_string(folder.join("fs/aio-max-nr"))?, "30000000");
        assert_eq!(fs::read_to_string(folder.join("net/core/somaxconn"))?, "4096");
        let unknown = run_in(&folder, &[], &["net.nonsense=1"]).map_err(|error| error.to_string());
        let expected = "reading sysctl net/nonsense: this kernel does not have it, or hides it";
        assert_eq!(unknown, Err(expected.to_owned()));
        assert!(run_in(&folder, &[], &["nonsense"]).is_err());
        Ok(fs::remove_dir_all(folder)?)
    }

    /// Even if the operator has let it through.
    #[test]
    fn no_sysctl_is_set_if_one_is_not_allowed() -> Result<()> {
        let old = "core";
        let folder = kernel("refused", &[("kernel/core_pattern", old), ("net/core/somaxconn", "128"), ("other", old)])?;
        for setting in [
            "kernel.core_pattern=|/bin/evil",
            "kernel/core_pattern=|/bin/evil",
            "net/../kernel/core_pattern=|/bin/evil",
            "net.//.kernel.core_pattern=|/bin/evil",
            "net.../kernel/core_pattern=|/bin/evil",
            "net/../../refused/kernel/core_pattern=|/bin/evil",
            "fs/../other=2",
            &format!("{}=2", folder.join("other").display()),
        ] {
            assert!(run_in(&folder, &["fs.*"], &["net.core.somaxconn=1", setting]).is_err(), "{setting}");
        }
        assert_eq!(fs::read_to_string(folder.join("kernel/core_pattern"))?, old);
        assert_eq!(fs::read_to_string(folder.join("other"))?, old);
        assert_eq!(fs::read_to_string(folder.join("net/core/somaxconn"))?, "128");
        run_in(&folder, &["kernel.core_pattern"], &["kernel.core_pattern=core.%p"])?;
        assert_eq!(fs::read_to_string(folder.join("kernel/core_pattern"))?, "core.%p");
        Ok(fs::remove_dir_all(folder)?)
    }
}
