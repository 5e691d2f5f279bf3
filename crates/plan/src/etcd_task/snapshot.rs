//! OnDemandSnapshot: what is asked for, and whether it has already been done.

use std::time::Duration;

use messina_api::druid::v1alpha1::{OnDemandSnapshotConfig, SnapshotType, SnapshotsBefore, TakenSnapshot};
use serde_json::Value;

use super::{Fault, code, decode, seconds};

/// How long a task may take that takes a full snapshot, in seconds, unless its options say otherwise.
const FULL: u32 = 900;
/// The same for a delta.
const DELTA: u32 = 60;

/// A snapshot that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// What it holds.
    pub kind: SnapshotType,
    /// Whether it is to be the last one of its etcd cluster.
    pub is_final: bool,
    /// How long the task may take.
    pub deadline: Duration,
}

impl Config {
    /// What the options of a task ask for.
    pub fn read(config: Option<&Value>) -> Result<Self, Fault> {
        let config: OnDemandSnapshotConfig = decode(config)?;
        let kind = config.snapshot_type.unwrap_or(SnapshotType::Full);
        let is_final = config.is_final.unwrap_or_default();
        if kind == SnapshotType::Delta && is_final {
            return Err(Fault::new(
                code::INVALID_CONFIG,
                "config.isFinal: a delta cannot be the last snapshot of an etcd cluster: ask for a full one",
            ));
        }
        let (field, of_kind, otherwise) = match kind {
            SnapshotType::Full => ("timeoutSecondsFull", config.timeout_seconds_full, FULL),
            SnapshotType::Delta => ("timeoutSecondsDelta", config.timeout_seconds_delta, DELTA),
        };
        let deadline = match config.timeout_seconds {
            Some(given) => seconds("timeoutSeconds", Some(given), otherwise)?,
            None => seconds(field, of_kind, otherwise)?,
        };
        Ok(Self { kind, is_final, deadline })
    }

    /// A request whose answer was lost may be carried out until this time is over. It is repeated only then.
    fn doubt(&self) -> Duration {
        self.deadline / 2
    }
}

/// What is to be done when something may have been asked for already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Again {
    /// It has been done: this is the snapshot.
    Taken(TakenSnapshot),
    /// It may be under way, so that nothing is asked for.
    MayBeUnderWay,
    /// It was not done and is not under way: it may be asked for.
    Ask,
}

/// Whether a snapshot may be asked for once more. `in_doubt_for` is how long ago a request may have been sent of which nobody
/// knows what came.
pub fn again(config: &Config, before: &SnapshotsBefore, latest: &Latest, in_doubt_for: Option<Duration>) -> Again {
    match answer(config, before, latest) {
        Some(taken) => Again::Taken(taken),
        None if in_doubt_for.is_some_and(|time| time < config.doubt()) => Again::MayBeUnderWay,
        None => Again::Ask,
    }
}

/// The newest snapshots in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latest {
    /// The newest full one.
    pub full: Option<TakenSnapshot>,
    /// The newest delta after that.
    pub delta: Option<TakenSnapshot>,
}

impl Latest {
    /// What is remembered of them.
    pub fn names(&self) -> SnapshotsBefore {
        let name = |snapshot: &Option<TakenSnapshot>| snapshot.as_ref().and_then(|snapshot| snapshot.name.clone());
        SnapshotsBefore { full: name(&self.full), delta: name(&self.delta) }
    }
}

/// The snapshot that is what was asked for, if one was taken since `before`.
fn answer(config: &Config, before: &SnapshotsBefore, latest: &Latest) -> Option<TakenSnapshot> {
    let is_newer = |snapshot: &&TakenSnapshot, before: &Option<String>| snapshot.name != *before;
    let full = latest.full.as_ref().filter(|full| is_newer(full, &before.full));
    match config.kind {
        SnapshotType::Full if config.is_final => full.filter(|full| full.is_final == Some(true)).cloned(),
        SnapshotType::Full => full.cloned(),
        // A full snapshot holds what a delta would have held.
        SnapshotType::Delta => latest.delta.as_ref().filter(|delta| is_newer(delta, &before.delta)).or(full).cloned(),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    fn named(name: &str, is_final: bool) -> Option<TakenSnapshot> {
        Some(TakenSnapshot { name: Some(name.into()), is_final: Some(is_final), ..TakenSnapshot::default() })
    }

    fn latest(full: &str, delta: &str) -> Latest {
        let some = |name: &str| if name.is_empty() { None } else { named(name, name.ends_with(".final")) };
        Latest { full: some(full), delta: some(delta) }
    }

    #[test]
    fn options_say_what_is_wanted() {
        let read = |config| Config::read(Some(&config)).unwrap();
        let config = |kind, is_final, seconds| Config { kind, is_final, deadline: Duration::from_secs(seconds) };
        assert_eq!(read(json!({})), config(SnapshotType::Full, false, 900));
        assert_eq!(read(json!({"snapshotType": "delta"})), config(SnapshotType::Delta, false, 60));
        assert_eq!(read(json!({"isFinal": true, "timeoutSeconds": 7})), config(SnapshotType::Full, true, 7));
        assert_eq!(read(json!({"type": "full", "timeoutSecondsFull": 120})), config(SnapshotType::Full, false, 120));
        assert_eq!(read(json!({"type": "delta", "timeoutSecondsFull": 120})), config(SnapshotType::Delta, false, 60));
        let fault = Config::read(Some(&json!({"snapshotType": "delta", "isFinal": true}))).unwrap_err();
        assert!(fault.description.contains("config.isFinal"), "{}", fault.description);
        assert!(Config::read(Some(&json!({"timeoutSeconds": 0}))).is_err());
    }

    #[test]
    fn a_request_in_doubt_is_repeated_after_half_the_time_if_nothing_came_of_it() {
        let config = Config::read(Some(&json!({"timeoutSeconds": 60}))).unwrap();
        let (before, seconds) = (latest("a", "").names(), |seconds| Some(Duration::from_secs(seconds)));
        let same = latest("a", "");
        assert_eq!(again(&config, &before, &same, seconds(0)), Again::MayBeUnderWay);
        assert_eq!(again(&config, &before, &same, seconds(29)), Again::MayBeUnderWay);
        assert_eq!(again(&config, &before, &same, seconds(30)), Again::Ask);
        assert_eq!(again(&config, &before, &same, None), Again::Ask, "the last one is known to have failed");
        let newer = latest("b", "");
        for in_doubt_for in [None, seconds(0), seconds(30)] {
            let taken = named("b", false).unwrap();
            assert_eq!(again(&config, &before, &newer, in_doubt_for), Again::Taken(taken));
        }
    }

    #[test]
    fn a_snapshot_since_then_is_the_answer() {
        let config = |config| Config::read(Some(&config)).unwrap();
        let (full, last, delta) =
            (config(json!({})), config(json!({"isFinal": true})), config(json!({"snapshotType": "delta"})));
        let name = |config: &Config, before: &Latest, now: &Latest| {
            answer(config, &before.names(), now).and_then(|snapshot| snapshot.name).unwrap_or_default()
        };
        // What is wanted, what was there, what is there, what is the answer.
        for (config, before, now, expected) in [
            (&full, latest("", ""), latest("", ""), ""),
            (&full, latest("", ""), latest("a", ""), "a"),
            (&full, latest("a", ""), latest("a", ""), ""),
            (&full, latest("a", ""), latest("a", "b"), ""),
            (&full, latest("a", "b"), latest("c", ""), "c"),
            (&last, latest("a", ""), latest("c", ""), ""),
            (&last, latest("a", ""), latest("c.final", ""), "c.final"),
            (&last, latest("c.final", ""), latest("c.final", ""), ""),
            (&delta, latest("a", ""), latest("a", ""), ""),
            (&delta, latest("a", ""), latest("a", "b"), "b"),
            (&delta, latest("a", "b"), latest("a", "b"), ""),
            (&delta, latest("a", "b"), latest("a", "c"), "c"),
            (&delta, latest("a", "b"), latest("c", ""), "c"),
        ] {
            assert_eq!(name(config, &before, &now), expected, "{config:?}, {before:?}, {now:?}");
        }
    }
}
