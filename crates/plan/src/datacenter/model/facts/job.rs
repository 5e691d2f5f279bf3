//! The cleanup Job of a node.

use k8s_openapi::api::batch::v1::{Job, JobStatus};
use messina_api::names::annotation;

use crate::{datacenter::model::facts::ObjectReference, metadata};

/// The cleanup Job of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct CleanupJob {
    pub(crate) reference: ObjectReference,
    pub(crate) is_being_deleted: bool,
    /// The hash of the token ring for which it cleans up.
    pub(crate) ring_hash: Option<String>,
    /// The arguments of its container.
    pub(crate) arguments: Vec<String>,
    pub(crate) progress: Progress,
}

/// The progress of a Job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Progress {
    Running,
    Complete,
    /// It has failed, with this message.
    Failed(String),
}

impl CleanupJob {
    pub(crate) fn of(job: &Job) -> Self {
        Self {
            reference: ObjectReference::of(&job.metadata),
            is_being_deleted: job.metadata.deletion_timestamp.is_some(),
            ring_hash: metadata::annotation(job, annotation::CLEANUP_TOKEN_RING_HASH).map(ToOwned::to_owned),
            arguments: arguments(job).cloned().unwrap_or_default(),
            progress: job.status.as_ref().map_or(Progress::Running, progress),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.reference.name
    }

    /// Its UID.
    pub fn uid(&self) -> &str {
        self.reference.uid.as_deref().unwrap_or_default()
    }

    /// Whether it is being deleted.
    pub fn is_being_deleted(&self) -> bool {
        self.is_being_deleted
    }

    /// Whether it has neither completed nor failed.
    pub(crate) fn is_running(&self) -> bool {
        self.progress == Progress::Running
    }

    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.progress, Progress::Failed(_))
    }

    /// Returns the hash of the token ring for which it has cleaned up its node, if it has completed.
    pub(crate) fn cleaned_up_ring(&self) -> Option<&str> {
        let ring = self.ring_hash.as_deref()?;
        (self.progress == Progress::Complete && !ring.is_empty()).then_some(ring)
    }
}

fn arguments(job: &Job) -> Option<&Vec<String>> {
    job.spec.as_ref()?.template.spec.as_ref()?.containers.first()?.args.as_ref()
}

fn progress(status: &JobStatus) -> Progress {
    if status.completion_time.is_some() {
        return Progress::Complete;
    }
    let mut conditions = status.conditions.iter().flatten().filter(|condition| condition.status == "True");
    match conditions.find(|condition| ["Complete", "Failed"].contains(&condition.type_.as_str())) {
        Some(condition) if condition.type_ == "Complete" => Progress::Complete,
        Some(failed) => Progress::Failed(messina_text::line(failed.message.as_deref().unwrap_or_default(), 1000)),
        None => Progress::Running,
    }
}
