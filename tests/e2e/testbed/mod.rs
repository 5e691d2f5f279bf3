//! The testbed itself: it starts, it fits beside others of its kind, and it leaves nothing behind.

mod cluster;
mod lifecycle;
mod misuse;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use messina_testbed::harness;
use tokio::sync::{Mutex, MutexGuard};

/// Why these tests do not run here, if they do not.
fn unsuitable() -> Option<&'static str> {
    if std::env::var_os(harness::KUBECONFIG_VARIABLE).is_some() {
        return Some("an existing cluster was named, so the testbed's own are not tested");
    }
    let id = Command::new("id").arg("-u").output().expect("id runs");
    (id.stdout.trim_ascii() != b"0").then_some("clusters with nodes need root")
}

/// Skips the test, saying why, where the testbed cannot run; else keeps other tests of the machine waiting.
macro_rules! machine {
    () => {
        match $crate::testbed::unsuitable() {
            Some(reason) => {
                eprintln!("skipped: {reason}");
                return;
            }
            None => $crate::testbed::alone().await,
        }
    };
}
use machine;

/// Tests here look at the whole machine, so they take turns.
async fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}

/// The program `testbed` with these arguments, not started yet.
fn testbed(arguments: &[&str]) -> Command {
    let mut command = Command::new(harness::testbed_program().expect("the program is beside the tests"));
    command.args(arguments);
    command
}

/// Runs `testbed` and expects it to do what it was asked.
fn succeeds(command: &mut Command) -> String {
    let output = command.output().expect("testbed starts");
    assert!(output.status.success(), "{command:?}: {}", all_of(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs `testbed` and expects it to refuse, in words that contain these.
fn refuses(command: &mut Command, words: &[&str]) {
    let output = command.output().expect("testbed starts");
    let said = all_of(&output);
    assert!(!output.status.success(), "{command:?} should have failed: {said}");
    for word in words {
        assert!(said.contains(word), "{command:?} should say {word:?}: {said}");
    }
}

fn all_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// What a testbed could change on a machine: whoever looks before and after sees the same.
#[derive(Debug, PartialEq, Eq)]
struct Machine {
    processes: BTreeSet<String>,
    namespaces: BTreeSet<String>,
    links: BTreeSet<String>,
    routes: BTreeSet<String>,
    mounts: BTreeSet<String>,
    control_groups: BTreeSet<PathBuf>,
    kernel: Vec<String>,
    folders: Vec<(PathBuf, BTreeSet<PathBuf>)>,
}

impl Machine {
    fn now() -> Self {
        Self {
            processes: processes("/messina/clusters/"),
            namespaces: lines(Command::new("ip").args(["netns", "list"]), |line| first_word(line)),
            links: lines(Command::new("ip").args(["-brief", "link"]), |line| first_word(line)),
            routes: lines(Command::new("ip").args(["-4", "route"]), str::to_owned),
            mounts: fs::read_to_string("/proc/self/mounts")
                .expect("/proc is there")
                .lines()
                .map(str::to_owned)
                .collect(),
            control_groups: control_groups(),
            kernel: [
                "vm/overcommit_memory",
                "vm/panic_on_oom",
                "kernel/panic",
                "kernel/panic_on_oops",
                "net/ipv4/ip_forward",
            ]
            .map(|key| fs::read_to_string(Path::new("/proc/sys").join(key)).unwrap_or_default())
            .into(),
            folders: ["/run", "/var/lib", "/var/log", "/etc", "/opt"]
                .map(|folder| (folder.into(), entries(folder)))
                .into(),
        }
    }
}

/// The command lines that speak of a cluster's folder.
fn processes(part: &str) -> BTreeSet<String> {
    let entries = fs::read_dir("/proc").expect("/proc is there").filter_map(|entry| entry.ok());
    let commands = entries.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
    commands.filter(|command| command.contains(part)).map(|command| command.replace('\0', " ")).collect()
}

fn control_groups() -> BTreeSet<PathBuf> {
    let hierarchies = entries("/sys/fs/cgroup").into_iter().chain([PathBuf::from("/sys/fs/cgroup")]);
    let groups = hierarchies.flat_map(|hierarchy| fs::read_dir(hierarchy).into_iter().flatten().flatten());
    groups.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

fn entries(folder: impl AsRef<Path>) -> BTreeSet<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn lines(command: &mut Command, part: impl Fn(&str) -> String) -> BTreeSet<String> {
    let output = command.output().expect("ip runs");
    String::from_utf8_lossy(&output.stdout).lines().map(part).collect()
}

fn first_word(line: &str) -> String {
    line.split_whitespace().next().unwrap_or_default().to_owned()
}
