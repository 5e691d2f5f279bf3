//! Tests of starting and stopping clusters, also after kills.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use messina_testbed::{
    cluster::{self, State},
    harness,
};

use super::{HostState, Started, cluster_named, skip_if_unsuitable, succeeds, testbed};

#[tokio::test]
async fn five_clusters_one_after_another_leave_the_host_unchanged() {
    skip_if_unsuitable!();
    let before = HostState::before(&["cycle"]).await;
    for _ in 0..5 {
        let started = Instant::now();
        let cluster = Started::up("cycle", &[]);
        let up = started.elapsed();
        assert!(!before.changes().is_empty(), "a running cluster has to be detected, or this test proves nothing");
        let started = Instant::now();
        cluster.down();
        eprintln!("up in {:.1} s, down in {:.1} s", up.as_secs_f64(), started.elapsed().as_secs_f64());
        before.check_unchanged();
    }
}

#[tokio::test]
async fn next_start_removes_what_a_killed_testbed_left() {
    skip_if_unsuitable!();
    let before = HostState::before(&["killed", "other"]).await;

    eprintln!("the process that owns the cluster is killed");
    let killed = Started::up("killed", &[]);
    kill(owner_of("killed"));
    succeeds(&mut testbed(&["up", "--name", "killed"]));

    eprintln!("the process above it is killed");
    kill(parent_of(owner_of("killed")));
    // Another cluster's start removes the dead one, also that of another test.
    let is_dead = || cluster::find("killed").map_or(true, |cluster| matches!(cluster.state(), State::Dead));
    await_that("its end", is_dead);
    let other = Started::up("other", &[]);
    assert!(cluster::find("killed").is_err(), "the dead cluster should be gone");
    other.down();
    before.check_unchanged();

    eprintln!("`testbed up` itself is killed while the cluster starts");
    let mut up = in_background(&["up", "--name", "killed"]);
    await_that("the first network namespace", || fs::exists("/run/netns/messina-killed-n1").unwrap_or(false));
    up.kill().expect("it can be killed");
    up.wait().expect("it ends");
    succeeds(&mut testbed(&["up", "--name", "killed"]));
    killed.down();
    before.check_unchanged();
}

#[tokio::test]
async fn cluster_is_removed_after_its_last_process_has_ended() {
    skip_if_unsuitable!();
    let freezer = Path::new("/sys/fs/cgroup/freezer");
    if !freezer.join("cgroup.procs").exists() {
        eprintln!("skipped: cgroups of version 2 cannot keep a process from ending");
        return;
    }
    let cluster = Started::up("lifecycle-frozen", &["--light"]);
    let etcd = Command::new("pgrep").args(["-f", "etcd .*/clusters/lifecycle-frozen/"]).output().unwrap();
    let group = freezer.join("messina-lifecycle-frozen-test");
    fs::create_dir(&group).unwrap();
    fs::write(group.join("cgroup.procs"), String::from_utf8_lossy(&etcd.stdout).trim()).unwrap();
    fs::write(group.join("freezer.state"), "FROZEN").unwrap();
    kill(owner_of("lifecycle-frozen"));
    let removal = testbed(&["down", "--name", "lifecycle-frozen"]).output().unwrap();
    fs::write(group.join("freezer.state"), "THAWED").unwrap();
    let output = String::from_utf8_lossy(&removal.stderr);
    assert!(output.contains("does not end"), "{output}");
    await_that("the end of the frozen process", || fs::remove_dir(&group).is_ok());
    cluster.down();
}

#[tokio::test]
async fn second_concurrent_start_of_a_cluster_is_refused() {
    skip_if_unsuitable!();
    let twice = Started("twice");
    let both = [0, 1].map(|_| in_background(&["up", "--name", "twice"]));
    let outputs = both.map(|up| up.wait_with_output().expect("it ends"));
    let (good, bad): (Vec<_>, Vec<_>) = outputs.iter().partition(|output| output.status.success());
    assert_eq!((good.len(), bad.len()), (1, 1), "{outputs:?}");
    let output = String::from_utf8_lossy(&bad[0].stderr);
    assert!(output.contains("is being started or stopped by"), "{output}");
    // A third start, after the first is done, finds the cluster running.
    succeeds(&mut testbed(&["up", "--name", "twice"]));
    twice.down();
}

#[tokio::test]
async fn light_cluster_serves_its_api_and_writes_an_audit_log() {
    skip_if_unsuitable!();
    let before = HostState::before(&["lifecycle-light"]).await;
    let started = Instant::now();
    let light = Started::up("lifecycle-light", &["--light"]);
    eprintln!("usable after {:.1} s", started.elapsed().as_secs_f64());
    let namespace = harness::namespace(&light.client().await, "audited").await.unwrap();
    let log = cluster_named("lifecycle-light").audit_log();
    // The entry is written while the response is sent.
    await_that("the entry in the audit log", || {
        let entries = fs::read_to_string(&log).unwrap();
        entries.lines().any(|entry| entry.contains(&namespace) && entry.contains(r#""verb":"create""#))
    });
    light.down();
    before.check_unchanged();
}

fn in_background(arguments: &[&str]) -> Child {
    testbed(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("testbed starts")
}

/// The process ID of the process that owns all others of a cluster.
fn owner_of(cluster: &str) -> u32 {
    let found =
        Command::new("pgrep").args(["-f", &format!("testbed supervise .*/clusters/{cluster}$")]).output().unwrap();
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    // `unshare` has the same end of its command line, but no namespace of its own.
    let is_owner = |pid: &u32| status_of(*pid, "NSpid:").split_whitespace().count() == 2;
    let mut pids = found.lines().filter_map(|pid| pid.parse().ok());
    pids.find(is_owner).unwrap_or_else(|| panic!("no owner of {cluster} runs"))
}

fn parent_of(pid: u32) -> u32 {
    status_of(pid, "PPid:").trim().parse().unwrap()
}

/// A field of the status of a process.
fn status_of(pid: u32, key: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default().to_owned()
}

fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
}

fn await_that(what: &str, is_reached: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_reached() {
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
