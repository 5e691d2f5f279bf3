//! In which order the racks change.
//!
//! At most one StatefulSet changes at a time, the first in the order of the specification: racks that are missing are
//! made, then racks get more nodes, then nodes get a new pod, then nodes leave (see `topology`). Nothing new begins before
//! everything is rolled out, because a node cannot join while another one is down. Where nodes may start at the same
//! time, all missing racks are made at once.

use k8s_openapi::api::apps::v1::StatefulSet;
use messina_api::names::label;

use super::{
    LeftAlone, Note, Observed, Part, Rack,
    difference::changes,
    joining::{has_cluster, may_be_corrected},
    stateful_set::{kept_in_place, stateful_set},
    topology::{Topology, known_nodes, nodes_without_place},
    validate::MOST_NODES,
};

#[derive(Default)]
pub(crate) struct Rollout {
    pub(crate) stateful_sets: Vec<StatefulSet>,
    pub(crate) left_alone: Vec<LeftAlone>,
    pub(crate) waiting: Vec<Note>,
    pub(crate) wrong: Vec<Note>,
}

impl Rollout {
    /// Pods that start now would not find the certificates that they need: no rack is made or changed before.
    pub(crate) fn hold(&mut self, observed: &Observed) {
        let names = self.stateful_sets.drain(..).filter_map(|stateful_set| stateful_set.metadata.name);
        let (existing, missing): (Vec<String>, Vec<String>) =
            names.partition(|name| observed.stateful_sets.contains_key(name));
        self.left_alone.extend(existing.into_iter().map(|name| LeftAlone { kind: "StatefulSet", name }));
        self.waiting.extend(missing.into_iter().map(|name| Note {
            part: Part::StatefulSet,
            reason: "WaitingForCertificates",
            message: format!(
                "StatefulSet {}/{name} is made as soon as the certificates are there that its nodes serve with",
                observed.datacenter.namespace
            ),
        }));
    }
}

/// A rack that is there, and what it is to become.
struct Standing<'a> {
    name: String,
    now: &'a StatefulSet,
    wanted: StatefulSet,
    changes: bool,
}

impl Standing<'_> {
    fn lacks_nodes(&self) -> bool {
        replicas(self.now) < replicas(&self.wanted)
    }

    /// As it is to be, but for more replicas.
    fn unscaled(self) -> StatefulSet {
        let mut unscaled = self.wanted;
        if let Some(spec) = unscaled.spec.as_mut() {
            spec.replicas = Some(replicas(self.now));
        }
        unscaled
    }

    /// With more replicas, and everything else as it is: a node joins with the version that the others have.
    fn scaled_out(&self) -> StatefulSet {
        let mut scaled = self.wanted.clone();
        if let (Some(scaled), Some(now)) = (scaled.spec.as_mut(), self.now.spec.as_ref()) {
            scaled.template.clone_from(&now.template);
        }
        scaled.metadata.labels.clone_from(&self.now.metadata.labels);
        scaled
    }
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

pub(crate) fn rollout(observed: &Observed, topology: &Topology) -> Rollout {
    let mut rollout = Rollout::default();
    let mut standing = Vec::new();
    let mut missing = Vec::new();
    for rack in &observed.datacenter.racks {
        let wanted = stateful_set(observed, rack);
        let name = observed.datacenter.stateful_set_name(rack);
        match observed.stateful_sets.get(&name) {
            None => missing.push(wanted),
            Some(now) => {
                let (wanted, wrong) = kept_in_place(observed, wanted, now);
                rollout.wrong.extend(wrong);
                let changes = changes(&wanted, now);
                standing.push(Standing { name, now, wanted, changes });
            }
        }
    }
    keep_removed_racks(observed, &mut rollout);
    let moving: Vec<&StatefulSet> = observed.stateful_sets.values().filter(|one| !is_rolled_out(one)).collect();
    for stateful_set in &moving {
        rollout.waiting.push(rolling_out(observed, stateful_set));
    }
    if topology.is_leaving {
        hold_all(observed, standing, missing, &mut rollout);
    } else if !moving.is_empty() {
        mend(observed, standing, missing, &moving, &mut rollout);
    } else if !missing.is_empty() {
        create(observed, standing, missing, topology, &mut rollout);
    } else {
        change_next(observed, standing, topology, &mut rollout);
    }
    let racks = &observed.datacenter.racks;
    let position = |one: &StatefulSet| {
        racks.iter().position(|rack| one.metadata.name == Some(observed.datacenter.stateful_set_name(rack)))
    };
    rollout.stateful_sets.sort_by_key(position);
    rollout
}

/// While a node leaves, nothing else changes.
fn hold_all(observed: &Observed, standing: Vec<Standing<'_>>, missing: Vec<StatefulSet>, rollout: &mut Rollout) {
    for one in standing {
        if one.changes {
            hold(observed, one, rollout);
        } else {
            rollout.stateful_sets.push(one.wanted);
        }
    }
    for stateful_set in missing {
        rollout.waiting.push(not_yet(observed, &stateful_set));
    }
}

/// While something is rolling out, nothing else begins. But what rolls out may be what is wrong, so its own pods may
/// still be corrected.
fn mend(
    observed: &Observed,
    standing: Vec<Standing<'_>>,
    missing: Vec<StatefulSet>,
    moving: &[&StatefulSet],
    rollout: &mut Rollout,
) {
    let first_moving = standing.iter().position(|one| moving.iter().any(|other| std::ptr::eq(*other, one.now)));
    for (position, one) in standing.into_iter().enumerate() {
        if !one.changes {
            rollout.stateful_sets.push(one.wanted);
        } else if Some(position) == first_moving && may_be_corrected(observed, one.now) {
            rollout.stateful_sets.push(one.unscaled());
        } else {
            hold(observed, one, rollout);
        }
    }
    for stateful_set in missing {
        rollout.waiting.push(not_yet(observed, &stateful_set));
    }
}

/// Makes what is missing, before anything that is there changes.
fn create(
    observed: &Observed,
    standing: Vec<Standing<'_>>,
    missing: Vec<StatefulSet>,
    topology: &Topology,
    rollout: &mut Rollout,
) {
    for one in standing {
        if one.changes {
            hold(observed, one, rollout);
        } else {
            rollout.stateful_sets.push(one.wanted);
        }
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

/// Changes one StatefulSet: the first that lacks nodes or, where none does, the first that differs.
fn change_next(observed: &Observed, standing: Vec<Standing<'_>>, topology: &Topology, rollout: &mut Rollout) {
    let lacking = standing.iter().position(Standing::lacks_nodes);
    let is_free = |one: &Standing<'_>| !topology.in_the_way.contains(&one.name);
    let differing = standing.iter().position(|one| one.changes);
    for (position, one) in standing.into_iter().enumerate() {
        if Some(position) == lacking && is_free(&one) {
            rollout.waiting.push(scaling_out(observed, &one));
            rollout.stateful_sets.push(if has_cluster(observed) { one.scaled_out() } else { one.wanted });
        } else if !one.changes {
            rollout.stateful_sets.push(one.wanted);
        } else if lacking.is_none() && Some(position) == differing {
            rollout.waiting.push(updating(observed, &one));
            rollout.stateful_sets.push(one.wanted);
        } else {
            hold(observed, one, rollout);
        }
    }
}

fn hold(observed: &Observed, one: Standing<'_>, rollout: &mut Rollout) {
    rollout.waiting.push(note(
        "WaitingForOtherRacks",
        format!(
            "StatefulSet {}/{} is to change, and does as soon as all others are rolled out",
            observed.datacenter.namespace, one.name
        ),
    ));
    rollout.left_alone.push(LeftAlone { kind: "StatefulSet", name: one.name });
}

fn keep_removed_racks(observed: &Observed, rollout: &mut Rollout) {
    for stateful_set in removed_racks(observed) {
        let name = stateful_set.metadata.name.clone().unwrap_or_default();
        let rack = stateful_set.metadata.labels.as_ref().and_then(|labels| labels.get(label::RACK));
        rollout.waiting.push(note(
            "RemovingRack",
            format!(
                "rack {} is not in the specification any more; the {} node(s) of StatefulSet {}/{name} leave one by one, \
                 then it goes",
                rack.map_or("?", String::as_str),
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
    note(
        "WaitingForStatefulSetRollout",
        format!(
            "{} is rolling out: {} of {} node(s) are available; the next change begins when all are",
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

fn scaling_out(observed: &Observed, one: &Standing<'_>) -> Note {
    let (now, nodes) = (replicas(one.now), replicas(&one.wanted));
    note(
        "ScalingOut",
        format!("{} gets {nodes} node(s) in place of {now}; then they join", reference(observed, one.now)),
    )
}

fn updating(observed: &Observed, one: &Standing<'_>) -> Note {
    let message = format!("{} is changed; then its nodes restart one by one", reference(observed, one.now));
    note("UpdatingStatefulSet", message)
}
