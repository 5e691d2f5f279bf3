//! ConfigMaps and Secrets of users that a datacenter refers to and does not own.

use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, Pod, Secret},
    },
};
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use messina_api::names::annotation;
use messina_e2e::datacenter::{LONG, SHORT_LEASE, TestDatacenter, manifest};
use messina_testbed::harness::{Seen, until};
use serde_json::{Value, json};

use crate::testbed::skip_if_unsuitable;

const NODE: &str = "orders-dc-a-0";

#[tokio::test]
async fn config_maps_and_secrets_of_users_reach_nodes() {
    skip_if_unsuitable!();
    let datacenter = TestDatacenter::create("settings", &[SHORT_LEASE]).await;
    let mut named = manifest(&[("a", 1)]);
    let template = &mut named["spec"]["rackTemplate"];
    template["scyllaDB"]["customConfigMapRef"] = json!("mine");
    template["scyllaDBManagerAgent"]["customConfigSecretRef"] = json!("mine");
    datacenter.apply(&named).await;
    let waits = |reason: &'static str| move |one: &_| is_because(one, reason);
    let waiting = datacenter.condition("Progressing", "True", waits("WaitingForSecret")).await;
    assert!(waiting.message.contains(&format!("Secret {}/mine", datacenter.namespace)), "{}", waiting.message);

    // It is created after the datacenter, and the operator finds it without polling.
    datacenter.api().create(&PostParams::default(), &scylla_yaml("batch_size_warn_threshold_in_kb: 64")).await.unwrap();
    datacenter.api().create(&PostParams::default(), &agent("auth_token: users-own")).await.unwrap();
    datacenter.settled(1).await;
    has_token(&datacenter, "users-own").await;
    let racks = datacenter.api::<StatefulSet>().list(&ListParams::default()).await.unwrap().items;
    let generations: Vec<_> = racks.iter().map(|rack| rack.metadata.generation).collect();
    assert_eq!(generations, [Some(1)], "nodes are not started before their settings are there");
    assert_eq!(entry(&datacenter, "batch_size_warn_threshold_in_kb"), "64");

    another_leader_restarts_nothing(&datacenter).await;
    settings_that_are_gone_restart_nothing(&datacenter).await;
    a_change_restarts_the_node(&datacenter).await;
    objects_with_the_usual_names_count_where_none_is_named(&datacenter).await;
    another_objects_token_is_used(&datacenter).await;
    objects_of_users_are_kept(&datacenter).await;
    another_name_of_the_datacenter_changes_nothing(&datacenter).await;
    datacenter.remove().await;
}

async fn another_leader_restarts_nothing(datacenter: &TestDatacenter) {
    let before = datacenter.nodes().await;
    datacenter.replace_leader().await;
    datacenter.settled(1).await;
    assert_eq!(datacenter.nodes().await, before);
}

/// Deletes referenced objects: nodes keep their content, because the deletion may be a mistake.
async fn settings_that_are_gone_restart_nothing(datacenter: &TestDatacenter) {
    let before = datacenter.nodes().await;
    let config_maps = datacenter.api::<ConfigMap>();
    let mine = config_maps.get("mine").await.unwrap();
    config_maps.delete("mine", &DeleteParams::default()).await.unwrap();
    let reported = datacenter.condition("Progressing", "True", |one| is_because(one, "WaitingForConfigMap")).await;
    assert!(reported.message.contains(&format!("ConfigMap {}/mine", datacenter.namespace)), "{}", reported.message);
    let again = ConfigMap { metadata: self::mine(), ..mine };
    config_maps.create(&PostParams::default(), &again).await.unwrap();
    datacenter.settled(1).await;
    assert_eq!(datacenter.nodes().await, before);
}

async fn a_change_restarts_the_node(datacenter: &TestDatacenter) {
    let uid = datacenter.nodes().await.pods[NODE].0.clone();
    datacenter
        .patch::<ConfigMap>("mine", json!({"data": {"scylla.yaml": "batch_size_warn_threshold_in_kb: 96"}}))
        .await;
    has_another_pod(datacenter, &uid).await;
    assert_eq!(entry(datacenter, "batch_size_warn_threshold_in_kb"), "96");
    let uid = datacenter.nodes().await.pods[NODE].0.clone();
    datacenter
        .patch::<Secret>("mine", json!({"stringData": {"scylla-manager-agent.yaml": "auth_token: changed"}}))
        .await;
    has_another_pod(datacenter, &uid).await;
    has_token(datacenter, "changed").await;
}

async fn objects_with_the_usual_names_count_where_none_is_named(datacenter: &TestDatacenter) {
    let uid = datacenter.nodes().await.pods[NODE].0.clone();
    let mut usual = scylla_yaml("batch_size_warn_threshold_in_kb: 64");
    usual.metadata.name = Some("scylla-config".into());
    datacenter.api().create(&PostParams::default(), &usual).await.unwrap();
    datacenter.apply(&manifest(&[("a", 1)])).await;
    has_another_pod(datacenter, &uid).await;
    assert_eq!(entry(datacenter, "batch_size_warn_threshold_in_kb"), "64");
    let uid = datacenter.nodes().await.pods[NODE].0.clone();
    datacenter.api::<ConfigMap>().delete("scylla-config", &DeleteParams::default()).await.unwrap();
    has_another_pod(datacenter, &uid).await;
    assert_eq!(entry(datacenter, "batch_size_warn_threshold_in_kb"), "128", "what is in the image");
}

async fn another_objects_token_is_used(datacenter: &TestDatacenter) {
    let mut others = agent("");
    others.metadata.name = Some("others".into());
    others.data = Some([("auth-token.yaml".to_owned(), ByteString(b"auth_token: of-another".to_vec()))].into());
    datacenter.api().create(&PostParams::default(), &others).await.unwrap();
    datacenter.apply(&overridden()).await;
    has_token(datacenter, "of-another").await;
    // Agents read it when they start.
    datacenter.settled(1).await;
    let uid = datacenter.nodes().await.pods[NODE].0.clone();
    datacenter
        .patch::<Secret>("others", json!({"stringData": {"auth-token.yaml": "auth_token: of-another-still"}}))
        .await;
    has_token(datacenter, "of-another-still").await;
    has_another_pod(datacenter, &uid).await;
}

async fn objects_of_users_are_kept(datacenter: &TestDatacenter) {
    datacenter.settled(1).await;
    for name in ["mine", "others"] {
        assert!(datacenter.api::<Secret>().get_opt(name).await.unwrap().is_some(), "{name}");
    }
    assert!(datacenter.api::<ConfigMap>().get_opt("mine").await.unwrap().is_some());
}

async fn another_name_of_the_datacenter_changes_nothing(datacenter: &TestDatacenter) {
    let before = datacenter.nodes().await;
    let mut renamed = overridden();
    renamed["spec"]["datacenterName"] = json!("other");
    datacenter.apply(&renamed).await;
    let reported = datacenter.condition("Degraded", "True", |one| one.message.contains("spec.datacenterName")).await;
    assert!(reported.message.contains("\"dc\" again"), "{}", reported.message);
    assert_eq!(datacenter.nodes().await, before);
    datacenter.apply(&overridden()).await;
    datacenter.settled(1).await;
    assert_eq!(datacenter.nodes().await, before);
}

fn is_because(condition: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition, reason: &str) -> bool {
    condition.reason.contains(reason) || condition.message.contains(reason)
}

/// A datacenter with the token of another object.
fn overridden() -> Value {
    let mut overridden = manifest(&[("a", 1)]);
    overridden["metadata"]["annotations"] = json!({annotation::AGENT_AUTH_TOKEN_OVERRIDE_SECRET_REF: "others"});
    overridden
}

fn scylla_yaml(text: &str) -> ConfigMap {
    let data = [("scylla.yaml".to_owned(), text.to_owned())];
    ConfigMap { metadata: mine(), data: Some(data.into()), ..ConfigMap::default() }
}

fn agent(text: &str) -> Secret {
    let data = [("scylla-manager-agent.yaml".to_owned(), ByteString(text.as_bytes().to_vec()))];
    Secret { metadata: mine(), data: Some(data.into()), ..Secret::default() }
}

fn mine() -> ObjectMeta {
    ObjectMeta { name: Some("mine".into()), ..ObjectMeta::default() }
}

/// The value of an entry of `scylla.yaml`, as the node has read it.
fn entry(datacenter: &TestDatacenter, name: &str) -> String {
    datacenter.exec(NODE, &["simctl", "config", name]).unwrap().trim().to_owned()
}

async fn has_token(datacenter: &TestDatacenter, token: &str) {
    let expected = format!("auth_token: \"{token}\"\n");
    until(datacenter.api::<Secret>(), "orders-auth-token", "the token of the agents", LONG, |seen| {
        let data = seen.and_then(|secret| secret.data).unwrap_or_default();
        let text = data.get("auth-token.yaml").map(|text| String::from_utf8_lossy(&text.0).into_owned());
        if text.as_deref() == Some(&expected) { Seen::Ready(()) } else { Seen::NotYet(format!("{text:?}")) }
    })
    .await
    .unwrap();
}

/// Waits until the node has restarted and is ready.
async fn has_another_pod(datacenter: &TestDatacenter, uid: &str) {
    until(datacenter.api::<Pod>(), NODE, "another pod that is ready", LONG, |seen| {
        let pod = seen.unwrap_or_default();
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref()).into_iter().flatten();
        let is_ready = conditions.into_iter().any(|one| one.type_ == "Ready" && one.status == "True");
        let is_another = pod.metadata.uid.as_deref() != Some(uid);
        if is_another && is_ready { Seen::Ready(()) } else { Seen::NotYet(format!("{:?}", pod.status)) }
    })
    .await
    .unwrap();
    datacenter.settled(1).await;
}
