//! What nodes do before and after an upgrade.
//!
//! Before the first node restarts, all nodes agree on the schema and take a snapshot of their system keyspaces. Before
//! a node restarts, it also takes a snapshot of its data, which it removes when it is up again. When all nodes are
//! upgraded, they remove the other snapshots. The operator writes requests for all of that to the nodes' Services, and
//! decides from the answers there and from the versions that pods run. It stores nothing else.

mod snapshots;

use crate::{
    datacenter::{
        model::component::Component,
        racks::Racks,
        reasons,
        state::{
            member::Member,
            upgrade::{Node, is_upgraded, version},
        },
        topology::{
            steps::Steps,
            upgrading::snapshots::{report_preparation, request_snapshots},
        },
    },
    node::upgrade::Snapshot,
};

/// What is true of the node that restarts next.
#[derive(Debug, PartialEq)]
enum RestartState<'a> {
    /// Its sidecar has not written that it has joined.
    HostIdUnknown,
    /// These nodes have no snapshot of their system keyspaces, which all nodes take before the first one restarts.
    SystemSnapshotsMissing(Vec<&'a Node<'a>>),
    /// It has no snapshot of its data.
    DataSnapshotMissing(&'a Node<'a>),
    /// It is prepared, or needs no snapshots, but another change goes first.
    Blocked,
    /// It is prepared, or needs no snapshots, but a node is not seen up, as the message says.
    RingUnhealthy(String),
    /// It may restart.
    Ready,
}

/// What decides about the node that restarts next.
#[derive(Clone)]
struct RestartFacts<'a> {
    /// The desired version.
    target: &'a str,
    /// Whether its version stays, or the user skips the upgrade hooks.
    needs_no_snapshots: bool,
    /// None where its sidecar has not written that it has joined.
    next: Option<&'a Node<'a>>,
    /// All nodes that are upgraded.
    nodes: &'a [Node<'a>],
    /// Whether a node leaves, is replaced or under maintenance, is in the ring without a replica, or has to restart for
    /// its address.
    is_blocked: bool,
    /// Whether all nodes see each other up, or why not.
    ring: Result<(), String>,
}

impl<'a> RestartFacts<'a> {
    fn state(self) -> RestartState<'a> {
        let has = |node: &Node<'_>, snapshots: &[Snapshot]| node.is_prepared_with(snapshots, self.target);
        let unprepared: Vec<&Node<'_>> = self.nodes.iter().filter(|node| !has(node, &[Snapshot::System])).collect();
        let rolls_back = self.next.is_some_and(|next| next.rolls_back_to(self.target));
        let needs_snapshots = !self.needs_no_snapshots && !rolls_back;
        match (self.next, self.ring) {
            (None, _) if needs_snapshots => RestartState::HostIdUnknown,
            _ if needs_snapshots && !unprepared.is_empty() => RestartState::SystemSnapshotsMissing(unprepared),
            (Some(next), _) if needs_snapshots && !has(next, &[Snapshot::System, Snapshot::Data]) => {
                RestartState::DataSnapshotMissing(next)
            }
            _ if self.is_blocked => RestartState::Blocked,
            (_, Err(report)) => RestartState::RingUnhealthy(report),
            (_, Ok(())) => RestartState::Ready,
        }
    }
}

/// Requests the snapshots of an upgrade and their removal, and decides whether the next node may restart. Requests
/// nothing while a node is replaced or under maintenance (`is_held`).
pub(crate) fn prepare(steps: &mut Steps<'_>, racks: &Racks<'_>, is_held: bool) {
    let observed = steps.observed;
    let members: Vec<Member<'_>> =
        steps.ring.members.iter().copied().filter(|one| is_upgraded(observed, one)).collect();
    let nodes: Vec<Node<'_>> = members.iter().filter_map(|member| Node::of(observed, *member)).collect();
    request_snapshots(steps, racks, &members, &nodes, is_held);
    if let Some(next) = &racks.next {
        prepare_restart(steps, &nodes, &next.member(), is_held);
    }
}

/// Decides whether the node of this name may restart, and reports what has to happen before.
fn prepare_restart(steps: &mut Steps<'_>, nodes: &[Node<'_>], name: &str, is_held: bool) {
    let (observed, ring) = (steps.observed, steps.ring);
    let target = &observed.datacenter.version;
    let member = ring.members.iter().find(|member| member.name == name);
    let is_same = member.is_some_and(|member| version(observed, member).as_ref() == Some(target));
    let others = ring.others(observed, "");
    let others_answer = others.len() > 1 && others.iter().any(|node| node.answers());
    let answered = if others_answer { ring.check_restart(observed, &[]) } else { Ok(()) };
    let facts = RestartFacts {
        target,
        needs_no_snapshots: observed.datacenter.skips_upgrade_hooks || is_same,
        next: nodes.iter().find(|node| node.member.name == name),
        nodes,
        is_blocked: steps.topology.blocks_restart || steps.topology.is_leaving || is_held,
        // Sidecars of scylla-operator do not answer, but they may write status reports.
        ring: answered.and_then(|()| ring.reports_let_restart(observed)),
    };
    let state = facts.state();
    steps.topology.blocks_restart = state != RestartState::Ready;
    let node = format!("{}/{name}", observed.datacenter.namespace);
    match state {
        // The node is ready, so its sidecar is about to write that it has joined.
        RestartState::HostIdUnknown => {
            let message = format!(
                "Node {node} has to restart. Waiting for its sidecar to write to the Service that it has joined."
            );
            steps.report_progressing(Component::StatefulSet, reasons::WAITING_FOR_HOST_ID, message);
        }
        RestartState::SystemSnapshotsMissing(nodes) => {
            for node in nodes {
                report_preparation(steps, node, "agree on the schema and take a snapshot of its system keyspaces");
            }
        }
        RestartState::DataSnapshotMissing(node) => report_preparation(steps, node, "take a snapshot of its data"),
        RestartState::Blocked => {}
        RestartState::RingUnhealthy(report) => {
            steps.needs_ring |= others_answer;
            let message = format!("Node {node} has to restart. Waiting until all nodes see each other up: {report}.");
            steps.report_progressing(Component::StatefulSet, reasons::WAITING_FOR_RING, message);
        }
        RestartState::Ready => steps.needs_ring |= others_answer,
    }
}

#[cfg(test)]
mod tests;
