//! A controller: five steps for one kind of object.
//!
//! ```text
//! observe   read what the object depends on, from the stores (and from outside)
//! plan      decide, from that alone, what there should be
//! parts     say it as objects
//! (apply    the runtime writes what differs)
//! report    say how the object stands; the runtime writes what changed
//! act       do what is to be done outside, once there is nothing left to write
//! ```
//!
//! Validation is the first thing that planning does, or the last that observing does: its faults are values, not errors.

mod adoption;
mod finalization;

use std::{
    collections::{BTreeSet, HashMap},
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource as _, api::ObjectMeta, core::PartialObjectMeta};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::Instant};
use tracing::{Instrument, Span, debug, debug_span, field::Empty, info_span, warn};

use crate::{
    apply::{Applied, Applier, Decision, Owner, Part, send},
    caches::{Caches, Surroundings, controller_key},
    errands::Errands,
    error::{Error, chain},
    events::Note,
    ledger::{Expectation, is_caught_up},
    pace::{News, Pace},
    panics::contained,
    pause,
    queue::{Backoff, ObjectKey, Outcome, Queue, Work},
    references::References,
    status::{self, Report},
    store::{Change, Kind, Store, Version},
};

use self::{adoption::Adoptable, finalization::finalizers};
pub use finalization::{Finalize, FinalizeStep};

/// A cache that has not shown our write is looked at again after this time, should its watch say nothing.
const CATCHING_UP: Duration = Duration::from_secs(10);
/// The same trouble with an object is not told again before this time is over.
const SAME_TROUBLE: Duration = Duration::from_secs(600);
/// How often it is tried to create an object whose name is taken: nobody tells when that one is gone, because it is not
/// among those that are watched.
const TAKEN: Duration = Duration::from_secs(10);
/// A reconcile of the largest datacenter takes less, though the API server takes seconds for each of its writes.
const STUCK: Duration = Duration::from_secs(3600);
/// So many looks in a row may write without a word on how the object stands.
const SILENT_WRITES: u8 = 3;

/// What became of a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    /// It says what it should.
    Not,
    /// It was written.
    Now,
    /// It was written a moment ago, and is written again after this time.
    Later(Duration),
}

/// That nothing is done for an object for now, because another program works on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Who works on it, how that shows, and how it ends.
    pub message: String,
    /// When the object is looked at again, should nothing change until then.
    pub again_after: Duration,
}

/// The steps for one kind of object.
pub trait Controller: Send + Sync + 'static {
    /// The kind.
    type Object: Kind;
    /// What is known when it is decided.
    type Observed: Send + Sync;
    /// What was decided.
    type Plan: Send + Sync;
    /// Name of the controller, in logs and metrics.
    const NAME: &'static str;
    /// What keeps an object from going before [`Controller::finalize`] is done.
    const FINALIZER: Option<&'static str> = None;
    /// Whether the status has conditions, which are made of what comes of the parts.
    const HAS_CONDITIONS: bool = true;
    /// The type and the reason of the condition of an object that [`Controller::held`] holds.
    const HELD: &'static str = "Held";

    /// Whether another program works on the object: then nothing is done for it but to say so.
    fn held(&self, _object: &Self::Object) -> Option<Hold> {
        None
    }
    /// What keeps the controller from all of its work, for those who ask whether the process is ready.
    fn waits_for(&self) -> Option<String> {
        None
    }
    /// Reads everything that the decision needs.
    fn observe(&self, object: &Arc<Self::Object>) -> impl Future<Output = Result<Self::Observed, Error>> + Send;
    /// Decides what there should be.
    fn plan(&self, observed: &Self::Observed) -> Self::Plan;
    /// Says what was decided as objects, in order.
    fn parts(&self, observed: &Self::Observed, plan: &Self::Plan) -> Result<Vec<Part>, Error>;
    /// Says how the object stands.
    fn report(&self, observed: &Self::Observed, plan: &Self::Plan, applied: &[Applied]) -> Report;
    /// Whether an object may adopt what a former one of its name left behind. It is deleted together with what it owns, so an
    /// invalid object adopts nothing.
    fn may_adopt(&self, _object: &Self::Object) -> Result<(), Error> {
        Ok(())
    }
    /// Does what was decided outside of Kubernetes, or begins to: first the word, then the deed. It is called when all
    /// that was decided is seen to be written, the status included.
    fn act(&self, _object: &Arc<Self::Object>, _observed: &Self::Observed, _plan: &Self::Plan) {}
    /// Does what has to be done before an object with our finalizer is removed, and reports on it.
    fn finalize(&self, _object: &Arc<Self::Object>) -> impl Future<Output = Result<Finalize, Error>> + Send {
        async { Ok(Finalize { status: None, step: FinalizeStep::RemoveFinalizer }) }
    }
}

/// What is remembered of an object from one look to the next.
#[derive(Default)]
struct Memory {
    expectations: Vec<Expectation>,
    pace: Pace,
    silent_writes: u8,
    /// The trouble that was last told, and when.
    told: Option<(String, Instant)>,
    /// Whether the last look wrote something, whatever came of the rest.
    has_progressed: bool,
    /// Whether no work was done at the last look, by the will of the user or because another program works on the object.
    is_paused: bool,
}

impl Memory {
    fn is_empty(&self) -> bool {
        let has_nothing_to_say = self.silent_writes == 0 && self.told.is_none() && !self.is_paused;
        self.expectations.is_empty() && self.pace.is_new() && has_nothing_to_say
    }
}

impl Memory {
    /// Trouble that stays the same is told now and then, however often it is met.
    fn tell(&mut self, error: &Error) {
        let problem = chain(error);
        let is_old = |(told, when): &(String, Instant)| *told == problem && when.elapsed() < SAME_TROUBLE;
        if error.is_told() || self.told.as_ref().is_some_and(is_old) {
            debug!(problem, "not done");
        } else {
            warn!(problem, "not done");
            self.told = Some((problem, Instant::now()));
        }
    }
}

type Forget = Box<dyn Fn(&ObjectKey) + Send + Sync>;

/// A controller with its queue.
pub struct Running<C: Controller> {
    controller: C,
    objects: Arc<Store<C::Object>>,
    queue: Arc<Queue>,
    applier: Applier,
    surroundings: Arc<Surroundings>,
    memories: Mutex<HashMap<ObjectKey, Memory>>,
    /// Objects of which something that they own has gone, and as of which version.
    losses: Arc<Mutex<HashMap<ObjectKey, Version>>>,
    /// What has to be complete before anything is decided.
    needs: Mutex<BTreeSet<String>>,
    /// Called with an object that is gone, when nobody works on it any more.
    forgets: Mutex<Vec<Forget>>,
    /// Finds what a former object of the same name had.
    adoptable: Mutex<Vec<Adoptable>>,
}

impl<C: Controller> Running<C> {
    /// A controller of the objects in `objects`.
    pub fn new(caches: &Caches, controller: C, objects: Arc<Store<C::Object>>, backoff: Backoff) -> Arc<Self> {
        let surroundings = Arc::clone(caches.surroundings());
        let applier = Applier {
            client: caches.client().clone(),
            collections: caches.collections(),
            surroundings: Arc::clone(&surroundings),
            adopted: Mutex::default(),
            certain: Mutex::default(),
            written: Mutex::default(),
        };
        let running = Self {
            controller,
            objects: Arc::clone(&objects),
            queue: Queue::new(backoff),
            applier,
            surroundings,
            memories: Mutex::default(),
            losses: Arc::default(),
            needs: Mutex::default(),
            forgets: Mutex::default(),
            adoptable: Mutex::default(),
        };
        running.needs::<C::Object>();
        let queue = Arc::clone(&running.queue);
        objects.on_change(move |change: &Change<C::Object>| queue.add(change.key.clone()));
        let queue = Arc::clone(&running.queue);
        running.surroundings.metrics.on_read(move |metrics| metrics.queue(C::NAME, queue.load()));
        Arc::new(running)
    }

    /// Looks at an object again whenever something changes of which it is the controller.
    pub fn owns<K: Kind>(self: &Arc<Self>, store: &Arc<Store<K>>) {
        self.needs::<K>();
        let (queue, losses, own_store) = (Arc::clone(&self.queue), Arc::clone(&self.losses), Arc::downgrade(store));
        store.on_change(move |change: &Change<K>| {
            let lost = change.metadata_before().filter(|_| change.is_gone());
            if let (Some(store), Some(lost)) = (own_store.upgrade(), lost)
                && let Some(owner) = controller_key::<C::Object>(lost)
            {
                losses.lock().unwrap_or_else(PoisonError::into_inner).insert(owner, store.version());
            }
            for key in change.metadata().filter_map(controller_key::<C::Object>) {
                queue.add(key);
            }
        });
    }

    /// Looks at the objects that `concerns` names whenever something changes. It decides by metadata, which is known of objects
    /// that cannot be read, too.
    pub fn watches<K: Kind>(
        self: &Arc<Self>,
        store: &Store<K>,
        concerns: impl Fn(&ObjectMeta) -> Vec<ObjectKey> + Send + Sync + 'static,
    ) {
        self.hears_of(store, move |change| change.metadata().flat_map(&concerns).collect());
    }

    /// Looks at the objects that `concerns` names, which knows what has changed.
    pub fn hears_of<K: Kind>(
        self: &Arc<Self>,
        store: &Store<K>,
        concerns: impl Fn(&Change<K>) -> Vec<ObjectKey> + Send + Sync + 'static,
    ) {
        self.needs::<K>();
        self.looks_at_all_when_permissions_change(store);
        let queue = Arc::clone(&self.queue);
        store.on_change(move |change: &Change<K>| concerns(change).into_iter().for_each(|key| queue.add(key)));
    }

    /// What may not be read is told of in each object's conditions.
    fn looks_at_all_when_permissions_change<K: Kind>(&self, store: &Store<K>) {
        let (queue, objects) = (Arc::clone(&self.queue), Arc::clone(&self.objects));
        store.on_permission_change(move || {
            objects.all().iter().for_each(|one| queue.add(crate::store::key_of(one.meta())))
        });
    }

    /// Looks at an object again whenever something that was done for it outside has come to an end.
    pub fn awaits<T: Send + 'static>(self: &Arc<Self>, errands: &Errands<T>) {
        let queue = Arc::clone(&self.queue);
        errands.on_return(move |key| queue.add(key));
    }

    /// Looks at an object again whenever this is called.
    pub fn waker(self: &Arc<Self>) -> impl Fn(ObjectKey) + Send + Sync + 'static {
        let queue = Arc::clone(&self.queue);
        move |key| queue.add(key)
    }

    /// Looks at an object again whenever something changes that it names.
    pub fn refers_to<K>(self: &Arc<Self>, references: &Arc<References<K>>)
    where
        K: Kind,
        PartialObjectMeta<K>: Kind,
    {
        self.needs.lock().unwrap_or_else(PoisonError::into_inner).insert(References::<K>::collection());
        let queue = Arc::clone(&self.queue);
        references.on_change(C::NAME, move |key| queue.add(key));
        let references = Arc::clone(references);
        let forget = Box::new(move |key: &ObjectKey| references.forget(C::NAME, key));
        self.forgets.lock().unwrap_or_else(PoisonError::into_inner).push(forget);
    }

    fn needs<K: Kind>(&self) {
        self.needs.lock().unwrap_or_else(PoisonError::into_inner).insert(K::url_path(&(), None));
    }

    async fn work(&self, work: Work) {
        let began = Instant::now();
        let key = work.key.clone();
        let mut memory = self.memories().remove(&key).unwrap_or_default();
        memory.has_progressed = false;
        let result = match contained(self.look(&key, &mut memory)).await {
            Ok(result) => result,
            Err(message) => self.report_panic(&key, message, &mut memory).await,
        };
        let has_progressed = memory.has_progressed;
        match &result {
            Ok(_) => memory.told = None,
            Err(error) => memory.tell(error),
        }
        if !memory.is_empty() {
            self.memories().insert(key.clone(), memory);
        }
        let (outcome, word, reason) = match &result {
            Ok(outcome) => (outcome.clone(), "done", "AsExpected"),
            Err(error @ Error::Taken { .. }) => (Outcome::After(TAKEN), "failed", error.reason()),
            Err(error) if error.needs_a_change() => (Outcome::Done, "failed", error.reason()),
            Err(error) => (Outcome::Failed(error.reason()), "failed", error.reason()),
        };
        let span = Span::current();
        span.record("result", word).record("reason", reason);
        if word == "failed" {
            span.record("otel.status_code", "ERROR");
        }
        self.surroundings.metrics.reconciled(C::NAME, word, reason, began.elapsed());
        if has_progressed {
            work.forgive();
        }
        work.finish(&outcome);
    }

    /// Other objects are not affected; this one waits longer each time.
    async fn report_panic(&self, key: &ObjectKey, message: String, memory: &mut Memory) -> Result<Outcome, Error> {
        self.surroundings.metrics.panicked(C::NAME);
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
            *memory = Memory::default();
            self.losses().remove(key);
            self.applier.forget_missing();
            self.forgets.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|forget| forget(key));
            return Ok(Outcome::Done);
        };
        if let Some(sentence) = self.pause_of(object.meta()) {
            return self.rest(object.as_ref(), [pause::PAUSED, C::HELD], sentence, Outcome::Done, memory).await;
        }
        if let Some(Hold { message, again_after }) = self.controller.held(object.as_ref()) {
            if !memory.is_paused {
                warn!(reason = C::HELD, problem = message, "left alone");
            }
            let rests = [C::HELD, pause::PAUSED];
            return self.rest(object.as_ref(), rests, message, Outcome::After(again_after), memory).await;
        }
        if std::mem::take(&mut memory.is_paused) {
            let note = Note::normal("Resumed", "Nothing stops the work on this object any more: it goes on.");
            self.surroundings.events.tell(reference(object.as_ref()), note);
        }
        if object.meta().deletion_timestamp.is_some() {
            return self.finalize(&object, memory).await;
        }
        if let Some(finalizer) = C::FINALIZER
            && !finalizers(object.meta()).contains(&finalizer)
        {
            self.set_finalizers(object.meta(), memory, |all| all.push(finalizer)).await?;
            return Ok(Outcome::After(CATCHING_UP));
        }
        if self.awaits_former(key, object.as_ref()) {
            return Ok(Outcome::After(CATCHING_UP));
        }
        let orphans = self.orphans_of(key);
        if !orphans.is_empty() {
            return match self.adopt(object.as_ref(), &orphans, memory).await {
                Ok(outcome) => Ok(outcome),
                Err(error) => self.tell_of_failure(&object, error, memory).await,
            };
        }
        // Before anything is read: what goes from now on is not made anew from what was decided when it was there.
        if !self.is_still_there(key, object.meta()).await? {
            return Ok(Outcome::After(CATCHING_UP));
        }
        let versions = self.applier.versions();
        let observed = match self.controller.observe(&object).instrument(debug_span!("observe")).await {
            Ok(observed) => observed,
            Err(error) => return self.tell_of_failure(&object, error, memory).await,
        };
        let planned = debug_span!("plan").in_scope(|| {
            let plan = self.controller.plan(&observed);
            self.controller.parts(&observed, &plan).map(|parts| (plan, parts))
        });
        let (plan, parts) = match planned {
            Ok(planned) => planned,
            Err(error) => return self.tell_of_failure(&object, error, memory).await,
        };
        let owner = Owner { uid: object.meta().uid.clone().unwrap_or_default() };
        let has_lost = || self.losses().contains_key(key);
        let decision = Decision { versions, has_lost: &has_lost };
        let applying = self.applier.apply(&owner, parts, &decision, &mut memory.expectations);
        let applied = applying.instrument(debug_span!("apply")).await;
        for note in applied.iter().flat_map(|part| &part.events) {
            self.surroundings.events.tell(reference(object.as_ref()), note.clone());
        }
        memory.has_progressed = memory.expectations.iter().any(Expectation::is_of_a_write);
        let failure = applied.iter().find_map(|part| part.failure.clone());
        if let Some(Error::NotLeading(not_leading)) = failure {
            return Err(not_leading.into());
        }
        // What was written is seen in a moment; then there is more to say, and it is said once.
        let has_written = applied.iter().any(|part| !part.written.is_empty());
        if has_written && failure.is_none() && memory.silent_writes < SILENT_WRITES {
            memory.silent_writes += 1;
            return Ok(Outcome::After(CATCHING_UP));
        }
        memory.silent_writes = 0;
        let reporting = async {
            let report = self.controller.report(&observed, &plan, &applied);
            let (is_urgent, again_after) = (report.is_urgent, report.again_after);
            let current = status_of(object.as_ref());
            let wanted = if C::HAS_CONDITIONS {
                status::whole(report, &applied, object.meta().generation, &current, Timestamp::now())
            } else {
                report.status
            };
            if is_urgent {
                memory.pace.hurry();
            }
            // What has failed is tried again before long, and its condition comes first.
            let is_awaited = failure.is_some() || !C::HAS_CONDITIONS || status::is_transition(&current, &wanted);
            let news = if is_awaited { News::Awaited } else { News::Words };
            let written = self.write_status(object.meta(), &current, &wanted, news, memory).await?;
            Ok::<_, Error>((written, again_after))
        };
        let (written, again_after) = reporting.instrument(debug_span!("report")).await?;
        match (failure, written) {
            (Some(error), Written::Not | Written::Now) => {
                self.tell(object.as_ref(), &error);
                Err(error)
            }
            // Whatever failed, its condition is still to be written: it is looked at again, and fails then.
            (_, Written::Later(pause)) => {
                Ok(Outcome::After(again_after.map_or(pause, |again_after| pause.min(again_after))))
            }
            // What was written is seen in a moment, and looked at then.
            (None, Written::Now) => Ok(Outcome::Done),
            (None, Written::Not) => {
                debug_span!("act").in_scope(|| self.controller.act(&object, &observed, &plan));
                Ok(again_after.map_or(Outcome::Done, Outcome::After))
            }
        }
    }

    /// The metadata of an object as the API server has it; none where it is gone.
    async fn asked(&self, key: &ObjectKey) -> Result<Option<ObjectMeta>, Error> {
        let path = format!("{}/{}", C::Object::url_path(&(), key.namespace.as_deref()), key.name);
        match send(&self.applier.client, Method::GET, &path, "", &Value::Null).await {
            Ok(now) => Ok(Some(now)),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
            Err(error) => Err(Error::of(|| format!("looking at {} {key}", C::Object::kind(&())), error)),
        }
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
        let annotation = self.surroundings.pause_annotation;
        let value = pause::pause(metadata, annotation)?;
        annotation.map(|annotation| pause::sentence(annotation, value))
    }

    /// Nothing is done for an object but to say so. Its own deletion waits, too, where something has to come before.
    async fn rest(
        &self,
        object: &C::Object,
        rests: [&'static str; 2],
        sentence: String,
        outcome: Outcome,
        memory: &mut Memory,
    ) -> Result<Outcome, Error> {
        if C::HAS_CONDITIONS {
            let current = status_of(object);
            let wanted = status::paused(rests, &sentence, object.meta().generation, &current, Timestamp::now());
            if let Written::Later(rest) =
                self.write_status(object.meta(), &current, &wanted, News::Awaited, memory).await?
            {
                return Ok(Outcome::After(rest));
            }
        }
        if !std::mem::replace(&mut memory.is_paused, true) {
            // A pause is somebody's wish; what else holds work up has to be dealt with.
            let note = if rests[0] == pause::PAUSED { Note::normal } else { Note::warning };
            self.surroundings.events.tell(reference(object), note(rests[0], sentence));
        }
        Ok(outcome)
    }

    /// The object could not be looked at, or makes no sense: nothing is changed but what its status says.
    async fn tell_of_failure(&self, object: &C::Object, error: Error, memory: &mut Memory) -> Result<Outcome, Error> {
        if C::HAS_CONDITIONS {
            let current = status_of(object);
            let rests = [pause::PAUSED, C::HELD];
            let wanted = status::failed(&error, rests, object.meta().generation, &current, Timestamp::now());
            let writing = self.write_status(object.meta(), &current, &wanted, News::Awaited, memory);
            if let Written::Later(pause) = writing.instrument(debug_span!("report")).await? {
                // The condition is still to be written: it is looked at again, and fails then.
                return Ok(Outcome::After(pause));
            }
        }
        self.tell(object, &error);
        Err(error)
    }

    async fn write_status(
        &self,
        metadata: &ObjectMeta,
        current: &Value,
        wanted: &Value,
        news: News,
        memory: &mut Memory,
    ) -> Result<Written, Error> {
        let Some(patch) = status::patch(current, &status::fit(wanted)) else { return Ok(Written::Not) };
        let now = Instant::now();
        let rest = memory.pace.rest(news, now);
        if !rest.is_zero() {
            return Ok(Written::Later(rest));
        }
        memory.pace.writes(news, now);
        let patch = json!({"metadata": {"uid": metadata.uid}, "status": patch});
        self.patch(metadata, "/status", &patch, memory).await?;
        Ok(Written::Now)
    }

    async fn patch(
        &self,
        metadata: &ObjectMeta,
        subresource: &str,
        patch: &Value,
        memory: &mut Memory,
    ) -> Result<(), Error> {
        let key = crate::store::key_of(metadata);
        let place = C::Object::url_path(&(), key.namespace.as_deref());
        let collection = C::Object::url_path(&(), None);
        let path = format!("{place}/{}{subresource}?fieldManager={}", key.name, self.surroundings.field_manager);
        match send(&self.applier.client, Method::PATCH, &path, "application/merge-patch+json", patch).await {
            Ok(metadata) => {
                memory.expectations.push(Expectation::seen(&collection, &key, &metadata));
                Ok(())
            }
            // It is gone, which the watch will tell.
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            Err(error) => {
                let error = Error::of(|| format!("writing {} {key}{subresource}", C::Object::kind(&())), error);
                if error.leaves_doubt() {
                    memory.expectations.push(Expectation::doubt(&collection, &place, &key));
                }
                Err(error)
            }
        }
    }

    fn tell(&self, object: &C::Object, error: &Error) {
        if !matches!(error, Error::Conflict { .. } | Error::NoAnswer { .. } | Error::NotLeading(_)) {
            self.surroundings.events.tell(reference(object), Note::warning(error.reason(), chain(error)));
        }
    }

    fn losses(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, Version>> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn memories(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, Memory>> {
        self.memories.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which object something is said of.
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

fn status_of<K: Kind>(object: &K) -> Value {
    serde_json::to_value(object).ok().and_then(|mut value| value.get_mut("status").map(Value::take)).unwrap_or_default()
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

#[cfg(test)]
mod tests;
