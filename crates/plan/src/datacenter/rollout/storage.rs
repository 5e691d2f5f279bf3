//! Volume expansion, when the user raises `storage.capacity` of a rack.
//!
//! First the operator raises the requests of the claims of the rack's nodes. When all volumes have the new size, it
//! recreates the StatefulSet with that size, because `volumeClaimTemplates` are immutable: it deletes the StatefulSet
//! without its pods, and `rollout` creates it again. No pod is changed, and the next step follows from the observed
//! objects at any time.

use k8s_openapi::{api::apps::v1::StatefulSet, apimachinery::pkg::api::resource::Quantity};
use messina_api::names::{self, DATA_VOLUME};
use messina_text::Reason;
use serde_json::json;

use crate::{
    datacenter::{
        model::{
            component::Component,
            facts::claim::{Claim, requested_storage},
            observed::Observed,
            optional_kind::OptionalKind,
            plan::{Deletion, FieldPatch, Note, ObjectKind},
            spec::{MAX_NODES, Rack},
        },
        reasons,
        rollout::outcome::Rollout,
        state::{
            Current,
            counts::nodes_to_keep,
            member::Member,
            stateful_set::{is_being_deleted, replicas},
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

/// Decides which claims are expanded, and which StatefulSets are recreated with the new size.
pub(crate) fn expand_storage(current: &Current<'_>, topology: &Topology, rollout: &Rollout) -> Expansion {
    let observed = current.observed;
    let mut expansion = Expansion::default();
    let members = current.members();
    for rack in &observed.datacenter.racks {
        let name = observed.datacenter.stateful_set_name(rack);
        let Some(now) = observed.stateful_sets.get(&name) else { continue };
        let (Some(has), Some(desired)) = (template_size(now), Amount::of(&rack.storage.capacity)) else { continue };
        let one = RackExpansion { current, observed, rack, name, now, has, desired, members };
        if desired.is_below(has) {
            expansion.report_degraded(reasons::STORAGE_CANNOT_SHRINK, one.cannot_shrink());
        } else if expansion.expand_claims(&one) && one.must_grow() {
            expansion.recreate_stateful_set(&one, topology, rollout);
        }
    }
    expansion
}

/// A rack whose volumes may have to be expanded.
struct RackExpansion<'a> {
    current: &'a Current<'a>,
    observed: &'a Observed,
    rack: &'a Rack,
    /// Name of the StatefulSet.
    name: String,
    now: &'a StatefulSet,
    /// Size in the `volumeClaimTemplates` of the StatefulSet.
    has: Amount,
    desired: Amount,
    members: &'a [Member<'a>],
}

/// The state of a claim's expansion.
enum ClaimState {
    /// It has the desired size, or more.
    Done,
    /// Its request has to be raised to the desired size.
    NeedsRequest,
    /// It requests the desired size, and does not have it yet.
    Expanding,
}

/// Why a claim cannot be expanded, and what the user can do.
struct Forbidden {
    why: String,
    remedy: &'static str,
}

impl RackExpansion<'_> {
    fn size(&self) -> &str {
        &self.rack.storage.capacity.0
    }

    fn must_grow(&self) -> bool {
        self.has.is_below(self.desired)
    }

    fn reference(&self) -> String {
        format!("StatefulSet {}/{}", self.observed.datacenter.namespace, self.name)
    }

    fn claim_reference(&self, claim: &str) -> String {
        format!("PersistentVolumeClaim {}/{claim}", self.observed.datacenter.namespace)
    }

    /// Returns the members within the replicas of the StatefulSet. Claims that are kept of other members are not
    /// expanded.
    fn members(&self) -> impl Iterator<Item = String> {
        (0..replicas(self.now).min(MAX_NODES)).map(|ordinal| names::datacenter::member(&self.name, ordinal))
    }

    fn member(&self, name: &str) -> Option<&Member<'_>> {
        self.members.iter().find(|member| member.name == name)
    }

    fn cannot_shrink(&self) -> String {
        format!(
            "storage.capacity of rack {} is {}, which is less than the size of the disks of {}. Kubernetes cannot \
             shrink volumes, so the operator leaves them as they are. Set storage.capacity to its former value, or \
             move the nodes to a new rack.",
            self.rack.name,
            self.size(),
            self.reference()
        )
    }

    /// Returns the state of a claim's expansion.
    fn claim_state(&self, claim: &Claim) -> ClaimState {
        let lacks = |quantity: Option<&Quantity>| {
            quantity.and_then(Amount::of).is_none_or(|amount| amount.is_below(self.desired))
        };
        let (requested, capacity) = (claim.requested.as_ref(), claim.capacity.as_ref());
        // A larger size was requested, and is infeasible: Kubernetes allows a retry with a smaller one.
        let requests_more = || requested.and_then(Amount::of).is_some_and(|more| self.desired.is_below(more));
        if !lacks(capacity) {
            ClaimState::Done
        } else if lacks(requested) || (claim.is_infeasible && requests_more()) {
            ClaimState::NeedsRequest
        } else {
            ClaimState::Expanding
        }
    }

    /// Returns why a claim cannot be expanded, if its StorageClass does not allow it.
    fn forbidden(&self, claim: &Claim) -> Option<Forbidden> {
        let because = |why: String, remedy| Some(Forbidden { why, remedy });
        let another = "Use a class that allows it";
        let Some(class) = &claim.class else { return because("it has no StorageClass".into(), another) };
        if self.observed.unreadable_kinds.contains(&OptionalKind::StorageClass) {
            let remedy = "Let the operator list and watch storageclasses";
            return because("the operator may not read StorageClasses".into(), remedy);
        }
        match self.observed.storage_classes.get(class) {
            Some(class) if class.allows_expansion => None,
            Some(_) => because(
                format!("StorageClass {class} does not allow it"),
                "Set allowVolumeExpansion of the class to true",
            ),
            None => {
                because(format!("StorageClass {class} does not exist"), "Create it with allowVolumeExpansion: true")
            }
        }
    }

    /// Returns the condition to wait for before the StatefulSet is recreated.
    fn recreation_condition(&self, topology: &Topology, rollout: &Rollout) -> Option<String> {
        let of_rack = |member: &&Member<'_>| member.stateful_set == self.name;
        let mut members = self.members.iter().filter(of_rack);
        if is_being_deleted(self.now) {
            Some("it is gone".into())
        } else if topology.is_leaving {
            Some("no node is leaving".into())
        } else if !topology.under_maintenance.is_empty() {
            Some("no node is under maintenance".into())
        } else if topology.blocked_by_leftovers.contains(&self.name)
            || members.clone().any(|one| one.is_beyond_replicas(self.observed))
        {
            Some("the objects of nodes that have left are deleted".into())
        } else if let Some(member) = members.find(|member| is_in_transition(member)) {
            Some(format!("node {} has joined, and is neither leaving nor being replaced", member.name))
        } else if let Some(silent) = self.members().find(|name| self.member(name).and_then(Member::host_id).is_none()) {
            Some(format!("the host ID of node {silent} is known"))
        } else if replicas(self.now) < nodes_to_keep(self.current, self.rack) {
            Some("it is scaled out to all its nodes".into())
        } else if !rollout.up_to_date.contains(&self.name) || is_rolling(self.now) {
            Some("its pods are up to date".into())
        } else {
            None
        }
    }
}

impl Expansion {
    fn report_progressing(&mut self, reason: Reason, message: String) {
        self.progressing.push(Note { component: Component::Storage, reason, message });
    }

    fn report_degraded(&mut self, reason: Reason, message: String) {
        self.degraded.push(Note { component: Component::Storage, reason, message });
    }

    /// Expands the claims of a rack. Returns whether all of them have the desired size.
    fn expand_claims(&mut self, one: &RackExpansion<'_>) -> bool {
        let (mut to_expand, mut is_done) = (Vec::new(), true);
        for member in one.members() {
            let name = names::datacenter::data_claim(&member);
            let Some(claim) = one.observed.claims.get(&name).filter(|claim| !claim.is_being_deleted) else {
                if one.must_grow() {
                    let message = format!(
                        "{} does not exist yet. The operator expands it when it does.",
                        one.claim_reference(&name)
                    );
                    self.report_progressing(reasons::WAITING_FOR_CLAIM, message);
                }
                is_done = false;
                continue;
            };
            match one.claim_state(claim) {
                ClaimState::Done => continue,
                ClaimState::NeedsRequest => to_expand.push((member, name, claim)),
                // That a new node does not have a volume yet is reported by the rollout.
                ClaimState::Expanding if !claim.is_bound() && !one.must_grow() => {}
                ClaimState::Expanding => self.report_claim(one, &member, &name, claim),
            }
            is_done = false;
        }
        let forbidden = to_expand.iter().find_map(|(_, name, claim)| Some((name, one.forbidden(claim)?)));
        if let Some((name, why)) = forbidden {
            let Forbidden { why, remedy } = why;
            let message = format!(
                "{} cannot be expanded to {}: {why}. The operator changes nothing of the rack. {remedy}, or set \
                 storage.capacity of rack {} to its former value.",
                one.claim_reference(name),
                one.size(),
                one.rack.name
            );
            self.report_degraded(reasons::EXPANSION_FORBIDDEN, message);
            return false;
        }
        for (member, name, claim) in to_expand {
            self.expand_claim(one, &member, name, claim);
        }
        is_done
    }

    /// Raises the request of a claim.
    fn expand_claim(&mut self, one: &RackExpansion<'_>, member: &str, name: String, claim: &Claim) {
        let reference = one.claim_reference(&name);
        if !claim.is_bound() {
            let message =
                format!("{reference} has to be expanded to {}. Waiting for it to be bound to a volume.", one.size());
            return self.report_progressing(reasons::WAITING_FOR_VOLUME, message);
        }
        if one.member(member).is_none_or(is_in_transition) {
            let message = format!(
                "{reference} has to be expanded to {}. Waiting until node {member} has joined, and is neither leaving \
                 nor being replaced.",
                one.size()
            );
            return self.report_progressing(reasons::WAITING_FOR_NODE, message);
        }
        let before = claim.requested.as_ref().map_or("?", |size| size.0.as_str());
        let message = format!("Expanding {reference} from {before} to {}.", one.size());
        self.report_progressing(reasons::EXPANDING_VOLUME, message.clone());
        self.changes.push(FieldPatch {
            component: Component::Storage,
            kind: ObjectKind::PersistentVolumeClaim,
            name,
            uid: claim.reference.uid.clone().unwrap_or_default(),
            version: claim.reference.version.clone().unwrap_or_default(),
            patch: json!({"spec": {"resources": {"requests": {"storage": one.size()}}}}),
            event: Some((reasons::EXPANDING_VOLUME, message)),
        });
    }

    /// Reports the progress of a claim whose request is raised.
    fn report_claim(&mut self, one: &RackExpansion<'_>, member: &str, name: &str, claim: &Claim) {
        let reference = one.claim_reference(name);
        let (size, namespace) = (one.size(), &one.observed.datacenter.namespace);
        let suffix = |message: &String| if message.is_empty() { String::new() } else { format!(": {message}") };
        let failure = claim.resize_error.as_ref().map(suffix);
        if claim.is_infeasible {
            let message = format!(
                "{reference} cannot be expanded to {size}{}. Set storage.capacity of rack {} to a feasible size.",
                failure.unwrap_or_default(),
                one.rack.name
            );
            self.report_degraded(reasons::EXPANSION_INFEASIBLE, message);
        } else if let Some(failure) = failure {
            let message = format!(
                "Expanding {reference} to {size} failed{failure}. Kubernetes tries again. See `kubectl describe pvc \
                 -n {namespace} {name}`."
            );
            self.report_degraded(reasons::EXPANSION_FAILS, message);
        } else if let Some(detail) = claim.file_system_resize_pending.as_ref().map(suffix) {
            let message = format!(
                "The volume of {reference} is expanded to {size}, its file system is not yet{detail}. The kubelet \
                 resizes it while the pod runs. If the driver does not support that, restart the node: `kubectl \
                 delete pod -n {namespace} {member}`."
            );
            self.report_progressing(reasons::FILE_SYSTEM_RESIZE_PENDING, message);
        } else {
            self.report_progressing(
                reasons::WAITING_FOR_VOLUME,
                format!("{reference} requests {size}. Waiting for Kubernetes to expand the volume."),
            );
        }
    }

    /// Deletes the StatefulSet without its pods, so that `rollout` recreates it. One at a time.
    fn recreate_stateful_set(&mut self, one: &RackExpansion<'_>, topology: &Topology, rollout: &Rollout) {
        let is_absent = |name: &str| one.observed.stateful_sets.get(name).is_none_or(is_being_deleted);
        let racks = &one.observed.datacenter.racks;
        let is_one_absent = racks.iter().any(|rack| is_absent(&one.observed.datacenter.stateful_set_name(rack)))
            || one.members.iter().any(|member| is_absent(member.stateful_set));
        let condition = one.recreation_condition(topology, rollout);
        let others = (is_one_absent || !self.deletions.is_empty()).then(|| "all other StatefulSets exist".to_owned());
        if let Some(condition) = condition.or(others) {
            let message = format!(
                "All disks of {} have {}. The operator recreates it with that size, without changing its pods. \
                 Waiting until {condition}.",
                one.reference(),
                one.size()
            );
            return self.report_progressing(reasons::WAITING_FOR_STATEFUL_SET, message);
        }
        let message = format!(
            "All disks of {} have {}. The operator deletes it without its pods and recreates it with that size for \
             new nodes.",
            one.reference(),
            one.size()
        );
        self.report_progressing(reasons::RECREATING_STATEFUL_SET, message.clone());
        self.deletions.push(Deletion {
            component: Component::Storage,
            kind: ObjectKind::StatefulSet,
            name: one.name.clone(),
            uid: one.now.metadata.uid.clone().unwrap_or_default(),
            version: Some(one.now.metadata.resource_version.clone().unwrap_or_default()),
            orphans: true,
            event: Some((reasons::RECREATING_STATEFUL_SET, message)),
        });
    }
}

/// Returns the size in the `volumeClaimTemplates` of a StatefulSet.
fn template_size(stateful_set: &StatefulSet) -> Option<Amount> {
    let templates = stateful_set.spec.as_ref()?.volume_claim_templates.as_ref()?;
    templates
        .iter()
        .find(|claim| claim.metadata.name.as_deref() == Some(DATA_VOLUME))
        .and_then(requested_storage)
        .and_then(Amount::of)
}

/// Whether a node has not joined, is leaving, or is being replaced.
fn is_in_transition(member: &Member<'_>) -> bool {
    let is_leaving = member.is_asked_to_leave() || member.has_begun_to_leave();
    !member.has_joined() || is_leaving || member.service.is_to_be_replaced()
}

/// Whether pods are created, deleted or updated. A node that is down does not count: its full disk may be the cause.
fn is_rolling(stateful_set: &StatefulSet) -> bool {
    let status = stateful_set.status.clone().unwrap_or_default();
    let is_observed = status.observed_generation >= stateful_set.metadata.generation;
    let replicas = replicas(stateful_set);
    !is_observed || status.replicas != replicas || status.updated_replicas.unwrap_or(0) != replicas
}
