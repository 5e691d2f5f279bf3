//! Nodes that ScyllaDB refuses to decommission.

use messina_api::names::annotation::LEAVING_REFUSED;

use crate::{
    plan,
    rounds::{at_rest, check_fresh, settle, until},
    world::World,
};

const A: &str = "orders-dc-a-1";

/// A node of the first rack is to leave, and does not: keyspaces have as many replicas as there are nodes.
fn refusing() -> World {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    world.needed = 3;
    world.respecify(&[("a", 1), ("b", 1)]);
    until(&mut world, "it refuses", |world| world.annotation(A, LEAVING_REFUSED).is_some());
    world
}

#[test]
fn a_node_that_refuses_to_leave_says_why_and_holds_nothing_else_up() {
    let mut world = refusing();
    let is_told = |world: &World| {
        let told = plan(&world.kept).degraded.into_iter().find(|note| note.reason == "DecommissionRefused");
        told.is_some_and(|note| {
            ["ScyllaDB refuses: too few nodes would stay", "`nodes`", "alter the keyspaces"]
                .iter()
                .all(|words| note.message.contains(words))
        })
    };
    assert!(is_told(&world), "{:?}", plan(&world.kept).degraded);
    world.respecify_all(&[("a", 1), ("b", 1)], "2026.2.4", "first");
    let uids = |world: &World| -> Vec<_> { world.kept.pods.values().map(|pod| pod.metadata.uid.clone()).collect() };
    let before = uids(&world);
    until(&mut world, "all nodes have restarted", |world| {
        let now = uids(world);
        now.len() == 3 && now.iter().all(|uid| !before.contains(uid))
    });
    assert_eq!((world.left, is_told(&world)), (0, true), "it is told all the time");
    world.needed = 1;
    assert!(settle(&mut world));
    assert_eq!(world.left, 1, "it is asked again");
    assert!(!is_told(&world));
    check_fresh(&world, &[("a", 1), ("b", 1)]);
}

#[test]
fn a_node_that_refuses_to_leave_keeps_no_other_from_leaving_or_being_cleaned_up() {
    let mut world = at_rest(&[("a", 2), ("b", 2)]);
    world.stubborn.insert(A.into());
    world.respecify(&[("a", 1), ("b", 1)]);
    until(&mut world, "it refuses", |world| world.annotation(A, LEAVING_REFUSED).is_some());
    let before = world.cleaned_up;
    until(&mut world, "the other one has left", |world| world.left == 1);
    until(&mut world, "who stays is cleaned up", |world| world.cleaned_up > before);
    assert_eq!((world.replicas("orders-dc-a"), world.replicas("orders-dc-b")), (2, 1));
    world.stubborn.clear();
    assert!(settle(&mut world));
    check_fresh(&world, &[("a", 1), ("b", 1)]);
}

#[test]
fn a_node_of_a_removed_rack_that_refused_to_leave_is_asked_again() {
    const C: &str = "orders-dc-c-0";
    let mut world = at_rest(&[("a", 2), ("b", 1), ("c", 1)]);
    world.stubborn.insert(C.into());
    world.respecify(&[("a", 1), ("b", 1)]);
    until(&mut world, "it refuses", |world| world.annotation(C, LEAVING_REFUSED).is_some());
    let before = world.cleaned_up;
    until(&mut world, "the other one has left", |world| world.left == 1);
    until(&mut world, "who stays is cleaned up", |world| world.cleaned_up > before);
    world.stubborn.clear();
    assert!(settle(&mut world));
    check_fresh(&world, &[("a", 1), ("b", 1)]);
}

#[test]
fn a_node_that_refuses_to_leave_is_kept_when_it_is_asked_for_again() {
    let mut world = refusing();
    world.respecify(&[("a", 2), ("b", 1)]);
    assert!(settle(&mut world));
    assert_eq!((world.left, world.annotation(A, LEAVING_REFUSED)), (0, None));
    check_fresh(&world, &[("a", 2), ("b", 1)]);
}
