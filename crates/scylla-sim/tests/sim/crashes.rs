//! A node that crashes at a step and is restarted either continues or is refused.

use crate::harness::{Cluster, Node, until};

/// Starts a node that crashes at a step.
fn crash_at(node: &mut Node) {
    node.start();
    assert_eq!(node.ended().code(), Some(137), "{}", node.log());
}

#[test]
fn crash_during_a_bootstrap() {
    let cluster = Cluster::new();
    let nodes = cluster.ring(1);
    let steps = [
        ("bootstrap-started", false),
        ("bootstrap-streamed", false),
        ("bootstrap-announced", true),
        ("bootstrap-finished", true),
    ];
    for (number, (step, is_in)) in (2..).zip(steps) {
        let before = nodes[0].ring().len();
        let mut joiner = cluster.node(number).with(&format!("--sim-crash-at={step}"));
        crash_at(&mut joiner);
        assert_eq!(nodes[0].ring().len() - before, usize::from(is_in), "after a crash at {step}");
        let expected = if step == "bootstrap-finished" { "COMPLETED" } else { "IN_PROGRESS" };
        assert_eq!(joiner.bootstrapped().as_deref(), Some(expected), "after a crash at {step}");
        joiner.start();
        joiner.becomes("NORMAL");
        assert!(nodes[0].ring().contains(&joiner.host_id()), "{step}");
        assert_eq!(nodes[0].ring().len() - before, 1, "{step}");
        assert_eq!(nodes[0].tokens(joiner.address), joiner.tokens(joiner.address), "{step}");
        // Another node could not join before it is up again.
        nodes[0].sees_up(&joiner);
        until("it is gone again", || joiner.post("/storage_service/decommission"));
    }
}

#[test]
fn crash_during_a_decommission() {
    let cluster = Cluster::new();
    let nodes = cluster.ring(1);
    let steps = [
        ("decommission-started", true),
        ("decommission-streamed", true),
        ("decommission-left", false),
        ("decommission-finished", false),
    ];
    for (number, (step, is_in)) in (2..).zip(steps) {
        let mut leaver = cluster.node(number);
        leaver.start();
        leaver.becomes("NORMAL");
        leaver.sees_up(&nodes[0]);
        nodes[0].sees_up(&leaver);
        leaver.simctl(&["crash-at", step]);
        assert!(leaver.post("/storage_service/decommission").is_err());
        assert_eq!(leaver.ended().code(), Some(137), "{step}");
        leaver.start();
        if is_in {
            leaver.becomes("NORMAL");
            leaver.sees_up(&nodes[0]);
            nodes[0].sees_up(&leaver);
            assert_eq!(nodes[0].ring().len(), 2, "{step}");
            until("it is gone again", || leaver.post("/storage_service/decommission"));
        } else {
            leaver.fails("will not rejoin the ring");
        }
        assert_eq!(nodes[0].ring().len(), 1, "{step}");
    }
}

#[test]
fn crash_during_a_replacement() {
    let cluster = Cluster::new();
    let mut nodes = cluster.ring(2);
    let mut replaced = nodes.pop().unwrap();
    let steps = [
        ("replace-started", false),
        ("replace-streamed", false),
        ("replace-announced", true),
        ("replace-finished", true),
    ];
    for (number, (step, is_in)) in (3..).zip(steps) {
        let (dead, tokens) = (replaced.host_id(), nodes[0].tokens(replaced.address));
        replaced.kill();
        nodes[0].sees_down(&replaced);
        let mut replacement = cluster
            .node(number)
            .with(&format!("--sim-crash-at={step}"))
            .with(&format!("--replace-node-first-boot={dead}"));
        crash_at(&mut replacement);
        assert_eq!(nodes[0].ring().len(), 2, "{step}");
        assert_eq!(!nodes[0].ring().contains(&dead), is_in, "{step}");
        replacement.start();
        replacement.becomes("NORMAL");
        assert_eq!(nodes[0].ring().len(), 2, "{step}");
        assert_eq!(nodes[0].tokens(replacement.address), tokens, "{step}");
        nodes[0].sees_up(&replacement);
        replaced = replacement;
    }
}

#[test]
fn crash_during_a_removal() {
    let steps = [
        ("removenode-started", true),
        ("removenode-streamed", true),
        ("removenode-announced", false),
        ("removenode-finished", false),
    ];
    for (step, is_in) in steps {
        let cluster = Cluster::new();
        let mut nodes = cluster.ring(3);
        let dead = nodes[2].host_id();
        nodes[2].kill();
        nodes[0].sees_down(&nodes[2]);
        nodes[1].sees_down(&nodes[2]);
        nodes[0].simctl(&["crash-at", step]);
        let path = format!("/storage_service/remove_node?host_id={dead}");
        assert!(nodes[0].post(&path).is_err());
        assert_eq!(nodes[0].ended().code(), Some(137));
        assert_eq!(nodes[1].ring().contains(&dead), is_in, "{step}");
        nodes[0].start();
        nodes[0].becomes("NORMAL");
        nodes[0].sees_up(&nodes[1]);
        nodes[1].sees_up(&nodes[0]);
        until("both say the same", || {
            if nodes[0].ring().contains(&dead) == is_in { Ok(()) } else { Err(format!("{:?}", nodes[0].ring())) }
        });
        if is_in {
            until("it is removed", || nodes[0].post(&path));
            assert!(!nodes[1].ring().contains(&dead));
        }
    }
}
