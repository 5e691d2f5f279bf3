//! Nodes that somebody works on. As long as there is one, nothing is begun that makes another node go away, or that needs
//! this one; what was begun is finished.

use messina_api::names::label::NODE_MAINTENANCE;

use crate::datacenter::{model::component::Component, topology::steps::Steps};

/// Finds nodes under maintenance, and says how to end it.
pub(crate) fn respect(steps: &mut Steps<'_>) {
    for member in steps.ring.members.iter().filter(|member| member.service.is_under_maintenance) {
        let message = format!(
            "node {} is under maintenance: until that is over, no node begins to join or to leave, none is replaced, \
             restarted or cleaned up. To end it: `kubectl label service -n {} {} {NODE_MAINTENANCE}-`",
            steps.named(member),
            steps.observed.datacenter.namespace,
            member.name
        );
        steps.wait(Component::StatefulSet, "NodeUnderMaintenance", message);
        steps.done.under_maintenance.push(member.name.to_owned());
    }
}

/// Why nothing may begin, if that is because somebody works on a node.
pub(crate) fn reason(steps: &Steps<'_>) -> Option<String> {
    steps.done.under_maintenance.first().map(|name| format!("node {name} is under maintenance"))
}
