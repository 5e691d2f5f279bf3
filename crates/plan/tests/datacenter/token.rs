//! The token of the agents.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use messina_api::names::annotation::INPUTS_HASH;
use messina_plan::datacenter::{Cached, Component};
use serde_json::json;

use crate::{cached, datacenter_with, plan, rolled_out, with_name};

fn given(own: Option<&str>, of_user: Option<&str>, of_another: Option<&str>) -> Cached {
    let agent = of_user.map(|_| json!({"rackTemplate": {"scyllaDBManagerAgent": {"customConfigSecretRef": "mine"}}}));
    let mut cached = cached(datacenter_with(&[("a", 1)], agent.unwrap_or(json!({}))));
    cached.datacenter.token_override = of_another.map(|_| "other".into());
    let secret = |key: &str, text: &str| {
        let data = [(key.to_owned(), ByteString(text.into()))];
        Secret { data: Some(data.into()), ..Secret::default() }
    };
    cached.secrets.extend(own.map(|text| with_name("orders-auth-token", secret("auth-token.yaml", text))));
    let of_user = of_user.map(|text| ("mine".into(), secret("scylla-manager-agent.yaml", text).into()));
    let of_another = of_another.map(|text| ("other".into(), secret("auth-token.yaml", text).into()));
    cached.user_objects.secrets.extend(of_user.into_iter().chain(of_another));
    cached
}

fn planned(cached: &Cached) -> Option<String> {
    let secret = plan(cached).objects.agent_auth_token?;
    Some(String::from_utf8(secret.data.unwrap()["auth-token.yaml"].0.clone()).unwrap())
}

#[test]
fn token_is_kept_and_generated_only_as_the_last_resort() {
    for (cached, token) in [
        (given(None, None, None), "fresh"),
        (given(Some("auth_token: own"), None, None), "own"),
        (given(Some(""), None, None), "fresh"),
        (given(Some("auth_token: own"), Some("auth_token: user\nprometheus: ''"), None), "user"),
        (given(Some("auth_token: own"), Some("prometheus: ':5090'"), None), "own"),
        (given(Some("auth_token: own"), None, Some("auth_token: 'another'")), "another"),
    ] {
        assert_eq!(planned(&cached), Some(format!("auth_token: \"{token}\"\n")));
    }
}

#[test]
fn token_waits_for_the_secret_that_the_user_names() {
    let mut cached = given(Some("auth_token: own"), Some("auth_token: user"), None);
    cached.user_objects.secrets.remove("mine");
    let plan = plan(&cached);
    assert_eq!(plan.objects.agent_auth_token, None, "agents must not get one token now and another one later");
    assert_eq!(
        (plan.progressing[0].component, plan.progressing[0].reason.as_str()),
        (Component::AgentToken, "WaitingForSecret")
    );
}

#[test]
fn secret_without_a_token_is_a_fault() {
    let plan = plan(&given(None, Some("auth_token: [1"), None));
    assert_eq!(plan.objects.agent_auth_token, None);
    assert_eq!(
        (plan.degraded[0].component, plan.degraded[0].reason.as_str()),
        (Component::AgentToken, "UnreadableSecret")
    );
}

#[test]
fn token_is_never_empty() {
    let mut cached = given(None, None, None);
    cached.new_token = String::new();
    assert_eq!(plan(&cached).objects.agent_auth_token, None);
}

#[test]
fn racks_wait_for_the_config_maps_and_secrets_that_they_name() {
    let named = json!({"racks": [
        {"name": "a", "nodes": 1, "scyllaDB": {"customConfigMapRef": "mine", "storage": {"capacity": "1Gi"}}},
        {"name": "b", "nodes": 1, "scyllaDB": {"storage": {"capacity": "1Gi"}},
         "scyllaDBManagerAgent": {"customConfigSecretRef": "ours"}},
    ]});
    let mut cached = cached(datacenter_with(&[], named));
    let reasons = |cached: &Cached| {
        let plan = plan(cached);
        let reasons: BTreeSet<&str> = plan.progressing.iter().map(|note| note.reason.as_str()).collect();
        (plan.objects.stateful_sets.len(), reasons)
    };
    let missing = |cached: &Cached, expected: &[&str]| {
        let (made, reasons) = reasons(cached);
        assert_eq!(made, 0);
        assert!(expected.iter().chain(&["WaitingForSettings"]).all(|reason| reasons.contains(reason)), "{reasons:?}");
    };
    missing(&cached, &["WaitingForConfigMap", "WaitingForSecret"]);
    cached.user_objects.config_maps.insert("mine".into(), Arc::default());
    missing(&cached, &["WaitingForSecret"]);
    cached.user_objects.secrets.insert("ours".into(), Arc::default());
    assert_eq!(reasons(&cached).0, 1);
    // Running nodes are not changed.
    let made = plan(&cached).objects.stateful_sets.remove(0);
    cached.stateful_sets.insert(rolled_out(made));
    cached.user_objects.config_maps.clear();
    let plan = plan(&cached);
    assert!(plan.objects.stateful_sets.is_empty());
    assert!(plan.untouched.iter().any(|left| left.name == "orders-dc-a"), "{:?}", plan.untouched);
}

#[test]
fn agents_restart_for_another_token_and_not_for_unread_settings() {
    let hash = |cached: &Cached| {
        let template = plan(cached).objects.stateful_sets[0].spec.as_ref().unwrap().template.clone();
        template.metadata.unwrap().annotations.unwrap()[INPUTS_HASH].clone()
    };
    let first = given(Some("auth_token: own"), None, None);
    assert_ne!(hash(&given(Some("auth_token: another"), None, None)), hash(&first));
    let mut more = first.clone();
    let data = [("readme".to_owned(), "text".to_owned())];
    let config = ConfigMap { data: Some(data.into()), ..ConfigMap::default() };
    more.user_objects.config_maps.insert("scylla-config".into(), config.into());
    assert_eq!(hash(&more), hash(&first));
}

#[test]
fn token_secret_that_is_temporarily_missing_restarts_no_node() {
    let mut cached = given(Some("auth_token: another"), None, Some("auth_token: another"));
    let made = plan(&cached).objects.stateful_sets.remove(0);
    cached.stateful_sets.insert(rolled_out(made));
    let secrets = std::mem::take(&mut cached.user_objects.secrets);
    let gone = plan(&cached);
    assert!(gone.objects.stateful_sets.is_empty() && gone.objects.agent_auth_token.is_none());
    assert!(
        gone.progressing
            .iter()
            .any(|note| (note.component, note.reason.as_str()) == (Component::StatefulSet, "WaitingForSecret"))
    );
    cached.user_objects.secrets = secrets;
    assert!(plan(&cached).progressing.iter().all(|note| note.reason != "UpdatingStatefulSet"));
}
