//! `messina sidecar`.

use std::{process::Command, sync::Arc};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    api::FakeApi,
    node::{FakeNode, NodeResponses},
    process::{Folder, Process, beside_this_test, eventually, messina},
};

const NAME: &str = "db-dc1-r1-0";
const HOST_ID: &str = "internal.scylla-operator.scylladb.com/host-id";
const JOINED: &str = "internal.scylla-operator.scylladb.com/node-joined-scylladb-cluster";
const RING: &str = "internal.scylla-operator.scylladb.com/current-token-ring-hash";
const EMPTY_DISK: &str = "messina.scylladb.com/empty-disk";
const DECOMMISSIONED: &str = "scylla/decommissioned";
const LEAVING: &str = "messina.scylladb.com/leaving-host-id";
const BEGAN: &str = "messina.scylladb.com/leaving-began";
const QUESTION: &str = "messina.scylladb.com/ring-question";
const ANSWER: &str = "messina.scylladb.com/ring-answer";

fn labels(kind: &str, value: &str) -> Value {
    json!({
        "app.kubernetes.io/name": "scylla", "scylla/cluster": "db", "scylla/rack": "r1",
        (format!("scylla-operator.scylladb.com/{kind}")): value,
    })
}

/// The pod of a node in a test: its objects, files and fakes.
struct Pod {
    folder: Folder,
    api: Arc<FakeApi>,
    node: Arc<FakeNode>,
    ip: [u8; 4],
}

impl Pod {
    /// `number` gives the node a loopback address of its own.
    fn new(number: u8, responses: NodeResponses) -> Self {
        let folder = Folder::new();
        let api = FakeApi::start(&folder.path("kubeconfig"));
        api.put(
            "pods",
            json!({
                "metadata": {"name": NAME, "uid": "pod", "labels": labels("pod-type", "scylladb-node")},
                "status": {"podIP": "10.1.0.1"},
            }),
        );
        api.put(
            "services",
            json!({
                "metadata": {"name": NAME, "uid": "service", "labels": labels("scylla-service-type", "member")},
                "spec": {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"]},
            }),
        );
        folder.write("etc/scylla.yaml", "# the image's\ncluster_name: image\nkeep: 1\n");
        folder.write("etc/cassandra-rackdc.properties", "dc=image\n");
        folder.write("managed.yaml", "cluster_name: db\nlisten_address: 0.0.0.0\nrpc_address: 0.0.0.0\n");
        folder.write("snitch.properties", "dc=dc1\nrack=r1\nprefer_local=false\n");
        folder.write("user/scylla.yaml", "rpc_address: 127.0.0.1\n");
        folder.write("data/.keep", "");
        folder.write("shared/.keep", "");
        let ip = [127, 77, 1, number];
        Self { folder, api, node: FakeNode::start(ip, responses), ip }
    }

    fn ignite(self) -> Self {
        self.folder.write("shared/ignition.done", "");
        self
    }

    fn arguments(&self) -> Vec<String> {
        let path = |name: &str| self.folder.path(name).display().to_string();
        vec![
            "sidecar".to_owned(),
            "--nodes-broadcast-address-type=ServiceClusterIP".to_owned(),
            "--clients-broadcast-address-type=PodIP".to_owned(),
            format!("--service-name={NAME}"),
            "--cpu-count=1".to_owned(),
            "--ip-family=IPv4".to_owned(),
            "--external-seeds=".to_owned(),
            format!("--scylla-localhost-address={}", std::net::Ipv4Addr::from(self.ip)),
            format!("--config-dir={}", path("etc")),
            format!("--managed-config={}", path("managed.yaml")),
            format!("--snitch-config={}", path("snitch.properties")),
            format!("--user-config-dir={}", path("user")),
            format!("--data-dir={}", path("data")),
            format!("--io-properties={}", path("io_properties.yaml")),
            format!("--entrypoint={}", beside_this_test("entrypoint.sh").display()),
            format!("--shared-dir={}", path("shared")),
            format!("--kubeconfig={}", path("kubeconfig")),
            "--".to_owned(),
            String::new(),
            "--developer-mode=1 --seeds mine".to_owned(),
        ]
    }

    fn run(&self) -> Process {
        let mut command = messina();
        command.args(self.arguments()).env("NODE_DIR", self.folder.path(""));
        Process::start(command)
    }

    fn service(&self) -> Value {
        self.api.get("services", NAME).unwrap()
    }

    fn annotation(&self, key: &str) -> Option<String> {
        self.service()["metadata"]["annotations"][key].as_str().map(ToOwned::to_owned)
    }

    fn request_decommission(&self) {
        let host_id = self.node.responses().host_id;
        self.api.edit("services", NAME, |service| {
            service["metadata"]["labels"][DECOMMISSIONED] = json!("false");
            service["metadata"]["annotations"][LEAVING] = json!(host_id);
        });
    }

    fn has_started(&self) -> bool {
        self.folder.path("pid").exists()
    }
}

#[test]
fn scylladb_starts_after_ignition_with_merged_configuration() {
    let pod = Pod::new(1, NodeResponses::default());
    let process = pod.run();
    eventually("the sidecar waits", || process.has_logged("waiting for ignition"));
    assert!(!pod.has_started());
    let pod = pod.ignite();
    eventually("ScyllaDB starts", || pod.has_started());

    let arguments = pod.folder.text("arguments");
    let expected = [
        "--seeds=10.0.0.1",
        "--broadcast-address=10.0.0.1",
        "--broadcast-rpc-address=10.1.0.1",
        "--listen-address=0.0.0.0",
        "--prometheus-address=0.0.0.0",
        "--smp=1",
        "--developer-mode=1",
    ];
    for argument in expected {
        assert!(arguments.lines().any(|line| line == argument), "{argument} is not in {arguments}");
    }
    assert!(!arguments.contains("mine"), "the user's arguments override the operator's: {arguments}");
    assert!(!arguments.contains("replace-node-first-boot") && !arguments.contains("io-setup"), "{arguments}");

    let yaml: Value = serde_saphyr::from_str(&pod.folder.text("etc/scylla.yaml")).unwrap();
    let expected = json!({"cluster_name": "db", "keep": 1, "listen_address": "0.0.0.0", "rpc_address": "127.0.0.1"});
    assert_eq!(yaml, expected);
    assert_eq!(pod.folder.text("etc/cassandra-rackdc.properties"), "dc=dc1\nprefer_local=false\nrack=r1\n");
}

#[test]
fn scylladb_gets_arguments_for_a_replacement_and_for_saved_disk_measurements() {
    let pod = Pod::new(2, NodeResponses::default()).ignite();
    let label = "internal.scylla-operator.scylladb.com/replacing-node-hostid";
    pod.api.edit("services", NAME, |service| service["metadata"]["labels"][label] = json!("old-id"));
    pod.folder.write("data/io_properties.yaml", "disks: []\n");
    let _process = pod.run();
    eventually("ScyllaDB starts", || pod.has_started());
    let arguments = pod.folder.text("arguments");
    assert!(arguments.contains("--replace-node-first-boot=old-id\n"), "{arguments}");
    assert!(arguments.contains("--io-setup=0\n") && arguments.contains("--io-properties-file="), "{arguments}");
}

const REPLACING: &str = "internal.scylla-operator.scylladb.com/replacing-node-hostid";
const LOST: &str = "messina.scylladb.com/replacing-claim-uid";

/// The node is identified by its disk, or by the UID of its pod when the replacement was requested.
#[test]
fn node_that_is_being_replaced_does_not_start_until_the_replacement_is_cancelled() {
    for (number, on_disk, pod_uid) in [(40, Some("lost-id"), "another"), (41, None, "pod")] {
        let pod = Pod::new(number, NodeResponses::default()).ignite();
        if let Some(host_id) = on_disk {
            pod.folder.write("data/messina-host-id", host_id);
        }
        pod.api.edit("services", NAME, |service| {
            service["metadata"]["labels"][REPLACING] = json!("lost-id");
            service["metadata"]["annotations"][LOST] = json!(format!("claim/{pod_uid}"));
        });
        let process = pod.run();
        eventually("it waits", || process.has_logged("this node is being replaced"));
        assert!(!pod.has_started());
        pod.api.edit("services", NAME, |service| service["metadata"]["labels"][REPLACING] = json!(""));
        eventually("ScyllaDB starts", || pod.has_started());
    }
}

#[test]
fn node_whose_replacement_is_requested_is_stopped_unless_it_serves() {
    let pod = Pod::new(42, NodeResponses { mode: "JOINING", ..NodeResponses::default() }).ignite();
    let mut process = pod.run();
    eventually("ScyllaDB starts", || pod.has_started());
    let request_replacement = |pod: &Pod| {
        let host_id = pod.node.responses().host_id;
        pod.api.edit("services", NAME, |service| service["metadata"]["labels"][REPLACING] = json!(host_id));
    };
    request_replacement(&pod);
    assert_eq!(process.end().code(), Some(3));
    assert!(process.has_logged("does not serve yet: stopping ScyllaDB"));

    let pod = Pod::new(43, NodeResponses::default()).ignite();
    let mut process = pod.run();
    let host_id = pod.node.responses().host_id;
    let kept = || std::fs::read_to_string(pod.folder.path("data/messina-host-id")).ok();
    eventually("the host ID is saved on the disk", || kept().as_deref() == Some(host_id));
    request_replacement(&pod);
    pod.api.edit("services", NAME, |service| service["metadata"]["annotations"][JOINED] = json!("wrong"));
    eventually("the sidecar has reconciled", || pod.annotation(JOINED).as_deref() == Some("true"));
    assert!(process.is_running());
}

#[test]
fn annotations_are_written_only_when_they_change() {
    let responses = NodeResponses { mode: "BOOTSTRAP", own_tokens: vec![], ..NodeResponses::default() };
    let pod = Pod::new(3, responses).ignite();
    pod.folder.write("io_properties.yaml", "disks: [measured]\n");
    let _process = pod.run();
    eventually("the host ID is written", || pod.annotation(HOST_ID).as_deref() == Some(pod.node.responses().host_id));
    assert_eq!((pod.annotation(JOINED).as_deref(), pod.annotation(RING)), (Some("false"), None));
    pod.node.change(|responses| {
        responses.mode = "NORMAL";
        responses.own_tokens = vec!["-5", "7"];
    });
    eventually("the node has joined", || pod.annotation(JOINED).as_deref() == Some("true"));
    // printf '["-5","0","7"]\n' | openssl dgst -sha512 -binary | base64
    assert_eq!(pod.annotation(RING).as_deref(), Some(RING_HASH));
    assert_eq!(pod.api.patches().len(), 2, "{:?}", pod.api.patches());
    eventually("the disk measurements are saved", || pod.folder.text("data/io_properties.yaml").contains("measured"));

    // The first change does not concern the sidecar: it reconciles, and writes nothing.
    pod.api.edit("services", NAME, |service| service["metadata"]["annotations"]["other"] = json!("1"));
    pod.api.edit("services", NAME, |service| service["metadata"]["annotations"][HOST_ID] = json!("wrong"));
    eventually("a wrong annotation is corrected", || {
        pod.annotation(HOST_ID).as_deref() == Some(pod.node.responses().host_id)
    });
    assert_eq!(pod.api.patches().len(), 3, "{:?}", pod.api.patches());
}

const RING_HASH: &str = "7ZfVBaTARF8sibKHDQdIG5yrb8tu8iXA3t11rXh+tKZYFGCaeZRT8pcY2wQdcR3WdrmlGgyo8NbfkaxFzgQxrA==";

#[test]
fn sigterm_drains_and_stops_scylladb_and_the_sidecar_exits_with_its_status() {
    let pod = Pod::new(4, NodeResponses::default()).ignite();
    let mut process = pod.run();
    eventually("ScyllaDB starts", || pod.has_started());
    process.signal(Signal::SIGHUP);
    eventually("a signal is forwarded", || pod.folder.text("signals") == "HUP\n");
    process.signal(Signal::SIGTERM);
    assert_eq!(process.end().code(), Some(3), "the exit status is not the child's");
    assert_eq!(pod.node.calls(), ["POST /storage_service/drain"]);
    assert_eq!(pod.folder.text("signals"), "HUP\nTERM\n");
    assert!(!pod.folder.path("shared/ignition.done").exists());
}

/// Load balancers need a while to react.
#[test]
fn node_serves_for_a_while_before_its_drain() {
    for (number, mode, seconds, serves) in [(44, "NORMAL", 3, true), (45, "JOINING", 600, false)] {
        let pod = Pod::new(number, NodeResponses { mode, ..NodeResponses::default() }).ignite();
        let mut arguments = pod.arguments();
        arguments.insert(1, format!("--serve-seconds-before-stop={seconds}"));
        let mut command = messina();
        command.args(arguments).env("NODE_DIR", pod.folder.path(""));
        let mut process = Process::start(command);
        eventually("ScyllaDB starts", || pod.has_started());
        let began = std::time::Instant::now();
        process.signal(Signal::SIGTERM);
        assert_eq!(process.end().code(), Some(3), "{mode}");
        assert_eq!(began.elapsed().as_secs() >= seconds, serves, "{mode}: {:?}", began.elapsed());
        assert_eq!(pod.node.calls().len(), usize::from(serves), "{mode}: it is drained if it serves");
    }
}

#[test]
fn node_that_does_not_serve_is_not_drained() {
    let pod = Pod::new(5, NodeResponses { mode: "JOINING", ..NodeResponses::default() }).ignite();
    let mut process = pod.run();
    eventually("ScyllaDB starts", || pod.has_started());
    process.signal(Signal::SIGTERM);
    assert_eq!(process.end().code(), Some(3));
    assert_eq!(pod.node.calls(), [""; 0]);
}

#[test]
fn sidecar_exits_with_the_status_of_scylladb() {
    let pod = Pod::new(6, NodeResponses::default()).ignite();
    let mut process = pod.run();
    eventually("ScyllaDB starts", || pod.has_started());
    pod.folder.write("end", "7");
    assert_eq!(process.end().code(), Some(7));

    std::fs::remove_file(pod.folder.path("end")).unwrap();
    std::fs::remove_file(pod.folder.path("pid")).unwrap();
    let mut process = pod.run();
    eventually("ScyllaDB starts again", || pod.folder.text("pid").ends_with('\n'));
    let child: i32 = pod.folder.text("pid").trim().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child), Signal::SIGKILL).unwrap();
    assert_eq!(process.end().code(), Some(128 + 9));
}

#[test]
fn sigterm_before_ignition_exits_at_once() {
    let pod = Pod::new(7, NodeResponses::default());
    let mut process = pod.run();
    eventually("the sidecar waits", || process.has_logged("waiting for ignition"));
    process.signal(Signal::SIGTERM);
    assert_eq!(process.end().code(), Some(0));
    assert!(!pod.has_started());
}

#[test]
fn node_is_decommissioned_once_and_the_label_confirms_it() {
    let pod = Pod::new(8, NodeResponses { native_transport: false, ..NodeResponses::default() }).ignite();
    let mut process = pod.run();
    eventually("the node has joined", || pod.annotation(JOINED).as_deref() == Some("true"));
    pod.request_decommission();
    let label = || pod.service()["metadata"]["labels"][DECOMMISSIONED].as_str().unwrap().to_owned();
    // Not yet: it does not serve clients. The corrected annotation shows that the sidecar has reconciled since.
    pod.api.edit("services", NAME, |service| service["metadata"]["annotations"][JOINED] = json!("wrong"));
    eventually("the sidecar has reconciled", || pod.annotation(JOINED).as_deref() == Some("true"));
    assert_eq!(pod.node.calls(), [""; 0]);

    pod.node.change(|responses| responses.native_transport = true);
    eventually("the node is leaving", || pod.node.responses().mode == "LEAVING");
    assert_eq!(label(), "false");
    pod.node.change(|responses| responses.mode = "DECOMMISSIONED");
    eventually("the label confirms the decommission", || label() == "true");
    assert_eq!(pod.node.calls(), ["POST /storage_service/decommission"]);
    assert_eq!(pod.annotation(JOINED).as_deref(), Some("false"));
    assert_eq!(
        pod.annotation(BEGAN).as_deref(),
        Some(pod.node.responses().host_id),
        "the annotation is written before the decommission begins"
    );
    assert!(process.is_running());
}

#[test]
fn decommission_request_without_this_host_id_is_ignored() {
    let pod = Pod::new(13, NodeResponses::default()).ignite();
    let _process = pod.run();
    eventually("the node has joined", || pod.annotation(JOINED).as_deref() == Some("true"));
    for named in ["", "another-host-id"] {
        pod.api.edit("services", NAME, |service| {
            service["metadata"]["labels"][DECOMMISSIONED] = json!("false");
            service["metadata"]["annotations"][LEAVING] = json!(named);
            service["metadata"]["annotations"][JOINED] = json!("wrong");
        });
        eventually("the sidecar has reconciled", || pod.annotation(JOINED).as_deref() == Some("true"));
    }
    assert_eq!((pod.node.calls(), pod.annotation(BEGAN)), (vec![], None));
}

#[test]
fn ring_is_reported_as_long_as_the_service_requests_it() {
    let pod = Pod::new(14, NodeResponses::default()).ignite();
    let _process = pod.run();
    eventually("the node has joined", || pod.annotation(JOINED).as_deref() == Some("true"));
    assert_eq!(pod.annotation(ANSWER), None, "the Service does not request it");
    pod.api.edit("services", NAME, |service| service["metadata"]["annotations"][QUESTION] = json!("7"));
    eventually("the node reports the ring", || pod.annotation(ANSWER).is_some());
    let answer: Value = serde_json::from_str(&pod.annotation(ANSWER).unwrap()).unwrap();
    let host_id = pod.node.responses().host_id;
    let nodes = json!({host_id: "UN", "two": "DN", "10.0.0.3": "?J"});
    assert_eq!(answer, json!({"asked": "7", "hostID": host_id, "podUID": "pod", "nodes": nodes}));
    pod.node.change(|responses| responses.live = vec!["10.0.0.1", "10.0.0.3"]);
    eventually("the report is updated", || pod.annotation(ANSWER).is_some_and(|answer| answer.contains("UJ")));
    pod.api.edit("services", NAME, |service| {
        service["metadata"]["annotations"].as_object_mut().unwrap().remove(QUESTION);
    });
    eventually("the report is removed", || pod.annotation(ANSWER).is_none());
}

#[test]
fn node_with_an_outdated_address_requests_the_recreation_of_its_pod() {
    const REQUEST: &str = "messina.scylladb.com/restart-request";
    let pod = Pod::new(46, NodeResponses::default()).ignite();
    pod.api.edit("services", NAME, |service| service["metadata"]["annotations"] = json!({REQUEST: "former pod"}));
    let _process = pod.run();
    eventually("the request of a former pod is removed", || pod.annotation(REQUEST).is_none());
    let readdress = |text: &str| {
        let spec = json!({"clusterIP": text, "clusterIPs": [text]});
        pod.api.edit("services", NAME, |service| service["spec"] = spec);
    };
    readdress("10.0.0.2");
    eventually("the recreation of the pod is requested", || pod.annotation(REQUEST).as_deref() == Some("pod"));
    readdress("None");
    eventually("a Service without an address needs no new pod", || pod.annotation(REQUEST).is_none());
}

/// Snapshots are taken and deleted as the Service requests, failures are reported and retried, and incomplete snapshots
/// are taken again.
#[test]
fn upgrade_request_creates_and_deletes_snapshots() {
    const REQUEST: &str = "messina.scylladb.com/upgrade-request";
    const ANSWER: &str = "messina.scylladb.com/upgrade-answer";
    let pod = Pod::new(15, NodeResponses { schemas: vec!["s1", "s2"], ..NodeResponses::default() }).ignite();
    let host_id = pod.node.responses().host_id;
    let ask = |host_id: &str, keep: &[&str]| {
        let request = json!({"hostID": host_id, "from": "1", "to": "2", "keep": keep}).to_string();
        pod.api.edit("services", NAME, |service| service["metadata"]["annotations"][REQUEST] = json!(request));
    };
    let answer = || serde_json::from_str::<Value>(&pod.annotation(ANSWER).unwrap_or_default()).unwrap_or_default();
    let kept = |keep: &[&str]| json!({"hostID": host_id, "to": "2", "kept": keep});
    let snapshots = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(tag, keyspace)| (format!("messina-upgrade-2-{tag}"), (*keyspace).to_owned())).collect()
    };
    pod.node.add_snapshot("messina-upgrade-1-system", "system");
    pod.node.add_snapshot("messina-upgrade-2-system", "system");
    pod.node.add_snapshot("of-somebody", "shop");
    let _process = pod.run();
    eventually("the node has joined", || pod.annotation(JOINED).as_deref() == Some("true"));
    ask("another", &["system"]);
    ask(host_id, &["system"]);
    eventually("the schema differs", || answer()["failed"]["step"] == "schema");
    assert_eq!(answer()["failed"]["why"], "s1 at 10.0.0.1; s2 at 10.0.0.1");
    pod.node.change(|responses| responses.schemas = vec!["s1"]);
    eventually("there is a snapshot of its system keyspaces", || answer() == kept(&["system"]));
    let mut expected: std::collections::BTreeSet<_> = snapshots(&[("system", "system"), ("system", "system_schema")]);
    expected.insert(("of-somebody".into(), "shop".into()));
    assert_eq!(pod.node.snapshots(), expected);

    pod.node.change(|responses| responses.refuses_snapshots = true);
    ask(host_id, &["system", "data"]);
    eventually("the snapshot of its data fails", || answer()["failed"]["step"] == "dataSnapshot");
    assert_eq!(answer()["kept"], json!(["system"]));
    pod.node.change(|responses| responses.refuses_snapshots = false);
    eventually("there is a snapshot of its data", || answer() == kept(&["system", "data"]));
    expected.extend(snapshots(&[("data", "system_auth"), ("data", "shop")]));
    assert_eq!(pod.node.snapshots(), expected);

    ask(host_id, &[]);
    eventually("its snapshots are deleted", || answer() == kept(&[]));
    assert_eq!(pod.node.snapshots(), [("of-somebody".to_owned(), "shop".to_owned())].into(), "snapshots of users stay");
}

#[test]
fn refused_decommission_is_reported_and_retried() {
    let pod = Pod::new(9, NodeResponses { refuses_decommission: true, ..NodeResponses::default() }).ignite();
    pod.request_decommission();
    let process = pod.run();
    eventually("the refusal is logged", || process.has_logged("another node is joining"));
    pod.node.change(|responses| responses.refuses_decommission = false);
    eventually("the annotations say that it has not begun, and why", || {
        pod.api.patches().iter().any(|patch| {
            let annotations = &patch["metadata"]["annotations"];
            let why = annotations["messina.scylladb.com/leaving-refused"].as_str().unwrap_or_default();
            annotations.get(BEGAN).is_some_and(Value::is_null) && why.contains("another node is joining")
        })
    });
    eventually("the decommission is retried", || pod.node.responses().mode == "LEAVING");
    assert_eq!(pod.service()["metadata"]["labels"][DECOMMISSIONED], "false");
}

#[test]
fn drained_node_is_restarted_before_its_decommission() {
    let pod = Pod::new(10, NodeResponses { mode: "DRAINED", ..NodeResponses::default() }).ignite();
    let mut process = pod.run();
    eventually("ScyllaDB starts", || pod.has_started());
    assert!(process.is_running(), "it is stopped although no decommission is requested");
    pod.request_decommission();
    assert_eq!(process.end().code(), Some(3));
    assert_eq!(pod.node.calls(), [""; 0]);
}

#[test]
fn sidecar_keeps_running_while_the_api_server_is_unavailable() {
    let pod =
        Pod::new(11, NodeResponses { mode: "BOOTSTRAP", own_tokens: vec![], ..NodeResponses::default() }).ignite();
    pod.api.set_unavailable(true);
    let mut process = pod.run();
    eventually("the sidecar logs what it waits for", || process.has_logged("ScyllaDB cannot start yet"));
    pod.api.set_unavailable(false);
    eventually("an annotation is written", || pod.annotation(JOINED).as_deref() == Some("false"));

    pod.api.set_unavailable(true);
    pod.node.change(|responses| {
        responses.mode = "NORMAL";
        responses.own_tokens = vec!["-5", "7"];
    });
    eventually("a write fails", || process.has_logged("cannot patch the Service"));
    assert!(process.is_running());
    pod.api.set_unavailable(false);
    eventually("the write is retried", || pod.annotation(JOINED).as_deref() == Some("true"));
}

/// As the first process of a container the sidecar inherits orphans.
#[test]
fn orphans_are_reaped() {
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("skipped: only root may start a process in a new PID namespace");
    }
    let pod = Pod::new(12, NodeResponses::default()).ignite();
    let mut command = Command::new("unshare");
    command.args(["--fork", "--pid", "--kill-child", env!("CARGO_BIN_EXE_messina")]).args(pod.arguments());
    command.env("NODE_DIR", pod.folder.path(""));
    let process = Process::start(command);
    eventually("ScyllaDB starts", || pod.has_started());
    let children = |parent: u32| -> Vec<u32> {
        let list = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    };
    let sidecar = children(process.id())[0];
    // The orphan exists, then it is reaped, and only the entrypoint is left.
    eventually("there is an orphan", || children(sidecar).len() > 1);
    eventually("the orphan is reaped", || children(sidecar).len() == 1);
}

#[test]
fn sidecar_of_a_pod_that_is_being_deleted_exits_without_starting_scylladb() {
    for (number, may_start) in [(92, false), (93, true)] {
        let mut pod = Pod::new(number, NodeResponses::default());
        if may_start {
            pod = pod.ignite();
        }
        pod.api.edit("pods", NAME, |pod| pod["metadata"]["deletionTimestamp"] = json!("2026-11-17T00:32:15Z"));
        let mut command = messina();
        command.args(pod.arguments()).env("NODE_DIR", pod.folder.path(""));
        assert_eq!(Process::start(command).end().code(), Some(0));
        assert!(!pod.has_started());
    }
}

#[test]
fn node_with_an_empty_disk_starts_only_as_a_replacement() {
    let pod = Pod::new(94, NodeResponses::default()).ignite();
    pod.api.edit("services", NAME, |service| {
        service["metadata"]["annotations"] = json!({HOST_ID: "former", JOINED: "true"});
    });
    std::fs::remove_file(pod.folder.path("data/.keep")).unwrap();
    let process = pod.run();
    eventually("it waits", || process.has_logged("should have the data of node former"));
    assert!(!pod.has_started());
    assert_eq!(pod.annotation(EMPTY_DISK).as_deref(), pod.api.get("pods", NAME).unwrap()["metadata"]["uid"].as_str());
    assert_eq!(pod.annotation(HOST_ID).as_deref(), Some("former"), "a replacement needs the host ID");
    pod.api.edit("services", NAME, |service| service["metadata"]["labels"][REPLACING] = json!("former"));
    eventually("ScyllaDB starts", || pod.has_started());
    assert_eq!(pod.annotation(EMPTY_DISK), None);
}

#[test]
fn node_with_an_empty_disk_starts_if_the_user_accepts_that() {
    let pod = Pod::new(95, NodeResponses::default()).ignite();
    let facts = json!({HOST_ID: "former", JOINED: "true", "messina.scylladb.com/start-empty": "another"});
    pod.api.edit("services", NAME, |service| service["metadata"]["annotations"] = facts);
    std::fs::remove_file(pod.folder.path("data/.keep")).unwrap();
    let process = pod.run();
    eventually("it waits", || process.has_logged("should have the data of node former"));
    let given_up = json!("former");
    pod.api.edit("services", NAME, |service| {
        service["metadata"]["annotations"]["messina.scylladb.com/start-empty"] = given_up;
    });
    eventually("ScyllaDB starts", || pod.has_started());
}
