//! The namespace of a scenario, and the user who changes its datacenter.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::TryStreamExt;
use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Pod, Secret, Service},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
    runtime::watcher,
};
use messina_api::{
    names::{self, annotation, label},
    scylla::v1alpha1::ScyllaDBDatacenter,
};
use messina_e2e::clusters::{Started, cluster_named};
use messina_testbed::{
    deadline::Deadline,
    demo,
    faults::Faults,
    harness::{self, Seen, eventually},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{
    nodes::Nodes,
    ring::{LastWrite, ROWS_OF_PHASE},
    scenario::Phase,
    snapshots::{Namespaced, Snapshot, Snapshots},
};

/// How long an operator with faults may take to get where one without faults gets, on a busy host.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(600);
/// The datacenter's name.
const NAME: &str = "dc";
/// The pause between two comparisons of all objects of a namespace.
const PAUSE: Duration = Duration::from_millis(200);
/// For how long the operator sends no request once a phase is done. It writes a status once a second at most, and
/// retries five times a second.
const SILENCE: Duration = Duration::from_secs(2);
/// The node that is added and removed.
const EXTRA: &str = "dc-dc-a-1";
/// The node that is lost.
const LOST: &str = "dc-dc-b-0";

/// The cluster of all scenarios, each of which has a namespace of its own.
pub(crate) struct TestCluster {
    pub(crate) client: Client,
    pub(crate) kubeconfig: PathBuf,
    /// None where the cluster is not the testbed's own.
    pub(crate) audit_log: Option<PathBuf>,
    pub(crate) objects: Arc<Snapshots>,
    _cluster: Option<Started>,
}

impl TestCluster {
    /// Starts a cluster of this name with Kubernetes nodes of KWOK, and installs the CustomResourceDefinitions.
    pub(crate) async fn new(name: &'static str) -> Self {
        let given = std::env::var_os(harness::KUBECONFIG_VARIABLE).map(PathBuf::from);
        let cluster = given.is_none().then(|| Started::up(name, &["--light", "--fake-nodes", "4"]));
        let kubeconfig = given.unwrap_or_else(|| cluster_named(name).kubeconfig());
        let audit_log = cluster.is_some().then(|| cluster_named(name).audit_log());
        let client = harness::client(&kubeconfig).await.unwrap();
        demo::install_definitions(&client).await.unwrap();
        let objects = Snapshots::watch(&client).await;
        Self { client, kubeconfig, audit_log, objects, _cluster: cluster }
    }
}

/// Repeats a request that was not answered: the test's own client is not to fail.
async fn retry<T, F: Future<Output = kube::Result<T>>>(what: impl Fn() -> F) -> T {
    for _ in 0..20 {
        match what().await {
            Ok(done) => return done,
            Err(kube::Error::Api(status)) => panic!("{status:?}"),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
    panic!("the API server does not answer");
}

/// One namespace with one datacenter.
pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) objects: Namespaced,
    nodes: Nodes,
    tokens: JoinHandle<()>,
    seen_tokens: Arc<std::sync::Mutex<BTreeSet<String>>>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.tokens.abort();
    }
}

impl World {
    pub(crate) async fn new(cluster: &TestCluster) -> Self {
        let client = &cluster.client;
        let mut namespace = Namespace::default();
        namespace.metadata.generate_name = Some("faults-".into());
        let created: Namespace =
            retry(|| async { Api::all(client.clone()).create(&PostParams::default(), &namespace).await }).await;
        let namespace = created.metadata.name.unwrap();
        let seen_tokens = Arc::<std::sync::Mutex<BTreeSet<String>>>::default();
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
        let seen = Arc::clone(&seen_tokens);
        let tokens = tokio::spawn(async move {
            let versions = watcher::watch_object(secrets, &names::datacenter::agent_auth_token(NAME));
            let mut versions = std::pin::pin!(versions);
            loop {
                match versions.try_next().await {
                    Ok(Some(Some(secret))) => drop(seen.lock().unwrap().insert(json!(secret.data).to_string())),
                    Ok(Some(None)) => {}
                    // The watcher retries by itself.
                    Ok(None) | Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
        });
        let nodes = Nodes::new(client, &namespace);
        let objects = cluster.objects.of(&namespace);
        Self { client: client.clone(), namespace, objects, nodes, tokens, seen_tokens }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Deletes the namespace, and does not wait for it.
    pub(crate) async fn delete_namespace(self) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        retry(|| async { namespaces.delete(&self.namespace, &DeleteParams::background()).await.map(drop) }).await;
    }

    async fn apply_datacenter(&self, version: &str, labels: Value, nodes_of_a: i32) {
        let datacenter = json!({
            "apiVersion": "scylla.scylladb.com/v1alpha1", "kind": "ScyllaDBDatacenter",
            "metadata": {"name": NAME, "labels": labels},
            "spec": {
                "clusterName": "c",
                "scyllaDB": {"image": format!("docker.io/scylladb/scylla:{version}")},
                "scyllaDBManagerAgent": {"image": "docker.io/scylladb/scylla-manager-agent:3.12.0"},
                "rackTemplate": {"nodes": 1, "scyllaDB": {"storage": {"capacity": "1Gi"}}},
                "racks": [{"name": "a", "nodes": nodes_of_a}, {"name": "b"}, {"name": "c"}],
                "minReadySeconds": 0,
            },
        });
        let params = PatchParams::apply("test").force();
        retry(|| async { self.api::<ScyllaDBDatacenter>().patch(NAME, &params, &Patch::Apply(&datacenter)).await })
            .await;
    }

    /// The user does what begins a phase.
    pub(crate) async fn begin(&self, phase: Phase) {
        self.nodes.with(|ring| {
            ring.begin(phase);
            if has_rows(phase) {
                ring.write_rows();
            }
        });
        let (old, new, blue) = ("2026.2.3", "2026.2.4", json!({"team": "blue"}));
        match phase {
            Phase::Create => self.apply_datacenter(old, json!({}), 1).await,
            Phase::Change => {
                self.create_obsolete_config_map().await;
                self.apply_datacenter(new, blue, 1).await;
            }
            Phase::ScaleOut => self.apply_datacenter(new, blue, 2).await,
            Phase::ScaleIn => self.apply_datacenter(new, blue, 1).await,
            Phase::Replace => self.lose_a_node().await,
            Phase::Delete => self.delete(true).await,
        }
    }

    /// Creates a ConfigMap that the datacenter owns and no longer needs.
    async fn create_obsolete_config_map(&self) {
        let datacenter = retry(|| async { self.api::<ScyllaDBDatacenter>().get(NAME).await }).await;
        let old = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": "of-an-earlier-version",
                "labels": {label::MANAGED_BY: label::value::OPERATOR},
                "ownerReferences": [datacenter.controller_owner_ref(&()).unwrap()],
            },
        });
        let params = PatchParams::apply("test").force();
        retry(|| async { self.api::<ConfigMap>().patch("of-an-earlier-version", &params, &Patch::Apply(&old)).await })
            .await;
    }

    /// Loses a Kubernetes node for good; the user asks for the replacement of its node.
    async fn lose_a_node(&self) {
        self.nodes.with(|ring| ring.lose(LOST));
        let condition = json!({"type": "Ready", "status": "False", "reason": "Lost"});
        let status = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        let params = PatchParams::default();
        retry(|| async { self.api::<Pod>().patch_status(LOST, &params, &status).await }).await;
        let patch = Patch::Merge(json!({"metadata": {"labels": {label::REPLACE: ""}}}));
        retry(|| async { self.api::<Service>().patch(LOST, &params, &patch).await }).await;
    }

    /// Checks that the ring reports no violation, and that nodes joined and left as the user asked.
    pub(crate) fn check_nodes(&self, name: &str, phases: &[Phase]) {
        let first_of = |node: &str, phase| phases.contains(&phase).then(|| format!("host-{node}-1"));
        self.nodes.with(|ring| {
            assert_eq!(ring.violations(), [] as [String; 0], "{name}");
            let (left, replaced, members) = ring.history();
            assert_eq!(left, Vec::from_iter(first_of(EXTRA, Phase::ScaleIn)), "{name}: nodes that left");
            assert_eq!(replaced, Vec::from_iter(first_of(LOST, Phase::Replace)), "{name}: nodes that were replaced");
            assert_eq!(members.len(), 3, "{name}: {members:?}");
            let with_rows = phases.iter().filter(|phase| has_rows(**phase)).count();
            assert_eq!(ring.rows(), with_rows * ROWS_OF_PHASE, "{name}: rows of each phase");
        });
    }

    /// Whether the operator may delete this object: the pod and the claim of the lost node.
    pub(crate) fn may_be_deleted(path: &str) -> bool {
        path.ends_with(&format!("/pods/{LOST}"))
            || path.ends_with(&format!("/persistentvolumeclaims/{}", names::datacenter::data_claim(LOST)))
    }

    /// The user deletes the datacenter.
    pub(crate) async fn delete(&self, is_foreground: bool) {
        self.nodes.with(|ring| ring.begin(Phase::Delete));
        let params = if is_foreground { DeleteParams::foreground() } else { DeleteParams::background() };
        retry(|| async {
            match self.api::<ScyllaDBDatacenter>().delete(NAME, &params).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
                other => other.map(drop),
            }
        })
        .await;
    }

    /// Waits until the conditions of the datacenter say that the phase is done, and each row has its replicas.
    pub(crate) async fn await_done(&self, phase: Phase) {
        if phase == Phase::Replace {
            // No condition of the datacenter says that a replacement is pending.
            let lost = format!("host-{LOST}-1");
            let outcome = eventually("the lost node to be replaced", TIMEOUT, async || {
                let is_there = self.nodes.with(|ring| ring.has(&lost));
                let says = || self.nodes.with(|ring| format!("the lost node is in the ring: {ring:?}"));
                Ok(if is_there { Seen::NotYet(says()) } else { Seen::Ready(()) })
            });
            outcome.await.unwrap_or_else(|error| panic!("{}: {error}", self.namespace));
        }
        let what = format!("the datacenter of {} to be done", self.namespace);
        let seen = harness::until(self.api::<ScyllaDBDatacenter>(), NAME, &what, TIMEOUT, |object| {
            let Some(object) = object else { return Seen::NotYet("the datacenter does not exist".into()) };
            let status = object.status.unwrap_or_default();
            let conditions = status.conditions.clone().unwrap_or_default();
            let has_condition = |name: &str, wanted: &str| {
                let is_it = |one: &&Condition| one.type_ == name;
                conditions
                    .iter()
                    .find(is_it)
                    .is_some_and(|one| one.status == wanted && one.observed_generation == object.metadata.generation)
            };
            let is_seen = status.observed_generation == object.metadata.generation;
            let is_still = has_condition("Progressing", "False");
            if is_seen && has_condition("Available", "True") && is_still && has_condition("Degraded", "False") {
                Seen::Ready(())
            } else {
                let unmet = |one: &&Condition| {
                    let is_good = one.status == if one.type_ == "Available" { "True" } else { "False" };
                    !is_good || one.observed_generation != object.metadata.generation
                };
                let unmet: Vec<&Condition> = conditions.iter().filter(unmet).collect();
                let generations = (object.metadata.generation, status.observed_generation);
                Seen::NotYet(format!("generations {generations:?}, unmet: {}", json!(unmet)))
            }
        });
        if let Err(error) = seen.await {
            let now = retry(|| async { self.api::<ScyllaDBDatacenter>().get(NAME).await }).await;
            panic!("{error}\nread from the API server: {}\n{}", json!(now.status), self.objects_at_a_glance());
        }
        let outcome = eventually("each row to have its replicas", TIMEOUT, async || {
            let missing = self.nodes.with(|ring| ring.under_replicated());
            Ok(if missing.is_empty() { Seen::Ready(()) } else { Seen::NotYet(missing.join("\n")) })
        });
        outcome.await.unwrap_or_else(|error| panic!("{}: {phase:?}: {error}", self.namespace));
    }

    /// Lets violations name the last write of these operators.
    pub(crate) fn watch_writes(&self, faults: &[&Faults]) {
        let faults: Vec<Faults> = faults.iter().map(|faults| (*faults).clone()).collect();
        let last = LastWrite::new(move || {
            let last = faults.iter().filter_map(|faults| faults.written().pop());
            Some(last.collect::<Vec<_>>().join(" or ")).filter(|last| !last.is_empty())
        });
        self.nodes.with(|ring| ring.last_write = last);
    }

    /// The objects and the ring, a line for each, for a datacenter that is stuck.
    fn objects_at_a_glance(&self) -> String {
        let ring = self.nodes.with(|ring| format!("{ring:?}"));
        self.objects.states().into_iter().chain([ring]).collect::<Vec<_>>().join("\n")
    }

    /// Waits until the objects of the namespace are as in a snapshot.
    pub(crate) async fn await_snapshot(&self, wanted: &Snapshot, what: &str) {
        self.await_objects(what, |now| if now == wanted { Ok(()) } else { Err(difference(wanted, now)) }).await;
    }

    /// Waits until `check` accepts the objects of the namespace.
    async fn await_objects(&self, what: &str, check: impl Fn(&Snapshot) -> Result<(), String>) {
        let (mut changes, mut deadline) = (self.objects.changes(), Deadline::new(TIMEOUT));
        let mut last = String::new();
        while let Err(now) = check(&self.objects.snapshot()) {
            if now != last {
                deadline.progress();
                last = now;
            }
            let Some(left) = deadline.left() else { panic!("{}: waited for {what}; {last}", self.namespace) };
            // Changes that arrive together are checked together.
            tokio::time::sleep(PAUSE).await;
            let _checked_again_in_any_case = tokio::time::timeout(left, changes.changed()).await;
        }
    }

    /// Waits until only claims are left of the datacenter, and checks that they are these.
    pub(crate) async fn await_only_claims(&self, claims: &BTreeMap<String, String>) {
        self.await_nothing_but_claims().await;
        assert_eq!(self.claims().await, *claims, "{}: claims hold data and are kept", self.namespace);
    }

    /// Waits until only claims are left of the datacenter.
    pub(crate) async fn await_nothing_but_claims(&self) {
        let left = |now: &Snapshot| {
            let left: Vec<&str> = now.keys().map(String::as_str).filter(|key| !is_claim(key)).collect();
            if left.is_empty() { Ok(()) } else { Err(left.join(", ")) }
        };
        self.await_objects("the datacenter's objects to be deleted", left).await;
    }

    /// The claims, each with its UID.
    pub(crate) async fn claims(&self) -> BTreeMap<String, String> {
        let all = retry(|| async { self.api::<PersistentVolumeClaim>().list(&ListParams::default()).await }).await;
        let named = |claim: PersistentVolumeClaim| (claim.metadata.name.unwrap(), claim.metadata.uid.unwrap());
        all.into_iter().map(named).collect()
    }

    /// How many different tokens were seen.
    pub(crate) fn tokens(&self) -> usize {
        self.seen_tokens.lock().unwrap().len()
    }
}

/// Whether rows are written at the beginning of a phase, which needs nodes.
fn has_rows(phase: Phase) -> bool {
    !matches!(phase, Phase::Create | Phase::Delete)
}

fn is_claim(key: &str) -> bool {
    key.starts_with("PersistentVolumeClaim ")
}

/// An object without the values that differ from one namespace to another.
pub(crate) fn comparable(kind: &str, mut object: Value) -> Value {
    match kind {
        // Only what the operator sets: the rest comes from the kubelet and from controllers of Kubernetes.
        "Pod" => {
            // It depends on the token of the agents, among others.
            object["metadata"]["labels"].as_object_mut().map(|labels| labels.remove("controller-revision-hash"));
            json!({"labels": object["metadata"]["labels"], "images": images(&object["spec"])})
        }
        "PersistentVolumeClaim" => {
            let left = &object["metadata"]["annotations"][annotation::LEFT_HOST_ID];
            json!({"labels": object["metadata"]["labels"], "wants": object["spec"]["resources"], "left": left})
        }
        _ => {
            if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
                // It depends on the namespace and the owner's UID, among others.
                annotations.remove(annotation::APPLIED_HASH);
            }
            if kind == "StatefulSet" {
                without_token(&mut object);
            }
            if kind == "Secret" {
                for value in object["data"].as_object_mut().into_iter().flat_map(|data| data.values_mut()) {
                    *value = json!(value.as_str().map(str::len));
                }
            }
            strip(&mut object);
            object
        }
    }
}

/// Removes what depends on the token of the agents; of revisions, only their equality is kept.
fn without_token(stateful_set: &mut Value) {
    let template = stateful_set.pointer_mut("/spec/template/metadata/annotations").and_then(Value::as_object_mut);
    template.map(|annotations| annotations.remove(annotation::INPUTS_HASH));
    if let Some(status) = stateful_set["status"].as_object_mut() {
        let revisions = [status.remove("currentRevision"), status.remove("updateRevision")];
        status.insert("isUpdated".into(), json!(revisions[0] == revisions[1]));
    }
}

fn images(spec: &Value) -> Vec<&Value> {
    spec["containers"].as_array().into_iter().flatten().map(|container| &container["image"]).collect()
}

fn strip(value: &mut Value) {
    const DIFFERENT: [&str; 9] = [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "lastTransitionTime",
        "time",
        "clusterIP",
        "clusterIPs",
        "disruptedPods",
        "selfLink",
    ];
    match value {
        Value::Object(members) => {
            members.retain(|name, _| !DIFFERENT.contains(&name.as_str()));
            // Only fields of the operator, in an order that does not depend on time.
            if let Some(Value::Array(records)) = members.get_mut("managedFields") {
                records.retain(|record| {
                    record["manager"] == messina_operator::controllers::datacenter::FIELD_MANAGER
                        && record["subresource"].is_null()
                });
                records.sort_by_key(Value::to_string);
            }
            members.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

fn difference(wanted: &Snapshot, now: &Snapshot) -> String {
    let names: BTreeSet<&String> = wanted.keys().chain(now.keys()).collect();
    let differing = names.into_iter().filter(|name| wanted.get(*name) != now.get(*name));
    differing
        .map(|name| match (wanted.get(name), now.get(name)) {
            (Some(wanted), Some(now)) => format!("{name}: {}", places(wanted, now).join("; ")),
            (Some(_), None) => format!("{name} is missing"),
            _ => format!("{name} should not exist"),
        })
        .collect::<Vec<_>>()
        .join("\n")
}

fn places(wanted: &Value, now: &Value) -> Vec<String> {
    match (wanted, now) {
        (Value::Object(wanted), Value::Object(now)) => {
            let names: BTreeSet<&String> = wanted.keys().chain(now.keys()).collect();
            let of = |members: &serde_json::Map<String, Value>, name: &String| {
                members.get(name).cloned().unwrap_or(Value::Null)
            };
            names
                .into_iter()
                .flat_map(|name| {
                    let inner = places(&of(wanted, name), &of(now, name));
                    inner.into_iter().map(move |rest| format!(".{name}{rest}"))
                })
                .collect()
        }
        (Value::Array(wanted), Value::Array(now)) if wanted.len() == now.len() => {
            let each = wanted.iter().zip(now).enumerate();
            each.flat_map(|(index, (wanted, now))| {
                places(wanted, now).into_iter().map(move |rest| format!("[{index}]{rest}"))
            })
            .collect()
        }
        _ if wanted == now => Vec::new(),
        _ => vec![format!(" is {now}, not {wanted}")],
    }
}

/// Waits until operators have sent no request for [`SILENCE`].
pub(crate) async fn await_no_requests(requests: &Requests<'_>) {
    let quiet = async {
        let mut last = (usize::MAX, Instant::now());
        while last.1.elapsed() < SILENCE {
            let now = requests.count();
            if now != last.0 {
                last = (now, Instant::now());
            }
            tokio::time::sleep(SILENCE / 20).await;
        }
    };
    let outcome = tokio::time::timeout(TIMEOUT, quiet).await;
    assert!(outcome.is_ok(), "the operator sends requests again and again: {:?}", requests.all().last());
}

/// The requests of operators, without watches.
pub(crate) struct Requests<'a>(pub(crate) Vec<&'a Faults>);

/// Prints the last requests of a scenario that fails.
impl Drop for Requests<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let all = self.all();
            eprintln!("of {} requests, the last are {:#?}", all.len(), &all[all.len().saturating_sub(40)..]);
        }
    }
}

impl Requests<'_> {
    fn count(&self) -> usize {
        self.0.iter().map(|faults| faults.requests()).sum()
    }

    fn all(&self) -> Vec<String> {
        self.0.iter().flat_map(|faults| faults.requested()).collect()
    }
}

/// Checks that an operator sends no request for [`SILENCE`], besides watches.
pub(crate) async fn check_no_requests(faults: &Faults, world: &World) {
    let before = faults.requests();
    tokio::time::sleep(SILENCE).await;
    if faults.requests() != before {
        panic!(
            "{}: the phase is done, and the operator sends requests: {:?}",
            world.namespace,
            &faults.requested()[before..]
        );
    }
}
