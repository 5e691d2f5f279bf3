//! Creates the files of a cluster, and starts the process that owns all others.

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    net::{Ipv4Addr, TcpListener},
    process::{Child, Command, Stdio},
};

use super::{Cluster, ClusterSpec, Description, Kind, TEST_VARIABLE, folder};
use crate::{
    cache,
    components::ControlPlane,
    error::{Doing, Error, Result},
    exec,
    network::{self, Addresses},
    node, supervise,
    supervise::Component,
    tools::{Kwok, NodeTools, Tools},
};

/// The programs that a cluster needs.
pub(super) struct Programs {
    pub(super) control_plane: Tools,
    pub(super) nodes: Option<NodeTools>,
    pub(super) fake_nodes: Option<Kwok>,
}

/// Starts the cluster. It does not wait for its processes.
pub(super) fn launch(spec: &ClusterSpec, programs: &Programs) -> Result<(Cluster, Child)> {
    let folder = folder(&spec.name)?;
    // Addresses are free until the first Kubernetes node is connected, so only one process at a time may choose.
    let _choosing = programs.nodes.as_ref().map(|_| network::lock()).transpose()?;
    let slot = if programs.nodes.is_some() { network::free_slot()? } else { 0 };
    let addresses = Addresses { slot };
    let full = ControlPlane {
        folder: &folder,
        tools: &programs.control_plane,
        netns: Some(network::namespace(&spec.name, 1)),
        address: addresses.node(1),
        port: 6443,
        etcd_ports: [2379, 2380],
        controllers_port: 10257,
        has_scheduler: true,
    };
    let control_plane = if spec.kind == Kind::Full {
        full
    } else {
        let [port, clients, peers, controllers_port] = free_ports(spec.port)?;
        let has_scheduler = spec.fake_nodes > 0;
        let (netns, address, etcd_ports) = (None, Ipv4Addr::LOCALHOST, [clients, peers]);
        ControlPlane { netns, address, port, etcd_ports, controllers_port, has_scheduler, ..full }
    };
    let description = Description {
        kind: spec.kind,
        nodes: spec.nodes,
        fake_nodes: spec.fake_nodes,
        etcd: spec.etcd,
        server: control_plane.server(),
        test: std::env::var(TEST_VARIABLE).ok(),
    };
    let cluster = Cluster { name: spec.name.clone(), folder: folder.clone(), description };
    fs::create_dir_all(cluster.logs()).doing(|| format!("creating {}", cluster.logs().display()))?;
    cluster.write()?;
    let pki = control_plane.make_credentials()?;
    // The control plane comes first, because the Kubernetes nodes wait for it.
    let mut components = control_plane.components()?;
    if let Some(tools) = &programs.nodes {
        network::make_fabric()?;
        let server = control_plane.server();
        for number in 1..=spec.nodes {
            components.push(node::prepare(&spec.name, &folder, addresses, number, tools, &pki, &server)?);
        }
        let netns = network::namespace(&spec.name, 1);
        components.push(cluster.own("provisioner", Some(&netns))?);
        if spec.etcd.is_some() {
            components.push(cluster.own("etcd-keeper", Some(&netns))?);
        }
    }
    if programs.fake_nodes.is_some() {
        components.push(cluster.own("provisioner", None)?);
    }
    components.extend(programs.fake_nodes.as_ref().map(|kwok| kwok.component(&cluster.kubeconfig())));
    let supervisor = cluster.start(&components)?;
    Ok((cluster, supervisor))
}

/// The first port of the range that is searched for free ports.
const FIRST_PORT: u16 = 20_000;

/// The requested port and three free ones. Other programs may take them until those of the cluster start, so they are
/// not from the range of ephemeral ports.
fn free_ports(wanted: Option<u16>) -> Result<[u16; 4]> {
    let listen = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let end = range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(32_768_u16);
    let count = end.saturating_sub(FIRST_PORT).max(1);
    // From a random port on, so that two processes that search at the same time do not find the same.
    let start = RandomState::new().hash_one(0) % u64::from(count);
    let candidates = (0..u64::from(count)).map(|step| FIRST_PORT + ((start + step) % u64::from(count)) as u16);
    let mut free = candidates.filter_map(|port| listen(port).ok());
    let mut next = || free.next().ok_or_else(|| Error::refused(format!("no port from {FIRST_PORT} to {end} is free")));
    let first = match wanted {
        Some(port) => listen(port).map_err(|error| {
            Error::refused(format!(
                "port {port} of 127.0.0.1 is not available ({error}): free it, or leave out --port for any free port"
            ))
        })?,
        None => next()?,
    };
    // All are held at once, so that they differ.
    let listeners = [first, next()?, next()?, next()?];
    let mut ports = [0; 4];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr().doing(|| "reading a socket's port".into())?.port();
    }
    Ok(ports)
}

impl Cluster {
    /// A component that runs a command of the testbed itself.
    fn own(&self, command: &str, netns: Option<&str>) -> Result<Component> {
        let folder = self.folder.to_string_lossy().into_owned();
        Ok(Component::new(command, netns, [exec::own_program()?, command.into(), folder]))
    }

    /// Starts the process that owns all others, in another process group without a terminal.
    fn start(&self, components: &[Component]) -> Result<Child> {
        cache::write_json(&self.folder.join(supervise::LIST), &components)?;
        let log = supervise::log(&self.logs(), "supervisor");
        let log = fs::File::create(&log).doing(|| format!("creating {}", log.display()))?;
        let also = log.try_clone().doing(|| "opening the supervisor's log".into())?;
        let as_root = nix::unistd::Uid::effective().is_root();
        Command::new("setsid")
            .args(["unshare", "--pid", "--fork", "--kill-child", "--mount", "--propagation=private", "--mount-proc"])
            .args((!as_root).then_some(["--user", "--map-root-user"]).into_iter().flatten())
            .arg(exec::own_program()?)
            // `owner` finds the process by these arguments.
            .arg("supervise")
            .arg(&self.folder)
            // Tests lack CPUs more than memory; the API server spent a fifth of its CPU time on garbage collection.
            .env("GOGC", "1000")
            .env("GOMEMLIMIT", "1500MiB")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(also)
            .spawn()
            .doing(|| "starting the cluster's supervisor".into())
    }
}
