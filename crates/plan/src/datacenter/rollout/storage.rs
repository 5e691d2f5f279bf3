//! Disks that grow when a rack's `storage.capacity` is raised.
//!
//! First the claims of the rack's nodes ask for more. When all of them have it, the StatefulSet is made anew with the new
//! size, because Kubernetes lets nobody change the one that is there: it is deleted without its pods, and `rollout` makes
//! it again around them. No pod is touched, and what is to be done next can be told from what is there, at any moment.

use k8s_openapi::{api::apps::v1::StatefulSet, apimachinery::pkg::api::resource::Quantity};
use messina_api::names::{self, DATA_VOLUME};
use serde_json::json;

use crate::{
    datacenter::{
        model::{
            component::Component,
            facts::claim::{Claim, requested_storage},
            observed::Observed,
            optional_kind::OptionalKind,
            plan::{Deletion, FieldPatch, Note, ObjectKind},
            spec::{MOST_NODES, Rack},
        },
        rollout::outcome::Rollout,
        state::{
            Current,
            counts::nodes_to_keep,
            member::Member,
            stateful_set::{is_going, replicas},
        },
        topology::steps::Topology,
    },
    quantity::Amount,
};

#[derive(Default)]
pub(crate) struct Expansion {
    pub(crate) changes: Vec<FieldPatch>,
    pub(crate) deletions: Vec<Deletion>,
    pub(crate) progressing: Vec<Note>,
    pub(crate) degraded: Vec<Note>,
}

pub(crate) fn expand_storage(current: &Current<'_>, topology: &Topology, rollout: &Rollout) -> Expansion {
    let observed = current.observed;
    let mut expansion = Expansion::default();
    let members = current.members();
    for rack in &observed.datacenter.racks {
        let name = observed.datacenter.stateful_set_name(rack);
        let Some(now) = observed.stateful_sets.get(&name) else { continue };
        let (Some(has), Some(wanted)) = (template_size(now), Amount::of(&rack.storage.capacity)) else { continue };
        let one = RackExpansion { current, observed, rack, name, now, has, wanted, members };
        if wanted.is_below(has) {
            expansion.report_degraded("StorageCannotShrink", one.cannot_shrink());
        } else if expansion.expand_claims(&one) && one.must_grow() {
            expansion.recreate_stateful_set(&one, topology, rollout);
        }
    }
    expansion
}

/// A rack whose disks may have to grow.
struct RackExpansion<'a> {
    current: &'a Current<'a>,
    observed: &'a Observed,
    rack: &'a Rack,
    /// Name of the StatefulSet.
    name: String,
    now: &'a StatefulSet,
    /// The size of the disks of new nodes, as the StatefulSet has it.
    has: Amount,
    wanted: Amount,
    members: &'a [Member<'a>],
}

/// How a claim stands.
enum ClaimState {
    /// It has what is wanted, or more.
    Done,
    /// It is to ask for what is wanted.
    Asks,
    /// It asks for what is wanted, and has not got it.
    Waits,
}

/// Why a claim may not grow, and what to do then.
struct Forbidden {
    why: String,
    remedy: &'static str,
}

impl RackExpansion<'_> {
    fn size(&self) -> &str {
        &self.rack.storage.capacity.0
    }

    fn must_grow(&self) -> bool {
        self.has.is_below(self.wanted)
    }

    fn reference(&self) -> String {
        format!("StatefulSet {}/{}", self.observed.datacenter.namespace, self.name)
    }

    fn claim_reference(&self, claim: &str) -> String {
        format!("PersistentVolumeClaim {}/{claim}", self.observed.datacenter.namespace)
    }

    /// Nodes for which there is a place. What is kept of others is left alone.
    fn members(&self) -> impl Iterator<Item = String> {
        (0..replicas(self.now).min(MOST_NODES)).map(|ordinal| names::datacenter::member(&self.name, ordinal))
    }

    fn member(&self, name: &str) -> Option<&Member<'_>> {
        self.members.iter().find(|member| member.name == name)
    }

    fn cannot_shrink(&self) -> String {
        format!(
            "storage.capacity of rack {} is {}, less than the disks of {} have, and no disk can be made smaller; they \
             stay as they are: set it to what it was, or move the nodes to a new rack",
            self.rack.name,
            self.size(),
            self.reference()
        )
    }

    /// Whether a claim has to grow, and may.
    fn claim_state(&self, claim: &Claim) -> ClaimState {
        let lacks = |quantity: Option<&Quantity>| {
            quantity.and_then(Amount::of).is_none_or(|amount| amount.is_below(self.wanted))
        };
        let (requested, capacity) = (claim.requested.as_ref(), claim.capacity.as_ref());
        // More than is wanted now was asked for, and cannot be had: Kubernetes lets it be tried with less.
        let asked_for_more = || requested.and_then(Amount::of).is_some_and(|more| self.wanted.is_below(more));
        if !lacks(capacity) {
            ClaimState::Done
        } else if lacks(requested) || (claim.is_infeasible && asked_for_more()) {
            ClaimState::Asks
        } else {
            ClaimState::Waits
        }
    }

    /// Why a claim may not grow.
    fn forbidden(&self, claim: &Claim) -> Option<Forbidden> {
        let because = |why: String, remedy| Some(Forbidden { why, remedy });
        let another = "use a class that allows it";
        let Some(class) = &claim.class else { return because("it has no StorageClass".into(), another) };
        if self.observed.unreadable_kinds.contains(&OptionalKind::StorageClass) {
            let remedy = "let the operator list and watch storageclasses";
            return because("the operator may not read StorageClasses".into(), remedy);
        }
        match self.observed.storage_classes.get(class) {
            Some(class) if class.allows_expansion => None,
            Some(_) => because(
                format!("StorageClass {class} does not allow it"),
                "set allowVolumeExpansion of the class to true",
            ),
            None => because(format!("StorageClass {class} is not there"), "create it with allowVolumeExpansion"),
        }
    }

    /// Why the StatefulSet cannot be made anew now.
    fn recreation_blocker(&self, topology: &Topology, rollout: &Rollout) -> Option<String> {
        let of_rack = |member: &&Member<'_>| member.stateful_set == self.name;
        let mut members = self.members.iter().filter(of_rack);
        if is_going(self.now) {
            Some("it is gone".into())
        } else if topology.is_leaving {
            Some("no node leaves".into())
        } else if !topology.under_maintenance.is_empty() {
            Some("no node is under maintenance".into())
        } else if topology.blocked_by_leftovers.contains(&self.name)
            || members.clone().any(|one| one.is_outside(self.observed))
        {
            Some("what is left of former nodes is out of the way".into())
        } else if let Some(member) = members.find(|member| is_in_transition(member)) {
            Some(format!("node {} has joined, and is not being replaced", member.name))
        } else if let Some(silent) = self.members().find(|name| self.member(name).and_then(Member::host_id).is_none()) {
            Some(format!("the host ID of node {silent} is known"))
        } else if replicas(self.now) < nodes_to_keep(self.current, self.rack) {
            Some("it has all its nodes".into())
        } else if !rollout.up_to_date.contains(&self.name) || is_rolling(self.now) {
            Some("its pods are as they are to be".into())
        } else {
            None
        }
    }
}

impl Expansion {
    fn report_progressing(&mut self, reason: &'static str, message: String) {
        self.progressing.push(Note { component: Component::Storage, reason, message });
    }

    fn report_degraded(&mut self, reason: &'static str, message: String) {
        self.degraded.push(Note { component: Component::Storage, reason, message });
    }

    /// Has the claims of a rack grow; answers whether all of them have.
    fn expand_claims(&mut self, one: &RackExpansion<'_>) -> bool {
        let (mut asking, mut is_done) = (Vec::new(), true);
        for member in one.members() {
            let name = names::datacenter::data_claim(&member);
            let Some(claim) = one.observed.claims.get(&name).filter(|claim| !claim.is_being_deleted) else {
                if one.must_grow() {
                    let message = format!("{} is awaited; it grows when it is there", one.claim_reference(&name));
                    self.report_progressing("WaitingForClaim", message);
                }
                is_done = false;
                continue;
            };
            match one.claim_state(claim) {
                ClaimState::Done => continue,
                ClaimState::Asks => asking.push((member, name, claim)),
                // That a new node has yet to get a volume is told elsewhere.
                ClaimState::Waits if !claim.is_bound() && !one.must_grow() => {}
                ClaimState::Waits => self.report_claim(one, &member, &name, claim),
            }
            is_done = false;
        }
        let forbidden = asking.iter().find_map(|(_, name, claim)| Some((name, one.forbidden(claim)?)));
        if let Some((name, why)) = forbidden {
            let Forbidden { why, remedy } = why;
            let message = format!(
                "{} is to grow to {}, but {why}; nothing of the rack is changed: {remedy}, or set storage.capacity of rack {} to \
                 what it was",
                one.claim_reference(name),
                one.size(),
                one.rack.name
            );
            self.report_degraded("ExpansionForbidden", message);
            return false;
        }
        for (member, name, claim) in asking {
            self.expand_claim(one, &member, name, claim);
        }
        is_done
    }

    /// Has a claim ask for more.
    fn expand_claim(&mut self, one: &RackExpansion<'_>, member: &str, name: String, claim: &Claim) {
        let reference = one.claim_reference(&name);
        if !claim.is_bound() {
            let message = format!("{reference} grows to {} when it has a volume", one.size());
            return self.report_progressing("WaitingForVolume", message);
        }
        if one.member(member).is_none_or(is_in_transition) {
            let message = format!("{reference} grows to {} when node {member} has joined and stays", one.size());
            return self.report_progressing("WaitingForNode", message);
        }
        let before = claim.requested.as_ref().map_or("?", |size| size.0.as_str());
        let message = format!("{reference} asks for {} in place of {before}", one.size());
        self.report_progressing("GrowingVolume", message.clone());
        self.changes.push(FieldPatch {
            component: Component::Storage,
            kind: ObjectKind::PersistentVolumeClaim,
            name,
            uid: claim.reference.uid.clone().unwrap_or_default(),
            version: claim.reference.version.clone().unwrap_or_default(),
            patch: json!({"spec": {"resources": {"requests": {"storage": one.size()}}}}),
            event: Some(("GrowingVolume", message)),
        });
    }

    /// Says of a claim that has asked for more how far that is.
    fn report_claim(&mut self, one: &RackExpansion<'_>, member: &str, name: &str, claim: &Claim) {
        let reference = one.claim_reference(name);
        let (size, namespace) = (one.size(), &one.observed.datacenter.namespace);
        let said = |message: &String| if message.is_empty() { String::new() } else { format!(": {message}") };
        let failure = claim.resize_error.as_ref().map(said);
        if claim.is_infeasible {
            let message = format!(
                "{reference} cannot grow to {size}{}; set storage.capacity of rack {} to a size that can be had",
                failure.unwrap_or_default(),
                one.rack.name
            );
            self.report_degraded("ExpansionInfeasible", message);
        } else if let Some(failure) = failure {
            let message = format!(
                "growing {reference} to {size} fails, and is tried again by Kubernetes{failure}; see `kubectl describe \
                 pvc -n {namespace} {name}`"
            );
            self.report_degraded("ExpansionFails", message);
        } else if let Some(said) = claim.file_system_resize_pending.as_ref().map(said) {
            let message = format!(
                "the volume of {reference} has grown to {size}, its file system has yet to{said}; the node's machine \
                 does that while the pod runs. Where the driver cannot, restart the node: `kubectl delete pod -n \
                 {namespace} {member}`"
            );
            self.report_progressing("FileSystemResizePending", message);
        } else {
            self.report_progressing(
                "WaitingForVolume",
                format!("{reference} has asked for {size}, and has yet to get it"),
            );
        }
    }

    /// Deletes the StatefulSet without its pods, so that it is made anew around them. One at a time.
    fn recreate_stateful_set(&mut self, one: &RackExpansion<'_>, topology: &Topology, rollout: &Rollout) {
        let is_absent = |name: &str| one.observed.stateful_sets.get(name).is_none_or(is_going);
        let racks = &one.observed.datacenter.racks;
        let is_one_absent = racks.iter().any(|rack| is_absent(&one.observed.datacenter.stateful_set_name(rack)))
            || one.members.iter().any(|member| is_absent(member.stateful_set));
        let blocker = one.recreation_blocker(topology, rollout);
        let others = (is_one_absent || !self.deletions.is_empty()).then(|| "no other StatefulSet is away".to_owned());
        if let Some(what) = blocker.or(others) {
            let message = format!(
                "all disks of {} have {}; it is made anew with that size, without touching its pods, when {what}",
                one.reference(),
                one.size()
            );
            return self.report_progressing("WaitingForStatefulSet", message);
        }
        let message = format!(
            "all disks of {} have {}; it is deleted without its pods and made anew around them, with that size for new \
             nodes",
            one.reference(),
            one.size()
        );
        self.report_progressing("ReplacingStatefulSet", message.clone());
        self.deletions.push(Deletion {
            component: Component::Storage,
            kind: ObjectKind::StatefulSet,
            name: one.name.clone(),
            uid: one.now.metadata.uid.clone().unwrap_or_default(),
            version: Some(one.now.metadata.resource_version.clone().unwrap_or_default()),
            orphans: true,
            event: Some(("ReplacingStatefulSet", message)),
        });
    }
}

/// The size of the disks of new nodes.
fn template_size(stateful_set: &StatefulSet) -> Option<Amount> {
    let templates = stateful_set.spec.as_ref()?.volume_claim_templates.as_ref()?;
    templates
        .iter()
        .find(|claim| claim.metadata.name.as_deref() == Some(DATA_VOLUME))
        .and_then(requested_storage)
        .and_then(Amount::of)
}

/// Whether a node has yet to join, leaves, or is being replaced.
fn is_in_transition(member: &Member<'_>) -> bool {
    let is_leaving = member.is_asked_to_leave() || member.has_begun_to_leave();
    !member.has_joined() || is_leaving || member.service.is_to_be_replaced()
}

/// Whether pods come, go or are changed. A node that is down does not make it so: its disk may be what is full.
fn is_rolling(stateful_set: &StatefulSet) -> bool {
    let status = stateful_set.status.clone().unwrap_or_default();
    let is_seen = status.observed_generation >= stateful_set.metadata.generation;
    let replicas = replicas(stateful_set);
    !is_seen || status.replicas != replicas || status.updated_replicas.unwrap_or(0) != replicas
}
