//! The output of `messina plan`, applied to the real API server and compared with the real operator.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
    core::{ApiResource, GroupVersionKind},
};
use messina_api::names::annotation;
use messina_e2e::{SOON, accepts, in_a_namespace, kubectl, light_kubeconfig, objects, program};
use messina_plan::preview::SIGNED;
use messina_testbed::harness::{Seen, eventually};
use serde_json::{Value, json};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/examples");
const IMAGE: &str = "localhost/messina:e2e";

/// The example, in this namespace.
fn example(namespace: &str) -> Value {
    let text = fs::read_to_string(Path::new(EXAMPLES).join("scylladbdatacenter.yaml")).unwrap();
    let mut example = objects(&text).remove(0);
    example["metadata"]["namespace"] = namespace.into();
    example
}

/// A file of this test alone.
fn file(namespace: &str, name: &str, text: &str) -> PathBuf {
    let file = env::temp_dir().join(format!("messina-{namespace}-{name}"));
    fs::write(&file, text).unwrap();
    file
}

/// The output, or the error.
fn planned(program_name: &str, file: &Path) -> Result<String, String> {
    let mut command = Command::new(program(program_name));
    let output = command.args(["plan", "--image", IMAGE, "-f"]).arg(file).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

#[tokio::test]
async fn planned_objects_pass_strict_validation() {
    in_a_namespace("plan", async |_, namespace| {
        let manifest = file(namespace, "manifest.yaml", &example(namespace).to_string());
        let stream = planned("messina", &manifest).unwrap();
        assert_eq!(stream, planned("kubectl-messina", &manifest).unwrap(), "both programs plan the same");
        let all = file(namespace, "planned.yaml", &stream);
        let arguments = ["apply", "--dry-run=server", "--validate=strict", "-f", all.to_str().unwrap()];
        let applied = kubectl(arguments).unwrap();
        let created = applied.lines().filter(|line| line.ends_with("created (server dry run)")).count();
        assert_eq!(created, objects(&stream).len(), "{applied}");
        // Proves that strict validation detects unknown fields.
        fs::write(
            &all,
            stream.replacen("automountServiceAccountToken", "automountServiceAccountTokens", 1).replacen(
                "serviceName:",
                "servicename:",
                1,
            ),
        )
        .unwrap();
        let refused = kubectl(arguments).unwrap_err();
        assert!(refused.contains("unknown field"), "{refused}");
        [manifest, all].iter().for_each(|file| fs::remove_file(file).unwrap());
    })
    .await;
}

#[tokio::test]
async fn plan_reports_errors_and_prints_no_objects() {
    in_a_namespace("plan-faults", async |_, namespace| {
        let mut wrong = example(namespace);
        wrong["spec"]["minReadySeconds"] = json!(-1);
        let manifest = file(namespace, "wrong.yaml", &wrong.to_string());
        let complaint = planned("messina", &manifest).unwrap_err();
        let about = format!("{}: ScyllaDBDatacenter {namespace}/payments: spec.minReadySeconds: ", manifest.display());
        assert!(complaint.starts_with(&about), "{complaint}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
        fs::remove_file(manifest).unwrap();
    })
    .await;
}

/// The operator, as a process of its own. It ends when this is dropped.
pub(crate) struct Operator(Child);

impl Operator {
    pub(crate) fn start(namespace: &str) -> Self {
        let mut command = Command::new(program("messina"));
        command.args(["operator", "--no-leader-election", "--listen", "127.0.0.1:0", "--image", IMAGE]);
        command.args(["--namespace", namespace, "--kubeconfig"]).arg(light_kubeconfig());
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // It may have ended already, in which case the test has failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn api(client: &Client, namespace: &str, object: &Value) -> Api<DynamicObject> {
    let (version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(client.clone(), namespace, &resource)
}

#[tokio::test]
async fn operator_creates_exactly_the_planned_objects() {
    in_a_namespace("plan-operator", async |client, namespace| {
        let mut datacenter = example(namespace);
        // Otherwise racks would wait for nodes, and there are none here.
        datacenter["spec"]["enableParallelNodeOperations"] = json!(true);
        let manifest = file(namespace, "manifest.yaml", &datacenter.to_string());
        let planned = objects(&planned("messina", &manifest).unwrap());
        fs::remove_file(manifest).unwrap();
        accepts(client, namespace, &datacenter.to_string()).await;
        let _operator = Operator::start(namespace);
        for object in &planned {
            let name = object["metadata"]["name"].as_str().unwrap();
            let about = format!("{} {name}", object["kind"]);
            let api = api(client, namespace, object);
            let created = eventually(&about, SOON, async || match api.get_opt(name).await {
                Ok(Some(created)) => Ok(Seen::Ready(serde_json::to_value(created).unwrap())),
                Ok(None) => Ok(Seen::NotYet("it is not there".into())),
                Err(error) => Ok(Seen::NotYet(error.to_string())),
            })
            .await
            .unwrap();
            missing("", &without_placeholders(object), &created, &about);
        }
        let mut kinds: Vec<&Value> = vec![];
        for object in &planned {
            if !kinds.iter().any(|kind| kind["kind"] == object["kind"]) {
                kinds.push(object);
            }
        }
        for kind in kinds {
            let ours = ListParams::default().labels("scylla/cluster=payments");
            let list = api(client, namespace, kind).list(&ours).await.unwrap();
            // Kubernetes creates further objects, such as Endpoints; only those of the operator count.
            let mut names: Vec<String> = list.items.into_iter().filter_map(|object| object.metadata.name).collect();
            let same_kind = planned.iter().filter(|object| object["kind"] == kind["kind"]);
            let mut expected: Vec<String> =
                same_kind.map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect();
            names.sort();
            expected.sort();
            assert_eq!(names, expected, "{}", kind["kind"]);
        }
    })
    .await;
}

/// An object without values that only a cluster can assign.
fn without_placeholders(object: &Value) -> Value {
    let mut object = object.clone();
    object["metadata"]["ownerReferences"][0].as_object_mut().unwrap().remove("uid");
    object.as_object_mut().unwrap().remove("stringData");
    // It contains the token of the agents.
    if let Some(annotations) = object.pointer_mut("/spec/template/metadata/annotations").and_then(Value::as_object_mut)
    {
        annotations.remove(annotation::INPUTS_HASH);
    }
    if let Some(data) = object["data"].as_object_mut() {
        data.retain(|_, value| value != SIGNED);
    }
    object
}

/// Checks that every planned field has the same value in the created object; the API server may have added others.
fn missing(path: &str, planned: &Value, created: &Value, about: &str) {
    match (planned, created) {
        (Value::Object(planned), Value::Object(created)) => {
            for (field, value) in planned.iter().filter(|(_, value)| !is_empty(value)) {
                let created = created.get(field).unwrap_or(&Value::Null);
                missing(&format!("{path}.{field}"), value, created, about);
            }
        }
        (Value::Array(planned), Value::Array(created)) if planned.len() == created.len() => {
            for (position, (planned, created)) in planned.iter().zip(created).enumerate() {
                missing(&format!("{path}[{position}]"), planned, created, about);
            }
        }
        _ => assert_eq!(planned, created, "{about}: {path} was planned (left) and is otherwise (right)"),
    }
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty) || *value == json!([])
}
