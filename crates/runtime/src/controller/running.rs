//! A controller with its queue and what it remembers.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource as _, api::ObjectMeta, core::PartialObjectMeta};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::{Instrument, debug, debug_span, warn};

use super::interface::Controller;
use crate::{
    apply::{Applier, Orphan},
    background_tasks::BackgroundTasks,
    caches::{Caches, controller_key},
    error::{Error, chain},
    events::Note,
    ledger::Expectation,
    pace::{News, Pace},
    pause,
    queue::{Backoff, ObjectKey, Outcome, Queue},
    references::References,
    request::send,
    shared_context::SharedContext,
    status,
    store::{Change, Kind, Store, Version},
};

/// A cache that has not shown our write is looked at again after this time, should its watch say nothing.
pub(super) const CATCHING_UP: Duration = Duration::from_secs(10);

/// The same trouble with an object is not told again before this time is over.
pub(super) const SAME_TROUBLE: Duration = Duration::from_secs(600);

/// What is remembered of an object from one look to the next.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) expectations: Vec<Expectation>,
    pub(super) pace: Pace,
    pub(super) unreported_writes: u8,
    /// The trouble that was last told, and when.
    pub(super) told: Option<(String, Instant)>,
    /// Whether the last look wrote something, whatever came of the rest.
    pub(super) has_progressed: bool,
    /// When the object is to be looked at again, whatever fails.
    pub(super) requeue_after: Option<Duration>,
    /// Whether no work was done at the last look, by the will of the user or because another program works on the object.
    pub(super) is_paused: bool,
}

impl Memory {
    pub(super) fn is_empty(&self) -> bool {
        let has_nothing_to_say = self.unreported_writes == 0 && self.told.is_none() && !self.is_paused;
        self.expectations.is_empty() && self.pace.is_new() && has_nothing_to_say
    }
}

impl Memory {
    /// Trouble that stays the same is told now and then, however often it is met.
    pub(super) fn tell(&mut self, error: &Error) {
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

/// What became of a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// It says what it should.
    Not,
    /// It was written.
    Now,
    /// It was written a moment ago, and is written again after this time.
    Later(Duration),
}

pub(super) type Forget = Box<dyn Fn(&ObjectKey) + Send + Sync>;

/// What a former object of the same name had of one kind.
pub(super) struct Adoptable {
    /// Objects without a controller that an object of this name may adopt.
    pub(super) orphans: FindOrphans,
    /// Whether an object is still owned by another UID of this name.
    pub(super) has_former: HasFormer,
}

pub(super) type FindOrphans = Box<dyn Fn(&ObjectKey) -> Vec<Orphan> + Send + Sync>;

pub(super) type HasFormer = Box<dyn Fn(&ObjectKey, Option<&str>) -> bool + Send + Sync>;

/// A controller with its queue.
pub struct Running<C: Controller> {
    pub(super) controller: C,
    pub(super) objects: Arc<Store<C::Object>>,
    pub(super) queue: Arc<Queue>,
    pub(super) applier: Applier,
    pub(super) context: Arc<SharedContext>,
    pub(super) memories: Mutex<HashMap<ObjectKey, Memory>>,
    /// Objects of which something that they own has gone, and as of which version.
    pub(super) losses: Arc<Mutex<HashMap<ObjectKey, Version>>>,
    /// What has to be complete before anything is decided.
    pub(super) needs: Mutex<BTreeSet<String>>,
    /// Called with an object that is gone, when nobody works on it any more.
    pub(super) forgets: Mutex<Vec<Forget>>,
    /// Finds what a former object of the same name had.
    pub(super) adoptable: Mutex<Vec<Adoptable>>,
}

impl<C: Controller> Running<C> {
    /// A controller of the objects in `objects`.
    pub fn new(caches: &Caches, controller: C, objects: Arc<Store<C::Object>>, backoff: Backoff) -> Arc<Self> {
        let context = Arc::clone(caches.context());
        let applier = Applier {
            client: caches.client().clone(),
            collections: caches.collections(),
            context: Arc::clone(&context),
            adopted: Mutex::default(),
            certain: Mutex::default(),
            written: Mutex::default(),
            labelled: Mutex::default(),
        };
        let running = Self {
            controller,
            objects: Arc::clone(&objects),
            queue: Queue::new(backoff),
            applier,
            context,
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
        running.context.metrics.on_read(move |metrics| metrics.queue(C::NAME, queue.load()));
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
        self.watch_changes(store, move |change| change.metadata().flat_map(&concerns).collect());
    }

    /// Looks at the objects that `concerns` names, which knows what has changed.
    pub fn watch_changes<K: Kind>(
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
    pub(super) fn looks_at_all_when_permissions_change<K: Kind>(&self, store: &Store<K>) {
        // The store may be the one of these objects.
        let (queue, objects) = (Arc::clone(&self.queue), Arc::downgrade(&self.objects));
        store.on_permission_change(move || {
            let objects = objects.upgrade().map(|objects| objects.all()).unwrap_or_default();
            objects.iter().for_each(|one| queue.add(crate::store::key_of(one.meta())));
        });
    }

    /// Looks at an object again whenever something that was done for it outside has come to an end.
    pub fn on_task_done<T: Send + 'static>(self: &Arc<Self>, background_tasks: &BackgroundTasks<T>) {
        let queue = Arc::clone(&self.queue);
        background_tasks.on_done(move |key| queue.add(key));
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

    pub(super) fn needs<K: Kind>(&self) {
        self.needs.lock().unwrap_or_else(PoisonError::into_inner).insert(K::url_path(&(), None));
    }

    /// The metadata of an object as the API server has it; none where it is gone.
    pub(super) async fn asked(&self, key: &ObjectKey) -> Result<Option<ObjectMeta>, Error> {
        let path = format!("{}/{}", C::Object::url_path(&(), key.namespace.as_deref()), key.name);
        match send(&self.applier.client, Method::GET, &path, "", &Value::Null).await {
            Ok(now) => Ok(Some(now)),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
            Err(error) => Err(Error::of(|| format!("looking at {} {key}", C::Object::kind(&())), error)),
        }
    }

    /// Nothing is done for an object but to say so. Its own deletion waits, too, where something has to come before.
    pub(super) async fn rest(
        &self,
        object: &C::Object,
        rests: [&'static str; 2],
        sentence: String,
        outcome: Outcome,
        memory: &mut Memory,
    ) -> Result<Outcome, Error> {
        if C::HAS_CONDITIONS {
            let current = status_of(object);
            let desired = status::paused(rests, &sentence, object.meta().generation, &current, Timestamp::now());
            if let Written::Later(rest) =
                self.write_status(object.meta(), &current, &desired, News::Awaited, memory).await?
            {
                return Ok(Outcome::After(rest));
            }
        }
        if !std::mem::replace(&mut memory.is_paused, true) {
            // A pause is somebody's wish; what else holds work up has to be dealt with.
            let note = if rests[0] == pause::PAUSED { Note::normal } else { Note::warning };
            self.context.events.tell(reference(object), note(rests[0], sentence));
        }
        Ok(outcome)
    }

    /// The object could not be looked at, or makes no sense: nothing is changed but what its status says.
    pub(super) async fn tell_of_failure(
        &self,
        object: &C::Object,
        error: Error,
        memory: &mut Memory,
    ) -> Result<Outcome, Error> {
        if C::HAS_CONDITIONS {
            let current = status_of(object);
            let rests = [pause::PAUSED, C::HELD];
            let desired = status::failed(&error, rests, object.meta().generation, &current, Timestamp::now());
            let writing = self.write_status(object.meta(), &current, &desired, News::Awaited, memory);
            if let Written::Later(pause) = writing.instrument(debug_span!("report")).await? {
                // The condition is still to be written: it is looked at again, and fails then.
                return Ok(Outcome::After(pause));
            }
        }
        self.tell(object, &error);
        Err(error)
    }

    pub(super) async fn write_status(
        &self,
        metadata: &ObjectMeta,
        current: &Value,
        desired: &Value,
        news: News,
        memory: &mut Memory,
    ) -> Result<Written, Error> {
        let Some(patch) = status::patch(current, &status::fit(desired)) else { return Ok(Written::Not) };
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
        let path = format!("{place}/{}{subresource}?fieldManager={}", key.name, self.context.field_manager);
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

    pub(super) fn tell(&self, object: &C::Object, error: &Error) {
        if !matches!(error, Error::Conflict { .. } | Error::NoAnswer { .. } | Error::NotLeading(_)) {
            self.context.events.tell(reference(object), Note::warning(error.reason(), chain(error)));
        }
    }

    pub(super) fn losses(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, Version>> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn memories(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, Memory>> {
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

pub(super) fn status_of<K: Kind>(object: &K) -> Value {
    serde_json::to_value(object).ok().and_then(|mut value| value.get_mut("status").map(Value::take)).unwrap_or_default()
}
