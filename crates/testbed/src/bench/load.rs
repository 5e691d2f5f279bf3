//! Creates datacenters, and the same objects without the operator.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use k8s_openapi::api::apps::v1::StatefulSet;
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use messina_api::scylla::v1alpha1::ScyllaDBDatacenter;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{TIMEOUT, WORKERS};
use crate::{
    error::{Doing, Result, malformed},
    harness::{self, Seen},
};

/// The number of datacenters in a namespace.
const EACH: usize = 10;

/// Creates namespaces for `count` datacenters.
pub(super) async fn namespaces(client: &Client, prefix: &str, count: usize) -> Result<Vec<String>> {
    let names: Vec<String> = (0..count.div_ceil(EACH)).map(|number| format!("{prefix}-{number}")).collect();
    for name in &names {
        let namespace = format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}}}}}");
        harness::apply(client, &namespace, None).await?;
    }
    Ok(names)
}

fn datacenter(namespace: &str, number: usize) -> Result<DynamicObject> {
    let object = json!({
        "apiVersion": "scylla.scylladb.com/v1alpha1", "kind": "ScyllaDBDatacenter",
        "metadata": {"name": format!("dc-{number}"), "namespace": namespace},
        "spec": {
            "clusterName": format!("dc-{number}"), "datacenterName": "dc",
            "scyllaDB": {"image": "docker.io/scylladb/scylla:2026.2.4"},
            "scyllaDBManagerAgent": {"image": "docker.io/scylladb/scylla-manager-agent:3.12.0"},
            "racks": [{"name": "a", "nodes": 1, "scyllaDB": {"storage": {"capacity": "1Gi"}}}],
            "minReadySeconds": 0,
        },
    });
    serde_json::from_value(object).map_err(malformed("creating a datacenter"))
}

/// Creates lists of objects, each list in order, and as many lists at once as the operator has workers.
async fn create_all(client: &Client, lists: Vec<Vec<(ApiResource, DynamicObject)>>) -> Result<()> {
    let (lists, next) = (Arc::new(lists), Arc::new(AtomicUsize::new(0)));
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let (client, lists, next) = (client.clone(), Arc::clone(&lists), Arc::clone(&next));
        workers.spawn(async move {
            while let Some(list) = lists.get(next.fetch_add(1, Ordering::SeqCst)) {
                for (resource, object) in list {
                    let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
                    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, resource);
                    api.create(&PostParams::default(), object)
                        .await
                        .doing(|| format!("creating a {}", resource.kind))?;
                }
            }
            Ok(())
        });
    }
    workers.join_all().await.into_iter().collect()
}

fn resource(version: &str, kind: &str) -> ApiResource {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let kind = GroupVersionKind::gvk(group, version, kind);
    ApiResource::from_gvk(&kind)
}

fn datacenters() -> ApiResource {
    ApiResource::erase::<ScyllaDBDatacenter>(&())
}

pub(super) async fn create_datacenters(client: &Client, namespaces: &[String]) -> Result<()> {
    let mut lists = Vec::new();
    for namespace in namespaces {
        for number in 0..EACH {
            lists.push(vec![(datacenters(), datacenter(namespace, number)?)]);
        }
    }
    create_all(client, lists).await
}

/// Waits until all datacenters are available and their racks are rolled out. There are no sidecars, so cleanups wait
/// for the state of the ring all the time.
pub(super) async fn datacenters_are_ready(client: &Client, count: usize) -> Result<()> {
    let api: Api<ScyllaDBDatacenter> = Api::all(client.clone());
    harness::eventually("all datacenters to be ready", TIMEOUT, || async {
        let all = api.list(&ListParams::default()).await.doing(|| "listing datacenters".into())?;
        let is_ready = |one: &&ScyllaDBDatacenter| {
            holds(one, "Available", "True") && holds(one, "StatefulSetControllerProgressing", "False")
        };
        let ready = all.iter().filter(is_ready).count();
        if ready >= count {
            return Ok(Seen::Ready(()));
        }
        // Each list loads the API server, too.
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        Ok(Seen::NotYet(format!("{ready} of {count} are ready")))
    })
    .await
}

fn holds(datacenter: &ScyllaDBDatacenter, name: &str, wanted: &str) -> bool {
    let conditions = datacenter.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == name && condition.status == wanted)
}

/// The result of the loader.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bare {
    pub(super) objects: usize,
    pub(super) seconds: f64,
}

/// The kinds of a datacenter's objects, in the order in which the operator creates them.
const KINDS: [(&str, &str); 7] = [
    ("v1", "ServiceAccount"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ("v1", "Secret"),
    ("v1", "ConfigMap"),
    ("v1", "Service"),
    ("policy/v1", "PodDisruptionBudget"),
    ("apps/v1", "StatefulSet"),
];

/// Creates the operator's objects again in other namespaces: the datacenters first, then the objects of each.
pub(super) async fn by_hand(client: &Client, from: &[String], count: usize) -> Result<Bare> {
    let to = namespaces(client, "by-hand", count).await?;
    let mut lists = BTreeMap::<(String, String), Vec<(ApiResource, DynamicObject)>>::new();
    for (version, kind) in KINDS {
        let resource = resource(version, kind);
        for (from, to) in from.iter().zip(&to) {
            let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), from, &resource);
            for object in api.list(&ListParams::default()).await.doing(|| format!("listing {kind}"))? {
                let owners = object.metadata.owner_references.clone().unwrap_or_default();
                let Some(owner) = owners.into_iter().find(|owner| owner.kind == "ScyllaDBDatacenter") else { continue };
                let list = lists.entry((to.clone(), owner.name)).or_default();
                list.push((resource.clone(), copied(object, version, kind, from, to)?));
            }
        }
    }
    let lists: Vec<_> = lists.into_values().collect();
    let objects = lists.iter().map(Vec::len).sum();
    let began = Instant::now();
    create_all(client, lists).await?;
    let seconds = began.elapsed().as_secs_f64();
    // They have the operator's labels, so the operator would cache them.
    for namespace in &to {
        harness::remove_namespace(client, namespace).await?;
    }
    namespaces_are_gone(client, &to).await?;
    Ok(Bare { objects, seconds })
}

async fn namespaces_are_gone(client: &Client, names: &[String]) -> Result<()> {
    let api: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    harness::eventually("namespaces to be deleted", TIMEOUT, || async {
        let left = api.list(&ListParams::default()).await.doing(|| "listing namespaces".into())?;
        let left = left.iter().filter_map(|one| one.metadata.name.as_ref()).filter(|name| names.contains(name)).count();
        if left == 0 {
            return Ok(Seen::Ready(()));
        }
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        Ok(Seen::NotYet(format!("{left} are left")))
    })
    .await
}

/// The object as it was created, in another namespace.
fn copied(object: DynamicObject, version: &str, kind: &str, from: &str, to: &str) -> Result<DynamicObject> {
    let mut value = serde_json::to_value(object).map_err(malformed("copying an object"))?;
    value["apiVersion"] = version.into();
    value["kind"] = kind.into();
    let metadata = &value["metadata"];
    value["metadata"] = json!({
        "name": metadata["name"], "namespace": to, "labels": metadata["labels"], "annotations": metadata["annotations"],
    });
    if let Some(members) = value.as_object_mut() {
        members.remove("status");
    }
    if let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut) {
        spec.retain(|name, _| !["clusterIP", "clusterIPs"].contains(&name.as_str()));
    }
    let text = value.to_string().replace(&format!("{from}\""), &format!("{to}\""));
    serde_json::from_str(&text).map_err(malformed("copying an object"))
}

/// Lets each remaining datacenter refer to two ConfigMaps and a Secret of its own, and waits until the racks use them.
pub(super) async fn name_settings(client: &Client, namespaces: &[String]) -> Result<()> {
    let (config_maps, secrets) = (resource("v1", "ConfigMap"), resource("v1", "Secret"));
    let object = |value: Value| serde_json::from_value(value).map_err(malformed("creating settings"));
    let left = || namespaces.iter().flat_map(|namespace| (0..EACH).step_by(2).map(move |number| (namespace, number)));
    let mut lists = Vec::new();
    for (namespace, number) in left() {
        let config_map = |rack: &str| {
            object(json!({
                "metadata": {"name": format!("dc-{number}-{rack}"), "namespace": namespace},
                "data": {"scylla.yaml": "compaction_static_shares: 100\n"},
            }))
        };
        let secret = object(json!({
            "metadata": {"name": format!("dc-{number}-agent"), "namespace": namespace},
            "stringData": {"scylla-manager-agent.yaml": "logger: {level: info}\n"},
        }))?;
        let maps = [config_map("a")?, config_map("b")?].map(|map| (config_maps.clone(), map));
        lists.push(maps.into_iter().chain([(secrets.clone(), secret)]).collect());
    }
    create_all(client, lists).await?;
    for (namespace, number) in left() {
        let api: Api<ScyllaDBDatacenter> = Api::namespaced(client.clone(), namespace);
        let rack = |name: &str, nodes: i32| {
            json!({
                "name": name, "nodes": nodes,
                "scyllaDB": {"storage": {"capacity": "1Gi"}, "customConfigMapRef": format!("dc-{number}-{name}")},
                "scyllaDBManagerAgent": {"customConfigSecretRef": format!("dc-{number}-agent")},
            })
        };
        let patch = Patch::Merge(json!({"spec": {"racks": [rack("a", 1), rack("b", 0)]}}));
        let name = format!("dc-{number}");
        api.patch(&name, &PatchParams::default(), &patch).await.doing(|| format!("changing {name}"))?;
    }
    let api: Api<StatefulSet> = Api::all(client.clone());
    let count = 2 * left().count();
    harness::eventually("all racks to have the settings", TIMEOUT, || async {
        let all = api.list(&ListParams::default()).await.doing(|| "listing StatefulSets".into())?;
        let takes = |one: &&StatefulSet| json!(one.spec).to_string().contains("-agent\"") && is_rolled_out(one);
        let done = all.iter().filter(takes).count();
        if done >= count {
            return Ok(Seen::Ready(()));
        }
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        Ok(Seen::NotYet(format!("{done} of {count} have them")))
    })
    .await
}

fn is_rolled_out(stateful_set: &StatefulSet) -> bool {
    let wanted = stateful_set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let status = stateful_set.status.as_ref();
    status.is_some_and(|status| {
        status.observed_generation == stateful_set.metadata.generation
            && status.updated_replicas.unwrap_or(0) == wanted
            && status.ready_replicas.unwrap_or(0) == wanted
    })
}

/// Deletes every other datacenter, and waits until these and their objects are gone.
pub(super) async fn delete_half(client: &Client, namespaces: &[String], count: usize) -> Result<()> {
    for namespace in namespaces {
        let api: Api<ScyllaDBDatacenter> = Api::namespaced(client.clone(), namespace);
        for number in (1..EACH).step_by(2) {
            let name = format!("dc-{number}");
            api.delete(&name, &DeleteParams::foreground()).await.doing(|| format!("deleting {name}"))?;
        }
    }
    let api: Api<ScyllaDBDatacenter> = Api::all(client.clone());
    harness::eventually("half of the datacenters to be deleted", TIMEOUT, || async {
        let left = api.list(&ListParams::default()).await.doing(|| "listing datacenters".into())?.items.len();
        if left <= count.div_ceil(2) {
            return Ok(Seen::Ready(()));
        }
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        Ok(Seen::NotYet(format!("{left} are left")))
    })
    .await
}
