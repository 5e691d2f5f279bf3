use k8s_openapi::api::core::v1::Service;

use super::*;
use crate::datacenter::model::facts::service::NodeService;

#[test]
fn node_is_requested_to_leave_when_nothing_goes_before() {
    let service = NodeService::of(&Service::default());
    let member = Member { name: "a-2", service: &service, stateful_set: "a", ordinal: 2 };
    let ready = SurplusFacts {
        is_replacing: false,
        blocker: None,
        has_refused: false,
        has_other_changes: false,
        node: Some((&member, "host-2")),
        has_others: true,
        agreement: Ok(()),
    };
    let unhealthy = SurplusFacts { agreement: Err("a-1 is down".into()), ..ready.clone() };
    let alone = SurplusFacts { has_others: false, ..unhealthy.clone() };
    let unnamed = SurplusFacts { node: None, ..alone.clone() };
    let refused = SurplusFacts { has_refused: true, has_other_changes: true, ..unnamed.clone() };
    let blocked = SurplusFacts { blocker: Some("a is not rolled out".into()), ..refused.clone() };
    let replacing = SurplusFacts { is_replacing: true, ..blocked.clone() };
    let may_leave = || SurplusState::MayLeave(&member, "host-2");
    // Each case has all that holds in the ones before.
    let cases = [
        (ready.clone(), may_leave(), "nothing goes before"),
        (unhealthy, SurplusState::RingUnhealthy("a-1 is down".into()), "all others have to be up"),
        (alone, SurplusState::OnlyNode, "no other node could ever be up"),
        (unnamed, SurplusState::HostIdUnknown, "whether there are others is asked about a host ID"),
        (refused, SurplusState::Refused, "other changes go before a node that refused"),
        (blocked, SurplusState::Blocked("a is not rolled out".into()), "the user reads what has to end"),
        (replacing, SurplusState::ReplacementInProgress, "a replacement goes first"),
        (SurplusFacts { has_refused: true, ..ready.clone() }, may_leave(), "it may try again"),
        (SurplusFacts { has_other_changes: true, ..ready }, may_leave(), "other changes wait for the first attempt"),
    ];
    for (facts, expected, why) in cases {
        assert_eq!(facts.state(), expected, "{why}");
    }
}
