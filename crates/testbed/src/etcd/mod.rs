//! Real etcd clusters with etcd-backup-restore on Kubernetes nodes, with the same objects as those of etcd-druid.
//!
//! An etcd cluster is a StatefulSet whose pods have one container with etcd and one with the sidecar, the Services
//! `<name>-peer` and `<name>-client`, and an Etcd whose status the [`keeper`] updates. Its snapshots go to a folder of
//! this host, which reaches the members at their pods' addresses.

mod certificates;
pub mod definition;
mod faults;
pub mod keeper;
pub mod member;
mod objects;
pub mod programs;
mod store;

use std::{collections::BTreeMap, fmt, time::Duration};

use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Pod};
use kube::{Api, Client, ResourceExt};
use messina_api::druid::v1alpha1::{Etcd, EtcdStatus};
use serde::{Deserialize, Serialize};
use serde_json::json;

pub use self::{
    member::{Credentials, HttpResponse, Member, MemberStatus},
    objects::{CLIENT_PORT, SIDECAR_PORT},
    store::{STORES, Snapshot, Store},
};
use self::{objects::Plan, programs::Programs};
use crate::{
    cluster::Cluster,
    error::{Doing, Error, Result},
    harness::{self, Seen},
    progress::Steps,
};

/// The namespace of the etcd cluster of `testbed up --with-etcd`.
pub const NAMESPACE: &str = "default";
/// The name of the etcd cluster of `testbed up --with-etcd`.
pub const NAME: &str = "etcd-main";

/// The longest wait for an etcd cluster, on a busy host.
const TIMEOUT: Duration = Duration::from_secs(180);

/// The size of an etcd cluster, and whether it uses TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// The number of members.
    pub members: u8,
    /// Whether etcd and sidecars use TLS, and etcd's clients need a certificate.
    pub tls: bool,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} member(s){}", self.members, if self.tls { " with TLS" } else { "" })
    }
}

/// A process of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberProcess {
    /// etcd itself.
    Etcd,
    /// The sidecar that takes snapshots.
    Sidecar,
}

impl MemberProcess {
    /// Its container.
    pub fn container(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Sidecar => "backup-restore",
        }
    }
}

/// An etcd cluster.
#[derive(Clone)]
pub struct EtcdCluster {
    client: Client,
    namespace: String,
    name: String,
    shape: Shape,
    store: Store,
}

/// Prepares a cluster for etcd clusters: imports the images and installs the definition.
pub async fn prepare(cluster: &Cluster, client: &Client, steps: &Steps) -> Result<()> {
    let programs = Programs::get(steps)?;
    let step = steps.begin("importing etcd's images into the cluster");
    programs.import(cluster)?;
    step.done("");
    definition::install(client).await
}

/// Starts the etcd cluster of `testbed up --with-etcd`.
pub(crate) async fn bring_up(cluster: &Cluster, shape: Shape, steps: &Steps) -> Result<()> {
    let client = harness::client(&cluster.kubeconfig()).await?;
    prepare(cluster, &client, steps).await?;
    let step = steps.begin(format!("starting the etcd cluster {NAME:?} of {shape}"));
    let etcd = EtcdCluster::apply(cluster, &client, NAMESPACE, NAME, shape).await?;
    etcd.await_ready_with_progress(|seen| step.progress(seen)).await?;
    step.done("");
    Ok(())
}

impl EtcdCluster {
    /// Starts an etcd cluster, or finds it, and returns when it is ready and takes snapshots. It needs [`prepare`] or
    /// `testbed up --with-etcd` before, and a running [`keeper`].
    pub async fn deploy(cluster: &Cluster, client: &Client, namespace: &str, name: &str, shape: Shape) -> Result<Self> {
        let etcd = Self::apply(cluster, client, namespace, name, shape).await?;
        etcd.await_ready().await?;
        Ok(etcd)
    }

    /// The etcd cluster of this name.
    pub async fn find(cluster: &Cluster, client: &Client, namespace: &str, name: &str) -> Result<Self> {
        let api: Api<Etcd> = Api::namespaced(client.clone(), namespace);
        let etcd = api.get(name).await.doing(|| format!("looking for the Etcd {namespace}/{name}"))?;
        let tls = etcd.spec.etcd.and_then(|etcd| etcd.client_url_tls).is_some();
        let members = etcd.spec.replicas.and_then(|replicas| replicas.try_into().ok()).unwrap_or(1);
        Self::new(cluster, client, namespace, name, Shape { members, tls })
    }

    fn new(cluster: &Cluster, client: &Client, namespace: &str, name: &str, shape: Shape) -> Result<Self> {
        let store = Store::of(cluster.folder(), namespace, name)?;
        Ok(Self { client: client.clone(), namespace: namespace.into(), name: name.into(), shape, store })
    }

    async fn apply(cluster: &Cluster, client: &Client, namespace: &str, name: &str, shape: Shape) -> Result<Self> {
        let this = Self::new(cluster, client, namespace, name, shape)?;
        let members: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
        // The StatefulSet is created last: if it does not exist, a run was interrupted, and all objects are applied
        // again.
        if members.get_opt(name).await.doing(|| format!("looking for the StatefulSet {namespace}/{name}"))?.is_some() {
            let found = Self::find(cluster, client, namespace, name).await?;
            if found.shape == shape {
                return Ok(found);
            }
            return Err(Error::refused(format!(
                "the etcd cluster {namespace}/{name} exists with {}: choose another name for one with {shape}",
                found.shape
            )));
        }
        let plan = this.plan();
        let applied = harness::apply(client, &plan.etcd().to_string(), Some(namespace)).await?;
        let uid = applied.first().and_then(ResourceExt::uid);
        // So that all other objects are deleted with it.
        let owner = json!([{
            "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd", "name": name, "uid": uid,
            "controller": true, "blockOwnerDeletion": true,
        }]);
        let secrets = if shape.tls { certificates::make(namespace, name)? } else { vec![] };
        for mut part in secrets.into_iter().chain(plan.parts()) {
            part["metadata"]["ownerReferences"] = owner.clone();
            harness::apply(client, &part.to_string(), Some(namespace)).await?;
        }
        Ok(this)
    }

    fn plan(&self) -> Plan<'_> {
        Plan { namespace: &self.namespace, name: &self.name, shape: self.shape }
    }

    /// Its shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The store of its snapshots.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Waits until its status reports that it and all its members are ready, and it takes snapshots. Right after a
    /// fault, the status may not be updated yet.
    pub async fn await_ready(&self) -> Result<EtcdStatus> {
        self.await_ready_with_progress(|_| {}).await
    }

    async fn await_ready_with_progress(&self, report: impl Fn(&str)) -> Result<EtcdStatus> {
        let api: Api<Etcd> = Api::namespaced(self.client.clone(), &self.namespace);
        let what = format!("the etcd cluster {} to be ready", self.name);
        let status = harness::until(api, &self.name, &what, TIMEOUT, |etcd| {
            let status = etcd.and_then(|etcd| etcd.status).unwrap_or_default();
            let missing: Vec<&str> = keeper::CONDITIONS.into_iter().filter(|name| !is_true(&status, name)).collect();
            if missing.is_empty() {
                return Seen::Ready(status);
            }
            let ready = status.ready_replicas.unwrap_or(0);
            let seen = format!("{ready} members are ready; not true: {}", missing.join(", "));
            report(&seen);
            Seen::NotYet(seen)
        })
        .await?;
        self.await_snapshots().await?;
        Ok(status)
    }

    /// Waits until the leading sidecar takes a delta snapshot on request. If nothing has changed since the last
    /// snapshot, this creates none.
    pub async fn await_snapshots(&self) -> Result<()> {
        harness::eventually("the leading sidecar to take snapshots", TIMEOUT, || async {
            let answer = match self.leader().await {
                Ok(leader) => leader.sidecar("POST", "/snapshot/delta", Duration::from_secs(40)).await,
                Err(error) => Err(error),
            };
            Ok(match answer {
                Ok(HttpResponse { code: 200, .. }) => Seen::Ready(()),
                other => Seen::NotYet(format!("{other:?}")),
            })
        })
        .await
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn pod_name(&self, member: u8) -> String {
        format!("{}-{member}", self.name)
    }

    /// The credentials of its clients, if it uses TLS.
    pub async fn credentials(&self) -> Result<Option<Credentials>> {
        if self.shape.tls {
            Credentials::read(&self.client, &self.namespace, &self.name).await.map(Some)
        } else {
            Ok(None)
        }
    }

    /// The member with this ordinal.
    pub async fn member(&self, number: u8) -> Result<Member> {
        let name = self.pod_name(number);
        let pod = self.pods().get(&name).await.doing(|| format!("looking for the pod {name}"))?;
        Member::of(&self.plan(), &pod, self.credentials().await?.as_ref()).await
    }

    /// The ordinal of the leader. Waits for members that are busy or just started.
    pub async fn leading(&self) -> Result<u8> {
        harness::eventually(&format!("a member of the etcd cluster {} to lead", self.name), TIMEOUT, || async {
            let mut seen = Vec::new();
            for number in 0..self.shape.members {
                let status = match self.member(number).await {
                    Ok(member) => member.status_within(Duration::from_secs(2)).await,
                    Err(error) => Err(error),
                };
                match status {
                    Ok(status) if status.leads() => return Ok(Seen::Ready(number)),
                    other => seen.push(format!("{number}: {other:?}")),
                }
            }
            Ok(Seen::NotYet(seen.join(", ")))
        })
        .await
    }

    /// The leader.
    pub async fn leader(&self) -> Result<Member> {
        self.member(self.leading().await?).await
    }

    /// Writes a key.
    pub async fn put(&self, key: &str, value: &str) -> Result<()> {
        self.leader().await?.put(key, value).await
    }

    /// Reads a key.
    pub async fn get(&self, key: &str) -> Result<Option<String>> {
        self.leader().await?.get(key).await
    }

    /// All keys and values.
    pub async fn all(&self) -> Result<BTreeMap<String, String>> {
        self.leader().await?.all().await
    }
}

fn is_true(status: &EtcdStatus, name: &str) -> bool {
    let conditions = status.conditions.iter().flatten();
    conditions
        .filter(|condition| condition.condition_type.as_deref() == Some(name))
        .any(|condition| condition.status.as_deref() == Some("True"))
}
