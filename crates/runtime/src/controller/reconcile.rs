//! The reconcile of one object, from the queue to the status.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::{Resource as _, api::ObjectMeta};
use tokio::{task::JoinSet, time::Instant};
use tracing::{Instrument, Span, debug_span, field::Empty, info_span, warn};

use super::{
    finalization::finalizers,
    interface::{Controller, Suspension},
    running::{CACHE_LAG_REQUEUE, Memory, Running, StatusWrite, reference, status_of},
};
use crate::{
    apply::{Applied, Decision, Owner},
    error::Error,
    events::Note,
    ledger::{Expectation, is_caught_up},
    pace::StatusChange,
    panics::catch_panic,
    pause,
    queue::{ObjectKey, Outcome, Work},
    reasons,
    status::{self, Report},
};

/// Requeue interval while the name of an owned object is taken, or an owned object lacks its labels. The other object
/// is not among those that are watched, so no watch event reports when it is gone or has its labels.
const NAME_TAKEN_REQUEUE: Duration = Duration::from_secs(10);

/// A reconcile that takes longer is stuck. That of the largest datacenter takes less, even if each write takes seconds.
const STUCK_AFTER: Duration = Duration::from_secs(3600);

/// So many reconciles in a row may write objects without an update of the status.
const MAX_UNREPORTED_WRITES: u8 = 3;

impl<C: Controller> Running<C> {
    /// Reconciles the object that a worker has taken from the queue, and requeues it.
    pub(super) async fn work(&self, work: Work) {
        let began = Instant::now();
        let key = work.key.clone();
        let mut memory = self.memories().remove(&key).unwrap_or_default();
        (memory.has_progressed, memory.requeue_after) = (false, None);
        let result = match catch_panic(self.reconcile(&key, &mut memory)).await {
            Ok(result) => result,
            Err(message) => self.report_panic(&key, message, &mut memory).await,
        };
        let (has_progressed, requeue_after) = (memory.has_progressed, memory.requeue_after);
        match &result {
            Ok(_) => memory.reported = None,
            Err(error) => memory.log_failure(error),
        }
        if !memory.is_empty() {
            self.memories().insert(key.clone(), memory);
        }
        let (outcome, label, reason) = match &result {
            Ok(outcome) => (outcome.clone(), "done", reasons::AS_EXPECTED),
            Err(error @ (Error::NameTaken { .. } | Error::NotFoundByLabels { .. })) => {
                (Outcome::After(NAME_TAKEN_REQUEUE), "failed", error.reason())
            }
            Err(error) if error.is_terminal() => {
                (requeue_after.map_or(Outcome::Done, Outcome::After), "failed", error.reason())
            }
            Err(error) => (Outcome::Failed(error.reason().as_str()), "failed", error.reason()),
        };
        let span = Span::current();
        span.record("result", label).record("reason", reason.as_str());
        if label == "failed" {
            span.record("otel.status_code", "ERROR");
        }
        self.context.metrics.reconciled(C::NAME, label, reason.as_str(), began.elapsed());
        if has_progressed {
            work.reset_backoff();
        }
        work.finish(&outcome);
    }

    /// Reports a panic in the status. Other objects are not affected; this one is retried with backoff.
    async fn report_panic(&self, key: &ObjectKey, message: String, memory: &mut Memory) -> Result<Outcome, Error> {
        self.context.metrics.panicked(C::NAME);
        let error = Error::Internal { message };
        let Some(object) = self.objects.get(key)? else { return Err(error) };
        let reported = catch_panic(self.report_failure(&object, error.clone(), memory)).await;
        reported.unwrap_or(Err(error))
    }

    async fn reconcile(&self, key: &ObjectKey, memory: &mut Memory) -> Result<Outcome, Error> {
        if !is_caught_up(&mut memory.expectations, &self.applier.client, &self.applier.collections).await? {
            return Ok(Outcome::After(CACHE_LAG_REQUEUE));
        }
        let Some(object) = self.objects.get(key)? else {
            self.forget(key, memory);
            return Ok(Outcome::Done);
        };
        if let Some(outcome) = self.check_suspension(object.as_ref(), memory).await? {
            return Ok(outcome);
        }
        if object.meta().deletion_timestamp.is_some() {
            return match Self::is_finalizing(object.meta()) {
                true => self.reconcile_spec(key, &object, memory).await,
                false => Ok(Outcome::Done),
            };
        }
        if let Some(outcome) = self.prepare(key, &object, memory).await? {
            return Ok(outcome);
        }
        self.reconcile_spec(key, &object, memory).await
    }

    /// Drops what is remembered of an object that is gone.
    fn forget(&self, key: &ObjectKey, memory: &mut Memory) {
        *memory = Memory::default();
        self.losses().remove(key);
        self.applier.forget_missing();
        self.forgets.iter().for_each(|forget| forget(key));
    }

    /// Reports in the status that the object is paused by the user, or suspended because another operator manages it.
    /// Returns none where it is to be reconciled.
    async fn check_suspension(&self, object: &C::Object, memory: &mut Memory) -> Result<Option<Outcome>, Error> {
        if let Some(message) = self.pause_message(object.meta()) {
            let suspending = self.suspend(object, [reasons::PAUSED, C::SUSPENDED], message, Outcome::Done, memory);
            return suspending.await.map(Some);
        }
        if let Some(Suspension { message, requeue_after }) = self.controller.suspended(object) {
            if !memory.is_paused {
                warn!(reason = %C::SUSPENDED, problem = message, "the reconciliation of the object is suspended");
            }
            let requeue = Outcome::After(requeue_after);
            let suspending = self.suspend(object, [C::SUSPENDED, reasons::PAUSED], message, requeue, memory);
            return suspending.await.map(Some);
        }
        if std::mem::take(&mut memory.is_paused) {
            let message = "This object is no longer paused or suspended: the operator reconciles it again.";
            let note = Note::normal(reasons::RESUMED, message);
            self.context.events.emit(reference(object), note);
        }
        Ok(None)
    }

    /// Does what has to precede planning: adds our finalizer, and adopts orphans of a former object of the same name.
    /// Returns the outcome of this reconcile; none if the reconcile continues.
    async fn prepare(
        &self,
        key: &ObjectKey,
        object: &Arc<C::Object>,
        memory: &mut Memory,
    ) -> Result<Option<Outcome>, Error> {
        if let Some(finalizer) = C::FINALIZER
            && !finalizers(object.meta()).contains(&finalizer)
        {
            self.set_finalizers(object.meta(), memory, |all| all.push(finalizer)).await?;
            return Ok(Some(Outcome::After(CACHE_LAG_REQUEUE)));
        }
        if self.awaits_garbage_collection(key, object.as_ref()) {
            return Ok(Some(Outcome::After(CACHE_LAG_REQUEUE)));
        }
        let orphans = self.orphans_of(key);
        if !orphans.is_empty() {
            return match self.adopt(object.as_ref(), &orphans, memory).await {
                Ok(outcome) => Ok(Some(outcome)),
                Err(error) => self.report_failure(object, error, memory).await.map(Some),
            };
        }
        // Before the caches are read: a dependent that is deleted from now on is not recreated from an older plan.
        let is_present = self.is_present(key, object.meta()).await?;
        Ok((!is_present).then_some(Outcome::After(CACHE_LAG_REQUEUE)))
    }

    /// Observes, plans, applies and reports.
    async fn reconcile_spec(
        &self,
        key: &ObjectKey,
        object: &Arc<C::Object>,
        memory: &mut Memory,
    ) -> Result<Outcome, Error> {
        let versions = self.applier.versions();
        let observed = match self.controller.observe(object).instrument(debug_span!("observe")).await {
            Ok(observed) => observed,
            Err(error) => return self.report_failure(object, error, memory).await,
        };
        let planned = debug_span!("plan").in_scope(|| {
            let plan = self.controller.plan(&observed);
            self.controller.components(&observed, &plan).map(|components| (plan, components))
        });
        let (plan, components) = match planned {
            Ok(planned) => planned,
            Err(error) => return self.report_failure(object, error, memory).await,
        };
        let owner = Owner { uid: object.meta().uid.clone().unwrap_or_default() };
        let has_lost_dependents = || self.losses().contains_key(key);
        let decision = Decision { versions, has_lost_dependents: &has_lost_dependents };
        let applying = self.applier.apply(&owner, components, &decision, &mut memory.expectations);
        let applied = applying.instrument(debug_span!("apply")).await;
        for note in applied.iter().flat_map(|component| &component.events) {
            self.context.events.emit(reference(object.as_ref()), note.clone());
        }
        memory.has_progressed = memory.expectations.iter().any(Expectation::is_write);
        let failure = applied.iter().find_map(|component| component.failure.clone());
        if let Some(Error::NotLeading(not_leading)) = failure {
            return Err(not_leading.into());
        }
        // The watch shows the written objects soon. The status is updated then, once.
        let has_written = applied.iter().any(|component| !component.written.is_empty());
        if has_written && failure.is_none() && memory.unreported_writes < MAX_UNREPORTED_WRITES {
            memory.unreported_writes += 1;
            return Ok(Outcome::After(CACHE_LAG_REQUEUE));
        }
        memory.unreported_writes = 0;
        let report = self.controller.report(&observed, &plan, &applied);
        let requeue_after = report.requeue_after;
        memory.requeue_after = requeue_after;
        let reporting = self.report(object, report, &applied, failure.is_some(), memory);
        let written = reporting.instrument(debug_span!("report")).await?;
        match (failure, written) {
            (Some(error), StatusWrite::Unchanged | StatusWrite::Written) => {
                self.emit_failure(object.as_ref(), &error);
                Err(error)
            }
            // The condition of the failure is yet to be written: the object is reconciled again, and fails then.
            (_, StatusWrite::Deferred(pause)) => {
                Ok(Outcome::After(requeue_after.map_or(pause, |requeue_after| pause.min(requeue_after))))
            }
            // The watch shows the new status soon, and requeues the object.
            (None, StatusWrite::Written) => Ok(Outcome::Done),
            (None, StatusWrite::Unchanged) => {
                debug_span!("act").in_scope(|| self.controller.act(object, &observed, &plan));
                if Self::is_finalizing(object.meta()) && self.controller.is_finalized(&plan) {
                    self.remove_finalizer(object.meta(), memory).await?;
                    return Ok(Outcome::Done);
                }
                Ok(requeue_after.map_or(Outcome::Done, Outcome::After))
            }
        }
    }

    /// Updates the status where it differs.
    async fn report(
        &self,
        object: &C::Object,
        report: Report,
        applied: &[Applied],
        has_failed: bool,
        memory: &mut Memory,
    ) -> Result<StatusWrite, Error> {
        if report.is_urgent {
            memory.pace.reset();
        }
        let current = status_of(object);
        let desired = if C::HAS_CONDITIONS {
            status::complete(report, applied, object.meta().generation, &current, Timestamp::now())
        } else {
            report.status
        };
        // A failure is retried soon, and its condition is written before.
        let is_transition = has_failed || !C::HAS_CONDITIONS || status::is_transition(&current, &desired);
        let change = if is_transition { StatusChange::Transition } else { StatusChange::Details };
        self.write_status(object.meta(), &current, &desired, change, memory).await
    }

    /// Whether an object with a deleted dependent still exists itself. When an object is deleted, its own watch may
    /// report that later than the watches of its dependents, which must not be recreated then. The API server is asked
    /// only if a dependent was deleted and the watch of the object has not reached that resource version.
    async fn is_present(&self, key: &ObjectKey, metadata: &ObjectMeta) -> Result<bool, Error> {
        let Some(lost) = self.losses().get(key).copied() else { return Ok(true) };
        let is_same = |now: &ObjectMeta| now.uid == metadata.uid && now.deletion_timestamp.is_none();
        let is_present = if self.objects.version() >= lost {
            self.objects.get(key)?.is_some_and(|object| is_same(object.meta()))
        } else {
            self.read_metadata(key).await?.is_some_and(|now| is_same(&now))
        };
        if is_present {
            // A later deletion of a dependent has to be checked again.
            let mut losses = self.losses();
            if losses.get(key) == Some(&lost) {
                losses.remove(key);
            }
        }
        Ok(is_present)
    }

    /// Returns the message of an object that the user has paused.
    fn pause_message(&self, metadata: &ObjectMeta) -> Option<String> {
        let annotation = self.context.pause_annotation;
        let value = pause::pause(metadata, annotation)?;
        annotation.map(|annotation| pause::message(annotation, value))
    }
}

/// A controller of any kind.
pub trait AnyController: Send + Sync {
    /// Starts the workers. They begin once all caches that the controller reads have synced.
    fn start(self: Arc<Self>, workers: usize, tasks: &mut JoinSet<()>);
    /// Lets workers finish their current objects and take no more.
    fn stop(&self);
    /// Returns what blocks the whole controller, for `/readyz`: caches that have not synced, and what it says itself.
    fn blocked_on(&self) -> Vec<String>;
    /// Returns the evidence that the controller is stuck, for `/healthz`.
    fn stuck(&self) -> Option<String>;
}

impl<C: Controller> AnyController for Running<C> {
    fn start(self: Arc<Self>, workers: usize, tasks: &mut JoinSet<()>) {
        for _ in 0..workers {
            let running = Arc::clone(&self);
            tasks.spawn(async move {
                for collection in running.needs.iter().filter_map(|need| running.applier.collections.get(need)) {
                    collection.wait_until_synced().await;
                }
                while let Some(work) = running.queue.next().await {
                    let span = info_span!(
                        "reconcile", controller = C::NAME, object = %work.key,
                        result = Empty, reason = Empty, otel.status_code = Empty,
                    );
                    running.work(work).instrument(span).await;
                }
            });
        }
    }

    fn stop(&self) {
        self.queue.close();
    }

    fn blocked_on(&self) -> Vec<String> {
        let needed = self.needs.iter().filter_map(|need| self.applier.collections.get(need));
        let unsynced = needed.filter(|collection| collection.is_unsynced());
        unsynced.map(|collection| collection.name().to_owned()).chain(self.controller.blocked_on()).collect()
    }

    fn stuck(&self) -> Option<String> {
        self.queue.stuck(STUCK_AFTER).map(|problem| format!("controller {}: {problem}", C::NAME))
    }
}
