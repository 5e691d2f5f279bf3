//! A round: objects in a namespace of their own are created, changed and deleted.

use std::{
    fmt::Display,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use futures::StreamExt;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Namespace, PersistentVolumeClaim},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use messina_api::{
    druid::v1alpha1::{Etcd, EtcdOperatorTask, TaskState},
    names::etcd::client_service,
    scylla::v1alpha1::ScyllaDBDatacenter,
};
use messina_plan::etcd_task::is_finished;
use messina_testbed::harness::{self, Seen, eventually};
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use super::{
    LIMIT, Sizes,
    servers::{Behaviour, Servers, Task},
};
use crate::robustness;

/// Requests of the test that are sent at once.
const AT_ONCE: usize = 8;
/// The pause between two lists.
const PAUSE: Duration = Duration::from_millis(200);
/// The prefix of the names of all namespaces.
pub(super) const NAMES: &str = "hostile-";

/// The state that rounds share.
pub(super) struct Setup {
    pub(super) client: Client,
    pub(super) servers: Servers,
    /// The operator's /etc/hosts, by which it finds the servers.
    pub(super) hosts: PathBuf,
    /// The folder of the cluster.
    pub(super) folder: PathBuf,
    pub(super) sizes: Sizes,
}

/// When the API server is killed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kill {
    Never,
    /// While the operator reconciles new objects.
    AfterCreation,
    /// While the operator finalizes deleted objects.
    AfterDeletion,
}

/// The objects of a round.
pub(super) struct Round<'a> {
    setup: &'a Setup,
    number: usize,
    namespace: String,
    /// The behaviour of the server of each Etcd.
    etcds: Vec<Behaviour>,
    datacenters: usize,
}

impl<'a> Round<'a> {
    /// A round of full size. Each one has other names, so that state of objects that is left behind adds up.
    pub(super) async fn new(setup: &'a Setup, number: usize) -> Self {
        let etcds = Behaviour::ALL.into_iter().cycle().take(setup.sizes.etcds).collect();
        Self::with(setup, number, etcds, setup.sizes.datacenters).await
    }

    /// A datacenter and an Etcd with tasks that succeed.
    pub(super) async fn benign(setup: &'a Setup, number: usize) -> Self {
        Self::with(setup, number, vec![Behaviour::Benign], 1).await
    }

    async fn with(setup: &'a Setup, number: usize, etcds: Vec<Behaviour>, datacenters: usize) -> Self {
        let namespace = format!("{NAMES}{number}");
        let manifest = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        let round = Self { setup, number, namespace, etcds, datacenters };
        sent("creating a namespace", async || {
            harness::apply(&setup.client, &manifest.to_string(), None).await.map(drop)
        })
        .await;
        let names = (0..round.etcds.len()).map(|index| {
            let name = format!("{}.{}.svc.cluster.local", client_service(&round.etcd(index)), round.namespace);
            // The operator resolves the name with a trailing dot.
            format!("127.0.0.1 {name} {name}.\n")
        });
        // Written in place, because the operator has mounted this file.
        fs::write(&setup.hosts, format!("127.0.0.1 localhost\n{}", names.collect::<String>())).unwrap();
        round
    }

    /// Creates, changes and deletes all objects, and waits each time until the operator has reconciled them. Returns
    /// the seconds of each step.
    pub(super) async fn run(&self, kill: Kill) -> String {
        let mut laps = Laps::default();
        let accepted = Behaviour::ALL.map(|behaviour| self.setup.servers.accepted(behaviour));
        self.apply_all(1).await;
        laps.end("create");
        if kill == Kill::AfterCreation {
            kill_api_server(&self.setup.client, &self.setup.folder).await;
            laps.end("restart the API server");
        }
        self.datacenters_are_reconciled().await;
        laps.end("reconcile");
        self.delete_etcds_of_running_tasks().await;
        laps.end("begin tasks");
        self.apply_all(2).await;
        self.datacenters_are_reconciled().await;
        laps.end("change");
        self.tasks_are_handled(accepted).await;
        laps.end("end tasks");
        self.delete_all().await;
        if kill == Kill::AfterDeletion {
            kill_api_server(&self.setup.client, &self.setup.folder).await;
            laps.end("delete and restart the API server");
        }
        self.all_are_gone().await;
        laps.end("delete");
        // The test does not wait for the deletion of the namespace, which is not the operator's work.
        let namespaces: Api<Namespace> = Api::all(self.setup.client.clone());
        sent("deleting a namespace", async || {
            namespaces.delete(&self.namespace, &DeleteParams::default()).await.map(drop)
        })
        .await;
        laps.text
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.setup.client.clone(), &self.namespace)
    }

    fn etcd(&self, index: usize) -> String {
        format!("etcd-{}-{index}", self.number)
    }

    fn task(&self, task: &Task, index: usize) -> String {
        format!("{}-{}-{index}", task.task_type.to_lowercase(), self.number)
    }

    /// All tasks, by name.
    fn tasks(&self) -> Vec<(String, Task, usize)> {
        let tasks = self
            .etcds
            .iter()
            .enumerate()
            .flat_map(|(index, etcd)| etcd.tasks().into_iter().map(move |one| (one, index)));
        tasks.map(|(task, index)| (self.task(&task, index), task, index)).collect()
    }

    async fn apply(&self, manifest: &Value) {
        sent("applying an object", async || {
            harness::apply(&self.setup.client, &manifest.to_string(), Some(&self.namespace)).await.map(drop)
        })
        .await;
    }

    /// Applies all objects: datacenters with `version` nodes, and Etcds and tasks with the same number in an
    /// annotation.
    async fn apply_all(&self, version: usize) {
        let annotations = json!({"test.messina/version": version.to_string()});
        let datacenters = (0..self.datacenters).map(|index| {
            let mut datacenter = robustness::datacenter(&format!("dc-{}-{index}", self.number));
            datacenter["spec"]["racks"][0]["nodes"] = version.into();
            datacenter
        });
        let are_deleted = |index: &usize| version > 1 && self.etcds[*index] == Behaviour::SilentWithoutEtcd;
        let etcds = (0..self.etcds.len()).filter(|index| !are_deleted(index)).map(|index| {
            let (name, port) = (self.etcd(index), self.setup.servers.port(self.etcds[index]));
            json!({
                "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd",
                "metadata": {"name": name, "annotations": annotations},
                "spec": {
                    "replicas": 1,
                    "etcd": {"clientPort": port},
                    "backup": {"port": port, "store": {"provider": "Local", "container": "snapshots", "prefix": name}},
                },
            })
        });
        let tasks = self.tasks().into_iter().map(|(name, task, index)| {
            json!({
                "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdOperatorTask",
                "metadata": {"name": name, "annotations": annotations},
                "spec": {
                    "type": task.task_type,
                    "config": {"timeoutSeconds": task.deadline},
                    "etcdReference": {"name": self.etcd(index)},
                },
            })
        });
        // Tasks last: each finds its Etcd, with a ready member.
        self.apply_each(datacenters.chain(etcds)).await;
        let etcds: Api<Etcd> = self.api();
        let ready = Patch::Merge(json!({"status": {"replicas": 1, "readyReplicas": 1}}));
        let (etcds, ready) = (&etcds, &ready);
        futures::stream::iter((0..self.etcds.len()).filter(|index| !are_deleted(index)))
            .for_each_concurrent(AT_ONCE, async |index| {
                sent("writing the status of an Etcd", async || {
                    etcds.patch_status(&self.etcd(index), &PatchParams::default(), ready).await.map(drop)
                })
                .await;
            })
            .await;
        self.apply_each(tasks).await;
    }

    async fn apply_each(&self, manifests: impl Iterator<Item = Value>) {
        futures::stream::iter(manifests)
            .for_each_concurrent(AT_ONCE, async |manifest| self.apply(&manifest).await)
            .await;
    }

    /// Waits until the operator has reconciled the present specification of each datacenter, and there is a
    /// StatefulSet for each.
    async fn datacenters_are_reconciled(&self) {
        let (datacenters, sets) = (self.api::<ScyllaDBDatacenter>(), self.api::<StatefulSet>());
        listed("all datacenters to be reconciled", async || {
            let all = datacenters.list(&ListParams::default()).await?;
            let is_reconciled = |one: &&ScyllaDBDatacenter| {
                let observed = one.status.as_ref().and_then(|status| status.observed_generation);
                observed.is_some() && observed == one.metadata.generation
            };
            let reconciled = all.iter().filter(is_reconciled).count();
            let sets = sets.list_metadata(&ListParams::default()).await?.items.len();
            let is_done = reconciled == self.datacenters && sets == self.datacenters;
            Ok(if is_done {
                Seen::Ready(())
            } else {
                Seen::NotYet(format!("{reconciled} are, with {sets} StatefulSets"))
            })
        })
        .await;
    }

    /// Deletes Etcds whose tasks are in progress.
    async fn delete_etcds_of_running_tasks(&self) {
        let (etcds, tasks) = (self.api::<Etcd>(), self.api::<EtcdOperatorTask>());
        let of_silent =
            self.tasks().into_iter().filter(|(.., index)| self.etcds[*index] == Behaviour::SilentWithoutEtcd);
        for (name, _, index) in of_silent {
            listed(&format!("the task {name} to begin"), async || {
                let state = tasks.get(&name).await?.status.and_then(|status| status.state);
                let has_begun = state == Some(TaskState::InProgress) || is_finished(state.as_ref());
                Ok(if has_begun { Seen::Ready(()) } else { Seen::NotYet(format!("{state:?}")) })
            })
            .await;
            sent("deleting an Etcd", async || {
                etcds.delete(&self.etcd(index), &DeleteParams::default()).await.map(drop)
            })
            .await;
        }
    }

    /// Waits until each task has ended as expected, or has reached its server.
    async fn tasks_are_handled(&self, accepted: [usize; Behaviour::ALL.len()]) {
        let (api, expected) = (self.api::<EtcdOperatorTask>(), self.tasks());
        listed("all tasks to be handled", async || {
            let all = api.list(&ListParams::default()).await?;
            let mut open = vec![];
            for (name, task, _) in expected.iter().filter(|(_, task, _)| task.ends_as.is_some()) {
                let found = all.iter().find(|one| one.name_any() == *name);
                let status = found.and_then(|one| one.status.clone()).unwrap_or_default();
                if is_finished(status.state.as_ref()) && status.state != task.ends_as {
                    panic!("the task {name} should end as {:?}: {}", task.ends_as, json!(status));
                }
                if status.state != task.ends_as {
                    open.push(format!("{name}: {:?}", status.state));
                }
            }
            for (behaviour, before) in Behaviour::ALL.into_iter().zip(accepted) {
                let etcds = self.etcds.iter().filter(|one| **one == behaviour).count();
                let met = self.setup.servers.accepted(behaviour) - before;
                if met < etcds {
                    open.push(format!("{behaviour:?}: {met} connections of {etcds} or more"));
                }
            }
            Ok(if open.is_empty() { Seen::Ready(()) } else { Seen::NotYet(open.join(", ")) })
        })
        .await;
    }

    async fn delete_all(&self) {
        let all = (DeleteParams::default(), ListParams::default());
        let (datacenters, etcds, tasks) =
            (self.api::<ScyllaDBDatacenter>(), self.api::<Etcd>(), self.api::<EtcdOperatorTask>());
        sent("deleting tasks", async || tasks.delete_collection(&all.0, &all.1).await.map(drop)).await;
        sent("deleting Etcds", async || etcds.delete_collection(&all.0, &all.1).await.map(drop)).await;
        sent("deleting datacenters", async || datacenters.delete_collection(&all.0, &all.1).await.map(drop)).await;
        // No owner reference removes these.
        let claims = self.api::<PersistentVolumeClaim>();
        sent("deleting claims", async || claims.delete_collection(&all.0, &all.1).await.map(drop)).await;
    }

    /// Waits until all objects that the test created are gone, and until the operator has closed all connections.
    async fn all_are_gone(&self) {
        let (datacenters, etcds, tasks) =
            (self.api::<ScyllaDBDatacenter>(), self.api::<Etcd>(), self.api::<EtcdOperatorTask>());
        listed("all objects to be gone", async || {
            let all = ListParams::default();
            let left = [
                datacenters.list_metadata(&all).await?.items.len(),
                etcds.list_metadata(&all).await?.items.len(),
                tasks.list_metadata(&all).await?.items.len(),
            ];
            let [datacenters, etcds, tasks] = left;
            let seen = format!("{datacenters} datacenters, {etcds} Etcds and {tasks} tasks are left");
            Ok(if left == [0; 3] { Seen::Ready(()) } else { Seen::NotYet(seen) })
        })
        .await;
        listed("all connections of deleted tasks to be closed", async || {
            let open = self.setup.servers.open();
            Ok(if open.is_empty() { Seen::Ready(()) } else { Seen::NotYet(format!("{open:?}")) })
        })
        .await;
    }
}

/// How long each step of a round took.
struct Laps {
    began: Instant,
    text: String,
}

impl Default for Laps {
    fn default() -> Self {
        Self { began: Instant::now(), text: String::new() }
    }
}

impl Laps {
    fn end(&mut self, step: &str) {
        let separator = if self.text.is_empty() { "" } else { ", " };
        self.text += &format!("{separator}{step} {:.1}", self.began.elapsed().as_secs_f64());
        self.began = Instant::now();
    }
}

/// Kills the API server, and waits until the one that the testbed starts in its place is ready.
async fn kill_api_server(client: &Client, folder: &Path) {
    let killed = robustness::unavailable::api_server(folder).await;
    kill(killed, Signal::SIGKILL).unwrap();
    listed("another API server to be ready", async || {
        if robustness::unavailable::api_server(folder).await == killed {
            return Ok(Seen::NotYet("the killed one is there".to_owned()));
        }
        client.request_text(harness::get("/readyz").unwrap()).await.map(|_| Seen::Ready(()))
    })
    .await;
}

/// Sends a request until the API server accepts it: it may have been killed a moment ago.
async fn sent<E: Display>(what: &str, request: impl AsyncFn() -> Result<(), E>) {
    let request = &request;
    let sending = eventually(what, LIMIT, async || {
        Ok(match request().await {
            Ok(()) => Seen::Ready(()),
            Err(error) => Seen::NotYet(error.to_string()),
        })
    });
    sending.await.unwrap();
}

/// Waits until lists of the API server are as expected.
async fn listed(what: &str, list: impl AsyncFn() -> kube::Result<Seen<()>>) {
    let list = &list;
    let waiting = eventually(what, LIMIT, async || {
        let seen = list().await.unwrap_or_else(|error| Seen::NotYet(error.to_string()));
        if matches!(seen, Seen::NotYet(_)) {
            tokio::time::sleep(PAUSE).await;
        }
        Ok(seen)
    });
    waiting.await.unwrap();
}
