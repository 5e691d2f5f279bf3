//! Nodes that are decommissioned and nodes that are replaced, whatever else happens.

use crate::plan;
use messina_api::names::{
    annotation::{HOST_ID, LEAVING_BEGAN, LEAVING_HOST_ID, LEFT_HOST_ID, NODE_JOINED, RESTART_REQUEST},
    label::{DECOMMISSIONED, NODE_MAINTENANCE, REPLACE, REPLACING_NODE_HOST_ID},
};
use messina_plan::datacenter::{FieldPatch, ObjectKind};

use crate::{
    name_of,
    rounds::{check_like_fresh, reasons, round, round_without_operator, run_until, settle, settled_world},
    world::World,
};

const A: &str = "orders-dc-a-1";

#[test]
fn decommissioned_label_set_by_a_user_does_not_skip_the_decommission() {
    for value in ["true", "false"] {
        let mut world = settled_world(&[("a", 2), ("b", 1)]);
        world.set_label(A, DECOMMISSIONED, Some(value));
        world.set_racks(&[("a", 1), ("b", 1)]);
        assert!(settle(&mut world));
        assert_eq!(world.left, 1, "the node has handed over its data");
        check_like_fresh(&world, &[("a", 1), ("b", 1)]);
    }
}

/// A user may set the label to speed up a decommission.
#[test]
fn decommissioned_label_set_by_a_user_does_not_reduce_replicas() {
    type Moment<'a> = (&'a str, fn(&World) -> bool);
    let moments: [Moment<'_>; 3] = [
        ("it is asked to leave", |world| world.label(A, DECOMMISSIONED) == Some("false")),
        ("it has said that it begins", |world| world.annotation(A, LEAVING_BEGAN).is_some()),
        ("it leaves", |world| world.is_leaving(A)),
    ];
    for (moment, is_now) in moments {
        let mut world = settled_world(&[("a", 2), ("b", 1)]);
        world.set_racks(&[("a", 1), ("b", 1)]);
        run_until(&mut world, moment, is_now);
        world.set_label(A, DECOMMISSIONED, Some("true"));
        world.reconcile();
        while world.write() {}
        assert_eq!(world.replicas("orders-dc-a"), 2, "{moment}, and its data is not handed over yet");
        assert!(settle(&mut world), "{moment}");
        assert_eq!(world.left, 1, "{moment}");
        check_like_fresh(&world, &[("a", 1), ("b", 1)]);
    }
}

/// The sidecar has not written yet that its node joined, a user scaled the StatefulSet in, and a user annotated the claim.
#[test]
fn claim_annotated_by_a_user_does_not_delete_the_service_of_a_node_that_joined() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.set_racks(&[("a", 1), ("b", 1)]);
    let host_id = world.host_id_of(A).unwrap();
    let service = world.stored.services.get_mut(A).unwrap();
    let annotations = service.metadata.annotations.get_or_insert_default();
    annotations.retain(|key, _| key != HOST_ID && key != NODE_JOINED);
    let claim = world.stored.claims.get_mut(&format!("data-{A}")).unwrap();
    claim.metadata.annotations.get_or_insert_default().insert(LEFT_HOST_ID.into(), host_id);
    world.stored.stateful_sets.get_mut("orders-dc-a").unwrap().spec.as_mut().unwrap().replicas = Some(1);
    world.stored.pods.remove(A);
    let plan = plan(&world.stored);
    assert_eq!(plan.deletions, []);
    assert!(plan.changes.iter().any(|change| change.patch["spec"]["replicas"] == 2), "{:?}", plan.changes);
}

/// A node that is being cleaned up drops data that it does not own, and must not receive token ranges meanwhile.
#[test]
fn scale_in_waits_for_running_cleanup_jobs() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.set_racks(&[("a", 2), ("b", 2)]);
    run_until(&mut world, "nodes are cleaned up", |world| !world.stored.jobs.is_empty());
    let jobs = world.stored.jobs.len();
    world.set_racks(&[("a", 1), ("b", 2)]);
    let plan = plan(&world.stored);
    let reported = plan.progressing.iter().any(|note| {
        note.message.contains("has to leave the token ring. Waiting for other changes to end: Job shop/cleanup-")
    });
    assert!(reported, "{:?}", plan.progressing);
    assert_eq!((plan.changes, plan.objects.cleanup_jobs), (vec![], vec![]), "nothing else begins");

    let before = world.cleaned_up;
    run_until(&mut world, "the node leaves", |world| world.is_leaving(A));
    // The model asserts that no node leaves while Jobs run.
    assert_eq!(world.cleaned_up - before, jobs);
    assert!(settle(&mut world));
    check_like_fresh(&world, &[("a", 1), ("b", 2)]);
}

#[test]
fn decommission_that_has_begun_is_not_cancelled() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.set_racks(&[("a", 1), ("b", 1)]);
    run_until(&mut world, "it has said that it begins", |world| world.annotation(A, LEAVING_BEGAN).is_some());
    assert!(!world.is_leaving(A));
    world.set_racks(&[("a", 2), ("b", 1)]);
    world.reconcile();
    while world.write() {}
    assert_eq!(world.label(A, DECOMMISSIONED), Some("false"), "the request stands");
    assert!(settle(&mut world));
    assert_eq!(world.left, 1);
    check_like_fresh(&world, &[("a", 2), ("b", 1)]);
}

/// A restart makes one more replica unavailable for a while.
#[test]
fn restarts_wait_for_a_down_node_of_another_datacenter_until_the_user_ignores_it() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.down_elsewhere.insert("elsewhere-1".into());
    world.set_spec(&[("a", 2), ("b", 1)], "2026.2.4", "first");
    for _ in 0..30 {
        round(&mut world, &mut usize::MAX.clone());
    }
    assert_eq!(world.restarted, 0);
    let reported = plan(&world.stored).progressing.into_iter().find(|note| note.reason == "WaitingForRing").unwrap();
    assert!(reported.message.contains("ignored-down-nodes=elsewhere-1"), "{}", reported.message);
    world.stored.datacenter.ignored_down_nodes.insert("elsewhere-1".into());
    world.set_label(A, "seen", Some("again"));
    assert!(settle(&mut world));
    assert_eq!(world.restarted, 3);
}

/// Returns a world with a node that is down, and whose replacement is requested and written down.
fn with_replacement_in_progress(name: &str) -> World {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.stop_node(name);
    world.set_label(name, REPLACE, Some(""));
    for pod in world.pods() {
        world.gossip(&pod);
    }
    for _ in 0..20 {
        for pod in world.pods().into_iter().filter(|pod| pod != name) {
            world.refresh_sidecar(&pod);
            world.run_sidecar(&pod);
        }
        world.reconcile();
        while world.write() {}
        if world.label(name, REPLACING_NODE_HOST_ID).is_some() {
            return world;
        }
    }
    panic!("{:?}", reasons(&world));
}

/// An answer to an earlier question may be outdated when the request is written.
#[test]
fn request_to_a_node_is_written_before_the_question_to_the_others() {
    let is_request = |change: &FieldPatch| !change.patch["metadata"]["labels"].is_null();
    let mut worlds = [settled_world(&[("a", 2), ("b", 1)]), settled_world(&[("a", 2), ("b", 1)])];
    worlds[0].set_racks(&[("a", 1), ("b", 1)]);
    worlds[1].lose_node("orders-dc-b-0");
    worlds[1].set_label("orders-dc-b-0", REPLACE, Some(""));
    for (world, name) in worlds.iter_mut().zip([A, "orders-dc-b-0"]) {
        let mut next = (0..50).map(|_| {
            world.reconcile();
            while world.write() {}
            round_without_operator(world);
            plan(&world.stored).changes
        });
        let changes = next.find(|changes| changes.iter().any(is_request)).unwrap();
        assert_eq!((changes.len(), changes[0].name.as_str()), (3, name), "{changes:?}");
        assert!(is_request(&changes[0]) && !changes[1..].iter().any(is_request), "{changes:?}");
    }
}

#[test]
fn replaced_node_does_not_start_when_it_comes_back_too_late() {
    let mut world = with_replacement_in_progress("orders-dc-b-0");
    let host_id = world.host_id_of("orders-dc-b-0").unwrap();
    assert!(!world.run_node("orders-dc-b-0"), "it starts, and its disk is about to be deleted");
    assert!(settle(&mut world));
    assert_eq!((world.replaced, world.ring.contains(&host_id)), (1, false), "another node has its place");
    check_like_fresh(&world, &[("a", 2), ("b", 1)]);
}

#[test]
fn node_keeps_its_disk_when_its_replacement_is_cancelled() {
    let mut world = with_replacement_in_progress("orders-dc-b-0");
    let host_id = world.host_id_of("orders-dc-b-0");
    assert!(!world.run_node("orders-dc-b-0"));
    world.set_label("orders-dc-b-0", REPLACE, None);
    assert!(settle(&mut world));
    assert_eq!((world.host_id_of("orders-dc-b-0"), world.replaced), (host_id, 0), "it is the same node");
    check_like_fresh(&world, &[("a", 2), ("b", 1)]);
}

/// Nodes that saw it start before the replacement was written down may still see it up.
#[test]
fn node_that_comes_back_in_time_is_not_replaced() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    let host_id = world.host_id_of("orders-dc-b-0");
    world.stop_node("orders-dc-b-0");
    world.set_label("orders-dc-b-0", REPLACE, Some(""));
    for pod in world.pods() {
        world.gossip(&pod);
    }
    world.run_node("orders-dc-b-0");
    for _ in 0..50 {
        round(&mut world, &mut usize::MAX.clone());
    }
    assert_eq!((world.host_id_of("orders-dc-b-0"), world.replaced), (host_id, 0), "it is the same node");
    assert!(reasons(&world).contains(&"NodeIsUp"), "{:?}", reasons(&world));
}

/// An operator that has just started may observe Services later than StatefulSets.
#[test]
fn replicas_are_not_raised_from_outdated_answers() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.set_racks(&[("a", 1), ("b", 1)]);
    run_until(&mut world, "the node leaves", |world| world.is_leaving(A));
    let old = world.stored.services.clone();
    assert!(settle(&mut world));
    assert_eq!(world.replicas("orders-dc-a"), 1);
    world.stored.services = old;
    let plan = plan(&world.stored);
    assert!(plan.changes.iter().all(|change| change.patch["spec"].is_null()), "{:?}", plan.changes);
    let wanted = |name: &str| plan.objects.stateful_sets.iter().find(|one| name_of(one) == name).cloned();
    let replicas = wanted("orders-dc-a").and_then(|one| one.spec.unwrap().replicas);
    assert!(replicas.is_none_or(|replicas| replicas == 1), "{replicas:?}");
}

/// A round in which one sidecar writes nothing.
fn round_with_silent_sidecar(world: &mut World, silent: &str) {
    for pod in world.pods() {
        world.run_node(&pod);
        if pod != silent {
            gossip_and_run_sidecar(world, &pod);
        }
    }
    run_kubernetes_and_operator(world);
}

/// Updates the node's view of the others, and runs its sidecar.
fn gossip_and_run_sidecar(world: &mut World, pod: &str) {
    world.gossip(pod);
    world.refresh_sidecar(pod);
    world.run_sidecar(pod);
}

/// Runs Kubernetes and the operator once.
fn run_kubernetes_and_operator(world: &mut World) {
    world.run_kubernetes();
    world.reconcile();
    while world.write() {}
}

/// Answers from before a node joined must not lead to the deletion of its objects, whatever a user wrote on its claim.
#[test]
fn service_of_a_node_that_joined_after_the_answers_is_kept() {
    for is_marked in [false, true] {
        let mut world = settled_world(&[("a", 1), ("b", 1)]);
        // The operator asks for the ring as long as this label is set, because the node is up.
        world.set_label("orders-dc-b-0", REPLACE, Some(""));
        world.set_racks(&[("a", 2), ("b", 1)]);
        run_until(&mut world, "its pod is there", |world| world.stored.pods.contains_key(A));
        while !world.host_id_of(A).is_some_and(|host_id| world.ring.contains(&host_id)) {
            assert!(world.run_node(A), "it joins");
        }
        while world.annotation(A, NODE_JOINED) != Some("true") {
            world.refresh_sidecar(A);
            assert!(world.run_sidecar(A), "and says so");
        }
        let host_id = world.host_id_of(A).unwrap();
        if is_marked {
            let claim = world.stored.claims.get_mut(&format!("data-{A}")).unwrap();
            claim.metadata.annotations.get_or_insert_default().insert(LEFT_HOST_ID.into(), host_id.clone());
        }
        world.reduce_replicas("orders-dc-a");
        while world.run_kubernetes() {}
        // The model asserts that it loses nothing.
        for _ in 0..10 {
            world.reconcile();
            while world.write() {}
        }
        assert_eq!(world.annotation(A, LEAVING_HOST_ID), Some(host_id.as_str()), "the others are asked about it");
        assert!(reasons(&world).contains(&"WaitingForRing"), "{:?}", reasons(&world));
        let claim = world.stored.claims.get_mut(&format!("data-{A}")).unwrap();
        claim.metadata.annotations.get_or_insert_default().remove(LEFT_HOST_ID);
        world.set_label("orders-dc-b-0", REPLACE, None);
        assert!(settle(&mut world));
        assert_eq!((world.left, world.host_id_of(A)), (0, Some(host_id)), "it is the same node");
        check_like_fresh(&world, &[("a", 2), ("b", 1)]);
    }
}

/// The other nodes confirm that the node is not in the ring, and the operator did not request it to leave.
#[test]
fn service_of_a_node_removed_by_a_user_is_deleted_when_all_nodes_confirm() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.set_racks(&[("a", 1), ("b", 1)]);
    let host_id = world.host_id_of(A).unwrap();
    world.ring.remove(&host_id);
    world.reduce_replicas("orders-dc-a");
    assert!(settle(&mut world));
    check_like_fresh(&world, &[("a", 1), ("b", 1)]);
    let claim = &world.stored.claims[&format!("data-{A}")];
    assert_eq!(claim.metadata.annotations.as_ref().unwrap().get(LEFT_HOST_ID), Some(&host_id));
}

/// Its Service still has the host ID of the node that it replaced.
#[test]
fn replicas_are_kept_for_a_replacing_node_whose_sidecar_is_silent() {
    for is_leaving in [false, true] {
        let mut world = settled_world(&[("a", 2), ("b", 1)]);
        if is_leaving {
            world.set_racks(&[("a", 1), ("b", 1)]);
            run_until(&mut world, "it has said that it begins", |world| world.annotation(A, LEAVING_BEGAN).is_some());
        }
        world.lose_node(A);
        world.set_label(A, REPLACE, Some(""));
        for _ in 0..40 {
            round_with_silent_sidecar(&mut world, A);
        }
        assert_eq!((world.replaced, world.replicas("orders-dc-a")), (1, 2), "another one is in the ring");
        if !is_leaving {
            world.reduce_replicas("orders-dc-a");
        }
        // The model asserts that it loses nothing.
        for _ in 0..40 {
            round_with_silent_sidecar(&mut world, A);
        }
        assert_eq!(world.replicas("orders-dc-a"), 2);
        assert!(settle(&mut world));
        check_like_fresh(&world, &[("a", if is_leaving { 1 } else { 2 }), ("b", 1)]);
    }
}

/// A round without one node, which is down.
fn round_without_node(world: &mut World, down: &str) {
    world.stop_node(down);
    for pod in world.pods().into_iter().filter(|pod| pod != down) {
        world.run_node(&pod);
        gossip_and_run_sidecar(world, &pod);
    }
    run_kubernetes_and_operator(world);
}

/// A user scaled the StatefulSet in; then a node goes down, and the desired version changes.
#[test]
fn node_beyond_replicas_comes_back_with_its_version() {
    let racks = [("a", 3), ("b", 1)];
    let mut world = settled_world(&racks);
    world.reduce_replicas("orders-dc-a");
    world.set_racks_and_version(&racks, "2026.2.5");
    for _ in 0..30 {
        round_without_node(&mut world, "orders-dc-a-0");
    }
    assert_eq!(world.replicas("orders-dc-a"), 3, "it has its place again");
    // The model asserts that no node starts with another version unprepared.
    assert!(settle(&mut world));
    check_like_fresh(&world, &racks);
    assert_eq!(world.upgraded, 4);
}

/// Without a StatefulSet, Kubernetes does not start these again.
#[test]
fn restarts_wait_for_a_down_node_without_stateful_set() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.raise_capacity("2Gi");
    while !world.has_orphans() {
        round(&mut world, &mut 1);
    }
    world.set_spec(&[("b", 1)], "2026.2.4", "x");
    for _ in 0..30 {
        round_without_node(&mut world, "orders-dc-a-0");
    }
    assert!(reasons(&world).contains(&"RackWithoutStatefulSet"), "{:?}", reasons(&world));
    assert_eq!(world.restarted, 0);
    world.set_spec(&[("a", 2), ("b", 1)], "2026.2.4", "x");
    assert!(settle(&mut world));
    assert_eq!(world.restarted, 3);
}

#[test]
fn decommissioned_label_alone_starts_no_decommission() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.set_label(A, DECOMMISSIONED, Some("false"));
    assert!(settle(&mut world));
    assert_eq!(world.left, 0);
    check_like_fresh(&world, &[("a", 2), ("b", 1)]);
}

#[test]
fn decommission_is_cancelled_before_it_has_begun() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    let host_id = world.host_id_of(A);
    world.set_racks(&[("a", 1), ("b", 1)]);
    run_until(&mut world, "the node is asked to leave", |world| world.label(A, DECOMMISSIONED) == Some("false"));
    world.set_racks(&[("a", 2), ("b", 1)]);
    world.reconcile();
    while world.write() {}
    assert!(settle(&mut world));
    assert_eq!((world.left, world.host_id_of(A)), (0, host_id), "it is the same node");
    check_like_fresh(&world, &[("a", 2), ("b", 1)]);
}

#[test]
fn node_scaled_out_during_its_decommission_joins_with_an_empty_disk() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    let host_id = world.host_id_of(A);
    world.set_racks(&[("a", 1), ("b", 1)]);
    run_until(&mut world, "the node leaves", |world| world.is_leaving(A));
    world.set_racks(&[("a", 2), ("b", 1)]);
    assert!(settle(&mut world));
    assert_eq!(world.left, 1);
    assert_ne!(world.host_id_of(A), host_id, "it is another node");
    check_like_fresh(&world, &[("a", 2), ("b", 1)]);
}

#[test]
fn removed_rack_is_decommissioned_node_by_node() {
    let mut world = settled_world(&[("a", 2), ("b", 2)]);
    world.set_racks(&[("a", 2)]);
    assert!(settle(&mut world));
    assert_eq!(world.left, 2);
    check_like_fresh(&world, &[("a", 2)]);
    let kept: Vec<&String> = world.stored.claims.keys().filter(|name| name.contains("-b-")).collect();
    assert_eq!(kept, ["data-orders-dc-b-0", "data-orders-dc-b-1"], "claims are kept");
    world.set_racks(&[("a", 2), ("b", 1)]);
    assert!(settle(&mut world));
    check_like_fresh(&world, &[("a", 2), ("b", 1)]);
    let kept: Vec<&String> = world.stored.claims.keys().filter(|name| name.contains("-b-")).collect();
    assert_eq!(kept, ["data-orders-dc-b-0", "data-orders-dc-b-1"], "until a new node needs the name");
}

#[test]
fn claims_are_deleted_with_their_nodes_where_the_specification_says_so() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.set_racks(&[("a", 1), ("b", 1)]);
    world.stored.datacenter.deletes_claims_of_left_nodes = true;
    assert!(settle(&mut world));
    assert_eq!(world.stored.claims.keys().collect::<Vec<_>>(), ["data-orders-dc-a-0", "data-orders-dc-b-0"]);
}

#[test]
fn last_node_of_a_datacenter_is_not_decommissioned() {
    let mut world = settled_world(&[("a", 1)]);
    world.set_racks(&[("a", 0)]);
    assert!(settle(&mut world));
    assert_eq!((world.left, world.pods().len()), (0, 1));
    assert!(reasons(&world).contains(&"CannotDecommissionLastNode"), "{:?}", reasons(&world));
}

#[test]
fn scale_in_waits_while_another_node_is_down() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.lose_node("orders-dc-b-0");
    world.set_racks(&[("a", 1), ("b", 1)]);
    for _ in 0..50 {
        round(&mut world, &mut usize::MAX.clone());
    }
    assert_eq!((world.left, world.label(A, DECOMMISSIONED)), (0, None));
    assert!(reasons(&world).contains(&"WaitingForStatefulSetRollout"), "{:?}", reasons(&world));
}

#[test]
fn lost_node_is_replaced_and_an_invalid_request_blocks_nothing() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    let up = world.host_id_of("orders-dc-a-0");
    world.set_label("orders-dc-a-0", REPLACE, Some(""));
    world.lose_node("orders-dc-b-0");
    assert!(settle(&mut world));
    assert_eq!((world.replaced, world.host_id_of("orders-dc-a-0")), (1, up), "one that is up is not replaced");
    assert_eq!(world.label("orders-dc-b-0", REPLACE), None);
    assert!(reasons(&world).contains(&"NodeIsUp"), "{:?}", reasons(&world));
    world.set_label("orders-dc-a-0", REPLACE, None);
    assert!(settle(&mut world));
    check_like_fresh(&world, &[("a", 2), ("b", 1)]);
}

#[test]
fn failed_replacement_is_started_again() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    let lost = world.host_id_of("orders-dc-b-0");
    world.lose_node("orders-dc-b-0");
    world.set_label("orders-dc-b-0", REPLACE, Some(""));
    run_until(&mut world, "an empty disk is there", |world| {
        world.host_id_of("orders-dc-b-0").is_some() && world.host_id_of("orders-dc-b-0") != lost
    });
    world.lose_node("orders-dc-b-0");
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
    check_like_fresh(&world, &[("a", 2), ("b", 1)]);
}

#[test]
fn no_change_begins_during_maintenance() {
    type Wish = fn(&mut World);
    let wishes: [(&str, Wish); 5] = [
        ("a node has to join", |world| world.set_racks(&[("a", 2), ("b", 2)])),
        ("a rack has to be created", |world| world.set_racks(&[("a", 2), ("b", 1), ("c", 1)])),
        ("a node has to leave", |world| world.set_racks(&[("a", 1), ("b", 1)])),
        ("nodes are to change", |world| world.set_racks_and_version(&[("a", 2), ("b", 1)], "2026.2.5")),
        ("a node has to be replaced", |world| {
            world.lose_node(A);
            world.set_label(A, REPLACE, Some(""));
        }),
    ];
    for (wish, happen) in wishes {
        for node in [A, "orders-dc-b-0"] {
            let mut world = settled_world(&[("a", 2), ("b", 1)]);
            world.set_label(node, NODE_MAINTENANCE, Some(""));
            for _ in 0..5 {
                round(&mut world, &mut usize::MAX.clone());
            }
            let uids = |world: &World| -> Vec<_> {
                world.stored.pods.iter().map(|(name, pod)| (name.clone(), pod.metadata.uid.clone())).collect()
            };
            let pods = uids(&world);
            let replicas = |world: &World| ["orders-dc-a", "orders-dc-b"].map(|name| world.replicas(name));
            let before = replicas(&world);
            happen(&mut world);
            for _ in 0..50 {
                round(&mut world, &mut usize::MAX.clone());
            }
            assert_eq!((uids(&world), replicas(&world)), (pods.clone(), before), "{wish}, {node}");
            assert_eq!(world.stored.stateful_sets.len(), 2, "{wish}, {node}");
            let reported =
                plan(&world.stored).progressing.into_iter().find(|note| note.reason == "NodeUnderMaintenance").unwrap();
            let command = format!("kubectl label service -n shop {node} scylla/node-maintenance-");
            assert!(reported.message.contains(&command), "{}", reported.message);
            world.set_label(node, NODE_MAINTENANCE, None);
            assert!(settle(&mut world), "{wish}: it goes on when that is over");
            assert!(!reasons(&world).contains(&"NodeUnderMaintenance"));
            assert!(uids(&world) != pods, "{wish}");
        }
    }
}

/// No node can leave while one cannot be found, and that one does not restart while another leaves.
#[test]
fn scale_in_waits_for_a_restart_with_a_new_address() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.set_racks(&[("a", 1), ("b", 1)]);
    for _ in 0..20 {
        if world.label(A, DECOMMISSIONED).is_some() {
            break;
        }
        for pod in world.pods().into_iter().filter(|pod| pod != A) {
            world.gossip(&pod);
            world.refresh_sidecar(&pod);
            world.run_sidecar(&pod);
        }
        world.reconcile();
        while world.write() {}
    }
    assert_eq!((world.label(A, DECOMMISSIONED), world.annotation(A, LEAVING_BEGAN)), (Some("false"), None));
    let pod = world.stored.pods["orders-dc-b-0"].metadata.uid.clone().unwrap();
    let service = world.stored.services.get_mut("orders-dc-b-0").unwrap();
    service.metadata.annotations.get_or_insert_default().insert(RESTART_REQUEST.into(), pod);
    // This changes the version of its Service, so the operator reconciles.
    world.set_label("orders-dc-b-0", "seen", Some("again"));
    world.reconcile();
    while world.write() {}
    assert_eq!(world.label(A, DECOMMISSIONED), None, "it stays");
    let is_restarted = |world: &World| {
        plan(&world.stored)
            .deletions
            .iter()
            .any(|one| (one.kind, one.name.as_str()) == (ObjectKind::Pod, "orders-dc-b-0"))
    };
    let restarts = (0..20).any(|_| {
        round_without_operator(&mut world);
        is_restarted(&world) || {
            world.reconcile();
            while world.write() {}
            false
        }
    });
    assert!(restarts, "{:?}", reasons(&world));
}
