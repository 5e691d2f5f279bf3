//! The test programs of the workspace.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::{
    error::{Error, Result, malformed},
    exec,
};

/// A test program.
#[derive(Clone, Debug)]
pub(super) struct Program {
    /// Its package and target, such as `plan datacenter`.
    pub(super) name: String,
    pub(super) file: PathBuf,
    /// The folder of its package, in which it runs.
    pub(super) folder: PathBuf,
}

impl Program {
    /// Whether its tests need clusters.
    pub(super) fn is_end_to_end(&self) -> bool {
        self.name == "e2e e2e"
    }

    /// The names of its tests, without ignored ones.
    pub(super) fn tests(&self) -> Result<Vec<String>> {
        let list = |more: &[&str]| {
            let mut command = Command::new(&self.file);
            command.args(["--list", "--format", "terse"]).args(more).current_dir(&self.folder);
            let listed = exec::output(&format!("listing the tests of {}", self.name), &mut command)?;
            Ok(listed.lines().filter_map(|line| line.strip_suffix(": test").map(str::to_owned)).collect::<Vec<_>>())
        };
        let ignored = list(&["--ignored"])?;
        Ok(list(&[])?.into_iter().filter(|test| !ignored.contains(test)).collect())
    }
}

/// Builds the test programs. `make` has built them before, with cargo's progress.
pub(super) fn built() -> Result<Vec<Program>> {
    let mut command = Command::new("cargo");
    command.args(["build", "--workspace", "--all-targets", "--quiet", "--message-format=json"]);
    command.current_dir(workspace());
    let said = exec::output("cargo build", &mut command)?;
    let mut programs = said.lines().filter_map(|line| program(line).transpose()).collect::<Result<Vec<_>>>()?;
    programs.sort_by(|one, other| one.name.cmp(&other.name));
    if programs.is_empty() {
        return Err(Error::refused("cargo has built no test program"));
    }
    Ok(programs)
}

/// The test program that a message of cargo describes, if any.
fn program(line: &str) -> Result<Option<Program>> {
    let message: Value = serde_json::from_str(line).map_err(malformed("reading the output of cargo"))?;
    let text = |pointer: &str| message.pointer(pointer).and_then(Value::as_str);
    let (Some(file), Some(true)) = (text("/executable"), message["profile"]["test"].as_bool()) else {
        return Ok(None);
    };
    let manifest = Path::new(text("/manifest_path").unwrap_or_default());
    let folder = manifest.parent().unwrap_or(manifest).to_owned();
    let package = match folder.file_name().map(|name| name.to_string_lossy().into_owned()) {
        Some(name) if name == "tests" => "e2e".to_owned(),
        name => name.unwrap_or_default(),
    };
    let is_library = message["target"]["kind"][0] == "lib";
    let target = if is_library { "unit" } else { text("/target/name").unwrap_or_default() };
    Ok(Some(Program { name: format!("{package} {target}"), file: file.into(), folder }))
}

/// The folder of the workspace from which this program was built.
pub(super) fn workspace() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).unwrap_or(own)
}

/// Cargo's target folder.
pub(super) fn target_folder() -> Result<PathBuf> {
    let own = PathBuf::from(exec::own_program()?);
    // target/TRIPLE/debug/testbed
    own.ancestors()
        .nth(3)
        .map(Path::to_owned)
        .ok_or_else(|| Error::refused("this program is not in a target folder of cargo"))
}
