//! A Kubernetes node: containerd, kubelet and kube-proxy in namespaces of their own.
//!
//! A Kubernetes node sees this host's files but writes none of them: `/run`, `/var/lib` and `/var/log` are file systems
//! of its own, which end with it. Its own folder is mounted at [`HERE`].

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use nix::mount::{MsFlags, mount};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    cache, cgroup,
    components::DNS_SERVICE,
    error::{Doing, Error, Result, malformed},
    etcd, exec,
    network::{self, Addresses},
    pki::Pki,
    supervise::{self, Component},
    tools::{NodeTools, PAUSE_IMAGE},
};

/// The Kubernetes node's own folder, as seen from inside of it.
pub const HERE: &str = "/run/messina";

/// The description of a Kubernetes node, for its process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Node {
    name: String,
    address: Ipv4Addr,
    /// The cluster's folder, as seen from outside.
    cluster: PathBuf,
    packages: PathBuf,
    programs: PathBuf,
    /// All addresses of the cluster's pods.
    pods: String,
}

/// The folder of a Kubernetes node in that of its cluster.
pub fn folder(cluster: &Path, name: &str) -> PathBuf {
    cluster.join(name)
}

/// The socket of a Kubernetes node's containerd, as seen from outside.
pub fn containerd_socket(cluster: &Path, name: &str) -> PathBuf {
    folder(cluster, name).join("containerd.sock")
}

/// Prepares Kubernetes node `number`: its network, cgroups, credentials and configuration.
pub fn prepare(
    cluster: &str,
    cluster_folder: &Path,
    addresses: Addresses,
    number: u8,
    tools: &NodeTools,
    pki: &Pki,
    server: &str,
) -> Result<Component> {
    let name = format!("n{number}");
    network::add_node(cluster, addresses, number)?;
    cgroup::make(cluster, &name)?;
    pki.kubeconfig(&format!("kubelet-{name}"), server, &format!("system:node:{name}"), Some("system:nodes"))?;
    let stores = cluster_folder.join(etcd::STORES);
    fs::create_dir_all(&stores).doing(|| format!("creating {}", stores.display()))?;
    let folder = folder(cluster_folder, &name);
    for part in ["kubelet", "containerd", "pod-logs", "volumes", "sysctl", "mount"] {
        let part = folder.join(part);
        fs::create_dir_all(&part).doing(|| format!("creating {}", part.display()))?;
    }
    let address = addresses.node(number);
    cache::write(&folder.join("cni/10-pods.conflist"), cni(&addresses.pods_of(number)))?;
    cache::write(&folder.join("containerd.toml"), containerd_config())?;
    cache::write(&folder.join("resolv.conf"), format!("nameserver {DNS_SERVICE}\n"))?;
    cache::write(&folder.join("kubelet.yaml"), kubelet_config(cluster, &name, address)?)?;
    let node = Node {
        name: name.clone(),
        address,
        cluster: cluster_folder.into(),
        packages: tools.packages.clone(),
        programs: tools.programs.clone(),
        pods: addresses.pods(),
    };
    let file = folder.join("node.json");
    cache::write_json(&file, &node)?;
    Ok(Component::new(
        format!("node-{name}"),
        Some(&network::namespace(cluster, number)),
        [
            "unshare".into(),
            "--mount".into(),
            "--propagation=private".into(),
            exec::own_program()?,
            "node".into(),
            file.to_string_lossy().into_owned(),
        ],
    ))
}

/// Runs the Kubernetes node. To be called in its network namespace and in a mount namespace of its own.
pub fn run(description: &Path) -> Result<()> {
    let node: Option<Node> = cache::read_json(description)?;
    let node = node.ok_or_else(|| Error::refused(format!("{} does not exist", description.display())))?;
    node.mount_all()?;
    node.run()
}

impl Node {
    fn mount_all(&self) -> Result<()> {
        let here = folder(&self.cluster, &self.name);
        // Mounted elsewhere and then moved to /run, because the sources may be below /run.
        let run = here.join("mount");
        tmpfs(&run)?;
        let inside = |name: &str| run.join("messina").join(name);
        bind(&here, &inside(""))?;
        for shared in ["pki", "log", etcd::STORES] {
            bind(&self.cluster.join(shared), &inside(shared))?;
        }
        for (source, name) in [(&self.packages, "packages"), (&self.programs, "programs")] {
            bind(source, &run.join("messina-tools").join(name))?;
        }
        mount(Some(&run), "/run", None::<&str>, MsFlags::MS_MOVE, None::<&str>)
            .doing(|| "moving a mount to /run".into())?;
        tmpfs(Path::new("/var/lib"))?;
        tmpfs(Path::new("/var/log"))?;
        // The kubelet would set these values for the whole host; it reads them from here instead.
        for (key, value) in [
            ("vm/overcommit_memory", "1"),
            ("vm/panic_on_oom", "0"),
            ("kernel/panic", "10"),
            ("kernel/panic_on_oops", "1"),
            ("kernel/keys/root_maxkeys", "1000000"),
            ("kernel/keys/root_maxbytes", "25000000"),
        ] {
            let file = Path::new(HERE).join("sysctl").join(key.replace('/', "."));
            cache::write(&file, format!("{value}\n"))?;
            bind_over(&file, &Path::new("/proc/sys").join(key))?;
        }
        // Mounts of volumes have to propagate to the pods that use them.
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SHARED, None::<&str>)
            .doing(|| "sharing the Kubernetes node's mounts".into())
    }

    fn run(&self) -> Result<()> {
        let tools = Path::new("/run/messina-tools");
        let logs = Path::new(HERE).join("log");
        let path = format!(
            "{0}/packages/usr/bin:{0}/packages/usr/sbin:{1}",
            tools.display(),
            std::env::var("PATH").unwrap_or_default()
        );
        let name = |program: &str| format!("{program}-{}", self.name);
        let with_path = |command: Vec<String>| {
            ["env".to_owned(), format!("PATH={path}")].into_iter().chain(command).collect::<Vec<_>>()
        };
        let containerd = Component::new(
            name("containerd"),
            None,
            with_path(vec!["containerd".into(), format!("--config={HERE}/containerd.toml")]),
        );
        let program = |program: &str| format!("{}/programs/{program}", tools.display());
        let kubelet = Component::new(
            name("kubelet"),
            None,
            with_path(vec![
                program("kubelet"),
                format!("--config={HERE}/kubelet.yaml"),
                format!("--kubeconfig={HERE}/pki/kubelet-{}.kubeconfig", self.name),
                format!("--hostname-override={}", self.name),
                format!("--node-ip={}", self.address),
                format!("--root-dir={HERE}/kubelet"),
            ]),
        );
        let proxy = Component::new(
            name("kube-proxy"),
            None,
            vec![
                program("kube-proxy"),
                format!("--kubeconfig={HERE}/pki/kube-proxy.kubeconfig"),
                "--proxy-mode=nftables".into(),
                format!("--cluster-cidr={}", self.pods),
                format!("--hostname-override={}", self.name),
                format!("--bind-address={}", self.address),
                "--healthz-bind-address=127.0.0.1:10256".into(),
                "--metrics-bind-address=127.0.0.1:10249".into(),
                // These belong to the whole host.
                "--conntrack-max-per-core=0".into(),
                "--conntrack-tcp-timeout-established=0s".into(),
                "--conntrack-tcp-timeout-close-wait=0s".into(),
            ],
        );
        // The kubelet waits for containerd by itself.
        supervise::supervise(vec![containerd, kubelet, proxy], &logs)
    }
}

fn await_containerd(ctr: &Path, socket: &Path) -> Result<()> {
    let (started, limit) = (Instant::now(), Duration::from_secs(60));
    loop {
        let answer =
            exec::output("asking containerd for its version", Command::new(ctr).arg("-a").arg(socket).arg("version"));
        match answer {
            Ok(_) => return Ok(()),
            Err(error) if started.elapsed() > limit => {
                return Err(Error::Late { what: "containerd".into(), waited: limit, seen: error.to_string() });
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Imports the images of every Kubernetes node, as soon as its containerd answers. Called outside of the Kubernetes
/// node.
pub fn import_own_images(tools: &NodeTools, socket: &Path) -> Result<()> {
    await_containerd(&tools.ctr(), socket)?;
    let entries = fs::read_dir(&tools.images).doing(|| format!("reading {}", tools.images.display()))?;
    let mut archives: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    archives.sort();
    archives.iter().try_for_each(|archive| import(&tools.ctr(), socket, archive))
}

/// Imports an image archive into a Kubernetes node.
pub fn import(ctr: &Path, socket: &Path, archive: &Path) -> Result<()> {
    exec::output(
        &format!("importing {}", archive.display()),
        Command::new(ctr).arg("-a").arg(socket).args(["-n", "k8s.io", "images", "import"]).arg(archive),
    )
    .map(drop)
}

fn tmpfs(at: &Path) -> Result<()> {
    mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))
        .doing(|| format!("mounting a tmpfs at {}", at.display()))
}

/// Mounts `source` at the folder `at`, which is created if need be.
fn bind(source: &Path, at: &Path) -> Result<()> {
    fs::create_dir_all(at).doing(|| format!("creating {}", at.display()))?;
    bind_over(source, at)
}

fn bind_over(source: &Path, at: &Path) -> Result<()> {
    mount(Some(source), at, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
        .doing(|| format!("mounting {} at {}", source.display(), at.display()))
}

fn cni(pods: &str) -> String {
    json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge", "bridge": "pods", "isGateway": true, "hairpinMode": true, "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": pods}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "dataDir": format!("{HERE}/addresses"),
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
    .to_string()
}

fn containerd_config() -> String {
    format!(
        r#"version = 2
root = "{HERE}/containerd"
state = "/run/containerd"

[grpc]
  address = "{HERE}/containerd.sock"

[plugins."io.containerd.grpc.v1.cri"]
  # On a host where no process may lower it (no CAP_SYS_RESOURCE), runc would fail.
  restrict_oom_score_adj = true
  sandbox_image = "{PAUSE_IMAGE}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/run/messina-tools/packages/usr/lib/cni"
    conf_dir = "{HERE}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "/run/messina-tools/packages/usr/sbin/runc"
      SystemdCgroup = false
"#
    )
}

fn kubelet_config(cluster: &str, node: &str, address: Ipv4Addr) -> Result<String> {
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": format!("{HERE}/pki/ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup::path(cluster, node),
        "failCgroupV1": false,
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": format!("unix://{HERE}/containerd.sock"),
        // The Kubernetes node does not evict pods because of the disk of this host.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%"},
        "imageGCHighThresholdPercent": 100,
        "failSwapOn": false,
        "healthzBindAddress": "127.0.0.1",
        "nodeStatusUpdateFrequency": "4s",
        "oomScoreAdj": 0,
        "podLogsDir": format!("{HERE}/pod-logs"),
        "readOnlyPort": 0,
        "resolvConf": format!("{HERE}/resolv.conf"),
        "syncFrequency": "10s",
        "volumePluginDir": format!("{HERE}/kubelet/plugins"),
    });
    serde_saphyr::to_string(&config).map_err(malformed("writing kubelet's configuration"))
}
