//! Nodes that are gone for good.

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use messina_api::names::{
    annotation::EMPTY_DISK,
    label::{REPLACE, REPLACING_NODE_HOST_ID},
};
use messina_plan::datacenter::is_without_kubernetes_node;
use serde_json::{Value, json};

use crate::{
    plan,
    rounds::{at_rest, round, settle},
    with_name,
    world::World,
};

const NODE: &str = "orders-dc-b-0";
const CLAIM: &str = "data-orders-dc-b-0";

/// The machine of a node is gone, with its disk and its Node object.
fn without_machine(is_automatic: bool) -> World {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    world.kept.datacenter.replaces_lost_nodes = is_automatic;
    world.lose(NODE);
    world.kept.claims.get_mut(CLAIM).unwrap().spec.as_mut().unwrap().volume_name = Some("disk".into());
    world.kept.volumes.insert(with_name("disk", volume(&on_host("In", &["gone"]))));
    set_scheduled(&mut world, "False");
    world
}

/// A volume that Kubernetes nodes can have to which these terms apply.
fn volume(terms: &Value) -> PersistentVolume {
    serde_json::from_value(json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}})).unwrap()
}

fn with_label(key: &str, operator: &str, values: &[&str]) -> Value {
    json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}])
}

fn on_host(operator: &str, values: &[&str]) -> Value {
    with_label("kubernetes.io/hostname", operator, values)
}

fn set_scheduled(world: &mut World, status: &str) {
    let status = json!({"conditions": [{"type": "PodScheduled", "status": status}]});
    world.kept.pods.get_mut(NODE).unwrap().status = Some(serde_json::from_value(status).unwrap());
}

fn told(world: &World) -> Option<String> {
    plan(&world.kept).degraded.into_iter().find(|note| note.reason == "NodeGone").map(|note| note.message)
}

fn go_on(world: &mut World) {
    for _ in 0..60 {
        round(world, &mut usize::MAX.clone());
    }
}

#[test]
fn it_is_told_and_nothing_is_done_unasked() {
    let mut world = without_machine(false);
    let message = told(&world).unwrap();
    for words in ["`kubectl label service -n shop orders-dc-b-0 scylla/replace=`", "PersistentVolume disk"] {
        assert!(message.contains(words), "{message}");
    }
    go_on(&mut world);
    assert_eq!((world.replaced, world.label(NODE, REPLACE)), (0, None));
    world.set_label(NODE, REPLACE, Some(""));
    assert!(settle(&mut world));
    assert_eq!((world.replaced, told(&world)), (1, None));
}

#[test]
fn a_claim_that_lost_its_volume_is_reason_enough() {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    world.kept.claims.get_mut(CLAIM).unwrap().status.as_mut().unwrap().phase = Some("Lost".into());
    assert!(told(&world).unwrap().contains("the volume of PersistentVolumeClaim shop/data-orders-dc-b-0 is lost"));
}

#[test]
fn a_pod_that_has_a_machine_or_is_new_is_not_gone() {
    let mut world = without_machine(true);
    set_scheduled(&mut world, "True");
    assert_eq!(told(&world), None);
    world.kept.pods.get_mut(NODE).unwrap().status = None;
    assert_eq!(told(&world), None);
    go_on(&mut world);
    assert_eq!(world.replaced, 0);
}

#[test]
fn it_is_replaced_where_the_user_has_switched_that_on() {
    let mut world = without_machine(true);
    go_on(&mut world);
    assert_eq!(
        (world.replaced, world.label(NODE, REPLACE), world.label(NODE, REPLACING_NODE_HOST_ID)),
        (1, None, None)
    );
    assert_eq!(told(&world), None);
}

#[test]
fn of_two_neither_is_replaced() {
    let mut world = without_machine(true);
    world.lose("orders-dc-a-1");
    go_on(&mut world);
    assert_eq!((world.replaced, world.label(NODE, REPLACE)), (0, None), "another one is down, so the ring refuses it");
}

/// Its machine is back before its disk was given up, or the user has thought better of it. Else the label would wait for the
/// next time that the node is down.
#[test]
fn what_was_decided_before_is_taken_back_when_it_does_not_hold_any_more() {
    let reasons: [fn(&mut World); 2] =
        [|world| world.kept.volumes.clear(), |world| world.kept.datacenter.replaces_lost_nodes = false];
    for end in reasons {
        let mut world = without_machine(true);
        let claim = world.kept.claims[CLAIM].metadata.uid.clone();
        for _ in 0..60 {
            if world.label(NODE, REPLACE).is_some() {
                break;
            }
            round(&mut world, &mut 1);
        }
        assert_eq!(world.label(NODE, REPLACE), Some("automatic"));
        end(&mut world);
        world.crash_the_operator();
        for _ in 0..10 {
            round(&mut world, &mut usize::MAX.clone());
        }
        assert_eq!((world.label(NODE, REPLACE), world.label(NODE, REPLACING_NODE_HOST_ID)), (None, None));
        assert_eq!(world.kept.claims[CLAIM].metadata.uid, claim, "it keeps its disk");
    }
}

#[test]
fn a_volume_is_lost_when_no_machine_can_have_it() {
    let machine = |name: &str| -> ObjectMeta {
        let labels = json!({"kubernetes.io/hostname": name, "zone": "x", "local.csi/node": name});
        serde_json::from_value(json!({"name": name, "labels": labels})).unwrap()
    };
    let machines = [machine("one"), machine("two")];
    for (why, terms, expected) in [
        ("its machine is there", on_host("In", &["one"]), false),
        ("its machine is gone", on_host("In", &["three"]), true),
        ("one of its machines is there", on_host("In", &["three", "two"]), false),
        ("a driver's own label", with_label("local.csi/node", "In", &["three"]), true),
        ("any machine of a zone that has none now", with_label("zone", "In", &["y"]), false),
        ("any machine but one", on_host("NotIn", &["one", "two"]), false),
        ("by name", json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["three"]}]}]), true),
        (
            "by name, and there",
            json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["two"]}]}]),
            false,
        ),
        ("one of two terms", json!([on_host("In", &["three"])[0], on_host("In", &["one"])[0]]), false),
        ("nothing said", json!([]), false),
    ] {
        assert_eq!(is_without_kubernetes_node(&volume(&terms), machines.iter()), expected, "{why}");
    }
    assert!(!is_without_kubernetes_node(&PersistentVolume::default(), machines.iter()));
}

/// It is known from its sidecar, which does not let it start.
#[test]
fn a_disk_that_is_empty_is_told_and_nothing_is_done_unasked() {
    for is_automatic in [false, true] {
        let mut world = at_rest(&[("a", 2), ("b", 1)]);
        world.kept.datacenter.replaces_lost_nodes = is_automatic;
        let uid = world.kept.pods[NODE].metadata.uid.clone().unwrap();
        let told = |world: &World| {
            plan(&world.kept).degraded.into_iter().find(|note| note.reason == "DiskIsEmpty").map(|note| note.message)
        };
        let annotate = |world: &mut World, uid: &str| {
            let annotations = world.kept.services.get_mut(NODE).unwrap().metadata.annotations.get_or_insert_default();
            annotations.insert(EMPTY_DISK.into(), uid.into());
        };
        annotate(&mut world, "of-a-former-pod");
        assert_eq!(told(&world), None);
        annotate(&mut world, &uid);
        let message = told(&world).unwrap();
        for words in ["`kubectl label service -n shop orders-dc-b-0 scylla/replace=`", CLAIM] {
            assert!(message.contains(words), "{message}");
        }
        assert_eq!(world.label(NODE, REPLACE), None);
        assert!(plan(&world.kept).deletions.is_empty() && plan(&world.kept).changes.is_empty());
    }
}
