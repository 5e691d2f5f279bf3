//! Compact: up to which revision etcd is compacted.

use std::time::Duration;

use messina_api::druid::v1alpha1::CompactConfig;
use serde_json::Value;

use super::{TaskError, code, decode, seconds};

/// Default of `config.timeoutSeconds`.
const DEFAULT_TIMEOUT: u32 = 600;
/// Default of `config.retainRevisions`.
const DEFAULT_RETAINED: i64 = 10_000;

/// The options of a Compact task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of latest revisions that are kept.
    pub retained: i64,
    /// Whether etcd responds only after the compaction is applied to its database.
    pub physical: bool,
    /// How long the task may run.
    pub deadline: Duration,
}

impl Config {
    /// Reads the options of a task.
    pub fn read(config: Option<&Value>) -> Result<Self, TaskError> {
        let config: CompactConfig = decode(config)?;
        let retained = config.retain_revisions.unwrap_or(DEFAULT_RETAINED);
        if retained < 0 {
            return Err(TaskError::new(
                code::INVALID_CONFIG,
                format!("config.retainRevisions: {retained} is not valid: use a number of at least 0"),
            ));
        }
        let deadline = seconds("timeoutSeconds", config.timeout_seconds, DEFAULT_TIMEOUT)?;
        Ok(Self { retained, physical: config.physical.unwrap_or(true), deadline })
    }

    /// Returns the revision to compact to when etcd is at `revision`; none when there is nothing to compact.
    pub fn target_revision(&self, revision: i64) -> Option<i64> {
        Some(revision.saturating_sub(self.retained)).filter(|target_revision| *target_revision > 0)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn target_revision_keeps_the_retained_revisions() {
        let config = Config::read(Some(&json!({"retainRevisions": 10}))).unwrap();
        let targets = [1, 10, 11, 1210].map(|revision| config.target_revision(revision));
        assert_eq!(targets, [None, None, Some(1), Some(1200)]);
        assert_eq!(Config::read(None).unwrap().target_revision(9_999), None);
        assert!(
            Config::read(Some(&json!({"retainRevisions": -1}))).unwrap_err().description.contains("retainRevisions")
        );
    }
}
