//! Clusters: starting, stopping and finding them.
//!
//! Everything that a cluster consists of follows from its name: a folder in the cache, one process that owns all others
//! (they live in its process namespace, so the kernel ends them with it), network namespaces and control groups. So
//! what a killed testbed left behind can be found and removed without any record of it.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nix::{sys::signal, unistd::Pid};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::{
    cache::{self, Lock},
    cgroup,
    components::ControlPlane,
    error::{Doing, Error, Result, malformed},
    exec,
    harness::{self, Seen},
    manifests, network,
    network::Addresses,
    node,
    progress::Steps,
    suitability, supervise,
    supervise::Component,
    tools::{self, Kwok, NodeTools, Tools},
};

/// The name of the cluster when none is given.
pub const DEFAULT_NAME: &str = "messina";

/// Longest wait for a cluster to become usable; a busy machine is slow.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a cluster consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A control plane, and nodes that run pods.
    Full,
    /// A control plane alone, on loopback.
    Light,
    /// Somebody else's, reached by its kubeconfig.
    External,
}

/// What to start.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The cluster's name.
    pub name: String,
    /// Whether nodes are to run.
    pub kind: Kind,
    /// How many.
    pub nodes: u8,
    /// In a light cluster: how many nodes that exist in the API only.
    pub fake_nodes: u32,
    /// In a light cluster: the API server's port on loopback. Without it, a free one.
    pub port: Option<u16>,
    /// An existing cluster to use instead.
    pub kubeconfig: Option<PathBuf>,
}

/// A cluster's description, kept in its folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Description {
    kind: Kind,
    nodes: u8,
    fake_nodes: u32,
    slot: u8,
    server: String,
}

/// A cluster of this machine.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Its name.
    pub name: String,
    folder: PathBuf,
    description: Description,
}

/// How a cluster is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs.
    Running,
    /// Its processes are gone, and it has not been removed yet.
    Dead,
}

fn clusters_folder() -> Result<PathBuf> {
    Ok(cache::root()?.join("clusters"))
}

fn folder(name: &str) -> Result<PathBuf> {
    Ok(clusters_folder()?.join(name))
}

fn lock_file(name: &str) -> Result<PathBuf> {
    Ok(clusters_folder()?.join(format!("{name}.lock")))
}

/// Checks a name: it becomes a part of network namespaces, control groups and socket paths.
fn check_name(name: &str) -> Result<()> {
    let fits = name.len() <= 20
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && name != "fabric";
    if fits {
        return Ok(());
    }
    Err(Error::refused(format!(
        "{name:?} cannot be a cluster's name: use at most 20 lower-case letters, digits and hyphens, a letter first"
    )))
}

/// All clusters, by name.
pub fn all() -> Result<Vec<Cluster>> {
    let clusters = clusters_folder()?;
    let entries = match fs::read_dir(&clusters) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries.doing(|| format!("reading {}", clusters.display()))?,
    };
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok())
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names.into_iter().filter_map(|name| Cluster::read(&name).transpose()).collect()
}

/// The cluster of this name.
pub fn find(name: &str) -> Result<Cluster> {
    check_name(name)?;
    if let Some(cluster) = Cluster::read(name)? {
        return Ok(cluster);
    }
    let known: Vec<String> = all()?.into_iter().map(|cluster| cluster.name).collect();
    let known = if known.is_empty() { "there is none".into() } else { format!("there is {}", known.join(", ")) };
    Err(Error::refused(format!("no cluster is called {name:?} ({known}): start it with `testbed up --name {name}`")))
}

/// Starts a cluster, or finds it running.
pub async fn up(wish: &Wish, steps: &Steps) -> Result<Cluster> {
    check_name(&wish.name)?;
    if let Some(kubeconfig) = &wish.kubeconfig {
        return adopt(&wish.name, kubeconfig).await;
    }
    if wish.kind == Kind::Full {
        suitability::check_nodes(steps)?;
    } else {
        suitability::check_linux()?;
    }
    if !(1..=network::NODES_PER_CLUSTER).contains(&wish.nodes) {
        return Err(Error::refused(format!("--nodes takes 1 to {}, not {}", network::NODES_PER_CLUSTER, wish.nodes)));
    }
    let tools = Tools::control_plane(steps)?;
    let node_tools = if wish.kind == Kind::Full { Some(NodeTools::get(steps)?) } else { None };
    let fake_tools = if wish.fake_nodes > 0 { Some(tools::kwok(steps)?) } else { None };
    let _lock = match Lock::try_take(&lock_file(&wish.name)?)? {
        Ok(lock) => lock,
        Err(holder) => {
            return Err(Error::refused(format!(
                "the cluster {:?} is being started or stopped by {holder}: wait for it, or choose another --name",
                wish.name
            )));
        }
    };
    let step = steps.begin(format!("starting the cluster {:?}", wish.name));
    bury_dead(&wish.name)?;
    let cluster = match Cluster::read(&wish.name)? {
        Some(cluster) if cluster.is(wish) => cluster,
        Some(cluster) => {
            return Err(Error::refused(format!(
                "the cluster {:?} is running already, as {}: stop it with `testbed down --name {}`, or choose another --name",
                wish.name,
                cluster.describe(),
                wish.name
            )));
        }
        None => match launch(wish, &tools, node_tools.as_ref(), fake_tools.as_ref()) {
            Ok(cluster) => cluster,
            Err(error) => {
                erase(&wish.name)?;
                return Err(error);
            }
        },
    };
    step.done("");
    let ready = cluster.become_ready(steps).await;
    if ready.is_err() {
        let kept = cluster.keep_logs()?;
        erase(&wish.name)?;
        steps.say(format!("The cluster was removed again; its logs are in {}", kept.display()));
    }
    ready.map(|()| cluster)
}

/// Registers an existing cluster under a name.
async fn adopt(name: &str, kubeconfig: &Path) -> Result<Cluster> {
    let text = fs::read(kubeconfig).doing(|| format!("reading {}", kubeconfig.display()))?;
    let client = harness::client(kubeconfig).await?;
    let version = client
        .apiserver_version()
        .await
        .doing(|| format!("asking the API server that {} names for its version", kubeconfig.display()))?;
    let folder = folder(name)?;
    if Cluster::read(name)?.is_some_and(|cluster| cluster.description.kind != Kind::External) {
        return Err(Error::refused(format!(
            "the testbed runs a cluster called {name:?} itself: choose another --name"
        )));
    }
    cache::write(&folder.join("pki/admin.kubeconfig"), text)?;
    let description =
        Description { kind: Kind::External, nodes: 0, fake_nodes: 0, slot: 0, server: version.git_version };
    let cluster = Cluster { name: name.into(), folder, description };
    cluster.write()?;
    Ok(cluster)
}

/// Makes everything and starts the process that owns the rest.
fn launch(wish: &Wish, tools: &Tools, node_tools: Option<&NodeTools>, kwok: Option<&Kwok>) -> Result<Cluster> {
    let folder = folder(&wish.name)?;
    // One at a time: addresses and the shared network are chosen here.
    let _machine = Lock::take(&clusters_folder()?.join("machine.lock"), &Steps::quiet(), "choosing addresses")?;
    let slot = free_slot()?;
    let addresses = Addresses { slot };
    let light = wish.kind == Kind::Light;
    let mut control_plane = ControlPlane {
        folder: &folder,
        tools,
        netns: Some(network::namespace(&wish.name, 1)),
        address: addresses.node(1),
        port: 6443,
        etcd_ports: [2379, 2380],
        controllers_port: 10257,
        has_scheduler: true,
    };
    if light {
        let [port, clients, peers, controllers] = free_ports(wish.port)?;
        control_plane = ControlPlane {
            netns: None,
            address: Ipv4Addr::LOCALHOST,
            port,
            etcd_ports: [clients, peers],
            controllers_port: controllers,
            has_scheduler: wish.fake_nodes > 0,
            ..control_plane
        };
    }
    fs::create_dir_all(folder.join("log")).doing(|| format!("creating {}", folder.display()))?;
    let description = Description {
        kind: wish.kind,
        nodes: wish.nodes,
        fake_nodes: wish.fake_nodes,
        slot,
        server: control_plane.server(),
    };
    let cluster = Cluster { name: wish.name.clone(), folder: folder.clone(), description };
    cluster.write()?;
    let pki = control_plane.make_credentials()?;
    let mut components = vec![];
    if let Some(node_tools) = node_tools {
        network::make_fabric()?;
        for number in 1..=wish.nodes {
            let server = control_plane.server();
            components.push(node::prepare(&wish.name, &folder, addresses, number, node_tools, &pki, &server)?);
        }
        components.push(cluster.provisioner()?);
    }
    components.extend(kwok.map(|kwok| kwok.component(&cluster.kubeconfig())));
    // The control plane first: the nodes wait for it anyway.
    components.splice(0..0, control_plane.components()?);
    cluster.start(&components)?;
    Ok(cluster)
}

fn free_slot() -> Result<u8> {
    let taken: Vec<u8> = all()?
        .into_iter()
        .filter(|cluster| cluster.description.kind == Kind::Full)
        .map(|cluster| cluster.description.slot)
        .collect();
    (0..network::CLUSTERS).find(|slot| !taken.contains(slot)).ok_or_else(|| {
        Error::refused(format!(
            "{} clusters run already, and no more fit: stop one with `testbed down`",
            network::CLUSTERS
        ))
    })
}

/// The wanted port and three free ones.
fn free_ports(wanted: Option<u16>) -> Result<[u16; 4]> {
    let listen = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let first = listen(wanted.unwrap_or(0)).map_err(|error| {
        let port = wanted.unwrap_or_default();
        Error::refused(format!(
            "port {port} of 127.0.0.1 cannot be had ({error}): free it, or leave out --port for any free one"
        ))
    })?;
    let mut listeners = vec![first];
    for _ in 0..3 {
        listeners.push(listen(0).doing(|| "looking for a free port".into())?);
    }
    let mut ports = [0; 4];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr().doing(|| "reading a socket's port".into())?.port();
    }
    Ok(ports)
}

/// Stops a cluster and removes all that it consisted of.
pub fn down(name: &str, steps: &Steps) -> Result<()> {
    check_name(name)?;
    let _lock = match Lock::try_take(&lock_file(name)?)? {
        Ok(lock) => lock,
        Err(holder) => {
            return Err(Error::refused(format!(
                "the cluster {name:?} is being started or stopped by {holder}: end that first"
            )));
        }
    };
    let cluster = find(name)?;
    let step = steps.begin(format!("removing the cluster {name:?}"));
    erase(&cluster.name)?;
    step.done("");
    Ok(())
}

/// Removes every cluster whose processes are gone, of whatever name, except those that someone is working on.
fn bury_dead(locked: &str) -> Result<()> {
    for cluster in all()? {
        if cluster.state() == State::Dead {
            let lock = (cluster.name != locked).then(|| Lock::try_take(&lock_file(&cluster.name)?)).transpose()?;
            if !matches!(lock, Some(Err(_))) {
                erase(&cluster.name)?;
            }
        }
    }
    // A folder without a description: killed before it was written.
    if Cluster::read(locked)?.is_none() {
        erase(locked)?;
    }
    Ok(())
}

/// Removes all that a cluster of this name could have left, whatever of it there is.
fn erase(name: &str) -> Result<()> {
    let folder = folder(name)?;
    kill_owner(&folder)?;
    let was_full = !matches!(Cluster::read(name), Ok(Some(cluster)) if cluster.description.kind != Kind::Full);
    if was_full && exec::find("ip").is_some() && nix::unistd::Uid::effective().is_root() {
        network::remove_nodes(name)?;
        cgroup::remove(name)?;
    }
    cache::remove(&folder)?;
    cache::remove(&folder.with_extension("pid"))?;
    if was_full && nix::unistd::Uid::effective().is_root() && exec::find("ip").is_some() {
        let _machine = Lock::take(&clusters_folder()?.join("machine.lock"), &Steps::quiet(), "choosing addresses")?;
        if all()?.iter().all(|cluster| cluster.description.kind != Kind::Full) {
            network::remove_fabric()?;
        }
    }
    Ok(())
}

/// The process ID of the owner of a cluster's processes, if it is alive.
fn owner(folder: &Path) -> Option<Pid> {
    let pid: i32 = fs::read_to_string(folder.with_extension("pid")).ok()?.trim().parse().ok()?;
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    // A process that has ended has no command line; another one with the same number does not speak of this folder.
    let ours = String::from_utf8_lossy(&command).contains(&*folder.to_string_lossy());
    ours.then(|| Pid::from_raw(pid))
}

/// Ends all processes of a cluster and returns when they are gone.
fn kill_owner(folder: &Path) -> Result<()> {
    let Some(owner) = owner(folder) else { return Ok(()) };
    let children = fs::read_to_string(format!("/proc/{owner}/task/{owner}/children")).unwrap_or_default();
    // The first process of the namespace: with it the kernel ends all others, and its parent hears of it after that.
    let first = children.split_whitespace().next().and_then(|pid| pid.parse().ok()).map(Pid::from_raw);
    for pid in [first.unwrap_or(owner), owner] {
        let _already_gone = signal::kill(pid, signal::Signal::SIGKILL);
        let deadline = Instant::now() + Duration::from_secs(30);
        while is_alive(pid) {
            if Instant::now() > deadline {
                return Err(Error::refused(format!("process {pid} does not end: look at it with `ps -p {pid}`")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

fn is_alive(pid: Pid) -> bool {
    // "123 (name) Z ...": ended, and nobody has asked how yet
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().next())
        .is_some_and(|state| state != "Z" && state != "X")
}

impl Cluster {
    fn read(name: &str) -> Result<Option<Self>> {
        let folder = folder(name)?;
        let file = folder.join("cluster.json");
        let text = match fs::read(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            text => text.doing(|| format!("reading {}", file.display()))?,
        };
        let description = serde_json::from_slice(&text).map_err(malformed(format!("reading {}", file.display())))?;
        Ok(Some(Self { name: name.into(), folder, description }))
    }

    fn write(&self) -> Result<()> {
        let text =
            serde_json::to_vec_pretty(&self.description).map_err(malformed("writing a cluster's description"))?;
        cache::write(&self.folder.join("cluster.json"), text)
    }

    fn is(&self, wish: &Wish) -> bool {
        let Description { kind, nodes, fake_nodes, .. } = self.description;
        (kind, nodes, fake_nodes) == (wish.kind, wish.nodes, wish.fake_nodes)
    }

    /// Whether its processes are there.
    pub fn state(&self) -> State {
        if self.description.kind == Kind::External || owner(&self.folder).is_some() {
            State::Running
        } else {
            State::Dead
        }
    }

    /// The file that tells clients how to reach it.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("pki/admin.kubeconfig")
    }

    /// What its API server was asked, one JSON object a line.
    pub fn audit_log(&self) -> PathBuf {
        self.folder.join("audit.log")
    }

    /// Its parts in a few words.
    pub fn describe(&self) -> String {
        match self.description.kind {
            Kind::Full => format!("{} node(s), API at {}", self.description.nodes, self.description.server),
            Kind::Light => format!(
                "a control plane with {} made-up node(s), API at {}",
                self.description.fake_nodes, self.description.server
            ),
            Kind::External => format!("an existing cluster of version {}", self.description.server),
        }
    }

    /// The folder with its components' logs.
    pub fn logs(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn node_names(&self) -> Vec<String> {
        (1..=self.description.nodes).map(|number| format!("n{number}")).collect()
    }

    /// Imports an image archive into every node.
    pub fn import(&self, archive: &Path, steps: &Steps) -> Result<()> {
        if self.description.kind != Kind::Full {
            return Err(Error::refused(format!("the cluster {:?} has no nodes that could hold an image", self.name)));
        }
        let tools = NodeTools::get(steps)?;
        for node in self.node_names() {
            let step = steps.begin(format!("importing {} into {node}", archive.display()));
            node::import(&tools.ctr(), &node::containerd_socket(&self.folder, &node), archive)?;
            step.done("");
        }
        Ok(())
    }

    async fn import_own_images(&self) -> Result<()> {
        let tools = NodeTools::get(&Steps::quiet())?;
        let mut imports = JoinSet::new();
        for node in self.node_names() {
            let (tools, socket) = (tools.clone(), node::containerd_socket(&self.folder, &node));
            imports.spawn_blocking(move || node::import_own_images(&tools, &socket));
        }
        imports.join_all().await.into_iter().collect()
    }

    fn provisioner(&self) -> Result<Component> {
        let testbed = std::env::current_exe().doing(|| "finding the testbed's own program".into())?;
        Ok(Component::new(
            "provisioner",
            Some(&network::namespace(&self.name, 1)),
            [testbed.to_string_lossy().into_owned(), "provisioner".into(), self.folder.to_string_lossy().into_owned()],
        ))
    }

    /// Starts the process that owns all others, apart from this one's terminal and process group.
    fn start(&self, components: &[Component]) -> Result<()> {
        let list = self.folder.join("components.json");
        cache::write(
            &list,
            serde_json::to_vec_pretty(components).map_err(malformed("writing the list of components"))?,
        )?;
        let log = supervise::log(&self.logs(), "supervisor");
        let log = fs::File::create(&log).doing(|| format!("creating {}", log.display()))?;
        let also = log.try_clone().doing(|| "opening the supervisor's log".into())?;
        let testbed = std::env::current_exe().doing(|| "finding the testbed's own program".into())?;
        let as_root = nix::unistd::Uid::effective().is_root();
        Command::new("setsid")
            // The shell leaves its process ID, then becomes `unshare`, whose child is the first of its namespace.
            .args(["sh", "-c", "echo $$ > \"$0\"; exec \"$@\""])
            .arg(self.folder.with_extension("pid"))
            .args(["unshare", "--pid", "--fork", "--mount", "--propagation=private", "--mount-proc"])
            .args((!as_root).then_some(["--user", "--map-root-user"]).into_iter().flatten())
            .arg(testbed)
            .arg("supervise")
            .arg(&self.folder)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(also)
            .spawn()
            .map(drop)
            .doing(|| "starting the cluster's supervisor".into())
    }

    async fn become_ready(&self, steps: &Steps) -> Result<()> {
        let step = steps.begin("waiting for the API server");
        let client = harness::client(&self.kubeconfig()).await?;
        let ready = harness::eventually("the API server to be ready", PATIENCE, || async {
            self.refuse_if_dead()?;
            Ok(match client.request_text(harness::get("/readyz")?).await {
                Ok(_) => Seen::Ready(()),
                Err(error) => Seen::NotYet(error.to_string()),
            })
        });
        ready.await.map_err(|error| self.explain(error, "kube-apiserver"))?;
        step.done("");
        let step = steps.begin("waiting for the default service account");
        manifests::await_default_service_account(&client, PATIENCE)
            .await
            .map_err(|error| self.explain(error, "kube-controller-manager"))?;
        step.done("");
        if self.description.fake_nodes > 0 {
            let step = steps.begin(format!("making {} nodes up", self.description.fake_nodes));
            manifests::add_fake_nodes(&client, self.description.fake_nodes).await?;
            manifests::await_nodes(&client, self.description.fake_nodes as usize, PATIENCE).await?;
            step.done("");
        }
        if self.description.kind == Kind::Full {
            let step = steps.begin("installing DNS and the volume provisioner");
            manifests::install(&client).await?;
            step.done("");
            let step = steps.begin("giving the nodes their images");
            self.import_own_images().await.map_err(|error| self.explain(error, "containerd-n1"))?;
            step.done("");
            let step = steps.begin(format!("waiting for {} node(s)", self.description.nodes));
            manifests::await_nodes(&client, self.description.nodes.into(), PATIENCE)
                .await
                .map_err(|error| self.explain(error, "kubelet-n1"))?;
            step.done("");
            let step = steps.begin("waiting for DNS");
            manifests::await_dns(&client, PATIENCE).await.map_err(|error| self.explain(error, "containerd-n1"))?;
            step.done("");
        }
        Ok(())
    }

    fn refuse_if_dead(&self) -> Result<()> {
        // The owner writes its process ID first of all; before that there is no file.
        if self.folder.with_extension("pid").exists() && self.state() == State::Dead {
            let log = supervise::log(&self.logs(), "supervisor");
            return Err(Error::refused(format!("the cluster's processes ended:\n{}", exec::tail(&log))));
        }
        Ok(())
    }

    /// Adds the last lines of the component that a failed wait was for.
    fn explain(&self, error: Error, component: &str) -> Error {
        let log = supervise::log(&self.logs(), component);
        Error::refused(format!("{error}\nThe last lines of {component}:\n{}", exec::tail(&log)))
    }

    fn keep_logs(&self) -> Result<PathBuf> {
        let kept = cache::root()?.join("logs").join(format!("cluster-{}", self.name));
        cache::remove(&kept)?;
        if let Some(parent) = kept.parent() {
            fs::create_dir_all(parent).doing(|| format!("creating {}", parent.display()))?;
        }
        fs::rename(self.logs(), &kept).doing(|| format!("keeping logs in {}", kept.display()))?;
        Ok(kept)
    }
}
