//! Decoding of `spec.config`, the options of a task.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{TaskError, code};

/// The options that all types of tasks have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long the task may run, including all retries.
    pub deadline: Duration,
}

/// Decodes options that are given as an object, as a string that holds that object in JSON, or not at all.
pub fn decode<T: DeserializeOwned + Default>(config: Option<&Value>) -> Result<T, TaskError> {
    let invalid = |problem: String| {
        let description = format!(
            "config: {problem}. A task cannot be changed: delete it, and create another one with options that its \
             type has"
        );
        TaskError::new(code::INVALID_CONFIG, description)
    };
    let value = match config {
        None | Some(Value::Null) => return Ok(T::default()),
        Some(Value::String(text)) if text.trim().is_empty() => return Ok(T::default()),
        Some(Value::String(text)) => serde_json::from_str(text).map_err(|error| invalid(error.to_string()))?,
        Some(value) => value.clone(),
    };
    if !value.is_object() {
        return Err(invalid(format!("{value} is not an object")));
    }
    serde_json::from_value(value).map_err(|error| invalid(error.to_string()))
}

/// Reads the timeout in the field `field`, which is in seconds.
pub fn seconds(field: &str, given: Option<i32>, default: u32) -> Result<Duration, TaskError> {
    let Some(given) = given else { return Ok(Duration::from_secs(default.into())) };
    match u64::try_from(given) {
        Ok(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds)),
        _ => Err(TaskError::new(
            code::INVALID_CONFIG,
            format!("config.{field}: {given} is not a valid timeout: use a number of seconds of at least 1"),
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
    fn decode_accepts_an_object_a_json_string_or_nothing() {
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
    fn decode_names_the_field_that_is_invalid() {
        for (config, named) in [
            (json!({"snapshotTyp": "full"}), "unknown field `snapshotTyp`, expected one of `snapshotType`"),
            (json!({"snapshotType": "half"}), "unknown variant `half`, expected `full` or `delta`"),
            (json!("{"), "EOF while parsing"),
            (json!(["full"]), r#"["full"] is not an object"#),
            (json!(7), "7 is not an object"),
        ] {
            let error = decode::<OnDemandSnapshotConfig>(Some(&config)).unwrap_err();
            assert_eq!(error.code, code::INVALID_CONFIG);
            assert!(error.description.contains(named), "{config}: {}", error.description);
        }
    }

    #[test]
    fn seconds_rejects_zero_and_negative_values() {
        assert_eq!(seconds("timeoutSeconds", None, 60), Ok(Duration::from_secs(60)));
        assert_eq!(seconds("timeoutSeconds", Some(1), 60), Ok(Duration::from_secs(1)));
        for given in [0, -1, i32::MIN] {
            let error = seconds("timeoutSeconds", Some(given), 60).unwrap_err();
            assert!(error.description.contains("config.timeoutSeconds"), "{}", error.description);
        }
    }
}
