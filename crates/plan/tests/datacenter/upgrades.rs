//! Nodes are prepared before their version changes, and then restart one at a time.

use crate::plan;
use messina_api::names::annotation::{UPGRADE_ANSWER, UPGRADE_REQUEST};
use messina_plan::{
    datacenter::{Cached, Datacenter, Plan},
    node::upgrade::{Failure, Kept, Snapshot, UpgradeAnswer, UpgradeRequest, UpgradeStep},
};
use serde_json::json;

use crate::{
    datacenter_with, name_of,
    restarts::{because, changed, image, pod, reasons, respecified, rolling, running},
    rolled_out,
};

/// Three racks of one node, and another desired version.
fn upgrading() -> Cached {
    let racks = [("a", 1), ("b", 1), ("c", 1)];
    respecified(&running(&racks), &racks, image("2026.2.5"))
}

/// Applies the changes of the plan, and writes the answers of nodes to requests.
fn apply_and_answer(cached: &mut Cached, plan: &Plan, answers: impl Fn(&UpgradeRequest) -> Option<UpgradeAnswer>) {
    for change in &plan.changes {
        let annotations = cached.services.get_mut(&change.name).unwrap().metadata.annotations.get_or_insert_default();
        for (key, value) in change.patch["metadata"]["annotations"].as_object().unwrap() {
            match value.as_str() {
                Some(value) => _ = annotations.insert(key.clone(), value.into()),
                None => _ = annotations.remove(key),
            }
        }
        let request = UpgradeRequest::of(annotations);
        if let Some(answer) = request.as_ref().and_then(&answers) {
            annotations.insert(UPGRADE_ANSWER.into(), answer.text());
        }
    }
}

fn answer_as_requested(request: &UpgradeRequest) -> Option<UpgradeAnswer> {
    let UpgradeRequest { host_id, to, keep, .. } = request.clone();
    Some(UpgradeAnswer { host_id, to, kept: keep, failed: None })
}

/// The node restarts, and is ready again.
fn restart(cached: &mut Cached, plan: &Plan, version: &str) {
    for one in &plan.objects.stateful_sets {
        let name = name_of(one);
        if cached.stateful_sets[&name].spec != one.spec {
            cached.stateful_sets.insert(rolled_out(one.clone()));
            cached.pods.insert(pod(&format!("{name}-0"), version, "new", true));
        }
    }
}

fn requested_snapshots(cached: &Cached) -> Vec<Option<String>> {
    let keep = |request: UpgradeRequest| json!(request.keep).to_string();
    let requests = cached.services.values().map(|one| UpgradeRequest::of(one.metadata.annotations.as_ref().unwrap()));
    requests.map(|request| request.map(keep)).collect()
}

fn events(plan: &Plan) -> Vec<&'static str> {
    plan.changes.iter().filter_map(|change| Some(change.event.as_ref()?.0.as_str())).collect()
}

#[test]
fn upgrade_goes_step_by_step() {
    let mut cached = upgrading();
    let mut reported = Vec::new();
    let mut way = Vec::new();
    for _ in 0..30 {
        let plan = plan(&cached);
        reported.extend(events(&plan));
        let restarts = changed(&cached, &plan);
        assert!(restarts.is_empty() || plan.degraded.is_empty());
        apply_and_answer(&mut cached, &plan, answer_as_requested);
        restart(&mut cached, &plan, "2026.2.5");
        let requested_snapshots: Vec<String> =
            requested_snapshots(&cached).into_iter().map(|one| one.unwrap_or_default()).collect();
        let step = format!(
            "{} {}",
            requested_snapshots.join(" "),
            restarts.iter().map(|(name, _)| name.as_str()).collect::<String>()
        );
        if way.last() != Some(&step) {
            way.push(step);
        }
    }
    let (system, both) = (r#"["system"]"#, r#"["system","data"]"#);
    assert_eq!(
        way,
        [
            format!("{system} {system} {system} "),
            format!("{both} {system} {system} "),
            format!("{both} {system} {system} orders-dc-a"),
            format!("{system} {both} {system} "),
            format!("{system} {both} {system} orders-dc-b"),
            format!("{system} {system} {both} "),
            format!("{system} {system} {both} orders-dc-c"),
            "[] [] [] ".into(),
            "   ".into(),
        ]
    );
    let expected = ["UpgradeBegins", "PreparingNode", "NodeUpgraded", "PreparingNode", "NodeUpgraded", "PreparingNode"];
    assert_eq!(reported, [&expected[..], &["UpgradeDone"; 3]].concat());
    let plan = plan(&cached);
    assert_eq!((plan.progressing, plan.changes, plan.degraded), (vec![], vec![], vec![]), "then there is silence");
}

#[test]
fn failed_preparation_is_reported_by_node_and_step_and_blocks_restarts() {
    for (step, reason) in [
        (UpgradeStep::Schema, "SchemaDisagreement"),
        (UpgradeStep::SystemSnapshot, "SnapshotFailed"),
        (UpgradeStep::DataSnapshot, "SnapshotFailed"),
    ] {
        let mut cached = upgrading();
        let answers = |request: &UpgradeRequest| {
            let is_it = request.host_id == "host-orders-dc-a-0"
                && (step != UpgradeStep::DataSnapshot || request.keep.len() == 2);
            let failed = is_it.then(|| Failure { step, why: "its own words".into() });
            let kept = if step == UpgradeStep::DataSnapshot && is_it {
                answer_as_requested(request)?.kept.into_iter().take(1).collect()
            } else if is_it {
                Kept::new()
            } else {
                request.keep.clone()
            };
            Some(UpgradeAnswer { kept, failed, ..answer_as_requested(request)? })
        };
        for _ in 0..5 {
            let plan = plan(&cached);
            assert_eq!(changed(&cached, &plan), [], "{step:?}");
            apply_and_answer(&mut cached, &plan, answers);
        }
        let plan = plan(&cached);
        let note = plan.degraded.first().unwrap();
        assert_eq!(note.reason.as_str(), reason, "{step:?}");
        assert!(note.message.contains("node shop/orders-dc-a-0") && note.message.contains("its own words"), "{note:?}");
        assert_eq!(plan.changes, [], "it is not asked again and again");
        let takes_room = requested_snapshots(&cached).iter().flatten().any(|request| request.contains("data"));
        assert_eq!(takes_room, step == UpgradeStep::DataSnapshot, "{step:?}");
    }
}

#[test]
fn answers_of_another_node_or_for_another_version_are_ignored() {
    for (host_id, to) in [("another-host", "2026.2.5"), ("host-orders-dc-a-0", "2026.2.6")] {
        let mut cached = upgrading();
        let answers = |request: &UpgradeRequest| {
            let stale = request.host_id == "host-orders-dc-a-0";
            let answer = answer_as_requested(request)?;
            Some(if stale { UpgradeAnswer { host_id: host_id.into(), to: to.into(), ..answer } } else { answer })
        };
        for _ in 0..5 {
            let plan = plan(&cached);
            assert_eq!(changed(&cached, &plan), []);
            apply_and_answer(&mut cached, &plan, answers);
        }
        assert!(reasons(&plan(&cached)).contains(&"PreparingUpgrade"));
    }
}

/// A snapshot whose removal was requested may be gone, although the last answer of its node still lists it.
#[test]
fn snapshot_is_requested_again_after_its_removal_is_confirmed() {
    let mut cached = upgrading();
    while !requested_snapshots(&cached)[0].as_ref().is_some_and(|keep| keep.contains("data")) {
        let plan = plan(&cached);
        apply_and_answer(&mut cached, &plan, answer_as_requested);
    }
    assert_eq!(changed(&cached, &plan(&cached)), [("orders-dc-a".to_owned(), 0)], "it would restart");
    // The user changes the version twice before the sidecar has written that the snapshot is gone.
    let racks = [("a", 1), ("b", 1), ("c", 1)];
    let mut cached = respecified(&cached, &racks, json!({}));
    let back = plan(&cached);
    apply_and_answer(&mut cached, &back, |_| None);
    let mut cached = respecified(&cached, &racks, image("2026.2.5"));
    for _ in 0..5 {
        let plan = plan(&cached);
        assert_eq!(changed(&cached, &plan), []);
        apply_and_answer(&mut cached, &plan, |_| None);
    }
    assert_eq!(requested_snapshots(&cached), vec![Some("[]".to_owned()); 3], "no node is asked for it again");
    for service in cached.services.values_mut() {
        let annotations = service.metadata.annotations.get_or_insert_default();
        let answer = UpgradeRequest::of(annotations).as_ref().and_then(answer_as_requested).unwrap();
        annotations.insert(UPGRADE_ANSWER.into(), answer.text());
    }
    for _ in 0..2 {
        let plan = plan(&cached);
        assert_eq!(changed(&cached, &plan), [], "first, all snapshots are taken again");
        apply_and_answer(&mut cached, &plan, answer_as_requested);
    }
    assert_eq!(changed(&cached, &plan(&cached)), [("orders-dc-a".to_owned(), 0)]);
}

#[test]
fn upgrade_hooks_can_be_skipped_for_silent_sidecars() {
    let mut cached = upgrading();
    let first = plan(&cached);
    apply_and_answer(&mut cached, &first, |_| None);
    let progressing = plan(&cached).progressing;
    assert!(
        progressing.iter().any(|note| note.message.contains("messina.scylladb.com/skip-upgrade-hooks=true")),
        "{progressing:?}"
    );
    cached.datacenter.skips_upgrade_hooks = true;
    let plan = plan(&cached);
    assert_eq!(changed(&cached, &plan), [("orders-dc-a".to_owned(), 0)]);
    apply_and_answer(&mut cached, &plan, |_| None);
    assert_eq!(requested_snapshots(&cached), [None, None, None]);
}

#[test]
fn former_image_restarts_only_upgraded_nodes() {
    let mut cached = upgrading();
    while !cached.pods.values().any(|pod| pod.metadata.labels.as_ref().unwrap().values().any(|one| one == "2026.2.5")) {
        let plan = plan(&cached);
        apply_and_answer(&mut cached, &plan, answer_as_requested);
        restart(&mut cached, &plan, "2026.2.5");
    }
    // It never becomes ready.
    cached.pods.insert(pod("orders-dc-a-0", "2026.2.5", "new", false));
    cached.stateful_sets.get_mut("orders-dc-a").unwrap().status.as_mut().unwrap().ready_replicas = Some(0);
    let restored = [("a", 1), ("b", 1), ("c", 1)];
    let mut cached = respecified(&cached, &restored, image("2026.2.4"));
    let mut restarts = Vec::new();
    for _ in 0..10 {
        let plan = plan(&cached);
        restarts.extend(changed(&cached, &plan));
        apply_and_answer(&mut cached, &plan, answer_as_requested);
        restart(&mut cached, &plan, "2026.2.4");
    }
    assert_eq!(restarts, [("orders-dc-a".to_owned(), 0)]);
    assert_eq!(requested_snapshots(&cached), [None, None, None], "nothing is kept any more");
    assert_eq!(plan(&cached).progressing, []);
}

#[test]
fn down_node_is_not_upgraded_unprepared() {
    let mut cached = upgrading();
    cached.pods.insert(pod("orders-dc-b-0", "2026.2.4", "old", false));
    cached.stateful_sets.get_mut("orders-dc-b").unwrap().status.as_mut().unwrap().ready_replicas = Some(0);
    let held = plan(&cached);
    assert_eq!((changed(&cached, &held), held.changes.len()), (vec![], 0));
    assert!(reasons(&held).contains(&"UpgradeBlocked"), "{:?}", held.progressing);
    // Other changes are corrected.
    let racks = [("a", 1), ("b", 1), ("c", 1)];
    let corrected = respecified(&cached, &racks, because("x"));
    assert_eq!(changed(&corrected, &plan(&corrected)), [("orders-dc-b".to_owned(), 0)]);
}

/// The first node was prepared for an upgrade from 2026.2.4 to 2026.2.5, and runs this version now.
fn prepared(version: &str, is_ready: bool) -> Cached {
    let racks = [("a", 1), ("b", 1), ("c", 1)];
    let mut cached = running(&racks);
    let at = respecified(&cached, &racks, image(version));
    let skipping = Cached { datacenter: Datacenter { skips_upgrade_hooks: true, ..at.datacenter }, ..cached.clone() };
    let written = plan(&skipping).objects.stateful_sets.into_iter().find(|one| name_of(one) == "orders-dc-a").unwrap();
    let mut a = rolled_out(written);
    a.status.as_mut().unwrap().ready_replicas = Some(i32::from(is_ready));
    cached.stateful_sets.insert(a);
    cached.pods.insert(pod("orders-dc-a-0", version, "new", is_ready));
    let keep: Kept = [Snapshot::System, Snapshot::Data].into();
    let host_id = "host-orders-dc-a-0".to_owned();
    let request = UpgradeRequest { host_id, from: "2026.2.4".into(), to: "2026.2.5".into(), keep };
    let service = cached.services.get_mut("orders-dc-a-0").unwrap();
    let said = [(UPGRADE_REQUEST, request.text()), (UPGRADE_ANSWER, answer_as_requested(&request).unwrap().text())];
    service.metadata.annotations.get_or_insert_default().extend(said.map(|(key, value)| (key.into(), value)));
    cached
}

/// It was down when it was prepared, and was corrected with a third version.
#[test]
fn node_with_another_version_is_prepared_again() {
    let racks = [("a", 1), ("b", 1), ("c", 1)];
    for target in ["2026.2.4", "2026.2.5"] {
        let cached = respecified(&prepared("2026.2.6", true), &racks, image(target));
        let plan = plan(&cached);
        assert_eq!(changed(&cached, &plan), [], "{target}");
        let change = plan.changes.iter().find(|change| change.name == "orders-dc-a-0").unwrap();
        let annotations = &change.patch["metadata"]["annotations"];
        let request: UpgradeRequest = serde_json::from_str(annotations[UPGRADE_REQUEST].as_str().unwrap()).unwrap();
        assert_eq!((request.from.as_str(), request.to.as_str(), request.keep.len()), ("2026.2.6", target, 1));
        assert!(annotations.as_object().unwrap().contains_key(UPGRADE_ANSWER), "what it said is taken away");
    }
}

#[test]
fn corrected_node_keeps_its_snapshots() {
    let racks = [("a", 1), ("b", 1), ("c", 1)];
    let cached = respecified(&prepared("2026.2.5", false), &racks, image("2026.2.6"));
    let plan = plan(&cached);
    assert_eq!(changed(&cached, &plan), [("orders-dc-a".to_owned(), 0)]);
    let is_asked = plan.changes.iter().any(|change| change.name == "orders-dc-a-0");
    assert!(!is_asked, "it would be gone when it restarts: {:?}", plan.changes);
}

#[test]
fn no_node_joins_or_leaves_during_an_upgrade() {
    let pods = [("old", true), ("old", true), ("new", true)];
    for racks in [[("a", 4), ("b", 1)], [("a", 3), ("b", 0)]] {
        let mut cached = rolling("x", 2, &pods);
        cached.datacenter = datacenter_with(&racks, because("x"));
        let plan = plan(&cached);
        assert_eq!(changed(&cached, &plan), [("orders-dc-a".to_owned(), 1)], "{racks:?}");
        let a = &plan.objects.stateful_sets[0].spec.as_ref().unwrap();
        assert_eq!(a.replicas, Some(3), "{racks:?}");
    }
    let mut cached = upgrading();
    let first = plan(&cached);
    apply_and_answer(&mut cached, &first, |_| None);
    assert!(cached.services["orders-dc-a-0"].metadata.annotations.as_ref().unwrap().contains_key(UPGRADE_REQUEST));
    cached.datacenter = datacenter_with(&[("a", 2), ("b", 1), ("c", 1), ("d", 1)], image("2026.2.5"));
    assert_eq!(changed(&cached, &plan(&cached)), [], "not while the version changes");
}
