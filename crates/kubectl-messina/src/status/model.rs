//! Puts together what Kubernetes and the nodes say.
//!
//! [`Status`] is also the JSON document that programs read: fields are added to it, and none is taken away or changes
//! its meaning while `version` is the same.

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
use messina_plan::datacenter::INVALID_SPECIFICATION;
use messina_text::is_uuid;
use serde::{Deserialize, Serialize};

pub use super::pods::Kubernetes;
pub use next::Next;

/// The condition of an object that could not be observed, or whose specification is refused.
const OBSERVATION: &str = "ObservationDegraded";

/// The word for how a node is seen by those that do not know it.
pub const ABSENT: &str = "absent";

/// What was gathered.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The datacenters.
    pub datacenters: Vec<Datacenter>,
    /// What could not be gathered, in sentences.
    pub problems: Vec<String>,
}

/// What was gathered about a datacenter.
#[derive(Clone, Debug)]
pub struct Datacenter {
    /// The object itself.
    pub object: ScyllaDBDatacenter,
    /// The pods of its nodes.
    pub pods: Vec<Pod>,
    /// Whether these are all: pods may not be listed by everybody.
    pub knows_pods: bool,
    /// Its Services.
    pub services: Vec<Service>,
    /// What the pods that were asked answered, or why they did not.
    pub answers: BTreeMap<String, Result<Ring, String>>,
}

/// The ring as a node sees it.
#[derive(Clone, Debug, Deserialize)]
pub struct Ring {
    /// The host ID of the node that was asked.
    #[serde(rename = "hostID")]
    pub host_id: String,
    /// Its version of ScyllaDB.
    pub version: String,
    /// All nodes that it knows.
    pub nodes: Vec<RingNode>,
}

/// How long a word of a node's answer may be, in characters.
const LONGEST: usize = 100;

impl Ring {
    /// The same, fit to be shown; or why it makes no sense. A pod answers what it likes, and host IDs end in commands.
    pub(super) fn fit(self) -> Result<Self, String> {
        let fit = |text: &str| messina_text::line(text, LONGEST);
        let checked = |id: &str| match is_uuid(id) {
            true => Ok(id.to_owned()),
            false => Err(format!("it answered with a host ID that is no UUID: {:?}", fit(id))),
        };
        let node = |node: &RingNode| {
            Ok(RingNode {
                address: fit(&node.address),
                host_id: node.host_id.as_deref().map(checked).transpose()?,
                state: fit(&node.state),
                datacenter: fit(&node.datacenter),
                rack: fit(&node.rack),
                tokens: node.tokens,
            })
        };
        let nodes = self.nodes.iter().map(node).collect::<Result<_, String>>()?;
        Ok(Self { host_id: checked(&self.host_id)?, version: fit(&self.version), nodes })
    }
}

/// A node as another one sees it.
#[derive(Clone, Debug, Deserialize)]
pub struct RingNode {
    /// Its address.
    pub address: String,
    /// None for one that owns no tokens yet.
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

/// How clusters stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The version of this form, 1.
    pub version: u32,
    /// Where was looked; nothing for everywhere.
    pub namespace: Option<String>,
    /// The clusters, by namespace and name.
    pub clusters: Vec<Cluster>,
    /// What could not be seen, in sentences.
    pub problems: Vec<String>,
}

/// How a cluster stands.
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
    /// The version of ScyllaDB that it is to run.
    pub updated_version: Option<String>,
    /// What the object's condition of this name says; nothing if it is not there or does not know.
    pub available: Option<bool>,
    /// What the object's condition of this name says.
    pub progressing: Option<bool>,
    /// What the object's condition of this name says.
    pub degraded: Option<bool>,
    /// Whether the operator has seen the latest change of the object.
    pub observed: bool,
    /// Whether the operator refuses the specification as it is now, and changes nothing before it is corrected.
    pub refused: bool,
    /// The conditions that are not as they should be.
    pub conditions: Vec<Condition>,
    /// The racks.
    pub racks: Vec<Rack>,
    /// What to do next.
    pub next: Vec<Next>,
}

/// A condition that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Its type.
    #[serde(rename = "type")]
    pub condition_type: String,
    /// Whether it is true.
    pub status: bool,
    /// One word.
    pub reason: String,
    /// Sentences.
    pub message: String,
}

/// How a rack stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rack {
    /// Its name.
    pub name: String,
    /// How many nodes the specification wants; nothing for a rack that it does not have.
    pub wanted: Option<i32>,
    /// How many of its pods are ready; nothing where pods may not be listed.
    pub ready: Option<usize>,
    /// Its nodes: those with a pod, then those that are only in the ring.
    pub nodes: Vec<Node>,
}

/// How a node stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Its pod; nothing for a node that is in the ring and has none.
    pub pod: Option<String>,
    /// Its state as most nodes see it, in two letters; nothing while no node knows it.
    pub state: Option<String>,
    /// How many nodes see it in which state. `absent` stands for those that do not know it.
    pub views: BTreeMap<String, usize>,
    /// Its address in the ring, else the pod's.
    pub address: Option<String>,
    /// Its host ID.
    #[serde(rename = "hostID")]
    pub host_id: Option<String>,
    /// How many tokens it owns.
    pub tokens: Option<usize>,
    /// The version of ScyllaDB that it says it runs.
    pub version: Option<String>,
    /// Why it did not say how it sees the ring, if it was asked and did not.
    pub no_answer: Option<String>,
    /// What Kubernetes says of its pod.
    pub kubernetes: Option<Kubernetes>,
}

impl Status {
    /// Puts together what was gathered in a namespace, or everywhere.
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
        let holds = |name: &str| {
            let condition = conditions.iter().find(|condition| condition.type_ == name)?;
            (condition.status != "Unknown").then_some(condition.status == "True")
        };
        let name = object.name_any();
        let generation = object.metadata.generation.unwrap_or_default();
        let seen = seen_generation(status.observed_generation, &conditions);
        let mut cluster = Self {
            kind: "ScyllaDBDatacenter".into(),
            namespace: object.namespace().unwrap_or_default(),
            datacenter: object.spec.datacenter_name.clone().filter(|own| !own.is_empty()).unwrap_or(name.clone()),
            name,
            current_version: status.current_version,
            updated_version: status.updated_version,
            available: holds("Available"),
            progressing: holds("Progressing"),
            degraded: holds("Degraded"),
            observed: seen.is_some_and(|seen| seen >= generation),
            refused: conditions.iter().any(|condition| {
                is_refusal(condition) && condition.observed_generation.is_none_or(|seen| seen >= generation)
            }),
            conditions: unexpected(&conditions),
            racks: Vec::new(),
            next: Vec::new(),
        };
        cluster.racks = racks(found, &cluster.datacenter);
        cluster.next = next::next(&cluster);
        cluster
    }
}

/// The last generation of an object that the operator has seen. What it refuses, or does not work on, it says in a condition
/// alone: the rest of the status speaks of the generation before.
pub(crate) fn seen_generation(of_status: Option<i64>, conditions: &[ObjectCondition]) -> Option<i64> {
    conditions.iter().filter_map(|condition| condition.observed_generation).chain(of_status).max()
}

/// Whether a condition says that the specification is refused.
fn is_refusal(condition: &ObjectCondition) -> bool {
    condition.type_ == OBSERVATION && condition.reason == INVALID_SPECIFICATION && condition.status == "True"
}

impl Condition {
    /// Whether it says that the specification is refused.
    pub(crate) fn is_refusal(&self) -> bool {
        self.condition_type == OBSERVATION && self.reason == INVALID_SPECIFICATION && self.status
    }
}

/// The conditions that are not as they should be. Sums of others are left out where the others are there.
pub(crate) fn unexpected(conditions: &[ObjectCondition]) -> Vec<Condition> {
    let mut unexpected = Vec::new();
    let all = [
        ("Paused", "False"),
        ("ScyllaOperatorActive", "False"),
        ("Degraded", "False"),
        ("Available", "True"),
        ("Progressing", "False"),
    ];
    for (end, wanted) in all {
        let wrong = |condition: &&ObjectCondition| condition.type_.ends_with(end) && condition.status != wanted;
        let wrong: Vec<&ObjectCondition> = conditions.iter().filter(wrong).collect();
        let has_parts = wrong.iter().any(|condition| condition.type_ != end);
        let shown = wrong.into_iter().filter(|condition| !has_parts || condition.type_ != end);
        unexpected.extend(shown.map(|condition| Condition {
            condition_type: condition.type_.clone(),
            status: condition.status == "True",
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        }));
    }
    unexpected
}

/// By what a pod is known in the ring.
struct Member<'a> {
    pod: &'a Pod,
    host_id: Option<String>,
    addresses: BTreeSet<String>,
}

impl<'a> Member<'a> {
    fn new(found: &'a Datacenter, pod: &'a Pod) -> Self {
        let name = pod.name_any();
        let service = found.services.iter().find(|service| service.name_any() == name);
        let answered =
            found.answers.get(&name).and_then(|answer| answer.as_ref().ok()).map(|ring| ring.host_id.clone());
        let noted = service.and_then(|service| service.annotations().get(annotation::HOST_ID).cloned());
        let noted = noted.filter(|host_id| is_uuid(host_id));
        let ips = pod.status.iter().flat_map(|status| {
            status.pod_ip.clone().into_iter().chain(status.pod_ips.iter().flatten().map(|one| one.ip.clone()))
        });
        let of_service = service.and_then(|service| service.spec.as_ref()).into_iter();
        let cluster_ips = of_service.flat_map(|spec| spec.cluster_ips.iter().flatten().cloned());
        let balancers = service.and_then(|service| service.status.as_ref()?.load_balancer.as_ref()?.ingress.as_ref());
        let balanced =
            balancers.into_iter().flatten().filter_map(|one| one.ip.clone().or_else(|| one.hostname.clone()));
        Self { pod, host_id: answered.or(noted), addresses: ips.chain(cluster_ips).chain(balanced).collect() }
    }

    /// Host IDs stay when addresses change, so they count before addresses.
    fn is(&self, node: &RingNode) -> bool {
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
            ready: found.knows_pods.then_some(0),
            nodes: Vec::new(),
        })
        .collect();
    let mut pods: Vec<&Pod> = found.pods.iter().collect();
    pods.sort_by_key(|pod| ordinal(&pod.name_any()));
    let members: Vec<Member<'_>> = pods.into_iter().map(|pod| Member::new(found, pod)).collect();
    let rings: Vec<&Ring> = found.answers.values().filter_map(|answer| answer.as_ref().ok()).collect();
    for member in &members {
        let name = member.pod.labels().get(label::RACK).cloned().unwrap_or_default();
        let node = node_with_pod(found, member, &rings);
        let rack = rack_called(&mut racks, &name);
        let is_ready = node.kubernetes.as_ref().is_some_and(|kubernetes| kubernetes.ready);
        rack.ready = rack.ready.map(|ready| ready + usize::from(is_ready));
        rack.nodes.push(node);
    }
    let all = rings.iter().flat_map(|ring| &ring.nodes).filter(|node| node.datacenter == datacenter);
    let without_pod = all.filter(|node| !members.iter().any(|member| member.is(node)));
    let without_pod: BTreeMap<&str, &RingNode> =
        without_pod.map(|node| (node.host_id.as_deref().unwrap_or(&node.address), node)).collect();
    for node in without_pod.into_values() {
        let same = |other: &RingNode| match (&node.host_id, &other.host_id) {
            (Some(one), Some(other)) => one == other,
            _ => node.address == other.address,
        };
        let known = seen(&rings, same);
        rack_called(&mut racks, &node.rack).nodes.push(known);
    }
    racks
}

fn rack_called<'a>(racks: &'a mut Vec<Rack>, name: &str) -> &'a mut Rack {
    let position = racks.iter().position(|rack| rack.name == name).unwrap_or_else(|| {
        racks.push(Rack { name: name.to_owned(), wanted: None, ready: Some(0), nodes: Vec::new() });
        racks.len() - 1
    });
    &mut racks[position]
}

fn node_with_pod(found: &Datacenter, member: &Member<'_>, rings: &[&Ring]) -> Node {
    let name = member.pod.name_any();
    let own = found.answers.get(&name);
    let known = seen(rings, |node| member.is(node));
    let ip = member.pod.status.as_ref().and_then(|status| status.pod_ip.clone());
    Node {
        address: known.address.or(ip),
        host_id: known.host_id.or_else(|| member.host_id.clone()),
        version: own.and_then(|answer| answer.as_ref().ok()).map(|ring| ring.version.clone()),
        no_answer: own.and_then(|answer| answer.as_ref().err()).cloned(),
        kubernetes: Some(Kubernetes::of(member.pod)),
        pod: Some(name),
        ..known
    }
}

/// A node as the others see it.
fn seen(rings: &[&Ring], is: impl Fn(&RingNode) -> bool) -> Node {
    let views: Vec<Option<&RingNode>> = rings.iter().map(|ring| ring.nodes.iter().find(|node| is(node))).collect();
    let Some(first) = views.iter().flatten().next() else { return Node::default() };
    let mut counted: BTreeMap<String, usize> = BTreeMap::new();
    for view in &views {
        *counted.entry(view.map_or(ABSENT, |node| &node.state).to_owned()).or_default() += 1;
    }
    // Of states that as many nodes see, the worse one: D comes before U.
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

/// Names in the order in which a person counts: 2 before 10.
fn ordinal(name: &str) -> (String, u32) {
    match name.rsplit_once('-').map(|(rack, last)| (rack, last.parse())) {
        Some((rack, Ok(number))) => (rack.to_owned(), number),
        _ => (name.to_owned(), 0),
    }
}

impl Node {
    /// By what people know it.
    pub fn name(&self) -> &str {
        let names = [&self.pod, &self.address, &self.host_id];
        names.into_iter().flatten().next().map_or("?", String::as_str)
    }

    /// Whether most nodes see it down.
    pub fn is_down(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.starts_with('D'))
    }

    /// How many see it otherwise than most do: state and number.
    pub fn dissent(&self) -> Vec<(&str, usize)> {
        let others = self.views.iter().filter(|(state, _)| Some(*state) != self.state.as_ref());
        others.map(|(state, count)| (state.as_str(), *count)).collect()
    }
}

#[cfg(test)]
pub(super) mod tests;
