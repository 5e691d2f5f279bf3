//! Helpers of end-to-end tests.
//!
//! Assertions take an object as YAML and write it to the API server with strict validation: unknown fields are refused
//! and not dropped. A failed assertion panics with the actual result.

#![expect(clippy::panic, reason = "a test fails by panicking")]

pub mod clusters;
pub mod datacenter;
mod failure_report;
pub mod observer;
pub mod operator;
pub mod permissions;

use std::{env, ffi::OsStr, fmt::Display, path::PathBuf, process::Command, sync::LazyLock, time::Duration};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, DynamicObject, GetParams, ListParams, PostParams},
    core::{ApiResource, GroupVersionKind, Request},
};
use messina_testbed::{cluster, exec, harness, progress::Steps, tools::Tools};
use serde_json::Value;

/// All CustomResourceDefinitions of Messina.
pub static DEFINITIONS: LazyLock<Vec<CustomResourceDefinition>> = LazyLock::new(messina_api::crd::all);

/// How long the API server may take to serve a change.
pub const SOON: Duration = Duration::from_secs(60);

/// A client for the light cluster, which has the definitions of Messina.
pub async fn light() -> Client {
    expect_ok(harness::light().await)
}

/// Runs a test in a new namespace of the light cluster. The namespace is removed afterwards, and kept for inspection
/// if the test fails.
pub async fn in_a_namespace(test: &str, body: impl AsyncFnOnce(&Client, &str)) {
    let client = light().await;
    let namespace = expect_ok(harness::namespace(&client, test).await);
    body(&client, &namespace).await;
    expect_ok(harness::remove_namespace(&client, &namespace).await);
    for definition in DEFINITIONS.iter().filter(|definition| definition.spec.scope == "Cluster") {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(definition));
        for object in expect_ok(api.list(&ListParams::default()).await) {
            let name = object.name_any();
            if name.ends_with(&format!("-{namespace}")) {
                expect_ok(api.delete(&name, &DeleteParams::default()).await);
            }
        }
    }
}

/// The kubeconfig of the light cluster, which has to be running.
pub fn light_kubeconfig() -> PathBuf {
    match env::var_os(harness::KUBECONFIG_VARIABLE) {
        Some(given) => PathBuf::from(given),
        None => expect_ok(cluster::find(harness::LIGHT)).kubeconfig(),
    }
}

/// Runs `kubectl` on the light cluster and returns its output, or its error.
pub fn kubectl<Argument: AsRef<OsStr>>(arguments: impl IntoIterator<Item = Argument>) -> Result<String, String> {
    let mut command = Command::new(expect_ok(Tools::control_plane(&Steps::quiet())).program("kubectl"));
    command.arg("--kubeconfig").arg(light_kubeconfig()).arg("--request-timeout=60s").args(arguments);
    exec::output("kubectl", &mut command).map_err(|error| error.to_string())
}

/// The path of a program of this workspace that was built with the tests.
pub fn program(name: &str) -> PathBuf {
    expect_ok(harness::program(name))
}

/// The value of a successful result; panics with the error otherwise.
fn expect_ok<T, E: Display>(outcome: Result<T, E>) -> T {
    outcome.unwrap_or_else(|error| panic!("{error}"))
}

/// Expects the API server to create this object. Returns it as stored.
pub async fn accepts(client: &Client, namespace: &str, yaml: &str) -> Value {
    accepted(send(client, Write::Create, namespace, &object(yaml)).await, yaml)
}

/// Expects the API server to refuse the creation of this object with these words.
pub async fn refuses(client: &Client, namespace: &str, yaml: &str, words: &str) {
    refused(send(client, Write::Create, namespace, &object(yaml)).await, yaml, words);
}

/// Expects the API server to replace the object of the same name by this one. Returns it as stored.
pub async fn accepts_change(client: &Client, namespace: &str, yaml: &str) -> Value {
    accepted(send(client, Write::Change, namespace, &object(yaml)).await, yaml)
}

/// Expects the API server to refuse the replacement of the object of the same name with these words.
pub async fn refuses_change(client: &Client, namespace: &str, yaml: &str, words: &str) {
    refused(send(client, Write::Change, namespace, &object(yaml)).await, yaml, words);
}

/// Expects the API server to accept the status of this object. Returns the object as stored.
pub async fn accepts_status(client: &Client, namespace: &str, yaml: &str) -> Value {
    accepted(send(client, Write::Status, namespace, &object(yaml)).await, yaml)
}

/// Expects the API server to refuse the status of this object with these words.
pub async fn refuses_status(client: &Client, namespace: &str, yaml: &str, words: &str) {
    refused(send(client, Write::Status, namespace, &object(yaml)).await, yaml, words);
}

/// The objects of a YAML stream.
pub fn objects(yaml: &str) -> Vec<Value> {
    let read = serde_saphyr::from_multiple::<Value>(yaml).unwrap_or_else(|why| panic!("no YAML: {why}\n{yaml}"));
    read.into_iter().filter(|object| !object.is_null()).collect()
}

fn object(yaml: &str) -> Value {
    let mut objects = objects(yaml);
    assert_eq!(objects.len(), 1, "one object is expected:\n{yaml}");
    objects.remove(0)
}

fn accepted(outcome: Result<Value, String>, yaml: &str) -> Value {
    outcome.unwrap_or_else(|why| panic!("refused: {why}\nThis should have been accepted:\n{yaml}"))
}

fn refused(outcome: Result<Value, String>, yaml: &str, words: &str) {
    match outcome {
        Ok(stored) => panic!("accepted, and stored as {stored}\nThis should have been refused with {words:?}:\n{yaml}"),
        Err(why) => assert!(why.contains(words), "refused with {why:?}\nThis should have been said: {words:?}\n{yaml}"),
    }
}

#[derive(Clone, Copy)]
enum Write {
    Create,
    Change,
    Status,
}

/// Writes an object to the test's namespace, whichever it names. A cluster-scoped object gets the namespace as a part
/// of its name, so that tests do not conflict.
async fn send(client: &Client, write: Write, namespace: &str, object: &Value) -> Result<Value, String> {
    let mut object = object.clone();
    let (kind, namespaced) = kind_of(&object);
    if namespaced {
        object["metadata"]["namespace"] = namespace.into();
    } else {
        object["metadata"]["name"] = format!("{}-{namespace}", text(&object["metadata"]["name"])).into();
    }
    let name = text(&object["metadata"]["name"]).to_owned();
    let request = Request::new(DynamicObject::url_path(&kind, namespaced.then_some(namespace)));
    if !matches!(write, Write::Create) {
        let stored: Value = expect_ok(client.request(expect_ok(request.get(&name, &GetParams::default()))).await);
        object["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"].clone();
    }
    let (params, body) = (PostParams::default(), object.to_string().into_bytes());
    let mut request = expect_ok(match write {
        Write::Create => request.create(&params, body),
        Write::Change => request.replace(&name, &params, body),
        Write::Status => request.replace_subresource("status", &name, &params, body),
    });
    *request.uri_mut() = expect_ok(format!("{}&fieldValidation=Strict", request.uri()).parse());
    answer(client.request(request).await)
}

/// The response of the API server: an object, or the message of its error. Panics if there is no response.
fn answer(outcome: kube::Result<Value>) -> Result<Value, String> {
    match outcome {
        Ok(object) => Ok(object),
        Err(kube::Error::Api(status)) => Err(status.message.clone()),
        Err(error) => panic!("the API server did not answer: {error}"),
    }
}

fn kind_of(object: &Value) -> (ApiResource, bool) {
    let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let ours = DEFINITIONS.iter().find(|ours| ours.spec.group == group && ours.spec.names.kind == kind);
    match ours {
        Some(definition) => (resource(definition), definition.spec.scope == "Namespaced"),
        None => (ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)), true),
    }
}

fn resource(definition: &CustomResourceDefinition) -> ApiResource {
    let (spec, version) = (&definition.spec, &definition.spec.versions[0].name);
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk(&spec.group, version, &spec.names.kind),
        &spec.names.plural,
    )
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
