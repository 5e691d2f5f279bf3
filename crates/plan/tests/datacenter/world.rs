//! A small world for the decisions on nodes: an API server, Kubernetes' StatefulSet controller, nodes with disks, their
//! sidecars and the ring. Everybody sees everything late, and may stop between any two writes. Whatever must never happen
//! is checked where it would happen.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use k8s_openapi::{
    api::{
        apps::v1::{StatefulSet, StatefulSetStatus},
        batch::v1::{Job, JobStatus},
        core::v1::{Container, PersistentVolumeClaim, Pod, PodCondition, PodSpec, PodStatus, PodTemplateSpec, Service},
        storage::v1::StorageClass,
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{ObjectMeta, Time},
    },
    jiff::Timestamp,
};
use messina_api::names::{
    annotation::{FORCE_REDEPLOYMENT_REASON, HOST_ID, LEAVING_BEGAN, LEFT_HOST_ID, RING_ANSWER, UPGRADE_ANSWER},
    label::{DECOMMISSIONED, NODE_MAINTENANCE, REPLACE, REPLACING_NODE_HOST_ID, SCYLLA_VERSION},
};
use messina_plan::{
    datacenter::{Change, Deletion, Kind, Observed, plan},
    node::{
        Mode,
        answer::{Answer, change, question},
        decommission::{Asked, Step, step},
        facts::{Observation, changes},
        replaced::is_given_up,
        ring::View,
        upgrade::{self, Snapshot},
    },
};
use serde_json::{Value, json};

use crate::{datacenter_with, name_of, observed};

type Map = BTreeMap<String, String>;

/// What is on a disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    host_id: Option<String>,
    is_decommissioned: bool,
    is_lost: bool,
    /// The version that a node last served with.
    version: Option<String>,
    /// Snapshots for changes of the version: which one, and from which version.
    snapshots: BTreeSet<(String, Snapshot)>,
    /// The version from which it was upgraded, or was about to be.
    prepared_from: Option<String>,
}

/// A running node.
#[derive(Clone, Debug)]
struct Node {
    host_id: String,
    mode: Mode,
    replaces: Option<String>,
    /// The Service as its sidecar last saw it.
    seen: Option<Service>,
    view: View,
    was_refused: bool,
}

#[derive(Clone)]
enum Write {
    Service(Box<Service>),
    StatefulSet(Box<StatefulSet>),
    Job(Box<Job>),
    JobDeletion(String),
    Change(Change),
    Deletion(Deletion),
}

#[derive(Clone)]
pub(crate) struct World {
    /// What the API server holds.
    pub(crate) kept: Observed,
    /// Disks by the UIDs of their claims.
    disks: BTreeMap<String, Disk>,
    nodes: BTreeMap<String, Node>,
    /// Host IDs of the ring, as it is.
    pub(crate) ring: BTreeSet<String>,
    writes: VecDeque<Write>,
    version: u64,
    /// How large disks are to be.
    capacity: &'static str,
    /// StatefulSets that were deleted without their pods.
    orphaned: BTreeSet<String>,
    /// The version that the operator last looked at, when there was nothing to write.
    idle: Option<u64>,
    random: u64,
    pub(crate) left: usize,
    pub(crate) replaced: usize,
    pub(crate) cleaned_up: usize,
    /// The revision that pods below the partition are made of, by StatefulSet.
    current: BTreeMap<String, String>,
    /// Nodes that Kubernetes took down because of what we wrote, and that are not back yet.
    restarting: BTreeSet<String>,
    /// Pods that were down when it was decided what is in force now: Kubernetes may make them anew even if they come back.
    down_when_decided: BTreeSet<String>,
    pub(crate) restarted: usize,
    pub(crate) upgraded: usize,
    /// How often a node did not start, because another one takes its place.
    pub(crate) refused: usize,
}

/// What pods are made of: the version, and the reason for a restart.
fn revision_of(template: &PodTemplateSpec) -> String {
    let metadata = template.metadata.as_ref().unwrap();
    let reason = metadata.annotations.as_ref().and_then(|all| all.get(FORCE_REDEPLOYMENT_REASON));
    format!("{}_{}", metadata.labels.as_ref().unwrap()[SCYLLA_VERSION], reason.map_or("", String::as_str))
}

const REVISION: &str = "controller-revision-hash";

impl World {
    pub(crate) fn new(seed: u64, racks: &[(&str, i32)]) -> Self {
        let mut kept = observed(datacenter_with(racks, json!({})));
        let class = StorageClass { allow_volume_expansion: Some(true), ..StorageClass::default() };
        kept.storage_classes.insert("local".into(), class);
        Self {
            kept,
            capacity: "1Gi",
            orphaned: BTreeSet::new(),
            disks: BTreeMap::new(),
            nodes: BTreeMap::new(),
            ring: BTreeSet::new(),
            writes: VecDeque::new(),
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
            refused: 0,
        }
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % end.max(1)
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let index = self.below(from.len());
        from.get(index).cloned()
    }

    fn next(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    fn metadata(&mut self, name: &str) -> ObjectMeta {
        let version = self.next();
        ObjectMeta {
            name: Some(name.into()),
            uid: Some(format!("uid-{version}")),
            resource_version: Some(version),
            creation_timestamp: Some(Time(Timestamp::new(self.version as i64, 0).unwrap())),
            ..ObjectMeta::default()
        }
    }

    // The user.

    pub(crate) fn respecify(&mut self, racks: &[(&str, i32)]) {
        self.respecify_for(racks, "2026.2.4");
    }

    /// The user writes another specification, with this version of ScyllaDB.
    pub(crate) fn respecify_for(&mut self, racks: &[(&str, i32)], version: &str) {
        self.respecify_all(racks, version, "");
    }

    /// The same, with a reason to restart all nodes.
    pub(crate) fn respecify_all(&mut self, racks: &[(&str, i32)], version: &str, reason: &str) {
        let image = format!("scylladb/scylla:{version}");
        let spec = json!({"scyllaDB": {"image": image}, "forceRedeploymentReason": reason});
        self.kept.datacenter = datacenter_with(racks, spec);
        for rack in &mut self.kept.datacenter.racks {
            rack.storage.capacity = Quantity(self.capacity.into());
        }
        self.version += 1;
    }

    /// The user wants larger disks.
    pub(crate) fn enlarge(&mut self, capacity: &'static str) {
        self.capacity = capacity;
        for rack in &mut self.kept.datacenter.racks {
            rack.storage.capacity = Quantity(capacity.into());
        }
        self.version += 1;
    }

    /// Whether a StatefulSet is away while its pods are there.
    pub(crate) fn has_orphans(&self) -> bool {
        !self.orphaned.is_empty()
    }

    /// Sizes of the disks of nodes, and of those of new nodes.
    pub(crate) fn sizes(&self) -> BTreeSet<&str> {
        let size = |claim: &'_ PersistentVolumeClaim| -> String {
            let requests = claim.spec.as_ref().unwrap().resources.as_ref().unwrap().requests.as_ref().unwrap();
            requests["storage"].0.clone()
        };
        let templates = self.kept.stateful_sets.values().flat_map(|one| one.spec.iter());
        let templates = templates.flat_map(|spec| spec.volume_claim_templates.iter().flatten());
        let used = self.kept.claims.iter().filter(|(name, _)| self.kept.pods.contains_key(&name["data-".len()..]));
        let all: BTreeSet<String> = used.map(|(_, claim)| claim).chain(templates).map(size).collect();
        ["1Gi", "2Gi", "3Gi"].into_iter().filter(|size| all.contains(*size)).collect()
    }

    /// The same world, with another fate.
    pub(crate) fn with_seed(&self, seed: u64) -> Self {
        Self { random: Self::new(seed, &[]).random, ..self.clone() }
    }

    pub(crate) fn edit_a_label(&mut self) {
        let mut names: Vec<String> = self.members();
        // Where something is under way, there is something to break.
        let departing: Vec<String> =
            names.iter().filter(|name| self.label(name, DECOMMISSIONED).is_some()).cloned().collect();
        if !departing.is_empty() && self.below(2) == 0 {
            names = departing;
        }
        let Some(name) = self.pick(&names) else { return };
        let what = self.below(6);
        // Known, and not solved: who asks for a second replacement while the first newcomer is about to join may lose the
        // newcomer's disk just after it has joined, because the others' answers are a moment old.
        let may_join = self.disk(&name).is_none_or(|disk| !disk.is_lost);
        if what == 3 && self.label(&name, REPLACING_NODE_HOST_ID).is_some() && may_join {
            return;
        }
        let version = self.next();
        // Nobody knows a host ID that was not told.
        let host_id = self.host_of(&name).filter(|host_id| self.annotation(&name, HOST_ID) == Some(host_id));
        let service = self.kept.services.get_mut(&name).unwrap();
        let labels = service.metadata.labels.get_or_insert_default();
        match what {
            0 => _ = labels.insert(DECOMMISSIONED.into(), "true".into()),
            1 => _ = labels.insert(DECOMMISSIONED.into(), "false".into()),
            2 => _ = labels.remove(DECOMMISSIONED),
            3 => _ = labels.insert(REPLACE.into(), String::new()),
            4 => _ = labels.remove(REPLACE),
            _ => {
                if let (Some(claim), Some(host_id)) = (self.kept.claims.get_mut(&format!("data-{name}")), host_id) {
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

    /// Somebody makes a StatefulSet smaller, which takes a node down and nothing else.
    pub(crate) fn shrink_by_hand(&mut self) {
        let names: Vec<String> = self.kept.stateful_sets.keys().cloned().collect();
        let Some(name) = self.pick(&names) else { return };
        if self.replicas(&name) > 1 && self.down().is_empty() {
            self.shrink(&name);
        }
    }

    /// Somebody takes the last place of a StatefulSet away.
    pub(crate) fn shrink(&mut self, name: &str) {
        let version = self.next();
        let one = self.kept.stateful_sets.get_mut(name).unwrap();
        let spec = one.spec.as_mut().unwrap();
        spec.replicas = spec.replicas.map(|replicas| replicas - 1);
        one.metadata.generation = one.metadata.generation.map(|generation| generation + 1);
        one.metadata.resource_version = Some(version);
    }

    /// A machine goes away with its disk.
    pub(crate) fn lose_a_disk(&mut self) {
        // Who lost it is known only if it was told before.
        let is_told = |name: &String| {
            let annotations = self.kept.services.get(name).and_then(|service| service.metadata.annotations.as_ref());
            let told = annotations.and_then(|annotations| annotations.get(HOST_ID));
            told.is_some_and(|told| self.ring.contains(told) && self.nodes[name].host_id == *told)
        };
        let names: Vec<String> = self.nodes.keys().filter(|name| is_told(name)).cloned().collect();
        if let Some(name) = self.pick(&names)
            // Of two nodes that are down for good, neither can be replaced.
            && self.down().is_empty()
            && self.has_place_for_all()
            && !self.kept.services.keys().any(|name| self.label(name, REPLACING_NODE_HOST_ID).is_some())
        {
            self.lose(&name);
        }
    }

    /// Whether no StatefulSet was made smaller than it has pods.
    fn has_place_for_all(&self) -> bool {
        self.kept.pods.keys().all(|pod| {
            let (name, ordinal) = pod.rsplit_once('-').unwrap();
            self.kept.stateful_sets.contains_key(name) && ordinal.parse::<i32>().unwrap() < self.replicas(name)
        })
    }

    /// The node goes away with its disk.
    pub(crate) fn lose(&mut self, name: &str) {
        self.nodes.remove(name);
        let uid = self.kept.claims[&format!("data-{name}")].metadata.uid.clone().unwrap();
        self.disks.get_mut(&uid).unwrap().is_lost = true;
    }

    /// The label of a Service.
    pub(crate) fn label(&self, name: &str, label: &str) -> Option<&str> {
        self.kept.services.get(name)?.metadata.labels.as_ref()?.get(label).map(String::as_str)
    }

    /// The annotation of a Service.
    pub(crate) fn annotation(&self, name: &str, key: &str) -> Option<&str> {
        self.kept.services.get(name)?.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// How many nodes a StatefulSet has room for.
    pub(crate) fn replicas(&self, stateful_set: &str) -> i32 {
        self.kept.stateful_sets[stateful_set].spec.as_ref().unwrap().replicas.unwrap()
    }

    /// The node stops, and may start again.
    pub(crate) fn stop(&mut self, name: &str) {
        self.nodes.remove(name);
    }

    /// Whether the node gives its data away.
    pub(crate) fn is_leaving(&self, name: &str) -> bool {
        self.nodes.get(name).is_some_and(|node| node.mode == Mode::Leaving)
    }

    /// Names of nodes whose disks are lost.
    pub(crate) fn lost(&self) -> Vec<String> {
        let is_lost = |name: &String| self.disk(name).is_some_and(|disk| disk.is_lost);
        self.kept.pods.keys().filter(|name| is_lost(name)).cloned().collect()
    }

    /// A node that is told to be on a disk which goes with its pod.
    pub(crate) fn on_a_deleted_disk(&self) -> Option<String> {
        let is_told = |name: &&String| {
            let message = format!("kubectl delete pod -n shop {name}`");
            plan(&self.kept).waiting.iter().any(|note| note.message.contains(&message))
        };
        let is_deleted = |name: &&String| {
            let claim = self.kept.claims.get(&format!("data-{name}"));
            claim.is_some_and(|claim| claim.metadata.deletion_timestamp.is_some())
        };
        self.kept.pods.keys().filter(is_deleted).find(is_told).cloned()
    }

    pub(crate) fn crash_a_node(&mut self) {
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        if let Some(name) = self.pick(&names) {
            self.nodes.remove(&name);
        }
    }

    // The operator.

    /// The operator looks and decides. What it writes then is written one by one.
    pub(crate) fn look(&mut self) {
        if !self.writes.is_empty() || self.idle == Some(self.version) {
            return;
        }
        let plan = plan(&self.kept);
        for service in plan.objects.member_services {
            let name = service.metadata.name.clone().unwrap();
            let now = self.kept.services.get(&name).map(|service| &service.metadata);
            let has = |now: Option<&Map>, wanted: Option<&Map>| {
                wanted.into_iter().flatten().all(|(key, value)| now.is_some_and(|now| now.get(key) == Some(value)))
            };
            let is_same = now.is_some_and(|now| {
                has(now.labels.as_ref(), service.metadata.labels.as_ref())
                    && has(now.annotations.as_ref(), service.metadata.annotations.as_ref())
            });
            if !is_same {
                self.writes.push_back(Write::Service(Box::new(service)));
            }
        }
        for one in plan.objects.stateful_sets {
            self.check_restarts(&one);
            if self
                .kept
                .stateful_sets
                .get(&name_of(&one))
                .is_none_or(|now| now.spec != one.spec || now.metadata.labels != one.metadata.labels)
            {
                self.writes.push_back(Write::StatefulSet(Box::new(one)));
            }
        }
        for name in self.kept.jobs.keys().filter(|name| plan.left_alone.iter().all(|left| left.name != **name)) {
            self.writes.push_back(Write::JobDeletion(name.clone()));
        }
        self.writes.extend(plan.objects.cleanup_jobs.into_iter().map(|job| Write::Job(Box::new(job))));
        let token = plan.objects.agent_auth_token.into_iter();
        self.kept.secrets.extend(token.map(|secret| (secret.metadata.name.clone().unwrap(), secret)));
        self.writes.extend(plan.changes.into_iter().map(Write::Change));
        self.writes.extend(plan.deletions.into_iter().map(Write::Deletion));
        self.idle = self.writes.is_empty().then_some(self.version);
        if self.idle.is_some() {
            self.down_when_decided.clear();
        }
        let down: Vec<String> = self.kept.pods.keys().filter(|pod| !self.says_ready(pod)).cloned().collect();
        self.down_when_decided.extend(down);
    }

    pub(crate) fn crash_the_operator(&mut self) {
        self.writes.clear();
    }

    /// One write of the operator; answers whether there was one.
    pub(crate) fn write(&mut self) -> bool {
        let Some(write) = self.writes.pop_front() else { return false };
        let is_done = match write {
            Write::Service(service) => self.apply_service(*service),
            Write::StatefulSet(one) => self.apply_stateful_set(*one),
            Write::Job(job) => self.create_job(*job),
            Write::JobDeletion(name) => {
                self.version += 1;
                self.kept.jobs.remove(&name).is_some()
            }
            Write::Change(change) => self.apply_change(&change),
            Write::Deletion(deletion) => self.delete(&deletion),
        };
        if !is_done {
            self.writes.clear();
        }
        true
    }

    /// Of pods that serve, what is decided restarts one at most, and none while it is known that another one is down.
    fn check_restarts(&self, wanted: &StatefulSet) {
        let name = name_of(wanted);
        let Some(now) = self.kept.stateful_sets.get(&name) else { return };
        let (before, after) = (self.outdated(&name, now), self.outdated(&name, wanted));
        let taken: Vec<&String> = after.difference(&before).filter(|pod| self.says_ready(pod)).collect();
        assert!(taken.len() <= 1, "{taken:?} restart together");
        let known_down = self.kept.stateful_sets.values().any(|one| {
            let ready = one.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0);
            ready < one.spec.as_ref().unwrap().replicas.unwrap()
        });
        let is_down = |pod: &String| !taken.contains(&pod) && !self.says_ready(pod);
        let down: Vec<&String> = self.kept.pods.keys().filter(|pod| is_down(pod)).collect();
        assert!(taken.is_empty() || (down.is_empty() && !known_down), "{taken:?} restart while {down:?} are down");
    }

    /// Pods that Kubernetes makes anew for a StatefulSet like this one.
    fn outdated(&self, name: &str, stateful_set: &StatefulSet) -> BTreeSet<String> {
        let spec = stateful_set.spec.as_ref().unwrap();
        let revision = revision_of(&spec.template);
        let ordinals = partition_of(stateful_set)..spec.replicas.unwrap();
        let pods = ordinals.map(|ordinal| format!("{name}-{ordinal}"));
        pods.filter(|pod| self.kept.pods.contains_key(pod) && !self.is_new(pod, &revision)).collect()
    }

    fn apply_service(&mut self, wanted: Service) -> bool {
        let name = wanted.metadata.name.clone().unwrap();
        if let Some(now) = self.kept.services.get_mut(&name) {
            now.metadata.labels.get_or_insert_default().extend(wanted.metadata.labels.unwrap_or_default());
            now.metadata.annotations.get_or_insert_default().extend(wanted.metadata.annotations.unwrap_or_default());
            self.version += 1;
            now.metadata.resource_version = Some(self.version.to_string());
        } else {
            let fresh = self.metadata(&name);
            let metadata = ObjectMeta {
                uid: fresh.uid,
                resource_version: fresh.resource_version,
                creation_timestamp: fresh.creation_timestamp,
                ..wanted.metadata
            };
            let mut service = Service { metadata, ..wanted };
            service.spec.get_or_insert_default().cluster_ip = Some("10.0.0.1".into());
            self.kept.services.insert(name, service);
        }
        true
    }

    fn create_job(&mut self, job: Job) -> bool {
        let leaving: Vec<&String> =
            self.nodes.iter().filter(|(_, node)| node.mode == Mode::Leaving).map(|(name, _)| name).collect();
        assert!(leaving.is_empty(), "{:?} is made while {leaving:?} hands over its data", job.metadata.name);
        self.version += 1;
        self.kept.jobs.insert(job.metadata.name.clone().unwrap(), job).is_none()
    }

    fn apply_stateful_set(&mut self, wanted: StatefulSet) -> bool {
        let name = name_of(&wanted);
        let replicas = wanted.spec.as_ref().unwrap().replicas.unwrap();
        if let Some(now) = self.kept.stateful_sets.get(&name) {
            let before = now.spec.as_ref().unwrap().replicas.unwrap();
            assert!(replicas >= before || self.has_left(&name, replicas..before), "{name} is applied with fewer nodes");
            self.version += 1;
            let now = self.kept.stateful_sets.get_mut(&name).unwrap();
            now.spec = wanted.spec;
            now.metadata.labels = wanted.metadata.labels;
            now.metadata.generation = now.metadata.generation.map(|generation| generation + 1);
            now.metadata.resource_version = Some(self.version.to_string());
        } else {
            let fresh = self.metadata(&name);
            let metadata = ObjectMeta {
                uid: fresh.uid,
                resource_version: fresh.resource_version,
                generation: Some(1),
                ..wanted.metadata
            };
            let revision = revision_of(&wanted.spec.as_ref().unwrap().template);
            self.current.insert(name.clone(), revision);
            let has_all = self.has_left(&name, replicas..8);
            assert!(!self.orphaned.remove(&name) || has_all, "{name} is made anew with fewer nodes than it has");
            self.kept.stateful_sets.insert(name, StatefulSet { metadata, ..wanted });
        }
        true
    }

    /// Whether no node of these ordinals is in the ring.
    fn has_left(&self, stateful_set: &str, mut ordinals: std::ops::Range<i32>) -> bool {
        ordinals.all(|ordinal| {
            let host_id = self.host_of(&format!("{stateful_set}-{ordinal}"));
            host_id.is_none_or(|host_id| !self.ring.contains(&host_id))
        })
    }

    fn apply_change(&mut self, change: &Change) -> bool {
        let metadata = match change.kind {
            Kind::Service => self.kept.services.get(&change.name).map(|one| &one.metadata),
            Kind::StatefulSet => self.kept.stateful_sets.get(&change.name).map(|one| &one.metadata),
            Kind::PersistentVolumeClaim => self.kept.claims.get(&change.name).map(|one| &one.metadata),
            Kind::Pod => None,
        };
        let is_seen = metadata.is_some_and(|metadata| {
            metadata.uid.as_ref() == Some(&change.uid) && metadata.resource_version.as_ref() == Some(&change.version)
        });
        if !is_seen {
            return false;
        }
        let version = self.next();
        match change.kind {
            Kind::Service => {
                self.patch_service(&change.name, &change.patch);
            }
            Kind::StatefulSet => {
                let replicas = change.patch["spec"]["replicas"].as_i64().unwrap() as i32;
                let before = self.kept.stateful_sets[&change.name].spec.as_ref().unwrap().replicas.unwrap();
                assert!(before - replicas <= 1, "{} nodes are taken away at once", before - replicas);
                assert!(
                    replicas >= before || self.has_left(&change.name, replicas..before),
                    "{} loses a node of the ring",
                    change.name
                );
                let now = self.kept.stateful_sets.get_mut(&change.name).unwrap();
                now.spec.as_mut().unwrap().replicas = Some(replicas);
                now.metadata.generation = now.metadata.generation.map(|generation| generation + 1);
                now.metadata.resource_version = Some(version);
            }
            Kind::PersistentVolumeClaim => {
                let claim = self.kept.claims.get_mut(&change.name).unwrap();
                patch(claim.metadata.annotations.get_or_insert_default(), &change.patch["metadata"]["annotations"]);
                claim.metadata.resource_version = Some(version);
                if let Some(size) = change.patch["spec"]["resources"]["requests"]["storage"].as_str() {
                    let resources = claim.spec.as_mut().unwrap().resources.as_mut().unwrap();
                    resources.requests = Some([("storage".to_owned(), Quantity(size.into()))].into());
                }
            }
            Kind::Pod => {}
        }
        true
    }

    fn patch_service(&mut self, name: &str, change: &Value) {
        let version = self.next();
        if let Some(service) = self.kept.services.get_mut(name) {
            patch(service.metadata.labels.get_or_insert_default(), &change["metadata"]["labels"]);
            patch(service.metadata.annotations.get_or_insert_default(), &change["metadata"]["annotations"]);
            service.metadata.resource_version = Some(version);
        }
    }

    /// Whether a node of the ring may lose what it has: only if it is down and is being replaced.
    fn may_lose(&self, member: &str) -> bool {
        let Some(host_id) = self.host_of(member).filter(|host_id| self.ring.contains(host_id)) else { return true };
        let replaced = self.kept.services.get(member).and_then(|service| service.metadata.labels.as_ref());
        let is_replaced = replaced.and_then(|labels| labels.get(REPLACING_NODE_HOST_ID)) == Some(&host_id);
        is_replaced && !self.nodes.values().any(|node| node.host_id == host_id)
    }

    fn delete(&mut self, deletion: &Deletion) -> bool {
        let name = &deletion.name;
        let is_same = |metadata: &ObjectMeta| metadata.uid.as_ref() == Some(&deletion.uid);
        match deletion.kind {
            Kind::PersistentVolumeClaim => {
                let member = name.strip_prefix("data-").unwrap().to_owned();
                if self.kept.claims.get(name).is_some_and(|claim| is_same(&claim.metadata)) {
                    assert!(self.may_lose(&member), "claim {name} is deleted, whose node is in the ring");
                    self.version += 1;
                    let now = Time(Timestamp::new(self.version as i64, 0).unwrap());
                    self.kept.claims.get_mut(name).unwrap().metadata.deletion_timestamp = Some(now);
                    self.finish_claim(&member);
                }
            }
            Kind::Pod => {
                if let Some(pod) = self.kept.pods.get(name).filter(|pod| is_same(&pod.metadata)) {
                    if deletion.version.is_some() && deletion.version != pod.metadata.resource_version {
                        return false;
                    }
                    // A pod that is down and out of date is made anew with its disk.
                    let is_stuck = !self.is_ready(name) || !self.says_ready(name);
                    assert!(is_stuck || self.may_lose(name), "pod {name} is deleted, whose node is in the ring");
                    self.remove_pod(&name.clone());
                }
            }
            Kind::Service => {
                if self.kept.services.get(name).is_some_and(|one| is_same(&one.metadata)) {
                    let host_id = self.host_of(name);
                    assert!(host_id.is_none_or(|id| !self.ring.contains(&id)), "Service {name} is deleted too early");
                    self.version += 1;
                    self.kept.services.remove(name);
                }
            }
            Kind::StatefulSet => {
                let Some(one) = self.kept.stateful_sets.get(name).filter(|one| is_same(&one.metadata)) else {
                    return true;
                };
                if deletion.orphans {
                    if deletion.version != one.metadata.resource_version {
                        return false;
                    }
                    assert!(self.orphaned.is_empty(), "{name} is deleted while another StatefulSet is away");
                    self.version += 1;
                    self.kept.stateful_sets.remove(name);
                    self.orphaned.insert(name.clone());
                } else {
                    let replicas = one.spec.as_ref().unwrap().replicas.unwrap();
                    assert!(self.has_left(name, 0..replicas.max(8)), "rack {name} is deleted too early");
                    self.version += 1;
                    self.kept.stateful_sets.remove(name);
                }
            }
        }
        true
    }

    // Kubernetes.

    /// Names of Jobs that are at work.
    fn jobs_at_work(&self) -> Vec<String> {
        self.kept.jobs.iter().filter(|(_, job)| job.status.is_none()).map(|(name, _)| name.clone()).collect()
    }

    /// A Job gets done, if all nodes are up and none comes or goes; answers whether one does.
    pub(crate) fn clean_up(&mut self) -> bool {
        let jobs = self.jobs_at_work();
        let Some(name) = self.pick(&jobs) else { return false };
        if !self.down().is_empty() || self.underway("") > 0 {
            return false;
        }
        let done = JobStatus { completion_time: Some(Time(Timestamp::UNIX_EPOCH)), ..JobStatus::default() };
        self.kept.jobs.get_mut(&name).unwrap().status = Some(done);
        self.version += 1;
        self.cleaned_up += 1;
        true
    }

    fn members(&self) -> Vec<String> {
        self.kept.services.keys().filter(|name| !name.ends_with("-client")).cloned().collect()
    }

    fn disk(&self, member: &str) -> Option<&Disk> {
        self.disks.get(self.kept.claims.get(&format!("data-{member}"))?.metadata.uid.as_ref()?)
    }

    /// The host ID of whoever uses the disk of this name.
    pub(crate) fn host_of(&self, member: &str) -> Option<String> {
        self.disk(member)?.host_id.clone()
    }

    pub(crate) fn remove_pod(&mut self, name: &str) {
        self.version += 1;
        self.kept.pods.remove(name);
        self.nodes.remove(name);
        self.finish_claim(name);
    }

    fn finish_claim(&mut self, member: &str) {
        let name = format!("data-{member}");
        let is_going = self.kept.claims.get(&name).is_some_and(|claim| claim.metadata.deletion_timestamp.is_some());
        if is_going && !self.kept.pods.contains_key(member) {
            self.version += 1;
            self.kept.claims.remove(&name);
        }
    }

    fn is_ready(&self, pod: &str) -> bool {
        // Nor is one that somebody works on.
        self.label(pod, NODE_MAINTENANCE).is_none()
            && self.nodes.get(pod).is_some_and(|node| node.mode == Mode::Normal && self.ring.contains(&node.host_id))
    }

    /// The StatefulSet controller does one thing.
    pub(crate) fn kubernetes(&mut self) -> bool {
        let mut has_done = self.tell_readiness();
        let back: Vec<String> = self.restarting.iter().filter(|pod| self.is_ready(pod)).cloned().collect();
        self.restarting.retain(|pod| !back.contains(pod) && self.kept.claims.contains_key(&format!("data-{pod}")));
        for name in self.kept.stateful_sets.keys().cloned().collect::<Vec<_>>() {
            has_done |= self.scale(&name);
            has_done |= self.tell_status(&name);
        }
        let is_orphan = |pod: &&String| {
            let name = pod.rsplit_once('-').unwrap().0;
            !self.kept.stateful_sets.contains_key(name) && !self.orphaned.contains(name)
        };
        let orphans = self.kept.pods.keys().filter(is_orphan);
        for pod in orphans.cloned().collect::<Vec<_>>() {
            self.remove_pod(&pod);
            has_done = true;
        }
        has_done | self.grow_a_volume()
    }

    /// A claim that asks for more gets it.
    fn grow_a_volume(&mut self) -> bool {
        let version = self.version + 1;
        let is_small = |claim: &&mut PersistentVolumeClaim| {
            let requested = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
            claim.status.as_ref().and_then(|status| status.capacity.as_ref()) != requested
        };
        let Some(claim) = self.kept.claims.values_mut().find(is_small) else { return false };
        let requested = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.clone());
        claim.status.get_or_insert_default().capacity = requested;
        claim.metadata.resource_version = Some(version.to_string());
        self.version = version;
        true
    }

    fn scale(&mut self, name: &str) -> bool {
        let replicas = self.kept.stateful_sets[name].spec.as_ref().unwrap().replicas.unwrap();
        let superfluous = self.kept.pods.keys().rev().find(|pod| {
            let (prefix, ordinal) = pod.rsplit_once('-').unwrap();
            prefix == name && ordinal.parse::<i32>().unwrap() >= replicas
        });
        if let Some(pod) = superfluous.cloned() {
            self.remove_pod(&pod);
            return true;
        }
        for ordinal in 0..replicas {
            let pod = format!("{name}-{ordinal}");
            if self.kept.pods.contains_key(&pod) {
                if !self.is_ready(&pod) {
                    return false;
                }
                continue;
            }
            let is_old = ordinal < partition_of(&self.kept.stateful_sets[name]);
            let revision = if is_old { self.current[name].clone() } else { self.revision(name) };
            return self.create_pod(&pod, &revision);
        }
        self.update(name, replicas)
    }

    /// What pods of the StatefulSet are to be like.
    fn revision(&self, name: &str) -> String {
        revision_of(&self.kept.stateful_sets[name].spec.as_ref().unwrap().template)
    }

    fn is_new(&self, pod: &str, revision: &str) -> bool {
        self.kept.pods[pod].metadata.labels.as_ref().is_some_and(|labels| labels[REVISION] == revision)
    }

    /// The last pod that is not as it is to be is made anew, if those after it are ready and it is not below the partition.
    fn update(&mut self, name: &str, replicas: i32) -> bool {
        let revision = self.revision(name);
        let partition = partition_of(&self.kept.stateful_sets[name]);
        for ordinal in (partition..replicas).rev() {
            let pod = format!("{name}-{ordinal}");
            if !self.is_new(&pod, &revision) {
                self.check_restart(&pod, &revision);
                self.restarting.insert(pod.clone());
                self.restarted += 1;
                let last = self.disk(&pod).and_then(|disk| disk.version.clone());
                self.upgraded += usize::from(last.is_some_and(|last| !revision.starts_with(&format!("{last}_"))));
                self.remove_pod(&pod);
                return true;
            }
            if !self.is_ready(&pod) {
                return false;
            }
        }
        false
    }

    /// A node that serves is taken down because of what we wrote.
    fn check_restart(&self, pod: &str, revision: &str) {
        let serves = self.is_ready(pod) && !self.down_when_decided.contains(pod);
        let others: Vec<&String> = self.restarting.iter().filter(|other| *other != pod && serves).collect();
        assert!(others.is_empty(), "{pod} is taken down while {others:?} are restarting");
        self.check_version(pod, revision.split_once('_').unwrap().0);
    }

    /// A node starts with a version that it has, goes back to or is prepared for.
    fn check_version(&self, pod: &str, version: &str) {
        let Some(disk) = self.disk(pod).filter(|disk| disk.version.as_deref().is_some_and(|last| last != version))
        else {
            return;
        };
        // One that is down may be corrected when it was prepared for another version, and come up before that is done.
        let has = |kind: Snapshot, version: &str| disk.snapshots.contains(&(version.to_owned(), kind));
        let is_prepared = has(Snapshot::System, version) && has(Snapshot::Data, version)
            || disk.snapshots.iter().any(|(to, kind)| to != version && *kind == Snapshot::Data);
        let returns = disk.prepared_from.as_deref() == Some(version);
        assert!(is_prepared || returns, "{pod} restarts unprepared with version {version}: {disk:?}");
    }

    /// Whether the API server says that the pod is ready.
    fn says_ready(&self, pod: &str) -> bool {
        let conditions = self.kept.pods[pod].status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
    }

    fn create_pod(&mut self, pod: &str, revision: &str) -> bool {
        let claim = format!("data-{pod}");
        if self.kept.claims.get(&claim).is_some_and(|claim| claim.metadata.deletion_timestamp.is_some()) {
            return false;
        }
        if !self.kept.claims.contains_key(&claim) {
            let metadata = self.metadata(&claim);
            self.disks.insert(metadata.uid.clone().unwrap(), Disk::default());
            let stateful_set = &self.kept.stateful_sets[pod.rsplit_once('-').unwrap().0];
            let templates = stateful_set.spec.as_ref().unwrap().volume_claim_templates.as_ref().unwrap();
            let mut made = PersistentVolumeClaim { metadata, ..templates[0].clone() };
            made.spec.as_mut().unwrap().storage_class_name = Some("local".into());
            made.status.get_or_insert_default().phase = Some("Bound".into());
            self.kept.claims.insert(claim, made);
        }
        let disk = self.disk(pod).unwrap();
        assert!(!disk.is_decommissioned, "{pod} gets the disk of {:?}, which has left", disk.host_id);
        let version = revision.split_once('_').unwrap().0;
        self.check_version(pod, version);
        let labels = [(SCYLLA_VERSION, version), (REVISION, revision)].map(|(key, value)| (key.into(), value.into()));
        let metadata = ObjectMeta { labels: Some(labels.into()), ..self.metadata(pod) };
        let container = Container {
            name: "scylla".into(),
            image: Some(format!("scylladb/scylla:{version}")),
            ..Container::default()
        };
        let spec = Some(PodSpec { containers: vec![container], ..PodSpec::default() });
        self.kept.pods.insert(pod.to_owned(), Pod { metadata, spec, status: Some(readiness(false)) });
        true
    }

    /// Kubelets say which pods are ready.
    fn tell_readiness(&mut self) -> bool {
        let pods: Vec<String> = self.kept.pods.keys().cloned().collect();
        let changed: Vec<String> = pods.into_iter().filter(|pod| self.is_ready(pod) != self.says_ready(pod)).collect();
        for pod in &changed {
            let (version, status) = (self.next(), readiness(self.is_ready(pod)));
            let kept = self.kept.pods.get_mut(pod).unwrap();
            kept.status = Some(status);
            kept.metadata.resource_version = Some(version);
        }
        !changed.is_empty()
    }

    fn tell_status(&mut self, name: &str) -> bool {
        let pods: Vec<String> =
            self.kept.pods.keys().filter(|pod| pod.rsplit_once('-').unwrap().0 == name).cloned().collect();
        let ready = pods.iter().filter(|pod| self.is_ready(pod)).count() as i32;
        let count = pods.len() as i32;
        let revision = self.revision(name);
        let updated = pods.iter().filter(|pod| self.is_new(pod, &revision)).count() as i32;
        let replicas = self.replicas(name);
        if updated == replicas && ready == replicas {
            self.current.insert(name.to_owned(), revision.clone());
        }
        let current = self.current.get(name).cloned();
        let now = self.kept.stateful_sets.get_mut(name).unwrap();
        let status = StatefulSetStatus {
            observed_generation: now.metadata.generation,
            replicas: count,
            current_replicas: Some(count),
            ready_replicas: Some(ready),
            available_replicas: Some(ready),
            updated_replicas: Some(updated),
            update_revision: Some(revision),
            current_revision: current,
            ..StatefulSetStatus::default()
        };
        let is_new = now.status.as_ref() != Some(&status);
        if is_new {
            now.status = Some(status);
            self.version += 1;
            now.metadata.resource_version = Some(self.version.to_string());
        }
        is_new
    }

    // Nodes.

    pub(crate) fn pods(&self) -> Vec<String> {
        self.kept.pods.keys().cloned().collect()
    }

    /// Which nodes are on their way in or out.
    fn underway(&self, but: &str) -> usize {
        let is_underway = |node: &Node| matches!(node.mode, Mode::Starting | Mode::Joining | Mode::Leaving);
        self.nodes.iter().filter(|(name, node)| *name != but && is_underway(node)).count()
    }

    /// Host IDs of the ring that are not up.
    fn down(&self) -> Vec<String> {
        let up: BTreeSet<&String> = self.nodes.values().map(|node| &node.host_id).collect();
        self.ring.iter().filter(|host_id| !up.contains(host_id)).cloned().collect()
    }

    /// A node gets one step further; answers whether it does.
    pub(crate) fn live(&mut self, pod: &str) -> bool {
        match self.nodes.get(pod).map(|node| node.mode.clone()) {
            None => self.start(pod),
            Some(Mode::Starting) => self.begin_to_join(pod),
            Some(Mode::Joining) => self.join(pod),
            Some(Mode::Leaving) => self.finish_leaving(pod),
            Some(_) => false,
        }
    }

    fn start(&mut self, pod: &str) -> bool {
        let disk = self.disk(pod).unwrap().clone();
        if !self.kept.pods.contains_key(pod) || disk.is_lost || disk.is_decommissioned {
            return false;
        }
        let is_member = disk.host_id.as_ref().is_some_and(|host_id| self.ring.contains(host_id));
        // The sidecar looks at the Service before it starts ScyllaDB. Which node a disk is of it notes when that has joined.
        let (labels, annotations) = self.said_of(pod);
        let on_disk = disk.host_id.as_deref().filter(|_| is_member);
        let pod_uid = self.kept.pods[pod].metadata.uid.as_deref();
        if is_given_up(&labels, &annotations, on_disk, pod_uid) {
            self.refused += 1;
            return false;
        }
        let host_id = match disk.host_id {
            Some(host_id) => host_id,
            None => {
                let host_id = format!("host-{}", self.next());
                let uid = self.kept.claims[&format!("data-{pod}")].metadata.uid.clone().unwrap();
                self.disks.get_mut(&uid).unwrap().host_id = Some(host_id.clone());
                host_id
            }
        };
        let mode = if is_member { Mode::Normal } else { Mode::Starting };
        let replaces = labels.get(REPLACING_NODE_HOST_ID).cloned();
        let node = Node { host_id, mode, replaces, seen: None, view: View::default(), was_refused: false };
        self.nodes.insert(pod.to_owned(), node);
        let version = self.kept.pods[pod].metadata.labels.as_ref().unwrap()[SCYLLA_VERSION].clone();
        self.disk_mut(pod).version = Some(version);
        true
    }

    fn disk_mut(&mut self, pod: &str) -> &mut Disk {
        let uid = self.kept.claims[&format!("data-{pod}")].metadata.uid.clone().unwrap();
        self.disks.get_mut(&uid).unwrap()
    }

    /// The sidecar does what is asked for a change of the version; answers whether there was something to do.
    fn prepare(&mut self, pod: &str, host_id: &str, mode: &Mode, annotations: &Map) -> bool {
        let Some(work) = upgrade::work(annotations, host_id, mode) else { return false };
        let mut failed = None;
        let is_whole = self.down().is_empty();
        let (to, keep) = (work.request.to.clone(), work.request.keep.clone());
        let mut kept = work.kept.clone();
        kept.retain(|one| keep.contains(one));
        let stays = kept.clone();
        self.disk_mut(pod).snapshots.retain(|(version, one)| *version == to && stays.contains(one));
        for snapshot in work.to_take() {
            if snapshot == Snapshot::System && !is_whole {
                failed = Some(upgrade::Failure { step: upgrade::Step::Schema, why: "a node is down".into() });
                break;
            }
            self.disk_mut(pod).snapshots.insert((to.clone(), snapshot));
            kept.insert(snapshot);
        }
        let version = self.disk(pod).and_then(|disk| disk.version.clone());
        if version.as_ref() != Some(&to) {
            self.disk_mut(pod).prepared_from = version;
        }
        let answer = upgrade::Answer { host_id: host_id.to_owned(), to, kept, failed };
        let Some(text) = upgrade::change(annotations, &answer) else { return false };
        self.write_as_sidecar(pod, &json!({"metadata": {"annotations": {UPGRADE_ANSWER: text}}}), true)
    }

    /// Labels and annotations of a node's Service.
    fn said_of(&self, pod: &str) -> (Map, Map) {
        let metadata = self.kept.services.get(pod).map(|service| service.metadata.clone()).unwrap_or_default();
        (metadata.labels.unwrap_or_default(), metadata.annotations.unwrap_or_default())
    }

    /// Whether all nodes are up but for the one that this one replaces, which is down.
    fn may_join(&self, pod: &str) -> bool {
        let replaced = self.nodes[pod].replaces.as_ref();
        let down = self.down();
        down.iter().all(|host_id| Some(host_id) == replaced) && replaced.is_none_or(|replaced| down.contains(replaced))
    }

    /// The ring lets one node in at a time.
    fn begin_to_join(&mut self, pod: &str) -> bool {
        let is_leaving = self.nodes.values().any(|node| node.mode == Mode::Leaving);
        assert!(!is_leaving, "{pod} wants to join while another node leaves");
        let may_begin = self.may_join(pod) && self.nodes.values().all(|node| node.mode != Mode::Joining);
        if may_begin {
            self.nodes.get_mut(pod).unwrap().mode = Mode::Joining;
        }
        may_begin
    }

    fn join(&mut self, pod: &str) -> bool {
        if !self.may_join(pod) {
            self.nodes.remove(pod);
            return true;
        }
        let node = self.nodes[pod].clone();
        let replaced = node.replaces.clone();
        if let Some(replaced) = replaced {
            self.ring.remove(&replaced);
            self.replaced += 1;
        }
        self.ring.insert(node.host_id);
        self.nodes.get_mut(pod).unwrap().mode = Mode::Normal;
        true
    }

    fn finish_leaving(&mut self, pod: &str) -> bool {
        if !self.down().is_empty() {
            // As ScyllaDB does when it cannot go on.
            let node = self.nodes.get_mut(pod).unwrap();
            (node.mode, node.was_refused) = (Mode::Normal, true);
            return true;
        }
        let uid = self.kept.claims[&format!("data-{pod}")].metadata.uid.clone().unwrap();
        self.disks.get_mut(&uid).unwrap().is_decommissioned = true;
        let node = self.nodes.get_mut(pod).unwrap();
        node.mode = Mode::Decommissioned;
        self.ring.remove(&node.host_id);
        self.left += 1;
        assert!(!self.ring.is_empty(), "the last node has left");
        true
    }

    /// A node hears of the others.
    pub(crate) fn gossip(&mut self, pod: &str) {
        let down: BTreeSet<String> = self.down().into_iter().collect();
        let leaving = self.nodes.values().filter(|node| node.mode == Mode::Leaving).map(|node| node.host_id.clone());
        let joining = self.nodes.values().filter(|node| node.mode == Mode::Joining && node.replaces.is_none());
        let view = View {
            host_ids: self.ring.iter().map(|host_id| (host_id.clone(), host_id.clone())).collect(),
            live: self.ring.difference(&down).cloned().collect(),
            leaving: leaving.filter(|host_id| self.ring.contains(host_id)).collect(),
            joining: joining.map(|node| node.host_id.clone()).collect(),
            down,
            ..View::default()
        };
        if let Some(node) = self.nodes.get_mut(pod) {
            node.view = view;
        }
    }

    // Sidecars.

    pub(crate) fn see(&mut self, pod: &str) {
        let service = self.kept.services.get(pod).cloned();
        if let Some(node) = self.nodes.get_mut(pod) {
            node.seen = service;
        }
    }

    fn write_as_sidecar(&mut self, pod: &str, change: &Value, only_as_seen: bool) -> bool {
        let seen = self.nodes[pod].seen.as_ref().map(|service| service.metadata.clone());
        let now = self.kept.services.get(pod).map(|service| &service.metadata);
        let (Some(seen), Some(now)) = (seen, now) else { return false };
        if seen.uid != now.uid || (only_as_seen && seen.resource_version != now.resource_version) {
            return false;
        }
        self.patch_service(pod, change);
        self.see(pod);
        true
    }

    /// The sidecar does what there is to do, from what it has seen; answers whether there was something.
    pub(crate) fn tend(&mut self, pod: &str) -> bool {
        let Some(node) = self.nodes.get(pod).cloned() else { return false };
        let Some(seen) = &node.seen else { return false };
        let labels = seen.metadata.labels.clone().unwrap_or_default();
        let annotations = seen.metadata.annotations.clone().unwrap_or_default();
        let is_in = self.ring.contains(&node.host_id);
        let observation = Observation {
            host_id: node.host_id.clone(),
            is_member: Some(is_in),
            is_leaving: matches!(node.mode, Mode::Leaving | Mode::Decommissioned),
            ring: (is_in && node.mode == Mode::Normal && !node.view.host_ids.is_empty())
                .then(|| node.view.host_ids.keys().cloned().collect()),
        };
        let facts = changes(&annotations, &observation);
        if !facts.is_empty() {
            return self.write_as_sidecar(pod, &json!({"metadata": {"annotations": facts}}), false);
        }
        let answer = question(&annotations)
            .filter(|_| node.mode == Mode::Normal)
            .map(|asked| Answer::new(asked, &node.host_id, &node.view));
        if let Some(text) = change(&annotations, answer.as_ref()) {
            return self.write_as_sidecar(pod, &json!({"metadata": {"annotations": {RING_ANSWER: text}}}), false);
        }
        if self.prepare(pod, &node.host_id, &node.mode, &annotations) {
            return true;
        }
        let asked = Asked::of(&labels, &annotations);
        if node.was_refused && node.mode == Mode::Normal && asked.began == Some(&node.host_id) {
            let cleared =
                self.write_as_sidecar(pod, &json!({"metadata": {"annotations": {LEAVING_BEGAN: null}}}), true);
            self.nodes.get_mut(pod).unwrap().was_refused = !cleared;
            return cleared;
        }
        match step(asked, &node.host_id, &node.mode, true) {
            Step::Announce => {
                self.write_as_sidecar(pod, &json!({"metadata": {"annotations": {LEAVING_BEGAN: node.host_id}}}), true)
            }
            Step::Start => {
                assert_eq!(self.underway(pod), 0, "{pod} leaves while another node joins or leaves");
                assert_eq!(self.jobs_at_work(), [""; 0], "{pod} leaves while nodes are cleaned up");
                let is_down = !self.down().is_empty() || self.ring.len() < 2;
                let node = self.nodes.get_mut(pod).unwrap();
                if is_down {
                    node.was_refused = true;
                } else {
                    node.mode = Mode::Leaving;
                }
                true
            }
            Step::Confirm => {
                self.write_as_sidecar(pod, &json!({"metadata": {"labels": {DECOMMISSIONED: "true"}}}), false)
            }
            Step::Nothing | Step::Wait | Step::Restart => false,
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
