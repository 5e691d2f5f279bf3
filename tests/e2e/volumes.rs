//! Disks that grow while nodes run, a node that somebody works on, and one whose machine is gone.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Node, PersistentVolumeClaim, Pod, Service},
    storage::v1::StorageClass,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use messina_api::{
    names::{annotation, label},
    scylla::v1alpha1::ScyllaDBDatacenter,
};
use messina_e2e::{
    clusters::{Started, cluster_named},
    observer::Observer,
    permissions::{OPERATOR, permissions},
};
use messina_testbed::{
    audit::Log,
    deploy,
    harness::{Seen, until},
    progress::Steps,
};
use serde_json::{Value, json};

use crate::{
    datacenter::{apply, manifest, settled},
    testbed::machine,
};

const LONG: Duration = Duration::from_secs(300);
const NODES: &str = "scylla/cluster=orders,scylla-operator.scylladb.com/pod-type=scylladb-node";
const RACKS: [&str; 3] = ["orders-dc-a", "orders-dc-b", "orders-dc-c"];

fn with_capacity(capacity: &str) -> Value {
    let mut manifest = manifest(&[("a", 1), ("b", 1), ("c", 1)]);
    manifest["spec"]["rackTemplate"]["scyllaDB"]["storage"]["capacity"] = capacity.into();
    let others = json!({
        "topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"scylla/cluster": "orders"}},
    });
    manifest["spec"]["rackTemplate"]["placement"]["podAntiAffinity"] =
        json!({"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": others}]});
    manifest
}

/// UID and number of restarts of each pod.
async fn pods(client: &Client) -> BTreeMap<String, (String, i32)> {
    let nodes = ListParams::default().labels(NODES);
    let pods = Api::<Pod>::default_namespaced(client.clone()).list(&nodes).await.unwrap();
    let one = |pod: &Pod| {
        let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        (pod.uid().unwrap(), containers.map(|container| container.restart_count).sum())
    };
    pods.iter().map(|pod| (pod.name_any(), one(pod))).collect()
}

/// Request and capacity of each claim.
async fn claims(client: &Client) -> Vec<(String, String)> {
    let claims = Api::<PersistentVolumeClaim>::default_namespaced(client.clone());
    let claims = claims.list(&ListParams::default()).await.unwrap();
    let sizes = |claim: &PersistentVolumeClaim| {
        let claim = json!(claim);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&claim["spec"]["resources"]["requests"]["storage"]), text(&claim["status"]["capacity"]["storage"]))
    };
    claims.iter().map(sizes).collect()
}

/// UID of each StatefulSet, and the size of the disks of its new nodes.
async fn stateful_sets(client: &Client) -> BTreeMap<String, (String, String)> {
    let sets = Api::<StatefulSet>::default_namespaced(client.clone()).list(&ListParams::default()).await.unwrap();
    let one = |set: &StatefulSet| {
        let size = json!(set)["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"].clone();
        (set.uid().unwrap(), size.as_str().unwrap_or_default().to_owned())
    };
    sets.iter().map(|set| (set.name_any(), one(set))).collect()
}

/// Waits for a condition that is true and has these words in its reason or message.
async fn told(client: &Client, condition: &str, words: &str) -> Condition {
    let api: Api<ScyllaDBDatacenter> = Api::default_namespaced(client.clone());
    until(api, "orders", &format!("{condition} with {words}"), LONG, |seen| {
        let conditions = seen.and_then(|datacenter| datacenter.status?.conditions).unwrap_or_default();
        let says = |one: &Condition| one.reason.contains(words) || one.message.contains(words);
        let is_it = |one: &&Condition| one.type_ == condition && one.status == "True" && says(one);
        match conditions.iter().find(is_it) {
            Some(found) => Seen::Ready(found.clone()),
            None => Seen::NotYet(format!("{conditions:#?}")),
        }
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn disks_grow_while_nodes_run() {
    machine!();
    let cluster = Started::up("volumes", &["--nodes", "3"]);
    let client = cluster.client().await;
    let log_file = cluster_named("volumes").audit_log().to_owned();
    deploy::images(&cluster_named("volumes"), &Steps::quiet()).unwrap();
    deploy::operator(&client, &Steps::quiet()).await.unwrap();
    let observer = Observer::start(&cluster_named("volumes"), "default");
    apply(&client, &with_capacity("50Mi")).await;
    settled(&client, 3).await;

    all_disks_grow(&client, &Log::from_now(log_file.clone()).unwrap()).await;
    none_becomes_smaller(&client).await;
    a_class_may_forbid_it(&client).await;
    somebody_works_on_a_node(&client).await;
    a_machine_goes_for_good(&client).await;
    println!("the observer: {}", observer.ends());
    permissions(&client, &Log::new(log_file)).await;
}

/// Since when it has been available.
async fn available_since(client: &Client) -> Value {
    let api: Api<ScyllaDBDatacenter> = Api::default_namespaced(client.clone());
    let conditions = api.get("orders").await.unwrap().status.unwrap().conditions.unwrap();
    let available = conditions.iter().find(|one| one.type_ == "Available" && one.status == "True").unwrap();
    json!(available.last_transition_time)
}

async fn all_disks_grow(client: &Client, log: &Log) {
    let (pods_before, sets_before) = (pods(client).await, stateful_sets(client).await);
    let since = available_since(client).await;
    apply(client, &with_capacity("80Mi")).await;
    let of_80 = |(request, capacity): &(String, String)| request == "80Mi" && capacity == "80Mi";
    settled(client, 3).await;
    let sizes = claims(client).await;
    assert!(sizes.len() == 3 && sizes.iter().all(of_80), "{sizes:?}");
    assert_eq!(pods(client).await, pods_before, "no pod was made anew, no container started again");
    assert_eq!(available_since(client).await, since, "it was available all the time");
    let sets = stateful_sets(client).await;
    for rack in RACKS {
        assert_eq!(sets[rack].1, "80Mi", "{rack}");
        assert_ne!(sets[rack].0, sets_before[rack].0, "{rack} is another StatefulSet");
    }
    let requests = log.requests().unwrap();
    let wrote = |resource: &str, verb: &str| {
        let is_it = |one: &&messina_testbed::audit::Request| {
            one.user == OPERATOR && one.resource == resource && one.verb == verb && one.code < 300
        };
        requests.iter().filter(is_it).count()
    };
    let counts = [("persistentvolumeclaims", "patch"), ("statefulsets", "delete"), ("statefulsets", "create")];
    assert_eq!(counts.map(|(resource, verb)| wrote(resource, verb)), [3, 3, 3]);
    // A claim that a StatefulSet makes from now on has the new size, too: it adopted its pods, and goes on with them.
    let sets = Api::<StatefulSet>::default_namespaced(client.clone());
    for rack in RACKS {
        let set = sets.get(rack).await.unwrap();
        let pod = Api::<Pod>::default_namespaced(client.clone()).get(&format!("{rack}-0")).await.unwrap();
        let owner = pod.owner_references().first().map(|owner| owner.uid.clone());
        assert_eq!(owner, set.uid(), "{rack} has adopted its pod");
    }
}

async fn none_becomes_smaller(client: &Client) {
    let before = stateful_sets(client).await;
    apply(client, &with_capacity("60Mi")).await;
    let condition = told(client, "StorageControllerDegraded", "StorageCannotShrink").await;
    println!("smaller: {}", condition.message);
    assert_eq!(stateful_sets(client).await, before);
    assert!(claims(client).await.iter().all(|(request, _)| request == "80Mi"));
    apply(client, &with_capacity("80Mi")).await;
    settled(client, 3).await;
}

async fn allow(client: &Client, is_allowed: bool) {
    let classes: Api<StorageClass> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"allowVolumeExpansion": is_allowed}));
    classes.patch("local", &PatchParams::default(), &patch).await.unwrap();
}

/// Nothing is changed then; as soon as the class allows it, all goes on.
async fn a_class_may_forbid_it(client: &Client) {
    let before = (claims(client).await, stateful_sets(client).await);
    allow(client, false).await;
    apply(client, &with_capacity("90Mi")).await;
    let condition = told(client, "StorageControllerDegraded", "ExpansionForbidden").await;
    println!("forbidden: {}", condition.message);
    assert!(condition.message.contains("PersistentVolumeClaim default/data-orders-dc-a-0"), "{}", condition.message);
    assert!(condition.message.contains("StorageClass local"), "{}", condition.message);
    assert_eq!((claims(client).await, stateful_sets(client).await), before, "nothing is changed");
    allow(client, true).await;
    settled(client, 3).await;
    assert!(claims(client).await.iter().all(|(_, capacity)| capacity == "90Mi"));
}

/// It gets no traffic, nothing restarts it, and nothing begins until that is over.
async fn somebody_works_on_a_node(client: &Client) {
    let node = "orders-dc-b-0";
    let before = pods(client).await;
    let services: Api<Service> = Api::default_namespaced(client.clone());
    let mark = async |value: Option<&str>| {
        let patch = Patch::Merge(json!({"metadata": {"labels": {label::NODE_MAINTENANCE: value}}}));
        services.patch(node, &PatchParams::default(), &patch).await.unwrap();
    };
    mark(Some("")).await;
    let condition = told(client, "StatefulSetControllerProgressing", "NodeUnderMaintenance").await;
    println!("maintenance: {}", condition.message);
    assert!(condition.message.contains("kubectl label service -n default orders-dc-b-0 scylla/node-maintenance-"));
    let ready = async |wanted: &'static str| {
        until(Api::<Pod>::default_namespaced(client.clone()), node, "its readiness", LONG, |seen| {
            let conditions = seen.and_then(|pod| pod.status?.conditions).unwrap_or_default();
            let is_it = conditions.iter().any(|one| one.type_ == "Ready" && one.status == wanted);
            if is_it { Seen::Ready(()) } else { Seen::NotYet(format!("{conditions:?}")) }
        })
        .await
        .unwrap();
    };
    ready("False").await;
    // One more node, and a restart of all, are wanted; neither begins.
    let mut wish = with_capacity("90Mi");
    wish["spec"]["racks"][0]["nodes"] = 2.into();
    wish["spec"]["forceRedeploymentReason"] = "maintenance".into();
    apply(client, &wish).await;
    told(client, "StatefulSetControllerProgressing", "StatefulSet default/orders-dc-a is to change").await;
    assert_eq!(pods(client).await, before, "no pod comes, goes or is restarted");
    apply(client, &with_capacity("90Mi")).await;
    mark(None).await;
    ready("True").await;
    settled(client, 3).await;
    assert_eq!(pods(client).await, before, "and none was");
}

/// Its Node object is deleted, and the disk was nowhere else. That is told, and it is replaced when that is switched on.
async fn a_machine_goes_for_good(client: &Client) {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let nodes = pods.list(&ListParams::default().labels(NODES)).await.unwrap();
    let machine = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap();
    let machines: Vec<String> = nodes.iter().map(machine).collect();
    // The control plane is where the first one is.
    let is_alone = |name: &String| !name.ends_with("n1") && machines.iter().filter(|other| *other == name).count() == 1;
    let lost = nodes.iter().find(|pod| is_alone(&machine(pod))).unwrap_or_else(|| panic!("{machines:?}"));
    let (name, machine) = (lost.name_any(), machine(lost));
    let services: Api<Service> = Api::default_namespaced(client.clone());
    let host_id = async || services.get(&name).await.unwrap().annotations()[annotation::HOST_ID].clone();
    let before = host_id().await;
    Api::<Node>::all(client.clone()).delete(&machine, &DeleteParams::default()).await.unwrap();
    let condition = told(client, "ServiceControllerDegraded", "NodeGone").await;
    println!("gone: {}", condition.message);
    let command = format!("kubectl label service -n default {name} scylla/replace=");
    assert!(condition.message.contains(&command), "{}", condition.message);
    assert_eq!(host_id().await, before, "nothing is done unasked");
    let mut switched_on = with_capacity("90Mi");
    switched_on["spec"]["disableAutomaticOrphanedNodeReplacement"] = false.into();
    apply(client, &switched_on).await;
    settled(client, 3).await;
    assert_ne!(host_id().await, before, "another node is in its place");
    assert_eq!(services.get(&name).await.unwrap().labels().get(label::REPLACE), None);
}
