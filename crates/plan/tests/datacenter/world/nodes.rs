//! Nodes and their sidecars.

use std::collections::BTreeSet;

use messina_api::names::{
    annotation::{LEAVING_BEGAN, LEAVING_REFUSED, RING_ANSWER, UPGRADE_ANSWER},
    label::{DECOMMISSIONED, REPLACE, REPLACING_NODE_HOST_ID, SCYLLA_VERSION},
};
use messina_plan::node::{
    Mode,
    answer::{RingAnswer, change, question},
    decommission::{DecommissionRequest, DecommissionStep, Refusal, is_refusal_over, step},
    facts::{Observation, changes},
    replaced::is_being_replaced,
    ring::View,
    upgrade::{self, Snapshot},
};
use serde_json::{Value, json};

use super::{Disk, Map, Node, World};

impl World {
    pub(crate) fn pods(&self) -> Vec<String> {
        self.stored.pods.keys().cloned().collect()
    }

    /// Returns the number of other nodes that are joining or leaving.
    pub(super) fn nodes_in_transition(&self, but: &str) -> usize {
        let is_underway = |node: &Node| matches!(node.mode, Mode::Starting | Mode::Joining | Mode::Leaving);
        self.nodes.iter().filter(|(name, node)| *name != but && is_underway(node)).count()
    }

    /// Returns the host IDs of the ring that are not up.
    pub(super) fn down(&self) -> Vec<String> {
        let up: BTreeSet<&String> = self.nodes.values().map(|node| &node.host_id).collect();
        self.ring.iter().filter(|host_id| !up.contains(host_id)).cloned().collect()
    }

    /// Runs a node for one step. Returns whether its state changes.
    pub(crate) fn run_node(&mut self, pod: &str) -> bool {
        match self.nodes.get(pod).map(|node| node.mode.clone()) {
            None => self.start(pod),
            Some(Mode::Starting) => self.start_joining(pod),
            Some(Mode::Joining) => self.join(pod),
            Some(Mode::Leaving) => self.finish_leaving(pod),
            Some(_) => self.restart_joined_node(pod),
        }
    }

    fn start(&mut self, pod: &str) -> bool {
        let disk = self.disk(pod).unwrap().clone();
        if !self.stored.pods.contains_key(pod) || disk.is_lost || disk.is_decommissioned {
            return false;
        }
        let is_member = disk.host_id.as_ref().is_some_and(|host_id| self.ring.contains(host_id));
        // The sidecar reads the Service before it starts ScyllaDB. It records the host ID on the disk when the node has joined.
        let (labels, annotations) = self.service_metadata(pod);
        let on_disk = disk.host_id.as_deref().filter(|_| is_member);
        let pod_uid = self.stored.pods[pod].metadata.uid.as_deref();
        if is_being_replaced(&labels, &annotations, on_disk, pod_uid) {
            self.refused += 1;
            return false;
        }
        let host_id = match disk.host_id {
            Some(host_id) => host_id,
            None => {
                let host_id = format!("host-{}", self.next_version());
                let uid = self.stored.claims[&format!("data-{pod}")].metadata.uid.clone().unwrap();
                self.disks.get_mut(&uid).unwrap().host_id = Some(host_id.clone());
                host_id
            }
        };
        let mode = if is_member { Mode::Normal } else { Mode::Starting };
        let replaces = labels.get(REPLACING_NODE_HOST_ID).cloned();
        let node = Node { host_id, mode, serves: false, replaces, seen: None, view: View::default(), refusal: None };
        self.nodes.insert(pod.to_owned(), node);
        let version = self.stored.pods[pod].metadata.labels.as_ref().unwrap()[SCYLLA_VERSION].clone();
        self.disk_mut(pod).version = Some(version);
        true
    }

    /// A node that has joined becomes ready again when a majority of the ring is up, and then stays ready. Nodes that cannot come
    /// back, because their disks are lost or they are being replaced, do not count: a ring that has lost its majority for good
    /// needs a manual repair.
    fn restart_joined_node(&mut self, pod: &str) -> bool {
        let is_being_replaced = |name: &String| {
            let (labels, _) = self.service_metadata(name);
            [REPLACE, REPLACING_NODE_HOST_ID].iter().any(|label| labels.contains_key(*label))
        };
        let gone = self.stored.claims.iter().filter_map(|(claim, object)| {
            let disk = &self.disks[object.metadata.uid.as_ref()?];
            let name = claim.strip_prefix("data-")?.to_owned();
            disk.host_id.clone().filter(|_| disk.is_lost || is_being_replaced(&name))
        });
        let gone: BTreeSet<String> = gone.collect();
        let up = || self.nodes.values().filter(|node| self.ring.contains(&node.host_id));
        let ring =
            self.ring.iter().filter(|one| !gone.contains(*one) || up().any(|node| node.host_id == **one)).count();
        let up = up().count();
        let node = self.nodes.get_mut(pod).unwrap();
        let comes_back = node.mode == Mode::Normal && !node.serves && 2 * up > ring;
        node.serves |= comes_back;
        comes_back
    }

    fn disk_mut(&mut self, pod: &str) -> &mut Disk {
        let uid = self.stored.claims[&format!("data-{pod}")].metadata.uid.clone().unwrap();
        self.disks.get_mut(&uid).unwrap()
    }

    /// The sidecar carries out the request of an upgrade. Returns whether there was something to do.
    fn prepare_upgrade(&mut self, pod: &str, host_id: &str, mode: &Mode, annotations: &Map) -> bool {
        let Some(work) = upgrade::work(annotations, host_id, mode) else { return false };
        let mut failed = None;
        let is_whole = self.down().is_empty();
        let (to, keep) = (work.request.to.clone(), work.request.keep.clone());
        let mut kept = work.kept.clone();
        kept.retain(|one| keep.contains(one));
        let stays = kept.clone();
        self.disk_mut(pod).snapshots.retain(|(version, one)| *version == to && stays.contains(one));
        for snapshot in work.to_take() {
            if snapshot == Snapshot::System && !is_whole {
                failed = Some(upgrade::Failure { step: upgrade::UpgradeStep::Schema, why: "a node is down".into() });
                break;
            }
            self.disk_mut(pod).snapshots.insert((to.clone(), snapshot));
            kept.insert(snapshot);
        }
        let version = self.disk(pod).and_then(|disk| disk.version.clone());
        if version.as_ref() != Some(&to) {
            self.disk_mut(pod).prepared_from = version;
        }
        let answer = upgrade::UpgradeAnswer { host_id: host_id.to_owned(), to, kept, failed };
        let Some(text) = upgrade::change(annotations, &answer) else { return false };
        self.write_as_sidecar(pod, &json!({"metadata": {"annotations": {UPGRADE_ANSWER: text}}}), true)
    }

    /// Returns labels and annotations of a node's Service.
    fn service_metadata(&self, pod: &str) -> (Map, Map) {
        let metadata = self.stored.services.get(pod).map(|service| service.metadata.clone()).unwrap_or_default();
        (metadata.labels.unwrap_or_default(), metadata.annotations.unwrap_or_default())
    }

    /// Whether all nodes are up, except for the node that this one replaces, which has to be down.
    fn may_join(&self, pod: &str) -> bool {
        let replaced = self.nodes[pod].replaces.as_ref();
        let down = self.down();
        down.iter().all(|host_id| Some(host_id) == replaced) && replaced.is_none_or(|replaced| down.contains(replaced))
    }

    /// Starts to join. One node joins at a time.
    fn start_joining(&mut self, pod: &str) -> bool {
        let is_leaving = self.nodes.values().any(|node| node.mode == Mode::Leaving);
        assert!(!is_leaving, "{pod} starts to join while another node leaves");
        let may_begin = self.may_join(pod) && self.nodes.values().all(|node| node.mode != Mode::Joining);
        if may_begin {
            self.nodes.get_mut(pod).unwrap().mode = Mode::Joining;
        }
        may_begin
    }

    fn join(&mut self, pod: &str) -> bool {
        if !self.may_join(pod) {
            self.nodes.remove(pod);
            return true;
        }
        let node = self.nodes[pod].clone();
        let replaced = node.replaces.clone();
        if let Some(replaced) = replaced {
            self.ring.remove(&replaced);
            self.replaced += 1;
        }
        self.ring.insert(node.host_id);
        let node = self.nodes.get_mut(pod).unwrap();
        (node.mode, node.serves) = (Mode::Normal, true);
        true
    }

    fn finish_leaving(&mut self, pod: &str) -> bool {
        if !self.down().is_empty() {
            // ScyllaDB cancels a decommission that fails.
            let node = self.nodes.get_mut(pod).unwrap();
            (node.mode, node.refusal) = (Mode::Normal, Some("a node went down"));
            return true;
        }
        let uid = self.stored.claims[&format!("data-{pod}")].metadata.uid.clone().unwrap();
        self.disks.get_mut(&uid).unwrap().is_decommissioned = true;
        let node = self.nodes.get_mut(pod).unwrap();
        node.mode = Mode::Decommissioned;
        self.ring.remove(&node.host_id);
        self.left += 1;
        assert!(!self.ring.is_empty(), "the last node has left");
        true
    }

    /// Updates the node's view of the ring.
    pub(crate) fn gossip(&mut self, pod: &str) {
        let down: BTreeSet<String> = self.down().into_iter().collect();
        let leaving = self.nodes.values().filter(|node| node.mode == Mode::Leaving).map(|node| node.host_id.clone());
        let joining = self.nodes.values().filter(|node| node.mode == Mode::Joining && node.replaces.is_none());
        let view = View {
            host_ids: self.ring.union(&self.down_elsewhere).map(|host_id| (host_id.clone(), host_id.clone())).collect(),
            live: self.ring.difference(&down).cloned().collect(),
            leaving: leaving.filter(|host_id| self.ring.contains(host_id)).collect(),
            joining: joining.map(|node| node.host_id.clone()).collect(),
            down: down.union(&self.down_elsewhere).cloned().collect(),
            ..View::default()
        };
        if let Some(node) = self.nodes.get_mut(pod) {
            node.view = view;
        }
    }

    // Sidecars.

    /// The sidecar observes the current Service.
    pub(crate) fn refresh_sidecar(&mut self, pod: &str) {
        let service = self.stored.services.get(pod).cloned();
        if let Some(node) = self.nodes.get_mut(pod) {
            node.seen = service;
        }
    }

    fn write_as_sidecar(&mut self, pod: &str, change: &Value, only_if_unchanged: bool) -> bool {
        let seen = self.nodes[pod].seen.as_ref().map(|service| service.metadata.clone());
        let now = self.stored.services.get(pod).map(|service| &service.metadata);
        let (Some(seen), Some(now)) = (seen, now) else { return false };
        if seen.uid != now.uid || (only_if_unchanged && seen.resource_version != now.resource_version) {
            return false;
        }
        self.patch_service(pod, change);
        self.refresh_sidecar(pod);
        true
    }

    /// The sidecar acts on the Service that it last observed. Returns whether there was something to do.
    pub(crate) fn run_sidecar(&mut self, pod: &str) -> bool {
        let Some(node) = self.nodes.get(pod).cloned() else { return false };
        let Some(seen) = &node.seen else { return false };
        let labels = seen.metadata.labels.clone().unwrap_or_default();
        let annotations = seen.metadata.annotations.clone().unwrap_or_default();
        let is_in = self.ring.contains(&node.host_id);
        let observation = Observation {
            host_id: node.host_id.clone(),
            is_member: Some(is_in),
            is_leaving: matches!(node.mode, Mode::Leaving | Mode::Decommissioned),
            ring: (is_in && node.mode == Mode::Normal && !node.view.host_ids.is_empty())
                .then(|| node.view.host_ids.keys().cloned().collect()),
        };
        let facts = changes(&annotations, &observation);
        if !facts.is_empty() {
            return self.write_as_sidecar(pod, &json!({"metadata": {"annotations": facts}}), false);
        }
        let pod_uid = self.stored.pods.get(pod).and_then(|pod| pod.metadata.uid.as_deref());
        let pod_uid = pod_uid.filter(|_| !self.has_old_sidecars);
        let answer = question(&annotations)
            .filter(|_| node.mode == Mode::Normal)
            .map(|asked| RingAnswer::new(asked, &node.host_id, pod_uid, &node.view));
        if let Some(text) = change(&annotations, answer.as_ref()) {
            return self.write_as_sidecar(pod, &json!({"metadata": {"annotations": {RING_ANSWER: text}}}), false);
        }
        if self.prepare_upgrade(pod, &node.host_id, &node.mode, &annotations) {
            return true;
        }
        let asked = DecommissionRequest::of(&labels, &annotations);
        if let Some(why) = node.refusal
            && node.mode == Mode::Normal
            && asked.began == Some(&node.host_id)
        {
            let refusal = Refusal::new(&node.host_id, why).text();
            let report = json!({"metadata": {"annotations": {LEAVING_BEGAN: null, LEAVING_REFUSED: refusal}}});
            let is_written = self.write_as_sidecar(pod, &report, true);
            if is_written {
                self.nodes.get_mut(pod).unwrap().refusal = None;
            }
            return is_written;
        }
        if let Some(refusal) = Refusal::with_retry(&annotations, &node.host_id, asked.names(&node.host_id)) {
            let report = json!({"metadata": {"annotations": {LEAVING_REFUSED: refusal.text()}}});
            return self.write_as_sidecar(pod, &report, true);
        }
        if is_refusal_over(&annotations, &node.host_id, node.mode == Mode::Leaving) {
            return self.write_as_sidecar(pod, &json!({"metadata": {"annotations": {LEAVING_REFUSED: null}}}), false);
        }
        match step(asked, &node.host_id, &node.mode, true) {
            DecommissionStep::Announce => {
                self.write_as_sidecar(pod, &json!({"metadata": {"annotations": {LEAVING_BEGAN: node.host_id}}}), true)
            }
            DecommissionStep::Start => {
                assert_eq!(self.nodes_in_transition(pod), 0, "{pod} leaves while another node joins or leaves");
                assert_eq!(self.running_jobs(), [""; 0], "{pod} leaves while nodes are cleaned up");
                let refusal = match self.down().is_empty() {
                    false => Some("a node is down"),
                    true if self.ring.len() <= self.min_nodes || self.refusing_nodes.contains(pod) => {
                        Some("too few nodes would stay")
                    }
                    true => None,
                };
                let node = self.nodes.get_mut(pod).unwrap();
                node.refusal = refusal;
                if refusal.is_none() {
                    node.mode = Mode::Leaving;
                }
                true
            }
            DecommissionStep::Confirm => {
                self.write_as_sidecar(pod, &json!({"metadata": {"labels": {DECOMMISSIONED: "true"}}}), false)
            }
            DecommissionStep::Nothing | DecommissionStep::Wait | DecommissionStep::Restart => false,
        }
    }
}
