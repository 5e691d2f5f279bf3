//! Nodes that leave and nodes that are replaced, whatever happens meanwhile.

use std::collections::BTreeSet;

use messina_api::names::{
    annotation::{LEAVING_HOST_ID, REPLACING_CLAIM, RING_ANSWER, RING_QUESTION},
    label::{DECOMMISSIONED, REPLACE, REPLACING_NODE_HOST_ID},
};
use messina_plan::datacenter::plan;

use crate::world::World;

const SPECIFICATIONS: [&[(&str, i32)]; 9] = [
    &[("a", 1)],
    &[("a", 3)],
    &[("a", 2), ("b", 2)],
    &[("a", 1), ("b", 1), ("c", 1)],
    &[("b", 2), ("a", 1)],
    &[("a", 2), ("b", 1), ("c", 2)],
    &[("c", 2)],
    &[("a", 0), ("b", 2)],
    &[("a", 2), ("b", 0), ("c", 1)],
];

fn specification(world: &mut World) -> &'static [(&'static str, i32)] {
    SPECIFICATIONS[world.below(SPECIFICATIONS.len())]
}

/// Everybody does what there is to do, nobody is late, nothing breaks; answers whether it comes to rest.
fn settle(world: &mut World) -> bool {
    for _ in 0..600 {
        let mut has_done = false;
        for pod in world.pods() {
            has_done |= world.live(&pod);
            world.gossip(&pod);
            world.see(&pod);
            has_done |= world.tend(&pod);
        }
        has_done |= world.kubernetes();
        for pod in world.lost() {
            if world.kept.services[&pod].metadata.labels.as_ref().is_some_and(|labels| !labels.contains_key(REPLACE)) {
                world.set_label(&pod, REPLACE, Some(""));
                has_done = true;
            }
        }
        world.look();
        while world.write() {
            has_done = true;
        }
        if !has_done {
            return true;
        }
    }
    false
}

/// One thing happens.
fn happen(world: &mut World) {
    let pods = world.pods();
    let pod = if pods.is_empty() { String::new() } else { pods[world.below(pods.len())].clone() };
    match world.below(100) {
        0..22 => world.look(),
        22..44 => _ = world.write(),
        44..56 => _ = world.kubernetes(),
        56..66 if !pod.is_empty() => _ = world.live(&pod),
        66..76 => world.gossip(&pod),
        76..84 => world.see(&pod),
        84..94 => _ = world.tend(&pod),
        94 => {
            let racks = specification(world);
            world.respecify(racks);
        }
        95 => world.crash_the_operator(),
        96 => world.crash_a_node(),
        97 => world.edit_a_label(),
        98 if world.below(4) == 0 => world.shrink_by_hand(),
        99 if world.below(4) == 0 => world.lose_a_disk(),
        _ => {}
    }
}

/// The state is that of a fresh deployment, but for claims that are kept.
fn check_fresh(world: &World, racks: &[(&str, i32)]) {
    let expected: BTreeSet<String> = racks
        .iter()
        .flat_map(|(rack, nodes)| (0..*nodes).map(move |ordinal| format!("orders-dc-{rack}-{ordinal}")))
        .collect();
    let pods: BTreeSet<String> = world.pods().into_iter().collect();
    assert_eq!(pods, expected, "pods");
    let services: BTreeSet<String> = world.kept.services.keys().cloned().collect();
    assert_eq!(services, expected, "Services");
    assert_eq!(world.ring.len(), expected.len(), "nodes in the ring");
    let sets: BTreeSet<String> = world.kept.stateful_sets.keys().cloned().collect();
    assert_eq!(sets, racks.iter().map(|(rack, _)| format!("orders-dc-{rack}")).collect(), "StatefulSets");
    for (name, service) in &world.kept.services {
        let labels = service.metadata.labels.clone().unwrap_or_default();
        let annotations = service.metadata.annotations.clone().unwrap_or_default();
        for key in [DECOMMISSIONED, REPLACING_NODE_HOST_ID] {
            assert!(!labels.contains_key(key), "{key} is left on {name}");
        }
        for key in [LEAVING_HOST_ID, RING_QUESTION, RING_ANSWER, REPLACING_CLAIM] {
            assert!(labels.contains_key(REPLACE) || !annotations.contains_key(key), "{key} is left on {name}");
        }
    }
}

#[test]
fn whatever_happens_no_data_is_lost_and_it_ends_as_a_fresh_deployment() {
    let (worlds, steps) = (50, 2000);
    let (mut left, mut replaced) = (0, 0);
    let mut fresh = World::new(0, &[("a", 2), ("b", 1)]);
    assert!(settle(&mut fresh), "a new datacenter comes to rest");
    for seed in 0..worlds {
        println!("world {seed}");
        let mut world = fresh.with_seed(seed);
        for _ in 0..steps {
            happen(&mut world);
        }
        let racks = specification(&mut world);
        world.respecify(racks);
        // What a user would take back, because it is told that it cannot be done.
        for service in world.kept.services.keys().cloned().collect::<Vec<_>>() {
            world.set_label(&service, REPLACE, None);
        }
        let is_at_rest = settle(&mut world);
        assert!(is_at_rest, "it comes to rest: {:#?}", plan(&world.kept).waiting);
        let notes = plan(&world.kept);
        println!("{:#?} {:#?}", notes.waiting, notes.wrong);
        check_fresh(&world, racks);
        left += world.left;
        replaced += world.replaced;
    }
    println!("{} steps in {worlds} worlds; {left} nodes have left, {replaced} were replaced", worlds * steps);
}
