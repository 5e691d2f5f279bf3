//! A ScyllaDBDatacenter in a namespace of its own, with an operator of its own that watches only this namespace: many
//! tests share a cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    process::Command,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{
    api::{
        batch::v1::Job,
        coordination::v1::Lease,
        core::v1::{PersistentVolumeClaim, Pod, Service},
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    core::NamespaceResourceScope,
};
use messina_api::{
    names::{annotation, label},
    scylla::v1alpha1::{ScyllaDBDatacenter, ScyllaDBDatacenterStatus},
};
use messina_scylla_sim::disk::Disk;
use messina_testbed::{
    audit::{Log, Request},
    cluster::Cluster,
    deploy::{self, Deployed},
    exec,
    harness::{self, Seen, eventually, until},
    progress::Steps,
    tools::Tools,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    clusters::cluster_named,
    expect_ok,
    failure_report::FailureReport,
    observer::{
        Observer,
        log::{self, Write},
    },
    permissions::{Permissions, permissions},
};

/// The name of the datacenter, in every namespace.
pub const NAME: &str = "orders";
/// The label by which pods of nodes are distinguished from pods of Jobs.
pub const NODE_PODS: &str = "scylla-operator.scylladb.com/pod-type=scylladb-node";
/// The timeout of each wait, while other tests use the same CPUs.
pub const LONG: Duration = Duration::from_secs(420);
/// A setting for tests that kill the leader: another replica of the operator takes over after this number of seconds.
pub const SHORT_LEASE: (&str, &str) = ("MESSINA_LEASE_SECONDS", "4");
/// A setting that lets the kubelet probe nodes every second.
const FREQUENT_PROBES: (&str, &str) = ("MESSINA_NODE_PROBE_SECONDS", "1");
/// The name of the datacenter in ScyllaDB.
const DATACENTER: &str = "dc";
/// How many rows are written at once.
const ROWS: usize = 20;
/// The Deployment, the Lease and the container of the operator have this name.
const OPERATOR: &str = "messina";

/// A small datacenter `orders` with these racks, each with its number of nodes.
pub fn manifest(racks: &[(&str, i32)]) -> Value {
    let racks: Vec<Value> = racks.iter().map(|(name, nodes)| json!({"name": name, "nodes": nodes})).collect();
    let small = json!({"requests": {"cpu": "5m", "memory": "10Mi"}, "limits": {"cpu": "500m", "memory": "200Mi"}});
    json!({
        "apiVersion": "scylla.scylladb.com/v1alpha1",
        "kind": "ScyllaDBDatacenter",
        "metadata": {"name": NAME},
        "spec": {
            "clusterName": NAME,
            "datacenterName": DATACENTER,
            "minReadySeconds": 0,
            "scyllaDB": {"image": deploy::SCYLLA_IMAGE, "enableDeveloperMode": true},
            "scyllaDBManagerAgent": {"image": deploy::AGENT_IMAGE},
            "rackTemplate": {
                "scyllaDB": {"resources": small, "storage": {"capacity": "50Mi", "storageClassName": "local"}},
                "scyllaDBManagerAgent": {"resources": {"requests": {"cpu": "5m", "memory": "10Mi"}}},
            },
            "racks": racks,
        },
    })
}

/// What identifies nodes, by name: it must not change without need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// Host IDs, by member.
    pub hosts: BTreeMap<String, String>,
    /// UIDs of claims.
    pub claims: BTreeMap<String, String>,
    /// UIDs of pods, and how often their containers were restarted.
    pub pods: BTreeMap<String, (String, i32)>,
}

/// The namespace of a test, with its operator.
#[derive(Clone)]
pub struct TestDatacenter {
    /// A client for the cluster.
    pub client: Client,
    /// The cluster.
    pub cluster: Cluster,
    /// The namespace of the datacenter.
    pub namespace: String,
    /// The operator that watches the namespace.
    pub operator: Deployed,
    /// The audit log since before the operator was deployed.
    log: Log,
    _failure_report: Arc<FailureReport>,
}

impl TestDatacenter {
    /// Creates a namespace in the shared cluster, and deploys an operator for it with these settings.
    pub async fn create(test: &str, settings: &[(&'static str, &str)]) -> Self {
        let client = expect_ok(harness::full_with_images().await);
        Self::create_on(&client, &cluster_named(harness::FULL), test, settings).await
    }

    /// As [`TestDatacenter::create`], in a cluster that has the definitions and the images.
    pub async fn create_on(client: &Client, cluster: &Cluster, test: &str, settings: &[(&'static str, &str)]) -> Self {
        let log = expect_ok(Log::from_now(cluster.audit_log()));
        let namespace = expect_ok(harness::namespace(client, test).await);
        let settings = [&[FREQUENT_PROBES], settings].concat();
        let operator = Deployed {
            watches: Some(namespace.clone()),
            settings: settings.into_iter().map(|(name, value)| (name, value.to_owned())).collect(),
        };
        let failure_report = Arc::new(FailureReport::new(cluster, &namespace, operator.namespace()));
        expect_ok(deploy::deploy(client, &operator, &Steps::quiet()).await);
        Self {
            client: client.clone(),
            cluster: cluster.clone(),
            namespace,
            operator,
            log,
            _failure_report: failure_report,
        }
    }

    /// Deletes both namespaces, at the end of a test that has passed. Those of a failed test can be inspected.
    pub async fn remove(&self) {
        expect_ok(harness::remove_namespace(&self.client, &self.namespace).await);
        expect_ok(deploy::remove(&self.client, &self.operator).await);
    }

    /// The objects of a kind in the namespace of the datacenter.
    pub fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The objects of a kind in the namespace of the operator.
    pub fn operator_api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.operator.namespace())
    }

    /// Observes the datacenter from now on.
    pub fn observe(&self) -> Observer {
        Observer::start(&self.cluster, &self.namespace)
    }

    /// Applies the manifest of the datacenter.
    pub async fn apply(&self, manifest: &Value) {
        let params = PatchParams::apply("test").force();
        expect_ok(self.api::<ScyllaDBDatacenter>().patch(NAME, &params, &Patch::Apply(manifest)).await);
    }

    /// Patches an object in the namespace of the datacenter.
    pub async fn patch<K>(&self, name: &str, patch: Value)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        expect_ok(self.api::<K>().patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await);
    }

    /// Pauses the datacenter for this reason, or resumes it.
    pub async fn pause(&self, reason: Option<&str>) {
        let patch = json!({"metadata": {"annotations": {annotation::PAUSE: reason}}});
        self.patch::<ScyllaDBDatacenter>(NAME, patch).await;
    }

    /// Waits until the datacenter is as its specification says, and returns its status.
    pub async fn settled(&self, nodes: i32) -> ScyllaDBDatacenterStatus {
        let api = self.api::<ScyllaDBDatacenter>();
        let what = format!("the datacenter to have {nodes} nodes and to be settled");
        expect_ok(until(api, NAME, &what, LONG, |seen| check_settled(seen, nodes)).await)
    }

    /// As [`TestDatacenter::settled`]; besides, all nodes see the same token ring, were cleaned up for it, and the Jobs
    /// that did so are gone. Nodes notice only after a while that the ring has changed.
    pub async fn settled_and_cleaned_up(&self, nodes: i32) {
        self.settled(nodes).await;
        let what = format!("{nodes} nodes to be cleaned up");
        let cleaned_up = eventually(&what, LONG, async || {
            let seen = expect_ok(self.api::<ScyllaDBDatacenter>().get_opt(NAME).await);
            let services = expect_ok(self.api::<Service>().list(&ListParams::default()).await);
            let members: Vec<&Service> = services.iter().filter(|one| one.labels().contains_key(label::RACK)).collect();
            let rings = members.iter().flat_map(|member| {
                let ring = |key: &str| member.annotations().get(key).cloned();
                [ring(annotation::CURRENT_TOKEN_RING_HASH), ring(annotation::LAST_CLEANED_UP_TOKEN_RING_HASH)]
            });
            let rings: BTreeSet<Option<String>> = rings.collect();
            let jobs = expect_ok(self.api::<Job>().list(&ListParams::default()).await).items.len();
            let is_one_ring = rings.len() == 1 && rings.first().is_some_and(Option::is_some);
            Ok(match check_settled(seen, nodes) {
                Seen::Ready(_) if is_one_ring && jobs == 0 => Seen::Ready(()),
                Seen::Ready(_) => Seen::NotYet(format!("{} members, {rings:?}, {jobs} Jobs", members.len())),
                Seen::NotYet(open) => Seen::NotYet(open),
            })
        });
        expect_ok(cleaned_up.await);
    }

    /// Waits until a condition has this status and the rest of it is as expected.
    pub async fn condition(&self, name: &str, status: &str, is_expected: impl Fn(&Condition) -> bool) -> Condition {
        let what = format!("the condition {name}={status}");
        let found = until(self.api::<ScyllaDBDatacenter>(), NAME, &what, LONG, |seen| {
            let conditions = seen.and_then(|datacenter| datacenter.status?.conditions).unwrap_or_default();
            match conditions.iter().find(|one| one.type_ == name && one.status == status && is_expected(one)) {
                Some(found) => Seen::Ready(found.clone()),
                None => Seen::NotYet(format!("{conditions:#?}")),
            }
        });
        expect_ok(found.await)
    }

    /// The nodes as they are now.
    pub async fn nodes(&self) -> Nodes {
        let services = expect_ok(self.api::<Service>().list(&ListParams::default()).await);
        let hosts = services
            .iter()
            .filter_map(|service| Some((service.name_any(), service.annotations().get(annotation::HOST_ID)?.clone())));
        let claims = expect_ok(self.api::<PersistentVolumeClaim>().list(&ListParams::default()).await);
        let pods = expect_ok(self.api::<Pod>().list(&ListParams::default().labels(NODE_PODS)).await);
        Nodes {
            hosts: hosts.collect(),
            claims: claims.iter().map(|claim| (claim.name_any(), claim.uid().unwrap_or_default())).collect(),
            pods: pods.iter().map(|pod| (pod.name_any(), (pod.uid().unwrap_or_default(), restarts(pod)))).collect(),
        }
    }

    /// The host ID of a member, by its Service.
    pub async fn host_id(&self, member: &str) -> String {
        let service = expect_ok(self.api::<Service>().get(member).await);
        let host_id = service.annotations().get(annotation::HOST_ID).cloned();
        host_id.unwrap_or_else(|| panic!("Service {member} has no host ID"))
    }

    /// The host ID on the disk of a claim.
    pub async fn host_on_disk(&self, claim: &str) -> Option<String> {
        let claim = expect_ok(self.api::<PersistentVolumeClaim>().get(claim).await);
        let node = claim.annotations().get("volume.kubernetes.io/selected-node")?;
        let folder = self.cluster.volume(node, &claim.uid().unwrap_or_default());
        let local = expect_ok(Disk::new(folder.clone(), folder.join("data")).load());
        local.map(|local| local.host_id.to_string())
    }

    /// Runs a command in the container of a node, and returns its output.
    pub fn exec(&self, pod: &str, command: &[&str]) -> messina_testbed::Result<String> {
        let mut kubectl = Command::new(Tools::control_plane(&Steps::quiet())?.program("kubectl"));
        kubectl.arg("--kubeconfig").arg(self.cluster.kubeconfig());
        kubectl.args(["--namespace", &self.namespace, "exec", pod, "--container", "scylla", "--"]);
        exec::output(&command.join(" "), kubectl.args(command))
    }

    /// Creates a keyspace with this replication factor, through the node in this pod.
    pub fn create_keyspace(&self, pod: &str, keyspace: &str, factor: usize) {
        expect_ok(self.exec(pod, &["simctl", "keyspace", keyspace, &format!("{DATACENTER}={factor}")]));
    }

    /// Writes rows through the node in this pod. The observer knows those that were acknowledged. Each call has a name
    /// of its own, so that no row is written twice.
    pub fn write_rows(
        &self,
        observer: &Observer,
        pod: &str,
        keyspace: &str,
        name: &str,
    ) -> messina_testbed::Result<()> {
        let rows: Vec<String> = (0..ROWS).map(|number| format!("{name}-{number}=value")).collect();
        let command: Vec<&str> =
            ["simctl", "write", keyspace].into_iter().chain(rows.iter().map(String::as_str)).collect();
        self.exec(pod, &command)?;
        observer.acknowledge(keyspace, rows.iter().filter_map(|row| row.split_once('=')));
        Ok(())
    }

    /// The pod of the operator that holds the lease, if one does.
    pub async fn leader(&self) -> Option<String> {
        let lease = expect_ok(self.operator_api::<Lease>().get(OPERATOR).await);
        lease.spec.and_then(|spec| spec.holder_identity).filter(|holder| !holder.is_empty())
    }

    /// Deletes a pod of the operator without a grace period.
    pub async fn kill(&self, pod: &str) -> kube::Result<()> {
        self.operator_api::<Pod>().delete(pod, &DeleteParams::default().grace_period(0)).await.map(drop)
    }

    /// Kills the leader, waits until another replica holds the lease, and returns the name of the former leader.
    pub async fn replace_leader(&self) -> String {
        let leader = self.kill_leader().await;
        self.await_other_leader(&leader).await;
        leader
    }

    /// Kills the leader, and returns its name. Waits if no replica holds the lease at the moment.
    pub async fn kill_leader(&self) -> String {
        let leader = self.await_leader("a replica of the operator to lead", |_| true).await;
        expect_ok(self.kill(&leader).await);
        leader
    }

    /// Waits until another replica leads.
    pub async fn await_other_leader(&self, leader: &str) {
        self.await_leader("another replica of the operator to lead", |next| next != leader).await;
    }

    /// Waits until a replica leads that meets the condition, and returns its name.
    async fn await_leader(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let found = until(self.operator_api::<Lease>(), OPERATOR, what, LONG, |seen| {
            match seen.and_then(|lease| lease.spec).and_then(|spec| spec.holder_identity) {
                Some(holder) if !holder.is_empty() && is_so(&holder) => Seen::Ready(holder),
                other => Seen::NotYet(format!("held by {other:?}")),
            }
        });
        expect_ok(found.await)
    }

    /// The requests in a log from the operator and from pods of the datacenter.
    pub fn requests(&self, log: &Log) -> Vec<Request> {
        expect_ok(log.requests_by(&[&self.operator.user(), &self.pods_user()]))
    }

    /// The audit log from now on.
    pub fn log_from_now(&self) -> Log {
        expect_ok(Log::from_now(self.cluster.audit_log()))
    }

    /// The writes to the namespace from now on.
    pub fn writes_from_now(&self) -> log::Log {
        log::Log::from_now(self.cluster.audit_log(), &self.namespace)
    }

    /// Whether the operator made this write.
    pub fn is_from_operator(&self, write: &Write) -> bool {
        write.user == self.operator.user()
    }

    /// Whether a sidecar of the datacenter made this write.
    pub fn is_from_sidecar(&self, write: &Write) -> bool {
        write.user == format!("{}{NAME}-member", self.pods_user())
    }

    /// The permissions of the operator, and those that it has used up to now.
    pub async fn permissions(&self) -> Permissions {
        permissions(&self.client, &self.log, &self.operator.user()).await
    }

    /// The prefix of the user names of ServiceAccounts of the namespace.
    fn pods_user(&self) -> String {
        format!("system:serviceaccount:{}:", self.namespace)
    }
}

/// How often the containers of a pod were restarted.
pub fn restarts(pod: &Pod) -> i32 {
    let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    containers.map(|container| container.restart_count).sum()
}

/// The status of a datacenter that is as its specification says; else the conditions that are not met.
fn check_settled(seen: Option<ScyllaDBDatacenter>, nodes: i32) -> Seen<ScyllaDBDatacenterStatus> {
    let generation = seen.as_ref().and_then(|datacenter| datacenter.metadata.generation);
    let status = seen.and_then(|datacenter| datacenter.status).unwrap_or_default();
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let is = |name: &str, value: &str| {
        let mut named = conditions.iter().filter(|one| one.type_ == name);
        named.any(|one| one.status == value && one.observed_generation == generation)
    };
    let is_settled = is("Available", "True") && is("Progressing", "False") && is("Degraded", "False");
    if is_settled && status.ready_nodes == Some(nodes) && status.nodes == Some(nodes) {
        return Seen::Ready(status);
    }
    let is_unmet = |one: &&Condition| one.status != if one.type_.ends_with("Available") { "True" } else { "False" };
    let unmet: Vec<String> =
        conditions.iter().filter(is_unmet).map(|one| format!("{}: {}", one.type_, one.message)).collect();
    Seen::NotYet(format!("{:?} of {:?} nodes are ready\n{}", status.ready_nodes, status.nodes, unmet.join("\n")))
}
