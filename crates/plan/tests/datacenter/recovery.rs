//! Nodes that come back all at once.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use messina_api::names::{
    annotation::{HOST_ID, JOINED_HOST_ID, LAST_IMAGE},
    label::SCYLLA_VERSION,
};
use serde_json::json;

use crate::{
    plan,
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

#[test]
fn no_pod_starts_before_services_name_the_nodes_of_former_disks() {
    let mut world = at_rest(&[("a", 3)]);
    world.recreate();
    world.kept.claims.remove("data-orders-dc-a-0");
    while world.kept.stateful_sets.is_empty() {
        assert!(round(&mut world, &mut 1), "it goes on");
    }
    let named = |member: &str| world.kept.services[member].metadata.annotations.as_ref().unwrap().get(HOST_ID).cloned();
    assert_eq!(named("orders-dc-a-0"), None);
    for member in ["orders-dc-a-1", "orders-dc-a-2"] {
        assert!(named(member).is_some_and(|host_id| world.ring.contains(&host_id)), "{member}");
    }
}

#[test]
fn a_copied_claim_is_not_a_node() {
    let mut world = at_rest(&[("a", 2)]);
    let mut copy = world.kept.claims["data-orders-dc-a-0"].clone();
    copy.metadata.name = Some("data-orders-dc-a-4".into());
    world.kept.claims.insert(copy.clone());
    world.kept.stateful_sets.clear();
    let replicas = |world: &World| plan(&world.kept).objects.stateful_sets[0].spec.as_ref().unwrap().replicas;
    assert_eq!(replicas(&world), Some(2), "a Service names the node");
    world.kept.services.clear();
    world.kept.pods.clear();
    let later = Timestamp::from_second(4_000_000_000).unwrap();
    copy.metadata.creation_timestamp = Some(Time(later));
    world.kept.claims.insert(copy);
    let services = plan(&world.kept).objects.member_services.len();
    assert_eq!(services, 2, "the older claim is the node's");
}

#[test]
fn nodes_that_are_missing_start_with_the_newest_version_that_one_of_the_rack_has_run() {
    let mut world = at_rest(&[("a", 3)]);
    world.kept.stateful_sets.clear();
    world.kept.pods.remove("orders-dc-a-1");
    let newest = world.kept.pods.get_mut("orders-dc-a-2").unwrap();
    newest.metadata.labels.as_mut().unwrap().insert(SCYLLA_VERSION.into(), "2026.2.5".into());
    newest.spec.as_mut().unwrap().containers[0].image = Some("scylladb/scylla:2026.2.5".into());
    let restored = plan(&world.kept).objects.stateful_sets[0].clone();
    let labels = restored.spec.unwrap().template.metadata.unwrap().labels.unwrap();
    assert_eq!(labels[SCYLLA_VERSION], "2026.2.5");
}

#[test]
fn a_rack_without_pods_waits_for_settings() {
    let mut world = at_rest(&[("a", 2)]);
    world.recreate();
    while world.kept.services.len() < 2
        || !world.kept.services.values().all(|one| one.metadata.annotations.as_ref().unwrap().contains_key(HOST_ID))
    {
        world.look();
        assert!(world.write(), "it goes on");
    }
    world.writes_are_lost();
    world.kept.stateful_sets.clear();
    assert_eq!(plan(&world.kept).objects.stateful_sets.len(), 1, "{:#?}", plan(&world.kept).progressing);
    world.kept.datacenter.racks[0].custom_config_map = Some("mine".into());
    assert_eq!(plan(&world.kept).objects.stateful_sets, [], "its ConfigMap is missing");
}

#[test]
fn a_rack_that_is_removed_is_not_replaced_after_a_power_loss() {
    let mut world = at_rest(&[("a", 3), ("b", 1)]);
    world.respecify(&[("b", 1)]);
    world.lose_power();
    while round(&mut world, &mut usize::MAX.clone()) {}
    assert!(world.kept.stateful_sets.contains_key("orders-dc-a"), "nobody would create it again");
    let told = plan(&world.kept).degraded;
    assert!(told.iter().any(|note| note.message.contains("Add the rack again")), "{told:?}");
}

#[test]
fn nodes_come_back_without_one_that_has_no_machine() {
    let mut world = at_rest(&[("a", 3)]);
    ["orders-dc-a-1", "orders-dc-a-2"].iter().for_each(|pod| world.remove_pod(pod));
    world.crash("orders-dc-a-0");
    let unscheduled = json!({"conditions": [
        {"type": "PodScheduled", "status": "False"},
        {"type": "Ready", "status": "False"},
    ]});
    world.kept.pods.get_mut("orders-dc-a-0").unwrap().status = Some(serde_json::from_value(unscheduled).unwrap());
    let deletions = plan(&world.kept).deletions;
    assert!(deletions.iter().any(|one| one.name == "orders-dc-a" && one.orphans), "{deletions:?}");
}

#[test]
fn nodes_that_were_scaled_away_by_hand_come_back_together() {
    let mut world = at_rest(&[("a", 3)]);
    world.lose_power();
    assert!(settle(&mut world));
    assert_eq!(policies(&world), ["all"]);
    world.pods().iter().for_each(|pod| world.remove_pod(pod));
    world.kept.stateful_sets.get_mut("orders-dc-a").unwrap().spec.as_mut().unwrap().replicas = Some(0);
    assert!(settle(&mut world), "they come back");
    check_fresh(&world, &[("a", 3)]);
}
