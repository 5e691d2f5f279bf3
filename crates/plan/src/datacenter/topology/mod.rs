//! Topology changes: nodes that are decommissioned, replaced or upgraded.
//!
//! Decisions that could lose data are made from the token ring: the operator writes a question to the nodes' Services,
//! and their sidecars answer there. A request is written first, for one host ID; then it is carried out; then the other
//! nodes confirm it. A label alone decides nothing.

mod claims;
pub(crate) mod cleanup;
mod decommission;
mod departed;
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

/// Decides all topology changes.
pub(crate) fn topology(current: &Current<'_>, racks: &Racks<'_>) -> Topology {
    let mut steps = Steps::new(current);
    maintenance::report_maintenance(&mut steps);
    let is_replacing = replacing::replace(&mut steps);
    departed::remove_departed(&mut steps);
    claims::delete_stale_claims(&mut steps);
    decommission::decommission_next(&mut steps, racks, is_replacing);
    let is_held = is_replacing || !steps.topology.under_maintenance.is_empty();
    outdated::restart_next(&mut steps, racks, is_held);
    upgrading::prepare(&mut steps, racks, is_held);
    steps.ask_for_ring();
    let mut changes: Vec<FieldPatch> = steps.changes.into_values().collect();
    // A request to a node is written before the question to the others: so their answers are newer than the request,
    // and if the operator stops in between, no answer is lost.
    changes.sort_by_key(is_only_question);
    Topology { changes, ..steps.topology }
}

/// Whether the patch changes only the question.
fn is_only_question(change: &FieldPatch) -> bool {
    let (labels, annotations) = (&change.patch["metadata"]["labels"], &change.patch["metadata"]["annotations"]);
    let is_question = |annotations: &serde_json::Map<String, Value>| annotations.keys().all(|key| key == RING_QUESTION);
    change.kind == ObjectKind::Service && labels.is_null() && annotations.as_object().is_some_and(is_question)
}

/// Returns the Services of nodes that have left, which are deleted now or soon.
pub(crate) fn services_to_delete(current: &Current<'_>) -> BTreeSet<String> {
    let mut steps = Steps::new(current);
    departed::remove_departed(&mut steps);
    steps.topology.services_to_delete
}
