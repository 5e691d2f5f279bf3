//! Builds an [`EtcdOperatorTask`] from the command line.

use jiff::SignedDuration;
use kube::api::ObjectMeta;
use messina_api::druid::v1alpha1::{
    CompactConfig, DefragmentConfig, EtcdOperatorTask, EtcdOperatorTaskSpec, EtcdOperatorTaskType, EtcdReference,
    OnDemandSnapshotConfig, SnapshotType,
};
use serde::Serialize;
use serde_json::Value;

/// A task to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Snapshot { is_delta: bool, is_final: bool },
    Defragment,
    Compact { retain: Option<i64> },
}

impl Request {
    /// A snapshot, or an error with the remedy where the options contradict each other.
    pub(super) fn snapshot(is_delta: bool, is_final: bool) -> Result<Self, &'static str> {
        match is_delta && is_final {
            true => {
                Err("the final snapshot of an etcd cluster has to be a full snapshot: leave out --delta or --final\n")
            }
            false => Ok(Self::Snapshot { is_delta, is_final }),
        }
    }

    /// The task to create. The API server generates its name.
    pub(super) fn task(&self, etcd: &str, timeout_seconds: Option<i32>, time_to_live: i32) -> EtcdOperatorTask {
        let (task_type, verb, config) = match *self {
            Self::Snapshot { is_delta, is_final } => {
                let snapshot_type = if is_delta { SnapshotType::Delta } else { SnapshotType::Full };
                let config = OnDemandSnapshotConfig {
                    snapshot_type: Some(snapshot_type),
                    is_final: is_final.then_some(true),
                    timeout_seconds,
                    ..OnDemandSnapshotConfig::default()
                };
                (EtcdOperatorTaskType::OnDemandSnapshot, "snapshot", options(&config))
            }
            Self::Defragment => {
                let config = DefragmentConfig { timeout_seconds, ..DefragmentConfig::default() };
                (EtcdOperatorTaskType::Defragment, "defrag", options(&config))
            }
            Self::Compact { retain } => {
                let config = CompactConfig { retain_revisions: retain, timeout_seconds, ..CompactConfig::default() };
                (EtcdOperatorTaskType::Compact, "compact", options(&config))
            }
        };
        EtcdOperatorTask {
            metadata: ObjectMeta { generate_name: Some(format!("{verb}-{etcd}-")), ..ObjectMeta::default() },
            spec: EtcdOperatorTaskSpec {
                task_type: Some(task_type),
                config,
                ttl_seconds_after_finished: Some(time_to_live),
                etcd_reference: Some(EtcdReference { name: Some(etcd.to_owned()), namespace: None }),
                ..EtcdOperatorTaskSpec::default()
            },
            status: None,
        }
    }
}

/// Serializes the config of a task; none where it is empty.
fn options(config: &impl Serialize) -> Option<Value> {
    serde_json::to_value(config).ok().filter(|config| config.as_object().is_some_and(|fields| !fields.is_empty()))
}

/// Parses the name of an object. An invalid name could change the path of the request.
pub(super) fn name(text: &str) -> Result<String, String> {
    let is_inner = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let is_part = |part: &str| {
        let letters = part.as_bytes();
        let ends_well =
            letters.first().is_some_and(|first| is_inner(*first)) && letters.last().is_some_and(|last| is_inner(*last));
        ends_well && letters.iter().all(|letter| is_inner(*letter) || *letter == b'-')
    };
    if text.len() <= 253 && text.split('.').all(is_part) {
        Ok(text.to_owned())
    } else {
        Err("invalid name: use lowercase letters, digits, '-' and '.'".into())
    }
}

/// Parses a duration in whole seconds, such as `90`, `90s`, `15m` or `1h30m`.
pub(super) fn seconds(text: &str) -> Result<i32, String> {
    let invalid = || "give a duration in whole seconds, such as 90s, 15m or 1h30m".to_owned();
    let is_number = !text.is_empty() && text.bytes().all(|letter| letter.is_ascii_digit());
    let time: SignedDuration =
        if is_number { format!("{text}s").parse() } else { text.parse() }.map_err(|_| invalid())?;
    if time.is_negative() || time.subsec_nanos() != 0 {
        return Err(invalid());
    }
    i32::try_from(time.as_secs()).map_err(|_| "too long: give less than 68 years".to_owned())
}

/// Parses a time limit, which is not zero.
pub(super) fn timeout(text: &str) -> Result<i32, String> {
    match seconds(text)? {
        0 => Err("too short: give 1s or more".into()),
        time => Ok(time),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use messina_plan::etcd_task::{decode, snapshot::Config};
    use serde_json::json;

    use super::*;

    #[test]
    fn task_config_is_accepted_by_the_operator() {
        for (request, timeout, generated, config) in [
            (Request::snapshot(false, false), None, "snapshot-main-", json!({"snapshotType": "full"})),
            (
                Request::snapshot(true, false),
                Some(60),
                "snapshot-main-",
                json!({"snapshotType": "delta", "timeoutSeconds": 60}),
            ),
            (Request::snapshot(false, true), None, "snapshot-main-", json!({"snapshotType": "full", "isFinal": true})),
            (Ok(Request::Defragment), Some(5), "defrag-main-", json!({"timeoutSeconds": 5})),
            (Ok(Request::Defragment), None, "defrag-main-", Value::Null),
            (Ok(Request::Compact { retain: Some(0) }), None, "compact-main-", json!({"retainRevisions": 0})),
        ] {
            let request = request.unwrap();
            let task = serde_json::to_value(request.task("main", timeout, 3600)).unwrap();
            assert_eq!(task["metadata"], json!({"generateName": generated}));
            assert_eq!(task["spec"]["config"], config, "{request:?}");
            assert_eq!(task["spec"]["etcdReference"], json!({"name": "main"}));
            assert_eq!(task["spec"]["ttlSecondsAfterFinished"], json!(3600));
            let config = Some(&config);
            match request {
                Request::Snapshot { .. } => drop(Config::read(config).unwrap()),
                Request::Defragment => drop(decode::<DefragmentConfig>(config).unwrap()),
                Request::Compact { .. } => drop(decode::<CompactConfig>(config).unwrap()),
            }
        }
        assert!(Request::snapshot(true, true).unwrap_err().contains("leave out --delta or --final"));
    }

    #[test]
    fn seconds_parses_durations_in_whole_seconds() {
        for (text, expected) in [("0", 0), ("90", 90), ("90s", 90), ("15m", 900), ("1h30m", 5400), ("1.5h", 5400)] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for text in ["", "-1s", "1500ms", "soon", "15x", "3000000h", "99999999999999999999"] {
            assert!(seconds(text).is_err(), "{text}");
        }
        assert!(timeout("0s").unwrap_err().contains("1s or more"));
    }

    #[test]
    fn name_accepts_only_names_of_objects() {
        for text in ["main", "etcd-main", "a.b", "0"] {
            assert_eq!(name(text).as_deref(), Ok(text));
        }
        for text in ["", "Main", "a/b", "-a", "a-", "a..b", "a?x", &"a".repeat(254)] {
            assert!(name(text).is_err(), "{text}");
        }
    }
}
