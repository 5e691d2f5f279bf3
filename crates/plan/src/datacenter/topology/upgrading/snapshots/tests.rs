use k8s_openapi::api::core::v1::Service;

use super::*;
use crate::{datacenter::model::facts::service::NodeService, node::upgrade::UpgradeAnswer};

#[test]
fn upgrade_passes_through_all_states() {
    let idle = UpgradeFacts {
        skips_hooks: false,
        is_held: false,
        has_annotations: false,
        are_upgraded: true,
        are_clear: true,
        has_next: false,
    };
    let begins = UpgradeFacts { has_next: true, are_upgraded: false, ..idle };
    let begun = UpgradeFacts { has_annotations: true, ..begins };
    let upgraded = UpgradeFacts { are_upgraded: true, are_clear: false, ..begun };
    let cleared = UpgradeFacts { are_clear: true, ..upgraded };
    let held = UpgradeFacts { is_held: true, ..cleared };
    let cases = [
        (idle, UpgradeState::NotBegun, "no node has to restart"),
        (begins, UpgradeState::Beginning, "a node restarts next"),
        (
            UpgradeFacts { are_upgraded: true, ..begins },
            UpgradeState::Beginning,
            "the node restarts with the version that it has, which needs no request",
        ),
        (begun, UpgradeState::InProgress, "a node was requested to prepare, and none is to clear anything"),
        (UpgradeFacts { has_next: false, ..begun }, UpgradeState::InProgress, "a node restarts now"),
        (upgraded, UpgradeState::Complete, "the last snapshots are to be removed"),
        (UpgradeFacts { has_next: false, ..upgraded }, UpgradeState::Complete, "also if no node restarts"),
        (cleared, UpgradeState::Cleared, "the last snapshots are removed"),
        (held, UpgradeState::Held, "requests stay while a node is replaced"),
        (UpgradeFacts { is_held: true, ..begins }, UpgradeState::Held, "nothing begins while a node is replaced"),
        (UpgradeFacts { skips_hooks: true, ..held }, UpgradeState::Skipped, "the user's request goes first"),
        (UpgradeFacts { skips_hooks: true, ..begins }, UpgradeState::Skipped, "nothing begins"),
    ];
    for (facts, expected, why) in cases {
        assert_eq!(facts.state(), expected, "{why}");
    }
}

const BOTH: &[Snapshot] = &[Snapshot::System, Snapshot::Data];
const SYSTEM: &[Snapshot] = &[Snapshot::System];

#[test]
fn node_prepares_for_the_version_that_it_is_upgraded_to() {
    let service = NodeService::of(&Service::default());
    let kept = |snapshots: &[Snapshot]| snapshots.iter().copied().collect::<Kept>();
    let request = |from: &str, to: &str, keep: &[Snapshot]| UpgradeRequest {
        host_id: "host".into(),
        from: from.into(),
        to: to.into(),
        keep: kept(keep),
    };
    let node = |version: Option<&str>, request: Option<UpgradeRequest>, has: &[Snapshot]| {
        let answer = request.as_ref().map(|request| UpgradeAnswer {
            host_id: "host".into(),
            to: request.to.clone(),
            kept: kept(has),
            failed: None,
        });
        let member = Member { name: "a-0", service: &service, stateful_set: "a", ordinal: 0 };
        Node { member, host_id: "host", version: version.map(str::to_owned), request, answer }
    };
    // Version 2 is desired.
    let upgrade = |keep| Some(request("1", "2", keep));
    let rollback = |keep| Some(request("2", "3", keep));
    let other = |keep| Some(request("1", "3", keep));
    let may_prepare = |keep| Preparation::MayPrepare("1", kept(keep));
    let same = Some(request("2", "2", BOTH));
    let upgraded = request("1", "2", BOTH);
    let from_same = request("2", "2", BOTH);
    let cases = [
        (node(Some("1"), None, &[]), true, may_prepare(&[]), "it was not requested"),
        (node(Some("1"), None, &[]), false, may_prepare(&[]), "nor has a node that is down anything to keep"),
        (node(Some("1"), upgrade(SYSTEM), SYSTEM), true, may_prepare(SYSTEM), "its snapshots stay"),
        (node(Some("1"), upgrade(BOTH), BOTH), false, may_prepare(BOTH), "also while it is down"),
        (node(Some("1"), upgrade(SYSTEM), BOTH), true, Preparation::Clearing, "a snapshot is cleared first"),
        (node(Some("1"), other(SYSTEM), BOTH), true, may_prepare(&[]), "but those for another version do not count"),
        (node(Some("1"), other(BOTH), BOTH), false, Preparation::DownWithSnapshots, "it may start with that version"),
        (node(Some("1"), other(BOTH), BOTH), true, may_prepare(&[]), "a node that is up does not"),
        (node(Some("1"), other(SYSTEM), SYSTEM), false, may_prepare(&[]), "nor does one without all snapshots"),
        (node(None, None, &[]), true, Preparation::VersionUnknown, "its version cannot be requested"),
        (node(None, other(BOTH), BOTH), false, Preparation::VersionUnknown, "whatever it keeps"),
        (node(None, rollback(BOTH), BOTH), false, Preparation::RollsBack, "it ran the desired version before"),
        (node(Some("3"), rollback(BOTH), BOTH), false, Preparation::RollsBack, "whatever it keeps"),
        (
            node(Some("1"), rollback(BOTH), BOTH),
            true,
            may_prepare(&[]),
            "its pod was changed while it was down, so it does not go back",
        ),
        (node(Some("2"), upgrade(BOTH), BOTH), true, Preparation::Upgraded(&upgraded), "it is up"),
        (node(Some("2"), upgrade(BOTH), BOTH), false, Preparation::Restarted, "it keeps its data until it is up"),
        (node(Some("2"), None, &[]), true, Preparation::Restarted, "it has nothing to remove"),
        (node(Some("2"), same.clone(), BOTH), true, Preparation::Upgraded(&from_same), "it does not roll back"),
        (node(Some("2"), same, BOTH), false, Preparation::Restarted, "nor while it is down"),
    ];
    for (node, is_up, expected, why) in cases {
        assert_eq!(preparation(&node, "2", is_up), expected, "{why}");
    }
}
