//! Snapshots of all objects that a datacenter owns, without the values that differ from one deployment to another.

use std::collections::{BTreeMap, BTreeSet};

use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
    discovery::{ApiCapabilities, Discovery, Scope, verbs},
};
use messina_api::{names::annotation, scylla::v1alpha1::ScyllaDBDatacenter};
use messina_e2e::datacenter::{LONG, NAME, TestDatacenter};
use messina_testbed::harness::{Seen, eventually};
use serde_json::{Value, json};

/// Objects by kind and name.
pub(super) type Snapshot = BTreeMap<String, Value>;

/// An object that the datacenter owns.
#[derive(Clone, Debug)]
pub(super) struct Owned {
    pub(super) resource: ApiResource,
    pub(super) object: DynamicObject,
}

impl Owned {
    pub(super) fn key(&self) -> String {
        format!("{}/{}", self.resource.kind, self.object.name_any())
    }
}

/// The kinds of objects that the datacenter owns, at least at times.
pub(super) async fn kinds(datacenter: &TestDatacenter) -> Vec<ApiResource> {
    let found = eventually("the discovery of the API server", LONG, async || {
        // A definition that was just installed may be announced before it is served.
        Ok(match Discovery::new(datacenter.client.clone()).run().await {
            Ok(found) => Seen::Ready(found),
            Err(error) => Seen::NotYet(error.to_string()),
        })
    })
    .await
    .unwrap();
    let all = found.groups().flat_map(|group| group.recommended_resources());
    let is_listed = |kind: &ApiCapabilities| {
        kind.scope == Scope::Namespaced
            && kind.supports_operation(verbs::LIST)
            && kind.supports_operation(verbs::DELETE)
    };
    // Events are not owned.
    let listed =
        all.filter(|(resource, kind)| is_listed(kind) && resource.kind != "Event").map(|(resource, _)| resource);
    let listed: Vec<ApiResource> = listed.collect();
    let used: BTreeSet<String> = owned(datacenter, &listed).await.into_iter().map(|one| one.resource.kind).collect();
    listed.into_iter().filter(|resource| resource.kind == "Job" || used.contains(&resource.kind)).collect()
}

/// The objects that the datacenter owns now.
pub(super) async fn owned(datacenter: &TestDatacenter, kinds: &[ApiResource]) -> Vec<Owned> {
    let uid = datacenter.api::<ScyllaDBDatacenter>().get(NAME).await.unwrap().uid().unwrap();
    let mut found = Vec::new();
    for resource in kinds {
        let api: Api<DynamicObject> = Api::namespaced_with(datacenter.client.clone(), &datacenter.namespace, resource);
        let objects = api.list(&ListParams::default()).await.unwrap();
        let is_its = |object: &DynamicObject| object.owner_references().iter().any(|owner| owner.uid == uid);
        let its = objects.items.into_iter().filter(is_its);
        found.extend(its.map(|object| Owned { resource: resource.clone(), object }));
    }
    found
}

/// A snapshot of the objects that the datacenter owns now.
pub(super) async fn snapshot(datacenter: &TestDatacenter, kinds: &[ApiResource]) -> Snapshot {
    let owned = owned(datacenter, kinds).await;
    let hosts: BTreeMap<String, String> = owned
        .iter()
        .filter_map(|one| Some((one.object.annotations().get(annotation::HOST_ID)?.clone(), one.object.name_any())))
        .collect();
    owned.iter().map(|one| (one.key(), plain(datacenter, &hosts, one))).collect()
}

/// An object without the values of one deployment: addresses, keys, times, versions; host IDs become names of nodes.
fn plain(datacenter: &TestDatacenter, hosts: &BTreeMap<String, String>, one: &Owned) -> Value {
    let (kind, name, mut value) = (&one.resource.kind, one.object.name_any(), json!(one.object));
    let labels = &value["metadata"]["labels"];
    let kept = json!({"labels": labels, "annotations": value["metadata"]["annotations"]});
    value["metadata"] = kept;
    value["status"].take();
    if let Some(annotations) = value["metadata"]["annotations"].as_object_mut() {
        annotations.retain(|key, _| !key.starts_with("certificates.internal") && *key != annotation::APPLIED_HASH);
        let ring = annotations.remove(annotation::CURRENT_TOKEN_RING_HASH);
        let cleaned_up = annotations.remove(annotation::LAST_CLEANED_UP_TOKEN_RING_HASH);
        // Token rings differ, but each node has to be cleaned up for its own.
        annotations.insert("is cleaned up".into(), (ring == cleaned_up).into());
    }
    // It depends on the token of the agents, among others.
    let template = value.pointer_mut("/spec/template/metadata/annotations").and_then(Value::as_object_mut);
    template.map(|annotations| annotations.remove(annotation::INPUTS_HASH));
    let is_authority = kind == "ConfigMap" && name.ends_with("-ca");
    if let Some(data) = value["data"].as_object_mut().filter(|_| is_authority || kind == "Secret") {
        data.values_mut().for_each(|value| *value = "a secret".into());
    }
    for address in ["clusterIP", "clusterIPs"] {
        if let Some(spec) = value["spec"].as_object_mut().filter(|spec| spec.get(address) != Some(&"None".into())) {
            spec.remove(address);
        }
    }
    if let Some(claims) = value["spec"]["volumeClaimTemplates"].as_array_mut() {
        // They are used when a claim is created, and are immutable.
        claims.iter_mut().for_each(|claim| claim["metadata"] = json!({"name": claim["metadata"]["name"]}));
    }
    let text = value.to_string().replace(&format!("\"{}\"", datacenter.namespace), "\"NAMESPACE\"");
    let text = text.replace(&format!(".{}.svc", datacenter.namespace), ".NAMESPACE.svc");
    let text = hosts.iter().fold(text, |text, (host, member)| text.replace(host, &format!("host of {member}")));
    serde_json::from_str(&text).unwrap()
}

/// The differences, a line for each.
pub(super) fn differences(expected: &Snapshot, found: &Snapshot) -> Vec<String> {
    let mut differences = Vec::new();
    for (key, value) in expected {
        match found.get(key) {
            None => differences.push(format!("{key} is missing")),
            Some(other) => differ(key, value, other, &mut differences),
        }
    }
    differences
        .extend(found.keys().filter(|key| !expected.contains_key(*key)).map(|key| format!("{key} should not exist")));
    differences
}

fn differ(place: &str, expected: &Value, found: &Value, differences: &mut Vec<String>) {
    match (expected, found) {
        (Value::Object(one), Value::Object(other)) => {
            let keys: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            for key in keys {
                differ(&format!("{place}.{key}"), &expected[key], &found[key], differences);
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                differ(&format!("{place}[{index}]"), one, other, differences);
            }
        }
        _ if expected == found => {}
        _ => differences.push(format!("{place}: expected {expected}, found {found}")),
    }
}
