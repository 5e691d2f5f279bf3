//! OnDemandSnapshot: the options, and whether the snapshot was already taken.

use std::time::Duration;

use messina_api::druid::v1alpha1::{OnDemandSnapshotConfig, SnapshotType, SnapshotsBefore, TakenSnapshot};
use serde_json::Value;

use super::{TaskError, code, decode, seconds};

/// Default timeout of a task that takes a full snapshot, in seconds.
const DEFAULT_FULL_TIMEOUT: u32 = 900;
/// Default timeout of a task that takes a delta snapshot, in seconds.
const DEFAULT_DELTA_TIMEOUT: u32 = 60;

/// The options of an OnDemandSnapshot task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Full or delta.
    pub kind: SnapshotType,
    /// Whether it is the final snapshot of the etcd cluster.
    pub is_final: bool,
    /// How long the task may run.
    pub deadline: Duration,
}

impl Config {
    /// Reads the options of a task.
    pub fn read(config: Option<&Value>) -> Result<Self, TaskError> {
        let config: OnDemandSnapshotConfig = decode(config)?;
        let kind = config.snapshot_type.unwrap_or(SnapshotType::Full);
        let is_final = config.is_final.unwrap_or_default();
        if kind == SnapshotType::Delta && is_final {
            return Err(TaskError::new(
                code::INVALID_CONFIG,
                "config.isFinal: a delta snapshot cannot be the final snapshot of an etcd cluster: set \
                 config.snapshotType to full",
            ));
        }
        let (field, of_kind, default) = match kind {
            SnapshotType::Full => ("timeoutSecondsFull", config.timeout_seconds_full, DEFAULT_FULL_TIMEOUT),
            SnapshotType::Delta => ("timeoutSecondsDelta", config.timeout_seconds_delta, DEFAULT_DELTA_TIMEOUT),
        };
        let deadline = match config.timeout_seconds {
            Some(given) => seconds("timeoutSeconds", Some(given), default)?,
            None => seconds(field, of_kind, default)?,
        };
        Ok(Self { kind, is_final, deadline })
    }

    /// Returns how long a request without a response may still be executed. The operator repeats it only after that
    /// time.
    fn retry_after(&self) -> Duration {
        self.deadline / 2
    }
}

/// Whether the snapshot of a task was taken, when it may have been requested before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotState {
    /// The snapshot was taken.
    Taken(TakenSnapshot),
    /// The snapshot may be in progress and must not be requested again.
    MayBeInProgress,
    /// The snapshot was not taken and is not in progress: it may be requested.
    NotTaken,
}

/// Checks whether the snapshot was taken since `before`. `unconfirmed_for` is the time since the last request whose
/// outcome is unknown, if there is one.
pub fn check_snapshot(
    config: &Config,
    before: &SnapshotsBefore,
    latest: &NewestSnapshots,
    unconfirmed_for: Option<Duration>,
) -> SnapshotState {
    match matching_snapshot(config, before, latest) {
        Some(taken) => SnapshotState::Taken(taken),
        None if unconfirmed_for.is_some_and(|time| time < config.retry_after()) => SnapshotState::MayBeInProgress,
        None => SnapshotState::NotTaken,
    }
}

/// The latest snapshots in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewestSnapshots {
    /// The latest full snapshot.
    pub full: Option<TakenSnapshot>,
    /// The latest delta snapshot after it.
    pub delta: Option<TakenSnapshot>,
}

impl NewestSnapshots {
    /// Returns the names, for `status.before`.
    pub fn names(&self) -> SnapshotsBefore {
        let name = |snapshot: &Option<TakenSnapshot>| snapshot.as_ref().and_then(|snapshot| snapshot.name.clone());
        SnapshotsBefore { full: name(&self.full), delta: name(&self.delta) }
    }
}

/// Returns the snapshot that meets the options, if one was taken since `before`.
fn matching_snapshot(config: &Config, before: &SnapshotsBefore, latest: &NewestSnapshots) -> Option<TakenSnapshot> {
    let is_newer = |snapshot: &&TakenSnapshot, before: &Option<String>| snapshot.name != *before;
    let full = latest.full.as_ref().filter(|full| is_newer(full, &before.full));
    match config.kind {
        SnapshotType::Full if config.is_final => full.filter(|full| full.is_final == Some(true)).cloned(),
        SnapshotType::Full => full.cloned(),
        // A full snapshot includes what the delta snapshot would have held.
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

    fn latest(full: &str, delta: &str) -> NewestSnapshots {
        let some = |name: &str| if name.is_empty() { None } else { named(name, name.ends_with(".final")) };
        NewestSnapshots { full: some(full), delta: some(delta) }
    }

    #[test]
    fn config_reads_kind_and_timeout_from_the_options() {
        let read = |config| Config::read(Some(&config)).unwrap();
        let config = |kind, is_final, seconds| Config { kind, is_final, deadline: Duration::from_secs(seconds) };
        assert_eq!(read(json!({})), config(SnapshotType::Full, false, 900));
        assert_eq!(read(json!({"snapshotType": "delta"})), config(SnapshotType::Delta, false, 60));
        assert_eq!(read(json!({"isFinal": true, "timeoutSeconds": 7})), config(SnapshotType::Full, true, 7));
        assert_eq!(read(json!({"type": "full", "timeoutSecondsFull": 120})), config(SnapshotType::Full, false, 120));
        assert_eq!(read(json!({"type": "delta", "timeoutSecondsFull": 120})), config(SnapshotType::Delta, false, 60));
        let error = Config::read(Some(&json!({"snapshotType": "delta", "isFinal": true}))).unwrap_err();
        assert!(error.description.contains("config.isFinal"), "{}", error.description);
        assert!(Config::read(Some(&json!({"timeoutSeconds": 0}))).is_err());
    }

    #[test]
    fn unconfirmed_request_is_repeated_after_half_the_timeout_without_a_new_snapshot() {
        let config = Config::read(Some(&json!({"timeoutSeconds": 60}))).unwrap();
        let (before, seconds) = (latest("a", "").names(), |seconds| Some(Duration::from_secs(seconds)));
        let same = latest("a", "");
        assert_eq!(check_snapshot(&config, &before, &same, seconds(0)), SnapshotState::MayBeInProgress);
        assert_eq!(check_snapshot(&config, &before, &same, seconds(29)), SnapshotState::MayBeInProgress);
        assert_eq!(check_snapshot(&config, &before, &same, seconds(30)), SnapshotState::NotTaken);
        assert_eq!(
            check_snapshot(&config, &before, &same, None),
            SnapshotState::NotTaken,
            "the last request is known to have failed"
        );
        let newer = latest("b", "");
        for unconfirmed_for in [None, seconds(0), seconds(30)] {
            let taken = named("b", false).unwrap();
            assert_eq!(check_snapshot(&config, &before, &newer, unconfirmed_for), SnapshotState::Taken(taken));
        }
    }

    #[test]
    fn only_a_new_snapshot_of_the_requested_kind_matches() {
        let config = |config| Config::read(Some(&config)).unwrap();
        let (full, last, delta) =
            (config(json!({})), config(json!({"isFinal": true})), config(json!({"snapshotType": "delta"})));
        let name = |config: &Config, before: &NewestSnapshots, now: &NewestSnapshots| {
            matching_snapshot(config, &before.names(), now).and_then(|snapshot| snapshot.name).unwrap_or_default()
        };
        // Options, snapshots before, snapshots now, expected snapshot.
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
