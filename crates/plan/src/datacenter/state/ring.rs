//! The token ring, as nodes report it on their Services.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use k8s_openapi::api::apps::v1::StatefulSet;
use messina_api::names::annotation::IGNORED_DOWN_NODES;

use crate::{
    datacenter::{
        model::observed::Observed,
        state::member::{Member, Origin, origin, version},
    },
    node::answer::{RingAnswer, UP},
};

/// Questions are numbers below this one; the operator never writes larger ones.
const LAST_QUESTION: u64 = 1 << 53;

/// Whether a node is in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Membership {
    Member,
    Absent,
    Unknown,
}

/// The token ring, as nodes have reported it on request.
pub(crate) struct Ring<'a> {
    pub(crate) members: Vec<Member<'a>>,
    /// The latest question.
    pub(crate) question: Option<u64>,
    /// Answers to it, by member.
    answers: BTreeMap<&'a str, &'a RingAnswer>,
    /// The members whose answers come from pods that are ready now. Only their answers justify a deletion; answers of
    /// others can only prevent one.
    pub(crate) witnesses: BTreeSet<&'a str>,
    /// Whether an answer may be older than the current pod, so that the operator has to ask again.
    pub(crate) is_outdated: bool,
}

impl<'a> Ring<'a> {
    pub(crate) fn new(observed: &Observed, members: Vec<Member<'a>>) -> Self {
        let number =
            |member: &Member<'_>| member.question()?.parse::<u64>().ok().filter(|asked| *asked < LAST_QUESTION);
        let question = members.iter().filter_map(number).max();
        let answer = |member: &Member<'a>| {
            let answer = member.service.ring_answer.as_ref()?;
            let is_current = question.is_some_and(|question| question.to_string() == answer.asked);
            // An answer of a former node of this member does not count.
            let is_its_own = member.host_id() == Some(answer.host_id.as_str());
            (is_current && is_its_own).then_some((member.name, answer))
        };
        let answers: BTreeMap<&'a str, &'a RingAnswer> = members.iter().filter_map(answer).collect();
        let (mut witnesses, mut is_outdated) = (BTreeSet::new(), false);
        for (name, answer) in &answers {
            match origin(observed, name, answer, question) {
                Origin::ReadyPod => _ = witnesses.insert(*name),
                Origin::Unknown => is_outdated = true,
                Origin::Other => {}
            }
        }
        Self { members, question, answers, witnesses, is_outdated }
    }

    /// Returns a question that was never asked. It is not below the resource version of any Service, which rises with
    /// each question and answer. It is not below those of StatefulSets either: see [`Self::is_asked_since`].
    pub(crate) fn next_question(&self, observed: &Observed) -> u64 {
        let versions = self.members.iter().map(Member::version);
        let sets = observed.stateful_sets.values().map(|one| version(one.metadata.resource_version.as_deref()));
        // Nor below those of pods, for answers that name no pod: see [`origin`].
        let pods = observed.pods.values().map(|pod| version(pod.reference.version.as_deref()));
        let after = self.question.map(|question| question + 1);
        versions.chain(sets).chain(pods).chain(after).max().unwrap_or(0).min(LAST_QUESTION - 1)
    }

    /// Whether the question is newer than the observed StatefulSet. The cache of Services may be older than that of
    /// StatefulSets; then a node that has left would seem to be in the ring, beyond the StatefulSet's replicas.
    pub(crate) fn is_asked_since(&self, stateful_set: &StatefulSet) -> bool {
        self.question.is_some_and(|question| question >= version(stateful_set.metadata.resource_version.as_deref()))
    }

    /// Returns the members whose nodes are in the ring as far as is known, except one.
    pub(crate) fn others(&self, observed: &Observed, but: &str) -> Vec<&Member<'a>> {
        let is_other =
            |member: &&Member<'_>| member.name != but && member.has_joined() && !member.is_beyond_replicas(observed);
        self.members.iter().filter(is_other).collect()
    }

    fn answers_but(&self, but: &str) -> impl Iterator<Item = (&'a str, &'a RingAnswer)> {
        self.answers.iter().filter(move |(name, _)| **name != but).map(|(name, answer)| (*name, *answer))
    }

    /// Returns whether a node is in the ring, from all answers except that of one member: it is absent if one ready
    /// node reports so and no answer contradicts.
    pub(crate) fn membership(&self, host_id: &str, but: &str) -> Membership {
        let is_witness = |(name, answer): &(&str, &RingAnswer)| {
            self.witnesses.contains(name) && answer.nodes.contains_key(&answer.host_id)
        };
        let has_witness = self.answers_but(but).any(|one| is_witness(&one));
        match (has_witness, self.answers_but(but).any(|(_, answer)| answer.nodes.contains_key(host_id))) {
            (_, true) => Membership::Member,
            (true, false) => Membership::Absent,
            (false, false) => Membership::Unknown,
        }
    }

    /// Returns whether a node is in the ring, but absent only if all others report so.
    pub(crate) fn membership_by_all(&self, observed: &Observed, host_id: &str, but: &str) -> Membership {
        let others = self.others(observed, but);
        let all_answered = !others.is_empty() && others.iter().all(|other| self.witnesses.contains(other.name));
        match self.membership(host_id, but) {
            Membership::Absent if !all_answered => Membership::Unknown,
            place => place,
        }
    }

    /// Returns whether the node of a member is in the ring. All others have seen a node that has begun to leave, so for
    /// that one the report of one ready node suffices.
    pub(crate) fn membership_of(&self, observed: &Observed, member: &Member<'_>, host_id: &str) -> Membership {
        if member.has_begun_to_leave() {
            self.membership(host_id, member.name)
        } else {
            self.membership_by_all(observed, host_id, member.name)
        }
    }

    /// Whether another node sees the node in this state.
    pub(crate) fn is_seen(&self, host_id: &str, state: &str, but: &str) -> bool {
        self.answers_but(but).any(|(_, answer)| answer.nodes.get(host_id).is_some_and(|seen| seen == state))
    }

    /// Returns a message if a node sees any node other than this one in another state than up and normal.
    pub(crate) fn unhealthy_node(&self, host_id: &str, but: &str) -> Option<String> {
        self.answers_but(but).find_map(|(name, answer)| {
            let (node, state) = answer.nodes.iter().find(|(node, state)| *node != host_id && *state != UP)?;
            Some(format!("node {name} sees node {} in state {state}", self.display_name(node)))
        })
    }

    /// Checks that all others see the node in this state and all other nodes up; returns why not.
    pub(crate) fn check_agreement(&self, observed: &Observed, member: &Member<'_>, state: &str) -> Result<(), String> {
        let host_id = member.host_id().unwrap_or_default();
        let others = self.others(observed, member.name);
        if others.is_empty() {
            return Err("no other node can report the state of the ring".into());
        }
        if let Some(silent) = others.iter().find(|other| !self.witnesses.contains(other.name)) {
            let is_answered = self.answers.contains_key(silent.name);
            let why = if is_answered { "; its pod is not ready, or was recreated since its last report" } else { "" };
            return Err(format!("node {} has not reported the state of the ring yet{why}", silent.name));
        }
        if let Some(unhealthy) = self.unhealthy_node(host_id, member.name) {
            return Err(unhealthy);
        }
        let differs = self.answers_but(member.name).find_map(|(name, answer)| {
            let seen = answer.nodes.get(host_id).map(String::as_str);
            (seen != Some(state)).then(|| match seen {
                Some(seen) => format!("node {name} sees it in state {seen}, not {state}"),
                None => format!("node {name} does not see it in the ring"),
            })
        });
        differs.map_or(Ok(()), Err)
    }

    /// Checks that a node of this datacenter may restart: all nodes that can report the ring have done so, none of them
    /// sees a node of this datacenter in another state than up and normal, except those in `lost`, and none sees a node
    /// of another datacenter down. Returns why not.
    pub(crate) fn check_restart(&self, observed: &Observed, lost: &[Member<'_>]) -> Result<(), String> {
        let own = self.others(observed, "");
        if let Some(silent) = own.iter().find(|member| member.answers() && !self.answers.contains_key(member.name)) {
            return Err(format!("node {} has not reported the state of the ring yet", silent.name));
        }
        let is_own = |host_id: &str| {
            own.iter().any(|member| member.host_id() == Some(host_id))
                && !lost.iter().any(|member| member.host_id() == Some(host_id))
        };
        // Answers of nodes that have left since do not count.
        let answers = || self.answers.iter().filter(|(name, _)| own.iter().any(|member| member.name == **name));
        let unhealthy = answers().find_map(|(name, answer)| {
            let (node, state) = answer.nodes.iter().find(|(node, state)| is_own(node) && *state != UP)?;
            Some(format!("node {name} sees node {} in state {state}", self.display_name(node)))
        });
        // A node that is leaving or being replaced may be missing.
        let stays = |member: &&&Member<'_>| !member.is_asked_to_leave() && !member.is_replaced();
        let missing = || {
            own.iter().filter(stays).filter_map(|member| member.host_id()).filter(|host_id| is_own(host_id)).find_map(
                |host_id| {
                    let (name, _) = answers().find(|(_, answer)| !answer.nodes.contains_key(host_id))?;
                    Some(format!("node {name} does not see node {} in the ring", self.display_name(host_id)))
                },
            )
        };
        let elsewhere = || answers().find_map(|(name, answer)| self.down_elsewhere(observed, name, answer));
        unhealthy.or_else(missing).or_else(elsewhere).map_or(Ok(()), Err)
    }

    /// Returns a message if member `name` sees a node of another datacenter down that the user has not told the
    /// operator to ignore.
    fn down_elsewhere(&self, observed: &Observed, name: &str, answer: &RingAnswer) -> Option<String> {
        let is_elsewhere = |host_id: &str| {
            // A node that is known by its address only has not joined.
            host_id.parse::<IpAddr>().is_err()
                && self.members.iter().all(|member| member.host_id() != Some(host_id))
                && !observed.datacenter.ignored_down_nodes.contains(host_id)
        };
        let (node, _) = answer.nodes.iter().find(|(node, state)| state.starts_with('D') && is_elsewhere(node))?;
        Some(format!(
            "node {name} sees node {node} of another datacenter down; replace or remove that node, or annotate the \
             ScyllaDBDatacenter with {IGNORED_DOWN_NODES}={node} to let nodes restart while it is down"
        ))
    }

    /// Returns the host ID of a node, with the name of its member if it is of this datacenter.
    pub(crate) fn display_name(&self, host_id: &str) -> String {
        let own = self.members.iter().find(|member| member.host_id() == Some(host_id));
        own.map_or_else(|| host_id.to_owned(), |member| format!("{} ({host_id})", member.name))
    }
}
