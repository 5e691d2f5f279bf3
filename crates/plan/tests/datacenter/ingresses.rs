//! Ingresses to CQL: the peer's cases, and what is kept when something is not known.

use crate::{plan, with_name};
use k8s_openapi::api::core::v1::Service;
use messina_api::names::{
    annotation::HOST_ID,
    label::{self, value},
};
use messina_plan::datacenter::{Cached, Component, Untouched};
use serde_json::{Value, json};

use crate::{
    cached,
    cases::{Outcome, as_in_case, reliable, run, same},
    datacenter_with,
};

/// DNS domains that a valid datacenter with Ingresses has, and some cases leave out.
const DOMAIN: &str = "example.com";

#[test]
fn ingresses_are_as_those_of_the_peer() {
    run("datacenter/ingresses", |case| {
        let mut object = case["scyllaDBDatacenter"].clone();
        let has_domains = object["spec"]["dnsDomains"].is_array();
        if !has_domains {
            object["spec"]["dnsDomains"] = json!([DOMAIN]);
        }
        let mut cached = cached(reliable(&object));
        for (name, service) in case["services"].as_object().unwrap() {
            cached.services.insert(with_name(name, serde_json::from_value(service.clone()).unwrap()));
        }
        let ours = plan(&cached).objects.ingresses;
        let mut expected = case["expectedIngresses"].as_array().cloned().unwrap_or_default();
        if expected.len() != ours.len() {
            return Outcome::Failed(format!("  {} Ingresses in place of {}", ours.len(), expected.len()));
        }
        let mut actual = Vec::new();
        for (one, expected) in ours.iter().zip(&mut expected) {
            expected["status"] = Value::Null;
            let mut one = as_in_case(json!(one), expected);
            if !has_domains {
                let rules = one["spec"].as_object_mut().unwrap().remove("rules").unwrap();
                assert_eq!(rules.as_array().unwrap().len(), 1, "one for {DOMAIN}");
            }
            actual.push(one);
        }
        same(&json!(expected), &json!(actual))
    });
}

fn exposed(options: Value) -> Cached {
    let spec = json!({"dnsDomains": [DOMAIN], "exposeOptions": {"cql": {"ingress": options}}});
    let mut cached = cached(datacenter_with(&[("a", 1)], spec));
    let objects = plan(&cached).objects;
    for service in objects.member_services.into_iter().chain([objects.identity_service]) {
        cached.services.insert(service);
    }
    cached
}

fn names(cached: &Cached) -> Vec<String> {
    plan(cached).objects.ingresses.into_iter().map(|one| one.metadata.name.unwrap()).collect()
}

#[test]
fn ingress_of_a_node_waits_for_its_host_id_and_is_not_deleted() {
    let mut cached = exposed(json!({}));
    assert_eq!(names(&cached), ["orders-client-cql"]);
    let planned = plan(&cached);
    let left = Untouched { kind: "Ingress", name: "orders-dc-a-0-cql".into() };
    assert!(planned.untouched.contains(&left), "{:?}", planned.untouched);
    let note = planned.progressing.iter().find(|note| note.component == Component::Ingress).unwrap();
    assert!(note.message.contains("orders-dc-a-0"), "{note:?}");

    let service: &mut Service = cached.services.get_mut("orders-dc-a-0").unwrap();
    service.metadata.annotations.get_or_insert_default().insert(HOST_ID.into(), "abc".into());
    let planned = plan(&cached);
    assert!(!planned.progressing.iter().any(|note| note.component == Component::Ingress));
    let hosts: Vec<Value> = planned
        .objects
        .ingresses
        .iter()
        .flat_map(|one| one.spec.clone().unwrap().rules.unwrap())
        .map(|rule| json!(rule.host))
        .collect();
    assert_eq!(hosts, ["cql.example.com", "abc.cql.example.com"]);
}

#[test]
fn ingress_labels_override_those_of_the_datacenter() {
    let mut cached = exposed(json!({"labels": {"team": "blue"}}));
    cached.datacenter.labels = [("team".to_owned(), "red".to_owned())].into();
    let labels = plan(&cached).objects.ingresses[0].metadata.labels.clone().unwrap();
    assert_eq!(labels.get("team").map(String::as_str), Some("blue"));
    assert_eq!(labels.get(label::INGRESS_TYPE).map(String::as_str), Some(value::ANY_NODE));
}
