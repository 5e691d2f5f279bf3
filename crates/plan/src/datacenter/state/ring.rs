//! The ring as nodes tell of it on their Services.

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

/// Questions are numbers; larger ones are nobody's.
const LAST_QUESTION: u64 = 1 << 53;

/// Whether a node is in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Membership {
    Member,
    Absent,
    Unknown,
}

/// The ring, as nodes tell of it that were asked.
pub(crate) struct Ring<'a> {
    pub(crate) members: Vec<Member<'a>>,
    /// The question that stands.
    pub(crate) question: Option<u64>,
    /// Answers to it, by the names of those who gave them.
    answers: BTreeMap<&'a str, &'a RingAnswer>,
    /// The names of those whose answers come from pods that are ready now. Nothing is deleted by the word of others; what they say
    /// against a deletion counts all the same.
    pub(crate) witnesses: BTreeSet<&'a str>,
    /// An answer may be older than the pod that is there now, so nodes have to be asked again.
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
            // What another node than the one that is there now said counts for nothing.
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

    /// A question that was never asked: every Service that was asked, or answered, is of a later version than the
    /// question was. It is later than the StatefulSets, too: see [`Self::is_asked_since`].
    pub(crate) fn next_question(&self, observed: &Observed) -> u64 {
        let versions = self.members.iter().map(Member::version);
        let sets = observed.stateful_sets.values().map(|one| version(one.metadata.resource_version.as_deref()));
        // And later than the pods, for answers that name none: see [`origin`].
        let pods = observed.pods.values().map(|pod| version(pod.reference.version.as_deref()));
        let after = self.question.map(|question| question + 1);
        versions.chain(sets).chain(pods).chain(after).max().unwrap_or(0).min(LAST_QUESTION - 1)
    }

    /// Whether the question was asked when the StatefulSet was as it is seen now. What is seen of Services may be older than
    /// what is seen of StatefulSets; then a node that has left seems to be in the ring, and to have lost its place.
    pub(crate) fn is_asked_since(&self, stateful_set: &StatefulSet) -> bool {
        self.question.is_some_and(|question| question >= version(stateful_set.metadata.resource_version.as_deref()))
    }

    /// Nodes that are in the ring as far as is known, but for one.
    pub(crate) fn others(&self, observed: &Observed, but: &str) -> Vec<&Member<'a>> {
        let is_other =
            |member: &&Member<'_>| member.name != but && member.has_joined() && !member.is_beyond_replicas(observed);
        self.members.iter().filter(is_other).collect()
    }

    fn answers_but(&self, but: &str) -> impl Iterator<Item = (&'a str, &'a RingAnswer)> {
        self.answers.iter().filter(move |(name, _)| **name != but).map(|(name, answer)| (*name, *answer))
    }

    /// What those say who answered, but for one: that a node is out is believed when one says so and none says otherwise.
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

    /// The same, but a node is out only when all others say so.
    pub(crate) fn membership_by_all(&self, observed: &Observed, host_id: &str, but: &str) -> Membership {
        let others = self.others(observed, but);
        let all_answered = !others.is_empty() && others.iter().all(|other| self.witnesses.contains(other.name));
        match self.membership(host_id, but) {
            Membership::Absent if !all_answered => Membership::Unknown,
            place => place,
        }
    }

    /// Where the node of a Service is. One that has begun to leave was seen by all others before, so one witness will do.
    pub(crate) fn membership_of(&self, observed: &Observed, member: &Member<'_>, host_id: &str) -> Membership {
        if member.has_begun_to_leave() {
            self.membership(host_id, member.name)
        } else {
            self.membership_by_all(observed, host_id, member.name)
        }
    }

    /// Whether somebody sees the node in this state.
    pub(crate) fn is_seen(&self, host_id: &str, state: &str, but: &str) -> bool {
        self.answers_but(but).any(|(_, answer)| answer.nodes.get(host_id).is_some_and(|seen| seen == state))
    }

    /// What speaks against a change: somebody sees another node than this one not up and normal.
    pub(crate) fn unhealthy_node(&self, host_id: &str, but: &str) -> Option<String> {
        self.answers_but(but).find_map(|(name, answer)| {
            let (node, state) = answer.nodes.iter().find(|(node, state)| *node != host_id && *state != UP)?;
            Some(format!("node {name} sees node {} in state {state}", self.display_name(node)))
        })
    }

    /// Whether all others say that the node is in this state and that all the rest are up; if not, why.
    pub(crate) fn check_agreement(&self, observed: &Observed, member: &Member<'_>, state: &str) -> Result<(), String> {
        let host_id = member.host_id().unwrap_or_default();
        let others = self.others(observed, member.name);
        if others.is_empty() {
            return Err("there is no other node that could tell of the ring".into());
        }
        if let Some(silent) = others.iter().find(|other| !self.witnesses.contains(other.name)) {
            let is_answered = self.answers.contains_key(silent.name);
            let why = if is_answered { "; its pod is not ready, or is another one since it did" } else { "" };
            return Err(format!("node {} has yet to say how it sees the ring{why}", silent.name));
        }
        if let Some(trouble) = self.unhealthy_node(host_id, member.name) {
            return Err(trouble);
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

    /// Whether one of our nodes may restart: all that can be asked have answered, nobody sees another of our nodes not up and
    /// normal, but for those whom nobody may find, and nobody sees a node of another datacenter down. If not, why.
    pub(crate) fn check_restart(&self, observed: &Observed, lost: &[Member<'_>]) -> Result<(), String> {
        let ours = self.others(observed, "");
        if let Some(silent) = ours.iter().find(|member| member.answers() && !self.answers.contains_key(member.name)) {
            return Err(format!("node {} has yet to say how it sees the ring", silent.name));
        }
        let is_ours = |host_id: &str| {
            ours.iter().any(|member| member.host_id() == Some(host_id))
                && !lost.iter().any(|member| member.host_id() == Some(host_id))
        };
        // What a node said that has left since counts no more.
        let answers = || self.answers.iter().filter(|(name, _)| ours.iter().any(|member| member.name == **name));
        let trouble = answers().find_map(|(name, answer)| {
            let (node, state) = answer.nodes.iter().find(|(node, state)| is_ours(node) && *state != UP)?;
            Some(format!("node {name} sees node {} in state {state}", self.display_name(node)))
        });
        // One that is about to go may be missing.
        let stays = |member: &&&Member<'_>| !member.is_asked_to_leave() && !member.is_replaced();
        let missing = || {
            ours.iter().filter(stays).filter_map(|member| member.host_id()).filter(|host_id| is_ours(host_id)).find_map(
                |host_id| {
                    let (name, _) = answers().find(|(_, answer)| !answer.nodes.contains_key(host_id))?;
                    Some(format!("node {name} does not see node {} in the ring", self.display_name(host_id)))
                },
            )
        };
        let elsewhere = || answers().find_map(|(name, answer)| self.down_elsewhere(observed, name, answer));
        trouble.or_else(missing).or_else(elsewhere).map_or(Ok(()), Err)
    }

    /// The message for a node of another datacenter that member `name` sees down, unless the user ignores it.
    fn down_elsewhere(&self, observed: &Observed, name: &str, answer: &RingAnswer) -> Option<String> {
        let is_elsewhere = |host_id: &str| {
            // A node that is known by its address only has not joined.
            host_id.parse::<IpAddr>().is_err()
                && self.members.iter().all(|member| member.host_id() != Some(host_id))
                && !observed.datacenter.ignored_down_nodes.contains(host_id)
        };
        let (node, _) = answer.nodes.iter().find(|(node, state)| state.starts_with('D') && is_elsewhere(node))?;
        Some(format!(
            "node {name} sees node {node}, which is not of this datacenter, down; replace or remove it, or annotate the \
             ScyllaDBDatacenter with {IGNORED_DOWN_NODES}={node} to restart nodes all the same"
        ))
    }

    /// What people call a node: its name where it is ours.
    pub(crate) fn display_name(&self, host_id: &str) -> String {
        let ours = self.members.iter().find(|member| member.host_id() == Some(host_id));
        ours.map_or_else(|| host_id.to_owned(), |member| format!("{} ({host_id})", member.name))
    }
}
