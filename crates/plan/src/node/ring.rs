//! The token ring as one node sees it, and the readiness of a node.

use std::collections::{BTreeMap, BTreeSet};

use messina_api::names::label::NODE_MAINTENANCE;

use super::Mode;

/// The nodes of the ring as one node sees them, by address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The host IDs of the nodes that own tokens.
    pub host_ids: BTreeMap<String, String>,
    /// The nodes that are up.
    pub live: BTreeSet<String>,
    /// The nodes that are down.
    pub down: BTreeSet<String>,
    /// The nodes that are joining.
    pub joining: BTreeSet<String>,
    /// The nodes that are leaving.
    pub leaving: BTreeSet<String>,
    /// The nodes that are moving to other tokens.
    pub moving: BTreeSet<String>,
}

impl View {
    /// Returns the addresses of all nodes that are in the ring, joining or leaving.
    pub fn addresses(&self) -> BTreeSet<&str> {
        let underway = self.joining.iter().chain(&self.leaving).chain(&self.moving);
        self.host_ids.keys().chain(underway).map(String::as_str).collect()
    }

    /// Returns the state of a node in two letters, as `nodetool status` prints it: U or D, then N, J, L or M. A `?`
    /// means unknown.
    pub fn state(&self, address: &str) -> String {
        let life = match (self.live.contains(address), self.down.contains(address)) {
            (true, false) => 'U',
            (false, true) => 'D',
            _ => '?',
        };
        let place = [(&self.joining, 'J'), (&self.leaving, 'L'), (&self.moving, 'M')];
        let place = place.iter().find(|(nodes, _)| nodes.contains(address)).map_or('N', |(_, letter)| *letter);
        format!("{life}{place}")
    }
}

/// What a node reports of itself for the readiness probe.
#[derive(Clone, Debug)]
pub struct SelfReport {
    /// Its operation mode.
    pub mode: Mode,
    /// Whether its native transport (CQL) is on.
    pub has_native_transport: bool,
    /// Its host ID.
    pub host_id: String,
    /// The host IDs of the nodes that own tokens, by address.
    pub host_ids: BTreeMap<String, String>,
    /// The addresses of the nodes that are alive.
    pub live: BTreeSet<String>,
}

/// Checks that a node is ready for clients; returns why not.
pub fn check_readiness(report: &SelfReport) -> Result<(), String> {
    if report.mode != Mode::Normal {
        return Err(format!("the node is in mode {}", report.mode));
    }
    let own = report.host_ids.iter().find(|(_, host_id)| **host_id == report.host_id);
    let Some((address, _)) = own else {
        return Err(format!("the node does not see its host ID {} in the ring", report.host_id));
    };
    if !report.live.contains(address) {
        return Err(format!("the node does not see itself ({address}) up"));
    }
    if !report.has_native_transport {
        return Err("the native transport is off".to_owned());
    }
    Ok(())
}

/// Whether the labels of a member Service put the node in maintenance.
pub fn is_under_maintenance(labels: Option<&BTreeMap<String, String>>) -> bool {
    labels.is_some_and(|labels| labels.contains_key(NODE_MAINTENANCE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(addresses: &[&str]) -> BTreeSet<String> {
        addresses.iter().map(|&address| address.to_owned()).collect()
    }

    #[test]
    fn states_are_those_of_nodetool() {
        let view = View {
            host_ids: ["a", "b", "c"].map(|name| (name.to_owned(), format!("id-{name}"))).into(),
            live: set(&["a", "c", "d"]),
            down: set(&["b"]),
            joining: set(&["d", "e"]),
            leaving: set(&["c"]),
            moving: set(&[]),
        };
        let states: Vec<_> = view.addresses().into_iter().map(|address| (address, view.state(address))).collect();
        let expected = [("a", "UN"), ("b", "DN"), ("c", "UL"), ("d", "UJ"), ("e", "?J")];
        assert_eq!(states, expected.map(|(address, state)| (address, state.to_owned())));
    }

    #[test]
    fn node_is_ready_if_it_is_up_and_normal_with_native_transport() {
        let ready = SelfReport {
            mode: Mode::Normal,
            has_native_transport: true,
            host_id: "id".to_owned(),
            host_ids: [("a".to_owned(), "id".to_owned())].into(),
            live: set(&["a"]),
        };
        assert_eq!(check_readiness(&ready), Ok(()));
        let cases = [
            (SelfReport { mode: Mode::Joining, ..ready.clone() }, "JOINING"),
            (SelfReport { has_native_transport: false, ..ready.clone() }, "native transport"),
            (SelfReport { host_id: "other".to_owned(), ..ready.clone() }, "host ID"),
            (SelfReport { live: set(&["b"]), ..ready }, "see itself"),
        ];
        for (report, words) in cases {
            assert!(check_readiness(&report).is_err_and(|reason| reason.contains(words)), "{words}: {report:?}");
        }
    }
}
