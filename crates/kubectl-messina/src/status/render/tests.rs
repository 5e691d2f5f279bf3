use insta::assert_snapshot;
use serde_json::json;

use super::*;
use crate::status::model::{
    Datacenter,
    tests::{container, healthy, named, ring_node},
};

fn shown(datacenters: &[Datacenter]) -> String {
    shown_in(datacenters, Look::default())
}

fn shown_in(datacenters: &[Datacenter], look: Look) -> String {
    text(&Status::new(datacenters, vec![], Some("scylla".into())), look)
}

/// Whatever can be broken is broken; commands are copied, so they are not.
fn fits(text: &str) {
    for line in text.lines().filter(|line| !line.starts_with("    kubectl") && !line.starts_with("    nodetool")) {
        assert!(line.chars().count() <= WIDTH, "{} columns: {line}", line.chars().count());
    }
}

const ZONES: [&str; 3] = ["us-east-1a", "us-east-1b", "us-east-1c"];

#[test]
fn all_is_well() {
    let shown = shown(&[healthy(&ZONES)]);
    fits(&shown);
    assert_snapshot!(shown);
}

#[test]
fn one_node_is_down() {
    let mut datacenter = healthy(&ZONES);
    let waiting = json!({"waiting": {
        "reason": "CrashLoopBackOff",
        "message": "back-off 5m0s restarting failed container=scylla pod=orders-dc1-us-east-1b-0_scylla(6a2c)",
    }});
    datacenter.ails(1, "DN", &json!({"containerStatuses": [container("scylla", 7, &waiting)]}));
    datacenter.has_condition("Available", "False", "Sum", "");
    datacenter.has_condition("StatefulSetControllerAvailable", "False", "MembersNotReady", "2 of 3 node(s) are ready");
    datacenter.has_condition("Progressing", "True", "Sum", "");
    datacenter.has_condition(
        "StatefulSetControllerProgressing",
        "True",
        "WaitingForStatefulSetRollout",
        "StatefulSet scylla/orders-dc1-us-east-1b is rolling out: 0 of 1 node(s) are available; the next change begins \
         when all are",
    );
    let shown = shown(&[datacenter]);
    fits(&shown);
    assert_snapshot!(shown);
}

#[test]
fn nodes_disagree() {
    let mut datacenter = healthy(&ZONES);
    datacenter.sees(2, 0, "DN");
    let shown = shown(&[datacenter]);
    fits(&shown);
    assert_snapshot!(shown);
}

#[test]
fn a_node_joins_and_another_is_to_come() {
    let mut datacenter = healthy(&ZONES);
    datacenter.ails(1, "UJ", &json!({}));
    for answer in datacenter.answers.values_mut().flatten() {
        answer.nodes[1].host_id = None;
        answer.nodes[1].tokens = 0;
        answer.nodes.truncate(2);
    }
    datacenter.services.clear();
    datacenter.answers.remove("orders-dc1-us-east-1c-0");
    datacenter.pods.truncate(2);
    datacenter.has_condition("Available", "False", "MembersNotReady", "1 of 3 node(s) are ready");
    datacenter.has_condition("Progressing", "True", "Rollout", "rack us-east-1c is created when the others are there");
    let shown = shown(&[datacenter]);
    fits(&shown);
    assert_snapshot!(shown);
}

#[test]
fn nothing_answers() {
    let mut datacenter = healthy(&["a", "b"]);
    datacenter.answers.clear();
    let answer = Err("it did not answer within 3 seconds".to_owned());
    datacenter.answers.insert("orders-dc1-a-0".into(), answer);
    datacenter.ails(
        1,
        "UN",
        &json!({"phase": "Pending", "podIP": null, "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient cpu. preemption: 0/3 nodes are available: 3 No \
                        preemption victims found for incoming pod.",
        }], "containerStatuses": []}),
    );
    let shown = shown(&[datacenter]);
    fits(&shown);
    assert_snapshot!(shown);
}

#[test]
fn a_node_without_a_pod_is_shown() {
    let mut datacenter = healthy(&["a"]);
    for answer in datacenter.answers.values_mut().flatten() {
        let mut gone = ring_node(9, "b");
        gone.state = "DN".into();
        answer.nodes.push(gone);
    }
    let shown = shown(&[datacenter]);
    fits(&shown);
    assert_snapshot!(shown);
}

#[test]
fn long_names_have_their_facts_below() {
    let name = "warehouse-inventory-history";
    let shown = shown(&[named(name, &["europe-west-1-zone-a", "b"])]);
    fits(&shown);
    assert_snapshot!(shown);
}

#[test]
fn nothing_is_there() {
    assert_snapshot!(shown(&[]), @r"
    There are no ScyllaDBDatacenters in namespace scylla.
    Look in all namespaces with -A.
    ");
    assert_snapshot!(text(&Status::new(&[], vec![], None), Look::default()), @"There are no ScyllaDBDatacenters in any namespace.");
}

#[test]
fn what_may_not_be_seen_is_told() {
    let mut datacenter = healthy(&["a"]);
    datacenter.answers.insert("orders-dc1-a-0".into(), Err("you may not ask it".into()));
    let problem = "You may not get pods/proxy in namespace scylla, so it is not known how ScyllaDB sees its nodes: ask \
                   for that permission.";
    let shown = text(&Status::new(&[datacenter], vec![problem.into()], None), Look::default());
    fits(&shown);
    assert_snapshot!(shown);
}

#[test]
fn a_specification_that_is_refused() {
    let mut datacenter = healthy(&["a"]);
    datacenter.object.metadata.generation = Some(2);
    let message = "spec.racks[1].name: is a duplicate\nspec.racks[1].nodes: must not be negative";
    datacenter.has_condition("ObservationDegraded", "True", "InvalidSpecification", message);
    datacenter.has_condition("Degraded", "True", "InvalidSpecification", "the sum");
    for condition in datacenter.object.status.iter_mut().flat_map(|status| status.conditions.iter_mut().flatten()) {
        condition.observed_generation = Some(2);
    }
    let shown = shown(&[datacenter]);
    fits(&shown);
    assert_snapshot!(shown);
}

#[test]
fn pods_that_may_not_be_listed_are_not_missing() {
    let mut datacenter = healthy(&["a"]);
    (datacenter.pods, datacenter.knows_pods) = (vec![], false);
    datacenter.answers.clear();
    let shown = shown(&[datacenter]);
    assert!(shown.contains("a  ?/1 ready") && !shown.contains("no pod yet"), "{shown}");
}

#[test]
fn a_new_object_that_no_operator_has_seen() {
    let mut datacenter = healthy(&["a", "b"]);
    datacenter.object.status = None;
    datacenter.pods.clear();
    datacenter.answers.clear();
    let shown = shown(&[datacenter]);
    fits(&shown);
    assert_snapshot!(shown);
}

#[test]
fn colours_and_letters_are_a_matter_of_choice() {
    let mut datacenter = healthy(&["a", "b"]);
    datacenter.sees(0, 1, "DN");
    let plain = shown(std::slice::from_ref(&datacenter));
    assert!(!plain.contains('\x1b'));
    let coloured = shown_in(std::slice::from_ref(&datacenter), Look { colours: true, ascii: false });
    assert!(coloured.contains("\x1b[32mUN\x1b[0m") && coloured.contains("\x1b[31mDN\x1b[0m"), "{coloured}");
    let mut stripped = coloured;
    for code in ["0", "1", "2", "31", "32", "33"] {
        stripped = stripped.replace(&format!("\x1b[{code}m"), "");
    }
    assert_eq!(stripped, plain, "colours change nothing but the colour");
    let ascii = shown_in(&[datacenter], Look { colours: false, ascii: true });
    assert!(ascii.is_ascii(), "{ascii}");
}
