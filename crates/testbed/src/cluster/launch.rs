//! Making what a cluster consists of, and starting the process that owns the rest.

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    net::{Ipv4Addr, TcpListener},
    process::{Child, Command, Stdio},
};

use super::{Cluster, Description, Kind, TEST_VARIABLE, Wish, folder};
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

/// Launches the cluster; its processes are on their way when this returns.
pub(super) fn launch(wish: &Wish, programs: &Programs) -> Result<(Cluster, Child)> {
    let folder = folder(&wish.name)?;
    // Addresses are free until the first node is connected: one at a time chooses.
    let _choosing = programs.nodes.as_ref().map(|_| network::lock()).transpose()?;
    let slot = if programs.nodes.is_some() { network::free_slot()? } else { 0 };
    let addresses = Addresses { slot };
    let full = ControlPlane {
        folder: &folder,
        tools: &programs.control_plane,
        netns: Some(network::namespace(&wish.name, 1)),
        address: addresses.node(1),
        port: 6443,
        etcd_ports: [2379, 2380],
        controllers_port: 10257,
        has_scheduler: true,
    };
    let control_plane = if wish.kind == Kind::Full {
        full
    } else {
        let [port, clients, peers, controllers_port] = free_ports(wish.port)?;
        let has_scheduler = wish.fake_nodes > 0;
        let (netns, address, etcd_ports) = (None, Ipv4Addr::LOCALHOST, [clients, peers]);
        ControlPlane { netns, address, port, etcd_ports, controllers_port, has_scheduler, ..full }
    };
    let description = Description {
        kind: wish.kind,
        nodes: wish.nodes,
        fake_nodes: wish.fake_nodes,
        etcd: wish.etcd,
        server: control_plane.server(),
        test: std::env::var(TEST_VARIABLE).ok(),
    };
    let cluster = Cluster { name: wish.name.clone(), folder: folder.clone(), description };
    fs::create_dir_all(cluster.logs()).doing(|| format!("creating {}", cluster.logs().display()))?;
    cluster.write()?;
    let pki = control_plane.make_credentials()?;
    // The control plane first: the nodes wait for it anyway.
    let mut components = control_plane.components()?;
    if let Some(tools) = &programs.nodes {
        network::make_fabric()?;
        let server = control_plane.server();
        for number in 1..=wish.nodes {
            components.push(node::prepare(&wish.name, &folder, addresses, number, tools, &pki, &server)?);
        }
        let netns = network::namespace(&wish.name, 1);
        components.push(cluster.own("provisioner", Some(&netns))?);
        if wish.etcd.is_some() {
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

/// Ports from here on are looked at when free ones are looked for.
const FIRST_PORT: u16 = 20_000;

/// The wanted port and three free ones. They are free until their programs start, a moment later: so they are not from
/// among those that the system gives to whoever asks for any.
fn free_ports(wanted: Option<u16>) -> Result<[u16; 4]> {
    let listen = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let end = range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(32_768_u16);
    let count = end.saturating_sub(FIRST_PORT).max(1);
    // Somewhere, so that two who look at the same time do not find the same.
    let start = RandomState::new().hash_one(0) % u64::from(count);
    let candidates = (0..u64::from(count)).map(|step| FIRST_PORT + ((start + step) % u64::from(count)) as u16);
    let mut free = candidates.filter_map(|port| listen(port).ok());
    let mut next = || free.next().ok_or_else(|| Error::refused(format!("no port from {FIRST_PORT} to {end} is free")));
    let first = match wanted {
        Some(port) => listen(port).map_err(|error| {
            Error::refused(format!(
                "port {port} of 127.0.0.1 cannot be had ({error}): free it, or leave out --port for any free one"
            ))
        })?,
        None => next()?,
    };
    // All held at once, so that they differ.
    let listeners = [first, next()?, next()?, next()?];
    let mut ports = [0; 4];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr().doing(|| "reading a socket's port".into())?.port();
    }
    Ok(ports)
}

impl Cluster {
    /// A component that is a command of this program.
    fn own(&self, command: &str, netns: Option<&str>) -> Result<Component> {
        let folder = self.folder.to_string_lossy().into_owned();
        Ok(Component::new(command, netns, [exec::own_program()?, command.into(), folder]))
    }

    /// Starts the process that owns all others, apart from this one's terminal and process group.
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
            // `owner` finds the process by these.
            .arg("supervise")
            .arg(&self.folder)
            // Processors are scarcer than memory where tests run; a fifth of the API server's time was collecting garbage.
            .env("GOGC", "1000")
            .env("GOMEMLIMIT", "1500MiB")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(also)
            .spawn()
            .doing(|| "starting the cluster's supervisor".into())
    }
}
