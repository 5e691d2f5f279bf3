//! Volume expansion.

use std::collections::BTreeMap;

use crate::plan;
use k8s_openapi::{
    api::{apps::v1::StatefulSetSpec, core::v1::PersistentVolumeClaim},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time},
    jiff::Timestamp,
};
use messina_api::names::{
    annotation::LEFT_HOST_ID,
    label::{REPLACE, SCYLLA_VERSION},
};
use messina_plan::datacenter::{Cached, Component, ObjectKind};
use serde_json::{Value, json};

use crate::{
    name_of,
    rounds::{round, settle, settled_world},
    world::World,
};

/// Two settled racks whose disks have to be expanded.
fn enlarged(capacity: &'static str) -> World {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.raise_capacity(capacity);
    world
}

fn reported(cached: &Cached) -> Vec<&'static str> {
    let plan = plan(cached);
    let notes = plan.progressing.iter().chain(&plan.degraded).filter(|note| note.component == Component::Storage);
    notes.map(|note| note.reason.as_str()).collect()
}

fn uids<'a>(metadata: impl Iterator<Item = (&'a String, &'a Option<String>)>) -> BTreeMap<String, String> {
    metadata.map(|(name, uid)| (name.clone(), uid.clone().unwrap())).collect()
}

/// Returns the spec with which the StatefulSet of the first rack is recreated.
fn recreated(world: &World) -> StatefulSetSpec {
    let planned = plan(&world.stored).objects.stateful_sets.into_iter().find(|one| name_of(one) == "orders-dc-a");
    planned.unwrap().spec.unwrap()
}

/// Returns the UIDs of claims and pods.
fn claims_and_pods(world: &World) -> [BTreeMap<String, String>; 2] {
    let pods = world.stored.pods.iter().map(|(name, pod)| (name, &pod.metadata.uid));
    let claims = world.stored.claims.iter().map(|(name, claim)| (name, &claim.metadata.uid));
    [uids(pods), uids(claims)]
}

#[test]
fn volume_expansion_changes_no_pod() {
    let mut world = enlarged("2Gi");
    let before = claims_and_pods(&world);
    let sets = uids(world.stored.stateful_sets.iter().map(|(name, one)| (name, &one.metadata.uid)));
    assert!(settle(&mut world));
    assert_eq!(world.sizes().into_iter().collect::<Vec<_>>(), ["2Gi"]);
    assert_eq!(claims_and_pods(&world), before, "pods and claims are the same");
    assert!(world.stored.stateful_sets.iter().all(|(name, one)| one.metadata.uid.as_ref() != Some(&sets[name])));
    assert_eq!((world.left, world.replaced, reported(&world.stored)), (0, 0, vec![]));
}

#[test]
fn volume_expansion_updates_claims_then_stateful_sets_one_by_one() {
    let mut world = enlarged("2Gi");
    let first = plan(&world.stored);
    let claims: Vec<&str> = first.changes.iter().map(|change| change.name.as_str()).collect();
    assert_eq!(claims, ["data-orders-dc-a-0", "data-orders-dc-a-1", "data-orders-dc-b-0"]);
    assert!(first.changes.iter().all(|change| change.kind == ObjectKind::PersistentVolumeClaim));
    assert_eq!(first.deletions, []);
    world.reconcile();
    while world.write() {}
    assert_eq!(reported(&world.stored), ["WaitingForVolume"; 3], "all have asked, none has got it");
    assert_eq!((plan(&world.stored).changes, plan(&world.stored).deletions), (vec![], vec![]));
    while world.run_kubernetes() {}
    let then = plan(&world.stored);
    assert_eq!(then.deletions.len(), 1);
    let deletion = &then.deletions[0];
    let version = world.stored.stateful_sets["orders-dc-a"].metadata.resource_version.clone();
    assert_eq!((deletion.name.as_str(), &deletion.version), ("orders-dc-a", &version));
    assert!(deletion.orphans, "its pods stay");
    assert_eq!(reported(&world.stored), ["RecreatingStatefulSet", "WaitingForStatefulSet"]);
}

/// The operator stops after the StatefulSet is deleted, and starts again much later.
#[test]
fn rack_without_its_stateful_set_keeps_its_status_and_size() {
    let mut world = enlarged("2Gi");
    while !world.has_orphans() {
        round(&mut world, &mut 1);
    }
    world.crash_the_operator();
    let before = claims_and_pods(&world);
    // Even if the user reduces `nodes` meanwhile, and another rack is not rolled out.
    world.set_racks(&[("a", 1), ("b", 1)]);
    world.stored.stateful_sets.get_mut("orders-dc-b").unwrap().status.as_mut().unwrap().ready_replicas = Some(0);
    assert_eq!(recreated(&world).replicas, Some(2));
    // A rack with more desired nodes is not scaled out by that.
    world.set_racks(&[("a", 3), ("b", 1)]);
    assert_eq!(recreated(&world).replicas, Some(2));
    world.set_racks(&[("a", 2), ("b", 1)]);
    assert!(settle(&mut world));
    assert_eq!(claims_and_pods(&world), before);
}

/// Its pods would start with another version, unprepared.
#[test]
fn recreated_stateful_set_keeps_its_version() {
    let mut world = enlarged("2Gi");
    while !world.has_orphans() {
        round(&mut world, &mut 1);
    }
    world.set_racks_and_version(&[("a", 2), ("b", 1)], "2026.2.5");
    let template = recreated(&world).template;
    assert_eq!(template.metadata.unwrap().labels.unwrap()[SCYLLA_VERSION], "2026.2.4");
    let images: Vec<_> = template.spec.unwrap().containers.into_iter().filter_map(|one| one.image).collect();
    assert!(images.contains(&"scylladb/scylla:2026.2.4".to_owned()), "{images:?}");
    assert!(settle(&mut world));
    assert_eq!(world.upgraded, 3, "then it changes as that of others");
}

#[test]
fn rack_removed_without_its_stateful_set_must_be_added_again() {
    let mut world = enlarged("2Gi");
    while !world.has_orphans() {
        round(&mut world, &mut 1);
    }
    world.set_racks(&[("b", 1)]);
    for _ in 0..50 {
        round(&mut world, &mut usize::MAX.clone());
    }
    assert_eq!(world.left, 0);
    let degraded = plan(&world.stored).degraded;
    assert!(degraded.iter().any(|note| note.reason == "RackWithoutStatefulSet"), "{degraded:?}");
    world.set_racks(&[("a", 1), ("b", 1)]);
    assert!(settle(&mut world));
    world.set_racks(&[("b", 1)]);
    assert!(settle(&mut world));
    assert_eq!(world.left, 2, "then it goes, node by node");
}

#[test]
fn recreated_stateful_set_does_not_repeat_kubectl_rollout_restart() {
    const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";
    let mut world = settled_world(&[("a", 1), ("b", 1)]);
    let restart = |annotations: &mut Option<BTreeMap<String, String>>| {
        annotations.get_or_insert_default().insert(RESTARTED_AT.into(), "noon".into());
    };
    let template = &mut world.stored.stateful_sets.get_mut("orders-dc-a").unwrap().spec.as_mut().unwrap().template;
    restart(&mut template.metadata.as_mut().unwrap().annotations);
    restart(&mut world.stored.pods.get_mut("orders-dc-a-0").unwrap().metadata.annotations);
    let before = world.stored.stateful_sets["orders-dc-a"].spec.clone().unwrap().template;
    world.raise_capacity("2Gi");
    assert!(settle(&mut world));
    assert_eq!(world.stored.stateful_sets["orders-dc-a"].spec.clone().unwrap().template, before);
}

/// What blocks the expansion, and whether it is degraded.
#[test]
fn blocked_volume_expansion_is_reported_and_changes_nothing() {
    type Trouble = fn(&mut World);
    fn claim(world: &mut World) -> &mut PersistentVolumeClaim {
        world.stored.claims.get_mut("data-orders-dc-b-0").unwrap()
    }
    fn requests_with_status(world: &mut World, status: Value) {
        let resources = claim(world).spec.as_mut().unwrap().resources.as_mut().unwrap();
        resources.requests = Some([("storage".to_owned(), Quantity("2Gi".into()))].into());
        let mut whole = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
        crate::compare::merge(&mut whole, &status);
        claim(world).status = Some(serde_json::from_value(whole).unwrap());
    }
    let cases: [(&str, Trouble, &str, bool, &str); 8] = [
        (
            "the class forbids it",
            |world| {
                world.stored.storage_classes.get_mut("local").unwrap().allow_volume_expansion = None;
            },
            "ExpansionForbidden",
            true,
            "StorageClass local does not allow it. The operator changes nothing of the rack. Set allowVolumeExpansion",
        ),
        (
            "the class is gone",
            |world| world.stored.storage_classes.clear(),
            "ExpansionForbidden",
            true,
            "StorageClass local does not exist",
        ),
        (
            "there is no class",
            |world| claim(world).spec.as_mut().unwrap().storage_class_name = None,
            "ExpansionForbidden",
            true,
            "it has no StorageClass",
        ),
        (
            "no volume yet",
            |world| claim(world).status = None,
            "WaitingForVolume",
            false,
            "Waiting for it to be bound to a volume",
        ),
        (
            "it cannot be had",
            |world| {
                requests_with_status(
                    world,
                    json!({"allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"}}),
                )
            },
            "ExpansionInfeasible",
            true,
            "Set storage.capacity of rack b to a feasible size",
        ),
        (
            "it fails",
            |world| {
                requests_with_status(
                    world,
                    json!({"conditions": [{"type": "ControllerResizeError", "status": "True", "message": "the disk said so"}]}),
                )
            },
            "ExpansionFails",
            true,
            "the disk said so. Kubernetes tries again. See `kubectl describe pvc -n shop data-orders-dc-b-0`",
        ),
        (
            "the file system has to be resized",
            |world| {
                requests_with_status(
                    world,
                    json!({"conditions": [{"type": "FileSystemResizePending", "status": "True"}]}),
                )
            },
            "FileSystemResizePending",
            false,
            "`kubectl delete pod -n shop orders-dc-b-0`",
        ),
        (
            "the node is being replaced",
            |world| world.set_label("orders-dc-b-0", REPLACE, Some("")),
            "WaitingForNode",
            false,
            "until node orders-dc-b-0 has joined, and is neither leaving nor being replaced",
        ),
    ];
    for (case, trouble, reason, is_fault, words) in cases {
        let mut world = settled_world(&[("b", 1), ("c", 1)]);
        trouble(&mut world);
        world.stored.datacenter.racks[0].storage.capacity = Quantity("2Gi".into());
        let plan = plan(&world.stored);
        assert_eq!(reported(&world.stored), [reason], "{case}");
        let notes = if is_fault { &plan.degraded } else { &plan.progressing };
        let note = notes.iter().find(|note| note.reason == reason).unwrap_or_else(|| panic!("{case}: {plan:?}"));
        assert!(
            note.message.contains(words) && note.message.contains("data-orders-dc-b-0"),
            "{case}: {}",
            note.message
        );
        let touched = plan.changes.iter().any(|change| change.kind != ObjectKind::Service);
        assert!(!touched && plan.deletions.is_empty(), "{case}: {:?}", plan.changes);
        let state = plan.state(Component::Storage);
        let reported = if is_fault { state.degraded } else { state.progressing };
        assert_eq!(reported.map(|reported| reported.reason.as_str()), Some(reason), "{case}");
    }
}

#[test]
fn infeasible_expansion_is_retried_with_a_smaller_size() {
    let mut world = settled_world(&[("a", 1)]);
    let claim = world.stored.claims.get_mut("data-orders-dc-a-0").unwrap();
    claim.spec.as_mut().unwrap().resources.as_mut().unwrap().requests =
        Some([("storage".to_owned(), Quantity("3Gi".into()))].into());
    let status = claim.status.get_or_insert_default();
    status.allocated_resource_statuses = Some([("storage".to_owned(), "NodeResizeInfeasible".to_owned())].into());
    world.raise_capacity("2Gi");
    let changes = plan(&world.stored).changes;
    assert_eq!(changes[0].patch, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}));
}

#[test]
fn volumes_are_not_shrunk() {
    let mut world = enlarged("2Gi");
    assert!(settle(&mut world));
    world.raise_capacity("1Gi");
    let plan = plan(&world.stored);
    assert_eq!(reported(&world.stored), ["StorageCannotShrink"; 2]);
    assert_eq!((plan.changes, plan.deletions), (vec![], vec![]));
    assert_eq!(plan.objects.stateful_sets.len(), 2);
    assert!(settle(&mut world));
    assert_eq!(world.sizes().into_iter().collect::<Vec<_>>(), ["2Gi"]);
}

#[test]
fn claim_of_a_node_that_left_is_not_expanded() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.set_racks(&[("a", 1), ("b", 1)]);
    assert!(settle(&mut world));
    world.raise_capacity("2Gi");
    assert!(settle(&mut world));
    let left = &world.stored.claims["data-orders-dc-a-1"];
    assert!(left.metadata.annotations.as_ref().unwrap().contains_key(LEFT_HOST_ID));
    assert_eq!(left.status.as_ref().unwrap().capacity.as_ref().unwrap()["storage"].0, "1Gi");
    assert_eq!(world.sizes().into_iter().collect::<Vec<_>>(), ["2Gi"]);
}

#[test]
fn stateful_set_is_not_recreated_while_its_rack_changes() {
    type Moment = fn(&mut World);
    let moments: [(&str, Moment); 4] = [
        ("a node has to join", |world| world.set_racks(&[("a", 2), ("b", 1)])),
        ("pods are to change", |world| world.set_racks_and_version(&[("a", 1), ("b", 1)], "2026.2.5")),
        ("pods change", |world| {
            let status = world.stored.stateful_sets.get_mut("orders-dc-a").unwrap().status.as_mut().unwrap();
            status.updated_replicas = Some(0);
        }),
        ("it is being deleted", |world| {
            let one = world.stored.stateful_sets.get_mut("orders-dc-a").unwrap();
            one.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        }),
    ];
    for (moment, happen) in moments {
        let mut world = settled_world(&[("a", 1), ("b", 1)]);
        world.raise_capacity("2Gi");
        world.reconcile();
        while world.write() {}
        while world.run_kubernetes() {}
        assert_eq!(plan(&world.stored).deletions.len(), 1, "it would be");
        happen(&mut world);
        let deleted: Vec<String> = plan(&world.stored).deletions.into_iter().map(|one| one.name).collect();
        assert!(!deleted.contains(&"orders-dc-a".to_owned()), "{moment}: {deleted:?}");
        assert!(reported(&world.stored).contains(&"WaitingForStatefulSet"), "{moment}: {:?}", reported(&world.stored));
    }
}

/// It may be gone when it is written, and would then be created with the old size.
#[test]
fn stateful_set_being_deleted_is_left_alone_and_no_other_is_deleted() {
    let mut world = settled_world(&[("a", 1), ("b", 1)]);
    world.raise_capacity("2Gi");
    world.reconcile();
    while world.write() {}
    while world.run_kubernetes() {}
    let one = world.stored.stateful_sets.get_mut("orders-dc-a").unwrap();
    one.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    let plan = plan(&world.stored);
    assert_eq!(plan.deletions, []);
    let written: Vec<Option<&str>> =
        plan.objects.stateful_sets.iter().map(|one| one.metadata.name.as_deref()).collect();
    assert_eq!(written, [Some("orders-dc-b")]);
    assert!(plan.untouched.iter().any(|one| one.name == "orders-dc-a"));
}

/// A full disk may be why the node is down.
#[test]
fn volume_of_a_down_node_is_expanded() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.stop_node("orders-dc-b-0");
    while world.run_kubernetes() {}
    world.raise_capacity("2Gi");
    let grown: Vec<String> = plan(&world.stored).changes.into_iter().map(|change| change.name).collect();
    assert!(grown.contains(&"data-orders-dc-b-0".to_owned()), "{grown:?}");
}
