//! The tools of a node.

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::symlink,
    process::{Child, Command, Stdio},
};

use serde_json::json;

use crate::{
    clients::https,
    harness::{Cluster, PROGRAM, files, http, request, until},
};

#[test]
fn entrypoint_refuses_unknown_arguments() {
    let cluster = Cluster::new();
    let mut node = cluster.node(1).with("--sedes=127.0.0.1");
    node.start();
    node.fails("Try --help");
    let mut node = cluster.node(1).with("--smp=many");
    node.start();
    node.fails("the argument ('many') for option '--smp' is invalid");
}

#[test]
fn program_name_selects_the_function() {
    let cluster = Cluster::new();
    let node = &cluster.ring(1)[0];
    let nodetool = node.folder.join("nodetool");
    symlink(PROGRAM, &nodetool).unwrap();
    let output = Command::new(nodetool).args(["-h", &node.address.to_string(), "status"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with("UN")).unwrap_or_else(|| panic!("no UN in {text}"));
    assert!(line.contains(&node.address.to_string()) && line.contains(&node.host_id()), "{line}");
    assert!(!Command::new(PROGRAM).output().unwrap().status.success());
}

#[test]
fn nodetool_reports_the_state_of_the_node() {
    let cluster = Cluster::new();
    let node = &cluster.ring(1)[0];
    let say = |arguments: &[&str]| String::from_utf8(node.tool("nodetool", arguments).stdout).unwrap();
    assert_eq!(say(&["statusbinary"]).trim(), "running");
    assert!(say(&["info"]).contains(&node.host_id()));
    assert!(node.tool("nodetool", &["disablebinary"]).status.success());
    assert_eq!(say(&["statusbinary"]).trim(), "not running");
    assert!(node.post("/storage_service/decommission").unwrap_err().contains("native transport off"));
    assert!(node.tool("nodetool", &["enablebinary"]).status.success());
    assert_eq!(say(&["statusbinary"]).trim(), "running");
    assert!(!node.tool("nodetool", &["decommission"]).status.success(), "it is the last node");
    assert!(!node.tool("nodetool", &["dance"]).status.success());
}

#[test]
fn sstable_query_fails_where_there_is_nothing() {
    let cluster = Cluster::new();
    let node = cluster.node(1);
    assert_eq!(node.bootstrapped(), None);
    let arguments = ["scylla", "sstable", "query", "--keyspace=system", "--table=local", "/nowhere/local-*/*-Data.db"];
    assert!(!Command::new(PROGRAM).args(arguments).output().unwrap().status.success());
}

#[test]
fn snapshots_are_files_until_they_are_deleted() {
    let cluster = Cluster::new();
    let mut node = cluster.node(1).with("--sim-keyspace=ks1:t1,t2;ks2:t3");
    node.start();
    node.becomes("NORMAL");
    assert_eq!(node.get("/storage_service/keyspaces?type=user"), json!(["ks1", "ks2"]));
    assert_eq!(node.get("/storage_service/keyspaces?replication=tablets"), json!([]));
    node.post("/storage_service/snapshots?tag=first&kn=ks1").unwrap();
    node.post("/storage_service/snapshots?tag=second&kn=ks1&cf=t2").unwrap();
    let snapshots = node.get("/storage_service/snapshots");
    assert_eq!(snapshots[0]["key"], "first");
    assert_eq!(snapshots[0]["value"].as_array().unwrap().len(), 2);
    assert_eq!(snapshots[1]["value"], json!([{ "ks": "ks1", "cf": "t2", "total": 0, "live": 0 }]));
    let found = files(&node.workdir().join("data/ks1"));
    let manifest = found.iter().find(|file| file.ends_with("snapshots/first/manifest.json")).unwrap();
    let table = manifest.ancestors().nth(3).unwrap().file_name().unwrap().to_string_lossy();
    assert_eq!(table.len(), "t1-".len() + 32, "{table}");
    let (status, _) = node.ask("DELETE", "/storage_service/snapshots?tag=first", "").unwrap();
    assert_eq!(status, 200);
    assert_eq!(node.get("/storage_service/snapshots").as_array().unwrap().len(), 1);
    assert!(node.post("/storage_service/snapshots?tag=third&kn=nothing").unwrap_err().contains("400"));
    assert_eq!(node.ask("POST", "/storage_service/repair_async/ks1", "").unwrap().0, 200);
}

#[test]
fn snapshot_is_taken_once_and_refused_by_a_fault() {
    let cluster = Cluster::new();
    let mut node = cluster.node(1).with("--sim-keyspace=ks1:t1");
    node.start();
    node.becomes("NORMAL");
    node.post("/storage_service/snapshots?tag=first&kn=ks1").unwrap();
    let again = node.post("/storage_service/snapshots?tag=first&kn=ks1").unwrap_err();
    assert!(again.contains("500") && again.contains("already exists"), "{again}");
    node.simctl(&["snapshots", "refused"]);
    assert!(node.post("/storage_service/snapshots?tag=second&kn=ks1").unwrap_err().contains("500"));
    node.simctl(&["snapshots", "granted"]);
    node.post("/storage_service/snapshots?tag=second&kn=ks1").unwrap();
    let listed = node.tool("nodetool", &["listsnapshots"]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("second\tks1\tt1"), "{listed}");
}

#[test]
fn fault_changes_the_schema_version() {
    let cluster = Cluster::new();
    let nodes = cluster.ring(2);
    let versions = || nodes[0].get("/storage_proxy/schema_versions");
    assert_eq!(versions().as_array().unwrap().len(), 1);
    nodes[0].simctl(&["schema", "another"]);
    let differing = versions();
    assert_eq!(differing.as_array().unwrap().len(), 2, "{differing}");
    assert_eq!(differing[0], json!({ "key": "another", "value": [cluster.address(1)] }));
    nodes[0].simctl(&["schema", "common"]);
    assert_eq!(versions().as_array().unwrap().len(), 1);
}

#[test]
fn metrics_include_shards_and_other_nodes() {
    let cluster = Cluster::new();
    let mut nodes = cluster.ring(1);
    let mut second = cluster.node(2).with("--smp=2");
    second.start();
    second.becomes("NORMAL");
    second.sees_up(&nodes[0]);
    let prometheus = SocketAddr::new(second.address, 9180);
    let metrics = || http(prometheus, "GET", "/metrics", "").unwrap().1;
    for line in [
        "scylla_database_total_writes{shard=\"1\"} 0",
        "scylla_memory_total_memory{shard=\"1\"} 536870912",
        "scylla_node_operation_mode{shard=\"0\"} 3",
        "scylla_gossip_live{shard=\"0\"} 1",
        "scylla_gossip_unreachable{shard=\"0\"} 0",
    ] {
        assert!(metrics().lines().any(|seen| seen == line), "no {line} in {}", metrics());
    }
    nodes[0].kill();
    second.sees_down(&nodes[0]);
    assert!(metrics().contains("scylla_gossip_unreachable{shard=\"0\"} 1"));
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn agent_forwards_requests_with_the_token() {
    let cluster = Cluster::new();
    let node = &cluster.ring(1)[0];
    let (base, token) = (node.folder.join("agent.yaml"), node.folder.join("token.yaml"));
    let address = SocketAddr::new(node.address, 10001);
    fs::write(&base, format!("auth_token: old\nhttps: {address}\nscylla: {{api_address: {}}}\n", node.address))
        .unwrap();
    fs::write(&token, "auth_token: secret\n").unwrap();
    let agent = Command::new(PROGRAM)
        .arg("scylla-manager-agent")
        .args([
            "-c".as_ref(),
            base.as_os_str(),
            "-c".as_ref(),
            "/nowhere/agent.yaml".as_ref(),
            "-c".as_ref(),
            token.as_os_str(),
        ])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _agent = Running(agent);
    let ask = |token: &str| {
        let headers = format!("authorization: Bearer {token}\r\n");
        https(address, &request(address, "GET", "/storage_service/hostid/local", &headers, ""))
    };
    let answer =
        until("the agent answers", || ask("secret").map(|(answer, _)| answer).map_err(|error| error.to_string()));
    assert_eq!(answer, (200, format!("{:?}", node.host_id())));
    assert_eq!(ask("old").unwrap().0.0, 401);
}
