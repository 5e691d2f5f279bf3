//! Conditions: how those of components are aggregated, and when a condition has changed.

use crate::reasons;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Longest message that the API server accepts, in characters.
pub(crate) const MESSAGE_LIMIT: usize = 32 * 1024;
/// Longest reason that the API server accepts, in characters.
const REASON_LIMIT: usize = 1024;

/// The conditions that every object has, aggregated from those of its components.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AggregateCondition {
    /// The object can be used.
    Available,
    /// The object is being changed towards its desired state.
    Progressing,
    /// The object cannot reach its desired state.
    Degraded,
}

impl AggregateCondition {
    /// The type of the condition, with which the types of the components' conditions end.
    pub fn name(self) -> &'static str {
        match self {
            Self::Available => "Available",
            Self::Progressing => "Progressing",
            Self::Degraded => "Degraded",
        }
    }

    fn healthy_status(self) -> &'static str {
        match self {
            Self::Available => "True",
            Self::Progressing | Self::Degraded => "False",
        }
    }

    /// Aggregates those of `conditions` whose types end with this type, such as `AgentDegraded`.
    pub fn of(self, conditions: &[Condition], generation: Option<i64>) -> Condition {
        let is_of_a_component =
            |condition: &&Condition| condition.type_ != self.name() && condition.type_.ends_with(self.name());
        let components: Vec<Condition> = conditions.iter().filter(is_of_a_component).cloned().collect();
        let healthy = Condition {
            type_: self.name().into(),
            status: self.healthy_status().into(),
            reason: reasons::AS_EXPECTED.into(),
            message: reasons::AS_EXPECTED.into(),
            observed_generation: generation,
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
        };
        aggregate(healthy, &components)
    }
}

/// Aggregates the conditions of components. `healthy` is the result if all components have its status. Otherwise the
/// result has the reasons and messages of the components with the opposite status or, if there are none, of those with
/// status Unknown.
pub fn aggregate(healthy: Condition, components: &[Condition]) -> Condition {
    let opposite = if healthy.status == "True" { "False" } else { "True" };
    for status in [opposite, "Unknown"] {
        let matching: Vec<&Condition> = components.iter().filter(|component| component.status == status).collect();
        if !matching.is_empty() {
            let messages: Vec<String> =
                matching.iter().map(|component| format!("{}: {}", component.type_, component.message)).collect();
            let reasons: Vec<String> = matching.iter().map(|component| component.reason.clone()).collect();
            let left_out = |count| format!("({count} more omitted)");
            let unnamed = |count| format!("And{count}MoreOmitted");
            return Condition {
                status: status.into(),
                message: joined(&messages, "\n", MESSAGE_LIMIT, left_out),
                reason: joined(&reasons, ",", REASON_LIMIT, unnamed),
                ..healthy
            };
        }
    }
    healthy
}

/// Joins as many texts as fit, and appends how many do not.
fn joined(texts: &[String], separator: &str, limit: usize, left_out: impl Fn(usize) -> String) -> String {
    (0..=texts.len())
        .rev()
        .map(|count| {
            let rest = (count < texts.len()).then(|| left_out(texts.len() - count));
            texts[..count].iter().cloned().chain(rest).collect::<Vec<_>>().join(separator)
        })
        .find(|joined| joined.chars().count() <= limit)
        .unwrap_or_default()
}

/// Returns the desired conditions with their transition times. The time of a condition whose status is the same in
/// `current` is kept, so that a condition that did not change is identical.
pub fn with_transition_times(current: &[Condition], desired: Vec<Condition>, now: Timestamp) -> Vec<Condition> {
    let since = |condition: &Condition| {
        let same = current.iter().find(|one| one.type_ == condition.type_ && one.status == condition.status);
        same.map_or(Time(now), |one| one.last_transition_time.clone())
    };
    desired.into_iter().map(|condition| Condition { last_transition_time: since(&condition), ..condition }).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::{fs, path::Path};

    use serde_json::Value;

    use super::*;

    fn condition(name: &str, status: &str) -> Condition {
        Condition {
            type_: name.into(),
            status: status.into(),
            reason: format!("{name}Reason"),
            message: format!("{name} message"),
            observed_generation: None,
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn aggregate_has_messages_of_its_own_type_only() {
        let conditions =
            [condition("AgentDegraded", "True"), condition("AgentProgressing", "True"), condition("Degraded", "True")];
        let degraded = AggregateCondition::Degraded.of(&conditions, Some(7));
        assert_eq!(degraded.status, "True");
        assert_eq!(degraded.message, "AgentDegraded: AgentDegraded message");
        assert_eq!(degraded.observed_generation, Some(7));
        assert_eq!(AggregateCondition::Available.of(&conditions, None).status, "True", "no component is unavailable");
    }

    #[test]
    fn unhealthy_components_take_precedence_over_unknown_ones() {
        let components = [condition("A", "Unknown"), condition("B", "False"), condition("C", "True")];
        let available = aggregate(condition("Available", "True"), &components);
        assert_eq!((available.status.as_str(), available.reason.as_str()), ("False", "BReason"));
    }

    #[test]
    fn transition_time_changes_only_with_the_status() {
        let mut before = condition("Available", "False");
        before.last_transition_time = Time(at(1));
        let mut other_message = condition("Available", "False");
        other_message.message = "for another reason".into();
        let kept = with_transition_times(&[before.clone()], vec![other_message.clone()], at(2));
        assert_eq!(kept[0].last_transition_time, Time(at(1)));
        assert_eq!(kept[0].message, "for another reason");
        let turned =
            with_transition_times(&[before], vec![condition("Available", "True"), condition("New", "True")], at(2));
        assert_eq!([&turned[0].last_transition_time, &turned[1].last_transition_time], [&Time(at(2)), &Time(at(2))]);
    }

    /// Runs every compatibility case. Conditions in the cases have no transition time, and ours need one.
    #[test]
    fn conditions_are_aggregated_as_in_the_compatibility_cases() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/compat/cases/conditions/aggregate");
        let Ok(files) = fs::read_dir(&folder) else {
            return eprintln!("skipped: {} does not exist, so there are no cases to run", folder.display());
        };
        let timeless = |mut value: Value| {
            value["lastTransitionTime"] = "1970-01-01T00:00:00Z".into();
            serde_json::from_value::<Condition>(value).unwrap()
        };
        let mut count = 0;
        for file in files {
            let file = file.unwrap().path();
            let case: Value = serde_saphyr::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
            let components = case["conditions"].as_array().cloned().unwrap_or_default();
            let components: Vec<Condition> = components.into_iter().map(timeless).collect();
            let result = aggregate(timeless(case["condition"].clone()), &components);
            assert_eq!(result, timeless(case["expectedCondition"].clone()), "{}", file.display());
            count += 1;
        }
        assert!(count > 0, "{} has no cases", folder.display());
        eprintln!("{count} cases");
    }

    #[test]
    fn conditions_stay_identical_if_nothing_changes() {
        let written = with_transition_times(&[], vec![condition("A", "True"), condition("B", "Unknown")], at(1));
        assert_eq!(with_transition_times(&written, written.clone(), at(9)), written);
    }
}
