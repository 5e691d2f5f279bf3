//! Takeover of a datacenter with running nodes, which serve meanwhile.
//!
//! The image of scylla-operator is not available, so its containers cannot run. The nodes run with Messina's sidecars;
//! the test adds the other parts of scylla-operator (an init container and a preStop hook), and sets its field
//! managers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures::TryStreamExt;
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, StatefulSet},
        core::v1::Pod,
    },
    apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry,
};
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, ListParams, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
    runtime::watcher::{self, Event},
};
use messina_api::names::{annotation, label};
use messina_e2e::datacenter::{LONG, NODE_PODS, TestDatacenter, manifest};
use messina_testbed::{
    deploy,
    harness::{Seen, eventually, until},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::golden::{MANAGED_HASH, OPERATOR, forget_age, records_of_operator};
use crate::testbed::skip_if_unsuitable;

const KINDS: [(&str, &str, &str); 7] = [
    ("apps", "v1", "StatefulSet"),
    ("", "v1", "Service"),
    ("", "v1", "ConfigMap"),
    ("", "v1", "Secret"),
    ("", "v1", "ServiceAccount"),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding"),
    ("policy", "v1", "PodDisruptionBudget"),
];
const BARRIER: &str = "scylladb-bootstrap-barrier";

/// The objects of the datacenter, with the API of their kind.
async fn owned(datacenter: &TestDatacenter) -> Vec<(Api<DynamicObject>, DynamicObject)> {
    let mut owned = Vec::new();
    for (group, version, kind) in KINDS {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::namespaced_with(datacenter.client.clone(), &datacenter.namespace, &resource);
        let all = api.list(&ListParams::default().labels(label::CLUSTER)).await.unwrap();
        let is_owned =
            |one: &DynamicObject| one.owner_references().iter().any(|owner| owner.kind == "ScyllaDBDatacenter");
        owned.extend(all.into_iter().filter(is_owned).map(|object| (api.clone(), object)));
    }
    owned
}

async fn uids(datacenter: &TestDatacenter) -> BTreeMap<(String, String), String> {
    let owned = owned(datacenter).await.into_iter();
    owned.map(|(api, one)| ((api.resource_url().to_owned(), one.name_any()), one.uid().unwrap())).collect()
}

/// Scales the operator's Deployment, and waits for it.
async fn scale_operator(datacenter: &TestDatacenter, copies: i32) {
    let deployments = datacenter.operator_api::<Deployment>();
    let patch = Patch::Merge(json!({"spec": {"replicas": copies}}));
    deployments.patch("messina", &PatchParams::default(), &patch).await.unwrap();
    let pods = datacenter.operator_api::<Pod>();
    let scaled = eventually("the operator to be scaled", LONG, async || {
        let there = pods.list(&ListParams::default()).await.unwrap().items.len();
        Ok(if there == usize::try_from(copies).unwrap() { Seen::Ready(()) } else { Seen::NotYet(format!("{there}")) })
    });
    scaled.await.unwrap();
}

/// Makes scylla-operator the field manager of an object, as of an hour ago.
async fn give_to_scylla_operator(api: &Api<DynamicObject>, name: &str) {
    let params = PatchParams { field_manager: Some(OPERATOR.into()), ..PatchParams::default() };
    let given = eventually("the object to be given away", LONG, async || {
        let patch: Patch<()> = Patch::Json(serde_json::from_value(giving(api, &api.get(name).await.unwrap())).unwrap());
        let patched = api.patch(name, &params, &patch).await;
        // Sidecars and Kubernetes may write meanwhile.
        Ok(patched.map_or_else(|error| Seen::NotYet(error.to_string()), Seen::Ready))
    });
    let given = serde_json::to_value(given.await.unwrap()).unwrap();
    assert_eq!(records_of_operator(&given).len(), 1, "{given}");
    forget_age(api, name).await;
}

/// The patch of this version of an object that makes scylla-operator its field manager.
fn giving(api: &Api<DynamicObject>, object: &DynamicObject) -> Value {
    let place = |index: usize, field: &str| format!("/metadata/managedFields/{index}/{field}");
    let records = object.metadata.managed_fields.iter().flatten().enumerate();
    let is_ours =
        |record: &ManagedFieldsEntry| record.manager.as_deref() == Some("messina") && record.subresource.is_none();
    let mut patch =
        vec![json!({"op": "test", "path": "/metadata/resourceVersion", "value": object.resource_version()})];
    patch.extend(records.filter(|(_, record)| is_ours(record)).flat_map(|(index, _)| {
        [
            json!({"op": "replace", "path": place(index, "manager"), "value": OPERATOR}),
            json!({"op": "replace", "path": place(index, "operation"), "value": "Update"}),
        ]
    }));
    let escaped = |key: &str| format!("/metadata/annotations/{}", key.replace('/', "~1"));
    patch.push(json!({"op": "remove", "path": escaped(annotation::APPLIED_HASH)}));
    patch.push(json!({"op": "add", "path": escaped(MANAGED_HASH), "value": "the-hash-of-scylla-operator"}));
    if api.resource_url().ends_with("statefulsets") {
        let barrier = json!({
            "name": BARRIER, "image": deploy::SCYLLA_IMAGE, "command": ["/mnt/shared/messina", "--version"],
            "volumeMounts": [{"name": "shared", "mountPath": "/mnt/shared"}],
        });
        let hook = json!({"preStop": {"exec": {"command": ["/mnt/shared/messina", "--version"]}}});
        patch.push(json!({"op": "add", "path": "/spec/template/spec/initContainers/-", "value": barrier}));
        patch.push(json!({"op": "add", "path": "/spec/template/spec/containers/0/lifecycle", "value": hook}));
    }
    json!(patch)
}

/// Waits until a StatefulSet is rolled out.
async fn rolled_out(datacenter: &TestDatacenter, name: &str) {
    let seen = |seen: Option<StatefulSet>| {
        let Some(one) = seen else { return Seen::NotYet("it is not there".into()) };
        let (replicas, status) = (one.spec.unwrap().replicas.unwrap(), one.status.unwrap());
        let is_seen = status.observed_generation == one.metadata.generation;
        let is_done = status.ready_replicas == Some(replicas) && status.current_revision == status.update_revision;
        if is_seen && is_done { Seen::Ready(()) } else { Seen::NotYet(format!("{status:?}")) }
    };
    until(datacenter.api::<StatefulSet>(), name, "the StatefulSet to be rolled out", LONG, seen).await.unwrap();
}

/// The readiness of pods over time.
#[derive(Clone, Debug, Default)]
struct Downtime {
    uids: BTreeMap<String, BTreeSet<String>>,
    down: BTreeSet<String>,
    /// Since when more than one pod is down.
    since: Option<Instant>,
    longest: Duration,
    most: usize,
}

impl Downtime {
    fn see(&mut self, pod: &Pod, is_gone: bool) {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let is_ready = conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
        let name = pod.name_any();
        self.uids.entry(name.clone()).or_default().insert(pod.uid().unwrap());
        if is_gone || !is_ready || pod.metadata.deletion_timestamp.is_some() {
            self.down.insert(name);
        } else {
            self.down.remove(&name);
        }
        self.most = self.most.max(self.down.len());
        match (self.since, self.down.len() > 1) {
            (None, true) => self.since = Some(Instant::now()),
            (Some(since), false) => {
                self.longest = self.longest.max(since.elapsed());
                self.since = None;
            }
            _ => {}
        }
    }
}

fn watch_downtime(pods: Api<Pod>) -> (Arc<Mutex<Downtime>>, JoinHandle<()>) {
    let downtime = Arc::<Mutex<Downtime>>::default();
    let seen = Arc::clone(&downtime);
    let task = tokio::spawn(async move {
        let mut events = Box::pin(watcher::watcher(pods, watcher::Config::default().labels(NODE_PODS)));
        loop {
            match events.try_next().await {
                Ok(Some(Event::Apply(pod) | Event::InitApply(pod))) => seen.lock().unwrap().see(&pod, false),
                Ok(Some(Event::Delete(pod))) => seen.lock().unwrap().see(&pod, true),
                Ok(Some(_)) | Err(_) => {}
                Ok(None) => return,
            }
        }
    });
    (downtime, task)
}

#[tokio::test]
async fn running_nodes_restart_once_and_one_at_a_time() {
    skip_if_unsuitable!();
    let datacenter = TestDatacenter::create("takeover-nodes", &[]).await;
    datacenter.apply(&manifest(&[("a", 2), ("b", 1)])).await;
    datacenter.settled_and_cleaned_up(3).await;
    scale_operator(&datacenter, 0).await;
    for (api, object) in owned(&datacenter).await {
        give_to_scylla_operator(&api, &object.name_any()).await;
    }
    for name in ["orders-dc-a", "orders-dc-b"] {
        rolled_out(&datacenter, name).await;
    }
    let (nodes, before) = (datacenter.nodes().await, uids(&datacenter).await);
    let (downtime, watch) = watch_downtime(datacenter.api());

    scale_operator(&datacenter, 2).await;
    let restarted = eventually("all nodes to restart", LONG, async || {
        let now = datacenter.nodes().await;
        let is_new = |(name, (uid, _)): (&String, &(String, i32))| nodes.pods[name].0 != *uid;
        let restarted = now.pods.iter().filter(|one| is_new(*one)).count();
        Ok(if restarted == 3 { Seen::Ready(()) } else { Seen::NotYet(format!("{restarted}")) })
    });
    restarted.await.unwrap();
    datacenter.settled(3).await;
    let after = datacenter.nodes().await;
    assert_eq!((after.hosts, after.claims), (nodes.hosts, nodes.claims), "nodes and disks are the same");
    let now = uids(&datacenter).await;
    let recreated: Vec<_> = before.iter().filter(|(key, uid)| now.get(*key) != Some(*uid)).collect();
    assert!(recreated.is_empty(), "recreated: {recreated:?}");
    for (api, object) in owned(&datacenter).await {
        let value = serde_json::to_value(&object).unwrap();
        assert_eq!(records_of_operator(&value), [&json!(null); 0], "{} {}", api.resource_url(), object.name_any());
        assert_eq!(object.annotations().get(MANAGED_HASH), None, "{} {}", api.resource_url(), object.name_any());
        if api.resource_url().ends_with("statefulsets") {
            let template = &value["spec"]["template"]["spec"];
            assert!(!template.to_string().contains(BARRIER) && !template.to_string().contains("preStop"), "{template}");
        }
    }
    watch.abort();
    let downtime = downtime.lock().unwrap().clone();
    println!(
        "restarts per pod: {:?}; objects recreated: {} of {}; longest time with more than one node down: {:?}",
        downtime.uids.iter().map(|(name, uids)| (name, uids.len() - 1)).collect::<Vec<_>>(),
        recreated.len(),
        before.len(),
        downtime.longest,
    );
    assert!(downtime.uids.values().all(|uids| uids.len() == 2), "{downtime:?}");
    assert_eq!((downtime.most, downtime.longest), (1, Duration::ZERO), "{downtime:?}");
    datacenter.remove().await;
}
