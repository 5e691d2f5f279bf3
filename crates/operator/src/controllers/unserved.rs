//! Kinds that the operator knows and has no controller for yet. The API server accepts objects of them, so the operator reports that
//! nothing is done for them: an event on each, and a metric.

use kube::{Resource, core::PartialObjectMeta};
use messina_api::scylla::{
    v1::ScyllaCluster,
    v1alpha1::{RemoteKubernetesCluster, ScyllaDBCluster, ScyllaDBManagerClusterRegistration, ScyllaDBManagerTask},
};
use messina_runtime::{
    caches::Caches,
    controller::reference,
    events::Note,
    metrics::Metrics,
    store::{Change, Kind},
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
};

use super::reasons;

/// What to use instead, as a sentence.
const ONE_DATACENTER: &str = "Create a ScyllaDBDatacenter for each datacenter instead.";
const NO_MANAGER: &str = "Configure repairs and backups in ScyllaDB Manager itself.";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfKind {
    kind: String,
}

/// The number of objects of kinds without a controller. Clones count together.
#[derive(Clone, Debug)]
pub struct Unserved(Family<OfKind, Gauge>);

impl Unserved {
    /// Registers the metric; to be called once for each process.
    pub fn new(metrics: &Metrics) -> Self {
        let objects = Self(Family::default());
        metrics.register(|registry| {
            let help = "Number of objects of a kind that the operator has no controller for yet";
            registry.register("unserved_objects", help, objects.0.clone());
        });
        objects
    }

    /// Watches the kinds that have no controller.
    pub fn start(&self, caches: &mut Caches) {
        self.watch::<ScyllaCluster>(caches, ONE_DATACENTER);
        self.watch::<ScyllaDBCluster>(caches, ONE_DATACENTER);
        self.watch::<ScyllaDBManagerClusterRegistration>(caches, NO_MANAGER);
        self.watch::<ScyllaDBManagerTask>(caches, NO_MANAGER);
        // It is in no namespace, and an operator of one namespace may not read it.
        if caches.namespace().is_none() {
            self.watch::<RemoteKubernetesCluster>(caches, ONE_DATACENTER);
        }
    }

    fn watch<K>(&self, caches: &mut Caches, remedy: &'static str)
    where
        K: Resource<DynamicType = ()>,
        PartialObjectMeta<K>: Kind,
    {
        let store = caches.watch_optional_metadata::<K>(super::trim);
        let events = caches.events().clone();
        let count = Count { family: self.0.clone(), labels: OfKind { kind: K::kind(&()).into_owned() } };
        store.on_change(move |change| {
            count.add(change);
            if let Some(object) = change.after.as_ref().filter(|_| is_new(change)) {
                events.emit(reference(object.as_ref()), Note::warning(reasons::NOT_SERVED, message::<K>(remedy)));
            }
        });
    }
}

/// The series of one kind, which ends with the watch.
struct Count {
    family: Family<OfKind, Gauge>,
    labels: OfKind,
}

impl Count {
    fn add<K>(&self, change: &Change<K>) {
        let change = i64::from(change.after.is_some()) - i64::from(change.before.is_some());
        self.family.get_or_create(&self.labels).inc_by(change);
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        self.family.remove(&self.labels);
    }
}

/// Whether an object is seen for the first time by this leader.
fn is_new<K: Kind>(change: &Change<K>) -> bool {
    let uid = |object: Option<&K>| object.and_then(|object| object.meta().uid.clone());
    uid(change.before.as_deref()) != uid(change.after.as_deref())
}

fn message<K: Resource<DynamicType = ()>>(remedy: &str) -> String {
    let kind = K::kind(&());
    format!(
        "{kind} has no effect: this version of the operator has no controller for it. Objects that scylla-operator created for it are \
         left as they are. {remedy}"
    )
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::sync::Arc;

    use messina_runtime::queue::ObjectKey;

    use super::*;

    #[test]
    fn objects_are_counted_while_they_are_watched() {
        let metrics = Metrics::default();
        let unserved = Unserved::new(&metrics);
        let count = Count { family: unserved.0.clone(), labels: OfKind { kind: "ScyllaCluster".into() } };
        let key = ObjectKey { namespace: Some("shop".into()), name: "orders".into() };
        let object = || Some(Arc::new(PartialObjectMeta::<ScyllaCluster>::default()));
        count.add(&Change::new(key.clone(), None, object()));
        count.add(&Change::new(key.clone(), object(), object()));
        let series = r#"unserved_objects{kind="ScyllaCluster"} 1"#;
        assert!(metrics.text().unwrap().contains(series), "{}", metrics.text().unwrap());
        drop(count);
        assert!(!metrics.text().unwrap().contains("ScyllaCluster"));
    }

    #[test]
    fn an_object_is_reported_once_until_it_is_recreated() {
        let key = ObjectKey { namespace: None, name: "orders".into() };
        let object = |uid: &str| {
            let mut object = PartialObjectMeta::<ScyllaCluster>::default();
            object.metadata.uid = Some(uid.into());
            Some(Arc::new(object))
        };
        assert!(is_new(&Change::new(key.clone(), None, object("a"))));
        assert!(!is_new(&Change::new(key.clone(), object("a"), object("a"))));
        assert!(is_new(&Change::new(key, object("a"), object("b"))));
    }
}
