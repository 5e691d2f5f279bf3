//! `kubectl messina etcd`, on the real API server. The tests write statuses in place of the operator.

use std::process::Stdio;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use messina_api::druid::v1alpha1::{Etcd, EtcdOperatorTask};
use messina_e2e::{SOON, accepts, in_a_namespace, light_kubeconfig, program};
use messina_testbed::harness::{Seen, eventually};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStderr, Command},
    time::timeout,
};

/// Installs the definition of Etcd, which etcd-druid brings otherwise. It is not removed: other tests may need it at
/// the same time.
async fn has_etcds(client: &Client) {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "etcds.druid.gardener.cloud"},
        "spec": {
            "group": "druid.gardener.cloud", "scope": "Namespaced",
            "names": {"kind": "Etcd", "listKind": "EtcdList", "plural": "etcds", "singular": "etcd"},
            "versions": [{"name": "v1alpha1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
        },
    });
    let definition: CustomResourceDefinition = serde_json::from_value(definition).unwrap();
    match Api::all(client.clone()).create(&PostParams::default(), &definition).await {
        Ok(_) => {}
        Err(kube::Error::Api(answer)) if answer.code == 409 => {}
        Err(error) => panic!("{error}"),
    }
    let etcds: Api<Etcd> = Api::all(client.clone());
    eventually("Etcds to be served", SOON, async || match etcds.list(&ListParams::default()).await {
        Ok(_) => Ok(Seen::Ready(())),
        Err(error) => Ok(Seen::NotYet(error.to_string())),
    })
    .await
    .unwrap();
}

async fn has_etcd(client: &Client, namespace: &str, name: &str) {
    has_etcds(client).await;
    let etcd =
        format!("{{apiVersion: druid.gardener.cloud/v1alpha1, kind: Etcd, metadata: {{name: {name}}}, spec: {{}}}}");
    accepts(client, namespace, &etcd).await;
}

fn command(namespace: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program("kubectl-messina"));
    command.arg("etcd").args(arguments).args(["-n", namespace, "--kubeconfig"]).arg(light_kubeconfig());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Its exit code, standard output and standard error.
async fn output(namespace: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = timeout(SOON, command(namespace, arguments).output()).await.unwrap().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// A command that follows a task, and the task.
struct Followed {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
    tasks: Api<EtcdOperatorTask>,
    task: EtcdOperatorTask,
}

impl Followed {
    /// Starts it in a namespace without tasks.
    async fn start(client: &Client, namespace: &str, arguments: &[&str]) -> Self {
        let mut child = command(namespace, arguments).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let tasks: Api<EtcdOperatorTask> = Api::namespaced(client.clone(), namespace);
        let task = eventually("the task", SOON, async || {
            let found = tasks.list(&ListParams::default()).await.unwrap().items.pop();
            Ok(found.map_or(Seen::NotYet("none".into()), Seen::Ready))
        })
        .await
        .unwrap();
        Self { child, lines, tasks, task }
    }

    /// Writes this status of the task, as the operator does.
    async fn stands(&self, status: &Value) {
        let patch = Patch::Merge(json!({"status": status}));
        self.tasks.patch_status(&self.task.name_any(), &PatchParams::default(), &patch).await.unwrap();
    }

    /// Checks the next printed line.
    async fn shows(&mut self, line: &str) {
        let shown = timeout(SOON, self.lines.next_line()).await.expect(line).unwrap();
        assert_eq!(shown.as_deref(), Some(line));
    }

    /// Checks that it ends with this exit code and prints no further progress; returns its output.
    async fn ends(mut self, code: i32) -> String {
        assert_eq!(timeout(SOON, self.lines.next_line()).await.unwrap().unwrap(), None);
        let output = timeout(SOON, self.child.wait_with_output()).await.unwrap().unwrap();
        assert_eq!(output.status.code(), Some(code));
        String::from_utf8(output.stdout).unwrap()
    }
}

#[tokio::test]
async fn wait_follows_a_task_until_it_succeeds() {
    in_a_namespace("etcd-wait", async |client, namespace| {
        has_etcd(client, namespace, "main").await;
        let mut followed =
            Followed::start(client, namespace, &["snapshot", "main", "--final", "--timeout", "15m", "--wait"]).await;
        let (name, spec) = (followed.task.name_any(), serde_json::to_value(&followed.task.spec).unwrap());
        assert!(name.starts_with("snapshot-main-"), "{name}");
        assert_eq!(
            spec,
            json!({"type": "OnDemandSnapshot", "ttlSecondsAfterFinished": 3600, "etcdReference": {"name": "main"},
                "config": {"snapshotType": "full", "isFinal": true, "timeoutSeconds": 900}})
        );
        followed.shows("New: waiting for the operator").await;
        followed.stands(&json!({"state": "Pending", "place": 2})).await;
        followed.shows("Pending: 2 tasks ahead").await;
        // A change of other fields is not printed.
        followed.stands(&json!({"observedGeneration": 1})).await;
        followed.stands(&json!({"place": 1})).await;
        followed.shows("Pending: 1 task ahead").await;
        let says = |words: &str| json!({"state": "InProgress", "description": words});
        let runs = json!({"state": "InProgress", "place": null, "lastOperation": says("The operator requests the snapshot.")});
        followed.stands(&runs).await;
        followed.shows("InProgress: The operator requests the snapshot.").await;
        followed.stands(&json!({"progress": {"done": 1, "total": 2}})).await;
        followed.shows("InProgress 1/2: The operator requests the snapshot.").await;
        let snapshot = json!({"name": "Full-1.final", "kind": "Full", "revision": 1234, "isFinal": true});
        followed.stands(&json!({"state": "Succeeded", "snapshot": snapshot})).await;
        assert_eq!(
            followed.ends(0).await,
            format!(
                "Task {name} was created.\n{name} succeeded: The full snapshot Full-1.final was taken, up to revision 1234; \
                 it is marked as final.\n"
            )
        );
        // A command that starts later prints the same.
        let (code, printed, shown) = output(namespace, &["wait", &name]).await;
        assert_eq!((code, shown.as_str()), (Some(0), ""));
        assert!(printed.starts_with(&format!("{name} succeeded: The full snapshot")), "{printed}");
    })
    .await;
}

#[tokio::test]
async fn wait_reports_every_other_end_of_a_task() {
    in_a_namespace("etcd-ends", async |client, namespace| {
        has_etcd(client, namespace, "main").await;
        let tasks: Api<EtcdOperatorTask> = Api::namespaced(client.clone(), namespace);
        let remove = async |name: &str| drop(tasks.delete(name, &DeleteParams::default()).await.unwrap());

        let mut failed = Followed::start(client, namespace, &["defrag", "main", "--wait", "-o", "json"]).await;
        let name = failed.task.name_any();
        failed.shows("New: waiting for the operator").await;
        let errors = json!([{"code": "ERR_DEADLINE_EXCEEDED", "description": "It was not done within 5 s."}]);
        failed.stands(&json!({"state": "Failed", "lastErrors": errors})).await;
        failed.shows(&format!("{name} failed: ERR_DEADLINE_EXCEEDED: It was not done within 5 s.")).await;
        let document: Value = serde_json::from_str(&failed.ends(1).await).unwrap();
        assert_eq!((&document["metadata"]["name"], &document["status"]["lastErrors"]), (&json!(name), &errors));
        remove(&name).await;

        let mut deleted = Followed::start(client, namespace, &["compact", "main", "--retain", "0", "--wait"]).await;
        let name = deleted.task.name_any();
        assert_eq!(deleted.task.spec.config, Some(json!({"retainRevisions": 0})));
        deleted.shows("New: waiting for the operator").await;
        remove(&name).await;
        deleted.shows(&format!("{name} was deleted before it was finished, so its result is unknown.")).await;
        assert_eq!(deleted.ends(1).await, format!("Task {name} was created.\n"));

        let mut left = Followed::start(client, namespace, &["snapshot", "main", "--wait", "-o", "name"]).await;
        let name = left.task.name_any();
        left.shows("New: waiting for the operator").await;
        kill(Pid::from_raw(left.child.id().unwrap().cast_signed()), Signal::SIGINT).unwrap();
        left.shows("The task continues. Follow it again:").await;
        let kubeconfig = light_kubeconfig().display().to_string();
        left.shows(&format!("    kubectl messina etcd wait {name} -n {namespace} --kubeconfig {kubeconfig}")).await;
        assert_eq!(left.ends(130).await, format!("etcdoperatortask.druid.gardener.cloud/{name}\n"));
        assert!(tasks.get(&name).await.is_ok(), "the task continues");
    })
    .await;
}

#[tokio::test]
async fn failed_command_prints_one_sentence_and_leaves_no_task() {
    in_a_namespace("etcd-wrong", async |client, namespace| {
        has_etcd(client, namespace, "main").await;
        let (code, printed, said) = output(namespace, &["snapshot", "events"]).await;
        assert_eq!((code, printed.as_str()), (Some(1), ""));
        assert_eq!(said, format!("There is no Etcd events in namespace {namespace}; there is main.\n"));
        let (code, _, said) = output(namespace, &["wait", "nothing"]).await;
        assert_eq!(code, Some(1));
        assert_eq!(said, format!("There is no EtcdOperatorTask nothing in namespace {namespace}.\n"));
        for (arguments, words) in [
            (["snapshot", "main", "--delta", "--final"].as_slice(), "leave out --delta or --final"),
            (&["snapshot", "main", "--timeout", "0"], "give 1s or more"),
            (&["defrag", "main", "--ttl", "soon"], "such as 90s, 15m or 1h30m"),
            (&["compact", "main", "--retain", "-1"], "-1 is not in 0.."),
            (&["defrag", "a/b"], "invalid name"),
        ] {
            let (code, printed, said) = output(namespace, arguments).await;
            assert_eq!((code, printed.as_str()), (Some(2), ""), "{arguments:?}: {said}");
            assert!(said.starts_with("error: ") && said.contains(words), "{arguments:?}: {said}");
        }
        let tasks: Api<EtcdOperatorTask> = Api::namespaced(client.clone(), namespace);
        assert_eq!(tasks.list(&ListParams::default()).await.unwrap().items, vec![]);
    })
    .await;
}

#[tokio::test]
async fn tasks_are_listed_in_order() {
    in_a_namespace("etcd-tasks", async |client, namespace| {
        has_etcd(client, namespace, "main").await;
        let (code, printed, _) = output(namespace, &["tasks", "main"]).await;
        let nothing = format!("There are no tasks on the Etcd main in namespace {namespace}.\n");
        assert_eq!((code, printed), (Some(0), nothing));

        let (code, printed, said) = output(namespace, &["defrag", "main"]).await;
        assert_eq!((code, said.as_str()), (Some(0), ""));
        let first = printed.split_whitespace().nth(1).unwrap().to_owned();
        assert!(printed.contains(&format!("kubectl messina etcd wait {first} -n {namespace}")), "{printed}");
        let (_, printed, _) = output(namespace, &["compact", "main", "--ttl", "0", "-o", "json"]).await;
        let created: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(created["spec"]["ttlSecondsAfterFinished"], json!(0));
        let second = created["metadata"]["name"].as_str().unwrap();

        // The running task comes first, even if it was created later.
        let tasks: Api<EtcdOperatorTask> = Api::namespaced(client.clone(), namespace);
        let runs = Patch::Merge(json!({"status": {"state": "InProgress", "progress": {"done": 1, "total": 3}}}));
        tasks.patch_status(second, &PatchParams::default(), &runs).await.unwrap();
        let waits = Patch::Merge(json!({"status": {"state": "Pending", "place": 7}}));
        tasks.patch_status(&first, &PatchParams::default(), &waits).await.unwrap();
        let (_, printed, _) = output(namespace, &["tasks", "-o", "json"]).await;
        let document: Value = serde_json::from_str(&printed).unwrap();
        let line: Vec<(&Value, &Value)> =
            document["tasks"].as_array().unwrap().iter().map(|task| (&task["name"], &task["ahead"])).collect();
        assert_eq!(line, [(&json!(second), &json!(0)), (&json!(first), &json!(1))]);
        let (_, printed, _) = output(namespace, &["tasks"]).await;
        let rows: Vec<Vec<&str>> = printed.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["NAME", "TYPE", "ETCD", "STATE", "AHEAD", "AGE"]);
        assert_eq!(rows[1][..6], [second, "Compact", "main", "InProgress", "1/3", "0"]);
        assert_eq!(rows[2][..5], [&first, "Defragment", "main", "Pending", "1"]);
        assert_eq!(rows[3].join(" "), format!("Waiting for task {second} on the same etcd cluster."));
    })
    .await;
}
