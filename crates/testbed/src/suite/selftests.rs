//! Decides whether to run the tests of the testbed itself: they start many clusters, and only a change of the testbed
//! can break them.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::programs;
use crate::{
    cache,
    error::{Doing, Result},
    tools::GIVEN_PROGRAMS_VARIABLE,
};

/// The sources of the testbed and its tests.
const MADE_FROM: [&str; 12] = [
    "crates/api",
    "crates/scylla-sim",
    "crates/testbed",
    "deploy/operator.yaml",
    "tests/e2e/testbed",
    "tests/src/clusters.rs",
    "tests/src/lib.rs",
    "tests/Cargo.toml",
    ".cargo/config.toml",
    "Cargo.lock",
    "Cargo.toml",
    "rust-toolchain.toml",
];

/// Whether the tests of the testbed are due.
#[derive(Debug)]
pub(super) struct State {
    is_selected: bool,
    key: String,
    /// A file in the target folder, which a clean clone does not have.
    stamp: PathBuf,
}

impl State {
    pub(super) fn read(is_selected: bool) -> Result<Self> {
        let mut hash = Sha256::new();
        for part in MADE_FROM {
            add(&mut hash, &programs::workspace().join(part))?;
        }
        hash.update(format!("{:?}", tools()?));
        let key = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { is_selected, key, stamp: programs::target_folder()?.join("selftests-passed") })
    }

    /// Whether they are selected, and have not passed in this checkout with the current sources.
    pub(super) fn are_due(&self) -> bool {
        self.is_selected && cache::read(&self.stamp).ok().as_deref() != Some(&self.key)
    }

    /// Records that a run with these tests has passed.
    pub(super) fn passed(&self) -> Result<()> {
        if self.is_selected { cache::write(&self.stamp, &self.key) } else { Ok(()) }
    }
}

/// The tools that the testbed uses: the names of their folders contain their versions and inputs. A run that first has
/// to build them does not know the names yet, so the tests are due again in the next run.
fn tools() -> Result<(Vec<OsString>, Option<OsString>)> {
    let names =
        fs::read_dir(cache::root()?.join("tools")).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let mut names: Vec<OsString> = names.collect();
    names.sort();
    Ok((names, std::env::var_os(GIVEN_PROGRAMS_VARIABLE)))
}

/// Adds a file, or all files of a folder in the order of their names, each with its path.
fn add(hash: &mut Sha256, path: &Path) -> Result<()> {
    let doing = || format!("reading {}", path.display());
    if !path.is_dir() {
        hash.update(path.to_string_lossy().as_bytes());
        hash.update(fs::read(path).doing(doing)?);
        return Ok(());
    }
    let mut entries = fs::read_dir(path)
        .doing(doing)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<Vec<_>>>()
        .doing(doing)?;
    entries.sort();
    entries.iter().try_for_each(|entry| add(hash, entry))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn selftests_are_due_until_they_pass_with_the_current_sources() {
        let folder = std::env::temp_dir().join(format!("messina-selftests-{}", std::process::id()));
        let state = |key: &str, is_selected| State { is_selected, key: key.into(), stamp: folder.join("passed") };
        assert!(state("one", true).are_due(), "a clean clone has no stamp");
        assert!(!state("one", false).are_due(), "the quick tier does not run them");
        state("one", false).passed().unwrap();
        assert!(state("one", true).are_due(), "a run without them proves nothing");
        state("one", true).passed().unwrap();
        assert!(!state("one", true).are_due());
        assert!(state("two", true).are_due(), "a source has changed");
        cache::remove(&folder).unwrap();
    }

    #[test]
    fn hash_changes_with_any_file_of_a_folder() {
        let folder = std::env::temp_dir().join(format!("messina-selftests-hash-{}", std::process::id()));
        let key = || {
            let mut hash = Sha256::new();
            add(&mut hash, &folder).unwrap();
            hash.finalize()
        };
        cache::write(&folder.join("a/b"), "one").unwrap();
        let first = key();
        assert_eq!(first, key());
        cache::write(&folder.join("a/b"), "two").unwrap();
        let second = key();
        assert_ne!(first, second);
        cache::write(&folder.join("c"), "").unwrap();
        assert_ne!(second, key());
        cache::remove(&folder).unwrap();
    }
}
