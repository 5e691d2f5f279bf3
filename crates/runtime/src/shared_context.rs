//! The context that all controllers, watches and writers of a process share.

use std::time::Duration;

use kube::api::ObjectMeta;

use crate::{
    apply::Predecessor,
    events::{Events, Note},
    metrics::Metrics,
    queue::Backoff,
    reasons,
    store::{Kind, Unreadable},
};

/// Backoff of watches that failed.
pub(crate) const BACKOFF: Backoff = Backoff { first: Duration::from_millis(200), longest: Duration::from_secs(10) };

/// The context that all controllers, watches and writers of a process share.
#[derive(Debug)]
pub struct SharedContext {
    /// The metrics of the process.
    pub metrics: Metrics,
    /// The recorder of events.
    pub events: Events,
    /// Backoff of watches after failures.
    pub backoff: Backoff,
    /// The annotation with the hash of the last applied object.
    pub hash_annotation: &'static str,
    /// The annotation by which users pause the reconciliation of an object, if there is one.
    pub pause_annotation: Option<&'static str>,
    /// The annotation by which users let a new object adopt an orphan. Its value is the name of the new owner.
    pub adoption_annotation: Option<&'static str>,
    /// The operator whose managed fields are taken over.
    pub predecessor: Option<Predecessor>,
}

impl SharedContext {
    /// Creates a context with the default backoff.
    pub fn new(metrics: Metrics, events: Events, hash_annotation: &'static str) -> Self {
        Self {
            metrics,
            events,
            backoff: BACKOFF,
            hash_annotation,
            pause_annotation: None,
            adoption_annotation: None,
            predecessor: None,
        }
    }

    /// Sets the annotation by which users pause the reconciliation of an object.
    #[must_use]
    pub fn with_pause_annotation(self, annotation: &'static str) -> Self {
        Self { pause_annotation: Some(annotation), ..self }
    }

    /// Sets the annotation by which users let a new object adopt an orphan.
    #[must_use]
    pub fn with_adoption_annotation(self, annotation: &'static str) -> Self {
        Self { adoption_annotation: Some(annotation), ..self }
    }

    /// Sets the operator that managed the objects before: its fields are taken over with the first write.
    #[must_use]
    pub fn with_predecessor(self, predecessor: Predecessor) -> Self {
        Self { predecessor: Some(predecessor), ..self }
    }

    /// Whether the user has assigned an orphan to the owner with this name.
    pub(crate) fn is_assigned_to(&self, metadata: &ObjectMeta, name: &str) -> bool {
        let given = |annotation| metadata.annotations.as_ref()?.get(annotation);
        self.adoption_annotation.and_then(given).is_some_and(|given| given == name)
    }

    /// Reports an object that cannot be read, by an event and a metric. Other objects are reconciled as before.
    pub(crate) fn report_unreadable<K: Kind>(&self, unreadable: &Unreadable) {
        self.metrics.unreadable(&K::plural(&()));
        let metadata = unreadable.metadata.clone();
        let reference = k8s_openapi::api::core::v1::ObjectReference {
            api_version: Some(K::api_version(&()).into_owned()),
            kind: Some(K::kind(&()).into_owned()),
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            field_path: None,
        };
        let message = format!(
            "The object cannot be read: {}. The operator changes nothing for it. Correct it: the operator then \
             reconciles it again.",
            unreadable.problem
        );
        self.events.emit(reference, Note::warning(reasons::UNREADABLE, message));
    }
}
