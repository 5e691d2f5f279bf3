//! Conditions: how the parts of an object add up, and when a condition has changed.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Longest message that the API server takes, in characters.
pub(crate) const MESSAGE_LIMIT: usize = 32 * 1024;
/// Longest reason that the API server takes, in characters.
const REASON_LIMIT: usize = 1024;

/// The conditions that every object has: what they are called, and what they are when all is well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summary {
    /// The object serves its purpose.
    Available,
    /// Something is still to be done.
    Progressing,
    /// Something is wrong.
    Degraded,
}

impl Summary {
    /// The type of the condition; the conditions of parts end in it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Available => "Available",
            Self::Progressing => "Progressing",
            Self::Degraded => "Degraded",
        }
    }

    fn when_all_is_well(self) -> &'static str {
        match self {
            Self::Available => "True",
            Self::Progressing | Self::Degraded => "False",
        }
    }

    /// Adds up those of `conditions` that are called after a part and this summary, such as `AgentDegraded`.
    pub fn of(self, conditions: &[Condition], generation: Option<i64>) -> Condition {
        let is_of_a_part =
            |condition: &&Condition| condition.type_ != self.name() && condition.type_.ends_with(self.name());
        let components: Vec<Condition> = conditions.iter().filter(is_of_a_part).cloned().collect();
        let well = Condition {
            type_: self.name().into(),
            status: self.when_all_is_well().into(),
            reason: "AsExpected".into(),
            message: "AsExpected".into(),
            observed_generation: generation,
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
        };
        aggregate(well, &components)
    }
}

/// Adds up the conditions of parts. `well` is the result when every part is as `well` is; else the result speaks of the
/// parts that are the opposite or, where there are none, of those of which nothing is known.
pub fn aggregate(well: Condition, components: &[Condition]) -> Condition {
    let opposite = if well.status == "True" { "False" } else { "True" };
    for status in [opposite, "Unknown"] {
        let speaking: Vec<&Condition> = components.iter().filter(|component| component.status == status).collect();
        if !speaking.is_empty() {
            let messages: Vec<String> =
                speaking.iter().map(|component| format!("{}: {}", component.type_, component.message)).collect();
            let reasons: Vec<String> = speaking.iter().map(|component| component.reason.clone()).collect();
            let left_out = |count| format!("({count} more omitted)");
            let unnamed = |count| format!("And{count}MoreOmitted");
            return Condition {
                status: status.into(),
                message: joined(&messages, "\n", MESSAGE_LIMIT, left_out),
                reason: joined(&reasons, ",", REASON_LIMIT, unnamed),
                ..well
            };
        }
    }
    well
}

/// Joins as many texts as have room, and says how many do not.
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

/// The conditions to write: `desired`, each with the time at which its status last changed. The time of a condition
/// whose status is as in `current` is kept, so that a condition that did not change is the same to the letter.
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
    fn a_summary_speaks_of_its_own_parts_only() {
        let conditions =
            [condition("AgentDegraded", "True"), condition("AgentProgressing", "True"), condition("Degraded", "True")];
        let degraded = Summary::Degraded.of(&conditions, Some(7));
        assert_eq!(degraded.status, "True");
        assert_eq!(degraded.message, "AgentDegraded: AgentDegraded message");
        assert_eq!(degraded.observed_generation, Some(7));
        assert_eq!(Summary::Available.of(&conditions, None).status, "True", "no part says otherwise");
    }

    #[test]
    fn what_is_wrong_comes_before_what_is_unknown() {
        let components = [condition("A", "Unknown"), condition("B", "False"), condition("C", "True")];
        let available = aggregate(condition("Available", "True"), &components);
        assert_eq!((available.status.as_str(), available.reason.as_str()), ("False", "BReason"));
    }

    #[test]
    fn a_time_moves_only_with_the_status() {
        let mut before = condition("Available", "False");
        before.last_transition_time = Time(at(1));
        let mut other_words = condition("Available", "False");
        other_words.message = "for another reason".into();
        let kept = with_transition_times(&[before.clone()], vec![other_words.clone()], at(2));
        assert_eq!(kept[0].last_transition_time, Time(at(1)));
        assert_eq!(kept[0].message, "for another reason");
        let turned =
            with_transition_times(&[before], vec![condition("Available", "True"), condition("New", "True")], at(2));
        assert_eq!([&turned[0].last_transition_time, &turned[1].last_transition_time], [&Time(at(2)), &Time(at(2))]);
    }

    /// Every case of the peers; a condition there has no time, and ours needs one.
    #[test]
    fn parts_add_up_as_with_the_peers() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/compat/cases/conditions/aggregate");
        let Ok(files) = fs::read_dir(&folder) else {
            return eprintln!("skipped: {} is not there, so there are no cases to run", folder.display());
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
    fn writing_again_what_was_written_changes_nothing() {
        let written = with_transition_times(&[], vec![condition("A", "True"), condition("B", "Unknown")], at(1));
        assert_eq!(with_transition_times(&written, written.clone(), at(9)), written);
    }
}
