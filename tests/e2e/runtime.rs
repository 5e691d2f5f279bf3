//! The controller runtime, by a small controller: a ConfigMap's entries become Secrets, as long as it has the label.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::TryStreamExt;
use http::StatusCode;
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use messina_e2e::{SOON, in_a_namespace};
use messina_runtime::{
    apply::{Applied, ComponentPlan, Desired, ObservedVersion, no_longer_desired},
    client::{self, Source, Transport},
    cluster::{Cluster, Selection},
    controller::{AnyController, Controller, ControllerBuilder},
    error::Error,
    events::Events,
    fence::Fence,
    metrics::Metrics,
    process::Process,
    queue::{Backoff, ObjectKey},
    server::Readiness,
    shared_context::SharedContext,
    status::Report,
    store::Store,
};
use messina_testbed::{
    faults::{ApiRequest, Fault, Faults},
    harness::{self, Seen, eventually},
};
use serde_json::json;
use tokio::task::JoinHandle;
use tower::Layer;

const MANAGER: &str = "messina-toy";
const FINALIZER: &str = "messina.test/farewell";
const PARENT: &str = "messina.test/parent";
const PAUSE: &str = "messina.test/pause";
/// A Secret with this entry has a precondition on another Secret, whose name ends with the entry.
const RESTS: &str = "rests";

/// A Secret with this entry is written only in its observed version.
const EXACT: &str = "exact";

fn has(secret: &Secret, entry: &str) -> bool {
    secret.data.iter().flatten().any(|(word, _)| word == entry)
}

struct Toy {
    secrets: Arc<Store<Secret>>,
}

/// The value of an entry that makes the controller panic, and how often it did.
const PANIC: &str = "panic";
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// A ConfigMap and its Secrets.
struct Family {
    parent: Arc<ConfigMap>,
    children: Vec<Arc<Secret>>,
}

impl Controller for Toy {
    type Object = ConfigMap;
    type Observed = Family;
    type Plan = Vec<Secret>;
    const NAME: &'static str = "toy";
    const FIELD_MANAGER: &'static str = MANAGER;
    const BACKOFF: Backoff = Backoff { first: Duration::from_millis(50), longest: Duration::from_secs(1) };
    const FINALIZER: Option<&'static str> = Some(FINALIZER);
    // ConfigMaps have no status.
    const HAS_CONDITIONS: bool = false;

    async fn observe(&self, parent: &Arc<ConfigMap>) -> Result<Family, Error> {
        let children = self.secrets.controlled_by(&parent.uid().unwrap())?;
        Ok(Family { parent: Arc::clone(parent), children })
    }

    fn plan(&self, Family { parent, .. }: &Family) -> Vec<Secret> {
        let owner = OwnerReference {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            name: parent.name_any(),
            uid: parent.uid().unwrap(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        };
        let child = |(name, value): (&String, &String)| Secret {
            metadata: ObjectMeta {
                name: Some(format!("{}-{name}", parent.name_any())),
                namespace: parent.namespace(),
                owner_references: Some(vec![owner.clone()]),
                labels: Some([("app".into(), MANAGER.into())].into()),
                ..ObjectMeta::default()
            },
            data: Some(value.split(' ').map(|word| (word.to_owned(), ByteString(b"x".to_vec()))).collect()),
            ..Secret::default()
        };
        if parent.data.iter().flatten().any(|(_, value)| value == PANIC) {
            PANICS.fetch_add(1, Ordering::SeqCst);
            panic!("the test wants it");
        }
        parent.data.iter().flatten().map(child).collect()
    }

    fn components(&self, observed: &Family, plan: &Vec<Secret>) -> Result<Vec<ComponentPlan>, Error> {
        let desired = |secret: &Secret| -> Result<Desired, Error> {
            let desired = Desired::new(secret)?;
            let desired = if has(secret, EXACT) { desired.matching_observed_version() } else { desired };
            if !has(secret, RESTS) {
                return Ok(desired);
            }
            let key = ObjectKey { namespace: secret.namespace(), name: format!("{}-{RESTS}", secret.name_any()) };
            let version = self.secrets.get(&key)?.and_then(|secret| secret.resource_version());
            Ok(desired.with_preconditions(vec![ObservedVersion::new::<Secret>(key, version)]))
        };
        let objects = plan.iter().map(desired).collect::<Result<Vec<_>, _>>()?;
        let deletions = no_longer_desired(&observed.children, &objects);
        Ok(vec![ComponentPlan { name: "Secret", objects, deletions, ..ComponentPlan::default() }])
    }

    fn report(&self, _: &Family, _: &Vec<Secret>, _: &[Applied]) -> Report {
        Report::default()
    }
}

/// The small controller, in this process. It ends when this is dropped.
struct Program(JoinHandle<()>);

impl Drop for Program {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn program(namespace: &str, faults: &Faults) -> Program {
    let kubeconfig = messina_e2e::light_kubeconfig();
    let transport = Transport::new(Source::File { path: kubeconfig, context: None }).await.unwrap();
    let metrics = Metrics::default();
    let fence = Fence::open_for_ever();
    let client = client::client(faults.layer(transport), "default", metrics.clone(), Some(fence.clone()));
    let (events, _) = Events::new(metrics.clone());
    let process = Process {
        lease_client: client.clone(),
        client,
        fence,
        lease: None,
        namespace: Some(namespace.into()),
        workers: 2,
        context: Arc::new(SharedContext::new(metrics, events, "messina.test/hash").with_pause_annotation(PAUSE)),
        readiness: Readiness::default(),
    };
    let controllers = |cluster: &mut Cluster| {
        let secrets = || Selection::<Secret>::labelled(format!("app={MANAGER}"));
        let toy = Toy { secrets: cluster.store(secrets()) };
        let mut builder = ControllerBuilder::new(cluster, toy, Selection::labelled(PARENT));
        builder.owns(secrets());
        vec![builder.build() as Arc<dyn AnyController>]
    };
    Program(tokio::spawn(process.run(controllers, std::future::pending())))
}

async fn set_parent(client: &Client, namespace: &str, data: &[(&str, &str)]) {
    set_named_parent(client, namespace, "p", data).await;
}

async fn set_named_parent(client: &Client, namespace: &str, name: &str, data: &[(&str, &str)]) {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let data: BTreeMap<&str, &str> = data.iter().copied().collect();
    let parent = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {PARENT: ""}}, "data": data,
    });
    api.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(&parent)).await.unwrap();
}

/// The Secrets of the namespace, each with the names of its entries.
async fn children(client: &Client, namespace: &str) -> String {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let all = api.list(&ListParams::default()).await.unwrap();
    let entries =
        |secret: &Secret| secret.data.iter().flatten().map(|(key, _)| key.clone()).collect::<Vec<_>>().join("+");
    let mut all: Vec<String> = all.iter().map(|secret| format!("{}={}", secret.name_any(), entries(secret))).collect();
    all.sort();
    all.join(" ")
}

async fn children_become(client: &Client, namespace: &str, desired: &str) {
    eventually(desired, SOON, async || {
        let now = children(client, namespace).await;
        Ok(if now == desired { Seen::Ready(()) } else { Seen::NotYet(now) })
    })
    .await
    .unwrap();
}

/// The writes. ConfigMaps have no status, so attempts to write one do not count.
fn written(faults: &Faults) -> Vec<String> {
    faults.written().into_iter().filter(|line| !line.ends_with("/status")).collect()
}

/// Checks that nothing is written for a while.
async fn check_no_writes(faults: &Faults) {
    let before = written(faults);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(written(faults)[before.len()..], [] as [String; 0]);
}

#[tokio::test]
async fn objects_are_created_updated_and_pruned_without_superfluous_writes() {
    in_a_namespace("runtime", async |client, namespace| {
        let faults = Faults::none();
        let program = program(namespace, &faults).await;
        set_parent(client, namespace, &[("a", "x y"), ("b", "z")]).await;
        children_become(client, namespace, "p-a=x+y p-b=z").await;
        check_no_writes(&faults).await;
        let first = written(&faults).len();
        set_parent(client, namespace, &[("a", "x")]).await;
        // Entries and objects that are no longer desired are removed, although they were created and not applied.
        children_become(client, namespace, "p-a=x").await;
        check_no_writes(&faults).await;
        set_parent(client, namespace, &[("a", "w")]).await;
        children_become(client, namespace, "p-a=w").await;
        check_no_writes(&faults).await;
        let place = format!("/api/v1/namespaces/{namespace}");
        let written: Vec<String> = written(&faults).iter().map(|line| line.replace(&place, "")).collect();
        assert_eq!(written[..first], ["PATCH /configmaps/p", "POST /secrets", "POST /secrets"]);
        assert_eq!(
            written[first..],
            ["PATCH /secrets/p-a", "PATCH /secrets/p-a", "DELETE /secrets/p-b", "PATCH /secrets/p-a"],
            "the first change takes over the fields, and later ones need not"
        );
        drop(program);
        release_parent(client, namespace).await;
    })
    .await;
}

#[tokio::test]
async fn drift_is_reverted_and_foreign_objects_are_not_changed() {
    in_a_namespace("runtime", async |client, namespace| {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let theirs = json!({"metadata": {"name": "p-theirs"}, "data": {"mine": "bWluZQ=="}});
        secrets.create(&PostParams::default(), &serde_json::from_value(theirs).unwrap()).await.unwrap();
        let faults = Faults::none();
        let program = program(namespace, &faults).await;
        set_parent(client, namespace, &[("a", "x"), ("theirs", "x"), ("z", "x")]).await;
        children_become(client, namespace, "p-a=x p-theirs=mine").await;
        set_parent(client, namespace, &[("a", "x"), ("b", "x")]).await;
        children_become(client, namespace, "p-a=x p-b=x p-theirs=mine").await;
        check_no_writes(&faults).await;
        for (damage, why) in [
            (json!({"data": {"x": "b3RoZXI="}}), "a value"),
            (json!({"data": {"x": null}}), "an entry taken away"),
            (json!({"metadata": {"labels": {"app": null}}}), "the label by which it is found"),
            (json!({"metadata": {"annotations": {"messina.test/hash": "other"}}}), "the hash"),
        ] {
            let before = secrets.get("p-a").await.unwrap();
            secrets.patch("p-a", &PatchParams::default(), &Patch::Merge(&damage)).await.unwrap();
            eventually(why, SOON, async || {
                let now = secrets.get("p-a").await.unwrap();
                let is_same = now.data == before.data
                    && now.labels() == before.labels()
                    && now.annotations() == before.annotations();
                Ok(if is_same { Seen::Ready(()) } else { Seen::NotYet(format!("{now:?}")) })
            })
            .await
            .unwrap();
        }
        let more = json!({"data": {"more": "bW9yZQ=="}});
        secrets.patch("p-b", &PatchParams::default(), &Patch::Merge(&more)).await.unwrap();
        check_no_writes(&faults).await;
        assert_eq!(children(client, namespace).await, "p-a=x p-b=more+x p-theirs=mine", "what others add stays");
        secrets.delete("p-a", &DeleteParams::default()).await.unwrap();
        children_become(client, namespace, "p-a=x p-b=more+x p-theirs=mine").await;
        drop(program);
        release_parent(client, namespace).await;
    })
    .await;
}

#[tokio::test]
async fn write_with_precondition_needs_the_observed_version_of_the_other_object() {
    in_a_namespace("runtime", async |client, namespace| {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let other = json!({"metadata": {"name": "p-a-rests"}});
        secrets.create(&PostParams::default(), &serde_json::from_value(other).unwrap()).await.unwrap();
        // Only the watch of Secrets is delayed, not that of the parent.
        let faults = Faults::new(|asked| match asked.uri.path().ends_with("/secrets") {
            true if asked.is_watch => Fault::DelayLines(Duration::from_millis(500)),
            _ => Fault::None,
        });
        let program = program(namespace, &faults).await;
        set_parent(client, namespace, &[("a", RESTS), ("b", "x")]).await;
        eventually("a look at the other one", SOON, async || {
            let requested = faults.requested();
            let has_looked = requested.iter().any(|line| line.starts_with("GET ") && line.ends_with("/p-a-rests"));
            Ok(if has_looked { Seen::Ready(()) } else { Seen::NotYet(requested.join(", ")) })
        })
        .await
        .unwrap();
        // An object without its labels is not treated as missing, and blocks later objects of its component.
        check_no_writes(&faults).await;
        assert_eq!(children(client, namespace).await, "p-a-rests=");
        for value in [json!(MANAGER), json!(null), json!(MANAGER)] {
            let label = json!({"metadata": {"labels": {"app": value}}});
            secrets.patch("p-a-rests", &PatchParams::default(), &Patch::Merge(&label)).await.unwrap();
        }
        // It has no owner, so a change of the parent triggers the reconcile.
        set_parent(client, namespace, &[("a", RESTS), ("b", "y")]).await;
        children_become(client, namespace, "p-a-rests= p-a=rests p-b=y").await;
        drop(program);
        release_parent(client, namespace).await;
    })
    .await;
}

/// A process that was stopped in the middle of a write continues while another one leads.
#[tokio::test]
async fn late_write_with_observed_version_reverts_nothing() {
    in_a_namespace("runtime", async |client, namespace| {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let faults = Faults::none();
        let program = program(namespace, &faults).await;
        set_parent(client, namespace, &[("a", "exact first")]).await;
        children_become(client, namespace, "p-a=exact+first").await;
        faults.follow(|asked| match asked.write.is_some() && asked.uri.path().ends_with("/secrets/p-a") {
            true => Fault::Hold,
            false => Fault::None,
        });
        set_parent(client, namespace, &[("a", "exact late")]).await;
        faults.held().await;
        // Another process decides and writes meanwhile.
        set_parent(client, namespace, &[("a", "exact last")]).await;
        let last = json!({"data": {"first": null, "last": "eA=="}});
        secrets.patch("p-a", &PatchParams::default(), &Patch::Merge(&last)).await.unwrap();
        let version = secrets.get("p-a").await.unwrap().resource_version().unwrap();
        faults.follow(|_| Fault::None);
        faults.release();
        // All versions of the object, up to the last change.
        let watched = WatchParams::default().fields("metadata.name=p-a");
        let mut changes = std::pin::pin!(secrets.watch(&watched, &version).await.unwrap());
        eventually("a write after the late one", SOON, async || {
            let requested = faults.requested();
            let writes =
                requested.iter().filter(|line| line.starts_with("PATCH") && line.contains("/secrets/p-a")).count();
            Ok(if writes > 1 { Seen::Ready(()) } else { Seen::NotYet(requested.join(", ")) })
        })
        .await
        .unwrap();
        let end = json!({"metadata": {"annotations": {"messina.test/end": ""}}});
        secrets.patch("p-a", &PatchParams::default(), &Patch::Merge(&end)).await.unwrap();
        while let Some(WatchEvent::Modified(secret)) = changes.try_next().await.unwrap() {
            assert!(!has(&secret, "late"), "what was decided before came last: {secret:?}");
            if secret.annotations().contains_key("messina.test/end") {
                break;
            }
        }
        children_become(client, namespace, "p-a=exact+last").await;
        drop(program);
        release_parent(client, namespace).await;
    })
    .await;
}

#[tokio::test]
async fn finalizer_stays_until_finalization_is_done() {
    in_a_namespace("runtime", async |client, namespace| {
        let parents: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let faults = Faults::none();
        let program = program(namespace, &faults).await;
        set_parent(client, namespace, &[("a", "x")]).await;
        children_become(client, namespace, "p-a=x").await;
        assert_eq!(parents.get("p").await.unwrap().finalizers(), [FINALIZER]);
        drop(program);
        parents.delete("p", &DeleteParams::default()).await.unwrap();
        assert!(parents.get("p").await.unwrap().metadata.deletion_timestamp.is_some(), "it waits for its finalization");
        let _program = self::program(namespace, &faults).await;
        eventually("the object's end", SOON, async || {
            let gone = parents.get_opt("p").await.unwrap().is_none();
            Ok(if gone { Seen::Ready(()) } else { Seen::NotYet("still there".into()) })
        })
        .await
        .unwrap();
    })
    .await;
}

#[tokio::test]
async fn paused_object_is_not_written() {
    in_a_namespace("runtime", async |client, namespace| {
        let parents: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let pause = async |value: Option<&str>| {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {PAUSE: value}}}));
            parents.patch("p", &PatchParams::default(), &patch).await.unwrap();
        };
        let faults = Faults::none();
        let program = program(namespace, &faults).await;
        set_parent(client, namespace, &[("a", "x")]).await;
        children_become(client, namespace, "p-a=x").await;
        check_no_writes(&faults).await;
        pause(Some("until Monday")).await;
        // The operator sees the pause by another watch than the deletion of a Secret.
        check_no_writes(&faults).await;
        let before = written(&faults);
        set_parent(client, namespace, &[("a", "y"), ("b", "z")]).await;
        secrets.delete("p-a", &DeleteParams::default()).await.unwrap();
        check_no_writes(&faults).await;
        assert_eq!((written(&faults), children(client, namespace).await), (before, String::new()));
        pause(Some("false")).await;
        children_become(client, namespace, "p-a=y p-b=z").await;
        pause(Some("true")).await;
        parents.delete("p", &DeleteParams::default()).await.unwrap();
        check_no_writes(&faults).await;
        assert_eq!(parents.get("p").await.unwrap().finalizers(), [FINALIZER], "its end waits, too");
        pause(None).await;
        eventually("the object's end", SOON, async || {
            let gone = parents.get_opt("p").await.unwrap().is_none();
            Ok(if gone { Seen::Ready(()) } else { Seen::NotYet("still there".into()) })
        })
        .await
        .unwrap();
        drop(program);
    })
    .await;
}

/// Applies a series of changes to the namespace, with a program that is restarted after each crash. Returns how often
/// it crashed, once that is as often as expected: a crash after the last write is seen later than the write.
async fn run_changes(client: &Client, namespace: &str, faults: &Faults, expected: usize) -> usize {
    let keep_running = async {
        let mut crashes = 0;
        let mut running = program(namespace, faults).await;
        loop {
            faults.crashed().await;
            drop(running);
            crashes += 1;
            running = program(namespace, faults).await;
            if crashes > 1000 {
                return crashes;
            }
            CRASHES.with(|count| count.set(crashes));
        }
    };
    thread_local!(static CRASHES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) });
    CRASHES.with(|count| count.set(0));
    let changes = async {
        set_parent(client, namespace, &[("a", "x y"), ("b", "z")]).await;
        children_become(client, namespace, "p-a=x+y p-b=z").await;
        set_parent(client, namespace, &[("a", "x"), ("c", "v")]).await;
        children_become(client, namespace, "p-a=x p-c=v").await;
        eventually("the crashes", SOON, async || {
            let crashes = CRASHES.with(std::cell::Cell::get);
            Ok(if crashes >= expected { Seen::Ready(()) } else { Seen::NotYet(format!("{crashes} crashes")) })
        })
        .await
        .unwrap();
    };
    tokio::select! {
        crashes = keep_running => panic!("{crashes} crashes, and still not done"),
        () = changes => CRASHES.with(std::cell::Cell::get),
    }
}

#[tokio::test]
async fn objects_converge_after_a_crash_at_any_write() {
    in_a_namespace("runtime", async |client, namespace| {
        let undisturbed = Faults::none();
        let only = format!("{namespace}-0");
        new_namespace(client, &only).await;
        assert_eq!(run_changes(client, &only, &undisturbed, 0).await, 0);
        let writes = undisturbed.writes();
        let mut crashes = 0;
        for (number, fault) in (0..writes).flat_map(|n| [(n, Fault::CrashBefore), (n, Fault::CrashAfter)]) {
            let faults =
                Faults::new(move |asked: &ApiRequest| if asked.write == Some(number) { fault } else { Fault::None });
            let name = format!("{namespace}-{number}-{}", if fault == Fault::CrashBefore { "b" } else { "a" });
            new_namespace(client, &name).await;
            crashes += run_changes(client, &name, &faults, 1).await;
            remove_namespace(client, &name).await;
        }
        println!("{writes} writes, {crashes} crashes before and after each");
        assert_eq!(crashes, 2 * writes);
        remove_namespace(client, &only).await;
    })
    .await;
}

#[tokio::test]
async fn panic_stops_neither_the_worker_nor_the_object() {
    in_a_namespace("runtime-panic", async |client, namespace| {
        let program = program(namespace, &Faults::none()).await;
        set_parent(client, namespace, &[("a", PANIC)]).await;
        // More panics than workers.
        eventually("three panics", SOON, async || {
            let count = PANICS.load(Ordering::SeqCst);
            Ok(if count >= 3 { Seen::Ready(()) } else { Seen::NotYet(count.to_string()) })
        })
        .await
        .unwrap();
        set_named_parent(client, namespace, "q", &[("a", "x")]).await;
        children_become(client, namespace, "q-a=x").await;
        set_parent(client, namespace, &[("a", "y")]).await;
        children_become(client, namespace, "p-a=y q-a=x").await;
        drop(program);
        release_parent(client, namespace).await;
        release_named_parent(client, namespace, "q").await;
    })
    .await;
}

/// Deletes a namespace after its finalizer, which no controller removes any more: it would block the deletion for ever.
async fn remove_namespace(client: &Client, name: &str) {
    release_parent(client, name).await;
    harness::remove_namespace(client, name).await.unwrap();
}

async fn release_parent(client: &Client, namespace: &str) {
    release_named_parent(client, namespace, "p").await;
}

async fn release_named_parent(client: &Client, namespace: &str, name: &str) {
    let parents: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let free = json!({"metadata": {"finalizers": null}});
    parents.patch(name, &PatchParams::default(), &Patch::Merge(&free)).await.unwrap();
}

async fn new_namespace(client: &Client, name: &str) {
    let namespace = json!({"metadata": {"name": name}});
    let api: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    api.create(&PostParams::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();
}

#[tokio::test]
async fn objects_converge_after_lost_responses_conflicts_and_errors() {
    in_a_namespace("runtime", async |client, namespace| {
        for (name, fault) in [
            ("reply", Fault::LoseReply),
            ("request", Fault::LoseRequest),
            ("conflict", Fault::Fail(StatusCode::CONFLICT)),
            ("failure", Fault::Fail(StatusCode::INTERNAL_SERVER_ERROR)),
        ] {
            // Every other write fails, so that the next one succeeds.
            let faults =
                Faults::new(move |asked| if asked.write.is_some_and(|n| n % 2 == 0) { fault } else { Fault::None });
            let name = format!("{namespace}-{name}");
            new_namespace(client, &name).await;
            run_changes(client, &name, &faults, 0).await;
            remove_namespace(client, &name).await;
        }
    })
    .await;
}

#[tokio::test]
async fn objects_converge_with_interrupted_watches_and_old_lists() {
    in_a_namespace("runtime", async |client, namespace| {
        let cut =
            Faults::new(
                |asked| if asked.is_watch { Fault::CutAfter(if asked.is_list { 5 } else { 1 }) } else { Fault::None },
            );
        let name = format!("{namespace}-cut");
        new_namespace(client, &name).await;
        run_changes(client, &name, &cut, 0).await;
        remove_namespace(client, &name).await;

        let old = Faults::new(|asked| match asked.write {
            Some(2 | 5 | 8) => Fault::CrashAfter,
            _ if asked.is_list => Fault::OldList,
            _ => Fault::None,
        });
        let name = format!("{namespace}-old");
        new_namespace(client, &name).await;
        let crashes = run_changes(client, &name, &old, 0).await;
        assert!(crashes > 0, "it was started again, and saw old lists");
        remove_namespace(client, &name).await;
    })
    .await;
}
