//! Changes of the ring, one at a time.

use std::{thread, time::Duration};

use serde_json::json;

use crate::harness::{Cluster, Node, all_see_all, until};

#[test]
fn nodes_do_not_join_while_a_node_is_down() {
    let cluster = Cluster::new();
    let mut nodes = cluster.ring(3);
    nodes[2].kill();
    nodes[0].sees_down(&nodes[2]);
    let mut joiner = cluster.node(4).with("--sim-join-timeout=1s");
    joiner.start();
    joiner.fails("down");
    assert_eq!(nodes[0].ring().len(), 3);
    assert_eq!(joiner.bootstrapped().as_deref(), Some("NEEDS_BOOTSTRAP"));

    nodes[2].start();
    nodes[2].becomes("NORMAL");
    all_see_all(&nodes);
    joiner.start();
    joiner.becomes("NORMAL");
    nodes.push(joiner);
    all_see_all(&nodes);
}

#[test]
fn concurrent_bootstraps_run_one_after_the_other() {
    let cluster = Cluster::new();
    let mut nodes = cluster.ring(3);
    let slow = |number: u8, seed: u8| {
        cluster.node(number).seeded_by(&[cluster.address(seed)]).with("--sim-bootstrap-duration=500ms")
    };
    let mut joiners = [slow(4, 2), slow(5, 3)];
    joiners.iter_mut().for_each(Node::start);
    until("both are in", || {
        let most = nodes.iter().map(|node| node.joining().len()).max().unwrap_or_default();
        assert!(most <= 1, "{most} nodes join at a time");
        let modes: Vec<_> = joiners.iter().map(|node| node.ask("GET", "/storage_service/operation_mode", "")).collect();
        let normal = Ok((200, "\"NORMAL\"".to_owned()));
        if modes.iter().all(|mode| *mode == normal) { Ok(()) } else { Err(format!("{modes:?}")) }
    });
    let spans: Vec<(String, String)> =
        joiners.iter().map(|node| (time_of(node, "bootstrap-started"), time_of(node, "bootstrap-announced"))).collect();
    assert!(spans[0].1 <= spans[1].0 || spans[1].1 <= spans[0].0, "they overlap: {spans:?}");
    nodes.extend(joiners);
    all_see_all(&nodes);
}

/// Returns the time of a step in the log, as a text that sorts by time.
fn time_of(node: &Node, step: &str) -> String {
    let log = node.log();
    let line = log.lines().find(|line| line.ends_with(&format!("step {step}")));
    line.unwrap_or_else(|| panic!("no {step} in {log}"))
        .split_whitespace()
        .skip(1)
        .take(2)
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn decommissioned_node_does_not_rejoin() {
    let cluster = Cluster::new();
    let mut nodes = cluster.ring(3);
    let mut leaver = nodes.pop().unwrap();
    let path = "/storage_service/decommission";
    leaver.simctl(&["decommission-duration", "800ms"]);
    thread::scope(|scope| {
        let answer = scope.spawn(|| leaver.post(path));
        leaver.becomes("LEAVING");
        // No other change may begin meanwhile.
        assert!(nodes[0].post(path).unwrap_err().contains("another topology change"));
        assert_eq!(answer.join().unwrap(), Ok(()), "it answers when it is done");
    });
    leaver.becomes("DECOMMISSIONED");
    assert_eq!(leaver.get("/storage_service/native_transport"), json!(false));
    assert_eq!(leaver.bootstrapped().as_deref(), Some("DECOMMISSIONED"));
    all_see_all(&nodes);
    assert_eq!(nodes[0].down(), Vec::<String>::new(), "others forget it");
    assert!(leaver.stop().success());
    leaver.start();
    leaver.fails("decommissioned and will not rejoin the ring");
}

#[test]
fn decommission_needs_all_other_nodes_up() {
    let cluster = Cluster::new();
    let mut nodes = cluster.ring(2);
    let path = "/storage_service/decommission";
    nodes[1].kill();
    nodes[0].sees_down(&nodes[1]);
    assert!(nodes[0].post(path).unwrap_err().contains("down"));
    let dead = nodes[0].ring().into_iter().find(|host_id| *host_id != nodes[0].host_id()).unwrap();
    assert_eq!(nodes[0].post(&format!("/storage_service/remove_node?host_id={dead}")), Ok(()));
    assert!(nodes[0].post(path).unwrap_err().contains("last node"));
    assert_eq!(nodes[0].get("/storage_service/operation_mode"), json!("NORMAL"));
}

#[test]
fn decommission_is_refused_if_replicas_need_the_node() {
    let cluster = Cluster::new();
    let nodes = cluster.ring(3);
    nodes[2].simctl(&["replicas", "3"]);
    let path = "/storage_service/decommission";
    let refused = nodes[2].post(path).unwrap_err();
    assert!(refused.contains("2 node(s) would stay") && refused.contains("3 replicas"), "{refused}");
    nodes[2].becomes("NORMAL");
    all_see_all(&nodes);
    nodes[2].simctl(&["replicas", "2"]);
    assert_eq!(nodes[2].post(path), Ok(()));
}

#[test]
fn only_a_dead_node_is_removed() {
    let cluster = Cluster::new();
    let mut nodes = cluster.ring(3);
    let host_id = nodes[2].host_id();
    let path = format!("/storage_service/remove_node?host_id={host_id}");
    assert!(nodes[0].post(&path).unwrap_err().contains("alive"));
    nodes[2].kill();
    nodes[0].sees_down(&nodes[2]);
    nodes[1].sees_down(&nodes[2]);
    assert_eq!(nodes[0].post(&path), Ok(()));
    let mut removed = nodes.pop().unwrap();
    all_see_all(&nodes);
    removed.start();
    removed.fails("banned and will not rejoin the ring");
    // It knows by now, without a message.
    removed.seeds = cluster.address(99).to_string();
    removed.start();
    removed.fails("banned and will not rejoin the ring");
    assert!(nodes[0].post(&path).unwrap_err().contains("not in the ring"));
}

#[test]
fn replacement_replaces_a_dead_node() {
    let cluster = Cluster::new();
    let mut nodes = cluster.ring(3);
    let (dead, tokens) = (nodes[2].host_id(), nodes[0].tokens(nodes[2].address));
    let replace = format!("--replace-node-first-boot={dead}");

    let mut early = cluster.node(4).with(&replace).with("--sim-join-timeout=500ms");
    early.start();
    early.fails("is alive");

    nodes[2].kill();
    nodes[0].sees_down(&nodes[2]);
    let unknown = "--replace-node-first-boot=00000000-0000-4000-8000-000000000000";
    let mut wrong = cluster.node(5).with(unknown);
    wrong.start();
    wrong.fails("is not in the ring");

    // A new disk behind the old address.
    let mut replaced = nodes.pop().unwrap();
    let mut replacement = cluster.node(6).with(&replace).with("--sim-bootstrap-duration=600ms");
    replacement.address = replaced.address;
    replacement.start();
    replacement.becomes("BOOTSTRAP");
    assert!(!nodes[0].live().contains(&replaced.address.to_string()), "the address still belongs to the dead one");
    replacement.becomes("NORMAL");
    assert_ne!(replacement.host_id(), dead);
    assert_eq!(nodes[0].tokens(replacement.address), tokens);
    let host_id = replacement.host_id();
    nodes.push(replacement);
    all_see_all(&nodes);

    // With the same arguments it is not a first boot any more.
    nodes[2].kill();
    nodes[2].start();
    nodes[2].becomes("NORMAL");
    assert_eq!(nodes[2].host_id(), host_id);

    replaced.address = cluster.address(8);
    replaced.start();
    replaced.fails("banned and will not rejoin the ring");
}

#[test]
fn replacement_needs_all_other_nodes_up() {
    let cluster = Cluster::new();
    let mut nodes = cluster.ring(3);
    let dead = nodes[2].host_id();
    nodes[1].kill();
    nodes[2].kill();
    nodes[0].sees_down(&nodes[1]);
    nodes[0].sees_down(&nodes[2]);
    let mut replacement =
        cluster.node(4).with(&format!("--replace-node-first-boot={dead}")).with("--sim-join-timeout=500ms");
    replacement.start();
    replacement.fails("down");
}

#[test]
fn topology_change_ends_when_a_node_goes_down() {
    let cluster = Cluster::new();
    let mut nodes = cluster.ring(3);
    let mut joiner = cluster.node(4).with("--sim-bootstrap-duration=60s");
    joiner.start();
    joiner.becomes("BOOTSTRAP");
    nodes[1].kill();
    joiner.fails("went down during the topology change");
    assert_eq!(nodes[0].ring().len(), 3);
    until("the ring forgets the joiner", || {
        let joining = nodes[0].joining();
        if joining.is_empty() { Ok(()) } else { Err(format!("{joining:?}")) }
    });
}

#[test]
fn drained_node_needs_a_restart() {
    let cluster = Cluster::new();
    let mut nodes = cluster.ring(2);
    assert!(nodes[1].tool("nodetool", &["drain"]).status.success());
    nodes[1].becomes("DRAINED");
    assert_eq!(nodes[1].get("/storage_service/native_transport"), json!(false));
    nodes[0].sees_down(&nodes[1]);
    assert!(nodes[1].post("/storage_service/decommission").unwrap_err().contains("DRAINED"));
    assert!(nodes[1].post("/storage_service/native_transport").is_err());
    assert!(nodes[1].stop().success());
    nodes[1].start();
    nodes[1].becomes("NORMAL");
    all_see_all(&nodes);
    until("it is decommissioned", || nodes[1].post("/storage_service/decommission"));
    nodes[1].becomes("DECOMMISSIONED");
}

#[test]
fn decommission_continues_without_its_client() {
    let cluster = Cluster::new();
    let nodes = cluster.ring(2);
    nodes[1].simctl(&["decommission-duration", "500ms"]);
    let address = std::net::SocketAddr::new(nodes[1].address, 10000);
    let mut client = std::net::TcpStream::connect(address).unwrap();
    let request = crate::harness::request(address, "POST", "/storage_service/decommission", "", "");
    std::io::Write::write_all(&mut client, request.as_bytes()).unwrap();
    nodes[1].becomes("LEAVING");
    client.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    drop(client);
    nodes[1].becomes("DECOMMISSIONED");
}
