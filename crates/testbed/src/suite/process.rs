//! Runs a test as a process.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{Id, WaitPidFlag, waitid},
    },
    unistd::Pid,
};

use super::{Item, LIMIT, Needs};
use crate::{
    cluster::{COSTS_VARIABLE, TEST_VARIABLE},
    deadline::Deadline,
    error::{Doing, Result},
    exec,
};

/// The outcome of a test.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) name: String,
    pub(super) ending: Ending,
    pub(super) wall: Duration,
    /// CPU time of the process and of its children.
    pub(super) cpu: Duration,
    pub(super) log: PathBuf,
}

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Passed,
    /// It was skipped; its log has the reason.
    Skipped,
    Failed,
}

impl Outcome {
    /// Prints the outcome, and the test's last lines if it failed.
    pub(super) fn print(&self, number: usize, total: usize, since: Duration) {
        let mark = match self.ending {
            Ending::Passed => "✓",
            Ending::Skipped => "-",
            Ending::Failed => "✗",
        };
        let (wall, since) = (self.wall.as_secs_f64(), since.as_secs());
        println!("{mark} {wall:>6.1} s  {} ({number} of {total}, after {since} s)", self.name);
        if self.ending == Ending::Failed {
            println!("{}", exec::last_lines(&self.log, 250));
        }
    }

    /// Why it failed: the message of the first panic, or else the last lines.
    pub(super) fn why(&self) -> String {
        const LINES: usize = 12;
        let log = exec::text_of(&self.log);
        match log.lines().position(|line| line.contains("panicked at")) {
            Some(first) => log.lines().skip(first).take(LINES).map(|line| format!("  {line:.2000}\n")).collect(),
            None => exec::last_lines(&self.log, LINES),
        }
    }
}

/// Runs a test and waits for it.
pub(super) fn run(item: &Item, logs: &Path) -> Outcome {
    let file: String = item.name.chars().map(|c| if c.is_alphanumeric() || c == '_' { c } else { '-' }).collect();
    let log = logs.join(format!("{file}.log"));
    let began = Instant::now();
    let (passed, cpu) = start(item, &log, logs).and_then(wait).unwrap_or_else(|error| {
        // Users look for the reason of a failure in the log.
        let _ = fs::write(&log, error.to_string());
        (false, Duration::ZERO)
    });
    // A program with many tests passes even if some of them are skipped.
    let is_skipped = item.needs > Needs::Nothing && is_skipped(&exec::text_of(&log));
    let ending = match passed {
        false => Ending::Failed,
        true if is_skipped => Ending::Skipped,
        true => Ending::Passed,
    };
    Outcome { name: item.name.clone(), ending, wall: began.elapsed(), cpu, log }
}

/// Whether the log says that the test was skipped.
fn is_skipped(log: &str) -> bool {
    log.lines().any(|line| line.starts_with("skipped: "))
}

fn start(item: &Item, log: &Path, logs: &Path) -> Result<(Child, File)> {
    let output = File::create(log).doing(|| format!("creating {}", log.display()))?;
    let copy = || output.try_clone().doing(|| format!("opening {}", log.display()));
    let (also, ours) = (copy()?, copy()?);
    let child = Command::new(&item.program.file)
        .args(&item.arguments)
        // It is meant for users who run one test.
        .env_remove("MESSINA_FAULTS_ONLY")
        .env_remove("PROPTEST_CASES")
        // With one thread, the first output of a test would be in the same line as its name.
        .env_remove("RUST_TEST_THREADS")
        .envs(item.variables.iter().map(|(name, value)| (name, value)))
        .env("CARGO_MANIFEST_DIR", &item.program.folder)
        .env(COSTS_VARIABLE, logs.join("clusters.jsonl"))
        .env(TEST_VARIABLE, &item.name)
        .current_dir(&item.program.folder)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(also)
        .spawn()
        .doing(|| format!("starting {}", item.program.file.display()))?;
    Ok((child, ours))
}

/// Waits for a test. Returns whether it passed, and its CPU time.
fn wait((mut child, mut file): (Child, File)) -> Result<(bool, Duration)> {
    let pid = Pid::from_raw(child.id().cast_signed());
    let deadline = Deadline::new(LIMIT);
    // Its CPU time can be read while it is a zombie, before this process waits for it.
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
    while let Ok(nix::sys::wait::WaitStatus::StillAlive) = waitid(Id::Pid(pid), flags) {
        if deadline.left().is_none() {
            // With its descendants, which it cannot end any more.
            let _ = writeln!(file, "the runner killed this test: it took longer than {} s", LIMIT.as_secs());
            for one in exec::descendants(pid.as_raw()) {
                let _it_may_have_ended = kill(Pid::from_raw(one), Signal::SIGKILL);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let cpu = exec::cpu_time(pid.as_raw());
    let status = child.wait().doing(|| "waiting for a test process".into())?;
    Ok((status.success(), cpu))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::programs::Program;

    /// The ending of a test that runs these commands, and why it failed.
    fn outcome(name: &str, needs: Needs, commands: &str) -> (Ending, String) {
        let logs = std::env::temp_dir().join(format!("messina-process-{}-{name}", std::process::id()));
        let _ = fs::create_dir_all(&logs);
        let program = Program { name: "a shell".into(), file: "/bin/sh".into(), folder: logs.clone() };
        let arguments = ["-c".to_owned(), commands.to_owned()].into();
        let item = Item { name: name.into(), is_slow: false, program, arguments, variables: vec![], needs, weight: 1 };
        let outcome = run(&item, &logs);
        let why = outcome.why();
        let _ = fs::remove_dir_all(&logs);
        (outcome.ending, why)
    }

    #[test]
    fn test_passes_only_if_its_process_succeeds() {
        for (name, needs, commands, expected) in [
            ("passed", Needs::Light, "echo fine", Ending::Passed),
            ("skipped", Needs::Light, "echo 'skipped: no root'", Ending::Skipped),
            ("many", Needs::Nothing, "echo 'skipped: one of many'", Ending::Passed),
            ("failed", Needs::Light, "echo 'skipped: no root'; exit 101", Ending::Failed),
            ("killed", Needs::Light, "kill -KILL $$", Ending::Failed),
        ] {
            assert_eq!(outcome(name, needs, commands).0, expected, "{name}");
        }
    }

    #[test]
    fn failure_is_explained_by_the_first_panic() {
        let said = "echo before; echo \"thread 'a' panicked at b.rs:1:\"; echo no disk; seq 30; exit 101";
        let (_, why) = outcome("why", Needs::Light, said);
        assert!(why.starts_with("  thread 'a' panicked at b.rs:1:\n  no disk\n  1\n") && !why.contains("30"), "{why}");
        assert_eq!(outcome("silent", Needs::Light, "echo done for; exit 1").1, "  done for\n");
    }
}
