//! Clusters that tests start for themselves.

use std::process::{Command, Output};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use messina_testbed::{
    cluster::{self, Cluster},
    harness::{self, Seen},
    tools::BUSYBOX_IMAGE,
};

use serde_json::json;

use crate::{SOON, expect_ok};

/// Why clusters with Kubernetes nodes cannot run here, if so.
pub fn unsuitable() -> Option<&'static str> {
    if std::env::var_os(harness::KUBECONFIG_VARIABLE).is_some() {
        return Some("tests run against an existing cluster, and this one needs a cluster of the testbed");
    }
    let id = Command::new("id").arg("-u").output().unwrap_or_else(|error| panic!("id: {error}"));
    (id.stdout.trim_ascii() != b"0").then_some("clusters with Kubernetes nodes need root")
}

/// A cluster that a test has started. It is removed when the test ends, even by a panic.
#[derive(Debug)]
pub struct Started(pub &'static str);

impl Started {
    /// Starts a cluster.
    pub fn up(name: &'static str, arguments: &[&str]) -> Self {
        let started = Self(name);
        succeeds(&mut testbed(&[&["up", "--name", name], arguments].concat()));
        started
    }

    /// Removes the cluster now, which must succeed.
    pub fn down(self) {
        succeeds(&mut testbed(&["down", "--name", self.0]));
    }

    /// A client for the cluster.
    pub async fn client(&self) -> Client {
        expect_ok(harness::client(&cluster_named(self.0).kubeconfig()).await)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if cluster::find(self.0).is_ok() {
            let _the_test_failed_before = testbed(&["down", "--name", self.0]).output();
        }
    }
}

/// The cluster of this name.
pub fn cluster_named(name: &str) -> Cluster {
    expect_ok(cluster::find(name))
}

/// The program `testbed` with these arguments, not started yet.
pub fn testbed(arguments: &[&str]) -> Command {
    let mut command = Command::new(expect_ok(harness::program("testbed")));
    command.args(arguments);
    command
}

/// Runs a program, expects it to succeed, and returns its output.
pub fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", all_of(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs `testbed` and expects it to fail with an error that contains these texts.
pub fn refuses(command: &mut Command, words: &[&str]) {
    let output = command.output().unwrap_or_else(|error| panic!("testbed: {error}"));
    let said = all_of(&output);
    assert!(!output.status.success(), "{command:?} should have failed: {said}");
    for word in words {
        assert!(said.contains(word), "{command:?} should say {word:?}: {said}");
    }
}

fn all_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The output of a command in a new pod.
pub async fn output_of(client: &Client, namespace: &str, pod: &str, command: &str) -> String {
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": BUSYBOX_IMAGE, "command": ["sh", "-c", command]}]},
    });
    expect_ok(harness::apply(client, &manifest.to_string(), Some(namespace)).await);
    log_when_done(client, namespace, pod).await
}

/// The log of a pod, once it has succeeded.
pub async fn log_when_done(client: &Client, namespace: &str, pod: &str) -> String {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let what = format!("{pod} to succeed");
    let done = harness::until(pods.clone(), pod, &what, SOON, |pod| {
        let status = pod.and_then(|pod| pod.status);
        match status.as_ref().and_then(|status| status.phase.as_deref()) {
            Some("Succeeded") => Seen::Ready(()),
            _ => Seen::NotYet(format!("{status:?}")),
        }
    });
    expect_ok(done.await);
    expect_ok(pods.logs(pod, &Default::default()).await)
}
