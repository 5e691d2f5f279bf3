//! The simulated nodes of one datacenter and their ring: nodes have disks, join, leave and are replaced. Their sidecars
//! decide as `messina sidecar` does. Each method records a violation of the rules that it would cause.
//!
//! Nodes hold rows, by the data model of simulated nodes. Copies change in methods of [`Ring`] only, each of which
//! counts the replicas of all rows before it returns: no write of the operator comes between a loss and its discovery.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use messina_api::names::{
    annotation::{LEAVING_BEGAN, RING_ANSWER, UPGRADE_ANSWER},
    label::{DECOMMISSIONED, value::TRUE},
};
use messina_e2e::observer::rows::{Holder, LostRow, Rows};
use messina_plan::node::{
    Mode,
    answer::{RingAnswer, change, question},
    decommission::{DecommissionRequest, DecommissionStep, step},
    facts::{Observation, changes},
    ring::View,
    upgrade,
};
use messina_scylla_sim::data::{Cluster, Keyspace, Owner, token_of};
use serde_json::{Value, json};

use super::scenario::Phase;

/// The datacenter of all nodes.
const DATACENTER: &str = "dc";
/// How many replicas rows have, in keyspaces named after it. There are three nodes at least.
const FACTORS: [usize; 2] = [2, 3];
/// Rows that are written at the beginning of each phase, in each keyspace.
const ROWS: usize = 12;
/// Rows that are written at the beginning of each phase, in all keyspaces.
pub(crate) const ROWS_OF_PHASE: usize = ROWS * FACTORS.len();
const TOKENS: usize = 8;

/// Names the last write of the operator.
#[derive(Clone, Default)]
pub(crate) struct LastWrite(Option<Arc<dyn Fn() -> Option<String> + Send + Sync>>);

impl LastWrite {
    pub(crate) fn new(last: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(last)))
    }
}

impl fmt::Debug for LastWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.0.as_ref().and_then(|last| last());
        f.write_str(last.as_deref().unwrap_or("none"))
    }
}

/// What is on a disk.
#[derive(Clone, Debug, Default)]
struct Disk {
    host_id: Option<String>,
    has_left: bool,
    is_lost: bool,
}

/// A running node.
#[derive(Clone, Debug)]
struct Node {
    pod: String,
    disk: String,
    host_id: String,
    mode: Mode,
    replaces: Option<String>,
}

/// A patch of a Service by its sidecar.
pub(crate) struct ServiceWrite {
    pub(crate) service: Service,
    pub(crate) change: Value,
    /// Whether the resource version of the Service is a precondition.
    pub(crate) only_as_seen: bool,
}

/// All nodes and their ring.
#[derive(Debug)]
pub(crate) struct Ring {
    phase: Phase,
    /// By UIDs of claims.
    disks: BTreeMap<String, Disk>,
    /// By names of pods.
    nodes: BTreeMap<String, Node>,
    /// Host IDs that own tokens.
    members: BTreeSet<String>,
    /// How many nodes had a name so far: part of their host IDs, so that those of two scenarios can be compared.
    generations: BTreeMap<String, usize>,
    /// Pods and claims that were seen to be deleted.
    gone: BTreeSet<String>,
    left: Vec<String>,
    replaced: Vec<String>,
    violations: Vec<String>,
    /// The rows on the disks of nodes.
    data: Cluster,
    /// The rows that were acknowledged.
    rows: Rows,
    pub(crate) last_write: LastWrite,
}

impl Ring {
    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::Create,
            disks: BTreeMap::new(),
            nodes: BTreeMap::new(),
            members: BTreeSet::new(),
            generations: BTreeMap::new(),
            gone: BTreeSet::new(),
            left: Vec::new(),
            replaced: Vec::new(),
            violations: Vec::new(),
            data: Cluster::default(),
            rows: Rows::default(),
            last_write: LastWrite::default(),
        }
    }

    /// Writes rows that no other phase writes. All are acknowledged, because all nodes are up.
    pub(crate) fn write_rows(&mut self) {
        for factor in FACTORS {
            let name = format!("rf{factor}");
            if !self.data.keyspaces().contains_key(&name) {
                self.data.create_keyspace(Keyspace::new(&name, &[(DATACENTER, factor)]));
            }
            let keyspace = self.data.keyspaces()[&name].clone();
            for number in 0..ROWS {
                let (key, down) = (format!("{:?}-{number}", self.phase), self.down());
                let written = self.data.write(&keyspace, &key, "value", |host| !down.contains(host));
                written.unwrap_or_else(|error| panic!("{name}.{key}: {error}"));
                self.rows.acknowledge(&name, &key, "value", Timestamp::UNIX_EPOCH);
            }
        }
        self.count_replicas();
    }

    /// How many rows were acknowledged and not lost.
    pub(crate) fn rows(&self) -> usize {
        self.rows.count()
    }

    /// Rows that have fewer live replicas than they should.
    pub(crate) fn under_replicated(&self) -> Vec<String> {
        let down = self.down();
        let live: Vec<Holder<'_>> = self.holders().into_iter().filter(|holder| !down.contains(holder.host)).collect();
        self.rows.under_replicated(self.data.ring(), &live)
    }

    fn holders(&self) -> Vec<Holder<'_>> {
        self.data.disks().map(|(host, copies)| Holder { name: host, host, copies }).collect()
    }

    /// Records a violation for each acknowledged row without a replica.
    fn count_replicas(&mut self) {
        let missing = self.rows.without_replica(&self.holders(), Timestamp::UNIX_EPOCH);
        let lost: Vec<LostRow> = missing.iter().filter_map(|id| self.rows.lose(id)).collect();
        for lost in lost {
            self.report_violation(format!("{lost}; the last write was {:?}", self.last_write));
        }
        let holders: Vec<Holder<'_>> =
            self.data.disks().map(|(host, copies)| Holder { name: host, host, copies }).collect();
        self.rows.remember(&holders);
    }

    /// Loses the rows on a disk.
    fn lose_rows(&mut self, host: &str) {
        self.data.lose_disk(host);
        self.count_replicas();
    }

    /// Sets the phase, on which it depends what may happen to nodes.
    pub(crate) fn begin(&mut self, phase: Phase) {
        self.phase = phase;
    }

    /// Loses the Kubernetes node of a node, with its disk.
    pub(crate) fn lose(&mut self, name: &str) -> String {
        let node = self.nodes.remove(name).unwrap_or_else(|| panic!("there is no node {name}"));
        self.disks.get_mut(&node.disk).unwrap().is_lost = true;
        self.lose_rows(&node.host_id);
        node.host_id
    }

    pub(crate) fn has(&self, host_id: &str) -> bool {
        self.members.contains(host_id)
    }

    /// Violations of the rules.
    pub(crate) fn violations(&self) -> &[String] {
        &self.violations
    }

    /// Host IDs of nodes that left, of nodes that were replaced, and of the members of the ring.
    pub(crate) fn history(&self) -> (&[String], &[String], &BTreeSet<String>) {
        (&self.left, &self.replaced, &self.members)
    }

    fn report_violation(&mut self, rule: String) {
        self.violations.push(format!("{:?}: {rule}", self.phase));
    }

    /// Whether a node runs in this pod.
    pub(crate) fn runs(&self, name: &str, pod: &str) -> bool {
        self.nodes.get(name).is_some_and(|node| node.pod == pod)
    }

    /// Host IDs in the ring whose nodes are not up.
    fn down(&self) -> BTreeSet<String> {
        let up: BTreeSet<&String> = self.nodes.values().map(|node| &node.host_id).collect();
        self.members.iter().filter(|host_id| !up.contains(host_id)).cloned().collect()
    }

    fn is_in_mode(&self, mode: &Mode, but: &str) -> bool {
        self.nodes.iter().any(|(name, node)| name != but && node.mode == *mode)
    }

    /// Starts a node in a running pod with a claim; `replaces` is the host ID that its Service asks it to replace.
    pub(crate) fn start(&mut self, name: &str, pod: &str, claim: &str, replaces: Option<&str>) {
        let disk = self.disks.entry(claim.to_owned()).or_default();
        if disk.is_lost || (disk.host_id.is_some() && disk.host_id.as_deref() == replaces) {
            return;
        }
        let (has_left, before) = (disk.has_left, disk.host_id.clone());
        if has_left {
            return self.report_violation(format!("{name} gets the disk of {before:?}, which has left the ring"));
        }
        let host_id = before.unwrap_or_else(|| {
            let number = self.generations.entry(name.to_owned()).or_default();
            *number += 1;
            format!("host-{name}-{number}")
        });
        self.disks.get_mut(claim).unwrap().host_id = Some(host_id.clone());
        let mode = if self.members.contains(&host_id) { Mode::Normal } else { Mode::Starting };
        let replaces = replaces.map(ToOwned::to_owned);
        let node = Node { pod: pod.to_owned(), disk: claim.to_owned(), host_id, mode, replaces };
        self.nodes.insert(name.to_owned(), node);
    }

    /// Handles the deletion of a pod. Only a rolling restart may take down a node of the ring that is not lost.
    pub(crate) fn pod_deleted(&mut self, name: &str, pod: &str) {
        if !self.gone.insert(pod.to_owned()) || !self.runs(name, pod) {
            return;
        }
        let Some(node) = self.nodes.remove(name) else { return };
        let is_allowed = matches!(self.phase, Phase::Change | Phase::Delete);
        if !is_allowed && self.members.contains(&node.host_id) {
            self.report_violation(format!("pod {name} is deleted while its node {} is in the ring", node.host_id));
        }
    }

    /// Handles the deletion of a claim.
    pub(crate) fn claim_deleted(&mut self, name: &str, claim: &str) {
        if !self.gone.insert(claim.to_owned()) {
            return;
        }
        let Some(disk) = self.disks.get(claim).cloned() else { return };
        let Some(host_id) = disk.host_id else { return };
        if !disk.is_lost && self.members.contains(&host_id) {
            self.report_violation(format!("claim {name} is deleted while its node is in the ring"));
        }
        self.lose_rows(&host_id);
    }

    /// Runs a cleanup to its end: its node drops the rows that it does not own.
    pub(crate) fn run_cleanup(&mut self, name: &str) {
        if self.is_in_mode(&Mode::Leaving, "") {
            self.report_violation(format!("Job {name} is created while a node leaves"));
        }
        let node = name.strip_prefix("cleanup-").and_then(|name| self.nodes.get(name));
        if let Some(host_id) = node.map(|node| node.host_id.clone()) {
            self.data.clean_up(&host_id);
            self.count_replicas();
        }
    }

    /// Takes each node one step further, if it can; returns whether one moved.
    pub(crate) fn advance(&mut self) -> bool {
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

    /// Lets a node begin to join as ScyllaDB does: one at a time, and none while a node is down other than the replaced
    /// one.
    fn begin_to_join(&mut self, name: &str) -> bool {
        if self.is_in_mode(&Mode::Leaving, name) {
            self.report_violation(format!("{name} wants to join while another node leaves"));
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
        let (down, owner) = (self.down(), owner(name, &node.host_id));
        let is_up = |host: &str| !down.contains(host);
        let streamed = match &node.replaces {
            Some(replaced) => self.data.replace(owner, replaced, is_up),
            None => self.data.bootstrap(owner, is_up),
        };
        if let Err(error) = streamed {
            self.report_violation(format!("{name} joins: {error}"));
        }
        if let Some(replaced) = node.replaces {
            self.members.remove(&replaced);
            self.replaced.push(replaced);
        }
        self.members.insert(node.host_id);
        self.set(name, Mode::Normal);
        self.count_replicas();
        true
    }

    fn leave(&mut self, name: &str) -> bool {
        if !self.down().is_empty() {
            self.report_violation(format!("a node is down while {name} leaves"));
            return false;
        }
        let node = self.nodes[name].clone();
        self.members.remove(&node.host_id);
        self.disks.get_mut(&node.disk).unwrap().has_left = true;
        self.data.decommission(&node.host_id);
        self.left.push(node.host_id);
        self.set(name, Mode::Decommissioned);
        self.count_replicas();
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

    /// The next patch of each sidecar to its Service; none where no sidecar has anything to do.
    pub(crate) fn sidecar_writes(
        &mut self,
        services: &BTreeMap<String, Service>,
        jobs_at_work: &[String],
    ) -> Option<Vec<ServiceWrite>> {
        let leaving = |ring: &Self| ring.is_in_mode(&Mode::Leaving, "");
        let before = leaving(self);
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        let writes: Vec<ServiceWrite> = names
            .into_iter()
            .filter_map(|name| {
                let service = services.get(&name)?;
                let (change, only_as_seen) = self.next_write(&name, service, jobs_at_work)?;
                Some(ServiceWrite { service: service.clone(), change, only_as_seen })
            })
            .collect();
        (!writes.is_empty() || before != leaving(self)).then_some(writes)
    }

    fn next_write(&mut self, name: &str, service: &Service, jobs_at_work: &[String]) -> Option<(Value, bool)> {
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
        let answer = asked.map(|asked| RingAnswer::new(asked, &node.host_id, Some(&node.pod), &self.view()));
        if let Some(text) = change(service.annotations(), answer.as_ref()) {
            return Some((json!({"metadata": {"annotations": {RING_ANSWER: text}}}), false));
        }
        // The disks hold nothing of which there could be snapshots.
        let work = upgrade::work(service.annotations(), &node.host_id, &node.mode);
        let prepared = work.map(|work| upgrade::UpgradeAnswer {
            host_id: node.host_id.clone(),
            to: work.request.to,
            kept: work.request.keep,
            failed: None,
        });
        if let Some(text) = prepared.and_then(|answer| upgrade::change(service.annotations(), &answer)) {
            return Some((json!({"metadata": {"annotations": {UPGRADE_ANSWER: text}}}), true));
        }
        match step(DecommissionRequest::of(service.labels(), service.annotations()), &node.host_id, &node.mode, true) {
            DecommissionStep::Announce => {
                Some((json!({"metadata": {"annotations": {LEAVING_BEGAN: node.host_id}}}), true))
            }
            DecommissionStep::Start => {
                self.start_decommission(name, jobs_at_work);
                None
            }
            DecommissionStep::Confirm => Some((json!({"metadata": {"labels": {DECOMMISSIONED: TRUE}}}), false)),
            DecommissionStep::Nothing | DecommissionStep::Wait | DecommissionStep::Restart => None,
        }
    }

    fn start_decommission(&mut self, name: &str, jobs_at_work: &[String]) {
        if self.phase != Phase::ScaleIn || self.left.contains(&self.nodes[name].host_id) {
            self.report_violation(format!("{name} leaves although the user does not ask for it"));
        }
        if [Mode::Starting, Mode::Joining, Mode::Leaving].iter().any(|mode| self.is_in_mode(mode, name)) {
            self.report_violation(format!("{name} leaves while another node joins or leaves"));
        }
        if !self.down().is_empty() {
            self.report_violation(format!("{name} leaves while a node is down"));
        }
        if !jobs_at_work.is_empty() {
            self.report_violation(format!("{name} leaves while {jobs_at_work:?} clean up nodes"));
        }
        self.set(name, Mode::Leaving);
    }
}

/// The tokens of a node and their placement. The rack is the part of its name before the ordinal, and the tokens are
/// derived from its host ID, so that those of two scenarios can be compared.
fn owner(name: &str, host_id: &str) -> Owner {
    let rack = name.rsplit_once('-').map_or(name, |(rack, _)| rack).to_owned();
    let tokens = (0..TOKENS).map(|number| token_of(&format!("{host_id} {number}"))).collect();
    Owner { host: host_id.to_owned(), datacenter: DATACENTER.to_owned(), rack, tokens }
}

/// Checks that the ring reports lost rows.
#[cfg(test)]
mod tests {
    use super::*;

    /// A ring of three nodes in three racks, with rows.
    fn three() -> Ring {
        let mut ring = Ring::new();
        for rack in ["a", "b", "c"] {
            let name = format!("dc-dc-{rack}-0");
            ring.start(&name, &format!("pod {name}"), &format!("claim {name}"), None);
            while ring.advance() {}
        }
        ring.begin(Phase::Change);
        ring.write_rows();
        ring.last_write = LastWrite::new(|| Some("DELETE something".into()));
        assert_eq!((ring.violations(), ring.under_replicated()), ([].as_slice(), Vec::new()));
        ring
    }

    fn lost_rows(ring: &Ring) -> Vec<&String> {
        ring.violations().iter().filter(|rule| rule.contains("has no replica any more")).collect()
    }

    #[test]
    fn deleted_claims_lose_rows() {
        let mut ring = three();
        for name in ["dc-dc-a-0", "dc-dc-b-0"] {
            ring.claim_deleted(name, &format!("claim {name}"));
        }
        let of_two: Vec<&String> = lost_rows(&ring);
        assert!(!of_two.is_empty() && of_two.iter().all(|rule| rule.contains("row rf2.Change-")), "{of_two:?}");
        assert!(of_two[0].contains("host-dc-dc-b-0-1"), "its last holder: {}", of_two[0]);
        assert!(of_two[0].contains("the last write was DELETE something"), "{}", of_two[0]);
        ring.claim_deleted("dc-dc-c-0", "claim dc-dc-c-0");
        assert_eq!(lost_rows(&ring).len(), ROWS_OF_PHASE);
    }

    #[test]
    fn one_lost_disk_loses_replicas_but_no_row() {
        let mut ring = three();
        ring.lose("dc-dc-b-0");
        assert_eq!(lost_rows(&ring), [] as [&String; 0]);
        assert!(!ring.under_replicated().is_empty());
    }

    #[test]
    fn ring_loses_replicas_when_nodes_leave_one_after_another() {
        let mut ring = three();
        ring.set("dc-dc-c-0", Mode::Leaving);
        assert!(ring.advance());
        assert!(ring.under_replicated().iter().all(|row| row.starts_with("rf3.")), "{:?}", ring.under_replicated());
        assert_eq!(ring.under_replicated().len(), ROWS);
        assert_eq!(lost_rows(&ring), [] as [&String; 0], "the remaining nodes hold all rows");
        // The last one has no other node to stream to. The ring agrees, and all rows are gone.
        for name in ["dc-dc-b-0", "dc-dc-a-0"] {
            ring.set(name, Mode::Leaving);
            assert!(ring.advance());
        }
        assert_eq!(lost_rows(&ring).len(), ROWS_OF_PHASE);
    }
}
