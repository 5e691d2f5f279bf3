//! `messina probe`, `ignition`, `inject` and `await-node`.

use std::{net::Ipv4Addr, os::unix::fs::PermissionsExt, process::Command};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    api::FakeApi,
    node::{FakeNode, NodeResponses},
    process::{Folder, Process, eventually, get, messina},
};

#[test]
fn probes_follow_the_state_of_the_node() {
    let folder = Folder::new();
    let api = FakeApi::start(&folder.path("kubeconfig"));
    api.put("services", json!({"metadata": {"name": "n", "uid": "1", "labels": {}}}));
    let node = FakeNode::start([127, 77, 2, 1], NodeResponses::default());
    let mut command = messina();
    command.args(["probe", "--port=0", "--service-name=n", "--scylla-localhost-address=127.77.2.1", "--kubeconfig"]);
    command.arg(folder.path("kubeconfig"));
    let mut process = Process::start(command);
    let port = process.port();

    assert_eq!(get(port, "/readyz").0, 200);
    assert_eq!(get(port, "/healthz").0, 200);
    assert_eq!(get(port, "/other").0, 404);
    let cases = [
        (NodeResponses { native_transport: false, ..NodeResponses::default() }, "native transport"),
        (NodeResponses { live: vec![], ..NodeResponses::default() }, "does not see itself"),
        (NodeResponses { mode: "LEAVING", ..NodeResponses::default() }, "LEAVING"),
    ];
    for (changed, reason) in cases {
        node.change(|responses| *responses = changed);
        let (status, body) = get(port, "/readyz");
        assert!(status == 503 && body.contains(reason), "{reason}: {status} {body}");
        assert_eq!(get(port, "/healthz").0, 200, "{reason}");
    }

    node.change(|responses| *responses = NodeResponses::default());
    api.edit("services", "n", |service| service["metadata"]["labels"]["scylla/node-maintenance"] = json!(""));
    eventually("the node is under maintenance", || get(port, "/readyz").0 == 503);
    assert!(get(port, "/readyz").1.contains("maintenance"));
    assert_eq!(get(port, "/healthz").0, 200);
    api.edit("services", "n", |service| service["metadata"]["labels"] = json!({}));
    eventually("the maintenance is over", || get(port, "/readyz").0 == 200);
    process.signal(Signal::SIGTERM);
    assert_eq!(process.end().code(), Some(0));
}

#[test]
fn node_that_does_not_respond_is_unhealthy_unless_under_maintenance() {
    let folder = Folder::new();
    let api = FakeApi::start(&folder.path("kubeconfig"));
    api.put("services", json!({"metadata": {"name": "n", "uid": "1", "labels": {}}}));
    let mut command = messina();
    command.args(["probe", "--port=0", "--service-name=n", "--scylla-localhost-address=127.77.2.2", "--kubeconfig"]);
    let process = Process::start({
        command.arg(folder.path("kubeconfig"));
        command
    });
    let port = process.port();
    let (status, body) = get(port, "/healthz");
    assert!(status == 503 && body.contains("127.77.2.2:10000"), "{status} {body}");
    assert_eq!(get(port, "/readyz").0, 503);
    assert_eq!(get(port, "/nodes").0, 503);
    api.edit("services", "n", |service| service["metadata"]["labels"]["scylla/node-maintenance"] = json!(""));
    eventually("the node is under maintenance", || get(port, "/healthz").0 == 200);
    assert_eq!(get(port, "/readyz").0, 503);
}

#[test]
fn ring_is_served_as_the_node_sees_it() {
    let folder = Folder::new();
    FakeApi::start(&folder.path("kubeconfig"));
    let _node = FakeNode::start([127, 77, 2, 3], NodeResponses::default());
    let mut command = messina();
    command.args(["probe", "--port=0", "--service-name=n", "--scylla-localhost-address=127.77.2.3", "--kubeconfig"]);
    command.arg(folder.path("kubeconfig"));
    let process = Process::start(command);
    let (status, body) = get(process.port(), "/nodes");
    assert_eq!(status, 200, "{body}");
    let place = |mut node: Value| {
        node["datacenter"] = json!("dc1");
        node["rack"] = json!("r1");
        node
    };
    let nodes = [
        json!({"address": "10.0.0.1", "hostID": NodeResponses::default().host_id, "state": "UN", "tokens": 2}),
        json!({"address": "10.0.0.2", "hostID": "two", "state": "DN", "tokens": 1}),
        json!({"address": "10.0.0.3", "hostID": null, "state": "?J", "tokens": 0}),
    ];
    let expected =
        json!({"hostID": NodeResponses::default().host_id, "version": "2026.2.4", "nodes": nodes.map(place)});
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), expected);
}

#[test]
fn ignition_follows_the_pod_and_its_service() {
    let folder = Folder::new();
    let api = FakeApi::start(&folder.path("kubeconfig"));
    api.put("pods", json!({"metadata": {"name": "n", "uid": "1"}, "status": {}}));
    api.put(
        "services",
        json!({
            "metadata": {"name": "n", "uid": "2", "annotations": {}}, "spec": {"clusterIP": "10.0.0.1"},
        }),
    );
    let mut command = messina();
    command.args(["ignition", "--port=0", "--service-name=n", "--nodes-broadcast-address-type=ServiceClusterIP"]);
    command.args(["--clients-broadcast-address-type=ServiceClusterIP", "--kubeconfig"]).arg(folder.path("kubeconfig"));
    command.arg("--shared-dir").arg(folder.path(""));
    let process = Process::start(command);
    let port = process.port();
    let done = folder.path("ignition.done");

    eventually("it waits for the IP", || get(port, "/readyz").1.contains("IP address"));
    let container = |id: &str| {
        json!({"podIP": "10.1.0.1", "containerStatuses": [
            {"name": "scylla", "containerID": id, "image": "", "imageID": "", "ready": false, "restartCount": 0},
        ]})
    };
    api.edit("pods", "n", |pod| pod["status"] = container(""));
    eventually("it waits for the container", || get(port, "/readyz").1.contains("container"));
    assert!(!done.exists());
    api.edit("pods", "n", |pod| pod["status"] = container("cri://1"));
    eventually("ScyllaDB may start", || get(port, "/readyz").0 == 200 && done.exists());

    // The sidecar removes the file when it stops. It is written again for the next container only.
    std::fs::remove_file(&done).unwrap();
    api.edit("pods", "n", |pod| pod["metadata"]["annotations"] = json!({"some": "news"}));
    api.edit("pods", "n", |pod| pod["status"] = container("cri://2"));
    eventually("the next container may start", || done.exists());

    let forced = "internal.scylla-operator.scylladb.com/force-ignition-value";
    api.edit("services", "n", |service| service["metadata"]["annotations"][forced] = json!("false"));
    eventually("it is forced to wait", || get(port, "/readyz").0 == 503 && !done.exists());
    api.edit("services", "n", |service| service["metadata"]["annotations"][forced] = json!("true"));
    api.edit("pods", "n", |pod| pod["status"] = json!({}));
    eventually("it is forced to start", || get(port, "/readyz").0 == 200 && done.exists());
}

#[test]
fn inject_copies_the_program() {
    let folder = Folder::new();
    let inject = || messina().arg("inject").arg(folder.path("")).status().unwrap();
    assert!(inject().success());
    assert!(inject().success(), "an existing copy is not replaced");
    let copy = folder.path("messina");
    assert_eq!(copy.metadata().unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(std::fs::read_dir(folder.path("")).unwrap().count(), 1, "something is left over");
    let output = Command::new(copy).arg("--version").output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("messina "));
}

#[test]
fn await_node_executes_the_program_when_scylladb_responds() {
    let folder = Folder::new();
    let address = [127, 77, 2, 4];
    let mut command = messina();
    command.arg("await-node").arg(format!("--scylla-localhost-address={}", Ipv4Addr::from(address)));
    command.arg("--shared-dir").arg(folder.path("")).args(["--", "/bin/sh", "-c", "echo $$ > \"$1\"; exit 5", "sh"]);
    command.arg(folder.path("ran"));
    let mut process = Process::start(command);
    eventually("it waits for ignition", || process.has_logged("waiting for ignition"));
    folder.write("ignition.done", "");
    eventually("it waits for ScyllaDB", || process.has_logged("waiting for ScyllaDB's REST API"));
    assert!(!folder.path("ran").exists());
    let _node = FakeNode::start(address, NodeResponses::default());
    assert_eq!(process.end().code(), Some(5));
    assert_eq!(folder.text("ran").trim(), process.id().to_string(), "it is a child, not the same process");
}

#[test]
fn sigterm_stops_await_node() {
    let folder = Folder::new();
    let mut command = messina();
    command.args(["await-node", "--shared-dir"]).arg(folder.path("")).args(["--", "/bin/false"]);
    let mut process = Process::start(command);
    eventually("it waits for ignition", || process.has_logged("waiting for ignition"));
    process.signal(Signal::SIGTERM);
    assert_eq!(process.end().code(), Some(0));
}

/// The kubelet sends SIGTERM once, and the first process of a container loses it if it has no handler yet.
#[test]
fn containers_of_a_pod_that_is_being_deleted_exit() {
    let folder = Folder::new();
    let api = FakeApi::start(&folder.path("kubeconfig"));
    api.put("services", json!({"metadata": {"name": "n", "uid": "1", "labels": {}}}));
    api.put("pods", json!({"metadata": {"name": "n", "uid": "2", "deletionTimestamp": "2026-11-17T00:32:15Z"}}));
    let containers: [&[&str]; 3] = [
        &["probe", "--port=0", "--service-name=n"],
        &[
            "ignition",
            "--port=0",
            "--service-name=n",
            "--nodes-broadcast-address-type=PodIP",
            "--clients-broadcast-address-type=PodIP",
        ],
        &["await-node", "--pod-name=n"],
    ];
    for arguments in containers {
        let mut command = messina();
        command.args(arguments).arg("--kubeconfig").arg(folder.path("kubeconfig"));
        if arguments[0] != "probe" {
            command.arg("--shared-dir").arg(folder.path(""));
        }
        if arguments[0] == "await-node" {
            command.args(["--", "/bin/false"]);
        }
        let mut process = Process::start(command);
        assert_eq!(process.end().code(), Some(0), "{arguments:?}");
    }
}
