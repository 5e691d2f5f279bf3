#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::HashMap, convert::Infallible, sync::Arc, time::Duration};

use http::{Method, Response};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::{OwnerReference, Time},
};
use kube::{Client, api::ObjectMeta, client::Body};
use messina_text::Reason;
use serde_json::json;

use super::{builder::ControllerBuilder, interface::Controller, running::Running};
use crate::{
    apply::{Applied, ComponentPlan, Decision, Desired, Owner},
    cluster::{Cluster, Selection},
    error::Error,
    events::Events,
    ledger::Expectation,
    metrics::Metrics,
    queue::{ObjectKey, Outcome},
    reasons,
    shared_context::SharedContext,
    status::Report,
    store::{Entry, Unreadable, Version, key_of},
};

struct Nothing;

impl Controller for Nothing {
    type Object = ConfigMap;
    type Observed = ();
    type Plan = ();
    const NAME: &'static str = "nothing";
    const FIELD_MANAGER: &'static str = "test";

    async fn observe(&self, _: &Arc<ConfigMap>) -> Result<(), Error> {
        Ok(())
    }

    fn plan(&self, (): &()) {}

    fn components(&self, (): &(), (): &()) -> Result<Vec<ComponentPlan>, Error> {
        Ok(Vec::new())
    }

    fn report(&self, (): &(), (): &(), _: &[Applied]) -> Report {
        Report::default()
    }
}

/// A controller with a permanent fault, which still requests a requeue after an hour.
struct Faulty;

impl Controller for Faulty {
    type Object = ConfigMap;
    type Observed = ();
    type Plan = ();
    const NAME: &'static str = "faulty";
    const FIELD_MANAGER: &'static str = "test";
    const HAS_CONDITIONS: bool = false;

    async fn observe(&self, _: &Arc<ConfigMap>) -> Result<(), Error> {
        Ok(())
    }

    fn plan(&self, (): &()) {}

    fn components(&self, (): &(), (): &()) -> Result<Vec<ComponentPlan>, Error> {
        let fault = Some(Error::Invalid { reason: Reason::declare("Odd"), message: "this cannot be applied".into() });
        Ok(vec![ComponentPlan { name: "Part", fault, ..ComponentPlan::default() }])
    }

    fn report(&self, (): &(), (): &(), _: &[Applied]) -> Report {
        Report { requeue_after: Some(Duration::from_secs(3600)), ..Report::default() }
    }
}

fn cluster() -> Cluster {
    let service =
        tower::service_fn(|_: http::Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) });
    let (events, _) = Events::new(Metrics::default());
    let context = Arc::new(SharedContext::new(Metrics::default(), events, "test/hash"));
    Cluster::new(Client::new(service, "default"), None, context, 0)
}

fn running() -> Arc<Running<Nothing>> {
    ControllerBuilder::new(&mut cluster(), Nothing, Selection::all()).build()
}

fn metadata(version: Version) -> ObjectMeta {
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        name: "owner".into(),
        uid: "owner-uid".into(),
        controller: Some(true),
        ..OwnerReference::default()
    };
    ObjectMeta {
        name: Some("one".into()),
        namespace: Some("shop".into()),
        resource_version: Some(version.to_string()),
        labels: Some([("of".to_owned(), "labelled".to_owned())].into()),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    }
}

fn unreadable(version: Version) -> Entry<Secret> {
    let unreadable = Unreadable { kind: "Secret".into(), metadata: metadata(version), problem: "data".into() };
    Entry { version, object: Err(Arc::new(unreadable)) }
}

fn readable(version: Version) -> Entry<Secret> {
    Entry { version, object: Ok(Arc::new(Secret { metadata: metadata(version), ..Secret::default() })) }
}

/// Returns the name of the next object in the queue, if there is one.
async fn next_queued(running: &Running<Nothing>) -> Option<String> {
    let work = tokio::time::timeout(Duration::from_millis(1), running.queue.next()).await.ok()??;
    let name = work.key.name.clone();
    work.finish(&Outcome::Done);
    Some(name)
}

#[tokio::test(start_paused = true)]
async fn unreadable_objects_requeue_their_owners_and_watchers() {
    let mut cluster = cluster();
    let store = cluster.store(Selection::<Secret>::all());
    let mut builder = ControllerBuilder::new(&mut cluster, Nothing, Selection::all());
    builder.owns(Selection::<Secret>::all());
    let owner = builder.build();
    let mut builder = ControllerBuilder::new(&mut cluster, Nothing, Selection::all());
    builder.watches(Selection::<Secret>::all(), |_, metadata| {
        let name = metadata.labels.as_ref().and_then(|labels| labels.get("of")).cloned();
        name.map(|name| ObjectKey { namespace: metadata.namespace.clone(), name })
    });
    let watcher = builder.build();
    let key = key_of(&metadata(1));
    let steps: [(&str, Option<Entry<Secret>>); 6] = [
        ("it appears and cannot be read", Some(unreadable(1))),
        ("it can be read", Some(readable(2))),
        ("it cannot be read any more", Some(unreadable(3))),
        ("it has changed and cannot be read", Some(unreadable(4))),
        ("it is gone", None),
        ("it is recreated", Some(readable(6))),
    ];
    for (step, entry) in steps {
        let is_gone = entry.is_none();
        match entry {
            Some(entry) => store.put(key.clone(), entry),
            None => store.remove(key.clone(), 5),
        }
        assert_eq!(next_queued(&owner).await.as_deref(), Some("owner"), "{step}");
        assert_eq!(next_queued(&watcher).await.as_deref(), Some("labelled"), "{step}");
        let losses = owner.losses().drain().count();
        assert_eq!(losses, usize::from(is_gone), "{step}: only a deletion is a loss");
    }
    assert_eq!(store.get(&key).unwrap().unwrap().metadata.resource_version.as_deref(), Some("6"));
}

/// Applies two components, the second of which needs the first, while the object of the first exists but is not cached.
/// Returns the results, the expectations and the requests.
async fn apply_with_existing(
    there: ObjectMeta,
    labelled: ObjectMeta,
    known: Version,
) -> (Vec<Applied>, Vec<Expectation>, Vec<String>) {
    let requests = Arc::<std::sync::Mutex<Vec<String>>>::default();
    let asked = Arc::clone(&requests);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        asked.lock().unwrap().push(format!("{} {}", request.method(), request.uri().path()));
        let is_first = request.uri().path().contains("/secrets");
        let exists =
            json!({"kind": "Status", "status": "Failure", "reason": "AlreadyExists", "code": 409, "message": ""});
        let (status, body) = match *request.method() {
            Method::POST if is_first => (409, exists),
            Method::PATCH => (200, json!({"metadata": labelled})),
            _ => (200, json!({"metadata": there})),
        };
        let response = Response::builder().status(status).body(Body::from(body.to_string().into_bytes()));
        async move { Ok::<_, Infallible>(response.unwrap()) }
    });
    let (events, _) = Events::new(Metrics::default());
    let context = Arc::new(SharedContext::new(Metrics::default(), events, "test/hash"));
    let mut cluster = Cluster::new(Client::new(service, "default"), None, context, 0);
    let secrets = cluster.store(Selection::<Secret>::all());
    secrets.replace(HashMap::new(), known).unwrap();
    let running = ControllerBuilder::new(&mut cluster, Nothing, Selection::all()).build();
    let object = || ObjectMeta { resource_version: None, ..metadata(1) };
    let secret = Desired::new(&Secret { metadata: object(), ..Secret::default() }).unwrap();
    let map = Desired::new(&ConfigMap { metadata: object(), ..ConfigMap::default() }).unwrap();
    let components = vec![
        ComponentPlan { name: "token", objects: vec![secret], ..ComponentPlan::default() },
        ComponentPlan { name: "pods", needs: &["token"], objects: vec![map], ..ComponentPlan::default() },
    ];
    let decision = Decision { versions: running.applier.versions(), has_lost_dependents: &|| false };
    let (owner, mut expectations) = (Owner { uid: "owner-uid".into() }, Vec::new());
    let applied = running.applier.apply(&owner, components, &decision, &mut expectations).await;
    let requests = requests.lock().unwrap().iter().map(|one| one.replace("/api/v1/namespaces/shop/", "")).collect();
    (applied, expectations, requests)
}

/// The plan was made without the object that the cache does not show yet, so the dependent component waits for the next
/// plan.
#[tokio::test]
async fn component_waits_for_the_next_plan_if_the_cache_lags_behind() {
    let (applied, expectations, requests) = apply_with_existing(metadata(7), metadata(8), 5).await;
    assert!(matches!(applied[0].failure, Some(Error::Conflict { .. })), "{:?}", applied[0].failure);
    assert!(applied[1].progressing.is_some());
    assert_eq!(requests, ["POST secrets", "GET secrets/one"]);
    assert_eq!(expectations.len(), 1, "the owner is reconciled again when the cache shows the Secret");
    assert!(!expectations[0].is_write(), "nothing was written, so the backoff grows");
}

#[tokio::test]
async fn lost_labels_of_an_object_are_restored() {
    let bare = || ObjectMeta { labels: None, ..metadata(4) };
    let (applied, expectations, requests) = apply_with_existing(bare(), metadata(8), 5).await;
    assert!(matches!(applied[0].failure, Some(Error::Conflict { .. })), "{:?}", applied[0].failure);
    assert_eq!(requests, ["POST secrets", "GET secrets/one", "PATCH secrets/one"]);
    assert!(expectations.iter().all(Expectation::is_write) && expectations.len() == 1);

    let (applied, expectations, _) = apply_with_existing(bare(), bare(), 5).await;
    let failure = applied[0].failure.as_ref().unwrap();
    assert_eq!(
        (failure.reason(), expectations.len()),
        (reasons::NOT_FOUND_BY_LABELS, 0),
        "another program removes them again"
    );
}

/// The dependent component was planned without it, and no watch reports when it is gone.
#[tokio::test]
async fn component_waits_for_an_unlabelled_object_that_is_being_deleted() {
    let going = ObjectMeta { labels: None, deletion_timestamp: Some(Time(Timestamp::UNIX_EPOCH)), ..metadata(4) };
    let (applied, expectations, requests) = apply_with_existing(going, metadata(8), 5).await;
    assert!(matches!(applied[0].failure, Some(Error::NameTaken { .. })), "{:?}", applied[0].failure);
    assert!(applied[1].progressing.is_some());
    assert_eq!(requests, ["POST secrets", "GET secrets/one"]);
    assert_eq!(expectations.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn labels_are_restored_at_most_once_a_minute() {
    let running = running();
    assert!(running.applier.may_label("one"));
    assert!(!running.applier.may_label("one"), "a moment later");
    assert!(running.applier.may_label("two"), "another one");
    tokio::time::advance(Duration::from_secs(61)).await;
    assert!(running.applier.may_label("one"), "a minute later");
}

#[tokio::test(start_paused = true)]
async fn permission_change_requeues_all_objects_and_keeps_no_store_alive() {
    let mut cluster = cluster();
    let optional = cluster.store(Selection::<Secret>::all().if_permitted());
    let mut builder = ControllerBuilder::new(&mut cluster, Nothing, Selection::all());
    builder.watches_changes(Selection::<Secret>::all().if_permitted(), |_, _| None);
    builder.watches_changes(Selection::<ConfigMap>::all(), |_, _| None);
    let running = builder.build();
    let object = ConfigMap { metadata: metadata(1), ..ConfigMap::default() };
    running.objects.put(key_of(&object.metadata), Entry { version: 1, object: Ok(Arc::new(object)) });
    assert_eq!(next_queued(&running).await.as_deref(), Some("one"), "it is new");
    for (is_forbidden, expected) in [(false, None), (true, Some("one")), (true, None), (false, Some("one"))] {
        optional.set_forbidden(is_forbidden);
        assert_eq!(next_queued(&running).await.as_deref(), expected, "{is_forbidden}");
    }
    let store = Arc::downgrade(&running.objects);
    drop((running, cluster));
    assert!(store.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn requested_requeue_happens_despite_a_fault() {
    let running = ControllerBuilder::new(&mut cluster(), Faulty, Selection::all()).build();
    let object = ConfigMap { metadata: metadata(1), ..ConfigMap::default() };
    running.objects.put(key_of(&object.metadata), Entry { version: 1, object: Ok(Arc::new(object)) });
    running.work(running.queue.next().await.unwrap()).await;
    let began = tokio::time::Instant::now();
    running.work(running.queue.next().await.unwrap()).await;
    assert_eq!(began.elapsed().as_secs(), 3600);
}

/// Counts changes, and plans from the count.
#[derive(Default)]
struct Counting(std::sync::atomic::AtomicUsize);

impl Controller for Counting {
    type Object = ConfigMap;
    type Observed = ();
    type Plan = ();
    const NAME: &'static str = "counting";
    const FIELD_MANAGER: &'static str = "test";

    async fn observe(&self, _: &Arc<ConfigMap>) -> Result<(), Error> {
        Ok(())
    }

    fn plan(&self, (): &()) {}

    fn components(&self, (): &(), (): &()) -> Result<Vec<ComponentPlan>, Error> {
        Ok(Vec::new())
    }

    fn report(&self, (): &(), (): &(), _: &[Applied]) -> Report {
        Report::default()
    }
}

/// A worker reconciles an object as soon as it is queued, so the controller must know of the change by then.
#[tokio::test]
async fn controller_observes_a_change_before_it_requeues_an_object() {
    use std::sync::atomic::Ordering::SeqCst;
    let mut cluster = cluster();
    let mut builder = ControllerBuilder::new(&mut cluster, Counting::default(), Selection::all());
    let counts = Arc::<std::sync::Mutex<Vec<usize>>>::default();
    let seen = Arc::clone(&counts);
    builder.watches_changes(Selection::<Secret>::all(), move |controller, _| {
        seen.lock().unwrap().push(controller.0.load(SeqCst));
        None
    });
    builder.observes(Selection::<Secret>::all(), |controller, _| _ = controller.0.fetch_add(1, SeqCst));
    let running = builder.build();
    cluster.store(Selection::<Secret>::all()).put(key_of(&metadata(1)), readable(1));
    assert_eq!(*counts.lock().unwrap(), [1], "though it is declared after");
    drop(running);
}
