//! Nodes find each other, rejoin, and refuse nodes of other rings.

use std::time::Instant;

use serde_json::json;

use crate::harness::{Cluster, PATIENCE, all_see_all, until};

#[test]
fn three_nodes_form_a_ring() {
    let cluster = Cluster::new();
    let nodes = cluster.ring(3);
    let mut host_ids: Vec<String> = nodes.iter().map(|node| node.host_id()).collect();
    host_ids.sort();
    for node in &nodes {
        let mut ring = node.ring();
        ring.sort();
        assert_eq!(ring, host_ids);
        assert_eq!(node.get("/storage_service/native_transport"), json!(true));
        assert_eq!(node.get("/snitch/datacenter"), json!("dc1"));
        assert_eq!(node.get(&format!("/snitch/rack?host={}", nodes[0].address)), json!("a"));
        assert_eq!(node.tokens(node.address).as_array().unwrap().len(), 16);
        let all = node.get("/storage_service/tokens");
        assert_eq!(all.as_array().unwrap().len(), 16 * nodes.len(), "the whole ring");
        assert_eq!(node.get("/storage_service/describe_ring/system_traces").as_array().unwrap().len(), 48);
        assert_eq!(node.get("/storage_proxy/schema_versions").as_array().unwrap().len(), 1);
        assert_eq!(node.get("/v2/config/listen_address"), json!(node.address));
        assert_eq!(node.bootstrapped().as_deref(), Some("COMPLETED"));
    }
    let (status, body) = nodes[0].ask("GET", "/storage_service/no_such_thing", "").unwrap();
    assert_eq!(
        (status, serde_json::from_str::<serde_json::Value>(&body).unwrap()),
        (404, json!({ "message": "Not found", "code": 404 }))
    );
    let (status, body) = nodes[0].ask("GET", "/v2/config/alternator_port", "").unwrap();
    assert_eq!((status, body.contains("No such config entry: alternator_port")), (400, true), "{body}");
}

#[test]
fn restarted_node_keeps_its_identity() {
    let cluster = Cluster::new();
    let mut nodes = cluster.ring(2);
    let host_id = nodes[1].host_id();
    let tokens = nodes[0].tokens(nodes[1].address);

    let start = Instant::now();
    assert!(nodes[1].stop().success());
    assert!(start.elapsed() < PATIENCE / 3, "an orderly stop takes {:?}", start.elapsed());
    nodes[0].sees_down(&nodes[1]);
    nodes[1].start();
    nodes[1].becomes("NORMAL");
    assert_eq!(nodes[1].host_id(), host_id);

    nodes[1].kill();
    nodes[0].sees_down(&nodes[1]);
    // A restarted pod has another address.
    nodes[1].address = cluster.address(7);
    nodes[1].start();
    nodes[1].becomes("NORMAL");
    assert_eq!(nodes[1].host_id(), host_id);
    all_see_all(&nodes);
    assert_eq!(nodes[0].tokens(cluster.address(7)), tokens);
}

#[test]
fn whole_cluster_restarts_at_once() {
    let cluster = Cluster::new();
    let mut nodes = cluster.ring(3);
    let ring = nodes[0].ring();
    nodes.iter_mut().for_each(|node| node.kill());
    nodes.iter_mut().for_each(|node| node.start());
    nodes.iter().for_each(|node| node.becomes("NORMAL"));
    all_see_all(&nodes);
    assert_eq!(nodes[2].ring(), ring);
}

#[test]
fn nodes_of_other_clusters_are_refused() {
    let cluster = Cluster::new();
    let nodes = cluster.ring(2);

    let mut other = cluster.node(7).configured("cluster_name", json!("other"));
    other.start();
    other.fails("ClusterName mismatch");

    let mut lonely = cluster.node(3).seeded_by(&[cluster.address(99)]).with("--sim-join-timeout=500ms");
    lonely.start();
    lonely.fails("Unable to contact any seeds");
    assert_eq!(lonely.bootstrapped().as_deref(), Some("NEEDS_BOOTSTRAP"));

    // The same address as that of a member, but another disk.
    let mut twin = cluster.node(4).with(&format!("--broadcast-address={}", nodes[1].address));
    twin.start();
    twin.fails("already exists, cancelling join");
    assert_eq!(nodes[0].ring().len(), 2);
}

#[test]
fn disk_of_another_cluster_is_refused() {
    let cluster = Cluster::new();
    let mut node = cluster.ring(1).remove(0);
    node.kill();
    node.yaml["cluster_name"] = json!("renamed");
    node.start();
    node.fails("Saved cluster name sim != configured name renamed");
}

#[test]
fn first_seed_joins_an_existing_ring() {
    let cluster = Cluster::new();
    let mut nodes = cluster.ring(1);
    let mut second = cluster.node(2).seeded_by(&[cluster.address(2), cluster.address(1)]);
    second.start();
    second.becomes("NORMAL");
    nodes.push(second);
    all_see_all(&nodes);
}

#[test]
fn joining_node_is_reported_and_owns_no_tokens() {
    let cluster = Cluster::new();
    let nodes = cluster.ring(1);
    let mut joiner = cluster.node(2).with("--sim-bootstrap-duration=2s");
    joiner.start();
    let address = joiner.address.to_string();
    until("the ring sees it join", || {
        let joining = nodes[0].joining();
        if joining == [address.as_str()] { Ok(()) } else { Err(format!("{joining:?}")) }
    });
    joiner.becomes("BOOTSTRAP");
    assert_eq!(nodes[0].tokens(joiner.address), json!([]));
    assert_eq!(joiner.tokens(joiner.address), json!([]));
    assert_eq!(joiner.get("/storage_service/native_transport"), json!(false));
    assert_eq!(joiner.bootstrapped().as_deref(), Some("IN_PROGRESS"));
    assert_eq!(nodes[0].ring().len(), 1);
    joiner.becomes("NORMAL");
    assert_eq!(nodes[0].ring().len(), 2, "the ring knows before the node does");
}
