//! The progress of nodes with an upgrade.

use crate::{
    datacenter::{
        model::{facts::service::NodeService, observed::Observed},
        state::{
            Current,
            member::Member,
            stateful_set::{partition, template_version},
        },
    },
    node::upgrade::{Snapshot, UpgradeAnswer, UpgradeRequest},
};

/// A node of the ring, and the progress of its upgrade.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node<'a> {
    pub(crate) member: Member<'a>,
    pub(crate) host_id: &'a str,
    /// The version that it runs.
    pub(crate) version: Option<String>,
    pub(crate) request: Option<UpgradeRequest>,
    pub(crate) answer: Option<UpgradeAnswer>,
}

impl<'a> Node<'a> {
    pub(crate) fn of(observed: &Observed, member: Member<'a>) -> Option<Self> {
        let host_id = member.host_id()?;
        let request = member.service.upgrade_request.clone().and_then(Result::ok);
        let request = request.filter(|request| request.host_id == host_id);
        let is_to_request = |answer: &UpgradeAnswer| {
            request.as_ref().is_some_and(|request| request.host_id == answer.host_id && request.to == answer.to)
        };
        let answer = member.service.upgrade_answer.clone().and_then(Result::ok).filter(is_to_request);
        let version = version(observed, &member);
        Some(Self { member, host_id, version, request, answer })
    }

    pub(crate) fn runs(&self, version: &str) -> bool {
        self.version.as_deref() == Some(version)
    }

    /// Whether this is a rollback to the version that it ran before. That is not known where it runs another version
    /// than it was prepared for, because it was down and its pod was changed.
    pub(crate) fn rolls_back_to(&self, version: &str) -> bool {
        let is_back = |request: &UpgradeRequest| {
            request.from == version && self.version.as_ref().is_none_or(|own| *own == request.to)
        };
        self.request.as_ref().is_some_and(is_back)
    }

    /// Whether the operator has requested that it prepares for an upgrade from its current version to this one.
    pub(crate) fn is_asked_for(&self, version: &str) -> bool {
        self.request.as_ref().is_some_and(|request| request.to == version && self.runs(&request.from))
    }

    /// Whether the operator has requested all of these snapshots and the sidecar has confirmed them. A snapshot that is
    /// no longer requested may be gone, even if the sidecar has confirmed it before.
    pub(crate) fn keeps(&self, snapshots: &[Snapshot]) -> bool {
        let (Some(request), Some(answer)) = (&self.request, &self.answer) else { return false };
        snapshots.iter().all(|one| request.keep.contains(one) && answer.kept.contains(one))
    }

    /// Whether the sidecar has yet to confirm that it has cleared a snapshot which is no longer requested. Until then
    /// the snapshot is not requested again: the former answer would be taken for the new one.
    pub(crate) fn has_snapshots_to_clear(&self) -> bool {
        let (Some(request), Some(answer)) = (&self.request, &self.answer) else { return false };
        !answer.kept.is_subset(&request.keep)
    }

    /// Whether it has these snapshots for the upgrade to this version, or does not need them.
    pub(crate) fn is_prepared_with(&self, snapshots: &[Snapshot], version: &str) -> bool {
        self.runs(version) || self.rolls_back_to(version) || self.is_asked_for(version) && self.keeps(snapshots)
    }

    /// Whether the sidecar has confirmed exactly what was requested.
    pub(crate) fn is_done(&self) -> bool {
        match (&self.request, &self.answer) {
            (Some(request), Some(answer)) => request.keep == answer.kept && answer.failed.is_none(),
            _ => false,
        }
    }
}

/// Returns the version that a node runs or is about to run: without a pod, that of the StatefulSet's template, unless
/// the ordinal is below the partition.
pub(crate) fn version(observed: &Observed, member: &Member<'_>) -> Option<String> {
    let template = || {
        let stateful_set = observed.stateful_sets.get(member.stateful_set)?;
        template_version(stateful_set).filter(|_| member.ordinal >= partition(stateful_set))
    };
    observed.pods.get(member.name).and_then(|pod| pod.version.clone()).or_else(template)
}

/// Whether the member's Service has annotations of an upgrade.
pub(crate) fn has_upgrade_annotations(member: &Member<'_>) -> bool {
    member.service.is_upgrading()
}

/// Whether an upgrade includes this node: it has joined, and the specification has its rack.
pub(crate) fn is_upgraded(observed: &Observed, member: &Member<'_>) -> bool {
    let racks = &observed.datacenter.racks;
    member.has_joined()
        && !member.is_beyond_replicas(observed)
        && racks.iter().any(|rack| observed.datacenter.stateful_set_name(rack) == member.stateful_set)
}

/// Whether an upgrade has begun and is not complete.
pub(crate) fn is_being_upgraded(current: &Current<'_>) -> bool {
    let observed = current.observed;
    let has_upgrade_annotations =
        |member: &Member<'_>| has_upgrade_annotations(member) && is_upgraded(observed, member);
    observed.services.values().any(NodeService::is_upgrading) && current.members().iter().any(has_upgrade_annotations)
}

/// Whether a node that is down may start with this version: it ran that version, this is a rollback, or it was prepared
/// for an upgrade.
pub(crate) fn is_prepared_for(current: &Current<'_>, name: &str, version: &str) -> bool {
    let observed = current.observed;
    let member = current.members().iter().find(|member| member.name == name && is_upgraded(observed, member));
    let Some(node) = member.and_then(|member| Node::of(observed, *member)) else { return true };
    observed.datacenter.skips_upgrade_hooks
        || node.runs(version)
        || node.rolls_back_to(version)
        || node.keeps(&[Snapshot::Data])
}
