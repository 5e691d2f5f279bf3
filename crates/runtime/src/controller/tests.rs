#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::convert::Infallible;

use http::Response;
use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{Client, client::Body};

use super::*;
use crate::{
    apply::Wanted,
    events::Events,
    metrics::Metrics,
    store::{Entry, Unreadable, key_of},
};

struct Nothing;

impl Controller for Nothing {
    type Object = ConfigMap;
    type Observed = ();
    type Plan = ();
    const NAME: &'static str = "nothing";

    async fn observe(&self, _: &Arc<ConfigMap>) -> Result<(), Error> {
        Ok(())
    }

    fn plan(&self, (): &()) {}

    fn parts(&self, (): &(), (): &()) -> Result<Vec<Part>, Error> {
        Ok(Vec::new())
    }

    fn report(&self, (): &(), (): &(), _: &[Applied]) -> Report {
        Report::default()
    }
}

fn running() -> Arc<Running<Nothing>> {
    let service =
        tower::service_fn(|_: http::Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) });
    let (events, _) = Events::new(Metrics::default());
    let surroundings = Arc::new(Surroundings::new(Metrics::default(), events, "test", "test/hash"));
    let caches = Caches::new(Client::new(service, "default"), None, surroundings, 0);
    Running::new(&caches, Nothing, Arc::new(Store::default()), Backoff::default())
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

/// Which object is asked for now, if any is.
async fn asked_for(running: &Running<Nothing>) -> Option<String> {
    let work = tokio::time::timeout(Duration::from_millis(1), running.queue.next()).await.ok()??;
    let name = work.key.name.clone();
    work.finish(&Outcome::Done);
    Some(name)
}

#[tokio::test(start_paused = true)]
async fn owners_and_watchers_hear_of_objects_that_cannot_be_read() {
    let [owner, watcher] = [running(), running()];
    let store = Arc::new(Store::<Secret>::default());
    owner.owns(&store);
    watcher.watches(&store, |metadata| {
        let name = metadata.labels.as_ref().and_then(|labels| labels.get("of")).cloned();
        name.map(|name| ObjectKey { namespace: metadata.namespace.clone(), name }).into_iter().collect()
    });
    let key = key_of(&metadata(1));
    let steps: [(&str, Option<Entry<Secret>>); 6] = [
        ("it appears and cannot be read", Some(unreadable(1))),
        ("it can be read", Some(readable(2))),
        ("it cannot be read any more", Some(unreadable(3))),
        ("it has changed and cannot be read", Some(unreadable(4))),
        ("it is gone", None),
        ("there is another one", Some(readable(6))),
    ];
    for (step, entry) in steps {
        let is_gone = entry.is_none();
        match entry {
            Some(entry) => store.put(key.clone(), entry),
            None => store.remove(key.clone(), 5),
        }
        assert_eq!(asked_for(&owner).await.as_deref(), Some("owner"), "{step}");
        assert_eq!(asked_for(&watcher).await.as_deref(), Some("labelled"), "{step}");
        let losses = owner.losses().drain().count();
        assert_eq!(losses, usize::from(is_gone), "{step}: only what is gone is lost");
    }
    assert_eq!(store.get(&key).unwrap().unwrap().metadata.resource_version.as_deref(), Some("6"));
}

/// What a cache does not show yet was not known when it was decided what there should be: what needs it waits for the next decision.
#[tokio::test]
async fn what_needs_an_object_that_the_cache_does_not_show_is_decided_anew() {
    let requests = Arc::<std::sync::Mutex<Vec<String>>>::default();
    let asked = Arc::clone(&requests);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        asked.lock().unwrap().push(format!("{} {}", request.method(), request.uri().path()));
        let (status, body) = match request.method() {
            &Method::POST => (
                409,
                json!({"kind": "Status", "status": "Failure", "reason": "AlreadyExists", "code": 409, "message": ""}),
            ),
            _ => (200, json!({"metadata": metadata(7)})),
        };
        let response = Response::builder().status(status).body(Body::from(body.to_string().into_bytes()));
        async move { Ok::<_, Infallible>(response.unwrap()) }
    });
    let (events, _) = Events::new(Metrics::default());
    let surroundings = Arc::new(Surroundings::new(Metrics::default(), events, "test", "test/hash"));
    let mut caches = Caches::new(Client::new(service, "default"), None, surroundings, 0);
    caches.watch::<Secret>(None, |_| ());
    caches.watch::<ConfigMap>(None, |_| ());
    let running = Running::new(&caches, Nothing, Arc::new(Store::default()), Backoff::default());
    let object = || ObjectMeta { resource_version: None, ..metadata(1) };
    let secret = Wanted::new(&Secret { metadata: object(), ..Secret::default() }).unwrap();
    let map = Wanted::new(&ConfigMap { metadata: object(), ..ConfigMap::default() }).unwrap();
    let parts = vec![
        Part { name: "token", objects: vec![secret], ..Part::default() },
        Part { name: "pods", needs: &["token"], objects: vec![map], ..Part::default() },
    ];
    let decision = Decision { versions: running.applier.versions(), has_lost: &|| false };
    let (owner, mut expectations) = (Owner { uid: "owner-uid".into() }, Vec::new());
    let applied = running.applier.apply(&owner, parts, &decision, &mut expectations).await;
    assert!(matches!(applied[0].failure, Some(Error::Conflict { .. })), "{:?}", applied[0].failure);
    assert!(applied[1].waits_for.is_some());
    assert_eq!(
        *requests.lock().unwrap(),
        ["POST /api/v1/namespaces/shop/secrets", "GET /api/v1/namespaces/shop/secrets/one"]
    );
    assert_eq!(expectations.len(), 1, "it is looked at again when the cache shows the Secret");
}
