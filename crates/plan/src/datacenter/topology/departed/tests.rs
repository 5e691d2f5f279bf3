use super::*;

#[test]
fn member_without_host_id_is_kept_if_a_node_may_have_used_it() {
    let unused =
        UnnamedFacts { is_desired: false, has_stateful_set: true, has_new_claim: false, has_other_traces: false };
    let claimed = UnnamedFacts { has_new_claim: true, ..unused };
    let used = UnnamedFacts { has_other_traces: true, ..unused };
    let cases = [
        (unused, UnnamedState::Unused, "nothing shows that a node used it"),
        (UnnamedFacts { has_stateful_set: false, ..unused }, UnnamedState::Unused, "nor without a StatefulSet"),
        (used, UnnamedState::Used, "a pod, a claim or a sidecar shows that a node used it"),
        (claimed, UnnamedState::MayHaveJoined, "the claim was created for a node"),
        (
            UnnamedFacts { has_other_traces: true, ..claimed },
            UnnamedState::MayHaveJoined,
            "a node that may be in the ring comes back, whatever else it left",
        ),
        (
            UnnamedFacts { has_stateful_set: false, ..claimed },
            UnnamedState::Used,
            "without a StatefulSet the node cannot come back",
        ),
        (
            UnnamedFacts { is_desired: true, has_other_traces: true, ..claimed },
            UnnamedState::Desired,
            "a rollout raises the replicas for a desired node",
        ),
        (UnnamedFacts { is_desired: true, ..unused }, UnnamedState::Desired, "a desired node needs the Service"),
    ];
    for (facts, expected, why) in cases {
        assert_eq!(facts.state(), expected, "{why}");
    }
}

/// The facts of a node that has left, as all others confirm after its decommission.
const LEFT: NamedFacts = NamedFacts {
    membership: Membership::Absent,
    has_stateful_set: true,
    has_pod: false,
    is_asked_since: true,
    is_asked_to_leave: true,
    has_begun_to_leave: true,
    is_replaced: false,
    has_others: true,
    can_others_answer: true,
};

#[test]
fn node_in_the_ring_comes_back() {
    let member = NamedFacts { membership: Membership::Member, ..LEFT };
    let cases = [
        (member, NamedState::InRing, "another node sees it"),
        (NamedFacts { has_pod: true, ..member }, NamedState::InRing, "with or without a pod"),
        (
            NamedFacts { is_asked_since: false, ..member },
            NamedState::InRingBefore,
            "it may have left after the others answered",
        ),
        (
            NamedFacts { is_asked_since: false, has_stateful_set: false, ..member },
            NamedState::InRingWithoutStatefulSet,
            "without a StatefulSet there is nothing to wait for",
        ),
        (
            NamedFacts { has_others: false, can_others_answer: false, ..member },
            NamedState::InRing,
            "one answer suffices",
        ),
        (
            NamedFacts { is_replaced: true, ..LEFT },
            NamedState::InRing,
            "the node that replaces it may be in the ring under another host ID",
        ),
        (
            NamedFacts { is_replaced: true, is_asked_to_leave: false, has_pod: true, ..LEFT },
            NamedState::InRing,
            "also where absence would have to be confirmed",
        ),
        (
            NamedFacts { is_replaced: true, is_asked_since: false, ..LEFT },
            NamedState::InRingBefore,
            "the answer about a replaced node has to be newer than the StatefulSet, too",
        ),
    ];
    for (facts, expected, why) in cases {
        assert_eq!(facts.state(), expected, "{why}");
    }
}

#[test]
fn node_is_kept_while_its_membership_is_unknown() {
    let unknown = NamedFacts { membership: Membership::Unknown, ..LEFT };
    let stays = NamedFacts { is_asked_to_leave: false, has_begun_to_leave: false, ..unknown };
    let alone = NamedFacts { has_others: false, ..stays };
    let cases = [
        (unknown, NamedState::Unanswered, "all others can answer"),
        (stays, NamedState::Unanswered, "also about a node that was not leaving"),
        (
            NamedFacts { is_replaced: true, has_pod: true, is_asked_since: false, ..stays },
            NamedState::Unanswered,
            "nothing else counts until they answer",
        ),
        (
            NamedFacts { can_others_answer: false, ..unknown },
            NamedState::Unanswerable,
            "a sidecar of an earlier version cannot answer",
        ),
        (
            NamedFacts { can_others_answer: false, ..stays },
            NamedState::Unanswerable,
            "also about a node that was not leaving",
        ),
        (alone, NamedState::WithoutWitness, "there is no other node, all of which could answer"),
        (
            NamedFacts { is_asked_to_leave: true, ..alone },
            NamedState::Unanswerable,
            "a node that was requested to leave does not come back by itself",
        ),
        (
            NamedFacts { has_begun_to_leave: true, ..alone },
            NamedState::Unanswerable,
            "nor does a node that has begun to leave",
        ),
    ];
    for (facts, expected, why) in cases {
        assert_eq!(facts.state(), expected, "{why}");
    }
}

#[test]
fn absence_is_confirmed_after_the_request_to_leave() {
    let begun_only = NamedFacts { is_asked_to_leave: false, ..LEFT };
    let asked_only = NamedFacts { has_begun_to_leave: false, ..LEFT };
    let outdated = NamedFacts { is_asked_since: false, ..asked_only };
    let cases = [
        (LEFT, NamedState::Left, "it was decommissioned"),
        (NamedFacts { has_pod: true, ..LEFT }, NamedState::LeftWithPod, "its pod goes first"),
        (NamedFacts { is_asked_since: false, ..LEFT }, NamedState::Left, "a node that has begun cannot join again"),
        (NamedFacts { has_stateful_set: false, ..LEFT }, NamedState::Left, "also without a StatefulSet"),
        (
            NamedFacts { can_others_answer: false, has_others: false, ..LEFT },
            NamedState::Left,
            "the membership counts, not who could answer",
        ),
        (asked_only, NamedState::Left, "it was asked about after it lost its replica"),
        (NamedFacts { has_pod: true, ..asked_only }, NamedState::LeftWithPod, "its pod goes first"),
        (outdated, NamedState::Absent, "the answers may be older than the loss of its replica"),
        (
            NamedFacts { has_pod: true, ..outdated },
            NamedState::AbsentWithPod,
            "the others are asked when the pod is gone",
        ),
        (begun_only, NamedState::Absent, "without a request, the answers may be older than the node"),
        (
            NamedFacts { has_pod: true, ..begun_only },
            NamedState::AbsentWithPod,
            "the others are asked when the pod is gone",
        ),
    ];
    for (facts, expected, why) in cases {
        assert_eq!(facts.state(), expected, "{why}");
    }
}
