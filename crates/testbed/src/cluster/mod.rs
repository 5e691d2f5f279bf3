//! Starts, stops and finds clusters.
//!
//! All parts of a cluster have names that follow from its own: a folder in the cache, one process that owns all others
//! (they are in its PID namespace, so the kernel kills them with it), network namespaces and cgroups. So the testbed
//! can find and remove what a killed testbed has left, without any record of it.

mod launch;
mod ready;
mod removal;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    cache::{self, Lock},
    error::{Doing, Error, Result},
    etcd::{self, Shape},
    exec, harness, network, node,
    progress::Steps,
    suitability,
    tools::{self, NodeTools, Tools},
};

/// The default name of a cluster.
pub const DEFAULT_NAME: &str = "messina";

/// The file, in a cluster's folder, that describes it.
const DESCRIPTION: &str = "cluster.json";

/// Names a file to which the CPU time of each cluster is appended when the cluster is removed.
pub const COSTS_VARIABLE: &str = "MESSINA_CLUSTER_COSTS";
/// Names the running test.
pub const TEST_VARIABLE: &str = "MESSINA_TEST";

/// The CPU time of a cluster: a line of that file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterCost {
    /// The test that used the cluster.
    pub test: String,
    /// The name of the cluster.
    pub cluster: String,
    /// CPU time in seconds.
    pub seconds: f64,
}

/// The kind of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A control plane, and Kubernetes nodes that run pods.
    Full,
    /// A control plane alone, on loopback.
    Light,
    /// A cluster that the testbed has not started, with its kubeconfig.
    External,
}

/// The desired state of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterSpec {
    /// The cluster's name.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// The number of Kubernetes nodes.
    pub nodes: u8,
    /// In a light cluster: the number of Kubernetes nodes that KWOK simulates.
    pub fake_nodes: u32,
    /// In a light cluster: the API server's port on loopback. The default is a free one.
    pub port: Option<u16>,
    /// An existing cluster to use instead.
    pub kubeconfig: Option<PathBuf>,
    /// An etcd cluster to start in it.
    pub etcd: Option<Shape>,
}

/// A cluster's description, kept in its folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Description {
    kind: Kind,
    nodes: u8,
    fake_nodes: u32,
    #[serde(default)]
    etcd: Option<Shape>,
    server: String,
    /// The test that started it, if one did.
    #[serde(default)]
    test: Option<String>,
}

/// A cluster on this host.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Its name.
    pub name: String,
    folder: PathBuf,
    description: Description,
}

/// The state of a cluster.
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

/// Checks a name, which becomes a part of network namespaces, cgroups and socket paths.
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
    let known = if known.is_empty() { "there is none".into() } else { format!("there are: {}", known.join(", ")) };
    Err(Error::refused(format!("no cluster is called {name:?} ({known}): start it with `testbed up --name {name}`")))
}

/// Starts a cluster, or finds it running.
pub async fn up(spec: &ClusterSpec, steps: &Steps) -> Result<Cluster> {
    check_name(&spec.name)?;
    if spec.etcd.is_some() && (spec.kind != Kind::Full || spec.kubeconfig.is_some()) {
        return Err(Error::refused(
            "an etcd cluster needs Kubernetes nodes of the testbed: leave out --with-etcd, or --light and --kubeconfig",
        ));
    }
    if let Some(kubeconfig) = &spec.kubeconfig {
        return adopt(&spec.name, kubeconfig).await;
    }
    if spec.kind == Kind::Full {
        suitability::check_nodes(steps)?;
    } else {
        suitability::check_linux()?;
    }
    if !(1..=network::NODES_PER_CLUSTER).contains(&spec.nodes) {
        return Err(Error::refused(format!("--nodes takes 1 to {}, not {}", network::NODES_PER_CLUSTER, spec.nodes)));
    }
    let has_scheduler = spec.kind == Kind::Full || spec.fake_nodes > 0;
    let programs = launch::Programs {
        control_plane: if has_scheduler { Tools::with_scheduler(steps)? } else { Tools::control_plane(steps)? },
        nodes: (spec.kind == Kind::Full).then(|| NodeTools::get(steps)).transpose()?,
        fake_nodes: (spec.fake_nodes > 0).then(|| tools::kwok(steps)).transpose()?,
    };
    if spec.etcd.is_some() {
        etcd::programs::Programs::get(steps)?;
    }
    let _lock = lock(&spec.name)?;
    let step = steps.begin(format!("starting the cluster {:?}", spec.name));
    removal::remove_dead(&spec.name)?;
    let (cluster, supervisor) = match Cluster::read(&spec.name)? {
        Some(cluster) if cluster.is(spec) => (cluster, None),
        Some(cluster) => {
            let (name, what) = (&spec.name, cluster.describe());
            return Err(Error::refused(format!(
                "the cluster {name:?} is running already, as {what}: stop it with `testbed down --name {name}`, or \
                 choose another --name"
            )));
        }
        None => match launch::launch(spec, &programs) {
            Ok((cluster, supervisor)) => (cluster, Some(supervisor)),
            Err(error) => {
                removal::erase(&spec.name)?;
                return Err(error);
            }
        },
    };
    step.done("");
    let is_new = supervisor.is_some();
    let ready = match cluster.become_ready(supervisor, steps).await {
        Ok(()) => cluster.etcd_becomes_ready(steps).await,
        error => error,
    };
    // A cluster that was running before is kept, so that it can be inspected.
    if ready.is_err() && is_new {
        let kept = cluster.keep_logs()?;
        removal::erase(&spec.name)?;
        steps.print_line(format!("The cluster was removed again; its logs are in {}", kept.display()));
    }
    ready.map(|()| cluster)
}

/// Locks the cluster, so that no other process starts or stops it meanwhile.
fn lock(name: &str) -> Result<Lock> {
    Lock::try_take(&lock_file(name)?)?.map_err(|holder| {
        Error::refused(format!(
            "the cluster {name:?} is being started or stopped by {holder}: wait for it, or choose another --name"
        ))
    })
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
            "the testbed already runs a cluster called {name:?}: choose another --name"
        )));
    }
    cache::write_private(&folder.join("pki/admin.kubeconfig"), text)?;
    let description = Description {
        kind: Kind::External,
        nodes: 0,
        fake_nodes: 0,
        etcd: None,
        server: version.git_version,
        test: None,
    };
    let cluster = Cluster { name: name.into(), folder, description };
    cluster.write()?;
    Ok(cluster)
}

/// Stops a cluster and removes all its parts.
pub fn down(name: &str, steps: &Steps) -> Result<()> {
    check_name(name)?;
    let _lock = lock(name)?;
    find(name)?.remove(steps)
}

/// Removes the clusters of interrupted tests, and the shared clusters of these names. Waits for a cluster that an
/// interrupted test was just starting.
pub fn remove_those_of_tests(shared: &[&str]) -> Result<()> {
    let is_of_tests = |cluster: &Cluster| cluster.description.test.is_some() || shared.contains(&cluster.name.as_str());
    for Cluster { name, .. } in all()?.into_iter().filter(is_of_tests) {
        let _lock = Lock::take(&lock_file(&name)?, &Steps::quiet(), "starting or stopping it")?;
        if let Some(cluster) = Cluster::read(&name)? {
            cluster.remove(&Steps::quiet())?;
        }
    }
    Ok(())
}

impl Cluster {
    fn read(name: &str) -> Result<Option<Self>> {
        let folder = folder(name)?;
        let description = cache::read_json(&folder.join(DESCRIPTION))?;
        Ok(description.map(|description| Self { name: name.into(), folder, description }))
    }

    /// Removes it. The caller holds its lock.
    fn remove(&self, steps: &Steps) -> Result<()> {
        let step = steps.begin(format!("removing the cluster {:?}", self.name));
        let used = self.cpu_time();
        if let (Some(file), Some(test)) = (std::env::var_os(COSTS_VARIABLE), std::env::var(TEST_VARIABLE).ok()) {
            let line = ClusterCost { test, cluster: self.name.clone(), seconds: used.as_secs_f64() };
            cache::append_line(Path::new(&file), &line)?;
        }
        removal::erase(&self.name)?;
        step.done(&format!("it used {:.1} s of CPU time", used.as_secs_f64()));
        Ok(())
    }

    fn write(&self) -> Result<()> {
        cache::write_json(&self.folder.join(DESCRIPTION), &self.description)
    }

    fn is(&self, spec: &ClusterSpec) -> bool {
        let Description { kind, nodes, fake_nodes, etcd, .. } = &self.description;
        let (kind, nodes, fake_nodes, etcd) = (*kind, *nodes, *fake_nodes, *etcd);
        (kind, nodes, fake_nodes, etcd) == (spec.kind, spec.nodes, spec.fake_nodes, spec.etcd)
    }

    /// Whether its processes are running.
    pub fn state(&self) -> State {
        if self.description.kind == Kind::External || removal::owner(&self.folder).is_some() {
            State::Running
        } else {
            State::Dead
        }
    }

    /// The CPU time that its processes and pods have used up to now.
    pub fn cpu_time(&self) -> Duration {
        let owner = removal::owner(&self.folder).into_iter();
        owner.flat_map(|pid| exec::descendants(pid.as_raw())).map(exec::cpu_time).sum()
    }

    /// The path of its kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("pki/admin.kubeconfig")
    }

    /// The audit log of its API server, one JSON object a line.
    pub fn audit_log(&self) -> PathBuf {
        self.folder.join("audit.log")
    }

    /// The folder of a claim's volume, by its Kubernetes node and the claim's UID.
    pub fn volume(&self, node: &str, claim_uid: &str) -> PathBuf {
        node::folder(&self.folder, node).join("volumes").join(format!("pvc-{claim_uid}"))
    }

    /// A short description of its parts.
    pub fn describe(&self) -> String {
        match self.description.kind {
            Kind::Full => {
                let Description { nodes, etcd, server, .. } = &self.description;
                let etcd = etcd.map(|shape| format!(", an etcd cluster of {shape}")).unwrap_or_default();
                format!("{nodes} node(s){etcd}, API at {server}")
            }
            Kind::Light if self.description.fake_nodes == 0 => {
                format!("a control plane without Kubernetes nodes, API at {}", self.description.server)
            }
            Kind::Light => {
                let Description { fake_nodes, server, .. } = &self.description;
                format!("a control plane with {fake_nodes} simulated Kubernetes node(s), API at {server}")
            }
            Kind::External => format!("an existing cluster of version {}", self.description.server),
        }
    }

    /// The folder with its files.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder with its components' logs.
    pub fn logs(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn node_names(&self) -> Vec<String> {
        (1..=self.description.nodes).map(|number| format!("n{number}")).collect()
    }

    /// Imports an image archive into every Kubernetes node.
    pub fn import(&self, archive: &Path, steps: &Steps) -> Result<()> {
        if self.description.kind != Kind::Full {
            return Err(Error::refused(format!(
                "the cluster {:?} has no Kubernetes nodes that could hold an image",
                self.name
            )));
        }
        let tools = NodeTools::get(steps)?;
        for node in self.node_names() {
            let step = steps.begin(format!("importing {} into {node}", archive.display()));
            node::import(&tools.ctr(), &node::containerd_socket(&self.folder, &node), archive)?;
            step.done("");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_name_fits_into_namespaces_cgroups_and_paths() {
        for name in ["a", "demo", "dc-1", "twenty-letters-long-"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", "1st", "-x", "Demo", "a_b", "a/b", "..", "fabric", "twenty-one-letters-xx"] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
