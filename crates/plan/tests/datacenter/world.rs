//! A model of the cluster for decisions about nodes: an API server, the StatefulSet controller, nodes with disks, their sidecars
//! and the token ring. Every actor may observe changes late, and may stop between any two writes. Assertions in the model check
//! what must never happen.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        batch::v1::Job,
        core::v1::{PersistentVolumeClaim, Pod, PodCondition, PodStatus, PodTemplateSpec, Service},
        storage::v1::StorageClass,
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{ObjectMeta, Time},
    },
    jiff::Timestamp,
};
use messina_api::names::{
    annotation::{FORCE_REDEPLOYMENT_REASON, HOST_ID, LEFT_HOST_ID},
    label::{DECOMMISSIONED, REPLACE, REPLACING_NODE_HOST_ID, SCYLLA_VERSION},
};
use messina_plan::{
    datacenter::{ByName, Cached, Deletion, FieldPatch, Preconditions},
    node::{Mode, ring::View, upgrade::Snapshot},
};
use serde_json::{Value, json};

use crate::{cached, datacenter_with, plan, with_name};

mod kubernetes;
mod nodes;
mod operator;

type Map = BTreeMap<String, String>;

/// The contents of a disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    host_id: Option<String>,
    is_decommissioned: bool,
    is_lost: bool,
    /// The version that a node last ran.
    version: Option<String>,
    /// Snapshots for upgrades, with the version to which the node is upgraded.
    snapshots: BTreeSet<(String, Snapshot)>,
    /// The version from which it was upgraded, or was about to be.
    prepared_from: Option<String>,
}

/// A running node.
#[derive(Clone, Debug)]
struct Node {
    host_id: String,
    mode: Mode,
    /// It has joined, or restarted while a majority of the ring was up.
    serves: bool,
    replaces: Option<String>,
    /// The Service as its sidecar last observed it.
    seen: Option<Service>,
    view: View,
    /// Why ScyllaDB refuses to decommission the node, until its sidecar has written that.
    refusal: Option<&'static str>,
}

#[derive(Clone)]
enum Write {
    Service(Box<Service>),
    StatefulSet(Box<StatefulSet>),
    Job(Box<Job>),
    JobDeletion(String),
    FieldPatch(FieldPatch),
    Deletion(Deletion),
}

#[derive(Clone)]
pub(crate) struct World {
    /// What the API server stores.
    pub(crate) stored: Cached,
    /// Disks by the UIDs of their claims.
    disks: BTreeMap<String, Disk>,
    nodes: BTreeMap<String, Node>,
    /// Host IDs of the nodes in the ring.
    pub(crate) ring: BTreeSet<String>,
    writes: VecDeque<Write>,
    /// The preconditions of these writes.
    preconditions: Preconditions,
    /// Services, claims and pods as the operator observes them, where its watches are late.
    seen_services: Option<ByName<Service>>,
    seen_claims: Option<ByName<PersistentVolumeClaim>>,
    seen_pods: Option<ByName<Pod>>,
    version: u64,
    /// The replication factor: a decommission that would leave fewer nodes is refused.
    pub(crate) min_nodes: usize,
    /// Nodes whose decommission is refused.
    pub(crate) refusing_nodes: BTreeSet<String>,
    /// Host IDs of nodes of another datacenter that are down.
    pub(crate) down_elsewhere: BTreeSet<String>,
    /// The desired size of disks.
    capacity: &'static str,
    /// Sidecars do not write the UIDs of their pods, like those of earlier versions.
    pub(crate) has_old_sidecars: bool,
    /// StatefulSets that were deleted without their pods.
    orphaned: BTreeSet<String>,
    /// The version at the operator's last reconcile, if there was nothing to write.
    idle: Option<u64>,
    random: u64,
    pub(crate) left: usize,
    pub(crate) replaced: usize,
    pub(crate) cleaned_up: usize,
    /// The revision of pods below the partition, by StatefulSet.
    current: BTreeMap<String, String>,
    /// Nodes that Kubernetes restarts because of a write of the operator, and that are not ready yet.
    restarting: BTreeSet<String>,
    /// Pods that were down at the decision for the current StatefulSets: Kubernetes may recreate them even if they become ready.
    down_when_decided: BTreeSet<String>,
    pub(crate) restarted: usize,
    pub(crate) upgraded: usize,
    pub(crate) powered_off: usize,
    /// How often a node did not start, because it is being replaced.
    pub(crate) refused: usize,
}

/// Returns what distinguishes pods: the version, and the reason for a restart.
fn revision_of(template: &PodTemplateSpec) -> String {
    let metadata = template.metadata.as_ref().unwrap();
    let reason = metadata.annotations.as_ref().and_then(|all| all.get(FORCE_REDEPLOYMENT_REASON));
    format!("{}_{}", metadata.labels.as_ref().unwrap()[SCYLLA_VERSION], reason.map_or("", String::as_str))
}

const REVISION: &str = "controller-revision-hash";

impl World {
    pub(crate) fn new(seed: u64, racks: &[(&str, i32)]) -> Self {
        let mut stored = cached(datacenter_with(racks, json!({})));
        let class = StorageClass { allow_volume_expansion: Some(true), ..StorageClass::default() };
        stored.storage_classes.insert(with_name("local", class));
        Self {
            stored,
            min_nodes: 1,
            refusing_nodes: BTreeSet::new(),
            down_elsewhere: BTreeSet::new(),
            capacity: "1Gi",
            has_old_sidecars: false,
            orphaned: BTreeSet::new(),
            disks: BTreeMap::new(),
            nodes: BTreeMap::new(),
            ring: BTreeSet::new(),
            writes: VecDeque::new(),
            preconditions: Preconditions::new(),
            seen_services: None,
            seen_claims: None,
            seen_pods: None,
            version: 1,
            idle: None,
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            left: 0,
            replaced: 0,
            cleaned_up: 0,
            current: BTreeMap::new(),
            restarting: BTreeSet::new(),
            down_when_decided: BTreeSet::new(),
            restarted: 0,
            upgraded: 0,
            powered_off: 0,
            refused: 0,
        }
    }

    pub(crate) fn random_below(&mut self, end: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % end.max(1)
    }

    fn pick_random<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let index = self.random_below(from.len());
        from.get(index).cloned()
    }

    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    fn metadata(&mut self, name: &str) -> ObjectMeta {
        let version = self.next_version();
        ObjectMeta {
            name: Some(name.into()),
            uid: Some(format!("uid-{version}")),
            resource_version: Some(version),
            creation_timestamp: Some(self.now()),
            ..ObjectMeta::default()
        }
    }

    /// The time in whole seconds, as in Kubernetes. Several changes happen in each second.
    fn now(&self) -> Time {
        Time(Timestamp::new(self.version as i64 / 8, 0).unwrap())
    }

    // The user.

    pub(crate) fn set_racks(&mut self, racks: &[(&str, i32)]) {
        self.set_racks_and_version(racks, "2026.2.4");
    }

    /// The user changes the racks and the version of ScyllaDB.
    pub(crate) fn set_racks_and_version(&mut self, racks: &[(&str, i32)], version: &str) {
        self.set_spec(racks, version, "");
    }

    /// The user changes the racks, the version, and the reason to restart all nodes.
    pub(crate) fn set_spec(&mut self, racks: &[(&str, i32)], version: &str, reason: &str) {
        let image = format!("scylladb/scylla:{version}");
        let spec = json!({"scyllaDB": {"image": image}, "forceRedeploymentReason": reason});
        self.stored.datacenter = datacenter_with(racks, spec);
        for rack in &mut self.stored.datacenter.racks {
            rack.storage.capacity = Quantity(self.capacity.into());
        }
        self.version += 1;
    }

    /// The user raises the size of disks.
    pub(crate) fn raise_capacity(&mut self, capacity: &'static str) {
        self.capacity = capacity;
        for rack in &mut self.stored.datacenter.racks {
            rack.storage.capacity = Quantity(capacity.into());
        }
        self.version += 1;
    }

    /// Whether a StatefulSet does not exist while its pods do.
    pub(crate) fn has_orphans(&self) -> bool {
        !self.orphaned.is_empty()
    }

    /// Returns the sizes of the disks of existing nodes, and of new nodes.
    pub(crate) fn sizes(&self) -> BTreeSet<&str> {
        let size = |claim: &'_ PersistentVolumeClaim| -> String {
            let requests = claim.spec.as_ref().unwrap().resources.as_ref().unwrap().requests.as_ref().unwrap();
            requests["storage"].0.clone()
        };
        let templates = self.stored.stateful_sets.values().flat_map(|one| one.spec.iter());
        let templates = templates.flat_map(|spec| spec.volume_claim_templates.iter().flatten());
        let used = self.stored.claims.iter().filter(|(name, _)| self.stored.pods.contains_key(&name["data-".len()..]));
        let all: BTreeSet<String> = used.map(|(_, claim)| claim).chain(templates).map(size).collect();
        ["1Gi", "2Gi", "3Gi"].into_iter().filter(|size| all.contains(*size)).collect()
    }

    /// Returns the same state with another random seed.
    pub(crate) fn with_seed(&self, seed: u64) -> Self {
        Self { random: Self::new(seed, &[]).random, ..self.clone() }
    }

    pub(crate) fn edit_random_label(&mut self) {
        let mut names: Vec<String> = self.members();
        // Prefers nodes with a change in progress.
        let departing: Vec<String> =
            names.iter().filter(|name| self.label(name, DECOMMISSIONED).is_some()).cloned().collect();
        if !departing.is_empty() && self.random_below(2) == 0 {
            names = departing;
        }
        let Some(name) = self.pick_random(&names) else { return };
        let what = self.random_below(6);
        // Known, and not solved: a second request for replacement while the first new node is about to join may delete the disk
        // of the new node just after it has joined, because the other nodes' answers are slightly older.
        let may_join = self.disk(&name).is_none_or(|disk| !disk.is_lost);
        if what == 3 && self.label(&name, REPLACING_NODE_HOST_ID).is_some() && may_join {
            return;
        }
        let version = self.next_version();
        // A user cannot know a host ID that is not written on the Service.
        let host_id = self.host_id_of(&name).filter(|host_id| self.annotation(&name, HOST_ID) == Some(host_id));
        let service = self.stored.services.get_mut(&name).unwrap();
        let labels = service.metadata.labels.get_or_insert_default();
        match what {
            0 => _ = labels.insert(DECOMMISSIONED.into(), "true".into()),
            1 => _ = labels.insert(DECOMMISSIONED.into(), "false".into()),
            2 => _ = labels.remove(DECOMMISSIONED),
            3 => _ = labels.insert(REPLACE.into(), String::new()),
            4 => _ = labels.remove(REPLACE),
            _ => {
                if let (Some(claim), Some(host_id)) = (self.stored.claims.get_mut(&format!("data-{name}")), host_id) {
                    claim.metadata.resource_version = Some(version.clone());
                    claim.metadata.annotations.get_or_insert_default().insert(LEFT_HOST_ID.into(), host_id);
                }
            }
        }
        service.metadata.resource_version = Some(version);
    }

    pub(crate) fn set_label(&mut self, name: &str, label: &str, value: Option<&str>) {
        let patch = json!({"metadata": {"labels": {label: value}}});
        self.patch_service(name, &patch);
    }

    /// A user reduces the replicas of a random StatefulSet, which stops a node and nothing else.
    pub(crate) fn scale_in_as_user(&mut self) {
        let names: Vec<String> = self.stored.stateful_sets.keys().cloned().collect();
        let Some(name) = self.pick_random(&names) else { return };
        // Known, and not solved: a node that lost its replica during an upgrade may come back with another version than it had,
        // because Kubernetes considers the rollout complete without it.
        let is_at_rest = partition_of(&self.stored.stateful_sets[&name]) == 0;
        if self.replicas(&name) > 1 && self.down().is_empty() && is_at_rest {
            self.reduce_replicas(&name);
        }
    }

    /// A user reduces the replicas of a StatefulSet by one.
    pub(crate) fn reduce_replicas(&mut self, name: &str) {
        let version = self.next_version();
        let one = self.stored.stateful_sets.get_mut(name).unwrap();
        let spec = one.spec.as_mut().unwrap();
        spec.replicas = spec.replicas.map(|replicas| replicas - 1);
        one.metadata.generation = one.metadata.generation.map(|generation| generation + 1);
        one.metadata.resource_version = Some(version);
    }

    /// The Kubernetes node of a random node is lost with its disk.
    pub(crate) fn lose_random_disk(&mut self) {
        // The operator knows the host ID of a lost node only if its sidecar has written it before.
        let is_reported = |name: &String| {
            let annotations = self.stored.services.get(name).and_then(|service| service.metadata.annotations.as_ref());
            let reported = annotations.and_then(|annotations| annotations.get(HOST_ID));
            reported.is_some_and(|reported| self.ring.contains(reported) && self.nodes[name].host_id == *reported)
        };
        let names: Vec<String> = self.nodes.keys().filter(|name| is_reported(name)).cloned().collect();
        if let Some(name) = self.pick_random(&names)
            // Of two nodes that are lost, neither can be replaced.
            && self.down().is_empty()
            && self.has_replicas_for_all()
            && !self.stored.services.keys().any(|name| self.label(name, REPLACING_NODE_HOST_ID).is_some())
        {
            self.lose_node(&name);
        }
    }

    /// Whether every pod is within the replicas of its StatefulSet.
    fn has_replicas_for_all(&self) -> bool {
        self.stored.pods.keys().all(|pod| {
            let (name, ordinal) = pod.rsplit_once('-').unwrap();
            self.stored.stateful_sets.contains_key(name) && ordinal.parse::<i32>().unwrap() < self.replicas(name)
        })
    }

    /// The node is lost with its disk.
    pub(crate) fn lose_node(&mut self, name: &str) {
        self.nodes.remove(name);
        let uid = self.stored.claims[&format!("data-{name}")].metadata.uid.clone().unwrap();
        self.disks.get_mut(&uid).unwrap().is_lost = true;
    }

    /// Returns a label of a Service.
    pub(crate) fn label(&self, name: &str, label: &str) -> Option<&str> {
        self.stored.services.get(name)?.metadata.labels.as_ref()?.get(label).map(String::as_str)
    }

    /// Returns an annotation of a Service.
    pub(crate) fn annotation(&self, name: &str, key: &str) -> Option<&str> {
        self.stored.services.get(name)?.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Returns the replicas of a StatefulSet.
    pub(crate) fn replicas(&self, stateful_set: &str) -> i32 {
        self.stored.stateful_sets[stateful_set].spec.as_ref().unwrap().replicas.unwrap()
    }

    /// The node stops, and may start again.
    pub(crate) fn stop_node(&mut self, name: &str) {
        self.nodes.remove(name);
    }

    /// Whether the node is being decommissioned.
    pub(crate) fn is_leaving(&self, name: &str) -> bool {
        self.nodes.get(name).is_some_and(|node| node.mode == Mode::Leaving)
    }

    /// Returns the names of nodes whose disks are lost.
    pub(crate) fn nodes_with_lost_disks(&self) -> Vec<String> {
        let is_lost = |name: &String| self.disk(name).is_some_and(|disk| disk.is_lost);
        self.stored.pods.keys().filter(|name| is_lost(name)).cloned().collect()
    }

    /// Returns a node which the plan reports to run on a disk that is being deleted.
    pub(crate) fn node_on_deleted_disk(&self) -> Option<String> {
        let is_reported = |name: &&String| {
            let message = format!("kubectl delete pod -n shop {name}`");
            plan(&self.stored).progressing.iter().any(|note| note.message.contains(&message))
        };
        let is_deleted = |name: &&String| {
            let claim = self.stored.claims.get(&format!("data-{name}"));
            claim.is_some_and(|claim| claim.metadata.deletion_timestamp.is_some())
        };
        self.stored.pods.keys().filter(is_deleted).find(is_reported).cloned()
    }

    pub(crate) fn crash_random_node(&mut self) {
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        if let Some(name) = self.pick_random(&names) {
            self.nodes.remove(&name);
        }
    }

    pub(crate) fn crash_node(&mut self, pod: &str) {
        self.nodes.remove(pod);
    }

    /// The operator crashes before it has written what it decided.
    pub(crate) fn drop_pending_writes(&mut self) {
        self.writes.clear();
    }

    /// The user deletes the datacenter and creates it again. Claims are kept.
    pub(crate) fn recreate_datacenter(&mut self) {
        self.pods().iter().for_each(|pod| self.remove_pod(pod));
        (self.stored.stateful_sets, self.stored.services, self.stored.jobs) = Default::default();
        self.writes.clear();
        self.restarting.clear();
        self.current.clear();
        self.version += 1;
    }

    /// All Kubernetes nodes and their pods stop at once. Not during an upgrade, which would need a manual repair.
    pub(crate) fn lose_power(&mut self) {
        let template = |one: &StatefulSet| revision_of(&one.spec.as_ref().unwrap().template);
        let templates: Vec<String> = self.stored.stateful_sets.values().map(template).collect();
        let version = |revision: &str| revision.split_once('_').unwrap().0.to_owned();
        let mut versions: BTreeSet<String> = templates.iter().map(|revision| version(revision)).collect();
        versions.extend(self.disks.values().filter_map(|disk| disk.version.clone()));
        if versions.len() == 1 {
            self.pods().iter().for_each(|pod| self.remove_pod(pod));
            self.powered_off += 1;
        }
    }
}

fn partition_of(stateful_set: &StatefulSet) -> i32 {
    let strategy = stateful_set.spec.as_ref().unwrap().update_strategy.as_ref().unwrap();
    strategy.rolling_update.as_ref().unwrap().partition.unwrap()
}

fn readiness(is_ready: bool) -> PodStatus {
    let status = if is_ready { "True" } else { "False" };
    let condition = PodCondition { type_: "Ready".into(), status: status.into(), ..PodCondition::default() };
    PodStatus { conditions: Some(vec![condition]), ..PodStatus::default() }
}

fn patch(map: &mut Map, change: &Value) {
    for (key, value) in change.as_object().into_iter().flatten() {
        match value.as_str() {
            Some(value) => _ = map.insert(key.clone(), value.to_owned()),
            None => _ = map.remove(key),
        }
    }
}
