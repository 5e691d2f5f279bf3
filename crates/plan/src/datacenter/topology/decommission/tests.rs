use super::*;

#[test]
fn only_a_node_that_has_not_begun_is_cancelled_for_another() {
    let cases = [
        (false, true, OtherState::Requested, "another node leaves"),
        (false, false, OtherState::Requested, "it is not the last of its rack"),
        (true, true, OtherState::Begun, "its turn comes"),
        (true, false, OtherState::BegunOutOfOrder, "its turn does not come by itself"),
    ];
    for (has_begun, is_last, expected, why) in cases {
        assert_eq!(other_state(has_begun, is_last), expected, "{why}");
    }
}

/// The facts of a node that was requested to leave and can do so.
const REQUESTED: LeavingFacts = LeavingFacts {
    has_begun: false,
    membership: Membership::Member,
    is_desired: false,
    is_blocked: false,
    unhealthy_node: None,
    is_refused: false,
    is_requested: true,
    is_replaced: false,
    is_labelled_as_left: false,
    is_up: true,
};

fn unhealthy() -> Option<String> {
    Some("node a-1 is down".into())
}

/// The facts of a node with every reason to cancel.
fn troubled() -> LeavingFacts {
    let unhealthy_node = unhealthy();
    LeavingFacts { is_desired: true, is_blocked: true, unhealthy_node, is_refused: true, ..REQUESTED }
}

#[test]
fn request_is_cancelled_for_the_first_reason() {
    let report = || LeavingState::RingUnhealthy("node a-1 is down".into());
    let cases = [
        (troubled(), LeavingState::DesiredAgain, "the user wants the node back"),
        (LeavingFacts { is_desired: false, ..troubled() }, LeavingState::Blocked, "another change goes first"),
        (
            LeavingFacts { is_desired: false, is_blocked: false, ..troubled() },
            report(),
            "all others have to be up and normal",
        ),
        (
            LeavingFacts { unhealthy_node: None, is_desired: false, is_blocked: false, ..troubled() },
            LeavingState::Refused,
            "other changes go before the next attempt",
        ),
        (
            LeavingFacts { membership: Membership::Unknown, ..troubled() },
            LeavingState::DesiredAgain,
            "a node that may be in the ring is cancelled like one that is",
        ),
        (
            LeavingFacts { is_requested: false, ..troubled() },
            LeavingState::DesiredAgain,
            "an incomplete request is cancelled, not completed",
        ),
        (
            LeavingFacts { is_requested: false, is_refused: true, ..REQUESTED },
            LeavingState::Refused,
            "also where ScyllaDB refuses",
        ),
        (
            LeavingFacts { unhealthy_node: unhealthy(), is_labelled_as_left: true, ..REQUESTED },
            report(),
            "a label of the user does not keep the request",
        ),
    ];
    for (facts, expected, why) in cases {
        assert_eq!(facts.state(), expected, "{why}");
    }
}

#[test]
fn decommission_that_has_begun_is_never_cancelled() {
    let begun = LeavingFacts { has_begun: true, ..troubled() };
    let absent = LeavingFacts { membership: Membership::Absent, is_up: false, ..troubled() };
    let cases = [
        (begun.clone(), LeavingState::Leaving, "whatever the reason"),
        (
            LeavingFacts { membership: Membership::Unknown, is_up: false, ..begun.clone() },
            LeavingState::Leaving,
            "also where no node answers",
        ),
        (
            LeavingFacts { is_requested: false, ..begun.clone() },
            LeavingState::NotRequested,
            "a request that was removed is written again",
        ),
        (
            LeavingFacts { is_labelled_as_left: true, ..begun.clone() },
            LeavingState::UpDespiteLabel,
            "only the sidecar writes that it has left",
        ),
        (
            LeavingFacts { is_labelled_as_left: true, is_up: false, ..begun },
            LeavingState::Leaving,
            "the sidecar may be right, and another node has to confirm it",
        ),
        (absent.clone(), LeavingState::Left, "nor is one of a node that has left"),
        (LeavingFacts { has_begun: true, ..absent }, LeavingState::Left, "whether or not its sidecar wrote it"),
    ];
    for (facts, expected, why) in cases {
        assert_eq!(facts.state(), expected, "{why}");
    }
}

#[test]
fn stateful_set_is_scaled_in_when_the_node_has_left() {
    let left = LeavingFacts { has_begun: true, membership: Membership::Absent, is_up: false, ..REQUESTED };
    let cases = [
        (REQUESTED, LeavingState::Leaving, "it is in the ring"),
        (LeavingFacts { is_replaced: true, ..REQUESTED }, LeavingState::Leaving, "also if it is replaced"),
        (LeavingFacts { is_requested: false, ..REQUESTED }, LeavingState::NotRequested, "the request is written first"),
        (left.clone(), LeavingState::Left, "another node confirms it"),
        (
            LeavingFacts { is_labelled_as_left: true, ..left.clone() },
            LeavingState::Left,
            "the label does not matter then",
        ),
        (
            LeavingFacts { is_replaced: true, ..left.clone() },
            LeavingState::LeftOrReplaced,
            "a new node may be in the ring under another host ID",
        ),
        (
            LeavingFacts { is_requested: false, ..left.clone() },
            LeavingState::NotRequested,
            "answers have to be newer than the request",
        ),
        (
            LeavingFacts { is_requested: false, is_replaced: true, ..left },
            LeavingState::NotRequested,
            "also about a node that is replaced",
        ),
    ];
    for (facts, expected, why) in cases {
        assert_eq!(facts.state(), expected, "{why}");
    }
}
