//! What everything that runs in a process shares.

use std::time::Duration;

use kube::api::ObjectMeta;

use crate::{
    apply::Predecessor,
    events::{Events, Note},
    metrics::Metrics,
    queue::Backoff,
    store::{Kind, Unreadable},
};

/// How long a watch that failed waits.
pub(crate) const BACKOFF: Backoff = Backoff { first: Duration::from_millis(200), longest: Duration::from_secs(10) };

/// What everything that runs in a process shares.
#[derive(Debug)]
pub struct SharedContext {
    /// What is counted.
    pub metrics: Metrics,
    /// What people are told.
    pub events: Events,
    /// How long watches wait after failures.
    pub backoff: Backoff,
    /// In whose name objects are written.
    pub field_manager: &'static str,
    /// The annotation that says what was last written to an object.
    pub hash_annotation: &'static str,
    /// The annotation by which users stop all work on an object, if there is one.
    pub pause_annotation: Option<&'static str>,
    /// The annotation by which users give an object that nobody owns to one that would own it, by that one's name.
    pub adoption_annotation: Option<&'static str>,
    /// Whose fields are taken over.
    pub predecessor: Option<Predecessor>,
}

impl SharedContext {
    /// With the ordinary waits.
    pub fn new(metrics: Metrics, events: Events, field_manager: &'static str, hash_annotation: &'static str) -> Self {
        Self {
            metrics,
            events,
            backoff: BACKOFF,
            field_manager,
            hash_annotation,
            pause_annotation: None,
            adoption_annotation: None,
            predecessor: None,
        }
    }

    /// The same, with an annotation by which users stop all work on an object.
    #[must_use]
    pub fn paused_by(self, annotation: &'static str) -> Self {
        Self { pause_annotation: Some(annotation), ..self }
    }

    /// The same, with an annotation by which users give away an object that nobody owns.
    #[must_use]
    pub fn adopting_by(self, annotation: &'static str) -> Self {
        Self { adoption_annotation: Some(annotation), ..self }
    }

    /// The same, where another program kept the objects before: its fields are taken over with the first write.
    #[must_use]
    pub fn taking_over(self, predecessor: Predecessor) -> Self {
        Self { predecessor: Some(predecessor), ..self }
    }

    /// Whether an object was written in our name.
    pub(crate) fn has_written(&self, metadata: &ObjectMeta) -> bool {
        let mut records = metadata.managed_fields.iter().flatten();
        records.any(|record| record.manager.as_deref() == Some(self.field_manager) && record.subresource.is_none())
    }

    /// Whether the user gives an object to the one with this name.
    pub(crate) fn is_given_to(&self, metadata: &ObjectMeta, name: &str) -> bool {
        let given = |annotation| metadata.annotations.as_ref()?.get(annotation);
        self.adoption_annotation.and_then(given).is_some_and(|given| given == name)
    }

    /// One object that cannot be read stops nothing; but somebody should know.
    pub(crate) fn tell_of_unreadable<K: Kind>(&self, unreadable: &Unreadable) {
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
            "The object is left alone, because it cannot be read: {}. Correct it, and it is taken up again.",
            unreadable.problem
        );
        self.events.tell(reference, Note::warning("Unreadable", message));
    }
}
