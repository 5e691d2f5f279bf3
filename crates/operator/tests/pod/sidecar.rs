//! `messina sidecar`.

use std::{process::Command, sync::Arc};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    api::FakeApi,
    node::{FakeNode, Says},
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

/// A node's pod as a test has it: the objects, the files, the stand-ins.
struct Pod {
    folder: Folder,
    api: Arc<FakeApi>,
    node: Arc<FakeNode>,
    ip: [u8; 4],
}

impl Pod {
    /// `number` gives the node a loopback address of its own.
    fn new(number: u8, says: Says) -> Self {
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
        Self { folder, api, node: FakeNode::start(ip, says), ip }
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

    fn fact(&self, key: &str) -> Option<String> {
        self.service()["metadata"]["annotations"][key].as_str().map(ToOwned::to_owned)
    }

    fn ask_to_leave(&self) {
        let host_id = self.node.says().host_id;
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
    let pod = Pod::new(1, Says::default());
    let process = pod.run();
    eventually("the sidecar waits", || process.has_said("waiting for ignition"));
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
fn a_replacement_and_a_measured_disk_are_told_to_scylladb() {
    let pod = Pod::new(2, Says::default()).ignite();
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

/// Its disk, or the pod that it had when it was given up, tells who it is.
#[test]
fn a_node_that_is_being_replaced_does_not_start_before_that_is_withdrawn() {
    for (number, on_disk, pod_uid) in [(40, Some("lost-id"), "another"), (41, None, "pod")] {
        let pod = Pod::new(number, Says::default()).ignite();
        if let Some(host_id) = on_disk {
            pod.folder.write("data/messina-host-id", host_id);
        }
        pod.api.edit("services", NAME, |service| {
            service["metadata"]["labels"][REPLACING] = json!("lost-id");
            service["metadata"]["annotations"][LOST] = json!(format!("claim/{pod_uid}"));
        });
        let process = pod.run();
        eventually("it waits", || process.has_said("another node takes its place"));
        assert!(!pod.has_started());
        pod.api.edit("services", NAME, |service| service["metadata"]["labels"][REPLACING] = json!(""));
        eventually("ScyllaDB starts", || pod.has_started());
    }
}

#[test]
fn a_node_that_is_given_up_while_it_starts_is_stopped_and_one_that_serves_is_not() {
    let pod = Pod::new(42, Says { mode: "JOINING", ..Says::default() }).ignite();
    let mut process = pod.run();
    eventually("ScyllaDB starts", || pod.has_started());
    let give_up = |pod: &Pod| {
        let host_id = pod.node.says().host_id;
        pod.api.edit("services", NAME, |service| service["metadata"]["labels"][REPLACING] = json!(host_id));
    };
    give_up(&pod);
    assert_eq!(process.end().code(), Some(3));
    assert!(process.has_said("ScyllaDB is stopped"));

    let pod = Pod::new(43, Says::default()).ignite();
    let mut process = pod.run();
    let host_id = pod.node.says().host_id;
    let kept = || std::fs::read_to_string(pod.folder.path("data/messina-host-id")).ok();
    eventually("the disk says whose it is", || kept().as_deref() == Some(host_id));
    give_up(&pod);
    pod.api.edit("services", NAME, |service| service["metadata"]["annotations"][JOINED] = json!("wrong"));
    eventually("the sidecar has looked", || pod.fact(JOINED).as_deref() == Some("true"));
    assert!(process.is_running());
}

#[test]
fn facts_are_written_when_they_change_and_only_then() {
    let says = Says { mode: "BOOTSTRAP", own_tokens: vec![], ..Says::default() };
    let pod = Pod::new(3, says).ignite();
    pod.folder.write("io_properties.yaml", "disks: [measured]\n");
    let _process = pod.run();
    eventually("the host ID is written", || pod.fact(HOST_ID).as_deref() == Some(pod.node.says().host_id));
    assert_eq!((pod.fact(JOINED).as_deref(), pod.fact(RING)), (Some("false"), None));
    pod.node.change(|says| {
        says.mode = "NORMAL";
        says.own_tokens = vec!["-5", "7"];
    });
    eventually("the node has joined", || pod.fact(JOINED).as_deref() == Some("true"));
    // printf '["-5","0","7"]\n' | openssl dgst -sha512 -binary | base64
    assert_eq!(pod.fact(RING).as_deref(), Some(RING_HASH));
    assert_eq!(pod.api.patches().len(), 2, "{:?}", pod.api.patches());
    eventually("the measured disk is kept", || pod.folder.text("data/io_properties.yaml").contains("measured"));

    // A change that concerns the sidecar not: it looks, and finds nothing to write.
    pod.api.edit("services", NAME, |service| service["metadata"]["annotations"]["other"] = json!("1"));
    pod.api.edit("services", NAME, |service| service["metadata"]["annotations"][HOST_ID] = json!("wrong"));
    eventually("a wrong fact is mended", || pod.fact(HOST_ID).as_deref() == Some(pod.node.says().host_id));
    assert_eq!(pod.api.patches().len(), 3, "{:?}", pod.api.patches());
}

const RING_HASH: &str = "7ZfVBaTARF8sibKHDQdIG5yrb8tu8iXA3t11rXh+tKZYFGCaeZRT8pcY2wQdcR3WdrmlGgyo8NbfkaxFzgQxrA==";

#[test]
fn a_stop_drains_then_ends_scylladb_and_answers_its_status() {
    let pod = Pod::new(4, Says::default()).ignite();
    let mut process = pod.run();
    eventually("ScyllaDB starts", || pod.has_started());
    process.signal(Signal::SIGHUP);
    eventually("a signal is passed on", || pod.folder.text("signals") == "HUP\n");
    process.signal(Signal::SIGTERM);
    assert_eq!(process.end().code(), Some(3), "the status is not the child's");
    assert_eq!(pod.node.calls(), ["POST /storage_service/drain"]);
    assert_eq!(pod.folder.text("signals"), "HUP\nTERM\n");
    assert!(!pod.folder.path("shared/ignition.done").exists());
}

/// Load balancers need a while to turn to other nodes.
#[test]
fn a_node_serves_for_a_while_before_it_is_drained() {
    for (number, mode, seconds, serves) in [(44, "NORMAL", 3, true), (45, "JOINING", 600, false)] {
        let pod = Pod::new(number, Says { mode, ..Says::default() }).ignite();
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
fn a_node_that_does_not_serve_is_not_drained() {
    let pod = Pod::new(5, Says { mode: "JOINING", ..Says::default() }).ignite();
    let mut process = pod.run();
    eventually("ScyllaDB starts", || pod.has_started());
    process.signal(Signal::SIGTERM);
    assert_eq!(process.end().code(), Some(3));
    assert_eq!(pod.node.calls(), [""; 0]);
}

#[test]
fn the_sidecar_ends_as_scylladb_does() {
    let pod = Pod::new(6, Says::default()).ignite();
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
fn a_stop_before_the_start_ends_at_once() {
    let pod = Pod::new(7, Says::default());
    let mut process = pod.run();
    eventually("the sidecar waits", || process.has_said("waiting for ignition"));
    process.signal(Signal::SIGTERM);
    assert_eq!(process.end().code(), Some(0));
    assert!(!pod.has_started());
}

#[test]
fn a_node_leaves_once_and_says_so_when_it_has_left() {
    let pod = Pod::new(8, Says { native_transport: false, ..Says::default() }).ignite();
    let mut process = pod.run();
    eventually("the node has joined", || pod.fact(JOINED).as_deref() == Some("true"));
    pod.ask_to_leave();
    let label = || pod.service()["metadata"]["labels"][DECOMMISSIONED].as_str().unwrap().to_owned();
    // Not yet: it does not serve clients. The sidecar looks again when the Service changes, so this is after it looked.
    pod.api.edit("services", NAME, |service| service["metadata"]["annotations"][JOINED] = json!("wrong"));
    eventually("the sidecar has looked", || pod.fact(JOINED).as_deref() == Some("true"));
    assert_eq!(pod.node.calls(), [""; 0]);

    pod.node.change(|says| says.native_transport = true);
    eventually("the node is leaving", || pod.node.says().mode == "LEAVING");
    assert_eq!(label(), "false");
    pod.node.change(|says| says.mode = "DECOMMISSIONED");
    eventually("it is said that the node has left", || label() == "true");
    assert_eq!(pod.node.calls(), ["POST /storage_service/decommission"]);
    assert_eq!(pod.fact(JOINED).as_deref(), Some("false"));
    assert_eq!(pod.fact(BEGAN).as_deref(), Some(pod.node.says().host_id), "it said so before it began");
    assert!(process.is_running());
}

#[test]
fn a_label_that_names_no_node_or_another_one_is_no_request() {
    let pod = Pod::new(13, Says::default()).ignite();
    let _process = pod.run();
    eventually("the node has joined", || pod.fact(JOINED).as_deref() == Some("true"));
    for named in ["", "another-host-id"] {
        pod.api.edit("services", NAME, |service| {
            service["metadata"]["labels"][DECOMMISSIONED] = json!("false");
            service["metadata"]["annotations"][LEAVING] = json!(named);
            service["metadata"]["annotations"][JOINED] = json!("wrong");
        });
        eventually("the sidecar has looked", || pod.fact(JOINED).as_deref() == Some("true"));
    }
    assert_eq!((pod.node.calls(), pod.fact(BEGAN)), (vec![], None));
}

#[test]
fn the_ring_is_told_as_long_as_somebody_asks() {
    let pod = Pod::new(14, Says::default()).ignite();
    let _process = pod.run();
    eventually("the node has joined", || pod.fact(JOINED).as_deref() == Some("true"));
    assert_eq!(pod.fact(ANSWER), None, "nobody has asked");
    pod.api.edit("services", NAME, |service| service["metadata"]["annotations"][QUESTION] = json!("7"));
    eventually("the node answers", || pod.fact(ANSWER).is_some());
    let answer: Value = serde_json::from_str(&pod.fact(ANSWER).unwrap()).unwrap();
    let host_id = pod.node.says().host_id;
    let nodes = json!({host_id: "UN", "two": "DN", "10.0.0.3": "?J"});
    assert_eq!(answer, json!({"asked": "7", "hostID": host_id, "podUID": "pod", "nodes": nodes}));
    pod.node.change(|says| says.live = vec!["10.0.0.1", "10.0.0.3"]);
    eventually("it tells what is new", || pod.fact(ANSWER).is_some_and(|answer| answer.contains("UJ")));
    pod.api.edit("services", NAME, |service| {
        service["metadata"]["annotations"].as_object_mut().unwrap().remove(QUESTION);
    });
    eventually("it takes its word back", || pod.fact(ANSWER).is_none());
}

#[test]
fn a_node_whose_address_is_another_one_asks_to_be_started_anew() {
    const REQUEST: &str = "messina.scylladb.com/restart-request";
    let pod = Pod::new(46, Says::default()).ignite();
    pod.api.edit("services", NAME, |service| service["metadata"]["annotations"] = json!({REQUEST: "former pod"}));
    let _process = pod.run();
    eventually("what a former pod asked for is over", || pod.fact(REQUEST).is_none());
    let readdress = |text: &str| {
        let spec = json!({"clusterIP": text, "clusterIPs": [text]});
        pod.api.edit("services", NAME, |service| service["spec"] = spec);
    };
    readdress("10.0.0.2");
    eventually("the pod is to be made anew", || pod.fact(REQUEST).as_deref() == Some("pod"));
    readdress("None");
    eventually("no address is no other one", || pod.fact(REQUEST).is_none());
}

/// Snapshots are taken and removed as the Service asks, what fails is said and tried again, and what was cut off begins
/// anew.
#[test]
fn a_node_prepares_for_another_version_and_clears_up() {
    const REQUEST: &str = "messina.scylladb.com/upgrade-request";
    const ANSWER: &str = "messina.scylladb.com/upgrade-answer";
    let pod = Pod::new(15, Says { schemas: vec!["s1", "s2"], ..Says::default() }).ignite();
    let host_id = pod.node.says().host_id;
    let ask = |host_id: &str, keep: &[&str]| {
        let request = json!({"hostID": host_id, "from": "1", "to": "2", "keep": keep}).to_string();
        pod.api.edit("services", NAME, |service| service["metadata"]["annotations"][REQUEST] = json!(request));
    };
    let answer = || serde_json::from_str::<Value>(&pod.fact(ANSWER).unwrap_or_default()).unwrap_or_default();
    let kept = |keep: &[&str]| json!({"hostID": host_id, "to": "2", "kept": keep});
    let snapshots = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(tag, keyspace)| (format!("messina-upgrade-2-{tag}"), (*keyspace).to_owned())).collect()
    };
    pod.node.keep("messina-upgrade-1-system", "system");
    pod.node.keep("messina-upgrade-2-system", "system");
    pod.node.keep("of-somebody", "shop");
    let _process = pod.run();
    eventually("the node has joined", || pod.fact(JOINED).as_deref() == Some("true"));
    ask("another", &["system"]);
    ask(host_id, &["system"]);
    eventually("the schema differs", || answer()["failed"]["step"] == "schema");
    assert_eq!(answer()["failed"]["why"], "s1 at 10.0.0.1; s2 at 10.0.0.1");
    pod.node.change(|says| says.schemas = vec!["s1"]);
    eventually("its system keyspaces are kept", || answer() == kept(&["system"]));
    let mut expected: std::collections::BTreeSet<_> = snapshots(&[("system", "system"), ("system", "system_schema")]);
    expected.insert(("of-somebody".into(), "shop".into()));
    assert_eq!(pod.node.snapshots(), expected);

    pod.node.change(|says| says.refuses_snapshots = true);
    ask(host_id, &["system", "data"]);
    eventually("its data is not kept", || answer()["failed"]["step"] == "dataSnapshot");
    assert_eq!(answer()["kept"], json!(["system"]));
    pod.node.change(|says| says.refuses_snapshots = false);
    eventually("its data is kept", || answer() == kept(&["system", "data"]));
    expected.extend(snapshots(&[("data", "system_auth"), ("data", "shop")]));
    assert_eq!(pod.node.snapshots(), expected);

    ask(host_id, &[]);
    eventually("nothing is kept", || answer() == kept(&[]));
    assert_eq!(pod.node.snapshots(), [("of-somebody".to_owned(), "shop".to_owned())].into(), "others' snapshots stay");
}

#[test]
fn a_refusal_to_leave_is_not_taken_for_having_left() {
    let pod = Pod::new(9, Says { refuses_to_leave: true, ..Says::default() }).ignite();
    pod.ask_to_leave();
    let process = pod.run();
    eventually("the refusal is told", || process.has_said("another node is joining"));
    pod.node.change(|says| says.refuses_to_leave = false);
    eventually("it says that it has not begun, and why", || {
        pod.api.patches().iter().any(|patch| {
            let told = &patch["metadata"]["annotations"];
            let why = told["messina.scylladb.com/leaving-refused"].as_str().unwrap_or_default();
            told.get(BEGAN).is_some_and(Value::is_null) && why.contains("another node is joining")
        })
    });
    eventually("it is tried again", || pod.node.says().mode == "LEAVING");
    assert_eq!(pod.service()["metadata"]["labels"][DECOMMISSIONED], "false");
}

#[test]
fn a_drained_node_is_started_anew_before_it_leaves() {
    let pod = Pod::new(10, Says { mode: "DRAINED", ..Says::default() }).ignite();
    let mut process = pod.run();
    eventually("ScyllaDB starts", || pod.has_started());
    assert!(process.is_running(), "it is stopped although nobody asked the node to leave");
    pod.ask_to_leave();
    assert_eq!(process.end().code(), Some(3));
    assert_eq!(pod.node.calls(), [""; 0]);
}

#[test]
fn an_api_server_that_is_away_stops_nothing() {
    let pod = Pod::new(11, Says { mode: "BOOTSTRAP", own_tokens: vec![], ..Says::default() }).ignite();
    pod.api.be_away(true);
    let mut process = pod.run();
    eventually("the sidecar tells what it waits for", || process.has_said("ScyllaDB cannot start yet"));
    pod.api.be_away(false);
    eventually("a fact is written", || pod.fact(JOINED).as_deref() == Some("false"));

    pod.api.be_away(true);
    pod.node.change(|says| {
        says.mode = "NORMAL";
        says.own_tokens = vec!["-5", "7"];
    });
    eventually("a write fails", || process.has_said("the Service cannot be changed now"));
    assert!(process.is_running());
    pod.api.be_away(false);
    eventually("the write is made up for", || pod.fact(JOINED).as_deref() == Some("true"));
}

/// As the first process of a container the sidecar inherits processes that lost their parent.
#[test]
fn orphans_are_reaped() {
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("skipped: only root may start a process as the first of its kind");
    }
    let pod = Pod::new(12, Says::default()).ignite();
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
    // The orphan is there, then it is gone without a trace, and the entrypoint is left.
    eventually("there is an orphan", || children(sidecar).len() > 1);
    eventually("the orphan is reaped", || children(sidecar).len() == 1);
}

#[test]
fn a_node_whose_pod_is_being_deleted_ends_before_it_starts() {
    for (number, may_start) in [(92, false), (93, true)] {
        let mut pod = Pod::new(number, Says::default());
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
fn a_node_that_has_lost_its_disk_starts_only_as_a_replacement() {
    let pod = Pod::new(94, Says::default()).ignite();
    pod.api.edit("services", NAME, |service| {
        service["metadata"]["annotations"] = json!({HOST_ID: "former", JOINED: "true"});
    });
    std::fs::remove_file(pod.folder.path("data/.keep")).unwrap();
    let process = pod.run();
    eventually("it waits", || process.has_said("the disk is empty, and node former"));
    assert!(!pod.has_started());
    assert_eq!(pod.fact(EMPTY_DISK).as_deref(), pod.api.get("pods", NAME).unwrap()["metadata"]["uid"].as_str());
    assert_eq!(pod.fact(HOST_ID).as_deref(), Some("former"), "what a replacement needs is kept");
    pod.api.edit("services", NAME, |service| service["metadata"]["labels"][REPLACING] = json!("former"));
    eventually("ScyllaDB starts", || pod.has_started());
    assert_eq!(pod.fact(EMPTY_DISK), None);
}

#[test]
fn a_node_that_has_lost_its_disk_can_be_given_up() {
    let pod = Pod::new(95, Says::default()).ignite();
    let facts = json!({HOST_ID: "former", JOINED: "true", "messina.scylladb.com/start-empty": "another"});
    pod.api.edit("services", NAME, |service| service["metadata"]["annotations"] = facts);
    std::fs::remove_file(pod.folder.path("data/.keep")).unwrap();
    let process = pod.run();
    eventually("it waits", || process.has_said("the disk is empty, and node former"));
    let given_up = json!("former");
    pod.api.edit("services", NAME, |service| {
        service["metadata"]["annotations"]["messina.scylladb.com/start-empty"] = given_up;
    });
    eventually("ScyllaDB starts", || pod.has_started());
}
