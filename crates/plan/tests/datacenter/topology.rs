//! Nodes that leave and nodes that are replaced, whatever happens meanwhile.

use crate::plan;
use messina_api::names::{
    annotation::{HOST_ID, LEAVING_BEGAN, LEAVING_HOST_ID, LEFT_HOST_ID, NODE_JOINED, RESTART_REQUEST},
    label::{DECOMMISSIONED, NODE_MAINTENANCE, REPLACE, REPLACING_NODE_HOST_ID},
};
use messina_plan::datacenter::{FieldPatch, ObjectKind};

use crate::{
    name_of,
    rounds::{at_rest, check_fresh, reasons, round, round_of_others, settle, until},
    world::World,
};

const A: &str = "orders-dc-a-1";

#[test]
fn a_label_that_somebody_set_skips_no_decommission() {
    for value in ["true", "false"] {
        let mut world = at_rest(&[("a", 2), ("b", 1)]);
        world.set_label(A, DECOMMISSIONED, Some(value));
        world.respecify(&[("a", 1), ("b", 1)]);
        assert!(settle(&mut world));
        assert_eq!(world.left, 1, "the node has handed over its data");
        check_fresh(&world, &[("a", 1), ("b", 1)]);
    }
}

/// The label as it is while a node leaves is what somebody may want to help along.
#[test]
fn a_label_that_somebody_set_meanwhile_takes_no_place_away() {
    type Moment<'a> = (&'a str, fn(&World) -> bool);
    let moments: [Moment<'_>; 3] = [
        ("it is asked to leave", |world| world.label(A, DECOMMISSIONED) == Some("false")),
        ("it has said that it begins", |world| world.annotation(A, LEAVING_BEGAN).is_some()),
        ("it leaves", |world| world.is_leaving(A)),
    ];
    for (moment, is_now) in moments {
        let mut world = at_rest(&[("a", 2), ("b", 1)]);
        world.respecify(&[("a", 1), ("b", 1)]);
        until(&mut world, moment, is_now);
        world.set_label(A, DECOMMISSIONED, Some("true"));
        world.look();
        while world.write() {}
        assert_eq!(world.replicas("orders-dc-a"), 2, "{moment}, and its data is not handed over yet");
        assert!(settle(&mut world), "{moment}");
        assert_eq!(world.left, 1, "{moment}");
        check_fresh(&world, &[("a", 1), ("b", 1)]);
    }
}

/// A node that has joined and not yet said so, a StatefulSet that somebody made smaller, and a claim that somebody marked.
#[test]
fn a_mark_that_somebody_set_costs_no_silent_node_its_service() {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    world.respecify(&[("a", 1), ("b", 1)]);
    let host_id = world.host_of(A).unwrap();
    let service = world.kept.services.get_mut(A).unwrap();
    let annotations = service.metadata.annotations.get_or_insert_default();
    annotations.retain(|key, _| key != HOST_ID && key != NODE_JOINED);
    let claim = world.kept.claims.get_mut(&format!("data-{A}")).unwrap();
    claim.metadata.annotations.get_or_insert_default().insert(LEFT_HOST_ID.into(), host_id);
    world.kept.stateful_sets.get_mut("orders-dc-a").unwrap().spec.as_mut().unwrap().replicas = Some(1);
    world.kept.pods.remove(A);
    let plan = plan(&world.kept);
    assert_eq!(plan.deletions, []);
    assert!(plan.changes.iter().any(|change| change.patch["spec"]["replicas"] == 2), "{:?}", plan.changes);
}

/// Who is being cleaned up drops what it does not own, and must not be handed more meanwhile.
#[test]
fn nobody_leaves_while_a_node_is_being_cleaned_up() {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    world.respecify(&[("a", 2), ("b", 2)]);
    until(&mut world, "nodes are cleaned up", |world| !world.kept.jobs.is_empty());
    let jobs = world.kept.jobs.len();
    world.respecify(&[("a", 1), ("b", 2)]);
    let plan = plan(&world.kept);
    let told = plan.progressing.iter().any(|note| {
        note.message.contains("has to leave the token ring. Waiting for other changes to end: Job shop/cleanup-")
    });
    assert!(told, "{:?}", plan.progressing);
    assert_eq!((plan.changes, plan.objects.cleanup_jobs), (vec![], vec![]), "nothing else begins");

    let before = world.cleaned_up;
    until(&mut world, "the node leaves", |world| world.is_leaving(A));
    // The world would not have let it, with Jobs at work.
    assert_eq!(world.cleaned_up - before, jobs);
    assert!(settle(&mut world));
    check_fresh(&world, &[("a", 1), ("b", 2)]);
}

#[test]
fn a_node_that_has_said_that_it_begins_is_not_held_back() {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    world.respecify(&[("a", 1), ("b", 1)]);
    until(&mut world, "it has said that it begins", |world| world.annotation(A, LEAVING_BEGAN).is_some());
    assert!(!world.is_leaving(A));
    world.respecify(&[("a", 2), ("b", 1)]);
    world.look();
    while world.write() {}
    assert_eq!(world.label(A, DECOMMISSIONED), Some("false"), "the request stands");
    assert!(settle(&mut world));
    assert_eq!(world.left, 1);
    check_fresh(&world, &[("a", 2), ("b", 1)]);
}

/// A restart takes one more replica away for a while.
#[test]
fn a_node_elsewhere_that_is_down_holds_restarts_up_until_the_user_overrules_it() {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    world.down_elsewhere.insert("elsewhere-1".into());
    world.respecify_all(&[("a", 2), ("b", 1)], "2026.2.4", "first");
    for _ in 0..30 {
        round(&mut world, &mut usize::MAX.clone());
    }
    assert_eq!(world.restarted, 0);
    let told = plan(&world.kept).progressing.into_iter().find(|note| note.reason == "WaitingForRing").unwrap();
    assert!(told.message.contains("ignored-down-nodes=elsewhere-1"), "{}", told.message);
    world.kept.datacenter.ignored_down_nodes.insert("elsewhere-1".into());
    world.set_label(A, "seen", Some("anew"));
    assert!(settle(&mut world));
    assert_eq!(world.restarted, 3);
}

/// A node is down, its user wants it to be replaced, and that is written down.
fn given_up(name: &str) -> World {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    world.stop(name);
    world.set_label(name, REPLACE, Some(""));
    for pod in world.pods() {
        world.gossip(&pod);
    }
    for _ in 0..20 {
        for pod in world.pods().into_iter().filter(|pod| pod != name) {
            world.see(&pod);
            world.tend(&pod);
        }
        world.look();
        while world.write() {}
        if world.label(name, REPLACING_NODE_HOST_ID).is_some() {
            return world;
        }
    }
    panic!("{:?}", reasons(&world));
}

/// Who is asked before that may answer with what is over when it is written down.
#[test]
fn what_is_asked_of_a_node_is_written_before_the_others_are_asked() {
    let is_request = |change: &FieldPatch| !change.patch["metadata"]["labels"].is_null();
    let mut worlds = [at_rest(&[("a", 2), ("b", 1)]), at_rest(&[("a", 2), ("b", 1)])];
    worlds[0].respecify(&[("a", 1), ("b", 1)]);
    worlds[1].lose("orders-dc-b-0");
    worlds[1].set_label("orders-dc-b-0", REPLACE, Some(""));
    for (world, name) in worlds.iter_mut().zip([A, "orders-dc-b-0"]) {
        let mut next = (0..50).map(|_| {
            world.look();
            while world.write() {}
            round_of_others(world);
            plan(&world.kept).changes
        });
        let changes = next.find(|changes| changes.iter().any(is_request)).unwrap();
        assert_eq!((changes.len(), changes[0].name.as_str()), (3, name), "{changes:?}");
        assert!(is_request(&changes[0]) && !changes[1..].iter().any(is_request), "{changes:?}");
    }
}

#[test]
fn a_node_that_comes_back_too_late_does_not_start() {
    let mut world = given_up("orders-dc-b-0");
    let host_id = world.host_of("orders-dc-b-0").unwrap();
    assert!(!world.live("orders-dc-b-0"), "it starts, and its disk is about to be deleted");
    assert!(settle(&mut world));
    assert_eq!((world.replaced, world.ring.contains(&host_id)), (1, false), "another node has its place");
    check_fresh(&world, &[("a", 2), ("b", 1)]);
}

#[test]
fn a_node_that_comes_back_keeps_its_disk_when_its_replacement_is_withdrawn() {
    let mut world = given_up("orders-dc-b-0");
    let host_id = world.host_of("orders-dc-b-0");
    assert!(!world.live("orders-dc-b-0"));
    world.set_label("orders-dc-b-0", REPLACE, None);
    assert!(settle(&mut world));
    assert_eq!((world.host_of("orders-dc-b-0"), world.replaced), (host_id, 0), "it is the same node");
    check_fresh(&world, &[("a", 2), ("b", 1)]);
}

/// Whoever saw it start before it was written down may still see it come up.
#[test]
fn a_node_that_comes_back_in_time_keeps_its_disk() {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    let host_id = world.host_of("orders-dc-b-0");
    world.stop("orders-dc-b-0");
    world.set_label("orders-dc-b-0", REPLACE, Some(""));
    for pod in world.pods() {
        world.gossip(&pod);
    }
    world.live("orders-dc-b-0");
    for _ in 0..50 {
        round(&mut world, &mut usize::MAX.clone());
    }
    assert_eq!((world.host_of("orders-dc-b-0"), world.replaced), (host_id, 0), "it is the same node");
    assert!(reasons(&world).contains(&"NodeIsUp"), "{:?}", reasons(&world));
}

/// Whoever has just started may hear of Services later than of StatefulSets.
#[test]
fn a_node_that_has_left_gets_no_place_from_old_answers() {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    world.respecify(&[("a", 1), ("b", 1)]);
    until(&mut world, "the node leaves", |world| world.is_leaving(A));
    let old = world.kept.services.clone();
    assert!(settle(&mut world));
    assert_eq!(world.replicas("orders-dc-a"), 1);
    world.kept.services = old;
    let plan = plan(&world.kept);
    assert!(plan.changes.iter().all(|change| change.patch["spec"].is_null()), "{:?}", plan.changes);
    let wanted = |name: &str| plan.objects.stateful_sets.iter().find(|one| name_of(one) == name).cloned();
    let replicas = wanted("orders-dc-a").and_then(|one| one.spec.unwrap().replicas);
    assert!(replicas.is_none_or(|replicas| replicas == 1), "{replicas:?}");
}

/// Everybody does once what there is to do, but of one pod nobody hears anything.
fn round_without_a_word_of(world: &mut World, silent: &str) {
    for pod in world.pods() {
        world.live(&pod);
        if pod != silent {
            tell_of(world, &pod);
        }
    }
    operate(world);
}

/// A node hears of others, and its sidecar does what there is to do.
fn tell_of(world: &mut World, pod: &str) {
    world.gossip(pod);
    world.see(pod);
    world.tend(pod);
}

/// Kubernetes and the operator do what there is to do.
fn operate(world: &mut World) {
    world.kubernetes();
    world.look();
    while world.write() {}
}

/// What the others said before a node joined is no reason to put it away, whatever somebody wrote on its claim.
#[test]
fn a_node_that_joined_after_the_others_have_answered_keeps_its_service() {
    for is_marked in [false, true] {
        let mut world = at_rest(&[("a", 1), ("b", 1)]);
        // They are asked as long as this label is there, because the node is up.
        world.set_label("orders-dc-b-0", REPLACE, Some(""));
        world.respecify(&[("a", 2), ("b", 1)]);
        until(&mut world, "its pod is there", |world| world.kept.pods.contains_key(A));
        while !world.host_of(A).is_some_and(|host_id| world.ring.contains(&host_id)) {
            assert!(world.live(A), "it joins");
        }
        while world.annotation(A, NODE_JOINED) != Some("true") {
            world.see(A);
            assert!(world.tend(A), "and says so");
        }
        let host_id = world.host_of(A).unwrap();
        if is_marked {
            let claim = world.kept.claims.get_mut(&format!("data-{A}")).unwrap();
            claim.metadata.annotations.get_or_insert_default().insert(LEFT_HOST_ID.into(), host_id.clone());
        }
        world.shrink("orders-dc-a");
        while world.kubernetes() {}
        // The world does not let it lose anything.
        for _ in 0..10 {
            world.look();
            while world.write() {}
        }
        assert_eq!(world.annotation(A, LEAVING_HOST_ID), Some(host_id.as_str()), "the others are asked about it");
        assert!(reasons(&world).contains(&"WaitingForRing"), "{:?}", reasons(&world));
        let claim = world.kept.claims.get_mut(&format!("data-{A}")).unwrap();
        claim.metadata.annotations.get_or_insert_default().remove(LEFT_HOST_ID);
        world.set_label("orders-dc-b-0", REPLACE, None);
        assert!(settle(&mut world));
        assert_eq!((world.left, world.host_of(A)), (0, Some(host_id)), "it is the same node");
        check_fresh(&world, &[("a", 2), ("b", 1)]);
    }
}

/// A Service of which it is known that its node is out, and which nobody asked to leave.
#[test]
fn the_service_of_a_node_that_was_removed_by_hand_goes_when_all_say_so() {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    world.respecify(&[("a", 1), ("b", 1)]);
    let host_id = world.host_of(A).unwrap();
    world.ring.remove(&host_id);
    world.shrink("orders-dc-a");
    assert!(settle(&mut world));
    check_fresh(&world, &[("a", 1), ("b", 1)]);
    let claim = &world.kept.claims[&format!("data-{A}")];
    assert_eq!(claim.metadata.annotations.as_ref().unwrap().get(LEFT_HOST_ID), Some(&host_id));
}

/// It takes the place of another one, of which the Service still tells.
#[test]
fn a_node_that_has_replaced_another_one_without_a_word_keeps_its_place() {
    for is_leaving in [false, true] {
        let mut world = at_rest(&[("a", 2), ("b", 1)]);
        if is_leaving {
            world.respecify(&[("a", 1), ("b", 1)]);
            until(&mut world, "it has said that it begins", |world| world.annotation(A, LEAVING_BEGAN).is_some());
        }
        world.lose(A);
        world.set_label(A, REPLACE, Some(""));
        for _ in 0..40 {
            round_without_a_word_of(&mut world, A);
        }
        assert_eq!((world.replaced, world.replicas("orders-dc-a")), (1, 2), "another one is in the ring");
        if !is_leaving {
            world.shrink("orders-dc-a");
        }
        // The world does not let it lose anything.
        for _ in 0..40 {
            round_without_a_word_of(&mut world, A);
        }
        assert_eq!(world.replicas("orders-dc-a"), 2);
        assert!(settle(&mut world));
        check_fresh(&world, &[("a", if is_leaving { 1 } else { 2 }), ("b", 1)]);
    }
}

/// All but one do what there is to do, which is down.
fn round_without(world: &mut World, down: &str) {
    world.stop(down);
    for pod in world.pods().into_iter().filter(|pod| pod != down) {
        world.live(&pod);
        tell_of(world, &pod);
    }
    operate(world);
}

/// Somebody made the StatefulSet smaller; then a node goes down, and the version is to change.
#[test]
fn a_node_that_gets_its_place_back_comes_back_with_its_version() {
    let racks = [("a", 3), ("b", 1)];
    let mut world = at_rest(&racks);
    world.shrink("orders-dc-a");
    world.respecify_for(&racks, "2026.2.5");
    for _ in 0..30 {
        round_without(&mut world, "orders-dc-a-0");
    }
    assert_eq!(world.replicas("orders-dc-a"), 3, "it has its place again");
    // The world lets no node start with another version unprepared.
    assert!(settle(&mut world));
    check_fresh(&world, &racks);
    assert_eq!(world.upgraded, 4);
}

/// Nobody would start these again.
#[test]
fn nothing_restarts_while_a_node_of_a_rack_without_stateful_set_is_down() {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    world.enlarge("2Gi");
    while !world.has_orphans() {
        round(&mut world, &mut 1);
    }
    world.respecify_all(&[("b", 1)], "2026.2.4", "x");
    for _ in 0..30 {
        round_without(&mut world, "orders-dc-a-0");
    }
    assert!(reasons(&world).contains(&"RackWithoutStatefulSet"), "{:?}", reasons(&world));
    assert_eq!(world.restarted, 0);
    world.respecify_all(&[("a", 2), ("b", 1)], "2026.2.4", "x");
    assert!(settle(&mut world));
    assert_eq!(world.restarted, 3);
}

#[test]
fn a_label_alone_makes_no_node_leave() {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    world.set_label(A, DECOMMISSIONED, Some("false"));
    assert!(settle(&mut world));
    assert_eq!(world.left, 0);
    check_fresh(&world, &[("a", 2), ("b", 1)]);
}

#[test]
fn a_request_is_withdrawn_before_the_node_begins() {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    let host_id = world.host_of(A);
    world.respecify(&[("a", 1), ("b", 1)]);
    until(&mut world, "the node is asked to leave", |world| world.label(A, DECOMMISSIONED) == Some("false"));
    world.respecify(&[("a", 2), ("b", 1)]);
    world.look();
    while world.write() {}
    assert!(settle(&mut world));
    assert_eq!((world.left, world.host_of(A)), (0, host_id), "it is the same node");
    check_fresh(&world, &[("a", 2), ("b", 1)]);
}

#[test]
fn a_node_that_has_begun_leaves_and_another_one_comes_with_an_empty_disk() {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    let host_id = world.host_of(A);
    world.respecify(&[("a", 1), ("b", 1)]);
    until(&mut world, "the node leaves", |world| world.is_leaving(A));
    world.respecify(&[("a", 2), ("b", 1)]);
    assert!(settle(&mut world));
    assert_eq!(world.left, 1);
    assert_ne!(world.host_of(A), host_id, "it is another node");
    check_fresh(&world, &[("a", 2), ("b", 1)]);
}

#[test]
fn a_rack_goes_node_by_node() {
    let mut world = at_rest(&[("a", 2), ("b", 2)]);
    world.respecify(&[("a", 2)]);
    assert!(settle(&mut world));
    assert_eq!(world.left, 2);
    check_fresh(&world, &[("a", 2)]);
    let kept: Vec<&String> = world.kept.claims.keys().filter(|name| name.contains("-b-")).collect();
    assert_eq!(kept, ["data-orders-dc-b-0", "data-orders-dc-b-1"], "claims are kept");
    world.respecify(&[("a", 2), ("b", 1)]);
    assert!(settle(&mut world));
    check_fresh(&world, &[("a", 2), ("b", 1)]);
    let kept: Vec<&String> = world.kept.claims.keys().filter(|name| name.contains("-b-")).collect();
    assert_eq!(kept, ["data-orders-dc-b-0", "data-orders-dc-b-1"], "until a new node needs the name");
}

#[test]
fn claims_go_with_their_nodes_where_the_user_says_so() {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    world.respecify(&[("a", 1), ("b", 1)]);
    world.kept.datacenter.deletes_claims_of_left_nodes = true;
    assert!(settle(&mut world));
    assert_eq!(world.kept.claims.keys().collect::<Vec<_>>(), ["data-orders-dc-a-0", "data-orders-dc-b-0"]);
}

#[test]
fn the_last_node_stays() {
    let mut world = at_rest(&[("a", 1)]);
    world.respecify(&[("a", 0)]);
    assert!(settle(&mut world));
    assert_eq!((world.left, world.pods().len()), (0, 1));
    assert!(reasons(&world).contains(&"CannotDecommissionLastNode"), "{:?}", reasons(&world));
}

#[test]
fn nothing_leaves_while_another_node_is_down() {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    world.lose("orders-dc-b-0");
    world.respecify(&[("a", 1), ("b", 1)]);
    for _ in 0..50 {
        round(&mut world, &mut usize::MAX.clone());
    }
    assert_eq!((world.left, world.label(A, DECOMMISSIONED)), (0, None));
    assert!(reasons(&world).contains(&"WaitingForStatefulSetRollout"), "{:?}", reasons(&world));
}

#[test]
fn a_lost_node_is_replaced_and_a_bad_request_holds_up_nobody() {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    let up = world.host_of("orders-dc-a-0");
    world.set_label("orders-dc-a-0", REPLACE, Some(""));
    world.lose("orders-dc-b-0");
    assert!(settle(&mut world));
    assert_eq!((world.replaced, world.host_of("orders-dc-a-0")), (1, up), "one that is up is not replaced");
    assert_eq!(world.label("orders-dc-b-0", REPLACE), None);
    assert!(reasons(&world).contains(&"NodeIsUp"), "{:?}", reasons(&world));
    world.set_label("orders-dc-a-0", REPLACE, None);
    assert!(settle(&mut world));
    check_fresh(&world, &[("a", 2), ("b", 1)]);
}

#[test]
fn a_replacement_that_fails_is_begun_again() {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    let lost = world.host_of("orders-dc-b-0");
    world.lose("orders-dc-b-0");
    world.set_label("orders-dc-b-0", REPLACE, Some(""));
    until(&mut world, "an empty disk is there", |world| {
        world.host_of("orders-dc-b-0").is_some() && world.host_of("orders-dc-b-0") != lost
    });
    world.lose("orders-dc-b-0");
    for _ in 0..20 {
        round(&mut world, &mut usize::MAX.clone());
    }
    assert_eq!(world.replaced, 0, "this disk is lost too");
    world.set_label("orders-dc-b-0", REPLACE, None);
    for _ in 0..5 {
        round(&mut world, &mut usize::MAX.clone());
    }
    assert!(settle(&mut world));
    assert_eq!(world.replaced, 1);
    check_fresh(&world, &[("a", 2), ("b", 1)]);
}

#[test]
fn nothing_begins_while_somebody_works_on_a_node() {
    type Wish = fn(&mut World);
    let wishes: [(&str, Wish); 5] = [
        ("a node is to join", |world| world.respecify(&[("a", 2), ("b", 2)])),
        ("a rack is to come", |world| world.respecify(&[("a", 2), ("b", 1), ("c", 1)])),
        ("a node is to leave", |world| world.respecify(&[("a", 1), ("b", 1)])),
        ("nodes are to change", |world| world.respecify_for(&[("a", 2), ("b", 1)], "2026.2.5")),
        ("a node is to be replaced", |world| {
            world.lose(A);
            world.set_label(A, REPLACE, Some(""));
        }),
    ];
    for (wish, happen) in wishes {
        for node in [A, "orders-dc-b-0"] {
            let mut world = at_rest(&[("a", 2), ("b", 1)]);
            world.set_label(node, NODE_MAINTENANCE, Some(""));
            for _ in 0..5 {
                round(&mut world, &mut usize::MAX.clone());
            }
            let uids = |world: &World| -> Vec<_> {
                world.kept.pods.iter().map(|(name, pod)| (name.clone(), pod.metadata.uid.clone())).collect()
            };
            let pods = uids(&world);
            let replicas = |world: &World| ["orders-dc-a", "orders-dc-b"].map(|name| world.replicas(name));
            let before = replicas(&world);
            happen(&mut world);
            for _ in 0..50 {
                round(&mut world, &mut usize::MAX.clone());
            }
            assert_eq!((uids(&world), replicas(&world)), (pods.clone(), before), "{wish}, {node}");
            assert_eq!(world.kept.stateful_sets.len(), 2, "{wish}, {node}");
            let told =
                plan(&world.kept).progressing.into_iter().find(|note| note.reason == "NodeUnderMaintenance").unwrap();
            let command = format!("kubectl label service -n shop {node} scylla/node-maintenance-");
            assert!(told.message.contains(&command), "{}", told.message);
            world.set_label(node, NODE_MAINTENANCE, None);
            assert!(settle(&mut world), "{wish}: it goes on when that is over");
            assert!(!reasons(&world).contains(&"NodeUnderMaintenance"));
            assert!(uids(&world) != pods, "{wish}");
        }
    }
}

/// Nobody can leave while a node cannot be found, and that one does not restart while somebody leaves.
#[test]
fn a_node_stays_until_another_one_has_restarted_with_its_new_address() {
    let mut world = at_rest(&[("a", 2), ("b", 1)]);
    world.respecify(&[("a", 1), ("b", 1)]);
    for _ in 0..20 {
        if world.label(A, DECOMMISSIONED).is_some() {
            break;
        }
        for pod in world.pods().into_iter().filter(|pod| pod != A) {
            world.gossip(&pod);
            world.see(&pod);
            world.tend(&pod);
        }
        world.look();
        while world.write() {}
    }
    assert_eq!((world.label(A, DECOMMISSIONED), world.annotation(A, LEAVING_BEGAN)), (Some("false"), None));
    let pod = world.kept.pods["orders-dc-b-0"].metadata.uid.clone().unwrap();
    let service = world.kept.services.get_mut("orders-dc-b-0").unwrap();
    service.metadata.annotations.get_or_insert_default().insert(RESTART_REQUEST.into(), pod);
    // With that, its Service is of another version, so it is looked at.
    world.set_label("orders-dc-b-0", "seen", Some("anew"));
    world.look();
    while world.write() {}
    assert_eq!(world.label(A, DECOMMISSIONED), None, "it stays");
    let is_restarted = |world: &World| {
        plan(&world.kept)
            .deletions
            .iter()
            .any(|one| (one.kind, one.name.as_str()) == (ObjectKind::Pod, "orders-dc-b-0"))
    };
    let restarts = (0..20).any(|_| {
        round_of_others(&mut world);
        is_restarted(&world) || {
            world.look();
            while world.write() {}
            false
        }
    });
    assert!(restarts, "{:?}", reasons(&world));
}
