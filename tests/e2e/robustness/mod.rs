//! The operator when the API server, objects or permissions have faults. It runs as the process that users run.

mod lease;
mod namespaced;
mod objects;
pub(crate) mod operator_process;
mod proxy;
mod restore;
mod traces;
pub(crate) mod unavailable;

use std::{fs, path::Path, time::Duration};

use k8s_openapi::{
    api::{apps::v1::StatefulSet, core::v1::Service},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use messina_api::{names::datacenter::identity_service, scylla::v1alpha1::ScyllaDBDatacenter};
use messina_testbed::{
    cluster::{self, Cluster},
    deadline::Deadline,
    harness::{self, Seen},
};
use serde_json::{Value, json};

/// The timeout of each wait, on a busy host.
const LIMIT: Duration = Duration::from_secs(90);

/// A small datacenter, as a user writes it.
pub(crate) fn datacenter(name: &str) -> Value {
    json!({
        "apiVersion": "scylla.scylladb.com/v1alpha1",
        "kind": "ScyllaDBDatacenter",
        "metadata": {"name": name},
        "spec": {
            "clusterName": name,
            "datacenterName": "dc",
            "scyllaDB": {"image": "docker.io/scylladb/scylla:2026.2.4"},
            "scyllaDBManagerAgent": {"image": "docker.io/scylladb/scylla-manager-agent:3.12.0"},
            "racks": [{"name": "a", "nodes": 1, "scyllaDB": {"storage": {"capacity": "1Gi"}}}],
        },
    })
}

/// Applies a datacenter as a user does.
async fn apply(client: &Client, namespace: &str, datacenter: &Value) {
    let yaml = serde_json::to_string(datacenter).unwrap();
    harness::apply(client, &yaml, Some(namespace)).await.unwrap();
}

/// Waits until the StatefulSet of the only rack exists, which is created last.
async fn await_created(client: &Client, namespace: &str, name: &str) {
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
    let set = format!("{name}-dc-a");
    let seen = |set: Option<StatefulSet>| set.map_or(Seen::NotYet("nothing".into()), Seen::Ready);
    harness::until(sets, &set, &format!("the StatefulSet {set}"), LIMIT, seen).await.unwrap();
}

/// Deletes a Service of a datacenter and waits until the operator has recreated it.
async fn await_repair(client: &Client, namespace: &str, name: &str) {
    let gone = delete_service(client, namespace, name).await;
    await_recreated(client, namespace, name, &gone).await;
}

/// Deletes the identity Service of a datacenter. Returns its UID.
async fn delete_service(client: &Client, namespace: &str, name: &str) -> String {
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let service = identity_service(name);
    let uid = services.get(&service).await.unwrap().uid().unwrap();
    services.delete(&service, &DeleteParams::default()).await.unwrap();
    uid
}

/// Waits until the Service exists with another UID.
async fn await_recreated(client: &Client, namespace: &str, name: &str, gone: &str) {
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let seen = |service: Option<Service>| match service.and_then(|service| service.uid()) {
        Some(uid) if uid != gone => Seen::Ready(()),
        other => Seen::NotYet(format!("{other:?}")),
    };
    harness::until(services, &identity_service(name), "the Service to be recreated", LIMIT, seen).await.unwrap();
}

/// Waits until a condition of a datacenter is as expected.
async fn condition(
    client: &Client,
    namespace: &str,
    name: &str,
    kind: &str,
    wanted: impl Fn(&Condition) -> bool,
) -> Condition {
    let datacenters: Api<ScyllaDBDatacenter> = Api::namespaced(client.clone(), namespace);
    let seen = |datacenter: Option<ScyllaDBDatacenter>| {
        let conditions = datacenter.and_then(|datacenter| datacenter.status?.conditions).unwrap_or_default();
        match conditions.iter().find(|one| one.type_ == kind && wanted(one)) {
            Some(condition) => Seen::Ready(condition.clone()),
            None => Seen::NotYet(format!("{conditions:?}")),
        }
    };
    harness::until(datacenters, name, &format!("the condition {kind} of {name}"), LIMIT, seen).await.unwrap()
}

/// Changes a datacenter as a user does.
async fn change(client: &Client, namespace: &str, name: &str, change: Value) {
    let datacenters: Api<kube::api::DynamicObject> =
        Api::namespaced_with(client.clone(), namespace, &kube::core::ApiResource::erase::<ScyllaDBDatacenter>(&()));
    datacenters.patch(name, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
}

/// A light cluster of one test. It is removed when the test ends, even by a panic.
struct Own {
    name: &'static str,
    client: Client,
}

impl Own {
    /// Starts the cluster. Returns none, and prints why, where tests run against an existing cluster.
    async fn up(name: &'static str) -> Option<Self> {
        if std::env::var_os(harness::KUBECONFIG_VARIABLE).is_some() {
            eprintln!("skipped: an existing cluster was named, which must not be disturbed");
            return None;
        }
        harness::testbed(&["up", "--light", "--name", name]).unwrap();
        let client = harness::client(&cluster::find(name).unwrap().kubeconfig()).await.unwrap();
        Some(Self { name, client })
    }

    fn cluster(&self) -> Cluster {
        cluster::find(self.name).unwrap()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Err(error) = harness::testbed(&["down", "--name", self.name]) {
            eprintln!("{error}");
        }
    }
}

/// The writes of a user in the audit log, in order, such as "update leases" or "create services".
fn writes(audit_log: &Path, user: &str) -> Vec<Written> {
    let text = fs::read_to_string(audit_log).unwrap();
    // The last line may be incomplete.
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let is_write = |line: &Value| !matches!(line["verb"].as_str(), Some("get" | "list" | "watch"));
    let ours = lines.filter(|line| line["user"]["username"] == user && is_write(line));
    let mut writes: Vec<Written> = ours
        .map(|line| Written {
            at: line["requestReceivedTimestamp"].as_str().unwrap().to_owned(),
            what: format!("{} {}", line["verb"].as_str().unwrap(), line["objectRef"]["resource"].as_str().unwrap()),
            code: line["responseStatus"]["code"].as_u64().unwrap_or_default(),
        })
        .collect();
    writes.sort_by(|one, other| one.at.cmp(&other.at));
    writes
}

#[derive(Clone, Debug)]
struct Written {
    at: String,
    what: String,
    code: u64,
}

/// Polls until `look` succeeds, for what cannot be watched.
async fn await_that(what: &str, mut look: impl AsyncFnMut() -> Result<(), String>) {
    let deadline = Deadline::new(LIMIT);
    loop {
        match look().await {
            Ok(()) => return,
            Err(seen) => assert!(deadline.left().is_some(), "waited for {what}; last seen: {seen}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
