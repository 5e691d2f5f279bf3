//! Rows are on their replicas after all topology changes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::harness::{Cluster, Node, all_see_all, until};

const ROWS: usize = 40;

/// Returns the number of copies of each row on these nodes.
fn copies(nodes: &[Node], keyspace: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for node in nodes {
        let held = node.get("/sim/rows");
        let rows = held["rows"][keyspace].as_object().cloned().unwrap_or_default();
        rows.into_iter().for_each(|(key, _)| *counts.entry(key).or_default() += 1);
    }
    counts
}

/// Whether each row has this number of copies.
fn each_has(nodes: &[Node], keyspace: &str, count: usize) -> bool {
    let copies = copies(nodes, keyspace);
    copies.len() == ROWS && copies.values().all(|copies| *copies == count)
}

fn held(node: &Node) -> usize {
    node.get("/sim/rows")["rows"]["ks"].as_object().map_or(0, |rows| rows.len())
}

fn write(node: &Node, keyspace: &str, rows: &Value) -> Result<(), String> {
    let (status, body) = node.ask("POST", &format!("/sim/rows/{keyspace}"), &rows.to_string())?;
    if status == 200 { Ok(()) } else { Err(body) }
}

fn fill(nodes: &[Node], factor: usize) {
    nodes[0].simctl(&["keyspace", "ks", &format!("dc1={factor}")]);
    let rows: Vec<String> = (0..ROWS).map(|number| format!("k{number}=value")).collect();
    let command: Vec<&str> = ["write", "ks"].into_iter().chain(rows.iter().map(String::as_str)).collect();
    nodes[1].simctl(&command);
    assert!(each_has(nodes, "ks", factor), "{:?}", copies(nodes, "ks"));
}

#[test]
fn rows_move_with_the_ring() {
    let cluster = Cluster::new();
    let mut nodes = cluster.ring(3);
    fill(&nodes, 1);
    let mut fourth = cluster.node(4);
    fourth.start();
    fourth.becomes("NORMAL");
    nodes.push(fourth);
    all_see_all(&nodes);
    let gained = held(&nodes[3]);
    assert!(gained > 0, "the new node owns some of them");
    assert_eq!(copies(&nodes, "ks").values().sum::<usize>(), ROWS + gained, "former replicas keep their copies");
    nodes.iter().for_each(|node| node.post("/storage_service/keyspace_cleanup/ks").unwrap());
    assert!(each_has(&nodes, "ks", 1), "{:?}", copies(&nodes, "ks"));

    let mut leaver = nodes.remove(1);
    leaver.post("/storage_service/decommission").unwrap();
    all_see_all(&nodes);
    assert!(each_has(&nodes, "ks", 1), "{:?}", copies(&nodes, "ks"));
    leaver.kill();
    // They are on the disk.
    let before = held(&nodes[2]);
    nodes[2].kill();
    nodes[2].start();
    nodes[2].becomes("NORMAL");
    assert_eq!(held(&nodes[2]), before);
}

#[test]
fn replacing_node_gets_the_rows_of_the_dead_one() {
    let cluster = Cluster::new();
    let mut nodes = cluster.ring(3);
    fill(&nodes, 2);
    let (dead, had) = (nodes[2].host_id(), held(&nodes[2]));
    nodes.pop().unwrap().kill();
    until("the node to be down", || {
        if nodes.iter().all(|node| node.down().len() == 1) { Ok(()) } else { Err(String::new()) }
    });
    let mut fourth = cluster.node(4).with(&format!("--replace-node-first-boot={dead}"));
    fourth.start();
    fourth.becomes("NORMAL");
    assert_eq!(held(&fourth), had);
    nodes.push(fourth);
    assert!(each_has(&nodes, "ks", 2), "{:?}", copies(&nodes, "ks"));
}

#[test]
fn bootstrap_of_a_node_needs_a_source_for_each_range() {
    let cluster = Cluster::new();
    let nodes = cluster.ring(2);
    fill(&nodes, 1);
    // It takes part in the change of the ring, and streams nothing to the new node.
    let address = cluster.address(3).to_string();
    let mut third = cluster.node(3).with("--sim-bootstrap-duration=1s");
    third.start();
    until("it to begin", || if third.log().contains("step bootstrap-started") { Ok(()) } else { Err(third.log()) });
    nodes[1].simctl(&["refuse-from", &address]);
    third.fails("sufficient sources");
    assert_eq!(nodes[0].ring().len(), 2);
}

#[test]
fn writes_need_a_quorum_and_reach_a_node_that_was_down_later() {
    let cluster = Cluster::new();
    let mut nodes = cluster.ring(3);
    fill(&nodes, 3);
    nodes[2].kill();
    nodes[0].sees_down(&nodes[2]);
    write(&nodes[0], "ks", &json!({ "k0": "later" })).unwrap();
    let refused = write(&nodes[0], "none", &json!({ "k0": "later" })).unwrap_err();
    assert!(refused.contains("Can't find a keyspace none"), "{refused}");
    nodes[1].kill();
    nodes[0].sees_down(&nodes[1]);
    let refused = write(&nodes[0], "ks", &json!({ "k1": "later" })).unwrap_err();
    assert!(refused.contains("Requires 2, alive 1"), "{refused}");
    let k0 = |node: &Node| node.get("/sim/rows")["rows"]["ks"]["k0"]["value"].clone();
    nodes[2].start();
    nodes[2].becomes("NORMAL");
    until("the missed write", || match k0(&nodes[2]) {
        value if value == "later" => Ok(()),
        value => Err(value.to_string()),
    });
}

#[test]
fn cleanup_is_refused_while_a_node_gains_rows() {
    let cluster = Cluster::new();
    let nodes = cluster.ring(2);
    fill(&nodes, 1);
    let leaver = &nodes[1];
    leaver.simctl(&["decommission-duration", "1s"]);
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| leaver.post("/storage_service/decommission"));
        leaver.becomes("LEAVING");
        until("the other one to refuse", || match nodes[0].post("/storage_service/cleanup_all") {
            Err(refused) if refused.contains("when topology changes") => Ok(()),
            other => Err(format!("{other:?}")),
        });
        // A row that is written meanwhile goes to the node that will own it, too.
        write(&nodes[0], "ks", &json!({ "k0": "later" })).unwrap();
        assert_eq!(answer.join().unwrap(), Ok(()));
    });
    nodes[0].post("/storage_service/cleanup_all").unwrap();
    assert_eq!(held(&nodes[0]), ROWS);
    assert_eq!(nodes[0].get("/sim/rows")["rows"]["ks"]["k0"]["value"], json!("later"));
}
