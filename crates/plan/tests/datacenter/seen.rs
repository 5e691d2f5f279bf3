//! Preconditions: writes that require other objects to be unchanged since they were observed.

use crate::plan;
use messina_api::names::{
    annotation::{HOST_ID, NODE_JOINED},
    label::{REPLACE, REPLACING_NODE_HOST_ID},
};
use messina_plan::datacenter::{ObjectKind, ObservedVersion};

use crate::{
    rounds::{check_like_fresh, round, round_without_operator, run_until, settle, settled_world},
    world::World,
};

const NODE: &str = "orders-dc-b-0";

fn preconditions(world: &World, kind: ObjectKind, name: &str) -> Vec<ObservedVersion> {
    plan(&world.stored).preconditions.remove(&(kind, name.to_owned())).unwrap_or_default()
}

fn claim(world: &World, member: &str) -> ObservedVersion {
    let name = format!("data-{member}");
    let version = world.stored.claims.get(&name).and_then(|claim| claim.metadata.resource_version.clone());
    ObservedVersion { kind: ObjectKind::PersistentVolumeClaim, name, version }
}

fn service(world: &World, member: &str) -> ObservedVersion {
    let version = world.stored.services.get(member).and_then(|service| service.metadata.resource_version.clone());
    ObservedVersion { kind: ObjectKind::Service, name: member.to_owned(), version }
}

fn pod(world: &World, member: &str) -> ObservedVersion {
    let version = world.stored.pods.get(member).and_then(|pod| pod.metadata.resource_version.clone());
    ObservedVersion { kind: ObjectKind::Pod, name: member.to_owned(), version }
}

#[test]
fn scale_out_requires_unchanged_claims_of_the_new_nodes() {
    let mut world = settled_world(&[("a", 1), ("b", 1)]);
    assert_eq!(preconditions(&world, ObjectKind::StatefulSet, "orders-dc-a"), []);
    world.set_racks(&[("a", 2), ("b", 1)]);
    let expected = [claim(&world, "orders-dc-a-1")];
    assert_eq!(
        (preconditions(&world, ObjectKind::StatefulSet, "orders-dc-a"), &expected[0].version),
        (expected.to_vec(), &None)
    );
}

/// Services and claims are observed as they were when the node was about to join, and its StatefulSet as it is after the node
/// has left: a pod would start on the disk of a node that has left, which must never happen.
#[test]
fn raising_replicas_requires_unchanged_service_and_claim() {
    const LEFT: &str = "orders-dc-a-1";
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    let mut service_then = world.stored.services[LEFT].clone();
    service_then.metadata.annotations.get_or_insert_default().retain(|key, _| key != HOST_ID && key != NODE_JOINED);
    let (claim, claim_then) = (claim(&world, LEFT), world.stored.claims["data-orders-dc-a-1"].clone());
    world.set_racks(&[("a", 1), ("b", 1)]);
    assert!(settle(&mut world));
    world.stored.services.insert(service_then);
    world.stored.claims.insert(claim_then);
    assert!(changes_replicas(&world));
    assert_eq!(preconditions(&world, ObjectKind::StatefulSet, "orders-dc-a"), [claim, service(&world, LEFT)]);
}

/// The observed Service may be from before another node joined under the same name.
#[test]
fn reducing_replicas_requires_an_unchanged_service() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.set_racks(&[("a", 1), ("b", 1)]);
    let found = (0..60).find_map(|_| {
        round_without_operator(&mut world);
        let found = changes_replicas(&world).then(|| preconditions(&world, ObjectKind::StatefulSet, "orders-dc-a"));
        world.reconcile();
        let expected = vec![service(&world, "orders-dc-a-1")];
        while world.write() {}
        found.map(|found| (found, expected))
    });
    let (found, expected) = found.unwrap();
    assert_eq!(found, expected);
}

fn changes_replicas(world: &World) -> bool {
    plan(&world.stored).changes.iter().any(|change| change.kind == ObjectKind::StatefulSet)
}

#[test]
fn restart_requires_unchanged_pods_of_all_nodes() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.set_spec(&[("a", 2), ("b", 1)], "2026.2.4", "for the test");
    let found = (0..20).find_map(|_| {
        round_without_operator(&mut world);
        let found = plan(&world.stored).preconditions.into_values().find(|all| !all.is_empty());
        world.reconcile();
        while world.write() {}
        found
    });
    let expected = ["orders-dc-a-0", "orders-dc-a-1", NODE].map(|member| pod(&world, member));
    assert_eq!(found.as_deref(), Some(expected.as_slice()));
}

/// A claim that is not observed is not annotated with its host ID, so a node of the same name would get it.
#[test]
fn nothing_is_deleted_while_claims_are_not_observed() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.set_racks(&[("a", 1), ("b", 1)]);
    run_until(&mut world, "its place is gone", |world| world.replicas("orders-dc-a") == 1);
    world.observe_no_claims();
    for _ in 0..40 {
        round(&mut world, &mut 20);
    }
    assert!(world.stored.services.contains_key("orders-dc-a-1"), "its claim is there, and has no mark");
    world.catch_up_watches();
    assert!(settle(&mut world));
    check_like_fresh(&world, &[("a", 1), ("b", 1)]);
}

#[test]
fn replacement_begins_when_claims_are_observed() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.lose_node(NODE);
    world.set_label(NODE, REPLACE, Some(""));
    world.observe_no_claims();
    for _ in 0..40 {
        round(&mut world, &mut 20);
    }
    assert_eq!(world.label(NODE, REPLACING_NODE_HOST_ID), None, "it is not known which claim to delete");
    world.catch_up_watches();
    assert!(settle(&mut world));
    assert_eq!(world.replaced, 1);
}

/// The user withdrew the request after the disk was deleted, and the sidecar of the lost node had not written that it joined.
#[test]
fn new_node_knows_the_replaced_host_id_until_it_has_joined() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    let lost = world.host_id_of(NODE).unwrap();
    world.lose_node(NODE);
    let annotations = &mut world.stored.services.get_mut(NODE).unwrap().metadata.annotations;
    annotations.get_or_insert_default().insert(NODE_JOINED.into(), "false".into());
    world.set_label(NODE, REPLACE, Some(""));
    run_until(&mut world, "an empty node has the pod", |world| {
        world.stored.pods.contains_key(NODE) && world.host_id_of(NODE).as_ref() != Some(&lost)
    });
    world.set_label(NODE, REPLACE, None);
    while world.host_id_of(NODE).is_none() {
        world.run_node(NODE);
    }
    for _ in 0..10 {
        world.refresh_sidecar(NODE);
        world.run_sidecar(NODE);
        world.reconcile();
        while world.write() {}
    }
    assert_eq!(world.annotation(NODE, HOST_ID), world.host_id_of(NODE).as_deref(), "it has said who it is");
    assert_eq!(world.label(NODE, REPLACING_NODE_HOST_ID), Some(lost.as_str()), "and has not joined yet");
    world.stop_node(NODE);
    assert!(settle(&mut world));
    assert_eq!((world.replaced, world.ring.contains(&lost)), (1, false));
    check_like_fresh(&world, &[("a", 2), ("b", 1)]);
}

/// Runs rounds until the operator is about to delete an object of this kind.
fn until_deletion(world: &mut World, kind: ObjectKind) {
    let is_next = |world: &World| plan(&world.stored).deletions.iter().any(|one| one.kind == kind);
    for _ in 0..60 {
        round_without_operator(world);
        if is_next(world) {
            return;
        }
        world.reconcile();
        while world.write() {}
    }
    panic!("no {kind:?} is deleted");
}

fn lose_and_replace() -> World {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.lose_node(NODE);
    world.set_label(NODE, REPLACE, Some(""));
    world
}

/// Answers of other nodes may be old, their pods may be gone, and another node may use the claim by now.
#[test]
fn deleting_a_replaced_node_requires_unchanged_services_and_witnesses() {
    let mut world = lose_and_replace();
    let services = |world: &World| ["orders-dc-a-0", "orders-dc-a-1", NODE].map(|member| service(world, member));
    until_deletion(&mut world, ObjectKind::PersistentVolumeClaim);
    let witnesses = |world: &World| ["orders-dc-a-0", "orders-dc-a-1"].map(|member| pod(world, member));
    let said = |world: &World| services(world).into_iter().chain(witnesses(world));
    let expected: Vec<ObservedVersion> = said(&world).chain([pod(&world, NODE)]).collect();
    assert_eq!(preconditions(&world, ObjectKind::PersistentVolumeClaim, "data-orders-dc-b-0"), expected);
    until_deletion(&mut world, ObjectKind::Pod);
    let expected: Vec<ObservedVersion> = said(&world).chain([claim(&world, NODE)]).collect();
    assert_eq!(preconditions(&world, ObjectKind::Pod, NODE), expected);
}

/// The pod was recreated after the UIDs of the lost node were written down, and in the same second in which the claim was
/// deleted: timestamps do not tell which was first.
#[test]
fn pod_created_just_before_its_claim_is_deleted_is_deleted_too() {
    let mut world = lose_and_replace();
    until_deletion(&mut world, ObjectKind::PersistentVolumeClaim);
    world.stored.pods.get_mut(NODE).unwrap().metadata.uid = Some("another".into());
    world.reconcile();
    while world.write() {}
    let given_up = world.stored.claims["data-orders-dc-b-0"].metadata.deletion_timestamp.clone();
    assert!(given_up.is_some());
    world.stored.pods.get_mut(NODE).unwrap().metadata.creation_timestamp = given_up;
    assert!(settle(&mut world));
    assert_eq!(world.replaced, 1);
}

/// The request is withdrawn just before the disk is deleted, and the operator does not observe that.
#[test]
fn disk_is_kept_when_its_replacement_was_cancelled_and_services_are_outdated() {
    let mut world = lose_and_replace();
    until_deletion(&mut world, ObjectKind::PersistentVolumeClaim);
    world.observe_outdated_services();
    world.set_label(NODE, REPLACE, None);
    for _ in 0..5 {
        world.reconcile();
        while world.write() {}
    }
    assert_eq!(world.stored.claims["data-orders-dc-b-0"].metadata.deletion_timestamp, None);
    world.catch_up_watches();
    world.reconcile();
    while world.write() {}
    assert_eq!(world.label(NODE, REPLACING_NODE_HOST_ID), None, "it is forgotten");
}
