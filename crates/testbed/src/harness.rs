//! What tests use: a cluster that a whole test run shares, a namespace for each test, and waiting that ends.

use std::{
    env,
    fmt::Debug,
    future::Future,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
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
    cluster,
    error::{Doing, Error, Result, malformed},
    exec,
};

/// Names the cluster that tests run against, where it is not to be the testbed's own.
pub const KUBECONFIG_VARIABLE: &str = "MESSINA_TEST_KUBECONFIG";

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

/// The light cluster that all tests of a run share, started if it is not running. It is left running for the next run;
/// `testbed down --name test-light` removes it.
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
    CLUSTER.get_or_try_init(|| shared("test-light", &["--light"])).await.map(PathBuf::as_path)
}

/// The cluster with one node that all tests of a run share; as [`light`] in all else.
pub async fn full() -> Result<Client> {
    static CLUSTER: OnceCell<PathBuf> = OnceCell::const_new();
    client(CLUSTER.get_or_try_init(|| shared("test", &[])).await?).await
}

async fn shared(name: &str, arguments: &[&str]) -> Result<PathBuf> {
    if let Some(kubeconfig) = env::var_os(KUBECONFIG_VARIABLE) {
        return Ok(kubeconfig.into());
    }
    testbed(&[&["up", "--name", name], arguments].concat())?;
    Ok(cluster::find(name)?.kubeconfig())
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
    let started = Instant::now();
    loop {
        match look().await? {
            Seen::Ready(value) => return Ok(value),
            Seen::NotYet(seen) if started.elapsed() > limit => {
                return Err(Error::Late { what: what.into(), waited: limit, seen });
            }
            Seen::NotYet(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
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
    let mut seen = "nothing".to_owned();
    let watching = async {
        let mut versions = Box::pin(watcher::watch_object(api, name));
        loop {
            match versions.try_next().await {
                Ok(Some(object)) => match look(object) {
                    Seen::Ready(value) => return value,
                    Seen::NotYet(now) => seen = now,
                },
                // The watch is made anew by itself; a failure is only worth a note.
                Ok(None) => seen = "the watch ended".into(),
                Err(error) => seen = error.to_string(),
            }
        }
    };
    match tokio::time::timeout(limit, watching).await {
        Ok(value) => Ok(value),
        Err(_) => Err(Error::Late { what: what.into(), waited: limit, seen }),
    }
}
