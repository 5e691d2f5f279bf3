//! Nodes that leave, nodes that are replaced, and nodes whose version changes.
//!
//! What loses data when it is wrong is decided from the ring: the operator asks the nodes on their Services, and they
//! answer there. What is asked for is written first, for one host ID; then it is done; then the ring confirms it. A label
//! alone decides nothing.

mod claims;
pub(crate) mod cleanup;
pub(crate) mod leaving;
mod lost;
mod maintenance;
mod outdated;
pub(crate) mod recovery;
mod replacing;
mod reports;
pub(crate) mod steps;
mod upgrading;

use std::collections::BTreeSet;

use messina_api::names::annotation::RING_QUESTION;
use serde_json::Value;

use crate::datacenter::{
    model::plan::{FieldPatch, ObjectKind},
    racks::Racks,
    state::Current,
    topology::steps::{Steps, Topology},
};

pub(crate) fn topology(current: &Current<'_>, racks: &Racks<'_>) -> Topology {
    let mut steps = Steps::new(current);
    maintenance::respect(&mut steps);
    let is_replacing = replacing::replace(&mut steps);
    leaving::clear_up(&mut steps);
    claims::clear_the_way(&mut steps);
    leaving::leave(&mut steps, racks, is_replacing);
    let is_held = is_replacing || !steps.done.under_maintenance.is_empty();
    outdated::start_anew(&mut steps, racks, is_held);
    upgrading::prepare(&mut steps, racks, is_held);
    steps.ask();
    let mut changes: Vec<FieldPatch> = steps.changes.into_values().collect();
    // What is asked of a node comes before the question goes to the others: so what they answer is newer than that, and a
    // crash in between wastes nobody's answer.
    changes.sort_by_key(only_asks);
    Topology { changes, ..steps.done }
}

/// Whether nothing changes but the question.
fn only_asks(change: &FieldPatch) -> bool {
    let (labels, annotations) = (&change.patch["metadata"]["labels"], &change.patch["metadata"]["annotations"]);
    let is_question = |annotations: &serde_json::Map<String, Value>| annotations.keys().all(|key| key == RING_QUESTION);
    change.kind == ObjectKind::Service && labels.is_null() && annotations.as_object().is_some_and(is_question)
}

/// Services that are about to go.
pub(crate) fn going(current: &Current<'_>) -> BTreeSet<String> {
    let mut steps = Steps::new(current);
    leaving::clear_up(&mut steps);
    steps.done.going
}
