//! Which token the agents get.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use messina_api::names::annotation::INPUTS_HASH;
use messina_plan::datacenter::{Observed, Part};
use serde_json::json;

use crate::{datacenter_with, observed, plan, rolled_out};

fn given(own: Option<&str>, of_user: Option<&str>, of_another: Option<&str>) -> Observed {
    let agent = of_user.map(|_| json!({"rackTemplate": {"scyllaDBManagerAgent": {"customConfigSecretRef": "mine"}}}));
    let mut observed = observed(datacenter_with(&[("a", 1)], agent.unwrap_or(json!({}))));
    observed.datacenter.token_override = of_another.map(|_| "other".into());
    let secret = |key: &str, text: &str| {
        let data = [(key.to_owned(), ByteString(text.into()))];
        Secret { data: Some(data.into()), ..Secret::default() }
    };
    observed.secrets.extend(own.map(|text| ("orders-auth-token".into(), secret("auth-token.yaml", text))));
    let of_user = of_user.map(|text| ("mine".into(), secret("scylla-manager-agent.yaml", text).into()));
    let of_another = of_another.map(|text| ("other".into(), secret("auth-token.yaml", text).into()));
    observed.named.secrets.extend(of_user.into_iter().chain(of_another));
    observed
}

fn planned(observed: &Observed) -> Option<String> {
    let secret = plan(observed).objects.agent_auth_token?;
    Some(String::from_utf8(secret.data.unwrap()["auth-token.yaml"].0.clone()).unwrap())
}

#[test]
fn a_token_is_kept_and_a_new_one_is_the_last_resort() {
    for (observed, token) in [
        (given(None, None, None), "fresh"),
        (given(Some("auth_token: own"), None, None), "own"),
        (given(Some(""), None, None), "fresh"),
        (given(Some("auth_token: own"), Some("auth_token: user\nprometheus: ''"), None), "user"),
        (given(Some("auth_token: own"), Some("prometheus: ':5090'"), None), "own"),
        (given(Some("auth_token: own"), None, Some("auth_token: 'another'")), "another"),
    ] {
        assert_eq!(planned(&observed), Some(format!("auth_token: \"{token}\"\n")));
    }
}

#[test]
fn a_secret_that_is_named_is_waited_for() {
    let mut observed = given(Some("auth_token: own"), Some("auth_token: user"), None);
    observed.named.secrets.remove("mine");
    let plan = plan(&observed);
    assert_eq!(plan.objects.agent_auth_token, None, "agents must not get one token now and another one later");
    assert_eq!((plan.waiting[0].part, plan.waiting[0].reason), (Part::AgentToken, "WaitingForSecret"));
}

#[test]
fn a_secret_that_makes_no_sense_is_a_fault() {
    let plan = plan(&given(None, Some("auth_token: [1"), None));
    assert_eq!(plan.objects.agent_auth_token, None);
    assert_eq!((plan.wrong[0].part, plan.wrong[0].reason), (Part::AgentToken, "UnreadableSecret"));
}

#[test]
fn a_token_is_never_empty() {
    let mut observed = given(None, None, None);
    observed.new_token = String::new();
    assert_eq!(plan(&observed).objects.agent_auth_token, None);
}

#[test]
fn nothing_is_made_or_changed_while_settings_are_missing_that_a_rack_names() {
    let named = json!({"racks": [
        {"name": "a", "nodes": 1, "scyllaDB": {"customConfigMapRef": "mine", "storage": {"capacity": "1Gi"}}},
        {"name": "b", "nodes": 1, "scyllaDB": {"storage": {"capacity": "1Gi"}},
         "scyllaDBManagerAgent": {"customConfigSecretRef": "ours"}},
    ]});
    let mut observed = observed(datacenter_with(&[], named));
    let reasons = |observed: &Observed| {
        let plan = plan(observed);
        let reasons: BTreeSet<&str> = plan.waiting.iter().map(|note| note.reason).collect();
        (plan.objects.stateful_sets.len(), reasons)
    };
    let missing = |observed: &Observed, expected: &[&str]| {
        let (made, reasons) = reasons(observed);
        assert_eq!(made, 0);
        assert!(expected.iter().chain(&["WaitingForSettings"]).all(|reason| reasons.contains(reason)), "{reasons:?}");
    };
    missing(&observed, &["WaitingForConfigMap", "WaitingForSecret"]);
    observed.named.config_maps.insert("mine".into(), Arc::default());
    missing(&observed, &["WaitingForSecret"]);
    observed.named.secrets.insert("ours".into(), Arc::default());
    assert_eq!(reasons(&observed).0, 1);
    // Nodes that run go on as they are.
    let made = plan(&observed).objects.stateful_sets.remove(0);
    observed.stateful_sets.insert("orders-dc-a".into(), rolled_out(made));
    observed.named.config_maps.clear();
    let plan = plan(&observed);
    assert!(plan.objects.stateful_sets.is_empty());
    assert!(plan.left_alone.iter().any(|left| left.name == "orders-dc-a"), "{:?}", plan.left_alone);
}

#[test]
fn agents_are_restarted_for_another_token_and_not_for_what_they_do_not_read() {
    let hash = |observed: &Observed| {
        let template = plan(observed).objects.stateful_sets[0].spec.as_ref().unwrap().template.clone();
        template.metadata.unwrap().annotations.unwrap()[INPUTS_HASH].clone()
    };
    let first = given(Some("auth_token: own"), None, None);
    assert_ne!(hash(&given(Some("auth_token: another"), None, None)), hash(&first));
    let mut more = first.clone();
    let data = [("readme".to_owned(), "text".to_owned())];
    let config = ConfigMap { data: Some(data.into()), ..ConfigMap::default() };
    more.named.config_maps.insert("scylla-config".into(), config.into());
    assert_eq!(hash(&more), hash(&first));
}

#[test]
fn a_named_token_that_is_gone_for_a_while_restarts_nobody() {
    let mut observed = given(Some("auth_token: another"), None, Some("auth_token: another"));
    let made = plan(&observed).objects.stateful_sets.remove(0);
    observed.stateful_sets.insert("orders-dc-a".into(), rolled_out(made));
    let secrets = std::mem::take(&mut observed.named.secrets);
    let gone = plan(&observed);
    assert!(gone.objects.stateful_sets.is_empty() && gone.objects.agent_auth_token.is_none());
    assert!(gone.waiting.iter().any(|note| (note.part, note.reason) == (Part::StatefulSet, "WaitingForSecret")));
    observed.named.secrets = secrets;
    assert!(plan(&observed).waiting.iter().all(|note| note.reason != "UpdatingStatefulSet"));
}
