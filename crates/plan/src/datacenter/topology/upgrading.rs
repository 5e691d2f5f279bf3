//! What nodes do before and after an upgrade.
//!
//! Before the first node restarts, all nodes agree on the schema and take a snapshot of their system keyspaces. Before
//! a node restarts, it also takes a snapshot of its data, which it removes when it is up again. When all nodes are
//! upgraded, they remove the other snapshots. The operator writes requests for all of that to the nodes' Services, and
//! decides from the answers there and from the versions that pods run. It stores nothing else.

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
            upgrade::{Node, has_upgrade_annotations, is_upgraded, version},
        },
        topology::steps::Steps,
    },
    node::upgrade::{Failure, Kept, Snapshot, UpgradeRequest, UpgradeStep},
};

/// Requests the snapshots of an upgrade and their removal, and decides whether the next node may restart. Requests
/// nothing while a node is replaced or under maintenance (`is_held`).
pub(crate) fn prepare(steps: &mut Steps<'_>, racks: &Racks<'_>, is_held: bool) {
    let observed = steps.observed;
    let members: Vec<Member<'_>> =
        steps.ring.members.iter().copied().filter(|one| is_upgraded(observed, one)).collect();
    if observed.datacenter.skips_upgrade_hooks {
        clear_requests(steps, &members);
    } else if !is_held {
        request_snapshots(steps, racks, &members);
    }
    let Some(next) = &racks.next else { return };
    let name = next.member();
    let is_ready = may_restart(steps, &members, &name);
    steps.topology.blocks_restart |= !is_ready || steps.topology.is_leaving || is_held;
    let nodes = steps.ring.others(observed, "");
    let others_answer = nodes.len() > 1 && nodes.iter().any(|node| node.answers());
    if steps.topology.blocks_restart {
        return;
    }
    steps.needs_ring |= others_answer;
    let answered = if others_answer { steps.ring.check_restart(observed, &[]) } else { Ok(()) };
    // Sidecars of scylla-operator do not answer, but they may write status reports.
    if let Err(reason) = answered.and_then(|()| steps.ring.reports_let_restart(observed)) {
        steps.topology.blocks_restart = true;
        let node = format!("{}/{name}", observed.datacenter.namespace);
        let message = format!("Node {node} has to restart. Waiting until all nodes see each other up: {reason}.");
        steps.report_progressing(Component::StatefulSet, reasons::WAITING_FOR_RING, message);
    }
}

/// Removes all requests, because the user skips the upgrade hooks.
fn clear_requests(steps: &mut Steps<'_>, members: &[Member<'_>]) {
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
fn request_snapshots(steps: &mut Steps<'_>, racks: &Racks<'_>, members: &[Member<'_>]) {
    let observed = steps.observed;
    let target = &observed.datacenter.version;
    let is_under_way = members.iter().any(has_upgrade_annotations);
    let nodes: Vec<Node<'_>> = members.iter().filter_map(|member| Node::of(observed, *member)).collect();
    let is_over = racks.are_done() && nodes.iter().all(|node| node.runs(target));
    if is_under_way && is_over {
        return finish_upgrade(steps, &nodes);
    }
    // No request is written while something else changes; requests that were written stay.
    let may_begin = is_under_way || racks.next.is_some();
    let next = racks.next.as_ref().map(|next| next.member());
    let mut has_begun = is_under_way;
    // A snapshot of data takes disk space, so it is not requested while the upgrade cannot continue.
    let are_all_prepared = nodes.iter().all(|node| node.is_prepared_with(&[Snapshot::System], target));
    for node in nodes.iter().filter(|_| may_begin) {
        let is_next = next.as_deref() == Some(node.member.name) && are_all_prepared;
        let Some(request) = next_request(node, target, is_next, racks.is_up(node.member.stateful_set)) else {
            continue;
        };
        if node.request.as_ref() == Some(&request) {
            continue;
        }
        let event = event_of(steps, node, &request, &mut has_begun);
        write_request(steps, node, &request, event);
    }
}

/// Returns the request for a node; none where it stays as it is.
fn next_request(node: &Node<'_>, target: &str, is_next: bool, is_up: bool) -> Option<UpgradeRequest> {
    if node.runs(target) {
        let asked = node.request.clone().filter(|_| is_up)?;
        let keep = asked.keep.iter().copied().filter(|one| *one != Snapshot::Data).collect();
        return Some(UpgradeRequest { keep, ..asked });
    }
    if node.rolls_back_to(target) {
        return None;
    }
    let from = node.version.clone()?;
    let asked = node.request.as_ref().filter(|_| node.is_asked_for(target));
    // The snapshots for another version may be those with which it restarts now: see `is_prepared_for`.
    if asked.is_none() && !is_up && node.keeps(&[Snapshot::Data]) {
        return None;
    }
    if asked.is_some() && node.has_snapshots_to_clear() {
        return None;
    }
    // The snapshots for this version stay until the node is up again.
    let mut keep = asked.map_or_else(Kept::new, |asked| asked.keep.clone());
    keep.insert(Snapshot::System);
    if is_next {
        keep.insert(Snapshot::Data);
    }
    Some(UpgradeRequest { host_id: node.host_id.to_owned(), from, to: target.to_owned(), keep })
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

/// Requests the removal of all snapshots when all nodes run the desired version, and then removes the requests.
fn finish_upgrade(steps: &mut Steps<'_>, nodes: &[Node<'_>]) {
    let target = &steps.observed.datacenter.version;
    let marked: Vec<&Node<'_>> = nodes.iter().filter(|node| has_upgrade_annotations(&node.member)).collect();
    let is_clear = |node: &&Node<'_>| match &node.request {
        Some(request) => request.keep.is_empty() && node.is_done(),
        // What is left is for another host ID, or cannot be parsed.
        None => true,
    };
    if marked.iter().all(is_clear) {
        for node in &marked {
            let message = format!("All nodes run version {target}. The snapshots of the upgrade are removed.");
            steps.require_unchanged_claim_and_pod(&node.member);
            clear_request(steps, &node.member, (reasons::UPGRADE_DONE, message));
        }
        return;
    }
    for node in marked {
        let Some(asked) = &node.request else { continue };
        if !asked.keep.is_empty() {
            write_request(steps, node, &UpgradeRequest { keep: Kept::new(), ..asked.clone() }, None);
        }
        if !is_clear(&node) {
            report_preparation(steps, node, "remove the snapshots that it took for the upgrade");
        }
    }
}

/// Whether the node of this name may restart: its version stays or goes back to the one before, or all nodes are
/// prepared. Reports the nodes that are not prepared.
fn may_restart(steps: &mut Steps<'_>, members: &[Member<'_>], name: &str) -> bool {
    let observed = steps.observed;
    let target = &observed.datacenter.version;
    let member = steps.ring.members.iter().find(|member| member.name == name);
    let is_same = member.is_some_and(|member| version(observed, member).as_ref() == Some(target));
    if observed.datacenter.skips_upgrade_hooks || is_same {
        return true;
    }
    // The node is ready, so its sidecar is about to write that it has joined.
    let next = members.iter().find(|member| member.name == name).and_then(|member| Node::of(observed, *member));
    let Some(next) = next else {
        let node = format!("{}/{name}", observed.datacenter.namespace);
        let message =
            format!("Node {node} has to restart. Waiting for its sidecar to write to the Service that it has joined.");
        steps.report_progressing(Component::StatefulSet, reasons::WAITING_FOR_HOST_ID, message);
        return false;
    };
    if next.runs(target) || next.rolls_back_to(target) {
        return true;
    }
    let nodes: Vec<Node<'_>> = members.iter().filter_map(|member| Node::of(observed, *member)).collect();
    let mut is_ready = true;
    for node in nodes.iter().filter(|node| !node.is_prepared_with(&[Snapshot::System], target)) {
        report_preparation(steps, node, "agree on the schema and take a snapshot of its system keyspaces");
        is_ready = false;
    }
    if is_ready && !next.is_prepared_with(&[Snapshot::System, Snapshot::Data], target) {
        report_preparation(steps, &next, "take a snapshot of its data");
        is_ready = false;
    }
    is_ready
}

/// Reports what a node still has to do for the upgrade, or why that failed.
fn report_preparation(steps: &mut Steps<'_>, node: &Node<'_>, what: &str) {
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
