//! In which order the racks change.
//!
//! At most one StatefulSet changes at a time, the first in the order of the specification: racks that are missing are
//! made, then racks get more nodes, then nodes get a new pod, one after another (see `restart`), then nodes leave (see
//! `topology`). Nothing new begins before everything is rolled out, because a node cannot join while another one is down.
//! Where nodes may start at the same time, all missing racks are made at once. A rolling change that has begun goes on to
//! its end before nodes join.
//!
//! Nodes that run under scylla-operator get a new pod before others join: a new node of its own would wait for scylla-operator to
//! tell it that all others are up.
//!
//! A StatefulSet that is gone while its nodes are there is another matter: it is made anew around them at once, whatever
//! else is under way, because nobody would start its pods again.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::StatefulSet;
use messina_api::names::{self, annotation::INPUTS_STAND_FOR, label};

use super::{
    Deletion, Kind, LeftAlone, Note, Observed, Part, Rack, Rolling, Turn,
    difference::{changes_pods, says_the_same},
    facts::{Claim, NodeService},
    joining::{has_cluster, may_be_corrected, may_be_joining},
    restart::{
        Restart, correcting, holding, is_settled, last_only, next_below_partition, nodes_down, nodes_not_ready,
        partition, set_partition, stuck, template_version,
    },
    stateful_set::{around_its_nodes, kept_in_place, stateful_set, take_new_hash},
    takeover::is_of_scylla_operator,
    topology::{Member, Topology, is_being_upgraded, is_prepared_for, known_nodes, members, nodes_without_place},
    validate::MOST_NODES,
};
use crate::words;

#[derive(Default)]
pub(crate) struct Rollout {
    pub(crate) stateful_sets: Vec<StatefulSet>,
    pub(crate) deletions: Vec<Deletion>,
    pub(crate) left_alone: Vec<LeftAlone>,
    pub(crate) waiting: Vec<Note>,
    pub(crate) wrong: Vec<Note>,
    /// StatefulSets that are as they are to be, but for the size of disks.
    pub(crate) as_wanted: BTreeSet<String>,
    /// StatefulSets of which another node may restart when they are written, or may not any more.
    pub(crate) restarting: BTreeSet<String>,
    /// StatefulSets that are made anew around their nodes.
    restored: BTreeSet<String>,
}

impl Rollout {
    /// Pods that start now would not find what they need: no rack is made or changed before.
    pub(crate) fn hold(&mut self, observed: &Observed, reason: &'static str, needed: &str) {
        let is_held =
            |one: &mut StatefulSet| one.metadata.name.as_ref().is_none_or(|name| !self.restored.contains(name));
        let names = self.stateful_sets.extract_if(.., is_held).filter_map(|stateful_set| stateful_set.metadata.name);
        let (existing, missing): (Vec<String>, Vec<String>) =
            names.partition(|name| observed.stateful_sets.contains_key(name));
        self.left_alone.extend(existing.into_iter().map(|name| LeftAlone { kind: "StatefulSet", name }));
        self.waiting.extend(missing.into_iter().map(|name| Note {
            part: Part::StatefulSet,
            reason,
            message: format!("StatefulSet {}/{name} is made as soon as {needed}", observed.datacenter.namespace),
        }));
    }
}

/// The racks of the specification, as they are and as they are to be.
pub(crate) struct Racks<'a> {
    standing: Vec<Standing<'a>>,
    missing: Vec<StatefulSet>,
    /// Those that are gone while their nodes are there.
    orphaned: Vec<StatefulSet>,
    wrong: Vec<Note>,
    /// What is not rolled out as far as it may be, also of racks that are not in the specification any more.
    moving: Vec<&'a StatefulSet>,
    /// A rolling change has begun, or comes before nodes join.
    is_rolling: bool,
    /// The node that restarts next.
    pub(crate) next: Option<Restart>,
}

impl Racks<'_> {
    /// How far a change of pods is.
    pub(crate) fn rolling(&self) -> Rolling {
        // What changes with the operator changes every rack.
        let changing = self.standing.iter().filter(|one| one.changes_pods).count();
        let has_begun = self.standing.iter().any(|one| partition(one.now) > 0);
        if has_begun || changing > 0 && changing < self.standing.len() {
            Rolling::Begun
        } else if changing > 0 && !self.are_all_up() {
            Rolling::Held
        } else if changing > 0 {
            Rolling::Pending
        } else if self.are_done() && self.orphaned.is_empty() {
            Rolling::Done
        } else {
            Rolling::Unsettled
        }
    }

    /// Whether all nodes that there are are up, and are as they are to be.
    pub(crate) fn are_done(&self) -> bool {
        let is_done = |one: &Standing<'_>| !one.changes_pods && partition(one.now) == 0;
        self.moving.is_empty() && self.standing.iter().all(is_done)
    }

    /// Whether anything of them is to change, or one is to be made.
    pub(crate) fn are_to_change(&self) -> bool {
        !self.missing.is_empty() || self.standing.iter().any(|one| one.changes)
    }

    /// Whether all nodes that there are are up.
    pub(crate) fn are_all_up(&self) -> bool {
        self.moving.is_empty() && self.orphaned.is_empty()
    }

    /// Whether all nodes of the StatefulSet are up.
    pub(crate) fn is_up(&self, stateful_set: &str) -> bool {
        self.moving.iter().all(|one| one.metadata.name.as_deref() != Some(stateful_set))
    }
}

/// A rack that is there, and what it is to become.
struct Standing<'a> {
    name: String,
    now: &'a StatefulSet,
    /// With the partition that it has now.
    wanted: StatefulSet,
    changes: bool,
    changes_pods: bool,
}

impl Standing<'_> {
    fn lacks_nodes(&self) -> bool {
        replicas(self.now) < replicas(&self.wanted)
    }

    /// As it is to be, but for more replicas.
    fn unscaled(self, partition: i32) -> StatefulSet {
        let mut unscaled = self.wanted;
        if let Some(spec) = unscaled.spec.as_mut() {
            spec.replicas = Some(replicas(self.now));
        }
        set_partition(&mut unscaled, partition);
        unscaled
    }

    /// With more replicas, and pods as they are: a node joins with the version that the others have.
    fn scaled_out(&self) -> StatefulSet {
        let mut scaled = self.wanted.clone();
        // Else it says the same in the words of the API server, which would be written, and then written back.
        if !self.changes_pods {
            return scaled;
        }
        if let (Some(scaled), Some(now)) = (scaled.spec.as_mut(), self.now.spec.as_ref()) {
            scaled.template.clone_from(&now.template);
        }
        scaled.metadata.labels.clone_from(&self.now.metadata.labels);
        // The template is the one that it speaks of.
        let stand_for = words::annotation(self.now, INPUTS_STAND_FOR);
        let stand_for = stand_for.map(|inputs| (INPUTS_STAND_FOR.to_owned(), inputs.to_owned()));
        scaled.metadata.annotations.get_or_insert_default().extend(stand_for);
        scaled
    }

    /// As it is, but for the partition.
    fn held_at(self, partition: i32) -> StatefulSet {
        let mut held = if self.lacks_nodes() || self.changes_pods { self.scaled_out() } else { self.wanted };
        if let Some(spec) = held.spec.as_mut() {
            spec.replicas = Some(replicas(self.now));
        }
        set_partition(&mut held, partition);
        held
    }

    /// With the partition that lets one more node restart, or none where none is left to.
    fn rolled_on(self, next: Option<&Restart>) -> StatefulSet {
        let mut rolled = self.wanted;
        let ordinal = next.filter(|next| next.stateful_set == self.name).map(|next| next.ordinal);
        set_partition(&mut rolled, ordinal.unwrap_or(0));
        rolled
    }
}

/// Looks at the racks, and finds out who restarts next.
pub(crate) fn racks(observed: &Observed) -> Racks<'_> {
    let (mut standing, mut missing, mut orphaned, mut wrong) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for rack in &observed.datacenter.racks {
        let wanted = stateful_set(observed, rack);
        let name = observed.datacenter.stateful_set_name(rack);
        match observed.stateful_sets.get(&name) {
            None => {
                let nodes = known_nodes(observed, &name).min(MOST_NODES);
                if nodes == 0 {
                    missing.push(wanted);
                    continue;
                }
                // Nodes that are there restart by our word, like all others.
                let mut restored = around_its_nodes(observed, rack, nodes);
                set_partition(&mut restored, nodes);
                orphaned.push(restored);
            }
            Some(now) => {
                let (mut wanted, faults) = kept_in_place(observed, wanted, now);
                wrong.extend(faults);
                set_partition(&mut wanted, partition(now));
                let changes_pods = changes_pods(&wanted, now) || is_of_scylla_operator(now);
                if changes_pods {
                    take_new_hash(&mut wanted);
                }
                let changes = changes_pods || !says_the_same(&wanted, now);
                standing.push(Standing { name, now, wanted, changes, changes_pods });
            }
        }
    }
    let moving = observed.stateful_sets.values().filter(|one| !is_settled(observed, one)).collect();
    let is_rolling = standing.iter().any(|one| partition(one.now) > 0 || is_of_scylla_operator(one.now))
        || is_being_upgraded(observed);
    let may_change = observed.turn == Turn::Own || rack_to_roll(&standing).is_none_or(|one| !one.changes_pods);
    let mut racks = Racks { standing, missing, orphaned, wrong, moving, is_rolling, next: None };
    racks.next = next_restart(observed, &racks).filter(|_| may_change);
    racks
}

/// The node that restarts next, when all nodes are there and none is to join before: the next one of a rack that is being
/// changed, or the last one of the first rack that is to change.
fn next_restart(observed: &Observed, racks: &Racks<'_>) -> Option<Restart> {
    let Racks { standing, missing, is_rolling, .. } = racks;
    let waits_for_nodes = !is_rolling && (!missing.is_empty() || standing.iter().any(Standing::lacks_nodes));
    if !racks.moving.is_empty() || waits_for_nodes || !racks.orphaned.is_empty() {
        return None;
    }
    let one = rack_to_roll(standing)?;
    let ordinal = if one.changes_pods {
        (replicas(one.now) > 0).then(|| last_only(one.now))
    } else {
        next_below_partition(observed, one.now)
    };
    ordinal.map(|ordinal| Restart { stateful_set: one.name.clone(), ordinal })
}

/// A rack that is being changed comes before those that are yet to be.
fn rack_to_roll<'b, 'a>(standing: &'b [Standing<'a>]) -> Option<&'b Standing<'a>> {
    standing.iter().find(|one| partition(one.now) > 0).or_else(|| standing.iter().find(|one| one.changes_pods))
}

/// The StatefulSets of racks that the specification no longer has.
pub(crate) fn removed_racks(observed: &Observed) -> impl Iterator<Item = &StatefulSet> {
    let racks = &observed.datacenter.racks;
    let wanted: Vec<String> = racks.iter().map(|rack| observed.datacenter.stateful_set_name(rack)).collect();
    observed.stateful_sets.iter().filter(move |(name, _)| !wanted.contains(name)).map(|(_, stateful_set)| stateful_set)
}

/// How many nodes of the rack are to be there now: none is taken away. A StatefulSet may be gone, or have been made
/// smaller by somebody, while its nodes are still in the ring.
pub(crate) fn nodes_to_keep(observed: &Observed, rack: &Rack) -> i32 {
    let name = observed.datacenter.stateful_set_name(rack);
    let now = observed.stateful_sets.get(&name).map_or_else(|| known_nodes(observed, &name), replicas);
    rack.nodes.max(now).max(nodes_without_place(observed, &name)).min(MOST_NODES)
}

pub(crate) fn replicas(stateful_set: &StatefulSet) -> i32 {
    // Kubernetes takes none for one.
    stateful_set.spec.as_ref().map_or(0, |spec| spec.replicas.unwrap_or(1))
}

/// Whether all pods are there, ready for long enough, and as the StatefulSet wants them.
pub fn is_rolled_out(stateful_set: &StatefulSet) -> bool {
    let (Some(spec), Some(status)) = (&stateful_set.spec, &stateful_set.status) else { return false };
    let replicas = replicas(stateful_set);
    let generation = stateful_set.metadata.generation.unwrap_or(0);
    let is_seen = status.observed_generation.is_some_and(|seen| seen > 0 && seen >= generation);
    let are_there = status.replicas == replicas
        && status.ready_replicas.unwrap_or(0) >= replicas
        && status.available_replicas.unwrap_or(0) >= replicas;
    let partition = spec.update_strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref()?.partition);
    let are_new = match partition {
        Some(partition) => status.updated_replicas.unwrap_or(0) == replicas - partition.min(replicas),
        None => status.update_revision == status.current_revision,
    };
    is_seen && are_there && are_new
}

pub(crate) fn rollout(observed: &Observed, mut racks: Racks<'_>, topology: &Topology) -> Rollout {
    let as_wanted = racks.standing.iter().filter(|one| !one.changes).map(|one| one.name.clone()).collect();
    let mut rollout = Rollout { wrong: racks.wrong.clone(), as_wanted, ..Rollout::default() };
    let orphaned = std::mem::take(&mut racks.orphaned);
    let is_one_away = !orphaned.is_empty() || racks.standing.iter().any(|one| is_going(one.now));
    for stateful_set in orphaned {
        restore(observed, stateful_set, topology, &mut rollout);
    }
    keep_removed_racks(observed, &mut rollout);
    for stateful_set in &racks.moving {
        rollout.waiting.push(rolling_out(observed, stateful_set));
    }
    if topology.is_leaving || is_one_away || !topology.under_maintenance.is_empty() {
        hold_all(observed, racks, &mut rollout);
    } else if !racks.moving.is_empty() {
        mend(observed, racks, topology, &mut rollout);
    } else if topology.is_outdated {
        hold_all(observed, racks, &mut rollout);
    } else if !racks.missing.is_empty() && !racks.is_rolling {
        create(observed, racks, topology, &mut rollout);
    } else {
        change_next(observed, racks, topology, &mut rollout);
    }
    leave_going(observed, &mut rollout);
    let racks = &observed.datacenter.racks;
    let position = |one: &StatefulSet| {
        racks.iter().position(|rack| one.metadata.name == Some(observed.datacenter.stateful_set_name(rack)))
    };
    rollout.stateful_sets.sort_by_key(position);
    rollout
}

/// Whether a StatefulSet is about to be gone. What is written to it then may be the first word of another one.
pub(crate) fn is_going(stateful_set: &StatefulSet) -> bool {
    stateful_set.metadata.deletion_timestamp.is_some()
}

/// A StatefulSet that is going is made anew when it is gone, and left alone until then.
fn leave_going(observed: &Observed, rollout: &mut Rollout) {
    let going = |one: &mut StatefulSet| {
        let name = one.metadata.name.as_deref().unwrap_or_default();
        observed.stateful_sets.get(name).is_some_and(is_going)
    };
    for stateful_set in rollout.stateful_sets.extract_if(.., going) {
        let message = format!("{} is being deleted; it is made anew then", reference(observed, &stateful_set));
        rollout.waiting.push(note("RestoringStatefulSet", message));
        let name = stateful_set.metadata.name.unwrap_or_default();
        rollout.left_alone.push(LeftAlone { kind: "StatefulSet", name });
    }
}

/// Makes a StatefulSet anew around its nodes. What is in the way of new ones is not in the way of these.
fn restore(observed: &Observed, stateful_set: StatefulSet, topology: &Topology, rollout: &mut Rollout) {
    let name = stateful_set.metadata.name.clone().unwrap_or_default();
    let members = members(observed);
    let is_blocked = |ordinal| {
        let member = names::datacenter::member(&name, ordinal);
        let claim = observed.claim_of(&member);
        // Who has joined and never began to leave has not left, whatever a claim says.
        let is_in = |one: &Member<'_>| one.name == member && one.has_joined() && !one.has_begun_to_leave();
        let is_in_the_way =
            |claim: &Claim| claim.is_being_deleted || !claim.is_of_a_node() && !members.iter().any(is_in);
        !observed.pods.contains_key(&member) && claim.is_some_and(is_in_the_way)
    };
    if topology.in_the_way.contains(&name) && (0..replicas(&stateful_set)).any(is_blocked) {
        return rollout.waiting.push(not_yet(observed, &stateful_set));
    }
    if !topology.are_nodes_named {
        return rollout.waiting.push(not_yet(observed, &stateful_set));
    }
    rollout.waiting.push(restoring(observed, &stateful_set));
    // Without any pod, nobody waits for it.
    let has_pod = |ordinal| observed.pods.contains_key(&names::datacenter::member(&name, ordinal));
    if (0..replicas(&stateful_set)).any(has_pod) {
        rollout.restored.insert(name.clone());
    }
    rollout.stateful_sets.push(stateful_set);
}

/// While a node leaves, somebody works on one, one is to restart for its address, or a StatefulSet is away, nothing else
/// changes.
fn hold_all(observed: &Observed, racks: Racks<'_>, rollout: &mut Rollout) {
    for one in racks.standing {
        keep(observed, one, rollout);
    }
    for stateful_set in racks.missing {
        rollout.waiting.push(not_yet(observed, &stateful_set));
    }
}

fn keep(observed: &Observed, one: Standing<'_>, rollout: &mut Rollout) {
    if one.changes {
        hold(observed, one, rollout);
    } else {
        rollout.stateful_sets.push(one.wanted);
    }
}

/// While something is rolling out, nothing else begins. But what rolls out may be what is wrong, so its own pods may
/// still be corrected.
fn mend(observed: &Observed, racks: Racks<'_>, topology: &Topology, rollout: &mut Rollout) {
    let Racks { standing, missing, moving, .. } = racks;
    let first_moving = standing.iter().position(|one| moving.iter().any(|other| std::ptr::eq(*other, one.now)));
    for (position, one) in standing.into_iter().enumerate() {
        let is_moving = moving.iter().any(|other| std::ptr::eq(*other, one.now));
        if let Some(partition) = holding(observed, one.now).filter(|_| is_moving) {
            rollout.waiting.push(held(observed, one.now));
            rollout.restarting.insert(one.name.clone());
            rollout.stateful_sets.push(one.held_at(partition));
        } else if Some(position) != first_moving || !may_be_corrected(observed, one.now) {
            keep(observed, one, rollout);
        } else if let Turn::After(other) = &observed.turn
            && one.changes_pods
        {
            rollout.waiting.push(waiting_for_turn(observed, &one, other));
            rollout.left_alone.push(LeftAlone { kind: "StatefulSet", name: one.name });
        } else if one.changes_pods {
            correct(observed, one, topology, rollout);
        } else {
            make_anew(observed, &one, rollout);
            keep(observed, one, rollout);
        }
    }
    for stateful_set in missing {
        rollout.waiting.push(not_yet(observed, &stateful_set));
    }
}

/// Other pods take the place of those that are down, if their nodes are prepared for another version.
fn correct(observed: &Observed, one: Standing<'_>, topology: &Topology, rollout: &mut Rollout) {
    let first = correcting(observed, one.now);
    let has_nodes = replicas(one.now) > 0;
    if has_nodes && first >= replicas(one.now) && nodes_down(observed, one.now).is_empty() {
        return hold(observed, one, rollout);
    }
    let restarting = (first..replicas(one.now).min(MOST_NODES))
        .map(|ordinal| Restart { stateful_set: one.name.clone(), ordinal }.member());
    let version = &observed.datacenter.version;
    let unprepared = restarting.into_iter().find(|member| !is_prepared_for(observed, member, version));
    if let Some(member) = unprepared {
        rollout.waiting.push(held_up(observed, &member));
        return hold(observed, one, rollout);
    }
    // A node that gets its place back is to come back as it was.
    let lacks_place = topology.without_place.contains(&one.name);
    if lacks_place && template_version(one.now).as_ref() != Some(version) {
        return hold(observed, one, rollout);
    }
    let kept = if lacks_place { partition(one.now) } else { 0 };
    rollout.restarting.insert(one.name.clone());
    rollout.stateful_sets.push(one.unscaled(first.max(kept)));
}

/// Kubernetes does not replace pods that are down and out of date where pods start in order, so that is done here.
fn make_anew(observed: &Observed, one: &Standing<'_>, rollout: &mut Rollout) {
    let Some((pod, version)) = stuck(observed, one.now) else { return };
    let name = pod.reference.name.clone();
    // Who is replaced loses its pod together with its disk, and in no other way.
    let is_replaced = observed.services.get(&name).is_some_and(NodeService::is_to_be_replaced);
    if may_be_joining(observed, &name) || is_replaced {
        return;
    }
    let is_prepared = match version {
        Some(version) => is_prepared_for(observed, &name, &version),
        None => !is_being_upgraded(observed),
    };
    if !is_prepared {
        return rollout.waiting.push(held_up(observed, &name));
    }
    let message = format!(
        "pod {}/{name} is not ready, and its StatefulSet was changed since; it is made anew",
        observed.datacenter.namespace
    );
    rollout.deletions.push(Deletion {
        part: Part::StatefulSet,
        kind: Kind::Pod,
        name,
        uid: pod.reference.uid.clone().unwrap_or_default(),
        // It may be ready by then.
        version: Some(pod.reference.version.clone().unwrap_or_default()),
        orphans: false,
        event: Some(("ReplacingPod", message)),
    });
}

/// Makes what is missing, before anything that is there changes.
fn create(observed: &Observed, racks: Racks<'_>, topology: &Topology, rollout: &mut Rollout) {
    let Racks { standing, missing, .. } = racks;
    for one in standing {
        keep(observed, one, rollout);
    }
    let at_once = if observed.datacenter.parallel_node_operations { missing.len() } else { 1 };
    for (position, stateful_set) in missing.into_iter().enumerate() {
        let is_free = !topology.in_the_way.contains(stateful_set.metadata.name.as_deref().unwrap_or_default());
        if position < at_once && is_free {
            rollout.waiting.push(created(observed, &stateful_set));
            rollout.stateful_sets.push(stateful_set);
        } else {
            rollout.waiting.push(not_yet(observed, &stateful_set));
        }
    }
}

/// Changes one StatefulSet: the first that lacks nodes or, where none does or a rolling change has begun, the one whose
/// nodes restart now, or else the first that differs.
fn change_next(observed: &Observed, racks: Racks<'_>, topology: &Topology, rollout: &mut Rollout) {
    let Racks { standing, missing, is_rolling, next, .. } = racks;
    for stateful_set in &missing {
        rollout.waiting.push(not_yet(observed, stateful_set));
    }
    let lacking = standing.iter().position(Standing::lacks_nodes).filter(|_| !is_rolling);
    let is_free = |one: &Standing<'_>| !topology.in_the_way.contains(&one.name);
    let rolling = rack_to_roll(&standing).map(|one| one.name.clone());
    let differing = rolling.or_else(|| standing.iter().find(|one| one.changes).map(|one| one.name.clone()));
    let differing = differing.filter(|_| lacking.is_none());
    for (position, one) in standing.into_iter().enumerate() {
        if Some(position) == lacking && is_free(&one) {
            rollout.waiting.push(scaling_out(observed, &one));
            rollout.stateful_sets.push(if has_cluster(observed) { one.scaled_out() } else { one.wanted });
        } else if differing.as_ref() != Some(&one.name) {
            keep(observed, one, rollout);
        } else if topology.without_place.contains(&one.name) {
            hold(observed, one, rollout);
        } else if let Turn::After(other) = &observed.turn
            && one.changes_pods
        {
            rollout.waiting.push(waiting_for_turn(observed, &one, other));
            rollout.left_alone.push(LeftAlone { kind: "StatefulSet", name: one.name });
        } else if next.is_some() && topology.holds_restart {
            rollout.waiting.push(waiting_to_restart(observed, &one, next.as_ref()));
            rollout.left_alone.push(LeftAlone { kind: "StatefulSet", name: one.name });
        } else {
            rollout.waiting.push(updating(observed, &one, next.as_ref()));
            let is_rolled = one.changes_pods || partition(one.now) > 0;
            rollout.restarting.extend(is_rolled.then(|| one.name.clone()));
            let replicas = replicas(one.now);
            let mut changed = if is_rolled { one.rolled_on(next.as_ref()) } else { one.wanted };
            // Nodes join when the rolling change is over.
            if let Some(spec) = changed.spec.as_mut().filter(|_| is_rolling) {
                spec.replicas = Some(replicas);
            }
            rollout.stateful_sets.push(changed);
        }
    }
}

fn hold(observed: &Observed, one: Standing<'_>, rollout: &mut Rollout) {
    rollout.waiting.push(note(
        "WaitingForOtherRacks",
        format!(
            "StatefulSet {}/{} is to change, and does as soon as all others are rolled out and nothing else is under way",
            observed.datacenter.namespace, one.name
        ),
    ));
    rollout.left_alone.push(LeftAlone { kind: "StatefulSet", name: one.name });
}

/// The reason of a rack that the specification no longer has.
pub(crate) const REMOVING_RACK: &str = "RemovingRack";

fn keep_removed_racks(observed: &Observed, rollout: &mut Rollout) {
    for stateful_set in removed_racks(observed) {
        let name = stateful_set.metadata.name.clone().unwrap_or_default();
        let rack = words::label(stateful_set, label::RACK);
        rollout.waiting.push(note(
            REMOVING_RACK,
            format!(
                "rack {} is not in the specification any more; the {} node(s) of StatefulSet {}/{name} leave one by one, \
                 then it goes",
                rack.unwrap_or("?"),
                replicas(stateful_set),
                observed.datacenter.namespace,
            ),
        ));
        rollout.left_alone.push(LeftAlone { kind: "StatefulSet", name });
    }
}

fn note(reason: &'static str, message: String) -> Note {
    Note { part: Part::StatefulSet, reason, message }
}

fn reference(observed: &Observed, stateful_set: &StatefulSet) -> String {
    let name = stateful_set.metadata.name.as_deref().unwrap_or_default();
    format!("StatefulSet {}/{name}", observed.datacenter.namespace)
}

fn rolling_out(observed: &Observed, stateful_set: &StatefulSet) -> Note {
    let status = stateful_set.status.clone().unwrap_or_default();
    let absent = nodes_not_ready(observed, stateful_set);
    let who = match absent.first() {
        Some(first) => format!(
            "; node(s) {} are not ready: if that lasts, `kubectl describe pod {first}` says why",
            absent.join(", ")
        ),
        None => String::new(),
    };
    note(
        "WaitingForStatefulSetRollout",
        format!(
            "{} is rolling out: {} of {} node(s) are available{who}; the next change begins when all are",
            reference(observed, stateful_set),
            status.available_replicas.unwrap_or(0),
            replicas(stateful_set)
        ),
    )
}

fn not_yet(observed: &Observed, stateful_set: &StatefulSet) -> Note {
    let message = format!("{} is created when those before it are rolled out", reference(observed, stateful_set));
    note("WaitingForOtherRacks", message)
}

fn created(observed: &Observed, stateful_set: &StatefulSet) -> Note {
    note("CreatingStatefulSet", format!("{} is created; then its nodes join", reference(observed, stateful_set)))
}

fn restoring(observed: &Observed, stateful_set: &StatefulSet) -> Note {
    let message =
        format!("{} is made anew around its {} node(s)", reference(observed, stateful_set), replicas(stateful_set));
    note("RestoringStatefulSet", message)
}

fn scaling_out(observed: &Observed, one: &Standing<'_>) -> Note {
    let (now, nodes) = (replicas(one.now), replicas(&one.wanted));
    note(
        "ScalingOut",
        format!("{} gets {nodes} node(s) in place of {now}; then they join", reference(observed, one.now)),
    )
}

fn updating(observed: &Observed, one: &Standing<'_>, next: Option<&Restart>) -> Note {
    let whole = reference(observed, one.now);
    let message = match next {
        Some(next) => format!("{whole} is changed, and node {} restarts", next.member()),
        None => format!("{whole} is changed"),
    };
    note("UpdatingStatefulSet", message)
}

fn held(observed: &Observed, stateful_set: &StatefulSet) -> Note {
    let message = format!("{} goes on to change when all nodes are up", reference(observed, stateful_set));
    note("WaitingToRestart", message)
}

fn held_up(observed: &Observed, member: &str) -> Note {
    let message = format!(
        "node {}/{member} is down, and its version is to change, which begins when it is up: `kubectl describe pod {member}` \
         says why it is down; or undo the change of the version until it is up",
        observed.datacenter.namespace
    );
    note("UpgradeHeldUp", message)
}

fn waiting_for_turn(observed: &Observed, one: &Standing<'_>, other: &str) -> Note {
    let message = format!(
        "{} is not updated yet: the operator has changed, and datacenters restart their nodes in turn. It is the turn of {other}",
        reference(observed, one.now)
    );
    note("WaitingForTurn", message)
}

fn waiting_to_restart(observed: &Observed, one: &Standing<'_>, next: Option<&Restart>) -> Note {
    let member = next.map(Restart::member).unwrap_or_default();
    let message = format!("{} is to change; node {member} restarts next, when it may", reference(observed, one.now));
    note("WaitingToRestart", message)
}
