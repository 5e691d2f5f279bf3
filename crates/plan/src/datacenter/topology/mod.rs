//! Nodes that leave, nodes that are replaced, and nodes whose version changes.
//!
//! What loses data when it is wrong is decided from the ring: the operator asks the nodes on their Services, and they
//! answer there. What is asked for is written first, for one host ID; then it is done; then the ring confirms it. A label
//! alone decides nothing.

mod claims;
mod leaving;
mod lost;
mod maintenance;
mod members;
mod outdated;
mod replacing;
mod reports;
mod upgrading;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::StatefulSet;
use messina_api::names::annotation::RING_QUESTION;
use serde_json::{Value, json};

use super::{
    Change, Deletion, Kind, Note, Observed, Part,
    facts::ObjectReference,
    recovery::joined_disks,
    rollout::{Racks, replicas},
    seen::{self, RestsOn, Seen},
    validate::MOST_NODES,
};
pub(crate) use leaving::REFUSES;
pub(crate) use members::{Member, members};
use members::{Place, Ring};
pub(crate) use upgrading::{is_being_upgraded, is_prepared_for};

/// What is to be done now.
#[derive(Debug, Default)]
pub(crate) struct Topology {
    pub(crate) changes: Vec<Change>,
    pub(crate) deletions: Vec<Deletion>,
    pub(crate) waiting: Vec<Note>,
    pub(crate) wrong: Vec<Note>,
    /// A node is leaving, so nothing else begins.
    pub(crate) is_leaving: bool,
    /// All Services of nodes that have joined name them.
    pub(crate) are_nodes_named: bool,
    /// The node that is to restart next may not yet.
    pub(crate) holds_restart: bool,
    /// A node announces an address that is not its own any more, so nothing else begins.
    pub(crate) is_outdated: bool,
    /// StatefulSets that have no place for nodes which may be in the ring.
    pub(crate) without_place: BTreeSet<String>,
    /// StatefulSets that get no more nodes before what is left of former ones is out of the way.
    pub(crate) in_the_way: BTreeSet<String>,
    /// Names of nodes that somebody works on, so nothing begins.
    pub(crate) under_maintenance: Vec<String>,
    /// Services that are about to go.
    pub(crate) going: BTreeSet<String>,
    /// What has to be as it was observed when something is written.
    pub(crate) rests_on: RestsOn,
}

pub(crate) fn topology(observed: &Observed, racks: &Racks<'_>) -> Topology {
    let members = members(observed);
    let ring = Ring::new(observed, &members);
    let mut steps = Steps::new(observed, &ring);
    maintenance::respect(&mut steps);
    let is_replacing = replacing::replace(&mut steps);
    leaving::clear_up(&mut steps);
    claims::clear_the_way(&mut steps);
    leaving::leave(&mut steps, racks, is_replacing);
    let is_held = is_replacing || !steps.done.under_maintenance.is_empty();
    outdated::start_anew(&mut steps, racks, is_held);
    upgrading::prepare(&mut steps, racks, is_held);
    steps.ask();
    let mut changes: Vec<Change> = steps.changes.into_values().collect();
    // What is asked of a node comes before the question goes to the others: so what they answer is newer than that, and a
    // crash in between wastes nobody's answer.
    changes.sort_by_key(only_asks);
    Topology { changes, ..steps.done }
}

/// Whether nothing changes but the question.
fn only_asks(change: &Change) -> bool {
    let (labels, annotations) = (&change.patch["metadata"]["labels"], &change.patch["metadata"]["annotations"]);
    let is_question = |annotations: &serde_json::Map<String, Value>| annotations.keys().all(|key| key == RING_QUESTION);
    change.kind == Kind::Service && labels.is_null() && annotations.as_object().is_some_and(is_question)
}

/// Services that are about to go.
pub(crate) fn going(observed: &Observed) -> BTreeSet<String> {
    let members = members(observed);
    let ring = Ring::new(observed, &members);
    let mut steps = Steps::new(observed, &ring);
    leaving::clear_up(&mut steps);
    steps.done.going
}

/// One more than the last ordinal of a node that is in the ring although its StatefulSet has no place for it.
pub(crate) fn nodes_without_place(observed: &Observed, stateful_set: &str) -> i32 {
    let members = members(observed);
    let is_lost = |member: &&Member<'_>| member.stateful_set == stateful_set && member.is_outside(observed);
    let mut lost = members.iter().filter(is_lost).filter_map(|member| Some((member, member.host_id()?))).peekable();
    if lost.peek().is_none() {
        return 0;
    }
    let ring = Ring::new(observed, &members);
    if observed.stateful_sets.get(stateful_set).is_some_and(|now| !ring.is_asked_since(now)) {
        return 0;
    }
    let is_in = |(member, host_id): &(&Member<'_>, &str)| ring.place(host_id, member.name) == Place::In;
    lost.filter(is_in).map(|(member, _)| member.ordinal + 1).max().unwrap_or(0).min(MOST_NODES)
}

/// One more than the last ordinal of which there is a pod, a Service that knows a node, or a claim with the data of one.
/// Those that have left do not count.
pub(crate) fn known_nodes(observed: &Observed, stateful_set: &str) -> i32 {
    let members = members(observed);
    let ring = Ring::new(observed, &members);
    let has_left = |member: &Member<'_>| {
        let is_out = |host_id: &str| ring.place_of(observed, member, host_id) == Place::Out;
        member.is_asked_to_leave() && !member.is_replaced() && member.host_id().is_some_and(is_out)
    };
    let (left, there): (Vec<&Member<'_>>, Vec<_>) = members.iter().partition(|member| has_left(member));
    let services = there.iter().filter(|member| member.host_id().is_some()).map(|member| member.name);
    let has_not_left = |name: &&str| left.iter().all(|member| member.name != *name);
    let pods = observed.pods.keys().map(String::as_str).filter(has_not_left);
    let disks = joined_disks(observed);
    let disks = disks.keys().copied().filter(has_not_left);
    let ordinal = |name: &str| name.strip_prefix(stateful_set)?.strip_prefix('-')?.parse::<u16>().ok();
    services.chain(pods).chain(disks).filter_map(ordinal).max().map_or(0, |last| i32::from(last) + 1)
}

/// How many nodes the specification wants in a StatefulSet.
fn desired(observed: &Observed, stateful_set: &str) -> i32 {
    let racks = &observed.datacenter.racks;
    racks.iter().find(|rack| observed.datacenter.stateful_set_name(rack) == stateful_set).map_or(0, |rack| rack.nodes)
}

/// What is decided, step by step.
struct Steps<'a> {
    observed: &'a Observed,
    ring: &'a Ring<'a>,
    /// One for each object: a second one would not find the version that the decision is about.
    changes: BTreeMap<(Kind, String), Change>,
    done: Topology,
    /// Whether nodes have to tell of the ring.
    asks: bool,
    /// A question that takes the place of the one that stands.
    asked: Option<u64>,
}

impl<'a> Steps<'a> {
    fn new(observed: &'a Observed, ring: &'a Ring<'a>) -> Self {
        Self { observed, ring, changes: BTreeMap::new(), done: Topology::default(), asks: false, asked: None }
    }

    fn change(&mut self, kind: Kind, object: &ObjectReference, patch: Value, event: Option<(&'static str, String)>) {
        let name = object.name.clone();
        let change = self.changes.entry((kind, name.clone())).or_insert_with(|| Change {
            part: kind.part(),
            kind,
            name,
            uid: object.uid.clone().unwrap_or_default(),
            version: object.version.clone().unwrap_or_default(),
            patch: json!({}),
            event: None,
        });
        merge(&mut change.patch, patch);
        if event.is_some() {
            change.event = event;
        }
    }

    fn change_member(&mut self, member: &Member<'_>, metadata: Value, event: Option<(&'static str, String)>) {
        self.change(Kind::Service, &member.service.reference, json!({"metadata": metadata}), event);
    }

    /// Gives a node its place, or takes it away.
    fn set_replicas(
        &mut self,
        stateful_set: &StatefulSet,
        replicas: i32,
        member: &Member<'_>,
        event: (&'static str, String),
    ) {
        let rests_on = seen::of_places(self.observed, stateful_set, replicas, member.name);
        self.done.rests_on.entry((Kind::StatefulSet, member.stateful_set.to_owned())).or_default().extend(rests_on);
        let object = ObjectReference::of(&stateful_set.metadata);
        self.change(Kind::StatefulSet, &object, json!({"spec": {"replicas": replicas}}), Some(event));
    }

    /// A node that may be in the ring is down for lack of a place, or nobody would start it again: no other one restarts, and
    /// it is to come back as it was.
    fn lacks_place(&mut self, member: &Member<'_>) {
        self.done.holds_restart = true;
        self.done.without_place.insert(member.stateful_set.to_owned());
    }

    /// What is written of the member's Service holds only if its claim and its pod are as they were observed.
    fn rests_on_belongings(&mut self, member: &Member<'_>) {
        let belongings = seen::belongings(self.observed, member.name);
        self.done.rests_on.insert((Kind::Service, member.name.to_owned()), belongings);
    }

    /// What a node leaves behind is put away only if all that was said of the ring, the pods that said it, and what was written down
    /// of this node, are as they were observed, and so is this.
    fn rests_on_ring(&mut self, kind: Kind, object: &ObjectReference, also: Vec<Seen>) {
        let said = self.ring.members.iter().map(|member| seen::service(self.observed, member.name));
        let witnesses = self.ring.witnesses.iter().map(|name| seen::pod(self.observed, name));
        self.done.rests_on.insert((kind, object.name.clone()), said.chain(witnesses).chain(also).collect());
    }

    fn delete(&mut self, kind: Kind, object: &ObjectReference, event: (&'static str, String)) {
        self.done.deletions.push(Deletion {
            part: kind.part(),
            kind,
            name: object.name.clone(),
            uid: object.uid.clone().unwrap_or_default(),
            // A rack that was asked for again meanwhile is kept.
            version: object.version.clone().filter(|_| kind == Kind::StatefulSet),
            orphans: false,
            event: Some(event),
        });
    }

    fn wait(&mut self, part: Part, reason: &'static str, message: String) {
        self.done.waiting.push(Note { part, reason, message });
    }

    fn fault(&mut self, part: Part, reason: &'static str, message: String) {
        self.done.wrong.push(Note { part, reason, message });
    }

    fn named(&self, member: &Member<'_>) -> String {
        format!("{}/{}", self.observed.datacenter.namespace, member.name)
    }

    /// Asks anew, so that what is answered is newer than what is written together with the question.
    fn ask_anew(&mut self) -> String {
        self.asks = true;
        let question = self.ring.next_question(self.observed);
        self.asked = Some(question);
        question.to_string()
    }

    /// Asks every node for the ring, or none.
    fn ask(&mut self) {
        let stands = self.ring.question.filter(|_| !self.ring.is_outdated);
        let question = match self.asked.or(stands).filter(|_| self.asks) {
            None if self.asks => Some(self.ring.next_question(self.observed)),
            question => question,
        };
        let question = question.map(|question| question.to_string());
        for member in self.ring.members {
            if member.question() != question.as_deref() && !self.done.going.contains(member.name) {
                self.change_member(member, json!({"annotations": {RING_QUESTION: question}}), None);
            }
        }
    }

    /// How many nodes the StatefulSet has room for now; none where there is no StatefulSet.
    fn replicas(&self, stateful_set: &str) -> Option<i32> {
        self.observed.stateful_sets.get(stateful_set).map(replicas)
    }
}

/// Puts one merge patch into another.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}
