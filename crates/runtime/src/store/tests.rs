#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Mutex;

use k8s_openapi::api::core::v1::ConfigMap;

use super::*;

fn key(name: &str) -> ObjectKey {
    ObjectKey { namespace: Some("a".into()), name: name.into() }
}

fn entry(name: &str, controller: Option<&str>, version: Version) -> (ObjectKey, Entry<ConfigMap>) {
    let owner = |uid: &str| OwnerReference { uid: uid.into(), controller: Some(true), ..OwnerReference::default() };
    let metadata = ObjectMeta {
        name: Some(name.into()),
        namespace: Some("a".into()),
        resource_version: Some(version.to_string()),
        owner_references: controller.map(|uid| vec![owner(uid)]),
        ..ObjectMeta::default()
    };
    let object = ConfigMap { metadata, ..ConfigMap::default() };
    (key(name), Entry { version, object: Ok(Arc::new(object)) })
}

fn unreadable(name: &str, version: Version) -> (ObjectKey, Entry<ConfigMap>) {
    let owner = OwnerReference { uid: "owner".into(), controller: Some(true), ..OwnerReference::default() };
    let metadata = ObjectMeta {
        name: Some(name.into()),
        namespace: Some("a".into()),
        uid: Some("u".into()),
        owner_references: Some(vec![owner]),
        labels: Some([("of".to_owned(), "one".to_owned())].into()),
        ..ObjectMeta::default()
    };
    let problem = Unreadable { kind: "ConfigMap".into(), metadata, problem: "data: a number".into() };
    (key(name), Entry { version, object: Err(Arc::new(problem)) })
}

/// Returns a store, and the changes that its listener was called with.
fn store() -> (Store<ConfigMap>, Arc<Mutex<Vec<String>>>) {
    let notified = Arc::<Mutex<Vec<String>>>::default();
    let store = Store::default();
    let own = Arc::clone(&notified);
    store.on_change(move |change: &Change<ConfigMap>| {
        let what = match (&change.before, &change.after) {
            (None, Some(_)) => "created",
            (Some(_), Some(_)) => "updated",
            (Some(_), None) => "deleted",
            (None, None) => "unknown",
        };
        own.lock().unwrap().push(format!("{} {what}", change.key.name));
    });
    (store, notified)
}

fn names(objects: Result<Vec<Arc<ConfigMap>>, Arc<Unreadable>>) -> Vec<String> {
    objects.unwrap().iter().map(|object| object.metadata.name.clone().unwrap()).collect()
}

#[test]
fn list_replaces_all_objects_and_notifies_only_of_changes() {
    let (store, notified) = store();
    assert_eq!(store.version(), 0);
    store.replace([entry("x", None, 1), entry("y", None, 2)].into(), 5).unwrap();
    assert_eq!(store.version(), 5);
    notified.lock().unwrap().clear();
    store.replace([entry("y", None, 2), entry("z", None, 7)].into(), 8).unwrap();
    let mut notified = notified.lock().unwrap().clone();
    notified.sort();
    assert_eq!(notified, ["x deleted", "z created"]);
}

#[test]
fn list_older_than_the_cache_is_refused() {
    let (store, _) = store();
    store.replace([entry("x", None, 1)].into(), 5).unwrap();
    store.advance(9);
    assert_eq!(store.replace(HashMap::new(), 8), Err(Outdated { given: 8, known: 9 }));
    assert_eq!(store.len(), 1);
    store.set_min_resource_version(20);
    assert_eq!(store.replace(HashMap::new(), 19), Err(Outdated { given: 19, known: 20 }));
}

#[test]
fn event_older_than_the_cached_object_is_ignored() {
    let (store, notified) = store();
    store.replace([entry("x", Some("new"), 7)].into(), 7).unwrap();
    let (key, old) = entry("x", Some("old"), 3);
    store.put(key.clone(), old);
    store.remove(key, 6);
    assert_eq!(names(store.controlled_by("new")), ["x"]);
    assert_eq!(*notified.lock().unwrap(), ["x created"]);
}

#[test]
fn objects_are_found_by_their_controller() {
    let (store, _) = store();
    store.replace([entry("x", Some("one"), 1), entry("y", Some("one"), 1), entry("z", None, 1)].into(), 1).unwrap();
    assert_eq!(names(store.controlled_by("one")), ["x", "y"]);
    let (key, other) = entry("x", Some("two"), 2);
    store.put(key.clone(), other);
    assert_eq!(names(store.controlled_by("one")), ["y"]);
    assert_eq!(names(store.controlled_by("two")), ["x"]);
    store.remove(key, 3);
    assert_eq!(names(store.controlled_by("two")), Vec::<String>::new());
}

#[test]
fn changes_of_unreadable_objects_have_their_metadata() {
    let store = Store::<ConfigMap>::default();
    let seen = Arc::<Mutex<Vec<(Option<String>, Option<String>, bool)>>>::default();
    let own = Arc::clone(&seen);
    store.on_change(move |change: &Change<ConfigMap>| {
        let owner = |metadata: Option<&ObjectMeta>| metadata.and_then(controller_of).map(|owner| owner.uid.clone());
        let (before, after) = (owner(change.metadata_before()), owner(change.metadata_after()));
        own.lock().unwrap().push((before, after, change.is_gone()));
    });
    let owner = || Some("owner".to_owned());
    for ((key, entry), expected) in [
        (unreadable("x", 1), (None, owner(), false)),
        (unreadable("x", 2), (owner(), owner(), false)),
        (self::entry("x", Some("owner"), 3), (owner(), owner(), false)),
        (unreadable("x", 4), (owner(), owner(), false)),
    ] {
        store.put(key, entry);
        assert_eq!(seen.lock().unwrap().pop(), Some(expected));
    }
    store.remove(key("x"), 5);
    assert_eq!(seen.lock().unwrap().pop(), Some((owner(), None, true)), "its owner is requeued");
}

#[test]
fn store_is_unsynced_without_a_required_permission() {
    let [required, optional] = [Store::<ConfigMap>::default(), Store::<ConfigMap>::default()];
    optional.may_be_forbidden();
    for store in [&required, &optional] {
        store.replace(HashMap::new(), 1).unwrap();
        assert!(!store.is_unsynced());
        store.set_forbidden(true);
    }
    assert_eq!((required.is_unsynced(), optional.is_unsynced()), (true, false));
    required.set_forbidden(false);
    assert!(!required.is_unsynced());
}

#[test]
fn unreadable_object_is_not_missing() {
    let (store, _) = store();
    store.replace([unreadable("x", 1), entry("y", Some("owner"), 1)].into(), 1).unwrap();
    assert!(store.get(&key("x")).is_err());
    assert!(store.controlled_by("owner").is_err());
    assert_eq!(names(Ok(store.all())), ["y"]);
    let of = |owner: &'static str| {
        move |_: &ObjectKey, labels: &BTreeMap<String, String>| labels.get("of").is_some_and(|one| one == owner)
    };
    assert!(store.select(of("one")).is_err(), "it is selected by its labels");
    assert_eq!(names(store.select(of("another"))), Vec::<String>::new(), "and not by others");
    assert_eq!((store.len(), store.unreadable()), (2, 1));
}
