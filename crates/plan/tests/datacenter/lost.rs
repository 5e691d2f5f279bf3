//! Lost nodes.

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
    rounds::{round, settle, settled_world},
    with_name,
    world::World,
};

const NODE: &str = "orders-dc-b-0";
const CLAIM: &str = "data-orders-dc-b-0";

/// The Kubernetes node of a node is gone, with its disk and its Node object.
fn without_kubernetes_node(is_automatic: bool) -> World {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.stored.datacenter.replaces_lost_nodes = is_automatic;
    world.lose_node(NODE);
    world.stored.claims.get_mut(CLAIM).unwrap().spec.as_mut().unwrap().volume_name = Some("disk".into());
    world.stored.volumes.insert(with_name("disk", volume(&on_host("In", &["gone"]))));
    set_scheduled(&mut world, "False");
    world
}

/// A volume for Kubernetes nodes that match these terms.
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
    world.stored.pods.get_mut(NODE).unwrap().status = Some(serde_json::from_value(status).unwrap());
}

fn reported(world: &World) -> Option<String> {
    plan(&world.stored).degraded.into_iter().find(|note| note.reason == "NodeGone").map(|note| note.message)
}

fn run_rounds(world: &mut World) {
    for _ in 0..60 {
        round(world, &mut usize::MAX.clone());
    }
}

#[test]
fn lost_node_is_reported_and_not_replaced_without_a_request() {
    let mut world = without_kubernetes_node(false);
    let message = reported(&world).unwrap();
    for words in ["`kubectl label service -n shop orders-dc-b-0 scylla/replace=`", "PersistentVolume disk"] {
        assert!(message.contains(words), "{message}");
    }
    run_rounds(&mut world);
    assert_eq!((world.replaced, world.label(NODE, REPLACE)), (0, None));
    world.set_label(NODE, REPLACE, Some(""));
    assert!(settle(&mut world));
    assert_eq!((world.replaced, reported(&world)), (1, None));
}

#[test]
fn node_is_lost_when_its_claim_has_lost_its_volume() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.stored.claims.get_mut(CLAIM).unwrap().status.as_mut().unwrap().phase = Some("Lost".into());
    assert!(reported(&world).unwrap().contains("the volume of PersistentVolumeClaim shop/data-orders-dc-b-0 is lost"));
}

#[test]
fn node_is_not_lost_while_its_pod_is_scheduled_or_new() {
    let mut world = without_kubernetes_node(true);
    set_scheduled(&mut world, "True");
    assert_eq!(reported(&world), None);
    world.stored.pods.get_mut(NODE).unwrap().status = None;
    assert_eq!(reported(&world), None);
    run_rounds(&mut world);
    assert_eq!(world.replaced, 0);
}

#[test]
fn lost_node_is_replaced_where_automatic_replacement_is_enabled() {
    let mut world = without_kubernetes_node(true);
    run_rounds(&mut world);
    assert_eq!(
        (world.replaced, world.label(NODE, REPLACE), world.label(NODE, REPLACING_NODE_HOST_ID)),
        (1, None, None)
    );
    assert_eq!(reported(&world), None);
}

#[test]
fn two_lost_nodes_are_not_replaced_automatically() {
    let mut world = without_kubernetes_node(true);
    world.lose_node("orders-dc-a-1");
    run_rounds(&mut world);
    assert_eq!((world.replaced, world.label(NODE, REPLACE)), (0, None), "another one is down, so the ring refuses it");
}

/// The Kubernetes node is back before the disk was deleted, or the user disabled automatic replacement. The label must not stay
/// until the node is down the next time.
#[test]
fn automatic_replacement_is_cancelled_when_the_node_is_not_lost_any_more() {
    let reasons: [fn(&mut World); 2] =
        [|world| world.stored.volumes.clear(), |world| world.stored.datacenter.replaces_lost_nodes = false];
    for end in reasons {
        let mut world = without_kubernetes_node(true);
        let claim = world.stored.claims[CLAIM].metadata.uid.clone();
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
        assert_eq!(world.stored.claims[CLAIM].metadata.uid, claim, "it keeps its disk");
    }
}

#[test]
fn volume_is_lost_when_no_kubernetes_node_matches_its_affinity() {
    let kubernetes_node = |name: &str| -> ObjectMeta {
        let labels = json!({"kubernetes.io/hostname": name, "zone": "x", "local.csi/node": name});
        serde_json::from_value(json!({"name": name, "labels": labels})).unwrap()
    };
    let kubernetes_nodes = [kubernetes_node("one"), kubernetes_node("two")];
    for (why, terms, expected) in [
        ("its Kubernetes node exists", on_host("In", &["one"]), false),
        ("its Kubernetes node is gone", on_host("In", &["three"]), true),
        ("one of its Kubernetes nodes exists", on_host("In", &["three", "two"]), false),
        ("a driver's own label", with_label("local.csi/node", "In", &["three"]), true),
        ("any Kubernetes node of a zone that has none now", with_label("zone", "In", &["y"]), false),
        ("any Kubernetes node except two", on_host("NotIn", &["one", "two"]), false),
        ("by name", json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["three"]}]}]), true),
        (
            "by name, and there",
            json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["two"]}]}]),
            false,
        ),
        ("one of two terms", json!([on_host("In", &["three"])[0], on_host("In", &["one"])[0]]), false),
        ("nothing said", json!([]), false),
    ] {
        assert_eq!(is_without_kubernetes_node(&volume(&terms), kubernetes_nodes.iter()), expected, "{why}");
    }
    assert!(!is_without_kubernetes_node(&PersistentVolume::default(), kubernetes_nodes.iter()));
}

/// The sidecar reports it, and does not let the node start.
#[test]
fn empty_disk_is_reported_and_the_node_not_replaced_without_a_request() {
    for is_automatic in [false, true] {
        let mut world = settled_world(&[("a", 2), ("b", 1)]);
        world.stored.datacenter.replaces_lost_nodes = is_automatic;
        let uid = world.stored.pods[NODE].metadata.uid.clone().unwrap();
        let reported = |world: &World| {
            plan(&world.stored).degraded.into_iter().find(|note| note.reason == "DiskIsEmpty").map(|note| note.message)
        };
        let annotate = |world: &mut World, uid: &str| {
            let annotations = world.stored.services.get_mut(NODE).unwrap().metadata.annotations.get_or_insert_default();
            annotations.insert(EMPTY_DISK.into(), uid.into());
        };
        annotate(&mut world, "of-a-former-pod");
        assert_eq!(reported(&world), None);
        annotate(&mut world, &uid);
        let message = reported(&world).unwrap();
        for words in ["`kubectl label service -n shop orders-dc-b-0 scylla/replace=`", CLAIM] {
            assert!(message.contains(words), "{message}");
        }
        assert_eq!(world.label(NODE, REPLACE), None);
        assert!(plan(&world.stored).deletions.is_empty() && plan(&world.stored).changes.is_empty());
    }
}
