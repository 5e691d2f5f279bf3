//! Snapshots for an upgrade: the requests to take and to remove them, and the nodes' progress with them.

use messina_api::names::annotation::{SKIP_UPGRADE_HOOKS, UPGRADE_ANSWER, UPGRADE_REQUEST};
use messina_text::Reason;
use serde_json::json;

use crate::{
    datacenter::{
        model::component::Component,
        racks::Racks,
        reasons,
        state::{
            member::Member,
            upgrade::{Node, has_upgrade_annotations},
        },
        topology::steps::Steps,
    },
    node::upgrade::{Failure, Kept, Snapshot, UpgradeRequest, UpgradeStep},
};

/// What is true of the upgrade of all nodes.
#[derive(Debug, PartialEq, Eq)]
enum UpgradeState {
    /// The user skips the upgrade hooks.
    Skipped,
    /// A node is replaced or under maintenance: requests stay as they are.
    Held,
    /// All nodes run the desired version, are up, and keep no snapshots any more.
    Cleared,
    /// All nodes run the desired version and are up, and a node keeps snapshots.
    Complete,
    /// A node was requested to prepare, and not all nodes are upgraded. That continues while other things change.
    InProgress,
    /// No node was requested to prepare, and the next node could restart now.
    Beginning,
    /// No node was requested to prepare, and no node has to restart, or something else changes.
    NotBegun,
}

/// What decides about the upgrade of all nodes.
#[derive(Clone, Copy)]
struct UpgradeFacts {
    skips_hooks: bool,
    is_held: bool,
    /// Whether a Service has annotations of an upgrade.
    has_annotations: bool,
    /// Whether all nodes run the desired version and are up.
    are_upgraded: bool,
    /// Whether all nodes with annotations have confirmed that they keep no snapshots.
    are_clear: bool,
    /// Whether there is a node that restarts next.
    has_next: bool,
}

impl UpgradeFacts {
    fn state(self) -> UpgradeState {
        if self.skips_hooks {
            UpgradeState::Skipped
        } else if self.is_held {
            UpgradeState::Held
        } else if self.has_annotations && self.are_upgraded && self.are_clear {
            UpgradeState::Cleared
        } else if self.has_annotations && self.are_upgraded {
            UpgradeState::Complete
        } else if self.has_annotations {
            UpgradeState::InProgress
        } else if self.has_next {
            UpgradeState::Beginning
        } else {
            UpgradeState::NotBegun
        }
    }
}

/// What is true of the preparation of a node for the desired version.
#[derive(Debug, PartialEq, Eq)]
enum Preparation<'a> {
    /// It runs the desired version and is up, so it does not need the snapshot of its data any more.
    Upgraded(&'a UpgradeRequest),
    /// It runs the desired version, and was not requested to prepare or is not up yet.
    Restarted,
    /// It goes back to the version before, for which it needs no snapshots.
    RollsBack,
    /// The version that it runs is unknown.
    VersionUnknown,
    /// It is down, and may be about to start with the snapshots for another version: see `is_prepared_for`.
    DownWithSnapshots,
    /// Its sidecar has yet to clear a snapshot, which is not requested again before.
    Clearing,
    /// It can prepare for the upgrade from this version, or has done so with these snapshots.
    MayPrepare(&'a str, Kept),
}

fn preparation<'a>(node: &'a Node<'_>, target: &str, is_up: bool) -> Preparation<'a> {
    let asked = node.request.as_ref().filter(|_| node.is_asked_for(target));
    match (&node.request, &node.version) {
        (Some(request), _) if node.runs(target) && is_up => Preparation::Upgraded(request),
        _ if node.runs(target) => Preparation::Restarted,
        _ if node.rolls_back_to(target) => Preparation::RollsBack,
        (_, None) => Preparation::VersionUnknown,
        _ if asked.is_none() && !is_up && node.keeps(&[Snapshot::Data]) => Preparation::DownWithSnapshots,
        _ if asked.is_some() && node.has_snapshots_to_clear() => Preparation::Clearing,
        // The snapshots for this version stay until the node is up again.
        (_, Some(from)) => Preparation::MayPrepare(from, asked.map_or_else(Kept::new, |asked| asked.keep.clone())),
    }
}

/// Requests the snapshots of an upgrade from its nodes, and their removal. Requests nothing while a node is replaced or
/// under maintenance (`is_held`).
pub(super) fn request_snapshots(
    steps: &mut Steps<'_>,
    racks: &Racks<'_>,
    members: &[Member<'_>],
    nodes: &[Node<'_>],
    is_held: bool,
) {
    let datacenter = &steps.observed.datacenter;
    let marked: Vec<&Node<'_>> = nodes.iter().filter(|node| has_upgrade_annotations(&node.member)).collect();
    let facts = UpgradeFacts {
        skips_hooks: datacenter.skips_upgrade_hooks,
        is_held,
        has_annotations: members.iter().any(has_upgrade_annotations),
        are_upgraded: racks.are_done() && nodes.iter().all(|node| node.runs(&datacenter.version)),
        are_clear: marked.iter().all(|node| is_clear(node)),
        has_next: racks.next.is_some(),
    };
    match facts.state() {
        UpgradeState::Skipped => skip_hooks(steps, members),
        UpgradeState::Cleared => remove_requests(steps, &marked),
        UpgradeState::Complete => request_removal(steps, &marked),
        UpgradeState::InProgress => prepare_nodes(steps, racks, nodes, true),
        UpgradeState::Beginning => prepare_nodes(steps, racks, nodes, false),
        UpgradeState::Held | UpgradeState::NotBegun => {}
    }
}

/// Removes all requests, because the user skips the upgrade hooks.
fn skip_hooks(steps: &mut Steps<'_>, members: &[Member<'_>]) {
    for member in members.iter().filter(|member| has_upgrade_annotations(member)) {
        let message = format!(
            "Node {} takes no more snapshots for the upgrade: the ScyllaDBDatacenter has annotation \
             {SKIP_UPGRADE_HOOKS}=true.",
            steps.node_reference(member)
        );
        clear_request(steps, member, (reasons::UPGRADE_HOOKS_SKIPPED, message));
    }
}

fn clear_request(steps: &mut Steps<'_>, member: &Member<'_>, event: (Reason, String)) {
    let patch = json!({"annotations": {UPGRADE_REQUEST: null, UPGRADE_ANSWER: null}});
    steps.change_member(member, patch, Some(event));
}

/// Writes to the Service of each node which snapshots it has to keep now.
fn prepare_nodes(steps: &mut Steps<'_>, racks: &Racks<'_>, nodes: &[Node<'_>], mut has_begun: bool) {
    let target = &steps.observed.datacenter.version;
    let next = racks.next.as_ref().map(|next| next.member());
    // A snapshot of data takes disk space, so it is not requested while the upgrade cannot continue.
    let are_all_prepared = nodes.iter().all(|node| node.is_prepared_with(&[Snapshot::System], target));
    for node in nodes {
        let request = match preparation(node, target, racks.is_up(node.member.stateful_set)) {
            Preparation::Upgraded(asked) => {
                let keep = asked.keep.iter().copied().filter(|one| *one != Snapshot::Data).collect();
                UpgradeRequest { keep, ..asked.clone() }
            }
            Preparation::MayPrepare(from, mut keep) => {
                keep.insert(Snapshot::System);
                if next.as_deref() == Some(node.member.name) && are_all_prepared {
                    keep.insert(Snapshot::Data);
                }
                let (host_id, from, to) = (node.host_id.to_owned(), from.to_owned(), target.clone());
                UpgradeRequest { host_id, from, to, keep }
            }
            Preparation::Restarted
            | Preparation::RollsBack
            | Preparation::VersionUnknown
            | Preparation::DownWithSnapshots
            | Preparation::Clearing => continue,
        };
        if node.request.as_ref() != Some(&request) {
            let event = event_of(steps, node, &request, &mut has_begun);
            write_request(steps, node, &request, event);
        }
    }
}

/// Returns the event for a new request, if there is one.
fn event_of(
    steps: &Steps<'_>,
    node: &Node<'_>,
    request: &UpgradeRequest,
    has_begun: &mut bool,
) -> Option<(Reason, String)> {
    let name = steps.node_reference(&node.member);
    let before = node.request.as_ref().filter(|asked| asked.to == request.to);
    let had_data = before.is_some_and(|asked| asked.keep.contains(&Snapshot::Data));
    if !std::mem::replace(has_begun, true) {
        let message = format!(
            "Upgrading from version {} to {}. First, all nodes agree on the schema and take snapshots of their system \
             keyspaces.",
            request.from, request.to
        );
        return Some((reasons::UPGRADE_BEGINS, message));
    }
    match (had_data, request.keep.contains(&Snapshot::Data)) {
        (false, true) => {
            let message =
                format!("Node {name} takes a snapshot of its data, and then restarts with version {}.", request.to);
            Some((reasons::PREPARING_NODE, message))
        }
        (true, false) => {
            let version = node.version.as_deref().unwrap_or_default();
            Some((
                reasons::NODE_UPGRADED,
                format!("Node {name} is up with version {version}. It removes the snapshot of its data."),
            ))
        }
        _ => None,
    }
}

/// Writes a request, and removes the answer to another one.
fn write_request(steps: &mut Steps<'_>, node: &Node<'_>, request: &UpgradeRequest, event: Option<(Reason, String)>) {
    let mut annotations = json!({UPGRADE_REQUEST: request.text()});
    let is_same = node.request.as_ref().is_some_and(|asked| asked.to == request.to && asked.from == request.from);
    if !is_same && node.member.service.upgrade_answer.is_some() {
        annotations[UPGRADE_ANSWER] = serde_json::Value::Null;
    }
    steps.require_unchanged_claim_and_pod(&node.member);
    steps.change_member(&node.member, json!({"annotations": annotations}), event);
}

/// Whether a node has confirmed that it keeps no snapshots.
fn is_clear(node: &Node<'_>) -> bool {
    match &node.request {
        Some(request) => request.keep.is_empty() && node.is_done(),
        // What is left is for another host ID, or cannot be parsed.
        None => true,
    }
}

/// Removes the requests when all nodes run the desired version and keep no snapshots.
fn remove_requests(steps: &mut Steps<'_>, marked: &[&Node<'_>]) {
    let target = &steps.observed.datacenter.version;
    for node in marked {
        let message = format!("All nodes run version {target}. The snapshots of the upgrade are removed.");
        steps.require_unchanged_claim_and_pod(&node.member);
        clear_request(steps, &node.member, (reasons::UPGRADE_DONE, message));
    }
}

/// Requests the removal of all snapshots when all nodes run the desired version.
fn request_removal(steps: &mut Steps<'_>, marked: &[&Node<'_>]) {
    for node in marked {
        let Some(asked) = &node.request else { continue };
        if !asked.keep.is_empty() {
            write_request(steps, node, &UpgradeRequest { keep: Kept::new(), ..asked.clone() }, None);
        }
        if !is_clear(node) {
            report_preparation(steps, node, "remove the snapshots that it took for the upgrade");
        }
    }
}

/// Reports what a node still has to do for the upgrade, or why that failed.
pub(super) fn report_preparation(steps: &mut Steps<'_>, node: &Node<'_>, what: &str) {
    let name = steps.node_reference(&node.member);
    let to = node.request.as_ref().map_or(&steps.observed.datacenter.version, |request| &request.to).clone();
    let failed = node.answer.as_ref().and_then(|answer| answer.failed.as_ref());
    if let Some(Failure { step, why }) = failed {
        let (reason, failure, remedy) = match step {
            UpgradeStep::Schema => (
                reasons::SCHEMA_DISAGREEMENT,
                "does not see all nodes agree on the schema",
                "Check that all nodes are up. Restart nodes that continue to disagree",
            ),
            UpgradeStep::SystemSnapshot => (
                reasons::SNAPSHOT_FAILED,
                "could not take a snapshot of its system keyspaces",
                "Check that its disk has free space",
            ),
            UpgradeStep::DataSnapshot => (
                reasons::SNAPSHOT_FAILED,
                "could not take a snapshot of its data",
                "Check that its disk has free space",
            ),
            UpgradeStep::Clearing => (
                reasons::SNAPSHOT_NOT_REMOVED,
                "could not remove snapshots",
                "Check its logs, or remove them with `nodetool clearsnapshot`",
            ),
        };
        let message = format!(
            "Upgrade to version {to}: node {name} {failure}: {why}. The sidecar tries again. {remedy}. To cancel the \
             upgrade, restore the former image."
        );
        return steps.report_degraded(Component::StatefulSet, reason, message);
    }
    let remedy = if node.member.answers() {
        String::new()
    } else {
        format!(
            " If its sidecar is of a version that does not support this, set annotation {SKIP_UPGRADE_HOOKS}=true on \
             the ScyllaDBDatacenter."
        )
    };
    let message = format!("Upgrade to version {to}: waiting for node {name} to {what}.{remedy}");
    steps.report_progressing(Component::StatefulSet, reasons::PREPARING_UPGRADE, message);
}

#[cfg(test)]
mod tests;
