//! Volume expansion while nodes run, a node under maintenance, and one whose Kubernetes node is gone.

use std::{collections::BTreeMap, panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Node, NodeSpec, PersistentVolumeClaim, Pod, Service},
    storage::v1::StorageClass,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use messina_api::{names::label, scylla::v1alpha1::ScyllaDBDatacenter};
use messina_e2e::datacenter::{LONG, NAME, NODE_PODS, TestDatacenter, manifest};
use messina_testbed::{
    audit::Log,
    harness::{Seen, until},
    reserved,
};
use serde_json::{Value, json};

use crate::testbed::skip_if_unsuitable;

const RACKS: [&str; 3] = ["orders-dc-a", "orders-dc-b", "orders-dc-c"];
/// The member whose pod is on the Kubernetes node that this test deletes.
const LOST: &str = "orders-dc-c-0";

/// The StorageClass of a test: the test changes it, and no other one uses it.
fn class_name(datacenter: &TestDatacenter) -> String {
    format!("local-{}", datacenter.namespace)
}

/// Three nodes with volumes of this size. One of them runs on the Kubernetes node that is reserved for this test, as
/// long as that exists.
fn with_capacity(datacenter: &TestDatacenter, capacity: &str) -> Value {
    let mut manifest = manifest(&[("a", 1), ("b", 1), ("c", 1)]);
    let storage = &mut manifest["spec"]["rackTemplate"]["scyllaDB"]["storage"];
    *storage = json!({"capacity": capacity, "storageClassName": class_name(datacenter)});
    let others = json!({
        "topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"scylla/cluster": NAME}},
    });
    let apart =
        json!({"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": others}]});
    let is_reserved = json!({"key": reserved::KEY, "operator": "In", "values": [reserved::VALUE]});
    let near = json!({"weight": 100, "preference": {"matchExpressions": [is_reserved]}});
    manifest["spec"]["rackTemplate"]["placement"] = json!({"podAntiAffinity": apart});
    // The placement of a rack replaces that of the template.
    manifest["spec"]["racks"][2]["placement"] = json!({
        "podAntiAffinity": apart,
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [near]},
        "tolerations": [{"key": reserved::KEY, "operator": "Equal", "value": reserved::VALUE, "effect": "NoSchedule"}],
    });
    manifest
}

/// Request and capacity of each claim.
async fn claims(datacenter: &TestDatacenter) -> Vec<(String, String)> {
    let claims = datacenter.api::<PersistentVolumeClaim>();
    let claims = claims.list(&ListParams::default()).await.unwrap();
    let sizes = |claim: &PersistentVolumeClaim| {
        let claim = json!(claim);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&claim["spec"]["resources"]["requests"]["storage"]), text(&claim["status"]["capacity"]["storage"]))
    };
    claims.iter().map(sizes).collect()
}

/// UID of each StatefulSet, and the size in its claim template.
async fn stateful_sets(datacenter: &TestDatacenter) -> BTreeMap<String, (String, String)> {
    let sets = datacenter.api::<StatefulSet>().list(&ListParams::default()).await.unwrap();
    let one = |set: &StatefulSet| {
        let size = json!(set)["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"].clone();
        (set.uid().unwrap(), size.as_str().unwrap_or_default().to_owned())
    };
    sets.iter().map(|set| (set.name_any(), one(set))).collect()
}

/// Waits for a condition that is true and has these words in its reason or message.
async fn await_condition(datacenter: &TestDatacenter, name: &str, words: &str) -> Condition {
    let has_words = |one: &Condition| one.reason.contains(words) || one.message.contains(words);
    datacenter.condition(name, "True", has_words).await
}

#[tokio::test]
async fn volumes_expand_while_nodes_run() {
    skip_if_unsuitable!();
    let datacenter = &TestDatacenter::create("volumes", &[]).await;
    let observer = datacenter.observe();
    create_class(datacenter).await;
    datacenter.apply(&with_capacity(datacenter, "50Mi")).await;
    datacenter.settled(3).await;

    expand_all_volumes(datacenter, &datacenter.log_from_now()).await;
    shrinking_is_refused(datacenter).await;
    storage_class_without_expansion_is_reported(datacenter).await;
    node_under_maintenance_is_not_changed(datacenter).await;
    kubernetes_node_is_lost(datacenter).await;
    println!("the observer: {}", observer.ends());
    datacenter.permissions().await;
    classes(datacenter).delete(&class_name(datacenter), &DeleteParams::default()).await.unwrap();
    datacenter.remove().await;
}

/// The time since when it is available.
async fn available_since(datacenter: &TestDatacenter) -> Value {
    let api = datacenter.api::<ScyllaDBDatacenter>();
    let conditions = api.get(NAME).await.unwrap().status.unwrap().conditions.unwrap();
    let available = conditions.iter().find(|one| one.type_ == "Available" && one.status == "True").unwrap();
    json!(available.last_transition_time)
}

async fn expand_all_volumes(datacenter: &TestDatacenter, log: &Log) {
    let (pods_before, sets_before) = (datacenter.nodes().await.pods, stateful_sets(datacenter).await);
    let since = available_since(datacenter).await;
    datacenter.apply(&with_capacity(datacenter, "80Mi")).await;
    let of_80 = |(request, capacity): &(String, String)| request == "80Mi" && capacity == "80Mi";
    datacenter.settled(3).await;
    let sizes = claims(datacenter).await;
    assert!(sizes.len() == 3 && sizes.iter().all(of_80), "{sizes:?}");
    assert_eq!(datacenter.nodes().await.pods, pods_before, "no pod was recreated, no container restarted");
    assert_eq!(available_since(datacenter).await, since, "it was available all the time");
    let sets = stateful_sets(datacenter).await;
    for rack in RACKS {
        assert_eq!(sets[rack].1, "80Mi", "{rack}");
        assert_ne!(sets[rack].0, sets_before[rack].0, "{rack} is another StatefulSet");
    }
    let requests = log.requests_by(&[&datacenter.operator.user()]).unwrap();
    let wrote = |resource: &str, verb: &str| {
        let done = requests.iter().filter(|one| one.code < 300);
        done.filter(|one| one.resource == resource && one.verb == verb).count()
    };
    let counts = [("persistentvolumeclaims", "patch"), ("statefulsets", "delete"), ("statefulsets", "create")];
    assert_eq!(counts.map(|(resource, verb)| wrote(resource, verb)), [3, 3, 3]);
    // New claims of the recreated StatefulSet have the new size, too. It has adopted its pods.
    let sets = datacenter.api::<StatefulSet>();
    for rack in RACKS {
        let set = sets.get(rack).await.unwrap();
        let pod = datacenter.api::<Pod>().get(&format!("{rack}-0")).await.unwrap();
        let owner = pod.owner_references().first().map(|owner| owner.uid.clone());
        assert_eq!(owner, set.uid(), "{rack} has adopted its pod");
    }
}

async fn shrinking_is_refused(datacenter: &TestDatacenter) {
    let before = stateful_sets(datacenter).await;
    datacenter.apply(&with_capacity(datacenter, "60Mi")).await;
    let condition = await_condition(datacenter, "StorageControllerDegraded", "StorageCannotShrink").await;
    println!("smaller: {}", condition.message);
    assert_eq!(stateful_sets(datacenter).await, before);
    assert!(claims(datacenter).await.iter().all(|(request, _)| request == "80Mi"));
    datacenter.apply(&with_capacity(datacenter, "80Mi")).await;
    datacenter.settled(3).await;
}

fn classes(datacenter: &TestDatacenter) -> Api<StorageClass> {
    Api::all(datacenter.client.clone())
}

/// Creates the StorageClass of the test: the same as `local`, but not the default.
async fn create_class(datacenter: &TestDatacenter) {
    let local = classes(datacenter).get("local").await.unwrap();
    let metadata = ObjectMeta { name: Some(class_name(datacenter)), ..ObjectMeta::default() };
    classes(datacenter).create(&PostParams::default(), &StorageClass { metadata, ..local }).await.unwrap();
}

async fn allow_expansion(datacenter: &TestDatacenter, is_allowed: bool) {
    let patch = Patch::Merge(json!({"allowVolumeExpansion": is_allowed}));
    classes(datacenter).patch(&class_name(datacenter), &PatchParams::default(), &patch).await.unwrap();
}

/// Nothing changes as long as the StorageClass forbids expansion; when it allows it, the expansion continues.
async fn storage_class_without_expansion_is_reported(datacenter: &TestDatacenter) {
    let before = (claims(datacenter).await, stateful_sets(datacenter).await);
    allow_expansion(datacenter, false).await;
    datacenter.apply(&with_capacity(datacenter, "90Mi")).await;
    let condition = await_condition(datacenter, "StorageControllerDegraded", "ExpansionForbidden").await;
    println!("forbidden: {}", condition.message);
    let claim = format!("PersistentVolumeClaim {}/data-orders-dc-a-0", datacenter.namespace);
    let class = format!("StorageClass {}", class_name(datacenter));
    assert!(condition.message.contains(&claim), "{}", condition.message);
    assert!(condition.message.contains(&class), "{}", condition.message);
    assert_eq!((claims(datacenter).await, stateful_sets(datacenter).await), before, "nothing is changed");
    allow_expansion(datacenter, true).await;
    datacenter.settled(3).await;
    assert!(claims(datacenter).await.iter().all(|(_, capacity)| capacity == "90Mi"));
}

/// A node under maintenance gets no traffic, is not restarted, and no other change begins.
async fn node_under_maintenance_is_not_changed(datacenter: &TestDatacenter) {
    let node = "orders-dc-b-0";
    let before = datacenter.nodes().await.pods;
    let mark = async |value: Option<&str>| {
        let patch = json!({"metadata": {"labels": {label::NODE_MAINTENANCE: value}}});
        datacenter.patch::<Service>(node, patch).await;
    };
    mark(Some("")).await;
    let condition = await_condition(datacenter, "StatefulSetControllerProgressing", "NodeUnderMaintenance").await;
    println!("maintenance: {}", condition.message);
    let namespace = &datacenter.namespace;
    let command = format!("kubectl label service -n {namespace} orders-dc-b-0 scylla/node-maintenance-");
    assert!(condition.message.contains(&command), "{}", condition.message);
    let ready = async |wanted: &'static str| {
        until(datacenter.api::<Pod>(), node, "its readiness", LONG, |seen| {
            let conditions = seen.and_then(|pod| pod.status?.conditions).unwrap_or_default();
            let is_it = conditions.iter().any(|one| one.type_ == "Ready" && one.status == wanted);
            if is_it { Seen::Ready(()) } else { Seen::NotYet(format!("{conditions:?}")) }
        })
        .await
        .unwrap();
    };
    ready("False").await;
    // The user asks for one more node and a rolling restart; neither begins.
    let mut spec = with_capacity(datacenter, "90Mi");
    spec["spec"]["racks"][0]["nodes"] = 2.into();
    spec["spec"]["forceRedeploymentReason"] = "maintenance".into();
    datacenter.apply(&spec).await;
    let change = format!("StatefulSet {namespace}/orders-dc-a has to be updated");
    await_condition(datacenter, "StatefulSetControllerProgressing", &change).await;
    assert_eq!(datacenter.nodes().await.pods, before, "no pod comes, goes or is restarted");
    datacenter.apply(&with_capacity(datacenter, "90Mi")).await;
    // The operator watches Services and datacenters separately: it has to see the reverted specification first.
    datacenter.condition("StatefulSetControllerProgressing", "True", |one| !one.message.contains(&change)).await;
    mark(None).await;
    ready("True").await;
    datacenter.settled(3).await;
    assert_eq!(datacenter.nodes().await.pods, before, "and none was");
}

/// Deletes the Kubernetes node of one pod, and its volume. The test recreates it in any case: the kubelet continues to
/// write its status, and the next run needs it.
async fn kubernetes_node_is_lost(datacenter: &TestDatacenter) {
    let nodes: Api<Node> = Api::all(datacenter.client.clone());
    let pods = datacenter.api::<Pod>().list(&ListParams::default().labels(NODE_PODS)).await.unwrap();
    let is_there = |pod: &&Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_deref() == Some(reserved::NODE));
    let there: Vec<String> = pods.iter().filter(is_there).map(ResourceExt::name_any).collect();
    assert_eq!(there, [LOST], "pods on the Kubernetes node that is reserved");
    let node = nodes.get(reserved::NODE).await.unwrap();
    nodes.delete(reserved::NODE, &DeleteParams::default()).await.unwrap();
    let outcome = AssertUnwindSafe(lost_node_is_replaced_when_asked(datacenter)).catch_unwind().await;
    create_again(&nodes, node).await;
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

/// The operator reports that the node is gone, and replaces it only when automatic replacement is enabled.
async fn lost_node_is_replaced_when_asked(datacenter: &TestDatacenter) {
    let before = datacenter.host_id(LOST).await;
    let condition = await_condition(datacenter, "ServiceControllerDegraded", "NodeGone").await;
    println!("gone: {}", condition.message);
    let command = format!("kubectl label service -n {} {LOST} scylla/replace=", datacenter.namespace);
    assert!(condition.message.contains(&command), "{}", condition.message);
    assert_eq!(datacenter.host_id(LOST).await, before, "nothing is done unasked");
    let mut enabled = with_capacity(datacenter, "90Mi");
    enabled["spec"]["disableAutomaticOrphanedNodeReplacement"] = false.into();
    datacenter.apply(&enabled).await;
    datacenter.settled(3).await;
    assert_ne!(datacenter.host_id(LOST).await, before, "another node is in its place");
    let service = datacenter.api::<Service>().get(LOST).await.unwrap();
    assert_eq!(service.labels().get(label::REPLACE), None);
}

/// Recreates a Node object without its status, and waits until the kubelet reports that it is ready.
async fn create_again(nodes: &Api<Node>, node: Node) {
    let ObjectMeta { name, labels, annotations, .. } = node.metadata;
    let NodeSpec { pod_cidr, pod_cidrs, provider_id, taints, .. } = node.spec.unwrap_or_default();
    let again = Node {
        metadata: ObjectMeta { name, labels, annotations, ..ObjectMeta::default() },
        spec: Some(NodeSpec { pod_cidr, pod_cidrs, provider_id, taints, ..NodeSpec::default() }),
        status: None,
    };
    nodes.create(&PostParams::default(), &again).await.unwrap();
    until(nodes.clone(), reserved::NODE, "the Kubernetes node to be ready again", Duration::from_secs(60), |seen| {
        let conditions = seen.and_then(|node| node.status?.conditions).unwrap_or_default();
        let is_ready = conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
        if is_ready { Seen::Ready(()) } else { Seen::NotYet(format!("{conditions:?}")) }
    })
    .await
    .unwrap();
}
