//! A controller with its queue, its watches and what it remembers of objects between reconciles.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource as _, api::ObjectMeta};
use messina_text::Reason;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::{Instrument, debug, debug_span, warn};

use super::interface::Controller;
use crate::{
    apply::{Applier, Orphan},
    error::{Error, chain},
    events::Note,
    ledger::Expectation,
    pace::{Pace, StatusChange},
    queue::{ObjectKey, Outcome, Queue},
    reasons,
    request::send,
    shared_context::SharedContext,
    status,
    store::{Kind, Store, Version},
};

/// An object whose expectations are not met is requeued after this time, unless a watch event requeues it before.
pub(super) const CACHE_LAG_REQUEUE: Duration = Duration::from_secs(10);

/// The same failure of an object is logged as a warning again only after this time.
pub(super) const REPEAT_REPORT_AFTER: Duration = Duration::from_secs(600);

/// What is remembered of an object from one reconcile to the next.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) expectations: Vec<Expectation>,
    pub(super) pace: Pace,
    pub(super) unreported_writes: u8,
    /// The failure that was last logged as a warning, and when.
    pub(super) reported: Option<(String, Instant)>,
    /// Whether the last reconcile wrote something, even if it failed.
    pub(super) has_progressed: bool,
    /// When the object is requeued, even if the reconcile failed.
    pub(super) requeue_after: Option<Duration>,
    /// Whether the object was paused or suspended at the last reconcile.
    pub(super) is_paused: bool,
}

impl Memory {
    pub(super) fn is_empty(&self) -> bool {
        let has_nothing_reported = self.unreported_writes == 0 && self.reported.is_none() && !self.is_paused;
        self.expectations.is_empty() && self.pace.is_new() && has_nothing_reported
    }
}

impl Memory {
    /// Logs why a reconcile failed. A failure that repeats is a warning only once in [`REPEAT_REPORT_AFTER`].
    pub(super) fn log_failure(&mut self, error: &Error) {
        let problem = chain(error);
        let is_repeated =
            |(reported, when): &(String, Instant)| *reported == problem && when.elapsed() < REPEAT_REPORT_AFTER;
        if error.is_reported_elsewhere() || self.reported.as_ref().is_some_and(is_repeated) {
            debug!(problem, "the reconcile failed");
        } else {
            warn!(problem, "the reconcile failed");
            self.reported = Some((problem, Instant::now()));
        }
    }
}

/// The result of a status update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatusWrite {
    /// The status is as desired already.
    Unchanged,
    /// The status was written.
    Written,
    /// The last write is too recent: the status may be written after this time.
    Deferred(Duration),
}

pub(super) type Forget = Box<dyn Fn(&ObjectKey) + Send + Sync>;

/// Finds objects of one kind that belonged to a former object of the same name.
pub(super) struct Adoptable {
    /// Returns the orphans that an object of this name may adopt.
    pub(super) orphans: FindOrphans,
    /// Whether an object of this name with another UID still owns any.
    pub(super) has_former: HasFormer,
}

pub(super) type FindOrphans = Box<dyn Fn(&ObjectKey) -> Vec<Orphan> + Send + Sync>;

pub(super) type HasFormer = Box<dyn Fn(&ObjectKey, Option<&str>) -> bool + Send + Sync>;

/// A controller with its queue and its watches.
pub struct Running<C: Controller> {
    pub(super) controller: Arc<C>,
    pub(super) objects: Arc<Store<C::Object>>,
    pub(super) queue: Arc<Queue>,
    pub(super) applier: Applier,
    pub(super) context: Arc<SharedContext>,
    pub(super) memories: Mutex<HashMap<ObjectKey, Memory>>,
    /// Objects with a deleted dependent, and the resource version of that deletion.
    pub(super) losses: Arc<Mutex<HashMap<ObjectKey, Version>>>,
    /// The collections whose caches must have synced before the first reconcile.
    pub(super) needs: BTreeSet<String>,
    /// Called with an object that is gone, when no worker reconciles it any more.
    pub(super) forgets: Vec<Forget>,
    /// Finds objects of a former object of the same name.
    pub(super) adoptable: Vec<Adoptable>,
}

impl<C: Controller> Running<C> {
    /// Reads the metadata of an object from the API server; none if it does not exist.
    pub(super) async fn read_metadata(&self, key: &ObjectKey) -> Result<Option<ObjectMeta>, Error> {
        let path = format!("{}/{}", C::Object::url_path(&(), key.namespace.as_deref()), key.name);
        match send(&self.applier.client, Method::GET, &path, "", &Value::Null).await {
            Ok(now) => Ok(Some(now)),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
            Err(error) => Err(Error::of(|| format!("reading {} {key}", C::Object::kind(&())), error)),
        }
    }

    /// Reports that an object is paused or suspended, and does nothing else for it: its finalizer stays, too. `types`
    /// are the types of the condition to set and of the one to remove.
    pub(super) async fn suspend(
        &self,
        object: &C::Object,
        types: [Reason; 2],
        message: String,
        outcome: Outcome,
        memory: &mut Memory,
    ) -> Result<Outcome, Error> {
        if C::HAS_CONDITIONS {
            let current = status_of(object);
            let desired = status::suspended(types, &message, object.meta().generation, &current, Timestamp::now());
            if let StatusWrite::Deferred(wait) =
                self.write_status(object.meta(), &current, &desired, StatusChange::Transition, memory).await?
            {
                return Ok(Outcome::After(wait));
            }
        }
        if !std::mem::replace(&mut memory.is_paused, true) {
            // The user has set a pause; any other suspension needs the user's attention.
            let note = if types[0] == reasons::PAUSED { Note::normal } else { Note::warning };
            self.context.events.emit(reference(object), note(types[0], message));
        }
        Ok(outcome)
    }

    /// Reports that an object could not be observed or planned, in its status and by an event. Nothing else is written.
    pub(super) async fn report_failure(
        &self,
        object: &C::Object,
        error: Error,
        memory: &mut Memory,
    ) -> Result<Outcome, Error> {
        if C::HAS_CONDITIONS {
            let current = status_of(object);
            let types = [reasons::PAUSED, C::SUSPENDED];
            let desired = status::failed(&error, types, object.meta().generation, &current, Timestamp::now());
            let writing = self.write_status(object.meta(), &current, &desired, StatusChange::Transition, memory);
            if let StatusWrite::Deferred(pause) = writing.instrument(debug_span!("report")).await? {
                // The condition is yet to be written: the object is reconciled again, and fails then.
                return Ok(Outcome::After(pause));
            }
        }
        self.emit_failure(object, &error);
        Err(error)
    }

    pub(super) async fn write_status(
        &self,
        metadata: &ObjectMeta,
        current: &Value,
        desired: &Value,
        change: StatusChange,
        memory: &mut Memory,
    ) -> Result<StatusWrite, Error> {
        let desired = status::sanitized(&C::FOREIGN_STATUS.keep(desired, current));
        let Some(patch) = status::patch(current, &desired) else {
            return Ok(StatusWrite::Unchanged);
        };
        let now = Instant::now();
        let wait = memory.pace.wait(change, now);
        if !wait.is_zero() {
            return Ok(StatusWrite::Deferred(wait));
        }
        memory.pace.record_write(change, now);
        // A merge patch replaces all conditions, so those of another controller must not have changed.
        let has_foreign = !C::FOREIGN_STATUS.conditions.is_empty() && patch.get("conditions").is_some();
        let version = metadata.resource_version.as_ref().filter(|_| has_foreign);
        let mut patch = json!({"metadata": {"uid": metadata.uid}, "status": patch});
        if let Some(version) = version {
            patch["metadata"]["resourceVersion"] = json!(version);
        }
        self.patch(metadata, "/status", &patch, memory).await?;
        Ok(StatusWrite::Written)
    }

    pub(super) async fn patch(
        &self,
        metadata: &ObjectMeta,
        subresource: &str,
        patch: &Value,
        memory: &mut Memory,
    ) -> Result<(), Error> {
        let key = crate::store::key_of(metadata);
        let place = C::Object::url_path(&(), key.namespace.as_deref());
        let collection = C::Object::url_path(&(), None);
        let path = format!("{place}/{}{subresource}?fieldManager={}", key.name, C::FIELD_MANAGER);
        match send(&self.applier.client, Method::PATCH, &path, "application/merge-patch+json", patch).await {
            Ok(metadata) => {
                memory.expectations.push(Expectation::seen(&collection, &key, &metadata));
                Ok(())
            }
            // It was deleted: the watch reports that.
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            Err(error) => {
                let error = Error::of(|| format!("writing {} {key}{subresource}", C::Object::kind(&())), error);
                if error.leaves_state_unknown() {
                    memory.expectations.push(Expectation::unknown(&collection, &place, &key));
                }
                Err(error)
            }
        }
    }

    /// Emits an event for a failure. Conflicts, an API server without an answer and a lost lease need none.
    pub(super) fn emit_failure(&self, object: &C::Object, error: &Error) {
        if !matches!(error, Error::Conflict { .. } | Error::NoAnswer { .. } | Error::NotLeading(_)) {
            self.context.events.emit(reference(object), Note::warning(error.reason(), chain(error)));
        }
    }

    pub(super) fn losses(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, Version>> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn memories(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, Memory>> {
        self.memories.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the reference to an object, for events.
pub fn reference<K: Kind>(object: &K) -> ObjectReference {
    let metadata = object.meta();
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        name: metadata.name.clone(),
        namespace: metadata.namespace.clone(),
        uid: metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

pub(super) fn status_of<K: Kind>(object: &K) -> Value {
    serde_json::to_value(object).ok().and_then(|mut value| value.get_mut("status").map(Value::take)).unwrap_or_default()
}
