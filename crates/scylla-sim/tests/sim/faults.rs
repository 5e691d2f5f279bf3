//! Fault injection.

use std::{net::SocketAddr, time::Duration};

use crate::harness::{Cluster, Node, all_see_all, until};

#[test]
fn views_differ_when_a_node_sends_no_requests_to_another() {
    let cluster = Cluster::new();
    let nodes = cluster.ring(3);
    nodes[0].simctl(&["refuse-to", &nodes[1].address.to_string()]);
    nodes[0].sees_down(&nodes[1]);
    nodes[1].sees_up(&nodes[0]);
    nodes[2].sees_up(&nodes[0]);
    nodes[2].sees_up(&nodes[1]);

    // Its seed sees all nodes, but one member does not.
    let mut joiner = cluster.node(4).seeded_by(&[cluster.address(3)]).with("--sim-join-timeout=500ms");
    joiner.start();
    joiner.fails(&format!("in the view of {}, these nodes are down: {}", nodes[0].host_id(), nodes[1].host_id()));

    nodes[0].simctl(&["refuse-to"]);
    all_see_all(&nodes);
    nodes[0].simctl(&["refuse-from", &nodes[1].host_id()]);
    nodes[1].sees_down(&nodes[0]);
    nodes[0].sees_up(&nodes[1]);
    nodes[0].simctl(&["refuse-from"]);
    all_see_all(&nodes);
}

#[test]
fn paused_node_does_not_respond_until_it_is_resumed() {
    let cluster = Cluster::new();
    let nodes = cluster.ring(2);
    nodes[1].simctl(&["pause"]);
    nodes[0].sees_down(&nodes[1]);
    let rest = SocketAddr::new(nodes[1].address, 10000);
    let mut stream = std::net::TcpStream::connect(rest).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let request = crate::harness::request(rest, "GET", "/storage_service/operation_mode", "", "");
    assert!(crate::harness::exchange(&mut stream, &request).is_err(), "it answers");
    nodes[1].simctl(&["resume"]);
    all_see_all(&nodes);
}

#[test]
fn topology_change_is_not_committed_after_its_lock_expired() {
    let cluster = Cluster::new();
    let nodes = cluster.ring(1);
    let mut joiner = cluster.node(2).with("--sim-bootstrap-duration=600ms");
    joiner.start();
    joiner.becomes("BOOTSTRAP");
    joiner.simctl(&["pause"]);
    let address = joiner.address.to_string();
    until("the ring forgets it", || {
        let joining = nodes[0].joining();
        if joining.contains(&address) { Err(format!("{joining:?}")) } else { Ok(()) }
    });
    let mut other = cluster.node(3).with("--sim-bootstrap-duration=60s");
    other.start();
    other.becomes("BOOTSTRAP");
    joiner.simctl(&["resume"]);
    assert!(!joiner.ended().success());
    assert_eq!(nodes[0].ring().len(), 1);
}

#[test]
fn node_with_a_lost_disk_is_a_new_node() {
    let cluster = Cluster::new();
    let mut nodes = cluster.ring(2);
    let mut loser = nodes.pop().unwrap();
    let host_id = loser.host_id();
    loser.simctl(&["lose-disk"]);
    assert_eq!(loser.ended().code(), Some(137));
    assert_eq!(loser.bootstrapped(), None, "nothing is left");
    loser.start();
    // The node of the lost disk is still in the ring, at the same address.
    loser.fails("already exists, cancelling join");
    let mut loser = loser.with(&format!("--replace-node-first-boot={host_id}"));
    loser.start();
    loser.becomes("NORMAL");
    assert_ne!(loser.host_id(), host_id);
    nodes.push(loser);
    all_see_all(&nodes);
}

#[test]
fn full_disk_isolates_a_node() {
    let cluster = Cluster::new();
    let mut nodes = cluster.ring(2);
    nodes[1].simctl(&["full-disk", "on"]);
    nodes[0].sees_down(&nodes[1]);
    assert_eq!(nodes[1].get("/storage_service/native_transport"), false);
    assert!(nodes[1].log().contains("Shutting down communications due to I/O errors until operator intervention"));
    nodes[1].kill();
    let mut full = nodes.pop().unwrap().with("--sim-full-disk");
    full.start();
    full.fails("No space left on device");
    full.without_arguments();
    full.start();
    full.becomes("NORMAL");
    nodes.push(full);
    all_see_all(&nodes);
}

#[test]
fn fault_changes_the_ring_that_a_node_reports() {
    let cluster = Cluster::new();
    let mut nodes = cluster.ring(2);
    let second = nodes[1].address.to_string();
    nodes[0].simctl(&["view", "down", &second]);
    assert_eq!(nodes[0].down(), [second.as_str()]);
    // Only the report changes: a third node joins.
    let mut joiner = cluster.node(3);
    joiner.start();
    joiner.becomes("NORMAL");
    nodes[0].simctl(&["view", "true"]);
    assert!(nodes[0].down().is_empty());
    nodes.push(joiner);
    all_see_all(&nodes);

    nodes[0].simctl(&["view", "frozen"]);
    nodes[1].kill();
    nodes[2].sees_down(&nodes[1]);
    assert!(nodes[0].live().contains(&second), "a view that lags");
    nodes[0].simctl(&["view", "true"]);
    nodes[0].sees_down(&nodes[1]);
}

#[test]
fn bootstrap_duration_changes_during_the_bootstrap() {
    let cluster = Cluster::new();
    let _ring: Vec<Node> = cluster.ring(1);
    let mut joiner = cluster.node(2).with("--sim-bootstrap-duration=60s");
    joiner.start();
    joiner.becomes("BOOTSTRAP");
    joiner.simctl(&["bootstrap-duration", "0s"]);
    joiner.becomes("NORMAL");
}

#[test]
fn unknown_faults_and_steps_are_rejected() {
    let cluster = Cluster::new();
    let node = &cluster.ring(1)[0];
    assert!(!node.tool("simctl", &["crash-at", "breakfast"]).status.success());
    assert!(!node.tool("simctl", &["explode"]).status.success());
    let (status, _) = node.ask("POST", "/sim/faults", r#"{"is_tired": true}"#).unwrap();
    assert_eq!(status, 400);
}
