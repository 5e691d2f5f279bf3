//! The status of a datacenter.

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
            spec::{InvalidField, Rack},
        },
        reasons,
        state::{counts::removed_racks, stateful_set::replicas},
    },
    metadata,
    outcome::Explanation,
};

/// The status of a datacenter without its conditions, and whether it is available.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The status, without conditions.
    pub status: ScyllaDBDatacenterStatus,
    /// Whether all racks are available as the specification says; otherwise why not.
    pub available: Result<(), Explanation>,
}

/// The state of a component before its objects are applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// What the operator does now or waits for.
    pub progressing: Option<Explanation>,
    /// What is wrong.
    pub degraded: Option<Explanation>,
    /// What the user should know although the component is neither progressing nor degraded.
    pub warning: Option<Explanation>,
}

impl Plan {
    /// Returns the state of a component.
    pub fn state(&self, component: Component) -> State {
        let explain = |notes: &[Note]| Explanation::of(&component, notes);
        State {
            progressing: explain(&self.progressing),
            degraded: explain(&self.degraded),
            warning: explain(&self.warnings),
        }
    }
}

/// Returns the status of the datacenter that follows from the observed objects.
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

/// Returns the condition of a datacenter whose specification is invalid.
pub fn refusal(faults: &[InvalidField]) -> Explanation {
    let lines: Vec<String> = faults.iter().map(|fault| format!("{}: {}", fault.field, fault.message)).collect();
    Explanation { reason: reasons::INVALID_SPECIFICATION, message: lines.join("\n") }
}

/// Returns the status of the racks of the specification, in its order, then of racks that are not in it any more.
fn rack_statuses(observed: &Observed) -> Vec<RackStatus> {
    let desired = observed.datacenter.racks.iter().map(|rack| desired_rack(observed, rack));
    let removed = removed_racks(observed).filter_map(|stateful_set| {
        let rack = metadata::label(stateful_set, label::RACK)?;
        let is_desired = observed.datacenter.racks.iter().any(|one| one.name == *rack);
        (!is_desired).then(|| rack_status(observed, rack, stateful_set))
    });
    desired.chain(removed).collect()
}

fn desired_rack(observed: &Observed, rack: &Rack) -> RackStatus {
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

/// Whether the StatefulSet was just recreated or changed, while all its nodes are ready. Until the StatefulSet
/// controller has observed it, its status says nothing of them, and the former status of the rack is kept.
fn is_just_written(observed: &Observed, rack: &Rack) -> bool {
    let name = observed.datacenter.stateful_set_name(rack);
    let is_observed = observed.stateful_sets.get(&name).is_some_and(|one| {
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
    !is_observed && nodes > 0 && (0..nodes).all(serves)
}

fn previous<'a>(observed: &'a Observed, rack: &str) -> Option<&'a RackStatus> {
    observed.status.racks.iter().flatten().find(|status| status.name.as_deref() == Some(rack))
}

fn rack_status(observed: &Observed, rack: &str, stateful_set: &StatefulSet) -> RackStatus {
    let status = stateful_set.status.clone().unwrap_or_default();
    let version = observed.datacenter.version.clone();
    let nodes = replicas(stateful_set);
    let first = names::datacenter::member(stateful_set.metadata.name.as_deref().unwrap_or_default(), 0);
    // A rack without nodes counts as up to date. While the first pod does not exist, the former version is kept.
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

/// Returns the version of all racks; during an upgrade, that of the first rack that is not upgraded yet.
fn current_version(racks: &[RackStatus]) -> Option<String> {
    let left = racks.iter().find(|rack| rack.current_version.is_some() && rack.current_version != rack.updated_version);
    left.or(racks.first()).and_then(|rack| rack.current_version.clone())
}

/// Checks that all racks of the specification have their nodes ready, up to date and with the desired version.
fn available(observed: &Observed, racks: &[RackStatus]) -> Result<(), Explanation> {
    let datacenter = &observed.datacenter;
    let status_of = |rack: &Rack| racks.iter().find(|status| status.name.as_ref() == Some(&rack.name));
    let count = |count: fn(&RackStatus) -> Option<i32>| -> i32 {
        let is_valid =
            |(rack, status): &(&Rack, &RackStatus)| status.stale == Some(false) || is_just_written(observed, rack);
        let valid = datacenter.racks.iter().filter_map(|rack| Some((rack, status_of(rack)?))).filter(is_valid);
        valid.filter_map(|(_, status)| count(status)).sum()
    };
    let desired: i32 = datacenter.racks.iter().map(|rack| rack.nodes).sum();
    let others: Vec<&str> = datacenter
        .racks
        .iter()
        .filter(|rack| status_of(rack).and_then(|status| status.current_version.as_ref()) != Some(&datacenter.version))
        .map(|rack| rack.name.as_str())
        .collect();
    let updated = count(|status| status.updated_nodes);
    let ready = count(|status| status.ready_nodes);
    let (reason, message) = if !others.is_empty() {
        let message = format!("Rack(s) {} do not run version {} yet.", others.join(", "), datacenter.version);
        (reasons::RACKS_NOT_AT_DESIRED_VERSION, message)
    } else if updated < desired {
        (reasons::MEMBERS_NOT_UPDATED, format!("{updated} of {desired} node(s) are updated to the specification."))
    } else if ready < desired {
        let lacking = datacenter.racks.iter().filter_map(|rack| {
            let status = status_of(rack).filter(|status| status.stale == Some(false));
            let ready = status.and_then(|status| status.ready_nodes).unwrap_or_default();
            let name = datacenter.stateful_set_name(rack);
            (ready < rack.nodes).then(|| format!("StatefulSet {name} has {ready} of {}", rack.nodes))
        });
        let lacking: Vec<String> = lacking.collect();
        let message =
            format!("{ready} of {desired} node(s) are ready: {}. See `kubectl describe pod`.", lacking.join(", "));
        (reasons::MEMBERS_NOT_READY, message)
    } else {
        return Ok(());
    };
    Err(Explanation { reason, message })
}
