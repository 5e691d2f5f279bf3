//! `messina sysctl`: sets kernel settings of the machine, from a privileged container.

use std::{
    fs,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use tracing::info;

/// What to set.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Where the kernel has its settings
    #[arg(long, default_value = "/proc/sys")]
    pub folder: PathBuf,
    /// Settings, such as fs.aio-max-nr=30000000
    #[arg(last = true, required = true)]
    pub settings: Vec<String>,
}

/// Sets one after another. What is so already is not written.
pub fn run(options: &Options) -> Result<()> {
    options.settings.iter().try_for_each(|setting| set(&options.folder, setting))
}

fn set(folder: &Path, setting: &str) -> Result<()> {
    let Some((name, value)) = setting.split_once('=') else {
        bail!("{setting:?} is no kernel setting: write it as name=value");
    };
    let (name, value) = (name.trim(), value.trim());
    let path = PathBuf::from(file(name));
    // Privileged as it is, it writes nothing else.
    if !path.components().all(|part| matches!(part, Component::Normal(_))) {
        bail!("{name:?} is no name of a kernel setting");
    }
    let path = folder.join(path);
    let now = fs::read_to_string(&path).with_context(|| format!("the kernel has no setting {name}, or hides it"))?;
    if words(&now) == words(value) {
        return Ok(());
    }
    fs::write(&path, value).with_context(|| format!("setting {name} to {value}"))?;
    info!(name, value, "set");
    Ok(())
}

/// Dots divide the parts of a name, unless slashes do: then dots are dots, as in names of network interfaces.
fn file(name: &str) -> String {
    let is_divided_by_slashes = name.find(['.', '/']).is_some_and(|at| name[at..].starts_with('/'));
    if is_divided_by_slashes { name.to_owned() } else { name.replace('.', "\0").replace('/', ".").replace('\0', "/") }
}

/// Values of several numbers are told with tabs, whatever they were set with.
fn words(value: &str) -> Vec<&str> {
    value.split_whitespace().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_paths() {
        for (name, path) in [
            ("fs.aio-max-nr", "fs/aio-max-nr"),
            ("net.ipv4.conf.eth0/1.forwarding", "net/ipv4/conf/eth0.1/forwarding"),
            ("net/ipv4/conf/eth0.1/forwarding", "net/ipv4/conf/eth0.1/forwarding"),
        ] {
            assert_eq!(file(name), path, "{name}");
        }
    }

    #[test]
    fn settings_are_set_and_unknown_ones_are_told() -> Result<()> {
        let folder = std::env::temp_dir().join(format!("messina-sysctl-{}", std::process::id()));
        fs::create_dir_all(folder.join("fs"))?;
        fs::write(folder.join("fs/aio-max-nr"), "65536\n")?;
        let run = |settings: &[&str]| {
            let settings = settings.iter().map(|one| (*one).to_owned()).collect();
            run(&Options { folder: folder.clone(), settings })
        };
        run(&["fs.aio-max-nr = 30000000"])?;
        assert_eq!(fs::read_to_string(folder.join("fs/aio-max-nr"))?, "30000000");
        let unknown = run(&["fs.nonsense=1"]).map_err(|error| error.to_string());
        assert_eq!(unknown, Err("the kernel has no setting fs.nonsense, or hides it".to_owned()));
        assert!(run(&["nonsense"]).is_err());
        fs::write(folder.join("other"), "1")?;
        for outside in ["fs/../other=2".to_owned(), format!("{}=2", folder.join("other").display())] {
            assert!(run(&[&outside]).is_err(), "{outside}");
        }
        assert_eq!(fs::read_to_string(folder.join("other"))?, "1");
        Ok(fs::remove_dir_all(folder)?)
    }
}
