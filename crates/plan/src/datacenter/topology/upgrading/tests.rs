use k8s_openapi::api::core::v1::Service;

use super::*;
use crate::{
    datacenter::model::facts::service::NodeService,
    node::upgrade::{UpgradeAnswer, UpgradeRequest},
};

/// A node of version 1 that was requested to prepare for version 2, and has taken these snapshots.
fn prepared<'a>(name: &'a str, service: &'a NodeService, snapshots: &[Snapshot]) -> Node<'a> {
    let (from, to, keep) = ("1".to_owned(), "2".to_owned(), snapshots.iter().copied().collect());
    let host_id = || name.to_owned();
    let answer = UpgradeAnswer { host_id: host_id(), to: to.clone(), kept: Clone::clone(&keep), failed: None };
    Node {
        member: Member { name, service, stateful_set: "a", ordinal: 0 },
        host_id: name,
        version: Some(from.clone()),
        request: Some(UpgradeRequest { host_id: host_id(), from, to, keep }),
        answer: Some(answer),
    }
}

#[test]
fn node_restarts_when_all_are_prepared_and_up() {
    let service = NodeService::of(&Service::default());
    let next = prepared("a-0", &service, &[Snapshot::System, Snapshot::Data]);
    let without_data = prepared("a-0", &service, &[Snapshot::System]);
    let other = prepared("a-1", &service, &[Snapshot::System]);
    let unprepared = prepared("a-1", &service, &[]);
    let all = [next.clone(), other.clone()];
    let none_has_data = [without_data.clone(), other];
    let one_unprepared = [without_data.clone(), unprepared.clone()];
    let ready = RestartFacts {
        target: "2",
        needs_no_snapshots: false,
        next: Some(&next),
        nodes: &all,
        is_blocked: false,
        ring: Ok(()),
    };
    let down = RestartFacts { ring: Err("a-1 is down".into()), ..ready.clone() };
    let blocked = RestartFacts { is_blocked: true, ..down.clone() };
    let no_data = RestartFacts { next: Some(&without_data), nodes: &none_has_data, ..blocked.clone() };
    let no_system = RestartFacts { nodes: &one_unprepared, ..no_data.clone() };
    let unnamed = RestartFacts { next: None, ..no_system.clone() };
    // A node that runs version 2 and goes back to version 1.
    let after = Node { version: Some("2".into()), ..without_data.clone() };
    let unasked = Node { request: None, answer: None, ..after.clone() };
    let none_prepared = [after.clone(), unasked];
    let rollback = RestartFacts { target: "1", next: Some(&after), nodes: &none_prepared, ..no_system.clone() };
    // Each of the first six cases has all that holds in the ones before.
    let cases = [
        (ready, RestartState::Ready, "all nodes are prepared and up"),
        (down.clone(), RestartState::RingUnhealthy("a-1 is down".into()), "all nodes have to be up"),
        (blocked.clone(), RestartState::Blocked, "another change goes first, and needs no answers about the ring"),
        (no_data, RestartState::DataSnapshotMissing(&without_data), "it is reported while another change goes first"),
        (
            no_system.clone(),
            RestartState::SystemSnapshotsMissing(vec![&unprepared]),
            "all system snapshots come before the one of data",
        ),
        (unnamed.clone(), RestartState::HostIdUnknown, "a node without host ID cannot prepare"),
        (
            RestartFacts { needs_no_snapshots: true, is_blocked: false, ring: Ok(()), ..unnamed },
            RestartState::Ready,
            "snapshots are not needed where the version stays",
        ),
        (
            RestartFacts { needs_no_snapshots: true, ..no_system.clone() },
            RestartState::Blocked,
            "but another change goes first all the same",
        ),
        (
            RestartFacts { needs_no_snapshots: true, is_blocked: false, ..no_system },
            RestartState::RingUnhealthy("a-1 is down".into()),
            "and all nodes have to be up",
        ),
        (rollback.clone(), RestartState::Blocked, "a rollback needs no snapshots"),
        (
            RestartFacts { is_blocked: false, ring: Ok(()), ..rollback },
            RestartState::Ready,
            "not even of the other nodes",
        ),
    ];
    for (facts, expected, why) in cases {
        assert_eq!(facts.state(), expected, "{why}");
    }
}
