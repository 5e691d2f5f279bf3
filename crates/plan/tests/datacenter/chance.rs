//! After any random events and crashes of the operator, no data is lost and the end is like a fresh deployment.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec};
use messina_api::names::label::REPLACE;

use crate::{
    rounds::{check_like_fresh, notes, round, run_until, settle, settled_world},
    world::World,
};

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
    SPECIFICATIONS[world.random_below(SPECIFICATIONS.len())]
}

/// Applies one random event.
fn random_event(world: &mut World) {
    let pods = world.pods();
    let pod = if pods.is_empty() { String::new() } else { pods[world.random_below(pods.len())].clone() };
    match world.random_below(100) {
        0..22 => world.reconcile(),
        22..44 => _ = world.write(),
        44..56 => _ = world.run_kubernetes(),
        56..66 if !pod.is_empty() => _ = world.run_node(&pod),
        66..76 => world.gossip(&pod),
        76..84 => world.refresh_sidecar(&pod),
        84..92 => _ = world.run_sidecar(&pod),
        92 if world.random_below(8) == 0 => world.min_nodes = world.random_below(4) + 1,
        92..94 => world.edit_random_label(),
        94 if world.has_orphans() => undo_user_changes(world),
        94 if world.random_below(6) == 0 => {
            let capacity = ["1Gi", "2Gi", "3Gi"][world.random_below(3)];
            world.raise_capacity(capacity);
        }
        94 => {
            let racks = specification(world);
            let version = ["2026.2.4", "2026.2.4", "2026.2.5", "2026.2.6"][world.random_below(4)];
            let reason = ["", "", "first", "second"][world.random_below(4)];
            world.set_spec(racks, version, reason);
        }
        95 if world.random_below(3) == 0 => world.delay_watches(),
        95 if world.random_below(2) == 0 => world.catch_up_watches(),
        95 => world.crash_the_operator(),
        96 if world.random_below(8) == 0 => world.lose_power(),
        96 => world.crash_random_node(),
        97 => world.edit_random_label(),
        98 if world.random_below(4) != 0 => _ = world.finish_cleanup_job(),
        98 => world.scale_in_as_user(),
        99 if world.random_below(4) == 0 => world.lose_random_disk(),
        _ => {}
    }
}

/// Adds all racks to the specification again. A rack that is removed while its StatefulSet does not exist has to be added again:
/// see `storage`. The random user cannot know when the operator is about to delete a StatefulSet, so this happens, and the user
/// then follows the remedy in the condition, with any number of nodes.
fn undo_user_changes(world: &mut World) {
    let whole: Vec<_> = SPECIFICATIONS.into_iter().filter(|racks| racks.len() == 3).collect();
    let racks = whole[world.random_below(whole.len())];
    world.set_racks(racks);
}

/// Checks that StatefulSets and Services are like those of a datacenter that has always had this specification.
fn check_like_new(world: &World, racks: &[(&str, i32)]) {
    let mut new = World::new(7, racks);
    new.set_racks(racks);
    new.raise_capacity("3Gi");
    assert!(settle(&mut new), "a new datacenter comes to rest");
    // A recreated StatefulSet is `Parallel`.
    let spec = |one: &StatefulSet| {
        let spec = one.spec.clone().unwrap();
        assert!(["Parallel", "OrderedReady"].contains(&spec.pod_management_policy.as_deref().unwrap()));
        StatefulSetSpec { pod_management_policy: None, ..spec }
    };
    let sets = |world: &World| -> Vec<_> {
        let sets = world.stored.stateful_sets.iter();
        sets.map(|(name, one)| (name.clone(), one.metadata.labels.clone(), spec(one))).collect()
    };
    assert_eq!(sets(world), sets(&new), "StatefulSets");
    let services = |world: &World| -> Vec<_> {
        let services = world.stored.services.iter();
        services.map(|(name, one)| (name.clone(), one.metadata.labels.clone(), one.spec.clone())).collect()
    };
    assert_eq!(services(world), services(&new), "Services");
}

/// What has happened in the simulations.
#[derive(Debug, Default)]
struct Totals {
    left: usize,
    replaced: usize,
    cleaned_up: usize,
    refused: usize,
    restarted: usize,
    upgraded: usize,
    powered_off: usize,
}

/// Simulates this many random steps. Then the state has to settle, and to be like a fresh one.
fn simulate(mut world: World, steps: usize) -> Totals {
    for _ in 0..steps {
        random_event(&mut world);
    }
    let racks = specification(&mut world);
    world.catch_up_watches();
    while world.write() {}
    if world.has_orphans() {
        undo_user_changes(&mut world);
        run_until(&mut world, "no StatefulSet is away", |world| !world.has_orphans());
    }
    world.set_racks(racks);
    world.raise_capacity("3Gi");
    // The user removes requests that the operator reports as impossible.
    for service in world.stored.services.keys().cloned().collect::<Vec<_>>() {
        world.set_label(&service, REPLACE, None);
    }
    // The user alters keyspaces.
    world.min_nodes = 1;
    assert!(settle(&mut world), "it comes to rest: {:#?}", notes(&world));
    check_like_fresh(&world, racks);
    check_like_new(&world, racks);
    assert_eq!(world.sizes(), BTreeSet::from(["3Gi"]), "sizes of disks");
    let World { left, replaced, cleaned_up, refused, restarted, upgraded, powered_off, .. } = world;
    Totals { left, replaced, cleaned_up, refused, restarted, upgraded, powered_off }
}

/// `MESSINA_WORLDS` is the number of simulations, `MESSINA_FIRST_WORLD` the first seed.
#[test]
fn whatever_happens_no_data_is_lost_and_it_ends_as_a_fresh_deployment() {
    let number = |name: &str, usual| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let (worlds, first, steps) = (number("MESSINA_WORLDS", 50), number("MESSINA_FIRST_WORLD", 0), 2000);
    let fresh = settled_world(&[("a", 2), ("b", 1)]);
    let next = AtomicU64::new(first);
    let sums = Mutex::new(Totals::default());
    let several = || {
        while let Some(seed) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed < first + worlds) {
            println!("world {seed}");
            let mut world = fresh.with_seed(seed);
            world.has_old_sidecars = seed % 5 == 4;
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| simulate(world, steps)));
            let one = outcome.unwrap_or_else(|_| panic!("in world {seed}"));
            let mut sum = sums.lock().unwrap();
            sum.left += one.left;
            sum.replaced += one.replaced;
            sum.cleaned_up += one.cleaned_up;
            sum.refused += one.refused;
            sum.restarted += one.restarted;
            sum.upgraded += one.upgraded;
            sum.powered_off += one.powered_off;
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(several);
        }
    });
    let sum = sums.into_inner().unwrap();
    println!("{} steps in {worlds} worlds: {sum:?}", worlds * steps as u64);
    let Totals { left, replaced, cleaned_up, refused, restarted, upgraded, powered_off } = sum;
    let all = [left, replaced, cleaned_up, restarted, upgraded, powered_off];
    // A start of a replaced node is refused in about one of ten simulations.
    let is_seen = refused > 0 || worlds < 40;
    assert!(is_seen && all.iter().all(|count| *count > 0), "this shows nothing: {all:?}, {refused} refused");
}

/// The operator stops after each of its writes in turn, and another copy takes over.
#[test]
fn crash_after_any_write_changes_nothing_in_the_end() {
    type Case<'a> = (&'a str, fn(&mut World), &'a [(&'a str, i32)]);
    let cases: [Case<'_>; 3] = [
        ("larger disks", |world| world.raise_capacity("2Gi"), &[("a", 2), ("b", 1)]),
        ("scale in", |world| world.set_racks(&[("a", 1), ("b", 1)]), &[("a", 1), ("b", 1)]),
        (
            "replace",
            |world| {
                world.lose_node("orders-dc-b-0");
                world.set_label("orders-dc-b-0", REPLACE, Some(""));
            },
            &[("a", 2), ("b", 1)],
        ),
    ];
    let fresh = settled_world(&[("a", 2), ("b", 1)]);
    for (name, begin, end) in cases {
        let mut crashes = 0;
        for writes in 0.. {
            let mut world = fresh.clone();
            begin(&mut world);
            let mut left = writes;
            for _ in 0..100 {
                round(&mut world, &mut left);
                if left == 0 {
                    break;
                }
            }
            world.crash_the_operator();
            assert!(settle(&mut world), "{name}, {writes} writes");
            check_like_fresh(&world, end);
            assert_eq!(world.sizes().len(), 1, "{name}, {writes} writes: {:?}", world.sizes());
            if left > 0 {
                break;
            }
            crashes += 1;
        }
        println!("{name}: {crashes} crashes");
        assert!(crashes >= 5, "{name}: {crashes} crashes");
    }
}
