//! Nodes that start all at once.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use messina_api::names::{
    annotation::{HOST_ID, JOINED_HOST_ID, LAST_IMAGE},
    label::SCYLLA_VERSION,
};
use serde_json::json;

use crate::{
    plan,
    rounds::{check_like_fresh, round, settle, settled_world},
    world::World,
};

fn policies(world: &World) -> Vec<&str> {
    let policy = |one: &k8s_openapi::api::apps::v1::StatefulSetSpec| one.pod_management_policy.clone();
    let sets = world.stored.stateful_sets.values();
    sets.map(|one| if policy(one.spec.as_ref().unwrap()).as_deref() == Some("Parallel") { "all" } else { "one" })
        .collect()
}

#[test]
fn claims_carry_host_ids_and_images_of_joined_nodes() {
    let world = settled_world(&[("a", 2)]);
    let noted = |claim: &str, key: &str| world.stored.claims[claim].metadata.annotations.as_ref().unwrap()[key].clone();
    for claim in ["data-orders-dc-a-0", "data-orders-dc-a-1"] {
        assert!(world.ring.contains(&noted(claim, JOINED_HOST_ID)), "{claim}");
        assert_eq!(noted(claim, LAST_IMAGE), "scylladb/scylla:2026.2.4", "{claim}");
    }
}

#[test]
fn nodes_of_a_rack_start_together_after_a_power_loss() {
    let mut world = settled_world(&[("a", 3), ("b", 1)]);
    let ring = world.ring.clone();
    assert_eq!(policies(&world), ["one", "one"]);
    world.lose_power();
    assert!(settle(&mut world), "they come back");
    check_like_fresh(&world, &[("a", 3), ("b", 1)]);
    assert_eq!((&world.ring, policies(&world)), (&ring, vec!["all", "one"]));
}

#[test]
fn rack_without_ready_nodes_is_not_recreated_while_the_cluster_has_a_majority() {
    let mut world = settled_world(&[("a", 2), ("b", 3)]);
    ["orders-dc-a-0", "orders-dc-a-1"].iter().for_each(|pod| world.remove_pod(pod));
    assert!(settle(&mut world));
    assert_eq!(policies(&world), ["one", "one"]);
}

#[test]
fn datacenter_created_on_existing_disks_has_all_their_nodes() {
    let mut world = settled_world(&[("a", 2), ("b", 2)]);
    let ring = world.ring.clone();
    world.recreate_datacenter();
    assert!(settle(&mut world), "they come back");
    check_like_fresh(&world, &[("a", 2), ("b", 2)]);
    assert_eq!((&world.ring, policies(&world)), (&ring, vec!["all", "all"]));
}

#[test]
fn datacenter_recreated_with_other_settings_changes_from_its_former_state() {
    let mut world = settled_world(&[("a", 3)]);
    world.recreate_datacenter();
    world.set_spec(&[("a", 1), ("b", 1)], "2026.2.5", "");
    while world.stored.pods.len() < 3 {
        assert!(round(&mut world, &mut usize::MAX.clone()), "it goes on");
        let versions = world
            .stored
            .pods
            .values()
            .map(|pod| pod.metadata.labels.as_ref().unwrap()["scylla/scylla-version"].clone());
        assert!(versions.into_iter().all(|version| version == "2026.2.4"), "disks come back with what they ran");
    }
    assert!(settle(&mut world));
    check_like_fresh(&world, &[("a", 1), ("b", 1)]);
    assert_eq!((world.left, world.upgraded), (2, world.upgraded.max(1)));
}

#[test]
fn new_nodes_join_one_by_one_with_parallel_pod_management() {
    let mut world = settled_world(&[("a", 2)]);
    world.recreate_datacenter();
    world.set_racks(&[("a", 5)]);
    while world.ring.len() < 5 {
        let joining = world.stored.pods.len() - world.ring.len().min(world.stored.pods.len());
        assert!(joining <= 1, "one joins at a time");
        assert!(round(&mut world, &mut usize::MAX.clone()), "it goes on");
    }
    assert!(settle(&mut world));
    assert_eq!(policies(&world), ["all"]);
}

#[test]
fn pods_wait_until_services_carry_the_host_ids_of_existing_disks() {
    let mut world = settled_world(&[("a", 3)]);
    world.recreate_datacenter();
    world.stored.claims.remove("data-orders-dc-a-0");
    while world.stored.stateful_sets.is_empty() {
        assert!(round(&mut world, &mut 1), "it goes on");
    }
    let named =
        |member: &str| world.stored.services[member].metadata.annotations.as_ref().unwrap().get(HOST_ID).cloned();
    assert_eq!(named("orders-dc-a-0"), None);
    for member in ["orders-dc-a-1", "orders-dc-a-2"] {
        assert!(named(member).is_some_and(|host_id| world.ring.contains(&host_id)), "{member}");
    }
}

#[test]
fn copied_claim_is_not_taken_for_a_node() {
    let mut world = settled_world(&[("a", 2)]);
    let mut copy = world.stored.claims["data-orders-dc-a-0"].clone();
    copy.metadata.name = Some("data-orders-dc-a-4".into());
    world.stored.claims.insert(copy.clone());
    world.stored.stateful_sets.clear();
    let replicas = |world: &World| plan(&world.stored).objects.stateful_sets[0].spec.as_ref().unwrap().replicas;
    assert_eq!(replicas(&world), Some(2), "a Service names the node");
    world.stored.services.clear();
    world.stored.pods.clear();
    let later = Timestamp::from_second(4_000_000_000).unwrap();
    copy.metadata.creation_timestamp = Some(Time(later));
    world.stored.claims.insert(copy);
    let services = plan(&world.stored).objects.member_services.len();
    assert_eq!(services, 2, "the older claim is the node's");
}

#[test]
fn missing_nodes_start_with_the_newest_version_of_their_rack() {
    let mut world = settled_world(&[("a", 3)]);
    world.stored.stateful_sets.clear();
    world.stored.pods.remove("orders-dc-a-1");
    let newest = world.stored.pods.get_mut("orders-dc-a-2").unwrap();
    newest.metadata.labels.as_mut().unwrap().insert(SCYLLA_VERSION.into(), "2026.2.5".into());
    newest.spec.as_mut().unwrap().containers[0].image = Some("scylladb/scylla:2026.2.5".into());
    let restored = plan(&world.stored).objects.stateful_sets[0].clone();
    let labels = restored.spec.unwrap().template.metadata.unwrap().labels.unwrap();
    assert_eq!(labels[SCYLLA_VERSION], "2026.2.5");
}

#[test]
fn rack_without_pods_waits_for_settings() {
    let mut world = settled_world(&[("a", 2)]);
    world.recreate_datacenter();
    while world.stored.services.len() < 2
        || !world.stored.services.values().all(|one| one.metadata.annotations.as_ref().unwrap().contains_key(HOST_ID))
    {
        world.reconcile();
        assert!(world.write(), "it goes on");
    }
    world.drop_pending_writes();
    world.stored.stateful_sets.clear();
    assert_eq!(plan(&world.stored).objects.stateful_sets.len(), 1, "{:#?}", plan(&world.stored).progressing);
    world.stored.datacenter.racks[0].custom_config_map = Some("mine".into());
    assert_eq!(plan(&world.stored).objects.stateful_sets, [], "its ConfigMap is missing");
}

#[test]
fn stateful_set_of_a_removed_rack_is_not_deleted_after_a_power_loss() {
    let mut world = settled_world(&[("a", 3), ("b", 1)]);
    world.set_racks(&[("b", 1)]);
    world.lose_power();
    while round(&mut world, &mut usize::MAX.clone()) {}
    assert!(world.stored.stateful_sets.contains_key("orders-dc-a"), "the operator would not recreate it");
    let reported = plan(&world.stored).degraded;
    assert!(reported.iter().any(|note| note.message.contains("Add the rack again")), "{reported:?}");
}

#[test]
fn nodes_start_although_one_has_no_kubernetes_node() {
    let mut world = settled_world(&[("a", 3)]);
    ["orders-dc-a-1", "orders-dc-a-2"].iter().for_each(|pod| world.remove_pod(pod));
    world.crash_node("orders-dc-a-0");
    let unscheduled = json!({"conditions": [
        {"type": "PodScheduled", "status": "False"},
        {"type": "Ready", "status": "False"},
    ]});
    world.stored.pods.get_mut("orders-dc-a-0").unwrap().status = Some(serde_json::from_value(unscheduled).unwrap());
    let deletions = plan(&world.stored).deletions;
    assert!(deletions.iter().any(|one| one.name == "orders-dc-a" && one.orphans), "{deletions:?}");
}

#[test]
fn nodes_scaled_in_by_a_user_start_together() {
    let mut world = settled_world(&[("a", 3)]);
    world.lose_power();
    assert!(settle(&mut world));
    assert_eq!(policies(&world), ["all"]);
    world.pods().iter().for_each(|pod| world.remove_pod(pod));
    world.stored.stateful_sets.get_mut("orders-dc-a").unwrap().spec.as_mut().unwrap().replicas = Some(0);
    assert!(settle(&mut world), "they come back");
    check_like_fresh(&world, &[("a", 3)]);
}
