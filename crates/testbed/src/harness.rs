//! Helpers for tests: clusters that a test run shares, a namespace for each test, and waiting with timeouts.

use std::{
    env,
    fmt::Debug,
    future::Future,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, Config, Resource, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::{ApiResource, GroupVersionKind},
    runtime::watcher,
};
use serde::de::DeserializeOwned;
use tokio::sync::OnceCell;

use crate::{
    cache::{self, Lock},
    cluster,
    deadline::Deadline,
    demo,
    error::{Doing, Error, Result, malformed},
    exec,
    progress::Steps,
    reserved,
};

/// Names the kubeconfig of an existing cluster to run tests against, instead of one of the testbed.
pub const KUBECONFIG_VARIABLE: &str = "MESSINA_TEST_KUBECONFIG";

/// Set to `1` by a test runner that has called [`prepare_light`] and [`prepare_full`]: tests then only connect to the
/// shared clusters.
pub const PREPARED_VARIABLE: &str = "MESSINA_TEST_PREPARED";

/// The name of the light cluster that tests share.
pub const LIGHT: &str = "test-light";
/// The name of the cluster with Kubernetes nodes that tests share.
pub const FULL: &str = "test";
/// Two Kubernetes nodes for all tests, and one that is reserved, see [`reserved`].
const FULL_NODES: &str = "3";

/// The field manager of tests and of the testbed.
const FIELD_MANAGER: &str = "messina-testbed";

/// The result of checking an awaited state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen<T> {
    /// The state is reached.
    Ready(T),
    /// The state is not reached yet; the text describes the current one.
    NotYet(String),
}

/// A client for the cluster that a kubeconfig names.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    let config = config(kubeconfig).await?;
    Client::try_from(config).doing(|| format!("creating a client from {}", kubeconfig.display()))
}

/// The client configuration of a kubeconfig, for clients that are created in another way.
pub async fn config(kubeconfig: &Path) -> Result<Config> {
    // An earlier call may have installed it already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let read = Kubeconfig::read_from(kubeconfig).map_err(malformed(format!("reading {}", kubeconfig.display())))?;
    Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
        .await
        .map_err(malformed(format!("reading {}", kubeconfig.display())))
}

/// A GET request for a path of the API server that does not belong to an object.
pub fn get(path: &str) -> Result<http::Request<Vec<u8>>> {
    http::Request::get(path).body(vec![]).map_err(malformed("creating a request"))
}

/// A client for the light cluster that all tests of a run share, with Messina's definitions in it. The cluster is
/// started if it is not running, and left running for the next run; `testbed down --name test-light` removes it.
pub async fn light() -> Result<Client> {
    // Each test has a runtime of its own, and a client cannot outlive its runtime.
    client(light_kubeconfig().await?).await
}

/// The client configuration of the cluster of [`light`].
pub async fn light_config() -> Result<Config> {
    config(light_kubeconfig().await?).await
}

async fn light_kubeconfig() -> Result<&'static Path> {
    static CLUSTER: OnceCell<PathBuf> = OnceCell::const_new();
    CLUSTER.get_or_try_init(|| shared(LIGHT, &["--light"])).await.map(PathBuf::as_path)
}

/// A client for the cluster with Kubernetes nodes that all tests of a run share; otherwise as [`light`].
pub async fn full() -> Result<Client> {
    static CLUSTER: OnceCell<PathBuf> = OnceCell::const_new();
    let kubeconfig = CLUSTER.get_or_try_init(async || {
        let kubeconfig = shared(FULL, &["--nodes", FULL_NODES]).await?;
        if !is_prepared() && !is_existing() {
            reserved::reserve(&client(&kubeconfig).await?).await?;
        }
        Ok::<_, Error>(kubeconfig)
    });
    client(kubeconfig.await?).await
}

/// As [`full`], with the images of the operator and of simulated nodes on every Kubernetes node.
pub async fn full_with_images() -> Result<Client> {
    static IMPORTED: OnceCell<()> = OnceCell::const_new();
    let client = full().await?;
    if !is_prepared() && !is_existing() {
        let import = async || {
            let _lock = lock(FULL)?;
            testbed(&["images", "--name", FULL]).map(drop)
        };
        IMPORTED.get_or_try_init(import).await?;
    }
    Ok(client)
}

/// Starts the light cluster and installs what tests need, for a test runner that then starts many test processes with
/// [`PREPARED_VARIABLE`] set.
pub async fn prepare_light(steps: &Steps) -> Result<()> {
    let step = steps.begin(format!("preparing the cluster {LIGHT:?}"));
    light().await?;
    step.done("");
    Ok(())
}

/// Does the same for the cluster with Kubernetes nodes.
pub async fn prepare_full(steps: &Steps) -> Result<()> {
    let step = steps.begin(format!("preparing the cluster {FULL:?}"));
    full_with_images().await?;
    step.done("");
    Ok(())
}

/// Whether the shared clusters are prepared already.
fn is_prepared() -> bool {
    env::var_os(PREPARED_VARIABLE).is_some_and(|value| value == "1")
}

/// Whether the tests run against a cluster that the testbed has not started.
fn is_existing() -> bool {
    env::var_os(KUBECONFIG_VARIABLE).is_some()
}

/// Prepares a shared cluster, unless the test runner has done so, and returns its kubeconfig.
async fn shared(name: &str, arguments: &[&str]) -> Result<PathBuf> {
    if !is_prepared() {
        return started(name, arguments).await;
    }
    match env::var_os(KUBECONFIG_VARIABLE) {
        Some(kubeconfig) => Ok(kubeconfig.into()),
        None => Ok(cluster::find(name)?.kubeconfig()),
    }
}

/// Starts a cluster if it is not running, installs Messina's definitions in it, and returns its kubeconfig. Other
/// processes that start the same cluster wait meanwhile.
async fn started(name: &str, arguments: &[&str]) -> Result<PathBuf> {
    let _lock = lock(name)?;
    let kubeconfig = match env::var_os(KUBECONFIG_VARIABLE) {
        Some(kubeconfig) => kubeconfig.into(),
        None => {
            testbed(&[&["up", "--name", name], arguments].concat())?;
            cluster::find(name)?.kubeconfig()
        }
    };
    demo::install_definitions(&client(&kubeconfig).await?).await?;
    Ok(kubeconfig)
}

/// Locks the preparation of a cluster: `testbed up` fails while another process starts the same cluster.
fn lock(cluster: &str) -> Result<Lock> {
    let file = cache::root()?.join(format!("prepare-{cluster}.lock"));
    Lock::take(&file, &Steps::quiet(), "preparing a cluster for tests")
}

/// Runs the program `testbed`, and returns its output.
pub fn testbed(arguments: &[&str]) -> Result<String> {
    exec::output(&format!("testbed {}", arguments.join(" ")), Command::new(program("testbed")?).args(arguments))
}

/// The path of a program of the workspace that was built with this program or test.
pub fn program(name: &str) -> Result<PathBuf> {
    let own = env::current_exe().doing(|| "finding the path of this program".into())?;
    // Test programs are one folder below.
    let beside = own.ancestors().skip(1).take(2).map(|folder| folder.join(name)).find(|file| file.is_file());
    beside.ok_or_else(|| {
        Error::refused(format!("the program `{name}` has not been built: run `cargo build --workspace`"))
    })
}

/// Creates a namespace for one test. [`remove_namespace`] removes it, or the end of the cluster.
pub async fn namespace(client: &Client, test: &str) -> Result<String> {
    let mut namespace = Namespace::default();
    namespace.metadata.generate_name = Some(format!("{test}-"));
    let created = Api::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await
        .doing(|| format!("creating a namespace for {test}"))?;
    Ok(created.name_any())
}

/// Deletes a namespace, and does not wait for it.
pub async fn remove_namespace(client: &Client, name: &str) -> Result<()> {
    let api: Api<Namespace> = Api::all(client.clone());
    api.delete(name, &DeleteParams::background()).await.map(drop).doing(|| format!("deleting the namespace {name}"))
}

/// Applies all documents of a YAML stream. Objects without a namespace go to `namespace`, if that is given.
pub async fn apply(client: &Client, yaml: &str, namespace: Option<&str>) -> Result<Vec<DynamicObject>> {
    let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(yaml).map_err(malformed("reading YAML"))?;
    let mut applied = vec![];
    for document in documents.into_iter().filter(|document| !document.is_null()) {
        let object: DynamicObject = serde_json::from_value(document).map_err(malformed("reading an object"))?;
        let api = dynamic_api(client, &object, namespace)?;
        let what = || format!("applying {}", object.name_any());
        let params = PatchParams::apply(FIELD_MANAGER).force();
        applied.push(api.patch(&object.name_any(), &params, &Patch::Apply(&object)).await.doing(what)?);
    }
    Ok(applied)
}

/// The API of an object's kind.
fn dynamic_api(client: &Client, object: &DynamicObject, namespace: Option<&str>) -> Result<Api<DynamicObject>> {
    let types = object.types.as_ref().ok_or_else(|| Error::refused("an object names no apiVersion and kind"))?;
    let kind = GroupVersionKind::try_from(types).map_err(malformed("reading an object's kind"))?;
    let resource = ApiResource::from_gvk(&kind);
    Ok(match object.metadata.namespace.as_deref().or(namespace) {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    })
}

/// Polls until `check` returns [`Seen::Ready`]. For what cannot be watched; otherwise use [`until`].
pub async fn eventually<T, Check, Checking>(what: &str, limit: Duration, mut check: Check) -> Result<T>
where
    Check: FnMut() -> Checking,
    Checking: Future<Output = Result<Seen<T>>>,
{
    let (mut deadline, mut last) = (Deadline::new(limit), String::new());
    loop {
        let seen = match check().await? {
            Seen::Ready(value) => return Ok(value),
            Seen::NotYet(seen) => seen,
        };
        if seen != last {
            deadline.progress();
            last = seen;
        }
        if deadline.left().is_none() {
            return Err(Error::Late { what: what.into(), waited: deadline.waited(), seen: last });
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Watches an object, which may not exist yet, until `check` returns [`Seen::Ready`].
pub async fn until<K, T>(
    api: Api<K>,
    name: &str,
    what: &str,
    limit: Duration,
    mut check: impl FnMut(Option<K>) -> Seen<T>,
) -> Result<T>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let (mut deadline, mut seen) = (Deadline::new(limit), "nothing".to_owned());
    let mut versions = Box::pin(watcher::watch_object(api, name));
    while let Some(left) = deadline.left() {
        let now = match tokio::time::timeout(left, versions.try_next()).await {
            // Whether the limit is exceeded depends on the steal time meanwhile.
            Err(_) => continue,
            Ok(Ok(Some(object))) => match check(object) {
                Seen::Ready(value) => return Ok(value),
                Seen::NotYet(now) => now,
            },
            // The watch restarts by itself, so an error is only reported as the last state.
            Ok(Ok(None)) => "the watch ended".into(),
            Ok(Err(error)) => error.to_string(),
        };
        if now != seen {
            deadline.progress();
            seen = now;
        }
    }
    Err(Error::Late { what: what.into(), waited: deadline.waited(), seen })
}
