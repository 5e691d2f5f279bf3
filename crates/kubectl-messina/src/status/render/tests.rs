use insta::assert_snapshot;
use serde_json::json;

use super::*;
use crate::status::model::{
    Datacenter,
    tests::{container, healthy, named, ring_node},
};

fn shown(datacenters: &[Datacenter]) -> String {
    shown_in(datacenters, Style::default())
}

fn shown_in(datacenters: &[Datacenter], style: Style) -> String {
    text(&Status::new(datacenters, vec![], Some("scylla".into())), style)
}

/// Checks the width of all lines except commands, which are not wrapped.
fn assert_fits(text: &str) {
    for line in text.lines().filter(|line| !line.starts_with("    kubectl") && !line.starts_with("    nodetool")) {
        assert!(line.chars().count() <= WIDTH, "{} columns: {line}", line.chars().count());
    }
}

const ZONES: [&str; 3] = ["us-east-1a", "us-east-1b", "us-east-1c"];

#[test]
fn healthy_cluster() {
    let shown = shown(&[healthy(&ZONES)]);
    assert_fits(&shown);
    assert_snapshot!(shown);
}

#[test]
fn node_down() {
    let mut datacenter = healthy(&ZONES);
    let waiting = json!({"waiting": {
        "reason": "CrashLoopBackOff",
        "message": "back-off 5m0s restarting failed container=scylla pod=orders-dc1-us-east-1b-0_scylla(6a2c)",
    }});
    datacenter.set_unready(1, "DN", &json!({"containerStatuses": [container("scylla", 7, &waiting)]}));
    datacenter.set_condition("Available", "False", "Sum", "");
    datacenter.set_condition("StatefulSetControllerAvailable", "False", "MembersNotReady", "2 of 3 node(s) are ready");
    datacenter.set_condition("Progressing", "True", "Sum", "");
    datacenter.set_condition(
        "StatefulSetControllerProgressing",
        "True",
        "WaitingForStatefulSetRollout",
        "StatefulSet scylla/orders-dc1-us-east-1b is rolling out: 0 of 1 node(s) are available; the next change begins \
         when all are",
    );
    let shown = shown(&[datacenter]);
    assert_fits(&shown);
    assert_snapshot!(shown);
}

#[test]
fn consequences_of_a_degraded_component_are_counted() {
    let mut datacenter = healthy(&["a"]);
    let rejected = "admission webhook denied RoleBinding scylla/orders-member";
    datacenter.set_condition("RoleBindingControllerDegraded", "True", "Forbidden", rejected);
    datacenter.set_condition("StatefulSetControllerAvailable", "False", "MembersNotReady", "0 of 1 node(s) are ready");
    datacenter.set_condition(
        "StatefulSetControllerProgressing",
        "True",
        "Waiting",
        "It needs RoleBindingController first.",
    );
    datacenter.set_condition("JobControllerProgressing", "True", "Waiting", "one\ntwo");
    let many = "1\n2\n3\n4";
    datacenter.set_condition("StorageControllerProgressing", "True", "ExpandingVolumes", many);
    let cluster = Status::new(&[datacenter], vec![], None).clusters.remove(0);
    let mut page = Page::new(Style::default());
    page.conditions(&cluster);
    assert_snapshot!(format!("Conditions:\n{}", page.text()), @r"
    Conditions:
      Degraded (RoleBinding, Forbidden): admission webhook denied RoleBinding
        scylla/orders-member.
      3 more messages follow from this, and 1 more message is not shown:
        kubectl messina why sdc/orders -n scylla --all
      Not available (StatefulSet, MembersNotReady): 0 of 1 node(s) are ready.
      Progressing (Storage, ExpandingVolumes): 1
        2
        3.
    ");
    assert_eq!(cluster.conditions.len(), 5, "the JSON document has all conditions");
}

#[test]
fn nodes_disagree() {
    let mut datacenter = healthy(&ZONES);
    datacenter.set_view(2, 0, "DN");
    let shown = shown(&[datacenter]);
    assert_fits(&shown);
    assert_snapshot!(shown);
}

#[test]
fn node_joins_and_another_has_no_pod() {
    let mut datacenter = healthy(&ZONES);
    datacenter.set_unready(1, "UJ", &json!({}));
    for answer in datacenter.answers.values_mut().flatten() {
        answer.nodes[1].host_id = None;
        answer.nodes[1].tokens = 0;
        answer.nodes.truncate(2);
    }
    datacenter.services.clear();
    datacenter.answers.remove("orders-dc1-us-east-1c-0");
    datacenter.pods.truncate(2);
    datacenter.set_condition("Available", "False", "MembersNotReady", "1 of 3 node(s) are ready");
    datacenter.set_condition("Progressing", "True", "Rollout", "rack us-east-1c is created when the others are there");
    let shown = shown(&[datacenter]);
    assert_fits(&shown);
    assert_snapshot!(shown);
}

#[test]
fn no_node_answers() {
    let mut datacenter = healthy(&["a", "b"]);
    datacenter.answers.clear();
    let answer = Err("it did not answer within 3 seconds".to_owned());
    datacenter.answers.insert("orders-dc1-a-0".into(), answer);
    datacenter.set_unready(
        1,
        "UN",
        &json!({"phase": "Pending", "podIP": null, "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient cpu. preemption: 0/3 nodes are available: 3 No \
                        preemption victims found for incoming pod.",
        }], "containerStatuses": []}),
    );
    let shown = shown(&[datacenter]);
    assert_fits(&shown);
    assert_snapshot!(shown);
}

#[test]
fn ring_node_without_pod_is_shown() {
    let mut datacenter = healthy(&["a"]);
    for answer in datacenter.answers.values_mut().flatten() {
        let mut gone = ring_node(9, "b");
        gone.state = "DN".into();
        answer.nodes.push(gone);
    }
    let shown = shown(&[datacenter]);
    assert_fits(&shown);
    assert_snapshot!(shown);
}

#[test]
fn long_names_move_the_columns_to_the_next_line() {
    let name = "warehouse-inventory-history";
    let shown = shown(&[named(name, &["europe-west-1-zone-a", "b"])]);
    assert_fits(&shown);
    assert_snapshot!(shown);
}

#[test]
fn no_datacenters_are_found() {
    assert_snapshot!(shown(&[]), @r"
    There are no ScyllaDBDatacenters in namespace scylla.
    Use -A to search all namespaces.
    ");
    assert_snapshot!(text(&Status::new(&[], vec![], None), Style::default()), @"There are no ScyllaDBDatacenters in any namespace.");
}

#[test]
fn missing_permissions_are_reported() {
    let mut datacenter = healthy(&["a"]);
    datacenter.answers.insert("orders-dc1-a-0".into(), Err("you may not query it".into()));
    let problem = "You may not get pods/proxy in namespace scylla, so the state of nodes in ScyllaDB is unknown: ask for \
                   that permission.";
    let shown = text(&Status::new(&[datacenter], vec![problem.into()], None), Style::default());
    assert_fits(&shown);
    assert_snapshot!(shown);
}

#[test]
fn refused_specification() {
    let mut datacenter = healthy(&["a"]);
    datacenter.object.metadata.generation = Some(2);
    let message = "spec.racks[1].name: is a duplicate\nspec.racks[1].nodes: must not be negative";
    datacenter.set_condition("ObservationDegraded", "True", "InvalidSpecification", message);
    datacenter.set_condition("Degraded", "True", "InvalidSpecification", "the sum");
    for condition in datacenter.object.status.iter_mut().flat_map(|status| status.conditions.iter_mut().flatten()) {
        condition.observed_generation = Some(2);
    }
    let shown = shown(&[datacenter]);
    assert_fits(&shown);
    assert_snapshot!(shown);
}

#[test]
fn pods_that_may_not_be_listed_are_not_reported_as_missing() {
    let mut datacenter = healthy(&["a"]);
    (datacenter.pods, datacenter.pods_known) = (vec![], false);
    datacenter.answers.clear();
    let shown = shown(&[datacenter]);
    assert!(shown.contains("a  ?/1 ready") && !shown.contains("no pod yet"), "{shown}");
}

#[test]
fn object_without_status() {
    let mut datacenter = healthy(&["a", "b"]);
    datacenter.object.status = None;
    datacenter.pods.clear();
    datacenter.answers.clear();
    let shown = shown(&[datacenter]);
    assert_fits(&shown);
    assert_snapshot!(shown);
}

#[test]
fn colours_and_ascii_change_only_the_style() {
    let mut datacenter = healthy(&["a", "b"]);
    datacenter.set_view(0, 1, "DN");
    let plain = shown(std::slice::from_ref(&datacenter));
    assert!(!plain.contains('\x1b'));
    let coloured = shown_in(std::slice::from_ref(&datacenter), Style { colours: true, ascii: false });
    assert!(coloured.contains("\x1b[32mUN\x1b[0m") && coloured.contains("\x1b[31mDN\x1b[0m"), "{coloured}");
    let mut stripped = coloured;
    for code in ["0", "1", "2", "31", "32", "33"] {
        stripped = stripped.replace(&format!("\x1b[{code}m"), "");
    }
    assert_eq!(stripped, plain, "colours change nothing but the colour");
    let ascii = shown_in(&[datacenter], Style { colours: false, ascii: true });
    assert!(ascii.is_ascii(), "{ascii}");
}
