//! A ScyllaDBDatacenter from its manifest to serving nodes, with the operator in the cluster as users deploy it.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    batch::v1::Job,
    coordination::v1::Lease,
    core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use messina_api::{
    names::{annotation, label},
    scylla::v1alpha1::{ScyllaDBDatacenter, ScyllaDBDatacenterStatus},
};
use messina_e2e::{
    clusters::{Started, cluster_named},
    permissions::{OPERATOR, Permission, Permissions, permissions},
};
use messina_testbed::{
    audit::{Log, Request},
    deploy, exec,
    harness::{Seen, eventually, get, until},
    progress::Steps,
    tools::Tools,
};
use serde_json::{Value, json};

use crate::testbed::machine;

const LONG: Duration = Duration::from_secs(300);

pub(crate) fn manifest(nodes: &[(&str, i32)]) -> Value {
    let racks: Vec<Value> = nodes.iter().map(|(name, nodes)| json!({"name": name, "nodes": nodes})).collect();
    let small = json!({"requests": {"cpu": "10m", "memory": "20Mi"}, "limits": {"cpu": "500m", "memory": "200Mi"}});
    json!({
        "apiVersion": "scylla.scylladb.com/v1alpha1",
        "kind": "ScyllaDBDatacenter",
        "metadata": {"name": "orders", "namespace": "default"},
        "spec": {
            "clusterName": "orders",
            "datacenterName": "dc",
            "minReadySeconds": 0,
            "scyllaDB": {"image": deploy::SCYLLA_IMAGE, "enableDeveloperMode": true},
            "scyllaDBManagerAgent": {"image": deploy::AGENT_IMAGE},
            "rackTemplate": {
                "scyllaDB": {"resources": small, "storage": {"capacity": "50Mi", "storageClassName": "local"}},
                "scyllaDBManagerAgent": {"resources": {"requests": {"cpu": "10m", "memory": "20Mi"}}},
            },
            "racks": racks,
        },
    })
}

pub(crate) async fn apply(client: &Client, manifest: &Value) {
    let api: Api<ScyllaDBDatacenter> = Api::default_namespaced(client.clone());
    api.patch("orders", &PatchParams::apply("test").force(), &Patch::Apply(manifest)).await.unwrap();
}

/// Waits until the datacenter is as its specification says, and gives its status.
pub(crate) async fn settled(client: &Client, nodes: i32) -> ScyllaDBDatacenterStatus {
    let api: Api<ScyllaDBDatacenter> = Api::default_namespaced(client.clone());
    until(api, "orders", "the datacenter to be settled", LONG, |seen| {
        let generation = seen.as_ref().and_then(|datacenter| datacenter.metadata.generation);
        let status = seen.and_then(|datacenter| datacenter.status).unwrap_or_default();
        let is = |name: &str, value: &str| {
            let conditions = status.conditions.iter().flatten();
            conditions
                .filter(|one| one.type_ == name)
                .any(|one| one.status == value && one.observed_generation == generation)
        };
        let is_settled = is("Available", "True") && is("Progressing", "False") && is("Degraded", "False");
        if is_settled && status.ready_nodes == Some(nodes) {
            Seen::Ready(status)
        } else {
            Seen::NotYet(serde_json::to_string_pretty(&status).unwrap())
        }
    })
    .await
    .unwrap()
}

/// The ring as a node sees it: states by host ID.
async fn ring(client: &Client, pod: &str) -> BTreeMap<String, String> {
    let path = format!("/api/v1/namespaces/default/pods/{pod}:8080/proxy/nodes");
    let nodes: Value = client.request(get(&path).unwrap()).await.unwrap();
    let nodes = nodes.as_array().or(nodes["nodes"].as_array()).expect("a list of nodes").clone();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    nodes.iter().map(|node| (text(&node["hostID"]), text(&node["state"]))).collect()
}

/// Every node sees every node up and normal; the host IDs are those on the Services.
async fn all_see_all(client: &Client, members: &[&str]) {
    let services: Api<Service> = Api::default_namespaced(client.clone());
    let mut expected = BTreeMap::new();
    for member in members {
        let service = services.get(member).await.unwrap();
        let id = service.annotations().get(annotation::HOST_ID).cloned();
        expected.insert(id.unwrap_or_else(|| panic!("{member} has no host ID")), "UN".to_owned());
    }
    assert_eq!(expected.len(), members.len(), "host IDs are different: {expected:?}");
    for member in members {
        eventually(&format!("{member} to see all nodes"), Duration::from_secs(30), async || {
            let seen = ring(client, member).await;
            Ok(if seen == expected { Seen::Ready(()) } else { Seen::NotYet(format!("{seen:?}")) })
        })
        .await
        .unwrap();
    }
}

/// What matters of the API server's log: what is asked besides watches and the lease, and who asks.
fn asked(log: &Log) -> Vec<Request> {
    let is_ours = |user: &str| user == OPERATOR || user.contains(":orders-member");
    let requests = log.requests().unwrap().into_iter().filter(|request| is_ours(&request.user));
    requests.filter(|request| request.verb != "watch" && request.resource != "leases").collect()
}

#[tokio::test]
async fn a_datacenter_lives_and_dies() {
    machine!();
    let cluster = Started::up("slice", &[]);
    let client = cluster.client().await;
    let log_file = cluster_named("slice").audit_log();
    deploy::images(&cluster_named("slice"), &Steps::quiet()).unwrap();
    deploy::operator(&client, &Steps::quiet()).await.unwrap();

    let began = Instant::now();
    apply(&client, &manifest(&[("a", 1), ("b", 1), ("c", 1)])).await;
    let status = settled(&client, 3).await;
    println!("3 racks of 1 node: available after {:.1} s", began.elapsed().as_secs_f64());
    assert_eq!((status.nodes, status.current_version.as_deref()), (Some(3), Some("2026.2.4")));
    let racks: Vec<_> = status.racks.iter().flatten().map(|rack| rack.name.clone().unwrap()).collect();
    assert_eq!(racks, ["a", "b", "c"]);
    all_see_all(&client, &["orders-dc-a-0", "orders-dc-b-0", "orders-dc-c-0"]).await;

    all_are_cleaned_up(&client, &["orders-dc-a-0", "orders-dc-b-0", "orders-dc-c-0"]).await;
    nothing_is_asked_when_nothing_changes(&log_file).await;
    one_more_node_joins(&client).await;
    nothing_is_done_while_it_is_paused(&client).await;
    the_other_copy_takes_over(&client).await;
    a_full_disk_is_told_and_got_over(&client).await;
    a_node_leaves_and_comes_back_empty(&client).await;
    a_removed_rack_leaves_node_by_node(&client).await;
    a_lost_node_is_replaced(&client).await;
    deletion_keeps_the_volumes(&client).await;
    only_what_is_needed_is_allowed(&client, &Log::new(log_file)).await;
}

async fn nothing_is_asked_when_nothing_changes(log_file: &std::path::Path) {
    // The last words on how it stands may be under way.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let log = Log::from_now(log_file.to_owned()).unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(asked(&log), []);
}

async fn one_more_node_joins(client: &Client) {
    apply(client, &manifest(&[("a", 2), ("b", 1), ("c", 1)])).await;
    settled(client, 4).await;
    all_see_all(client, &["orders-dc-a-0", "orders-dc-a-1", "orders-dc-b-0", "orders-dc-c-0"]).await;
    all_are_cleaned_up(client, &["orders-dc-a-0", "orders-dc-a-1", "orders-dc-b-0", "orders-dc-c-0"]).await;
}

/// All nodes know the same ring, were cleaned up for it, and the Jobs that did so are gone.
async fn all_are_cleaned_up(client: &Client, members: &[&str]) {
    let services: Api<Service> = Api::default_namespaced(client.clone());
    let jobs: Api<Job> = Api::default_namespaced(client.clone());
    eventually("all nodes to be cleaned up", LONG, async || {
        let mut rings = BTreeSet::new();
        for member in members {
            let service = services.get(member).await.unwrap();
            let ring = |key: &str| service.annotations().get(key).cloned();
            rings.insert(ring(annotation::CURRENT_TOKEN_RING_HASH));
            rings.insert(ring(annotation::LAST_CLEANED_UP_TOKEN_RING_HASH));
        }
        let left = jobs.list(&ListParams::default().labels("scylla/cluster=orders")).await.unwrap().items.len();
        let is_done = rings.len() == 1 && rings.first().is_some_and(Option::is_some) && left == 0;
        Ok(if is_done { Seen::Ready(()) } else { Seen::NotYet(format!("{rings:?}, {left} Jobs")) })
    })
    .await
    .unwrap();
}

async fn nothing_is_done_while_it_is_paused(client: &Client) {
    let api: Api<ScyllaDBDatacenter> = Api::default_namespaced(client.clone());
    let annotate = async |value: Option<&str>| {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {annotation::PAUSE: value}}}));
        api.patch("orders", &PatchParams::default(), &patch).await.unwrap();
    };
    let is_paused = async |wanted: bool| {
        until(api.clone(), "orders", "a word on the pause", LONG, |seen| {
            let conditions = seen.and_then(|datacenter| datacenter.status?.conditions).unwrap_or_default();
            let is_paused = conditions.iter().any(|one| one.type_ == "Paused" && one.status == "True");
            if is_paused == wanted { Seen::Ready(()) } else { Seen::NotYet(format!("{conditions:?}")) }
        })
        .await
        .unwrap();
    };
    annotate(Some("for the test")).await;
    is_paused(true).await;
    let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(client.clone());
    budgets.delete("orders", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(budgets.get_opt("orders").await.unwrap().is_none(), "nothing comes back while it is paused");
    annotate(None).await;
    is_paused(false).await;
    until(budgets, "orders", "the budget to come back", LONG, |seen| match seen {
        Some(_) => Seen::Ready(()),
        None => Seen::NotYet("it is gone".into()),
    })
    .await
    .unwrap();
    settled(client, 4).await;
}

/// The copy that leads is removed; the other one reverts damage.
async fn the_other_copy_takes_over(client: &Client) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "messina");
    let holder = leases.get("messina").await.unwrap().spec.unwrap().holder_identity.unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), "messina");
    pods.delete(&holder, &DeleteParams::default().grace_period(0)).await.unwrap();
    // Only then the damage: the first copy may live long enough to revert it.
    until(leases, "messina", "another copy to lead", Duration::from_secs(60), |seen| {
        match seen.and_then(|lease| lease.spec).and_then(|spec| spec.holder_identity) {
            Some(next) if !next.is_empty() && next != holder => Seen::Ready(()),
            other => Seen::NotYet(format!("held by {other:?}")),
        }
    })
    .await
    .unwrap();
    let services: Api<Service> = Api::default_namespaced(client.clone());
    services.delete("orders-client", &DeleteParams::default()).await.unwrap();
    until(services, "orders-client", "the Service to come back", Duration::from_secs(60), |seen| {
        if seen.is_some_and(|service| service.metadata.deletion_timestamp.is_none()) {
            Seen::Ready(())
        } else {
            Seen::NotYet("it is gone".into())
        }
    })
    .await
    .unwrap();
}

/// A node without room on its disk cuts itself off until somebody sees to it, and the datacenter says which one it is. When
/// there is room again and the node was started anew, all goes on; the operator has not been restarted.
async fn a_full_disk_is_told_and_got_over(client: &Client) {
    const NODE: &str = "orders-dc-b-0";
    let before = restarts(client).await;
    simctl(NODE, &["full-disk", "on"]);
    let api: Api<ScyllaDBDatacenter> = Api::default_namespaced(client.clone());
    let message = until(api, "orders", "a word on the node", LONG, |seen| {
        let status = seen.and_then(|datacenter| datacenter.status).unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let unavailable = conditions.iter().find(|one| one.type_ == "Available" && one.status == "False");
        unavailable.map_or_else(|| Seen::NotYet(format!("{conditions:?}")), |one| Seen::Ready(one.message.clone()))
    })
    .await
    .unwrap();
    println!("a full disk: {message}");
    assert!(message.contains("orders-dc-b has 0 of 1"), "{message}");
    simctl(NODE, &["full-disk", "off"]);
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    pods.delete(NODE, &DeleteParams::default()).await.unwrap();
    settled(client, 4).await;
    all_see_all(client, &["orders-dc-a-0", "orders-dc-a-1", "orders-dc-b-0", "orders-dc-c-0"]).await;
    assert_eq!(restarts(client).await, before);
}

/// How often each copy of the operator was restarted.
async fn restarts(client: &Client) -> BTreeMap<String, i32> {
    let pods = Api::<Pod>::namespaced(client.clone(), "messina").list(&ListParams::default()).await.unwrap();
    let count = |pod: &Pod| {
        let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        containers.map(|container| container.restart_count).sum()
    };
    pods.iter().map(|pod| (pod.name_any(), count(pod))).collect()
}

/// Troubles a simulated node.
fn simctl(pod: &str, arguments: &[&str]) {
    let mut command = Command::new(Tools::control_plane(&Steps::quiet()).unwrap().program("kubectl"));
    command.arg("--kubeconfig").arg(cluster_named("slice").kubeconfig());
    command.args(["exec", pod, "--container", "scylla", "--", "simctl"]).args(arguments);
    exec::output("simctl", &mut command).unwrap();
}

async fn host_id(client: &Client, member: &str) -> String {
    let services: Api<Service> = Api::default_namespaced(client.clone());
    services.get(member).await.unwrap().annotations()[annotation::HOST_ID].clone()
}

async fn uid_of_claim(client: &Client, claim: &str) -> Option<String> {
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client.clone());
    claims.get_opt(claim).await.unwrap().and_then(|claim| claim.metadata.uid)
}

/// Scaled in, the last node hands over its data; scaled out, another one joins with an empty disk. A label that somebody
/// set by hand skips nothing.
async fn a_node_leaves_and_comes_back_empty(client: &Client) {
    let others = ["orders-dc-a-0", "orders-dc-b-0", "orders-dc-c-0"];
    let (before, claim) = (host_id(client, "orders-dc-a-1").await, uid_of_claim(client, "data-orders-dc-a-1").await);
    let services: Api<Service> = Api::default_namespaced(client.clone());
    let label = json!({"metadata": {"labels": {label::DECOMMISSIONED: "true"}}});
    services.patch("orders-dc-a-1", &PatchParams::default(), &Patch::Merge(&label)).await.unwrap();
    apply(client, &manifest(&[("a", 1), ("b", 1), ("c", 1)])).await;
    settled(client, 3).await;
    all_see_all(client, &others).await;
    assert!(!ring(client, "orders-dc-a-0").await.contains_key(&before), "it has left the ring");
    assert!(services.get_opt("orders-dc-a-1").await.unwrap().is_none(), "its Service is gone");
    assert_eq!(uid_of_claim(client, "data-orders-dc-a-1").await, claim, "its claim is kept");

    apply(client, &manifest(&[("a", 2), ("b", 1), ("c", 1)])).await;
    settled(client, 4).await;
    all_see_all(client, &["orders-dc-a-0", "orders-dc-a-1", "orders-dc-b-0", "orders-dc-c-0"]).await;
    assert_ne!(host_id(client, "orders-dc-a-1").await, before, "it is another node");
    assert_ne!(uid_of_claim(client, "data-orders-dc-a-1").await, claim, "its disk is an empty one");
}

async fn a_removed_rack_leaves_node_by_node(client: &Client) {
    apply(client, &manifest(&[("a", 2), ("b", 1)])).await;
    settled(client, 3).await;
    all_see_all(client, &["orders-dc-a-0", "orders-dc-a-1", "orders-dc-b-0"]).await;
    let sets: Api<StatefulSet> = Api::default_namespaced(client.clone());
    assert!(sets.get_opt("orders-dc-c").await.unwrap().is_none(), "the rack is gone");
    apply(client, &manifest(&[("a", 2), ("b", 1), ("c", 1)])).await;
    settled(client, 4).await;
}

/// A node whose disk is of no use any more is replaced, by host ID, when its user says so.
async fn a_lost_node_is_replaced(client: &Client) {
    let member = "orders-dc-b-0";
    let (before, claim) = (host_id(client, member).await, uid_of_claim(client, "data-orders-dc-b-0").await);
    // The node is kept from starting, as one is whose machine is gone.
    let services: Api<Service> = Api::default_namespaced(client.clone());
    let never = json!({"metadata": {"annotations": {annotation::FORCE_IGNITION_VALUE: "false"}}});
    services.patch(member, &PatchParams::default(), &Patch::Merge(&never)).await.unwrap();
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let old_pod = pods.get(member).await.unwrap().uid();
    pods.delete(member, &DeleteParams::default()).await.unwrap();
    // There is another pod by then, which has to go with the disk.
    eventually("the others to see it down", LONG, async || {
        let seen = ring(client, "orders-dc-a-0").await;
        let pod = pods.get_opt(member).await.unwrap().and_then(|pod| pod.uid());
        Ok(if seen.get(&before).is_some_and(|state| state == "DN") && pod.is_some() && pod != old_pod {
            Seen::Ready(())
        } else {
            Seen::NotYet(format!("{seen:?}, pod {pod:?}"))
        })
    })
    .await
    .unwrap();
    let label = json!({"metadata": {"labels": {label::REPLACE: ""}}});
    services.patch(member, &PatchParams::default(), &Patch::Merge(&label)).await.unwrap();
    eventually("its disk to be given up", LONG, async || {
        let now = uid_of_claim(client, "data-orders-dc-b-0").await;
        Ok(if now.is_some() && now != claim { Seen::Ready(()) } else { Seen::NotYet(format!("{now:?}")) })
    })
    .await
    .unwrap();
    let again = json!({"metadata": {"annotations": {annotation::FORCE_IGNITION_VALUE: null}}});
    services.patch(member, &PatchParams::default(), &Patch::Merge(&again)).await.unwrap();
    settled(client, 4).await;
    all_see_all(client, &["orders-dc-a-0", "orders-dc-a-1", "orders-dc-b-0", "orders-dc-c-0"]).await;
    assert_ne!(host_id(client, member).await, before, "it is another node");
    let service = services.get(member).await.unwrap();
    let left = service.labels().keys().find(|key| key.contains("replac"));
    assert_eq!(left, None, "the labels are taken away");
}

async fn deletion_keeps_the_volumes(client: &Client) {
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client.clone());
    let before: BTreeSet<String> =
        claims.list(&ListParams::default()).await.unwrap().iter().map(ResourceExt::name_any).collect();
    assert_eq!(before.len(), 4);
    let api: Api<ScyllaDBDatacenter> = Api::default_namespaced(client.clone());
    api.delete("orders", &DeleteParams::default()).await.unwrap();
    eventually("everything of the datacenter to be gone", LONG, async || {
        let ours = ListParams::default().labels("scylla/cluster=orders");
        let mut left: Vec<String> = Vec::new();
        macro_rules! look {
            ($($kind:ty),*) => {
                $(left.extend(Api::<$kind>::default_namespaced(client.clone()).list(&ours).await.unwrap().iter().map(ResourceExt::name_any));)*
            };
        }
        look!(Pod, StatefulSet, Service, ConfigMap, Secret);
        Ok(if left.is_empty() { Seen::Ready(()) } else { Seen::NotYet(left.join(", ")) })
    })
    .await
    .unwrap();
    let after: BTreeSet<String> =
        claims.list(&ListParams::default()).await.unwrap().iter().map(ResourceExt::name_any).collect();
    assert_eq!(after, before);
}

/// What the operator may do and what it did are the same, but for what it does on bad days only.
async fn only_what_is_needed_is_allowed(client: &Client, log: &Log) {
    let Permissions { allowed, used } = permissions(client, log).await;
    let unused: Vec<&Permission> = allowed.difference(&used).filter(|one| !is_for_bad_days(one)).collect();
    assert!(unused.is_empty(), "allowed and not needed: {unused:?}");
    println!("{} permissions, {} of them used", allowed.len(), allowed.intersection(&used).count());
}

fn is_for_bad_days((group, resource, verb): &Permission) -> bool {
    match (group.as_str(), resource.as_str(), verb.as_str()) {
        // What became of a write whose answer was lost; what stands in the way of a creation.
        (_, _, "get") => true,
        // Servers that do not stream lists.
        (_, _, "list") => true,
        // Tasks on etcd clusters, of which there are none here; their own test sees to them.
        ("druid.gardener.cloud", ..) => true,
        // A Job that has lost the label by which it is found.
        ("batch", "jobs", "patch") => true,
        // There are none here.
        ("networking.k8s.io", "ingresses", "create" | "patch" | "delete") => true,
        // Drift of what else is only created.
        (
            _,
            "secrets" | "serviceaccounts" | "rolebindings" | "poddisruptionbudgets" | "configmaps" | "services",
            "patch",
        ) => true,
        // A rack that is taken out of the specification before it has nodes leaves one behind.
        (_, "configmaps", "delete") => true,
        // A definition that is missing at the start.
        (_, "customresourcedefinitions", _) => true,
        // Admission asks for these on behalf of a request; they are no requests of their own.
        (_, "clusterroles", "bind") | (_, "scylladbdatacenters/finalizers", "update") => true,
        (_, "events", "create") => true,
        _ => false,
    }
}
