//! Bad use: each time a clear error, and the next run works.

use std::{
    env, fs,
    net::TcpListener,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use messina_testbed::{progress::Steps, release, tools::Tools};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::{Started, cluster_named, machine, refuses, succeeds, testbed};

#[tokio::test]
async fn names_and_numbers_that_cannot_be_are_refused() {
    machine!();
    refuses(
        &mut testbed(&["down", "--name", "nosuch"]),
        &["no cluster is called \"nosuch\"", "testbed up --name nosuch"],
    );
    refuses(&mut testbed(&["kubeconfig", "--name", "nosuch"]), &["no cluster is called \"nosuch\""]);
    refuses(&mut testbed(&["up", "--name", "../etc"]), &["cannot be a cluster's name", "lower-case letters"]);
    refuses(&mut testbed(&["up", "--nodes", "0"]), &["--nodes takes 1 to 15, not 0"]);
    refuses(&mut testbed(&["up", "--kubeconfig", "/nonexistent"]), &["/nonexistent", "No such file"]);
    refuses(&mut testbed(&["up", "--light", "--kubeconfig", "x"]), &["cannot be used with"]);
    refuses(&mut testbed(&["up", "--light", "--with-etcd"]), &["an etcd cluster needs nodes", "leave out --with-etcd"]);
    refuses(&mut testbed(&["up", "--with-etcd", "--etcd-members", "2"]), &["it has to be 1 or 3"]);
    refuses(&mut testbed(&["up", "--etcd-tls"]), &["--with-etcd"]);
    let text = env::temp_dir().join("messina-not-a-program");
    fs::write(&text, "text").unwrap();
    refuses(&mut testbed(&["image", "a:b", &text.to_string_lossy()]), &["is not a Linux program"]);
}

#[tokio::test]
async fn a_port_that_is_taken_is_named_and_can_be_had_later() {
    machine!();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    refuses(
        &mut testbed(&["up", "--light", "--name", "port", "--port", &port]),
        &[&format!("port {port} of 127.0.0.1 cannot be had"), "leave out --port"],
    );
    drop(taken);
    let cluster = Started::up("port", &["--light", "--port", &port]);
    assert!(succeeds(&mut testbed(&["status"])).contains(&format!("https://127.0.0.1:{port}")));
    cluster.down();
}

#[tokio::test]
async fn another_shape_under_a_name_in_use_is_refused() {
    machine!();
    let shape = Started::up("shape", &["--light"]);
    refuses(&mut testbed(&["up", "--name", "shape"]), &["is running already", "testbed down --name shape"]);
    succeeds(&mut testbed(&["up", "--light", "--name", "shape"]));
    shape.down();
}

#[tokio::test]
async fn an_existing_cluster_serves_under_a_name() {
    machine!();
    let existing = Started::up("existing", &["--light"]);
    let kubeconfig = cluster_named("existing").kubeconfig();
    let adopted = Started::up("adopted", &["--kubeconfig", &kubeconfig.to_string_lossy()]);
    let read = fs::read_to_string(&kubeconfig).unwrap();
    assert_eq!(succeeds(&mut testbed(&["kubeconfig", "--name", "adopted"])), read);
    adopted.down();
    // Only the name is forgotten.
    assert!(succeeds(&mut testbed(&["status"])).contains("existing: running"));
    existing.down();
}

#[tokio::test]
async fn given_programs_are_taken_instead_of_built() {
    machine!();
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
async fn a_full_disk_and_an_interrupted_build_are_survived() {
    machine!();
    let cache = Cache::new("full", "8m");
    let up = || cache.testbed(&["up", "--light", "--name", "built"]);
    refuses(&mut up(), &["o space left on device", "make room on that disk", "The whole log is"]);
    cache.resize("2g");

    let mut interrupted = up().stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(300);
    while !cache.holds_half_a_build() {
        assert!(Instant::now() < deadline, "the build did not begin");
        std::thread::yield_now();
    }
    interrupted.kill().unwrap();
    interrupted.wait().unwrap();

    succeeds(&mut up());
    assert!(!cache.holds_half_a_build(), "what the interrupted build left should be gone");
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

    /// Without the program of that name, which leaves `/run/mount` behind: other tests look whether anything is left.
    fn mount(&self, flags: MsFlags, size: &str) {
        mount(Some("tmpfs"), &self.0, Some("tmpfs"), flags, Some(format!("size={size}").as_str())).unwrap();
    }

    /// `testbed` with this cache; what Go has compiled before stays known to it.
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

    fn holds_half_a_build(&self) -> bool {
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
