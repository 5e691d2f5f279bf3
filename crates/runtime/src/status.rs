//! The status of an object: its conditions, and the patch of what has changed.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use messina_text::Reason;
use serde_json::{Map, Value, json};

use crate::{
    apply::{Applied, Progress},
    conditions::{AggregateCondition, MESSAGE_LIMIT, with_transition_times},
    error::{Error, chain},
    reasons,
};

/// The status of an object, as its controller reports it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The status without its conditions.
    pub status: Value,
    /// Conditions besides those of the components.
    pub conditions: Vec<Condition>,
    /// Whether the status is written at once, even if the last write is recent.
    pub is_urgent: bool,
    /// When the object is reconciled again, if nothing changes before.
    pub requeue_after: Option<Duration>,
}

/// Returns a condition without its transition time, which [`with_transition_times`] sets.
pub fn condition(
    name: impl Into<String>,
    status: bool,
    reason: Reason,
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

/// Returns the Degraded and Progressing conditions of components.
pub(crate) fn component_conditions(applied: &[Applied], generation: Option<i64>) -> Vec<Condition> {
    let of_component = |Applied { component, written, failure, progressing, remark, .. }: &Applied| {
        let degraded = match failure {
            // Another writer was faster: the object is reconciled again, and the user need not act.
            Some(error) if !error.is_conflict() => (true, error.reason(), chain(error)),
            _ => (false, reasons::AS_EXPECTED, String::new()),
        };
        let progressing = match (failure, progressing, remark) {
            (Some(error), ..) if error.is_conflict() => (true, error.reason(), chain(error)),
            (_, Some(Progress { reason, message }), _) => (true, *reason, message.clone()),
            _ if !written.is_empty() => {
                let message = format!("Wrote {}. Waiting for the watch to show the changes.", written.join(", "));
                (true, reasons::WRITTEN, message)
            }
            (.., Some(Progress { reason, message })) => (false, *reason, message.clone()),
            _ => (false, reasons::AS_EXPECTED, String::new()),
        };
        [("Degraded", degraded), ("Progressing", progressing)].map(|(kind, (status, reason, message))| {
            condition(format!("{component}{kind}"), status, reason, &message, generation)
        })
    };
    applied.iter().flat_map(of_component).collect()
}

/// Returns the status to write: the report with the conditions of components, their aggregates, and transition times.
pub(crate) fn complete(
    report: Report,
    applied: &[Applied],
    generation: Option<i64>,
    current: &Value,
    now: Timestamp,
) -> Value {
    let mut conditions = component_conditions(applied, generation);
    conditions.extend(report.conditions);
    let aggregates = [AggregateCondition::Available, AggregateCondition::Progressing, AggregateCondition::Degraded]
        .map(|aggregate| aggregate.of(&conditions, generation));
    conditions.extend(aggregates);
    let mut status = report.status;
    if !status.is_object() {
        status = json!({});
    }
    status["conditions"] = timed(conditions, current, now);
    status
}

/// Returns the status to write when the object could not be observed or planned: the current one, with a condition for
/// the error. `suspensions` are the types of the conditions of paused and suspended objects, which are removed.
pub(crate) fn failed(
    error: &Error,
    suspensions: [Reason; 2],
    generation: Option<i64>,
    current: &Value,
    now: Timestamp,
) -> Value {
    const OBSERVATION: &str = "ObservationDegraded";
    // An object that is reconciled is neither paused nor suspended.
    let mut status = if current.is_object() { current.clone() } else { json!({}) };
    let is_replaced = |name: &str| {
        [OBSERVATION, AggregateCondition::Degraded.name()].contains(&name) || suspensions.iter().any(|one| *one == name)
    };
    let mut conditions: Vec<Condition> =
        conditions_of(current).into_iter().filter(|condition| !is_replaced(&condition.type_)).collect();
    conditions.push(condition(OBSERVATION, true, error.reason(), &chain(error), generation));
    conditions.push(AggregateCondition::Degraded.of(&conditions, generation));
    status["conditions"] = timed(conditions, current, now);
    status
}

/// Returns the status of a paused or suspended object: the current one, with a condition of the first of these types,
/// and without the one of the second.
pub(crate) fn suspended(
    [kind, other]: [Reason; 2],
    message: &str,
    generation: Option<i64>,
    current: &Value,
    now: Timestamp,
) -> Value {
    let mut status = if current.is_object() { current.clone() } else { json!({}) };
    let mut conditions = conditions_of(current);
    conditions.retain(|one| one.type_ != kind.as_str() && one.type_ != other.as_str());
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

/// The parts of a status that another controller writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ForeignStatus {
    /// Fields.
    pub fields: &'static [&'static str],
    /// Types of conditions.
    pub conditions: &'static [&'static str],
}

impl ForeignStatus {
    /// A status that only one controller writes.
    pub const NONE: Self = Self { fields: &[], conditions: &[] };

    /// Returns the desired status with the foreign parts as they are. Conditions keep their order: two controllers must
    /// not reorder them in turn.
    pub(crate) fn keep(self, desired: &Value, current: &Value) -> Value {
        let mut status = desired.clone();
        for field in self.fields {
            status[*field] = current.get(field).cloned().unwrap_or_default();
        }
        if !self.conditions.is_empty() {
            let (present, mut own) = (conditions_of(current), conditions_of(desired));
            own.retain(|one| !self.conditions.contains(&one.type_.as_str()));
            let mut merged = Vec::new();
            for one in present {
                let position = own.iter().position(|own| own.type_ == one.type_);
                let is_foreign = self.conditions.contains(&one.type_.as_str());
                merged.extend(position.map(|position| own.remove(position)).or(is_foreign.then_some(one)));
            }
            merged.append(&mut own);
            if !merged.is_empty() || desired.get("conditions").is_some() {
                status["conditions"] = json!(merged);
            }
        }
        status
    }
}

/// Sanitizes the texts of a status: its messages contain texts of other programs, and users read them in terminals.
/// Longer texts than the API server accepts are cut.
pub(crate) fn sanitized(status: &Value) -> Value {
    let mut sanitized = status.clone();
    messina_text::sanitize(&mut sanitized, MESSAGE_LIMIT);
    sanitized
}

/// Whether anything changes but reasons and messages of conditions: autoscalers and `/scale` read counts, and users and
/// programs wait for conditions.
pub(crate) fn is_transition(current: &Value, desired: &Value) -> bool {
    let without_conditions = |status: &Value| {
        let mut fields = status.as_object().cloned().unwrap_or_default();
        fields.remove("conditions");
        Value::Object(fields)
    };
    let states = |status: &Value| -> BTreeSet<_> {
        let conditions = conditions_of(status).into_iter();
        conditions.map(|one| (one.type_, one.status, one.observed_generation)).collect()
    };
    states(current) != states(desired) || patch(&without_conditions(current), &without_conditions(desired)).is_some()
}

/// Returns the merge patch from `current` to `desired`; none if they are equal.
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

/// Returns the merge patch of a value. Fields that are to be removed are null in it.
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
    use crate::reasons::{HELD, PAUSED};

    const SUSPENSIONS: [Reason; 2] = [PAUSED, HELD];

    #[test]
    fn texts_of_other_programs_are_sanitized_before_they_are_written() {
        let report = Report {
            status: json!({"lastErrors": [{"description": "etcd says \u{1b}[31mno\u{202e}"}]}),
            conditions: vec![condition(
                "JobDegraded",
                true,
                Reason::declare("Failed"),
                &"\u{7}x".repeat(MESSAGE_LIMIT),
                None,
            )],
            ..Report::default()
        };
        let written = sanitized(&complete(report, &[], Some(1), &Value::Null, at(1)));
        assert_eq!(written["lastErrors"][0]["description"], "etcd says no");
        let conditions = conditions_of(&written);
        let message = &conditions.iter().find(|one| one.type_ == "JobDegraded").unwrap().message;
        assert!(message.chars().count() <= MESSAGE_LIMIT && message.starts_with("xxx"));
        assert!(conditions.iter().all(|one| !one.message.contains('\u{7}')), "aggregates contain them, too");
        assert_eq!(patch(&written, &sanitized(&written)), None, "it is written once");
    }

    #[test]
    fn parts_of_another_controller_are_kept() {
        const FOREIGN: ForeignStatus = ForeignStatus { fields: &["managerID"], conditions: &["Registered"] };
        let one = |name: &str, holds: bool| condition(name, holds, Reason::declare("Reason"), "", None);
        let types = |status: &Value| conditions_of(status).into_iter().map(|one| one.type_).collect::<Vec<_>>();
        let current = json!({
            "managerID": "a", "nodes": 1,
            "conditions": [one("Stale", true), one("Registered", true), one("Available", false)],
        });
        let desired = json!({"nodes": 2, "conditions": [one("Available", true), one("Progressing", true)]});
        let kept = FOREIGN.keep(&desired, &current);
        assert_eq!((&kept["managerID"], &kept["nodes"]), (&json!("a"), &json!(2)));
        assert_eq!(types(&kept), ["Registered", "Available", "Progressing"]);
        assert_eq!(conditions_of(&kept)[1].status, "True");
        assert_eq!(FOREIGN.keep(&desired, &kept), kept, "it is written once");
        let own = ForeignStatus::NONE.keep(&desired, &current);
        assert_eq!((types(&own), own.get("managerID")), (vec!["Available".into(), "Progressing".into()], None));
        assert_eq!(patch(&json!({}), &FOREIGN.keep(&json!({}), &json!({}))), None);
    }

    #[test]
    fn only_messages_are_no_transition() {
        let status = |holds: bool, message: &str, generation: i64, nodes: i32| {
            let one = condition("Progressing", holds, Reason::declare("Reason"), message, Some(generation));
            json!({"conditions": [one], "nodes": nodes})
        };
        let before = status(true, "first", 1, 1);
        assert!(!is_transition(&before, &status(true, "second", 1, 1)));
        assert!(is_transition(&before, &status(true, "first", 1, 2)));
        assert!(is_transition(&before, &status(false, "first", 1, 1)));
        assert!(is_transition(&before, &status(true, "first", 2, 1)));
        assert!(is_transition(&json!({}), &before));
    }

    fn applied(failure: Option<Error>, progressing: Option<&str>) -> Applied {
        let progressing =
            progressing.map(|message| Progress { reason: Reason::declare("RollingOut"), message: message.into() });
        Applied { component: "Service", written: vec![], events: vec![], failure, progressing, remark: None }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn status_is_patched_only_where_it_has_changed() {
        let report = || Report { status: json!({"nodes": 3}), ..Report::default() };
        let first = complete(report(), &[applied(None, None)], Some(1), &Value::Null, at(1));
        assert!(patch(&Value::Null, &first).is_some());
        let second = complete(report(), &[applied(None, None)], Some(1), &first, at(2));
        assert_eq!(patch(&first, &second), None, "times stay as they are");
        let third = complete(report(), &[applied(None, Some("one more"))], Some(1), &second, at(3));
        let patched = patch(&second, &third).unwrap();
        assert_eq!(patched.as_object().unwrap().keys().collect::<Vec<_>>(), ["conditions"]);
    }

    #[test]
    fn remark_is_the_message_of_a_component_that_is_not_progressing() {
        let remark = Some(Progress { reason: Reason::declare("GoodToKnow"), message: "this".into() });
        for (progressing, expected) in [(None, ("False", "GoodToKnow")), (Some("more"), ("True", "RollingOut"))] {
            let applied = Applied { remark: remark.clone(), ..applied(None, progressing) };
            let conditions = component_conditions(&[applied], None);
            let progressing = conditions.iter().find(|one| one.type_ == "ServiceProgressing").unwrap();
            assert_eq!((progressing.status.as_str(), progressing.reason.as_str()), expected);
        }
    }

    #[test]
    fn removed_fields_are_null_in_the_patch() {
        let patched = patch(&json!({"a": 1, "b": {"c": 1, "d": 2}, "e": null}), &json!({"b": {"d": 3}})).unwrap();
        assert_eq!(patched, json!({"a": null, "b": {"c": null, "d": 3}, "e": null}));
        assert_eq!(patch(&json!({"a": 1}), &json!({"a": 1, "b": null})), None);
    }

    #[test]
    fn pause_changes_only_its_own_condition_which_is_removed_afterwards() {
        let report = || Report { status: json!({"nodes": 3}), ..Report::default() };
        let before = complete(report(), &[applied(None, Some("for x"))], Some(1), &Value::Null, at(1));
        let during = suspended(SUSPENSIONS, "paused", Some(2), &before, at(2));
        let mut rest = during.clone();
        rest["conditions"].as_array_mut().unwrap().retain(|condition| condition["type"] != PAUSED.as_str());
        assert_eq!(rest, before, "all else stays, times and generations included");
        let conditions = conditions_of(&during);
        let own = conditions.iter().find(|condition| condition.type_ == PAUSED.as_str()).unwrap();
        assert_eq!((own.status.as_str(), own.message.as_str(), own.observed_generation), ("True", "paused", Some(2)));
        assert_eq!(
            patch(&during, &suspended(SUSPENSIONS, "paused", Some(2), &during, at(3))),
            None,
            "it is written once"
        );

        let is_paused =
            |status: &Value| conditions_of(status).iter().any(|condition| condition.type_ == PAUSED.as_str());
        assert!(!is_paused(&complete(report(), &[applied(None, None)], Some(2), &during, at(4))));
        let fault = Error::Invalid { reason: Reason::declare("Invalid"), message: "spec.racks".into() };
        assert!(!is_paused(&failed(&fault, SUSPENSIONS, Some(2), &during, at(4))));
        assert!(is_paused(&suspended(SUSPENSIONS, "paused", None, &Value::Null, at(1))), "an object may be new");
        let suspended = suspended([HELD, PAUSED], "another program works on it", Some(2), &during, at(3));
        assert!(!is_paused(&suspended), "an object has one of the two conditions");
        assert!(
            conditions_of(&suspended).iter().any(|condition| condition.type_ == "Held" && condition.status == "True")
        );
    }

    #[test]
    fn object_is_degraded_or_progressing_if_a_component_is() {
        let find = |status: &Value, name: &str| {
            conditions_of(status).into_iter().find(|condition| condition.type_ == name).unwrap()
        };
        let fault =
            Error::Invalid { reason: Reason::declare("Invalid"), message: "spec.racks[1].name: is a duplicate".into() };
        let status = complete(Report::default(), &[applied(Some(fault.clone()), None)], Some(4), &Value::Null, at(1));
        assert_eq!(find(&status, "Degraded").message, "ServiceDegraded: spec.racks[1].name: is a duplicate");
        assert_eq!(find(&status, "Progressing").status, "False");
        let status = complete(Report::default(), &[applied(None, Some("for x"))], Some(4), &Value::Null, at(1));
        assert_eq!(
            (find(&status, "Progressing").status, find(&status, "Degraded").status),
            ("True".into(), "False".into())
        );

        let unseen = failed(&fault, SUSPENSIONS, Some(5), &status, at(2));
        assert_eq!(find(&unseen, "ObservationDegraded").message, "spec.racks[1].name: is a duplicate");
        assert_eq!(find(&unseen, "Degraded").status, "True");
        let well = complete(Report::default(), &[applied(None, None)], Some(5), &unseen, at(3));
        assert!(!conditions_of(&well).iter().any(|condition| condition.type_ == "ObservationDegraded"));
        assert_eq!(find(&well, "Degraded").status, "False");
    }
}
