#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};

use super::*;

/// A datacenter whose racks have one node each. All nodes are up, and agree on the ring.
pub(in crate::status) fn healthy(racks: &[&str]) -> Datacenter {
    named("orders", racks)
}

pub(in crate::status) fn named(name: &str, racks: &[&str]) -> Datacenter {
    let specs: Vec<Value> = racks.iter().map(|rack| json!({"name": rack, "nodes": 1})).collect();
    let condition = |name: &str, status: &str| {
        json!({"type": name, "status": status, "reason": "AsExpected", "message": "",
            "lastTransitionTime": "2030-01-01T00:00:00Z"})
    };
    let object = json!({
        "metadata": {"name": name, "namespace": "scylla", "generation": 1},
        "spec": {"datacenterName": "dc1", "racks": specs},
        "status": {
            "observedGeneration": 1, "currentVersion": "2026.2.4", "updatedVersion": "2026.2.4",
            "conditions": [
                condition("Available", "True"), condition("Progressing", "False"), condition("Degraded", "False"),
            ],
        },
    });
    let mut datacenter = Datacenter {
        object: serde_json::from_value(object).unwrap(),
        pods: Vec::new(),
        pods_known: true,
        services: Vec::new(),
        answers: BTreeMap::new(),
    };
    for (number, rack) in racks.iter().enumerate() {
        let pod = format!("{name}-dc1-{rack}-0");
        datacenter.pods.push(pod_of(&pod, rack, number));
        let ring = Ring {
            host_id: host_id(number),
            version: "2026.2.4".into(),
            nodes: racks.iter().enumerate().map(|(number, rack)| ring_node(number, rack)).collect(),
        };
        datacenter.answers.insert(pod, Ok(ring));
    }
    datacenter
}

pub(in crate::status) fn host_id(number: usize) -> String {
    format!("{number}f3e4a5b-0000-4000-8000-000000000000")
}

pub(in crate::status) fn ring_node(number: usize, rack: &str) -> RingNode {
    RingNode {
        address: format!("10.96.1.{number}"),
        host_id: Some(host_id(number)),
        state: "UN".into(),
        datacenter: "dc1".into(),
        rack: rack.into(),
        tokens: 16,
    }
}

fn pod_of(name: &str, rack: &str, number: usize) -> Pod {
    let pod = json!({
        "metadata": {"name": name, "namespace": "scylla", "labels": {"scylla/rack": rack}},
        "status": {
            "phase": "Running", "podIP": format!("10.96.1.{number}"),
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [container("scylla", 0, &json!({"running": {}}))],
        },
    });
    serde_json::from_value(pod).unwrap()
}

pub(in crate::status) fn container(name: &str, restarts: i32, state: &Value) -> Value {
    json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": restarts, "state": state})
}

impl Datacenter {
    /// Makes the node at this position not ready, merges `status` into its pod's status, and has all others see it in `state`.
    pub(in crate::status) fn set_unready(&mut self, number: usize, state: &str, status: &Value) {
        let pod = &mut self.pods[number];
        let mut all = serde_json::to_value(pod.status.clone()).unwrap();
        all["conditions"] = json!([{"type": "Ready", "status": "False"}]);
        for (field, value) in status.as_object().unwrap() {
            all[field] = value.clone();
        }
        pod.status = serde_json::from_value(all).unwrap();
        self.answers.remove(&pod.metadata.name.clone().unwrap());
        self.set_host_id_annotation(number);
        for viewer in 0..self.pods.len() {
            self.set_view(viewer, number, state);
        }
    }

    /// Annotates the node's Service with the host ID.
    fn set_host_id_annotation(&mut self, number: usize) {
        let service = json!({"metadata": {
            "name": self.pods[number].metadata.name, "namespace": "scylla",
            "annotations": {annotation::HOST_ID: host_id(number)},
        }});
        self.services.push(serde_json::from_value(service).unwrap());
    }

    /// Has one node see another in this state.
    pub(in crate::status) fn set_view(&mut self, viewer: usize, number: usize, state: &str) {
        let pod = self.pods[viewer].metadata.name.clone().unwrap();
        if let Some(Ok(ring)) = self.answers.get_mut(&pod) {
            ring.nodes[number].state = state.into();
        }
    }

    pub(in crate::status) fn set_condition(&mut self, name: &str, status: &str, reason: &str, message: &str) {
        let conditions = self.object.status.as_mut().unwrap().conditions.as_mut().unwrap();
        conditions.retain(|condition| condition.type_ != name);
        let condition = json!({"type": name, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2030-01-01T00:00:00Z"});
        conditions.push(serde_json::from_value(condition).unwrap());
    }
}

fn cluster(datacenter: &Datacenter) -> Cluster {
    Status::new(std::slice::from_ref(datacenter), vec![], None).clusters.remove(0)
}

#[test]
fn state_is_that_of_most_nodes_and_the_worse_one_in_a_tie() {
    let mut datacenter = healthy(&["a", "b", "c"]);
    datacenter.set_view(0, 1, "DN");
    let node = cluster(&datacenter).racks[1].nodes[0].clone();
    assert_eq!((node.state.as_deref(), node.other_views()), (Some("UN"), vec![("DN", 1)]));
    let mut datacenter = healthy(&["a", "b"]);
    datacenter.set_view(0, 1, "DN");
    let node = cluster(&datacenter).racks[1].nodes[0].clone();
    assert_eq!((node.state.as_deref(), node.other_views()), (Some("DN"), vec![("UN", 1)]));
}

#[test]
fn pod_is_found_in_the_ring_by_host_id_when_its_address_changes() {
    let mut datacenter = healthy(&["a", "b"]);
    datacenter.set_unready(1, "DN", &json!({"podIP": "10.96.9.9"}));
    let racks = cluster(&datacenter).racks;
    assert_eq!(racks[1].nodes.len(), 1, "it is one node: {racks:?}");
    assert_eq!(racks[1].nodes[0].state.as_deref(), Some("DN"));
    // Another node has the address by now, so the address does not make it the same.
    datacenter.services.clear();
    datacenter.set_unready(1, "DN", &json!({"podIP": "10.96.1.0"}));
    let racks = cluster(&datacenter).racks;
    assert_eq!(racks[0].nodes[0].state.as_deref(), Some("UN"));
    assert_eq!(racks[1].nodes[0].host_id, Some(host_id(1)));
}

#[test]
fn joining_node_without_host_id_is_found_by_address() {
    let mut datacenter = healthy(&["a", "b"]);
    datacenter.set_unready(1, "UJ", &json!({}));
    for answer in datacenter.answers.values_mut() {
        answer.as_mut().unwrap().nodes[1].host_id = None;
    }
    let racks = cluster(&datacenter).racks;
    assert_eq!((racks[1].nodes.len(), racks[1].nodes[0].state.as_deref()), (1, Some("UJ")));
    // Behind a Service, the ring has the Service's address.
    datacenter.set_unready(1, "UJ", &json!({"podIP": "10.0.0.1"}));
    datacenter.services = vec![
        serde_json::from_value(json!({
            "metadata": {"name": "orders-dc1-b-0"}, "spec": {"clusterIPs": ["10.96.1.1"]},
        }))
        .unwrap(),
    ];
    let racks = cluster(&datacenter).racks;
    assert_eq!((racks[1].nodes.len(), racks[1].nodes[0].state.as_deref()), (1, Some("UJ")));
}

#[test]
fn status_shows_nodes_without_a_pod_but_not_those_of_other_datacenters() {
    let mut datacenter = healthy(&["a"]);
    let ring = datacenter.answers.values_mut().next().unwrap().as_mut().unwrap();
    ring.nodes.push(RingNode { datacenter: "dc2".into(), ..ring_node(7, "a") });
    ring.nodes.push(RingNode { state: "DN".into(), ..ring_node(8, "gone") });
    let cluster = cluster(&datacenter);
    let names: Vec<&str> = cluster.racks.iter().map(|rack| rack.name.as_str()).collect();
    assert_eq!(names, ["a", "gone"]);
    assert_eq!(cluster.racks[0].nodes.len(), 1);
    assert_eq!((cluster.racks[1].wanted, cluster.racks[1].nodes[0].pod.clone()), (None, None));
    assert!(cluster.next.iter().any(|next| next.command == Some(format!("nodetool removenode {}", host_id(8)))));
}

/// A pod can answer anything.
#[test]
fn answers_of_nodes_are_sanitized() {
    let ring = |own: &str, other: &str| Ring {
        host_id: own.into(),
        version: "2026\u{1b}[2J".into(),
        nodes: vec![RingNode {
            host_id: Some(other.into()),
            state: "DN\n    rm".into(),
            rack: "a\u{202e}".repeat(1000),
            ..ring_node(1, "a")
        }],
    };
    let sanitize = ring(&host_id(0), &host_id(1)).sanitize().unwrap();
    assert_eq!((sanitize.version.as_str(), sanitize.nodes[0].state.as_str()), ("2026", "DN rm"));
    assert_eq!(sanitize.nodes[0].rack.len(), MAX_VALUE_LENGTH);
    for (own, other) in [(host_id(0), "x; rm -rf /\u{1b}[8m".to_owned()), (String::new(), host_id(1))] {
        let why = ring(&own, &other).sanitize().unwrap_err();
        assert!(why.starts_with("its answer has a host ID that is not a UUID: ") && !why.contains('\u{1b}'), "{why}");
    }
}

#[test]
fn invalid_host_ids_and_container_names_are_not_in_commands() {
    let mut datacenter = healthy(&["a"]);
    let ring = datacenter.answers.values_mut().next().unwrap().as_mut().unwrap();
    ring.nodes.push(RingNode { host_id: Some("$(reboot)".into()), state: "DN".into(), ..ring_node(8, "a") });
    let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    let mut crashing = named("orders", &["b"]);
    crashing.set_unready(0, "DN", &json!({"containerStatuses": [container("x; reboot", 3, &waiting)]}));
    crashing.services[0].annotations_mut().insert(annotation::HOST_ID.into(), "$(reboot)".into());
    for datacenter in [datacenter, crashing] {
        let next = cluster(&datacenter).next;
        assert!(next.iter().all(|next| !next.command.as_ref().is_some_and(|one| one.contains("reboot"))), "{next:?}");
    }
}

#[test]
fn healthy_cluster_has_no_next_steps() {
    let cluster = cluster(&healthy(&["a", "b", "c"]));
    assert_eq!((cluster.next, cluster.conditions), (vec![], vec![]));
}

/// For a refused specification, the operator updates only a condition.
#[test]
fn refused_specification_counts_as_observed() {
    let mut datacenter = healthy(&["a"]);
    datacenter.object.metadata.generation = Some(2);
    let unseen = cluster(&datacenter);
    assert_eq!((unseen.observed, unseen.refused), (false, false));
    assert!(
        unseen.next[0].text.starts_with("The operator has not observed the latest change yet"),
        "{:?}",
        unseen.next
    );

    let message = "spec.racks[1].name: is a duplicate";
    datacenter.set_condition("ObservationDegraded", "True", INVALID_SPECIFICATION.as_str(), message);
    let conditions = datacenter.object.status.as_mut().unwrap().conditions.as_mut().unwrap();
    conditions.last_mut().unwrap().observed_generation = Some(2);
    let refused = cluster(&datacenter);
    assert_eq!((refused.observed, refused.refused), (true, true));
    let texts: Vec<&str> = refused.next.iter().map(|next| next.text.as_str()).collect();
    assert_eq!(texts, ["Correct the specification: the operator refuses it, and changes nothing until then."]);

    datacenter.object.metadata.generation = Some(3);
    let corrected = cluster(&datacenter);
    assert_eq!((corrected.observed, corrected.refused), (false, false), "the operator has not observed the correction");
}

#[test]
fn paused_or_unreadable_object_counts_as_observed() {
    for (name, reason) in [("Paused", "Paused"), ("ObservationDegraded", "NoAnswer")] {
        let mut datacenter = healthy(&["a"]);
        datacenter.object.metadata.generation = Some(2);
        datacenter.set_condition(name, "True", reason, "x");
        let conditions = datacenter.object.status.as_mut().unwrap().conditions.as_mut().unwrap();
        conditions.last_mut().unwrap().observed_generation = Some(2);
        let cluster = cluster(&datacenter);
        assert_eq!((cluster.observed, cluster.refused, cluster.next), (true, false, vec![]), "{name}");
    }
}

#[test]
fn ready_nodes_are_unknown_where_pods_may_not_be_listed() {
    let mut datacenter = healthy(&["a"]);
    (datacenter.pods, datacenter.pods_known) = (vec![], false);
    datacenter.answers.clear();
    assert_eq!(cluster(&datacenter).racks[0].ready, None);
}

#[test]
fn summary_conditions_are_left_out_where_components_have_their_own() {
    let mut datacenter = healthy(&["a"]);
    datacenter.set_condition("Degraded", "True", "Sum", "parts");
    assert_eq!(cluster(&datacenter).conditions[0].condition_type, "Degraded");
    datacenter.set_condition("ConfigControllerDegraded", "True", "Bad", "it is bad");
    let shown = cluster(&datacenter).conditions;
    assert_eq!(shown.iter().map(|one| one.condition_type.as_str()).collect::<Vec<_>>(), ["ConfigControllerDegraded"]);
}

/// Programs depend on these names.
#[test]
fn json_document_has_the_documented_fields() {
    let mut datacenter = healthy(&["a", "b"]);
    let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    datacenter.set_unready(1, "DN", &json!({"containerStatuses": [container("scylla", 2, &waiting)]}));
    datacenter.set_condition("Available", "False", "MembersNotReady", "1 of 2 node(s) are ready");
    let status = Status::new(&[datacenter], vec!["a problem".into()], Some("scylla".into()));
    let document = serde_json::to_value(status).unwrap();
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    let cluster = &document["clusters"][0];
    let documented = include_str!("../../../../../docs/reference/kubectl-messina.md");
    for part in [
        &document,
        cluster,
        &cluster["conditions"][0],
        &cluster["racks"][1],
        &cluster["racks"][1]["nodes"][0],
        &cluster["racks"][1]["nodes"][0]["kubernetes"],
        &cluster["next"][0],
    ] {
        for name in names(part).split(' ') {
            assert!(documented.contains(&format!("`{name}`")), "kubectl-messina.md does not mention {name}");
        }
    }
    assert_eq!(names(&document), "clusters namespace problems version");
    assert_eq!(names(&cluster["racks"][0]), "name nodes ready wanted");
    assert_eq!(
        names(&cluster["racks"][1]["nodes"][0]),
        "address hostID kubernetes noAnswer pod state tokens version views"
    );
}
