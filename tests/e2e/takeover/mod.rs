//! Taking over a datacenter of scylla-operator, on a real API server: its objects are written in its name, then the
//! operator starts.

mod active;
mod golden;
mod nodes;
mod pods;
mod procedure;

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use kube::{Api, Client, ResourceExt, api::ListParams};
use messina_api::{
    names::{annotation, datacenter},
    scylla::v1alpha1::ScyllaDBDatacenter,
};
use messina_e2e::{SOON, in_a_namespace, light_kubeconfig};
use messina_testbed::harness::{Seen, eventually, until};
use serde_json::{Value, json};

use crate::robustness::operator_process::Operator;
use golden::{Golden, MANAGED_HASH, NOTE, folder, host_id, records_of_operator};
use pods::Pods;

type Objects = BTreeMap<(String, String), Value>;

/// Waits until the datacenter is settled.
async fn settled(client: &Client, namespace: &str, name: &str) {
    let datacenters: Api<ScyllaDBDatacenter> = Api::namespaced(client.clone(), namespace);
    let seen = |datacenter: Option<ScyllaDBDatacenter>| {
        let conditions = datacenter.and_then(|datacenter| datacenter.status?.conditions).unwrap_or_default();
        let is = |kind: &str, status: &str| conditions.iter().any(|one| one.type_ == kind && one.status == status);
        if is("Progressing", "False") && is("Degraded", "False") && is("Available", "True") {
            return Seen::Ready(());
        }
        let open = conditions.iter().filter(|one| one.status != "False");
        Seen::NotYet(open.map(|one| format!("{}: {}", one.type_, one.message)).collect::<Vec<_>>().join("\n"))
    };
    until(datacenters, name, "the datacenter to be settled", SOON, seen).await.unwrap();
}

/// The names of containers of a pod template, and the program of each.
fn containers<'a>(stateful_set: &'a Value, list: &str) -> Vec<(&'a str, String)> {
    let containers = stateful_set["spec"]["template"]["spec"][list].as_array().into_iter().flatten();
    containers.map(|one| (one["name"].as_str().unwrap(), one["command"].to_string())).collect()
}

fn assert_none_recreated(before: &Objects, now: &Objects) {
    for (key, before) in before {
        let uid = now.get(key).map(|now| &now["metadata"]["uid"]);
        assert_eq!(uid, Some(&before["metadata"]["uid"]), "{key:?} was deleted or recreated");
    }
}

/// Checks that an object has no fields of scylla-operator any more, and all fields of users.
fn assert_taken_over(objects: &Objects) {
    for (key, object) in objects {
        let records = records_of_operator(object);
        assert!(records.is_empty(), "{key:?} has fields of scylla-operator: {records:?}");
        let annotations = &object["metadata"]["annotations"];
        assert!(annotations[MANAGED_HASH].is_null(), "{key:?}: {annotations}");
        assert_eq!(annotations[NOTE], "mine", "{key:?}: {annotations}");
    }
    for (_, stateful_set) in objects.iter().filter(|((kind, _), _)| kind == "StatefulSet") {
        let template = &stateful_set["spec"]["template"];
        let all = [containers(stateful_set, "initContainers"), containers(stateful_set, "containers")].concat();
        assert!(all.iter().all(|(name, _)| *name != "scylladb-bootstrap-barrier"), "{all:?}");
        assert!(all.iter().all(|(_, command)| !command.contains("bin/scylla-operator")), "{all:?}");
        assert!(template["spec"]["containers"][0]["lifecycle"].is_null(), "{template}");
        assert!(template["metadata"]["annotations"][annotation::LAST_APPLIED_CONFIGURATION].is_null(), "{template}");
    }
}

/// Whether Messina no longer writes an object: only Secrets with certificates that pods of scylla-operator mount.
fn is_left(key: &(String, String), name: &str) -> bool {
    key.1.starts_with(&format!("{name}-alternator-local-serving-")) && key.0 == "Secret"
}

async fn revisions(client: &Client, namespace: &str, stateful_set: &str) -> usize {
    let all: Api<ControllerRevision> = Api::namespaced(client.clone(), namespace);
    let all = all.list(&ListParams::default()).await.unwrap();
    let owner = |one: &&ControllerRevision| one.owner_references().iter().any(|owner| owner.name == stateful_set);
    all.iter().filter(owner).count()
}

/// Takes over a datacenter, and checks that nothing is recreated and that each pod restarts once, one at a time.
async fn is_taken_over(test: &str, name: &str) {
    let Some(folder) = folder(name) else { return };
    in_a_namespace(test, async |client, namespace| {
        let pods = Pods::start(client, namespace);
        let golden = Golden::load(client, namespace, &folder, |_| {}, |_| {}).await;
        golden.annotate(client, namespace).await;
        let members: Vec<&str> = golden.members().collect();
        pods.are_ready(members.len()).await;
        let _operator = Operator::start(&light_kubeconfig(), namespace, &["--no-leader-election"]);
        // The datacenter is not settled before the operator has written its status.
        settled(client, namespace, &golden.name).await;
        let now = golden.now(client, namespace).await;
        assert_none_recreated(&golden.objects, &now);
        let written: Objects = now.clone().into_iter().filter(|(key, _)| !is_left(key, name)).collect();
        assert_taken_over(&written);
        let history = pods.history();
        for member in &members {
            assert_eq!(history.pods[*member].len(), 2, "{member} restarts once: {history:?}");
        }
        assert_eq!(history.most_down, 1, "one at a time: {history:?}");
        for stateful_set in golden.stateful_sets() {
            assert_eq!(revisions(client, namespace, stateful_set).await, 2, "{stateful_set} changes its pods once");
        }
        for (number, member) in members.iter().enumerate() {
            let service = &now[&("Service".to_owned(), (*member).to_owned())];
            assert_eq!(service["metadata"]["annotations"][annotation::HOST_ID], host_id(number), "{service}");
        }
        assert_authorities_are_kept(client, namespace, &golden, &now).await;
    })
    .await;
}

/// Checks that authorities which clients trusted sign the certificates of nodes, and are in the bundles of clients.
async fn assert_authorities_are_kept(client: &Client, namespace: &str, golden: &Golden, now: &Objects) {
    let is_certificate = |(name, _): &(&String, &String)| !name.ends_with(".key");
    for (name, certificate) in golden.authorities.iter().filter(is_certificate) {
        let bundle = &now[&("ConfigMap".to_owned(), name.clone())]["data"]["ca-bundle.crt"];
        assert!(bundle.as_str().unwrap().contains(certificate.trim()), "{name}: {bundle}");
        let ours = name.replace("-alternator-local-serving-ca", "-local-alternator-serving-ca");
        let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(client.clone(), namespace);
        let stored = secrets.get(&ours).await.unwrap().data.unwrap()["tls.crt"].0.clone();
        assert_eq!(String::from_utf8(stored).unwrap().trim(), certificate.trim(), "{ours}");
    }
}

#[tokio::test]
async fn datacenter_of_one_node_is_taken_over() {
    is_taken_over("takeover-minimal", "minimal").await;
}

#[tokio::test]
async fn datacenter_of_two_racks_is_taken_over() {
    is_taken_over("takeover-full", "full").await;
}

/// A scale-out that scylla-operator has not begun waits until all nodes run under the operator: new nodes would wait
/// for ever for a status report that only scylla-operator writes.
#[tokio::test]
async fn pending_scale_out_waits_for_restarts() {
    let Some(folder) = folder("minimal") else { return };
    in_a_namespace("takeover-scale", async |client, namespace| {
        let pods = Pods::start(client, namespace);
        let two_nodes = |datacenter: &mut Value| datacenter["spec"]["racks"][0]["nodes"] = json!(2);
        let golden = Golden::load(client, namespace, &folder, two_nodes, |_| {}).await;
        pods.are_ready(1).await;
        let name = golden.stateful_sets().next().unwrap().to_owned();
        let stateful_sets: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
        let before = stateful_sets.get(&name).await.unwrap();
        let watched = watch_until_two(stateful_sets, &name);
        let _operator = Operator::start(&light_kubeconfig(), namespace, &["--no-leader-election"]);
        let steps = watched.await;
        let template = |one: &StatefulSet| json!(one.spec.as_ref().unwrap().template);
        let last_of_one = steps.iter().rfind(|one| one.spec.as_ref().unwrap().replicas == Some(1)).unwrap();
        let first_of_two = steps.last().unwrap();
        assert_ne!(template(last_of_one), template(&before), "the node restarts before");
        assert_eq!(template(last_of_one), template(first_of_two), "a scale-out changes nothing else");
        let status = last_of_one.status.clone().unwrap();
        assert_eq!((status.updated_replicas, status.available_replicas), (Some(1), Some(1)));
        assert_eq!(pods.history().pods[&datacenter::member(&name, 0)].len(), 2);
    })
    .await;
}

/// The versions of a StatefulSet until it has two replicas.
async fn watch_until_two(api: Api<StatefulSet>, name: &str) -> Vec<StatefulSet> {
    let mut steps = Vec::new();
    until(api, name, "the StatefulSet to get two replicas", SOON, |seen| {
        let Some(seen) = seen else { return Seen::NotYet("it is not there".into()) };
        let replicas = seen.spec.as_ref().and_then(|spec| spec.replicas);
        let state = format!("{:?}", seen.status);
        steps.push(seen);
        if replicas == Some(2) { Seen::Ready(()) } else { Seen::NotYet(state) }
    })
    .await
    .unwrap();
    steps
}

/// scylla-operator starts again: it replaces each object that lacks the annotation with its hash, and keeps unknown
/// labels, annotations and addresses.
#[tokio::test]
async fn datacenter_returns_to_scylla_operator_and_is_taken_over_again() {
    let Some(folder) = folder("minimal") else { return };
    in_a_namespace("takeover-back", async |client, namespace| {
        let pods = Pods::start(client, namespace);
        let golden = Golden::load(client, namespace, &folder, |_| {}, |_| {}).await;
        golden.annotate(client, namespace).await;
        pods.are_ready(1).await;
        let mut operator = Operator::start(&light_kubeconfig(), namespace, &["--no-leader-election"]);
        settled(client, namespace, &golden.name).await;
        operator.stop().await;

        golden.take_back(client, namespace).await;
        let back = golden.now(client, namespace).await;
        assert_none_recreated(&golden.objects, &back);
        for (key, object) in &golden.objects {
            for field in ["spec", "data", "subjects", "roleRef", "type"] {
                assert_eq!(back[key][field], object[field], "{field} of {key:?} is as scylla-operator wrote it");
            }
        }
        restarted(&pods, &golden, 3).await;

        let _operator = Operator::start(&light_kubeconfig(), namespace, &["--no-leader-election"]);
        restarted(&pods, &golden, 4).await;
        settled(client, namespace, &golden.name).await;
        let again = golden.now(client, namespace).await;
        assert_none_recreated(&golden.objects, &again);
        assert_taken_over(&again);
        assert_eq!(pods.history().most_down, 1);
    })
    .await;
}

/// Waits until each node has had this number of pods.
async fn restarted(pods: &Pods, golden: &Golden, times: usize) {
    let all = eventually("all nodes to restart", SOON, async || {
        let history = pods.history();
        let is_done = golden.members().all(|member| history.pods[member].len() == times);
        Ok(if is_done { Seen::Ready(()) } else { Seen::NotYet(format!("{history:?}")) })
    });
    all.await.unwrap();
}
