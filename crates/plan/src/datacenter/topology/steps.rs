//! What is decided of nodes that come and go, step by step.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::StatefulSet;
use messina_api::names::annotation::RING_QUESTION;
use serde_json::{Value, json};

use crate::datacenter::{
    model::{
        component::Component,
        facts::ObjectReference,
        observed::Observed,
        plan::{Deletion, FieldPatch, Note, ObjectKind, ObservedVersion, Preconditions},
    },
    state::{Current, member::Member, preconditions, ring::Ring, stateful_set::replicas},
};

/// What is to be done now.
#[derive(Debug, Default)]
pub(crate) struct Topology {
    pub(crate) changes: Vec<FieldPatch>,
    pub(crate) deletions: Vec<Deletion>,
    pub(crate) progressing: Vec<Note>,
    pub(crate) degraded: Vec<Note>,
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
    pub(crate) preconditions: Preconditions,
}

/// What is decided, step by step.
pub(crate) struct Steps<'a> {
    pub(crate) current: &'a Current<'a>,
    pub(crate) observed: &'a Observed,
    pub(crate) ring: &'a Ring<'a>,
    /// One for each object: a second one would not find the version that the decision is about.
    pub(crate) changes: BTreeMap<(ObjectKind, String), FieldPatch>,
    pub(crate) done: Topology,
    /// Whether nodes have to tell of the ring.
    pub(crate) asks: bool,
    /// A question that takes the place of the one that stands.
    pub(crate) asked: Option<u64>,
}

impl<'a> Steps<'a> {
    pub(crate) fn new(current: &'a Current<'a>) -> Self {
        Self {
            current,
            observed: current.observed,
            ring: &current.ring,
            changes: BTreeMap::new(),
            done: Topology::default(),
            asks: false,
            asked: None,
        }
    }

    pub(crate) fn change(
        &mut self,
        kind: ObjectKind,
        object: &ObjectReference,
        patch: Value,
        event: Option<(&'static str, String)>,
    ) {
        let name = object.name.clone();
        let change = self.changes.entry((kind, name.clone())).or_insert_with(|| FieldPatch {
            component: kind.component(),
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

    pub(crate) fn change_member(
        &mut self,
        member: &Member<'_>,
        metadata: Value,
        event: Option<(&'static str, String)>,
    ) {
        self.change(ObjectKind::Service, &member.service.reference, json!({"metadata": metadata}), event);
    }

    /// Gives a node its place, or takes it away.
    pub(crate) fn set_replicas(
        &mut self,
        stateful_set: &StatefulSet,
        replicas: i32,
        member: &Member<'_>,
        event: (&'static str, String),
    ) {
        let preconditions = preconditions::for_replicas(self.observed, stateful_set, replicas, member.name);
        self.done
            .preconditions
            .entry((ObjectKind::StatefulSet, member.stateful_set.to_owned()))
            .or_default()
            .extend(preconditions);
        let object = ObjectReference::of(&stateful_set.metadata);
        self.change(ObjectKind::StatefulSet, &object, json!({"spec": {"replicas": replicas}}), Some(event));
    }

    /// A node that may be in the ring is down for lack of a place, or nobody would start it again: no other one restarts, and
    /// it is to come back as it was.
    pub(crate) fn lacks_place(&mut self, member: &Member<'_>) {
        self.done.holds_restart = true;
        self.done.without_place.insert(member.stateful_set.to_owned());
    }

    /// What is written of the member's Service holds only if its claim and its pod are as they were observed.
    pub(crate) fn rests_on_belongings(&mut self, member: &Member<'_>) {
        let belongings = preconditions::claim_and_pod(self.observed, member.name);
        self.done.preconditions.insert((ObjectKind::Service, member.name.to_owned()), belongings);
    }

    /// What a node leaves behind is put away only if all that was said of the ring, the pods that said it, and what was written down
    /// of this node, are as they were observed, and so is this.
    pub(crate) fn rests_on_ring(&mut self, kind: ObjectKind, object: &ObjectReference, also: Vec<ObservedVersion>) {
        let said = self.ring.members.iter().map(|member| preconditions::service(self.observed, member.name));
        let witnesses = self.ring.witnesses.iter().map(|name| preconditions::pod(self.observed, name));
        self.done.preconditions.insert((kind, object.name.clone()), said.chain(witnesses).chain(also).collect());
    }

    pub(crate) fn delete(&mut self, kind: ObjectKind, object: &ObjectReference, event: (&'static str, String)) {
        self.done.deletions.push(Deletion {
            component: kind.component(),
            kind,
            name: object.name.clone(),
            uid: object.uid.clone().unwrap_or_default(),
            // A rack that was asked for again meanwhile is kept.
            version: object.version.clone().filter(|_| kind == ObjectKind::StatefulSet),
            orphans: false,
            event: Some(event),
        });
    }

    pub(crate) fn wait(&mut self, component: Component, reason: &'static str, message: String) {
        self.done.progressing.push(Note { component, reason, message });
    }

    pub(crate) fn fault(&mut self, component: Component, reason: &'static str, message: String) {
        self.done.degraded.push(Note { component, reason, message });
    }

    pub(crate) fn named(&self, member: &Member<'_>) -> String {
        format!("{}/{}", self.observed.datacenter.namespace, member.name)
    }

    /// Asks anew, so that what is answered is newer than what is written together with the question.
    pub(crate) fn ask_anew(&mut self) -> String {
        self.asks = true;
        let question = self.ring.next_question(self.observed);
        self.asked = Some(question);
        question.to_string()
    }

    /// Asks every node for the ring, or none.
    pub(crate) fn ask(&mut self) {
        let stands = self.ring.question.filter(|_| !self.ring.is_outdated);
        let question = match self.asked.or(stands).filter(|_| self.asks) {
            None if self.asks => Some(self.ring.next_question(self.observed)),
            question => question,
        };
        let question = question.map(|question| question.to_string());
        for member in &self.ring.members {
            if member.question() != question.as_deref() && !self.done.going.contains(member.name) {
                self.change_member(member, json!({"annotations": {RING_QUESTION: question}}), None);
            }
        }
    }

    /// How many nodes the StatefulSet has room for now; none where there is no StatefulSet.
    pub(crate) fn replicas(&self, stateful_set: &str) -> Option<i32> {
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
