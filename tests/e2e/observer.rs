//! Tests of the observer's rules, with made-up logs and nodes.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use messina_e2e::observer::{
    log::Write,
    rules::{Disk, PodSeen, Rule, RuleChecker, Sample, Stage, Violation},
};
use messina_scylla_sim::data::{Cell, Copies, Keyspace, Owner, Row, token_of};
use serde_json::{Value, json};

const OPERATOR: &str = "system:serviceaccount:messina:messina";
const SETS: &str = "system:serviceaccount:kube-system:statefulset-controller";
const PERSON: &str = "kubernetes-admin";

/// A line of the log, and what is read from it.
fn write(user: &str, verb: &str, resource: &str, name: &str, body: Value, result: Value) -> Write {
    coded(200, user, verb, resource, name, body, result)
}

fn coded(code: u16, user: &str, verb: &str, resource: &str, name: &str, body: Value, result: Value) -> Write {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let line = json!({
        "kind": "Event", "stage": "ResponseComplete", "verb": verb, "user": {"username": user},
        "objectRef": {"resource": resource, "subresource": subresource, "namespace": "life", "name": name},
        "responseStatus": {"code": code}, "requestObject": body, "responseObject": result,
        "requestReceivedTimestamp": "2026-01-01T00:00:01.000000Z", "stageTimestamp": "2026-01-01T00:00:02.000000Z",
    });
    Write::read(&line.to_string()).unwrap()
}

fn deletes(user: &str, resource: &str, name: &str) -> Write {
    write(user, "delete", resource, name, json!({}), Value::Null)
}

fn creates_pod(name: &str) -> Write {
    write(SETS, "create", "pods", name, json!({}), json!({"metadata": {"name": name}}))
}

fn set(user: &str, name: &str, replicas: u64) -> Write {
    write(user, "patch", "statefulsets", name, json!({}), json!({"spec": {"replicas": replicas}}))
}

fn service(user: &str, name: &str, labels: Value, annotations: Value) -> Write {
    let result = json!({"metadata": {"resourceVersion": "7", "labels": labels, "annotations": annotations}});
    write(user, "patch", "services", name, json!({}), result)
}

fn asks_to_leave(name: &str, host: &str) -> Write {
    let annotations = json!({
        "internal.scylla-operator.scylladb.com/host-id": host,
        "messina.scylladb.com/leaving-host-id": host,
    });
    service(OPERATOR, name, json!({}), annotations)
}

/// Nodes with these names are up, in the ring, and know each other. The host ID of `a-0` is `host a-0`.
fn ring(members: &[&str]) -> Sample {
    let host = |member: &&str| format!("host {member}");
    let knows: BTreeMap<String, bool> = members.iter().map(|member| (host(member), true)).collect();
    let disk = |member: &&str| {
        let disk = Disk { host: Some(host(member)), stage: Stage::Joined, knows: knows.clone(), ..Disk::default() };
        (format!("data-{member}"), disk)
    };
    let pod = |member: &&str| ((*member).to_owned(), PodSeen { uid: "first".into(), is_ready: true });
    Sample {
        began: Timestamp::UNIX_EPOCH,
        ended: Timestamp::UNIX_EPOCH,
        disks: members.iter().map(disk).collect(),
        pods: members.iter().map(pod).collect(),
        budget: Some(1),
    }
}

fn is_down(mut sample: Sample, member: &str) -> Sample {
    sample.pods.get_mut(member).unwrap().is_ready = false;
    sample
}

fn has_left(mut sample: Sample, member: &str) -> Sample {
    for disk in sample.disks.values_mut() {
        disk.knows.insert(format!("host {member}"), false);
    }
    sample.disks.get_mut(&format!("data-{member}")).unwrap().stage = Stage::Left;
    sample
}

fn joins(mut sample: Sample, member: &str) -> Sample {
    sample.disks.insert(format!("data-{member}"), Disk::default());
    sample.pods.insert(member.into(), PodSeen { uid: "first".into(), is_ready: false });
    sample
}

/// The violations of these writes between two equal samples, with StatefulSets `a` of three nodes and `b` of one.
fn check_writes(sample: &Sample, writes: &[Write]) -> Vec<Violation> {
    let mut checker = RuleChecker::default();
    let known = [set(OPERATOR, "a", 3), set(OPERATOR, "b", 1)];
    assert_eq!(checker.check(sample, sample, &known), []);
    checker.check(sample, sample, writes)
}

fn rules(violations: &[Violation]) -> Vec<Rule> {
    violations.iter().map(|violation| violation.rule).collect()
}

const NODES: &[&str] = &["a-0", "a-1", "a-2", "b-0"];

#[test]
fn deleting_claim_or_service_of_a_token_owner_is_a_violation() {
    let nodes = ring(NODES);
    assert_eq!(
        check_writes(&nodes, &[deletes(OPERATOR, "pods", "a-2")]),
        [],
        "its StatefulSet recreates the pod on its disk"
    );
    for (resource, name) in [("persistentvolumeclaims", "data-a-2"), ("services", "a-2")] {
        let violations = check_writes(&nodes, &[deletes(OPERATOR, resource, name)]);
        assert_eq!(rules(&violations), [Rule::Data], "{resource}");
        let text = violations[0].to_string();
        let words = ["2026-01-01T00:00:02Z", "delete", resource, "life/", name, OPERATOR, "Data", "host a-2"];
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
        assert_eq!(check_writes(&nodes, &[deletes(PERSON, resource, name)]), [], "a user may do that");
        let refused = coded(409, OPERATOR, "delete", resource, name, json!({}), Value::Null);
        assert_eq!(check_writes(&nodes, &[refused]), [], "the request was refused");
        assert_eq!(
            check_writes(&has_left(nodes.clone(), "a-2"), &[deletes(OPERATOR, resource, name)]),
            [],
            "it has left"
        );
        let of_node_down = check_writes(&is_down(nodes.clone(), "a-2"), &[deletes(OPERATOR, resource, name)]);
        assert_eq!(rules(&of_node_down), [Rule::Data], "it may come back: {resource}");
    }
}

#[test]
fn one_member_confirms_that_a_node_has_left() {
    let mut nodes = ring(NODES);
    let deletion = [deletes(OPERATOR, "persistentvolumeclaims", "data-a-2")];
    // What the node says about itself does not count.
    nodes.disks.get_mut("data-a-2").unwrap().stage = Stage::Left;
    assert_eq!(rules(&check_writes(&nodes, &deletion)), [Rule::Data]);
    nodes.disks.get_mut("data-b-0").unwrap().knows.insert("host a-2".into(), false);
    assert_eq!(check_writes(&nodes, &deletion), []);
}

#[test]
fn claim_of_a_down_node_may_be_deleted_when_replacement_is_requested() {
    let label = |name: &str| service(PERSON, name, json!({"scylla/replace": ""}), json!({}));
    let given_up = |label: Write| {
        [label, deletes(OPERATOR, "persistentvolumeclaims", "data-a-2"), deletes(OPERATOR, "pods", "a-2")]
    };
    let down = is_down(ring(NODES), "a-2");
    assert_eq!(check_writes(&down, &given_up(label("a-2"))), []);
    assert_eq!(rules(&check_writes(&down, &given_up(label("a-1")))), [Rule::Data], "another node is to be replaced");
    assert_eq!(rules(&check_writes(&ring(NODES), &given_up(label("a-2"))))[0], Rule::Data, "it is up");
}

#[test]
fn stateful_set_keeps_replicas_for_token_owners() {
    let nodes = ring(NODES);
    assert_eq!(rules(&check_writes(&nodes, &[set(OPERATOR, "a", 1)])), [Rule::Replicas; 2]);
    assert_eq!(rules(&check_writes(&nodes, &[deletes(OPERATOR, "statefulsets", "a")])), [Rule::Replicas; 3]);
    assert_eq!(check_writes(&has_left(nodes.clone(), "a-2"), &[set(OPERATOR, "a", 2)]), []);
    let orphans = json!({"propagationPolicy": "Orphan"});
    let leaves_pods = write(OPERATOR, "delete", "statefulsets", "a", orphans, Value::Null);
    assert_eq!(check_writes(&nodes, &[leaves_pods.clone(), set(OPERATOR, "a", 3)]), []);
    assert_eq!(
        rules(&check_writes(&nodes, &[leaves_pods, set(OPERATOR, "a", 2)])),
        [Rule::Replicas],
        "recreated with fewer replicas"
    );
}

#[test]
fn consequences_of_a_users_change_are_no_violation() {
    let nodes = ring(NODES);
    assert_eq!(check_writes(&nodes, &[set(PERSON, "a", 2), deletes(SETS, "pods", "a-2"), set(OPERATOR, "a", 3)]), []);
    assert_eq!(
        rules(&check_writes(&nodes, &[set(OPERATOR, "a", 2), deletes(SETS, "pods", "a-2")])),
        [Rule::Replicas, Rule::Data]
    );
}

#[test]
fn nodes_join_and_leave_one_at_a_time() {
    let joining = joins(ring(NODES), "a-3");
    let with = |other: Write| rules(&check_writes(&joining, &[creates_pod("a-3"), other]));
    assert_eq!(with(creates_pod("c-0")), [Rule::OneChange], "two join");
    assert_eq!(with(asks_to_leave("b-0", "host b-0")), [Rule::OneChange], "one node joins, another leaves");
    assert_eq!(with(creates_pod("a-3")), [], "it is the same node");
    let both = [asks_to_leave("a-2", "host a-2"), asks_to_leave("b-0", "host b-0")];
    assert_eq!(rules(&check_writes(&ring(NODES), &both)), [Rule::OneChange], "two leave");
    let replacing = json!({"internal.scylla-operator.scylladb.com/replacing-node-hostid": "host a-2"});
    let replaced = service(OPERATOR, "a-2", replacing, json!({}));
    let down = is_down(ring(NODES), "a-2");
    assert_eq!(
        rules(&check_writes(&down, &[replaced.clone(), creates_pod("c-0")])),
        [Rule::OneChange],
        "one is replaced"
    );
    let over = service(OPERATOR, "a-2", json!({}), json!({}));
    assert_eq!(check_writes(&down, &[replaced, over, creates_pod("c-0")]), [], "the replacement is complete");
}

#[test]
fn topology_change_ends_when_the_ring_confirms_it() {
    let mut checker = RuleChecker::default();
    let (four, joining) = (ring(NODES), joins(ring(NODES), "c-0"));
    assert_eq!(checker.check(&four, &joining, &[creates_pod("c-0")]), []);
    let five = ring(&[NODES, &["c-0"]].concat());
    assert_eq!(checker.check(&joining, &five, &[asks_to_leave("a-2", "host a-2")]), []);
    let gone = has_left(five.clone(), "a-2");
    assert_eq!(checker.check(&five, &gone, &[creates_pod("d-0")]), []);
    assert_eq!((checker.counts.joins, checker.counts.departures), (2, 1));
    // A pod that is recreated on the disk of a ring member does not change the ring.
    assert_eq!(checker.check(&gone, &gone, &[creates_pod("b-0")]), []);
    assert_eq!(checker.counts.joins, 2);
}

#[test]
fn restarts_respect_the_disruption_budget() {
    let restart = |name: &str| deletes(SETS, "pods", name);
    assert_eq!(check_writes(&ring(NODES), &[restart("a-2")]), []);
    assert_eq!(rules(&check_writes(&ring(NODES), &[restart("a-2"), restart("a-1")])), [Rule::Budget], "two at once");
    assert_eq!(
        rules(&check_writes(&is_down(ring(NODES), "b-0"), &[restart("a-2")])),
        [Rule::Budget],
        "a node of another rack is down"
    );
    assert_eq!(check_writes(&is_down(ring(NODES), "a-2"), &[restart("a-2")]), [], "it is the one that is down");
    assert_eq!(check_writes(&joins(ring(NODES), "c-0"), &[restart("a-2")]), [], "a joining node does not count");
    let mut no_disk = ring(NODES);
    no_disk.disks.insert("data-b-0".into(), Disk::default());
    assert_eq!(rules(&check_writes(&no_disk, &[restart("a-2")])), [Rule::Budget], "one has lost its disk");
    let mut more = ring(NODES);
    more.budget = Some(2);
    assert_eq!(check_writes(&more, &[restart("a-2"), restart("a-1")]), []);
}

#[test]
fn pod_that_is_ready_again_is_up() {
    let mut checker = RuleChecker::default();
    let nodes = ring(NODES);
    assert_eq!(checker.check(&nodes, &nodes, &[set(OPERATOR, "a", 3), deletes(SETS, "pods", "a-2")]), []);
    let mut again = nodes.clone();
    again.pods.insert("a-2".into(), PodSeen { uid: "second".into(), is_ready: true });
    assert_eq!(checker.check(&nodes, &again, &[deletes(SETS, "pods", "a-1")]), []);
}

#[test]
fn reads_are_not_parsed_as_writes() {
    let line = json!({"verb": "list", "stage": "ResponseComplete", "user": {"username": OPERATOR}});
    assert!(Write::read(&line.to_string()).is_none());
}

/// A row that these members hold.
fn with_row(mut sample: Sample, key: &str, members: &[&str]) -> Sample {
    for (claim, disk) in &mut sample.disks {
        let member = claim.strip_prefix("data-").unwrap();
        let mut copies = Copies::clone(&disk.copies);
        copies.keyspaces.insert("ks".into(), Keyspace::new("ks", &[("dc", 2)]));
        if members.contains(&member) {
            let cell = Cell { written: 1, value: "value".into() };
            assert!(copies.put(Row { keyspace: "ks".into(), key: key.into(), cell }));
        }
        disk.copies = Arc::new(copies);
        disk.owner = Some(Owner {
            host: format!("host {member}"),
            datacenter: "dc".into(),
            rack: member.into(),
            tokens: vec![token_of(member)],
        });
    }
    sample
}

/// The violations of these samples, one after another, for a row that was acknowledged before.
fn check_row_samples(key: &str, samples: &[&Sample], writes: &[Write]) -> Vec<Violation> {
    let mut checker = RuleChecker::default();
    checker.rows.lock().unwrap().acknowledge("ks", key, "value", Timestamp::UNIX_EPOCH);
    let pairs = samples.windows(2).enumerate();
    pairs.flat_map(|(number, pair)| checker.check(pair[0], pair[1], if number == 1 { writes } else { &[] })).collect()
}

fn without_disk(mut sample: Sample, member: &str) -> Sample {
    sample.disks.remove(&format!("data-{member}"));
    sample
}

#[test]
fn row_without_a_replica_is_lost_whichever_user_caused_it() {
    let held = with_row(ring(NODES), "k", &["a-0", "a-2"]);
    let deletion = [deletes(PERSON, "persistentvolumeclaims", "data-a-2")];
    let one_left = without_disk(held.clone(), "a-2");
    assert_eq!(check_row_samples("k", &[&held, &held, &one_left, &one_left], &deletion), [], "a-0 has it");
    let none_left = without_disk(one_left.clone(), "a-0");
    let violations = check_row_samples("k", &[&held, &held, &none_left, &none_left, &none_left], &deletion);
    assert_eq!(rules(&violations), [Rule::Rows], "it is reported once");
    let text = violations[0].to_string();
    let words = ["row ks.k", "a-0, a-2", "delete persistentvolumeclaims life/data-a-2", PERSON, "2026-01-01T00:00:02Z"];
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

#[test]
fn row_is_lost_only_after_two_samples_without_it() {
    let (here, there) = (with_row(ring(NODES), "k", &["a-2"]), with_row(ring(NODES), "k", &["a-0"]));
    // One disk was read before the row was written there, and the other after its node had left.
    let between = has_left(with_row(ring(NODES), "k", &["a-2"]), "a-2");
    assert_eq!(check_row_samples("k", &[&here, &between, &there, &there], &[]), []);
    assert_eq!(rules(&check_row_samples("k", &[&here, &between, &between], &[])), [Rule::Rows]);
}

#[test]
fn nodes_that_have_left_hold_no_replicas() {
    // All nodes of the rack were decommissioned in order, and the ring agrees. Their claims are still there.
    let rack = ["a-0", "a-1", "a-2"];
    let held = with_row(ring(NODES), "k", &rack);
    let left = rack.iter().fold(held.clone(), |sample, member| has_left(sample, member));
    assert_eq!(rules(&check_row_samples("k", &[&held, &left, &left], &[])), [Rule::Rows]);
    let two_left = has_left(has_left(held.clone(), "a-2"), "a-1");
    assert_eq!(check_row_samples("k", &[&held, &two_left, &two_left], &[]), []);
}

#[test]
fn another_value_is_not_a_replica() {
    let held = with_row(ring(NODES), "k", &["a-2"]);
    let mut checker = RuleChecker::default();
    checker.rows.lock().unwrap().acknowledge("ks", "k", "a later one", Timestamp::UNIX_EPOCH);
    assert_eq!(rules(&checker.check(&held, &held, &[])), [Rule::Rows]);
}

#[test]
fn replicas_are_counted_where_the_ring_places_them() {
    let members = ["a-0", "a-1", "a-2", "b-0"];
    let keyspace = Keyspace::new("ks", &[("dc", 2)]);
    let checker = RuleChecker::default();
    checker.rows.lock().unwrap().acknowledge("ks", "k", "value", Timestamp::UNIX_EPOCH);
    let count = |sample: &Sample| sample.under_replicated(&checker.rows.lock().unwrap()).len();
    let all = with_row(ring(NODES), "k", &members);
    assert_eq!(count(&all), 0);
    let owners = all.disks.values().filter_map(|disk| disk.owner.clone());
    let ring_of_all = messina_scylla_sim::data::Ring::of(owners);
    let replicas: Vec<&str> =
        ring_of_all.replicas(&keyspace, "k").into_iter().map(|host| host.strip_prefix("host ").unwrap()).collect();
    let others: Vec<&str> = members.into_iter().filter(|member| !replicas.contains(member)).collect();
    assert_eq!((replicas.len(), others.len()), (2, 2));
    assert_eq!(count(&with_row(ring(NODES), "k", &replicas)), 0);
    assert_eq!(count(&with_row(ring(NODES), "k", &others)), 1, "nodes that are no replicas hold it");
    assert_eq!(count(&is_down(with_row(ring(NODES), "k", &replicas), replicas[0])), 1, "one is not live");
    assert_eq!(count(&without_disk(with_row(ring(NODES), "k", &replicas), replicas[1])), 1);
}
