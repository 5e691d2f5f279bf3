//! The testbed itself: it starts, it fits beside others of its kind, and it leaves nothing behind.

mod clusters;
mod etcd;
mod lifecycle;
mod misuse;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::{Command, Output},
};

use kube::Client;
use messina_testbed::{
    cluster::{self, Cluster},
    harness,
};
use tokio::sync::{Mutex, MutexGuard};

/// Why these tests do not run here, if they do not.
pub(crate) fn unsuitable() -> Option<&'static str> {
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
pub(crate) use machine;

/// Keeps others waiting that look at the whole machine, or change what those would see.
pub(crate) async fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}

/// Tests here look at the whole machine, so they take turns. The clusters that all tests share are there before: else
/// they could appear in the middle of one.
pub(crate) async fn alone() -> MutexGuard<'static, ()> {
    let turn = turn().await;
    harness::light().await.unwrap();
    harness::full().await.unwrap();
    turn
}

/// A cluster that a test started, removed when the test ends, however it ends.
pub(crate) struct Started(&'static str);

impl Started {
    pub(crate) fn up(name: &'static str, arguments: &[&str]) -> Self {
        let started = Self(name);
        succeeds(&mut testbed(&[&["up", "--name", name], arguments].concat()));
        started
    }

    /// Removes it now, which must succeed.
    pub(crate) fn down(self) {
        succeeds(&mut testbed(&["down", "--name", self.0]));
    }

    pub(crate) async fn client(&self) -> Client {
        harness::client(&cluster_named(self.0).kubeconfig()).await.unwrap()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if cluster::find(self.0).is_ok() {
            let _the_test_failed_before = testbed(&["down", "--name", self.0]).output();
        }
    }
}

pub(crate) fn cluster_named(name: &str) -> Cluster {
    cluster::find(name).unwrap()
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

/// What a testbed could change on a machine, by subject.
struct Machine(BTreeMap<&'static str, BTreeSet<String>>);

impl Machine {
    fn now() -> Self {
        let kernel = ["vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"];
        let kernel = kernel.into_iter().chain(["kernel/keys/root_maxkeys", "net/ipv4/ip_forward"]);
        let value = |key: &str| fs::read_to_string(Path::new("/proc/sys").join(key)).unwrap_or_default();
        let mounts = fs::read_to_string("/proc/self/mounts").expect("/proc is there");
        Self(BTreeMap::from([
            ("process", processes()),
            ("network namespace", lines(Command::new("ip").args(["netns", "list"]), first_word)),
            ("link", lines(Command::new("ip").args(["-brief", "link"]), first_word)),
            ("route", lines(Command::new("ip").args(["-4", "route"]), str::to_owned)),
            ("mount", mounts.lines().map(str::to_owned).collect()),
            ("control group", control_groups()),
            ("kernel parameter", kernel.map(|key| format!("{key} = {}", value(key))).collect()),
            ("file", ["/run", "/var/lib", "/var/log", "/etc", "/opt"].into_iter().flat_map(entries).collect()),
        ]))
    }

    /// What is different now, a line each.
    fn changes(&self) -> Vec<String> {
        let now = Self::now();
        let subjects = self.0.iter().zip(now.0.values());
        let changes = subjects.flat_map(|((subject, before), now)| {
            let gone = before.difference(now).map(move |one| format!("gone: {subject} {one}"));
            let new = now.difference(before).map(move |one| format!("new: {subject} {one}"));
            gone.chain(new).collect::<Vec<_>>()
        });
        changes.collect()
    }

    /// Fails unless the machine is as it was, showing what is not.
    fn is_as_it_was(&self) {
        let changes = self.changes();
        assert!(changes.is_empty(), "{changes:#?}");
    }
}

/// The command lines that speak of a cluster's folder, but for those of the clusters that all tests share: other tests
/// are at work there.
fn processes() -> BTreeSet<String> {
    let entries = fs::read_dir("/proc").expect("/proc is there").filter_map(|entry| entry.ok());
    let commands = entries.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
    let is_seen =
        |command: &String| command.contains("/messina/clusters/") && !command.contains("/messina/clusters/test");
    commands.filter(is_seen).map(|command| command.replace('\0', " ")).collect()
}

fn control_groups() -> BTreeSet<String> {
    let hierarchies = entries("/sys/fs/cgroup").into_iter().chain(["/sys/fs/cgroup".into()]);
    hierarchies.flat_map(entries).filter(|path| Path::new(path).is_dir()).collect()
}

fn entries(folder: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path().to_string_lossy().into_owned()).collect()
}

fn lines(command: &mut Command, part: impl Fn(&str) -> String) -> BTreeSet<String> {
    let output = command.output().expect("ip runs");
    String::from_utf8_lossy(&output.stdout).lines().map(part).collect()
}

fn first_word(line: &str) -> String {
    line.split_whitespace().next().unwrap_or_default().to_owned()
}
