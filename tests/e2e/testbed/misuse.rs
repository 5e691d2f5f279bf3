//! Tests of wrong use: each ends in a clear error, and the next command works.

use std::{
    env, fs,
    net::TcpListener,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use messina_testbed::{progress::Steps, release, tools::Tools};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::{Started, cluster_named, refuses, skip_if_unsuitable, succeeds, testbed};

#[tokio::test]
async fn invalid_arguments_are_refused() {
    skip_if_unsuitable!();
    refuses(
        &mut testbed(&["down", "--name", "nosuch"]),
        &["no cluster is called \"nosuch\"", "testbed up --name nosuch"],
    );
    refuses(&mut testbed(&["kubeconfig", "--name", "nosuch"]), &["no cluster is called \"nosuch\""]);
    refuses(&mut testbed(&["up", "--name", "../etc"]), &["cannot be a cluster's name", "lower-case letters"]);
    refuses(&mut testbed(&["up", "--nodes", "0"]), &["--nodes takes 1 to 15, not 0"]);
    refuses(&mut testbed(&["up", "--kubeconfig", "/nonexistent"]), &["/nonexistent", "No such file"]);
    refuses(&mut testbed(&["up", "--light", "--kubeconfig", "x"]), &["cannot be used with"]);
    refuses(
        &mut testbed(&["up", "--light", "--with-etcd"]),
        &["an etcd cluster needs Kubernetes nodes", "leave out --with-etcd"],
    );
    refuses(&mut testbed(&["up", "--with-etcd", "--etcd-members", "2"]), &["must be 1 or 3"]);
    refuses(&mut testbed(&["up", "--etcd-tls"]), &["--with-etcd"]);
    let text = env::temp_dir().join("messina-not-a-program");
    fs::write(&text, "text").unwrap();
    refuses(&mut testbed(&["image", "a:b", &text.to_string_lossy()]), &["is not a Linux program"]);
}

#[tokio::test]
async fn port_in_use_is_reported_and_can_be_used_when_it_is_free() {
    skip_if_unsuitable!();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    refuses(
        &mut testbed(&["up", "--light", "--name", "port", "--port", &port]),
        &[&format!("port {port} of 127.0.0.1 is not available"), "leave out --port"],
    );
    drop(taken);
    let cluster = Started::up("port", &["--light", "--port", &port]);
    assert!(succeeds(&mut testbed(&["status"])).contains(&format!("https://127.0.0.1:{port}")));
    cluster.down();
}

#[tokio::test]
async fn second_cluster_of_the_same_name_and_another_kind_is_refused() {
    skip_if_unsuitable!();
    let shape = Started::up("shape", &["--light"]);
    refuses(&mut testbed(&["up", "--name", "shape"]), &["is running already", "testbed down --name shape"]);
    succeeds(&mut testbed(&["up", "--light", "--name", "shape"]));
    shape.down();
}

#[tokio::test]
async fn existing_cluster_can_be_registered_under_a_name() {
    skip_if_unsuitable!();
    let existing = Started::up("existing", &["--light"]);
    let kubeconfig = cluster_named("existing").kubeconfig();
    let adopted = Started::up("adopted", &["--kubeconfig", &kubeconfig.to_string_lossy()]);
    let read = fs::read_to_string(&kubeconfig).unwrap();
    assert_eq!(succeeds(&mut testbed(&["kubeconfig", "--name", "adopted"])), read);
    adopted.down();
    // Only the registration is removed.
    assert!(succeeds(&mut testbed(&["status"])).contains("existing: running"));
    existing.down();
}

#[tokio::test]
async fn programs_of_kubebuilder_assets_are_used_instead_of_built_ones() {
    skip_if_unsuitable!();
    let cache = Cache::new("given", "512m");
    let kubectl = Tools::control_plane(&Steps::quiet()).unwrap().program("kubectl");
    let given = |arguments: &[&str]| {
        let mut command = cache.testbed(arguments);
        command.env("KUBEBUILDER_ASSETS", kubectl.parent().unwrap());
        command
    };
    succeeds(&mut given(&["up", "--light", "--name", "given"]));
    assert!(!cache.0.join("messina/tools").exists(), "something was built");
    succeeds(&mut given(&["down", "--name", "given"]));
}

#[tokio::test]
async fn build_works_after_a_full_disk_and_an_interruption() {
    skip_if_unsuitable!();
    let cache = Cache::new("full", "8m");
    let up = || cache.testbed(&["up", "--light", "--name", "built"]);
    refuses(&mut up(), &["o space left on device", "free space on that disk", "The whole log is"]);
    cache.resize("2g");

    let mut interrupted = up().stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(300);
    while !cache.has_partial_build() {
        assert!(Instant::now() < deadline, "the build did not begin");
        std::thread::yield_now();
    }
    interrupted.kill().unwrap();
    interrupted.wait().unwrap();

    succeeds(&mut up());
    assert!(!cache.has_partial_build(), "the folder of the interrupted build should be gone");
    succeeds(&mut cache.testbed(&["down", "--name", "built"]));
}

/// An empty cache on a disk of its own.
struct Cache(PathBuf);

impl Cache {
    fn new(name: &str, size: &str) -> Self {
        let folder = env::temp_dir().join(format!("messina-cache-{name}"));
        fs::create_dir_all(&folder).unwrap();
        let cache = Self(folder);
        cache.mount(MsFlags::empty(), size);
        cache
    }

    fn resize(&self, size: &str) {
        self.mount(MsFlags::MS_REMOUNT, size);
    }

    /// Not with the program `mount`, which creates `/run/mount`: other tests check that nothing is left.
    fn mount(&self, flags: MsFlags, size: &str) {
        mount(Some("tmpfs"), &self.0, Some("tmpfs"), flags, Some(format!("size={size}").as_str())).unwrap();
    }

    /// `testbed` with this cache, and with Go's own build cache.
    fn testbed(&self, arguments: &[&str]) -> Command {
        let compiled =
            Command::new("go").args(["env", "GOCACHE"]).output().map(|output| output.stdout).unwrap_or_default();
        let mut command = testbed(arguments);
        // These tests are about builds; a download would not fit on the disk.
        command.env("XDG_CACHE_HOME", &self.0).env(release::SITE_VARIABLE, "");
        if !compiled.is_empty() {
            command.env("GOCACHE", String::from_utf8_lossy(&compiled).trim());
        }
        command
    }

    fn has_partial_build(&self) -> bool {
        let tools = fs::read_dir(self.0.join("messina/tools")).into_iter().flatten().flatten();
        tools.into_iter().any(|entry| entry.file_name().to_string_lossy().contains(".partial-"))
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        if umount2(&self.0, MntFlags::MNT_DETACH).is_ok() {
            let _ = fs::remove_dir(&self.0);
        }
    }
}
