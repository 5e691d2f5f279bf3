//! Nodes under maintenance by the user. As long as there is one, the operator begins nothing that stops another node or
//! that needs this one. What has begun is completed.

use messina_api::names::label::NODE_MAINTENANCE;

use crate::datacenter::{model::component::Component, reasons, topology::steps::Steps};

/// Reports nodes under maintenance, and how to end the maintenance.
pub(crate) fn report_maintenance(steps: &mut Steps<'_>) {
    for member in steps.ring.members.iter().filter(|member| member.service.is_under_maintenance) {
        let message = format!(
            "Node {} is under maintenance. Until that ends, the operator does not add, decommission, replace, restart \
             or clean up any node. To end it: `kubectl label service -n {} {} {NODE_MAINTENANCE}-`.",
            steps.node_reference(member),
            steps.observed.datacenter.namespace,
            member.name
        );
        steps.report_progressing(Component::StatefulSet, reasons::NODE_UNDER_MAINTENANCE, message);
        steps.topology.under_maintenance.push(member.name.to_owned());
    }
}

/// Returns the node under maintenance because of which no change may begin.
pub(crate) fn blocker(steps: &Steps<'_>) -> Option<String> {
    steps.topology.under_maintenance.first().map(|name| format!("node {name} is under maintenance"))
}
