//! The annotations that a sidecar writes on the Service of its node.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use messina_api::names::{
    annotation::{
        CURRENT_TOKEN_RING_HASH, HOST_ID, LEAVING_BEGAN, NODE_JOINED, SIDECAR_PROTOCOL, SIDECAR_PROTOCOL_VALUE,
    },
    label::value::{FALSE, TRUE},
};
use sha2::{Digest, Sha512};

use super::Mode;

/// Whether the node of a Service with these annotations has ever joined. Sidecars of scylla-operator do not write
/// [`NODE_JOINED`], and write the hash of the ring as soon as the node has tokens.
pub(crate) fn has_joined(annotations: &BTreeMap<String, String>) -> bool {
    match annotations.get(NODE_JOINED) {
        Some(joined) => joined == TRUE,
        None => annotations.contains_key(HOST_ID) && annotations.contains_key(CURRENT_TOKEN_RING_HASH),
    }
}

/// What a node reports of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Its host ID.
    pub host_id: String,
    /// Whether it is in the ring; none if that is unknown now.
    pub is_member: Option<bool>,
    /// Whether it is leaving the ring, or has left it.
    pub is_leaving: bool,
    /// The tokens of the whole ring; none if the node is not in the ring.
    pub ring: Option<Vec<String>>,
}

/// Returns whether a node is in the ring, from its mode and the number of its own tokens. `own_tokens` is none if the
/// node does not know its own address.
///
/// Tokens survive a restart, so a node stays a member while it starts.
pub fn is_member(mode: &Mode, own_tokens: Option<usize>) -> Option<bool> {
    match mode {
        Mode::Decommissioned => Some(false),
        _ if !knows_ring(mode) => None,
        _ => own_tokens.map(|count| count > 0),
    }
}

/// Whether a node in this mode can report the ring.
pub fn knows_ring(mode: &Mode) -> bool {
    !matches!(mode, Mode::Starting | Mode::Draining | Mode::Drained | Mode::Maintenance | Mode::Decommissioned)
}

/// Returns the annotations to change on the Service, which has the `current` ones.
///
/// A node that has lost its disk starts with another host ID. A replacement needs the host ID of the node in the ring,
/// so that one stays until the new node is in the ring itself.
pub fn changes(current: &BTreeMap<String, String>, observed: &Observation) -> BTreeMap<&'static str, String> {
    let has = |key: &str, value: &str| current.get(key).is_some_and(|current| current == value);
    let is_of_other_node = current.contains_key(HOST_ID) && !has(HOST_ID, &observed.host_id) && has_joined(current);
    if is_of_other_node && observed.is_member != Some(true) {
        return BTreeMap::new();
    }
    let mut facts = BTreeMap::from([(HOST_ID, observed.host_id.clone())]);
    if let Some(is_member) = observed.is_member {
        facts.insert(NODE_JOINED, if is_member { TRUE } else { FALSE }.to_owned());
    }
    // Also if a user has started the decommission, or the Service was recreated since.
    if observed.is_leaving {
        facts.insert(LEAVING_BEGAN, observed.host_id.clone());
    }
    if let Some(ring) = &observed.ring {
        facts.insert(CURRENT_TOKEN_RING_HASH, token_ring_hash(ring));
        // From now on the sidecar answers questions about the ring.
        facts.insert(SIDECAR_PROTOCOL, SIDECAR_PROTOCOL_VALUE.to_owned());
    }
    facts.retain(|key, value| !has(key, value));
    facts
}

/// A hash of the tokens of all nodes: it changes when, and only when, ownership of data does.
pub fn token_ring_hash(tokens: &[String]) -> String {
    // In numeric order, as in the ring; tokens that are not numbers come last.
    let mut sorted: Vec<_> = tokens.iter().map(|token| format!("{token:?}")).collect();
    sorted
        .sort_by_cached_key(|token| token.trim_matches('"').parse::<i64>().map_or((true, 0), |number| (false, number)));
    BASE64_STANDARD.encode(Sha512::digest(format!("[{}]\n", sorted.join(","))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(host_id: &str, is_member: Option<bool>) -> Observation {
        let ring = (is_member == Some(true)).then(|| vec!["1".to_owned()]);
        Observation { host_id: host_id.to_owned(), is_member, is_leaving: false, ring }
    }

    fn after(current: &mut BTreeMap<String, String>, observed: &Observation) -> Vec<&'static str> {
        let changed = changes(current, observed);
        current.extend(changed.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        changed.into_keys().collect()
    }

    /// Annotations of scylla-operator's sidecar count as much as those of this operator's sidecar.
    #[test]
    fn service_of_scylla_operator_keeps_host_id_of_a_node_that_lost_its_disk() {
        let facts = |keys: &[&str]| keys.iter().map(|key| ((*key).to_owned(), "old".to_owned())).collect();
        let joined: BTreeMap<String, String> = facts(&[HOST_ID, CURRENT_TOKEN_RING_HASH]);
        assert!(has_joined(&joined));
        assert_eq!(changes(&joined, &observed("new", Some(false))), BTreeMap::new());
        let joining = facts(&[HOST_ID]);
        assert!(!has_joined(&joining));
        assert_eq!(changes(&joining, &observed("new", None)).get(HOST_ID).map(String::as_str), Some("new"));
        let mut left = joined;
        left.insert(NODE_JOINED.to_owned(), FALSE.to_owned());
        assert!(!has_joined(&left), "this operator's sidecar takes precedence");
    }

    #[test]
    fn annotations_are_written_once() {
        let mut service = BTreeMap::new();
        assert_eq!(after(&mut service, &observed("a", None)), [HOST_ID]);
        assert_eq!(after(&mut service, &observed("a", Some(false))), [NODE_JOINED]);
        assert_eq!(
            after(&mut service, &observed("a", Some(true))),
            [CURRENT_TOKEN_RING_HASH, NODE_JOINED, SIDECAR_PROTOCOL]
        );
        assert_eq!(after(&mut service, &observed("a", Some(true))), [""; 0]);
        assert_eq!(after(&mut service, &observed("a", None)), [""; 0], "what is not known now is not forgotten");
    }

    #[test]
    fn host_id_of_lost_node_stays_until_new_node_has_joined() {
        let mut service = BTreeMap::new();
        after(&mut service, &observed("lost", Some(true)));
        assert_eq!(after(&mut service, &observed("new", None)), [""; 0]);
        assert_eq!(after(&mut service, &observed("new", Some(false))), [""; 0]);
        assert_eq!(after(&mut service, &observed("new", Some(true))), [HOST_ID]);
    }

    #[test]
    fn host_id_of_a_node_that_never_joined_is_replaced() {
        let mut service = BTreeMap::new();
        after(&mut service, &observed("first", Some(false)));
        assert_eq!(after(&mut service, &observed("second", Some(false))), [HOST_ID]);
    }

    #[test]
    fn leaving_node_is_annotated_without_a_request() {
        let mut service = BTreeMap::new();
        let leaving = Observation { is_leaving: true, ..observed("a", Some(true)) };
        assert!(after(&mut service, &leaving).contains(&LEAVING_BEGAN));
        assert_eq!(service[LEAVING_BEGAN], "a");
        assert_eq!(after(&mut service, &observed("a", Some(true))), [""; 0], "it may still be about to");
    }

    #[test]
    fn membership_follows_from_mode_and_tokens() {
        let cases = [
            (Mode::Normal, Some(16), Some(true)),
            (Mode::Joining, Some(16), Some(true)),
            (Mode::Bootstrap, Some(0), Some(false)),
            (Mode::Normal, None, None),
            (Mode::Starting, Some(16), None),
            (Mode::Drained, Some(0), None),
            (Mode::Decommissioned, None, Some(false)),
        ];
        for (mode, tokens, expected) in cases {
            assert_eq!(is_member(&mode, tokens), expected, "{mode} with {tokens:?} tokens");
        }
    }

    #[test]
    fn token_ring_hash_does_not_depend_on_order() {
        let hash = |tokens: &[&str]| token_ring_hash(&tokens.iter().map(|&token| token.to_owned()).collect::<Vec<_>>());
        assert_eq!(hash(&["-9", "10", "9"]), hash(&["9", "-9", "10"]));
        assert_ne!(hash(&["-9", "10", "9"]), hash(&["-9", "10"]));
        assert_ne!(hash(&["1", "23"]), hash(&["12", "3"]));
        // printf '["-9","9","10"]\n' | openssl dgst -sha512 -binary | base64
        assert_eq!(hash(&["10", "9", "-9"]), KNOWN);
    }

    const KNOWN: &str = "nqCdLL+ucXOhvFtuLIC4Nz96e/ABKMMO7b73AJBsq+khX92c2Z39RPNY9FWpEDVJuXo5/K2JBGNx1zcz+CA9HQ==";
}
