//! The testbed itself: it starts, it fits beside others of its kind, and it leaves nothing behind.

mod clusters;
mod lifecycle;
mod misuse;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use messina_e2e::clusters::{Started, cluster_named, refuses, succeeds, testbed};
use messina_testbed::harness;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Skips the test, saying why, where the testbed cannot run; else keeps those waiting that look at the whole machine.
macro_rules! machine {
    () => {
        $crate::testbed::machine!($crate::testbed::beside_others())
    };
    ($turn:expr) => {
        match messina_e2e::clusters::unsuitable() {
            Some(reason) => {
                eprintln!("skipped: {reason}");
                return;
            }
            None => $turn.await,
        }
    };
}
pub(crate) use machine;

static TURN: RwLock<()> = RwLock::const_new(());

/// Keeps those waiting that look at the whole machine, and would see what is changed there now.
pub(crate) async fn turn() -> RwLockReadGuard<'static, ()> {
    TURN.read().await
}

/// For tests with clusters of their own. The clusters that all tests share are there before.
pub(crate) async fn beside_others() -> RwLockReadGuard<'static, ()> {
    let turn = turn().await;
    shared_clusters().await;
    turn
}

/// For tests that look at the whole machine: nobody else starts or removes a cluster meanwhile.
pub(crate) async fn alone() -> RwLockWriteGuard<'static, ()> {
    let turn = TURN.write().await;
    shared_clusters().await;
    turn
}

async fn shared_clusters() {
    harness::light().await.unwrap();
    harness::full().await.unwrap();
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
