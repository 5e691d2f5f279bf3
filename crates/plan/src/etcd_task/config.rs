//! The options of tasks, as they are read.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Fault, code};

/// What the flow needs to know of the options of a task, whatever its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long the task may run, over all that is tried.
    pub deadline: Duration,
}

/// Reads options that are given as an object, as a text that holds the same in JSON, or not at all.
pub fn decode<T: DeserializeOwned + Default>(config: Option<&Value>) -> Result<T, Fault> {
    let wrong = |problem: String| {
        let description = format!(
            "config: {problem}. A task cannot be changed: delete it, and create another one with options that its type has"
        );
        Fault::new(code::INVALID_CONFIG, description)
    };
    let value = match config {
        None | Some(Value::Null) => return Ok(T::default()),
        Some(Value::String(text)) if text.trim().is_empty() => return Ok(T::default()),
        Some(Value::String(text)) => serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?,
        Some(value) => value.clone(),
    };
    if !value.is_object() {
        return Err(wrong(format!("{value} is no object")));
    }
    serde_json::from_value(value).map_err(|error| wrong(error.to_string()))
}

/// A time that is given in seconds, in the field `field`.
pub fn seconds(field: &str, given: Option<i32>, otherwise: u32) -> Result<Duration, Fault> {
    let Some(given) = given else { return Ok(Duration::from_secs(otherwise.into())) };
    match u64::try_from(given) {
        Ok(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds)),
        _ => Err(Fault::new(
            code::INVALID_CONFIG,
            format!("config.{field}: {given} is no time to do anything in: give a number of seconds from 1 on"),
        )),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use messina_api::druid::v1alpha1::{OnDemandSnapshotConfig, SnapshotType};
    use serde_json::json;

    use super::*;

    #[test]
    fn options_are_an_object_a_text_or_nothing() {
        let expected = OnDemandSnapshotConfig {
            snapshot_type: Some(SnapshotType::Delta),
            timeout_seconds: Some(60),
            ..OnDemandSnapshotConfig::default()
        };
        for config in [
            json!({"snapshotType": "delta", "timeoutSeconds": 60}),
            json!({"type": "delta", "timeoutSeconds": 60}),
            json!(r#"{"snapshotType":"delta","timeoutSeconds":60}"#),
        ] {
            assert_eq!(decode::<OnDemandSnapshotConfig>(Some(&config)).unwrap(), expected, "{config}");
        }
        for config in [None, Some(json!(null)), Some(json!("")), Some(json!({})), Some(json!("{}"))] {
            assert_eq!(decode::<OnDemandSnapshotConfig>(config.as_ref()).unwrap(), OnDemandSnapshotConfig::default());
        }
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (config, named) in [
            (json!({"snapshotTyp": "full"}), "unknown field `snapshotTyp`, expected one of `snapshotType`"),
            (json!({"snapshotType": "half"}), "unknown variant `half`, expected `full` or `delta`"),
            (json!("{"), "EOF while parsing"),
            (json!(["full"]), r#"["full"] is no object"#),
            (json!(7), "7 is no object"),
        ] {
            let fault = decode::<OnDemandSnapshotConfig>(Some(&config)).unwrap_err();
            assert_eq!(fault.code, code::INVALID_CONFIG);
            assert!(fault.description.contains(named), "{config}: {}", fault.description);
        }
    }

    #[test]
    fn times_are_positive() {
        assert_eq!(seconds("timeoutSeconds", None, 60), Ok(Duration::from_secs(60)));
        assert_eq!(seconds("timeoutSeconds", Some(1), 60), Ok(Duration::from_secs(1)));
        for given in [0, -1, i32::MIN] {
            let fault = seconds("timeoutSeconds", Some(given), 60).unwrap_err();
            assert!(fault.description.contains("config.timeoutSeconds"), "{}", fault.description);
        }
    }
}
