//! Kinds that the operator knows and has no controller for yet. The API server accepts objects of them, so the operator reports that
//! nothing is done for them: an event on each, and a metric.

use kube::{Resource, core::PartialObjectMeta};
use messina_api::scylla::{
    v1::ScyllaCluster,
    v1alpha1::{RemoteKubernetesCluster, ScyllaDBCluster, ScyllaDBManagerClusterRegistration, ScyllaDBManagerTask},
};
use messina_runtime::{
    cluster::{Cluster, Selection},
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

/// What the user can do for objects of a kind, in sentences.
const CLUSTER: &str = "For a new cluster, create a ScyllaDBDatacenter. If a ScyllaDBDatacenter exists for this object, the operator \
    manages that as soon as scylla-operator has stopped. Keep this object then: deleting it deletes the ScyllaDBDatacenter.";
const REMOTE: &str = "Create a ScyllaDBDatacenter in each Kubernetes cluster.";
const MANAGER: &str = "Configure repairs and backups in ScyllaDB Manager itself. When you delete this object, remove the finalizers of \
    scylla-operator from it: otherwise it stays.";

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
    pub fn start(&self, cluster: &mut Cluster) {
        self.watch::<ScyllaCluster>(cluster, CLUSTER);
        self.watch::<ScyllaDBCluster>(cluster, REMOTE);
        self.watch::<ScyllaDBManagerClusterRegistration>(cluster, MANAGER);
        self.watch::<ScyllaDBManagerTask>(cluster, MANAGER);
        // It is in no namespace, and an operator of one namespace may not read it.
        if cluster.namespace().is_none() {
            self.watch::<RemoteKubernetesCluster>(cluster, REMOTE);
        }
    }

    fn watch<K>(&self, cluster: &mut Cluster, remedy: &'static str)
    where
        K: Resource<DynamicType = ()>,
        PartialObjectMeta<K>: Kind,
    {
        let optional = Selection::<PartialObjectMeta<K>>::all().metadata_only().if_served().if_permitted();
        let store = cluster.store(optional.trimmed(trim));
        let events = cluster.events().clone();
        let count = Count { family: self.0.clone(), labels: OfKind { kind: K::kind(&()).into_owned() } };
        store.on_change(move |change| {
            count.add(change);
            if let Some(object) = change.after.as_ref().filter(|_| is_new(change) || change.begins_deletion()) {
                events
                    .emit_if_idle(reference(object.as_ref()), Note::warning(reasons::NOT_SERVED, message::<K>(remedy)));
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

/// Drops all metadata but those that are read.
fn trim<K>(object: &mut PartialObjectMeta<K>) {
    let metadata = &mut object.metadata;
    (metadata.annotations, metadata.labels, metadata.managed_fields) = (None, None, None);
}

fn message<K: Resource<DynamicType = ()>>(remedy: &str) -> String {
    format!(
        "This version of the operator has no controller for {}, and does nothing for this object. {remedy}",
        K::kind(&())
    )
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
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
        assert!(is_new(&Change::new(key.clone(), object("a"), object("b"))));

        let deleted = |uid: &str| {
            let mut object = Arc::unwrap_or_clone(object(uid).unwrap());
            object.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
            Some(Arc::new(object))
        };
        assert!(Change::new(key.clone(), object("a"), deleted("a")).begins_deletion());
        assert!(!Change::new(key.clone(), deleted("a"), deleted("a")).begins_deletion());
        assert!(!Change::new(key, deleted("a"), None).begins_deletion());
    }
}
