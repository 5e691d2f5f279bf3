//! What nodes do before and after their version changes.
//!
//! Before the first one restarts, all agree on the schema and keep a snapshot of their system keyspaces; before one
//! restarts, it keeps a snapshot of its data too, which is removed when it is back; when all are done, the others are. All
//! of that is asked for on the nodes' Services, and decided from what they answer there and from the versions that pods
//! run: nothing else has to be remembered.

use messina_api::names::annotation::{SKIP_UPGRADE_HOOKS, UPGRADE_ANSWER, UPGRADE_REQUEST};
use serde_json::json;

use crate::{
    datacenter::{
        model::component::Component,
        racks::Racks,
        state::{
            member::Member,
            upgrade::{Node, has_upgrade_annotations, is_upgraded, version},
        },
        topology::steps::Steps,
    },
    node::upgrade::{Failure, Kept, Snapshot, UpgradeRequest, UpgradeStep},
};

/// Has nodes prepare for another version and clear up after it, and decides whether the next one may restart. Nothing of that
/// goes on while a node is replaced or under maintenance.
pub(crate) fn prepare(steps: &mut Steps<'_>, racks: &Racks<'_>, is_held: bool) {
    let observed = steps.observed;
    let members: Vec<Member<'_>> =
        steps.ring.members.iter().copied().filter(|one| is_upgraded(observed, one)).collect();
    if observed.datacenter.skips_upgrade_hooks {
        forget_all(steps, &members);
    } else if !is_held {
        ask_nodes(steps, racks, &members);
    }
    let Some(next) = &racks.next else { return };
    let name = next.member();
    let is_ready = may_restart(steps, &members, &name);
    steps.done.holds_restart |= !is_ready || steps.done.is_leaving || is_held;
    let nodes = steps.ring.others(observed, "");
    let others_answer = nodes.len() > 1 && nodes.iter().any(|node| node.answers());
    if steps.done.holds_restart {
        return;
    }
    steps.asks |= others_answer;
    let answered = if others_answer { steps.ring.check_restart(observed, &[]) } else { Ok(()) };
    // Sidecars of scylla-operator do not answer, but they may report.
    if let Err(reason) = answered.and_then(|()| steps.ring.reports_let_restart(observed)) {
        steps.done.holds_restart = true;
        let node = format!("{}/{name}", observed.datacenter.namespace);
        let message = format!("node {node} is to restart, and does when all nodes see each other up; {reason}");
        steps.wait(Component::StatefulSet, "WaitingForRing", message);
    }
}

fn forget_all(steps: &mut Steps<'_>, members: &[Member<'_>]) {
    for member in members.iter().filter(|member| has_upgrade_annotations(member)) {
        let message = format!("node {} is not asked to prepare for another version any more", steps.named(member));
        forget(steps, member, ("UpgradeHooksSkipped", message));
    }
}

fn forget(steps: &mut Steps<'_>, member: &Member<'_>, event: (&'static str, String)) {
    let patch = json!({"annotations": {UPGRADE_REQUEST: null, UPGRADE_ANSWER: null}});
    steps.change_member(member, patch, Some(event));
}

/// Writes what each node is to keep now.
fn ask_nodes(steps: &mut Steps<'_>, racks: &Racks<'_>, members: &[Member<'_>]) {
    let observed = steps.observed;
    let target = &observed.datacenter.version;
    let is_under_way = members.iter().any(has_upgrade_annotations);
    let nodes: Vec<Node<'_>> = members.iter().filter_map(|member| Node::of(observed, *member)).collect();
    let is_over = racks.are_done() && nodes.iter().all(|node| node.runs(target));
    if is_under_way && is_over {
        return clear_up(steps, &nodes);
    }
    // Nobody is asked while something else changes; who is asked goes on.
    let may_begin = is_under_way || racks.next.is_some();
    let next = racks.next.as_ref().map(|next| next.member());
    let mut has_begun = is_under_way;
    // A snapshot of data takes room, which it need not while the change cannot go on.
    let are_all_prepared = nodes.iter().all(|node| node.is_prepared_with(&[Snapshot::System], target));
    for node in nodes.iter().filter(|_| may_begin) {
        let is_next = next.as_deref() == Some(node.member.name) && are_all_prepared;
        let Some(request) = wanted(node, target, is_next, racks.is_up(node.member.stateful_set)) else { continue };
        if node.request.as_ref() == Some(&request) {
            continue;
        }
        let event = told(steps, node, &request, &mut has_begun);
        write(steps, node, &request, event);
    }
}

/// What a node is to be asked for; none where that stays as it is.
fn wanted(node: &Node<'_>, target: &str, is_next: bool, is_up: bool) -> Option<UpgradeRequest> {
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
    // What it was prepared with for another version may be what it restarts with now: see `is_prepared_for`.
    if asked.is_none() && !is_up && node.keeps(&[Snapshot::Data]) {
        return None;
    }
    if asked.is_some() && node.has_snapshots_to_clear() {
        return None;
    }
    // What it keeps for this version stays until it is back.
    let mut keep = asked.map_or_else(Kept::new, |asked| asked.keep.clone());
    keep.insert(Snapshot::System);
    if is_next {
        keep.insert(Snapshot::Data);
    }
    Some(UpgradeRequest { host_id: node.host_id.to_owned(), from, to: target.to_owned(), keep })
}

fn told(
    steps: &Steps<'_>,
    node: &Node<'_>,
    request: &UpgradeRequest,
    has_begun: &mut bool,
) -> Option<(&'static str, String)> {
    let name = steps.named(&node.member);
    let before = node.request.as_ref().filter(|asked| asked.to == request.to);
    let had_data = before.is_some_and(|asked| asked.keep.contains(&Snapshot::Data));
    if !std::mem::replace(has_begun, true) {
        let message = format!(
            "the version changes from {} to {}; first, all nodes agree on the schema and keep snapshots of their system keyspaces",
            request.from, request.to
        );
        return Some(("UpgradeBegins", message));
    }
    match (had_data, request.keep.contains(&Snapshot::Data)) {
        (false, true) => {
            let message =
                format!("node {name} keeps a snapshot of its data, then it restarts with version {}", request.to);
            Some(("PreparingNode", message))
        }
        (true, false) => {
            let version = node.version.as_deref().unwrap_or_default();
            Some(("NodeUpgraded", format!("node {name} is back with version {version}; the snapshot of its data goes")))
        }
        _ => None,
    }
}

/// A request takes away what was answered to another one.
fn write(steps: &mut Steps<'_>, node: &Node<'_>, request: &UpgradeRequest, event: Option<(&'static str, String)>) {
    let mut annotations = json!({UPGRADE_REQUEST: request.text()});
    let is_same = node.request.as_ref().is_some_and(|asked| asked.to == request.to && asked.from == request.from);
    if !is_same && node.member.service.upgrade_answer.is_some() {
        annotations[UPGRADE_ANSWER] = serde_json::Value::Null;
    }
    steps.rests_on_belongings(&node.member);
    steps.change_member(&node.member, json!({"annotations": annotations}), event);
}

/// All nodes run the version that is asked for: no snapshot is kept, and then nothing is asked any more.
fn clear_up(steps: &mut Steps<'_>, nodes: &[Node<'_>]) {
    let target = &steps.observed.datacenter.version;
    let marked: Vec<&Node<'_>> = nodes.iter().filter(|node| has_upgrade_annotations(&node.member)).collect();
    let is_clear = |node: &&Node<'_>| match &node.request {
        Some(request) => request.keep.is_empty() && node.is_done(),
        // Another node said it, or nobody.
        None => true,
    };
    if marked.iter().all(is_clear) {
        for node in &marked {
            let message =
                format!("all nodes run version {target}, and the snapshots that were taken for that are removed");
            steps.rests_on_belongings(&node.member);
            forget(steps, &node.member, ("UpgradeDone", message));
        }
        return;
    }
    for node in marked {
        let Some(asked) = &node.request else { continue };
        if !asked.keep.is_empty() {
            write(steps, node, &UpgradeRequest { keep: Kept::new(), ..asked.clone() }, None);
        }
        if !is_clear(&node) {
            tell(steps, node, "remove the snapshots that it took for the change of the version");
        }
    }
}

/// Whether the node of this name may restart: it stays at its version or goes back to the one before, or all are prepared.
/// If not, it is told who is waited for.
fn may_restart(steps: &mut Steps<'_>, members: &[Member<'_>], name: &str) -> bool {
    let observed = steps.observed;
    let target = &observed.datacenter.version;
    let member = steps.ring.members.iter().find(|member| member.name == name);
    let is_same = member.is_some_and(|member| version(observed, member).as_ref() == Some(target));
    if observed.datacenter.skips_upgrade_hooks || is_same {
        return true;
    }
    // It is ready, so it will say in a moment that it has joined.
    let next = members.iter().find(|member| member.name == name).and_then(|member| Node::of(observed, *member));
    let Some(next) = next else {
        let node = format!("{}/{name}", observed.datacenter.namespace);
        let message = format!("node {node} is to restart; its Service does not say yet that it has joined");
        steps.wait(Component::StatefulSet, "WaitingForHostId", message);
        return false;
    };
    if next.runs(target) || next.rolls_back_to(target) {
        return true;
    }
    let nodes: Vec<Node<'_>> = members.iter().filter_map(|member| Node::of(observed, *member)).collect();
    let mut is_ready = true;
    for node in nodes.iter().filter(|node| !node.is_prepared_with(&[Snapshot::System], target)) {
        tell(steps, node, "agree on the schema and keep a snapshot of its system keyspaces");
        is_ready = false;
    }
    if is_ready && !next.is_prepared_with(&[Snapshot::System, Snapshot::Data], target) {
        tell(steps, &next, "keep a snapshot of its data");
        is_ready = false;
    }
    is_ready
}

/// Says what a node has yet to do, or why it could not.
fn tell(steps: &mut Steps<'_>, node: &Node<'_>, what: &str) {
    let name = steps.named(&node.member);
    let to = node.request.as_ref().map_or(&steps.observed.datacenter.version, |request| &request.to).clone();
    let failed = node.answer.as_ref().and_then(|answer| answer.failed.as_ref());
    if let Some(Failure { step, why }) = failed {
        let (reason, failure, remedy) = match step {
            UpgradeStep::Schema => (
                "SchemaDisagreement",
                "does not see all nodes agree on the schema",
                "see that all nodes are up, and wait; nodes that go on to disagree have to be restarted",
            ),
            UpgradeStep::SystemSnapshot => (
                "SnapshotFailed",
                "could not take a snapshot of its system keyspaces",
                "see that there is room on its disk",
            ),
            UpgradeStep::DataSnapshot => {
                ("SnapshotFailed", "could not take a snapshot of its data", "see that there is room on its disk")
            }
            UpgradeStep::Clearing => (
                "SnapshotNotRemoved",
                "could not remove snapshots",
                "its logs say why; `nodetool clearsnapshot` removes them",
            ),
        };
        let message = format!(
            "for the change to version {to}, node {name} {failure}: {why}; it is tried again: {remedy}, or restore the former image"
        );
        return steps.fault(Component::StatefulSet, reason, message);
    }
    let remedy = if node.member.answers() {
        ""
    } else {
        "; its sidecar may be of a version that knows nothing of it: then set the annotation "
    };
    let skip = if node.member.answers() {
        String::new()
    } else {
        format!("{SKIP_UPGRADE_HOOKS}=true on the ScyllaDBDatacenter")
    };
    let message = format!("for the change to version {to}, node {name} has to {what}{remedy}{skip}");
    steps.wait(Component::StatefulSet, "PreparingUpgrade", message);
}
