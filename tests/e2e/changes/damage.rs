//! Damages every object of a datacenter, and checks that the operator repairs it.

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
    snapshot::{Owned, Snapshot, differences, kinds, owned, snapshot},
};

/// The Secret with the token of the agents.
pub(super) const TOKEN: &str = "orders-auth-token";

/// Damages one object after another, and waits each time until it is repaired. Nodes and their disks are kept.
pub(super) async fn damage_and_repair(datacenter: &TestDatacenter, desired: &Desired) {
    let kinds = kinds(datacenter).await;
    let phase = Phase::begin(datacenter, "damage");
    let (intact, nodes, token) =
        (snapshot(datacenter, &kinds).await, datacenter.nodes().await, token(datacenter).await);
    let mut count = 0;
    for one in owned(datacenter, &kinds).await {
        for (what, edit) in edits(&one) {
            count += 1;
            damage(datacenter, &one, Patch::Merge(&edit)).await;
            await_intact(datacenter, &kinds, &intact, &format!("{} after {what}", one.key())).await;
        }
        if is_used_by_pods(&one) {
            continue;
        }
        count += 1;
        let (before, member) = (one.object.uid(), one.object.name_any());
        delete(datacenter, &one).await;
        await_recreated(datacenter, &one, before).await;
        // A member's Service has another address then, so the operator restarts the node.
        if let Some((uid, _)) = nodes.pods.get(&member).filter(|_| one.resource.kind == "Service") {
            await_new_pod(datacenter, &member, uid).await;
        }
        await_intact(datacenter, &kinds, &intact, &format!("{} after its deletion", one.key())).await;
    }
    datacenter.settled_and_cleaned_up(desired.nodes()).await;
    let now = datacenter.nodes().await;
    assert_eq!((&now.hosts, &now.claims), (&nodes.hosts, &nodes.claims), "nodes and claims are the same");
    let nodes = now;
    count += recreate_cleanup_job(datacenter, &kinds, &intact).await;
    assert_eq!(datacenter.nodes().await, nodes, "nodes, claims and pods are the same");
    assert_eq!(self::token(datacenter).await, token, "the token is the same");
    count += revert_stateful_sets(datacenter, desired).await;
    datacenter.settled_and_cleaned_up(desired.nodes()).await;
    await_intact(datacenter, &kinds, &intact, "everything").await;
    let now = datacenter.nodes().await;
    assert_eq!((&now.hosts, &now.claims), (&nodes.hosts, &nodes.claims), "nodes and claims are the same");
    count += recreate_what_pods_use(datacenter, &kinds, desired).await;
    assert_ne!(self::token(datacenter).await, token);
    await_intact(datacenter, &kinds, &intact, "everything").await;
    println!("{count} damages of {} objects", intact.len());
    phase.end();
}

async fn await_intact(datacenter: &TestDatacenter, kinds: &[ApiResource], intact: &Snapshot, what: &str) {
    let began = Instant::now();
    eventually(&format!("{what} to be as it was"), LONG, async || {
        let differences = differences(intact, &snapshot(datacenter, kinds).await);
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
    // A user who deletes a StatefulSet with its pods deletes these as well.
    let params = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    let params = if one.resource.kind == "StatefulSet" { params } else { DeleteParams::default() };
    api(datacenter, one).delete(&one.object.name_any(), &params).await.unwrap();
}

async fn await_recreated(datacenter: &TestDatacenter, one: &Owned, before: Option<String>) {
    let name = one.object.name_any();
    eventually(&format!("{} to be recreated", one.key()), LONG, async || {
        let now = api(datacenter, one).get_opt(&name).await.unwrap().and_then(|object| object.uid());
        Ok(if now.is_some() && now != before { Seen::Ready(()) } else { Seen::NotYet(format!("{now:?}")) })
    })
    .await
    .unwrap();
}

/// The patches that damage an object.
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
        // A user may replace the token.
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

/// Wrong labels and annotations of a member's Service: the operator relies on the ring instead.
fn edits_of_member() -> Vec<(&'static str, Value)> {
    const STRANGER: &str = "00000000-0000-4000-8000-000000000000";
    let label = |key: &str, value: &str| json!({"metadata": {"labels": {key: value}}});
    let note = |key: &str, value: Option<&str>| json!({"metadata": {"annotations": {key: value}}});
    vec![
        ("a label that its node has left", label(label::DECOMMISSIONED, "true")),
        ("a label that its node is to leave", label(label::DECOMMISSIONED, "false")),
        ("the host ID of a stranger", note(annotation::HOST_ID, Some(STRANGER))),
        ("the loss of its host ID", note(annotation::HOST_ID, None)),
        ("the departure of a stranger", note(annotation::LEAVING_HOST_ID, Some(STRANGER))),
        ("the replacement of a stranger", label(label::REPLACING_NODE_HOST_ID, STRANGER)),
        ("an annotation that its node has not joined", note(annotation::NODE_JOINED, Some("false"))),
        ("another ring", note(annotation::CURRENT_TOKEN_RING_HASH, Some("other"))),
    ]
}

/// Whether pods use the content of an object until they restart: the token of the agents, and the ServiceAccount of
/// sidecars, whose tokens become invalid with it.
fn is_used_by_pods(one: &Owned) -> bool {
    one.resource.kind == "ServiceAccount" || one.object.name_any() == TOKEN
}

async fn token(datacenter: &TestDatacenter) -> Option<Value> {
    let secret = datacenter.api::<Secret>().get_opt(TOKEN).await.unwrap();
    secret.map(|secret| json!(secret.data))
}

/// Deletes the token of the agents and the ServiceAccount. The operator creates new ones, which pods use after a
/// restart. Until then sidecars cannot report the ring, so the test restarts the pods one by one.
async fn recreate_what_pods_use(datacenter: &TestDatacenter, kinds: &[ApiResource], desired: &Desired) -> usize {
    let mut held = owned(datacenter, kinds).await;
    held.retain(is_used_by_pods);
    for one in &held {
        delete(datacenter, one).await;
        await_recreated(datacenter, one, one.object.uid()).await;
    }
    for (member, (uid, _)) in datacenter.nodes().await.pods {
        datacenter.api::<Pod>().delete(&member, &DeleteParams::default()).await.unwrap();
        await_new_pod(datacenter, &member, &uid).await;
    }
    datacenter.settled_and_cleaned_up(desired.nodes()).await;
    held.len()
}

async fn await_new_pod(datacenter: &TestDatacenter, member: &str, before: &str) {
    until(datacenter.api::<Pod>(), member, "a new pod", LONG, |seen| {
        let now = seen.as_ref().and_then(|pod| pod.uid());
        let conditions = seen.and_then(|pod| pod.status?.conditions).unwrap_or_default();
        let is_ready = conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
        let await_recreated = now.as_ref().is_some_and(|now| now != before);
        if await_recreated && is_ready { Seen::Ready(()) } else { Seen::NotYet(format!("{now:?} {conditions:?}")) }
    })
    .await
    .unwrap();
}

/// Checks that a node which was cleaned up for another ring is cleaned up again, even if its Job is deleted.
async fn recreate_cleanup_job(datacenter: &TestDatacenter, kinds: &[ApiResource], intact: &Snapshot) -> usize {
    const MEMBER: &str = "orders-dc-a-0";
    let other = json!({"metadata": {"annotations": {annotation::LAST_CLEANED_UP_TOKEN_RING_HASH: "other"}}});
    datacenter.patch::<Service>(MEMBER, other).await;
    let (jobs, name) = (datacenter.api::<Job>(), format!("cleanup-{MEMBER}"));
    let uid = until(jobs.clone(), &name, "a Job", LONG, |seen| match seen.and_then(|job| job.uid()) {
        Some(uid) => Seen::Ready(uid),
        None => Seen::NotYet("it does not exist".into()),
    })
    .await
    .unwrap();
    jobs.delete(&name, &DeleteParams::background()).await.unwrap();
    await_intact(datacenter, kinds, intact, &format!("Job {uid} after its deletion")).await;
    2
}

/// Sets the replicas of a StatefulSet to zero, and changes the template of another: the operator reverts both, which
/// restarts their nodes.
async fn revert_stateful_sets(datacenter: &TestDatacenter, desired: &Desired) -> usize {
    let (uid, _) = datacenter.nodes().await.pods["orders-dc-b-0"].clone();
    datacenter.patch::<StatefulSet>("orders-dc-b", json!({"spec": {"replicas": 0}})).await;
    await_new_pod(datacenter, "orders-dc-b-0", &uid).await;
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
