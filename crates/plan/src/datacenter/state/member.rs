//! Nodes as their Services tell of them.

use std::collections::BTreeSet;

use crate::{
    datacenter::{
        model::{facts::service::NodeService, observed::Observed},
        state::stateful_set::replicas,
    },
    node::{answer::RingAnswer, decommission::Refusal},
};

/// A node, by its Service.
#[derive(Clone, Copy, Debug)]
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

    /// Whether a node ever said anything of itself here.
    pub(crate) fn is_blank(&self) -> bool {
        self.host_id().is_none() && !self.service.says_whether_joined
    }

    pub(crate) fn leaving(&self) -> Option<&'a str> {
        self.service.leaving_host_id.as_deref()
    }

    /// Whether this very node is asked to leave.
    pub(crate) fn is_asked_to_leave(&self) -> bool {
        self.host_id().is_some() && self.leaving() == self.host_id()
    }

    /// Whether this very node has begun to leave, or is about to.
    pub(crate) fn has_begun_to_leave(&self) -> bool {
        self.host_id().is_some() && self.service.leaving_began == self.service.host_id
    }

    /// That this very node refused to leave.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        let refusal = self.service.leaving_refused.as_ref()?.as_ref().ok()?;
        (self.host_id() == Some(&refusal.host_id)).then(|| refusal.clone())
    }

    /// Whether another node takes its place. That one may be in the ring, and has not said so.
    pub(crate) fn is_replaced(&self) -> bool {
        self.service.is_replaced()
    }

    pub(crate) fn replacing_claim(&self) -> Option<&'a str> {
        self.service.replacing_claim.as_deref()
    }

    /// Whether its sidecar answers questions.
    pub(crate) fn answers(&self) -> bool {
        self.service.answers
    }

    pub(crate) fn question(&self) -> Option<&'a str> {
        self.service.ring_question.as_deref()
    }

    /// What the label says by which a node is asked to leave, and by which it says that it has.
    pub(crate) fn decommissioned(&self) -> Option<&'a str> {
        self.service.decommissioned.as_deref()
    }

    pub(crate) fn version(&self) -> u64 {
        version(self.service.reference.version.as_deref())
    }

    /// Whether the StatefulSet has no place for it now.
    pub(crate) fn is_beyond_replicas(&self, observed: &Observed) -> bool {
        match observed.stateful_sets.get(self.stateful_set) {
            Some(now) => self.ordinal >= replicas(now),
            None => !is_wanted(observed, self.stateful_set),
        }
    }
}

/// Which pod an answer comes from.
pub(crate) enum Origin {
    /// The one that is there now, which is ready.
    ReadyPod,
    /// The one that is there now and is ready, or one before it.
    Unknown,
    /// One that is not ready, or is gone.
    Other,
}

/// Which pod the answer on this node's Service comes from. Sidecars of earlier versions do not say: then it is that of now if the
/// question was asked when that pod was as it is now.
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

fn is_wanted(observed: &Observed, stateful_set: &str) -> bool {
    let racks = &observed.datacenter.racks;
    racks.iter().any(|rack| observed.datacenter.stateful_set_name(rack) == stateful_set)
}

/// The nodes of all racks that there are, are to be or have been, in order.
pub(crate) fn members<'a>(observed: &'a Observed) -> Vec<Member<'a>> {
    let racks = &observed.datacenter.racks;
    let wanted: BTreeSet<String> = racks.iter().map(|rack| observed.datacenter.stateful_set_name(rack)).collect();
    let member = |(name, service): (&'a String, &'a NodeService)| {
        let (stateful_set, ordinal) = name.rsplit_once('-')?;
        let is_ours =
            wanted.contains(stateful_set) || observed.stateful_sets.contains_key(stateful_set) || service.is_member();
        let number: u16 = ordinal.parse().ok()?;
        let is_ordinal = number.to_string() == ordinal;
        (is_ours && is_ordinal).then_some(Member { name, service, stateful_set, ordinal: i32::from(number) })
    };
    let mut members: Vec<Member<'a>> = observed.services.iter().filter_map(member).collect();
    members.sort_by_key(|member| (member.stateful_set, member.ordinal));
    members
}
