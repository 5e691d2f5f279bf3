//! How a datacenter stands.

pub(crate) mod operations;
pub(crate) mod permissions;

use k8s_openapi::api::apps::v1::StatefulSet;
use messina_api::{
    names::{self, label},
    scylla::v1alpha1::{RackStatus, ScyllaDBDatacenterStatus},
};

use crate::{
    datacenter::{
        model::{
            component::Component,
            facts::pod::NodePod,
            observed::Observed,
            plan::{Note, Plan},
            spec::{Fault, Rack},
        },
        state::{counts::removed_racks, stateful_set::replicas},
    },
    words,
};

/// How a datacenter stands, but for its parts and for what only time tells.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The status, without conditions.
    pub status: ScyllaDBDatacenterStatus,
    /// Whether the racks serve, all of them, as the specification says; and why not.
    pub available: Result<(), Explanation>,
}

/// What is told of something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// One word.
    pub reason: &'static str,
    /// One sentence on each line.
    pub message: String,
}

/// How a part stands, before anybody has tried to apply it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// What it waits for.
    pub progressing: Option<Explanation>,
    /// What is wrong.
    pub degraded: Option<Explanation>,
    /// What is good to know where it neither waits nor changes.
    pub remark: Option<Explanation>,
}

impl Plan {
    /// How a part stands.
    pub fn state(&self, component: Component) -> State {
        let told = |notes: &[Note]| {
            let notes: Vec<&Note> = notes.iter().filter(|note| note.component == component).collect();
            let messages: Vec<&str> = notes.iter().map(|note| note.message.as_str()).collect();
            notes.first().map(|first| Explanation { reason: first.reason, message: messages.join("\n") })
        };
        State { progressing: told(&self.progressing), degraded: told(&self.degraded), remark: told(&self.warnings) }
    }
}

/// Says how the datacenter stands, from what was observed.
pub fn report(observed: &Observed) -> Report {
    let racks = rack_statuses(observed);
    let available = available(observed, &racks);
    let total = |count: fn(&RackStatus) -> Option<i32>| Some(racks.iter().filter_map(count).sum());
    let status = ScyllaDBDatacenterStatus {
        observed_generation: Some(observed.datacenter.generation),
        nodes: total(|rack| rack.nodes),
        current_nodes: total(|rack| rack.current_nodes),
        updated_nodes: total(|rack| rack.updated_nodes),
        ready_nodes: total(|rack| rack.ready_nodes),
        available_nodes: total(|rack| rack.available_nodes),
        current_version: current_version(&racks),
        updated_version: Some(observed.datacenter.version.clone()),
        racks: Some(racks),
        conditions: None,
    };
    Report { status, available }
}

/// Says of a datacenter that cannot be worked on what is wrong with it.
pub fn refusal(faults: &[Fault]) -> Explanation {
    let lines: Vec<String> = faults.iter().map(|fault| format!("{}: {}", fault.field, fault.message)).collect();
    Explanation { reason: INVALID_SPECIFICATION, message: lines.join("\n") }
}

/// The reason of the condition of a datacenter whose specification the operator refuses.
pub const INVALID_SPECIFICATION: &str = "InvalidSpecification";

/// The racks of the specification, in its order, then those that are still there without it.
fn rack_statuses(observed: &Observed) -> Vec<RackStatus> {
    let wanted = observed.datacenter.racks.iter().map(|rack| wanted_rack(observed, rack));
    let removed = removed_racks(observed).filter_map(|stateful_set| {
        let rack = words::label(stateful_set, label::RACK)?;
        let is_wanted = observed.datacenter.racks.iter().any(|one| one.name == *rack);
        (!is_wanted).then(|| rack_status(observed, rack, stateful_set))
    });
    wanted.chain(removed).collect()
}

fn wanted_rack(observed: &Observed, rack: &Rack) -> RackStatus {
    let stateful_set = observed.stateful_sets.get(&observed.datacenter.stateful_set_name(rack));
    if let Some(stateful_set) = stateful_set.filter(|_| !is_just_written(observed, rack)) {
        return rack_status(observed, &rack.name, stateful_set);
    }
    let stale = previous(observed, &rack.name).cloned().unwrap_or_else(|| RackStatus {
        name: Some(rack.name.clone()),
        nodes: Some(0),
        current_nodes: Some(0),
        updated_nodes: Some(0),
        ready_nodes: Some(0),
        available_nodes: Some(0),
        ..RackStatus::default()
    });
    RackStatus { stale: Some(true), ..stale }
}

/// Whether the StatefulSet is made anew or was just changed, around nodes that all go on serving. Until Kubernetes has looked
/// at it, it says nothing of them, and what was said before holds.
fn is_just_written(observed: &Observed, rack: &Rack) -> bool {
    let name = observed.datacenter.stateful_set_name(rack);
    let is_looked_at = observed.stateful_sets.get(&name).is_some_and(|one| {
        one.metadata.deletion_timestamp.is_none()
            && one
                .status
                .as_ref()
                .and_then(|status| status.observed_generation)
                .is_some_and(|seen| seen > 0 && seen >= one.metadata.generation.unwrap_or(0))
    });
    let nodes = previous(observed, &rack.name).and_then(|status| status.nodes).unwrap_or(0);
    let serves =
        |ordinal: i32| observed.pods.get(&names::datacenter::member(&name, ordinal)).is_some_and(NodePod::is_ready);
    !is_looked_at && nodes > 0 && (0..nodes).all(serves)
}

fn previous<'a>(observed: &'a Observed, rack: &str) -> Option<&'a RackStatus> {
    observed.status.racks.iter().flatten().find(|status| status.name.as_deref() == Some(rack))
}

fn rack_status(observed: &Observed, rack: &str, stateful_set: &StatefulSet) -> RackStatus {
    let status = stateful_set.status.clone().unwrap_or_default();
    let version = observed.datacenter.version.clone();
    let nodes = replicas(stateful_set);
    let first = names::datacenter::member(stateful_set.metadata.name.as_deref().unwrap_or_default(), 0);
    // A rack without nodes runs whatever it is asked to. While the first pod is away, it runs what it ran.
    let current = match observed.pods.get(&first).and_then(|pod| pod.version.clone()) {
        _ if nodes == 0 => Some(version.clone()),
        None => previous(observed, rack).and_then(|status| status.current_version.clone()),
        current => current,
    };
    let generation = stateful_set.metadata.generation.unwrap_or(0);
    RackStatus {
        name: Some(rack.to_owned()),
        nodes: Some(nodes),
        current_nodes: Some(status.current_replicas.unwrap_or(0)),
        updated_nodes: Some(status.updated_replicas.unwrap_or(0)),
        ready_nodes: Some(status.ready_replicas.unwrap_or(0)),
        available_nodes: Some(status.available_replicas.unwrap_or(0)),
        current_version: current,
        updated_version: Some(version),
        stale: Some(status.observed_generation.unwrap_or(0) < generation),
    }
}

/// The version of all racks; during an upgrade, that of the first rack which is yet to be upgraded.
fn current_version(racks: &[RackStatus]) -> Option<String> {
    let left = racks.iter().find(|rack| rack.current_version.is_some() && rack.current_version != rack.updated_version);
    left.or(racks.first()).and_then(|rack| rack.current_version.clone())
}

/// The racks of the specification serve, all of them, as the specification says.
fn available(observed: &Observed, racks: &[RackStatus]) -> Result<(), Explanation> {
    let datacenter = &observed.datacenter;
    let status_of = |rack: &Rack| racks.iter().find(|status| status.name.as_ref() == Some(&rack.name));
    let count = |count: fn(&RackStatus) -> Option<i32>| -> i32 {
        let holds =
            |(rack, status): &(&Rack, &RackStatus)| status.stale == Some(false) || is_just_written(observed, rack);
        let fresh = datacenter.racks.iter().filter_map(|rack| Some((rack, status_of(rack)?))).filter(holds);
        fresh.filter_map(|(_, status)| count(status)).sum()
    };
    let wanted: i32 = datacenter.racks.iter().map(|rack| rack.nodes).sum();
    let others: Vec<&str> = datacenter
        .racks
        .iter()
        .filter(|rack| status_of(rack).and_then(|status| status.current_version.as_ref()) != Some(&datacenter.version))
        .map(|rack| rack.name.as_str())
        .collect();
    let updated = count(|status| status.updated_nodes);
    let ready = count(|status| status.ready_nodes);
    let (reason, message) = if !others.is_empty() {
        let message = format!("rack(s) {} do not run version {} yet", others.join(", "), datacenter.version);
        ("RacksNotAtDesiredVersion", message)
    } else if updated < wanted {
        ("MembersNotUpdated", format!("{updated} of {wanted} node(s) are as the specification says"))
    } else if ready < wanted {
        let lacking = datacenter.racks.iter().filter_map(|rack| {
            let status = status_of(rack).filter(|status| status.stale == Some(false));
            let ready = status.and_then(|status| status.ready_nodes).unwrap_or_default();
            let name = datacenter.stateful_set_name(rack);
            (ready < rack.nodes).then(|| format!("{name} has {ready} of {}", rack.nodes))
        });
        let lacking: Vec<String> = lacking.collect();
        let message = format!(
            "{ready} of {wanted} node(s) are ready; of StatefulSets, {}. `kubectl describe pod` says why",
            lacking.join(", ")
        );
        ("MembersNotReady", message)
    } else {
        return Ok(());
    };
    Err(Explanation { reason, message })
}
