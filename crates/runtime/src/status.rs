//! Writes the status of an object, and only what has changed of it.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Map, Value, json};

use crate::{
    apply::{Applied, Waiting},
    conditions::{MESSAGE_LIMIT, Summary, with_transition_times},
    error::{Error, chain},
};

/// How an object stands, as a controller reports it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The status without its conditions.
    pub status: Value,
    /// Conditions besides those of the parts.
    pub conditions: Vec<Condition>,
    /// Written at once, however short a time ago the status was written last.
    pub is_urgent: bool,
    /// When the object is to be looked at again, should nothing change until then.
    pub requeue_after: Option<Duration>,
}

/// A condition of which nobody knows yet since when it holds.
pub fn condition(
    name: impl Into<String>,
    status: bool,
    reason: &str,
    message: &str,
    generation: Option<i64>,
) -> Condition {
    Condition {
        type_: name.into(),
        status: if status { "True" } else { "False" }.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: generation,
        last_transition_time: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH),
    }
}

/// The conditions of parts: what is wrong with each, and whether it is done.
pub(crate) fn part_conditions(applied: &[Applied], generation: Option<i64>) -> Vec<Condition> {
    let of_part = |Applied { component, written, failure, waits_for, remark, .. }: &Applied| {
        let degraded = match failure {
            // Somebody was faster: it is looked at again at once, and nobody has to do anything.
            Some(error) if !error.is_conflict() => (true, error.reason(), chain(error)),
            _ => (false, AS_EXPECTED, String::new()),
        };
        let progressing = match (failure, waits_for, remark) {
            (Some(error), ..) if error.is_conflict() => (true, error.reason(), chain(error)),
            (_, Some(Waiting { reason, message }), _) => (true, *reason, message.clone()),
            _ if !written.is_empty() => (true, "Written", format!("Just written: {}.", written.join(", "))),
            (.., Some(Waiting { reason, message })) => (false, *reason, message.clone()),
            _ => (false, AS_EXPECTED, String::new()),
        };
        [("Degraded", degraded), ("Progressing", progressing)].map(|(kind, (status, reason, message))| {
            condition(format!("{component}{kind}"), status, reason, &message, generation)
        })
    };
    applied.iter().flat_map(of_part).collect()
}

const AS_EXPECTED: &str = "AsExpected";

/// The whole status to be written: the report, with conditions of parts, their sums, and their times.
pub(crate) fn whole(
    report: Report,
    applied: &[Applied],
    generation: Option<i64>,
    current: &Value,
    now: Timestamp,
) -> Value {
    let mut conditions = part_conditions(applied, generation);
    conditions.extend(report.conditions);
    let sums = [Summary::Available, Summary::Progressing, Summary::Degraded].map(|sum| sum.of(&conditions, generation));
    conditions.extend(sums);
    let mut status = report.status;
    if !status.is_object() {
        status = json!({});
    }
    status["conditions"] = timed(conditions, current, now);
    status
}

/// The status to be written when the object could not even be looked at: as it is, with a condition that says so.
/// `rests` are the types of conditions that say that no work is done.
pub(crate) fn failed(
    error: &Error,
    rests: [&str; 2],
    generation: Option<i64>,
    current: &Value,
    now: Timestamp,
) -> Value {
    const OBSERVATION: &str = "ObservationDegraded";
    // An object that is looked at is neither paused nor held.
    let mut status = if current.is_object() { current.clone() } else { json!({}) };
    let is_replaced = |name: &str| [OBSERVATION, Summary::Degraded.name()].contains(&name) || rests.contains(&name);
    let mut conditions: Vec<Condition> =
        conditions_of(current).into_iter().filter(|condition| !is_replaced(&condition.type_)).collect();
    conditions.push(condition(OBSERVATION, true, error.reason(), &chain(error), generation));
    conditions.push(Summary::Degraded.of(&conditions, generation));
    status["conditions"] = timed(conditions, current, now);
    status
}

/// The status of an object on which no work is done: as it is, with the first of these types of conditions, and without the second.
pub(crate) fn paused(
    [kind, other]: [&str; 2],
    message: &str,
    generation: Option<i64>,
    current: &Value,
    now: Timestamp,
) -> Value {
    let mut status = if current.is_object() { current.clone() } else { json!({}) };
    let mut conditions = conditions_of(current);
    conditions.retain(|one| one.type_ != kind && one.type_ != other);
    conditions.push(condition(kind, true, kind, message, generation));
    status["conditions"] = timed(conditions, current, now);
    status
}

fn timed(conditions: Vec<Condition>, current: &Value, now: Timestamp) -> Value {
    json!(with_transition_times(&conditions_of(current), conditions, now))
}

fn conditions_of(status: &Value) -> Vec<Condition> {
    status.get("conditions").and_then(|all| serde_json::from_value(all.clone()).ok()).unwrap_or_default()
}

/// What is written of a status: texts of others are in its messages, and people read them in terminals. The API server takes
/// none that are longer.
pub(crate) fn fit(status: &Value) -> Value {
    let mut fit = status.clone();
    messina_text::make_fit(&mut fit, MESSAGE_LIMIT);
    fit
}

/// Whether a condition holds that did not, or the other way round, or they are of another generation.
pub(crate) fn is_transition(current: &Value, desired: &Value) -> bool {
    let standing = |status: &Value| -> BTreeSet<_> {
        let conditions = conditions_of(status).into_iter();
        conditions.map(|one| (one.type_, one.status, one.observed_generation)).collect()
    };
    standing(current) != standing(desired)
}

/// What has to be sent so that `current` becomes `desired`; none where that is nothing.
pub(crate) fn patch(current: &Value, desired: &Value) -> Option<Value> {
    let empty = Map::new();
    let (current, desired) = (current.as_object().unwrap_or(&empty), desired.as_object().unwrap_or(&empty));
    let is_present = |(_, value): &(&String, &Value)| !value.is_null();
    let changed = desired.iter().filter(is_present).filter(|(name, value)| current.get(*name) != Some(value));
    let gone = current.keys().filter(|name| desired.get(*name).is_none_or(Value::is_null));
    let patch: Map<String, Value> = changed
        .map(|(name, value)| (name.clone(), merge_patch(current.get(name), value)))
        .chain(gone.map(|name| (name.clone(), Value::Null)))
        .collect();
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// A merge patch: members that are gone have to be named.
fn merge_patch(current: Option<&Value>, desired: &Value) -> Value {
    match (current, desired) {
        (Some(Value::Object(_)), Value::Object(_)) => {
            patch(current.unwrap_or(&Value::Null), desired).unwrap_or_else(|| json!({}))
        }
        _ => desired.clone(),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::pause::PAUSED;

    const RESTS: [&str; 2] = [PAUSED, "Held"];

    #[test]
    fn texts_of_others_are_made_fit_before_they_are_written() {
        let report = Report {
            status: json!({"lastErrors": [{"description": "etcd says \u{1b}[31mno\u{202e}"}]}),
            conditions: vec![condition("JobDegraded", true, "Failed", &"\u{7}x".repeat(MESSAGE_LIMIT), None)],
            ..Report::default()
        };
        let whole = fit(&whole(report, &[], Some(1), &Value::Null, at(1)));
        assert_eq!(whole["lastErrors"][0]["description"], "etcd says no");
        let conditions = conditions_of(&whole);
        let message = &conditions.iter().find(|one| one.type_ == "JobDegraded").unwrap().message;
        assert!(message.chars().count() <= MESSAGE_LIMIT && message.starts_with("xxx"));
        assert!(conditions.iter().all(|one| !one.message.contains('\u{7}')), "sums are made of them, too");
        assert_eq!(patch(&whole, &fit(&whole)), None, "it is written once");
    }

    #[test]
    fn words_and_counts_are_no_transition() {
        let status = |holds: bool, message: &str, generation: i64, nodes: i32| {
            let one = condition("Progressing", holds, "Reason", message, Some(generation));
            json!({"conditions": [one], "nodes": nodes})
        };
        let before = status(true, "first", 1, 1);
        assert!(!is_transition(&before, &status(true, "second", 1, 2)));
        assert!(is_transition(&before, &status(false, "first", 1, 1)));
        assert!(is_transition(&before, &status(true, "first", 2, 1)));
        assert!(is_transition(&json!({}), &before));
    }

    fn applied(failure: Option<Error>, waits_for: Option<&str>) -> Applied {
        let waits_for = waits_for.map(|message| Waiting { reason: "RollingOut", message: message.into() });
        Applied { component: "Service", written: vec![], events: vec![], failure, waits_for, remark: None }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn what_did_not_change_is_not_written() {
        let report = || Report { status: json!({"nodes": 3}), ..Report::default() };
        let first = whole(report(), &[applied(None, None)], Some(1), &Value::Null, at(1));
        assert!(patch(&Value::Null, &first).is_some());
        let second = whole(report(), &[applied(None, None)], Some(1), &first, at(2));
        assert_eq!(patch(&first, &second), None, "times stay as they are");
        let third = whole(report(), &[applied(None, Some("one more"))], Some(1), &second, at(3));
        let patched = patch(&second, &third).unwrap();
        assert_eq!(patched.as_object().unwrap().keys().collect::<Vec<_>>(), ["conditions"]);
    }

    #[test]
    fn a_remark_is_told_where_nothing_else_is() {
        let remark = Some(Waiting { reason: "GoodToKnow", message: "this".into() });
        for (waits_for, told) in [(None, ("False", "GoodToKnow")), (Some("more"), ("True", "RollingOut"))] {
            let applied = Applied { remark: remark.clone(), ..applied(None, waits_for) };
            let conditions = part_conditions(&[applied], None);
            let progressing = conditions.iter().find(|one| one.type_ == "ServiceProgressing").unwrap();
            assert_eq!((progressing.status.as_str(), progressing.reason.as_str()), told);
        }
    }

    #[test]
    fn what_is_gone_is_named_in_the_patch() {
        let patched = patch(&json!({"a": 1, "b": {"c": 1, "d": 2}, "e": null}), &json!({"b": {"d": 3}})).unwrap();
        assert_eq!(patched, json!({"a": null, "b": {"c": null, "d": 3}, "e": null}));
        assert_eq!(patch(&json!({"a": 1}), &json!({"a": 1, "b": null})), None);
    }

    #[test]
    fn a_pause_changes_nothing_but_its_own_condition_and_leaves_no_trace() {
        let report = || Report { status: json!({"nodes": 3}), ..Report::default() };
        let before = whole(report(), &[applied(None, Some("for x"))], Some(1), &Value::Null, at(1));
        let during = paused(RESTS, "resting", Some(2), &before, at(2));
        let mut rest = during.clone();
        rest["conditions"].as_array_mut().unwrap().retain(|condition| condition["type"] != PAUSED);
        assert_eq!(rest, before, "all else stays, times and generations included");
        let conditions = conditions_of(&during);
        let own = conditions.iter().find(|condition| condition.type_ == PAUSED).unwrap();
        assert_eq!((own.status.as_str(), own.message.as_str(), own.observed_generation), ("True", "resting", Some(2)));
        assert_eq!(patch(&during, &paused(RESTS, "resting", Some(2), &during, at(3))), None, "it is written once");

        let is_paused = |status: &Value| conditions_of(status).iter().any(|condition| condition.type_ == PAUSED);
        assert!(!is_paused(&whole(report(), &[applied(None, None)], Some(2), &during, at(4))));
        let fault = Error::Invalid { reason: "Invalid", message: "spec.racks".into() };
        assert!(!is_paused(&failed(&fault, RESTS, Some(2), &during, at(4))));
        assert!(is_paused(&paused(RESTS, "resting", None, &Value::Null, at(1))), "an object may be new");
        let held = paused(["Held", PAUSED], "another program works on it", Some(2), &during, at(3));
        assert!(!is_paused(&held), "one of the two is said");
        assert!(conditions_of(&held).iter().any(|condition| condition.type_ == "Held" && condition.status == "True"));
    }

    #[test]
    fn a_fault_makes_the_whole_degraded_and_a_wait_makes_it_progress() {
        let find = |status: &Value, name: &str| {
            conditions_of(status).into_iter().find(|condition| condition.type_ == name).unwrap()
        };
        let fault = Error::Invalid { reason: "Invalid", message: "spec.racks[1].name: is a duplicate".into() };
        let status = whole(Report::default(), &[applied(Some(fault.clone()), None)], Some(4), &Value::Null, at(1));
        assert_eq!(find(&status, "Degraded").message, "ServiceDegraded: spec.racks[1].name: is a duplicate");
        assert_eq!(find(&status, "Progressing").status, "False");
        let status = whole(Report::default(), &[applied(None, Some("for x"))], Some(4), &Value::Null, at(1));
        assert_eq!(
            (find(&status, "Progressing").status, find(&status, "Degraded").status),
            ("True".into(), "False".into())
        );

        let unseen = failed(&fault, RESTS, Some(5), &status, at(2));
        assert_eq!(find(&unseen, "ObservationDegraded").message, "spec.racks[1].name: is a duplicate");
        assert_eq!(find(&unseen, "Degraded").status, "True");
        let well = whole(Report::default(), &[applied(None, None)], Some(5), &unseen, at(3));
        assert!(!conditions_of(&well).iter().any(|condition| condition.type_ == "ObservationDegraded"));
        assert_eq!(find(&well, "Degraded").status, "False");
    }
}
