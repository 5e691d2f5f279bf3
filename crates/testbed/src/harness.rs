//! What tests use: a cluster that a whole test run shares, a namespace for each test, and waiting that ends.

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
    cluster, demo,
    error::{Doing, Error, Result, malformed},
    exec,
    patience::Patience,
    progress::Steps,
    reserved,
};

/// Names the cluster that tests run against, where it is not to be the testbed's own.
pub const KUBECONFIG_VARIABLE: &str = "MESSINA_TEST_KUBECONFIG";

/// Set to `1` by a runner of tests that has called [`prepare_light`] and [`prepare_full`]: tests then only connect to the shared clusters.
pub const PREPARED_VARIABLE: &str = "MESSINA_TEST_PREPARED";

/// The name of the light cluster that tests share.
pub const LIGHT: &str = "test-light";
/// The name of the cluster with Kubernetes nodes that tests share.
pub const FULL: &str = "test";
/// Two Kubernetes nodes for all tests, and one that is reserved, see [`reserved`].
const FULL_NODES: &str = "3";

/// Who writes what tests and the testbed apply.
const FIELD_MANAGER: &str = "messina-testbed";

/// How one look at something awaited turned out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen<T> {
    /// It is as it should be.
    Ready(T),
    /// It is not yet; this is what it is like.
    NotYet(String),
}

/// A client for the cluster that a kubeconfig names.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    let config = config(kubeconfig).await?;
    Client::try_from(config).doing(|| format!("making a client from {}", kubeconfig.display()))
}

/// How to reach the cluster that a kubeconfig names, for clients that are made in another way.
pub async fn config(kubeconfig: &Path) -> Result<Config> {
    // Another call may have been first, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let read = Kubeconfig::read_from(kubeconfig).map_err(malformed(format!("reading {}", kubeconfig.display())))?;
    Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
        .await
        .map_err(malformed(format!("reading {}", kubeconfig.display())))
}

/// A request for a path of the API server that is no object's.
pub fn get(path: &str) -> Result<http::Request<Vec<u8>>> {
    http::Request::get(path).body(vec![]).map_err(malformed("making a request"))
}

/// A client for the light cluster that all tests of a run share, with Messina's definitions in it. The cluster is started
/// if it is not running, and left running for the next run; `testbed down --name test-light` removes it.
pub async fn light() -> Result<Client> {
    // Each test has a runtime of its own, and a client does not outlive the one that it was made in.
    client(light_kubeconfig().await?).await
}

/// How to reach the cluster of [`light`].
pub async fn light_config() -> Result<Config> {
    config(light_kubeconfig().await?).await
}

async fn light_kubeconfig() -> Result<&'static Path> {
    static CLUSTER: OnceCell<PathBuf> = OnceCell::const_new();
    CLUSTER.get_or_try_init(|| shared(LIGHT, &["--light"])).await.map(PathBuf::as_path)
}

/// A client for the cluster with Kubernetes nodes that all tests of a run share; as [`light`] in all else.
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

/// Starts the light cluster and brings into it what tests need: for a runner that then starts many test processes with
/// [`PREPARED_VARIABLE`] set.
pub async fn prepare_light(steps: &Steps) -> Result<()> {
    let step = steps.begin(format!("preparing the cluster {LIGHT:?}"));
    light().await?;
    step.done("");
    Ok(())
}

/// The same for the cluster with Kubernetes nodes.
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

/// The kubeconfig of a shared cluster, which is prepared unless a runner has done so.
async fn shared(name: &str, arguments: &[&str]) -> Result<PathBuf> {
    if !is_prepared() {
        return started(name, arguments).await;
    }
    match env::var_os(KUBECONFIG_VARIABLE) {
        Some(kubeconfig) => Ok(kubeconfig.into()),
        None => Ok(cluster::find(name)?.kubeconfig()),
    }
}

/// Starts a cluster if it is not running, installs Messina's definitions in it, and returns its kubeconfig. Other processes
/// that start the same cluster wait meanwhile.
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

/// Held while one process prepares a cluster: `testbed up` refuses where another one is at work.
fn lock(cluster: &str) -> Result<Lock> {
    let file = cache::root()?.join(format!("prepare-{cluster}.lock"));
    Lock::take(&file, &Steps::quiet(), "preparing a cluster for tests")
}

/// Runs the program `testbed`, and gives what it printed.
pub fn testbed(arguments: &[&str]) -> Result<String> {
    exec::output(&format!("testbed {}", arguments.join(" ")), Command::new(program("testbed")?).args(arguments))
}

/// A program of the workspace that was built with this one, or with this test.
pub fn program(name: &str) -> Result<PathBuf> {
    let own = env::current_exe().doing(|| "finding the own program".into())?;
    // Tests are one folder below.
    let beside = own.ancestors().skip(1).take(2).map(|folder| folder.join(name)).find(|file| file.is_file());
    beside.ok_or_else(|| Error::refused(format!("the program `{name}` is not built: run `cargo build --workspace`")))
}

/// A new namespace for one test. It is removed by [`remove_namespace`], or with the cluster.
pub async fn namespace(client: &Client, test: &str) -> Result<String> {
    let mut namespace = Namespace::default();
    namespace.metadata.generate_name = Some(format!("{test}-"));
    let created = Api::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await
        .doing(|| format!("creating a namespace for {test}"))?;
    Ok(created.name_any())
}

/// Asks for a namespace's removal, and does not wait for it.
pub async fn remove_namespace(client: &Client, name: &str) -> Result<()> {
    let api: Api<Namespace> = Api::all(client.clone());
    api.delete(name, &DeleteParams::background()).await.map(drop).doing(|| format!("removing the namespace {name}"))
}

/// Applies every document of a YAML stream. What names no namespace goes to `namespace`, if that is given.
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

/// Looks again and again until what is awaited is there. For what has no watch; else use [`until`].
pub async fn eventually<T, Look, Looking>(what: &str, limit: Duration, mut look: Look) -> Result<T>
where
    Look: FnMut() -> Looking,
    Looking: Future<Output = Result<Seen<T>>>,
{
    let (mut patience, mut last) = (Patience::new(limit), String::new());
    loop {
        let seen = match look().await? {
            Seen::Ready(value) => return Ok(value),
            Seen::NotYet(seen) => seen,
        };
        if seen != last {
            patience.progress();
            last = seen;
        }
        if patience.left().is_none() {
            return Err(Error::Late { what: what.into(), waited: patience.waited(), seen: last });
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Watches an object until `look` is content with it; it may not exist yet.
pub async fn until<K, T>(
    api: Api<K>,
    name: &str,
    what: &str,
    limit: Duration,
    mut look: impl FnMut(Option<K>) -> Seen<T>,
) -> Result<T>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let (mut patience, mut seen) = (Patience::new(limit), "nothing".to_owned());
    let mut versions = Box::pin(watcher::watch_object(api, name));
    while let Some(left) = patience.left() {
        let now = match tokio::time::timeout(left, versions.try_next()).await {
            // Whether the limit is over depends on what the processors did meanwhile.
            Err(_) => continue,
            Ok(Ok(Some(object))) => match look(object) {
                Seen::Ready(value) => return Ok(value),
                Seen::NotYet(now) => now,
            },
            // The watch starts again by itself; a failure is only worth a note.
            Ok(Ok(None)) => "the watch ended".into(),
            Ok(Err(error)) => error.to_string(),
        };
        if now != seen {
            patience.progress();
            seen = now;
        }
    }
    Err(Error::Late { what: what.into(), waited: patience.waited(), seen })
}
