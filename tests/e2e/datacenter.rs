//! A ScyllaDBDatacenter from its manifest to serving nodes, with the operator in the cluster as users deploy it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use messina_api::{
    names::{annotation, label},
    scylla::v1alpha1::ScyllaDBDatacenter,
};
use messina_e2e::{
    datacenter::{LONG, NAME, SHORT_LEASE, TestDatacenter, manifest, restarts},
    permissions::{Permission, Permissions},
};
use messina_testbed::{
    audit::{Log, Request},
    harness::{Seen, eventually, get, until},
};
use serde_json::{Value, json};

use crate::testbed::skip_if_unsuitable;

/// The ring as a node sees it: states by host ID.
async fn ring(datacenter: &TestDatacenter, pod: &str) -> BTreeMap<String, String> {
    let path = format!("/api/v1/namespaces/{}/pods/{pod}:8080/proxy/nodes", datacenter.namespace);
    let nodes: Value = datacenter.client.request(get(&path).unwrap()).await.unwrap();
    let nodes = nodes.as_array().or(nodes["nodes"].as_array()).expect("a list of nodes").clone();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    nodes.iter().map(|node| (text(&node["hostID"]), text(&node["state"]))).collect()
}

/// Checks that every node sees all nodes up and normal, with the host IDs on the Services.
async fn all_see_all(datacenter: &TestDatacenter, members: &[&str]) {
    let mut expected = BTreeMap::new();
    for member in members {
        expected.insert(datacenter.host_id(member).await, "UN".to_owned());
    }
    assert_eq!(expected.len(), members.len(), "host IDs are different: {expected:?}");
    for member in members {
        eventually(&format!("{member} to see all nodes"), LONG, async || {
            let seen = ring(datacenter, member).await;
            Ok(if seen == expected { Seen::Ready(()) } else { Seen::NotYet(format!("{seen:?}")) })
        })
        .await
        .unwrap();
    }
}

/// What the operator and the sidecars request besides watches and the lease.
fn requests(datacenter: &TestDatacenter, log: &Log) -> Vec<Request> {
    let requests = datacenter.requests(log).into_iter();
    requests.filter(|request| request.verb != "watch" && request.resource != "leases").collect()
}

#[tokio::test]
async fn datacenter_scales_recovers_and_is_deleted() {
    skip_if_unsuitable!();
    let datacenter = TestDatacenter::create("datacenter", &[SHORT_LEASE]).await;

    let began = Instant::now();
    datacenter.apply(&manifest(&[("a", 1), ("b", 1), ("c", 1)])).await;
    let status = datacenter.settled(3).await;
    println!("3 racks of 1 node: available after {:.1} s", began.elapsed().as_secs_f64());
    assert_eq!((status.nodes, status.current_version.as_deref()), (Some(3), Some("2026.2.4")));
    let racks: Vec<_> = status.racks.iter().flatten().map(|rack| rack.name.clone().unwrap()).collect();
    assert_eq!(racks, ["a", "b", "c"]);
    datacenter.settled_and_cleaned_up(3).await;

    idle_operator_sends_no_requests(&datacenter).await;
    scale_out(&datacenter).await;
    paused_datacenter_is_not_changed(&datacenter).await;
    other_replica_takes_over(&datacenter).await;
    full_disk_is_reported_and_recovered_from(&datacenter).await;
    scale_in_and_out(&datacenter).await;
    removed_rack_is_decommissioned_node_by_node(&datacenter).await;
    lost_node_is_replaced(&datacenter).await;
    deletion_keeps_volumes(&datacenter).await;
    permissions_are_all_used(&datacenter).await;
    datacenter.remove().await;
}

async fn idle_operator_sends_no_requests(datacenter: &TestDatacenter) {
    // The operator may have to write a last status; meanwhile the test reads the ring, with requests of its own.
    let last_status = tokio::time::sleep(Duration::from_secs(3));
    tokio::join!(last_status, all_see_all(datacenter, &["orders-dc-a-0", "orders-dc-b-0", "orders-dc-c-0"]));
    let log = datacenter.log_from_now();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(requests(datacenter, &log), []);
}

async fn scale_out(datacenter: &TestDatacenter) {
    datacenter.apply(&manifest(&[("a", 2), ("b", 1), ("c", 1)])).await;
    datacenter.settled(4).await;
    all_see_all(datacenter, &["orders-dc-a-0", "orders-dc-a-1", "orders-dc-b-0", "orders-dc-c-0"]).await;
    datacenter.settled_and_cleaned_up(4).await;
}

async fn paused_datacenter_is_not_changed(datacenter: &TestDatacenter) {
    let api = datacenter.api::<ScyllaDBDatacenter>();
    let is_paused = async |wanted: bool| {
        until(api.clone(), NAME, "the condition Paused", LONG, |seen| {
            let conditions = seen.and_then(|datacenter| datacenter.status?.conditions).unwrap_or_default();
            let is_paused = conditions.iter().any(|one| one.type_ == "Paused" && one.status == "True");
            if is_paused == wanted { Seen::Ready(()) } else { Seen::NotYet(format!("{conditions:?}")) }
        })
        .await
        .unwrap();
    };
    datacenter.pause(Some("for the test")).await;
    is_paused(true).await;
    let budgets = datacenter.api::<PodDisruptionBudget>();
    budgets.delete("orders", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(budgets.get_opt("orders").await.unwrap().is_none(), "nothing comes back while it is paused");
    datacenter.pause(None).await;
    is_paused(false).await;
    until(budgets, "orders", "the budget to come back", LONG, |seen| match seen {
        Some(_) => Seen::Ready(()),
        None => Seen::NotYet("it is gone".into()),
    })
    .await
    .unwrap();
    datacenter.settled(4).await;
}

/// Kills the leading replica; the other one reverts damage.
async fn other_replica_takes_over(datacenter: &TestDatacenter) {
    // The damage comes later, because the killed replica may live long enough to revert it.
    datacenter.replace_leader().await;
    let services = datacenter.api::<Service>();
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

/// A node with a full disk isolates itself, and a condition of the datacenter names it. When there is space again and
/// the node is restarted, it recovers, without a restart of the operator.
async fn full_disk_is_reported_and_recovered_from(datacenter: &TestDatacenter) {
    const NODE: &str = "orders-dc-b-0";
    let before = operator_restarts(datacenter).await;
    datacenter.exec(NODE, &["simctl", "full-disk", "on"]).unwrap();
    let message = datacenter.condition("Available", "False", |_| true).await.message;
    println!("a full disk: {message}");
    assert!(message.contains("orders-dc-b has 0 of 1"), "{message}");
    datacenter.exec(NODE, &["simctl", "full-disk", "off"]).unwrap();
    let pods = datacenter.api::<Pod>();
    pods.delete(NODE, &DeleteParams::default()).await.unwrap();
    datacenter.settled(4).await;
    all_see_all(datacenter, &["orders-dc-a-0", "orders-dc-a-1", "orders-dc-b-0", "orders-dc-c-0"]).await;
    assert_eq!(operator_restarts(datacenter).await, before);
}

/// How often each replica of the operator was restarted.
async fn operator_restarts(datacenter: &TestDatacenter) -> BTreeMap<String, i32> {
    let pods = datacenter.operator_api::<Pod>().list(&ListParams::default()).await.unwrap();
    pods.iter().map(|pod| (pod.name_any(), restarts(pod))).collect()
}

async fn uid_of_claim(datacenter: &TestDatacenter, claim: &str) -> Option<String> {
    let claims = datacenter.api::<PersistentVolumeClaim>();
    claims.get_opt(claim).await.unwrap().and_then(|claim| claim.metadata.uid)
}

/// Scaling in decommissions the last node; scaling out adds a new node with an empty disk. A label that a user sets
/// skips no step.
async fn scale_in_and_out(datacenter: &TestDatacenter) {
    let others = ["orders-dc-a-0", "orders-dc-b-0", "orders-dc-c-0"];
    let (before, claim) =
        (datacenter.host_id("orders-dc-a-1").await, uid_of_claim(datacenter, "data-orders-dc-a-1").await);
    let services = datacenter.api::<Service>();
    let label = json!({"metadata": {"labels": {label::DECOMMISSIONED: "true"}}});
    datacenter.patch::<Service>("orders-dc-a-1", label).await;
    datacenter.apply(&manifest(&[("a", 1), ("b", 1), ("c", 1)])).await;
    datacenter.settled(3).await;
    all_see_all(datacenter, &others).await;
    assert!(!ring(datacenter, "orders-dc-a-0").await.contains_key(&before), "it has left the ring");
    assert!(services.get_opt("orders-dc-a-1").await.unwrap().is_none(), "its Service is gone");
    assert_eq!(uid_of_claim(datacenter, "data-orders-dc-a-1").await, claim, "its claim is kept");

    datacenter.apply(&manifest(&[("a", 2), ("b", 1), ("c", 1)])).await;
    datacenter.settled(4).await;
    all_see_all(datacenter, &["orders-dc-a-0", "orders-dc-a-1", "orders-dc-b-0", "orders-dc-c-0"]).await;
    assert_ne!(datacenter.host_id("orders-dc-a-1").await, before, "it is another node");
    assert_ne!(uid_of_claim(datacenter, "data-orders-dc-a-1").await, claim, "its disk is an empty one");
}

async fn removed_rack_is_decommissioned_node_by_node(datacenter: &TestDatacenter) {
    datacenter.apply(&manifest(&[("a", 2), ("b", 1)])).await;
    datacenter.settled(3).await;
    all_see_all(datacenter, &["orders-dc-a-0", "orders-dc-a-1", "orders-dc-b-0"]).await;
    let sets = datacenter.api::<StatefulSet>();
    assert!(sets.get_opt("orders-dc-c").await.unwrap().is_none(), "the rack is gone");
    datacenter.apply(&manifest(&[("a", 2), ("b", 1), ("c", 1)])).await;
    datacenter.settled(4).await;
}

/// Replaces a node with a lost disk, by host ID, when the user asks for it.
async fn lost_node_is_replaced(datacenter: &TestDatacenter) {
    let member = "orders-dc-b-0";
    let (before, claim) = (datacenter.host_id(member).await, uid_of_claim(datacenter, "data-orders-dc-b-0").await);
    // The node cannot start, as if its Kubernetes node were gone.
    let services = datacenter.api::<Service>();
    let never = json!({"metadata": {"annotations": {annotation::FORCE_IGNITION_VALUE: "false"}}});
    datacenter.patch::<Service>(member, never).await;
    let pods = datacenter.api::<Pod>();
    let old_pod = pods.get(member).await.unwrap().uid();
    pods.delete(member, &DeleteParams::default()).await.unwrap();
    // There is a new pod by then, which has to be deleted with the claim.
    eventually("the others to see it down", LONG, async || {
        let seen = ring(datacenter, "orders-dc-a-0").await;
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
    datacenter.patch::<Service>(member, label).await;
    eventually("its disk to be given up", LONG, async || {
        let now = uid_of_claim(datacenter, "data-orders-dc-b-0").await;
        Ok(if now.is_some() && now != claim { Seen::Ready(()) } else { Seen::NotYet(format!("{now:?}")) })
    })
    .await
    .unwrap();
    let again = json!({"metadata": {"annotations": {annotation::FORCE_IGNITION_VALUE: null}}});
    datacenter.patch::<Service>(member, again).await;
    datacenter.settled(4).await;
    all_see_all(datacenter, &["orders-dc-a-0", "orders-dc-a-1", "orders-dc-b-0", "orders-dc-c-0"]).await;
    assert_ne!(datacenter.host_id(member).await, before, "it is another node");
    let service = services.get(member).await.unwrap();
    let left = service.labels().keys().find(|key| key.contains("replac"));
    assert_eq!(left, None, "the labels are removed");
}

async fn deletion_keeps_volumes(datacenter: &TestDatacenter) {
    let claims = datacenter.api::<PersistentVolumeClaim>();
    let before: BTreeSet<String> =
        claims.list(&ListParams::default()).await.unwrap().iter().map(ResourceExt::name_any).collect();
    assert_eq!(before.len(), 4);
    let api = datacenter.api::<ScyllaDBDatacenter>();
    api.delete(NAME, &DeleteParams::default()).await.unwrap();
    eventually("everything of the datacenter to be gone", LONG, async || {
        let ours = ListParams::default().labels("scylla/cluster=orders");
        let mut left: Vec<String> = Vec::new();
        macro_rules! look {
            ($($kind:ty),*) => {
                $(left.extend(datacenter.api::<$kind>().list(&ours).await.unwrap().iter().map(ResourceExt::name_any));)*
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

/// Checks that the operator has used all its permissions, except those for rare cases.
async fn permissions_are_all_used(datacenter: &TestDatacenter) {
    let Permissions { allowed, used } = datacenter.permissions().await;
    let unused: Vec<&Permission> = allowed.difference(&used).filter(|one| !is_for_rare_cases(one)).collect();
    assert!(unused.is_empty(), "allowed and not needed: {unused:?}");
    println!("{} permissions, {} of them used", allowed.len(), allowed.intersection(&used).count());
}

fn is_for_rare_cases((group, resource, verb): &Permission) -> bool {
    match (group.as_str(), resource.as_str(), verb.as_str()) {
        // Reads after a lost response, and of an object that prevents a creation.
        (_, _, "get") => true,
        // API servers without streaming lists.
        (_, _, "list") => true,
        // Tasks on etcd clusters, which another test covers.
        ("druid.gardener.cloud", ..) => true,
        // A Job that has lost the label by which the operator selects it.
        ("batch", "jobs", "patch") => true,
        // There are none here.
        ("networking.k8s.io", "ingresses", "create" | "patch" | "delete") => true,
        // Drift of objects that are otherwise only created.
        (
            _,
            "secrets" | "serviceaccounts" | "rolebindings" | "poddisruptionbudgets" | "configmaps" | "services",
            "patch",
        ) => true,
        // A rack that is removed from the specification before it has nodes leaves one behind.
        (_, "configmaps", "delete") => true,
        // A definition that is missing at the start.
        (_, "customresourcedefinitions", _) => true,
        // Admission checks these permissions for a request; they are no requests of their own.
        (_, "clusterroles", "bind") | (_, "scylladbdatacenters/finalizers", "update") => true,
        // An operator of one namespace does not watch it.
        (_, "remotekubernetesclusters", "watch") => true,
        (_, "events", "create") => true,
        _ => false,
    }
}

mod slow {
    use jiff::Timestamp;
    use k8s_openapi::api::core::v1::{Event, ResourceQuota};
    use kube::{Api, Client, api::PostParams};
    use messina_e2e::clusters::{Started, cluster_named};
    use messina_testbed::{deploy, harness, progress::Steps};

    use super::*;

    /// The operator as users deploy it, with its own settings, serves datacenters of the same name in two namespaces.
    #[tokio::test]
    async fn one_operator_serves_all_namespaces() {
        skip_if_unsuitable!();
        let cluster = Started::up("all-namespaces", &[]);
        let client = cluster.client().await;
        deploy::images(&cluster_named("all-namespaces"), &Steps::quiet()).unwrap();
        deploy::operator(&client, &Steps::quiet()).await.unwrap();
        let namespaces =
            [harness::namespace(&client, "one").await.unwrap(), harness::namespace(&client, "two").await.unwrap()];
        for namespace in &namespaces {
            harness::apply(&client, &manifest(&[("a", 1)]).to_string(), Some(namespace)).await.unwrap();
        }
        for namespace in &namespaces {
            let api: Api<ScyllaDBDatacenter> = Api::namespaced(client.clone(), namespace);
            until(api, NAME, "the datacenter to be available", LONG, |seen| {
                let conditions = seen.and_then(|datacenter| datacenter.status?.conditions).unwrap_or_default();
                let is_available = conditions.iter().any(|one| one.type_ == "Available" && one.status == "True");
                if is_available { Seen::Ready(()) } else { Seen::NotYet(format!("{conditions:?}")) }
            })
            .await
            .unwrap();
        }
        kinds_without_a_controller_are_reported(&client, &namespaces[0]).await;
        datacenters_restart_in_turn(&client, &namespaces).await;
        cluster.down();
    }

    /// The API server accepts a ScyllaCluster, and the operator does nothing for it: an event says so.
    async fn kinds_without_a_controller_are_reported(client: &Client, namespace: &str) {
        let manifest = json!({
            "apiVersion": "scylla.scylladb.com/v1", "kind": "ScyllaCluster", "metadata": {"name": "unserved"},
            "spec": {"datacenter": {"name": "dc", "racks": [{"name": "a", "members": 1, "storage": {"capacity": "1Gi"}}]}},
        });
        harness::apply(client, &manifest.to_string(), Some(namespace)).await.unwrap();
        let events: Api<Event> = Api::namespaced(client.clone(), namespace);
        let of_cluster = ListParams::default().fields("involvedObject.kind=ScyllaCluster,reason=NotServed");
        let message = eventually("an event on the ScyllaCluster", LONG, async || {
            let event = events.list(&of_cluster).await.unwrap().into_iter().next();
            Ok(match event.and_then(|event| event.message) {
                Some(message) => Seen::Ready(message),
                None => Seen::NotYet("none".into()),
            })
        });
        let message = message.await.unwrap();
        assert!(
            message.contains("no controller for ScyllaCluster") && message.contains("create a ScyllaDBDatacenter"),
            "{message}"
        );
    }

    /// A setting of the operator that is in every pod: one datacenter restarts its nodes, and the other one when it is back.
    async fn datacenters_restart_in_turn(client: &Client, [first, second]: &[String; 2]) {
        let pod = |namespace: &String| (Api::<Pod>::namespaced(client.clone(), namespace), "orders-dc-a-0");
        let mut before = Vec::new();
        for namespace in [first, second] {
            let (pods, name) = pod(namespace);
            before.push(pods.get(name).await.unwrap().uid());
        }
        // The pod of the first datacenter cannot start.
        let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), first);
        let none = json!({"metadata": {"name": "no-pods"}, "spec": {"hard": {"pods": "0"}}});
        quotas.create(&PostParams::default(), &serde_json::from_value(none).unwrap()).await.unwrap();
        let settings = vec![("MESSINA_NODE_PROBE_SECONDS", "1".to_owned())];
        let operator = deploy::Deployed { settings, ..deploy::Deployed::default() };
        deploy::deploy(client, &operator, &Steps::quiet()).await.unwrap();
        let datacenters: Api<ScyllaDBDatacenter> = Api::namespaced(client.clone(), second);
        until(datacenters, NAME, "the second one to wait for its turn", LONG, |seen| {
            let conditions = seen.and_then(|one| one.status?.conditions).unwrap_or_default();
            let reported = format!("Waiting for {first}/{NAME}");
            match conditions.iter().any(|one| one.message.contains(&reported)) {
                true => Seen::Ready(()),
                false => Seen::NotYet(format!("{conditions:?}")),
            }
        })
        .await
        .unwrap();
        let (pods, name) = pod(second);
        assert_eq!(pods.get(name).await.unwrap().uid(), before[1], "it was restarted out of turn");
        quotas.delete("no-pods", &DeleteParams::default()).await.unwrap();
        let mut restarted = Vec::new();
        for (namespace, before) in [first, second].into_iter().zip(before) {
            let (pods, name) = pod(namespace);
            let times = until(pods, name, "another pod to be ready", LONG, |seen| {
                let ready = seen.as_ref().filter(|pod| pod.uid() != before).and_then(ready_since);
                match (seen, ready) {
                    (Some(pod), Some(since)) => Seen::Ready((pod.creation_timestamp().unwrap().0, since)),
                    (seen, _) => Seen::NotYet(format!("{:?}", seen.and_then(|pod| pod.status))),
                }
            });
            restarted.push(times.await.unwrap());
        }
        // Times are those of the API server and of kubelets on this host, in whole seconds.
        assert!(restarted[1].0 >= restarted[0].1, "the second one began when the first one was back: {restarted:?}");
    }

    fn ready_since(pod: &Pod) -> Option<Timestamp> {
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        let ready = conditions.iter().find(|one| one.type_ == "Ready" && one.status == "True")?;
        Some(ready.last_transition_time.as_ref()?.0)
    }
}
