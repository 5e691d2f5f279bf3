//! What is written only if something else is as it was seen.

use crate::plan;
use messina_api::names::{
    annotation::{HOST_ID, NODE_JOINED},
    label::{REPLACE, REPLACING_NODE_HOST_ID},
};
use messina_plan::datacenter::{ObjectKind, ObservedVersion};

use crate::{
    rounds::{at_rest, check_fresh, round, round_of_others, settle, until},
    world::World,
};

const NODE: &str = "orders-dc-b-0";

fn preconditions(world: &World, kind: ObjectKind, name: &str) -> Vec<ObservedVersion> {
    plan(&world.kept).preconditions.remove(&(kind, name.to_owned())).unwrap_or_default()
}

fn claim(world: &World, member: &str) -> ObservedVersion {
    let name = format!("data-{member}");
    let version = world.kept.claims.get(&name).and_then(|claim| claim.metadata.resource_version.clone());
    ObservedVersion { kind: ObjectKind::PersistentVolumeClaim, name, version }
}

fn service(world: &World, member: &str) -> ObservedVersion {
    let version = world.kept.services.get(member).and_then(|service| service.metadata.resource_version.clone());
    ObservedVersion { kind: ObjectKind::Service, name: member.to_owned(), version }
}

fn pod(world: &World, member: &str) -> ObservedVersion {
    let version = world.kept.pods.get(member).and_then(|pod| pod.metadata.resource_version.clone());
    ObservedVersion { kind: ObjectKind::Pod, name: member.to_owned(), version }
}

#[test]
fn a_rack_that_gets_nodes_rests_on_the_claims_that_they_would_find() {
    let mut world = at_rest(&[("a", 1), ("b", 1)]);
    assert_eq!(preconditions(&world, ObjectKind::StatefulSet, "orders-dc-a"), []);
    world.respecify(&[("a", 2), ("b", 1)]);
    let expected = [claim(&world, "orders-dc-a-1")];
    assert_eq!(
        (preconditions(&world, ObjectKind::StatefulSet, "orders-dc-a"), &expected[0].version),
        (expected.to_vec(), &None)
    );
}

/// Services and claims are seen as they were when the node was about to join, and its StatefulSet as it is now that the node
/// has left: a pod would start on the disk of a node that has left, which no node survives.
#[test]
fn a_place_for_a_node_that_lacks_one_rests_on_its_service_and_its_claim() {
    const LEFT: &str = "orders-dc-a-1";
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    let mut service_then = world.kept.services[LEFT].clone();
    service_then.metadata.annotations.get_or_insert_default().retain(|key, _| key != HOST_ID && key != NODE_JOINED);
    let (claim, claim_then) = (claim(&world, LEFT), world.kept.claims["data-orders-dc-a-1"].clone());
    world.respecify(&[("a", 1), ("b", 1)]);
    assert!(settle(&mut world));
    world.kept.services.insert(service_then);
    world.kept.claims.insert(claim_then);
    assert!(changes_places(&world));
    assert_eq!(preconditions(&world, ObjectKind::StatefulSet, "orders-dc-a"), [claim, service(&world, LEFT)]);
}

/// Its Service may be from before another node came to its place.
#[test]
fn taking_away_the_place_of_a_node_that_has_left_rests_on_its_service() {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    world.respecify(&[("a", 1), ("b", 1)]);
    let found = (0..60).find_map(|_| {
        round_of_others(&mut world);
        let found = changes_places(&world).then(|| preconditions(&world, ObjectKind::StatefulSet, "orders-dc-a"));
        world.look();
        let expected = vec![service(&world, "orders-dc-a-1")];
        while world.write() {}
        found.map(|found| (found, expected))
    });
    let (found, expected) = found.unwrap();
    assert_eq!(found, expected);
}

fn changes_places(world: &World) -> bool {
    plan(&world.kept).changes.iter().any(|change| change.kind == ObjectKind::StatefulSet)
}

#[test]
fn a_restart_rests_on_the_pods_of_all_nodes() {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    world.respecify_all(&[("a", 2), ("b", 1)], "2026.2.4", "for the test");
    let found = (0..20).find_map(|_| {
        round_of_others(&mut world);
        let found = plan(&world.kept).preconditions.into_values().find(|all| !all.is_empty());
        world.look();
        while world.write() {}
        found
    });
    let expected = ["orders-dc-a-0", "orders-dc-a-1", NODE].map(|member| pod(&world, member));
    assert_eq!(found.as_deref(), Some(expected.as_slice()));
}

/// A claim that is not seen has no mark of whose it was, so a node of the same name would get it.
#[test]
fn nothing_is_put_away_while_claims_are_not_seen() {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    world.respecify(&[("a", 1), ("b", 1)]);
    until(&mut world, "its place is gone", |world| world.replicas("orders-dc-a") == 1);
    world.see_no_claims();
    for _ in 0..40 {
        round(&mut world, &mut 20);
    }
    assert!(world.kept.services.contains_key("orders-dc-a-1"), "its claim is there, and has no mark");
    world.hear_again();
    assert!(settle(&mut world));
    check_fresh(&world, &[("a", 1), ("b", 1)]);
}

#[test]
fn a_replacement_begins_when_claims_are_seen() {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    world.lose(NODE);
    world.set_label(NODE, REPLACE, Some(""));
    world.see_no_claims();
    for _ in 0..40 {
        round(&mut world, &mut 20);
    }
    assert_eq!(world.label(NODE, REPLACING_NODE_HOST_ID), None, "it is not known which claim is to go");
    world.hear_again();
    assert!(settle(&mut world));
    assert_eq!(world.replaced, 1);
}

/// The user has withdrawn the request when the disk was gone already, and the lost node had joined without a word.
#[test]
fn a_newcomer_knows_whom_it_replaces_until_it_has_joined() {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    let lost = world.host_of(NODE).unwrap();
    world.lose(NODE);
    let annotations = &mut world.kept.services.get_mut(NODE).unwrap().metadata.annotations;
    annotations.get_or_insert_default().insert(NODE_JOINED.into(), "false".into());
    world.set_label(NODE, REPLACE, Some(""));
    until(&mut world, "an empty node has the pod", |world| {
        world.kept.pods.contains_key(NODE) && world.host_of(NODE).as_ref() != Some(&lost)
    });
    world.set_label(NODE, REPLACE, None);
    while world.host_of(NODE).is_none() {
        world.live(NODE);
    }
    for _ in 0..10 {
        world.see(NODE);
        world.tend(NODE);
        world.look();
        while world.write() {}
    }
    assert_eq!(world.annotation(NODE, HOST_ID), world.host_of(NODE).as_deref(), "it has said who it is");
    assert_eq!(world.label(NODE, REPLACING_NODE_HOST_ID), Some(lost.as_str()), "and has not joined yet");
    world.stop(NODE);
    assert!(settle(&mut world));
    assert_eq!((world.replaced, world.ring.contains(&lost)), (1, false));
    check_fresh(&world, &[("a", 2), ("b", 1)]);
}

/// All goes on until the operator is about to delete an object of this kind.
fn until_deletion(world: &mut World, kind: ObjectKind) {
    let is_next = |world: &World| plan(&world.kept).deletions.iter().any(|one| one.kind == kind);
    for _ in 0..60 {
        round_of_others(world);
        if is_next(world) {
            return;
        }
        world.look();
        while world.write() {}
    }
    panic!("no {kind:?} is deleted");
}

fn lose_and_replace() -> World {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    world.lose(NODE);
    world.set_label(NODE, REPLACE, Some(""));
    world
}

/// Answers of other nodes may be of long ago, the pods that gave them may be gone, and another node may have the claim by now.
#[test]
fn the_disk_and_the_pod_of_a_replaced_node_go_if_all_services_and_witnesses_are_as_seen() {
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

/// The pod was made anew after it was written down which one is the lost node's, and in the same second in which the claim was
/// given up: times do not tell which was first.
#[test]
fn a_pod_that_came_just_before_its_claim_was_given_up_goes_with_it() {
    let mut world = lose_and_replace();
    until_deletion(&mut world, ObjectKind::PersistentVolumeClaim);
    world.kept.pods.get_mut(NODE).unwrap().metadata.uid = Some("another".into());
    world.look();
    while world.write() {}
    let given_up = world.kept.claims["data-orders-dc-b-0"].metadata.deletion_timestamp.clone();
    assert!(given_up.is_some());
    world.kept.pods.get_mut(NODE).unwrap().metadata.creation_timestamp = given_up;
    assert!(settle(&mut world));
    assert_eq!(world.replaced, 1);
}

/// The request is withdrawn just before the disk goes, which the operator does not hear of.
#[test]
fn a_disk_stays_if_its_replacement_was_withdrawn_though_services_are_seen_late() {
    let mut world = lose_and_replace();
    until_deletion(&mut world, ObjectKind::PersistentVolumeClaim);
    world.see_old_services();
    world.set_label(NODE, REPLACE, None);
    for _ in 0..5 {
        world.look();
        while world.write() {}
    }
    assert_eq!(world.kept.claims["data-orders-dc-b-0"].metadata.deletion_timestamp, None);
    world.hear_again();
    world.look();
    while world.write() {}
    assert_eq!(world.label(NODE, REPLACING_NODE_HOST_ID), None, "it is forgotten");
}
