//! Running other programs, with their output in a log and its end in the error.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
};

use crate::error::{Doing, Error, Result};

/// How many of a log's last lines an error shows.
const TAIL: usize = 15;

/// Runs a program to its end. Its output goes to `log`; each line of it is also shown to `line`.
pub fn run(what: &str, command: &mut Command, log: &Path, mut line: impl FnMut(&str)) -> Result<()> {
    if let Some(parent) = log.parent() {
        fs::create_dir_all(parent).doing(|| format!("creating {}", parent.display()))?;
    }
    let mut file =
        File::options().create(true).append(true).open(log).doing(|| format!("opening {}", log.display()))?;
    let program = command.get_program().to_owned();
    let (reader, writer) = std::io::pipe().doing(|| "making a pipe".into())?;
    command.stdin(Stdio::null()).stdout(writer.try_clone().doing(|| "copying a pipe".into())?).stderr(writer);
    let mut child = command.spawn().doing(|| format!("starting {}", program.display()))?;
    // The command holds the writing ends; the reading below ends only when they are gone.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    for text in BufReader::new(reader).split(b'\n') {
        let text = text.doing(|| format!("reading what {} prints", program.display()))?;
        let text = String::from_utf8_lossy(&text);
        writeln!(file, "{text}").doing(|| format!("writing {}", log.display()))?;
        line(&text);
    }
    let status = child.wait().doing(|| format!("waiting for {}", program.display()))?;
    if status.success() {
        Ok(())
    } else {
        Err(Error::Program { what: what.into(), status, tail: tail(log), log: log.into() })
    }
}

/// Runs a short program and gives what it printed.
pub fn output(what: &str, command: &mut Command) -> Result<String> {
    let program = command.get_program().to_owned();
    let output = command.stdin(Stdio::null()).output().doing(|| format!("{what}: starting {}", program.display()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(Error::refused(format!("{what}: {} ended with {}: {}", program.display(), output.status, said.trim())))
    }
}

/// Whether a program of this name is found.
pub fn find(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| is_executable(file))
}

/// The program that is running, as an argument for another.
pub fn own_program() -> Result<String> {
    let program = std::env::current_exe().doing(|| "finding the testbed's own program".into())?;
    Ok(program.to_string_lossy().into_owned())
}

/// Whether a file can be run.
pub fn is_executable(file: &Path) -> bool {
    nix::unistd::access(file, nix::unistd::AccessFlags::X_OK).is_ok() && file.is_file()
}

/// The last lines of a log.
pub fn tail(log: &Path) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].iter().map(|line| format!("  {line}\n")).collect()
}
