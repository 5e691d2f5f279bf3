//! Snapshots of the objects of a namespace, from one watch for each kind in the cluster.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
};

use futures::StreamExt;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    batch::v1::Job,
    core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount},
    policy::v1::PodDisruptionBudget,
    rbac::v1::RoleBinding,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject},
    core::NamespaceResourceScope,
    runtime::{
        WatchStreamExt,
        reflector::{self, Store},
        watcher,
    },
};
use messina_api::scylla::v1alpha1::ScyllaDBDatacenter;
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinSet};

use super::world::comparable;

/// The objects of a namespace, without the values that differ from one namespace to another.
pub(crate) type Snapshot = BTreeMap<String, Value>;

/// The objects of all namespaces, as they are now.
pub(crate) struct Snapshots {
    stores: Vec<(String, Store<DynamicObject>)>,
    /// Changes with every event of a watch.
    changes: watch::Receiver<u64>,
    _watches: JoinSet<()>,
}

impl Snapshots {
    /// Watches datacenters and all kinds that they own.
    pub(crate) async fn watch(client: &Client) -> Arc<Self> {
        let (sender, changes) = watch::channel(0);
        let mut snapshots = Self { stores: Vec::new(), changes, _watches: JoinSet::new() };
        macro_rules! add {
            ($($kind:ty),*) => { $(snapshots.add::<$kind>(client, &sender);)* };
        }
        add!(ScyllaDBDatacenter, ServiceAccount, RoleBinding, Secret, ConfigMap, Service, PodDisruptionBudget);
        add!(StatefulSet, Pod, Job, PersistentVolumeClaim);
        for (_, store) in &snapshots.stores {
            store.wait_until_ready().await.unwrap();
        }
        Arc::new(snapshots)
    }

    fn add<K>(&mut self, client: &Client, sender: &watch::Sender<u64>)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let resource = ApiResource::erase::<K>(&());
        let writer = reflector::store::Writer::new(resource.clone());
        self.stores.push((resource.kind.clone(), writer.as_reader()));
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let config = watcher::Config::default().streaming_lists();
        let objects = watcher(api, config).default_backoff().reflect(writer);
        let sender = sender.clone();
        self._watches.spawn(objects.for_each(move |_| {
            sender.send_modify(|number| *number += 1);
            std::future::ready(())
        }));
    }

    /// Restricts them to one namespace.
    pub(crate) fn of(self: &Arc<Self>, namespace: &str) -> Namespaced {
        Namespaced { all: Arc::clone(self), namespace: namespace.into(), known: Mutex::default() }
    }
}

/// The objects of one namespace.
pub(crate) struct Namespaced {
    all: Arc<Snapshots>,
    namespace: String,
    /// Values in earlier snapshots by kind and name, each with the versions that it was made from.
    known: Mutex<HashMap<(String, String), (Source, Value)>>,
}

/// Version of the object, and UID of the datacenter.
type Source = (Option<String>, String);

impl Namespaced {
    /// The objects of one kind.
    fn objects(&self, store: &Store<DynamicObject>) -> impl Iterator<Item = Arc<DynamicObject>> + use<'_> {
        store.state().into_iter().filter(|object| object.metadata.namespace.as_ref() == Some(&self.namespace))
    }

    /// The objects of the namespace as they are now.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::new();
        let mut known = self.known.lock().unwrap();
        let datacenter = self.objects(&self.all.stores[0].1).next();
        // It is part of field paths in managed fields.
        let uid = datacenter.and_then(|datacenter| datacenter.uid()).unwrap_or_else(|| "none".into());
        for (kind, store) in &self.all.stores {
            for object in self.objects(store) {
                let name = object.name_any();
                // These are in every namespace.
                if ["default", "kube-root-ca.crt"].contains(&name.as_str()) {
                    continue;
                }
                let source = (object.resource_version(), uid.clone());
                let key = (kind.clone(), name);
                let value = match known.get(&key) {
                    Some((made_from, value)) if *made_from == source => value.clone(),
                    _ => {
                        let text = serde_json::to_string(&*object).unwrap();
                        let text = text.replace(&self.namespace, "NAMESPACE").replace(&uid, "UID");
                        let value = comparable(kind, serde_json::from_str(&text).unwrap());
                        known.insert(key.clone(), (source, value.clone()));
                        value
                    }
                };
                snapshot.insert(format!("{} {}", key.0, key.1), value);
            }
        }
        snapshot
    }

    /// The status of pods, their owners, Services and claims, a line for each.
    pub(crate) fn states(&self) -> Vec<String> {
        let of_kind = |(kind, store): &(String, Store<DynamicObject>)| {
            let line = |object: Arc<DynamicObject>| {
                let (metadata, data) = (&object.metadata, &object.data);
                let state = json!([data["spec"]["replicas"], data["spec"]["updateStrategy"], data["status"]]);
                let marks = json!([metadata.deletion_timestamp, metadata.labels, metadata.annotations]);
                format!("{kind} {} at {:?}: {state} {marks}", object.name_any(), metadata.resource_version)
            };
            self.objects(store).map(line).collect::<Vec<_>>()
        };
        let kinds = ["Service", "StatefulSet", "Pod", "Job", "PersistentVolumeClaim"];
        self.all.stores.iter().filter(|(kind, _)| kinds.contains(&kind.as_str())).flat_map(of_kind).collect()
    }

    /// Notifies of changes from now on, in all namespaces.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.all.changes.clone()
    }
}
