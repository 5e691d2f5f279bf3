//! Properties that hold after any events.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::{apps::v1::StatefulSet, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use messina_api::{names::annotation::NODE_JOINED, scylla::v1alpha1::ScyllaDBDatacenter};
use messina_plan::datacenter::{ByName, Cached, Component, Note, Objects, Plan, validate};
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Value, json};

use crate::{OPERATOR_IMAGE, cached, certificates, datacenter_with, name_of, plan, report, rolled_out, with_name};

/// Decides with certificates signed, because nodes wait for them.
fn decide(cached: &mut Cached) -> Plan {
    // No sidecar prepares its node for another version here.
    cached.datacenter.skips_upgrade_hooks = true;
    certificates::make_all(cached);
    plan(cached)
}

/// Specifications that a user may write one after another.
fn specification() -> impl Strategy<Value = (Vec<(&'static str, i32)>, Value)> {
    let racks = select(vec![vec!["a"], vec!["a", "b"], vec!["b", "a"], vec!["a", "b", "c"], vec!["c"], vec![]]);
    let racks = racks.prop_flat_map(|names| {
        let length = names.len();
        (Just(names), vec(0..4_i32, length)).prop_map(|(names, nodes)| names.into_iter().zip(nodes).collect())
    });
    let image = select(vec!["scylla:2026.2.4", "scylla:2026.3.0", "scylla:latest"]);
    let label = select(vec!["x", "y"]);
    let options = (image, any::<bool>(), label, any::<bool>(), any::<bool>());
    (racks, options).prop_map(|(racks, (image, developer_mode, label, has_label, has_alternator))| {
        let labels = if has_label { json!({label: "1"}) } else { json!({}) };
        let mut spec = json!({
            "metadata": {"labels": labels},
            "scyllaDB": {"image": image, "enableDeveloperMode": developer_mode},
        });
        if has_alternator {
            spec["scyllaDB"]["alternatorOptions"] = json!({});
        }
        (racks, spec)
    })
}

#[derive(Clone, Debug)]
enum Event {
    /// The user writes another specification.
    Respecified(Vec<(&'static str, i32)>, Value),
    /// Kubernetes rolls out a StatefulSet.
    RolledOut(usize),
    /// A node of a StatefulSet goes down.
    Down(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => specification().prop_map(|(racks, spec)| Event::Respecified(racks, spec)),
        4 => (0..3_usize).prop_map(Event::RolledOut),
        1 => (0..3_usize).prop_map(Event::Down),
    ]
}

fn apply_event(cached: &mut Cached, event: Event) {
    match event {
        Event::Respecified(racks, spec) => cached.datacenter = datacenter_with(&racks, spec),
        Event::RolledOut(position) => {
            let name = cached.stateful_sets.keys().nth(position).cloned();
            name.iter().for_each(|name| roll_out(cached, name));
        }
        Event::Down(position) => {
            if let Some(status) = cached.stateful_sets.values_mut().nth(position).and_then(|one| one.status.as_mut()) {
                status.available_replicas = Some(0);
            }
        }
    }
}

/// Rolls out a StatefulSet: all nodes exist and have joined, those from the partition on with new pods.
fn roll_out(cached: &mut Cached, name: &str) {
    let mut done = rolled_out(cached.stateful_sets[name].clone());
    let spec = done.spec.as_ref().unwrap();
    let (latest, all) = (json!(spec.template).to_string(), spec.replicas.unwrap());
    let partition = spec.update_strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref()?.partition);
    for ordinal in 0..all {
        let member = format!("{name}-{ordinal}");
        let service = cached.services.get_mut(&member).unwrap();
        let annotations = service.metadata.annotations.get_or_insert_default();
        annotations.insert(NODE_JOINED.into(), "true".into());
        if ordinal >= partition.unwrap() || !cached.pods.contains_key(&member) {
            let labels = [("controller-revision-hash".to_owned(), latest.clone())];
            let metadata = ObjectMeta { labels: Some(labels.into()), ..ObjectMeta::default() };
            cached.pods.insert(with_name(&member, Pod { metadata, ..Pod::default() }));
        }
    }
    done.status.as_mut().unwrap().update_revision = Some(latest);
    cached.stateful_sets.insert(done);
}

/// Stores the planned objects as the API server would. A StatefulSet that changes is not rolled out.
fn apply(cached: &mut Cached, plan: &Plan) {
    for one in &plan.objects.stateful_sets {
        let now = cached.stateful_sets.get(&name_of(one));
        if now.is_none_or(|now| now.spec != one.spec) {
            cached.stateful_sets.insert(one.clone());
        }
    }
    for service in &plan.objects.member_services {
        // Annotations of sidecars stay.
        if !cached.services.contains_key(service.metadata.name.as_ref().unwrap()) {
            cached.services.insert(service.clone());
        }
    }
    let configs = &plan.objects.snitch_configs;
    cached.config_maps.extend(configs.iter().cloned());
    let token = plan.objects.agent_auth_token.iter();
    cached.secrets.extend(token.cloned());
}

fn replicas(all: &ByName<StatefulSet>) -> BTreeMap<String, Option<i32>> {
    all.iter().map(|(name, one)| (name.clone(), one.spec.as_ref().unwrap().replicas)).collect()
}

/// Returns the names of all objects of a kind that a plan applies or leaves untouched.
fn kept_names<'a>(plan: &'a Plan, kind: &str, applied: impl Iterator<Item = &'a Option<String>>) -> BTreeSet<&'a str> {
    let untouched = plan.untouched.iter().filter(|one| one.kind == kind).map(|one| one.name.as_str());
    applied.filter_map(|name| name.as_deref()).chain(untouched).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(6), ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens((racks, spec) in specification(), events in vec(event(), 1..20)) {
        let mut cached = cached(datacenter_with(&racks, spec));
        for event in events {
            apply_event(&mut cached, event);
            let plan = decide(&mut cached);
            let before = cached.stateful_sets.clone();

            let changed = plan.objects.stateful_sets.iter();
            let changed = changed.filter(|one| before.get(&name_of(one)).is_none_or(|now| now.spec != one.spec)).count();
            prop_assert!(changed <= 1, "{changed} StatefulSets change at once");

            let sets = kept_names(&plan, "StatefulSet", plan.objects.stateful_sets.iter().map(|one| &one.metadata.name));
            prop_assert!(before.keys().all(|name| sets.contains(name.as_str())), "a StatefulSet is given up");
            let members = kept_names(&plan, "Service", plan.objects.member_services.iter().map(|one| &one.metadata.name));
            prop_assert!(cached.services.keys().all(|name| members.contains(name.as_str())), "a Service is given up");

            apply(&mut cached, &plan);
            for (name, now) in replicas(&cached.stateful_sets) {
                prop_assert!(now >= replicas(&before).get(&name).copied().flatten(), "{name} has fewer replicas");
            }
            let again = decide(&mut cached);
            // A rack that was scaled out is left alone until its nodes have joined, which also changes nothing.
            let stand = cached.stateful_sets.clone();
            apply(&mut cached, &again);
            prop_assert!(cached.stateful_sets == stand, "a plan that is carried out gives rise to another one");
            let others = |plan: &Plan| Objects { stateful_sets: Vec::new(), ..plan.objects.clone() };
            prop_assert!(others(&again) == others(&plan), "other objects, once the planned ones are there");
            report(&cached);
        }
    }

    /// When nothing else changes, a few plans reach the desired state.
    #[test]
    fn plans_reach_the_desired_state((racks, spec) in specification(), (next_racks, next_spec) in specification()) {
        let mut cached = cached(datacenter_with(&racks, spec));
        for (racks, spec) in [(racks, None), (next_racks, Some(next_spec))] {
            if let Some(spec) = spec {
                cached.datacenter = datacenter_with(&racks, spec);
            }
            for _ in 0..40 {
                let plan = decide(&mut cached);
                apply(&mut cached, &plan);
                let names: Vec<String> = cached.stateful_sets.keys().cloned().collect();
                names.iter().for_each(|name| roll_out(&mut cached, name));
            }
            let plan = decide(&mut cached);
            // In this test no node leaves, no Service has an address, and no sidecar reports the ring.
            let of_leaving = ["RemovingRack", "WaitingForHostID", "UnknownNode"];
            let is_left = |note: &&Note| {
                ![Component::Certificates, Component::Job].contains(&note.component) && !of_leaving.contains(&note.reason.as_str())
            };
            let left = plan.progressing.iter().filter(is_left).collect::<Vec<_>>();
            prop_assert!(left.is_empty(), "{left:?}");
            prop_assert_eq!(plan.objects.stateful_sets.len(), racks.len());
        }
    }

    #[test]
    fn validation_never_panics(object in odd_object()) {
        if let Ok(object) = serde_json::from_value::<ScyllaDBDatacenter>(object) {
            match validate(&object) {
                Ok(datacenter) => {
                    let mut cached = Cached::new(datacenter, OPERATOR_IMAGE);
                    decide(&mut cached);
                    report(&cached);
                }
                Err(faults) => prop_assert!(!faults.is_empty(), "an object is refused without a reason"),
            }
        }
    }
}

fn odd_text() -> impl Strategy<Value = Value> {
    prop_oneof![
        select(vec![
            "a",
            "b",
            "dc-1",
            "scylla:2026.2.4",
            "scylla@sha256:1",
            "1Gi",
            "-1",
            "IPv6",
            "PodIP",
            "Headless",
            "true",
            ""
        ])
        .prop_map(Value::from),
        ".{0,70}".prop_map(Value::from),
        Just(Value::Null),
    ]
}

fn odd_map() -> impl Strategy<Value = Value> {
    vec((".{0,5}", odd_text()), 0..3).prop_map(|pairs| Value::Object(pairs.into_iter().collect()))
}

fn odd_rack() -> impl Strategy<Value = Value> {
    (odd_text(), any::<Option<i16>>(), odd_text(), odd_map(), odd_map(), odd_text()).prop_map(
        |(name, nodes, capacity, limits, selector, config)| {
            json!({
                "name": name, "nodes": nodes, "topologyLabelSelector": selector,
                "scyllaDB": {"storage": {"capacity": capacity}, "resources": {"limits": limits}, "customConfigMapRef": config},
            })
        },
    )
}

fn odd_object() -> impl Strategy<Value = Value> {
    let texts = vec(odd_text(), 12);
    (texts, vec(odd_rack(), 0..3), odd_rack(), odd_map(), any::<Option<i32>>(), any::<Option<bool>>()).prop_map(
        |(text, racks, template, annotations, number, flag)| {
            json!({
                "metadata": {"name": text[0], "namespace": text[1], "uid": text[2], "annotations": annotations},
                "spec": {
                    "clusterName": text[3], "datacenterName": text[4], "racks": racks, "rackTemplate": template,
                    "scyllaDB": {"image": text[5], "alternatorOptions": {"writeIsolation": text[6]}},
                    "scyllaDBManagerAgent": {"image": text[7]},
                    "exposeOptions": {
                        "nodeService": {"type": text[8]},
                        "broadcastOptions": {"nodes": {"type": text[9]}, "clients": {"type": text[10]}},
                    },
                    "ipFamilies": [text[11]], "minReadySeconds": number, "enableParallelNodeOperations": flag,
                },
            })
        },
    )
}
