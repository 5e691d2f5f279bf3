//! The messages about StatefulSets that change.

use k8s_openapi::api::apps::v1::StatefulSet;
use messina_text::Reason;

use crate::datacenter::{
    model::{
        component::Component,
        observed::Observed,
        plan::{Note, Restart},
    },
    racks::ExistingRack,
    reasons,
    state::{nodes::nodes_not_ready, stateful_set::replicas},
};

/// What StatefulSets wait for while a ConfigMap or Secret of the user does not exist, in their messages.
pub const USER_OBJECTS: &str = "the ConfigMaps and Secrets that its racks refer to";

/// How the messages of StatefulSets end that wait for others.
pub const OTHER_CHANGES: &str = "no other change is in progress.";

pub(crate) fn note(reason: Reason, message: String) -> Note {
    Note { component: Component::StatefulSet, reason, message }
}

pub(crate) fn reference(observed: &Observed, stateful_set: &StatefulSet) -> String {
    let name = stateful_set.metadata.name.as_deref().unwrap_or_default();
    format!("StatefulSet {}/{name}", observed.datacenter.namespace)
}

pub(crate) fn rolling_out(observed: &Observed, stateful_set: &StatefulSet) -> Note {
    let status = stateful_set.status.clone().unwrap_or_default();
    let not_ready = nodes_not_ready(observed, stateful_set);
    let cause = match not_ready.first() {
        Some(first) => format!(
            " Node(s) {} are not ready. If that lasts, see `kubectl describe pod {first}`.",
            not_ready.join(", ")
        ),
        None => String::new(),
    };
    note(
        reasons::WAITING_FOR_STATEFUL_SET_ROLLOUT,
        format!(
            "{} is rolling out: {} of {} node(s) are available.{cause} The next change begins when all are available.",
            reference(observed, stateful_set),
            status.available_replicas.unwrap_or(0),
            replicas(stateful_set)
        ),
    )
}

pub(crate) fn waiting_for_creation(observed: &Observed, stateful_set: &StatefulSet) -> Note {
    let message = format!(
        "{} does not exist yet. The operator creates it when the racks before it are rolled out and \
         {OTHER_CHANGES}",
        reference(observed, stateful_set)
    );
    note(reasons::WAITING_FOR_OTHER_RACKS, message)
}

pub(crate) fn creating(observed: &Observed, stateful_set: &StatefulSet) -> Note {
    note(
        reasons::CREATING_STATEFUL_SET,
        format!("Creating {}. Its nodes then join.", reference(observed, stateful_set)),
    )
}

pub(crate) fn recreating(observed: &Observed, stateful_set: &StatefulSet) -> Note {
    let message = format!(
        "Recreating {} for its {} existing node(s).",
        reference(observed, stateful_set),
        replicas(stateful_set)
    );
    note(reasons::RECREATING_STATEFUL_SET, message)
}

pub(crate) fn scaling_out(observed: &Observed, one: &ExistingRack<'_>) -> Note {
    let (now, nodes) = (replicas(one.now), replicas(&one.desired));
    note(
        reasons::SCALING_OUT,
        format!("Scaling {} out from {now} to {nodes} node(s). The new nodes then join.", reference(observed, one.now)),
    )
}

pub(crate) fn updating(observed: &Observed, one: &ExistingRack<'_>, next: Option<&Restart>) -> Note {
    let whole = reference(observed, one.now);
    let message = match next {
        Some(next) => format!("Updating {whole}. Node {} restarts.", next.member()),
        None => format!("Updating {whole}."),
    };
    note(reasons::UPDATING_STATEFUL_SET, message)
}

pub(crate) fn paused(observed: &Observed, stateful_set: &StatefulSet) -> Note {
    let message = format!(
        "The rolling update of {} is paused. Waiting until all nodes are up.",
        reference(observed, stateful_set)
    );
    note(reasons::WAITING_TO_RESTART, message)
}

pub(crate) fn upgrade_blocked(observed: &Observed, member: &str) -> Note {
    let message = format!(
        "Node {}/{member} is down, and its upgrade cannot begin before it is up. See `kubectl describe pod {member}` \
         for why it is down, or restore the former version until it is up.",
        observed.datacenter.namespace
    );
    note(reasons::UPGRADE_BLOCKED, message)
}

pub(crate) fn waiting_for_turn(observed: &Observed, one: &ExistingRack<'_>, other: &str) -> Note {
    let message = format!(
        "{} is not updated yet: the operator has changed, and datacenters restart their nodes one after another. \
         Waiting for {other}.",
        reference(observed, one.now)
    );
    note(reasons::WAITING_FOR_TURN, message)
}

pub(crate) fn waiting_to_restart(observed: &Observed, one: &ExistingRack<'_>, next: Option<&Restart>) -> Note {
    let member = next.map(Restart::member).unwrap_or_default();
    let message = format!(
        "{} has to be updated. Node {member} restarts next. Waiting until it may restart.",
        reference(observed, one.now)
    );
    note(reasons::WAITING_TO_RESTART, message)
}
