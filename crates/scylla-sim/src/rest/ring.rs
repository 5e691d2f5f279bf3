//! Tokens and their owners.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::{membership::Member, node::View};

/// The maximum number of replicas of a range.
const REPLICAS: usize = 3;

/// The tokens of the member at an address; none while it joins.
pub(super) fn tokens(view: &View, address: IpAddr) -> Vec<String> {
    let member = view.members.ring().find(|member| member.address == address);
    let mut tokens = member.map(|member| member.tokens.clone()).unwrap_or_default();
    tokens.sort_unstable();
    tokens.iter().map(ToString::to_string).collect()
}

/// The tokens of the whole ring, in its order.
pub(super) fn all_tokens(view: &View) -> Vec<String> {
    view.members.tokens().iter().map(|(token, _)| token.to_string()).collect()
}

/// Every token with its owner.
pub(super) fn owners(view: &View) -> Value {
    let tokens = view.members.tokens();
    json!(tokens.iter().map(|(token, m)| json!({ "key": token.to_string(), "value": m.address })).collect::<Vec<_>>())
}

/// Every range with its replicas: the owner of its end, and the next owners along the ring.
pub(super) fn describe(view: &View) -> Vec<Value> {
    let tokens = view.members.tokens();
    let Some((last, _)) = tokens.last() else { return Vec::new() };
    let starts = std::iter::once(last).chain(tokens.iter().map(|(token, _)| token));
    let ranges = starts.zip(&tokens).enumerate();
    ranges
        .map(|(index, (start, (end, _)))| {
            let mut replicas: Vec<&Member> = Vec::new();
            for (_, member) in tokens.iter().cycle().skip(index).take(tokens.len()) {
                if replicas.len() < REPLICAS && !replicas.iter().any(|replica| replica.host_id == member.host_id) {
                    replicas.push(member);
                }
            }
            let details =
                replicas.iter().map(|m| json!({ "host": m.address, "datacenter": m.datacenter, "rack": m.rack }));
            json!({
                "start_token": start.to_string(),
                "end_token": end.to_string(),
                "endpoints": replicas.iter().map(|member| member.address).collect::<Vec<_>>(),
                "rpc_endpoints": replicas.iter().map(|member| member.rpc_address).collect::<Vec<_>>(),
                "endpoint_details": details.collect::<Vec<_>>(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::{
        Membership, Status,
        examples::{host, member},
    };

    #[test]
    fn ranges_cover_the_ring_and_have_different_replicas() {
        let members =
            [1, 2, 3, 4].map(|number| member(number, Status::Normal)).into_iter().chain([member(9, Status::Joining)]);
        let view = View { members: Membership::of(members), up: [host(1)].into() };
        let ranges = describe(&view);
        assert_eq!(ranges.len(), 4, "a joining node has no range");
        assert_eq!((ranges[0]["start_token"].as_str(), ranges[0]["end_token"].as_str()), (Some("4"), Some("1")));
        assert_eq!(ranges[3]["endpoints"], json!(["10.0.0.4", "10.0.0.1", "10.0.0.2"]));
        assert_eq!(tokens(&view, [10, 0, 0, 9].into()), Vec::<String>::new());
        assert_eq!(tokens(&view, [10, 0, 0, 2].into()), ["2"]);
    }
}
