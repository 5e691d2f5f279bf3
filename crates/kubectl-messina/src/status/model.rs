//! Combines what Kubernetes and the nodes report.
//!
//! [`Status`] is also the JSON document that programs read: fields may be added to it, but none is removed or changes its
//! meaning while `version` stays the same.

mod next;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::{Pod, Service},
    apimachinery::pkg::apis::meta::v1::Condition as ObjectCondition,
};
use kube::ResourceExt;
use messina_api::{
    names::{annotation, label},
    scylla::v1alpha1::ScyllaDBDatacenter,
};
use messina_plan::datacenter::reasons::INVALID_SPECIFICATION;
use messina_text::is_uuid;
use serde::{Deserialize, Serialize};

pub use super::pods::PodSummary;
pub use next::NextStep;

/// The type of the condition of an object that the operator could not observe, or whose specification it refuses.
pub(crate) const OBSERVATION: &str = "ObservationDegraded";

/// The state of a node in the view of a node that does not know it.
pub const ABSENT: &str = "absent";

/// The datacenters that were found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The datacenters.
    pub datacenters: Vec<Datacenter>,
    /// What could not be read, in sentences.
    pub problems: Vec<String>,
}

/// A datacenter with its pods, its Services and the views of its nodes.
#[derive(Clone, Debug)]
pub struct Datacenter {
    /// The object itself.
    pub object: ScyllaDBDatacenter,
    /// The pods of its nodes.
    pub pods: Vec<Pod>,
    /// Whether these are all pods: the user may lack the permission to list them.
    pub pods_known: bool,
    /// Its Services.
    pub services: Vec<Service>,
    /// The rings that the pods returned, by the pods' names, or why a pod returned none.
    pub answers: BTreeMap<String, Result<Ring, String>>,
}

/// The ring as a node sees it.
#[derive(Clone, Debug, Deserialize)]
pub struct Ring {
    /// The host ID of this node.
    #[serde(rename = "hostID")]
    pub host_id: String,
    /// Its version of ScyllaDB.
    pub version: String,
    /// All nodes that this node knows.
    pub nodes: Vec<RingNode>,
}

/// The maximum length of a value in a node's answer, in characters.
const MAX_VALUE_LENGTH: usize = 100;

impl Ring {
    /// Returns the ring without control characters, or why it is invalid. Pods can answer anything, and host IDs become part of
    /// commands.
    pub(super) fn sanitize(self) -> Result<Self, String> {
        let sanitize = |text: &str| messina_text::line(text, MAX_VALUE_LENGTH);
        let checked = |id: &str| match is_uuid(id) {
            true => Ok(id.to_owned()),
            false => Err(format!("its answer has a host ID that is not a UUID: {:?}", sanitize(id))),
        };
        let node = |node: &RingNode| {
            Ok(RingNode {
                address: sanitize(&node.address),
                host_id: node.host_id.as_deref().map(checked).transpose()?,
                state: sanitize(&node.state),
                datacenter: sanitize(&node.datacenter),
                rack: sanitize(&node.rack),
                tokens: node.tokens,
            })
        };
        let nodes = self.nodes.iter().map(node).collect::<Result<_, String>>()?;
        Ok(Self { host_id: checked(&self.host_id)?, version: sanitize(&self.version), nodes })
    }
}

/// A node as another node sees it.
#[derive(Clone, Debug, Deserialize)]
pub struct RingNode {
    /// Its address.
    pub address: String,
    /// None for a node that owns no tokens yet.
    #[serde(rename = "hostID")]
    pub host_id: Option<String>,
    /// Two letters, as nodetool prints them.
    pub state: String,
    /// Its datacenter.
    pub datacenter: String,
    /// Its rack.
    pub rack: String,
    /// How many tokens it owns.
    pub tokens: usize,
}

/// The status of clusters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The version of this document format, 1.
    pub version: u32,
    /// The namespace that was searched; none for all namespaces.
    pub namespace: Option<String>,
    /// The clusters, by namespace and name.
    pub clusters: Vec<Cluster>,
    /// What could not be read, in sentences.
    pub problems: Vec<String>,
}

/// The status of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cluster {
    /// Kind of the object, so far always ScyllaDBDatacenter.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Name of the datacenter as ScyllaDB knows it.
    pub datacenter: String,
    /// The version of ScyllaDB that it runs.
    pub current_version: Option<String>,
    /// The version of ScyllaDB that its specification asks for.
    pub updated_version: Option<String>,
    /// The status of the object's condition of this name; none if it is absent or unknown.
    pub available: Option<bool>,
    /// The status of the object's condition of this name.
    pub progressing: Option<bool>,
    /// The status of the object's condition of this name.
    pub degraded: Option<bool>,
    /// Whether the operator has observed the latest generation of the object.
    pub observed: bool,
    /// Whether the operator refuses the current specification, and changes nothing until it is corrected.
    pub refused: bool,
    /// The conditions that are not as expected.
    pub conditions: Vec<Condition>,
    /// The racks.
    pub racks: Vec<Rack>,
    /// What the user can do.
    pub next: Vec<NextStep>,
}

/// A condition that is not as expected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Its type.
    #[serde(rename = "type")]
    pub condition_type: String,
    /// Whether it is true.
    pub status: bool,
    /// Its reason, in CamelCase.
    pub reason: String,
    /// Its message: one sentence on each line.
    pub message: String,
}

/// The status of a rack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rack {
    /// Its name.
    pub name: String,
    /// How many nodes the specification asks for; none for a rack that is not in the specification.
    pub wanted: Option<i32>,
    /// How many of its pods are ready; none where the user may not list pods.
    pub ready: Option<usize>,
    /// Its nodes: those with a pod, then those that are only in the ring.
    pub nodes: Vec<Node>,
}

/// The status of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Its pod; none for a node that is in the ring and has no pod.
    pub pod: Option<String>,
    /// Its state as most nodes see it, in two letters; none while no node knows it.
    pub state: Option<String>,
    /// How many nodes see it in each state. `absent` counts the nodes that do not know it.
    pub views: BTreeMap<String, usize>,
    /// Its address in the ring, else the address of its pod.
    pub address: Option<String>,
    /// Its host ID.
    #[serde(rename = "hostID")]
    pub host_id: Option<String>,
    /// How many tokens it owns.
    pub tokens: Option<usize>,
    /// The version of ScyllaDB that it reports.
    pub version: Option<String>,
    /// Why it did not return its view of the ring, if it was asked for it.
    pub no_answer: Option<String>,
    /// The status of its pod.
    pub kubernetes: Option<PodSummary>,
}

impl Status {
    /// Returns the status of these datacenters, which were found in a namespace, or in all namespaces.
    pub fn new(datacenters: &[Datacenter], problems: Vec<String>, namespace: Option<String>) -> Self {
        let mut clusters: Vec<Cluster> = datacenters.iter().map(Cluster::new).collect();
        clusters.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
        Self { version: 1, namespace, clusters, problems }
    }
}

impl Cluster {
    fn new(found: &Datacenter) -> Self {
        let object = &found.object;
        let status = object.status.clone().unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let is_true = |name: &str| {
            let condition = conditions.iter().find(|condition| condition.type_ == name)?;
            (condition.status != "Unknown").then_some(condition.status == "True")
        };
        let name = object.name_any();
        let generation = object.metadata.generation.unwrap_or_default();
        let observed = observed_generation_of(status.observed_generation, &conditions);
        let mut cluster = Self {
            kind: "ScyllaDBDatacenter".into(),
            namespace: object.namespace().unwrap_or_default(),
            datacenter: object.spec.datacenter_name.clone().filter(|own| !own.is_empty()).unwrap_or(name.clone()),
            name,
            current_version: status.current_version,
            updated_version: status.updated_version,
            available: is_true("Available"),
            progressing: is_true("Progressing"),
            degraded: is_true("Degraded"),
            observed: observed.is_some_and(|observed| observed >= generation),
            refused: conditions.iter().any(|condition| {
                is_refusal(condition) && condition.observed_generation.is_none_or(|observed| observed >= generation)
            }),
            conditions: unexpected(&conditions),
            racks: Vec::new(),
            next: Vec::new(),
        };
        cluster.racks = racks(found, &cluster.datacenter);
        cluster.next = next::next_steps(&cluster);
        cluster
    }
}

/// The latest generation of an object that the operator has observed. For an object that it refuses, or does not work on, the
/// operator updates only a condition: the rest of the status is about an earlier generation.
pub(crate) fn observed_generation_of(of_status: Option<i64>, conditions: &[ObjectCondition]) -> Option<i64> {
    conditions.iter().filter_map(|condition| condition.observed_generation).chain(of_status).max()
}

/// Whether a condition says that the operator refuses the specification.
fn is_refusal(condition: &ObjectCondition) -> bool {
    condition.type_ == OBSERVATION && condition.reason == INVALID_SPECIFICATION.as_str() && condition.status == "True"
}

impl Condition {
    /// Whether it says that the operator refuses the specification.
    pub(crate) fn is_refusal(&self) -> bool {
        self.condition_type == OBSERVATION && self.reason == INVALID_SPECIFICATION.as_str() && self.status
    }
}

/// The conditions that are not as expected. A condition that sums up others is left out where the others are present.
pub(crate) fn unexpected(conditions: &[ObjectCondition]) -> Vec<Condition> {
    let mut unexpected = Vec::new();
    let all = [
        ("Paused", "False"),
        ("ScyllaOperatorActive", "False"),
        ("Degraded", "False"),
        ("Available", "True"),
        ("Progressing", "False"),
    ];
    for (suffix, expected) in all {
        let is_unexpected =
            |condition: &&ObjectCondition| condition.type_.ends_with(suffix) && condition.status != expected;
        let found: Vec<&ObjectCondition> = conditions.iter().filter(is_unexpected).collect();
        let has_components = found.iter().any(|condition| condition.type_ != suffix);
        let shown = found.into_iter().filter(|condition| !has_components || condition.type_ != suffix);
        unexpected.extend(shown.map(|condition| Condition {
            condition_type: condition.type_.clone(),
            status: condition.status == "True",
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        }));
    }
    unexpected
}

/// The host ID and the addresses by which a pod is found in the ring.
struct PodIdentity<'a> {
    pod: &'a Pod,
    host_id: Option<String>,
    addresses: BTreeSet<String>,
}

impl<'a> PodIdentity<'a> {
    fn new(found: &'a Datacenter, pod: &'a Pod) -> Self {
        let name = pod.name_any();
        let service = found.services.iter().find(|service| service.name_any() == name);
        let answered =
            found.answers.get(&name).and_then(|answer| answer.as_ref().ok()).map(|ring| ring.host_id.clone());
        let annotated = service.and_then(|service| service.annotations().get(annotation::HOST_ID).cloned());
        let annotated = annotated.filter(|host_id| is_uuid(host_id));
        let ips = pod.status.iter().flat_map(|status| {
            status.pod_ip.clone().into_iter().chain(status.pod_ips.iter().flatten().map(|one| one.ip.clone()))
        });
        let of_service = service.and_then(|service| service.spec.as_ref()).into_iter();
        let cluster_ips = of_service.flat_map(|spec| spec.cluster_ips.iter().flatten().cloned());
        let balancers = service.and_then(|service| service.status.as_ref()?.load_balancer.as_ref()?.ingress.as_ref());
        let balanced =
            balancers.into_iter().flatten().filter_map(|one| one.ip.clone().or_else(|| one.hostname.clone()));
        Self { pod, host_id: answered.or(annotated), addresses: ips.chain(cluster_ips).chain(balanced).collect() }
    }

    /// Compares host IDs where both are known: they stay when addresses change.
    fn matches(&self, node: &RingNode) -> bool {
        match (&self.host_id, &node.host_id) {
            (Some(own), Some(other)) => own == other,
            _ => self.addresses.contains(&node.address),
        }
    }
}

fn racks(found: &Datacenter, datacenter: &str) -> Vec<Rack> {
    let spec = &found.object.spec;
    let template = spec.rack_template.as_ref().and_then(|template| template.nodes);
    let mut racks: Vec<Rack> = spec
        .racks
        .iter()
        .flatten()
        .map(|rack| Rack {
            name: rack.name.clone().unwrap_or_default(),
            wanted: Some(rack.template.nodes.or(template).unwrap_or(0)),
            ready: found.pods_known.then_some(0),
            nodes: Vec::new(),
        })
        .collect();
    let mut pods: Vec<&Pod> = found.pods.iter().collect();
    pods.sort_by_key(|pod| ordinal(&pod.name_any()));
    let identities: Vec<PodIdentity<'_>> = pods.into_iter().map(|pod| PodIdentity::new(found, pod)).collect();
    let rings: Vec<&Ring> = found.answers.values().filter_map(|answer| answer.as_ref().ok()).collect();
    for identity in &identities {
        let name = identity.pod.labels().get(label::RACK).cloned().unwrap_or_default();
        let node = node_with_pod(found, identity, &rings);
        let rack = rack_named(&mut racks, &name);
        let is_ready = node.kubernetes.as_ref().is_some_and(|kubernetes| kubernetes.ready);
        rack.ready = rack.ready.map(|ready| ready + usize::from(is_ready));
        rack.nodes.push(node);
    }
    let all = rings.iter().flat_map(|ring| &ring.nodes).filter(|node| node.datacenter == datacenter);
    let without_pod = all.filter(|node| !identities.iter().any(|identity| identity.matches(node)));
    let without_pod: BTreeMap<&str, &RingNode> =
        without_pod.map(|node| (node.host_id.as_deref().unwrap_or(&node.address), node)).collect();
    for node in without_pod.into_values() {
        let same = |other: &RingNode| match (&node.host_id, &other.host_id) {
            (Some(one), Some(other)) => one == other,
            _ => node.address == other.address,
        };
        let known = node_from_rings(&rings, same);
        rack_named(&mut racks, &node.rack).nodes.push(known);
    }
    racks
}

fn rack_named<'a>(racks: &'a mut Vec<Rack>, name: &str) -> &'a mut Rack {
    let position = racks.iter().position(|rack| rack.name == name).unwrap_or_else(|| {
        racks.push(Rack { name: name.to_owned(), wanted: None, ready: Some(0), nodes: Vec::new() });
        racks.len() - 1
    });
    &mut racks[position]
}

fn node_with_pod(found: &Datacenter, identity: &PodIdentity<'_>, rings: &[&Ring]) -> Node {
    let name = identity.pod.name_any();
    let own = found.answers.get(&name);
    let known = node_from_rings(rings, |node| identity.matches(node));
    let ip = identity.pod.status.as_ref().and_then(|status| status.pod_ip.clone());
    Node {
        address: known.address.or(ip),
        host_id: known.host_id.or_else(|| identity.host_id.clone()),
        version: own.and_then(|answer| answer.as_ref().ok()).map(|ring| ring.version.clone()),
        no_answer: own.and_then(|answer| answer.as_ref().err()).cloned(),
        kubernetes: Some(PodSummary::of(identity.pod)),
        pod: Some(name),
        ..known
    }
}

/// Returns the node that `matches` selects as all nodes see it.
fn node_from_rings(rings: &[&Ring], matches: impl Fn(&RingNode) -> bool) -> Node {
    let views: Vec<Option<&RingNode>> = rings.iter().map(|ring| ring.nodes.iter().find(|node| matches(node))).collect();
    let Some(first) = views.iter().flatten().next() else { return Node::default() };
    let mut counted: BTreeMap<String, usize> = BTreeMap::new();
    for view in &views {
        *counted.entry(view.map_or(ABSENT, |node| &node.state).to_owned()).or_default() += 1;
    }
    // Where as many nodes see one state as another, the worse one: D comes before U.
    let states = counted.iter().filter(|(state, _)| *state != ABSENT);
    let state = states.max_by(|one, other| one.1.cmp(other.1).then(other.0.cmp(one.0))).map(|(state, _)| state.clone());
    Node {
        state,
        views: counted,
        address: Some(first.address.clone()),
        host_id: views.iter().flatten().find_map(|node| node.host_id.clone()),
        tokens: Some(first.tokens),
        ..Node::default()
    }
}

/// A sort key that puts ordinals in numeric order: 2 before 10.
fn ordinal(name: &str) -> (String, u32) {
    match name.rsplit_once('-').map(|(rack, last)| (rack, last.parse())) {
        Some((rack, Ok(number))) => (rack.to_owned(), number),
        _ => (name.to_owned(), 0),
    }
}

impl Node {
    /// Its pod, else its address, else its host ID.
    pub fn name(&self) -> &str {
        let names = [&self.pod, &self.address, &self.host_id];
        names.into_iter().flatten().next().map_or("?", String::as_str)
    }

    /// Whether most nodes see it as down.
    pub fn is_down(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.starts_with('D'))
    }

    /// The states in which a minority of nodes sees it, each with the number of nodes.
    pub fn other_views(&self) -> Vec<(&str, usize)> {
        let others = self.views.iter().filter(|(state, _)| Some(*state) != self.state.as_ref());
        others.map(|(state, count)| (state.as_str(), *count)).collect()
    }
}

#[cfg(test)]
pub(super) mod tests;
