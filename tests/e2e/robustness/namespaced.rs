//! An operator without permissions outside of its namespace.

use std::{fs, path::PathBuf};

use k8s_openapi::api::apps::v1::StatefulSet;
use kube::{Api, Client};
use messina_e2e::{in_a_namespace, light_kubeconfig};
use messina_testbed::harness;
use serde_json::{Value, json};

use super::{apply, await_created, await_that, condition, datacenter, operator_process::Operator};

/// The manifest that an administrator applies.
const MANIFEST: &str = include_str!("../../../deploy/namespaced.yaml");

/// The objects of the manifest for this namespace, as its first lines say.
fn manifest(namespace: &str) -> Vec<Value> {
    let line = |line: &str| {
        let line = line
            .strip_suffix("namespace: scylla")
            .map_or(line.to_owned(), |start| format!("{start}namespace: {namespace}"));
        let line =
            line.strip_suffix("value: scylla").map_or(line.clone(), |start| format!("{start}value: {namespace}"));
        line.strip_suffix("messina-scylla").map_or(line.clone(), |start| format!("{start}messina-{namespace}"))
    };
    let text: Vec<String> = MANIFEST.lines().map(line).collect();
    text.join("\n").split("\n---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

async fn install(client: &Client, objects: &[Value], is_wanted: impl Fn(&Value) -> bool) {
    for object in objects.iter().filter(|object| is_wanted(object)) {
        harness::apply(client, &object.to_string(), None).await.unwrap();
    }
}

/// A kubeconfig that impersonates the operator's ServiceAccount.
fn kubeconfig(namespace: &str) -> PathBuf {
    let mut config: Value = serde_saphyr::from_str(&fs::read_to_string(light_kubeconfig()).unwrap()).unwrap();
    config["users"][0]["user"]["as"] = format!("system:serviceaccount:{namespace}:messina").into();
    let file = std::env::temp_dir().join(format!("messina-{namespace}.kubeconfig"));
    fs::write(&file, serde_saphyr::to_string(&config).unwrap()).unwrap();
    file
}

#[tokio::test]
async fn namespaced_operator_reports_missing_permissions() {
    in_a_namespace("days-namespaced", async |client, namespace| {
        let objects = manifest(namespace);
        let deployment = objects.iter().find(|object| object["kind"] == "Deployment").unwrap();
        let variables = &deployment["spec"]["template"]["spec"]["containers"][0]["env"];
        assert!(variables.as_array().unwrap().contains(&json!({"name": "MESSINA_NAMESPACE", "value": namespace})));
        let is_role = |object: &Value| object["kind"] != "Deployment" && object["kind"] != "ClusterRoleBinding";
        install(client, &objects, is_role).await;
        let kubeconfig = kubeconfig(namespace);

        eprintln!("the operator cannot know whether scylla-operator runs");
        apply(client, namespace, &datacenter("dc")).await;
        let operator = Operator::start(&kubeconfig, namespace, &[]);
        let held = condition(client, namespace, "dc", "ScyllaOperatorActive", |one| one.status == "True").await;
        assert!(held.message.contains("--scylla-operator-absent"), "{held:?}");
        let (code, text) = operator.get("/readyz").await;
        assert!(code == 503 && text.contains("permission to read scylla-operator's Lease"), "{code} {text}");
        let sets: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
        assert_eq!(sets.list(&Default::default()).await.unwrap().items.len(), 0);
        drop(operator);

        eprintln!("the administrator declares scylla-operator absent");
        let operator = Operator::start(&kubeconfig, namespace, &["--scylla-operator-absent"]);
        await_created(client, namespace, "dc").await;
        let storage = "StorageControllerProgressing";
        let disabled = condition(client, namespace, "dc", storage, |one| one.reason == "PermissionMissing").await;
        for feature in ["Volume expansion is disabled", "Kubernetes node is gone for good is disabled"] {
            assert!(disabled.message.contains(feature), "{disabled:?}");
        }

        eprintln!("the administrator grants access to cluster-scoped objects");
        install(client, &objects, |object| object["kind"] == "ClusterRoleBinding").await;
        condition(client, namespace, "dc", storage, |one| one.reason != "PermissionMissing").await;
        drop(operator);
        let mut operator = Operator::start(&kubeconfig, namespace, &[]);
        await_that("readiness", async || match operator.get("/readyz").await {
            (200, _) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;

        eprintln!("the operator loses the permission to use its Lease");
        let mut role = objects.iter().find(|object| object["kind"] == "Role").unwrap().clone();
        let rules = role["rules"].as_array_mut().unwrap();
        rules.retain(|rule| rule["resources"] != json!(["leases"]));
        harness::apply(client, &role.to_string(), None).await.unwrap();
        await_that("the Lease to be reported", async || match operator.get("/readyz").await {
            (503, text) if text.contains("/messina to be readable and writable") => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
        operator.check_running();
        let _ = fs::remove_file(kubeconfig);
    })
    .await;
}
