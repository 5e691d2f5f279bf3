//! Everything that a datacenter owns is damaged, and repaired.

use std::time::Instant;

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    batch::v1::Job,
    core::v1::{Pod, Secret, Service},
};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PropagationPolicy},
};
use messina_api::names::{annotation, label};
use messina_e2e::datacenter::{LONG, TestDatacenter};
use messina_testbed::harness::{Seen, eventually, until};
use serde_json::{Value, json};

use super::{
    desired::Desired,
    phase::Phase,
    picture::{Owned, Picture, differences, kinds, owned, picture},
};

/// The token of the agents.
pub(super) const TOKEN: &str = "orders-auth-token";

/// Damages one object after another, and waits each time until all is as it was. Nodes and their disks stay.
pub(super) async fn is_repaired(datacenter: &TestDatacenter, desired: &Desired) {
    let kinds = kinds(datacenter).await;
    let phase = Phase::begin(datacenter, "damage");
    let (intact, nodes, token) = (picture(datacenter, &kinds).await, datacenter.nodes().await, token(datacenter).await);
    let mut count = 0;
    for one in owned(datacenter, &kinds).await {
        for (what, edit) in edits(&one) {
            count += 1;
            damage(datacenter, &one, Patch::Merge(&edit)).await;
            is_intact(datacenter, &kinds, &intact, &format!("{} after {what}", one.key())).await;
        }
        if is_held_by_pods(&one) {
            continue;
        }
        count += 1;
        let (before, member) = (one.object.uid(), one.object.name_any());
        delete(datacenter, &one).await;
        is_another(datacenter, &one, before).await;
        // A member's Service has another address by then, by which others find the node when it is started anew.
        if let Some((uid, _)) = nodes.pods.get(&member).filter(|_| one.resource.kind == "Service") {
            another_pod_is_ready(datacenter, &member, uid).await;
        }
        is_intact(datacenter, &kinds, &intact, &format!("{} after its deletion", one.key())).await;
    }
    datacenter.settled_and_cleaned_up(desired.nodes()).await;
    let now = datacenter.nodes().await;
    assert_eq!((&now.hosts, &now.claims), (&nodes.hosts, &nodes.claims), "no node or disk is another one");
    let nodes = now;
    count += a_job_is_made_anew(datacenter, &kinds, &intact).await;
    assert_eq!(datacenter.nodes().await, nodes, "no node, disk or pod is another one");
    assert_eq!(self::token(datacenter).await, token, "the agents know this one");
    count += places_come_back(datacenter, desired).await;
    datacenter.settled_and_cleaned_up(desired.nodes()).await;
    is_intact(datacenter, &kinds, &intact, "everything").await;
    let now = datacenter.nodes().await;
    assert_eq!((&now.hosts, &now.claims), (&nodes.hosts, &nodes.claims), "no node or disk is another one");
    count += what_pods_hold_becomes_another(datacenter, &kinds, desired).await;
    assert_ne!(self::token(datacenter).await, token);
    is_intact(datacenter, &kinds, &intact, "everything").await;
    println!("{count} damages of {} objects", intact.len());
    phase.end();
}

async fn is_intact(datacenter: &TestDatacenter, kinds: &[ApiResource], intact: &Picture, what: &str) {
    let began = Instant::now();
    eventually(&format!("{what} to be as it was"), LONG, async || {
        let differences = differences(intact, &picture(datacenter, kinds).await);
        Ok(if differences.is_empty() { Seen::Ready(()) } else { Seen::NotYet(differences.join("\n")) })
    })
    .await
    .unwrap();
    if began.elapsed().as_secs() > 3 {
        println!("{what}: {:.1} s", began.elapsed().as_secs_f64());
    }
}

fn api(datacenter: &TestDatacenter, one: &Owned) -> Api<DynamicObject> {
    Api::namespaced_with(datacenter.client.clone(), &datacenter.namespace, &one.resource)
}

async fn damage(datacenter: &TestDatacenter, one: &Owned, patch: Patch<&Value>) {
    api(datacenter, one).patch(&one.object.name_any(), &PatchParams::default(), &patch).await.unwrap();
}

async fn delete(datacenter: &TestDatacenter, one: &Owned) {
    // Pods that go with their StatefulSet would be deleted by the same person.
    let params = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    let params = if one.resource.kind == "StatefulSet" { params } else { DeleteParams::default() };
    api(datacenter, one).delete(&one.object.name_any(), &params).await.unwrap();
}

async fn is_another(datacenter: &TestDatacenter, one: &Owned, before: Option<String>) {
    let name = one.object.name_any();
    eventually(&format!("{} to be there again", one.key()), LONG, async || {
        let now = api(datacenter, one).get_opt(&name).await.unwrap().and_then(|object| object.uid());
        Ok(if now.is_some() && now != before { Seen::Ready(()) } else { Seen::NotYet(format!("{now:?}")) })
    })
    .await
    .unwrap();
}

/// What is damaged of an object.
fn edits(one: &Owned) -> Vec<(&'static str, Value)> {
    let metadata =
        |labels: Value, annotations: Value| json!({"metadata": {"labels": labels, "annotations": annotations}});
    let mut edits = vec![
        ("a changed label", metadata(json!({label::CLUSTER: "other"}), json!({}))),
        ("the loss of the label by which it is found", metadata(json!({label::MANAGED_BY: null}), json!({}))),
    ];
    let name = one.object.name_any();
    match one.resource.kind.as_str() {
        "ConfigMap" => {
            let key = one.object.data["data"].as_object().and_then(|data| data.keys().next().cloned()).unwrap();
            edits.push(("other data", json!({"data": {key.as_str(): "damage"}})));
            edits.push(("the loss of its data", json!({"data": null})));
        }
        // Who writes another token there wants that one.
        "Secret" if name != TOKEN => {
            let key = one.object.data["data"].as_object().and_then(|data| data.keys().next().cloned()).unwrap();
            edits.push(("other data", json!({"stringData": {key.as_str(): "damage"}})));
        }
        "PodDisruptionBudget" => edits.push(("a larger budget", json!({"spec": {"maxUnavailable": 3}}))),
        "RoleBinding" => edits.push(("the loss of its subjects", json!({"subjects": []}))),
        "Ingress" => edits.push((
            "the loss of its rules",
            json!({
                "spec": {"rules": [{"host": "other.example.com"}]},
            }),
        )),
        "StatefulSet" => edits.push((
            "another strategy",
            json!({
                "spec": {"updateStrategy": {"rollingUpdate": null, "type": "OnDelete"}},
            }),
        )),
        "Service" => {
            edits.push(("another selector", json!({"spec": {"selector": {"other": "pods"}}})));
            if one.object.annotations().contains_key(annotation::HOST_ID) {
                edits.extend(edits_of_member());
            }
        }
        _ => {}
    }
    edits
}

/// What decides over nodes is believed of the ring, and not of a Service.
fn edits_of_member() -> Vec<(&'static str, Value)> {
    const STRANGER: &str = "00000000-0000-4000-8000-000000000000";
    let label = |key: &str, value: &str| json!({"metadata": {"labels": {key: value}}});
    let note = |key: &str, value: Option<&str>| json!({"metadata": {"annotations": {key: value}}});
    vec![
        ("the word that its node has left", label(label::DECOMMISSIONED, "true")),
        ("a word that its node is to leave", label(label::DECOMMISSIONED, "false")),
        ("the host ID of a stranger", note(annotation::HOST_ID, Some(STRANGER))),
        ("the loss of its host ID", note(annotation::HOST_ID, None)),
        ("the departure of a stranger", note(annotation::LEAVING_HOST_ID, Some(STRANGER))),
        ("the replacement of a stranger", label(label::REPLACING_NODE_HOST_ID, STRANGER)),
        ("the word that its node has not joined", note(annotation::NODE_JOINED, Some("false"))),
        ("another ring", note(annotation::CURRENT_TOKEN_RING_HASH, Some("other"))),
    ]
}

/// What pods have got from an object, and go on using when there is another one: the token of the agents, and the identity of
/// sidecars, whose tokens are no longer good when the ServiceAccount is gone.
fn is_held_by_pods(one: &Owned) -> bool {
    one.resource.kind == "ServiceAccount" || one.object.name_any() == TOKEN
}

async fn token(datacenter: &TestDatacenter) -> Option<Value> {
    let secret = datacenter.api::<Secret>().get_opt(TOKEN).await.unwrap();
    secret.map(|secret| json!(secret.data))
}

/// Nobody else has the token of the agents, or makes an identity the same again: others take their place, and pods learn of
/// them when they are started anew. Sidecars cannot say how they see the ring before, so somebody restarts them one by one.
async fn what_pods_hold_becomes_another(
    datacenter: &TestDatacenter,
    kinds: &[ApiResource],
    desired: &Desired,
) -> usize {
    let mut held = owned(datacenter, kinds).await;
    held.retain(is_held_by_pods);
    for one in &held {
        delete(datacenter, one).await;
        is_another(datacenter, one, one.object.uid()).await;
    }
    for (member, (uid, _)) in datacenter.nodes().await.pods {
        datacenter.api::<Pod>().delete(&member, &DeleteParams::default()).await.unwrap();
        another_pod_is_ready(datacenter, &member, &uid).await;
    }
    datacenter.settled_and_cleaned_up(desired.nodes()).await;
    held.len()
}

async fn another_pod_is_ready(datacenter: &TestDatacenter, member: &str, before: &str) {
    until(datacenter.api::<Pod>(), member, "another pod", LONG, |seen| {
        let now = seen.as_ref().and_then(|pod| pod.uid());
        let conditions = seen.and_then(|pod| pod.status?.conditions).unwrap_or_default();
        let is_ready = conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
        let is_another = now.as_ref().is_some_and(|now| now != before);
        if is_another && is_ready { Seen::Ready(()) } else { Seen::NotYet(format!("{now:?} {conditions:?}")) }
    })
    .await
    .unwrap();
}

/// A node that was cleaned up for another ring is cleaned up again, also when the Job that does it is deleted.
async fn a_job_is_made_anew(datacenter: &TestDatacenter, kinds: &[ApiResource], intact: &Picture) -> usize {
    const MEMBER: &str = "orders-dc-a-0";
    let other = json!({"metadata": {"annotations": {annotation::LAST_CLEANED_UP_TOKEN_RING_HASH: "other"}}});
    datacenter.patch::<Service>(MEMBER, other).await;
    let (jobs, name) = (datacenter.api::<Job>(), format!("cleanup-{MEMBER}"));
    let uid = until(jobs.clone(), &name, "a Job", LONG, |seen| match seen.and_then(|job| job.uid()) {
        Some(uid) => Seen::Ready(uid),
        None => Seen::NotYet("there is none".into()),
    })
    .await
    .unwrap();
    jobs.delete(&name, &DeleteParams::background()).await.unwrap();
    is_intact(datacenter, kinds, intact, &format!("Job {uid} after its deletion")).await;
    2
}

/// Of what a person takes away from a StatefulSet, places come back, and pods with them; and a template that was changed is
/// changed back, which restarts its nodes: that is the need for which pods may be others.
async fn places_come_back(datacenter: &TestDatacenter, desired: &Desired) -> usize {
    let (uid, _) = datacenter.nodes().await.pods["orders-dc-b-0"].clone();
    datacenter.patch::<StatefulSet>("orders-dc-b", json!({"spec": {"replicas": 0}})).await;
    another_pod_is_ready(datacenter, "orders-dc-b-0", &uid).await;
    datacenter.settled_and_cleaned_up(desired.nodes()).await;
    let edit =
        json!({"spec": {"template": {"metadata": {"labels": {label::CLUSTER: "orders", label::SCYLLA_VERSION: "0"}}}}});
    datacenter.patch::<StatefulSet>("orders-dc-c", edit).await;
    until(datacenter.api::<StatefulSet>(), "orders-dc-c", "its template", LONG, |seen| {
        let template = seen.and_then(|set| set.spec).and_then(|spec| spec.template.metadata);
        let version = template.and_then(|metadata| metadata.labels?.get(label::SCYLLA_VERSION).cloned());
        if version.as_deref() == Some("0") { Seen::NotYet(format!("{version:?}")) } else { Seen::Ready(()) }
    })
    .await
    .unwrap();
    2
}
