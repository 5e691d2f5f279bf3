//! A look at one object, from its queue to its status.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use kube::{Resource as _, api::ObjectMeta};
use tokio::{task::JoinSet, time::Instant};
use tracing::{Instrument, Span, debug_span, field::Empty, info_span, warn};

use super::{
    finalization::finalizers,
    interface::{Controller, Hold},
    running::{CATCHING_UP, Memory, Running, Written, reference, status_of},
};
use crate::{
    apply::{Applied, Decision, Owner},
    error::Error,
    events::Note,
    ledger::{Expectation, is_caught_up},
    pace::News,
    panics::contained,
    pause,
    queue::{ObjectKey, Outcome, Work},
    status::{self, Report},
};

/// How often it is tried to create an object whose name is taken, or to find one that has lost its labels: nobody tells when that
/// one is gone or has them, because it is not among those that are watched.
const TAKEN: Duration = Duration::from_secs(10);

/// A reconcile of the largest datacenter takes less, though the API server takes seconds for each of its writes.
const STUCK: Duration = Duration::from_secs(3600);

/// So many looks in a row may write without a word on how the object stands.
const MAX_UNREPORTED_WRITES: u8 = 3;

impl<C: Controller> Running<C> {
    pub(super) async fn work(&self, work: Work) {
        let began = Instant::now();
        let key = work.key.clone();
        let mut memory = self.memories().remove(&key).unwrap_or_default();
        (memory.has_progressed, memory.requeue_after) = (false, None);
        let result = match contained(self.look(&key, &mut memory)).await {
            Ok(result) => result,
            Err(message) => self.report_panic(&key, message, &mut memory).await,
        };
        let (has_progressed, requeue_after) = (memory.has_progressed, memory.requeue_after);
        match &result {
            Ok(_) => memory.told = None,
            Err(error) => memory.tell(error),
        }
        if !memory.is_empty() {
            self.memories().insert(key.clone(), memory);
        }
        let (outcome, word, reason) = match &result {
            Ok(outcome) => (outcome.clone(), "done", "AsExpected"),
            Err(error @ (Error::Taken { .. } | Error::NotFoundByLabels { .. })) => {
                (Outcome::After(TAKEN), "failed", error.reason())
            }
            Err(error) if error.needs_a_change() => {
                (requeue_after.map_or(Outcome::Done, Outcome::After), "failed", error.reason())
            }
            Err(error) => (Outcome::Failed(error.reason()), "failed", error.reason()),
        };
        let span = Span::current();
        span.record("result", word).record("reason", reason);
        if word == "failed" {
            span.record("otel.status_code", "ERROR");
        }
        self.context.metrics.reconciled(C::NAME, word, reason, began.elapsed());
        if has_progressed {
            work.forgive();
        }
        work.finish(&outcome);
    }

    /// Other objects are not affected; this one waits longer each time.
    async fn report_panic(&self, key: &ObjectKey, message: String, memory: &mut Memory) -> Result<Outcome, Error> {
        self.context.metrics.panicked(C::NAME);
        let error = Error::Internal { message };
        let Some(object) = self.objects.get(key)? else { return Err(error) };
        let reported = contained(self.tell_of_failure(&object, error.clone(), memory)).await;
        reported.unwrap_or(Err(error))
    }

    async fn look(&self, key: &ObjectKey, memory: &mut Memory) -> Result<Outcome, Error> {
        if !is_caught_up(&mut memory.expectations, &self.applier.client, &self.applier.collections).await? {
            return Ok(Outcome::After(CATCHING_UP));
        }
        let Some(object) = self.objects.get(key)? else {
            self.forget(key, memory);
            return Ok(Outcome::Done);
        };
        if let Some(outcome) = self.rests(object.as_ref(), memory).await? {
            return Ok(outcome);
        }
        if object.meta().deletion_timestamp.is_some() {
            return self.finalize(&object, memory).await;
        }
        if let Some(outcome) = self.prepare(key, &object, memory).await? {
            return Ok(outcome);
        }
        self.reconcile(key, &object, memory).await
    }

    /// The object is gone.
    fn forget(&self, key: &ObjectKey, memory: &mut Memory) {
        *memory = Memory::default();
        self.losses().remove(key);
        self.applier.forget_missing();
        self.forgets.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|forget| forget(key));
    }

    /// What comes of a look at an object on which no work is to be done, by the will of its user or because another program works
    /// on it; none where work is to be done.
    async fn rests(&self, object: &C::Object, memory: &mut Memory) -> Result<Option<Outcome>, Error> {
        if let Some(sentence) = self.pause_of(object.meta()) {
            let resting = self.rest(object, [pause::PAUSED, C::HELD], sentence, Outcome::Done, memory);
            return resting.await.map(Some);
        }
        if let Some(Hold { message, requeue_after }) = self.controller.held(object) {
            if !memory.is_paused {
                warn!(reason = C::HELD, problem = message, "left alone");
            }
            let resting = self.rest(object, [C::HELD, pause::PAUSED], message, Outcome::After(requeue_after), memory);
            return resting.await.map(Some);
        }
        if std::mem::take(&mut memory.is_paused) {
            let note = Note::normal("Resumed", "Nothing stops the work on this object any more: it goes on.");
            self.context.events.tell(reference(object), note);
        }
        Ok(None)
    }

    /// What has to be done before anything is decided: our finalizer is set, and what a former object of the name left is adopted.
    /// Gives what comes of the look; none where nothing is left to do.
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
            return Ok(Some(Outcome::After(CATCHING_UP)));
        }
        if self.awaits_former(key, object.as_ref()) {
            return Ok(Some(Outcome::After(CATCHING_UP)));
        }
        let orphans = self.orphans_of(key);
        if !orphans.is_empty() {
            return match self.adopt(object.as_ref(), &orphans, memory).await {
                Ok(outcome) => Ok(Some(outcome)),
                Err(error) => self.tell_of_failure(object, error, memory).await.map(Some),
            };
        }
        // Before anything is read: what goes from now on is not made anew from what was decided when it was there.
        let is_still_there = self.is_still_there(key, object.meta()).await?;
        Ok((!is_still_there).then_some(Outcome::After(CATCHING_UP)))
    }

    /// Observes, plans, applies and reports.
    async fn reconcile(&self, key: &ObjectKey, object: &Arc<C::Object>, memory: &mut Memory) -> Result<Outcome, Error> {
        let versions = self.applier.versions();
        let observed = match self.controller.observe(object).instrument(debug_span!("observe")).await {
            Ok(observed) => observed,
            Err(error) => return self.tell_of_failure(object, error, memory).await,
        };
        let planned = debug_span!("plan").in_scope(|| {
            let plan = self.controller.plan(&observed);
            self.controller.components(&observed, &plan).map(|components| (plan, components))
        });
        let (plan, components) = match planned {
            Ok(planned) => planned,
            Err(error) => return self.tell_of_failure(object, error, memory).await,
        };
        let owner = Owner { uid: object.meta().uid.clone().unwrap_or_default() };
        let has_lost = || self.losses().contains_key(key);
        let decision = Decision { versions, has_lost: &has_lost };
        let applying = self.applier.apply(&owner, components, &decision, &mut memory.expectations);
        let applied = applying.instrument(debug_span!("apply")).await;
        for note in applied.iter().flat_map(|component| &component.events) {
            self.context.events.tell(reference(object.as_ref()), note.clone());
        }
        memory.has_progressed = memory.expectations.iter().any(Expectation::is_of_a_write);
        let failure = applied.iter().find_map(|component| component.failure.clone());
        if let Some(Error::NotLeading(not_leading)) = failure {
            return Err(not_leading.into());
        }
        // What was written is seen in a moment; then there is more to say, and it is said once.
        let has_written = applied.iter().any(|component| !component.written.is_empty());
        if has_written && failure.is_none() && memory.unreported_writes < MAX_UNREPORTED_WRITES {
            memory.unreported_writes += 1;
            return Ok(Outcome::After(CATCHING_UP));
        }
        memory.unreported_writes = 0;
        let report = self.controller.report(&observed, &plan, &applied);
        let requeue_after = report.requeue_after;
        memory.requeue_after = requeue_after;
        let reporting = self.report(object, report, &applied, failure.is_some(), memory);
        let written = reporting.instrument(debug_span!("report")).await?;
        match (failure, written) {
            (Some(error), Written::Not | Written::Now) => {
                self.tell(object.as_ref(), &error);
                Err(error)
            }
            // Whatever failed, its condition is still to be written: it is looked at again, and fails then.
            (_, Written::Later(pause)) => {
                Ok(Outcome::After(requeue_after.map_or(pause, |requeue_after| pause.min(requeue_after))))
            }
            // What was written is seen in a moment, and looked at then.
            (None, Written::Now) => Ok(Outcome::Done),
            (None, Written::Not) => {
                debug_span!("act").in_scope(|| self.controller.act(object, &observed, &plan));
                Ok(requeue_after.map_or(Outcome::Done, Outcome::After))
            }
        }
    }

    /// Writes the status, if it is to say something else.
    async fn report(
        &self,
        object: &C::Object,
        report: Report,
        applied: &[Applied],
        has_failed: bool,
        memory: &mut Memory,
    ) -> Result<Written, Error> {
        if report.is_urgent {
            memory.pace.hurry();
        }
        let current = status_of(object);
        let desired = if C::HAS_CONDITIONS {
            status::whole(report, applied, object.meta().generation, &current, Timestamp::now())
        } else {
            report.status
        };
        // What has failed is tried again before long, and its condition comes first.
        let is_awaited = has_failed || !C::HAS_CONDITIONS || status::is_transition(&current, &desired);
        let news = if is_awaited { News::Awaited } else { News::Words };
        self.write_status(object.meta(), &current, &desired, news, memory).await
    }

    /// Whether what an object owns is missing for another reason than that the object is gone itself: when it is deleted,
    /// its watch may tell of that later than others tell of what goes with it, and nothing may be made anew then. The
    /// API server is asked only where something has gone and the watch of the object has not come as far.
    async fn is_still_there(&self, key: &ObjectKey, metadata: &ObjectMeta) -> Result<bool, Error> {
        let Some(lost) = self.losses().get(key).copied() else { return Ok(true) };
        let is_same = |now: &ObjectMeta| now.uid == metadata.uid && now.deletion_timestamp.is_none();
        let is_there = if self.objects.version() >= lost {
            self.objects.get(key)?.is_some_and(|object| is_same(object.meta()))
        } else {
            self.asked(key).await?.is_some_and(|now| is_same(&now))
        };
        if is_there {
            // Something else may have gone meanwhile, which is another reason to ask.
            let mut losses = self.losses();
            if losses.get(key) == Some(&lost) {
                losses.remove(key);
            }
        }
        Ok(is_there)
    }

    /// That no work is to be done on an object, in a sentence.
    fn pause_of(&self, metadata: &ObjectMeta) -> Option<String> {
        let annotation = self.context.pause_annotation;
        let value = pause::pause(metadata, annotation)?;
        annotation.map(|annotation| pause::sentence(annotation, value))
    }
}

/// A controller of whatever kind.
pub trait AnyController: Send + Sync {
    /// Works with so many workers, once everything that it reads is complete.
    fn start(self: Arc<Self>, workers: usize, tasks: &mut JoinSet<()>);
    /// Lets workers finish what they are at, and begin nothing.
    fn stop(&self);
    /// What keeps it from all of its work.
    fn waits_for(&self) -> Option<String>;
    /// What shows that it does not get any further, though there is work.
    fn stuck(&self) -> Option<String>;
}

impl<C: Controller> AnyController for Running<C> {
    fn start(self: Arc<Self>, workers: usize, tasks: &mut JoinSet<()>) {
        for _ in 0..workers {
            let running = Arc::clone(&self);
            tasks.spawn(async move {
                let needs = running.needs.lock().unwrap_or_else(PoisonError::into_inner).clone();
                for collection in needs.iter().filter_map(|need| running.applier.collections.get(need)) {
                    collection.complete().await;
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

    fn waits_for(&self) -> Option<String> {
        self.controller.waits_for()
    }

    fn stuck(&self) -> Option<String> {
        self.queue.stuck(STUCK).map(|problem| format!("controller {}: {problem}", C::NAME))
    }
}
