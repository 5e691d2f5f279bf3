//! Runs the model in rounds, until nothing changes any more.

use std::collections::BTreeSet;

use crate::plan;
use messina_api::names::{
    annotation::{
        CURRENT_TOKEN_RING_HASH, LAST_CLEANED_UP_TOKEN_RING_HASH, LEAVING_HOST_ID, REPLACING_CLAIM, RING_ANSWER,
        RING_QUESTION,
    },
    label::{DECOMMISSIONED, REPLACE, REPLACING_NODE_HOST_ID},
};
use messina_plan::datacenter::Note;

use crate::world::World;

/// Every actor does once what it can do, without delays or faults. The operator makes at most `writes` writes. Returns whether
/// any actor did something.
pub(crate) fn round(world: &mut World, writes: &mut usize) -> bool {
    let mut has_done = round_without_operator(world);
    world.reconcile();
    while *writes > 0 && world.write() {
        *writes -= 1;
        has_done = true;
    }
    has_done
}

/// A round without the operator.
pub(crate) fn round_without_operator(world: &mut World) -> bool {
    let mut has_done = false;
    for pod in world.pods() {
        has_done |= world.run_node(&pod);
        world.gossip(&pod);
        world.refresh_sidecar(&pod);
        has_done |= world.run_sidecar(&pod);
    }
    has_done |= world.run_kubernetes();
    has_done | world.finish_cleanup_job()
}

/// Runs rounds until nothing changes. Returns whether that happens. The user replaces lost nodes, and deletes pods whose disk is
/// being deleted because the label was removed too late.
pub(crate) fn settle(world: &mut World) -> bool {
    (0..600).any(|_| {
        for pod in world.nodes_with_lost_disks() {
            if world.label(&pod, REPLACE).is_none() {
                world.set_label(&pod, REPLACE, Some(""));
            }
        }
        if let Some(pod) = world.node_on_deleted_disk() {
            world.remove_pod(&pod);
        }
        !round(world, &mut usize::MAX.clone())
    })
}

/// Runs rounds until the condition holds.
pub(crate) fn run_until(world: &mut World, what: &str, is_so: impl Fn(&World) -> bool) {
    let happens = (0..200).any(|_| is_so(world) || (round(world, &mut usize::MAX.clone()), is_so(world)).1);
    assert!(happens, "{what}: {:#?}", plan(&world.stored).progressing);
}

/// Returns a settled datacenter.
pub(crate) fn settled_world(racks: &[(&str, i32)]) -> World {
    let mut world = World::new(7, racks);
    assert!(settle(&mut world), "a new datacenter comes to rest");
    check_like_fresh(&world, racks);
    world
}

/// Returns all progressing and degraded notes of the plan.
pub(crate) fn notes(world: &World) -> Vec<Note> {
    let plan = plan(&world.stored);
    [plan.progressing, plan.degraded].concat()
}

pub(crate) fn reasons(world: &World) -> Vec<&'static str> {
    notes(world).iter().map(|note| note.reason.as_str()).collect()
}

/// Checks that the state is that of a fresh deployment, except for claims that are kept.
pub(crate) fn check_like_fresh(world: &World, racks: &[(&str, i32)]) {
    let expected: BTreeSet<String> = racks
        .iter()
        .flat_map(|(rack, nodes)| (0..*nodes).map(move |ordinal| format!("orders-dc-{rack}-{ordinal}")))
        .collect();
    let pods: BTreeSet<String> = world.pods().into_iter().collect();
    assert_eq!(pods, expected, "pods; {:#?}", notes(world));
    let services: BTreeSet<String> = world.stored.services.keys().cloned().collect();
    assert_eq!(services, expected, "Services");
    assert_eq!(world.ring.len(), expected.len(), "nodes in the ring");
    let sets: BTreeSet<String> = world.stored.stateful_sets.keys().cloned().collect();
    assert_eq!(sets, racks.iter().map(|(rack, _)| format!("orders-dc-{rack}")).collect(), "StatefulSets");
    assert_eq!(world.stored.jobs.keys().collect::<Vec<_>>(), [""; 0], "Jobs");
    for (name, service) in world.stored.services.iter() {
        let labels = service.metadata.labels.clone().unwrap_or_default();
        let annotations = service.metadata.annotations.clone().unwrap_or_default();
        let ring = |key: &str| annotations.get(key).filter(|ring| !ring.is_empty());
        assert!(ring(CURRENT_TOKEN_RING_HASH).is_some(), "{name} does not say what the ring looks like");
        assert_eq!(ring(LAST_CLEANED_UP_TOKEN_RING_HASH), ring(CURRENT_TOKEN_RING_HASH), "{name} is not cleaned up");
        for key in [DECOMMISSIONED, REPLACING_NODE_HOST_ID] {
            assert!(!labels.contains_key(key), "{key} is left on {name}");
        }
        for key in [LEAVING_HOST_ID, RING_QUESTION, RING_ANSWER, REPLACING_CLAIM] {
            assert!(labels.contains_key(REPLACE) || !annotations.contains_key(key), "{key} is left on {name}");
        }
    }
}
