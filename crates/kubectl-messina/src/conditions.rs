//! Conditions as people read them: causes first, and what follows from them folded away.

use messina_plan::datacenter::{Component, OTHER_CHANGES, USER_OBJECTS, reasons};

use crate::{
    page::Colour,
    status::model::{Condition, OBSERVATION},
};

/// How many messages of one component are shown.
const MAX_MESSAGES: usize = 3;

/// Reasons of a component that is progressing and goes on only when the user has created an object.
const MISSING_OBJECT: [&str; 2] = ["WaitingForSecret", "WaitingForConfigMap"];

/// The reason of certificates that wait for addresses of nodes, and so for the StatefulSets, which are applied later.
const WAITING_FOR_ADDRESSES: &str = "WaitingForAddresses";

/// Reasons of nodes that are not available because StatefulSets are not written.
const NOT_WRITTEN: [&str; 2] = [reasons::RACKS_NOT_AT_DESIRED_VERSION.as_str(), reasons::MEMBERS_NOT_UPDATED.as_str()];

/// The suffixes of the types of conditions.
const DEGRADED: &str = "Degraded";
const AVAILABLE: &str = "Available";
const PROGRESSING: &str = "Progressing";

/// A condition with those of its messages that are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown<'a> {
    pub(crate) condition: &'a Condition,
    pub(crate) messages: Vec<&'a str>,
}

/// Conditions, sorted into causes and others, without what follows from the causes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Folded<'a> {
    /// What has to be resolved first, the earliest component first.
    pub(crate) causes: Vec<Shown<'a>>,
    /// What is independent of the causes.
    pub(crate) others: Vec<Shown<'a>>,
    /// How many messages follow from the causes.
    pub(crate) consequences: usize,
    /// How many messages are left out because their component has more than [`MAX_MESSAGES`].
    pub(crate) omitted: usize,
}

impl Folded<'_> {
    /// Whether the number of messages that are left out belongs below the causes; else it belongs below all conditions.
    pub(crate) fn has_consequences(&self) -> bool {
        self.consequences > 0
    }

    /// How many messages are left out, as a clause, and the pronoun for them; none where all are shown.
    pub(crate) fn left_out(&self) -> Option<(String, &'static str)> {
        let messages = |count: usize| format!("{count} more message{}", if count == 1 { "" } else { "s" });
        let verb = |count: usize, one: &'static str, many: &'static str| if count == 1 { one } else { many };
        let causes = if self.causes.len() > 1 { "these" } else { "this" };
        let consequences =
            format!("{} {} from {causes}", messages(self.consequences), verb(self.consequences, "follows", "follow"));
        let omitted = format!("{} {} not shown", messages(self.omitted), verb(self.omitted, "is", "are"));
        let clause = match (self.consequences, self.omitted) {
            (0, 0) => return None,
            (_, 0) => consequences,
            (0, _) => omitted,
            _ => format!("{consequences}, and {omitted}"),
        };
        Some((clause, verb(self.consequences + self.omitted, "it", "them")))
    }
}

/// Separates causes from what follows from them. `shows_all` keeps every message, in the same order.
///
/// A cause is a condition that is degraded, or one that waits for an object that the user has to create. A condition that is
/// progressing or not available follows from a cause when its component waits for the component of the cause. A degraded
/// condition never follows from another: the operator reports it only for what it has tried itself.
pub(crate) fn fold(conditions: &[Condition], shows_all: bool) -> Folded<'_> {
    // A refused decommission keeps nothing else from being done. It waits itself until nodes are cleaned up.
    let holds_others = |condition: &&Condition| condition.reason != reasons::DECOMMISSION_REFUSED.as_str();
    let causes = conditions.iter().filter(|condition| is_cause(condition)).filter(holds_others);
    let origins: Vec<Origin> = causes.filter_map(Origin::of).collect();
    let mut folded = Folded::default();
    let mut consequences = Vec::new();
    for condition in conditions {
        let messages = messages(condition);
        if stops_all_work(condition) || is_cause(condition) {
            let (own, following) = split_cause(condition, messages);
            folded.causes.push(Shown { condition, messages: own });
            consequences.push(Shown { condition, messages: following });
        } else if follows(condition, &origins) {
            consequences.push(Shown { condition, messages });
        } else {
            folded.others.push(Shown { condition, messages });
        }
    }
    folded.causes.sort_by_key(|shown| rank(shown.condition));
    if shows_all {
        consequences.retain(|shown| !shown.messages.is_empty());
        consequences.append(&mut folded.others);
        folded.others = consequences;
        return folded;
    }
    folded.consequences = consequences.iter().map(|shown| shown.messages.len()).sum();
    folded.omit_long_ones();
    folded
}

impl Folded<'_> {
    /// Leaves at most [`MAX_MESSAGES`] of each component. What the user has to correct in a specification is shown as a whole.
    fn omit_long_ones(&mut self) {
        let mut shown: Vec<(Component, usize)> = Vec::new();
        for one in self.causes.iter_mut().chain(&mut self.others) {
            let Some(Origin::Component(component)) = Origin::of(one.condition) else { continue };
            let position = shown.iter().position(|(other, _)| *other == component).unwrap_or_else(|| {
                shown.push((component, 0));
                shown.len() - 1
            });
            let room = MAX_MESSAGES - shown[position].1;
            self.omitted += one.messages.len().saturating_sub(room);
            one.messages.truncate(room);
            shown[position].1 += one.messages.len();
        }
        self.causes.retain(|one| !one.messages.is_empty());
        self.others.retain(|one| !one.messages.is_empty());
    }
}

/// What a condition speaks of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The operator could not read the object, or refuses its specification: no component is applied.
    Observation,
    Component(Component),
}

impl Origin {
    /// None for conditions of the object as a whole.
    fn of(condition: &Condition) -> Option<Self> {
        let name = condition.condition_type.as_str();
        if name == OBSERVATION {
            return Some(Self::Observation);
        }
        let component = [DEGRADED, AVAILABLE, PROGRESSING].into_iter().find_map(|suffix| name.strip_suffix(suffix))?;
        Component::ALL.into_iter().find(|one| one.name() == component).map(Self::Component)
    }
}

/// The position of a condition among the causes.
fn rank(condition: &Condition) -> usize {
    let position = |component| Component::ALL.iter().position(|other| *other == component);
    match Origin::of(condition) {
        None if stops_all_work(condition) => 0,
        Some(Origin::Observation) => 1,
        Some(Origin::Component(component)) => position(component).map_or(usize::MAX, |position| position + 2),
        None => usize::MAX,
    }
}

/// Whether a condition says that the operator does no work on the object: it is paused, or another operator is active.
fn stops_all_work(condition: &Condition) -> bool {
    let name = condition.condition_type.as_str();
    ![DEGRADED, AVAILABLE, PROGRESSING].iter().any(|suffix| name.ends_with(suffix))
}

fn is_cause(condition: &Condition) -> bool {
    let is_degraded = condition.condition_type.ends_with(DEGRADED) && condition.status;
    is_degraded || is_missing_object(condition)
}

fn is_missing_object(condition: &Condition) -> bool {
    condition.condition_type.ends_with(PROGRESSING) && MISSING_OBJECT.contains(&condition.reason.as_str())
}

/// Whether a condition that is no cause follows from one of these.
fn follows(condition: &Condition, causes: &[Origin]) -> bool {
    let Some(Origin::Component(component)) = Origin::of(condition) else { return false };
    let name = condition.condition_type.as_str();
    if name.ends_with(DEGRADED) {
        return false;
    }
    causes.iter().any(|cause| match *cause {
        Origin::Observation => true,
        // Nodes that are not ready have another cause than what is not written.
        Origin::Component(_) if name.ends_with(AVAILABLE) && !NOT_WRITTEN.contains(&condition.reason.as_str()) => false,
        Origin::Component(cause) => {
            let is_unavailability = component == cause && name.ends_with(AVAILABLE);
            let waits_for_nodes = component == Component::Certificates && condition.reason == WAITING_FOR_ADDRESSES;
            let stateful_set = Component::StatefulSet;
            let keeps_nodes_away = cause == stateful_set || waits_for(stateful_set, cause);
            is_unavailability
                || waits_for(component, cause)
                || waits_for_nodes && cause != component && keeps_nodes_away
        }
    })
}

/// Whether a component waits for another, directly or not.
fn waits_for(component: Component, other: Component) -> bool {
    let nodes = component.needs_running_nodes().then_some(Component::StatefulSet);
    component.needs().iter().copied().chain(nodes).any(|need| need == other || waits_for(need, other))
}

/// The messages of a cause that speak of it, and those that follow from it: where objects of the user are missing, the
/// StatefulSets that wait for them are listed in the same condition.
fn split_cause<'a>(condition: &Condition, messages: Vec<&'a str>) -> (Vec<&'a str>, Vec<&'a str>) {
    let endings = [&format!("Waiting for {USER_OBJECTS}."), OTHER_CHANGES];
    let is_waiting = |message: &str| endings.iter().any(|ending| message.ends_with(ending));
    messages.into_iter().partition(|message| !is_missing_object(condition) || !is_waiting(message))
}

/// The messages of a condition, one for each line; its reason where there is none.
fn messages(condition: &Condition) -> Vec<&str> {
    let lines: Vec<&str> = condition.message.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() { vec![condition.reason.as_str()] } else { lines }
}

/// What a message of a condition begins with, the component that it is about (may be empty), and its colour.
pub(crate) fn title(condition: &Condition) -> (&'static str, &str, Colour) {
    let name = condition.condition_type.as_str();
    let component = |suffix: &str| name.strip_suffix(suffix).unwrap_or(name).trim_end_matches("Controller");
    match name {
        "Paused" => ("Paused", "", Colour::Yellow),
        "ScyllaOperatorActive" => ("scylla-operator is active", "", Colour::Yellow),
        _ if condition.is_refusal() => ("Refused", "", Colour::Red),
        _ if name.ends_with(DEGRADED) => ("Degraded", component(DEGRADED), Colour::Red),
        _ if name.ends_with(AVAILABLE) => ("Not available", component(AVAILABLE), Colour::Red),
        _ => ("Progressing", component(PROGRESSING), Colour::Yellow),
    }
}

#[cfg(test)]
mod tests;
