//! The nodes of one datacenter and their ring, as they are: nodes have disks, join, leave and are replaced. Their sidecars
//! decide as those of `messina sidecar` do. Whatever must never happen is noted where it would happen.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use messina_api::names::{
    annotation::{LEAVING_BEGAN, RING_ANSWER, UPGRADE_ANSWER},
    label::{DECOMMISSIONED, value::TRUE},
};
use messina_plan::node::{
    Mode,
    answer::{Answer, change, question},
    decommission::{Asked, Step, step},
    facts::{Observation, changes},
    ring::View,
    upgrade,
};
use serde_json::{Value, json};

use super::life::Phase;

/// What is on a disk.
#[derive(Clone, Debug, Default)]
struct Disk {
    host_id: Option<String>,
    has_left: bool,
    is_lost: bool,
}

/// A node that runs.
#[derive(Clone, Debug)]
struct Node {
    pod: String,
    disk: String,
    host_id: String,
    mode: Mode,
    replaces: Option<String>,
}

/// What a sidecar writes on its Service.
pub(crate) struct Word {
    pub(crate) service: Service,
    pub(crate) change: Value,
    /// Only if nobody has changed the Service meanwhile.
    pub(crate) only_as_seen: bool,
}

/// The truth about the nodes.
#[derive(Debug)]
pub(crate) struct Ring {
    phase: Phase,
    /// By UIDs of claims.
    disks: BTreeMap<String, Disk>,
    /// By names of pods.
    nodes: BTreeMap<String, Node>,
    /// Host IDs that own tokens.
    members: BTreeSet<String>,
    /// How many nodes of a name there were: it is part of their host IDs, so that those of two lives can be compared.
    born: BTreeMap<String, usize>,
    /// Pods and claims that were seen to be deleted.
    gone: BTreeSet<String>,
    left: Vec<String>,
    replaced: Vec<String>,
    broken: Vec<String>,
}

impl Ring {
    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::Create,
            disks: BTreeMap::new(),
            nodes: BTreeMap::new(),
            members: BTreeSet::new(),
            born: BTreeMap::new(),
            gone: BTreeSet::new(),
            left: Vec::new(),
            replaced: Vec::new(),
            broken: Vec::new(),
        }
    }

    /// What the user is about to do, by which it is judged what may happen to nodes.
    pub(crate) fn begin(&mut self, phase: Phase) {
        self.phase = phase;
    }

    /// The machine of a node goes away with its disk.
    pub(crate) fn lose(&mut self, name: &str) -> String {
        let node = self.nodes.remove(name).unwrap_or_else(|| panic!("there is no node {name}"));
        self.disks.get_mut(&node.disk).unwrap().is_lost = true;
        node.host_id
    }

    pub(crate) fn has(&self, host_id: &str) -> bool {
        self.members.contains(host_id)
    }

    /// Rules that were broken.
    pub(crate) fn broken(&self) -> &[String] {
        &self.broken
    }

    /// Host IDs of nodes that have left, of those that were replaced, and of those that are there.
    pub(crate) fn history(&self) -> (&[String], &[String], &BTreeSet<String>) {
        (&self.left, &self.replaced, &self.members)
    }

    fn breaks(&mut self, rule: String) {
        self.broken.push(format!("{:?}: {rule}", self.phase));
    }

    /// Whether a node runs in this pod.
    pub(crate) fn runs(&self, name: &str, pod: &str) -> bool {
        self.nodes.get(name).is_some_and(|node| node.pod == pod)
    }

    /// Host IDs of the ring that are not up.
    fn down(&self) -> BTreeSet<String> {
        let up: BTreeSet<&String> = self.nodes.values().map(|node| &node.host_id).collect();
        self.members.iter().filter(|host_id| !up.contains(host_id)).cloned().collect()
    }

    fn is_in_mode(&self, mode: &Mode, but: &str) -> bool {
        self.nodes.iter().any(|(name, node)| name != but && node.mode == *mode)
    }

    /// A pod runs, with a claim; `replaces` is what its Service says of whom it replaces.
    pub(crate) fn start(&mut self, name: &str, pod: &str, claim: &str, replaces: Option<&str>) {
        let disk = self.disks.entry(claim.to_owned()).or_default();
        if disk.is_lost || (disk.host_id.is_some() && disk.host_id.as_deref() == replaces) {
            return;
        }
        let (has_left, before) = (disk.has_left, disk.host_id.clone());
        if has_left {
            return self.breaks(format!("{name} gets the disk of {before:?}, which has left"));
        }
        let host_id = before.unwrap_or_else(|| {
            let number = self.born.entry(name.to_owned()).or_default();
            *number += 1;
            format!("host-{name}-{number}")
        });
        self.disks.get_mut(claim).unwrap().host_id = Some(host_id.clone());
        let mode = if self.members.contains(&host_id) { Mode::Normal } else { Mode::Starting };
        let replaces = replaces.map(ToOwned::to_owned);
        let node = Node { pod: pod.to_owned(), disk: claim.to_owned(), host_id, mode, replaces };
        self.nodes.insert(name.to_owned(), node);
    }

    /// A pod is deleted. Only a rolling change may take down a node of the ring that is not lost.
    pub(crate) fn pod_goes(&mut self, name: &str, pod: &str) {
        if !self.gone.insert(pod.to_owned()) || !self.runs(name, pod) {
            return;
        }
        let Some(node) = self.nodes.remove(name) else { return };
        let is_allowed = matches!(self.phase, Phase::Change | Phase::Delete);
        if !is_allowed && self.members.contains(&node.host_id) {
            self.breaks(format!("pod {name} of {} is deleted, which is in the ring", node.host_id));
        }
    }

    /// A claim is deleted.
    pub(crate) fn claim_goes(&mut self, name: &str, claim: &str) {
        if !self.gone.insert(claim.to_owned()) {
            return;
        }
        let Some(disk) = self.disks.get(claim).cloned() else { return };
        if !disk.is_lost && disk.host_id.is_some_and(|host_id| self.members.contains(&host_id)) {
            self.breaks(format!("claim {name} is deleted, whose node is in the ring"));
        }
    }

    /// A cleanup begins.
    pub(crate) fn cleanup_begins(&mut self, name: &str) {
        if self.is_in_mode(&Mode::Leaving, "") {
            self.breaks(format!("Job {name} is made while a node leaves"));
        }
    }

    /// Every node gets one step further, if it can; answers whether one did.
    pub(crate) fn live(&mut self) -> bool {
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        names.iter().fold(false, |before, name| {
            let has_moved = match self.nodes[name].mode {
                Mode::Starting => self.begin_to_join(name),
                Mode::Joining => self.join(name),
                Mode::Leaving => self.leave(name),
                _ => false,
            };
            before | has_moved
        })
    }

    fn set(&mut self, name: &str, mode: Mode) {
        self.nodes.get_mut(name).unwrap().mode = mode;
    }

    /// ScyllaDB lets one node in at a time, and none while one is down, but for the one that is replaced.
    fn begin_to_join(&mut self, name: &str) -> bool {
        if self.is_in_mode(&Mode::Leaving, name) {
            self.breaks(format!("{name} wants to join while another node leaves"));
        }
        let replaced: BTreeSet<String> = self.nodes[name].replaces.iter().cloned().collect();
        let may_join = self.down() == replaced && !self.is_in_mode(&Mode::Joining, name);
        if may_join {
            self.set(name, Mode::Joining);
        }
        may_join
    }

    fn join(&mut self, name: &str) -> bool {
        let node = self.nodes[name].clone();
        if let Some(replaced) = node.replaces {
            self.members.remove(&replaced);
            self.replaced.push(replaced);
        }
        self.members.insert(node.host_id);
        self.set(name, Mode::Normal);
        true
    }

    fn leave(&mut self, name: &str) -> bool {
        if !self.down().is_empty() {
            self.breaks(format!("a node is down while {name} leaves"));
            return false;
        }
        let node = self.nodes[name].clone();
        self.members.remove(&node.host_id);
        self.disks.get_mut(&node.disk).unwrap().has_left = true;
        self.left.push(node.host_id);
        self.set(name, Mode::Decommissioned);
        true
    }

    fn view(&self) -> View {
        let down = self.down();
        let of = |mode: Mode| self.nodes.values().filter(move |node| node.mode == mode);
        let joining = of(Mode::Joining).filter(|node| node.replaces.is_none());
        View {
            host_ids: self.members.iter().map(|host_id| (host_id.clone(), host_id.clone())).collect(),
            live: self.members.difference(&down).cloned().collect(),
            leaving: of(Mode::Leaving).map(|node| node.host_id.clone()).collect(),
            joining: joining.map(|node| node.host_id.clone()).collect(),
            down,
            ..View::default()
        }
    }

    /// What each sidecar writes next on the Service that it sees; none where nobody has anything to do.
    pub(crate) fn tend(&mut self, services: &BTreeMap<String, Service>, jobs_at_work: &[String]) -> Option<Vec<Word>> {
        let leaving = |ring: &Self| ring.is_in_mode(&Mode::Leaving, "");
        let before = leaving(self);
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        let words: Vec<Word> = names
            .into_iter()
            .filter_map(|name| {
                let service = services.get(&name)?;
                let (change, only_as_seen) = self.word(&name, service, jobs_at_work)?;
                Some(Word { service: service.clone(), change, only_as_seen })
            })
            .collect();
        (!words.is_empty() || before != leaving(self)).then_some(words)
    }

    fn word(&mut self, name: &str, service: &Service, jobs_at_work: &[String]) -> Option<(Value, bool)> {
        let node = self.nodes[name].clone();
        let is_in = self.members.contains(&node.host_id);
        let serves = is_in && node.mode == Mode::Normal;
        let observation = Observation {
            host_id: node.host_id.clone(),
            is_member: Some(is_in),
            is_leaving: matches!(node.mode, Mode::Leaving | Mode::Decommissioned),
            ring: serves.then(|| self.members.iter().cloned().collect()),
        };
        let facts = changes(service.annotations(), &observation);
        if !facts.is_empty() {
            return Some((json!({"metadata": {"annotations": facts}}), false));
        }
        let asked = question(service.annotations()).filter(|_| serves);
        let answer = asked.map(|asked| Answer::new(asked, &node.host_id, &self.view()));
        if let Some(text) = change(service.annotations(), answer.as_ref()) {
            return Some((json!({"metadata": {"annotations": {RING_ANSWER: text}}}), false));
        }
        // Nothing is on disks of which there could be snapshots.
        let work = upgrade::work(service.annotations(), &node.host_id, &node.mode);
        let prepared = work.map(|work| upgrade::Answer {
            host_id: node.host_id.clone(),
            to: work.request.to,
            kept: work.request.keep,
            failed: None,
        });
        if let Some(text) = prepared.and_then(|answer| upgrade::change(service.annotations(), &answer)) {
            return Some((json!({"metadata": {"annotations": {UPGRADE_ANSWER: text}}}), true));
        }
        match step(Asked::of(service.labels(), service.annotations()), &node.host_id, &node.mode, true) {
            Step::Announce => Some((json!({"metadata": {"annotations": {LEAVING_BEGAN: node.host_id}}}), true)),
            Step::Start => {
                self.begins_to_leave(name, jobs_at_work);
                None
            }
            Step::Confirm => Some((json!({"metadata": {"labels": {DECOMMISSIONED: TRUE}}}), false)),
            Step::Nothing | Step::Wait | Step::Restart => None,
        }
    }

    fn begins_to_leave(&mut self, name: &str, jobs_at_work: &[String]) {
        if self.phase != Phase::ScaleIn || self.left.contains(&self.nodes[name].host_id) {
            self.breaks(format!("{name} leaves, and nobody wants it to"));
        }
        if [Mode::Starting, Mode::Joining, Mode::Leaving].iter().any(|mode| self.is_in_mode(mode, name)) {
            self.breaks(format!("{name} leaves while another node joins or leaves"));
        }
        if !self.down().is_empty() {
            self.breaks(format!("{name} leaves while a node is down"));
        }
        if !jobs_at_work.is_empty() {
            self.breaks(format!("{name} leaves while {jobs_at_work:?} clean up nodes"));
        }
        self.set(name, Mode::Leaving);
    }
}
