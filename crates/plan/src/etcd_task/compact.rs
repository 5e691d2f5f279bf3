//! Compact: which revisions are forgotten.

use std::time::Duration;

use messina_api::druid::v1alpha1::CompactConfig;
use serde_json::Value;

use super::{Fault, code, decode, seconds};

/// How long a task may take, in seconds, unless its options say otherwise.
const DEADLINE: u32 = 600;
/// Revisions that are kept, unless the options say otherwise.
const RETAINED: i64 = 10_000;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How many of the last revisions are kept.
    pub retained: i64,
    /// Whether it is awaited that the space is free.
    pub physical: bool,
    /// How long the task may take.
    pub deadline: Duration,
}

impl Config {
    /// What the options of a task ask for.
    pub fn read(config: Option<&Value>) -> Result<Self, Fault> {
        let config: CompactConfig = decode(config)?;
        let retained = config.retain_revisions.unwrap_or(RETAINED);
        if retained < 0 {
            return Err(Fault::new(
                code::INVALID_CONFIG,
                format!("config.retainRevisions: {retained} revisions cannot be kept: give a number from 0 on"),
            ));
        }
        let deadline = seconds("timeoutSeconds", config.timeout_seconds, DEADLINE)?;
        Ok(Self { retained, physical: config.physical.unwrap_or(true), deadline })
    }

    /// The revision before which nothing is kept, when etcd is at `revision`; none when there is nothing to forget.
    pub fn until(&self, revision: i64) -> Option<i64> {
        Some(revision.saturating_sub(self.retained)).filter(|until| *until > 0)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_revisions_are_kept() {
        let config = Config::read(Some(&json!({"retainRevisions": 10}))).unwrap();
        let untils = [1, 10, 11, 1210].map(|revision| config.until(revision));
        assert_eq!(untils, [None, None, Some(1), Some(1200)]);
        assert_eq!(Config::read(None).unwrap().until(9_999), None);
        assert!(
            Config::read(Some(&json!({"retainRevisions": -1}))).unwrap_err().description.contains("retainRevisions")
        );
    }
}
