//! While scylla-operator runs, the operator does not change its objects.

use k8s_openapi::api::{apps::v1::StatefulSet, coordination::v1::Lease};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use messina_api::scylla::v1alpha1::ScyllaDBDatacenter;
use messina_e2e::{SOON, in_a_namespace, light_kubeconfig};
use messina_testbed::harness::{Seen, eventually, until};
use serde_json::{Value, json};

use super::{
    Objects, assert_none_recreated,
    golden::{Golden, OPERATOR, api, folder, forget_age},
    pods::Pods,
    settled,
};
use crate::robustness::operator_process::Operator;

const CONDITION: &str = "ScyllaOperatorActive";

/// The lease of a scylla-operator, which only this test uses.
struct PeerLease {
    api: Api<Lease>,
    name: String,
}

impl PeerLease {
    async fn create(client: &Client, namespace: &str) -> Self {
        let lease = Self { api: Api::namespaced(client.clone(), namespace), name: format!("{namespace}-lock") };
        let empty = json!({"metadata": {"name": lease.name}, "spec": {}});
        lease.api.create(&PostParams::default(), &serde_json::from_value(empty).unwrap()).await.unwrap();
        lease
    }

    /// Held for an hour, or released.
    async fn set_holder(&self, holder: &str) {
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
        let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 3600, "renewTime": now});
        let patch = Patch::Merge(json!({"spec": spec}));
        self.api.patch(&self.name, &PatchParams::default(), &patch).await.unwrap();
    }

    fn flag(&self) -> String {
        format!("--scylla-operator-lease={}", self.name)
    }
}

/// Waits until the datacenter of this generation is left to scylla-operator; returns the message.
async fn left_alone(client: &Client, namespace: &str, name: &str, generation: i64) -> String {
    let datacenters: Api<ScyllaDBDatacenter> = Api::namespaced(client.clone(), namespace);
    let seen = |datacenter: Option<ScyllaDBDatacenter>| {
        let conditions = datacenter.and_then(|datacenter| datacenter.status?.conditions).unwrap_or_default();
        let found = conditions.iter().find(|one| one.type_ == CONDITION && one.observed_generation == Some(generation));
        found.map_or_else(|| Seen::NotYet(format!("{conditions:?}")), |one| Seen::Ready(one.message.clone()))
    };
    until(datacenters, name, "the condition ScyllaOperatorActive", SOON, seen).await.unwrap()
}

async fn is_taken_over(client: &Client, namespace: &str, golden: &Golden) {
    settled(client, namespace, &golden.name).await;
    let datacenters: Api<ScyllaDBDatacenter> = Api::namespaced(client.clone(), namespace);
    let status = datacenters.get(&golden.name).await.unwrap().status.unwrap();
    assert!(status.conditions.unwrap().iter().all(|one| one.type_ != CONDITION));
    assert_none_recreated(&golden.objects, &golden.now(client, namespace).await);
}

fn versions(objects: &Objects) -> Vec<(&(String, String), &Value)> {
    let is_written_by_kubernetes = |kind: &str| ["StatefulSet", "PodDisruptionBudget"].contains(&kind);
    let version = |(key, object)| {
        let object: &Value = object;
        let (kind, _): &(String, String) = key;
        let field = if is_written_by_kubernetes(kind) { "generation" } else { "resourceVersion" };
        (key, &object["metadata"][field])
    };
    objects.iter().map(version).collect()
}

/// Waits until the readiness endpoint has this status code and these words.
async fn readiness(operator: &Operator, code: u16, words: &str) {
    let get = eventually("/readyz", SOON, async || {
        let (is, text) = operator.get("/readyz").await;
        Ok(if is == code && text.contains(words) { Seen::Ready(()) } else { Seen::NotYet(format!("{is} {text}")) })
    });
    get.await.unwrap();
}

#[tokio::test]
async fn nothing_changes_while_scylla_operator_holds_its_lease() {
    let Some(folder) = folder("minimal") else { return };
    in_a_namespace("takeover-lease", async |client, namespace| {
        let pods = Pods::start(client, namespace);
        let golden = Golden::load(client, namespace, &folder, |_| {}, |_| {}).await;
        pods.are_ready(1).await;
        let lease = PeerLease::create(client, namespace).await;
        lease.set_holder("scylla-operator-1").await;
        let before = golden.now(client, namespace).await;
        let operator = Operator::start(&light_kubeconfig(), namespace, &["--no-leader-election", &lease.flag()]);

        let message = left_alone(client, namespace, &golden.name, 1).await;
        assert!(message.contains("scylla-operator-1 holds Lease"), "{message}");
        readiness(&operator, 503, "scylla-operator to stop").await;
        operator.await_log(0, "reconciliation of the object is suspended").await;
        let after = golden.now(client, namespace).await;
        assert_eq!(versions(&before), versions(&after));

        lease.set_holder("").await;
        is_taken_over(client, namespace, &golden).await;
        readiness(&operator, 200, "ready").await;

        // scylla-operator runs again, and the specification changes.
        lease.set_holder("scylla-operator-2").await;
        left_alone(client, namespace, &golden.name, 1).await;
        let stateful_sets: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
        let name = golden.stateful_sets().next().unwrap();
        let generation = stateful_sets.get(name).await.unwrap().metadata.generation;
        let datacenters: Api<ScyllaDBDatacenter> = Api::namespaced(client.clone(), namespace);
        let reason = Patch::Merge(json!({"spec": {"forceRedeploymentReason": "again"}}));
        datacenters.patch(&golden.name, &PatchParams::default(), &reason).await.unwrap();
        left_alone(client, namespace, &golden.name, 2).await;
        assert_eq!(stateful_sets.get(name).await.unwrap().metadata.generation, generation);
    })
    .await;
}

/// A scylla-operator with a lease of another name is detected by its writes.
#[tokio::test]
async fn nothing_changes_soon_after_scylla_operator_has_written() {
    let Some(folder) = folder("minimal") else { return };
    in_a_namespace("takeover-writes", async |client, namespace| {
        let pods = Pods::start(client, namespace);
        let golden = Golden::load(client, namespace, &folder, |_| {}, |_| {}).await;
        pods.are_ready(1).await;
        let ((_, name), object) = golden.objects.iter().find(|((kind, _), _)| kind == "StatefulSet").unwrap();
        let stateful_sets = api(client, namespace, object);
        let params = PatchParams { field_manager: Some(OPERATOR.into()), ..PatchParams::default() };
        let label = Patch::Merge(json!({"metadata": {"labels": {"written": "just-now"}}}));
        stateful_sets.patch(name, &params, &label).await.unwrap();
        let before = golden.now(client, namespace).await;
        let lease = PeerLease::create(client, namespace).await;
        let _operator = Operator::start(&light_kubeconfig(), namespace, &["--no-leader-election", &lease.flag()]);
        let message = left_alone(client, namespace, &golden.name, 1).await;
        assert!(message.contains(&format!("it wrote StatefulSet {name}")), "{message}");
        assert_eq!(versions(&before), versions(&golden.now(client, namespace).await));

        forget_age(&stateful_sets, name).await;
        is_taken_over(client, namespace, &golden).await;
        let now = stateful_sets.get(name).await.unwrap();
        assert_eq!(now.labels().get("written"), None, "what it wrote goes with the rest");
    })
    .await;
}
