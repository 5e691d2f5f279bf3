//! Runs other programs. Their output goes to a log, and its last lines to the error.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use crate::error::{Doing, Error, Result};

/// How many last lines of a log an error shows.
const TAIL: usize = 15;

/// Runs a program and waits for it. Its output goes to `log`, and each line of it to `line`.
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
    // The command holds the write ends of the pipe; the loop below ends only when they are closed.
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

/// Runs a short program and returns its output.
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

/// The path of a program of this name, if there is one.
pub fn find(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| is_executable(file))
}

/// The path of the running program, as an argument for another one.
pub fn own_program() -> Result<String> {
    let program = std::env::current_exe().doing(|| "finding the path of the testbed".into())?;
    Ok(program.to_string_lossy().into_owned())
}

/// Whether a process is running.
pub fn is_alive(pid: i32) -> bool {
    // "123 (name) Z ...": a zombie, for which its parent has not waited yet
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    state.is_some_and(|state| state != "Z" && state != "X")
}

/// The CPU time of a process and of its ended children; zero when the process is gone.
pub fn cpu_time(pid: i32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // "4711 (name) S ...": the name may contain anything, so the fields begin after the last parenthesis.
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    // utime, stime, cutime and cstime, the 14th to 17th of all.
    let ticks: u64 = after.split_whitespace().skip(11).take(4).filter_map(|number| number.parse::<u64>().ok()).sum();
    // Linux reports hundredths of a second on all hosts.
    Duration::from_millis(ticks * 10)
}

/// The process and all its descendants.
pub fn descendants(of: i32) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let parent = |pid: i32| -> Option<i32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let mut children = HashMap::<i32, Vec<i32>>::new();
    for pid in pids {
        if let Some(parent) = parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = vec![of];
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        found.extend(children.remove(pid).unwrap_or_default());
        next += 1;
    }
    found
}

/// Whether a file is executable.
pub fn is_executable(file: &Path) -> bool {
    nix::unistd::access(file, nix::unistd::AccessFlags::X_OK).is_ok() && file.is_file()
}

/// The last lines of a log.
pub fn tail(log: &Path) -> String {
    last_lines(log, TAIL)
}

/// The content of a log; empty if there is none.
pub fn text_of(log: &Path) -> String {
    fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// The last `count` lines of a log.
pub fn last_lines(log: &Path, count: usize) -> String {
    let text = text_of(log);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].iter().map(|line| format!("  {line:.2000}\n")).collect()
}
