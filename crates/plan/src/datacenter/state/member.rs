//! Members: the places of nodes in racks, each with its Service.

use std::collections::BTreeSet;

use crate::{
    datacenter::{
        model::{facts::service::NodeService, observed::Observed},
        state::stateful_set::replicas,
    },
    node::{answer::RingAnswer, decommission::Refusal},
};

/// A place of a node in a rack, with its Service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Member<'a> {
    /// Name of the Service and of the pod.
    pub(crate) name: &'a str,
    pub(crate) service: &'a NodeService,
    /// Name of the StatefulSet.
    pub(crate) stateful_set: &'a str,
    pub(crate) ordinal: i32,
}

impl<'a> Member<'a> {
    pub(crate) fn host_id(&self) -> Option<&'a str> {
        self.service.host_id.as_deref()
    }

    pub(crate) fn has_joined(&self) -> bool {
        self.service.has_joined
    }

    /// Whether no sidecar has written anything to its Service yet.
    pub(crate) fn is_blank(&self) -> bool {
        self.host_id().is_none() && !self.service.says_whether_joined
    }

    pub(crate) fn leaving(&self) -> Option<&'a str> {
        self.service.leaving_host_id.as_deref()
    }

    /// Whether the operator has requested the decommission of its current node.
    pub(crate) fn is_asked_to_leave(&self) -> bool {
        self.host_id().is_some() && self.leaving() == self.host_id()
    }

    /// Whether its current node has begun, or is about to begin, to leave the ring.
    pub(crate) fn has_begun_to_leave(&self) -> bool {
        self.host_id().is_some() && self.service.leaving_began == self.service.host_id
    }

    /// The refusal of ScyllaDB to decommission its current node.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        let refusal = self.service.leaving_refused.as_ref()?.as_ref().ok()?;
        (self.host_id() == Some(&refusal.host_id)).then(|| refusal.clone())
    }

    /// Whether its node is being replaced. The replacement may be in the ring already without having reported it.
    pub(crate) fn is_replaced(&self) -> bool {
        self.service.is_replaced()
    }

    pub(crate) fn replacing_claim(&self) -> Option<&'a str> {
        self.service.replacing_claim.as_deref()
    }

    /// Whether its sidecar reports the state of the ring on request.
    pub(crate) fn answers(&self) -> bool {
        self.service.answers
    }

    pub(crate) fn question(&self) -> Option<&'a str> {
        self.service.ring_question.as_deref()
    }

    /// The value of the label by which the operator requests a decommission and the sidecar confirms it.
    pub(crate) fn decommissioned(&self) -> Option<&'a str> {
        self.service.decommissioned.as_deref()
    }

    pub(crate) fn version(&self) -> u64 {
        version(self.service.reference.version.as_deref())
    }

    /// Whether its ordinal is beyond the replicas of the StatefulSet.
    pub(crate) fn is_beyond_replicas(&self, observed: &Observed) -> bool {
        match observed.stateful_sets.get(self.stateful_set) {
            Some(now) => self.ordinal >= replicas(now),
            None => !has_rack(observed, self.stateful_set),
        }
    }
}

/// The pod that an answer comes from.
pub(crate) enum Origin {
    /// The current pod, which is ready.
    ReadyPod,
    /// The current pod, which is ready, or a former one.
    Unknown,
    /// A pod that is not ready, or is gone.
    Other,
}

/// Returns which pod the answer on a member's Service comes from. Sidecars of earlier versions do not name their pod:
/// then it is the current one if the question is newer than the pod's resource version.
pub(crate) fn origin(observed: &Observed, name: &str, answer: &RingAnswer, question: Option<u64>) -> Origin {
    let Some(pod) = observed.pods.get(name).filter(|pod| pod.is_ready()) else { return Origin::Other };
    let asked_since = |version: u64| question.is_some_and(|question| question >= version);
    match &answer.pod_uid {
        Some(uid) if pod.reference.uid.as_ref() == Some(uid) => Origin::ReadyPod,
        Some(_) => Origin::Other,
        None if asked_since(version(pod.reference.version.as_deref())) => Origin::ReadyPod,
        None => Origin::Unknown,
    }
}

pub(crate) fn version(resource_version: Option<&str>) -> u64 {
    resource_version.and_then(|version| version.parse().ok()).unwrap_or(0)
}

fn has_rack(observed: &Observed, stateful_set: &str) -> bool {
    let racks = &observed.datacenter.racks;
    racks.iter().any(|rack| observed.datacenter.stateful_set_name(rack) == stateful_set)
}

/// Returns the members of all racks, existing, desired and removed, in order.
pub(crate) fn members<'a>(observed: &'a Observed) -> Vec<Member<'a>> {
    let racks = &observed.datacenter.racks;
    let desired: BTreeSet<String> = racks.iter().map(|rack| observed.datacenter.stateful_set_name(rack)).collect();
    let member = |(name, service): (&'a String, &'a NodeService)| {
        let (stateful_set, ordinal) = name.rsplit_once('-')?;
        let is_ours =
            desired.contains(stateful_set) || observed.stateful_sets.contains_key(stateful_set) || service.is_member();
        let number: u16 = ordinal.parse().ok()?;
        let is_ordinal = number.to_string() == ordinal;
        (is_ours && is_ordinal).then_some(Member { name, service, stateful_set, ordinal: i32::from(number) })
    };
    let mut members: Vec<Member<'a>> = observed.services.iter().filter_map(member).collect();
    members.sort_by_key(|member| (member.stateful_set, member.ordinal));
    members
}
