//! The order in which racks change, and what never happens.

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, Container, Pod},
    },
    apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, Time},
};
use messina_api::names::annotation::{
    CURRENT_TOKEN_RING_HASH, HOST_ID, INPUTS_HASH, INPUTS_STAND_FOR, LAST_CLEANED_UP_TOKEN_RING_HASH, NODE_JOINED,
};
use messina_plan::datacenter::{Cached, Component, Plan, RolloutState, Turn, Untouched};
use serde_json::{Value, json};

use crate::{
    cached, change_of_identity, datacenter, datacenter_with, name_of, plan, report, rolled_out, rollout_state,
    with_name,
};

/// The hash by an operator that did not include the user's settings in [`running`].
const HASH_WITHOUT_USERS: &str =
    "45BICBNyDSUVXbuOh+zVOK1ZpaUHaqYZmZ0TpPsF3ngUOb8QwzJ31gsihtiTDPwqnKw+c3JCy8sSESnfYh+h8g==";

/// A datacenter whose racks all run as the specification says.
fn running(racks: &[(&str, i32)], spec: Value) -> Cached {
    let mut cached = cached(datacenter_with(racks, spec));
    for _ in racks {
        for one in plan(&cached).objects.stateful_sets {
            cached.stateful_sets.insert(rolled_out(one));
        }
    }
    for mut service in plan(&cached).objects.member_services {
        let annotations = service.metadata.annotations.get_or_insert_default();
        annotations.insert(NODE_JOINED.into(), "true".into());
        annotations.insert(CURRENT_TOKEN_RING_HASH.into(), "ring".into());
        annotations.insert(LAST_CLEANED_UP_TOKEN_RING_HASH.into(), "ring".into());
        let name = service.metadata.name.clone().unwrap();
        let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        let pod = json!({"metadata": {"name": name, "uid": format!("uid-of-{name}")}, "status": ready});
        cached.pods.insert(with_name(&name, serde_json::from_value(pod).unwrap()));
        cached.services.insert(service);
    }
    assert_eq!(plan(&cached).progressing, [], "everything is in the desired state");
    cached
}

/// The same observation of another specification.
fn respecified(cached: &Cached, racks: &[(&str, i32)], spec: Value) -> Cached {
    Cached { datacenter: datacenter_with(racks, spec), ..cached.clone() }
}

fn image(version: &str) -> Value {
    json!({"scyllaDB": {"image": format!("scylladb/scylla:{version}")}})
}

/// A reason to restart all nodes.
fn restart(reason: &str) -> Value {
    json!({"forceRedeploymentReason": reason})
}

/// Returns the StatefulSets that the plan changes.
fn changed(cached: &Cached, plan: &Plan) -> Vec<String> {
    let is_new = |one: &&StatefulSet| cached.stateful_sets.get(&name_of(one)).is_none_or(|now| now.spec != one.spec);
    plan.objects.stateful_sets.iter().filter(is_new).map(name_of).collect()
}

/// Returns the reasons of racks. Cleanup has tests of its own.
fn reasons(plan: &Plan) -> Vec<&'static str> {
    plan.progressing.iter().filter(|note| note.component != Component::Job).map(|note| note.reason.as_str()).collect()
}

fn untouched(name: &str) -> Untouched {
    Untouched { kind: "StatefulSet", name: name.into() }
}

fn set_not_ready(cached: &mut Cached, name: &str) {
    let status = cached.stateful_sets.get_mut(name).unwrap().status.as_mut().unwrap();
    status.ready_replicas = Some(0);
    for down in cached.pods.values_mut().filter(|pod| pod.metadata.name.as_ref().unwrap().starts_with(name)) {
        down.status = pod(json!({"conditions": [{"type": "Ready", "status": "False"}]})).status;
    }
}

#[test]
fn racks_are_created_one_after_another() {
    let mut cached = cached(datacenter_with(&[("a", 1), ("b", 1)], json!({})));
    let first = plan(&cached);
    assert_eq!(changed(&cached, &first), ["orders-dc-a"]);
    assert_eq!(reasons(&first), ["CreatingStatefulSet", "WaitingForOtherRacks"]);
    let a = first.objects.stateful_sets[0].clone();
    cached.stateful_sets.insert(a.clone());
    assert_eq!(changed(&cached, &plan(&cached)), [] as [&str; 0], "its nodes have not joined yet");
    cached.stateful_sets.insert(rolled_out(a));
    assert_eq!(changed(&cached, &plan(&cached)), ["orders-dc-b"]);
}

#[test]
fn racks_are_created_at_once_with_parallel_node_operations() {
    let cached = cached(datacenter_with(&[("a", 1), ("b", 1)], json!({"enableParallelNodeOperations": true})));
    assert_eq!(changed(&cached, &plan(&cached)), ["orders-dc-a", "orders-dc-b"]);
}

#[test]
fn one_rack_changes_at_a_time() {
    let before = running(&[("a", 1), ("b", 1)], json!({}));
    let mut cached = respecified(&before, &[("a", 1), ("b", 1)], restart("because"));
    let first = plan(&cached);
    assert_eq!(changed(&cached, &first), ["orders-dc-a"]);
    assert_eq!(first.untouched, [untouched("orders-dc-b")]);
    let a = first.objects.stateful_sets.into_iter().find(|one| name_of(one) == "orders-dc-a").unwrap();
    cached.stateful_sets.insert(a.clone());
    let second = plan(&cached);
    assert_eq!((changed(&cached, &second), &second.untouched[..]), (vec![], &[untouched("orders-dc-b")][..]));
    cached.stateful_sets.insert(rolled_out(a));
    assert_eq!(changed(&cached, &plan(&cached)), ["orders-dc-b"]);
}

#[test]
fn nodes_join_before_pods_are_updated() {
    let before = running(&[("a", 1), ("b", 1)], json!({}));
    let cached = respecified(&before, &[("a", 1), ("b", 3)], image("2026.2.5"));
    let plan = plan(&cached);
    assert_eq!(changed(&cached, &plan), ["orders-dc-b"]);
    let b = plan.objects.stateful_sets[0].spec.as_ref().unwrap();
    assert_eq!(b.replicas, Some(3));
    let now = cached.stateful_sets["orders-dc-b"].spec.as_ref().unwrap();
    assert_eq!(b.template, now.template, "a node joins with the version that the others have");
    assert_eq!(plan.objects.member_services.len(), 4);
}

#[test]
fn no_change_begins_while_a_node_is_down() {
    let mut cached = running(&[("a", 1), ("b", 1)], json!({}));
    set_not_ready(&mut cached, "orders-dc-b");
    for (racks, spec) in [
        (&[("a", 2), ("b", 1)][..], json!({})),
        (&[("a", 1), ("b", 1), ("c", 1)][..], json!({})),
        (&[("a", 1), ("b", 2)][..], json!({})),
    ] {
        let cached = respecified(&cached, racks, spec);
        let plan = plan(&cached);
        assert_eq!(changed(&cached, &plan), [] as [&str; 0], "{racks:?}");
        assert!(reasons(&plan).contains(&"WaitingForStatefulSetRollout"));
    }
}

#[test]
fn pods_that_are_down_can_be_corrected() {
    let mut cached = running(&[("a", 1), ("b", 1)], json!({}));
    set_not_ready(&mut cached, "orders-dc-b");
    let cached = respecified(&cached, &[("a", 1), ("b", 1)], image("2026.2.5"));
    assert_eq!(changed(&cached, &plan(&cached)), ["orders-dc-b"]);
    assert_eq!(plan(&cached).untouched, [untouched("orders-dc-a")]);
}

/// A rack of two, of which the second has not joined, and another desired version.
fn upgraded_while_joining(policy: &str) -> Cached {
    let mut cached = running(&[("a", 2)], json!({"enableParallelNodeOperations": policy == "Parallel"}));
    cached.services.get_mut("orders-dc-a-1").unwrap().metadata.annotations = None;
    let status = cached.stateful_sets.get_mut("orders-dc-a").unwrap().status.as_mut().unwrap();
    status.ready_replicas = Some(1);
    let mut spec = image("2026.2.5");
    spec["enableParallelNodeOperations"] = json!(policy == "Parallel");
    respecified(&cached, &[("a", 2)], spec)
}

fn pod(status: Value) -> Pod {
    serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap()
}

fn waiting_for(reason: &str) -> Pod {
    pod(json!({"containerStatuses": [{
        "name": "scylla", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": reason}},
    }]}))
}

#[test]
fn joining_node_is_not_restarted() {
    let running = pod(json!({"containerStatuses": [{
        "name": "scylla", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"running": {}},
    }]}));
    for (state, pod, may_change) in [
        ("no pod yet", None, false),
        ("running", Some(running), false),
        ("creating", Some(waiting_for("ContainerCreating")), false),
        ("no image", Some(waiting_for("ImagePullBackOff")), true),
        ("crashing", Some(waiting_for("CrashLoopBackOff")), true),
        ("no Kubernetes node", Some(pod(json!({"conditions": [{"type": "PodScheduled", "status": "False"}]}))), true),
    ] {
        let mut cached = upgraded_while_joining("OrderedReady");
        cached.pods.extend(pod.map(|pod| with_name("orders-dc-a-1", pod)));
        let expected: &[&str] = if may_change { &["orders-dc-a"] } else { &[] };
        assert_eq!(changed(&cached, &plan(&cached)), expected, "{state}");
    }
}

#[test]
fn ready_nodes_are_not_restarted_while_another_is_down() {
    let mut cached = upgraded_while_joining("Parallel");
    cached.pods.insert(with_name("orders-dc-a-1", waiting_for("ImagePullBackOff")));
    let corrected = &plan(&cached).objects.stateful_sets[0];
    assert_eq!(partition(corrected), 1, "Kubernetes would not wait for the one that is down");
}

fn partition(stateful_set: &StatefulSet) -> i32 {
    let strategy = stateful_set.spec.as_ref().unwrap().update_strategy.as_ref().unwrap();
    strategy.rolling_update.as_ref().unwrap().partition.unwrap()
}

#[test]
fn replicas_are_not_reduced_without_a_decommission() {
    let before = running(&[("a", 3), ("b", 2)], json!({}));
    let cached = respecified(&before, &[("a", 1)], json!({}));
    let plan = plan(&cached);
    assert_eq!(changed(&cached, &plan), [] as [&str; 0]);
    assert_eq!(plan.objects.stateful_sets[0].spec.as_ref().unwrap().replicas, Some(3));
    assert_eq!(plan.objects.member_services.len(), 3);
    let kept: Vec<&str> = plan.untouched.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(kept, ["orders-dc-b", "orders-dc-b-0", "orders-dc-b-1"]);
    let messages: String = plan.progressing.iter().map(|note| note.message.as_str()).collect();
    assert!(messages.contains("Node shop/orders-dc-b-1 has to leave the token ring"), "{messages}");
    assert!(messages.contains("the 2 node(s) of StatefulSet shop/orders-dc-b one by one"), "{messages}");
    assert_eq!((plan.changes, plan.deletions), (vec![], vec![]), "no sidecar has reported the ring");
}

#[test]
fn deleted_stateful_set_is_recreated_for_its_nodes() {
    let before = running(&[("a", 3)], json!({}));
    for evidence in ["pod", "Service"] {
        let mut cached = respecified(&before, &[("a", 1)], json!({}));
        cached.stateful_sets.clear();
        cached.pods.clear();
        if evidence == "pod" {
            cached.pods.insert(with_name("orders-dc-a-2", pod(json!({}))));
        } else {
            let service = cached.services.get_mut("orders-dc-a-2").unwrap();
            service.metadata.annotations.get_or_insert_default().insert(HOST_ID.into(), "f00".into());
        }
        let plan = plan(&cached);
        assert_eq!(plan.objects.stateful_sets[0].spec.as_ref().unwrap().replicas, Some(3), "{evidence}");
    }
    let mut never_there = respecified(&before, &[("a", 1)], json!({}));
    never_there.stateful_sets.clear();
    never_there.pods.clear();
    assert_eq!(plan(&never_there).objects.stateful_sets[0].spec.as_ref().unwrap().replicas, Some(1));
}

#[test]
fn snitch_config_of_a_removed_rack_is_kept() {
    let mut cached = running(&[("a", 1), ("b", 1)], json!({}));
    for config in plan(&cached).objects.snitch_configs {
        cached.config_maps.insert(config);
    }
    let plan = plan(&respecified(&cached, &[("a", 1)], json!({})));
    assert!(plan.untouched.contains(&Untouched { kind: "ConfigMap", name: "orders-b-snitch-config".into() }));
}

#[test]
fn immutable_fields_are_kept_and_reported() {
    let cached = running(&[("a", 1)], json!({}));
    let spec = json!({
        "enableParallelNodeOperations": true,
        "racks": [{"name": "a", "nodes": 1, "scyllaDB": {"storage": {"capacity": "1Gi", "storageClassName": "fast"}}}],
    });
    let plan = plan(&respecified(&cached, &[], spec));
    let (now, then) = (&cached.stateful_sets["orders-dc-a"], &plan.objects.stateful_sets[0]);
    let (now, then) = (now.spec.as_ref().unwrap(), then.spec.as_ref().unwrap());
    assert_eq!(then.volume_claim_templates, now.volume_claim_templates);
    assert_eq!(then.pod_management_policy, now.pod_management_policy);
    let messages = plan.degraded.iter().map(|note| note.message.as_str());
    let fields: Vec<&str> =
        messages.map(|message| message.split_once("keeps its ").unwrap().1.split_once(',').unwrap().0).collect();
    assert_eq!(fields, ["spec.volumeClaimTemplates", "spec.podManagementPolicy"]);
}

#[test]
fn defaults_of_the_api_server_are_no_difference() {
    let mut cached = running(&[("a", 1)], json!({}));
    let stateful_set = cached.stateful_sets.get_mut("orders-dc-a").unwrap();
    let mut kept = json!(stateful_set);
    kept["spec"]["revisionHistoryLimit"] = 10.into();
    kept["spec"]["template"]["spec"]["restartPolicy"] = "Always".into();
    kept["spec"]["template"]["spec"]["containers"][0]["terminationMessagePath"] = "/dev/termination-log".into();
    kept["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().reverse();
    kept["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] = "today".into();
    *stateful_set = serde_json::from_value(kept).unwrap();
    assert_eq!(plan(&cached).progressing, []);
}

#[test]
fn fields_dropped_by_the_api_server_are_no_difference() {
    let mut cached = running(&[("a", 1), ("b", 1)], json!({"minReadySeconds": 0}));
    for one in cached.stateful_sets.values_mut() {
        let spec = one.spec.as_mut().unwrap();
        spec.min_ready_seconds = spec.min_ready_seconds.filter(|seconds| *seconds != 0);
    }
    assert_eq!(plan(&cached).progressing, [], "a zero that is not kept changes nothing");
}

#[test]
fn own_fields_that_are_no_longer_desired_are_a_difference() {
    let mut cached = running(&[("a", 1)], json!({}));
    let stateful_set = cached.stateful_sets.get_mut("orders-dc-a").unwrap();
    let mut kept = json!(stateful_set);
    kept["spec"]["template"]["metadata"]["annotations"]["team"] = "blue".into();
    *stateful_set = serde_json::from_value(kept).unwrap();
    assert_eq!(reasons(&plan(&cached)), ["UpdatingStatefulSet"]);
    // Unless another field manager owns it, according to the API server.
    let fields =
        |fields: Value| ManagedFieldsEntry { fields_v1: Some(FieldsV1(fields)), ..ManagedFieldsEntry::default() };
    let annotation = json!({"f:metadata": {"f:annotations": {"f:team": {}}}});
    let ours = fields(json!({"f:spec": {"f:selector": {}}}));
    let others = fields(json!({"f:spec": {"f:template": annotation}}));
    cached.stateful_sets.get_mut("orders-dc-a").unwrap().metadata.managed_fields = Some(vec![ours, others.clone()]);
    assert_eq!(plan(&cached).progressing, []);
    // Also where the API server stores that as a text.
    let ours = fields(Value::String(json!({"f:spec": {"f:selector": {}}}).to_string()));
    cached.stateful_sets.get_mut("orders-dc-a").unwrap().metadata.managed_fields = Some(vec![ours, others]);
    assert_eq!(plan(&cached).progressing, []);
}

#[test]
fn changes_of_the_operator_roll_out_to_one_datacenter_at_a_time() {
    let settled_world = running(&[("a", 1), ("b", 1)], json!({}));
    assert_eq!(rollout_state(&settled_world), RolloutState::Complete);
    let mut cached = Cached { operator_image: "messina:another".into(), ..settled_world };
    assert_eq!(rollout_state(&cached), RolloutState::Pending);
    cached.turn = Turn::After("shop/another".into());
    let progressing = plan(&cached);
    assert_eq!(
        (changed(&cached, &progressing), reasons(&progressing)),
        (vec![], vec!["WaitingForTurn", "WaitingForOtherRacks"])
    );
    let reported = progressing.progressing.iter().find(|note| note.reason == "WaitingForTurn").unwrap();
    assert!(reported.message.contains("Waiting for shop/another"), "{}", reported.message);
    // Nodes join nevertheless, with pods like the others.
    cached.datacenter.racks[0].nodes = 2;
    assert_eq!(changed(&cached, &plan(&cached)), ["orders-dc-a"]);
    cached.datacenter.racks[0].nodes = 1;
    cached.turn = Turn::Own;
    assert_eq!(changed(&cached, &plan(&cached)), ["orders-dc-a"]);
}

#[test]
fn drifted_stateful_set_is_corrected() {
    let mut cached = running(&[("a", 1)], json!({}));
    let spec = cached.stateful_sets.get_mut("orders-dc-a").unwrap().spec.as_mut().unwrap();
    spec.template.spec.as_mut().unwrap().containers[0].image = Some("something/else:1".into());
    assert_eq!(changed(&cached, &plan(&cached)), ["orders-dc-a"]);
}

#[test]
fn list_entry_added_by_a_user_is_a_difference() {
    let mut cached = running(&[("a", 1)], json!({}));
    let spec = cached.stateful_sets.get_mut("orders-dc-a").unwrap().spec.as_mut().unwrap();
    let containers = &mut spec.template.spec.as_mut().unwrap().containers;
    containers.push(Container { name: "stowaway".into(), ..Container::default() });
    assert_eq!(reasons(&plan(&cached)), ["UpdatingStatefulSet"]);
}

#[test]
fn any_number_of_replicas_is_kept() {
    let mut cached = running(&[("a", 1)], json!({}));
    let spec = cached.stateful_sets.get_mut("orders-dc-a").unwrap().spec.as_mut().unwrap();
    spec.replicas = Some(i32::MAX);
    let plan = plan(&cached);
    assert_eq!(plan.objects.stateful_sets[0].spec.as_ref().unwrap().replicas, Some(i32::MAX));
    assert_eq!(plan.objects.member_services.len(), 1000, "but there are not that many Services");
}

#[test]
fn changed_user_settings_restart_nodes() {
    let mut cached = running(&[("a", 1)], json!({}));
    set_users_settings(&mut cached, "a: 1");
    assert_eq!(reasons(&plan(&cached)), ["UpdatingStatefulSet"]);
}

fn set_users_settings(cached: &mut Cached, text: &str) {
    let data = [("scylla.yaml".to_owned(), text.to_owned())];
    let config = ConfigMap { data: Some(data.into()), ..ConfigMap::default() };
    cached.user_objects.config_maps.insert("scylla-config".into(), config.into());
}

/// An operator that did not hash the user's settings created the StatefulSet; then it is upgraded to one that does.
#[test]
fn nodes_do_not_restart_because_user_settings_are_hashed_now() {
    let cached = with_old_hash();
    for settings in [None, Some("a: 1")] {
        let mut cached = cached.clone();
        settings.into_iter().for_each(|text| set_users_settings(&mut cached, text));
        let taken_over = plan(&cached);
        assert!(
            taken_over.progressing.iter().all(|note| !note.message.contains("restarts")),
            "{:?}",
            taken_over.progressing
        );
        let noted = &taken_over.objects.stateful_sets[0];
        assert_eq!(noted.spec.as_ref().unwrap().template, stateful_set_of(&cached).spec.as_ref().unwrap().template);
        assert!(noted.metadata.annotations.as_ref().unwrap().contains_key(INPUTS_STAND_FOR));
        cached.stateful_sets.insert(rolled_out(noted.clone()));
        assert_eq!(reasons(&plan(&cached)), [""; 0], "nor later");
        set_users_settings(&mut cached, "a: 2");
        let changed = plan(&cached);
        assert_eq!(
            reasons(&changed),
            ["UpdatingStatefulSet"],
            "a change of them does restart nodes, with {settings:?}"
        );
        let annotations = changed.objects.stateful_sets[0].metadata.annotations.clone().unwrap_or_default();
        assert!(!annotations.contains_key(INPUTS_STAND_FOR), "{annotations:?}");
    }
}

fn with_old_hash() -> Cached {
    let mut cached = running(&[("a", 1)], json!({}));
    let stateful_set = cached.stateful_sets.get_mut("orders-dc-a").unwrap();
    let template = stateful_set.spec.as_mut().unwrap().template.metadata.as_mut().unwrap();
    template.annotations.as_mut().unwrap().insert(INPUTS_HASH.into(), HASH_WITHOUT_USERS.into());
    let pod = cached.pods.get_mut("orders-dc-a-0").unwrap();
    pod.metadata.annotations = template.annotations.clone();
    cached
}

fn inputs_hash(stateful_set: &StatefulSet) -> &str {
    let template = stateful_set.spec.as_ref().unwrap().template.metadata.as_ref().unwrap();
    &template.annotations.as_ref().unwrap()[INPUTS_HASH]
}

#[test]
fn old_hash_is_kept_while_nodes_join() {
    let mut cached = with_old_hash();
    let noted = plan(&cached).objects.stateful_sets.remove(0);
    let stood_for = noted.metadata.annotations.as_ref().unwrap()[INPUTS_STAND_FOR].clone();
    cached.stateful_sets.insert(rolled_out(noted));
    set_users_settings(&mut cached, "a: 1");
    let grown = plan(&respecified(&cached, &[("a", 2)], json!({}))).objects.stateful_sets.remove(0);
    assert_eq!((grown.spec.as_ref().unwrap().replicas, inputs_hash(&grown)), (Some(2), HASH_WITHOUT_USERS));
    assert_eq!(grown.metadata.annotations.unwrap()[INPUTS_STAND_FOR], stood_for, "the change is yet to come");
}

#[test]
fn recreated_stateful_set_keeps_the_old_hash_of_its_pods() {
    let mut cached = with_old_hash();
    cached.stateful_sets.clear();
    let restored = plan(&cached).objects.stateful_sets.remove(0);
    assert_eq!(inputs_hash(&restored), HASH_WITHOUT_USERS);
}

#[test]
fn nodes_that_restart_for_another_reason_get_the_new_hash() {
    let cached = with_old_hash();
    let changed = plan(&respecified(&cached, &[("a", 1)], json!({"forceRedeploymentReason": "x"})));
    let stateful_set = &changed.objects.stateful_sets[0];
    assert_ne!(inputs_hash(stateful_set), HASH_WITHOUT_USERS);
    assert!(!stateful_set.metadata.annotations.clone().unwrap_or_default().contains_key(INPUTS_STAND_FOR));
}

fn stateful_set_of(cached: &Cached) -> &StatefulSet {
    &cached.stateful_sets["orders-dc-a"]
}

#[test]
fn datacenter_is_available_when_all_nodes_are() {
    let mut cached = running(&[("a", 1), ("b", 2)], json!({}));
    for name in ["orders-dc-a-0", "orders-dc-b-0"] {
        let pod = json!({"metadata": {}, "spec": {"containers": [{"name": "scylla", "image": "scylla:2026.2.4"}]}});
        cached.pods.insert(with_name(name, serde_json::from_value(pod).unwrap()));
    }
    let of = |cached: &Cached| {
        let report = report(cached);
        (
            report.status,
            report.available.is_ok(),
            report.available.err().map_or("AsExpected", |reported| reported.reason.as_str()),
        )
    };
    let (status, holds, reason) = of(&cached);
    assert!(holds, "{reason}");
    assert_eq!((status.nodes, status.ready_nodes, status.available_nodes), (Some(3), Some(3), Some(3)));
    assert_eq!((status.current_version.as_deref(), status.observed_generation), (Some("2026.2.4"), Some(1)));
    let mut written = Cached { status, ..cached.clone() };
    for pod in written.pods.values_mut() {
        pod.status = serde_json::from_value(json!({"conditions": [{"type": "Ready", "status": "True"}]})).unwrap();
    }
    written.stateful_sets.get_mut("orders-dc-a").unwrap().metadata.generation = Some(2);
    assert!(of(&written).1, "nodes go on serving before Kubernetes has looked at what was written");
    written.pods.remove("orders-dc-a-0");
    assert!(!of(&written).1, "the status is stale");
    set_not_ready(&mut cached, "orders-dc-b");
    let (status, holds, reason) = of(&cached);
    assert_eq!((holds, reason, status.ready_nodes), (false, "MembersNotReady", Some(1)));
    let upgraded = respecified(&cached, &[("a", 1), ("b", 2)], image("2026.2.5"));
    let (status, holds, reason) = of(&upgraded);
    assert_eq!((holds, reason), (false, "RacksNotAtDesiredVersion"));
    assert_eq!(
        (status.current_version.as_deref(), status.updated_version.as_deref()),
        (Some("2026.2.4"), Some("2026.2.5"))
    );
}

/// The pause annotation is for the datacenter alone: on pods it would restart all nodes.
#[test]
fn pause_annotation_is_not_propagated() {
    let object = |annotations: Value| {
        json!({
            "metadata": {
                "name": "orders", "namespace": "shop", "uid": "the-uid", "generation": 1, "annotations": annotations,
            },
            "spec": {
                "clusterName": "orders", "scyllaDB": {"image": "scylladb/scylla:2026.2.4"},
                "racks": [{"name": "a", "nodes": 1, "scyllaDB": {"storage": {"capacity": "1Gi"}}}],
            },
        })
    };
    let objects = |annotations: Value| plan(&cached(datacenter(object(annotations)))).objects;
    assert!(objects(json!({"messina.scylladb.com/pause": "true"})) == objects(json!({})));
    assert!(objects(json!({"team": "blue"})) != objects(json!({})), "others are");
}

#[test]
fn changed_datacenter_name_is_a_fault_while_there_are_nodes() {
    let cached = running(&[("a", 1)], json!({}));
    assert_eq!(change_of_identity(&cached), None);
    let fault = change_of_identity(&respecified(&cached, &[("a", 1)], json!({"datacenterName": "other"}))).unwrap();
    assert_eq!(fault.field, "spec.datacenterName");
    assert!(fault.message.contains("\"dc\" again"), "{}", fault.message);
    // Another operator has begun to apply the new name: it can be changed back, and only back.
    let mut begun = respecified(&cached, &[("a", 1)], json!({"datacenterName": "other"}));
    let time = |seconds| Some(Time(jiff::Timestamp::from_second(seconds).unwrap()));
    begun.stateful_sets.get_mut("orders-dc-a").unwrap().metadata.creation_timestamp = time(1);
    let mut newer = plan(&begun).objects.stateful_sets.remove(0);
    assert_eq!(newer.metadata.name.as_deref(), Some("orders-other-a"));
    newer.metadata.creation_timestamp = time(2);
    begun.stateful_sets.insert(with_name("orders-other-a", newer));
    assert!(change_of_identity(&begun).unwrap().message.contains("\"dc\" again"));
    assert_eq!(change_of_identity(&respecified(&begun, &[("a", 1)], json!({}))), None);
    let mut empty = respecified(&cached, &[("a", 1)], json!({"datacenterName": "other"}));
    empty.stateful_sets.clear();
    assert_eq!(change_of_identity(&empty), None);
}
