//! What is told of StatefulSets that change.

use k8s_openapi::api::apps::v1::StatefulSet;

use crate::datacenter::{
    model::{
        component::Component,
        observed::Observed,
        plan::{Note, Restart},
    },
    racks::Standing,
    state::{nodes::nodes_not_ready, stateful_set::replicas},
};

pub(crate) fn note(reason: &'static str, message: String) -> Note {
    Note { component: Component::StatefulSet, reason, message }
}

pub(crate) fn reference(observed: &Observed, stateful_set: &StatefulSet) -> String {
    let name = stateful_set.metadata.name.as_deref().unwrap_or_default();
    format!("StatefulSet {}/{name}", observed.datacenter.namespace)
}

pub(crate) fn rolling_out(observed: &Observed, stateful_set: &StatefulSet) -> Note {
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

pub(crate) fn waiting_for_creation(observed: &Observed, stateful_set: &StatefulSet) -> Note {
    let message = format!("{} is created when those before it are rolled out", reference(observed, stateful_set));
    note("WaitingForOtherRacks", message)
}

pub(crate) fn creating(observed: &Observed, stateful_set: &StatefulSet) -> Note {
    note("CreatingStatefulSet", format!("{} is created; then its nodes join", reference(observed, stateful_set)))
}

pub(crate) fn recreating(observed: &Observed, stateful_set: &StatefulSet) -> Note {
    let message =
        format!("{} is made anew around its {} node(s)", reference(observed, stateful_set), replicas(stateful_set));
    note("RestoringStatefulSet", message)
}

pub(crate) fn scaling_out(observed: &Observed, one: &Standing<'_>) -> Note {
    let (now, nodes) = (replicas(one.now), replicas(&one.wanted));
    note(
        "ScalingOut",
        format!("{} gets {nodes} node(s) in place of {now}; then they join", reference(observed, one.now)),
    )
}

pub(crate) fn updating(observed: &Observed, one: &Standing<'_>, next: Option<&Restart>) -> Note {
    let whole = reference(observed, one.now);
    let message = match next {
        Some(next) => format!("{whole} is changed, and node {} restarts", next.member()),
        None => format!("{whole} is changed"),
    };
    note("UpdatingStatefulSet", message)
}

pub(crate) fn paused(observed: &Observed, stateful_set: &StatefulSet) -> Note {
    let message = format!("{} goes on to change when all nodes are up", reference(observed, stateful_set));
    note("WaitingToRestart", message)
}

pub(crate) fn upgrade_blocked(observed: &Observed, member: &str) -> Note {
    let message = format!(
        "node {}/{member} is down, and its version is to change, which begins when it is up: `kubectl describe pod {member}` \
         says why it is down; or undo the change of the version until it is up",
        observed.datacenter.namespace
    );
    note("UpgradeHeldUp", message)
}

pub(crate) fn waiting_for_turn(observed: &Observed, one: &Standing<'_>, other: &str) -> Note {
    let message = format!(
        "{} is not updated yet: the operator has changed, and datacenters restart their nodes in turn. It is the turn of {other}",
        reference(observed, one.now)
    );
    note("WaitingForTurn", message)
}

pub(crate) fn waiting_to_restart(observed: &Observed, one: &Standing<'_>, next: Option<&Restart>) -> Note {
    let member = next.map(Restart::member).unwrap_or_default();
    let message = format!("{} is to change; node {member} restarts next, when it may", reference(observed, one.now));
    note("WaitingToRestart", message)
}
