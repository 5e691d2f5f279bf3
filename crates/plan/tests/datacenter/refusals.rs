//! Nodes that ScyllaDB refuses to decommission.

use messina_api::names::annotation::LEAVING_REFUSED;

use crate::{
    plan,
    rounds::{check_like_fresh, run_until, settle, settled_world},
    world::World,
};

const A: &str = "orders-dc-a-1";

/// A node of the first rack has to leave, and ScyllaDB refuses: the replication factor is the number of nodes.
fn refusing() -> World {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.min_nodes = 3;
    world.set_racks(&[("a", 1), ("b", 1)]);
    run_until(&mut world, "it refuses", |world| world.annotation(A, LEAVING_REFUSED).is_some());
    world
}

#[test]
fn refused_decommission_is_reported_and_blocks_nothing_else() {
    let mut world = refusing();
    let is_reported = |world: &World| {
        let reported = plan(&world.stored).degraded.into_iter().find(|note| note.reason == "DecommissionRefused");
        reported.is_some_and(|note| {
            ["ScyllaDB refuses: too few nodes would stay", "`nodes`", "alter the keyspaces"]
                .iter()
                .all(|words| note.message.contains(words))
        })
    };
    assert!(is_reported(&world), "{:?}", plan(&world.stored).degraded);
    world.set_spec(&[("a", 1), ("b", 1)], "2026.2.4", "first");
    let uids = |world: &World| -> Vec<_> { world.stored.pods.values().map(|pod| pod.metadata.uid.clone()).collect() };
    let before = uids(&world);
    run_until(&mut world, "all nodes have restarted", |world| {
        let now = uids(world);
        now.len() == 3 && now.iter().all(|uid| !before.contains(uid))
    });
    assert_eq!((world.left, is_reported(&world)), (0, true), "it is reported all the time");
    world.min_nodes = 1;
    assert!(settle(&mut world));
    assert_eq!(world.left, 1, "it is asked again");
    assert!(!is_reported(&world));
    check_like_fresh(&world, &[("a", 1), ("b", 1)]);
}

#[test]
fn refused_decommission_does_not_block_other_decommissions_or_cleanup() {
    let mut world = settled_world(&[("a", 2), ("b", 2)]);
    world.refusing_nodes.insert(A.into());
    world.set_racks(&[("a", 1), ("b", 1)]);
    run_until(&mut world, "it refuses", |world| world.annotation(A, LEAVING_REFUSED).is_some());
    let before = world.cleaned_up;
    run_until(&mut world, "the other one has left", |world| world.left == 1);
    run_until(&mut world, "who stays is cleaned up", |world| world.cleaned_up > before);
    assert_eq!((world.replicas("orders-dc-a"), world.replicas("orders-dc-b")), (2, 1));
    world.refusing_nodes.clear();
    assert!(settle(&mut world));
    check_like_fresh(&world, &[("a", 1), ("b", 1)]);
}

#[test]
fn refused_decommission_of_a_removed_rack_is_requested_again() {
    const C: &str = "orders-dc-c-0";
    let mut world = settled_world(&[("a", 2), ("b", 1), ("c", 1)]);
    world.refusing_nodes.insert(C.into());
    world.set_racks(&[("a", 1), ("b", 1)]);
    run_until(&mut world, "it refuses", |world| world.annotation(C, LEAVING_REFUSED).is_some());
    let before = world.cleaned_up;
    run_until(&mut world, "the other one has left", |world| world.left == 1);
    run_until(&mut world, "who stays is cleaned up", |world| world.cleaned_up > before);
    world.refusing_nodes.clear();
    assert!(settle(&mut world));
    check_like_fresh(&world, &[("a", 1), ("b", 1)]);
}

#[test]
fn refused_decommission_is_cancelled_when_the_node_is_desired_again() {
    let mut world = refusing();
    world.set_racks(&[("a", 2), ("b", 1)]);
    assert!(settle(&mut world));
    assert_eq!((world.left, world.annotation(A, LEAVING_REFUSED)), (0, None));
    check_like_fresh(&world, &[("a", 2), ("b", 1)]);
}
