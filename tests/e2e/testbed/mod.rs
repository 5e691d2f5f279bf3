//! Tests of the testbed itself: clusters start, run beside each other, and leave nothing behind.

mod clusters;
mod etcd;
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

/// Skips the test, and prints why, where the testbed cannot run clusters with Kubernetes nodes.
macro_rules! skip_if_unsuitable {
    () => {
        if let Some(reason) = messina_e2e::clusters::unsuitable() {
            eprintln!("skipped: {reason}");
            return;
        }
    };
}
pub(crate) use skip_if_unsuitable;

/// The parts of this host that a testbed could change, by subject. Parts of other clusters than these are ignored,
/// because other tests start and remove them.
struct HostState {
    clusters: &'static [&'static str],
    subjects: BTreeMap<&'static str, BTreeSet<String>>,
}

impl HostState {
    async fn before(clusters: &'static [&'static str]) -> Self {
        // The parts that all clusters share exist as long as one of them does.
        harness::full().await.unwrap();
        Self::with(clusters)
    }

    fn with(clusters: &'static [&'static str]) -> Self {
        let kernel = ["vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"];
        let kernel = kernel.into_iter().chain([
            "kernel/keys/root_maxkeys",
            "net/ipv4/ip_forward",
            "fs/inotify/max_user_instances",
        ]);
        let value = |key: &str| fs::read_to_string(Path::new("/proc/sys").join(key)).unwrap_or_default();
        let mounts = fs::read_to_string("/proc/self/mounts").expect("/proc is there");
        let mut subjects = BTreeMap::from([
            ("process", processes()),
            ("network namespace", lines(Command::new("ip").args(["netns", "list"]), first_word)),
            ("link", lines(Command::new("ip").args(["-brief", "link"]), first_word)),
            ("route", lines(Command::new("ip").args(["-4", "route"]), str::to_owned)),
            ("mount", mounts.lines().map(str::to_owned).collect()),
            ("control group", control_groups()),
            ("kernel parameter", kernel.map(|key| format!("{key} = {}", value(key))).collect()),
            ("file", ["/run", "/var/lib", "/var/log", "/etc", "/opt"].into_iter().flat_map(entries).collect()),
        ]);
        for seen in subjects.values_mut() {
            seen.retain(|one| !is_of_another(one, clusters));
        }
        Self { clusters, subjects }
    }

    /// The differences to the current state, a line each.
    fn changes(&self) -> Vec<String> {
        let now = Self::with(self.clusters);
        let subjects = self.subjects.iter().zip(now.subjects.values());
        let changes = subjects.flat_map(|((subject, before), now)| {
            let gone = before.difference(now).map(move |one| format!("gone: {subject} {one}"));
            let new = now.difference(before).map(move |one| format!("new: {subject} {one}"));
            gone.chain(new).collect::<Vec<_>>()
        });
        changes.collect()
    }

    /// Fails unless the host is unchanged, and shows the differences.
    fn check_unchanged(&self) {
        let changes = self.changes();
        assert!(changes.is_empty(), "{changes:#?}");
    }
}

/// Whether a name, a path or a command line belongs to a cluster other than these.
fn is_of_another(text: &str, clusters: &[&str]) -> bool {
    let names = ["messina-", "/messina/clusters/"].into_iter().filter_map(|before| Some(text.split_once(before)?.1));
    let mut names = names.peekable();
    names.peek().is_some() && names.all(|name| clusters.iter().chain([&"fabric"]).all(|own| !name.starts_with(own)))
}

/// The command lines that contain the folder of a cluster.
fn processes() -> BTreeSet<String> {
    let entries = fs::read_dir("/proc").expect("/proc is there").filter_map(|entry| entry.ok());
    let commands = entries.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
    let is_seen = |command: &String| command.contains("/messina/clusters/");
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
