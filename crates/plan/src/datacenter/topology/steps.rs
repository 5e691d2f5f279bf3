//! The decisions about nodes that join, leave, restart or are replaced, collected step by step.

use messina_text::Reason;
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

/// What the operator does about such nodes now.
#[derive(Debug, Default)]
pub(crate) struct Topology {
    pub(crate) changes: Vec<FieldPatch>,
    pub(crate) deletions: Vec<Deletion>,
    pub(crate) progressing: Vec<Note>,
    pub(crate) degraded: Vec<Note>,
    /// A node is leaving, so no other change begins.
    pub(crate) is_leaving: bool,
    /// The Services of all nodes that have joined carry their host IDs.
    pub(crate) are_nodes_named: bool,
    /// The node that is to restart next must not restart yet.
    pub(crate) blocks_restart: bool,
    /// A node announces an address that its Service does not have any more, so no other change begins.
    pub(crate) has_outdated_address: bool,
    /// StatefulSets with fewer replicas than nodes that may be in the ring.
    pub(crate) below_ring: BTreeSet<String>,
    /// StatefulSets that are not scaled out before the objects of nodes that have left are deleted.
    pub(crate) blocked_by_leftovers: BTreeSet<String>,
    /// Names of nodes under maintenance, during which no change begins.
    pub(crate) under_maintenance: Vec<String>,
    /// Services that are deleted now or soon.
    pub(crate) services_to_delete: BTreeSet<String>,
    /// Objects that must be unchanged since they were observed when something is written.
    pub(crate) preconditions: Preconditions,
}

/// Collects decisions: each module of `topology` adds its own.
pub(crate) struct Steps<'a> {
    pub(crate) current: &'a Current<'a>,
    pub(crate) observed: &'a Observed,
    pub(crate) ring: &'a Ring<'a>,
    /// One patch for each object: a second one would carry an outdated resource version.
    pub(crate) changes: BTreeMap<(ObjectKind, String), FieldPatch>,
    pub(crate) topology: Topology,
    /// Whether the nodes have to report the ring.
    pub(crate) needs_ring: bool,
    /// The question that replaces the current one.
    pub(crate) new_question: Option<u64>,
}

impl<'a> Steps<'a> {
    pub(crate) fn new(current: &'a Current<'a>) -> Self {
        Self {
            current,
            observed: current.observed,
            ring: &current.ring,
            changes: BTreeMap::new(),
            topology: Topology::default(),
            needs_ring: false,
            new_question: None,
        }
    }

    pub(crate) fn change(
        &mut self,
        kind: ObjectKind,
        object: &ObjectReference,
        patch: Value,
        event: Option<(Reason, String)>,
    ) {
        let name = object.name.clone();
        let change = self.changes.entry((kind, name.clone())).or_insert_with(|| FieldPatch {
            component: Component::of(kind),
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

    pub(crate) fn change_member(&mut self, member: &Member<'_>, metadata: Value, event: Option<(Reason, String)>) {
        self.change(ObjectKind::Service, &member.service.reference, json!({"metadata": metadata}), event);
    }

    /// Sets the replicas of the member's StatefulSet, so that the member is part of it or is not.
    pub(crate) fn set_replicas(
        &mut self,
        stateful_set: &StatefulSet,
        replicas: i32,
        member: &Member<'_>,
        event: (Reason, String),
    ) {
        let preconditions = preconditions::for_replicas(self.observed, stateful_set, replicas, member.name);
        self.topology
            .preconditions
            .entry((ObjectKind::StatefulSet, member.stateful_set.to_owned()))
            .or_default()
            .extend(preconditions);
        let object = ObjectReference::of(&stateful_set.metadata);
        self.change(ObjectKind::StatefulSet, &object, json!({"spec": {"replicas": replicas}}), Some(event));
    }

    /// Records that the member may be in the ring without a replica in its StatefulSet. Its node is down, or would not
    /// be started again: no other node restarts until it is back, unchanged.
    pub(crate) fn mark_below_ring(&mut self, member: &Member<'_>) {
        self.topology.blocks_restart = true;
        self.topology.below_ring.insert(member.stateful_set.to_owned());
    }

    /// Makes the patch of the member's Service conditional on its claim and its pod being unchanged.
    pub(crate) fn require_unchanged_claim_and_pod(&mut self, member: &Member<'_>) {
        let claim_and_pod = preconditions::claim_and_pod(self.observed, member.name);
        self.topology.preconditions.insert((ObjectKind::Service, member.name.to_owned()), claim_and_pod);
    }

    /// Makes a deletion conditional on all Services (which carry the answers about the ring), the pods that answered,
    /// and the objects in `also` being unchanged.
    pub(crate) fn require_unchanged_ring(
        &mut self,
        kind: ObjectKind,
        object: &ObjectReference,
        also: Vec<ObservedVersion>,
    ) {
        let said = self.ring.members.iter().map(|member| preconditions::service(self.observed, member.name));
        let witnesses = self.ring.witnesses.iter().map(|name| preconditions::pod(self.observed, name));
        self.topology.preconditions.insert((kind, object.name.clone()), said.chain(witnesses).chain(also).collect());
    }

    pub(crate) fn delete(&mut self, kind: ObjectKind, object: &ObjectReference, event: (Reason, String)) {
        self.topology.deletions.push(Deletion {
            component: Component::of(kind),
            kind,
            name: object.name.clone(),
            uid: object.uid.clone().unwrap_or_default(),
            // A rack that was added to the specification again in the meantime is kept.
            version: object.version.clone().filter(|_| kind == ObjectKind::StatefulSet),
            orphans: false,
            event: Some(event),
        });
    }

    pub(crate) fn report_progressing(&mut self, component: Component, reason: Reason, message: String) {
        self.topology.progressing.push(Note { component, reason, message });
    }

    pub(crate) fn report_degraded(&mut self, component: Component, reason: Reason, message: String) {
        self.topology.degraded.push(Note { component, reason, message });
    }

    pub(crate) fn node_reference(&self, member: &Member<'_>) -> String {
        format!("{}/{}", self.observed.datacenter.namespace, member.name)
    }

    /// Asks all nodes for the ring again, so that their answers are newer than what is written together with the
    /// question.
    pub(crate) fn ask_again(&mut self) -> String {
        self.needs_ring = true;
        let question = self.ring.next_question(self.observed);
        self.new_question = Some(question);
        question.to_string()
    }

    /// Writes the question to the Service of every node, or removes it if no answer is needed.
    pub(crate) fn ask_for_ring(&mut self) {
        let current = self.ring.question.filter(|_| !self.ring.is_outdated);
        let question = match self.new_question.or(current).filter(|_| self.needs_ring) {
            None if self.needs_ring => Some(self.ring.next_question(self.observed)),
            question => question,
        };
        let question = question.map(|question| question.to_string());
        for member in &self.ring.members {
            if member.question() != question.as_deref() && !self.topology.services_to_delete.contains(member.name) {
                self.change_member(member, json!({"annotations": {RING_QUESTION: question}}), None);
            }
        }
    }

    /// Returns the replicas of the StatefulSet; none where it does not exist.
    pub(crate) fn replicas(&self, stateful_set: &str) -> Option<i32> {
        self.observed.stateful_sets.get(stateful_set).map(replicas)
    }
}

/// Merges one merge patch into another.
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
