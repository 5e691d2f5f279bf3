//! Which programs are taken: official ones, built ones, those of an earlier run.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::release::tests::{Site, scratch, server_archive};

/// Stands for the build with Go: leaves a file that tells which of the two it was.
fn make(partial: &Path, official: Option<&Path>) -> Result<()> {
    match official {
        Some(official) => fs::hard_link(official.join("kubelet"), partial.join("kubelet")).doing(String::new),
        None => cache::write(&partial.join("kubelet"), "built"),
    }
}

/// What the run takes as kubelet.
fn kubelet(tools: &Path, archive: Option<&ServerArchive>) -> String {
    let dir = programs_in(tools, archive, DownloadLimits::default(), &Steps::quiet(), make).unwrap();
    cache::read(&dir.join("kubelet")).unwrap()
}

fn fails(_: &Path, _: Option<&Path>) -> Result<()> {
    Err(Error::refused("the build failed"))
}

#[test]
fn official_programs_are_downloaded_once_and_never_built_later() {
    let tools = scratch("official");
    let (content, sum) = server_archive(&KUBE_COMMANDS);
    let site = Site::serving(content);
    let archive = site.archive(&sum);
    // The content of a program in that archive is its name.
    assert_eq!(kubelet(&tools, Some(&archive)), "kubelet");
    assert_eq!(kubelet(&tools, Some(&archive)), "kubelet");
    assert_eq!(site.connections(), 1);
    assert_eq!(kubelet(&tools, None), "built", "no official programs for a user who wants a build");
    assert_eq!(kubelet(&tools, Some(&archive)), "kubelet");
    assert_eq!(site.connections(), 1);
    cache::remove(&tools).unwrap();
}

#[test]
fn programs_that_were_built_are_not_downloaded_later() {
    let tools = scratch("built");
    let (content, sum) = server_archive(&KUBE_COMMANDS);
    let site = Site::serving(content);
    assert_eq!(kubelet(&tools, None), "built");
    assert_eq!(kubelet(&tools, Some(&site.archive(&sum))), "built");
    assert_eq!(site.connections(), 0, "a filled cache needs no network");
    cache::remove(&tools).unwrap();
}

#[test]
fn programs_are_built_when_the_download_fails() {
    let tools = scratch("fallback");
    let (content, _) = server_archive(&KUBE_COMMANDS);
    let site = Site::serving(content);
    let archive = site.archive(&"0".repeat(128));
    assert_eq!(kubelet(&tools, Some(&archive)), "built");
    assert_eq!(kubelet(&tools, Some(&archive)), "built");
    assert_eq!(site.connections(), 1, "the next run uses what was built");
    let unverified = fs::read_dir(&tools).unwrap().flatten().filter(|entry| entry.path().is_dir()).count();
    assert_eq!(unverified, 1, "only what was built is left");
    cache::remove(&tools).unwrap();
}

#[test]
fn a_failed_build_beside_official_programs_keeps_the_download() {
    let tools = scratch("kept");
    let (content, sum) = server_archive(&KUBE_COMMANDS);
    let site = Site::serving(content);
    let archive = site.archive(&sum);
    let failed = programs_in(&tools, Some(&archive), DownloadLimits::default(), &Steps::quiet(), fails);
    assert_eq!(failed.unwrap_err().to_string(), "the build failed");
    assert_eq!(kubelet(&tools, Some(&archive)), "kubelet");
    assert_eq!(site.connections(), 1);
    cache::remove(&tools).unwrap();
}

#[test]
fn runs_at_the_same_time_download_once() {
    let tools = scratch("together");
    let (content, sum) = server_archive(&KUBE_COMMANDS);
    let site = Site::serving(content);
    let archive = site.archive(&sum);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(kubelet(&tools, Some(&archive)), "kubelet"));
        }
    });
    assert_eq!(site.connections(), 1);
    cache::remove(&tools).unwrap();
}
