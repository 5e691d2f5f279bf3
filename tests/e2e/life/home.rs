//! One namespace with one datacenter, and what is asked of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use k8s_openapi::{
    api::{
        batch::v1::Job,
        core::v1::{Namespace, PersistentVolumeClaim, Pod, Service},
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
};
use messina_api::{
    names::{annotation, label},
    scylla::v1alpha1::ScyllaDBDatacenter,
};
use messina_e2e::{
    clusters::cluster_named,
    observer::log::{Log, Write},
    permissions::OPERATOR,
};
use messina_scylla_sim::disk::Disk;
use messina_testbed::{
    deploy, exec,
    harness::{Seen, eventually, until},
    progress::Steps,
    tools::Tools,
};
use serde_json::{Value, json};

/// The datacenter's name, in every namespace.
pub(super) const NAME: &str = "orders";
/// How long anything may take on a machine that others use, too.
pub(super) const LONG: Duration = Duration::from_secs(420);

/// What the user asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) racks: BTreeMap<String, i32>,
    pub(super) redeployment: Option<String>,
    pub(super) label: Option<String>,
    pub(super) annotation: Option<String>,
    pub(super) memory: u32,
    pub(super) log_level: &'static str,
}

impl Wish {
    pub(super) fn of(racks: &[(&str, i32)]) -> Self {
        Self {
            racks: racks.iter().map(|(rack, nodes)| ((*rack).to_owned(), *nodes)).collect(),
            redeployment: None,
            label: None,
            annotation: None,
            memory: 200,
            log_level: "info",
        }
    }

    pub(super) fn nodes(&self) -> i32 {
        self.racks.values().sum()
    }

    fn manifest(&self, namespace: &str) -> Value {
        let racks: Vec<Value> = self.racks.iter().map(|(name, nodes)| json!({"name": name, "nodes": nodes})).collect();
        let limits = json!({"cpu": "500m", "memory": format!("{}Mi", self.memory)});
        let resources = json!({"requests": {"cpu": "5m", "memory": "10Mi"}, "limits": limits});
        let labels: BTreeMap<&str, &String> = self.label.iter().map(|label| ("example.com/label", label)).collect();
        let annotations: BTreeMap<&str, &String> =
            self.annotation.iter().map(|annotation| ("example.com/annotation", annotation)).collect();
        // Nodes join and leave as fast as they can: it is the order of things that is looked at.
        let arguments = [
            "--sim-bootstrap-duration=200ms".to_owned(),
            "--sim-decommission-duration=200ms".to_owned(),
            format!("--default-log-level={}", self.log_level),
        ];
        let mut manifest = json!({
            "apiVersion": "scylla.scylladb.com/v1alpha1",
            "kind": "ScyllaDBDatacenter",
            "metadata": {"name": NAME, "namespace": namespace},
            "spec": {
                "metadata": {"labels": labels, "annotations": annotations},
                "clusterName": NAME,
                "datacenterName": "dc",
                "minReadySeconds": 0,
                "dnsDomains": ["example.com"],
                "exposeOptions": {"cql": {"ingress": {}}},
                "scyllaDB": {
                    "image": deploy::SCYLLA_IMAGE, "enableDeveloperMode": true,
                    "additionalScyllaDBArguments": arguments,
                },
                "scyllaDBManagerAgent": {"image": deploy::AGENT_IMAGE},
                "rackTemplate": {
                    "scyllaDB": {"resources": resources, "storage": {"capacity": "50Mi", "storageClassName": "local"}},
                    "scyllaDBManagerAgent": {"resources": {"requests": {"cpu": "5m", "memory": "10Mi"}}},
                },
                "racks": racks,
            },
        });
        if let Some(reason) = &self.redeployment {
            manifest["spec"]["forceRedeploymentReason"] = json!(reason);
        }
        manifest
    }
}

/// Whether a datacenter is as it was asked for; else what it says of itself.
fn open(seen: Option<ScyllaDBDatacenter>, wish: &Wish) -> Seen<()> {
    let generation = seen.as_ref().and_then(|datacenter| datacenter.metadata.generation);
    let status = seen.and_then(|datacenter| datacenter.status).unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let is = |name: &str, value: &str| {
        let mut named = conditions.iter().filter(|one| one.type_ == name);
        named.any(|one| one.status == value && one.observed_generation == generation)
    };
    let is_settled = is("Available", "True") && is("Progressing", "False") && is("Degraded", "False");
    let nodes = Some(wish.nodes());
    if is_settled && status.ready_nodes == nodes && status.nodes == nodes {
        return Seen::Ready(());
    }
    let is_open = |one: &&Condition| one.status != if one.type_.ends_with("Available") { "True" } else { "False" };
    let open: Vec<String> =
        conditions.iter().filter(is_open).map(|one| format!("{}: {}", one.type_, one.message)).collect();
    Seen::NotYet(format!("{:?} nodes are ready\n{}", status.ready_nodes, open.join("\n")))
}

/// What nodes are, by name: what must not change without need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Nodes {
    pub(super) hosts: BTreeMap<String, String>,
    pub(super) claims: BTreeMap<String, String>,
    /// UID, and how often its containers were restarted.
    pub(super) pods: BTreeMap<String, (String, i32)>,
}

/// A namespace.
#[derive(Clone)]
pub(super) struct Home {
    pub(super) client: Client,
    pub(super) cluster: &'static str,
    pub(super) namespace: String,
}

impl Home {
    pub(super) async fn new(client: &Client, cluster: &'static str, namespace: &str) -> Self {
        let wanted = Namespace {
            metadata: ObjectMeta { name: Some(namespace.into()), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        Api::all(client.clone()).create(&PostParams::default(), &wanted).await.unwrap();
        Self { client: client.clone(), cluster, namespace: namespace.into() }
    }

    pub(super) fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(super) fn log_file(&self) -> PathBuf {
        cluster_named(self.cluster).audit_log()
    }

    pub(super) fn log_from_now(&self) -> Log {
        Log::from_now(self.log_file(), &self.namespace)
    }

    pub(super) async fn apply(&self, wish: &Wish) {
        let params = PatchParams::apply("test").force();
        let patch = wish.manifest(&self.namespace);
        self.api::<ScyllaDBDatacenter>().patch(NAME, &params, &Patch::Apply(&patch)).await.unwrap();
    }

    pub(super) async fn pause(&self, value: Option<&str>) {
        let patch = json!({"metadata": {"annotations": {annotation::PAUSE: value}}});
        let api = self.api::<ScyllaDBDatacenter>();
        api.patch(NAME, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// Waits until the datacenter is as it was asked for, and nothing is left to be done.
    pub(super) async fn settled(&self, wish: &Wish) {
        until(self.api::<ScyllaDBDatacenter>(), NAME, &format!("{wish:?}"), LONG, |seen| open(seen, wish))
            .await
            .unwrap();
        // Nodes notice only after a while that the ring has changed, and are then cleaned up for it.
        eventually(&format!("{wish:?} to be cleaned up"), LONG, async || {
            let seen = self.api::<ScyllaDBDatacenter>().get_opt(NAME).await.unwrap();
            let services = self.api::<Service>().list(&ListParams::default()).await.unwrap();
            let members = services.iter().filter(|one| one.labels().contains_key(label::RACK));
            let rings: BTreeSet<_> = members
                .flat_map(|one| {
                    let ring = |key: &str| one.annotations().get(key).cloned();
                    [ring(annotation::CURRENT_TOKEN_RING_HASH), ring(annotation::LAST_CLEANED_UP_TOKEN_RING_HASH)]
                })
                .collect();
            let jobs = self.api::<Job>().list(&ListParams::default()).await.unwrap().items.len();
            Ok(match open(seen, wish) {
                Seen::Ready(()) if rings.len() == 1 && jobs == 0 => Seen::Ready(()),
                Seen::Ready(()) => Seen::NotYet(format!("{rings:?}, {jobs} Jobs")),
                open => open,
            })
        })
        .await
        .unwrap();
    }

    /// Removes the datacenter, and waits until its pods are gone.
    pub(super) async fn ends(self) {
        self.api::<ScyllaDBDatacenter>().delete(NAME, &DeleteParams::background()).await.unwrap();
        eventually("all pods to be gone", LONG, async || {
            let pods = self.api::<Pod>().list(&ListParams::default()).await.unwrap().items.len();
            Ok(if pods == 0 { Seen::Ready(()) } else { Seen::NotYet(format!("{pods} pods")) })
        })
        .await
        .unwrap();
    }

    /// Nodes as they are now.
    pub(super) async fn nodes(&self) -> Nodes {
        let services = self.api::<Service>().list(&ListParams::default()).await.unwrap();
        let hosts = services
            .iter()
            .filter_map(|service| Some((service.name_any(), service.annotations().get(annotation::HOST_ID)?.clone())));
        let claims = self.api::<PersistentVolumeClaim>().list(&ListParams::default()).await.unwrap();
        let pods = self
            .api::<Pod>()
            .list(&ListParams::default().labels("scylla-operator.scylladb.com/pod-type=scylladb-node"))
            .await
            .unwrap();
        let restarts = |pod: &Pod| {
            let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
            statuses.map(|status| status.restart_count).sum()
        };
        Nodes {
            hosts: hosts.collect(),
            claims: claims.iter().map(|claim| (claim.name_any(), claim.uid().unwrap_or_default())).collect(),
            pods: pods.iter().map(|pod| (pod.name_any(), (pod.uid().unwrap_or_default(), restarts(pod)))).collect(),
        }
    }

    /// Who a claim's disk is of.
    pub(super) async fn host_on_disk(&self, claim: &str) -> Option<String> {
        let claim = self.api::<PersistentVolumeClaim>().get(claim).await.unwrap();
        let node = claim.annotations()["volume.kubernetes.io/selected-node"].clone();
        let folder = cluster_named(self.cluster).volume(&node, &claim.uid().unwrap_or_default());
        let local = Disk::new(folder.clone(), folder.join("data")).load().unwrap();
        local.map(|local| local.host_id.to_string())
    }

    pub(super) async fn patch<K>(&self, name: &str, patch: Value)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + serde::de::DeserializeOwned
            + std::fmt::Debug,
    {
        self.api::<K>().patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    }

    /// Troubles a simulated node.
    pub(super) fn simctl(&self, pod: &str, arguments: &[&str]) -> messina_testbed::Result<String> {
        let mut command = Command::new(Tools::control_plane(&Steps::quiet())?.program("kubectl"));
        command.arg("--kubeconfig").arg(cluster_named(self.cluster).kubeconfig());
        command.args(["--namespace", &self.namespace, "exec", pod, "--container", "scylla", "--", "simctl"]);
        exec::output("simctl", command.args(arguments))
    }
}

/// What a part of a life took.
pub(super) struct Phase {
    name: String,
    log: Log,
    began: Instant,
}

impl Phase {
    pub(super) fn begins(home: &Home, name: &str) -> Self {
        Self { name: name.into(), log: home.log_from_now(), began: Instant::now() }
    }

    /// Prints what it took, and gives the writes.
    pub(super) fn ends(mut self) -> Vec<Write> {
        let writes = self.log.more();
        let of = |is: &dyn Fn(&Write) -> bool| writes.iter().filter(|write| is(write)).count();
        println!(
            "{}: {:.1} s, {} writes of the operator ({} of them events), {} of sidecars, {} conflicts",
            self.name,
            self.began.elapsed().as_secs_f64(),
            of(&is_operators),
            of(&|write| is_operators(write) && write.resource == "events"),
            of(&is_sidecars),
            of(&|write| write.code == 409 && (is_operators(write) || is_sidecars(write))),
        );
        writes
    }
}

pub(super) fn is_operators(write: &Write) -> bool {
    write.user == OPERATOR
}

pub(super) fn is_sidecars(write: &Write) -> bool {
    write.user.ends_with(":orders-member")
}
