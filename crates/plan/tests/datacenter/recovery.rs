//! Nodes that come back all at once.

use messina_api::names::annotation::{JOINED_HOST_ID, LAST_IMAGE};

use crate::{
    rounds::{at_rest, check_fresh, round, settle},
    world::World,
};

fn policies(world: &World) -> Vec<&str> {
    let policy = |one: &k8s_openapi::api::apps::v1::StatefulSetSpec| one.pod_management_policy.clone();
    let sets = world.kept.stateful_sets.values();
    sets.map(|one| if policy(one.spec.as_ref().unwrap()).as_deref() == Some("Parallel") { "all" } else { "one" })
        .collect()
}

#[test]
fn claims_tell_which_nodes_have_joined_and_what_they_ran() {
    let world = at_rest(&[("a", 2)]);
    let noted = |claim: &str, key: &str| world.kept.claims[claim].metadata.annotations.as_ref().unwrap()[key].clone();
    for claim in ["data-orders-dc-a-0", "data-orders-dc-a-1"] {
        assert!(world.ring.contains(&noted(claim, JOINED_HOST_ID)), "{claim}");
        assert_eq!(noted(claim, LAST_IMAGE), "scylladb/scylla:2026.2.4", "{claim}");
    }
}

#[test]
fn nodes_of_one_rack_come_back_together_after_a_power_loss() {
    let mut world = at_rest(&[("a", 3), ("b", 1)]);
    let ring = world.ring.clone();
    assert_eq!(policies(&world), ["one", "one"]);
    world.lose_power();
    assert!(settle(&mut world), "they come back");
    check_fresh(&world, &[("a", 3), ("b", 1)]);
    assert_eq!((&world.ring, policies(&world)), (&ring, vec!["all", "one"]));
}

#[test]
fn a_rack_without_its_majority_is_left_alone_where_the_others_have_it() {
    let mut world = at_rest(&[("a", 2), ("b", 3)]);
    ["orders-dc-a-0", "orders-dc-a-1"].iter().for_each(|pod| world.remove_pod(pod));
    assert!(settle(&mut world));
    assert_eq!(policies(&world), ["one", "one"]);
}

#[test]
fn a_datacenter_created_on_the_disks_of_a_former_one_has_all_its_nodes() {
    let mut world = at_rest(&[("a", 2), ("b", 2)]);
    let ring = world.ring.clone();
    world.recreate();
    assert!(settle(&mut world), "they come back");
    check_fresh(&world, &[("a", 2), ("b", 2)]);
    assert_eq!((&world.ring, policies(&world)), (&ring, vec!["all", "all"]));
}

#[test]
fn a_datacenter_created_anew_with_other_settings_gets_there_from_what_was() {
    let mut world = at_rest(&[("a", 3)]);
    world.recreate();
    world.respecify_all(&[("a", 1), ("b", 1)], "2026.2.5", "");
    while world.kept.pods.len() < 3 {
        assert!(round(&mut world, &mut usize::MAX.clone()), "it goes on");
        let versions =
            world.kept.pods.values().map(|pod| pod.metadata.labels.as_ref().unwrap()["scylla/scylla-version"].clone());
        assert!(versions.into_iter().all(|version| version == "2026.2.4"), "disks come back with what they ran");
    }
    assert!(settle(&mut world));
    check_fresh(&world, &[("a", 1), ("b", 1)]);
    assert_eq!((world.left, world.upgraded), (2, world.upgraded.max(1)));
}

#[test]
fn new_nodes_join_one_by_one_where_all_pods_are_created_at_once() {
    let mut world = at_rest(&[("a", 2)]);
    world.recreate();
    world.respecify(&[("a", 5)]);
    while world.ring.len() < 5 {
        let joining = world.kept.pods.len() - world.ring.len().min(world.kept.pods.len());
        assert!(joining <= 1, "one joins at a time");
        assert!(round(&mut world, &mut usize::MAX.clone()), "it goes on");
    }
    assert!(settle(&mut world));
    assert_eq!(policies(&world), ["all"]);
}
